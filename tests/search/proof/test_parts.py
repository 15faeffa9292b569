"""Blocks together and one by one, parts of a proof and the whole, fewer positions: the same function each time."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Array, Float64
from mirage_cli.lax.domains.field import Residues
from mirage_cli.lax.dtypes import F16, F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.search.mugraph import evaluate
from mirage_cli.search.mugraph.evaluate import Tiles, evaluate_kernels, free_axes
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.proof import parts, stand_in
from mirage_cli.search.proof.evaluation_cost import cost, memory
from mirage_cli.search.proof.verify import verify
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.search.mutants import mutants
from tests.search.programs import attention, built, normed, one_kernel, program_of, tilings

Made = tuple[Program, KernelGraph, list[Tiles]]


def heads() -> Program:
    """softmax(q k) v for several heads."""

    def build(g: Graph) -> int:
        scores = compose.matmul(g, g.input("q", (5, 3, 4), F32), g.input("k", (5, 4, 7), F32))
        return compose.matmul(g, compose.softmax(g, scores, [-1]), g.input("v", (5, 7, 6), F32))

    return built(build)


def experts(count: int = 3, rows: int = 2, inner: int = 5, columns: int = 7) -> Program:
    """silu(x a) (x b) for several experts."""

    def build(g: Graph) -> int:
        x, a = g.input("x", (count, rows, inner), F32), g.input("a", (count, inner, columns), F32)
        gate = g.map("silu", compose.matmul(g, x, a))
        return g.map("mul", gate, compose.matmul(g, x, g.input("b", (count, inner, columns), F32)))

    return built(build)


def gram() -> Program:
    """x x^T."""

    def build(g: Graph) -> int:
        x = g.input("x", (6, 4), F32)
        return compose.matmul(g, x, g.transpose(x, (1, 0)))

    return built(build)


def sliced() -> Program:
    def build(g: Graph) -> int:
        return g.map("mul", g.slice(g.input("x", (9, 4), F32), 0, 2, 5), g.fill(2, F32))

    return built(build)


def numbered() -> Program:
    """Positions along one axis added to a product."""

    def build(g: Graph) -> int:
        y = compose.matmul(g, g.input("x", (3, 4), F32), g.input("w", (4, 5), F32))
        return g.map("add", y, g.iota(5, 1, 2, F32))

    return built(build)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "norm": normed,
    "attention": attention,
    "heads": heads,
    "experts": experts,
    "gated": lambda: program_of("gated_mlp_fp32"),
    "group norm": lambda: program_of("group_norm_linear_fp32"),
}


def made(p: Program) -> list[Made]:
    """Block graphs of several mappings, split reductions among them, with whole and with partial tiles."""
    blocks = Searcher(SearchOptions(candidates=2)).blocks(p)[0]
    chosen = blocks[:3] + [b for b in blocks[3:] if b.split][:2]
    return [(p, one_kernel(p, b), [t]) for b in chosen for t in tilings(p, b, {})]


def inputs(p: Program, d: Residues) -> dict[int, Array]:
    return {k: d.random(f"source {k}", [ex.value(e, {}) for e in s.dims]) for k, s in enumerate(p.sources)}


def residues(q: Program) -> Residues:
    return Residues([a.name for a in q.axes], 5)


def extents(p: Program) -> dict[str, int]:
    return {a.name: ex.value(a.extent, {}) for a in p.axes}


@functools.cache
def made_of(name: str) -> list[Made]:
    return made(PROGRAMS[name]())


# --- blocks together ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("limit", [1, 1 << 21])
def test_blocks_together_and_one_by_one(name: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "TOGETHER", limit)
    free = 0
    for p, graph, tiles in made_of(name):
        arrays = inputs(p, residues(p))
        one, two = (evaluate_kernels(graph, tiles, residues, arrays, alone=alone) for alone in (False, True))
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
        floats = {k: np.random.default_rng(k).normal(size=a.shape[1:]) for k, a in arrays.items()}
        make = lambda q: Float64([a.name for a in q.axes])
        one, two = (evaluate_kernels(graph, tiles, make, floats, alone=alone) for alone in (False, True))
        assert all(np.allclose(a, b, rtol=1e-12, atol=1e-13) for a, b in zip(one, two, strict=True))
        (kernel,) = graph.kernels
        free += len(free_axes(kernel.block, kernel.block.axes_of(kernel.program)))
    assert free


def test_as_many_blocks_together_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    p = experts(6, 8, 16, 32)
    block = next(b for b in Searcher(SearchOptions(candidates=2)).blocks(p)[0] if len(b.grid) > 1)
    axes, size = block.axes_of(p), extents(p)
    tiles = dict.fromkeys(block.grid, 2) | {"loop": 4}
    free = free_axes(block, axes)
    assert free
    for limit in (1, 16, 64, 256, 1 << 20):
        monkeypatch.setattr(evaluate, "TOGETHER", limit)
        steps = evaluate.positions_at_once(block, axes, tiles, size)
        assert all(steps[a] == 2 for a in block.grid if a not in free)
        assert all(steps[a] % 2 == 0 or steps[a] == size[a] for a in free)
        if limit == 1 << 20:
            assert all(steps[a] == size[a] for a in free)


def test_a_grid_axis_that_a_maximum_lacks_is_not_free() -> None:
    """Blocks along the columns of v have maxima of their own."""
    p = attention()
    column = next(s.axis for s in p.outputs[0].access[1:])
    graphs = [b for b in Searcher(SearchOptions(candidates=3)).blocks(p)[0] if column in b.grid]
    assert graphs
    for block in graphs:
        assert column not in free_axes(block, block.axes_of(p))
        assert column not in parts.independent_axes(p, one_kernel(p, block))


# --- parts --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_part_is_a_part_of_the_whole(name: str) -> None:
    """What a part computes from its part of the inputs is that part of what the whole computes."""
    found = 0
    for p, graph, tiles in made_of(name):
        arrays, size = inputs(p, residues(p)), extents(p)
        whole = evaluate_kernels(graph, tiles, residues, arrays), evaluate_program(p, residues(p), arrays)
        for axis in parts.independent_axes(p, graph):
            n = size[axis]
            for low, high in {(0, 1), (n - 1, n), (n // 3, n)}:
                q, smaller = parts.resized(p, graph, size | {axis: high - low})
                own = {k: _along(p, k, a, axis, low, high) for k, a in arrays.items()}
                sides = evaluate_kernels(smaller, tiles, residues, own), evaluate_program(q, residues(q), own)
                for part, all_ in zip(sides, whole, strict=True):
                    for o, a, b in zip(p.outputs, part, all_, strict=True):
                        assert np.array_equal(a, _cut(b, [s.axis for s in o.access], o.dims, axis, low, high))
                found += 1
    assert found


def _along(p: Program, source: int, a: Array, axis: str, low: int, high: int) -> Array:
    access = next(i.access for i in p.inputs if i.source == source)
    return _cut(a, [s.axis for s in access], [s.extent for s in access], axis, low, high)


def _cut(a: Array, axes: list[str | None], dims: object, axis: str, low: int, high: int) -> Array:
    """The range of an axis of a stored tensor whose slots walk `axes`."""
    if axis not in axes:
        return a
    return a.reshape(a.shape[:1] + tuple(int(e) for e in dims)).take(range(low, high), axis=1 + axes.index(axis))  # type: ignore[attr-defined]


def test_independent_axes() -> None:
    def axes(p: Program) -> list[set[str]]:
        return [set(parts.independent_axes(*m[:2])) for m in made(p)]

    for program in (normed(), experts()):
        stored = {s.axis for o in program.outputs for s in o.access}
        assert all(found == stored for found in axes(program))
    for program in (gram(), sliced()):
        walked = {s.axis for i in program.inputs for s in i.access if len(program.inputs) > 1 or s.offset}
        assert walked
        assert all(not found & walked for found in axes(program))
    p = numbered()
    (column,) = (n.axis for n in p.nodes if n.op == "iota")
    assert all(found and column not in found for found in axes(p))


@pytest.mark.parametrize("name", ["norm", "heads", "experts"])
def test_proofs_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same verdicts, on what is equal and on what is not, however small the parts are."""
    p, graph, tiles = made_of(name)[1]
    assert [part.where for part in parts.parts(p, graph, tiles, {}, 3)] == [""]
    monkeypatch.setattr(parts, "COMFORTABLE", 0)
    monkeypatch.setattr(parts, "_MORE_WORK", 1e9)
    monkeypatch.setattr(parts, "_LESS_MEMORY", 1.0)
    several = list(parts.parts(p, graph, tiles, {}, 3))
    assert len(several) > 3
    assert len({part.where for part in several}) == len(several)
    names = [name for k in range(len(p.sources)) for name in {part.names[k] for part in several}]
    assert len(names) > len(p.sources)
    assert len(set(names)) == len(names)
    produced = sum(np.prod([ex.value(e, {}) for e in part.program.outputs[0].dims]) for part in several)
    assert produced == np.prod([ex.value(e, {}) for e in p.outputs[0].dims])
    assert verify(p, graph, tiles).passed
    reasons = []
    for _, mutant, own in list(mutants(graph, tiles))[::3]:
        with contextlib.suppress(InvalidGraph):
            reasons.append(verify(p, mutant, own).reason)
    assert any(" of " in r and ".." in r for r in reasons)


def test_what_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    p, graph, tiles = made(gram())[0]
    monkeypatch.setattr(parts, "COMFORTABLE", 1000)
    monkeypatch.setattr(parts, "MEMORY_LIMIT", 2000)
    with pytest.raises(Refused, match="GB"):
        list(parts.parts(p, graph, tiles, {}, 3))
    verdict = verify(p, graph, tiles, extents="real")
    assert not verdict.passed
    assert "GB" in verdict.reason


# --- points -------------------------------------------------------------------------------------------------------------
def large(build: Callable[[], Program]) -> Made:
    p = build()
    best = Searcher(SearchOptions(candidates=1)).search(p, load_target("sm_90a")).candidates[0]
    return p, best.graph, [s.as_tiles() for s in best.schedules]


def test_real_extents_are_kept_where_they_matter() -> None:
    """Reduced axes have their real extents, the others as many positions as are enough; less work, hardly any memory."""
    p, graph, tiles = large(lambda: experts(8, 8, 4096, 4096))
    for real in (False, True):
        (point,) = stand_in.points(p, graph, tiles, real)
        assert point.real
        reduced = {a for n in p.nodes for a in n.over}
        for axis, extent in extents(point.program).items():
            assert extent == extents(p)[axis] or axis not in reduced
        assert cost(point.program, point.graph, tiles, {}) <= (stand_in.PATIENT if real else stand_in.AFFORDABLE)
        for part in point.parts(tiles, 3):
            assert memory(part.program, part.graph, tiles, {}, 3) <= parts.COMFORTABLE
    small, own, steps = made(experts())[0]
    assert stand_in.points(small, own, steps, True) == stand_in.points(small, own, steps)


def test_large_weights_are_held_in_parts() -> None:
    """The largest published case, whole: 268 million weights."""
    p, graph, tiles = large(lambda: replace_dtype(experts(8, 8, 4096, 4096)))
    assert memory(p, graph, tiles, {}, 3) > 3e9
    several = list(parts.parts(p, graph, tiles, {}, 3))
    assert all(memory(q.program, q.graph, tiles, {}, 3) <= parts.COMFORTABLE for q in several)
    assert sum(cost(q.program, q.graph, tiles, {}) for q in several) < 1.3 * cost(p, graph, tiles, {})


def replace_dtype(p: Program) -> Program:
    """The same in half precision."""
    outputs = tuple(replace(o, dtype=F16) for o in p.outputs)
    return replace(p, sources=tuple(replace(s, dtype=F16) for s in p.sources), outputs=outputs, _axes_of={})


def test_the_cost_grows_as_the_work_does() -> None:
    """Twice the weights, twice the estimate."""
    p, graph, tiles = large(lambda: experts(4, 8, 1024, 2048))
    (axis,) = {a for n in p.nodes for a in n.over}
    double = parts.resized(p, graph, extents(p) | {axis: 2048})
    assert 1.8 < cost(*double, tiles, {}) / cost(p, graph, tiles, {}) < 2.2
