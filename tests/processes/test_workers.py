"""Calls in processes of their own: results in the order of the calls, whatever happens to a process."""

from __future__ import annotations

import os
import signal

import pytest

from mirage_cli.processes import workers
from mirage_cli.processes.workers import Workers


def test_results_in_the_order_of_the_calls() -> None:
    jobs = [(n, 2) for n in range(9)]
    workers = Workers(2)
    assert workers.map(pow, jobs) == Workers(1).map(pow, jobs) == [n * n for n in range(9)]
    assert len(workers._processes) == 2
    assert workers.map(divmod, [(7, 2), (9, 4)]) == [(3, 1), (2, 1)]


def test_errors_are_those_of_the_call() -> None:
    with pytest.raises(ZeroDivisionError):
        Workers(2).map(divmod, [(1, 1), (1, 0)])


def test_what_a_dead_process_does_not_deliver_is_computed_here() -> None:
    workers = Workers(2)
    workers.map(pow, [(1, 1), (2, 2)])
    for p in workers._processes:
        os.kill(p.pid, signal.SIGKILL)
    assert workers.map(pow, [(n, 2) for n in range(5)]) == [0, 1, 4, 9, 16]


def test_processes_end_with_their_owner() -> None:
    workers = Workers(2)
    workers.map(pow, [(1, 1), (2, 2)])
    processes = list(workers._processes)
    del workers
    assert [p.returncode for p in processes] == [-signal.SIGKILL] * 2


def test_a_process_whose_streams_are_closed_gives_nothing() -> None:
    """As when a run is interrupted while threads wait for their processes."""
    process = workers._start()
    workers.end([process])
    assert workers._ask(process, (len, ([],))) is None
