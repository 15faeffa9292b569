"""Engines: the ways to make kernels of a block graph with a schedule.

    block      tiles of a block in shared memory, all warps in step
    strip      groups of warps that walk the loop on their own, values in registers
    rows       rows of graphs without contractions in registers
    warpgroup  many rows on sm_90a: a warp brings tiles, warpgroups multiply them

A kernel is data (`kernel_language/ir.py`); what it is launched with stands beside it (`requests/request.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from mirage_cli.codegen.printers.cpu import CpuEmitter
from mirage_cli.codegen.printers.cuda import CudaEmitter
from mirage_cli.codegen.read_back import read_back
from mirage_cli.codegen.requests.passes import ALL, Passes
from mirage_cli.codegen.requests.request import Kernel, Request
from mirage_cli.codegen.rows.engine import rows_kernel
from mirage_cli.codegen.strip.engine import strip_kernel
from mirage_cli.codegen.tiles.lower import lower
from mirage_cli.codegen.tiles.optimize import fits, needed_bytes, optimized
from mirage_cli.codegen.tiles.tile import TileProgram
from mirage_cli.codegen.warpgroup.engine import warpgroup_kernel
from mirage_cli.errors import Refused
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.schedules.model import ModelMaker
from mirage_cli.search.schedules.ranking import MODELS
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target


class Engine(Protocol):
    """A way to make kernels: `model` says whether a block graph suits, which schedules there are and what they cost, `make`
    makes the kernel of one. Both raise Refused."""

    @property
    def model(self) -> ModelMaker:
        """The engine's model of a block graph on a target."""

    def make(self, request: Request, /) -> Kernel:
        """The kernel of a schedule of this engine's. Raises Refused where it does not fit."""


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """An engine of a model and a maker."""

    model: ModelMaker
    maker: Callable[[Request], Kernel]

    def make(self, request: Request, /) -> Kernel:
        """The kernel of a schedule."""
        return self.maker(request)


def tile_program(
    program: Program, block: BlockGraph, schedule: Schedule, target: Target, passes: Passes = ALL
) -> TileProgram:
    """The finished tile program of one kernel. Raises Refused when it does not fit the target."""
    tile = optimized(lower(program, block, schedule, target, passes.fusion), passes)
    if not fits(tile):
        raise Refused(f"{needed_bytes(tile)} bytes of shared memory, {target.name} has {target.shared_bytes}")
    return tile


def block_kernel(r: Request) -> Kernel:
    """A kernel of the engine `block`. Raises Refused."""
    tile = tile_program(r.program, r.block, r.schedule, r.target, r.passes)
    printer = CudaEmitter(tile, r.number, r.symbols, r.hollow)
    return read_back(r, tile, printer.kernel_context(), printer.workspace(), printer.setup)


def cpu_kernel(r: Request) -> Kernel:
    """A kernel for CPUs. Raises Refused."""
    tile = tile_program(r.program, r.block, r.schedule, r.target, r.passes)
    return read_back(r, tile, CpuEmitter(tile, r.number, r.symbols, r.hollow).kernel_context())


_MAKERS = {"block": block_kernel, "strip": strip_kernel, "rows": rows_kernel, "warpgroup": warpgroup_kernel}
ENGINES: dict[str, Engine] = {name: OwnEngine(MODELS[name], maker) for name, maker in _MAKERS.items()}


@contextmanager
def added(name: str, engine: Engine) -> Iterator[None]:
    """One more engine for a while: searches that name it consider its schedules (`SearchOptions.engines`)."""
    ENGINES[name], MODELS[name] = engine, engine.model
    try:
        yield
    finally:
        del ENGINES[name], MODELS[name]


def kernel_of(request: Request) -> Kernel:
    """The kernel that the schedule's engine makes. Raises Refused when it cannot."""
    if request.target.kind == "cpu":
        return cpu_kernel(request)
    engine = ENGINES.get(request.schedule.engine)
    if engine is None:
        raise Refused(f"unknown engine {request.schedule.engine!r}: there are {', '.join(ENGINES)}")
    return engine.make(request)
