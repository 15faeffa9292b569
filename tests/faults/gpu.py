"""Trouble with a real GPU while candidates are tried: what a run says, keeps and takes up again.

    python -m tests.faults.gpu [--gpu 0] [--model FILE] [--only WORDS]

Needs what `mirage optimize --gpu` needs, with torch. In turns: nothing wrong; a candidate whose kernel traps; one whose
kernel never ends; the process that times killed in the middle of a check; the memory of the device taken by another
process, before and while candidates are tried; no visible device; two runs at once on one device with one cache, and
into one folder. Each with a cache of its own, and a run without trouble after it. `python -m tests.faults.kills --gpu 0`
kills whole runs that tune.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest.mock
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mirage_cli.codegen.source import Rendered
from mirage_cli.errors import MirageError
from mirage_cli.optimization import story
from mirage_cli.options.options import Options
from mirage_cli.planning.plan import rendered
from mirage_cli.tuning import bench as tuning_bench
from mirage_cli.tuning import build
from mirage_cli.tuning.bench import IsolatedBench

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "samples" / "operators" / "rmsnorm_linear_fp16.onnx"
CANDIDATES, SECONDS = 12, 40.0  #: tried by a run, allowed for it
CHECK_SECONDS = 10.0  #: in the place of mirage's own, for what never ends
FILL = """
import sys, torch
held, size = [], 1 << 30
while size >= 1 << 20:
    try:
        held.append(torch.empty(size, dtype=torch.uint8, device="cuda:{gpu}"))
    except torch.OutOfMemoryError:
        size //= 2
print("full", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def nothing(gpu: int) -> Iterator[None]:
    """No trouble."""
    yield


@contextlib.contextmanager
def spoiled(statement: str) -> Iterator[None]:
    """The kernels of the second candidate begin with a statement."""
    made = 0

    def source(*arguments: Any, **named: Any) -> Rendered:
        nonlocal made
        made += 1
        found = rendered(*arguments, **named)
        if made != 2:
            return found
        body = found.text.index("{", found.text.rindex("__global__")) + 1
        return replace(found, text=f"{found.text[:body]} {statement} {found.text[body:]}")

    with unittest.mock.patch.object(build, "rendered", source):
        yield


@contextlib.contextmanager
def endless(gpu: int) -> Iterator[None]:
    """A kernel never ends; a check is given little time."""
    short = unittest.mock.patch.object(tuning_bench, "CHECK_SECONDS", CHECK_SECONDS)
    with short, spoiled("while (true) __nanosleep(1000);"):
        yield


@contextlib.contextmanager
def at_check(number: int, act: Callable[[IsolatedBench], object]) -> Iterator[None]:
    """Something happens when candidate `number` is about to be checked."""
    count, check = 0, IsolatedBench.check

    def counted(bench: IsolatedBench, library: Path) -> str:
        nonlocal count
        count += 1
        if count == number:
            act(bench)
        return check(bench, library)

    with unittest.mock.patch.object(IsolatedBench, "check", counted):
        yield


@contextlib.contextmanager
def killed(gpu: int) -> Iterator[None]:
    """The process that holds the device is killed while it checks the third candidate."""

    def kill(bench: IsolatedBench) -> None:
        worker = bench._resident._worker
        assert worker is not None and worker.process.pid is not None
        threading.Timer(0.05, os.kill, (worker.process.pid, signal.SIGKILL)).start()

    with at_check(3, kill):
        yield


@contextlib.contextmanager
def full(gpu: int, later: bool = False) -> Iterator[None]:
    """Another process takes all memory of the device, at once or when the third candidate is to be checked."""
    filler: list[subprocess.Popen[str]] = []

    def fill(*_: object) -> None:
        pipe = subprocess.PIPE
        child = subprocess.Popen([sys.executable, "-c", FILL.format(gpu=gpu)], stdin=pipe, stdout=pipe, text=True)
        filler.append(child)
        assert child.stdout is not None
        child.stdout.readline()

    if not later:
        fill()
    try:
        with at_check(3, fill) if later else contextlib.nullcontext():
            yield
    finally:
        for child in filler:
            child.kill()
            child.wait()


@contextlib.contextmanager
def hidden(gpu: int) -> Iterator[None]:
    """No device is visible."""
    with unittest.mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):
        yield


TROUBLES: dict[str, Callable[[int], Any]] = {
    "nothing": nothing,
    "a candidate traps": lambda gpu: spoiled('asm volatile("trap;");'),
    "a candidate never ends": endless,
    "its process is killed": killed,
    "memory full later": lambda gpu: full(gpu, later=True),
    "memory full from the start": full,
    "no visible device": hidden,
}


def optimize(model: Path, folder: Path, gpu: int) -> str:
    """A run that tunes; what there is to tell of it."""
    options = Options(gpu=gpu, force=True, cache=str(folder / "cache"), tune_candidates=CANDIDATES, tune_budget=SECONDS)
    start = time.monotonic()
    try:
        report = story.optimize(str(model), folder / "out", options).to_json()
    except MirageError as error:
        return f"{type(error).__name__} ({error.code}, exit {error.exit_code}): {str(error)[:300]} [{error.hint[:80]}]"
    return told(report, time.monotonic() - start)


def told(report: Any, seconds: float) -> str:
    """What a report says of its one fragment."""
    (fragment,) = report["fragments"]
    t = fragment["tuning"]
    candidates = t.get("candidates", [])
    timed = sum(c["measured_us"] is not None for c in candidates)
    lost = [c["problem"] for c in candidates if "problem" in c and not c["problem"].startswith("refused")]
    cached = sum(bool(c.get("cached")) for c in candidates)
    said = (
        f"{seconds:.0f} s, {fragment['status']}, {timed} of {len(candidates)} candidates have a time, {cached} cached"
    )
    said += f"; chosen {t.get('chosen_us')} us; {fragment.get('reason', '')}"
    return said + "".join(f"\n    {x[:200]}" for x in [t.get("problem", ""), *lost[:3]] if x)


def processes(model: Path, folder: Path, gpu: int, *outs: str) -> list[str]:
    """Runs in processes of their own at the same time, with one cache; what there is to tell of each."""
    command = [sys.executable, "-m", "mirage_cli", "optimize", str(model), "--gpu", str(gpu), "--force", "--json"]
    command += ["--cache", str(folder / "cache"), "--tune-candidates", str(CANDIDATES), "--tune-budget", str(SECONDS)]
    start = time.monotonic()
    pipe = subprocess.PIPE
    children = [
        subprocess.Popen([*command, "-o", str(folder / out)], cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
        for out in outs
    ]
    answers = [(c, *c.communicate()) for c in children]
    seconds = time.monotonic() - start
    return [
        f"exit code {c.returncode}: "
        + (told(json.loads(out), seconds) if c.returncode == 0 else (out + err).strip()[-300:])
        for c, out, err in answers
    ]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--only", default="", help="the troubles that have this in their names")
    asked = parser.parse_args()
    for name, trouble in TROUBLES.items():
        if asked.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            with trouble(asked.gpu):
                print(f"{name}: {optimize(asked.model, Path(folder), asked.gpu)}", flush=True)
            if name != "nothing":
                (said,) = processes(asked.model, Path(folder), asked.gpu, "out")
                print(f"  afterwards: {said}", flush=True)
    if asked.only in "two runs at once":
        with tempfile.TemporaryDirectory() as folder:
            for outs in (("a", "b"), ("c", "c"), ("a",)):  # folders of their own, the same one, one run alone
                for line in processes(asked.model, Path(folder), asked.gpu, *outs):
                    print(f"two runs at once: {line}", flush=True)


if __name__ == "__main__":
    main()
