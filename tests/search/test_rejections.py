"""muGraphs that the definition, the target or the proof rejects, each with its message; and what the reference rejects that is
right here: a second exponential on a path, partial tiles, more memory than 96 KiB."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_cli.codegen.tiles.optimize import tile_program
from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.lax.dtypes import F16, F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program, Slot
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.search.mugraph.mugraph import (
    BODY,
    EPILOGUE,
    GRID,
    PROLOGUE,
    BlockGraph,
    BlockOp,
    ThreadGraph,
    ThreadNode,
)
from mirage_cli.search.proof.verify import verify
from mirage_cli.search.schedules.ranking import ranked
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.lax.programs import recorded
from tests.search.mugraph.test_mugraph import NORMED, changed, divided, golden, with_op
from tests.search.programs import attention, built, normed, one_kernel, same_in_floats, tilings

MINUS = ThreadGraph(2, (ThreadNode("exp_minus", (0, 1)),))
PRODUCT = ThreadGraph(2, (ThreadNode("mul", (0, 1)),))
NUMBER = "[0-9]+"
COPY = ThreadGraph(1, ())
EXP = ThreadGraph(1, (ThreadNode("exp", (0,)),))


def thread(*nodes: ThreadNode, arity: int = 2) -> ThreadGraph:
    """A thread graph."""
    return ThreadGraph(arity, nodes)


def of_attention(loop: bool, split: bool = False) -> tuple[Program, BlockGraph]:
    """A block graph for attention, with a running maximum or without."""
    p = attention()
    keys = next(n.over[0] for n in p.nodes if n.op == "stable_exp")
    found = Searcher(SearchOptions(candidates=1)).blocks(p)[0]
    return p, next(g for g in found if g.loop == (keys if loop else None) and bool(g.split) == split and _stable(g))


def _stable(g: BlockGraph) -> bool:
    return any(o.op == "top" for o in g.ops)


def rejected(p: Program, block: BlockGraph, message: str) -> None:
    """A block graph that reads no maximum of another kernel breaks a rule, and says which."""
    with pytest.raises(InvalidGraph, match=message):
        block.validate(p, ())


# --- the reference's list -------------------------------------------------------------------------------------------------
def test_a_reduced_axis_on_the_grid_needs_a_reduction_over_blocks() -> None:
    rejected(NORMED, replace(golden(), grid=("a", "b", "c")), "contract over c, of which a block holds a part")
    unreduced = replace(golden(), grid=("a", "b", "c"), split=("c",))
    rejected(NORMED, unreduced, "output o is a partial result of the split axis c")
    assert divided().validate(NORMED)


def test_outputs_stand_behind_an_accumulator() -> None:
    rejected(NORMED, replace(golden(), outputs=("y",)), "output 'y' is not available after the loop")


def test_two_accumulators_on_a_path() -> None:
    again = with_op(golden(), BlockOp("t", "accum", ("ss",), EPILOGUE))
    rejected(NORMED, again, "t: accumulates ss, which is not computed in the body")
    again = with_op(divided(), BlockOp("t", "grid_sum", ("yg",), GRID))
    rejected(NORMED, again, "t: sums yg over blocks, which is no partial result")


def test_values_of_the_body_do_not_meet_accumulated_ones() -> None:
    mixed = with_op(golden(), BlockOp("t", "thread", ("s", "ss"), EPILOGUE, thread=PRODUCT))
    rejected(NORMED, mixed, r"t \(epilogue\) reads s, which lives in the body")
    mixed = with_op(golden(), BlockOp("t", "thread", ("s", "ss"), BODY, thread=PRODUCT))
    rejected(NORMED, mixed, r"t \(body\) reads ss, which lives in the epilogue")


def test_a_second_exponential_on_a_path_is_right_here() -> None:
    """The reference's theorem allows one; functions are uninterpreted here, so any number is proved, or refuted."""

    def build(g: Graph, factor: float) -> int:
        inner = compose.matmul(g, g.map("exp", g.input("x", (3, 4), F32)), g.input("w", (4, 5), F32))
        return compose.matmul(g, g.map("exp", compose.scale(g, inner, factor)), g.input("u", (5, 2), F32))

    p, other = (built(lambda g, f=f: build(g, f)) for f in (0.125, 0.25))  # type: ignore[misc]
    for block in Searcher(SearchOptions(candidates=1)).blocks(p)[0]:
        tiles = [tilings(p, block, {})[1]]
        assert sum(n.op == "exp" for o in block.ops if o.thread for n in o.thread.nodes) == 2
        assert verify(p, one_kernel(p, block), tiles).passed
        verdict = verify(other, one_kernel(p, block), tiles)
        assert not verdict.passed
        assert "differs" in verdict.reason


@pytest.mark.parametrize("kilobytes", [96, 97, 227])
def test_memory_of_a_block(kilobytes: int) -> None:
    """The limit is the target's (227 KiB on sm_90a), not the 96 KiB of the reference; schedules up to it are taken, and a
    byte less rejects what needed it."""
    target = replace(load_target("sm_90a"), shared_bytes=kilobytes * 1024)
    p = built(_wide)
    block = next(b for b in Searcher(SearchOptions(candidates=1)).blocks(p)[0] if b.loop and not b.split)
    found = ranked(p, block, target, 10000)
    most = max(found, key=lambda r: r.prediction.shared)
    assert 80 * 1024 < most.prediction.shared <= target.shared_bytes
    tight = replace(target, shared_bytes=most.prediction.shared)
    assert most.schedule in {r.schedule for r in ranked(p, block, tight, 10000)}
    tight = replace(target, shared_bytes=most.prediction.shared - 1)
    assert most.schedule not in {r.schedule for r in ranked(p, block, tight, 10000)}


def _wide(g: Graph) -> int:
    x, w = g.input("x", (1024, 1024), F16), g.input("w", (1024, 1024), F16, True)
    return compose.matmul(g, compose.rms_norm(g, x, [-1], 1e-5), w)


def test_memory_of_a_rendered_block() -> None:
    """What the plan of a kernel needs is known exactly when it is rendered."""
    p = built(_wide)
    block = next(b for b in Searcher(SearchOptions(candidates=1)).blocks(p)[0] if b.loop and not b.split)
    target = load_target("sm_90a")
    schedule = Schedule(tuple(zip(block.grid, (64, 64), strict=True)), 64, 4, 3)
    limit, plans = target.shared_bytes, []
    with pytest.raises(Refused, match=rf"{NUMBER} bytes of shared memory, sm_90a has {NUMBER}"):
        while True:
            plans.append(tile_program(p, block, schedule, replace(target, shared_bytes=limit)).shared_bytes)
            assert plans[-1] <= limit
            limit = plans[-1] - 1
    assert plans[-1] > 1 << 14


@pytest.mark.parametrize("make", [normed, attention], ids=["norm", "attention"])
def test_tiles_that_divide_nothing_are_right_here(make: Callable[[], Program]) -> None:
    """The reference wants every partition to be exact; here the last tile is a part, and proved as such."""
    p = make()
    for block in Searcher(SearchOptions(candidates=1)).blocks(p)[0]:
        for size in (2, 4):
            tiles = dict.fromkeys(block.grid, size) | ({"loop": min(size, 2)} if block.loop else {})
            assert verify(p, one_kernel(p, block), [tiles]).passed
            assert same_in_floats(p, one_kernel(p, block), [tiles])


# --- outputs and the axes of the grid -------------------------------------------------------------------------------------
def statistics_and_product() -> tuple[Program, BlockGraph]:
    """Two outputs of different axes: sums of the rows of x, and x w."""
    g = Graph()
    x = g.input("x", (3, 7), F32)
    p = canonical(recorded(g, [g.reduce("sum", x, [-1]), compose.matmul(g, x, g.input("w", (7, 5), F32))]))
    block = next(b for b in Searcher(SearchOptions(candidates=1)).blocks(p)[0] if b.loop and not b.split)
    return p, block


def test_an_output_may_lack_an_axis_of_the_grid() -> None:
    """No value of a block depends on which part of an axis it holds unless it has the axis; one block stores it."""
    p, block = statistics_and_product()
    rows, columns = (next(iter(a)) for a in ({s.axis for s in o.access} & set(block.grid) for o in p.outputs[:1] * 2))
    assert rows == columns
    (missing,) = set(block.grid) - {rows}
    lines = block.maps(p)
    assert lines[-2].endswith(f"omap {{{rows}}}")
    assert missing in lines[-1]
    for size in (1, 2, 5):
        tiles = dict.fromkeys(block.grid, size) | {"loop": 3}
        assert verify(p, one_kernel(p, block), [tiles]).passed
        assert same_in_floats(p, one_kernel(p, block), [tiles])


def test_an_output_that_depends_on_an_axis_which_it_lacks() -> None:
    """Each way to lose an axis on the way: reduced where a block holds a part, or stored without it."""
    p, block = statistics_and_product()
    total = block.outputs[0]
    (reduced,) = {a for o in block.ops for a in o.over}
    part = replace(block, grid=(*block.grid, reduced))
    rejected(p, part, f"over {reduced}, of which a block holds a part")
    swapped = replace(block, outputs=block.outputs[::-1])
    rejected(p, swapped, rf"output {block.outputs[1]} has axes .* that its tensor lacks")
    top = with_op(block, BlockOp("t", "top", (block.outputs[1],), EPILOGUE, (next(a for a in block.grid if a != "a"),)))
    rejected(p, replace(top, outputs=("t", block.outputs[1])), "t: top over .*, of which a block holds a part")
    assert total == block.outputs[0]


def test_outputs_along_a_split_axis_are_stored_by_each_block() -> None:
    """h = x + r is stored as it is, the norm's sum goes over blocks."""
    g = Graph()
    h = g.map("add", g.input("x", (3, 6), F32), g.input("r", (3, 6), F32))
    y = compose.matmul(g, compose.rms_norm(g, h, [-1], 0.5), g.input("w", (6, 4), F32))
    p = canonical(recorded(g, [h, y]))
    block = next(b for b in Searcher(SearchOptions(candidates=1)).blocks(p)[0] if b.split)
    (k,) = block.split
    assert k in block.axes_of(p)[block.outputs[0]]
    for size in (1, 4, 6):
        tiles = dict.fromkeys(block.grid, 2) | {k: size}
        assert verify(p, one_kernel(p, block), [tiles]).passed
        assert same_in_floats(p, one_kernel(p, block), [tiles])
    late = replace(block, ops=tuple(replace(o, phase=GRID) if o.name == block.outputs[0] else o for o in block.ops))
    rejected(p, late, "is a partial result of the split axis|, which lives in the grid")


# --- maxima ---------------------------------------------------------------------------------------------------------------
def test_a_maximum_is_no_number() -> None:
    """In the proof a maximum is exp of an arbitrary number, so nothing but exponentials may read it: sum(exp(x - m)) m is
    not sum(exp(x)), although both agree where m stands for exp of the maximum."""
    p = built(lambda g: g.reduce("sum", g.map("exp", g.input("x", (3, 7), F32)), [1]))
    row, column = (s.axis or "" for s in p.inputs[0].access)
    ops = (
        BlockOp("x", "load", (), PROLOGUE, source_value=p.inputs[0].name),
        BlockOp("m", "top", ("x",), PROLOGUE, (column,)),
        BlockOp("e", "thread", ("x", "m"), PROLOGUE, thread=MINUS),
        BlockOp("s", "sum", ("e",), PROLOGUE, (column,)),
        BlockOp("o", "thread", ("s", "m"), PROLOGUE, thread=PRODUCT),
    )
    block = BlockGraph((row,), (), None, ops, ("o",))
    rejected(p, block, "o: mul of the maximum m, which may only keep exponentials small")
    rejected(p, replace(block, outputs=("m",)), "mul of the maximum m")
    rejected(
        p, replace(block, ops=ops[:-1], outputs=("m",)), "output m is a maximum, which only keeps exponentials small"
    )
    for wrong, message in (
        (replace(ops[2], inputs=("x", "x")), "e: operand 1 of exp_minus is no maximum"),
        (replace(ops[2], inputs=("m", "m")), "e: exp_minus of the maximum m"),
        (replace(ops[2], inputs=("m",), thread=COPY), "e: thread of the maximum m"),
        (replace(ops[2], inputs=("m",), thread=EXP), "e: exp of the maximum m"),
        (replace(ops[3], inputs=("m",), over=(row,)), "s: sum of the maximum m"),
    ):
        rejected(p, replace(block, ops=tuple(wrong if o.name == wrong.name else o for o in ops)), message)


def test_what_belongs_to_maxima() -> None:
    p, block = of_attention(loop=True)
    shrink = next(o for o in block.ops if o.op == "shrink")
    accum = next(o for o in block.ops if o.op == "accum")
    scores = next(o for o in block.ops if o.op == "top").inputs[0]
    rejected(
        p, changed(block, shrink.name, inputs=(scores,)), f"{shrink.name}: shrink of {scores}, which is no running"
    )
    other = changed(block, accum.name, inputs=(accum.inputs[0], accum.inputs[0]))
    rejected(p, other, f"{accum.name}: accumulates times {accum.inputs[0]}, which is no shrink")
    p, block = of_attention(loop=False, split=True)
    total = next(o for o in block.ops if o.op == "grid_sum")
    term = total.inputs[0]
    rejected(
        p, changed(block, total.name, inputs=(term, term, term)), f"{total.name}: operand 1 of grid_sum is no maximum"
    )


def test_a_missing_rescale_is_refuted() -> None:
    """Well-formed, and wrong: sums of exponentials below different maxima."""
    for loop, split, op in ((True, False, "accum"), (False, True, "grid_sum"), (True, True, "grid_sum")):
        p, block = of_attention(loop, split)
        tiles = [tilings(p, block, {})[1]]
        assert verify(p, one_kernel(p, block), tiles).passed
        for o in [o for o in block.ops if o.op == op]:
            wrong = one_kernel(p, changed(block, o.name, inputs=o.inputs[:1]))
            assert not verify(p, wrong, tiles).passed
            assert not all(same_in_floats(p, wrong, tiles, seed) for seed in range(5))


# --- sums whose value would depend on the number of tiles -----------------------------------------------------------------
def test_sums_over_tiles_take_what_differs_between_them() -> None:
    count = thread(ThreadNode("const", (), Fraction(1)), arity=0)
    one = with_op(golden(), BlockOp("one", "thread", (), BODY, thread=count))
    steps = with_op(one, BlockOp("steps", "accum", ("one",), EPILOGUE))
    rejected(NORMED, steps, "steps: accumulates one, which is the same in every iteration")
    one = with_op(divided(), BlockOp("one", "thread", (), EPILOGUE, thread=count))
    blocks = with_op(one, BlockOp("blocks", "grid_sum", ("one",), GRID))
    rejected(NORMED, blocks, "blocks: sums one over blocks, which is no partial result")
    ops = list(divided().ops)
    ops.insert(0, BlockOp("x2", "load", (), PROLOGUE, source_value="x1"))
    at = next(k for k, o in enumerate(ops) if o.name == "ss") + 1
    ops.insert(at, BlockOp("kept", "thread", ("ss", "x2"), EPILOGUE, thread=PRODUCT))
    ops.insert(at + 1, BlockOp("sums", "grid_sum", ("kept",), GRID))
    own = replace(divided(), ops=tuple(ops))
    rejected(NORMED, own, "sums: sums along c, of which every block holds its own part")


def test_the_loop_walks_whole_axes_or_shares() -> None:
    walks = replace(golden(), loop="b", ops=golden().ops[:2], outputs=("x",))
    rejected(NORMED, walks, "block graph: the loop walks b, of which a block holds a part")


def test_the_prologue_does_not_see_the_loop() -> None:
    p, block = of_attention(loop=True)
    running = next(o for o in block.ops if o.op == "running")
    early = BlockOp("early", "top", (running.name,), PROLOGUE)
    rejected(p, with_op(block, early), r"early \(prologue\) reads .*, which lives in the body")


# --- thread graphs and reads ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (ThreadGraph(2, ()), "thread graph: no operators for 2 operands"),
        (thread(ThreadNode("exp_minus", (0,))), "thread graph: exp_minus takes 2 operands, got 1"),
        (thread(ThreadNode("const", (0,), Fraction(1))), "thread graph: const takes 0 operands, got 1"),
    ],
)
def test_thread_graphs(wrong: ThreadGraph, message: str) -> None:
    with pytest.raises(InvalidGraph, match=re.escape(message)):
        wrong.validate()


def moved(access: Sequence[Slot], by: int) -> tuple[Slot, ...]:
    """An access map with its first run begun elsewhere."""
    return (replace(access[0], offset=by), *access[1:])


@pytest.mark.parametrize("by", [-1, 1])
def test_reads_beyond_what_is_stored(by: int) -> None:
    p = normed()
    first, *rest = p.inputs
    beyond = replace(p, inputs=(replace(first, access=moved(first.access, by)), *rest), _axes_of={})
    with pytest.raises(InvalidGraph, match=f"{first.name}: [0-9]+ positions from {by} on, of [0-9]+ that are stored"):
        beyond.validate()
