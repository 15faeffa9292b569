"""Engines: the ways to make a CUDA kernel of a block graph with a schedule. Each brings a template of `templates/cuda/`.

    block      tiles of a block in shared memory, all warps in step (`codegen/tiles/lower.py`, `codegen/printers/cuda.py`)
    strip      groups of warps that walk the loop on their own, values in registers (`codegen/strip/`)
    rows       rows of graphs without contractions in registers (`codegen/rows/engine.py`)
    warpgroup  many rows on sm_90a: a warp brings tiles, warpgroups multiply them (`codegen/warpgroup/engine.py`)

A template prints `kernelN(const Parameters parameters)` from `k`, the kernel's context. `kernel.cu.j2` itself prints the
parameters, the workspace and the launches, and needs of every engine:

    inputs, outputs, symbols, grid   what the kernel reads and writes, and its blocks (see `Emitter.context`)
    headers, template                files of `templates/include/mirage/cuda/` and of `templates/cuda/`
    members, setup                   further members of the parameters, and the statements that set them on the host
    threads, shared_bytes, cluster   of a block; how many blocks make a cluster (1: none)
    dependent                        whether the kernel may begin before the one before it has ended
"""

from __future__ import annotations

from collections.abc import Callable

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
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target

Engine = Callable[[Request], Kernel]


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


ENGINES: dict[str, Engine] = {
    "block": block_kernel,
    "strip": strip_kernel,
    "rows": rows_kernel,
    "warpgroup": warpgroup_kernel,
}


def kernel_of(request: Request) -> Kernel:
    """The kernel that the schedule's engine makes. Raises Refused when it cannot."""
    if request.target.kind == "cpu":
        return cpu_kernel(request)
    engine = ENGINES.get(request.schedule.engine)
    if engine is None:
        raise Refused(f"unknown engine {request.schedule.engine!r}: there are {', '.join(ENGINES)}")
    return engine(request)
