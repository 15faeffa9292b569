"""Kernels that follow one another as stages of one kernel, all of whose blocks are resident.

A block takes its share of the tasks of a stage (the blocks of what was a kernel of its own), arrives at a barrier of the whole
grid, asks for the constants of its first task in the next stage, and waits there before it reads anything else
(`templates/include/mirage/cuda/grid.cuh`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_cli.codegen.requests.host import Started
from mirage_cli.codegen.requests.request import Kernel, Launch, Parameter, Spelled
from mirage_cli.codegen.requests.siblings import BLOCK, bounds
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir

WORD = 8  #: bytes of the gate of all barriers, and of the counter of each
EARLIER, DEPENDENTS = k.call("wait_for_earlier"), k.run("launch_dependents")
TASK, BLOCKS = k.name("task"), k.name("gridDim").member("x")
P, GATE, FRESH = k.name("p"), "gate", "fresh"


@dataclass(frozen=True, slots=True)
class Stages:
    """Kernels with every decision made that are stages of one."""

    parts: tuple[Spelled, ...]

    def text(self) -> str:
        """The lines of each, one after the other."""
        return "\n".join(f"stage {n}\n{p.text()}" for n, p in enumerate(self.parts))


def staged(parts: Sequence[Started]) -> Started:
    """One launch in the place of several, in their order. Raises Refused for kernels whose blocks differ, that have memory of
    their own, or that do not say where they wait for what was before them."""
    kernels = [s.kernel for s in parts]
    threads, cluster = kernels[0].launch.threads, max(x.launch.cluster for x in kernels)
    for x in kernels:
        if x.workspace or x.kernel.grid_constant or x.launch.threads != threads:
            raise Refused("kernels that are stages of one have blocks of other threads, or memory of their own")
        if x.launch.cluster not in (1, cluster):
            raise Refused("kernels that are stages of one have other clusters")
        if EARLIER not in list(k.parts(x.kernel.body)) or any(isinstance(s, ir.Return) for s in x.kernel.body):
            raise Refused("a kernel that is a stage does not say where it waits for the one before")
    written = {place for s in parts for place in s.outputs}
    apart = [_Stage(s, n, frozenset(written)) for n, s in enumerate(parts)]
    own = k.name(kernels[0].kernel.parameters)
    launch = Launch(
        tuple(p for s in apart for p in s.parameters(s.started.kernel.launch.inputs)),
        tuple(p for s in apart for p in s.parameters(s.started.kernel.launch.outputs)),
        tuple(sorted({n for x in kernels for n in x.launch.symbols})),
        (functools.reduce(_larger, [s.tasks for s in apart]),),
        threads,
        max(x.launch.shared_bytes for x in kernels),
        cluster,
        all(x.launch.dependent for x in kernels),
        resident=True,
    )
    members = [m for s in apart for m in s.members]
    fields = launch.fields(
        *members, ir.Field(ir.Type("uint64_t", pointers=1), GATE), ir.Field(ir.Type("uint64_t"), FRESH)
    )
    body = [x for s in apart for x in s.statements(own, len(parts) - 1)]
    kernel = replace(kernels[0].kernel, fields=fields, bounds=bounds(kernels), body=tuple(body))

    def setup(place: ir.Expression) -> list[ir.Statement]:
        return [
            *(x for s in apart for x in s.setup()),
            k.assign(P.member(GATE), k.cast("uint64_t*", place)),
            k.assign(P.member(FRESH), k.call("mirage::fresh_number")),
        ]

    headers = tuple(dict.fromkeys((*(h for x in kernels for h in x.headers), "grid.cuh")))
    made = Kernel(Stages(tuple(x.tile for x in kernels)), kernel, launch, headers, WORD * len(parts), setup)
    inputs, outputs = (tuple(x for s in parts for x in getattr(s, side)) for side in ("inputs", "outputs"))
    return Started(made, inputs, outputs, parts[0].own, sum(s.kernels for s in parts))


@dataclass(frozen=True, slots=True)
class _Stage:
    """Kernel `number` of those that become one, which write tensors at the places `written`."""

    started: Started
    number: int
    written: frozenset[ir.Expression]

    @property
    def tasks(self) -> ir.Expression:
        """How many there are, as the host says it."""
        return k.product(self.started.kernel.launch.blocks)

    @property
    def count(self) -> str:
        """The member of the parameters with the number of tasks."""
        return f"tasks{self.number}"

    def renamed(self, name: str) -> str:
        """What a member of the kernel's parameters is called among all."""
        symbols = {f"s_{n}" for n in self.started.kernel.launch.symbols}
        return name if name in symbols else f"{name}_{self.number}"

    def parameters(self, own: Sequence[Parameter]) -> list[Parameter]:
        """Tensors by their new names."""
        return [replace(p, name=self.renamed(p.name)) for p in own]

    @property
    def members(self) -> list[ir.Field]:
        """Members of the parameters that are no tensors or symbols."""
        launch = self.started.kernel.launch
        fields = [f for f in self.started.kernel.kernel.fields if f not in launch.fields()]
        return [*(replace(f, name=self.renamed(f.name)) for f in fields), ir.Field(ir.Type("unsigned"), self.count)]

    def setup(self) -> list[ir.Statement]:
        """The host's statements that set these members."""
        kernel = self.started.kernel
        by: dict[ir.Expression, ir.Expression] = {
            P.member(f.name): P.member(self.renamed(f.name)) for f in kernel.kernel.fields
        }
        return [
            *k.substituted(tuple(kernel.setup(self.started.own)), by),
            k.assign(P.member(self.count), k.cast("unsigned", self.tasks)),
        ]

    def statements(self, own: ir.Name, barriers: int) -> list[ir.Statement]:
        """The tasks of a block, with the barriers before and behind them."""
        kernel, count = self.started.kernel, own.member(self.count)
        gate, fresh = own.member(GATE), own.member(FRESH)
        by: dict[ir.Expression, ir.Expression] = {
            k.name(kernel.kernel.parameters).member(f.name): own.member(self.renamed(f.name))
            for f in kernel.kernel.fields
        }
        by[BLOCK] = TASK
        by[EARLIER] = self.beginning(TASK, gate, fresh, barriers)
        body = _rewritten(k.substituted(kernel.kernel.body, by), self.changing(), self.number == barriers)
        ended = ("cluster_arrive", "cluster_wait") if kernel.launch.cluster > 1 else ("__syncthreads",)
        body = (*body, *map(k.run, ended))
        walk = k.loop("task", count, *body, start=BLOCK, step=BLOCKS, type_="unsigned", unroll="#pragma unroll 1")
        found: list[ir.Statement] = [walk]
        if self.number < 2 and _known(self.tasks) is None:  # block 0 opens and closes the gate whatever there is to do
            found.append(k.when(k.binary("==", count, 0), k.do(self.beginning(BLOCK, gate, fresh, barriers))))
        if not self.number:
            found.append(k.do(EARLIER))
        if self.number < barriers:
            found.append(k.run("grid_arrive", gate, fresh, self.number + 1))
        return found

    def beginning(self, task: ir.Expression, gate: ir.Expression, fresh: ir.Expression, barriers: int) -> ir.Call:
        """What a task does before it reads anything but constants."""
        if self.number:
            return k.call("grid_wait", task, gate, self.number)
        return k.call("grid_start", task, gate, fresh, barriers)

    def changing(self) -> frozenset[str]:
        """The members of the parameters that point to what a stage writes and this one reads."""
        launch = self.started.kernel.launch
        read = zip(launch.inputs, self.started.inputs, strict=True)
        return frozenset(self.renamed(p.name) for p, place in read if place in self.written)


def _rewritten(tree: Sequence[ir.Statement], changing: frozenset[str], last: bool) -> tuple[ir.Statement, ...]:
    """Statements of a stage: no compiler takes for constant what another stage writes, and the launch behind this one may
    begin in the last stage."""

    def variable(v: ir.Variable) -> ir.Variable:
        restricted = v.restrict and isinstance(v.value, ir.Member) and v.value.name in changing
        return replace(v, restrict=False) if restricted else v

    def statement(s: ir.Statement) -> ir.Statement:
        match s:
            case ir.Declare():
                return replace(s, variables=tuple(map(variable, s.variables)))
            case ir.If():
                then, otherwise = (_rewritten(x, changing, last) for x in (s.then, s.otherwise))
                return replace(s, then=then, otherwise=otherwise)
        return s

    return tuple(statement(s) for s in tree if last or s != DEPENDENTS)


def _larger(x: ir.Expression, y: ir.Expression) -> ir.Expression:
    """The larger of two numbers of tasks; one that is known is one of them."""
    known = _known(x), _known(y)
    if known[0] is not None and known[1] is not None:
        return ir.lift(max(known[0], known[1]))
    return k.select(k.binary("<", x, y), y, x)


def _known(x: ir.Expression) -> int | None:
    """A product of numbers."""
    match x:
        case ir.Literal(text) if text.isdigit():
            return int(text)
        case ir.Binary(("+" | "*") as op, left, right):
            a, b = _known(left), _known(right)
            return None if a is None or b is None else a + b if op == "+" else a * b
    return None
