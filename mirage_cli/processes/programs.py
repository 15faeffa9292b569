"""Running compilers: no shell, no input, output captured, a time limit that ends the whole process group.

Programs are looked for in the absolute folders of $PATH only: what lies beside a model is no compiler, though `.` be in it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_cli.processes import termination

_POLL_SECONDS = 0.1
_CHUNK = 1 << 16
_LINE = 300  #: characters of a line that is repeated to the user
_KEPT = 1 << 20  #: bytes of the beginning, and of the end, of what a command prints
#: processor seconds of a single process, in time limits: what spins on when mirage is killed ends by itself
_PROCESSOR_LIMITS = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a command: `problem` is None for success; `output` is what it printed, without the middle when it is long."""

    problem: str | None
    output: str


def search_path() -> str:
    """The folders of $PATH that are absolute, in its form."""
    return os.pathsep.join(p for p in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(p))


def which(program: str) -> str | None:
    """The path of a program that `run` would find, or None."""
    return shutil.which(program, path=search_path())


def run(
    command: Sequence[str],
    folder: Path,
    timeout: float,
    cancel: threading.Event | None = None,
    scratch: Path | None = None,
) -> Outcome:
    """Run `command` in `folder`; compilers put their temporary files into `scratch` (default: `folder`).

    Compilers start compilers: the command gets a process group of its own, which is killed when the time is up or
    `cancel` is set. It has ended when its first process has: what that leaves behind is not waited for.
    """
    environment = os.environ | {"LC_ALL": "C", "TMPDIR": str(scratch or folder), "PATH": search_path()}
    try:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return Outcome(f"{command[0]} cannot be run: {error.strerror or error}", "")
    _limit(process, timeout)
    deadline = time.monotonic() + timeout
    stopped = stuck = ""
    assert process.stdout is not None
    with process.stdout as pipe:
        printed = _Printed(pipe.fileno())
        try:
            while process.poll() is None and not stopped:
                if not printed.wait(_POLL_SECONDS):
                    termination.over(process, _POLL_SECONDS)
                if cancel is not None and cancel.is_set():
                    stopped = "it was cancelled"
                elif time.monotonic() > deadline:
                    stopped = f"it took more than {timeout:g} seconds"
        except BaseException:
            _kill_group(process)
            raise
        if stopped:
            stuck = _kill_group(process)
        printed.rest()
    if stopped:
        return Outcome(f"{command[0]} was stopped: {stopped}{f'; {stuck}' if stuck else ''}", printed.text())
    return Outcome(_describe(command[0], process.returncode), printed.text())


class _Printed:
    """The beginning and the end of what comes out of a pipe."""

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe, self._open = pipe, True
        self._watch = select.poll()
        self._watch.register(pipe, select.POLLIN)
        self._first, self._last, self._between = bytearray(), bytearray(), 0

    def wait(self, seconds: float) -> bool:
        """Take what comes first within some seconds; False when nothing more can come."""
        if self._open and self._watch.poll(seconds * 1000):
            self._take()
        return self._open

    def rest(self) -> None:
        """Take what is there, without waiting for what others than the command may write."""
        while self._open and self._watch.poll(0):
            self._take()

    def text(self) -> str:
        """The output that came, the middle left out."""
        gap = f"\n[{self._between} bytes left out]\n".encode() if self._between else b""
        return (self._first + gap + self._last).decode(errors="replace")

    def _take(self) -> None:
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return
        self._open = bool(data)
        room = _KEPT - len(self._first)
        self._first += data[:room]
        self._last += data[room:]
        if len(self._last) > 2 * _KEPT:
            self._between += len(self._last) - _KEPT
            del self._last[:-_KEPT]


def _limit(process: subprocess.Popen[bytes], timeout: float) -> None:
    """Limit what one process of a command may compute."""
    seconds = int(timeout * _PROCESSOR_LIMITS) + 1
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it has ended, or the system has no such call
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (seconds, seconds))


def _kill_group(process: subprocess.Popen[bytes]) -> str:
    """Kill a command's processes; what there is to say where the first of them does not end."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return termination.awaited(process)


def _describe(program: str, code: int) -> str | None:
    if code < 0:
        return f"{program} was ended by signal {-code}" + (" (out of memory?)" if code == -signal.SIGKILL else "")
    return f"{program} ended with {code}" if code else None


def error_lines(output: str, limit: int = 5) -> list[str]:
    """The first lines of a compiler's output that tell of an error, else its last lines."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    marks = ("error", "undefined", "multiple definition", "cannot find")
    told = [line for line in lines if any(mark in line.lower() for mark in marks) and not line.startswith("collect2:")]
    return [_short(line) for line in (told[:limit] if told else lines[-limit:])]


def _short(line: str) -> str:
    return line if len(line) <= _LINE else f"{line[:_LINE]}..."
