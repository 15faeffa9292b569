"""Operators that only move elements: reshapes, transposes, slices, concatenations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import onnx_ir as ir

from mirage_cli.errors import Refused
from mirage_cli.frontends import sizes
from mirage_cli.frontends.onnx.ops.positions import Walk, along, walk
from mirage_cli.frontends.onnx.ops.registry import Call, Unread, dimension, number, reads
from mirage_cli.frontends.sizes import Size
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import BOOL, I64
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.graph import (
    Cast,
    Concat,
    Dims,
    Expand,
    Fill,
    Graph,
    Input,
    Map,
    Reshape,
    Slice,
    Transpose,
    Unpack,
)

TRAINING_IS_AN_INPUT, MASK_IS_TRUTH = 12, 10  #: the opsets from which on Dropout has these forms
MAX_RUNS = 64  #: arithmetic runs that a Gather with constant indices is cut into
NOTHING: Mapping[str, int] = MappingProxyType({})


@reads("Identity")
def _identity(call: Call) -> int:
    """The operand itself."""
    return call.arg(0)


@reads("Dropout")
def _dropout(call: Call) -> list[int | None]:
    """The operand itself; training is refused unless the ratio is 0. The mask says that all is kept, and before opset 12,
    as onnxruntime has it, that nothing is."""
    graph, x = call.graph, call.arg(0)
    if call.version < TRAINING_IS_AN_INPUT:
        kind = BOOL if call.version >= MASK_IS_TRUTH else graph.dtype(x)
        return [x, graph.expand(graph.fill(0, kind), graph.dims(x)) if call.wants(1) else None]
    if call.has(2) and graph.fill_value(call.arg(2)) != 0 and (not call.has(1) or graph.fill_value(call.arg(1)) != 0):
        raise Refused("training mode")
    return [x, graph.expand(graph.fill(1, BOOL), graph.dims(x)) if call.wants(1) else None]


@reads("Transpose")
def _transpose(call: Call) -> int:
    """`Transpose`."""
    rank = len(call.dims(0))
    return call.graph.transpose(call.arg(0), call.integers("perm", range(rank)[::-1]))


@reads("Reshape")
def _reshape(call: Call) -> int:
    """`Reshape`; 0 copies a dimension (unless allowzero), -1 is what remains."""
    graph, x = call.graph, call.arg(0)
    source, wanted = graph.dims(x), call.sizes(1)
    copied: list[Extent] = [
        source[i] if w == 0 and not call.integer("allowzero", 0) and i < len(source) else 1 if w == -1 else _extent(w)
        for i, w in enumerate(wanted)
    ]
    if -1 in wanted:
        copied[wanted.index(-1)] = _quotient(ex.product(source), ex.product(copied))
    return graph.reshape(x, copied)


def _extent(size: Size) -> Extent:
    try:
        return sizes.to_extent(size)
    except ValueError as error:
        raise Refused(str(error)) from None


def _quotient(total: Extent, part: Extent) -> Extent:
    count = ex.quotient(total, part)
    if count is None:
        raise Refused(f"{total} elements do not divide by {part}")
    return count


@reads("Flatten")
def _flatten(call: Call) -> int:
    """`Reshape` to two dimensions."""
    dims = call.dims(0)
    axis = call.integer("axis", 1)
    axis = axis + len(dims) if axis < 0 else axis
    return call.graph.reshape(call.arg(0), [ex.product(dims[:axis]), ex.product(dims[axis:])])


@reads("Squeeze")
def _squeeze(call: Call) -> int:
    """`Reshape` without dimensions of extent 1."""
    dims = call.dims(0)
    axes = call.axes(1, len(dims))
    gone = [i for i, e in enumerate(dims) if e == 1] if axes is None else axes
    if any(dims[i] != 1 for i in gone):
        raise Refused(f"dimensions {gone} of {call.graph.tensors[call.arg(0)]} are not all 1")
    return call.graph.reshape(call.arg(0), [e for i, e in enumerate(dims) if i not in gone])


@reads("Unsqueeze")
def _unsqueeze(call: Call) -> int:
    """`Reshape` with more dimensions of extent 1."""
    axes = call.listed("axes", 1)
    if axes is None:
        raise Refused("it has no axes")
    rank = len(call.dims(0)) + len(axes)
    new, old = [dimension(a, rank) for a in axes], iter(call.dims(0))
    if len(set(new)) != len(new):
        raise Refused(f"two of its axes are the same: {new}")
    return call.graph.reshape(call.arg(0), [1 if i in new else next(old) for i in range(rank)])


@reads("Expand")
def _expand(call: Call) -> int:
    """`Expand`."""
    return call.graph.expand(call.arg(0), call.extents(1))


@reads("Tile")
def _tile(call: Call) -> int:
    """`Expand` of an added dimension in front of each repeated one, then `Reshape`."""
    graph, x, repeats = call.graph, call.arg(0), call.extents(1)
    dims = graph.dims(x)
    if len(repeats) != len(dims):
        raise Refused(f"{len(repeats)} repeats for {len(dims)} dimensions")
    apart = graph.reshape(x, [e for d in dims for e in (1, d)])
    wide = graph.expand(apart, [e for pair in zip(repeats, dims, strict=True) for e in pair])
    return graph.reshape(wide, [ex.product(pair) for pair in zip(repeats, dims, strict=True)])


# --- Concat and Split -------------------------------------------------------------------------------------------------
def joined(graph: Graph, values: Sequence[int], axis: int) -> int:
    """A concatenation, in which a sum of symbolic extents gets its canonical name; all slices of a tensor in their order
    are that tensor. Raises Refused."""
    rank = len(graph.dims(values[0]))
    axis = dimension(axis, rank)
    rests = {graph.dims(v)[:axis] + graph.dims(v)[axis + 1 :] for v in values}
    if len(rests) > 1:
        raise Refused(
            f"tensors of dimensions {', '.join(str(graph.tensors[v]) for v in values)} cannot be concatenated"
        )
    values = [v for v in values if graph.dims(v)[axis] != 0] or list(values[:1])
    if len(values) == 1:
        return values[0]
    whole = _rejoined(graph, values, axis)
    if whole is not None:
        return whole
    total: Size = 0
    for v in values:
        total = total + sizes.from_extent(graph.dims(v)[axis])
    dims = list(graph.dims(values[0]))
    dims[axis] = _extent(total)
    return graph.record(Concat(axis), values, dims, graph.dtype(values[0]))


def _rejoined(graph: Graph, values: Sequence[int], axis: int) -> int | None:
    """The tensor of which the values are all slices, one after the other."""
    values = [_turned_back(graph, v) for v in values]
    if not all(isinstance(graph.steps[v], Slice) for v in values) or len({graph.inputs[v] for v in values}) > 1:
        return None
    (base,) = graph.inputs[values[0]]
    end: Size = sizes.from_extent(graph.dims(base)[axis])
    position: Size = 0
    for v in values:
        step = graph.steps[v]
        assert isinstance(step, Slice)
        start = step.start if step.start >= 0 else end + step.start
        if (step.dim, step.step) != (axis, 1) or start != position:
            return None
        position = position + sizes.from_extent(graph.dims(v)[axis])
    return base if position == end else None


def _turned_back(graph: Graph, v: int) -> int:
    """The value without two transpositions that undo each other."""
    outer = graph.steps[v]
    inner = graph.steps[graph.inputs[v][0]] if isinstance(outer, Transpose) else outer
    if not isinstance(outer, Transpose) or not isinstance(inner, Transpose):
        return v
    undone = [inner.perm[k] for k in outer.perm] == list(range(len(outer.perm)))
    return graph.inputs[graph.inputs[v][0]][0] if undone else v


@reads("Concat")
def _concat(call: Call) -> int:
    """`Concat`."""
    return joined(call.graph, call.args(), call.integer("axis", 0))


@reads("Split")
def _split(call: Call) -> list[int | None]:
    """A `Slice` for each output."""
    graph, x = call.graph, call.arg(0)
    axis = call.axis(0, len(graph.dims(x)))
    total, n = graph.dims(x)[axis], len(call.node.outputs)
    if call.integer("num_outputs", n) != n:
        raise Refused(f"it has {n} results and says another number of them")
    counts: list[Extent]
    if call.has(1):
        counts = call.extents(1)
    elif "split" in call.node.attributes:  # before opset 13
        counts = list(call.integers("split", ()))
    elif isinstance(total, int):
        chunk = math.ceil(total / n)  # the last one may be smaller
        counts = [*[chunk] * (n - 1), total - chunk * (n - 1)]
    else:
        counts = [_quotient(total, n)] * n
    results: list[int | None] = []
    start: Size = 0
    for count in counts:
        first = number(start, f"start of output {len(results)}")
        results.append(graph.slice(x, axis, first if count != 0 else 0, count))
        start = start + sizes.from_extent(count)
    if start != sizes.from_extent(total):
        raise Refused(f"parts of {', '.join(map(str, counts))} do not make up {total}")
    return results


# --- Slice and Gather -------------------------------------------------------------------------------------------------
@reads("Slice")
def _slice(call: Call) -> int:
    """A `Slice` for each axis; starts and ends are known."""
    graph, x = call.graph, call.arg(0)
    rank = len(graph.dims(x))
    starts, ends = _bounds(call, "starts", 1), _bounds(call, "ends", 2)
    axes = call.listed("axes", 3)
    axes = list(range(len(starts))) if axes is None else axes
    steps = call.ints(4) if call.has(4) else [1] * len(starts)
    fronts: dict[int, Extent] = {}  #: of dimensions that may end before what is asked of them
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        dim = dimension(axis, rank)
        extent = graph.dims(x)[dim]
        first_ones = sizes.first_of(extent, end, call.scope.least, call.scope.most) if (start, step) == (0, 1) else None
        last_ones = sizes.last_of(extent, start, end, call.scope.least, call.scope.most) if step == 1 else None
        if first_ones is not None:
            fronts[dim], reason = first_ones, f"the first {end} of {extent} elements: there may be fewer"
            continue
        if last_ones is not None:
            fronts[dim], reason = last_ones, f"elements from {start} on of a dimension of {extent}"
            continue
        first, count = slice_range(extent, start, end, step, call.scope.least)
        if not isinstance(count, int) and first > 0:
            call.scope.need(extent, first)
        x = graph.slice(x, dim, first, count, step) if count != 0 else graph.slice(x, dim, 0, 0)
    if fronts:  # a kernel would read beyond the end where the model fails
        raise Unread(reason, [fronts.get(d, e) for d, e in enumerate(graph.dims(x))])
    return x


def _bounds(call: Call, name: str, i: int) -> list[Size]:
    """The starts or ends of a slice: attributes before opset 10, then inputs."""
    return list(call.integers(name, ())) if name in call.node.attributes else call.sizes(i)


def slice_range(
    extent: Extent, start: Size, end: Size, step: int, least: Mapping[str, int] = NOTHING
) -> tuple[int, Extent]:
    """(first position, count) of a slice of a dimension, by ONNX's rules; symbols are not below their `least`. The last
    elements of a symbolic dimension start at a negative position. Raises Refused where sizes do not tell."""
    if isinstance(extent, int) and isinstance(start, int) and isinstance(end, int):
        positions = range(extent)[_slice_of(start, end, step)]
        return (positions[0] if positions else 0), len(positions)
    size = sizes.from_extent(extent)
    huge = 2**31 - 1
    if step != 1 or not isinstance(start, int) or start >= huge:
        raise Refused(f"a slice from {start} by {step} of a dimension of {extent}")
    if isinstance(end, int) and end >= huge:
        end = size
    elif isinstance(end, int) and end < 0:
        end = size + end
    if start < 0:
        return start, _last(size, end, -start, least)
    rest = size - end
    if not sizes.never_negative(rest):  # the end may lie behind the dimension's own
        raise Refused(f"a slice up to {end} of a dimension of {extent}")
    return start, _extent(end - start)


def _last(size: Size, end: Size, count: int, least: Mapping[str, int]) -> Extent:
    """Number of the last `count` positions that are before the `end` of a dimension. Raises Refused for another end."""
    if end != size:
        raise Refused(f"a slice from {-count} up to {end} of a dimension of {size}")
    try:
        kept = sizes.at_most(size, count)
    except ValueError as error:
        raise Refused(str(error)) from None
    filled = sizes.equality_bound(kept, count)
    return count if filled is not None and least.get(filled[0], 0) >= filled[1] else _extent(kept)


def _slice_of(start: int, end: int, step: int) -> slice:
    """ONNX's bounds as a Python slice: the end of a backward slice may lie before the first element."""
    limit = 2**31 - 1
    if step < 0 and end <= -limit:
        return slice(start, None, step)
    return slice(start, end, step)


@reads("Gather")
def _gather(call: Call) -> int:
    """`Slice`s for constant indices (joined by `Concat` where they are no run), rows of a weight by those of a TopK."""
    return gathered(call, call.arg(0), call.axis(0, len(call.dims(0))))


def gathered(call: Call, x: int, axis: int) -> int:
    """The elements of `x` at the indices that are input 1, whose dimensions take the place of dimension `axis`. Raises Refused
    where they are chosen at run time."""
    known = call.scope.known(call.tensor(1))
    if known is not None:
        return picked(call, x, axis, call.ints(1), known.shape)
    moving = walk(call, 1)
    if moving is None:
        return chosen(call, x, axis, call.arg(1))
    return _walked(call.graph, x, axis, moving, call.dims(1))


def chosen(call: Call, x: int, axis: int, index: int) -> int:
    """Rows of a weight by indices that are computed (input 1 in some dimensions), where these are known to be of rows that it
    has. Raises Refused."""
    graph, rows = call.graph, call.graph.dims(x)[axis]
    if axis or not isinstance(rows, int) or call.dtype(1) != I64 or (below := _below(call.tensor(1))) is None:
        raise Refused("its indices are not known when the model is read")
    if below > rows:
        raise Refused(f"its indices, below {below}, are not known to be rows of {rows}")
    if rows == 1 or graph.fill_value(x) is not None:  # all rows are alike
        row = graph.slice(x, 0, 0, 1)
        return graph.expand(graph.reshape(row, graph.dims(x)[1:]), (*graph.dims(index), *graph.dims(x)[1:]))
    return _rows_of(graph, x, index)


def _rows_of(graph: Graph, x: int, index: int) -> int:
    """Rows of what is computed of weights row by row: the same of these weights' rows. Raises Refused."""
    step, (rows, *own), of = graph.steps[x], graph.dims(x), graph.dims(index)

    def part(v: int) -> int:
        """The rows of an operand, or all of one that has no rows."""
        dims = graph.dims(v)
        if len(dims) == len(own) + 1 and dims[0] == rows:
            return _rows_of(graph, v, index)
        if len(dims) > len(own) and dims[0] != 1:
            raise Refused("chosen rows are no rows of the weights that they are computed of")
        return graph.reshape(v, dims[1:]) if len(dims) > len(own) else v

    match step:
        case Input(constant=True):
            return graph.choose(x, index)
        case Fill(value):
            return graph.fill(value, graph.dtype(x), (*of, *own))
        case Map(op):
            return graph.expand(graph.map(op, *map(part, graph.inputs[x]), dtype=graph.dtype(x)), (*of, *own))
        case Cast():
            return graph.cast(part(graph.inputs[x][0]), graph.dtype(x))
        case Unpack() if own:
            return graph.unpack(part(graph.inputs[x][0]), graph.dtype(x))
        case Expand():
            return graph.expand(part(graph.inputs[x][0]), (*of, *own))
        case Reshape() if graph.dims(v := graph.inputs[x][0])[:1] == (rows,):
            return graph.reshape(_rows_of(graph, v, index), (*of, *own))
        case Slice(dim, start, by) if dim:
            return graph.slice(part(graph.inputs[x][0]), dim - 1 + len(of), start, own[dim - 1], by)
    raise Refused("rows of what is no weight are chosen when the model runs")


_REARRANGING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Slice", "Expand")


def _below(index: ir.Value) -> int | None:
    """The number of positions among which indices that are not negative were found, or None."""
    maker = index.producer()
    while maker is not None and maker.op_type in _REARRANGING and (read := maker.inputs[0]) is not None:
        index, maker = read, read.producer()
    searched = maker.inputs[0] if maker is not None and maker.op_type in ("TopK", "ArgMax", "ArgMin") else None
    if maker is None or searched is None or maker.domain not in ("", "ai.onnx"):
        return None
    shape, found = searched.shape, 1 if maker.op_type == "TopK" else 0
    axis = maker.attributes.get_int("axis", -1 if found else 0)
    size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    return size if isinstance(size, int) and maker.outputs[found] is index else None


def picked(call: Call, x: int, axis: int, indices: list[int], shape: tuple[int, ...]) -> int:
    """As `taken`; it is noted that a symbolic dimension has the positions. Raises Refused."""
    call.scope.need(call.graph.dims(x)[axis], max(indices, default=0) + 1)
    return taken(call.graph, x, axis, indices, shape)


def _walked(graph: Graph, x: int, axis: int, w: Walk, out: Dims) -> int:
    """The elements at the positions of a walk, whose own dimensions `out` take the place of dimension `axis`."""
    before, after = graph.dims(x)[:axis], graph.dims(x)[axis + 1 :]
    x = along(graph, x, axis, w, 1 if w.dim is None else out[w.dim])
    x = graph.reshape(x, [*before, *(e if d == w.dim else 1 for d, e in enumerate(out)), *after])
    return graph.expand(x, [*before, *out, *after])


def taken(graph: Graph, x: int, axis: int, indices: list[int], shape: tuple[int, ...]) -> int:
    """numpy's `take` with known indices, which are given flat with their shape. Raises Refused."""
    dims = graph.dims(x)
    extent = dims[axis]
    if isinstance(extent, int):
        indices = [i + extent if i < 0 else i for i in indices]
    if not isinstance(extent, int) and any(i < 0 for i in indices):
        raise Refused(f"indices that count from the end of a dimension of {extent}")
    if any(i < 0 or (isinstance(extent, int) and i >= extent) for i in indices):
        raise Refused(f"indices outside a dimension of {extent}")
    times, each = repeats(indices)
    if times * each > 1:  # heads that several queries share
        own = indices[: len(indices) // times : each]
        y = taken(graph, x, axis, own, (1, len(own), 1))
        y = graph.expand(y, [*dims[:axis], times, len(own), each, *dims[axis + 1 :]])
        return graph.reshape(y, [*dims[:axis], *shape, *dims[axis + 1 :]])
    runs = arithmetic_runs(indices)
    if len(runs) > MAX_RUNS:
        raise Refused(f"its indices make {len(runs)} arithmetic runs, more than {MAX_RUNS}")
    parts = [graph.slice(x, axis, first, count, step) for first, count, step in runs]
    y = joined(graph, parts, axis) if parts else graph.slice(x, axis, 0, 0)
    return graph.reshape(y, [*dims[:axis], *shape, *dims[axis + 1 :]])


def repeats(indices: Sequence[int]) -> tuple[int, int]:
    """Number of times that a sequence repeats as a whole, and that each element of its period follows itself."""
    n = len(indices)
    period = next((p for p in range(1, n) if n % p == 0 and list(indices[p:]) == list(indices[:-p])), n)
    lengths = [len(list(run)) for _, run in itertools.groupby(indices[:period])]
    return (n // period, math.gcd(*lengths)) if n else (1, 1)


def arithmetic_runs(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """Indices as (first, count, step) runs, each as long as possible from the left."""
    runs: list[tuple[int, int, int]] = []
    i = 0
    while i < len(indices):
        step = indices[i + 1] - indices[i] if i + 1 < len(indices) else 1
        count = 1
        while step and i + count < len(indices) and indices[i + count] == indices[i] + count * step:
            count += 1
        if (
            count == 2 and i + 2 < len(indices) and step != 1
        ):  # two of any kind are no run: the second may start a longer one
            count = 1
        runs.append((indices[i], count, step if count > 1 else 1))
        i += count
    return runs


# --- blocks of space --------------------------------------------------------------------------------------------------
@reads("DepthToSpace")
def _depth_to_space(call: Call) -> int:
    """`Reshape`, `Transpose`, `Reshape`."""
    graph, x, b = call.graph, call.arg(0), call.integer("blocksize", 1)
    n, c, h, w = graph.dims(x)
    depth = _quotient(c, b * b)
    if call.text("mode", "DCR") == "DCR":
        y = graph.transpose(graph.reshape(x, [n, b, b, depth, h, w]), [0, 3, 4, 1, 5, 2])
    else:
        y = graph.transpose(graph.reshape(x, [n, depth, b, b, h, w]), [0, 1, 4, 2, 5, 3])
    return graph.reshape(y, [n, depth, ex.product([h, b]), ex.product([w, b])])


@reads("SpaceToDepth")
def _space_to_depth(call: Call) -> int:
    """`Reshape`, `Transpose`, `Reshape`."""
    graph, x, b = call.graph, call.arg(0), call.integer("blocksize", 1)
    n, c, h, w = graph.dims(x)
    high, wide = _quotient(h, b), _quotient(w, b)
    order = [0, 3, 5, 1, 2, 4] if call.text("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    y = graph.transpose(graph.reshape(x, [n, c, high, b, wide, b]), order)
    return graph.reshape(y, [n, ex.product([c, b * b]), high, wide])
