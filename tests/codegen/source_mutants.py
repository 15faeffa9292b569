"""Random changes of rendered sources: what a code generator, or somebody who edits a folder, could get wrong.

`mirage verify` renders every source again and compares bytes, so that any change is found. `python -m
tests.codegen.source_mutants --place cpu|gpu --count N` leaves that comparison out: each changed kernel is compiled, run
(`gpu`: kernels of groups of warps, on a GPU) and judged by the float check alone, as `verify` judges the kernels of a
library. Of those that it does not tell from the kernel it is asked why
(`mutant_verdicts.py`, `gpu_verdicts.py`).
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from random import Random

from . import gpu_verdicts
from .mutant_verdicts import OUTCOMES, SAME_ANSWERS, Base, Mutant, bases, explained, outcome

Rule = tuple[str, Callable[[re.Match[str]], str]]


def _turned(pairs: dict[str, str]) -> Callable[[re.Match[str]], str]:
    return lambda m: pairs[m[0]]


def _number(m: re.Match[str]) -> str:
    value = float.fromhex(m[0][:-1]) if "x" in m[0] else float(m[0][:-1])
    return f"{(value * 1.25 if value else 0.5).hex()}f"


OPERATORS = {" + ": " - ", " - ": " + ", " * ": " + ", " / ": " * ", " < ": " <= ", " <= ": " < ", " += ": " -= "}
NAMES = {"Sum::": "Max::", "Max::": "Sum::", "m_exp": "m_sqrt", "m_sqrt": "m_exp", "m_max": "m_min", "m_min": "m_max"}
NAMES |= {"smaller(": "m_max(", "true": "false", "false": "true", "reduce<Sum>": "reduce<Max>"}
#: what groups of warps wait for, and tell one another
GROUPS = r"\b(?:[\w\[\].]+\.wait|release|products_\w+(?:<\d+>)?|\w+_named|wait_\w+)\([^;{}]*\);"
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
    "barrier": (r"__syncthreads\(\);|copy_wait<\d+>\(\);|copy_commit\(\);|" + GROUPS, lambda m: ""),
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


def line_of(mutant: Mutant) -> int:
    """The number of the line that a change begins in."""
    return int(mutant.what.split(":")[0].removeprefix("line "))


@functools.cache
def mutants_of(text: str) -> dict[str, list[Mutant]]:
    """The changes of a source by kind."""
    found: dict[str, list[Mutant]] = {}
    for m in mutants(text):
        found.setdefault(m.kind, []).append(m)
    return found


def stream(texts: Sequence[str], seed: int) -> Iterator[tuple[int, Mutant]]:
    """Random changes of random sources, kinds in turn as they are drawn; the source's number with each."""
    random = Random(seed)
    while True:
        k = random.randrange(len(texts))
        kinds = mutants_of(texts[k])
        yield k, random.choice(kinds[random.choice(sorted(kinds))])


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge many changed kernels by the float check alone, and print those that it does not tell from the kernel, and why."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.codegen.source_mutants")
    parser.add_argument("--place", choices=("cpu", "gpu"), default="cpu", help="which kernels (default: cpu)")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=1e9, help="no kernel is begun after this time")
    parser.add_argument("--only", default="", metavar="TEXT", help="only kernels whose name has it")
    o = parser.parse_args(arguments)
    start = time.perf_counter()
    counts: Counter[tuple[str, str]] = Counter()
    whys: Counter[str] = Counter()
    run = on_gpu if o.place == "gpu" else in_processes
    with tempfile.TemporaryDirectory() as temporary:
        for name, mutant, result, why in run(o, Path(temporary)):
            counts[mutant.kind, result] += 1
            if why:
                whys[why.split(":")[0]] += result == SAME_ANSWERS
                print(f"{name}: {mutant.kind}: {mutant.what}: {why}", flush=True)
    print("| change | " + " | ".join(OUTCOMES) + " |\n|---|" + "---|" * len(OUTCOMES))
    for kind in (*KINDS, "all"):
        row = [sum(n for (k, r), n in counts.items() if kind in (k, "all") and r == result) for result in OUTCOMES]
        if any(row):
            print(f"| {kind} | " + " | ".join(map(str, row)) + " |")
    print("of the same answers " + ", ".join(f"{n} {why}" for why, n in sorted(whys.items())))
    print(f"{time.perf_counter() - start:.0f} s")
    return 0


Verdict = tuple[str, Mutant, str, str]  #: a kernel's name, the change, what becomes of it, why


def in_processes(o: argparse.Namespace, root: Path) -> Iterator[Verdict]:
    """Verdicts of kernels for the CPU."""
    start = time.perf_counter()
    with ThreadPoolExecutor(o.jobs) as pool:
        originals = bases(root, pool, o.only)
        print(f"{len(originals)} kernels, {time.perf_counter() - start:.0f} s", flush=True)
        chosen = list(islice(stream([b.text for b in originals], o.seed), o.count))

        def tried(job: tuple[int, tuple[int, Mutant]]) -> tuple[str, str]:
            number, (k, mutant) = job
            if time.perf_counter() - start > o.seconds:
                return "", ""
            return judged(originals[k], mutant, root / f"m{number}")

        for (k, mutant), (result, why) in zip(chosen, pool.map(tried, enumerate(chosen)), strict=True):
            if result:
                yield originals[k].case.name, mutant, result, why


def on_gpu(o: argparse.Namespace, root: Path) -> Iterator[Verdict]:
    """Verdicts of kernels of groups of warps on a GPU."""
    cases = [c for c in gpu_verdicts.group_cases() if o.only in c.name]
    print(f"{len(cases)} kernels", flush=True)
    chosen = list(islice(stream([c.render().text for c in cases], o.seed), o.count))
    changed = [(k, mutant.text) for k, mutant in chosen]
    for number, result, why in gpu_verdicts.verdicts(cases, changed, root, o.jobs):
        k, mutant = chosen[number]
        yield cases[k].name, mutant, result, why


def judged(base: Base, mutant: Mutant, folder: Path) -> tuple[str, str]:
    """What becomes of a changed kernel, and why where it is not told from the kernel."""
    result = outcome(base, mutant, folder)
    why = explained(base, mutant, folder) if result == SAME_ANSWERS else ""
    shutil.rmtree(folder)
    return result, why


if __name__ == "__main__":
    sys.exit(main())
