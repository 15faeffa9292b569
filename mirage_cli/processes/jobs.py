"""Jobs: calls whose results a run needs, by kind, and the crews that make them: the processes of this machine, or a farm's
workers.

A job is made in a process of its own wherever it is made, and its result is the same.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from mirage_cli.processes import isolation

Job = Sequence[Any]  #: the arguments of a call


def _nothing(*_: Any) -> tuple[str, ...]:
    return ()


def _alike(*args: Any) -> tuple[Any, ...]:
    return args


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job. `address` ("module:NAME") is where another machine finds it.

    `function(*args)` makes a job here. Elsewhere `packed(*args)`, which can be pickled, is sent, `elsewhere(*packed)`
    makes a JSON document of it there, and `read(document, args)` the result: it raises ValueError or MirageError for what
    `function` would not have returned. `needs` names what a worker has to offer, such as compilers. A job of a `gpu`
    occupies a whole device; here `at_a_time` of them may run, which wait for the device themselves, until `stop(*args)` ends
    them. One that is a `program` only waits for a compiler: it has no process of its own here, and is
    given an event that is set to stop it. With `heard`, jobs that are listened to have one more argument, a function that
    takes a message; elsewhere messages are JSON documents, of which (and the job) `heard` makes what `function` would have
    said, or raises ValueError.
    """

    address: str
    function: Callable[..., Any]
    elsewhere: Callable[..., Any]
    read: Callable[[Any, Job], Any]
    packed: Callable[..., Job] = _alike
    needs: Callable[..., tuple[str, ...]] = _nothing
    gpu: bool = False
    at_a_time: int = 1
    stop: Callable[..., Any] = _nothing
    program: bool = False
    heard: Callable[[Any, Job], Any] | None = None
    seconds: float = 0  #: that a job may take elsewhere; 0: no limit

    @property
    def name(self) -> str:
        """What reports call it."""
        return self.address.rpartition(":")[2].lower()


class Done(TypedDict):
    """What a worker did: jobs, and the seconds that they took."""

    jobs: int
    seconds: float


class Summary(TypedDict, total=False):
    """Who did what: the scheduler's address, workers by name, jobs that were made here for want of one, and what went
    wrong."""

    scheduler: str
    workers: dict[str, Done]
    here: int
    problems: list[str]


class Crew(Protocol):
    """Those who make the jobs of a run."""

    @property
    def workers(self) -> int:
        """How many jobs are made at a time."""

    def each(
        self,
        kind: Kind,
        jobs: Sequence[Job],
        told: Callable[[int, Any], None] | None = None,
        apart: bool = False,
        names: Sequence[str] = (),
    ) -> Iterator[tuple[int, Any]]:
        """(number of the job, its result or Lost) as jobs end. `told` hears the number of a job and a message of it;
        `apart` is as in `isolation.each`. Jobs of equal `names`, which say all that results depend on, are made once at a
        time by all runs together; an empty name is no other's."""

    def devices(self) -> Sequence[Any]:
        """The kinds of GPU that a farm's workers offer (`machine.devices.Device`), numbered."""

    def greeting(self) -> str:
        """Who is there, in a line; empty where it is this machine alone."""

    def summary(self) -> Summary:
        """Who did what, for the report; empty where all was done here."""

    def close(self) -> None:
        """Let go of whoever is held."""


@dataclass(frozen=True, slots=True)
class Here:
    """The processes of this machine: `workers` at a time, each with `max_memory` (as in `isolation.limit_memory`)."""

    workers: int = 1
    max_memory: int = 0

    def each(
        self,
        kind: Kind,
        jobs: Sequence[Job],
        told: Callable[[int, Any], None] | None = None,
        apart: bool = False,
        names: Sequence[str] = (),
    ) -> Iterator[tuple[int, Any]]:
        """As `Crew.each`; the order of names is that of nobody else here."""
        if kind.program:
            return _programs(kind, jobs, self.workers)
        if kind.gpu and min(kind.at_a_time, self.workers, len(jobs)) > 1:
            return _threads(kind, jobs, min(kind.at_a_time, self.workers), told)
        return isolation.each(
            kind.function,
            jobs,
            1 if kind.gpu else self.workers,
            self.max_memory if apart or not kind.gpu else 0,
            apart,
            told,
        )

    def devices(self) -> Sequence[Any]:
        """None: those of this machine have numbers of their own."""
        return ()

    def greeting(self) -> str:
        """Nothing."""
        return ""

    def summary(self) -> Summary:
        """Nothing."""
        return Summary()

    def close(self) -> None:
        """Nothing."""


def _threads(
    kind: Kind, jobs: Sequence[Job], count: int, told: Callable[[int, Any], None] | None
) -> Iterator[tuple[int, Any]]:
    """`count` jobs at a time in threads of this process, which wait for processes of their own."""
    with ThreadPoolExecutor(count) as pool:
        try:
            calls = [(*args, functools.partial(told, k)) if told else args for k, args in enumerate(jobs)]
            futures = {pool.submit(isolation.attempt, kind.function, args): k for k, args in enumerate(calls)}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for args in jobs:
                kind.stop(*args)
            raise


def _programs(kind: Kind, jobs: Sequence[Job], workers: int) -> Iterator[tuple[int, Any]]:
    stop = threading.Event()
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        try:
            futures = {pool.submit(kind.function, *args, stop): k for k, args in enumerate(jobs)}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
