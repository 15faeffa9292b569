"""Kernels of random programs without their models: under sanitizers, on arrays beside forbidden pages, on a GPU.

`python -m tests.random_programs.alone cpu|cuda --count N`: of each fragment's candidates a random one is taken, so that
engines, tiles and grids are met that the cost model would not choose.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from random import Random

from mirage_cli.backends.cpu import FLAGS, ISA_FLAGS
from mirage_cli.backends.cuda import arch_flags
from mirage_cli.codegen import render
from mirage_cli.errors import MirageError
from mirage_cli.frontends import Options
from mirage_cli.frontends.onnx import front_end
from mirage_cli.lax.dtypes import BF16, F16, DType
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.optimization import task as works
from mirage_cli.processes import isolation
from mirage_cli.search.finish.split_reduction import two_kernels
from mirage_cli.search.schedules.ranking import ranked
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen import kernels
from tests.codegen.kernels import Case
from tests.codegen.programs import NAMED, SPLIT, TYPES, Build, program, random_build
from tests.codegen.row_programs import random_rows, row_cases
from tests.codegen.strip_programs import block_graphs, random_strip, strip_cases

from . import racecheck
from .choices import DTYPES, drawn
from .sketch import model
from .working import supported

EXTENTS = (1, 7, 40, 65)  #: of symbols
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TOGETHER = 6  #: kernels that nvcc compiles as one source
CLEAN = (*kernels.CPU_FLAGS, "-Wno-unused-variable", "-Wno-unused-parameter")  #: what cancels in a program is not read
SECONDS = 120.0  #: for one kernel under a tool


def cases(number: int, seed: int, target: str) -> list[Case]:
    """Kernels of the fragments of a random program, each with a random candidate that renders."""
    dtype = [t for t in DTYPES if t != "float64"][number % 6]
    imported = front_end.from_proto(model({"p": drawn(number, seed, dtype)[0]}), Options())
    parts = partition(imported.graph, works.tensor_names(imported))
    random, machine, found = Random(f"{seed} {number} schedule"), load_target(target), list[Case]()
    for k, w in enumerate(works.group_fragments(parts.fragments, imported)):
        if w.failed or any(a.extent == 0 for a in w.program.axes):
            continue
        candidates = list(Searcher(SearchOptions()).with_schedules(12).search(w.program, machine).candidates)
        sizes = tuple((s, random.choice(EXTENTS)) for s in w.program.symbols)
        engines = sorted({c.schedules[0].engine for c in candidates})
        engine = random.choice(engines) if engines else ""
        if random.randrange(2):
            engine = candidates[0].schedules[0].engine if candidates else ""  # as the cost model would have it
        else:
            random.shuffle(candidates)
        for c in [c for c in candidates if c.schedules[0].engine == engine][:4]:
            case = Case(f"p{number}f{k}", w.program, c.graph, c.schedules, machine, sizes=sizes)
            if case.renders():
                found.append(case)
                break
    return found


def engine_cases(number: int, seed: int, arch: str) -> list[Case]:
    """Kernels of the engines and grids that few random programs reach: strips, rows in clusters, groups of warps with TMA,
    reductions over blocks, and two kernels where the second combines what parts of a grid left."""
    seed = 1000 * seed + number
    return list(ENGINES[number % len(ENGINES)](number // len(ENGINES), seed, arch))


def _strips(number: int, seed: int, arch: str) -> Iterator[Case]:
    build, dtype = random_strip(seed)
    p = program(build, dtype)
    yield from strip_cases(f"strip{number}", p, arch, 2, seed, block_graphs(p))


def _rows(number: int, seed: int, arch: str) -> Iterator[Case]:
    if number % 2:  # rows that the blocks of a cluster share
        shared = row_cases(f"rows{number}", program(_long_rows, TYPES[number // 2 % len(TYPES)]), arch, 60, seed)
        yield from islice((c for c in shared if c.schedules[0].number("cluster") > 1), 2)
        return
    build, dtype = random_rows(seed)
    yield from row_cases(f"rows{number}", program(build, dtype), arch, 2, seed)


def _groups(number: int, seed: int, arch: str) -> Iterator[Case]:
    p, machine = program(LARGE[number % len(LARGE)], (F16, BF16)[number % 2]), load_target(arch)
    found = list(Searcher(SearchOptions()).with_schedules(40).search(p, machine).candidates)
    found = [c for c in found if c.schedules[0].engine == "warpgroup"]
    for k, c in enumerate(Random(seed).sample(found, min(2, len(found)))):
        case = Case(f"group{number}x{k}", p, c.graph, c.schedules, machine)
        if case.renders():
            yield case


def _split_blocks(number: int, seed: int, arch: str) -> Iterator[Case]:
    p = program(NAMED[SPLIT[number % len(SPLIT)]], TYPES[number % len(TYPES)])
    yield from kernels.cases(f"split{number}", p, arch, 2, seed, lambda g: bool(g.split))


def _blocks(number: int, seed: int, arch: str) -> Iterator[Case]:
    build, dtype = random_build(seed)
    yield from kernels.cases(f"block{number}", program(build, dtype), arch, 2, seed)


def _two(number: int, seed: int, arch: str) -> Iterator[Case]:
    p, machine, random = program(NAMED[SPLIT[number % 2]], TYPES[number % len(TYPES)]), load_target(arch), Random(seed)
    graphs = [b for b in Searcher(SearchOptions(candidates=1)).blocks(p)[0] if b.split]
    for k, block in enumerate(random.sample(graphs, min(2, len(graphs)))):
        graph = two_kernels(p, block, 2 + 2 * (k % 2))
        choices = [random.choice(ranked(x.program, x.block, machine, 6)).schedule for x in graph.kernels]
        case = Case(f"two{number}x{k}", p, graph, tuple(choices), machine)
        if case.renders():
            yield case


ENGINES = (_strips, _rows, _groups, _split_blocks, _blocks, _two)


def _long_rows(g: Graph, t: DType) -> Sequence[int]:
    x = g.input("x", (5, 4104), t)
    return [compose.softmax(g, compose.rms_norm(g, x, [1], 1e-5), [1])]


def _large_linear(g: Graph, t: DType) -> Sequence[int]:
    x = compose.rms_norm(g, g.input("x", (257, 520), t), [1], 1e-5)
    return [compose.matmul(g, x, g.input("w", (520, 264), t))]


def _large_gated(g: Graph, t: DType) -> Sequence[int]:
    x = g.input("x", (129, 136), t)
    gate, up = (compose.matmul(g, x, g.input(n, (136, 200), t)) for n in "wu")
    return [g.map("mul", g.map("silu", gate), up)]


def _large_attention(g: Graph, t: DType) -> Sequence[int]:
    q, k, v = g.input("q", (2, 130, 64), t), g.input("k", (2, 64, 328), t), g.input("v", (2, 328, 64), t)
    scores = compose.scale(g, compose.matmul(g, q, k), 0.125)
    return [compose.matmul(g, compose.softmax(g, scores, [2]), v)]


LARGE: tuple[Build, ...] = (_large_linear, _large_attention, _large_gated)


def cases_or_none(number: int, seed: int, target: str) -> list[Case]:
    """The same; nothing where no model can be made, or no kernel. Below 0 stand `engine_cases`."""
    try:
        return cases(number, seed, target) if number >= 0 else engine_cases(-1 - number, seed, target)
    except MirageError:
        return []


def kind(case: Case) -> str:
    """The engines of a kernel graph, and whether blocks share work."""
    engines = "+".join(s.engine for s in case.schedules)
    split = " split" if any(k.block.split for k in case.graph.kernels if hasattr(k, "block")) else ""
    cluster = " cluster" if any(dict(s.numbers).get("cluster", 1) > 1 for s in case.schedules) else ""
    return f"{engines}{split}{cluster}"


# --- the CPU --------------------------------------------------------------------------------------------------------------
def on_cpu(numbers: Sequence[int], seed: int) -> tuple[int, list[str]]:
    """Kernels of some programs under AddressSanitizer and UBSan, and with the flags of libraries beside forbidden pages."""
    found = [c for n in numbers for c in cases_or_none(n, seed, "cpu")]
    texts = {c.name: c.render().text for c in found}
    if not texts:
        return 0, []
    isas = supported()
    release = [f for f in FLAGS if f != "-fvisibility=hidden"]
    with tempfile.TemporaryDirectory() as folder:
        clean = kernels.build(texts, Path(folder) / "clean", [*CLEAN, *kernels.SANITIZERS])
        problems = kernels.run(clean, found)
        isa = isas[numbers[0] % len(isas)]
        fast = kernels.build(texts, Path(folder) / "fast", [*release, *ISA_FLAGS[isa]])
        for mode in "es":
            problems += [f"{isa}, guarded {mode}: {p}" for p in kernels.run(fast, found, mode)]
    return len(found), problems


# --- a GPU ----------------------------------------------------------------------------------------------------------------
def on_gpu(found: Sequence[Case], folder: Path, arch: str, jobs: int, tools: int) -> Counter[str]:
    """Compile kernels with nvcc, run them, and the first `tools` of each kind under compute-sanitizer; what was seen."""
    counts: Counter[str] = Counter()
    common = ["nvcc", "-std=c++17", "-O3", "-lineinfo", *arch_flags([arch]), f"-I{render.include_dir()}", "-I."]
    objects = dict[str, str]()

    def compiled(several: Sequence[Case]) -> list[str]:
        """Kernels as one source, since headers take most of the time; where that does not compile, one by one."""
        texts = {c.name: c.render().text for c in several}
        heads = {f"#include {h}": None for t in texts.values() for h in re.findall(r'#include (".*")', t)}
        lines = [*heads, *(line for n, t in texts.items() for line in (f"namespace of_{n} {{", t, "}"))]
        name = several[0].name
        (folder / f"{name}.cu").write_text("\n".join(lines))
        command = [*common, "-c", f"{name}.cu", "-o", f"{name}.o"]
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if made.returncode == 0:
            objects.update(dict.fromkeys(texts, f"{name}.o"))
            return []
        if len(several) > 1:
            return [p for c in several for p in compiled([c])]
        return [f"{name} does not compile: {made.stdout}{made.stderr}"]

    with ThreadPoolExecutor(jobs) as pool:
        for problems in pool.map(compiled, [found[k : k + TOGETHER] for k in range(0, len(found), TOGETHER)]):
            counts["problems"] += len(problems)
            print("".join(f"{p[:600]}\n" for p in problems), end="", flush=True)
    built = [c for c in found if c.name in objects]
    (folder / "table.inc").write_text("".join(f"KERNEL({c.name})\n" for c in built))
    shutil.copy(kernels.HERE / "harness.cpp", folder / "harness.cu")
    linked = [*common, "-DHARNESS_DEVICE", "harness.cu", *dict.fromkeys(objects.values()), "-o", "harness"]
    subprocess.run(linked, cwd=folder, check=True)

    def tried(job: tuple[Case, str]) -> tuple[str, str]:
        case, tool = job
        log = folder / f"{case.name}.{tool}.log"
        before = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--log-file", str(log)] if tool else []
        what = f"{tool or 'run'}: {kind(case)}"
        if tool == "racecheck" and racecheck.misread(case):
            return f"left out, since {what} with uneven turns is misread", ""
        arrays = case.inputs()
        results = kernels.call(folder / "harness", case, arrays, "", before, SECONDS)
        problem = results if isinstance(results, str) else case.problem(results, arrays)
        said = log.read_text() if problem and tool and log.exists() else ""
        if tool == "racecheck" and racecheck.exchange_only(said):
            return f"{what}, exchange of a cluster reported", ""
        return what, problem + said[:1500]

    seen: Counter[str] = Counter()
    jobs_left: list[tuple[Case, str]] = [(c, "") for c in built]
    for c in built:
        seen[kind(c)] += 1
        jobs_left += [(c, t) for t in TOOLS if seen[kind(c)] <= tools]
    with ThreadPoolExecutor(jobs) as pool:
        for (case, _), (what, problem) in zip(jobs_left, pool.map(tried, jobs_left), strict=True):
            counts[what] += 1
            if counts.total() % 50 == 0:
                print(f"{counts.total()} of {len(jobs_left)} runs", flush=True)
            if problem:
                counts["problems"] += 1
                print(f"{case.name} {what}: {problem[:1500]}", flush=True)
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Try kernels; 1 if anything is wrong with one."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.random_programs.alone")
    parser.add_argument("place", choices=("cpu", "cuda"))
    parser.add_argument("--count", type=int, default=300, help="programs (default: 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument(
        "--tools", type=int, default=10, help="kernels of each kind under compute-sanitizer (default: 10)"
    )
    parser.add_argument("--engines", type=int, default=60, help="programs for engines that few random ones reach")
    o = parser.parse_args(arguments)
    start, wrong, counts = time.perf_counter(), 0, Counter[str]()
    if o.place == "cpu":
        batches = [(range(k, min(k + 5, o.count)), o.seed) for k in range(0, o.count, 5)]
        for _, found in isolation.each(on_cpu, batches, o.jobs, apart=True):
            problems = [found.reason] if isinstance(found, isolation.Lost) else found[1]
            counts["kernels"] += 0 if isinstance(found, isolation.Lost) else found[0]
            wrong += len(problems)
            print("\n".join(p[:1500] for p in problems), end="\n" if problems else "", flush=True)
    else:
        jobs = [(k, o.seed, o.arch) for k in range(-o.engines, o.count)]
        made = [f for _, f in sorted(isolation.each(cases_or_none, jobs, o.jobs, apart=True), key=lambda x: x[0])]
        wrong += sum(isinstance(f, isolation.Lost) for f in made)
        print("\n".join(f.reason for f in made if isinstance(f, isolation.Lost)), flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found = [c for f in made if not isinstance(f, isolation.Lost) for c in f]
            print(f"{len(found)} kernels, {time.perf_counter() - start:.0f} s", flush=True)
            counts = on_gpu(found, Path(folder), o.arch, o.jobs, o.tools)
            wrong += counts.pop("problems", 0)
    for name, n in sorted(counts.items()):
        print(f"{n:>8,}  {name}")
    print(f"{wrong} problems, {time.perf_counter() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
