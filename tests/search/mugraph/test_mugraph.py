"""muGraphs: files, text, and one test for each rule that a graph can break."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.finish.kernels import assemble, cuts, split
from mirage_cli.search.mugraph.documents import block_from_json, block_to_json, graph_from_json, graph_to_json
from mirage_cli.search.mugraph.mugraph import (
    BODY,
    EPILOGUE,
    GRID,
    PROLOGUE,
    BlockGraph,
    BlockOp,
    KernelGraph,
    ThreadGraph,
    ThreadNode,
)
from mirage_cli.search.schedules.schedule import Schedule, schedule_from_json
from mirage_cli.search.search import Searcher, SearchOptions
from tests.search.programs import attention, normed, one_kernel, program_of, same_in_field

NORMED = normed()
HALF = ThreadGraph(1, (ThreadNode("const", (), Fraction(1, 2)), ThreadNode("add", (0, 1)), ThreadNode("sqrt", (2,))))
SEVENTH = ThreadGraph(1, (ThreadNode("const", (), Fraction(1, 7)), ThreadNode("mul", (0, 1))))
SQUARE = ThreadGraph(1, (ThreadNode("mul", (0, 0)),))
QUOTIENT = ThreadGraph(2, (ThreadNode("div", (0, 1)),))


def golden() -> BlockGraph:
    """The reference's best graph for a norm and a linear layer, by hand: one loop, two accumulators, division after."""
    ops = (
        BlockOp("x", "load", (), BODY, source_value="x1"),
        BlockOp("w", "load", (), BODY, source_value="x0"),
        BlockOp("y", "contract", ("x", "w"), BODY, ("c",), dtype=F32),
        BlockOp("q", "thread", ("x",), BODY, thread=SQUARE),
        BlockOp("s", "sum", ("q",), BODY, ("c",)),
        BlockOp("ys", "accum", ("y",), EPILOGUE),
        BlockOp("ss", "accum", ("s",), EPILOGUE),
        BlockOp("m", "thread", ("ss",), EPILOGUE, thread=SEVENTH),
        BlockOp("r", "thread", ("m",), EPILOGUE, thread=HALF),
        BlockOp("o", "thread", ("ys", "r"), EPILOGUE, thread=QUOTIENT),
    )
    return BlockGraph(("a", "b"), (), "c", ops, ("o",)).validate(NORMED)


def divided() -> BlockGraph:
    """The same with the loop axis split over blocks."""
    g = golden()
    tail = {"m", "r", "o"}
    ops = [o for o in g.ops if o.name not in tail]
    ops += [BlockOp("yg", "grid_sum", ("ys",), GRID), BlockOp("sg", "grid_sum", ("ss",), GRID)]
    new = {"ys": "yg", "ss": "sg"}
    ops += [replace(o, phase=GRID, inputs=tuple(new.get(i, i) for i in o.inputs)) for o in g.ops if o.name in tail]
    return replace(g, grid=("a", "b", "c"), split=("c",), ops=tuple(ops)).validate(NORMED)


def changed(graph: BlockGraph, which: str, /, **fields: object) -> BlockGraph:
    """The graph with one operator changed."""
    return replace(graph, ops=tuple(replace(o, **fields) if o.name == which else o for o in graph.ops))  # type: ignore[arg-type]


def with_op(graph: BlockGraph, op: BlockOp) -> BlockGraph:
    """The graph with one operator more."""
    return replace(graph, ops=(*graph.ops, op))


def test_graphs_by_hand_are_right() -> None:
    for tiles in ({"a": 2, "b": 3, "loop": 2}, {"a": 3, "b": 5, "loop": 7}, {"a": 1, "b": 1, "loop": 1}):
        assert same_in_field(NORMED, one_kernel(NORMED, golden()), [tiles])
        assert same_in_field(NORMED, one_kernel(NORMED, divided()), [{**tiles, "c": 3}])


def test_a_wrong_graph_is_found_out() -> None:
    wrong = changed(golden(), "s", inputs=("x",))
    assert not same_in_field(NORMED, one_kernel(NORMED, wrong.validate(NORMED)), [{"a": 2, "b": 3, "loop": 2}])


# --- rules --------------------------------------------------------------------------------------------------------------
BROKEN: dict[str, tuple[Callable[[], BlockGraph], str]] = {
    "unknown grid axis": (lambda: replace(golden(), grid=("a", "z")), "unknown axis 'z'"),
    "unknown loop axis": (lambda: replace(golden(), loop="z"), "unknown axis 'z'"),
    "grid axis twice": (lambda: replace(golden(), grid=("a", "a")), r"grid \('a', 'a'\) and its split axes \(\)"),
    "split axis outside the grid": (
        lambda: replace(golden(), split=("c",)),
        "and its split axes \\('c',\\) do not fit",
    ),
    "number of outputs": (lambda: replace(golden(), outputs=("o", "o")), "2 outputs, its program has 1"),
    "unknown operator": (lambda: changed(golden(), "q", op="cube"), "q: unknown block operator 'cube'"),
    "two of one name": (lambda: changed(golden(), "s", name="q"), "q: two operators have this name"),
    "unknown phase": (lambda: changed(golden(), "q", phase="later"), "q: thread does not stand in the later"),
    "accumulator in the body": (lambda: changed(golden(), "ss", phase=BODY), "ss: accum does not stand in the body"),
    "running maximum outside": (
        lambda: with_op(golden(), BlockOp("t", "running", ("s",), EPILOGUE)),
        "t: running does not stand in the epilogue",
    ),
    "sum over blocks in the body": (
        lambda: with_op(golden(), BlockOp("t", "grid_sum", ("ss",), BODY)),
        "t: grid_sum does not stand in the body",
    ),
    "number of operands": (lambda: changed(golden(), "y", inputs=("x",)), "y: contract takes 2 operands, got 1"),
    "number of operands of an accumulator": (
        lambda: changed(golden(), "ss", inputs=("s", "s", "s")),
        "ss: accum takes 1 or 2 operands, got 3",
    ),
    "thread operator without a graph": (lambda: changed(golden(), "q", thread=None), "q: thread without a thread"),
    "other operator with a graph": (lambda: changed(golden(), "s", thread=SQUARE), "s: sum with a thread graph"),
    "thread graph's operands": (
        lambda: changed(golden(), "o", inputs=("ys",)),
        "o: thread graph takes 2 operands, got 1",
    ),
    "thread graph's operator": (
        lambda: changed(golden(), "q", thread=ThreadGraph(1, (ThreadNode("cube", (0,)),))),
        "thread graph: unknown operator 'cube'",
    ),
    "thread operator's operands": (
        lambda: changed(golden(), "q", thread=ThreadGraph(1, (ThreadNode("mul", (0,)),))),
        "thread graph: mul takes 2 operands, got 1",
    ),
    "thread graph reads ahead": (
        lambda: changed(golden(), "q", thread=ThreadGraph(1, (ThreadNode("neg", (1,)), ThreadNode("neg", (0,))))),
        r"thread graph: node 0 \(neg\) reads a value that is not defined before it",
    ),
    "body without a loop": (lambda: replace(golden(), loop=None), "x: is in the body of a loop that there is not"),
    "operand from nowhere": (lambda: changed(golden(), "q", inputs=("z",)), "q = thread: operand 'z' is not defined"),
    "operand from later": (
        lambda: replace(golden(), ops=(golden().ops[2], *golden().ops[:2], *golden().ops[3:])),
        "y = contract: operand 'x' is not defined before it",
    ),
    "accumulates what is no part of the body": (
        lambda: with_op(golden(), BlockOp("t", "accum", ("ss",), EPILOGUE)),
        "t: accumulates ss, which is not computed in the body",
    ),
    "body value after the loop": (
        lambda: with_op(golden(), BlockOp("t", "thread", ("s",), EPILOGUE, thread=SQUARE)),
        r"t \(epilogue\) reads s, which lives in the body",
    ),
    "accumulated value in the body": (
        lambda: with_op(golden(), BlockOp("t", "thread", ("ss",), BODY, thread=SQUARE)),
        r"t \(body\) reads ss, which lives in the epilogue",
    ),
    "body value before the loop": (
        lambda: with_op(golden(), BlockOp("t", "thread", ("s",), PROLOGUE, thread=SQUARE)),
        r"t \(prologue\) reads s, which lives in the body",
    ),
    "sum over blocks of a body value": (
        lambda: changed(divided(), "sg", inputs=("s",)),
        r"sg \(grid\) reads s, which lives in the body",
    ),
    "loads what there is not": (
        lambda: changed(golden(), "x", source_value="x9"),
        "x: loads 'x9', which is no input of the program",
    ),
    "positions along an unknown axis": (
        lambda: with_op(golden(), BlockOp("t", "iota", (), BODY, axis="z")),
        "t: unknown axis 'z'",
    ),
    "reduces an axis that is missing": (
        lambda: changed(golden(), "s", over=("b",)),
        "s: sum over b, which its operands lack",
    ),
    "reduces an axis of the grid": (
        lambda: replace(golden(), grid=("a", "b", "c")),
        "y: contract over c, of which a block holds a part",
    ),
    "accumulates along the loop": (
        lambda: changed(golden(), "ss", inputs=("q",)),
        "ss: accumulates a value along the loop axis c itself",
    ),
    "output of the body": (lambda: replace(golden(), outputs=("y",)), "output 'y' is not available after the loop"),
    "output from nowhere": (lambda: replace(golden(), outputs=("z",)), "output 'z' is not available after the loop"),
    "output with an axis too many": (
        lambda: replace(with_op(golden(), BlockOp("t", "load", (), PROLOGUE, source_value="x1")), outputs=("t",)),
        r"output t has axes \['a', 'c'\] that its tensor lacks",
    ),
    "partial output": (
        lambda: replace(divided(), outputs=("ys",)),
        "output ys is a partial result of the split axis c",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_blocks_are_rejected(name: str) -> None:
    build, message = BROKEN[name]
    with pytest.raises(InvalidGraph, match=message):
        build().validate(NORMED)


def two_kernels() -> tuple[Program, KernelGraph]:
    """A norm and a linear layer with a stored value between them."""
    p = program_of("rmsnorm_linear_fp32")
    stored = next(c for c in cuts(p, 2) if c)
    parts = split(p, stored)
    searcher = Searcher(SearchOptions())
    return p, assemble(p, parts, [searcher.blocks(part)[0][0] for part, _ in parts])


def test_broken_kernel_graphs_are_rejected() -> None:
    _, graph = two_kernels()
    with pytest.raises(InvalidGraph, match=r"reads tensors .* before they are computed"):
        replace(graph, kernels=graph.kernels[::-1]).validate()
    with pytest.raises(InvalidGraph, match=r"no kernel computes outputs \[2\]"):
        replace(graph, kernels=graph.kernels[:1]).validate()
    broken = replace(graph.kernels[0], block=replace(graph.kernels[0].block, outputs=("z",)))
    with pytest.raises(InvalidGraph, match="output 'z'"):
        replace(graph, kernels=(broken, graph.kernels[1])).validate()


# --- forms --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name", ["qknorm_gqa_fp32", "attention_boolean_fp32", "rmsnorm_linear_fp32", "lora_scaled_fp32"]
)
def test_json_round_trip(name: str) -> None:
    p = program_of(name)
    for block in Searcher(SearchOptions()).blocks(p)[0]:
        assert block_from_json(json.loads(json.dumps(block_to_json(block)))) == block
        graph = one_kernel(p, block)
        again = graph_from_json(json.loads(json.dumps(graph_to_json(graph))))
        assert again == graph
        assert again.text() == graph.text()


def test_several_kernels_round_trip() -> None:
    _, graph = two_kernels()
    assert graph_from_json(json.loads(json.dumps(graph_to_json(graph)))) == graph
    text = graph.text().splitlines()
    assert text[0] == f"kernel 0: tensors {list(graph.kernels[0].inputs)} -> {list(graph.kernels[0].outputs)}"
    assert sum(line.startswith("kernel ") for line in text) == 2


def test_reading_checks_what_it_reads() -> None:
    data = graph_to_json(one_kernel(NORMED, golden()))
    data["kernels"][0]["block"]["outputs"] = ["y"]
    with pytest.raises(InvalidGraph, match="not available after the loop"):
        graph_from_json(data)


def test_text() -> None:
    assert divided().text(NORMED).splitlines() == [
        "grid a b c split c",
        "loop c",
        "  x: imap {a<->a, b<->φ, c<->c} fmap {c}",
        "  w: imap {a<->φ, b<->b, c<->c} fmap {c}",
        "  o: omap {a, b}",
        "  body     x = load(x1)",
        "  body     w = load(x0)",
        "  body     y = contract(x, w; c) in f32",
        "  body     q = mul(x, x)",
        "  body     s = sum(q; c)",
        "  epilogue ys = accum(y)",
        "  epilogue ss = accum(s)",
        "  grid     yg = grid_sum(ys)",
        "  grid     sg = grid_sum(ss)",
        "  grid     m = mul(sg, 0.14285714285714285)",
        "  grid     r = sqrt(add(m, 0.5))",
        "  grid     o = div(yg, r)",
        "  store o",
    ]


def test_distinct_graphs_have_distinct_texts() -> None:
    p = attention()
    found = Searcher(SearchOptions(candidates=8)).blocks(p)[0]
    assert len({g.text(p) for g in found}) == len(set(found)) == len(found)


def test_schedules() -> None:
    s = Schedule((("a", 2), ("b", 3)), 4, 8, 3)
    assert schedule_from_json(json.loads(json.dumps(s.to_json()))) == s
    assert s.as_tiles() == {"a": 2, "b": 3, "loop": 4}
    assert (s.tile("a"), s.tile("c")) == (2, None)
    assert s.validate(golden()) is s
    with pytest.raises(InvalidGraph, match=r"schedule tiles axes \['a'\], the grid splits \['a', 'b'\]"):
        Schedule((("a", 2),), 4).validate(golden())
    for broken in (Schedule((("a", 0), ("b", 3)), 4), Schedule((("a", 1), ("b", 3)), 0)):
        with pytest.raises(InvalidGraph, match="schedule has an empty tile"):
            broken.validate(golden())
