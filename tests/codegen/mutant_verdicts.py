"""What becomes of changed kernels: whether the float check tells them apart, and where it does not, whether they are the same.

Explanations of the same answers, the first that holds:

- `same machine code`: the product's compiler makes the same object of both, at one level of optimization at least;
- `seen in memory`: scratch memory that holds no numbers, or arrays of exactly their size under sanitizers show the change;
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

from mirage_cli.checks import kernel_check
from mirage_cli.codegen import render
from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import F16, F32

from . import kernels
from .kernels import Case
from .programs import NAMED, program

SECONDS = 10.0  #: after which a kernel that goes on is stopped
SEED = 5  #: of the inputs of a check
AGAIN = 3  #: checks whose inputs are tried for the same bits
ARCH = "sm_90a"
OUTCOMES = ("does not compile", "stopped", "other answers", "same answers")
SAME_ANSWERS = OUTCOMES[3]
#: what makes kernel.o of a source, at levels of optimization
COMMANDS = tuple(("g++", "-std=c++17", level, "-w", "-c", "kernel.cpp") for level in ("-O1", "-O2", "-O3"))
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


# --- kernels --------------------------------------------------------------------------------------------------------------
def build(text: str, name: str, folder: Path, more: Sequence[str] = ()) -> Path | None:
    """A harness with one kernel; None where it does not compile."""
    folder.mkdir(parents=True, exist_ok=True)
    first = "".join(f'#include "{h}"\n' for h in ("mirage/cpu/tile.hpp", "cstdlib", "cstring"))
    (folder / "kernel.cpp").write_text(first + text)
    (folder / "table.inc").write_text(f"KERNEL({name})\n")
    flags = [*CPU, "-w", *more, f"-I{render.include_dir()}", "-I."]
    command = ["g++", *flags, str(kernels.HERE / "harness.cpp"), "kernel.cpp", "-o", "harness"]
    made = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    return folder / "harness" if made.returncode == 0 else None


def cpu_cases() -> Iterator[Case]:
    """Kernels of all named programs in two types."""
    for name, make in NAMED.items():
        for dtype in (F32, F16):
            yield from kernels.cases(f"{name.replace('_', '')}{dtype.name}", program(make, dtype), "cpu", 1, seed=3)


def base(case: Case, folder: Path) -> Base:
    """A kernel that answers, with the inputs and results of its float check."""
    text = case.render().text
    harness = build(text, case.name, folder / case.name)
    assert harness is not None
    found = kernel_check.cases(case.program, runner(case, harness), {}, SEED)
    return Base(case, text, tuple(c for c in found if isinstance(c, kernel_check.Case)), harness)


def bases(folder: Path, pool: ThreadPoolExecutor, only: str = "") -> list[Base]:
    """The kernels that are changed, those whose name has `only`."""
    cases = [c for c in cpu_cases() if only in c.name]
    return list(pool.map(lambda c: base(c, folder), cases))


# --- what the float check says --------------------------------------------------------------------------------------------
def runner(case: Case, harness: Path) -> kernel_check.Runner:
    """Calls a kernel in a process of its own. Raises Refused where that does not end as it should."""

    def run(arrays: Sequence[NDArray[Any]], symbols: Mapping[str, int]) -> list[NDArray[Any]]:
        sized = replace(case, sizes=tuple(symbols.items()))
        found = kernels.call(harness, sized, arrays, seconds=SECONDS)
        if isinstance(found, str):
            raise Refused(found)
        return found

    return run


def outcome(base: Base, mutant: Mutant, folder: Path) -> str:
    """One of `OUTCOMES` for a changed kernel."""
    harness = build(mutant.text, base.case.name, folder)
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
    same = any(object_of(mutant.text, command) == own_object(base.text, command) for command in COMMANDS)
    return "same machine code" if same else ""


def object_of(text: str, command: Sequence[str]) -> bytes | None:
    """What a command makes of a source, or nothing where it refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / command[-1]).write_text(text)
        full = [*command, f"-I{render.include_dir()}", "-o", "kernel.o"]
        done = subprocess.run(full, cwd=folder, capture_output=True, check=False)
        return (Path(folder) / "kernel.o").read_bytes() if done.returncode == 0 else None


own_object = functools.cache(object_of)


def memory(base: Base, mutant: Mutant, folder: Path) -> str:
    """Whether memory without numbers, or sanitizers show the change."""
    filled = re.sub(
        r"memory = scratch\((.*)\);",
        r"memory = scratch(\1); if (memory != nullptr) std::memset(memory, 0xff, \1);",
        mutant.text,
    )
    harness = build(filled, base.case.name, folder / "memory", kernels.SANITIZERS)
    assert harness is not None
    try:
        found = kernel_check.judge(base.case.program, runner(base.case, harness), base.checks)
    except Refused as error:
        return f"seen in memory: {' '.join(str(error).split())[:200]}"
    return "" if found.passed else "seen in memory: other answers"


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
