"""Programs with their products in a cheaper order compute the same; latent attention is found in its absorbed form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.field import Residues
from mirage_cli.lax.dtypes import F16, F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.search.proof.verify import verify
from mirage_cli.search.reassociation import divisions_pushed_inward, multiply_adds, variants
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.search.programs import attention, built, normed


def latent(heads: int = 3, inner: int = 5, latent: int = 7, keys: int = 64) -> Program:
    """One query for each head, keys and values made from a latent by two linears."""

    def build(g: Graph) -> int:
        q, c = g.input("q", (heads, 1, inner), F16), g.input("c", (keys, latent), F16)
        to_keys = g.input("wk", (heads, inner, latent), F16, True)
        scores = compose.matmul(g, q, compose.matmul(g, to_keys, g.transpose(c, (1, 0))))
        values = compose.matmul(g, c, g.input("wv", (heads, latent, inner), F16, True))
        return compose.matmul(g, compose.softmax(g, compose.scale(g, scores, 0.25), [-1]), values)

    return built(build)


def chain() -> Program:
    """(x a) b with a product that is cheaper from the right."""

    def build(g: Graph) -> int:
        x, a, b = g.input("x", (64, 64), F32), g.input("a", (64, 64), F32), g.input("b", (64, 2), F32)
        return compose.matmul(g, compose.matmul(g, x, a), b)

    return built(build)


def values(p: Program) -> list[np.ndarray]:  # type: ignore[type-arg]
    """The outputs at a random point of the field; softmaxes with factors of their own."""
    d = Residues([a.name for a in p.axes], 5)
    arrays = {k: d.random(f"s{k}", [ex.value(e, {}) for e in s.dims]) for k, s in enumerate(p.sources)}
    return evaluate_program(p, d, arrays)


def named(p: Program, letter: str) -> Program:
    """The program whose inputs are values of another one, named as values are."""
    names = {i.name: f"{letter}{k}" for k, i in enumerate(p.inputs)} | {n.name: f"of {n.name}" for n in p.nodes}
    return replace(
        p,
        inputs=tuple(replace(i, name=names[i.name]) for i in p.inputs),
        nodes=tuple(replace(n, name=names[n.name], inputs=tuple(names[i] for i in n.inputs)) for n in p.nodes),
        outputs=tuple(replace(o, value=names[o.value]) for o in p.outputs),
        _axes_of={},
    )


@pytest.mark.parametrize("letter", ["x", "v", "m"])
@pytest.mark.parametrize("make", [latent, chain])
def test_a_cheaper_order_computes_the_same(make: object, letter: str) -> None:
    p = named(make(), letter)  # type: ignore[operator]
    own, other = variants(p)
    assert own == p
    assert multiply_adds(other) < multiply_adds(p) / 2
    assert other.axes == p.axes
    for wanted, found in zip(values(p), values(other), strict=True):
        assert np.array_equal(wanted, found)


def test_programs_in_the_cheapest_order_have_no_other() -> None:
    for p in (attention(), normed()):
        assert variants(p) == (p,)


def test_a_softmax_divides_where_it_is_written() -> None:
    """exp(x) v w / sum(exp(x)) becomes (exp(x) / sum(exp(x))) v w."""

    def build(g: Graph) -> int:
        weights = compose.softmax(g, g.input("x", (3, 7), F32), [-1])
        return compose.matmul(g, compose.matmul(g, weights, g.input("v", (7, 5), F32)), g.input("w", (5, 2), F32))

    p = divisions_pushed_inward(built(build))
    (exponential,) = (n for n in p.nodes if n.op == "stable_exp")
    (quotient,) = (n for n in p.nodes if n.op == "div")
    assert quotient.inputs[0] == exponential.name
    assert all(np.array_equal(a, b) for a, b in zip(values(p), values(built(build)), strict=True))


def test_latent_attention_is_absorbed() -> None:
    """At published extents the best muGraph multiplies the query by the key's matrix, in a kernel of its own."""
    p = latent(heads=128, inner=128, latent=512, keys=4096)
    result = Searcher(SearchOptions(max_kernels=3, candidates=1)).search(p, load_target("sm_90a"))
    best = result.candidates[0]
    assert len(best.graph.kernels) == 3
    assert best.floor_us <= best.predicted_us < 40
    assert result.contains(best.graph)
    verdict = verify(p, best.graph, [s.as_tiles() for s in best.schedules])
    assert verdict.passed, verdict.reason
    assert verdict.log2_bound < -40
