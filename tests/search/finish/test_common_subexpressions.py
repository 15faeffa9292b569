"""Parts that several thread graphs have are computed once; graphs stay the same function."""

from __future__ import annotations

from mirage_cli.search.finish.common_subexpressions import share
from mirage_cli.search.mugraph.mugraph import PROLOGUE, BlockGraph, BlockOp, ThreadGraph, ThreadNode
from mirage_cli.search.search import Searcher, SearchOptions
from samples.sketch import Sketch
from tests.search.programs import normed, one_kernel, program_of, same_in_field

P = normed()
X, W = "x1", "x0"


def graph(*tops: str) -> BlockGraph:
    """sqrt(x + x x) below an operator of its own and a sum, for each of `tops`; all of it summed and multiplied by w."""
    b = Sketch(P, ("a", "b"))
    x, w = b.load(X), b.load(W)
    total = w
    for top in tops:
        nodes = [ThreadNode("mul", (0, 0)), ThreadNode("add", (1, 0)), ThreadNode("sqrt", (2,))]
        nodes += [ThreadNode(top, (3,))] if top else []
        part = b.add(BlockOp("", "thread", (x,), PROLOGUE, thread=ThreadGraph(1, tuple(nodes))))
        total = b("add", total, b.sum(part, "c"))
    return b.graph(b.contract(total, x, "c"))


def text(g: BlockGraph) -> list[str]:
    """The thread graphs on x alone."""
    return [f"{o.name} = {o.thread.text(list(o.inputs))}" for o in g.ops if o.thread is not None and len(o.inputs) == 1]


def test_a_common_part_stands_once() -> None:
    made = share(graph("exp", "tanh"), 3.0)
    root, *readers = text(made)
    name, _, value = root.partition(" = ")
    assert value == "sqrt(add(mul(t0, t0), t0))"
    assert [r.partition(" = ")[2] for r in readers] == [f"exp({name})", f"tanh({name})"]
    made.validate(P)


def test_a_part_that_is_all_of_an_operator_is_that_operator() -> None:
    for tops in (("", "exp"), ("exp", ""), ("", "")):
        made = share(graph(*tops), 3.0).validate(P)
        assert len(text(made)) == len(set(tops))
        assert sum("sqrt" in t for t in text(made)) == 1


def test_cheap_parts_are_computed_again() -> None:
    assert share(graph("exp", "tanh"), 100.0) == graph("exp", "tanh")


def test_a_row_normalised_twice_computes_its_residual_once() -> None:
    p = program_of("ntrans_artifact_fp32")
    (block,) = [g for g in Searcher(SearchOptions()).blocks(p)[0] if g.loop is None and not g.split]
    assert sum(o.thread.flops() for o in block.ops if o.thread is not None) == 25
    assert same_in_field(p, one_kernel(p, block), [dict.fromkeys(block.grid, 2)])
