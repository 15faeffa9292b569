"""From a kernel graph with its schedules to source text: lower, optimize, emit, render."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_cli.codegen.emit_cpu import CpuEmitter
from mirage_cli.codegen.engines import made, tile_program
from mirage_cli.codegen.passes import ALL, Passes
from mirage_cli.codegen.render import render
from mirage_cli.codegen.request import Kernel, Request, Spelled
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.program import Program
from mirage_cli.search.mugraph import KernelGraph
from mirage_cli.search.schedule import Schedule
from mirage_cli.search.target import Target

WORKSPACE_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Rendered:
    """A source and the kernels that it spells out (tile programs, for the CPU and for the engine `block`)."""

    text: str
    tiles: tuple[Spelled, ...]


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
    for k, (part, schedule) in enumerate(zip(graph.kernels, schedules, strict=True)):
        weights = part.constants(program)
        request = Request(part.program, part.block, schedule, target, k, program.symbols, passes, weights)
        own_kernel = _cpu_kernel(request) if target.kind == "cpu" else made(request)
        tiles.append(own_kernel.tile)
        context = dict(own_kernel.context)
        for i in context["inputs"]:
            i["pointer"] = _pointer(graph, part.inputs[i["source"]], offsets, program.symbols)
        for n, o in enumerate(context["outputs"]):
            o["pointer"] = _pointer(graph, part.outputs[n], offsets, program.symbols)
        context["setup"] = own_kernel.setup(_inside([*total, *shares], program.symbols))
        shares += [own_kernel.workspace] if own_kernel.workspace else []
        kernels.append(context)
    workspace = _size([*total, *shares], program.symbols)
    name = "kernel.cu.j2" if target.kind == "cuda" else "kernel.cpp.j2"
    lines = "\n".join(f"// {line}".rstrip() for line in comment.splitlines())
    text = render(name, target.name, id=identifier, comment=lines, kernels=kernels, workspace=workspace)
    return Rendered(text, tuple(tiles))


def _cpu_kernel(r: Request) -> Kernel:
    tile = tile_program(r.program, r.block, r.schedule, r.target, r.passes)
    return Kernel(tile, CpuEmitter(tile, r.number, r.symbols).kernel_context())


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


def _pointer(graph: KernelGraph, tensor: int, offsets: dict[int, list[Extent]], symbols: Sequence[str]) -> str:
    if tensor < graph.sources:
        return f"in[{tensor}]"
    if tensor < graph.sources + graph.outputs:
        return f"out[{tensor - graph.sources}]"
    return _inside(offsets[tensor], symbols)


def _inside(sizes: Sequence[Extent], symbols: Sequence[str]) -> str:
    """The place in the workspace behind parts of these sizes."""
    return f"static_cast<void*>(static_cast<char*>(workspace) + {_size(sizes, symbols)})"
