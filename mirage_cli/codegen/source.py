"""From a kernel graph with its schedules to source text: kernels are made, which says whether they fit, and printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from mirage_cli.codegen.engines import kernel_of
from mirage_cli.codegen.join import joining
from mirage_cli.codegen.languages import LANGUAGES
from mirage_cli.codegen.render import render
from mirage_cli.codegen.requests import host
from mirage_cli.codegen.requests.passes import ALL, Passes
from mirage_cli.codegen.requests.request import INDEXED, Kernel, Packing, Request, Spelled
from mirage_cli.codegen.requests.siblings import joined
from mirage_cli.codegen.requests.stages import staged as in_stages
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.printer import CPP, text
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.lax.ir.parts import in_parts, index_place
from mirage_cli.lax.ir.program import MAX_TENSORS, Program
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.schedules.alternatives import Alternative, Bound
from mirage_cli.search.schedules.architectures import alone, number
from mirage_cli.search.schedules.schedule import Schedule, launches, staged
from mirage_cli.search.schedules.target import Target, load_target

MAX_PACKINGS = 32  #: as in ort_shapes.hpp
ARGUMENTS = ("in", "out", "workspace", "extents")  #: of the host function, with the queue or the pool behind them


@dataclass(frozen=True, slots=True)
class Memory:
    """The needs of a kernel's block: its threads, and bytes of shared memory (on a CPU: of a thread's own)."""

    threads: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """A source; its kernels, and the decisions that they spell out; what each of them asks for."""

    text: str
    kernels: tuple[ir.Kernel, ...]
    tiles: tuple[Spelled, ...]
    memory: tuple[Memory, ...]


def lowered(
    program: Program, graph: KernelGraph, schedules: Sequence[Schedule], target: Target, passes: Passes = ALL
) -> tuple[Spelled, ...]:
    """The kernels of a muGraph with every decision made, not yet printed. Raises Refused when one does not fit."""
    way = _way(program, Alternative((), graph, tuple(schedules)), target, passes, 0, {})
    return tuple(s.kernel.tile for s in way.kernels)


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
    those of `target`, the newest one, and kernels are compiled for the architecture that they are made for alone. A muGraph
    that several of them take is printed once.
    """
    ways: list[host.Way] = []
    made: dict[tuple[KernelGraph, tuple[Schedule, ...], str], host.Way] = {}
    packings: dict[Packing, int] = {}
    compiled_for: list[ir.Expression | None] = []
    built = dict.fromkeys((*(o.target for o in others if o.target), target.name))
    for chosen in (*others, Alternative((), graph, tuple(schedules))):
        own = load_target(chosen.target) if chosen.target else target
        tests = [*(_device_tests(own.name, built, CAPABILITY) if chosen.target else ()), *_tests(chosen.when, program)]
        key = chosen.graph, chosen.schedules, chosen.target
        if key not in made:
            made[key] = _way(program, chosen, own, passes, len(compiled_for), packings)
            compiled_for += [k.both(*_device_tests(own.name, built, ARCHITECTURE))] * len(made[key].kernels)
        ways.append(replace(made[key], condition=k.both(*tests)))
    kernels = [s.kernel for w in made.values() for s in w.kernels]
    memory = tuple(
        Memory(s.kernel.launch.threads, s.kernel.launch.asked_bytes)
        for w in ways
        for s in w.kernels
        for _ in range(s.kernels)
    )
    language = LANGUAGES[target.kind]
    printed = render(
        language.template,
        target.name,
        id=identifier,
        comment="\n".join(f"// {line}".rstrip() for line in comment.splitlines()),
        headers=list(dict.fromkeys(h for s in kernels for h in s.headers)),
        kernels=[
            {
                "name": s.kernel.name,
                "number": s.kernel.name.removeprefix("kernel"),
                "constant": s.kernel.grid_constant,
                "parameters": language.parameters(s),
                "function": language.function(s),
                "compiled_for": text(condition) if condition is not None else "",
            }
            for s, condition in zip(kernels, compiled_for, strict=True)
        ],
        ways=[
            {
                "where": f"Where {text(w.condition)}" if w.condition is not None else "Elsewhere",
                "body": text(host.launches(w.kernels, language.host)),
            }
            for w in ways[: len(ways) if len(ways) > 1 else 0]
        ],
        entry=text(host.entry(ways, (*ARGUMENTS, language.host.queue), language.host)),
        workspace=text(host.workspace(ways)),
        **({"packings": list(packings), "shared": _shared(kernels)} if target.kind == "cpu" else {}),
    )
    return Rendered(printed, tuple(s.kernel for s in kernels), tuple(s.tile for s in kernels), memory)


def _shared(kernels: Sequence[Kernel]) -> list[str]:
    """The operands of what the kernels share with others, as C++ declares them."""
    return [", ".join(map(CPP.type, types)) for types in dict.fromkeys(t for s in kernels for t in s.shared)]


CAPABILITY, ARCHITECTURE = (
    k.call("mirage::capability"),
    k.name("__CUDA_ARCH__"),
)  #: a device's number on host and device


def _way(
    program: Program,
    way: Alternative,
    target: Target,
    passes: Passes,
    first: int,
    packings: dict[Packing, int],
) -> host.Way:
    """A muGraph with its launches, numbered from `first` on; how the fragment's weights may lie packed joins `packings`."""
    graph, kernels = way.graph, list[host.Started]()
    offsets, total = _workspace(graph)
    shares: list[Extent] = []
    empty = _summed(program)
    on = LANGUAGES[target.kind].host
    runs = launches(graph, way.schedules, passes.siblings and target.kind == "cuda")
    together = staged(way.schedules, runs, passes.stages and target.kind == "cuda")
    readers = Counter(part.inputs[i.source] for part in graph.kernels for i in part.program.inputs)
    given, kept = in_parts(program), set[int]()  #: sources in parts, and those that a kernel stores

    def started(n: int, at: int, later: bool) -> host.Started:
        """Kernel `n` of the muGraph in launch `at`, in a `later` stage of it."""
        part, schedule = graph.kernels[n], way.schedules[n]
        weights = part.early(program) if target.threaded else part.constants(program)
        if later:  # what was written before the launch is known by then
            weights |= {k for k, t in enumerate(part.inputs) if t < graph.sources and t not in given}
        alone = frozenset(k for k, t in enumerate(part.inputs) if t in given and readers[t] == 1)
        made = kernel_of(
            Request(part.program, part.block, schedule, target, at, program.symbols, passes, weights, empty, alone)
        )
        if not passes.overlap:
            made = replace(made, launch=replace(made.launch, dependent=False))
        inputs = (
            k.name("in")[index_place(program, part.inputs[i.source])]
            if i.part == INDEXED
            else _part(program, part.inputs[i.source], i.part)
            if part.inputs[i.source] in given
            else _pointer(graph, part.inputs[i.source], offsets, program.symbols, on)
            if i.packing is None
            else _panels(replace(i.packing, source=part.inputs[i.source]), packings)
            for i in made.launch.inputs
        )
        whole = [part.inputs[o.source] for o in made.launch.outputs if o.source >= 0]
        kept.update(whole)
        outputs = (
            *(_pointer(graph, t, offsets, program.symbols, on) for t in part.outputs),
            *(_part(program, t, 0) for t in whole),
        )
        return own(host.Started(made, tuple(inputs), tuple(outputs), k.ZERO))

    def own(s: host.Started) -> host.Started:
        """The same with its own part of the workspace."""
        place = on.inside(host.bytes_of([*total, *shares], program.symbols))
        shares.extend([s.kernel.workspace] if s.kernel.workspace else [])
        return replace(s, own=place)

    for at, stages in enumerate(together, first):
        found = [[started(n, at, bool(later)) for n in run] for later, run in enumerate(stages)]
        parts = [joined(s) if len(s) > 1 else s[0] for s in found]
        kernels.append(own(in_stages(parts)) if len(parts) > 1 else parts[0])
    if apart := [t for t in given if t not in kept]:
        kernels.insert(0, _joining(program, apart, target, first + len(kernels)))
    return host.Way(None, tuple(kernels), host.bytes_of([*total, *shares], program.symbols))


def _device_tests(own: str, built: Collection[str], device: ir.Expression) -> list[ir.Expression]:
    """The conditions that of the architectures `built` it is `own` whose code a `device` runs, given by its number: that of
    sm_90a and the like where the number is the very same, else the newest of the others that is no newer than the device.
    So does CUDA choose the code of a library."""
    if len(built) == 1:
        return []
    if alone(own):
        return [k.binary("==", device, number(own))]
    least = number(own)
    most = min((number(n) for n in built if not alone(n) and number(n) > least), default=0)
    tests: list[ir.Expression] = [device >= least] if min(map(number, built)) < least else []
    tests += [device < most] if most else []
    apart = (number(n) for n in built if alone(n))
    return tests + [k.binary("!=", device, n) for n in apart if n >= least and (n < most or not most)]


def _tests(bounds: Sequence[Bound], program: Program) -> list[ir.Expression]:
    """Bounds as conditions that have to hold together."""
    tests: list[ir.Expression] = []
    for b in bounds:
        factor = [b.extent.factor] if b.extent.factor != 1 else []
        value = k.product([*factor, *(k.name("extents")[program.symbols.index(n)] for n in b.extent.names)])
        tests += [value >= b.least] if b.least else []
        tests += [value <= b.most] if b.most is not None else []
    return tests


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


def _panels(packing: Packing, packings: dict[Packing, int]) -> ir.Expression:
    """The place of a weight's packed form, behind the most inputs that an operator has (only the original nodes read some of
    them, of which a kernel does not know); none for more than operators keep."""
    if packing not in packings and len(packings) == MAX_PACKINGS:
        return k.number("nullptr")
    return k.name("in")[MAX_TENSORS + packings.setdefault(packing, len(packings))]


def _part(program: Program, source: int, part: int) -> ir.Expression:
    """The place of a source in parts: its first part, its second behind all sources, the whole behind all outputs."""
    number = in_parts(program).index(source)
    if part == 0:
        return k.name("out")[len(program.outputs) + number]
    return k.name("in")[source if part == 1 else len(program.sources) + number]


def _joining(program: Program, sources: Sequence[int], target: Target, number: int) -> host.Started:
    """The launch that stores sources whole, in front of the kernels that read them so. Raises Refused."""
    kernel = joining([program.sources[t] for t in sources], program.symbols, target, number)
    inputs = tuple(_part(program, t, part) for t in sources for part in (1, 2))
    return host.Started(kernel, inputs, tuple(_part(program, t, 0) for t in sources), k.ZERO, 0)


def _pointer(
    graph: KernelGraph, tensor: int, offsets: dict[int, list[Extent]], symbols: Sequence[str], on: host.Host
) -> ir.Expression:
    if tensor < graph.sources:
        return k.name("in")[tensor]
    if tensor < graph.sources + graph.outputs:
        return k.name("out")[tensor - graph.sources]
    return on.inside(host.bytes_of(offsets[tensor], symbols))
