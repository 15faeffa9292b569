"""Thread graphs: elementwise operators of one phase join, what is computed less often stands by itself."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir.program import Axis, Input, Node, Output, Program, Slot, Source
from mirage_cli.search.finish.fuse import fuse, hoist, thread_graphs
from mirage_cli.search.mugraph.evaluate import run_thread
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, PROLOGUE, BlockGraph, BlockOp, ThreadGraph, ThreadNode
from mirage_cli.search.search import Searcher, SearchOptions
from tests.search.programs import one_kernel, program_of, same_in_field

PROPERTY = settings(max_examples=100, derandomize=True, deadline=None, database=None)
N = symbol("n")
MATRIX = Program(
    (Axis("a", 4), Axis("b", 6), Axis("c", N)),
    (Source("x", (4, 6), F32), Source("y", (4,), F32), Source("z", (4, 6), F32)),
    (
        Input("x0", 0, (Slot("a", 4), Slot("b", 6))),
        Input("x1", 1, (Slot("a", 4),)),
        Input("x2", 2, (Slot("a", 4), Slot("b", 6))),
    ),
    (Node("v0", "mul", ("x0", "x2")), Node("v1", "mul", ("v0", "x1"))),
    (Output("v1", (Slot("a", 4), Slot("b", 6)), (4, 6), F32),),
)


def load(name: str, value: str, phase: str = PROLOGUE) -> BlockOp:
    """A read."""
    return BlockOp(name, "load", (), phase, source_value=value)


def thread(name: str, op: str, *inputs: str, phase: str = PROLOGUE) -> BlockOp:
    """One elementwise operator."""
    return BlockOp(name, "thread", inputs, phase, thread=ThreadGraph(len(inputs), _one(op, len(inputs))))


def _one(op: str, arity: int) -> tuple[ThreadNode, ...]:
    return (ThreadNode(op, tuple(range(arity))),)


def graph(*ops: BlockOp, output: str, loop: str | None = None) -> BlockGraph:
    """A block graph over `MATRIX`."""
    return BlockGraph(("a", "b"), (), loop, ops, (output,))


X, Y, Z = load("x", "x0"), load("y", "x1"), load("z", "x2")


def test_chains_become_one() -> None:
    g = graph(X, Z, thread("p", "mul", "x", "z"), thread("q", "exp", "p"), thread("r", "add", "q", "x"), output="r")
    fused = fuse(g, MATRIX)
    (only,) = [o for o in fused.ops if o.op == "thread"]
    assert only.thread is not None
    assert only.thread.text(list(only.inputs)) == "add(exp(mul(x, z)), x)"


def test_a_value_with_two_readers_stays() -> None:
    ops = (X, Z, thread("p", "mul", "x", "z"), thread("q", "exp", "p"), BlockOp("s", "sum", ("p",), PROLOGUE, ("b",)))
    g = graph(*ops, thread("r", "add", "q", "s"), output="r")
    assert {o.name for o in fuse(g, MATRIX).ops if o.op == "thread"} == {"p", "r"}


def test_equal_parts_are_computed_once() -> None:
    ops = (X, Z, thread("p", "mul", "x", "z"), thread("q", "exp", "p"))
    again = (thread("s", "mul", "x", "z"), thread("t", "sqrt", "s"), thread("r", "add", "q", "t"))
    (only,) = [o for o in fuse(graph(*ops, *again, output="r"), MATRIX).ops if o.op == "thread"]
    assert only.thread is not None
    assert [n.op for n in only.thread.nodes].count("mul") == 1


def test_phases_do_not_mix() -> None:
    w = load("w", "x0", BODY)
    g = graph(X, thread("p", "exp", "x"), w, thread("q", "mul", "p", "w", phase=BODY), output="p", loop="c")
    assert {o.name for o in fuse(g, MATRIX).ops if o.op == "thread"} == {"p", "q"}


def test_a_row_s_root_is_computed_once_for_the_row() -> None:
    root = ThreadGraph(2, (ThreadNode("sqrt", (1,)), ThreadNode("div", (0, 2))))
    g = graph(X, Y, BlockOp("r", "thread", ("x", "y"), PROLOGUE, thread=root), output="r")
    made = {o.name: o for o in hoist(g, MATRIX).ops}
    (rest,) = [o for o in made.values() if o.op == "thread" and o.name != "r"]
    assert rest.thread is not None
    assert rest.thread.text(list(rest.inputs)) == "sqrt(y)"
    assert made["r"].inputs == ("x", rest.name)


def test_cheap_parts_stay() -> None:
    half = (ThreadNode("const", (), Fraction(1, 2)), ThreadNode("mul", (1, 2)), ThreadNode("mul", (0, 3)))
    g = graph(X, Y, BlockOp("r", "thread", ("x", "y"), PROLOGUE, thread=ThreadGraph(2, half)), output="r")
    assert hoist(g, MATRIX) == g


def test_parts_of_parts_are_shared() -> None:
    """Two row values that both need one root read it instead of computing it again."""
    nodes = (
        ThreadNode("sqrt", (2,)),
        ThreadNode("exp", (3,)),
        ThreadNode("tanh", (3,)),
        ThreadNode("mul", (0, 4)),
        ThreadNode("mul", (1, 5)),
        ThreadNode("add", (6, 7)),
    )
    ops = (X, Z, Y, BlockOp("r", "thread", ("x", "z", "y"), PROLOGUE, thread=ThreadGraph(3, nodes)))
    texts = [
        o.thread.text(list(o.inputs))
        for o in thread_graphs(graph(*ops, output="r"), MATRIX).ops
        if o.thread is not None
    ]
    assert sum("sqrt" in t for t in texts) <= 2
    assert any(t.startswith("exp(") for t in texts)


def test_values_of_an_earlier_phase_are_computed_there() -> None:
    scalar = Program(
        MATRIX.axes,
        (Source("s", (1,), F32), *MATRIX.sources),
        (Input("x9", 0, ()), *(Input(i.name, i.source + 1, i.access) for i in MATRIX.inputs)),
        MATRIX.nodes,
        MATRIX.outputs,
    )
    root = ThreadGraph(2, (ThreadNode("sqrt", (1,)), ThreadNode("mul", (0, 2))))
    r = BlockOp("r", "thread", ("w", "s"), BODY, thread=root)
    g = graph(load("s", "x9"), load("w", "x0", BODY), r, X, output="x", loop="c")
    moved = [o for o in hoist(g, scalar).ops if o.op == "thread" and o.name != "r"]
    assert [o.phase for o in moved] == [PROLOGUE]


def test_after_the_loop_too() -> None:
    root = ThreadGraph(2, (ThreadNode("sqrt", (1,)), ThreadNode("div", (0, 2))))
    r = BlockOp("r", "thread", ("x", "y"), EPILOGUE, thread=root)
    moved = [o for o in hoist(graph(X, Y, r, output="r", loop="c"), MATRIX).ops if o.op == "thread" and o.name != "r"]
    assert [o.phase for o in moved] == [PROLOGUE]


@PROPERTY
@given(st.data())
def test_fused_chains_keep_their_value(data: st.DataObject) -> None:
    """A random tree of elementwise operators on x, y, z before and after."""
    ops = [X, Y, Z]
    for k in range(data.draw(st.integers(1, 7))):
        names = [o.name for o in ops]
        op = data.draw(st.sampled_from(("add", "mul", "exp", "sqrt", "tanh", "div", "silu")))
        arity = 2 if op in ("add", "mul", "div") else 1
        ops.append(thread(f"t{k}", op, *(data.draw(st.sampled_from(names)) for _ in range(arity))))
    g = graph(*ops, output=ops[-1].name)
    finished = hoist(fuse(g, MATRIX), MATRIX)
    rng = np.random.default_rng(0)
    arrays = {"x": rng.uniform(0.5, 1, (4, 6)), "y": rng.uniform(0.5, 1, (4, 1)), "z": rng.uniform(0.5, 1, (4, 6))}
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(value(finished, arrays), value(g, arrays), rtol=1e-12)
    assert len(finished.ops) <= len(g.ops) + 6


def value(g: BlockGraph, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The output of a graph of reads and thread graphs."""
    known = dict(arrays)
    for o in g.ops:
        if o.thread is not None:
            known[o.name] = run_thread(o.thread, Float64(), [known[i] for i in o.inputs])
    return np.broadcast_to(known[g.outputs[0]], (4, 6))


def test_nothing_is_fused_twice() -> None:
    p = program_of("qknorm_gqa_fp32")
    for g in Searcher(SearchOptions(candidates=1)).blocks(p)[0]:
        again = thread_graphs(g, p)
        assert len([o for o in again.ops if o.op == "thread"]) == len([o for o in g.ops if o.op == "thread"])
        tiles = dict.fromkeys(g.grid, 8) | ({"loop": 16} if g.loop else {})
        assert same_in_field(p, one_kernel(p, again), [tiles])
