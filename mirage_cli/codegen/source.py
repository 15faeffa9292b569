"""From a kernel graph with its schedules to source text: lower, optimize, emit, render."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_cli.codegen.emit import Emitter
from mirage_cli.codegen.emit_cpu import CpuEmitter
from mirage_cli.codegen.emit_cuda import CudaEmitter
from mirage_cli.codegen.lower import lower
from mirage_cli.codegen.optimize import fits, needed_bytes, optimized
from mirage_cli.codegen.passes import ALL, Passes
from mirage_cli.codegen.render import render
from mirage_cli.codegen.tile import TileProgram
from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.program import Program
from mirage_cli.search.mugraph import BlockGraph, KernelGraph
from mirage_cli.search.schedule import Schedule
from mirage_cli.search.target import Target

WORKSPACE_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Rendered:
    """A source and the tile programs that it spells out."""

    text: str
    tiles: tuple[TileProgram, ...]


def tile_program(
    program: Program, block: BlockGraph, schedule: Schedule, target: Target, passes: Passes = ALL
) -> TileProgram:
    """The finished tile program of one kernel. Raises Refused when it does not fit the target."""
    tile = optimized(lower(program, block, schedule, target, passes.fusion), passes)
    if not fits(tile):
        raise Refused(f"{needed_bytes(tile)} bytes of shared memory, {target.name} has {target.shared_bytes}")
    return tile


def emitter(tile: TileProgram, kernel: int, symbols: Sequence[str]) -> CudaEmitter | CpuEmitter:
    """What prints a tile program for its target."""
    return (CudaEmitter if tile.target.kind == "cuda" else CpuEmitter)(tile, kernel, symbols)


def source(
    identifier: str,
    program: Program,
    graph: KernelGraph,
    schedules: Sequence[Schedule],
    target: Target,
    comment: str,
    passes: Passes = ALL,
) -> Rendered:
    """The source of a fragment for a target. Raises Refused when some kernel cannot be rendered.

    `identifier` is made of letters and digits; `comment` is text of ours (no names from a model). Without the fusion pass
    the graph is taken to be without thread graphs of several operators (`search/unfuse.py`).
    """
    tiles, kernels = [], []
    offsets, total = _workspace(graph)
    shares: list[Extent] = []
    for k, (kernel, schedule) in enumerate(zip(graph.kernels, schedules, strict=True)):
        tile = tile_program(kernel.program, kernel.block, schedule, target, passes)
        tiles.append(tile)
        printer = emitter(tile, k, program.symbols)
        context = printer.kernel_context()
        for i in context["inputs"]:
            i["pointer"] = _pointer(graph, kernel.inputs[i["source"]], offsets, printer)
        for n, o in enumerate(context["outputs"]):
            o["pointer"] = _pointer(graph, kernel.outputs[n], offsets, printer)
        if isinstance(printer, CudaEmitter) and printer.workspace():
            context["split"]["pointer"] = _inside([*total, *shares], program.symbols)
            shares.append(printer.workspace())
        kernels.append(context)
    workspace = _size([*total, *shares], program.symbols)
    name = "kernel.cu.j2" if target.kind == "cuda" else "kernel.cpp.j2"
    lines = "\n".join(f"// {line}".rstrip() for line in comment.splitlines())
    text = render(name, target.name, id=identifier, comment=lines, kernels=kernels, workspace=workspace)
    return Rendered(text, tuple(tiles))


def _workspace(graph: KernelGraph) -> tuple[dict[int, list[Extent]], list[Extent]]:
    """For each stored intermediate the sizes in front of it (bytes, rounded up where printed), and all sizes."""
    sizes: list[Extent] = []
    offsets: dict[int, list[Extent]] = {}
    for kernel in graph.kernels:
        for t, o in zip(kernel.outputs, kernel.program.outputs, strict=True):
            if t >= graph.sources + graph.outputs:
                offsets[t] = list(sizes)
                sizes.append(ex.product([*o.dims, o.dtype.bytes]))
    return offsets, sizes


def _size(sizes: Sequence[Extent], symbols: Sequence[str]) -> str:
    """The sum of sizes, each rounded up, as a C expression."""
    parts = []
    for s in sizes:
        if isinstance(s, int):
            parts.append(str(-(-s // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT))
        else:
            text = " * ".join([str(s.factor), *(f"extents[{symbols.index(n)}]" for n in s.names)])
            parts.append(f"({text} + {WORKSPACE_ALIGNMENT - 1}) / {WORKSPACE_ALIGNMENT} * {WORKSPACE_ALIGNMENT}")
    return " + ".join(parts) or "0"


def _pointer(graph: KernelGraph, tensor: int, offsets: dict[int, list[Extent]], printer: Emitter) -> str:
    if tensor < graph.sources:
        return f"in[{tensor}]"
    if tensor < graph.sources + graph.outputs:
        return f"out[{tensor - graph.sources}]"
    return _inside(offsets[tensor], printer.symbols)


def _inside(sizes: Sequence[Extent], symbols: Sequence[str]) -> str:
    """The place in the workspace behind parts of these sizes."""
    return f"static_cast<void*>(static_cast<char*>(workspace) + {_size(sizes, symbols)})"
