"""Operators that pick or place elements by indices: views and concatenations where the indices walk along dimensions.

Indices that are chosen at run time (experts of a token, the last word of a text) are refused.
"""

from __future__ import annotations

from mirage_cli.errors import Refused
from mirage_cli.frontends.onnx.ops.positions import Walk, along, walk, walks
from mirage_cli.frontends.onnx.ops.registry import Call, reads
from mirage_cli.frontends.onnx.ops.views import MAX_RUNS, chosen, joined
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.graph import Dims, Graph

_UNKNOWN = "its indices are not known when the model is read"


def _known_walks(given: list[Walk | None]) -> list[Walk]:
    """All of the walks. Raises Refused when one is not known."""
    known = [w for w in given if w is not None]
    if len(known) != len(given):
        raise Refused(_UNKNOWN)
    return known


@reads("GatherND")
def _gather_nd(call: Call) -> int:
    """`Slice`, `Transpose`, `Expand` for indices that walk along dimensions, like `Gather` those of a TopK; others refused"""
    if call.integer("batch_dims", 0):
        raise Refused("indices for each entry of a batch")
    x, out = call.arg(0), call.dims(1)[:-1]
    if call.graph.fill_value(x) is not None:
        return _same(call.graph, x, (*out, *call.dims(0)[_count(call) :]))
    if _count(call) == 1 and walks(call, 1) == [None]:
        return chosen(call, x, 0, call.graph.reshape(call.arg(1), out))
    return _view(call.graph, x, _known_walks(walks(call, 1)), out)


def _count(call: Call) -> int:
    """Number of dimensions that are indexed."""
    count = call.dims(1)[-1]
    if not isinstance(count, int):
        raise Refused(f"{count} indices for each element")
    return count


def _same(graph: Graph, x: int, dims: Dims) -> int:
    """Elements of a tensor whose elements are all equal."""
    value = graph.fill_value(x)
    assert value is not None
    return graph.fill(value, graph.dtype(x), dims)


def _view(graph: Graph, x: int, taken: list[Walk], out: Dims) -> int:
    """The elements of `x` at [taken[0], taken[1], ...] for all positions of `out`, which are in front of the rest."""
    moving = [w.dim for w in taken if w.dim is not None]
    if len(set(moving)) != len(moving):
        raise Refused("indices along a diagonal")
    for dim, w in enumerate(taken):
        x = along(graph, x, dim, w, 1 if w.dim is None else out[w.dim])
    rest = graph.dims(x)[len(taken) :]
    x = graph.reshape(x, [*(out[d] for d in moving), *rest])
    order = sorted(range(len(moving)), key=moving.__getitem__)
    x = graph.transpose(x, [*order, *range(len(moving), len(moving) + len(rest))])
    x = graph.reshape(x, [*(e if d in moving else 1 for d, e in enumerate(out)), *rest])
    return graph.expand(x, [*out, *rest])


@reads("GatherElements")
def _gather_elements(call: Call) -> int:
    """`Slice`s for indices that walk along the axis or stand still; others are refused."""
    graph, x, out = call.graph, call.arg(0), call.dims(1)
    if graph.fill_value(x) is not None:
        return _same(graph, x, out)
    axis = call.axis(0, len(out))
    (taken,) = _known_walks([walk(call, 1)])
    if taken.dim not in (None, axis):
        raise Refused("indices along a diagonal")
    x = along(graph, x, axis, taken, out[axis])
    for dim, extent in enumerate(out):
        if dim != axis:
            x = along(graph, x, dim, Walk(0, dim, 1), extent)
    return graph.expand(x, out)


@reads("ScatterND")
def _scatter_nd(call: Call) -> int:
    """`Concat` of parts of the operand and of the updates, along one dimension at known positions; others are refused."""
    graph, x, updates = call.graph, call.arg(0), call.arg(2)
    if call.text("reduction", "none") != "none":
        raise Refused(f"reduction {call.text('reduction', 'none')!r}")
    if len(call.dims(1)) != 2 or _count(call) != 1:
        raise Refused("updates along several dimensions")
    (taken,) = _known_walks(walks(call, 1))
    return _scattered(graph, x, updates, taken)


def _scattered(graph: Graph, x: int, updates: int, taken: Walk) -> int:
    """`x` with `updates` at the positions of its first dimension that are taken."""
    extent, count = graph.dims(x)[0], graph.dims(updates)[0]
    if (taken, count) == (Walk(0, 0, 1), extent):
        return updates
    runs = _contiguous_runs(_places(taken, count, extent))
    if len(runs) > MAX_RUNS:
        raise Refused(f"its indices make {len(runs)} runs, more than {MAX_RUNS}")
    parts, end = list[int](), 0
    for first, update, length in runs:
        parts += [graph.slice(x, 0, end, first - end)] if first > end else []
        parts.append(graph.slice(updates, 0, update, length))
        end = first + length
    assert isinstance(extent, int)
    parts += [graph.slice(x, 0, end, extent - end)] if extent > end else []
    return joined(graph, parts, 0)


def _places(taken: Walk, count: Extent, extent: Extent) -> dict[int, int]:
    """For each position that is updated the number of its update. Raises Refused."""
    if not isinstance(count, int) or not isinstance(extent, int):
        raise Refused(f"{count} updates from {taken.start} on in a dimension of {extent}")
    places = {taken.start + taken.step * i + (extent if taken.start < 0 else 0): i for i in range(count)}
    if len(places) != count:
        raise Refused("several updates of one element")
    if any(not 0 <= p < extent for p in places):
        raise Refused(f"updates outside of a dimension of {extent}")
    return places


def _contiguous_runs(places: dict[int, int]) -> list[tuple[int, int, int]]:
    """Neighbouring positions whose updates are neighbours too, as (position, update, length)."""
    runs: list[tuple[int, int, int]] = []
    for place, update in sorted(places.items()):
        if runs and (place, update) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((place, update, 1))
    return runs
