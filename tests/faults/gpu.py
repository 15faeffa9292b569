"""Trouble with a real GPU while candidates are tried: what a run says, keeps and takes up again.

    python -m tests.faults.gpu [--gpu 0] [--model FILE]

Needs what `mirage optimize --gpu` needs, with torch. In turns: nothing wrong; a candidate whose kernel traps; the process
that times killed; the memory of the device taken by another process, before and while candidates are tried; no visible
device. Each with a cache of its own, and a run without trouble after it.
"""

from __future__ import annotations

import argparse
import contextlib
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

from mirage_cli import pipeline, tuning_build
from mirage_cli.codegen.source import Rendered
from mirage_cli.errors import MirageError
from mirage_cli.options import Options
from mirage_cli.plan import rendered

MODEL = Path(__file__).resolve().parents[2] / "samples" / "operators" / "rmsnorm_linear_fp16.onnx"
FILL = """
import sys, torch
free, _ = torch.cuda.mem_get_info({gpu})
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
def trap(gpu: int) -> Iterator[None]:
    """The kernels of the second candidate trap."""
    made = 0

    def source(*arguments: Any, **named: Any) -> Rendered:
        nonlocal made
        made += 1
        found = rendered(*arguments, **named)
        if made != 2:
            return found
        body = found.text.index("{", found.text.rindex("__global__")) + 1
        return replace(found, text=f'{found.text[:body]} asm volatile("trap;");{found.text[body:]}')

    with unittest.mock.patch.object(tuning_build, "rendered", source):
        yield


@contextlib.contextmanager
def killed(gpu: int) -> Iterator[None]:
    """The process that holds the device is killed five seconds after it has begun."""
    done = threading.Event()

    def kill() -> None:
        while not done.wait(0.2):
            found = children()
            if found:
                done.wait(5.0)
                for number in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
                return

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def children() -> list[int]:
    """The processes that multiprocessing has started from this one."""
    import multiprocessing

    return [p.pid for p in multiprocessing.active_children() if p.pid is not None]


@contextlib.contextmanager
def full(gpu: int, wait: float = 0.0) -> Iterator[None]:
    """Another process takes all memory of the device, some seconds after the block begins."""
    filler: list[subprocess.Popen[str]] = []

    def fill() -> None:
        time.sleep(wait)
        code = FILL.format(gpu=gpu)
        pipe = subprocess.PIPE
        child = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)
        filler.append(child)
        assert child.stdout is not None
        child.stdout.readline()

    thread = threading.Thread(target=fill)
    thread.start()
    if not wait:
        thread.join()
    try:
        yield
    finally:
        thread.join()
        for child in filler:
            child.kill()
            child.wait()


@contextlib.contextmanager
def hidden(gpu: int) -> Iterator[None]:
    """No device is visible."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        yield
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]


TROUBLES: dict[str, Callable[[int], Any]] = {
    "nothing": nothing,
    "a candidate traps": trap,
    "its process is killed": killed,
    "memory full from the start": full,
    "memory full later": lambda gpu: full(gpu, 6.0),
    "no visible device": hidden,
}


def optimize(model: Path, folder: Path, gpu: int) -> str:
    """A run that tunes; what there is to tell of it."""
    options = Options(gpu=gpu, force=True, cache=str(folder / "cache"), tune_candidates=12, tune_budget=40.0)
    start = time.monotonic()
    try:
        report = pipeline.optimize(str(model), folder / "out", options).to_json()
    except MirageError as error:
        return f"{type(error).__name__} ({error.code}, exit {error.exit_code}): {str(error)[:300]} [{error.hint[:80]}]"
    seconds = time.monotonic() - start
    (fragment,) = report["fragments"]
    t = fragment["tuning"]
    candidates = t.get("candidates", [])
    timed = sum(c["measured_us"] is not None for c in candidates)
    lost = [c["problem"] for c in candidates if "problem" in c]
    cached = sum(bool(c.get("cached")) for c in candidates)
    said = (
        f"{seconds:.0f} s, {fragment['status']}, {timed} of {len(candidates)} candidates have a time, {cached} cached"
    )
    said += f"; chosen {t.get('chosen_us')} us; {fragment.get('reason', '')}"
    return said + "".join(f"\n    {x[:200]}" for x in [t.get("problem", ""), *lost[:3]] if x)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--model", type=Path, default=MODEL)
    asked = parser.parse_args()
    for name, trouble in TROUBLES.items():
        with tempfile.TemporaryDirectory() as folder:
            with trouble(asked.gpu):
                print(f"{name}: {optimize(asked.model, Path(folder), asked.gpu)}", flush=True)
            if name != "nothing":
                print(f"  afterwards: {optimize(asked.model, Path(folder), asked.gpu)}", flush=True)


if __name__ == "__main__":
    main()
