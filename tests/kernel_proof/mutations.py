"""Random small changes of printed kernels: what the run over residues refutes, and whether the rest changes any result.

`python -m tests.kernel_proof.mutations --count 40` draws so many changes of each kernel (`make kernel-mutations`). What is not
refuted runs in the emulator, warps forward and backward, beside float64: a change that passes here and fails there is a hole.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mirage_cli.errors import Refused
from mirage_cli.kernel_interpreter.memory import Unknown
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.printer import text
from mirage_cli.kernel_language.reader import read_kernels
from mirage_cli.kernel_proof.compare import compare
from mirage_cli.lax.domains.field import ZeroDenominator
from mirage_cli.lax.dtypes import F16
from mirage_cli.search.schedules.target import load_target
from tests.codegen import kernels, programs, row_programs, strip_programs
from tests.codegen.kernels import Case, cases
from tests.codegen.warpgroup import test_warpgroup as warpgroup
from tests.kernel_proof.mutants import draw

MODES = ("", "b", "l")  #: of the emulator: threads forward, backward; copies as late as allowed
ENGINES = ("cpu", "block", "rows", "strip", "warpgroup")
BATCH = 8  #: sources that are compiled together
SPREAD = 60.0


@dataclass(frozen=True)
class Survivor:
    """A change that the run over residues does not see."""

    case: Case
    what: str
    source: str


def corpus(engine: str) -> Iterator[Case]:
    """A kernel of an engine for each named program."""
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


def changed(source: str, kernel: ir.Kernel) -> str:
    """A source with another kernel in the place of the one of its name."""
    pattern = rf"(__global__ void|^void)[^\n]*\n?[^\n]*{kernel.name}\(.*?^\}}$"
    match = re.search(pattern, source, re.MULTILINE | re.DOTALL)
    assert match is not None
    return source[: match.start()] + text(kernel) + source[match.end() :]


def refuted(case: Case, source: str) -> bool:
    """True if a run over residues, or over large numbers in float64, finds a difference or a fault."""
    for residues in (True, False):
        try:
            finding = compare(source, case.program, case.graph, case.symbols, residues=residues, spread=SPREAD)
        except ZeroDenominator:
            return False
        except (Unknown, TypeError, ValueError, ZeroDivisionError, IndexError, AttributeError, OverflowError):
            return True  # no kernel of the language any more
        if not finding.passed:
            return True
    return False


def survivors(engine: str, count: int, seed: int, most: int, tally: Counter[str]) -> Iterator[Survivor]:
    """The changes of an engine's kernels that are not refuted."""
    for k, case in enumerate(corpus(engine)):
        if k == most:
            return
        source = case.render().text
        if refuted(case, source):
            raise AssertionError(f"{case.name} is refuted unchanged")
        for kernel in read_kernels(source).values():
            for mutant in draw(kernel, count, seed + k):
                other = changed(source, mutant.kernel)
                if refuted(case, other):
                    tally["refuted"] += 1
                else:
                    tally["not refuted"] += 1
                    yield Survivor(case, mutant.what, other)


def confirmed(found: Sequence[Survivor], folder: Path) -> list[str]:
    """Those changes that the emulator finds wrong."""
    holes: list[str] = []
    for start in range(0, len(found), BATCH):
        texts, renamed = {}, []
        for k, s in enumerate(found[start : start + BATCH]):
            case = replace(s.case, name=f"m{start + k}")
            source = s.source.replace(f"{s.case.name}(", f"{case.name}(").replace(f"_{s.case.name}_", f"_{case.name}_")
            source = source.replace(f"kernels_{s.case.name}", f"kernels_{case.name}")
            texts[case.name] = re.sub(
                r"extern __shared__ .*;", "unsigned char* const shared = emulator::shared({});", source
            )
            renamed.append((case, s))
        cuda = renamed[0][0].target.kind == "cuda"
        flags = [*kernels.EMULATOR_FLAGS, "-w"] if cuda else ["-std=c++17", "-O1", "-w"]
        try:
            harness = kernels.build(texts, folder / str(start), flags, cuda=cuda)
        except AssertionError:
            harness = None  # one of them is no C++ any more: each by itself
        for case, s in renamed:
            own = harness
            if own is None:
                try:
                    own = kernels.build({case.name: texts[case.name]}, folder / f"{start}{case.name}", flags, cuda=cuda)
                except AssertionError:
                    continue
            for mode in MODES if cuda else ("",):
                holes += [f"{s.case.name}: {s.what}: {p[:200]}" for p in kernels.run(own, [case], mode)]
    return holes


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how many changes are refuted; 1 if one that is not changes a result."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.kernel_proof.mutations")
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--count", type=int, default=40, help="changes of each kernel")
    parser.add_argument("--kernels", type=int, default=1000, help="of each engine, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unconfirmed", action="store_true", help="do not run the rest in the emulator")
    o = parser.parse_args(arguments)
    holes: list[str] = []
    for engine in o.engine or ENGINES:
        tally = Counter[str]()
        try:
            found = list(survivors(engine, o.count, o.seed, o.kernels, tally))
        except Refused as e:
            parser.error(str(e))
        for s in found:
            print(f"  {engine} {s.case.name}: {s.what}")
        if not o.unconfirmed and engine != "warpgroup":  # whose instructions the emulator lacks
            with tempfile.TemporaryDirectory(prefix="mirage-mutations-") as folder:
                holes += confirmed(found, Path(folder))
        print(f"{engine}: {dict(tally)}, of these wrong in the emulator: {len(holes)}", flush=True)
    for hole in holes:
        print(f"HOLE {hole}")
    return int(bool(holes))


if __name__ == "__main__":
    sys.exit(main())
