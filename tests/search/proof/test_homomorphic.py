"""Proofs that use exp(a) exp(b) = exp(a + b): what is accepted, with what bound, and what is refused, and why."""

import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mirage_cli.errors import UsageError
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.finish.kernels import assemble, split
from mirage_cli.search.mugraph.evaluate import Tiles
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
from mirage_cli.search.search import Searcher, SearchOptions
from tests.lax.programs import recorded
from tests.search.mutants import mutants
from tests.search.programs import built, one_kernel, same_in_floats, tilings

Term = tuple[Any, ...]  #: ("x",), ("const", 2), ("exp", term), ("add", term, term) ...


# --- muGraphs by hand ---------------------------------------------------------------------------------------------------
def program(term: Term, rows: int = 3) -> Program:
    """The program of a term in x, y and z, as it stands."""

    g = Graph()
    known: dict[Term, int] = {(n,): g.input(n, (rows, 4), F32) for n in "xyz"}

    def build(t: Term) -> int:
        if t not in known:
            op, *rest = t
            known[t] = g.fill(rest[0], F32) if op == "const" else g.map(op, *(build(part) for part in rest))
        return known[t]

    return recorded(g, [build(term)])


def named(p: Program) -> dict[str, str]:
    """The values that read x, y and z."""
    return {"xyz"[int(p.sources[i.source].name[1:])]: i.name for i in p.inputs}


def kernel(p: Program, term: Term) -> KernelGraph:
    """A kernel of one thread graph that computes a term."""
    sources = named(p)
    names = sorted(sources)
    nodes: list[ThreadNode] = []

    def place(t: Term) -> int:
        op, *rest = t
        if op in names:
            return names.index(op)
        node = ThreadNode("const", (), Fraction(rest[0])) if op == "const" else ThreadNode(op, tuple(map(place, rest)))
        nodes.append(node)
        return len(names) + len(nodes) - 1

    place(term)
    loads = [BlockOp(n, "load", (), PROLOGUE, source_value=sources[n]) for n in names]
    result = BlockOp("v", "thread", tuple(names), PROLOGUE, thread=ThreadGraph(len(names), tuple(nodes)))
    return one_kernel(p, BlockGraph((), (), None, (*loads, result), ("v",)))


def compared(left: Term, right: Term, **options: Any) -> Verdict:
    p = program(left)
    return verify(p, kernel(p, right), [{}], **options)


X, Y, Z, ONE, TWO = ("x",), ("y",), ("z",), ("const", 1), ("const", 2)


def exp(t: Term) -> Term:
    return ("exp", t)


def mul(a: Term, b: Term) -> Term:
    return ("mul", a, b)


def plus(a: Term, b: Term) -> Term:
    return ("add", a, b)


def over(a: Term, b: Term) -> Term:
    return ("div", a, b)


# --- what is equal is accepted ------------------------------------------------------------------------------------------
EQUAL: dict[str, tuple[Term, Term]] = {
    "sum and product": (mul(exp(X), exp(Y)), exp(plus(X, Y))),
    "product and sum": (exp(plus(X, Y)), mul(exp(X), exp(Y))),
    "square": (exp(mul(TWO, X)), mul(exp(X), exp(X))),
    "difference": (exp(("sub", X, Y)), over(exp(X), exp(Y))),
    "half": (mul(exp(mul(("const", 0.5), X)), exp(mul(("const", 0.5), X))), exp(X)),
    "of products": (mul(exp(mul(X, Y)), exp(mul(X, Z))), exp(mul(X, plus(Y, Z)))),
    "of functions": (mul(exp(("tanh", X)), exp(("sqrt", Y))), exp(plus(("sqrt", Y), ("tanh", X)))),
    "silu": (("silu", X), over(mul(X, exp(X)), plus(ONE, exp(X)))),
    "tanh of itself": (
        over(("sub", exp(X), exp(("neg", X))), plus(exp(X), exp(("neg", X)))),
        over(("sub", exp(mul(TWO, X)), ONE), plus(exp(mul(TWO, X)), ONE)),
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_merged_exponentials(name: str) -> None:
    left, right = EQUAL[name]
    verdict = compared(left, right)
    assert verdict.passed, verdict.reason
    assert verdict.mode == "homomorphic"
    assert verdict.log2_bound < -40
    assert len(verdict.primes) == 2 * verdict.rounds
    assert len(set(verdict.primes)) == len(verdict.primes)
    p = program(left)
    assert same_in_floats(p, kernel(p, right), [{}])
    alone = compared(left, right, mode="uninterpreted")
    assert not alone.passed
    assert "differs" in alone.reason


def test_the_bound_of_two_exponentials() -> None:
    """Twice 2^-28, and the paper's own figures."""
    verdict = compared(mul(exp(X), exp(Y)), exp(plus(X, Y)))
    assert (verdict.terms, verdict.exponent_degree, verdict.degree, verdict.rounds) == (2, 1, 0, 2)
    assert verdict.log2_bound == pytest.approx(2 * np.log2(1 / 2**29 + 2 / 2**29) + np.log2(10), abs=1e-6)
    assert verdict.paper_log2_bound == pytest.approx(2 * np.log2(8 * 16 / 2**29 + 2.0 ** (-29 / 4)), abs=1e-6)
    data = verdict.to_json()
    assert data["terms"] == 2
    assert data["error_bound"] == pytest.approx(2.0**verdict.log2_bound)


def test_what_needs_no_merging_is_proved_without() -> None:
    verdict = compared(mul(exp(X), exp(Y)), mul(exp(Y), exp(X)))
    assert verdict.passed
    assert verdict.mode == "uninterpreted"
    assert verdict.terms is None
    assert "terms" not in verdict.to_json()
    forced = compared(mul(exp(X), exp(Y)), mul(exp(Y), exp(X)), mode="homomorphic")
    assert forced.passed
    assert forced.mode == "homomorphic"


# --- what is not is refused ---------------------------------------------------------------------------------------------
DIFFERENT: dict[str, tuple[Term, Term]] = {
    "difference in the place of a sum": (mul(exp(X), exp(Y)), exp(("sub", X, Y))),
    "a little added": (mul(exp(X), exp(Y)), plus(exp(plus(X, Y)), ("const", 2.0**-60))),
    "a factor close to one": (mul(exp(X), exp(Y)), exp(mul(plus(X, Y), ("const", 1 + 2.0**-40)))),
    "another variable": (mul(exp(X), exp(Y)), exp(plus(X, plus(Z, ("sub", Y, X))))),
    "x exp(x) for silu": (("silu", X), mul(X, exp(X))),
    "square of the exponent": (mul(exp(X), exp(X)), exp(mul(X, X))),
    "sum of exponentials": (plus(exp(X), exp(Y)), exp(plus(X, Y))),
    "tanh is odd": (mul(exp(("tanh", X)), exp(("tanh", ("neg", X)))), ONE),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_near_misses(name: str) -> None:
    left, right = DIFFERENT[name]
    both = plus(left, mul(("const", 0), plus(X, plus(Y, Z)))) if name == "another variable" else left
    for mode in ("auto", "homomorphic", "uninterpreted"):
        verdict = compared(both, right, mode=mode)
        assert not verdict.passed
        assert "differs" in verdict.reason


def test_two_exponentials_on_a_path() -> None:
    verdict = compared(mul(exp(exp(X)), exp(exp(Y))), exp(plus(exp(X), exp(Y))))
    assert not verdict.passed
    assert verdict.mode == "uninterpreted"
    assert "an exponential lies under another one" in verdict.reason
    alone = compared(exp(exp(X)), exp(exp(X)), mode="homomorphic")
    assert not alone.passed
    assert alone.primes == ()
    assert compared(exp(exp(X)), exp(exp(X))).passed  # without merging there may be any number on a path


def test_a_function_of_an_exponential() -> None:
    root = ("sqrt", mul(exp(X), exp(Y)))
    verdict = compared(root, ("sqrt", exp(plus(X, Y))))
    assert not verdict.passed
    assert "an exponential lies under sqrt" in verdict.reason


def test_a_division_by_zero_everywhere() -> None:
    zero = ("sub", mul(exp(X), exp(Y)), exp(plus(X, Y)))
    verdict = compared(over(X, zero), over(X, zero), mode="homomorphic")
    assert not verdict.passed
    assert "division by zero" in verdict.reason


def test_points_where_a_denominator_vanishes_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    bad: set[int] = set()
    random_pair = proofs.random_pair

    def pairs(generator: np.random.Generator) -> Any:
        pair = random_pair(generator)
        drawn.append(replace(pair, omega=1) if len(drawn) in bad else pair)
        return drawn[-1]

    monkeypatch.setattr(proofs, "random_pair", pairs)
    left, right = over(X, ("sub", exp(X), exp(Y))), over(mul(X, exp(Y)), ("sub", exp(plus(X, Y)), exp(plus(Y, Y))))
    for numbers, passed in (({0, 2, 3}, True), ({0, 1, 2, 3}, False)):
        drawn.clear()
        bad.clear()
        bad.update(numbers)
        verdict = compared(left, right, mode="homomorphic")
        assert verdict.passed is passed, verdict.reason
        assert not passed or len(drawn) == verdict.rounds + 3


# --- stabilised exponentials, loops and several kernels -----------------------------------------------------------------
def small_attention(keys: int = 2) -> Program:
    def build(g: Graph) -> int:
        scores = compose.matmul(g, g.input("q", (3, 2), F32), g.input("k", (2, keys), F32))
        return compose.matmul(g, compose.softmax(g, scores, [-1]), g.input("v", (keys, 3), F32))

    return built(build)


def blocks(p: Program) -> list[tuple[KernelGraph, list[Tiles]]]:
    found = Searcher(SearchOptions(candidates=2)).blocks(p)[0]
    return [(one_kernel(p, b), [tilings(p, b, {})[1]]) for b in found]


def test_stabilisers() -> None:
    """Running maxima, shrinks and maxima of several blocks are arbitrary numbers here too."""
    p = small_attention()
    seen: set[str] = set()
    for graph, tiles in blocks(p):
        verdict = verify(p, graph, tiles, mode="homomorphic")
        assert verdict.passed, verdict.reason
        assert verdict.log2_bound < -40
        seen |= {o.op for o in graph.kernels[0].block.ops}
        wrong = [m for m in mutants(graph, tiles) if "left out" in m[0] and m[1].kernels][::5]
        for what, mutant, own in wrong:
            try:
                passed = verify(p, mutant, own, mode="homomorphic").passed
            except proofs.InvalidGraph:
                continue
            assert not passed or same_in_floats(p, mutant, own), what
    assert {"running", "shrink", "top", "grid_top", "grid_sum"} <= seen


def test_a_softmax_over_many_keys_has_no_bound() -> None:
    """The bound is stated as it is, and refused."""
    p = small_attention(64)
    graph, tiles = blocks(p)[0]
    verdict = verify(p, graph, tiles, mode="homomorphic")
    assert not verdict.passed
    assert verdict.log2_bound == 0.0
    assert verdict.primes == ()
    assert "the error bound 2^0.0 is above the 2^-40 asked for" in verdict.reason
    assert f"{2 * 64 * 64} exponentials" in verdict.reason
    assert verify(p, graph, tiles).mode == "uninterpreted"


def test_a_low_confidence_needs_fewer_rounds() -> None:
    left, right = EQUAL["silu"]
    rounds = [compared(left, right, confidence=c).rounds for c in (5, 40, 100)]
    assert rounds == sorted(set(rounds))
    beyond = compared(left, right, confidence=2000)
    assert not beyond.passed
    assert "64 rounds" in compared(left, right, confidence=2000, mode="homomorphic").reason


def test_a_loop_and_two_kernels() -> None:
    """sum_i exp(x) exp(y) as an accumulated sum of exp(x + y), stored and multiplied by another kernel."""

    def build(g: Graph) -> int:
        x, y, z = (g.input(n, (1, 3), F32) for n in "xyz")
        total = g.reduce("sum", g.map("mul", g.map("exp", x), g.map("exp", y)), [1])
        return g.map("mul", z, total)

    p = built(build)
    total = next(n for n in p.nodes if n.op in ("sum", "contract"))
    names = named(p)
    merged = ThreadGraph(2, (ThreadNode("add", (0, 1)), ThreadNode("exp", (2,))))
    (axis,) = total.over
    first = BlockGraph(
        (), (), axis,
        (
            *(BlockOp(n, "load", (), BODY, source_value=names[n]) for n in "xy"),
            BlockOp("e", "thread", ("x", "y"), BODY, thread=merged),
            BlockOp("s", "sum", ("e",), BODY, (axis,)),
            BlockOp("t", "accum", ("s",), EPILOGUE),
        ),
        ("t",),
    )  # fmt: skip
    product = ThreadGraph(2, (ThreadNode("mul", (0, 1)),))
    second = BlockGraph(
        (), (), None,
        (
            BlockOp("s", "load", (), PROLOGUE, source_value=total.name),
            BlockOp("z", "load", (), PROLOGUE, source_value=names["z"]),
            BlockOp("o", "thread", ("s", "z"), PROLOGUE, thread=product),
        ),
        ("o",),
    )  # fmt: skip
    graph = assemble(p, split(p, (total.name,)), [first, second])
    verdict = verify(p, graph, [{"loop": 2}, {}])
    assert verdict.passed, verdict.reason
    assert (verdict.mode, verdict.terms) == ("homomorphic", 7)  # three and, with the last iteration counted whole, four
    assert same_in_floats(p, graph, [{"loop": 2}, {}])
    twice = replace(first, ops=tuple(replace(o, inputs=("x", "x")) if o.name == "e" else o for o in first.ops))
    wrong = verify(p, assemble(p, split(p, (total.name,)), [twice, second]), [{"loop": 2}, {}])
    assert not wrong.passed


# --- against floats -----------------------------------------------------------------------------------------------------
def random_term(rng: random.Random, depth: int, exponentials: bool = True) -> Term:
    if depth == 0 or rng.random() < 0.15:
        return rng.choice([X, Y, Z, X, Y, Z, ("const", Fraction(rng.choice([1, 2, 3, -1]), rng.choice([1, 2])))])
    if exponentials and rng.random() < 0.4:
        return exp(random_term(rng, depth - 1, False))
    op = rng.choice(["add", "sub", "mul", "mul"])
    return (op, random_term(rng, depth - 1, exponentials), random_term(rng, depth - 1, exponentials))


def rewritten(rng: random.Random, t: Term) -> Term:
    """The same with exponentials merged or split at random, operands swapped, products distributed."""
    op, *rest = t
    if op in ("x", "y", "z", "const"):
        return t
    parts = [rewritten(rng, r) for r in rest]
    if op == "exp" and parts[0][0] in ("add", "sub") and rng.random() < 0.7:
        a, b = parts[0][1:]
        return (mul if parts[0][0] == "add" else over)(exp(a), exp(b))
    if op == "mul" and all(q[0] == "exp" for q in parts):
        return exp(plus(parts[0][1], parts[1][1]))
    if op == "mul" and parts[1][0] == "add" and rng.random() < 0.3:
        return plus(mul(parts[0], parts[1][1]), mul(parts[0], parts[1][2]))
    if op in ("add", "mul") and rng.random() < 0.5:
        parts = parts[::-1]
    return (op, *parts)


def wronged(rng: random.Random, t: Term) -> Term:
    """The same with one thing changed."""
    op, *rest = t
    if op in ("x", "y", "z"):
        return rng.choice([v for v in (X, Y, Z) if v != t])
    if op == "const":
        return ("const", rest[0] + Fraction(1, 1 << 20))
    if len(rest) == 2 and rng.random() < 0.3:
        return ({"add": "sub", "sub": "add", "mul": "add", "div": "mul"}[op], *rest)
    k = rng.randrange(len(rest))
    return (op, *rest[:k], wronged(rng, rest[k]), *rest[k + 1 :])


def test_random_terms() -> None:
    """A verdict is that of floats, whatever was rewritten or changed."""
    rng = random.Random(11)
    accepted = refuted = merged = 0
    for _ in range(150):
        left = plus(random_term(rng, 3), mul(X, mul(Y, mul(Z, random_term(rng, 2)))))
        right = rewritten(rng, left)
        if rng.random() < 0.5:
            right = wronged(rng, right)
        p = program(left, rows=1)
        verdict = verify(p, kernel(p, right), [{}])
        if "error bound" in verdict.reason:
            continue
        assert verdict.passed == same_in_floats(p, kernel(p, right), [{}]), (left, right, verdict)
        accepted += verdict.passed
        refuted += not verdict.passed
        merged += verdict.passed and verdict.mode == "homomorphic"
    assert accepted > 40
    assert refuted > 40
    assert merged > 12


# --- options ------------------------------------------------------------------------------------------------------------
def test_unknown_modes() -> None:
    for options in ({"mode": "both"}, {"extents": "small"}):
        with pytest.raises(UsageError, match="expected one of"):
            compared(X, X, **options)


def test_the_gate() -> None:
    """The second mode is for exponentials of ordinary values: stabilised ones alone are not merged."""

    def merges(p: Program, graph: KernelGraph) -> bool:
        return proofs.merges_exponentials(p, graph)

    p = small_attention()
    assert not any(merges(p, graph) for graph, _ in blocks(p))
    q = program(mul(X, Y))
    assert not merges(q, kernel(q, mul(X, Y)))
    assert merges(q, kernel(q, ("silu", mul(X, Y))))
    q = program(("sigmoid", X))
    assert merges(q, kernel(q, mul(X, X)))


def test_figures_of_a_muGraph_are_those_of_its_program() -> None:
    p = program(EQUAL["silu"][0])
    found, _ = degrees.exponential_figures(p, kernel(p, EQUAL["silu"][0]), [{}], {})
    assert (found.terms, found.exponent, found.sides.degree) == (4, 1, 1)
