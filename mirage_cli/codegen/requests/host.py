"""The host's part of a source as statements of the kernel language: kernels launched one after the other, the choice among
muGraphs, and the size of the workspace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirage_cli.codegen.requests.request import FAILED, Kernel
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax.extents import Extent

WORKSPACE_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Started:
    """A kernel with the places of what it reads, of what it writes, and of its own workspace; it does what so many `kernels`
    of the muGraph do."""

    kernel: Kernel
    inputs: tuple[ir.Expression, ...]
    outputs: tuple[ir.Expression, ...]
    own: ir.Expression
    kernels: int = 1


@dataclass(frozen=True, slots=True)
class Way:
    """A muGraph that a source has: where it is run (None: wherever none before it is), its kernels, bytes of workspace."""

    condition: ir.Expression | None
    kernels: tuple[Started, ...]
    workspace: ir.Expression


def bytes_of(sizes: Sequence[Extent], symbols: Sequence[str]) -> ir.Expression:
    """The sum of sizes in bytes, each rounded up."""
    parts = []
    for s in sizes:
        if isinstance(s, int):
            parts.append(ir.lift(-(-s // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT))
        else:
            size = k.product([s.factor, *(k.name("extents")[symbols.index(n)] for n in s.names)])
            parts.append((size + (WORKSPACE_ALIGNMENT - 1)) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT)
    return k.total(parts)


def _address(behind: ir.Expression) -> ir.Expression:
    return k.cast("void*", k.cast("char*", "workspace") + behind)


@dataclass(frozen=True, slots=True)
class Host:
    """How the host starts kernels of a language: what the last argument of its function is called, the statements of a
    kernel's launch, what stands before all launches and what the function returns, and the place of a part of the workspace,
    given the bytes in front of it."""

    queue: str
    launch: Callable[[Started], ir.Statement]
    declared: tuple[ir.Statement, ...]
    result: ir.Expression
    inside: Callable[[ir.Expression], ir.Expression] = _address


def launches(kernels: Sequence[Started], host: Host) -> tuple[ir.Statement, ...]:
    """Kernels started one after the other; the function ends with what the first error says."""
    return (*host.declared, *map(host.launch, kernels), ir.Return(host.result))


def symbols_of(s: Started) -> list[ir.Statement]:
    """The extents that a launch needs."""
    return [k.let("int64_t", f"s_{n}", k.name("extents")[n]) for n in s.kernel.launch.symbols]


def blocks_of(s: Started) -> ir.Statement:
    """The number of a kernel's blocks on a device."""
    return k.let("int64_t", "blocks", k.product([k.construct(ir.Type("int64_t"), 1), *s.kernel.launch.blocks]))


def started_with(s: Started, starts: Callable[[Started, str], list[ir.Statement]]) -> ir.Scope:
    """A launch: the parameters `p` of a kernel, then what `starts` it, given its name."""
    own, launch = s.kernel.kernel.name, s.kernel.launch
    p = k.name("p")
    inputs = [
        k.assign(p.member(i.name), k.cast(k.of_type(f"{i.type}*", const=True), place))
        for i, place in zip(launch.inputs, s.inputs, strict=True)
    ]
    outputs = [
        k.assign(p.member(o.name), k.cast(f"{o.type}*", place))
        for o, place in zip(launch.outputs, s.outputs, strict=True)
    ]
    return k.scope(
        *symbols_of(s),
        k.declare(f"Parameters{own.removeprefix('kernel')}", "p"),
        *inputs,
        *outputs,
        *(k.assign(p.member(f"s_{n}"), f"s_{n}") for n in launch.symbols),
        *starts(s, own),
    )


def _on_device(s: Started, own: str) -> list[ir.Statement]:
    launch = s.kernel.launch
    sizes = (launch.threads, launch.asked_bytes, launch.cluster, launch.dependent)
    starts = "mirage::launch_resident" if launch.resident else "mirage::launch"
    admitted = ir.Variable(
        "admitted", value=k.construct(ir.Type("std::atomic", (ir.Type("uint64_t"),)), 0), braces=True
    )
    started = [
        *s.kernel.setup(s.own),
        ir.Declare(ir.Type("std::atomic", (ir.Type("uint64_t"),)), (admitted,), "static"),
        k.assign("status", k.call(starts, own, "admitted", "blocks", *sizes, "stream", "p")),
        FAILED,
    ]
    return [blocks_of(s), k.when(k.name("blocks") > 0, *started)]


def _in_threads(s: Started, own: str) -> list[ir.Statement]:
    failed = k.name("p").member("failed")
    counted = k.product([k.construct(ir.Type("size_t"), 1), *(k.cast("size_t", b) for b in s.kernel.launch.blocks)])
    pool = "pool" if s.kernel.launch.parallel else k.number("nullptr")
    return [
        k.assign(failed, "MIRAGE_OK"),
        k.let("size_t", "blocks", counted),
        k.do(k.call("mirage_parallel", pool, own, "blocks", ir.Unary("&", k.name("p")))),
        k.when(k.binary("!=", failed, 0), ir.Return(failed)),
    ]


def _on_gpu(s: Started) -> ir.Statement:
    return started_with(s, _on_device)


def _on_cpu(s: Started) -> ir.Statement:
    return started_with(s, _in_threads)


CUDA = Host("stream", _on_gpu, (k.declare("cudaError_t", "status", "cudaSuccess"),), k.cast("int", "status"))
THREADS = Host("pool", _on_cpu, (), k.name("MIRAGE_OK"))


def entry(ways: Sequence[Way], arguments: Sequence[str], host: Host) -> tuple[ir.Statement, ...]:
    """The body of the source's function; with several ways that of each is a function of its own, `run0` and so on."""
    if len(ways) == 1:
        return (
            *(k.ignore(a) for a in ("workspace", "extents", *(("pool",) if host is THREADS else ()))),
            *launches(ways[0].kernels, host),
        )
    return tuple(k.when(w.condition, ir.Return(k.call(f"run{n}", *arguments))) for n, w in enumerate(ways))


def workspace(ways: Sequence[Way]) -> tuple[ir.Statement, ...]:
    """The body of the function that says how many bytes of workspace are needed."""
    return (k.ignore("extents"), *(k.when(w.condition, ir.Return(w.workspace)) for w in ways))
