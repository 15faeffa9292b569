"""Containment: what the search yields is contained, what is wrong is not, other orders of operators are where they lie in the
space; the reasons are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.contains import Containment, contains
from mirage_cli.search.finish.split_reduction import two_kernels
from mirage_cli.search.mugraph.mugraph import BlockGraph, KernelGraph
from mirage_cli.search.search import Searcher, SearchOptions
from samples.golden import free, made_by, node, nodes, only, operator_of, other_operand, result, shared_operand
from samples.sketch import Sketch, single
from tests.search.mutants import mutants
from tests.search.programs import attention, built, normed, one_kernel, program_of, same_in_field, tilings

SEARCHER = Searcher(SearchOptions())


def asked(p: Program, block: BlockGraph) -> Containment:
    """Whether the search covers a block graph, which the field finds equal to its program."""
    graph = single(p, block.validate(p), {}).graph
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
    assert seen[False] > 3 * seen[True] > 0


@pytest.mark.parametrize("p", [normed(8), attention(keys=8)], ids=["norm and linear layer", "attention"])
def test_pairs_of_kernels_that_are_contained_are_equal(p: Program) -> None:
    """The same for reductions over blocks that two kernels do."""
    seen = {True: 0, False: 0}
    for block in [g for g in SEARCHER.blocks(p)[0] if g.split][::5]:
        pair = two_kernels(p, block, 2)
        assert contains(SEARCHER, p, pair)
        loops = [{"loop": 2} if k.block.loop else {} for k in pair.kernels]
        tiles = [dict.fromkeys(k.block.grid, 2) | loop for k, loop in zip(pair.kernels, loops, strict=True)]
        for what, graph, own in mutants(pair, tiles):
            found = contains(SEARCHER, p, graph)
            seen[bool(found)] += 1
            assert found.reason or same_in_field(p, graph, own), f"{what}\n{graph.text()}"
    assert seen[False] > 3 * seen[True] > 0


# --- the same function by other operators -----------------------------------------------------------------------------------
def norm(p: Program, loop: bool) -> tuple[Sketch, str, str]:
    """A block for rms(x) w, with the tile of x, the root of its mean square, and nothing else yet."""
    k = only(p, "contract").over[0]
    b = Sketch(p, free(p, result(p)), k if loop else None)
    total, divided = only(p, "sum").name, node(p, made_by(p, only(p, "contract").inputs, "div"))
    if loop:
        b.known[total] = b.accum(b.of(total))
    return b, b.of(divided.inputs[0]), b.of(divided.inputs[1])


def weights(p: Program, b: Sketch) -> str:
    """The weights of the linear layer behind a norm."""
    return b.of(made_by(p, only(p, "contract").inputs, "read"))


def test_a_norm_is_divided_by_before_or_after_its_product() -> None:
    p = normed()
    (k,) = only(p, "contract").over
    b, x, root = norm(p, loop=True)
    assert asked(p, b.graph(b("div", b.accum(b.contract(x, weights(p, b), k)), root)))
    b, x, root = norm(p, loop=False)
    assert asked(p, b.graph(b.contract(b("div", x, root), weights(p, b), k)))


def test_spelling_within_an_elementwise_region_does_not_matter() -> None:
    """(y r) / (r r) is y / r, computed of the same values in the same place."""
    p = normed()
    b, x, root = norm(p, loop=True)
    product = b.accum(b.contract(x, weights(p, b), *only(p, "contract").over))
    assert asked(p, b.graph(b("div", b("mul", product, root), b("mul", root, root))))


def test_a_cancellation_across_a_product_is_not_searched() -> None:
    """((x r) w) / (r r) is (x w) / r, but x r is no part of the program."""
    p = normed()
    b, x, root = norm(p, loop=False)
    product = b.contract(b("mul", x, root), weights(p, b), *only(p, "contract").over)
    answer = asked(p, b.graph(b("div", product, b("mul", root, root))))
    assert not answer
    assert "is no part of the fragment's" in answer.reason


def test_an_outer_product_is_not_searched() -> None:
    """x w summed over k is their contraction, but the product of all elements has more axes than any value."""
    p = normed()
    b, x, root = norm(p, loop=True)
    product = b.accum(b.sum(b("mul", x, weights(p, b)), *only(p, "contract").over))
    answer = asked(p, b.graph(b("div", product, root)))
    assert not answer
    assert "axes a b c are more" in answer.reason


def test_products_of_weights_are_part_of_the_space() -> None:
    """x (w + a b): the weights are merged first, which is more work, but a part of the expression."""

    def build(g: Graph) -> int:
        x, w = g.input("x", (3, 9), F32), g.input("w", (9, 7), F32)
        a, b = g.input("a", (9, 5), F32), g.input("b", (5, 7), F32)
        return g.map("add", compose.matmul(g, x, w), compose.matmul(g, compose.matmul(g, x, a), b))

    p = built(build)
    total = node(p, result(p))
    second = next(n for n in nodes(p, "contract") if any(operator_of(p, i) == "contract" for i in n.inputs))
    first, full = node(p, made_by(p, second.inputs, "contract")), node(p, other_operand(total.inputs, second.name))
    x = shared_operand(first, full)
    b = Sketch(p, free(p, result(p)), *full.over)
    pair = b.contract(b.of(other_operand(first.inputs, x)), b.of(made_by(p, second.inputs, "read")), *second.over)
    merged = b("add", b.of(other_operand(full.inputs, x)), pair)
    assert asked(p, b.graph(b.accum(b.contract(b.of(x), merged, *full.over))))


def test_a_second_kernel_may_be_any_that_is_searched() -> None:
    """What combines the parts of a reduction is a program of its own."""
    p = normed(8)
    found = [g for g in SEARCHER.blocks(p)[0] if g.split]
    tried = 0
    for block in found[::2]:
        graph = two_kernels(p, block, 2)
        assert contains(SEARCHER, p, graph)
        first, second = graph.kernels
        for other_block in SEARCHER.blocks(second.program)[0]:
            kernels = (first, replace(second, block=other_block))
            answer = contains(SEARCHER, p, replace(graph, kernels=kernels))
            assert answer, answer.reason
            tried += other_block.loop is not None
    assert tried


# --- what else is refused, and why ------------------------------------------------------------------------------------------
def test_bounds_are_named() -> None:
    p = normed()
    block = next(g for g in SEARCHER.blocks(p)[0] if g.loop)
    few = contains(Searcher(SearchOptions(max_ops=2)), p, one_kernel(p, block))
    assert not few
    assert "operators, more than the 2 that are searched" in few.reason
    two = two_kernels(normed(8), next(g for g in SEARCHER.blocks(normed(8))[0] if g.split), 2)
    one = contains(Searcher(SearchOptions(max_kernels=1)), normed(8), two)
    assert not one
    assert one.reason == "2 kernels, more than the 1 that are searched"


def test_another_program_s_graph_is_not_contained() -> None:
    graph: KernelGraph = one_kernel(normed(7), SEARCHER.blocks(normed(7))[0][0])
    answer = contains(SEARCHER, normed(9), graph)
    assert not answer
    assert "another part of the program" in answer.reason
