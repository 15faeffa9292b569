"""Running compilers: no shell, no input, output captured, a time limit that ends the whole process group.

Programs are looked for in the absolute folders of $PATH only: what lies beside a model is no compiler, though `.` be in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended: `problem` is None for success; `output` is all that it printed."""

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
    `cancel` is set.
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
    deadline = time.monotonic() + timeout
    stopped = None
    with process:
        try:
            while True:
                try:
                    output, _ = process.communicate(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if stopped is None and cancel is not None and cancel.is_set():
                        stopped = "it was cancelled"
                    elif stopped is None and time.monotonic() > deadline:
                        stopped = f"it took more than {timeout:g} seconds"
                    if stopped is not None:
                        _kill_group(process)
        except BaseException:
            _kill_group(process)
            raise
    text = output.decode(errors="replace")
    if stopped is not None:
        return Outcome(f"{command[0]} was stopped: {stopped}", text)
    return Outcome(_describe(command[0], process.returncode), text)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _describe(program: str, code: int) -> str | None:
    if code < 0:
        return f"{program} was ended by signal {-code}" + (" (out of memory?)" if code == -signal.SIGKILL else "")
    return f"{program} ended with {code}" if code else None


def error_lines(output: str, limit: int = 5) -> list[str]:
    """The first lines of a compiler's output that tell of an error, else its last lines."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    marks = ("error", "undefined", "multiple definition", "cannot find")
    told = [line for line in lines if any(mark in line.lower() for mark in marks) and not line.startswith("collect2:")]
    return told[:limit] if told else lines[-limit:]
