"""A source as a whole: its host function is run as it stands, and launches its kernels on arrays over a domain."""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.instructions import (  # noqa: F401 - instructions register themselves
    barriers,
    boxes,
    columns,
    common,
    cpu,
    grid,
    packed,
    rows,
    strip,
    sync,
    tile,
    warpgroup,
    warpgroup_split,
)
from mirage_cli.kernel_interpreter.memory import SIZES, Fault, Global, Memory, Pointer, Unknown
from mirage_cli.kernel_interpreter.numbers import Arithmetic, Array
from mirage_cli.kernel_interpreter.shared import BARRIERS, Clocks, Shared
from mirage_cli.kernel_interpreter.statements import Compiled, compiled, names
from mirage_cli.kernel_interpreter.strand import Launch, Strand, Turns, World
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.reader import read_kernels, read_statements
from mirage_cli.lax.ir.program import MAX_TENSORS

HOST = ("in", "out", "workspace", "extents", "stream", "pool")  #: the host function's arguments
_HOST = re.compile(
    r"^(?:extern \"C\" (?:MIRAGE_EXPORT )?)?int(?:64_t)? (?P<name>mirage_\w+|run\d+|MIRAGE_CPU_\w*NAME\(\w+\))"
    r"\(const .*?\) \{\n(?P<body>.*?)^\}$",
    re.MULTILINE | re.DOTALL,
)
_PACKING = re.compile(r"\{(\d+), (\d+), (\d+), (\d+), (\d+), (\d+), (\d+), (\d+)\}")
Choice = Callable[[int, int], Sequence[int]]  #: of so many blocks in clusters of so many, those that are run
TASKS_AT_ONCE = 64  #: blocks of kernels for CPUs that run side by side
MOST_AT_ONCE = 4096  #: threads that run side by side


def all_blocks(blocks: int, cluster: int) -> Sequence[int]:
    """Every block."""
    return range(blocks)


@dataclass(frozen=True, slots=True)
class Host:
    """A host function and the names that its statements use."""

    name: str
    body: Compiled


@contextmanager
def _of_the_language() -> Iterator[None]:
    """Raises Unknown for text that is not of the language."""
    try:
        yield
    except ValueError as e:
        raise Unknown(str(e)) from None


@dataclass(frozen=True)
class Source:
    """A source text that can be run; with `beside` loops of kernels for CPUs whose iterations seem to write their own places
    run side by side, which is a fault where one needs another one."""

    text: str
    beside: bool = False

    @functools.cached_property
    def kernels(self) -> dict[str, ir.Kernel]:
        """Its kernels by name."""
        with _of_the_language():
            return read_kernels(self.text)

    def changed(self, kernel: ir.Kernel) -> Source:
        """The same with another kernel in the place of the one of its name."""
        other = Source(self.text, self.beside)
        other.__dict__.update(kernels=self.kernels | {kernel.name: kernel}, hosts=self.hosts)
        return other

    @functools.cached_property
    def compiled(self) -> dict[str, Compiled]:
        """Its kernels as functions of a strand."""
        return {
            name: compiled(k.body, [k.parameters, *_CPU], self.beside and not k.bounds, bool(k.bounds))
            for name, k in self.kernels.items()
        }

    @functools.cached_property
    def packings(self) -> list[tuple[int, ...]]:
        """Its table of packings: input, bytes, distance between columns and between summed positions, elements, bits of whole
        numbers and those of them that are turned, and whether numbers may be split."""
        table = self.text.partition("const mirage_packing* MIRAGE_CPU_PACKINGS_NAME")[2]
        return [tuple(map(int, m.groups())) for m in _PACKING.finditer(table)]

    @functools.cached_property
    def hosts(self) -> list[Host]:
        """Its host functions: that of the workspace's size first, the entry last."""
        functions = sorted(_HOST.finditer(self.text), key=lambda m: "workspace" not in m["name"].lower())
        around = [*HOST, *self.kernels, *(m["name"] for m in functions), "cudaSuccess"]
        with _of_the_language():
            return [Host(m["name"], compiled(read_statements(m["body"]), around)) for m in functions]


_CPU = ("data", "block")  #: the arguments of kernels for CPUs


class Workspace:
    """Memory for what goes from kernel to kernel: an array for each place where one begins. What is written into one is gone
    from those that lie in the same bytes."""

    def __init__(self, arithmetic: Arithmetic, bytes_: int) -> None:
        self.arithmetic, self.bytes = arithmetic, bytes_
        self.parts: dict[tuple[int, int], Global] = {}

    def part(self, at: int, type_: str) -> Global:
        """The array of elements of a type at a byte."""
        size = SIZES[type_]
        if (at, size) not in self.parts:
            n = max(0, self.bytes - at) // size
            memory = Global(
                f"the workspace at {at}",
                self.arithmetic.arbitrary((n,)).astype(self.arithmetic.stored),
                size,
                np.zeros(n, dtype=bool),
            )
            memory.changed = functools.partial(self.changed, at, size)
            self.parts[at, size] = memory
        return self.parts[at, size]

    def changed(self, at: int, size: int, elements: Array) -> None:
        """Elements of the array at a byte were written."""
        for (other, its), array in self.parts.items():
            if (other, its) == (at, size) or array.written is None:
                continue
            first = at + elements * size - other  # bytes from where the other one begins
            for k in range((size - 1) // its + 2):
                place = first // its + k
                hit = (place >= 0) & (place < len(array.written)) & (place * its < first + size)
                array.written[place[hit]] = False


@dataclass(slots=True)
class Bytes:
    """A place in a workspace, in bytes."""

    workspace: Workspace
    at: int = 0
    block: Any = None

    def plus(self, n: int) -> Bytes:
        """So many bytes further."""
        return Bytes(self.workspace, self.at + int(n))

    def of(self, type_: str) -> Any:
        """The array that begins here."""
        if type_ in ("char", "void"):
            return self
        return Pointer(self.workspace.part(self.at, type_), 0, type_)


@dataclass(frozen=True, slots=True)
class Panels:
    """The packed form of an input: the input's memory, the distances between its columns and between its summed positions, and
    the number of these; of whole numbers the bytes that they are packed into, their bits and those that are turned, else 0;
    whether numbers may be split."""

    memory: Global
    numbers: tuple[int, int, int]
    whole: tuple[int, int, int] = (0, 0, 0)
    split: int = 0

    def of(self, type_: str) -> Panels:
        """As elements of a type."""
        return self


@dataclass(slots=True)
class Tensors:
    """An array of pointers."""

    pointers: list[Any]

    def element(self, s: Any, k: Any) -> Any:
        """One of them."""
        return self.pointers[int(k)]


@dataclass
class Run:
    """One call of a source's host function."""

    source: Source
    arithmetic: Arithmetic
    choose: Choice = all_blocks
    granule: float = 2
    constants: frozenset[int] = frozenset()  #: numbers of inputs whose values are known before: weights
    watched: bool = True  #: whether races for shared memory are looked for
    early: frozenset[int] = frozenset()  #: numbers of other inputs that no kernel writes
    rounds: frozenset[int] = frozenset()  #: numbers of weights whose products round
    #: numbers of weights of which rows are chosen: here they have other numbers of rows
    tables: frozenset[int] = frozenset()
    packed: Mapping[int, str] = field(default_factory=dict)  #: types of inputs whose numbers share bytes
    at_once: bool = False  #: whether copies are there as soon as they begin, and not when they are waited for
    turns: int = 1  #: of blocks that are resident, which take so many tasks of a stage one after the other
    fresh: set[int] = field(default_factory=set)  #: numbers that were given to launches and not used
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))  #: those to be given
    launched: list[tuple[str, Launch]] = field(default_factory=list)

    def call(self, inputs: Sequence[Array], outputs: Sequence[int], extents: Sequence[int] = ()) -> list[Global]:
        """The outputs (so many elements each) for inputs [fields, elements]. Raises Fault."""
        given = [
            Pointer(
                Global(
                    f"input {k}",
                    a,
                    constant=k in (self.constants - self.tables) | self.early,
                    rounds=k in self.rounds,
                    packed=self.packed.get(k, ""),
                ),
                0,
                "char",
            )
            for k, a in enumerate(inputs)
        ]
        results = [
            Global(
                f"output {k}",
                self.arithmetic.arbitrary((n,)).astype(self.arithmetic.stored),
                4,
                np.zeros(n, dtype=bool),
            )
            for k, n in enumerate(outputs)
        ]
        panels = [self._panels(given, *p) for p in self.source.packings]
        values: dict[str, Any] = {
            "in": Tensors([*given, *[None] * (MAX_TENSORS - len(given)), *panels]),
            "out": Tensors([Pointer(g, 0, "char") for g in results]),
            "workspace": None,
            "extents": Tensors(list(extents)),
            "stream": None,
            "pool": None,
            "cudaSuccess": 0,
        } | {name: name for name in self.source.kernels}
        hosts = self.source.hosts
        for h in hosts:
            values[h.name] = lambda s, *args, h=h: self._host(h, values)
        values["workspace"] = Bytes(Workspace(self.arithmetic, int(self._host(hosts[0], values))))
        status = self._host(hosts[-1], values)
        if status not in (0, None):
            raise Fault(f"the host function returns {status}")
        return results

    def _panels(
        self,
        given: Sequence[Pointer],
        number: int,
        unit: int,
        row: int,
        depth: int,
        elements: int,
        bits: int,
        turned: int,
        split: int,
    ) -> Panels:
        """The packed form of an input. Raises Fault where the table says what cannot be."""
        memory = given[number].memory
        size = memory.values.shape[-1]
        other = size % max(row, depth) if number in self.tables and depth == 1 else size != elements
        if number not in self.constants or other or elements % max(row, depth):
            raise Fault(f"input {number} is not packed as the table says")
        whole = (unit, bits, turned) if bits else (0, 0, 0)
        return Panels(memory, (row, depth, row if depth == 1 else elements // depth), whole, split)

    def _host(self, host: Host, values: Mapping[str, Any]) -> Any:
        world = World(self.arithmetic, Launch([0], 1, 0, 1), Memory(self.arithmetic, 1, 0), Clocks(1), Turns())
        world.barriers["run"] = self
        s = Strand(world, 0, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
        s.calls = 1
        host.body.start(s, **values)
        return s.result

    def launch(self, name: str, launch: Launch, parameters: Any) -> None:
        """Run the chosen blocks of a kernel, some at a time."""
        kernel, body = self.source.kernels[name], self.source.compiled[name]
        self.launched.append((name, launch))
        if _has_stages(kernel) and not launch.resident:
            raise Fault(f"the blocks of {name} wait for one another, and may not run at the same time")
        chosen = list(self.choose(launch.grid, launch.cluster))
        if not kernel.bounds:
            for first in range(0, len(chosen), TASKS_AT_ONCE):
                tasks = chosen[first : first + TASKS_AT_ONCE]
                run_tasks(self.arithmetic, body, tasks, launch.grid, parameters, self.granule)
            return
        if _waits_for_all(kernel):
            chosen = list(range(launch.grid))
        at_once = max(launch.cluster, MOST_AT_ONCE // launch.threads // launch.cluster * launch.cluster)
        at_once = len(chosen) if _waits_for_all(kernel) else at_once
        for _, alike in itertools.groupby(
            chosen, functools.partial(bisect.bisect, _ranges(kernel, launch, parameters))
        ):
            own = list(alike)
            for first in range(0, len(own), at_once):
                part = replace(launch, blocks=own[first : first + at_once])
                run_blocks(
                    self.arithmetic,
                    kernel,
                    body,
                    part,
                    parameters,
                    self.granule,
                    self.watched,
                    self.at_once,
                    self.fresh,
                )


def run_tasks(
    arithmetic: Arithmetic, body: Compiled, tasks: Sequence[int], count: int, parameters: Any, granule: float
) -> None:
    """Run some of a CPU kernel's `count` tasks side by side. Raises Fault."""
    n = len(tasks)
    world = World(
        arithmetic, Launch(tasks, 1, 0, count), Memory(arithmetic, n, 0, granule), Clocks(1), Turns(), array=cpu.array
    )
    s = Strand(world, 0, np.arange(n, dtype=np.int64), np.zeros(n, dtype=np.int64))
    body.start(s, data=parameters, block=s.blocks_of_grid)


def run_blocks(
    arithmetic: Arithmetic,
    kernel: ir.Kernel,
    body: Compiled,
    launch: Launch,
    parameters: Any,
    granule: float = 2,
    watched: bool = True,
    at_once: bool = False,
    fresh: set[int] | None = None,
) -> None:
    """Run some blocks of a kernel side by side; what races for shared memory is looked for where it is `watched`; copies land
    `at_once`, or when they are waited for. Raises Fault."""
    n = len(launch.blocks)
    warps = -(-launch.threads // 32)
    clocks = Clocks(n * warps + (n * (BARRIERS + warps) if _has_roles(kernel) else 0))
    size, cluster = -(-launch.shared_bytes // 16) * 16, launch.cluster
    shared = Shared(arithmetic, n, size, granule, clocks=clocks, warps=warps, cluster=cluster, watched=watched)
    world = World(arithmetic, launch, shared, clocks, Turns(), at_once=at_once)
    world.barriers["parameters"] = parameters
    if _has_stages(kernel):
        world.barriers["fresh"] = set() if fresh is None else fresh
        world.sees, world.epochs = np.zeros((n, n), dtype=np.int32), np.zeros(n, dtype=np.int32)
    block = np.repeat(np.arange(n, dtype=np.int64), launch.threads)
    thread = np.tile(np.arange(launch.threads, dtype=np.int64), n)
    parts = _strands(kernel, block, thread)
    strands = [Strand(world, k, block[p], thread[p]) for k, p in enumerate(parts)]
    world.turns.run([functools.partial(body.start, s, **{kernel.parameters: parameters}) for s in strands])
    for holds in world.endings:
        holds()
    if any(s.copies for s in strands):
        raise Fault("a thread ends while its copies are on their way")


def _strands(kernel: ir.Kernel, block: Array, thread: Array) -> list[Array]:
    """Which threads run in step: all, or of kernels whose warps have roles those of one warpgroup of all blocks (of the first
    one each warp)."""
    if not _has_roles(kernel):
        return [np.arange(len(thread))]
    role = np.where(thread < 128, thread // 32, 4 + thread // 128)
    return [np.flatnonzero(role == r) for r in np.unique(role)]


def _has_roles(kernel: ir.Kernel) -> bool:
    return not registry.ROLES.isdisjoint(_names(kernel))


def _ranges(kernel: ir.Kernel, launch: Launch, parameters: Any) -> list[int]:
    """Where the blocks end that do the same, in the kernel's outermost choices between numbers of blocks; those of a cluster
    stay together. They run side by side, so that no lane waits while others do something else."""
    ends, body = list[int](), kernel.body
    while len(body) == 1 and isinstance(choice := body[0], ir.If):
        match choice.condition:
            case ir.Binary("<", ir.Member(ir.Name(("blockIdx",)), "x"), ir.Member(ir.Name(), member)):
                ends.append(int(getattr(parameters, member)))
        body = choice.otherwise
    return [] if any(end % launch.cluster for end in ends) else sorted(ends)


def _waits_for_all(kernel: ir.Kernel) -> bool:
    """True if blocks of a kernel put their results together."""
    return not (registry.GRID | registry.STAGES).isdisjoint(_names(kernel))


def _has_stages(kernel: ir.Kernel) -> bool:
    """True if blocks of a kernel wait for all others."""
    return not registry.STAGES.isdisjoint(_names(kernel))


@functools.lru_cache(maxsize=256)
def _names(kernel: ir.Kernel) -> frozenset[str]:
    return frozenset(names(kernel.body))


@registry.instruction("launch")
def _launch(s: Any, static: Sequence[Any], kernel: str, admitted: Any, blocks: Any, *rest: Any) -> int:
    threads, shared_bytes, cluster, dependent, _, parameters = rest
    run: Run = s.world.barriers["run"]
    run.launch(kernel, Launch([], int(threads), int(shared_bytes), int(blocks), int(cluster), dependent), parameters)
    return 0


@registry.instruction("launch_resident")
def _launch_resident(s: Any, static: Sequence[Any], kernel: str, admitted: Any, tasks: Any, *rest: Any) -> int:
    """As many blocks as the device holds: some number of whole clusters, which take the tasks in turns."""
    threads, shared_bytes, cluster, dependent, _, parameters = rest
    run: Run = s.world.barriers["run"]
    blocks = -(-int(tasks) // (run.turns * int(cluster))) * int(cluster)
    run.launch(kernel, Launch([], int(threads), int(shared_bytes), blocks, int(cluster), dependent, True), parameters)
    return 0


@registry.instruction("fresh_number")
def _fresh_number(s: Any, static: Sequence[Any]) -> int:
    run: Run = s.world.barriers["run"]
    number = next(run.numbers)
    run.fresh.add(number)
    return number


@registry.instruction("mirage_parallel")
def _parallel(s: Any, static: Sequence[Any], pool: Any, kernel: str, blocks: Any, parameters: Any) -> None:
    run: Run = s.world.barriers["run"]
    run.launch(kernel, Launch([], 1, 0, int(blocks)), parameters)


@registry.instruction("cudaMemsetAsync")
def _memset(s: Any, static: Sequence[Any], p: Pointer, value: int, count: int, stream: Any) -> int:
    """Bytes of a workspace, all of which become 0."""
    if value != 0 or p.memory.written is None:
        raise Fault(f"{p.memory.name} is filled with {value}")
    end = p.at + count // p.bytes
    if end > len(p.memory.written):
        raise Fault(f"{count} bytes of {p.memory.name} are filled")
    p.memory.values[:, p.at : end] = 0
    p.memory.written[p.at : end] = True
    p.memory.changed(np.arange(p.at, end))
    return 0


class Parameters(SimpleNamespace):
    """The members of a kernel's parameters; a pointer to them is they."""

    def of(self, type_: str) -> Parameters:
        """As their type."""
        return self

    def element(self, s: Any, k: int) -> Parameters:
        """The parameters that a pointer to them points to."""
        return self


def _parameters(s: Any, static: Sequence[Any]) -> Parameters:
    """Those of a kernel; members that are no pointers or numbers are there to be filled."""
    kernel: ir.Kernel = s.world.barriers["run"].source.kernels[f"kernel{static[0]}"]
    makers = {f.name: registry.struct(f.type.name) for f in kernel.fields if not f.type.pointers}
    return Parameters(**{name: make(s, ()) for name, make in makers.items() if make is not None})


registry.STRUCTS["Parameters"] = _parameters
registry.STRUCTS["std::atomic"] = lambda s, static, *parts: None
registry.CONVERSIONS["cudaStream_t"] = lambda s, x: x
registry.CONVERSIONS["std::atomic"] = lambda s, x: None
