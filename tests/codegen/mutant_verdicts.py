"""What becomes of changed kernels: whether the float check tells them apart, and where it does not, whether they are the same.

Explanations of the same answers, the first that holds:

- `same machine code`: the product's compiler makes the same object of both, at one level of optimization at least;
- `refused by nvcc`, where only the emulator takes a source;
- `seen in memory`: scratch memory that holds no numbers, arrays of exactly their size under sanitizers, or other orders of
  threads and copies in the emulator show the change;
- `other bits`: answers differ from the kernel's own, within the accuracy rule;
- `same bits`, on all inputs of `AGAIN` more checks.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from mirage_cli.backends.cuda import FLAGS as NVCC_FLAGS
from mirage_cli.backends.cuda import SAME_OBJECT, arch_flags
from mirage_cli.backends.toolchain import find_nvcc
from mirage_cli.checks import kernel_check
from mirage_cli.codegen import render
from mirage_cli.errors import Refused, ToolMissing
from mirage_cli.lax.dtypes import BF16, F16, F32

from . import kernels
from .kernels import Case
from .programs import NAMED, SPLIT, program
from .row_programs import random_rows, row_cases
from .strip_programs import block_graphs, random_strip, strip_cases

SECONDS = 10.0  #: after which a kernel that goes on is stopped
SEED = 5  #: of the inputs of a check
AGAIN = 3  #: checks whose inputs are tried for the same bits
ARCH = "sm_90a"
STRIPS, ROWS = 10, 10  #: random kernels of these engines
OUTCOMES = ("does not compile", "stopped", "other answers", "same answers")
SAME_ANSWERS = OUTCOMES[3]
LEVELS = ("-O1", "-O2", "-O3")  #: of g++, for the same machine code
EMULATED = [f for f in kernels.EMULATOR_FLAGS if f not in kernels.OPTIONAL or kernels.knows(f)]
CPU = ["-std=c++17", "-O1"]


class Mutant(NamedTuple):
    """A changed source: what kind of change, what was done, the text."""

    kind: str
    what: str
    text: str


@dataclass(frozen=True)
class Base:
    """A kernel, the cases of the float check (what float64 and the kernel itself make of the inputs), and its harness."""

    case: Case
    text: str
    checks: tuple[kernel_check.Case, ...]
    harness: Path

    @property
    def cuda(self) -> bool:
        """Whether it is a CUDA kernel."""
        return self.case.target.kind == "cuda"


# --- kernels --------------------------------------------------------------------------------------------------------------
def build(text: str, name: str, folder: Path, cuda: bool = False, more: Sequence[str] = ()) -> Path | None:
    """A harness with one kernel, for the CPU or in the emulator; None where it does not compile."""
    folder.mkdir(parents=True, exist_ok=True)
    heads = ("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h") if cuda else ("mirage/cpu/tile.hpp",)
    first = "".join(f'#include "{h}"\n' for h in (*heads, "cstdlib", "cstring"))
    (folder / "kernel.cpp").write_text(first + (emulated(text) if cuda else text))
    (folder / "table.inc").write_text(f"KERNEL({name})\n")
    own = [*EMULATED, f"-I{kernels.HERE / 'emulator'}", "-DHARNESS_CUDA"] if cuda else CPU
    flags = [*own, "-w", *more, f"-I{render.include_dir()}", "-I."]
    command = ["g++", *flags, str(kernels.HERE / "harness.cpp"), "kernel.cpp", "-o", "harness"]
    made = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    return folder / "harness" if made.returncode == 0 else None


def emulated(text: str) -> str:
    """A CUDA source for the emulator."""
    return re.sub(r"extern __shared__ .*;", "unsigned char* const shared = emulator::shared({});", text)


def cpu_cases() -> Iterator[Case]:
    """Kernels of all named programs in two types."""
    for name, make in NAMED.items():
        for dtype in (F32, F16):
            yield from kernels.cases(f"{name.replace('_', '')}{dtype.name}", program(make, dtype), "cpu", 1, seed=3)


def cuda_cases() -> Iterator[Case]:
    """Kernels of the engines that the emulator runs: blocks, split ones too, strips and rows."""
    for k, (name, make) in enumerate(NAMED.items()):
        p = program(make, (F16, F32, BF16)[k % 3])
        yield from kernels.cases(f"{name.replace('_', '')}", p, ARCH, 1, seed=3)
        if name in SPLIT:
            yield from kernels.cases(f"{name.replace('_', '')}split", p, ARCH, 1, 7, lambda g: bool(g.split))
    for seed in range(STRIPS):
        make, dtype = random_strip(seed)
        p = program(make, dtype)
        yield from strip_cases(f"strip{seed}", p, ARCH, 1, seed, block_graphs(p))
    for seed in range(ROWS):
        make, dtype = random_rows(seed)
        yield from row_cases(f"rows{seed}", program(make, dtype), ARCH, 1, seed)


def base(case: Case, folder: Path) -> Base:
    """A kernel that answers, with the inputs and results of its float check."""
    text = case.render().text
    harness = build(text, case.name, folder / case.name, case.target.kind == "cuda")
    assert harness is not None
    found = kernel_check.cases(case.program, runner(case, harness), {}, SEED)
    return Base(case, text, tuple(c for c in found if isinstance(c, kernel_check.Case)), harness)


def bases(place: str, folder: Path, pool: ThreadPoolExecutor, only: str = "") -> list[Base]:
    """The kernels that are changed, those whose name has `only`."""
    cases = [c for c in (cpu_cases() if place == "cpu" else cuda_cases()) if only in c.name]
    return list(pool.map(lambda c: base(c, folder), cases))


# --- what the float check says --------------------------------------------------------------------------------------------
def runner(case: Case, harness: Path, mode: str = "") -> kernel_check.Runner:
    """Calls a kernel in a process of its own. Raises Refused where that does not end as it should."""

    def run(arrays: Sequence[NDArray[Any]], symbols: Mapping[str, int]) -> list[NDArray[Any]]:
        sized = replace(case, sizes=tuple(symbols.items()))
        found = kernels.call(harness, sized, arrays, mode, seconds=SECONDS)
        if isinstance(found, str):
            raise Refused(found)
        return found

    return run


def outcome(base: Base, mutant: Mutant, folder: Path) -> str:
    """One of `OUTCOMES` for a changed kernel."""
    harness = build(mutant.text, base.case.name, folder, base.cuda)
    if harness is None:
        return OUTCOMES[0]
    try:
        found = kernel_check.judge(base.case.program, runner(base.case, harness), base.checks)
    except Refused:
        return OUTCOMES[1]
    return SAME_ANSWERS if found.passed else OUTCOMES[2]


# --- why it says so -------------------------------------------------------------------------------------------------------
def explained(base: Base, mutant: Mutant, folder: Path) -> str:
    """Why a changed kernel, built in this folder, is not told from the kernel."""
    reasons: tuple[Callable[[Base, Mutant, Path], str], ...] = (machine_code, memory, bits)
    return next(reason for explain in reasons if (reason := explain(base, mutant, folder)))


def machine_code(base: Base, mutant: Mutant, folder: Path) -> str:
    """Whether compilers make the same of both sources."""
    for command in commands(base.cuda):
        changed = object_of(mutant.text, command)
        if changed is None:
            return f"refused by {Path(command[0]).name}"
        if changed == own_object(base.text, command):
            return "same machine code"
    return ""


@functools.cache
def commands(cuda: bool) -> tuple[tuple[str, ...], ...]:
    """What makes kernel.o of a source; none without nvcc."""
    if not cuda:
        return tuple(("g++", "-std=c++17", level, "-w", "-c", "kernel.cpp") for level in LEVELS)
    try:
        nvcc = find_nvcc()
    except ToolMissing:
        return ()
    flags = (*nvcc.compile_flags, *NVCC_FLAGS, SAME_OBJECT, *arch_flags([ARCH]), "-w", "-c", "kernel.cu")
    return ((*nvcc.command, *flags),)


def object_of(text: str, command: Sequence[str]) -> bytes | None:
    """What a command makes of a source, or nothing where it refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / command[-1]).write_text(text)
        full = [*command, f"-I{render.include_dir()}", "-o", "kernel.o"]
        done = subprocess.run(full, cwd=folder, capture_output=True, check=False)
        return (Path(folder) / "kernel.o").read_bytes() if done.returncode == 0 else None


own_object = functools.cache(object_of)


def memory(base: Base, mutant: Mutant, folder: Path) -> str:
    """Whether memory without numbers, sanitizers or other orders show the change."""
    modes: tuple[str, ...] = ("",)
    if base.cuda:
        modes = ("", "l", "b")
        harness = build(mutant.text, base.case.name, folder / "memory", True, kernels.ADDRESSES)
    else:
        filled = re.sub(
            r"memory = scratch\((.*)\);",
            r"memory = scratch(\1); if (memory != nullptr) std::memset(memory, 0xff, \1);",
            mutant.text,
        )
        harness = build(filled, base.case.name, folder / "memory", False, kernels.SANITIZERS)
    assert harness is not None
    for mode in modes:
        try:
            found = kernel_check.judge(base.case.program, runner(base.case, harness, mode), base.checks)
        except Refused as error:
            return f"seen in memory: {' '.join(str(error).split())[:200]}"
        if not found.passed:
            return f"seen in memory: other answers{f' in mode {mode}' if mode else ''}"
    return ""


def bits(base: Base, mutant: Mutant, folder: Path) -> str:
    """Whether the answers are the kernel's own, bit by bit."""
    own, changed = runner(base.case, base.harness), runner(base.case, folder / "harness")
    p = base.case.program
    for seed in range(SEED + 1, SEED + 1 + AGAIN):
        for drawn in kernel_check.draws(p, {}, seed, None, p.symbols):
            a, b = own(drawn.arrays, drawn.symbols), changed(drawn.arrays, drawn.symbols)
            if any(x.tobytes() != y.tobytes() for x, y in zip(a, b, strict=True)):
                return f"other bits: {drawn.name} inputs"
    return "same bits"
