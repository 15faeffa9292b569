"""Several kernels: reductions over blocks as two kernels, cuts at stored values and between outputs, the best of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.dtypes import F16, F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.search.cuts import Branches, all_cuts, partitions
from mirage_cli.search.finish.kernels import Cuts, cut_values, grouped, link, one_kernel, stored_type
from mirage_cli.search.finish.split_reduction import two_kernels
from mirage_cli.search.mugraph.documents import graph_from_json, graph_to_json
from mirage_cli.search.mugraph.evaluate import evaluate_kernels
from mirage_cli.search.mugraph.mugraph import BlockGraph, KernelGraph
from mirage_cli.search.proof.verify import verify
from mirage_cli.search.schedules.cost import floor_us
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Candidate, Searcher, SearchOptions
from samples import cases
from tests.lax.programs import recorded
from tests.search.programs import attention, built, normed, program_of, same_in_floats, tilings
from tests.search.programs import one_kernel as single


def wide_attention(rows: int, keys: int, depth: int) -> Program:
    """softmax(q k) v with few rows and many keys."""

    def build(g: Graph) -> int:
        scores = compose.matmul(g, g.input("q", (rows, depth), F32), g.input("k", (depth, keys), F32))
        return compose.matmul(g, compose.softmax(g, scores, [-1]), g.input("v", (keys, depth), F32))

    return built(build)


def test_a_kernel_knows_which_of_its_sources_are_weights() -> None:
    """By the numbers of its own sources; what another kernel stored is none."""

    def build(g: Graph) -> int:
        x = compose.matmul(g, g.input("x", (16, 64), F32), g.input("a", (64, 8), F32, constant=True))
        return compose.matmul(g, g.map("exp", x), g.input("b", (8, 4096), F32, constant=True))

    p = built(build)
    parts = Cuts(p).parts([(next(n.name for n in p.nodes if n.op == "contract"),)])
    blocks = [Searcher(SearchOptions(candidates=1)).blocks(part)[0][0] for part, _ in parts]
    graph = link(p, parts, [one_kernel(part, b) for (part, _), b in zip(parts, blocks, strict=True)])
    found = [{p.sources[kernel.inputs[k]].dims for k in kernel.constants(p)} for kernel in graph.kernels]
    assert found == [{(64, 8)}, {(8, 4096)}]
    assert [len(kernel.inputs) for kernel in graph.kernels] == [2, 2]


def mlp(rows: int = 16, inner: int = 8192, middle: int = 8, outer: int = 1024) -> Program:
    """exp(x a) b, the first product long and narrow."""

    def build(g: Graph) -> int:
        x = compose.matmul(g, g.input("x", (rows, inner), F32), g.input("a", (inner, middle), F32))
        return compose.matmul(g, g.map("exp", x), g.input("b", (middle, outer), F32))

    return built(build)


def norm_product() -> Program:
    """x + y, and its norm times a."""
    g = Graph()
    total = g.map("add", g.input("x", (4, 64), F32), g.input("y", (4, 64), F32))
    normal = compose.rms_norm(g, total, [-1], 0.5)
    return canonical(recorded(g, [total, compose.matmul(g, normal, g.input("a", (64, 96), F32))]))


def two_outputs(inner: int = 64, wide: int = 96) -> Program:
    """x a and x b: nothing but x in common."""
    g = Graph()
    x = g.input("x", (4, inner), F32)
    weights = [g.input(n, (inner, k), F32) for n, k in (("a", wide), ("b", wide - 32))]
    return canonical(recorded(g, [compose.matmul(g, x, w) for w in weights]))


def split_blocks(p: Program) -> list[BlockGraph]:
    """Block graphs with a split reduction."""
    return [b for b in Searcher(SearchOptions(candidates=2)).blocks(p)[0] if b.split]


def prove(p: Program, graph: KernelGraph, seed: int = 0) -> None:
    """Field and floats, whole and partial tiles."""
    for which in (0, 1):
        tiles = [
            tilings(k.program, k.block, {s: 5 + 2 * n for n, s in enumerate(p.symbols)})[which] for k in graph.kernels
        ]
        assert same_in_floats(p, graph, tiles)
        verdict = verify(p, graph, tiles, seed)
        assert verdict.passed, verdict.reason


# --- reductions over blocks as two kernels ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "program",
    [
        lambda: attention(3, 12),
        lambda: normed(8),
        lambda: program_of("gqa_fp32"),
        lambda: program_of("lora_fp32"),
        lambda: program_of("rmsnorm_gain_linear_fp32"),
    ],
    ids=["attention", "norm", "gqa", "lora", "gain"],
)
def test_shares_are_combined(program: object) -> None:
    assert callable(program)
    p = program()
    made = 0
    for block in split_blocks(p):
        graph = two_kernels(p, block, 2 + 2 * (made % 2))
        assert len(graph.kernels) == 2
        assert graph_from_json(graph_to_json(graph)) == graph
        assert not any(k.block.split for k in graph.kernels)
        prove(p, graph)
        made += 1
    assert made >= 4


def test_rows_without_a_key() -> None:
    """A row of which everything is masked, and one of which one whole part is: the same as in one kernel."""
    p = attention(3, 8)
    mask = next(i.source for i in p.inputs if len(i.access) == 2 and {s.extent for s in i.access} == {3, 8})
    rng = np.random.default_rng(3)
    arrays = {k: rng.normal(size=[int(str(e)) for e in s.dims]) for k, s in enumerate(p.sources)}
    arrays[mask][0, :] = -np.inf
    arrays[mask][1, :4] = -np.inf

    def run(graph: KernelGraph) -> np.ndarray:  # type: ignore[type-arg]
        tiles = [tilings(k.program, k.block, {})[1] for k in graph.kernels]
        return evaluate_kernels(graph, tiles, lambda q: Float64([a.name for a in q.axes]), arrays)[0]

    seen = 0
    for block in split_blocks(p):
        if any(o.op == "grid_top" for o in block.ops):
            one, two = run(single(p, block)), run(two_kernels(p, block, 2))
            assert np.isfinite(one[1:]).all()
            np.testing.assert_allclose(one, two, rtol=1e-12)
            seen += 1
    assert seen >= 2


def test_what_has_no_parts() -> None:
    p = attention(3, 12)
    block = split_blocks(p)[0]
    with pytest.raises(Refused, match="has no 5 equal parts"):
        two_kernels(p, block, 5)
    with pytest.raises(Refused, match="has no 1 equal parts"):
        two_kernels(p, block, 1)
    with pytest.raises(Refused, match="splits 0 reduced axes"):
        two_kernels(p, replace(block, split=()), 2)


def test_positions_along_the_parts_are_refused() -> None:
    g = Graph()
    x = g.input("x", (3, 8), F32)
    p = canonical(recorded(g, [g.reduce("sum", g.map("mul", x, g.map("exp", g.iota(8, 1, 2, F32))), [1])]))
    blocks = [b for b in split_blocks(p) if any(o.op == "iota" for o in b.ops)]
    assert blocks
    for block in blocks:
        with pytest.raises(Refused, match="counts positions along"):
            two_kernels(p, block, 2)


def combined() -> tuple[Program, KernelGraph]:
    """Attention as partial results and their combination."""
    p = attention(3, 12)
    block = next(b for b in split_blocks(p) if any(o.op == "grid_top" for o in b.ops))
    return p, two_kernels(p, block, 2)


def test_a_stored_maximum_only_keeps_exponentials_small() -> None:
    """The proof puts an arbitrary number in its place, and exp(a - b) = a / b of these: nothing else may read it."""
    _, graph = combined()
    first, second = graph.kernels
    weight = next(o for o in second.block.ops if o.thread and o.thread.nodes[0].op == "exp_difference")
    assert weight.thread is not None

    def with_weight(op: str, inputs: tuple[int, ...]) -> KernelGraph:
        assert weight.thread is not None
        node = replace(weight.thread.nodes[0], op=op, inputs=inputs)
        changed = replace(weight, thread=replace(weight.thread, nodes=(node,)))
        ops = tuple(changed if o is weight else o for o in second.block.ops)
        return replace(graph, kernels=(first, replace(second, block=replace(second.block, ops=ops))))

    graph.validate()
    with pytest.raises(InvalidGraph, match="div of the maximum"):
        with_weight("div", (0, 1)).validate()
    sums = next(o for o in second.block.ops if o.op == "load" and o.name not in weight.inputs)
    ops = tuple(replace(o, inputs=(sums.name, o.inputs[1])) if o is weight else o for o in second.block.ops)
    broken = replace(graph, kernels=(first, replace(second, block=replace(second.block, ops=ops))))
    with pytest.raises(InvalidGraph, match="is no maximum"):
        broken.validate()
    maximum = next(
        t for t, v in zip(first.outputs, first.block.outputs, strict=True) if first.block.op(v).op == "running"
    )
    moved = {maximum: graph.sources, graph.sources: maximum}
    kernels = tuple(
        replace(k, inputs=tuple(moved.get(t, t) for t in k.inputs), outputs=tuple(moved.get(t, t) for t in k.outputs))
        for k in graph.kernels
    )
    with pytest.raises(InvalidGraph, match="output 0 is a maximum"):
        replace(graph, kernels=kernels).validate()


def test_parts_that_differ_between_kernels_are_refused() -> None:
    """Both kernels have the axis of parts; with another extent in one of them the shares would be read wrongly."""
    p, graph = combined()
    first, second = graph.kernels
    name = next(a.name for a in second.program.axes if a.name.endswith("_of2"))
    axes = tuple(replace(a, extent=1) if a.name == name else a for a in second.program.axes)
    broken = replace(graph, kernels=(first, replace(second, program=replace(second.program, axes=axes, _axes_of={}))))
    tiles = [tilings(k.program, k.block, {})[0] for k in graph.kernels]
    with pytest.raises(InvalidGraph, match=f"axis {name} = 1, elsewhere 2"):
        verify(p, broken, tiles)


# --- what the search finds ----------------------------------------------------------------------------------------------
def best(p: Program) -> Candidate:
    """The search's favourite on the CPU."""
    return Searcher(SearchOptions()).search(p, load_target("cpu")).candidates[0]


def test_few_rows_and_many_keys_are_shared_out() -> None:
    """The paper's FlashDecoding: partial results of parts of the keys with their maxima, then their combination."""
    first, second = best(wide_attention(16, 4096, 64)).graph.kernels
    assert [o.op for o in first.block.ops].count("contract") == 2
    assert {first.block.op(v).op for v in first.block.outputs} == {"running", "accum"}
    assert any(a.endswith("_of2") for a in first.block.grid)
    assert [o.op for o in second.block.ops].count("sum") == 2
    assert "contract" not in [o.op for o in second.block.ops]


def test_a_long_narrow_product_is_shared_out() -> None:
    """The first paper's MLP: partial sums, then one kernel that adds them up, applies exp and multiplies."""
    first, second = best(cases.program(cases.CASES["mlp"])).graph.kernels
    assert [o.op for o in first.block.ops].count("contract") == 1
    ops = [o.op for o in second.block.ops]
    assert (ops.count("sum"), ops.count("contract")) == (1, 1)


def test_outputs_with_axes_of_their_own_get_kernels_of_their_own() -> None:
    """Blocks of one kernel would split the axes of all outputs at once and compute each of them again and again."""
    p = two_outputs(512, 4096)
    graph = best(p).graph
    made = [[t - graph.sources for t in k.outputs if t < graph.sources + 2] for k in graph.kernels]
    assert sorted(m for m in made if m) == [[0], [1]]


def test_one_kernel_where_launches_are_dear() -> None:
    target = replace(load_target("cpu"), launch_us=1e6)
    found = Searcher(SearchOptions()).search(mlp(), target).candidates
    assert {len(c.graph.kernels) for c in found} == {1}


@pytest.mark.parametrize("most", [1, 2, 3])
def test_bound_on_kernels(most: int) -> None:
    for p in (mlp(), two_outputs(256, 512)):
        target = replace(load_target("cpu"), launch_us=1e-6)
        found = Searcher(SearchOptions(max_kernels=most)).search(p, target).candidates
        assert found
        assert max(len(c.graph.kernels) for c in found) <= most


def test_every_candidate_is_its_program() -> None:
    """Kernels of all kinds: shares combined, values stored, outputs shared out."""
    kinds: set[tuple[int, bool]] = set()
    for p in (wide_attention(4, 256, 16), mlp(4, 512, 8, 64), norm_product(), two_outputs(256, 512)):
        for name in ("cpu", "sm_80"):
            target = replace(load_target(name), launch_us=1e-6, fork_us=1e-3)
            found = Searcher(SearchOptions(candidates=1, schedules=2)).search(p, target).candidates
            several = [c for c in found if len(c.graph.kernels) > 1]
            for c in [*found[:1], *several[:3]]:
                tiles = [s.as_tiles() for s in c.schedules]
                parts = any("_of" in a.name for k in c.graph.kernels for a in k.program.axes)
                kinds.add((len(c.graph.kernels), parts))
                assert same_in_floats(p, c.graph, tiles)
                verdict = verify(p, c.graph, tiles)
                assert verdict.passed, verdict.reason
    assert {(1, False), (2, True), (2, False)} <= kinds


def test_jobs_change_nothing() -> None:
    p = program_of("lora_fp32")
    one, two = (Searcher(SearchOptions(jobs=n)).search(p, load_target("sm_80")) for n in (1, 2))
    assert one.candidates == two.candidates
    assert (one.statistics.values, one.statistics.refused) == (two.statistics.values, two.statistics.refused)


# --- cuts ---------------------------------------------------------------------------------------------------------------
def test_outputs_are_shared_out() -> None:
    assert partitions(1, 4) == [[[0]]]
    assert partitions(3, 2) == [[[0, 1, 2]], [[0, 1], [2]], [[0, 2], [1]], [[0], [1, 2]]]
    assert len(partitions(4, 4)) == 15
    assert partitions(9, 4) == [[[*range(9)]]]
    p = two_outputs()
    for outputs in ([[0], [1]], [[1], [0]]):
        parts = Cuts(p).parts((), outputs)
        blocks = [Searcher(SearchOptions(candidates=1)).blocks(part)[0][0] for part, _ in parts]
        graph = link(p, parts, [one_kernel(part, b) for (part, _), b in zip(parts, blocks, strict=True)])
        assert [k.outputs for k in graph.kernels] == [(graph.sources + g[0],) for g in outputs]
        assert graph.tensors == graph.sources + 2
        prove(p, graph)


def test_values_of_one_kernel() -> None:
    """Two products of one input are stored by one kernel, which a gated MLP's last multiplication reads."""
    p = program_of("gated_mlp_fp32")
    products = [v for v in cut_values(p) if p.node(v).op == "contract"]  # type: ignore[union-attr]
    assert grouped(p, products) == (tuple(products),)
    parts = Cuts(p).parts(grouped(p, products))
    blocks = [Searcher(SearchOptions(candidates=1)).blocks(part)[0][0] for part, _ in parts]
    graph = link(p, parts, [one_kernel(part, b) for (part, _), b in zip(parts, blocks, strict=True)])
    assert [len(k.outputs) for k in graph.kernels] == [2, 1]
    prove(p, graph)
    chain = cut_values(program_of("gqa_fp32"))
    assert all(len(g) == 1 for g in grouped(program_of("gqa_fp32"), chain[:1]))


@pytest.mark.parametrize("seed", range(4))
def test_branch_and_bound_finds_the_best_cut(seed: int) -> None:
    """With scores at random above the bounds: the best cut of all, or one that is hardly better than what is known."""
    p = program_of("norm_gated_mlp_fp32")
    target = load_target("cpu")
    rng = np.random.default_rng(seed)
    drawn: dict[str, dict[int, float]] = {}

    def bound(part: Program) -> float:
        return target.launch_us + floor_us(part, target)

    def scores(part: Program) -> dict[int, float]:
        key = part.key()
        if key not in drawn:
            drawn[key] = {n: bound(part) * float(rng.uniform(1.0, 3.0)) for n in (1, 2)}
        return drawn[key]

    cuts = all_cuts(p, 4)

    def worth(cut: list[tuple[Program, tuple[str, ...]]]) -> float:
        ways = [[(n, s) for n, s in scores(part).items()] for part, _ in cut]
        return min(
            (sum(s for _, s in w) for w in itertools.product(*ways) if sum(n for n, _ in w) <= 4), default=math.inf
        )

    branches = Branches(p, 4, bound, lambda parts: [scores(part) for part in parts])
    found = branches.run(math.inf, lambda _: False)
    searched = len(drawn)
    least = min(worth(c) for c in cuts)
    assert searched < len(drawn)
    assert least <= worth(found[0]) <= least / 0.9 + 1e-9
    assert [worth(c) for c in found] == sorted(worth(c) for c in found)
    assert not branches.run(1e-6, lambda _: False)


def test_parts_are_not_searched_without_an_end() -> None:
    """No part can be computed: as many as a search may spend are asked for."""
    p, asked = program_of("norm_gated_mlp_fp32"), list[Program]()

    def scores(parts: Sequence[Program]) -> list[dict[int, float]]:
        asked.extend(parts)
        return [{} for _ in parts]

    told: list[float] = []

    def spent(gain: float) -> bool:
        told.append(gain)
        return len(asked) > 1

    assert not Branches(p, 4, lambda _: 1.0, scores).run(math.inf, spent)
    assert 2 <= len(asked) < len(all_cuts(p, 4))
    assert set(told) == {math.inf}


def test_what_only_products_read_is_stored_in_their_type() -> None:
    """A gated layer with its down projection: the gate is rounded in front of the product anyway, its parts are not."""

    def build(g: Graph) -> int:
        x, w, v, d = (g.input(n, s, F16) for n, s in (("x", (4, 16)), ("w", (16, 24)), ("v", (16, 24)), ("d", (24, 8))))
        gate, up = compose.linear(g, x, w), compose.linear(g, x, v)
        return compose.linear(g, g.map("mul", g.map("silu", gate), up), d)

    p = built(build)
    made, products = {n.name for n in p.nodes}, [n for n in p.nodes if n.op == "contract"]
    inner = next(i for i in products[-1].inputs if i in made)
    assert [stored_type(p, v) for v in (inner, products[0].name)] == [F16, F32]
    first, last = Cuts(p).parts([(inner,)])
    assert first[0].outputs[0].dtype == F16
    assert last[0].sources[last[1].index(inner)].dtype == F16
