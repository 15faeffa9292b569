"""Random changes of rendered sources: what a code generator, or somebody who edits a folder, could get wrong.

`mirage verify` renders every source again and compares bytes, so that any change is found. `python -m
tests.codegen.source_mutants --count N` leaves that comparison out: each changed CPU kernel is compiled and judged by the
float check alone, as `verify` judges the kernels of a library.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from mirage_cli import check
from mirage_cli.codegen import render
from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import F16, F32

from . import kernels
from .kernels import Case
from .programs import NAMED, program

SECONDS = 10.0  #: after which a kernel that goes on is stopped
OUTCOMES = ("does not compile", "stopped", "other answers", "same answers")


class Mutant(NamedTuple):
    """A changed source: what kind of change (one of `KINDS`), what was done, the text."""

    kind: str
    what: str
    text: str


Rule = tuple[str, Callable[[re.Match[str]], str]]


def _turned(pairs: dict[str, str]) -> Callable[[re.Match[str]], str]:
    return lambda m: pairs[m[0]]


def _number(m: re.Match[str]) -> str:
    value = float.fromhex(m[0][:-1]) if "x" in m[0] else float(m[0][:-1])
    return f"{(value * 1.25 if value else 0.5).hex()}f"


OPERATORS = {" + ": " - ", " - ": " + ", " * ": " + ", " / ": " * ", " < ": " <= ", " <= ": " < ", " += ": " -= "}
NAMES = {"Sum::": "Max::", "Max::": "Sum::", "m_exp": "m_sqrt", "m_sqrt": "m_exp", "m_max": "m_min", "m_min": "m_max"}
NAMES |= {"smaller(": "m_max(", "true": "false", "false": "true", "reduce<Sum>": "reduce<Max>"}
#: changes by kind: what is looked for, and what takes its place
RULES: dict[str, Rule] = {
    "operator": (r" (?:[-+*/<]|<=|\+=) ", _turned(OPERATORS)),
    "function": ("|".join(map(re.escape, NAMES)), _turned(NAMES)),
    "number": (r"-?\b0x[0-9a-f.]+p[-+]\d+f\b|\b\d+\.\d+f\b", _number),
    "index": (r"(?<=[\[+(] )?\bi_[a-z]+\b(?! [=<])(?!;)(?=[ \]])", lambda m: f"({m[0]} + 1)"),
    "bound": (r"(?<= < )\w+(?=; \+\+)", lambda m: f"({m[0]} - 1)"),
    "extent": (r"(?<=[ (,<])\d+(?=[,);>])", lambda m: str(int(m[0]) + 1)),
    "stride": (r"(?<= \* )\d+\b", lambda m: str(int(m[0]) + 1)),
    "offset": (r"(?<=memory \+ )\d+|(?<=shared \+ )\d+", lambda m: str(int(m[0]) + 128)),
    "type": (r"\bfloat(?= (?:e\d+|total|x) =)", lambda m: "int"),
    "tensor": (r"\bt\d+\b(?=\[)", lambda m: m[0]),
    "statement": (r"(?m)^ +(?!const|using|float\* |auto|struct|typedef|Parameters|p\.)[^\n{}]*;$", lambda m: ""),
    "barrier": (r"__syncthreads\(\);|copy_wait<\d+>\(\);|copy_commit\(\);", lambda m: ""),
}
KINDS = (*RULES, "exchange")


def body(text: str) -> tuple[int, int]:
    """Where the kernels of a source lie: not its comments, its includes, nor its scratch memory."""
    start = text.index("struct Parameters")
    return start, len(text)


def mutants(text: str) -> Iterator[Mutant]:
    """Every single change of a source."""
    first, last = body(text)
    for kind, (pattern, change) in RULES.items():
        for m in re.compile(pattern).finditer(text, first, last):
            new = change(m)
            if kind == "tensor":
                others = sorted(set(re.findall(r"\bt\d+\b(?=\[)", text[first:last])) - {m[0]})
                new = others[m.start() % len(others)] if others else m[0]
            if new != m[0]:
                line = text.count("\n", 0, m.start()) + 1
                yield Mutant(
                    kind, f"line {line}: {m[0].strip()} -> {new.strip()}", text[: m.start()] + new + text[m.end() :]
                )
    lines = text.split("\n")
    begun = text.count("\n", 0, first)
    for k in range(begun, len(lines) - 1):
        a, b = lines[k : k + 2]
        if a.endswith(";") and b.endswith(";") and a != b and not a.strip().startswith("(void)"):
            swapped = [*lines[:k], b, a, *lines[k + 2 :]]
            yield Mutant("exchange", f"line {k + 1}: {a.strip()} behind {b.strip()}", "\n".join(swapped))


@functools.cache
def mutants_of(text: str) -> dict[str, list[Mutant]]:
    """The changes of a source by kind."""
    found: dict[str, list[Mutant]] = {}
    for m in mutants(text):
        found.setdefault(m.kind, []).append(m)
    return found


# --- what the float check says --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Base:
    """A kernel, and the cases of the float check: what float64 and the kernel itself make of the inputs."""

    case: Case
    text: str
    checks: tuple[check.Case, ...]


def build(text: str, name: str, folder: Path) -> Path | None:
    """A harness with one kernel; None where it does not compile."""
    folder.mkdir(parents=True, exist_ok=True)
    first = '#include "mirage/cpu/tile.hpp"\n#include <cstdlib>\n'
    (folder / "kernel.cpp").write_text(f"{first}{text}")
    (folder / "table.inc").write_text(f"KERNEL({name})\n")
    flags = ["-std=c++17", "-O1", "-w", f"-I{render.include_dir()}", "-I."]
    command = ["g++", *flags, str(kernels.HERE / "harness.cpp"), "kernel.cpp", "-o", "harness"]
    made = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    return folder / "harness" if made.returncode == 0 else None


def base(name: str, folder: Path, dtype: str = "f32") -> Base:
    """A kernel of a named program."""
    p = program(NAMED[name], F32 if dtype == "f32" else F16)
    (case,) = kernels.cases(f"{name.replace('_', '')}{dtype}", p, "cpu", 1, seed=3)
    text = case.render().text
    harness = build(text, case.name, folder / case.name)
    assert harness is not None
    found = tuple(c for c in check.cases(p, runner(case, harness), {}, 5) if isinstance(c, check.Case))
    return Base(case, text, found)


def runner(case: Case, harness: Path) -> check.Runner:
    """Calls a kernel in a process of its own. Raises Refused where that does not end as it should."""

    def run(
        arrays: Sequence[check.NDArray[check.Any]], symbols: check.Mapping[str, int]
    ) -> list[check.NDArray[check.Any]]:
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
        found = check.judge(base.case.program, runner(base.case, harness), base.checks)
    except Refused:
        return OUTCOMES[1]
    return OUTCOMES[3] if found.passed else OUTCOMES[2]


def stream(texts: Sequence[str], seed: int) -> Iterator[tuple[int, Mutant]]:
    """Random changes of random sources, kinds in turn as they are drawn; the source's number with each."""
    random = Random(seed)
    while True:
        k = random.randrange(len(texts))
        kinds = mutants_of(texts[k])
        yield k, random.choice(kinds[random.choice(sorted(kinds))])


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge many changed kernels by the float check alone, and print those that it does not tell from the kernel."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.codegen.source_mutants")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=1e9, help="no kernel is begun after this time")
    parser.add_argument("--programs", nargs="*", default=list(NAMED))
    o = parser.parse_args(arguments)
    start = time.perf_counter()
    counts: Counter[tuple[str, str]] = Counter()
    survivors: list[str] = []
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(o.jobs) as pool:
        root = Path(temporary)
        jobs = [(n, root, t) for n in o.programs for t in ("f32", "f16")]
        bases = list(pool.map(lambda job: base(*job), jobs))
        found = stream([b.text for b in bases], o.seed)
        chosen = [next(found) for _ in range(o.count)]
        same_bytes = sum(m.text == bases[k].text for k, m in chosen)

        def tried(job: tuple[int, tuple[int, Mutant]]) -> str:
            number, (k, mutant) = job
            if time.perf_counter() - start > o.seconds:
                return ""
            folder = root / f"m{number}"
            result = outcome(bases[k], mutant, folder)
            for path in folder.iterdir():
                path.unlink()
            return result

        for (k, mutant), result in zip(chosen, pool.map(tried, enumerate(chosen)), strict=True):
            counts[mutant.kind, result] += bool(result)
            if result == OUTCOMES[3]:
                survivors.append(f"{bases[k].case.name}: {mutant.kind}: {mutant.what}")
    print("\n".join(sorted(survivors)))
    print("| change | " + " | ".join(OUTCOMES) + " |\n|---|" + "---|" * len(OUTCOMES))
    for kind in (*KINDS, "all"):
        row = [sum(n for (k, r), n in counts.items() if kind in (k, "all") and r == result) for result in OUTCOMES]
        if any(row):
            print(f"| {kind} | " + " | ".join(map(str, row)) + " |")
    print(f"{same_bytes} of {len(chosen)} have the source's own bytes; {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
