"""Kernels that need nothing of one another as one kernel: its blocks are divided among them, one range after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_cli.codegen.requests.host import Started
from mirage_cli.codegen.requests.request import Kernel, Launch, Parameter, Spelled
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.ir import Value

BLOCK = k.name("blockIdx").member("x")


@dataclass(frozen=True, slots=True)
class Siblings:
    """Kernels with every decision made that are started together."""

    parts: tuple[Spelled, ...]

    def text(self) -> str:
        """The lines of each, one after the other."""
        return "\n".join(p.text() for p in self.parts)


def joined(parts: Sequence[Started]) -> Started:
    """One launch in the place of several: a block does what the kernel does in whose range its number is, and a tensor is
    called as there, with the kernel's place behind its name. Raises Refused for kernels whose blocks differ."""
    kernels = [s.kernel for s in parts]
    first, *rest = kernels
    own = (first.launch.threads, first.launch.cluster)
    if any(x.workspace or x.kernel.grid_constant or (x.launch.threads, x.launch.cluster) != own for x in kernels):
        raise Refused("kernels that are started together have blocks of other threads, or memory of their own")
    launch = Launch(
        tuple(_named(p, n) for n, x in enumerate(kernels) for p in x.launch.inputs),
        tuple(_named(p, n) for n, x in enumerate(kernels) for p in x.launch.outputs),
        tuple(sorted({s for x in kernels for s in x.launch.symbols})),
        (k.total(k.product(x.launch.blocks) for x in kernels),),
        *own[:1],
        max(x.launch.shared_bytes for x in kernels),
        own[1],
        all(x.launch.dependent for x in kernels),
    )
    ends = [k.name(first.kernel.parameters).member(_end(n)) for n in range(len(rest))]
    *others, last = (_body(x, n, first.kernel.parameters, [k.ZERO, *ends][n]) for n, x in enumerate(kernels))
    for end, body in zip(reversed(ends), reversed(others), strict=True):
        last = (k.when(k.binary("<", BLOCK, end), *body, otherwise=last),)
    fields = launch.fields(*(ir.Field(ir.Type("unsigned"), end.name) for end in ends))
    kernel = replace(first.kernel, fields=fields, bounds=bounds(kernels), body=last)

    def setup(_: ir.Expression) -> list[ir.Statement]:
        counts = [k.product(x.launch.blocks) for x in kernels]
        totals = (k.total(counts[: n + 1]) for n in range(len(ends)))
        return [
            k.assign(k.name("p").member(end.name), k.cast("unsigned", total))
            for end, total in zip(ends, totals, strict=True)
        ]

    headers = tuple(dict.fromkeys(h for x in kernels for h in x.headers))
    made = Kernel(Siblings(tuple(x.tile for x in kernels)), kernel, launch, headers, 0, setup)
    inputs, outputs = (tuple(x for s in parts for x in getattr(s, side)) for side in ("inputs", "outputs"))
    return Started(made, inputs, outputs, parts[0].own, len(parts))


def _end(part: int) -> str:
    """The member of the parameters that says where the range of a part ends."""
    return f"end{part}"


def _named(p: Parameter, part: int) -> Parameter:
    return replace(p, name=f"{p.name}_{part}")


def bounds(kernels: Sequence[Kernel]) -> tuple[int, ...]:
    """What the compiler is told: threads of a block, and as few blocks on a multiprocessor as some kernel asks for."""
    least = min(x.kernel.bounds[1:] for x in kernels)
    return (kernels[0].launch.threads, *least)


def _body(kernel: Kernel, part: int, parameters: str, start: Value) -> tuple[ir.Statement, ...]:
    """A kernel's statements for the blocks from `start` on, with its tensors as they are called among the `parameters`."""
    own, new = k.name(kernel.kernel.parameters), k.name(parameters)
    names = {p.name: _named(p, part).name for p in (*kernel.launch.inputs, *kernel.launch.outputs)}
    names |= {f"s_{n}": f"s_{n}" for n in kernel.launch.symbols}
    by: dict[ir.Expression, ir.Expression] = {own.member(old): new.member(n) for old, n in names.items()}
    return k.substituted(kernel.kernel.body, by if start == k.ZERO else by | {BLOCK: BLOCK - start})
