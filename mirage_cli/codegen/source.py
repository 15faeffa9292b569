"""From a kernel graph with its schedules to source text: kernels are made, which says whether they fit, and printed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_cli.codegen.engines import kernel_of, tile_program
from mirage_cli.codegen.printers.cpu import CpuEmitter
from mirage_cli.codegen.printers.render import render
from mirage_cli.codegen.requests.passes import ALL, Passes
from mirage_cli.codegen.requests.request import Kernel, Request, Spelled
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.schedules.alternatives import Alternative, Bound
from mirage_cli.search.schedules.architectures import alone, number
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target, load_target

WORKSPACE_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Memory:
    """The needs of a kernel's block: its threads, and bytes of shared memory (on a CPU: of a thread's own)."""

    threads: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """A source and the kernels that it spells out (tile programs, for the CPU and for the engine `block`); what each of
    them asks for."""

    text: str
    tiles: tuple[Spelled, ...]
    memory: tuple[Memory, ...]


def lowered(
    program: Program, graph: KernelGraph, schedules: Sequence[Schedule], target: Target, passes: Passes = ALL
) -> tuple[Spelled, ...]:
    """The kernels of a muGraph with every decision made, not yet printed. Raises Refused when one does not fit."""
    tiles: list[Spelled] = []
    _kernels(program, Alternative((), graph, tuple(schedules)), target, passes, tiles)
    return tuple(tiles)


def source(
    identifier: str,
    program: Program,
    graph: KernelGraph,
    schedules: Sequence[Schedule],
    target: Target,
    comment: str,
    passes: Passes = ALL,
    others: Sequence[Alternative] = (),
) -> Rendered:
    """The source of a fragment for a target. Raises Refused when some kernel cannot be rendered.

    `identifier` is made of letters and digits; `comment` is text of ours (no names from a model). Without the fusion pass
    the graph is taken to be without thread graphs of several operators (`search/finish/unfuse.py`). `others` are muGraphs that
    take the place of `graph` where their bounds hold, the first that does; those with a target are for other devices than
    those of `target`, the newest one, and kernels are compiled for the architecture that they are made for alone.
    """
    tiles: list[Spelled] = []
    ways: list[dict[str, Any]] = []
    built = dict.fromkeys((*(o.target for o in others if o.target), target.name))
    for way in (*others, Alternative((), graph, tuple(schedules))):
        own = load_target(way.target) if way.target else target
        kernels, workspace = _kernels(program, way, own, passes, tiles)
        for k in kernels:
            k["compiled_for"] = " && ".join(_device_tests(own.name, built, "__CUDA_ARCH__"))
        tests = _device_tests(own.name, built, "mirage::capability()") if way.target else []
        tests += _tests(way.when, program.symbols)
        ways.append({"condition": " && ".join(tests), "kernels": kernels, "workspace": workspace})
    name = "kernel.cu.j2" if target.kind == "cuda" else "kernel.cpp.j2"
    lines = "\n".join(f"// {line}".rstrip() for line in comment.splitlines())
    memory = tuple(Memory(k.get("threads", 1), k["shared_bytes"]) for w in ways for k in w["kernels"])
    return Rendered(render(name, target.name, id=identifier, comment=lines, ways=ways), tuple(tiles), memory)


def _kernels(
    program: Program, way: Alternative, target: Target, passes: Passes, tiles: list[Spelled]
) -> tuple[list[dict[str, Any]], str]:
    """The contexts of a muGraph's kernels, whose numbers begin behind those of `tiles` (which grow), and its workspace as
    a C expression."""
    graph, kernels = way.graph, []
    offsets, total = _workspace(graph)
    shares: list[Extent] = []
    empty = _summed(program)
    for part, schedule in zip(graph.kernels, way.schedules, strict=True):
        weights = part.constants(program)
        request = Request(
            part.program, part.block, schedule, target, len(tiles), program.symbols, passes, weights, empty
        )
        own_kernel = _cpu_kernel(request) if target.kind == "cpu" else kernel_of(request)
        tiles.append(own_kernel.tile)
        context = dict(own_kernel.context)
        if not passes.overlap:
            context["dependent"] = False
        if request.divides:
            more = {program.symbols.index(n) for e in empty for n in e.names}
            context["symbols"] = sorted({*context["symbols"], *more})
        for i in context["inputs"]:
            i["pointer"] = _pointer(graph, part.inputs[i["source"]], offsets, program.symbols)
        for n, o in enumerate(context["outputs"]):
            o["pointer"] = _pointer(graph, part.outputs[n], offsets, program.symbols)
        context["setup"] = own_kernel.setup(_inside([*total, *shares], program.symbols))
        shares += [own_kernel.workspace] if own_kernel.workspace else []
        kernels.append(context)
    return kernels, _size([*total, *shares], program.symbols)


def _device_tests(own: str, built: Collection[str], device: str) -> list[str]:
    """The C conditions that of the architectures `built` it is `own` whose code a `device` runs, given by its number: that of
    sm_90a and the like where the number is the very same, else the newest of the others that is no newer than the device.
    So does CUDA choose the code of a library."""
    if len(built) == 1:
        return []
    if alone(own):
        return [f"{device} == {number(own)}"]
    least = number(own)
    most = min((number(n) for n in built if not alone(n) and number(n) > least), default=0)
    tests = [f"{device} >= {least}"] if min(map(number, built)) < least else []
    tests += [f"{device} < {most}"] if most else []
    apart = (number(n) for n in built if alone(n))
    return tests + [f"{device} != {n}" for n in apart if n >= least and (n < most or not most)]


def _tests(bounds: Sequence[Bound], symbols: Sequence[str]) -> list[str]:
    """Bounds as C conditions that have to hold together."""
    tests = []
    for b in bounds:
        factor = [str(b.extent.factor)] if b.extent.factor != 1 else []
        text = " * ".join([*factor, *(f"extents[{symbols.index(n)}]" for n in b.extent.names)])
        tests += [f"{text} >= {b.least}"] if b.least else []
        tests += [f"{text} <= {b.most}"] if b.most is not None else []
    return tests


def _cpu_kernel(r: Request) -> Kernel:
    tile = tile_program(r.program, r.block, r.schedule, r.target, r.passes)
    return Kernel(tile, CpuEmitter(tile, r.number, r.symbols, r.hollow).kernel_context())


def _summed(program: Program) -> tuple[Symbolic, ...]:
    """The extents that a program sums over and that may be 0."""
    extents = {program.extent(a): None for n in program.nodes for a in n.over}
    return tuple(e for e in extents if isinstance(e, Symbolic))


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
