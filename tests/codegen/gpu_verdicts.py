"""What becomes of changed kernels of groups of warps on a GPU.

Kernels are libraries that processes of their own load and call through cupy; a process whose kernel fails, or does not end,
ends with it. Of changes with the same answers it is asked why, as in `mutant_verdicts.py`; `seen in memory` are those that
compute-sanitizer reports.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.backends.cuda import FLAGS, SAME_OBJECT, arch_flags
from mirage_cli.checks import kernel_check
from mirage_cli.codegen import render
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import BF16, F16
from mirage_cli.processes import isolation
from mirage_cli.runtime import sessions
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.random_programs.alone import LARGE

from . import kernels
from .kernels import Case
from .mutant_verdicts import AGAIN, ARCH, OUTCOMES, SAME_ANSWERS, SEED
from .programs import program

LIMIT = 40.0  #: seconds for all inputs of a check, in a process that may have to prepare them
NVCC = ("nvcc", *FLAGS, *arch_flags([ARCH]), "-w", f"-I{render.include_dir()}")
CASE = "case.pickle"  #: beside a kernel's library
TOOLS = ("memcheck", "initcheck", "synccheck")


def group_cases() -> Iterator[Case]:
    """Kernels of groups of warps: linear layers behind norms, gated ones and attention, in both types, some of which share
    operands or a reduction in a cluster."""
    for number in range(len(LARGE) * 2):
        machine, p = load_target(ARCH), program(LARGE[number % len(LARGE)], (F16, BF16)[number % 2])
        found = list(Searcher(SearchOptions()).with_schedules(40).search(p, machine).candidates)
        kinds: dict[tuple[bool, bool], Case] = {}
        for k, c in enumerate(c for c in found if c.schedules[0].engine == "warpgroup"):
            case = Case(f"group{number}x{k}", p, c.graph, c.schedules, machine)
            split = any(x.block.split for x in c.graph.kernels)
            kind = (split, c.schedules[0].number("cluster") > 1)
            if kind not in kinds and case.renders():
                kinds[kind] = case
        yield from kinds.values()


def library(text: str, folder: Path) -> Path | None:
    """A source as a library, beside the object that it is made of; None where nvcc refuses it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.cu").write_text(text)
    compiled = [*NVCC, SAME_OBJECT, "-c", "kernel.cu", "-o", "kernel.o"]
    linked = ["nvcc", "-shared", *arch_flags([ARCH]), "kernel.o", "-o", "kernel.so"]
    for command in (compiled, linked):
        if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode != 0:
            return None
    return folder / "kernel.so"


# --- in a process of its own ----------------------------------------------------------------------------------------------
def runner(case: Case, path: Path) -> kernel_check.Runner:
    """Calls a library's kernel. What goes wrong on the device ends the process: nothing after it can be trusted."""
    import cupy

    loaded = ctypes.CDLL(str(path))
    call, size = loaded[f"mirage_{case.name}"], loaded[f"mirage_{case.name}_workspace"]
    size.restype = ctypes.c_int64

    def on_device(a: NDArray[Any]) -> Any:
        raw = np.frombuffer(np.ascontiguousarray(a).tobytes() or b"\0", np.uint8)
        return cupy.asarray(raw)

    def run(arrays: Sequence[NDArray[Any]], symbols: Mapping[str, int]) -> list[NDArray[Any]]:
        extents = (ctypes.c_int64 * max(1, len(case.program.symbols)))(*(symbols[s] for s in case.program.symbols))
        shapes = [tuple(ex.value(e, symbols) for e in o.dims) for o in case.program.outputs]
        types = [np.dtype(sessions.numpy_type(o.dtype)) for o in case.program.outputs]
        given = [on_device(a) for a in arrays]
        made = [
            cupy.full(max(1, int(np.prod(s)) * t.itemsize), 0xFF, cupy.uint8)
            for s, t in zip(shapes, types, strict=True)
        ]
        scratch = cupy.full(max(1, int(size(extents))), 0xFF, cupy.uint8)
        pointers = [(ctypes.c_void_p * len(x))(*(a.data.ptr for a in x)) for x in (given, made)]
        try:
            status = call(*pointers, ctypes.c_void_p(scratch.data.ptr), extents, None)
            cupy.cuda.runtime.deviceSynchronize()
            found = [a.get() for a in made]
        except cupy.cuda.runtime.CUDARuntimeError:
            os._exit(4)
        if status != 0:
            os._exit(5)
        return [
            f[: int(np.prod(s)) * t.itemsize].view(t).reshape(s) for f, s, t in zip(found, shapes, types, strict=True)
        ]

    return run


@functools.lru_cache(maxsize=1)
def _prepared(own: Path) -> tuple[Case, tuple[kernel_check.Case, ...]]:
    """A kernel, which lies beside its library, and the cases of its float check, with what it makes of the inputs itself."""
    case: Case = pickle.loads(own.with_name(CASE).read_bytes())
    found = kernel_check.cases(case.program, runner(case, own), {}, SEED)
    return case, tuple(c for c in found if isinstance(c, kernel_check.Case))


def judged(own: Path, changed: Path) -> bool:
    """Whether a changed kernel passes the float check."""
    case, checks = _prepared(own)
    return kernel_check.judge(case.program, runner(case, changed), checks).passed


def differs(own: Path, changed: Path) -> str:
    """The kind of inputs on which the answers of a changed kernel are not the kernel's own bit by bit, or nothing."""
    case: Case = pickle.loads(own.with_name(CASE).read_bytes())
    a, b = runner(case, own), runner(case, changed)
    for seed in range(SEED + 1, SEED + 1 + AGAIN):
        for drawn in kernel_check.draws(case.program, {}, seed, None, case.program.symbols):
            results = zip(a(drawn.arrays, drawn.symbols), b(drawn.arrays, drawn.symbols), strict=True)
            if any(x.tobytes() != y.tobytes() for x, y in results):
                return drawn.name
    return ""


# --- from outside ---------------------------------------------------------------------------------------------------------
def explained(case: Case, own: Path, changed: Path) -> str:
    """Why a changed kernel is not told from the kernel, as far as that is known without other inputs: nvcc makes the same of
    both, or compute-sanitizer reports it."""
    if own.with_name("kernel.o").read_bytes() == changed.with_name("kernel.o").read_bytes():
        return "same machine code"
    folder = changed.parent
    (folder / "table.inc").write_text(f"KERNEL({case.name})\n")
    shutil.copy(kernels.HERE / "harness.cpp", folder / "harness.cu")
    command = [*NVCC, "-I.", "-DHARNESS_DEVICE", "harness.cu", "kernel.o", "-o", "harness"]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    for tool in TOOLS:
        log = folder / f"{tool}.log"
        before = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--log-file", str(log)]
        found = kernels.call(folder / "harness", case, case.inputs(), "", before, LIMIT)
        if isinstance(found, str):
            said = log.read_text() if log.exists() else found
            return f"seen in memory: {tool}: {' '.join(said.split())[:200]}"
    return ""


def verdicts(
    cases: Sequence[Case], changed: Sequence[tuple[int, str]], folder: Path, jobs: int
) -> Iterator[tuple[int, str, str]]:
    """The number of each changed source (of kernel number so and so, with the text), what becomes of it, and why where it is
    not told from the kernel."""
    with ThreadPoolExecutor(jobs) as pool:
        own = list(pool.map(lambda k: library(cases[k].render().text, folder / f"own{k}"), range(len(cases))))
        for case, path in zip(cases, own, strict=True):
            assert path is not None, case.name
            path.with_name(CASE).write_bytes(pickle.dumps(case))
        made = list(pool.map(lambda k: library(changed[k][1], folder / f"changed{k}"), range(len(changed))))
    yield from ((k, OUTCOMES[0], "") for k, path in enumerate(made) if path is None)
    left = sorted((k for k, path in enumerate(made) if path is not None), key=lambda k: changed[k][0])
    found = [(x, y) for k in left if (x := own[changed[k][0]]) is not None and (y := made[k]) is not None]
    same = []
    for at, passed in isolation.each(judged, found, max(1, jobs // 2), apart=True, seconds=LIMIT):
        if passed is True:
            same.append(at)
        else:
            lost = isinstance(passed, isolation.Lost)
            yield left[at], OUTCOMES[1] if lost else OUTCOMES[2], passed.reason if lost else ""
    with ThreadPoolExecutor(jobs) as pool:
        whys = dict(
            zip(same, pool.map(lambda at: explained(cases[changed[left[at]][0]], *found[at]), same), strict=True)
        )
    yield from ((left[at], SAME_ANSWERS, why) for at, why in whys.items() if why)
    rest = [at for at in same if not whys[at]]
    for n, kind in isolation.each(differs, [found[at] for at in rest], max(1, jobs // 2), apart=True, seconds=LIMIT):
        lost = isinstance(kind, isolation.Lost)
        yield (
            left[rest[n]],
            SAME_ANSWERS,
            kind.reason if lost else f"other bits: {kind} inputs" if kind else "same bits",
        )
