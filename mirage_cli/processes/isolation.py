"""Calls in worker processes of their own: one that raises, crashes or runs out of memory costs its own result only."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from mirage_cli.errors import Crashed, MirageError, OutOfResources, OutOfTime
from mirage_cli.processes import termination
from mirage_cli.processes.messages import received, send
from mirage_cli.processes.workers import ignore_interrupts, uninterrupted

TOO_MUCH = "it needs more memory than --max-memory allows"


@dataclass(frozen=True, slots=True)
class Lost:
    """What stands in the place of a result that a call did not deliver: the reason, and the error that says the same."""

    reason: str
    error: MirageError | None = field(default=None, compare=False)

    def raised(self) -> MirageError:
        """What to raise where nobody can do without the result."""
        return self.error or MirageError(self.reason)


def limit_memory(size: int) -> None:
    """Let this process, and those that it starts, allocate at most so many bytes (0: no limit); files that are mapped, as
    weights are, do not count. What needs more raises MemoryError."""
    if size:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


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


def each(
    function: Callable[..., Any],
    jobs: Sequence[Sequence[Any]],
    workers: int,
    max_memory: int = 0,
    apart: bool = False,
    told: Callable[[int, Any], None] | None = None,
    seconds: float = 0,
) -> Iterator[tuple[int, Any]]:
    """(number of the job, its result or Lost) as jobs end.

    With `told`, which hears the number of a job and a message of it, every call gets one more argument: a function that
    sends a message.

    `function` and arguments must be importable and picklable. With one worker and no `max_memory` (bytes of memory for each
    worker, see `limit_memory`) the calls are made here, unless they have to be `apart`. A call in a worker that takes longer
    than `seconds` (0: no limit) is ended with its process. What a call says by `doing` is part of the reason when its
    process ends.
    """
    if max_memory == 0 and not apart and (workers <= 1 or len(jobs) <= 1):
        for k, args in enumerate(jobs):
            yield k, attempt(function, args if told is None else (*args, functools.partial(told, k)))
        return
    pending = list(enumerate(jobs))[::-1]
    running: dict[Connection, _Worker] = {}
    try:
        for _ in range(min(max(workers, 1), len(jobs))):
            _Worker(function, max_memory, told is not None).start(pending.pop(), running)
        while running:
            spoken = wait(list(running), min(w.left(seconds) for w in running.values()) if seconds else None)
            late = [c for c, w in running.items() if seconds and c not in spoken and not w.left(seconds)]
            for ready in [*spoken, *late]:
                assert isinstance(ready, Connection)
                worker = running[ready]
                number, result = worker.ended(seconds) if ready in late else worker.result()
                if isinstance(result, _Doing):
                    continue
                if isinstance(result, _Message):
                    if told is not None:
                        told(number, result.content)
                    continue
                del running[ready]
                if pending:
                    alive = worker
                    if isinstance(result, _Died):
                        alive = _Worker(function, max_memory, told is not None)
                    alive.start(pending.pop(), running)
                else:
                    worker.end()
                yield number, result.lost if isinstance(result, _Died) else result
    finally:
        _kill(*running.values())


@dataclass(frozen=True, slots=True)
class _Died:
    lost: Lost


@dataclass(frozen=True, slots=True)
class _Message:
    content: Any


@dataclass(frozen=True, slots=True)
class _Doing:
    text: str


def doing(text: str) -> None:
    """Say what is being done, as in "onnxruntime loaded model.onnx", so that it can be told should this process end at it.
    Does nothing in a process that is no worker."""
    if _PARENT:
        send(_PARENT[0], _Doing(text))


_PARENT: list[Connection] = []  #: of a worker: the connection on which it answers


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
            self._worker = _Worker(_Host(), self._max_memory, False)
            self._worker.start((0, ("", self._made)), {})
            self._making = True

    def call(self, method: str, args: Sequence[Any], seconds: float) -> Any:
        """The result of a method, or Lost: what it raised, how the process ended, or that it took longer than `seconds` (0: no
        limit)."""
        self.begin()
        if self._worker is None:
            return Lost(self.stuck)
        if self._making:
            made = self._answer(self._start_seconds)
            self._making = False
            if isinstance(made, Lost):
                self.close()
                return made
        self._worker.start((0, (method, tuple(args))), {})
        return self._answer(seconds)

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self.stuck = _kill(self._worker)
            self._worker.connection.close()
            self._worker = None

    def _answer(self, seconds: float) -> Any:
        worker = self._worker
        assert worker is not None
        result: Any = _Doing("")
        while isinstance(result, _Doing):
            if worker.connection.poll(worker.left(seconds) if seconds else None):
                _, result = worker.result()
            else:
                self.close()
                result = worker.died(f"it took longer than {seconds:g} s", OutOfTime, self.stuck)
        if isinstance(result, _Died):
            self.close()
            return result.lost
        return result


class _Host:
    """What a resident's process calls: it holds the object."""

    def __init__(self) -> None:
        self.held: Any = None

    def __call__(self, method: str, args: tuple[Any, ...]) -> Any:
        if method:
            return getattr(self.held, method)(*args)
        maker, given = args
        self.held = maker(*given)
        return None


class _Worker:
    """A process that makes calls one at a time."""

    def __init__(self, function: Callable[..., Any], max_memory: int, telling: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_serve, args=(theirs, function, max_memory, telling), daemon=True
        )
        with _without_main(function), _safe_path(), uninterrupted():
            self.process.start()
        theirs.close()
        self.number = -1
        self.begun = 0.0
        self.doing = ""

    def start(self, job: tuple[int, Sequence[Any]], running: dict[Connection, _Worker]) -> None:
        self.number, self.begun, self.doing = job[0], time.monotonic(), ""
        running[self.connection] = self
        try:
            send(self.connection, job[1])
        except OSError:
            return  # it has died: reading its result tells

    def result(self) -> tuple[int, Any]:
        try:
            found = received(self.connection)
        except (EOFError, OSError):
            if stuck := self.end():
                return self.number, self.died(stuck, Crashed)
            code = self.process.exitcode or 0
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            guess = " (out of memory?)" if code == -signal.SIGKILL else ""
            return self.number, self.died(f"its process ended with {how}{guess}", Crashed)
        if isinstance(found, _Doing):
            self.doing = found.text
        return self.number, found

    def died(self, how: str, kind: type[MirageError], more: str = "") -> _Died:
        """What stands for the result of the call, at which the process ended so."""
        reason = (f"{how} while {self.doing}" if self.doing else how) + (f"; {more}" if more else "")
        return _Died(Lost(reason, kind(reason)))

    def left(self, seconds: float) -> float:
        """What is left of the time of the call."""
        return max(0.0, self.begun + seconds - time.monotonic())

    def ended(self, seconds: float) -> tuple[int, Any]:
        """End the process, whose call takes longer than it may."""
        stuck = _kill(self)
        return self.number, self.died(f"it took longer than {seconds:g} s", OutOfTime, stuck)

    def end(self) -> str:
        """Let the process end, which nobody asks any more; what there is to say where it does not."""
        self.connection.close()
        return "" if termination.over(self.process, termination.SECONDS) else _kill(self)


def _kill(*workers: _Worker) -> str:
    """Kill processes; what there is to say where one does not end. The end of Python does not wait for such a one."""
    for w in workers:
        w.process.kill()
    stuck = termination.awaited(*(w.process for w in workers))
    if stuck:
        multiprocessing.process._children.difference_update(w.process for w in workers)  # type: ignore[attr-defined]
    return stuck


@contextlib.contextmanager
def _without_main(function: Callable[..., Any]) -> Iterator[None]:
    """Keep a process that starts from importing the caller's main module, unless the function is in there: it would run a
    script that does not ask for `__name__ == "__main__"` from its start once more."""
    main = sys.modules["__main__"]
    if "__main__" in (getattr(function, "__module__", ""), type(function).__module__):
        yield
        return
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Keep a process that starts from looking for Python's own modules in the working folder, where anything may lie; it is
    told later where its parent looks."""
    name = "PYTHONSAFEPATH"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _end_with_parent() -> None:
    """End this process when its parent has ended, however: nobody wants its results."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _serve(connection: Connection, function: Callable[..., Any], max_memory: int, telling: bool) -> None:
    """What a worker does: calls until the other end closes, with messages in between where it is `telling`. An interrupt is
    the parent's to handle."""

    def tell(content: Any) -> None:
        send(connection, _Message(content))

    ignore_interrupts()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # daemons may have no children by multiprocessing's own rule; those of workers end with them all the same, see above
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # no dumps of crashes
    limit_memory(max_memory)
    _PARENT.append(connection)
    while True:
        try:
            args = received(connection)
        except (EOFError, OSError):
            return
        send(connection, attempt(function, (*args, tell) if telling else args))
