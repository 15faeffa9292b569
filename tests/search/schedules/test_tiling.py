"""Tiles of blocks, and the memory that they take."""

from __future__ import annotations

from mirage_cli.codegen.tiles.optimize import tile_program
from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir.program import Axis, Input, Node, Output, Program, Slot, Source
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.schedules.ranking import ranked
from mirage_cli.search.schedules.schedule import Ranked
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions

BATCH, SEQ = symbol("batch"), symbol("seq")


def heads() -> Program:
    """A linear layer and its bias, stored head by head."""
    return Program(
        axes=(Axis("a", BATCH), Axis("b", 4), Axis("c", SEQ), Axis("d", 16), Axis("e", 64)),
        sources=(Source("w", (64, 64), F32), Source("x", (BATCH, SEQ, 64), F32), Source("bias", (64,), F32)),
        inputs=(
            Input("x0", 0, (Slot("e", 64), Slot("b", 4), Slot("d", 16))),
            Input("x1", 1, (Slot("a", BATCH), Slot("c", SEQ), Slot("e", 64))),
            Input("x2", 2, (Slot("b", 4), Slot("d", 16))),
        ),
        nodes=(Node("v0", "contract", ("x0", "x1"), ("e",), dtype=F32), Node("v1", "add", ("x2", "v0"))),
        outputs=(
            Output("v1", (Slot("a", BATCH), Slot("b", 4), Slot("c", SEQ), Slot("d", 16)), (BATCH, 4, SEQ, 16), F32),
        ),
    ).validate()


def fits(program: Program, block: BlockGraph, choice: Ranked) -> bool:
    """True if the memory of a kernel's tiles is not more than the target has."""
    try:
        return bool(tile_program(program, block, choice.schedule, load_target("cpu")))
    except Refused:
        return False


def test_tiles_longer_than_axes_typically_are_fit() -> None:
    target, program, sizes = load_target("cpu"), heads(), {"batch": 1, "seq": 520}
    blocks = Searcher(SearchOptions()).blocks(program)[0]
    choices = [(block, ranked(program, block, target, 4, sizes)) for block in blocks]
    assert any(found and all(fits(program, block, c) for c in found) for block, found in choices)
