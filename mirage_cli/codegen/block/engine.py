"""Kernels of the engine `block`: a block keeps tiles in shared memory and waits as a whole between statements."""

from __future__ import annotations

from mirage_cli.codegen.block import split
from mirage_cli.codegen.block.loads import ring_loads, stage
from mirage_cli.codegen.block.statements import statements
from mirage_cli.codegen.requests.request import Kernel, Launch, Request
from mirage_cli.codegen.terms.expressions import SYNC
from mirage_cli.codegen.terms.fragments import FragmentPositions
from mirage_cli.codegen.tiles.optimize import tile_program
from mirage_cli.codegen.tiles.tile import FRAGMENT, RING, Load
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, PROLOGUE

MAX_FRAGMENT_FLOATS = 200  #: accumulator registers of a thread beyond which kernels spill
COMMIT = k.run("copy_commit")
STEP, STEPS, SHARED = k.name("step"), k.name("steps"), k.name("shared")


def block_kernel(r: Request) -> Kernel:
    """A kernel of the engine `block`. Raises Refused."""
    tile = tile_program(r.program, r.block, r.schedule, r.target, r.passes)
    at = FragmentPositions(tile, r)
    if at.fragment_floats() > MAX_FRAGMENT_FLOATS:
        raise Refused(f"{at.fragment_floats()} accumulator registers for each thread")
    blocks = tuple(map(at.blocks, at.grid()))
    launch = Launch(at.inputs(), at.outputs(), r.numbers, blocks, at.threads, tile.shared_bytes)
    fields = launch.fields(*(split.MEMBERS if at.g.split else ()))
    kernel = ir.Kernel(f"kernel{r.number}", "parameters", fields, (at.threads,), (*_declarations(at), *_phases(at)))
    return Kernel(tile, kernel, launch, ("tile.cuh",), split.workspace(at), lambda place: split.setup(at, place))


def _declarations(at: FragmentPositions) -> list[ir.Statement]:
    """The places of all that the kernel reads and writes."""
    return [*at.beginning({"THREADS": at.threads}), *at.moves(), *split.declarations(at), *_buffers(at)]


def _buffers(at: FragmentPositions) -> list[ir.Statement]:
    """The tiles of the block, and the fragments of its warps."""
    found = list[ir.Statement]()
    for b in at.t.buffers.values():
        if b.name in at.t.offsets:
            kind = f"{at.ctype(b.dtype)}*"
            found.append(k.let(kind, b.name, k.reinterpret(kind, SHARED + at.t.offsets[b.name])))
    for b in at.t.buffers.values():
        if b.place == FRAGMENT:
            found += [k.alias(f"F_{b.name}", at.fragment_type(b)), k.declare(f"F_{b.name}", b.name)]
    return found


def _phases(at: FragmentPositions) -> list[ir.Statement]:
    """Prologue, loop and epilogue."""
    loads = [n for n in at.t.prologue if isinstance(n, Load)]
    rest = [n for n in at.t.prologue if not isinstance(n, Load)]
    ahead = [_wait(0)] if at.g.loop is None else [*_ahead(at), _wait(at.t.schedule.stages - 1)]
    return [
        *statements(at, loads, PROLOGUE),
        COMMIT,
        *ahead,
        SYNC,
        *statements(at, rest, PROLOGUE),
        *([] if at.g.loop is None else [_loop(at), _wait(0), SYNC]),
        *statements(at, at.t.epilogue, EPILOGUE),
    ]


def _wait(stages: int) -> ir.Statement:
    """Until no more than so many loads are under way."""
    return k.run("copy_wait", static=[stages])


def _ahead(at: FragmentPositions) -> list[ir.Statement]:
    """The function that loads for an iteration, called for the first ones."""
    stages = at.t.schedule.stages
    loads = k.when(
        STEP < STEPS, k.let("int", "slot", STEP % stages, unused=True), at.step_position(STEP), *ring_loads(at)
    )
    return [
        *at.walked(),
        k.define("load_stage", [("int", "step")], loads, COMMIT),
        k.loop("step", stages - 1, k.run("load_stage", STEP)),
    ]


def _loop(at: FragmentPositions) -> ir.Statement:
    """The loop: tiles of an iteration are there, those of a later one are loaded while it runs."""
    stages = at.t.schedule.stages
    rings = [b for b in at.t.buffers.values() if b.place == RING and b.name in at.t.offsets]
    now = [
        k.let(
            k.of_type(f"{at.ctype(b.dtype)}*", const=True), f"{b.name}_now", k.name(b.name) + STEP % stages * stage(b)
        )
        for b in rings
    ]
    return k.loop(
        "step",
        STEPS,
        _wait(stages - 2),
        SYNC,
        k.run("load_stage", STEP + (stages - 1)),
        at.step_position(STEP),
        *now,
        *statements(at, at.t.body, BODY),
    )
