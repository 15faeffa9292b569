"""Jobs that have a whole device here: several at a time, which wait for it themselves."""

from __future__ import annotations

import threading
from typing import Any

from mirage_cli.errors import Refused
from mirage_cli.processes.isolation import Lost
from mirage_cli.processes.jobs import Here, Kind

met = threading.Barrier(2, timeout=20.0)
ended = threading.Event()


def meeting(number: int, told: Any = None) -> int:
    """Come back once another one is there."""
    met.wait()
    if told is not None:
        told(f"job {number}")
    if number == 3:
        raise Refused("number 3")
    return 10 * number


def until_stopped(number: int) -> int:
    if number == 1:
        return 1
    assert ended.wait(20.0)
    return number


def test_jobs_of_a_device_run_at_a_time() -> None:
    kind = Kind("m:K", meeting, meeting, lambda *_: None, gpu=True, at_a_time=2)
    said = list[tuple[int, str]]()
    found = dict(Here(4).each(kind, [(1,), (2,), (3,), (4,)], lambda k, text: said.append((k, text))))
    assert [found[k] for k in (0, 1, 3)] == [10, 20, 40]
    assert found[2] == Lost("number 3")
    assert sorted(said) == [(k, f"job {k + 1}") for k in range(4)]


def test_those_left_alone_are_stopped() -> None:
    stopped = list[int]()

    def stop(number: int) -> None:
        stopped.append(number)
        ended.set()

    kind = Kind("m:K", until_stopped, until_stopped, lambda *_: None, gpu=True, at_a_time=2, stop=stop)
    outcomes = Here(2).each(kind, [(1,), (2,)])
    assert next(outcomes) == (0, 1)
    outcomes.close()  # type: ignore[attr-defined]
    assert stopped == [1, 2]


def test_one_worker_makes_them_one_by_one() -> None:
    kind = Kind("m:K", lambda n: (n, threading.current_thread()), meeting, lambda *_: None, gpu=True, at_a_time=2)
    found = dict(Here(1).each(kind, [(1,), (2,)]))
    assert {thread for _, thread in found.values()} == {threading.current_thread()}
