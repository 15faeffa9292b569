"""Products with parts of one weight as one product: the same function in floats and fields, and chosen where it is cheaper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.search.finish.kernels import Part, link, one_kernel
from mirage_cli.search.finish.whole_products import whole_products
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.proof.verify import verify
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Candidate, Searcher, SearchOptions
from tests.lax.programs import recorded
from tests.search.programs import same_in_floats, tilings


def _turned(g: Graph, x: int, width: int) -> int:
    """(-second half, first half) along the last of three dimensions."""
    first, second = (g.slice(x, 2, k * width, width) for k in (0, 1))
    return g.concat([g.map("neg", second), first], 2)


def keys(
    rows: int = 1,
    inner: int = 6,
    heads: int = 3,
    width: int = 8,
    turned: int = 4,
    columns: bool = True,
    known: bool = True,
) -> Program:
    """A rotary embedding in `turned` of `width` positions of each head of x w, or of x and w transposed."""
    g = Graph()
    x = g.input("x", (rows, inner), F32)
    wide = heads * width
    w = g.input("w", (inner, wide) if columns else (wide, inner), F32, known)
    product = g.contract(x, w, (0, 1), (1, 2) if columns else (2, 1), (0, 2))
    y = g.reshape(product, (rows, heads, width))
    cos, sin = (g.input(n, (turned,), F32) for n in ("cos", "sin"))
    part = g.slice(y, 2, 0, turned)
    embedded = g.map("add", g.map("mul", part, cos), g.map("mul", _turned(g, part, turned // 2), sin))
    rest = [g.slice(y, 2, turned, width - turned)] if turned < width else []
    return canonical(recorded(g, [g.concat([embedded, *rest], 2)]))


def linked(p: Program, parts: Sequence[Part]) -> KernelGraph:
    """The parts with a block graph each."""
    searcher = Searcher(SearchOptions(candidates=1))
    return link(p, parts, [one_kernel(part, searcher.blocks(part)[0][0]) for part, _ in parts])


def products(p: Program) -> int:
    return sum(n.op == "contract" for n in p.nodes)


@pytest.mark.parametrize(
    "p",
    [keys(), keys(rows=5), keys(turned=8), keys(columns=False), keys(rows=3, columns=False, turned=8)],
    ids=["partial", "rows", "halves", "transposed", "transposed rows"],
)
def test_a_weight_is_multiplied_once(p: Program) -> None:
    assert products(p) > 1
    first, rest = parts = whole_products(p)
    assert (products(first[0]), products(rest[0])) == (1, 0)
    assert [o.dims[-1] for o in first[0].outputs] == [24]
    graph = linked(p, parts)
    for which in (0, 1):
        tiles = [tilings(k.program, k.block, {})[which] for k in graph.kernels]
        assert same_in_floats(p, graph, tiles)
        verdict = verify(p, graph, tiles, which)
        assert verdict.passed, verdict.reason


def test_another_slice_of_what_is_stored_is_not_the_same() -> None:
    """The proof and floats refuse a rest that reads the halves the other way round."""
    p = keys(turned=8)
    first, (rest, labels) = whole_products(p)
    k = labels.index(first[0].outputs[0].value)
    one, other = (i for i in rest.inputs if i.source == k)
    exchanged = {one.name: other.access, other.name: one.access}
    inputs = tuple(replace(i, access=exchanged.get(i.name, i.access)) for i in rest.inputs)
    graph = linked(p, [first, (replace(rest, inputs=inputs, _axes_of={}), labels)])
    tiles = [tilings(kernel.program, kernel.block, {})[0] for kernel in graph.kernels]
    assert not same_in_floats(p, graph, tiles)
    assert not verify(p, graph, tiles, 0).passed


def test_what_is_no_part_of_a_weight_stays() -> None:
    def halves_of_the_sum(g: Graph) -> int:
        x, w = g.input("x", (2, 8), F32), g.input("w", (8, 5), F32, True)
        a, b = (
            g.contract(g.slice(x, 1, k, 4), g.slice(w, 0, k, 4), (0, 1), (1, 2), (0, 2)) for k in (0, 4)
        )  # other rows, and other summed positions
        return g.map("mul", a, g.map("exp", b))

    g = Graph()
    summed = canonical(recorded(g, [halves_of_the_sum(g)]))
    for p in (keys(known=False), summed):
        assert products(p) > 1
        assert whole_products(p) == [(p, tuple(f"source {k}" for k in range(len(p.sources))))]


def best(p: Program, target: str) -> Candidate:
    return Searcher(SearchOptions(candidates=2)).search(p, load_target(target)).candidates[0]


def test_a_large_weight_is_read_once_on_a_cpu() -> None:
    """Heads of which a half is turned: quarters of them, 16 columns, are read by products of their own otherwise."""
    p = keys(inner=1024, heads=16, width=64, turned=32)
    found = best(p, "cpu")
    assert [products(k.program) for k in found.graph.kernels] == [1, 0]
    one = Searcher(SearchOptions(max_kernels=1, candidates=2)).search(p, load_target("cpu")).candidates[0]
    assert len(one.graph.kernels) == 1
    assert one.predicted_us > 1.2 * found.predicted_us


def test_results_beside_it_do_not_take_its_kernel() -> None:
    """Three products of a row beside such keys: five kernels, where four are searched otherwise."""
    g = Graph()
    x = g.input("x", (1, 1024), F32)
    results = []
    for k, wide in enumerate((512, 768, 1280)):
        results.append(g.contract(x, g.input(f"w{k}", (1024, wide), F32, True), (0, 1), (1, 2), (0, 2)))
    y = g.reshape(g.contract(x, g.input("w", (1024, 1024), F32, True), (0, 1), (1, 2), (0, 2)), (1, 16, 64))
    part = g.slice(y, 2, 0, 32)
    embedded = g.map("add", g.map("mul", part, g.input("cos", (32,), F32)), _turned(g, part, 16))
    p = canonical(recorded(g, [*results, g.concat([embedded, g.slice(y, 2, 32, 32)], 2)]))
    assert [len(best(p, target).graph.kernels) for target in ("cpu", "sm_90a")] == [5, 5]
