"""Calls in processes of their own: one that raises, crashes, takes too long or runs out of memory costs its own result only.

The processes are started by hand rather than by `multiprocessing`, whose workers may have no children: a search may run in
one already. They hear their calls on one socket and end with it, so none outlives its parent.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe, spawn
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from mirage_cli.errors import Crashed, MirageError, OutOfResources, OutOfTime
from mirage_cli.processes import COLLECTED, termination
from mirage_cli.processes.messages import received, send

T = TypeVar("T")
TOO_MUCH = "it needs more memory than --max-memory allows"


@dataclass(frozen=True, slots=True)
class Lost:
    """The stand-in for a result that a call did not deliver: the reason, and the error that says the same."""

    reason: str
    error: MirageError | None = field(default=None, compare=False)

    def raised(self) -> MirageError:
        """The error to raise where nobody can do without the result."""
        return self.error or MirageError(self.reason)


def attempt(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The result of a call, or Lost: errors of one item are no reason to end a run."""
    try:
        return function(*args)
    except MirageError as e:
        return Lost(str(e), e)
    except MemoryError:
        return Lost(TOO_MUCH, OutOfResources(TOO_MUCH))
    except OSError as e:
        named = f"{e.filename}: " if e.filename else ""
        return Lost(f"{named}{e.strerror or e}")
    except Exception as e:  # a defect of ours, reported with the item
        return Lost(f"internal error {type(e).__name__}: {e}")


# --- many calls -------------------------------------------------------------------------------------------------------
def each(
    function: Callable[..., Any],
    jobs: Sequence[Sequence[Any]],
    workers: int,
    max_memory: int = 0,
    apart: bool = False,
    told: Callable[[int, Any], None] | None = None,
    seconds: float = 0,
) -> Generator[tuple[int, Any], None, None]:
    """`Pool.each` in processes that end as soon as there is nothing left for them. With one worker and no `max_memory` the
    calls are made here, unless they have to be `apart`."""
    if max_memory == 0 and not apart and (workers <= 1 or len(jobs) <= 1):
        for k, args in enumerate(jobs):
            yield k, attempt(function, args if told is None else (*args, functools.partial(told, k)))
        return
    pool = Pool(workers, max_memory, seconds)
    for answer in pool.each(function, jobs, told):
        pool.close()
        yield answer


class Pool:
    """Up to `count` processes, begun when first needed and kept for later calls. `max_memory` is as in `limit_memory`; a call
    that takes longer than `seconds` (0: no limit) is ended with its process."""

    def __init__(self, count: int, max_memory: int = 0, seconds: float = 0) -> None:
        self._count, self._max_memory, self._seconds = max(count, 1), max_memory, seconds
        self._idle: list[_Worker] = []

    def each(
        self,
        function: Callable[..., Any],
        jobs: Sequence[Sequence[Any]],
        told: Callable[[int, Any], None] | None = None,
        seconds: float | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """(number of the job, its result or Lost) as jobs end; `seconds` in place of the pool's own.

        `function` and arguments must be importable and picklable. With `told`, which hears the number of a job and a message
        of it, every call gets one more argument: a function that sends a message. What a call says by `doing` is part of
        the reason when its process ends.
        """
        pending = list(enumerate(jobs))[::-1]
        running: dict[_Worker, int] = {}
        ended: list[tuple[int, Any]] = []
        try:
            self._begin(min(self._count, len(jobs)))
            while pending or running:
                while pending and len(running) < self._count:
                    number, args = pending.pop()
                    worker = self._idle.pop() if self._idle else _Worker(self._max_memory)
                    running[worker] = number
                    limit = self._seconds if seconds is None else seconds
                    worker.call(function, args, limit, told and functools.partial(told, number))
                yield from ended
                answers = _answers(list(running))
                ended = [(running.pop(worker), result) for worker, result in answers]
                self._idle += [worker for worker, _ in answers if not worker.connection.closed]
            yield from ended
        finally:
            termination.killed(*(worker.process for worker in running))

    def map(
        self, function: Callable[..., T], jobs: Sequence[tuple[Any, ...]], done: Callable[[T], None] = lambda _: None
    ) -> list[T]:
        """The results in the order of the jobs. What a process does not deliver is computed here, as all is with one process
        or job. `done` is told each result as it comes."""
        results: dict[int, T] = {}
        for k, result in self.each(function, jobs) if min(self._count, len(jobs)) > 1 else ():
            if not isinstance(result, Lost):
                results[k] = result
                done(result)
        for k, job in enumerate(jobs):
            if k not in results:
                results[k] = function(*job)
                done(results[k])
        return [results[k] for k in range(len(jobs))]

    def close(self) -> None:
        """Let the processes end that make no call."""
        while self._idle:
            self._idle.pop().end()

    def _begin(self, count: int) -> None:
        """Have so many processes start at once, before the first of them is waited for."""
        self._idle[:] = [worker for worker in self._idle if worker.process.poll() is None]
        self._idle += [_Worker(self._max_memory) for _ in range(count - len(self._idle))]


# --- an object --------------------------------------------------------------------------------------------------------
class Resident:
    """An object that lives in a process of its own: `maker(*args)` makes it there, when it is begun or first called, and
    again after a call that ended the process or took longer than its time; but not after one whose process does not end,
    which holds what it held."""

    def __init__(
        self, maker: Callable[..., Any], args: Sequence[Any], start_seconds: float, max_memory: int = 0
    ) -> None:
        self._made = (maker, tuple(args))
        self._start_seconds = start_seconds
        self._max_memory = max_memory
        self._worker: _Worker | None = None
        self._making = False
        self.stuck = ""  #: why there is no process any more

    def begin(self) -> None:
        """Let the object be made, without waiting for it."""
        if self._worker is None and not self.stuck:
            self._worker = _Worker(self._max_memory)
            self._make()

    def renew(self, args: Sequence[Any]) -> None:
        """Let another object take the place of this one, made of `args`, in the same process where there is one, without
        waiting for it."""
        self._made = (self._made[0], tuple(args))
        if self._making:  # of what nobody has waited for
            self.close()
        if self._worker is not None:
            self._make()
        self.begin()

    def _make(self) -> None:
        assert self._worker is not None
        self._worker.call(_make, self._made, self._start_seconds)
        self._making = True

    def call(self, method: str, args: Sequence[Any], seconds: float) -> Any:
        """The result of a method, or Lost: what it raised, how the process ended, or that it took longer than `seconds` (0: no
        limit)."""
        self.begin()
        if self._worker is None:
            return Lost(self.stuck)
        if self._making:
            self._making = False
            if isinstance(answer := self._answer(self._worker), Lost):
                self.close()
                return answer
        self._worker.call(_ask, (method, args), seconds)
        return self._answer(self._worker)

    def close(self, why: str = "") -> None:
        """End the process; with a reason for good."""
        if self._worker is not None:
            self.stuck = self._worker.kill()
            self._worker, self._making = None, False
        self.stuck = self.stuck or why

    def _answer(self, worker: _Worker) -> Any:
        while not (answers := _answers([worker])):
            pass
        if worker.connection.closed:
            self.close()
        return answers[0][1]


_HELD: list[Any] = []  #: of the process of a Resident: its object


def _make(maker: Callable[..., Any], args: Sequence[Any]) -> None:
    _HELD.clear()  # there may be no room for two
    _HELD.append(maker(*args))


def _ask(method: str, args: Sequence[Any]) -> Any:
    return getattr(_HELD[0], method)(*args)


# --- a process --------------------------------------------------------------------------------------------------------
_RESULT, _TOLD, _DOING = range(3)  #: what a process sends: the result of its call, a message of it, what it is doing
_GOING_ON = object()
_COMMAND = (
    "import sys; memory, *sys.path[:] = sys.argv[1:]; del sys.argv[1:]; "
    "from mirage_cli.processes import isolation; isolation.serve(isolation.channel(), int(memory))"
)


class _Worker:
    """A process that makes calls one at a time, which ends with this object."""

    def __init__(self, max_memory: int) -> None:
        self.connection, theirs = Pipe()
        with theirs, _uninterrupted():
            self.process = begun(theirs, max_memory)
        self._knows_main, self.stuck = False, ""
        self._killed = weakref.finalize(self, termination.killed, self.process)

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        seconds: float,
        told: Callable[[Any], None] | None = None,
    ) -> None:
        """Begin a call, which may take so long (0: no limit). Its end is among `_answers`."""
        self._seconds, self._until = seconds, time.monotonic() + seconds if seconds else math.inf
        self._told, self._doing = told, ""
        with contextlib.suppress(OSError):  # it has died, which its answer tells
            if not self._knows_main and "__main__" in (getattr(function, "__module__", ""), type(function).__module__):
                self._knows_main = True
                known = spawn.get_preparation_data("worker")
                send(self.connection, {name: known[name] for name in known if name != "authkey"})
            send(self.connection, (function, tuple(args), told is not None))

    def left(self) -> float:
        """Seconds left of the call's time; at least 0."""
        return max(0.0, self._until - time.monotonic())

    def take(self) -> Any:
        """Receive the next message: the result of the call, Lost, or _GOING_ON."""
        try:
            kind, content = received(self.connection)
        except (EOFError, OSError):
            return self._ended()
        if kind == _DOING:
            self._doing = content
        elif kind == _TOLD:
            assert self._told is not None
            self._told(content)
        return content if kind == _RESULT else _GOING_ON

    def late(self) -> Lost:
        """End the process, whose call takes longer than it may."""
        return self._lost(f"it took longer than {self._seconds:g} s", OutOfTime, self.kill())

    def kill(self) -> str:
        """End the process; what there is to say where it does not end."""
        self.stuck = self._killed() or self.stuck
        self.connection.close()
        return self.stuck

    def end(self) -> str:
        """Let the process end, which nobody asks any more; what there is to say where it does not."""
        with contextlib.suppress(OSError):  # it has ended
            send(self.connection, None)
            self.connection.poll(termination.SECONDS)
        termination.over(self.process, termination.SECONDS)
        return self.kill()

    def _ended(self) -> Lost:
        if stuck := self.end():
            return self._lost(stuck, Crashed)
        code = self.process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        guess = " (out of memory?)" if code == -signal.SIGKILL else ""
        return self._lost(f"its process ended with {how}{guess}", Crashed)

    def _lost(self, how: str, kind: type[MirageError], more: str = "") -> Lost:
        reason = (f"{how} while {self._doing}" if self._doing else how) + (f"; {more}" if more else "")
        return Lost(reason, kind(reason))


def _answers(workers: Sequence[_Worker]) -> list[tuple[_Worker, Any]]:
    """Those whose calls have ended, with the results, as soon as any of them has said something or had its time."""
    left = min(worker.left() for worker in workers)
    spoken = wait([worker.connection for worker in workers], None if left == math.inf else left)
    answers = [(w, w.take()) for w in workers if w.connection in spoken]
    answers += [(w, w.late()) for w in workers if w.connection not in spoken and not w.left()]
    return [(w, result) for w, result in answers if result is not _GOING_ON]


def begun(theirs: Connection, max_memory: int) -> subprocess.Popen[bytes]:
    """A new process that serves a connection. It is given that as its standard input, and no other open file but standard
    error, to which all that it prints goes; it looks for modules where this one does, not in the working folder, which may
    be a downloaded one."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = [folder or os.getcwd() for folder in sys.path]
    command = [sys.executable, *flags, "-c", _COMMAND, str(max_memory), *path]
    shown = subprocess.DEVNULL if sys.__stderr__ is None else 2
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    return subprocess.Popen(command, stdin=theirs.fileno(), stdout=shown, stderr=shown, env=environment)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Keep a process that is started here from being interrupted before it can say that this is its parent's to handle: a
    terminal interrupts all processes of a program, and Python's start would print a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the process ---------------------------------------------------------------------------------------------------
_PARENT: list[Connection] = []  #: of a worker: the connection on which it answers


def doing(text: str) -> None:
    """Say what is being done, as in "onnxruntime loaded model.onnx", so that it can be told should this process end at it.
    Does nothing in a process that is no worker."""
    if _PARENT:
        send(_PARENT[0], (_DOING, text))


def limit_memory(size: int) -> None:
    """Let this process, and those that it starts, allocate at most so many bytes (0: no limit); files that are mapped, as
    weights are, do not count. What needs more raises MemoryError."""
    if size:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


def channel() -> Connection:
    """The connection that a new process was given, out of the reach of what runs there: its input is empty from now on."""
    kept = os.dup(0)
    with open(os.devnull, "rb") as nowhere:
        os.dup2(nowhere.fileno(), 0)
    return Connection(kept)


def serve(connection: Connection, max_memory: int) -> None:
    """Run a worker's calls until it is told to end, or nobody asks any more. An interrupt is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with, args=(connection.fileno(),), daemon=True).start()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # no dumps of crashes
    limit_memory(max_memory)
    gc.set_threshold(*COLLECTED)
    _PARENT.append(connection)
    while call := _heard(connection):
        if isinstance(call, dict):  # where the main module is, in which a function lives
            spawn.prepare(call)
            continue
        function, args, telling = call
        send(connection, (_RESULT, attempt(function, (*args, _tell) if telling else args)))


def _tell(content: Any) -> None:
    send(_PARENT[0], (_TOLD, content))


def _heard(connection: Connection) -> Any:
    try:
        return received(connection)
    except (EOFError, OSError):
        return None


def _end_with(connection: int) -> None:
    """End this process when nobody holds the other end any more: its parent has ended, however."""
    watch = select.poll()
    watch.register(connection, 0)  # nothing but its end
    watch.poll()
    os._exit(1)
