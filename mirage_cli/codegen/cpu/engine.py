"""Kernels for CPUs: a thread makes a block at a time, whose tiles lie in its scratch memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from mirage_cli.codegen.cpu.positions import CpuPositions, buffer_type
from mirage_cli.codegen.cpu.products import panels, room, rounded_bytes, shared
from mirage_cli.codegen.cpu.statements import statements
from mirage_cli.codegen.requests.request import Kernel, Launch, Parameter, Request
from mirage_cli.codegen.terms.expressions import ZERO
from mirage_cli.codegen.tiles.optimize import tile_program
from mirage_cli.codegen.tiles.tile import Buffer, Compute, Contract, Init, Reduce, Scale, TileProgram
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax.domains.limits import Form
from mirage_cli.search.mugraph.hidden import given_limits
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, PROLOGUE
from mirage_cli.search.schedules.cost import CostModel

ALIGNMENT = 128  #: bytes of scratch memory beyond the tiles
PARAMETERS, MEMORY, BLOCK, STEP = map(k.name, ("parameters", "memory", "block", "step"))


class _Positions(CpuPositions):
    """Those of a kernel that also reads the packed forms of weights."""

    def inputs(self) -> tuple[Parameter, ...]:
        return (*super().inputs(), *self.panels)

    @cached_property
    def panels(self) -> tuple[Parameter, ...]:
        """The packed forms that its products read."""
        return panels(self)


def cpu_kernel(r: Request) -> Kernel:
    """A kernel for CPUs. Raises Refused."""
    tile = _made_once(tile_program(r.program, r.block, r.schedule, r.target, r.passes))
    at = _Positions(tile, r)
    parallel = CostModel(at.p, at.g, r.target).parallel(r.schedule)
    blocks = tuple(map(at.blocks, at.grid()))
    launch = Launch(at.inputs(), at.outputs(), r.numbers, blocks, shared_bytes=tile.shared_bytes, parallel=parallel)
    fields = launch.fields(ir.Field(k.of_type("int"), "failed"))
    body = (
        *_declarations(at),
        *statements(at, at.t.prologue, PROLOGUE),
        *_loop(at),
        *statements(at, at.t.epilogue, EPILOGUE),
    )
    return Kernel(tile, ir.Kernel(f"kernel{r.number}", "data", fields, (), body), launch, shared=shared(at))


def _made_once(t: TileProgram) -> TileProgram:
    """The same, where the loop has one iteration, with products put where they were added to zeros."""
    extent = None if t.graph.loop is None or t.graph.loop in t.graph.split else t.program.extent(t.graph.loop)
    if not isinstance(extent, int) or extent > t.schedule.loop:
        return t
    zeros = {n.buffer for n in t.prologue if isinstance(n, Init) and n.value == 0}
    changed = {n.buffer for n in t.body if isinstance(n, (Scale, Compute, Reduce))}
    added = [n.out for n in t.body if isinstance(n, Contract) and n.add]
    put = {b for b in zeros - changed if added.count(b) == 1}
    return replace(
        t,
        prologue=tuple(n for n in t.prologue if not (isinstance(n, Init) and n.buffer in put)),
        body=tuple(replace(n, add=False) if isinstance(n, Contract) and n.out in put else n for n in t.body),
    )


def _declarations(at: CpuPositions) -> list[ir.Statement]:
    """The places of all that the kernel reads and writes."""
    struct = f"Parameters{at.r.number}"
    given = ir.Unary("*", k.cast(f"{struct}*", "data"))
    failed = k.assign(PARAMETERS.member("failed"), "MIRAGE_OUT_OF_MEMORY")
    return [
        k.declare(k.of_type(struct, reference=True), "parameters", given),
        at.offset_type(wide=True),
        k.let("unsigned char*", "memory", k.call("scratch", ir.lift(_scratch(at.t)) + ALIGNMENT)),
        k.when(k.binary("==", MEMORY, k.number("nullptr")), failed, ir.Return()),
        *at.names("parameters", restrict=False),
        *(k.let("offset_t", f"s_{n}", PARAMETERS.member(f"s_{n}")) for n in at.r.numbers),
        *_places(at),
        *at.moves(),
        *(_buffer(b, at.t.offsets[b.name]) for b in at.t.buffers.values() if b.name in at.t.offsets),
        k.ignore(BLOCK),
    ]


def _scratch(t: TileProgram) -> int:
    """Bytes of tiles and, behind them, of rounded operands, one at a time."""
    rounded = [rounded_bytes(t, n) for n in (*t.prologue, *t.body, *t.epilogue) if isinstance(n, Contract)]
    return room(t) + max(rounded) if any(rounded) else t.shared_bytes


def _places(at: CpuPositions) -> list[ir.Statement]:
    """The first positions of a block along the grid axes, and how many of them lie inside those that it may leave."""
    places = list[ir.Statement]()
    for a in reversed(at.grid()):
        start = k.cast("offset_t", BLOCK % at.blocks(a)) * at.tile(a)
        places += [k.let("offset_t", f"{a}_at", start), k.assign(BLOCK, at.blocks(a), "/=")]
    partial = [a for a in at.grid() if at.tile(a) > 1 and not at.shapes.exact(a, EPILOGUE)]
    return places + [_inside(at, a, f"n_{a}", at.tile(a), f"{a}_at") for a in partial]


def _inside(at: CpuPositions, axis: str, variable: str, most: int, start: str) -> ir.Statement:
    """How many of `most` positions from `start` on lie inside an axis."""
    return k.let("int", variable, k.call("smaller", most, at.extent(at.p.extent(axis)) - k.name(start)))


def _buffer(b: Buffer, offset: int) -> ir.Statement:
    kind = f"{buffer_type(b)}*"
    return k.let(kind, b.name, k.reinterpret(kind, MEMORY + offset))


def _loop(at: CpuPositions) -> list[ir.Statement]:
    """The loop, if there is one."""
    loop, step = at.g.loop, at.t.schedule.loop
    if loop is None:
        return []
    inside = [] if at.shapes.exact(loop, BODY) else [_inside(at, loop, f"n_{loop}_step", step, f"{loop}_step")]
    extent = at.p.extent(loop)
    once = isinstance(extent, int) and extent <= step
    tests = (
        []
        if once
        else [_seen(at, f, f"seen_{n}") for n, f in enumerate(given_limits(at.p, at.g)) if f not in at.limits]
    )
    body = statements(at, at.t.body, BODY)
    if seen := k.both(*(k.binary("==", test.name, 1) for test in tests)):
        body = [*(s for test in tests for s in test.statements), k.when(seen, *body)]
    return [*at.walked(), k.loop("step", "steps", at.step_position(STEP), *inside, *body)]


@dataclass(frozen=True, slots=True)
class _Test:
    """The variable that is 1 where an iteration may show something, and the statements that set it."""

    name: ir.Name
    statements: tuple[ir.Statement, ...]


def _seen(at: CpuPositions, form: Form, variable: str) -> _Test:
    """The test whether a form with integers that are inputs reaches 0 on a tile: all of these are looked at, with the last
    positions along axes that they lack."""
    found = k.name(variable)
    axes = frozenset[str]().union(*(at.p.axes_of(v) for v, _ in form.given))
    places: list[tuple[int, ir.Expression]] = [(1, ir.lift(form.constant))]
    for axis, factor in form.terms:
        place = at.position(axis, BODY) if axis in axes else k.total([*at.base(axis, BODY), *_last(at, axis, factor)])
        places.append((factor, k.cast("float", place)))
    places += [(factor, at.read(v, at.offset(at.reads[v], BODY))) for v, factor in form.given]
    reached = k.call("m_le", ZERO, k.total(t if n == 1 else t * k.cast("float", n) for n, t in places))
    look = k.when(k.binary("!=", reached, ZERO), k.assign(found, 1))
    loops = at.loops([a.name for a in at.p.axes if a.name in axes and at.sized(a.name, BODY)], BODY)
    return _Test(found, (k.declare("int", variable, 0), *k.nested(loops, look)))


def _last(at: CpuPositions, axis: str, factor: int) -> list[ir.Expression]:
    """The place in a tile of the position along an axis where a form is largest."""
    return [ir.lift(at.shapes.size(axis, BODY) - 1)] if factor > 0 else []
