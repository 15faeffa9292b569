"""Calls in processes of their own: what a model does to one ends that process only, and is told.

Processes are forked from one that has imported everything already (`warm`), so that a call starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

GIB = 1 << 30
MOST_MEMORY = 12 * GIB
_CONTEXT = multiprocessing.get_context("forkserver")
_ONE = threading.Lock()  #: starting a process reads the exit codes of others, and each can be read once


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended: its exit code (None: its time was over; below 0: a signal), and what it wrote."""

    code: int | None
    seconds: float
    out: str = ""
    err: str = ""

    @property
    def crashed(self) -> bool:
        """Whether a signal ended it that nobody sent."""
        return self.code is not None and self.code < 0

    @property
    def how(self) -> str:
        """The end in words."""
        if self.code is None:
            return f"no end within {self.seconds:.0f} s"
        return signal.Signals(-self.code).name if self.crashed else f"exit code {self.code}"


def warm() -> None:
    """Let processes be forked from one that has imported what they need."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _CONTEXT.set_forkserver_preload(["tests.foreign.preloaded"])


def call(function: Callable[..., None], args: Sequence[Any], seconds: float, scratch: Path) -> Ended:
    """Call a function (importable, with arguments that can be pickled) in a process of its own, for at most so long."""
    out, err = scratch / "out.txt", scratch / "err.txt"
    start = time.monotonic()
    process = _CONTEXT.Process(target=_begin, args=(str(out), str(err), function, tuple(args)))
    with _ONE:
        process.start()
    late = not wait([process.sentinel], seconds)
    _end(process.pid or 0)
    wait([process.sentinel])
    with _ONE:
        process.join()
    if late:
        return Ended(None, seconds, _text(out), _text(err))
    return Ended(process.exitcode, time.monotonic() - start, _text(out), _text(err))


def _end(group: int) -> None:
    """Kill a call's process and those that it left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _begin(out: str, err: str, function: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.setpgid(0, 0)
    for path, number in ((out, 1), (err, 2)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    function(*args)
    sys.stdout.flush()
    sys.stderr.flush()
