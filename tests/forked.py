"""Processes of `isolation` without their start: forked from one that has imported what such processes import.

A start takes 0.3 to 1.5 s of processor time, and a test of `optimize` has five. Tests of the processes themselves
(tests/processes, tests/faults, tests/security) start them, as all programs that tests run do; so do calls with a limit of
memory, with another path of modules, or with another environment of what reads it when it is imported.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mirage_cli.processes import isolation

Begun = Callable[[Connection, int], "subprocess.Popen[bytes]"]
ROOT = Path(__file__).resolve().parents[1]
#: what calls of `isolation` import
IMPORTED = (
    "onnxscript.optimizer",
    "mirage_cli.checks.kernel_check",
    "mirage_cli.checks.model_runs",
    "mirage_cli.measurement.contestant",
    "mirage_cli.optimization.pipeline",
    "mirage_cli.verification.recheck",
)
#: variables that are read when a process starts or a package is imported
READ = ("LD_", "MALLOC_", "OMP_", "OPENBLAS_", "ORT_", "PYTHON")
_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from tests import forked; forked.serve(int(sys.argv[1]))"
_LONGEST = 1 << 17  # bytes of a message


class Source:
    """The process that is forked from, begun when it is first needed. `real` starts a process where that will not do."""

    def __init__(self, real: Begun) -> None:
        self._real, self._lock, self._owner = real, threading.Lock(), os.getpid()
        self._path, self._surroundings = _path(), _surroundings()
        self._environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # threads are not forked
        self._socket: socket.socket | None = None

    def _begin(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                number = theirs.fileno()
                command = [sys.executable, "-c", _PROGRAM, str(number), str(ROOT), *self._path]
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[number], env=self._environment, cwd=ROOT
                )
        return self._socket

    def begun(self, theirs: Connection, max_memory: int) -> subprocess.Popen[bytes]:
        """As `isolation.begun`."""
        changed = (self._path, self._surroundings, self._owner) != (_path(), _surroundings(), os.getpid())
        if max_memory or changed or sys.__stderr__ is None:
            return self._real(theirs, max_memory)
        limits = {name: resource.getrlimit(name) for name in (resource.RLIMIT_DATA, resource.RLIMIT_NOFILE)}
        environment = dict(os.environ) | {"PYTHONSAFEPATH": "1"}
        order = json.dumps([os.getcwd(), environment, list(limits.items())]).encode()
        with self._lock:
            asked = self._begin()
            socket.send_fds(asked, [order], [theirs.fileno(), 2])
            pid = json.loads(asked.recv(_LONGEST))
        return Forked(pid, self.status)

    def status(self, pid: int) -> int | None:
        """How a process has ended: the exit code, or the signal as a negative number; None where it has not."""
        with self._lock:
            asked = self._begin()
            asked.send(json.dumps(pid).encode())
            status: int | None = json.loads(asked.recv(_LONGEST) or b"-9")
        return status

    def close(self) -> None:
        """End it."""
        if self._socket is not None:
            self._socket.close()
            self._process.wait()


class Forked(subprocess.Popen[bytes]):
    """A process that another one has forked."""

    def __init__(self, pid: int, status: Callable[[int], int | None]) -> None:
        self.pid, self.args, self._status = pid, ["forked"], status
        self.returncode: int | None = None  # type: ignore[assignment]
        self.stdin = self.stdout = self.stderr = None
        self._child_created = False  # by this process
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """The return code, or None."""
        if self.returncode is None:
            try:
                self.returncode = self._status(self.pid)
            except OSError:  # the other process has ended, with all that it forked
                self.returncode = -signal.SIGKILL
            if self.returncode is not None:
                os.close(self._end)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The return code. Raises TimeoutExpired."""
        if self.poll() is None:
            watch = select.poll()
            watch.register(self._end, select.POLLIN)
            watch.poll(None if timeout is None else timeout * 1000)
        if (code := self.poll()) is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal where it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def __del__(self, *_: Any) -> None:
        if self.returncode is None:
            os.close(self._end)


def _path() -> list[str]:
    return [folder or os.getcwd() for folder in sys.path]


def _surroundings() -> list[tuple[str, str]]:
    return sorted((k, v) for k, v in os.environ.items() if k.startswith(READ))


# --- in the process that is forked from -------------------------------------------------------------------------------
def serve(number: int) -> None:
    """Fork as long as anybody asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTED:
        importlib.import_module(name)
    del sys.path[0]  # of this module
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1
    with socket.socket(fileno=number) as asked:
        while True:
            message, files, _, _ = socket.recv_fds(asked, _LONGEST, 2)
            if not message:
                return
            order: Any = json.loads(message)
            if isinstance(order, int):
                pid, status = os.waitpid(order, os.WNOHANG)
                asked.send(json.dumps(os.waitstatus_to_exitcode(status) if pid else None).encode())
                continue
            if pid := os.fork():
                asked.send(json.dumps(pid).encode())
                for file in files:
                    os.close(file)
                continue
            asked.close()
            break
    _begin(files, *order)
    isolation.serve(isolation.channel(), 0)


def _begin(
    files: list[int], folder: str, environment: dict[str, str], limits: list[tuple[int, tuple[int, int]]]
) -> None:
    """The surroundings of a process that `isolation.begun` starts."""
    connection, shown = files
    for file, place in ((connection, 0), (shown, 1), (shown, 2)):
        os.dup2(file, place)
    for file in files:
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = []
    for name, limit in limits:
        resource.setrlimit(name, tuple(limit))
