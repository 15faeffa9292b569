"""A muGraph made by hand: rms(X) W with a loop over the hidden axis, so that no search decides what the tests draw."""

from fractions import Fraction

from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir.program import Axis, Input, Node, Output, Program, Slot, Source
from mirage_cli.search.mugraph.mugraph import (
    BODY,
    EPILOGUE,
    BlockGraph,
    BlockOp,
    CustomKernel,
    KernelGraph,
    ThreadGraph,
    ThreadNode,
)


def norm_linear(x: str = "x", w: str = "w", y: str = "y") -> Program:
    """rms(X) W; the names are the model's tensors."""
    a, b, c = (Slot(n, e) for n, e in (("a", 5), ("b", 40), ("c", 48)))
    nodes = (
        Node("v0", "const", value=Fraction(1, 48)),
        Node("v1", "mul", ("x0", "x0")),
        Node("v2", "sum", ("v1",), ("c",)),
        Node("v3", "mul", ("v0", "v2")),
        Node("v4", "sqrt", ("v3",)),
        Node("v5", "div", ("x0", "v4")),
        Node("v6", "contract", ("v5", "x1"), ("c",), dtype=F32),
    )
    return Program(
        (Axis("a", 5), Axis("b", 40), Axis("c", 48)),
        (Source(x, (5, 48), F32), Source(w, (48, 40), F32, constant=True)),
        (Input("x0", 0, (a, c)), Input("x1", 1, (c, b))),
        nodes,
        (Output("v6", (a, b), (5, 40), F32, y),),
    ).validate()


def looped(program: Program) -> KernelGraph:
    """The graph of the paper's first example: two accumulators, the division after the loop."""
    square = ThreadGraph(1, (ThreadNode("mul", (0, 0)),))
    finish = ThreadGraph(
        2,
        (
            ThreadNode("const", (), Fraction(1, 48)),
            ThreadNode("mul", (1, 2)),
            ThreadNode("sqrt", (3,)),
            ThreadNode("div", (0, 4)),
        ),
    )
    ops = (
        BlockOp("t0", "load", (), BODY, source_value="x0"),
        BlockOp("t1", "load", (), BODY, source_value="x1"),
        BlockOp("t2", "thread", ("t0",), BODY, thread=square),
        BlockOp("t3", "sum", ("t2",), BODY, ("c",)),
        BlockOp("t4", "contract", ("t0", "t1"), BODY, ("c",), dtype=F32),
        BlockOp("t5", "accum", ("t3",), EPILOGUE),
        BlockOp("t6", "accum", ("t4",), EPILOGUE),
        BlockOp("t7", "thread", ("t6", "t5"), EPILOGUE, thread=finish),
    )
    block = BlockGraph(("a", "b"), (), "c", ops, ("t7",))
    return KernelGraph(2, 1, 3, (CustomKernel(program, block, (0, 1), (2,)),)).validate()


#: names that a hostile model file may choose
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a'b&c--]]>",
    "line\nbreak\r\ttab",
    "null\0byte \x1b[31mred",
    "\u202ereversed\u2066",
    "\udc80 lone surrogate",
    "很长的名字" * 60,
    "{{ 7 * 7 }}{% for x in y %}",
    "n" * 10_000,
)
