"""Memory that sessions which were made and thrown away leave on the heap, and whose it is.

    python -m samples.growth OUT [OUT ...] [--provider cuda] [--count 60] [--threads 8] [--jobs 1]

OUT are output folders of `mirage optimize`. In a process of its own for each, sessions are made one after the other, called
by every one of some threads, and thrown away: of the original model without our library, of the original model with it, and
of the patched model; and once more without being called. Prints by how much what is in use on the heap, and what the
process has, grew for each session (the slope behind the first quarter). With CUDA's provider cuDNN's handles are made and
thrown away as well, without onnxruntime: each session has some for each thread.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier

import numpy as np
import onnxruntime

from samples import sessions
from samples.inputs import DEFAULT_DIMS
from samples.memory import in_use, resident

WARM = 0.25  #: share of the sessions before memory is watched
FORMS = ("original", "registered", "patched")
HANDLE = "handle of cuDNN"
KIBI = 1 << 10


@dataclass(frozen=True)
class Growth:
    """Bytes that a session left behind: of what is in use on the heap, and of what the process has."""

    used: float
    process: float


def growth(make: Callable[[], Callable[[int], object]], count: int, threads: int) -> Growth:
    """Make `count` sessions, let each be called by every one of `threads` threads (0: by none), throw each away.
    `make` gives a session as a function of the number of a thread."""
    rows = []
    together = Barrier(max(threads, 1))

    def call(session: Callable[[int], object], number: int) -> None:
        together.wait()  # so that none is called twice by one thread
        session(number)

    with ThreadPoolExecutor(max(threads, 1)) as pool:
        for number in range(count):
            session = make()
            for done in [pool.submit(call, session, k) for k in range(threads)]:
                done.result()
            del session
            rows.append((number, in_use(), resident()))
    watched = np.array(rows[int(WARM * count) :], np.float64)
    used, process = (float(np.polyfit(watched[:, 0], watched[:, k], 1)[0]) for k in (1, 2))
    return Growth(used, process)


def sessions_of(case: sessions.Case, original: Path, form: str) -> Callable[[], Callable[[int], object]]:
    """A function that makes sessions of one form."""

    def make() -> Callable[[int], object]:
        options = case.options() if form != "original" else replace(case, library=None).options()
        session = case.session(options, case.model if form == "patched" else original)
        return lambda number: sessions.answers(session, case.feeds[number % len(case.feeds)])

    return make


def handles() -> Callable[[], Callable[[int], object]]:
    """A function that makes handles of cuDNN, and destroys them. Raises OSError without cuDNN 9."""
    library = ctypes.CDLL("libcudnn.so.9")

    def make() -> Callable[[int], object]:
        handle = ctypes.c_void_p()
        if failed := library.cudnnCreate(ctypes.byref(handle)) or library.cudnnDestroy(handle):
            raise SystemExit(f"cuDNN: error {failed}")
        return lambda number: None

    return make


def _one(out: Path, form: str, provider: str, count: int, threads: int) -> Growth:
    if provider == "cuda" and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    if form == HANDLE:
        return growth(handles(), count, threads)
    original = Path(json.loads((out / "report.json").read_text(encoding="utf-8"))["model"]["path"])
    with tempfile.TemporaryDirectory() as folder:
        case = sessions.case_of(original, out, Path(folder), provider, DEFAULT_DIMS)
        return growth(sessions_of(case, original, form), count, threads)


def main() -> None:
    """Run all forms, or one of them here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="+")
    parser.add_argument("--provider", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--count", type=int, default=60, help="sessions of each form [60]")
    parser.add_argument("--threads", type=int, default=8, help="that call each session [8]")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time [1]")
    parser.add_argument("--form", choices=(*FORMS, HANDLE), help="this one only, here")
    given = parser.parse_args()
    if given.form is not None:
        for out in given.out:
            growth_of_form = _one(out, given.form, given.provider, given.count, given.threads)
            print(f"{growth_of_form.used / KIBI:.1f} {growth_of_form.process / KIBI:.1f}")
        return

    def line(out: Path, form: str, threads: int) -> str:
        arguments = [str(out), "--form", form, "--provider", given.provider]
        arguments += ["--count", str(given.count), "--threads", str(threads)]
        command = [sys.executable, "-m", "samples.growth", *arguments]
        child = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if child.returncode:
            return f"{out.name}, {form}: exit code {child.returncode}: {child.stderr[-400:]}"
        used, process = child.stdout.split()
        return f"{out.name}, {form}, called by {threads} threads: {used} KiB in use, {process} KiB of the process"

    print(f"a session leaves (onnxruntime {onnxruntime.__version__}, {given.count} sessions each):", flush=True)
    asked = [(given.out[0], HANDLE, 0)] if given.provider == "cuda" else []
    asked += [(out, form, n) for out in given.out for n in sorted({0, given.threads}) for form in FORMS]
    with ThreadPoolExecutor(given.jobs) as pool:
        for text in pool.map(lambda a: line(*a), asked):
            print(f"  {text}", flush=True)


if __name__ == "__main__":
    main()
