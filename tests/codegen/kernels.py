"""Programs as kernels: searched, scheduled in several ways, rendered, compiled many at a time, run, compared with float64.

Kernels run in a process of their own (`harness.cpp`), on arrays of exactly their size, so that sanitizers see every access.
CUDA kernels run there too, in the emulator beside this file.
"""

from __future__ import annotations

import functools
import re
import struct
import subprocess
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from mirage_cli.codegen import render, source
from mirage_cli.codegen.requests.passes import ALL, Passes
from mirage_cli.codegen.requests.request import Spelled
from mirage_cli.codegen.strip import base
from mirage_cli.codegen.strip.engine import StripProgram
from mirage_cli.codegen.strip.values import Memory
from mirage_cli.codegen.tiles import optimize
from mirage_cli.codegen.tiles.memory import live_ranges
from mirage_cli.codegen.tiles.optimize import optimized
from mirage_cli.codegen.tiles.tile import RING, TileProgram
from mirage_cli.errors import Refused
from mirage_cli.lax import extents
from mirage_cli.lax.domains.domain import Array, Axes, Float64, Number
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir.program import Output, Program, evaluate_program
from mirage_cli.numerics.accuracy import compare
from mirage_cli.numerics.edges import HUGE, NOT_FINITE, SPIKES, draw
from mirage_cli.numerics.edges import edges as edge_inputs
from mirage_cli.runtime import sessions
from mirage_cli.search.finish.kernels import assemble, split
from mirage_cli.search.mugraph.mugraph import BlockGraph, KernelGraph
from mirage_cli.search.schedules.alternatives import Alternative
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target, load_target
from mirage_cli.search.schedules.tiling import schedule_space
from mirage_cli.search.search import Searcher, SearchOptions

Places = list[tuple[int, int]]  #: (offset, bytes) of what may be touched; none: everything
Finish = Callable[[TileProgram, Passes], TileProgram]
HERE = Path(__file__).parent
GAP = 256  #: bytes between buffers that are laid out apart
ROOMY = 1 << 24  #: shared memory of a target in the emulator when buffers are laid out apart
ULPS = (
    64.0  #: how many times the precision of its coarsest type, at the size of the largest result, a result may be off
)
EDGE_FACTOR = (
    64.0  #: how many times the error of float32, operator by operator, a kernel may have at the edges of numbers
)
SYMBOLS = {"rows": 19, "keys": 37}
WARNINGS = ("-Wall", "-Wextra", "-Werror")
CPU_FLAGS = ("-std=c++17", "-O1", "-g1", *WARNINGS)
#: -O0, here and with sanitizers: these kernels run for milliseconds and compile for seconds
EMULATOR_FLAGS = ("-std=c++17", "-O0", "-Wno-unknown-pragmas", "-ftrivial-auto-var-init=pattern")
EMULATOR = ('"cuda_runtime.h"', '"cuda_fp16.h"', '"cuda_bf16.h"')
OPTIONAL = ("-ftrivial-auto-var-init=pattern",)  #: flags of newer compilers
SANITIZERS = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ADDRESSES = ("-fsanitize=address", "--param", "asan-stack=0")  #: for fibers, whose stacks the sanitizer does not know


@dataclass(frozen=True, slots=True)
class Case:
    """A program with a kernel graph and its schedules for a target."""

    name: str
    program: Program
    graph: KernelGraph
    schedules: tuple[Schedule, ...]
    target: Target
    passes: Passes = ALL
    others: tuple[Alternative, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()  #: of symbols, in the place of the usual ones

    def render(self) -> source.Rendered:
        """Its source. Raises Refused."""
        return source.source(
            self.name, self.program, self.graph, self.schedules, self.target, self.name, self.passes, self.others
        )

    def renders(self) -> bool:
        """Whether the target takes it."""
        try:
            self.render()
        except Refused:
            return False
        return True

    @property
    def symbols(self) -> dict[str, int]:
        """The values of its symbols in tests."""
        return {s: (SYMBOLS | dict(self.sizes))[s] for s in self.program.symbols}

    def inputs(self) -> list[NDArray[Any]]:
        """Random arrays, the same ones for a name; small numbers, so that nothing overflows."""
        random = np.random.default_rng(int.from_bytes(self.name.encode(), "little") % 2**32)
        arrays = []
        for s in self.program.sources:
            a = draw(s, [extents.value(e, self.symbols) for e in s.dims], "random", random)
            arrays.append((a * 0.5).astype(a.dtype) if s.dtype.is_float else a)
        return arrays

    def reference(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[np.float64]]:
        """What float64 makes of the arrays."""
        wide = {k: a.astype(np.float64) for k, a in enumerate(arrays)}
        return evaluate_program(self.program, Float64([a.name for a in self.program.axes]), wide, self.symbols)

    def problem(self, results: Sequence[NDArray[Any]], arrays: Sequence[NDArray[Any]]) -> str:
        """What is wrong with the results, or nothing."""
        p = self.program
        types = [s.dtype for s in p.sources] + [o.dtype for o in p.outputs] + [n.dtype or F32 for n in p.nodes]
        coarsest = max(t.epsilon for t in types)
        for k, (found, wanted) in enumerate(zip(results, self.reference(arrays), strict=True)):
            known = np.isfinite(wanted)
            error = np.where(
                known, np.abs(found.astype(np.float64) - wanted), np.where(np.isfinite(found), np.inf, 0.0)
            )
            bound = ULPS * coarsest * max(1e-3, float(np.abs(wanted).max(where=known, initial=0.0)))
            if not (error <= bound).all():
                at = np.unravel_index(int(np.argmax(np.nan_to_num(error, nan=np.inf))), error.shape)
                return f"output {k} at {[int(i) for i in at]}: {found[at]} instead of {wanted[at]}; {self.schedules}"
        return ""


def cases(
    name: str,
    program: Program,
    target: str,
    count: int,
    seed: int = 0,
    kind: Callable[[BlockGraph], bool] | None = None,
) -> Iterator[Case]:
    """`count` random pairs of a block graph (of a `kind`) and a schedule that the target takes, or fewer where there are
    no more."""
    random = np.random.default_rng(seed)
    machine = load_target(target)
    graphs = [g for g in Searcher(SearchOptions()).blocks(program)[0] if kind is None or kind(g)]
    whole = [g for g in graphs if not g.split or machine.kind == "cuda"]
    spaces = [(g, schedule_space(program, g, machine)) for g in whole]
    pairs = [(g, space.at(n)) for g, space in spaces for n in range(len(space.loop))]
    made = 0
    for k in random.permutation(len(pairs)):
        if made == count:
            return
        block, schedule = pairs[int(k)]
        case = Case(f"{name}x{made}", program, single(program, block), (schedule,), machine)
        if case.renders():
            made += 1
            yield case


def single(program: Program, block: BlockGraph) -> KernelGraph:
    """A kernel graph of one kernel."""
    return assemble(program, split(program, ()), [block])


# --- sources --------------------------------------------------------------------------------------------------------------
def apart(tile: TileProgram, passes: Passes) -> TileProgram:
    """The finished program with a memory plan without any sharing: no buffer lies next to another."""
    tile = optimized(tile, passes)
    offsets, at = {}, 0
    for name in sorted(live_ranges(tile)):
        offsets[name] = at
        at += -(-source_bytes(tile, name) // 128) * 128 + GAP
    return replace(tile, offsets=offsets, shared_bytes=at)


class Apart(Memory):
    """The memory of a strip kernel without any sharing; `plans` gets its places."""

    def __init__(self, plans: list[Places]) -> None:
        super().__init__()
        self.plans, self.sizes = plans, dict[str, int]()

    def keep(self, name: str, type_: str, bytes_: int) -> None:
        super().keep(name, type_, bytes_ + GAP)
        self.sizes[name] = bytes_

    def reuse(self, name: str, type_: str, bytes_: int) -> None:
        super().reuse(name, type_, bytes_ + GAP)
        self.sizes[name] = bytes_

    def places(self, ring: int) -> tuple[list[tuple[str, str, int]], int]:
        first = -(-ring // 128) * 128 + GAP
        self.late = [(name, type_, first + at) for name, type_, at in self.late]
        self._late += first
        found, total = super().places(0)
        self.plans.append([(0, ring), *((at, self.sizes[name]) for name, _, at in found)])
        return found, total


def source_bytes(tile: TileProgram, name: str) -> int:
    """Bytes that a buffer may touch: all stages of a ring."""
    b = tile.buffers[name]
    size = b.elements * b.dtype.bytes
    return size if b.place != RING else -(-size // 128) * 128 * tile.schedule.stages


def emulated(case: Case, separate: bool, finish: Finish = optimized) -> str:
    """The source of a CUDA kernel for the emulator; `separate` lays buffers out apart and forbids what lies between.
    `finish` stands for the passes of the engine `block`."""
    roomy = replace(case, target=replace(case.target, shared_bytes=ROOMY)) if separate else case
    strips: list[Places] = []
    with (
        mock.patch.object(optimize, "optimized", apart if separate else finish),
        mock.patch.object(base, "Memory", (lambda: Apart(strips)) if separate else Memory),
    ):
        rendered = roomy.render()
    kept = iter(strips)
    places = iter(_places(tile, kept) if separate else [] for tile in rendered.tiles)
    return re.sub(
        r"extern __shared__ .*;",
        lambda _: f"unsigned char* const shared = emulator::shared({{{_listed(next(places))}}});",
        rendered.text,
    )


def parts(tree: Any) -> Iterator[Any]:
    """A tree of the kernel language, or several, with all that is in them."""
    yield tree
    for inner in tree if isinstance(tree, tuple) else ():
        yield from parts(inner)
    for f in fields(tree) if is_dataclass(tree) else ():
        yield from parts(getattr(tree, f.name))


def _places(tile: Spelled, strips: Iterator[Places]) -> Places:
    if isinstance(tile, TileProgram):
        return [(tile.offsets[b], source_bytes(tile, b)) for b in sorted(tile.offsets)]
    return next(strips) if isinstance(tile, StripProgram) else []


def _listed(places: Places) -> str:
    return ", ".join(f"{{{at}, {size}}}" for at, size in places)


# --- building and running -------------------------------------------------------------------------------------------------
def build(texts: Mapping[str, str], folder: Path, flags: Sequence[str], cuda: bool, parts: int = 1) -> Path:
    """A program of the harness and kernels, given by name."""
    folder.mkdir(parents=True, exist_ok=True)
    names = list(texts)
    include = [*([f"-I{HERE / 'emulator'}"] if cuda else []), f"-I{render.include_dir()}"]
    files = []
    for k in range(parts):
        headers = {f'"{h}"': None for name in names[k::parts] for h in re.findall(r'#include "(.*)"', texts[name])}
        lines = [f"#include {h}" for h in [*(EMULATOR if cuda else ['"mirage/cpu/tile.hpp"']), "<cstdlib>", *headers]]
        for name in names[k::parts]:
            lines += [f"namespace of_{name} {{", texts[name], "}"]
        (folder / f"part{k}.cpp").write_text("\n".join(lines))
        files.append(f"part{k}.cpp")
    table = [f"KERNEL({n})" for n in names]
    (folder / "table.inc").write_text("\n".join(table) + "\n")
    (folder / "harness.cpp").write_text((HERE / "harness.cpp").read_text())
    kind = ["-DHARNESS_CUDA"] if cuda else []
    flags = [f for f in flags if f not in OPTIONAL or knows(f)]
    first = ["-include", str(_read((*flags, *include, *kind)))] if cuda else []
    command = ["g++", *flags, *include, "-I.", *kind, *first, "harness.cpp", *files, "-o", "harness"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[:8000]
    return folder / "harness"


@functools.cache
def _read(options: tuple[str, ...]) -> Path:
    """A header that includes the emulator's; beside it lies what the compiler made of it with these options, which it reads
    in a tenth of the time."""
    folder = Path(_scratch().name, str(len(list(Path(_scratch().name).iterdir()))))
    folder.mkdir()
    header = folder / "first.h"
    header.write_text("".join(f"#include {h}\n" for h in EMULATOR))
    command = ["g++", *options, "-x", "c++-header", str(header), "-o", f"{header}.gch"]
    subprocess.run(command, capture_output=True, check=True)
    return header


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="mirage-emulator-")


@functools.cache
def knows(flag: str) -> bool:
    """Whether g++ takes a flag."""
    command = ["g++", flag, "-x", "c++", "-fsyntax-only", "/dev/null"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run(harness: Path, all_cases: Iterable[Case], mode: str = "") -> list[str]:
    """Problems of kernels, each in a process of its own."""
    problems = []
    for case in all_cases:
        arrays = case.inputs()
        results = call(harness, case, arrays, mode)
        found = results if isinstance(results, str) else case.problem(results, arrays)
        if found:
            problems.append(f"{case.name}: {found}")
    return problems


class Single(Float64):
    """float32, operator by operator, with products of matrices rounded to `dtype`: what an original of that type makes of its
    inputs."""

    def __init__(self, order: Sequence[Hashable], dtype: np.dtype[Any]) -> None:
        super().__init__(order)
        self.dtype = dtype

    def const(self, value: Number) -> Array:
        return np.asarray(float(value), dtype=np.float32)

    def iota(self, axis: Hashable, extent: int, offset: int = 0) -> Array:
        return super().iota(axis, extent, offset).astype(np.float32)

    def contract(self, x: Array, y: Array, over: Axes) -> Array:
        return super().contract(x, y, over).astype(self.dtype).astype(np.float32)


def edges(harness: Path, all_cases: Iterable[Case], mode: str = "", most: int = 100) -> list[str]:
    """Problems of kernels on inputs at the edges of numbers, at most so many inputs for each."""
    problems = []
    for case in all_cases:
        p = case.program
        domain = Single([a.name for a in p.axes], sessions.numpy_type(p.outputs[0].dtype))
        for edge in islice(edge_inputs(p, case.inputs(), case.symbols, 1), most):
            results = call(harness, case, edge.arrays, mode)
            if isinstance(results, str):
                problems.append(f"{case.name}: {edge.kind}: {results}")
                continue
            single = [a.astype(np.float32) for a in edge.arrays]
            original = evaluate_program(p, domain, dict(enumerate(single)), case.symbols)
            for o, found, own, wanted in zip(p.outputs, results, original, case.reference(edge.arrays), strict=True):
                with np.errstate(all="ignore"):
                    own = own.astype(sessions.numpy_type(o.dtype))
                mixed, spoiled = edge.kind in (HUGE, SPIKES), edge.kind == NOT_FINITE
                accuracy = compare(found, own, wanted, o.dtype, EDGE_FACTOR, mixed, spoiled)
                if not accuracy.passed:
                    problems.append(f"{case.name}: {edge.kind}: {accuracy}; {case.schedules}")
    return problems


def call(
    harness: Path,
    case: Case,
    arrays: Sequence[NDArray[Any]],
    mode: str = "",
    before: Sequence[str] = (),
    seconds: float | None = None,
) -> list[NDArray[Any]] | str:
    """The outputs of a kernel, or what its process said before it ended, at the latest after some `seconds`. `before` is a
    command that takes the process's own."""
    values = [case.symbols[s] for s in case.program.symbols]
    sizes = [a.nbytes for a in arrays]
    outputs = [(o, _shape(o, case)) for o in case.program.outputs]
    wanted = [int(np.prod(shape)) * o.dtype.bytes for o, shape in outputs]
    constants = [int(s.constant) for s in case.program.sources]
    head = [n for part in (values, sizes, wanted, constants) for n in (len(part), *part)]
    request = struct.pack(f"{len(head)}q", *head) + b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)
    command = [*before, str(harness), case.name, mode]
    try:
        done = subprocess.run(command, input=request, capture_output=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"it did not end in {seconds:g} s"
    if done.returncode != 0 or done.stderr:
        return f"exit {done.returncode}: {done.stderr.decode(errors='replace')[:3000]}; {case.schedules}"
    results, at = [], 0
    for (o, shape), size in zip(outputs, wanted, strict=True):
        results.append(np.frombuffer(done.stdout[at : at + size], sessions.numpy_type(o.dtype)).reshape(shape))
        at += size
    return results


def _shape(o: Output, case: Case) -> tuple[int, ...]:
    return tuple(extents.value(e, case.symbols) for e in o.dims)
