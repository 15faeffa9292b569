"""Calls in processes of their own, results in the order of the calls.

The processes are started by hand rather than by `multiprocessing`, whose workers may have no children: a search may run in
one already. They end when their standard input does, so none outlives its parent.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from mirage_cli.processes import termination

T = TypeVar("T")
_COMMAND = "from mirage_cli.processes.workers import serve; serve()"


class Workers:
    """Up to `count` processes, started when first needed. With `count` 1 calls are made here."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._processes: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, end, self._processes)

    def map(
        self, function: Callable[..., T], jobs: Sequence[tuple[Any, ...]], done: Callable[[T], None] | None = None
    ) -> list[T]:
        """`function` of each job. Function and jobs must be importable and picklable; what a process does not deliver is
        computed here. `done` is told each result as it comes, one at a time."""

        def here(job: tuple[Any, ...]) -> T:
            result = function(*job)
            if done is not None:
                done(result)
            return result

        if self.count <= 1 or len(jobs) <= 1:
            return [here(job) for job in jobs]
        results: dict[int, T] = {}
        pending = list(range(len(jobs)))[::-1]
        lock = threading.Lock()

        def work(process: subprocess.Popen[bytes]) -> None:
            while True:
                with lock:
                    if not pending:
                        return
                    k = pending.pop()
                answer = _ask(process, (function, jobs[k]))
                if answer is None:
                    return
                with lock:
                    results[k] = answer[0]
                    if done is not None:
                        done(answer[0])

        threads = [
            threading.Thread(target=work, args=(p,), daemon=True) for p in self._ready(min(self.count, len(jobs)))
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return [results[k] if k in results else here(jobs[k]) for k in range(len(jobs))]

    def _ready(self, count: int) -> list[subprocess.Popen[bytes]]:
        dead = [p for p in self._processes if p.poll() is not None]
        self._processes[:] = [p for p in self._processes if p not in dead]
        end(dead)
        while len(self._processes) < count:
            self._processes.append(_start())
        return self._processes[:count]


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End processes and forget them."""
    for p in processes:
        p.kill()  # it has nothing to lose, and may be in the middle of a long call
        for stream in (p.stdin, p.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):  # what a dead process did not read
                stream.close()
    termination.awaited(*processes)
    processes.clear()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep a process that is started here from being interrupted before it can say that this is its parent's to handle: a
    terminal interrupts all processes of a program, and Python's start would print a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """What a process that was started so says when it has begun."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _start() -> subprocess.Popen[bytes]:
    # without the second, modules would be looked for in the working folder, which may be a downloaded one
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", _COMMAND]
    with uninterrupted():
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _ask(process: subprocess.Popen[bytes], call: Any) -> tuple[Any] | None:
    """The result of a call, or None when it raised or its process died."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(call, process.stdin)
        process.stdin.flush()
        answer: tuple[Any] | None = pickle.load(process.stdout)
    except (OSError, EOFError, ValueError, pickle.PickleError):  # ValueError: its streams are closed, the run is over
        process.kill()
        return None
    return answer


def _end_with(pipe: int) -> None:
    """End this process when nobody can write to a pipe any more: its parent has ended, however."""
    watch = select.poll()
    watch.register(pipe, 0)  # nothing but its end
    watch.poll()
    os._exit(1)


def serve() -> None:
    """What a process does: calls until its input ends. An interrupt is the parent's to handle."""
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else is to be printed between the answers
    ignore_interrupts()
    threading.Thread(target=_end_with, args=(calls.fileno(),), daemon=True).start()
    while True:
        try:
            function, job = pickle.load(calls)
        except EOFError:
            return
        try:
            answer = (function(*job),)
        except Exception:  # the parent makes the call itself and meets the error there
            answer = None
        pickle.dump(answer, answers)
        answers.flush()
