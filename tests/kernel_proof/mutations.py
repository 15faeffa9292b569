"""Random small changes of printed kernels: what the proof refutes, and whether the rest changes anything.

`make kernel-mutations` draws changes of kernels of every engine. What is not refuted is run beside the kernel itself, all
blocks, at several sizes where it has symbols, with copies that land at once and as late as they may: over residues and in
float32, with each operation rounded by itself. A change whose results are other numbers is a hole. Verdicts are kept line
by line in a file, so that a run goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.kernel_interpreter import statements
from mirage_cli.kernel_interpreter.memory import Fault
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_proof import prove
from mirage_cli.kernel_proof.compare import Point, first_passed, point, sources
from mirage_cli.kernel_proof.run import Source
from mirage_cli.lax.domains.field import ZeroDenominator
from mirage_cli.lax.dtypes import F16
from mirage_cli.search.schedules.target import load_target
from tests.codegen import kernels, programs, row_programs, strip_programs
from tests.codegen.kernels import Case, cases
from tests.codegen.warpgroup import test_warpgroup as warpgroup
from tests.kernel_proof.mutants import draw

COUNTS = {"rows": 260, "cpu": 190, "block": 110, "strip": 75, "warpgroup": 40}  #: changes of each kernel, 10,000 in all
VERDICTS = ("refuted", "no kernel", "same bits", "other rounding", "HOLE")
TURNS = 1 << 10  #: of a loop, after which a changed kernel is taken for one that does not end
Results = list[NDArray[Any]] | str


@dataclass(frozen=True)
class Base:
    """A kernel's source, the points at which the proof runs it, and runs in float32: with which inputs, whether copies land
    at once, and the results."""

    text: str
    points: tuple[Point, ...]
    runs: tuple[tuple[Case, Sequence[NDArray[Any]], bool, Results], ...]

    def finding(self, tried: Sequence[Source]) -> str:
        """Why the proof refutes a source, or nothing."""
        return next((f.reason for at in self.points if not (f := first_passed(at, tried)).passed), "")


def corpus(engine: str) -> Iterator[Case]:
    """A kernel of an engine for each named program, and of `block` one whose blocks share a loop."""
    if engine in ("cpu", "block"):
        for k, (name, build) in enumerate(programs.NAMED.items()):
            target = "cpu" if engine == "cpu" else "sm_80"
            yield from cases(name, programs.program(build, F16), target, 1, k)
    elif engine == "rows":
        for k, (name, build) in enumerate(row_programs.NAMED.items()):
            yield from row_programs.row_cases(name, programs.program(build, F16), "sm_90a", 1, k)
    elif engine == "warpgroup":
        for name in (*warpgroup.CASES, "split"):
            made = warpgroup._split() if name == "split" else warpgroup._made(name)
            graph = kernels.single(made.program, made.graph)
            yield Case(name, made.program, graph, (made.schedule,), load_target("sm_90a"))
    else:
        for k, (name, build) in enumerate(strip_programs.NAMED.items()):
            p = programs.program(build, F16)
            yield from strip_programs.strip_cases(name, p, "sm_90a", 1, k, strip_programs.block_graphs(p))


def sizes(case: Case) -> list[dict[str, int]]:
    """Values of a program's symbols: those of the proof."""
    tiles = [prove._turning(s) for s in case.schedules]
    return prove._affordable(case.program, case.graph, tiles) if case.program.symbols else [{}]


def base(case: Case) -> Base:
    """A kernel as the proof runs it: over residues and float64."""
    p, g, found = case.program, case.graph, list[Point]()
    for symbols in sizes(case):
        for seed in range(prove.DRAWS * 4):
            try:
                found.append(point(p, g, symbols, seed, True))
                break
            except ZeroDenominator:
                continue
        found.append(point(p, g, symbols, 0, False, spread=prove.spread(g)))
    text = case.render().text
    made = Base(text, tuple(found), tuple(_runs(case, sources(text)[-1])))
    reason = made.finding(sources(made.text))
    assert not reason, f"{case.name} is refuted unchanged: {reason}"
    return made


def _runs(case: Case, source: Source) -> Iterator[tuple[Case, Sequence[NDArray[Any]], bool, Results]]:
    """Runs of a kernel in float32 at each size, on small and on large numbers."""
    for symbols in sizes(case):
        sized = replace(case, sizes=tuple(symbols.items()))
        for at_once, spread in ((False, 1.0), (True, 16.0)):
            arrays = [(a * spread).astype(a.dtype) if a.dtype.kind == "f" else a for a in sized.inputs()]
            yield sized, arrays, at_once, kernels.interpreted(sized, source, arrays, at_once)


def verdict(b: Base, kernel: ir.Kernel) -> str:
    """What becomes of a changed kernel: one of `VERDICTS`."""
    tried = [s.changed(kernel) for s in sources(b.text)]
    try:
        if b.finding(tried):
            return "refuted"
    except ZeroDenominator:
        pass
    except Exception:
        return "no kernel"  # of the language any more: the proof says that it does not understand it
    for at in b.points:  # the proof has run it with copies as late as may be
        if at.arithmetic().residues and not _agrees(at, tried[-1]):
            return "HOLE"
    return max((_beside(*run, tried[-1]) for run in b.runs), key=VERDICTS.index)


def _agrees(at: Point, source: Source) -> bool:
    """Whether a source is its program at a point where copies land at once."""
    try:
        return _same(at.wanted, at.results(source, at_once=True))
    except (Fault, ZeroDenominator):
        return False


def _beside(case: Case, arrays: Sequence[NDArray[Any]], at_once: bool, own: Results, other: Source) -> str:
    """A source beside a kernel's results in float32: the same bits, other rounding, or other numbers."""
    its = kernels.interpreted(case, other, arrays, at_once)
    if isinstance(own, str) or isinstance(its, str):
        return "same bits" if isinstance(own, str) else "HOLE"
    if _same(own, its):
        return "same bits"
    return "HOLE" if case.problem(its, arrays) and not case.problem(own, arrays) else "other rounding"


def _same(x: Sequence[NDArray[Any]], y: Sequence[NDArray[Any]]) -> bool:
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(x, y, strict=True))


# --- the run ------------------------------------------------------------------------------------------------------------
def run(engine: str, count: int, seed: int, out: Path) -> None:
    """Judge changes of an engine's kernels, those that the file does not have."""
    done = {(r["engine"], r["kernel"], r["number"]) for r in read(out)}
    for k, case in enumerate(corpus(engine)):
        if all((engine, case.name, n) in done for n in range(count)):
            continue
        b = base(case)
        drawn = [m for kernel in sources(b.text)[0].kernels.values() for m in draw(kernel, count, seed + k)]
        for number, mutant in enumerate(drawn[:count]):
            if (engine, case.name, number) in done:
                continue
            line = {"engine": engine, "kernel": case.name, "number": number, "what": mutant.what}
            line["verdict"] = verdict(b, mutant.kernel)
            with out.open("a") as f:
                f.write(json.dumps(line) + "\n")


def read(out: Path) -> list[dict[str, Any]]:
    """The verdicts of a file."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Verdicts by engine."""
    tally = Counter((r["engine"], r["verdict"]) for r in lines)
    rows = ["| engine | changes | " + " | ".join(VERDICTS) + " |", "|---|" + "---|" * (len(VERDICTS) + 1)]
    for engine in (*COUNTS, "all"):
        row = [sum(n for (e, v), n in tally.items() if engine in (e, "all") and v == verdict) for verdict in VERDICTS]
        rows.append(f"| {engine} | {sum(row)} | " + " | ".join(map(str, row)) + " |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how many changes are refuted; 1 if one that is not changes a result."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.kernel_proof.mutations")
    parser.add_argument("--engine", action="append", choices=[*COUNTS])
    parser.add_argument("--count", type=int, help="changes of each kernel (default: 10,000 in all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/kernel-mutations.jsonl"), help="where verdicts are kept")
    o = parser.parse_args(arguments)
    statements.MOST_TURNS = TURNS
    o.out.parent.mkdir(parents=True, exist_ok=True)
    for engine in o.engine or COUNTS:
        run(engine, o.count or COUNTS[engine], o.seed, o.out)
    lines = read(o.out)
    print(table(lines))
    holes = [r for r in lines if r["verdict"] == "HOLE"]
    for r in holes:
        print(f"HOLE {r['engine']} {r['kernel']}: {r['what']}")
    return int(bool(holes))


if __name__ == "__main__":
    sys.exit(main())
