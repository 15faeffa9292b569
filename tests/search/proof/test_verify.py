"""The verifier: accepts what is equal, rejects what is not, says with what probability it errs, and takes its time."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_cli.errors import InvalidGraph, MirageError
from mirage_cli.lax import extents as ex
from mirage_cli.lax.bounds.bound import Arguments
from mirage_cli.lax.dtypes import F16, F32
from mirage_cli.lax.extents import symbol, value
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.search.finish.kernels import assemble, split
from mirage_cli.search.mugraph.evaluate import Tiles, evaluate_kernels
from mirage_cli.search.mugraph.mugraph import (
    BODY,
    EPILOGUE,
    PROLOGUE,
    BlockGraph,
    BlockOp,
    KernelGraph,
    ThreadGraph,
    ThreadNode,
)
from mirage_cli.search.proof import degrees
from mirage_cli.search.proof import verify as proofs
from mirage_cli.search.proof.verify import Verdict, verify
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.lax.bounds.quotients import Functions, Quotients, variables
from tests.lax.programs import graphs, recorded
from tests.search.mutants import mutants
from tests.search.programs import attention, built, normed, one_kernel, program_of, same_in_floats, tilings

PROPERTY = settings(max_examples=12, derandomize=True, deadline=None, database=None)
MINUS = ThreadGraph(2, (ThreadNode("exp_minus", (0, 1)),))
QUOTIENT = ThreadGraph(2, (ThreadNode("div", (0, 1)),))


def found(p: Program, kind: str = "cpu", count: int = 3) -> list[tuple[KernelGraph, list[Tiles]]]:
    """The best candidates of the search, with partial tiles."""
    searcher = Searcher(SearchOptions(candidates=2))
    candidates = searcher.search(p, load_target("cpu" if kind == "cpu" else "sm_80")).candidates
    made = []
    for c in candidates[:count]:
        tiles = [tilings(k.program, k.block, dict.fromkeys(p.symbols, 5))[1] for k in c.graph.kernels]
        made.append((c.graph, tiles))
    assert made
    return made


def split_reduction(p: Program) -> tuple[KernelGraph, list[Tiles]]:
    """A block graph in which blocks share a reduction."""
    block = next(g for g in Searcher(SearchOptions(candidates=2)).blocks(p)[0] if g.split)
    return one_kernel(p, block), [tilings(p, block, {})[1]]


# --- what is equal is accepted ------------------------------------------------------------------------------------------
@PROPERTY
@given(graphs(contractions=1))
def test_what_the_search_yields_for_random_programs(made: tuple[Graph, int]) -> None:
    g, out = made
    p = canonical(recorded(g, [out]))
    for block in Searcher(SearchOptions(candidates=1)).blocks(p)[0][:3]:
        for tiles in tilings(p, block, {}):
            verdict = verify(p, one_kernel(p, block), [tiles])
            assert verdict.passed or "error bound" in verdict.reason, verdict.reason


@pytest.mark.parametrize("name", ["gated_mlp_fp32", "lora_fp32", "attention_softcap_fp32", "group_norm_linear_fp32"])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_what_the_search_yields_for_samples(name: str, kind: str) -> None:
    p = program_of(name)
    for graph, tiles in found(p, kind):
        verdict = verify(p, graph, tiles)
        assert verdict.passed, verdict.reason
        assert verdict.log2_bound < -40
        assert verdict.extents == "real"


def test_blocks_that_share_a_reduction() -> None:
    for p in (normed(), attention()):
        graph, tiles = split_reduction(p)
        assert verify(p, graph, tiles).passed


# --- what is not is rejected --------------------------------------------------------------------------------------------
BASES: dict[str, Callable[[], tuple[Program, KernelGraph, list[Tiles]]]] = {
    "norm": lambda: (normed(), *found(normed())[0]),
    "attention": lambda: (attention(), *found(attention())[0]),
    "shared norm": lambda: (normed(), *split_reduction(normed())),
    "shared attention": lambda: (attention(), *split_reduction(attention())),
    "two kernels": lambda: _two_kernels(normed()),
    "gated": lambda: (program_of("gated_mlp_fp32"), *found(program_of("gated_mlp_fp32"))[0]),
}


def _two_kernels(p: Program) -> tuple[Program, KernelGraph, list[Tiles]]:
    cut = next(n.name for n in p.nodes if n.op == "sum")
    parts = split(p, (cut,))
    blocks = [Searcher(SearchOptions(candidates=1)).blocks(part)[0][0] for part, _ in parts]
    graph = assemble(p, parts, blocks)
    return p, graph, [tilings(k.program, k.block, {})[1] for k in graph.kernels]


@pytest.mark.parametrize("base", BASES)
def test_mutants(base: str) -> None:
    """Each mutant is refused, is rejected, or is equal in floats too."""
    p, graph, tiles = BASES[base]()
    assert verify(p, graph, tiles).passed
    rejected = equal = 0
    for what, mutant, own in mutants(graph, tiles):
        try:
            verdict = verify(p, mutant, own, seed=3)
        except InvalidGraph:
            rejected += 1
            continue
        if not verdict.passed:
            rejected += 1
            continue
        equal += 1
        assert same_in_floats(p, mutant, own), f"{what} was accepted:\n{mutant.text()}"
    assert rejected > 25
    assert equal < rejected / 3


@PROPERTY
@given(graphs(contractions=1), st.data())
def test_mutants_of_random_programs(made: tuple[Graph, int], data: st.DataObject) -> None:
    g, out = made
    p = canonical(recorded(g, [out]))
    blocks = Searcher(SearchOptions(candidates=1)).blocks(p)[0][:1]
    for block in blocks:
        graph, tiles = one_kernel(p, block), tilings(p, block, {})[1]
        every = list(mutants(graph, [tiles]))
        for k in data.draw(st.lists(st.integers(0, len(every) - 1), max_size=12)):
            what, mutant, own = every[k]
            try:
                passed = verify(p, mutant, own).passed
            except InvalidGraph:
                continue
            assert not passed or same_in_floats(p, mutant, own), f"{what} was accepted:\n{mutant.text()}"


@pytest.mark.parametrize("constant", [0.5, 1.0, 0.4204])
def test_a_constant_that_is_almost_right(constant: float) -> None:
    """The difference is far below what floats show."""

    def build(g: Graph, c: float) -> int:
        return g.map("mul", g.map("add", g.input("x", (3,), F32), g.fill(c, F32)), g.input("y", (3,), F32))

    p, q = (built(lambda g, c=c: build(g, c)) for c in (constant, constant + 2.0**-50))  # type: ignore[misc]
    graph, tiles = found(p)[0]
    assert verify(p, graph, tiles).passed
    assert not verify(q, graph, tiles).passed


def test_arbitrary_factors_of_two_kernels_are_independent() -> None:
    """exp(x - m) of one kernel over the sum of exp(x - m') of another: right only if both maxima are the same number."""
    p = built(lambda g: compose.softmax(g, g.input("x", (3, 7), F32), [-1]))
    total = next(n for n in p.nodes if n.op == "sum")
    row, (column,) = p.axes_of(total.name), total.over
    over = (column,)
    load = BlockOp("x", "load", (), PROLOGUE, source_value=p.inputs[0].name)
    top = BlockOp("m", "top", ("x",), PROLOGUE, over)
    power = BlockOp("e", "thread", ("x", "m"), PROLOGUE, thread=MINUS)
    sum_ = BlockOp("s", "sum", ("e",), PROLOGUE, over)
    last = BlockOp("q", "thread", ("e", "s"), PROLOGUE, thread=QUOTIENT)
    whole = BlockGraph(tuple(row), (), None, (load, top, power, sum_, last), ("q",))
    tiles = dict.fromkeys(row, 2)
    assert verify(p, one_kernel(p, whole), [tiles]).passed
    parts = split(p, (total.name,))
    sums = BlockGraph(tuple(row), (), None, (load, top, power, sum_), ("s",))
    stored = BlockOp("s", "load", (), PROLOGUE, source_value=total.name)
    quotients = BlockGraph(tuple(row), (), None, (load, stored, top, power, last), ("q",))
    verdict = verify(p, assemble(p, parts, [sums, quotients]), [tiles, tiles])
    assert not verdict.passed
    assert "differs" in verdict.reason


def test_axes_of_kernels_alone_are_parts_of_tensors() -> None:
    """A reduction of all rows may walk them as one axis, of as many positions as there are and of no others."""
    g = Graph()
    x = g.input("x", (symbol("batch"), symbol("seq"), 4), F32)
    whole = g.map("sub", x, g.reduce("max", x, [0, 1, 2]))
    p = canonical(recorded(g, [compose.matmul(g, whole, g.input("w", (4, 5), F32, True))]))
    graph, tiles = found(p)[0]
    (kernel, *others) = graph.kernels
    own = [a.extent for a in p.axes]
    wide = next(a for a in kernel.program.axes if ex.names(a.extent) and a.extent not in own)
    assert verify(p, graph, tiles).passed
    for extent in (symbol("batch2"), ex.product([3, wide.extent])):
        other = replace(wide, extent=extent)
        axes = tuple(other if a is wide else a for a in kernel.program.axes)
        program = replace(kernel.program, axes=axes, _axes_of={})
        with pytest.raises(InvalidGraph):
            verify(p, replace(graph, kernels=(replace(kernel, program=program), *others)), tiles)


def test_kernels_of_other_extents_or_types_are_refused() -> None:
    p = normed(7)
    graph, tiles = found(p)[0]
    longer, _ = found(normed(8))[0]
    with pytest.raises(InvalidGraph, match="axis"):
        verify(p, longer, tiles)
    (kernel,) = graph.kernels
    sources = (replace(kernel.program.sources[0], dtype=F16), *kernel.program.sources[1:])
    half = replace(graph, kernels=(replace(kernel, program=replace(kernel.program, sources=sources, _axes_of={})),))
    with pytest.raises(InvalidGraph, match="f16"):
        verify(p, half, tiles)
    for wrong in (replace(graph, sources=graph.sources + 1, tensors=9), replace(graph, outputs=2)):
        with pytest.raises(InvalidGraph):
            verify(p, wrong, tiles)
    with pytest.raises(InvalidGraph):
        verify(p, graph, [*tiles, {}])


# --- points -------------------------------------------------------------------------------------------------------------
def test_seeds_have_points_of_their_own() -> None:
    """Also seeds that begin with the same digit."""
    p = normed()
    graph, tiles = found(p)[0]
    primes = [verify(p, graph, tiles, seed).primes for seed in (0, 1, 10, 11, 1000001)]
    assert len(set(primes)) == len(primes)
    assert verify(p, graph, tiles, 1).primes == primes[1]


def test_a_point_where_a_denominator_vanishes_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    p = built(lambda g: g.map("div", g.input("x", (64,), F32), g.input("y", (64,), F32)))
    graph, tiles = found(p)[0]
    drawn: list[tuple[int, ...]] = []

    def primes(seed: int, count: int) -> tuple[int, ...]:
        drawn.append((2,) * count if len(drawn) < 3 else proofs_random_primes(seed, count))
        return drawn[-1]

    proofs_random_primes = proofs.random_primes
    monkeypatch.setattr(proofs, "random_primes", primes)
    verdict = verify(p, graph, tiles)
    assert verdict.passed
    assert len(drawn) == 4
    assert len(set(drawn[3])) == 3
    assert verdict.primes == drawn[3]


def test_a_denominator_that_is_zero_everywhere() -> None:
    def build(g: Graph) -> int:
        x = g.input("x", (5,), F32)
        return g.map("div", x, g.map("sub", g.map("mul", x, x), g.map("mul", x, x)))

    g = Graph()
    p = recorded(g, [build(g)])
    op = BlockOp("v", "load", (), PROLOGUE, source_value=p.inputs[0].name)
    graph = one_kernel(p, BlockGraph((), (), None, (op,), ("v",)))
    verdict = verify(p, graph, [{}])
    assert not verdict.passed
    assert "division by zero" in verdict.reason


def test_the_confidence_is_reached_or_refused() -> None:
    p = attention()
    graph, tiles = found(p)[0]
    modest, high = verify(p, graph, tiles, confidence=20), verify(p, graph, tiles, confidence=150)
    assert len(modest.primes) == proofs.MIN_FIELDS < len(high.primes)
    assert high.passed
    assert high.log2_bound <= -150
    beyond = verify(p, graph, tiles, confidence=100000)
    assert not beyond.passed
    assert "error bound" in beyond.reason


# --- the figures of the bound -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("base", ["norm", "shared norm", "two kernels"])
def test_figures_of_kernels_cover_what_is_multiplied_out(base: str) -> None:
    p, graph, tiles = {
        "norm": lambda: (small := _tiny(), *found(small)[0]),
        "shared norm": lambda: (small := _tiny(), *split_reduction(small)),
        "two kernels": lambda: _two_kernels(_tiny()),
    }[base]()
    _covered(p, graph, tiles)


def test_figures_of_running_maxima_cover_what_is_multiplied_out() -> None:
    p = _tiny_attention()
    blocks = [g for g in Searcher(SearchOptions(candidates=2)).blocks(p)[0] if any(o.op == "running" for o in g.ops)]
    assert blocks
    for block in blocks[:2]:
        tiles = tilings(p, block, {})[1]
        _covered(p, one_kernel(p, block), [tiles])


def _tiny() -> Program:
    def build(g: Graph) -> int:
        x, w = g.input("x", (2, 3), F32), g.input("w", (3, 1), F32, True)
        return compose.matmul(g, compose.rms_norm(g, x, [-1], 0.5), w)

    return built(build)


def _tiny_attention() -> Program:
    def build(g: Graph) -> int:
        weights = compose.softmax(g, g.input("x", (1, 3), F32), [-1])
        return compose.matmul(g, weights, g.input("v", (3, 1), F32))

    return built(build)


def _covered(p: Program, graph: KernelGraph, tiles: list[Tiles]) -> None:
    """The exact numerators of the difference of both sides, and their arguments, are within the figures."""
    assert verify(p, graph, tiles).passed
    worst, arguments = degrees.figures(p, graph, tiles, {})
    functions = Functions()
    arrays = {k: variables(f"s{k}", [value(e, {}) for e in s.dims]) for k, s in enumerate(p.sources)}

    def domain(q: Program) -> Quotients:
        return Quotients([a.name for a in q.axes], functions)

    wanted = evaluate_program(p, domain(p), arrays, {})
    made = evaluate_kernels(graph, tiles, domain, arrays, {})
    for a, b in zip(wanted[0].ravel(), made[0].ravel(), strict=True):
        left, right = a.differs(b)
        assert max(left.degree, right.degree) <= worst.degree
        assert np.logaddexp2(left.bits, right.bits) <= worst.bits + 1e-9
        assert len(a.arguments | b.arguments) <= worst.applications
    assert isinstance(arguments, Arguments)
    assert all(args and arguments.degree >= max(n.degree + d.degree for n, d in args) for _, args in functions.known)


def test_the_figures_of_a_kernel_that_walks_its_axis_grow_with_the_iterations() -> None:
    """Denominators that differ between iterations multiply; one that stays does not."""

    def build(g: Graph) -> int:
        x, y = g.input("x", (1, 8), F32), g.input("y", (1, 8), F32)
        return g.reduce("sum", g.map("div", x, y), [1])

    p = built(build)
    axis = p.axes[0].name
    loads = [BlockOp(i.name, "load", (), BODY, source_value=i.name) for i in p.inputs]
    ops = (
        *loads,
        BlockOp("q", "thread", ("x0", "x1"), BODY, thread=QUOTIENT),
        BlockOp("s", "sum", ("q",), BODY, (axis,)),
        BlockOp("t", "accum", ("s",), EPILOGUE),
    )
    graph = one_kernel(p, BlockGraph((), (), axis, ops, ("t",)))
    for step in (1, 2, 3, 8):
        assert verify(p, graph, [{"loop": step}]).passed
        worst, _ = degrees.figures(p, graph, [{"loop": step}], {})
        assert 16 <= worst.degree <= 2 * (8 + step)


def test_the_verdict_is_data() -> None:
    p = normed()
    graph, tiles = found(p)[0]
    verdict = verify(p, graph, tiles)
    assert isinstance(verdict, Verdict)
    data: dict[str, Any] = verdict.to_json()
    assert data["error_bound"] == pytest.approx(2.0**verdict.log2_bound)
    assert {"mode", "primes", "degree", "applications", "rounds", "seconds"} <= data.keys()
    assert issubclass(InvalidGraph, MirageError)


def test_the_worked_example_of_the_documentation() -> None:
    """docs/proof.md tells the figures of this muGraph."""

    def build(g: Graph) -> int:
        q, k = g.input("q", (3, 10, 16), F32), g.input("k", (3, 16, 48), F32)
        scores = compose.scale(g, compose.matmul(g, q, k), 0.25)
        weights = compose.softmax(g, g.map("add", scores, g.input("m", (10, 48), F32)), [-1])
        return compose.matmul(g, weights, g.input("v", (3, 48, 16), F32))

    p = built(build)
    (scores,) = [n for n in p.nodes if n.op == "contract" and not set(n.inputs) - {i.name for i in p.inputs}]
    (mask,) = [i.name for i in p.inputs if len(i.access) == 2]
    (values,) = [i.name for i in p.inputs if i.name not in (*scores.inputs, mask)]
    (keys,) = next(n.over for n in p.nodes if n.op == "stable_exp")
    score = ThreadGraph(
        2, (ThreadNode("const", (), Fraction(1, 4)), ThreadNode("mul", (1, 2)), ThreadNode("add", (0, 3)))
    )
    ops = (
        *(BlockOp(f"l{i.name}", "load", (), PROLOGUE, source_value=i.name) for i in p.inputs),
        BlockOp("t4", "contract", tuple(f"l{i}" for i in scores.inputs), PROLOGUE, scores.over),
        BlockOp("t5", "thread", (f"l{mask}", "t4"), PROLOGUE, thread=score),
        BlockOp("top", "top", ("t5",), PROLOGUE, (keys,)),
        BlockOp("t6", "thread", ("t5", "top"), PROLOGUE, thread=MINUS),
        BlockOp("t7", "sum", ("t6",), PROLOGUE, (keys,)),
        BlockOp("t8", "contract", (f"l{values}", "t6"), PROLOGUE, (keys,)),
        BlockOp("t9", "thread", ("t8", "t7"), PROLOGUE, thread=QUOTIENT),
    )
    verdict = verify(p, one_kernel(p, BlockGraph((), (), None, ops, ("t9",))), [{}])
    assert verdict.passed
    assert (verdict.degree, verdict.argument_degree, verdict.applications, len(verdict.primes)) == (5, 2, 2448, 3)
    text = (Path(__file__).parents[3] / "docs" / "reference" / "worked-proof.md").read_text()
    assert "d = 3 + 2 = 5" in text
    assert f"n = {verdict.applications}" in text
    assert f"h = {verdict.coefficient_bits} bits" in text
    assert f"**2^{verdict.log2_bound:.2f}**" in text
