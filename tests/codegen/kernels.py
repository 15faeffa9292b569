"""Programs as kernels: searched, scheduled in several ways, rendered, compiled many at a time, run, compared with float64.

Kernels for CPUs run in a process of their own (`harness.cpp`), on arrays of exactly their size, so that sanitizers see every
access. CUDA kernels are run by the interpreter, as they are printed, in float32.
"""

from __future__ import annotations

import functools
import re
import struct
import subprocess
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.codegen import render, source
from mirage_cli.codegen.requests.passes import ALL, Passes
from mirage_cli.errors import Refused
from mirage_cli.kernel_interpreter.memory import Fault
from mirage_cli.kernel_interpreter.numbers import float32
from mirage_cli.kernel_proof.run import Run, Source
from mirage_cli.lax import extents
from mirage_cli.lax.domains.domain import Array, Axes, Float64, Number
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir.parts import apart, in_parts
from mirage_cli.lax.ir.program import Output, Program, evaluate_program
from mirage_cli.lax.ir.program import Source as Tensor
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

Results = list[NDArray[Any]] | str  #: outputs, or what is wrong
Answer = Callable[["Case", Sequence[NDArray[Any]]], Results]  #: what a kernel makes of inputs
HERE = Path(__file__).parent
ULPS = (
    64.0  #: how many times the precision of its coarsest type, at the size of the largest result, a result may be off
)
EDGE_FACTOR = (
    64.0  #: how many times the error of float32, operator by operator, a kernel may have at the edges of numbers
)
SYMBOLS = {"rows": 19, "keys": 37}
WARNINGS = ("-Wall", "-Wextra", "-Werror")
CPU_FLAGS = ("-std=c++17", "-O1", "-g1", *WARNINGS)
#: Functions that products always inline are called: they compile in a fifth of the time.
CALLED = ("-Dalways_inline=unused",)
#: -O0: these kernels run for milliseconds and compile for seconds
SANITIZERS = ("-O0", *CALLED, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


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
            numbers = replace(s, packed=False)
            a = draw(numbers, [extents.value(e, self.symbols) for e in s.dims], "random", random)
            arrays.append((a * 0.5).astype(a.dtype) if s.dtype.is_float else a)
        return arrays

    def reference(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[np.float64]]:
        """What float64 makes of the arrays, and those that are in parts."""
        wide = {k: a.astype(np.float64) for k, a in enumerate(arrays)}
        made = evaluate_program(self.program, Float64([a.name for a in self.program.axes]), wide, self.symbols)
        return [*made, *(wide[k] for k in in_parts(self.program))]

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
def parts(tree: Any) -> Iterator[Any]:
    """A tree of the kernel language, or several, with all that is in them."""
    yield tree
    for inner in tree if isinstance(tree, tuple) else ():
        yield from parts(inner)
    for f in fields(tree) if is_dataclass(tree) else ():
        yield from parts(getattr(tree, f.name))


# --- building and running -------------------------------------------------------------------------------------------------
def build(texts: Mapping[str, str], folder: Path, flags: Sequence[str], parts: int = 1) -> Path:
    """A program of the harness and kernels, given by name."""
    folder.mkdir(parents=True, exist_ok=True)
    names = list(texts)
    files = []
    for k in range(parts):
        headers = {f'"{h}"': None for name in names[k::parts] for h in re.findall(r'#include "(.*)"', texts[name])}
        lines = [f"#include {h}" for h in ['"mirage/cpu/tile.hpp"', "<cstdlib>", *headers]]
        for name in names[k::parts]:
            lines += [f"namespace of_{name} {{", texts[name], "}"]
        (folder / f"part{k}.cpp").write_text("\n".join(lines))
        files.append(f"part{k}.cpp")
    table = [f"KERNEL({n})" for n in names]
    (folder / "table.inc").write_text("\n".join(table) + "\n")
    (folder / "harness.cpp").write_text((HERE / "harness.cpp").read_text())
    command = ["g++", *flags, f"-I{render.include_dir()}", "-I.", "harness.cpp", *files, "-o", "harness"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[:8000]
    return folder / "harness"


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


def edges(answer: Answer, all_cases: Iterable[Case], most: int = 100, step: int = 1) -> list[str]:
    """Problems of kernels at the edges of numbers: each takes every `step`th of `most` inputs, from another one on."""
    problems = []
    for n, case in enumerate(all_cases):
        p = case.program
        domain = Single([a.name for a in p.axes], sessions.numpy_type(p.outputs[0].dtype))
        for edge in islice(edge_inputs(p, case.inputs(), case.symbols, 1), n % step, most, step):
            results = answer(case, edge.arrays)
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


# --- in the interpreter ---------------------------------------------------------------------------------------------------
source_of = functools.lru_cache(maxsize=8)(Source)  #: of a text


def answered(case: Case, arrays: Sequence[NDArray[Any]]) -> Results:
    """What the interpreter makes of inputs with a kernel as it is printed; copies land when they are waited for."""
    return interpreted(case, source_of(case.render().text), arrays)


def problems(all_cases: Iterable[Case], at_once: bool = False) -> list[str]:
    """Problems of kernels as they are printed, with copies that land when they are waited for, or as soon as they begin."""
    found = []
    for case in all_cases:
        arrays = case.inputs()
        results = interpreted(case, source_of(case.render().text), arrays, at_once)
        found += [
            f"{case.name}: {x}" for x in [results if isinstance(results, str) else case.problem(results, arrays)] if x
        ]
    return found


def changed(text: str, old: str, new: str) -> str:
    """A source in which one place is another."""
    found, count = re.subn(old, new, text, count=1)
    assert count == 1, text
    return found


def interpreted(
    case: Case, source: Source, arrays: Sequence[NDArray[Any]], at_once: bool = False, watched: bool = True
) -> Results:
    """The outputs of a source that the interpreter runs in float32, each operation rounded by itself, or what is wrong with
    it: an access outside of an array, a race, a wait that does not end, an element that nobody writes."""
    p, flat = case.program, [np.asarray(a, np.float64).reshape(1, -1) for a in arrays]
    outputs = [(o, _shape(o, case)) for o in p.outputs]
    granule = 1 if any(s.dtype.bytes == 1 for s in p.sources) else 2
    known = {"constants": p.constants, "rounds": p.rounds}
    launched = Run(source, float32(), granule=granule, **known, watched=watched, at_once=at_once)
    try:
        found = launched.call(flat, [int(np.prod(shape)) for _, shape in outputs], [case.symbols[s] for s in p.symbols])
    except Fault as fault:
        return f"{fault.args[0]}; {case.schedules}"
    if any(r.written is not None and not r.written.all() for r in found):
        return f"elements are not written; {case.schedules}"
    with np.errstate(all="ignore"):
        pairs = zip(found, outputs, strict=True)
        return [r.values.reshape(shape).astype(sessions.numpy_type(o.dtype)) for r, (o, shape) in pairs]


def call(
    harness: Path,
    case: Case,
    arrays: Sequence[NDArray[Any]],
    mode: str = "",
    before: Sequence[str] = (),
    seconds: float | None = None,
) -> Results:
    """The outputs of a kernel, or what its process said before it ended, at the latest after some `seconds`. `before` is a
    command that takes the process's own."""
    values = [case.symbols[s] for s in case.program.symbols]
    flat = apart(case.program, [np.ascontiguousarray(a).reshape(1, -1) for a in arrays], case.symbols, lead=1)
    sizes = [a.nbytes for a in flat]
    wholes = [case.program.sources[k] for k in in_parts(case.program)]
    outputs = [(o, _shape(o, case)) for o in (*case.program.outputs, *wholes)]
    wanted = [int(np.prod(shape)) * o.dtype.bytes for o, shape in outputs]
    head = [n for part in (values, sizes, wanted) for n in (len(part), *part)]
    request = struct.pack(f"{len(head)}q", *head) + b"".join(a.tobytes() for a in flat)
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


def _shape(o: Output | Tensor, case: Case) -> tuple[int, ...]:
    return tuple(extents.value(e, case.symbols) for e in o.dims)
