"""How many positions of a dimension there have to be."""

from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.extents import product, symbol
from mirage_cli.lax.ir.program import Axis, Input, Node, Output, Program, Slot, Source
from mirage_cli.lax.ir.room import least_positions, partial_reads

S = symbol("s")


def test_only_what_is_read_in_part_counts() -> None:
    rows = product([2, S])
    program = Program(
        axes=(Axis("i", 4), Axis("j", S)),
        sources=(Source("x", (S, rows), F32), Source("z", (S, 9), F32)),
        inputs=(
            Input("a", 0, (Slot("j", S), Slot("i", rows, 3))),
            Input("b", 0, (Slot("j", S), Slot(None, rows, 1))),
            Input("c", 1, (Slot(None, S, 2), Slot("i", 9, 5))),
        ),
        nodes=(Node("ab", "add", ("a", "b")), Node("y", "add", ("ab", "c"))),
        outputs=(Output("y", (Slot("j", S), Slot("i", 4)), (S, 4), F32),),
    ).validate()
    assert list(partial_reads(program)) == [(rows, 4, 3), (rows, 1, 1), (S, 1, 2)]
    assert least_positions(program) == ((S, 3), (rows, 7))
