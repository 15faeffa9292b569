"""Containment: what the search yields is contained, what is wrong is not, other orders of operators are where they lie in the
space; the reasons are named."""

from __future__ import annotations

import pytest

from mirage_cli.lax import compose
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.graph import Graph
from mirage_cli.lax.program import Program
from mirage_cli.search.contains import Containment, contains
from mirage_cli.search.mugraph import BlockGraph, KernelGraph
from mirage_cli.search.search import Searcher, SearchOptions
from samples.golden import free, nodes, only, other
from samples.sketch import Sketch, single
from tests.search.mutants import mutants
from tests.search.programs import attention, built, normed, one_kernel, program_of, same_in_field, tilings

SEARCHER = Searcher(SearchOptions())


def asked(p: Program, block: BlockGraph) -> Containment:
    """Whether the search covers a block graph, which the field finds equal to its program."""
    graph = single(p, block)
    for tiles in tilings(p, block, {}):
        assert same_in_field(p, graph, [tiles])
    return contains(SEARCHER, p, graph)


@pytest.mark.parametrize(
    "name",
    ["rmsnorm_linear_fp32", "gated_mlp_fp32", "gqa_fp32", "lora_fp32", "norm_gated_mlp_fp32", "attention_boolean_fp32"],
)
def test_what_the_search_yields_is_contained(name: str) -> None:
    p = program_of(name)
    found = SEARCHER.blocks(p)[0]
    assert found
    for block in found:
        answer = contains(SEARCHER, p, one_kernel(p, block))
        assert answer, f"{answer.reason}\n{block.text(p)}"


@pytest.mark.parametrize("p", [normed(), attention()], ids=["norm and linear layer", "attention"])
def test_what_is_contained_is_equal(p: Program) -> None:
    """Of all ways to spoil a graph the search covers only such as do not matter."""
    seen = {True: 0, False: 0}
    for block in SEARCHER.blocks(p)[0][::4]:
        for what, graph, tiles in mutants(one_kernel(p, block), tilings(p, block, {})[1:]):
            found = contains(SEARCHER, p, graph)
            seen[bool(found)] += 1
            assert found.reason or same_in_field(p, graph, tiles), f"{what}\n{graph.text()}"
    assert seen[False] > 10 * seen[True] > 0


# --- the same function by other operators -----------------------------------------------------------------------------------
def norm(p: Program, b: Sketch, x: str) -> tuple[str, str]:
    """The accumulated sum of squares of a tile, and the root of its mean."""
    total = only(p, "sum")
    squares = b.accum(b.sum(b("mul", x, x), *total.over)) if b.loop else b.sum(b("mul", x, x), *total.over)
    return squares, b.like(only(p, "sqrt").name, {total.name: squares})


def test_a_norm_is_divided_by_before_or_after_its_product() -> None:
    p = normed()
    (k,) = only(p, "contract").over
    top, _ = (q.name for q in (p.inputs[1], p.inputs[0]))
    w = other((p.inputs[0].name, p.inputs[1].name), top)
    after = Sketch(p, free(p, p.outputs[0].value), k)
    x = after.load(top)
    product = after.accum(after.contract(x, after.load(w), k))
    assert asked(p, after.graph(after("div", product, norm(p, after, x)[1])))
    before = Sketch(p, free(p, p.outputs[0].value))
    x = before.load(top)
    assert asked(p, before.graph(before.contract(before("div", x, norm(p, before, x)[1]), before.load(w), k)))


def test_spelling_within_an_elementwise_region_does_not_matter() -> None:
    """(y r) / (r r) is y / r, computed of the same values in the same place."""
    p = normed()
    (k,) = only(p, "contract").over
    b = Sketch(p, free(p, p.outputs[0].value), k)
    x = b.load(p.inputs[1].name)
    product = b.accum(b.contract(x, b.load(p.inputs[0].name), k))
    _, root = norm(p, b, x)
    assert asked(p, b.graph(b("div", b("mul", product, root), b("mul", root, root))))


def test_a_cancellation_across_a_product_is_not_searched() -> None:
    """((x r) w) / (r r) is (x w) / r, but x r is no part of the program."""
    p = normed()
    (k,) = only(p, "contract").over
    b = Sketch(p, free(p, p.outputs[0].value))
    x = b.load(p.inputs[1].name)
    _, root = norm(p, b, x)
    product = b.contract(b("mul", x, root), b.load(p.inputs[0].name), k)
    answer = asked(p, b.graph(b("div", product, b("mul", root, root))))
    assert not answer
    assert "is no part of the fragment's" in answer.reason


def test_an_outer_product_is_not_searched() -> None:
    """x w summed over k is their contraction, but the product of all elements has more axes than any value."""
    p = normed()
    (k,) = only(p, "contract").over
    b = Sketch(p, free(p, p.outputs[0].value), k)
    x = b.load(p.inputs[1].name)
    product = b.accum(b.sum(b("mul", x, b.load(p.inputs[0].name)), k))
    answer = asked(p, b.graph(b("div", product, norm(p, b, x)[1])))
    assert not answer
    assert "axes a b c" in answer.reason


def lora() -> Program:
    """x w + (x a) b with odd extents."""

    def build(g: Graph) -> int:
        x, w = g.input("x", (3, 9), F32), g.input("w", (9, 7), F32)
        a, b = g.input("a", (9, 5), F32), g.input("b", (5, 7), F32)
        return g.map("add", compose.matmul(g, x, w), compose.matmul(g, compose.matmul(g, x, a), b))

    return built(build)


def test_products_of_weights_are_part_of_the_space() -> None:
    """x (w + a b): the weights are merged first, which is more work, but a part of the expression."""
    p = lora()
    second = next(n for n in nodes(p, "contract") if any(i.startswith("v") for i in n.inputs))
    inner = next(n for n in nodes(p, "contract") if n.name in second.inputs)
    full = next(n for n in nodes(p, "contract") if n not in (inner, second))
    (x,) = set(full.inputs) & set(inner.inputs)
    b = Sketch(p, free(p, p.outputs[0].value), full.over[0])
    pair = b.contract(b.load(other(inner.inputs, x)), b.load(other(second.inputs, inner.name)), *second.over)
    weights = b("add", b.load(other(full.inputs, x)), pair)
    assert asked(p, b.graph(b.accum(b.contract(b.load(x), weights, *full.over))))


# --- what else is refused, and why --------------------------------------------------------------------------------------------
def test_a_softmax_without_its_maximum_is_not_searched() -> None:
    p = attention()
    e = only(p, "stable_exp")
    score = only_contract(p, e.inputs[0])
    out = p.node(p.outputs[0].value)
    b = Sketch(p, free(p, score[2], *e.over))
    s = b("add", b.contract(b.load(score[0]), b.load(score[1]), *score[3]), b.load(score[4]))
    plain = b("exp", s)
    v = next(i for i in out.inputs if i.startswith("x"))  # type: ignore[union-attr]
    block = b.graph(b("div", b.contract(plain, b.load(v), *e.over), b.sum(plain, *e.over)))
    answer = asked(p, block)
    assert not answer
    assert "exponential of a softmax without its maximum" in answer.reason


def only_contract(p: Program, value: str) -> tuple[str, str, str, tuple[str, ...], str]:
    """Operands, name and axes of the contraction under an addition, and what is added."""
    node = p.node(value)
    inner = next(n for n in nodes(p, "contract") if n.name in node.inputs)  # type: ignore[union-attr]
    return (*inner.inputs, inner.name, inner.over, other(node.inputs, inner.name))  # type: ignore[union-attr,return-value]


def test_mappings_and_bounds_are_named() -> None:
    p = normed()
    (k,) = only(p, "contract").over
    (row, column) = free(p, p.outputs[0].value)
    b = Sketch(p, (column,), row)
    x = b.load(p.inputs[1].name)
    quotient = b("div", b.contract(x, b.load(p.inputs[0].name), k), norm_within(p, b, x))
    with pytest.raises(Exception, match="not available after the loop"):
        b.graph(quotient)
    block = next(g for g in SEARCHER.blocks(p)[0] if g.loop)
    few = contains(Searcher(SearchOptions(max_ops=2)), p, one_kernel(p, block))
    assert not few
    assert "operators, more than the 2 that are searched" in few.reason


def norm_within(p: Program, b: Sketch, x: str) -> str:
    """The root of the mean of squares of a tile that is whole."""
    total = only(p, "sum")
    return b.like(only(p, "sqrt").name, {total.name: b.sum(b("mul", x, x), *total.over)})


def test_another_program_s_graph_is_not_contained() -> None:
    p, q = normed(7), normed(9)
    graph: KernelGraph = one_kernel(p, SEARCHER.blocks(p)[0][0])
    answer = contains(SEARCHER, q, graph)
    assert not answer
    assert "another part of the program" in answer.reason
