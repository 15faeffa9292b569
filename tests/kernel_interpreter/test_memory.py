"""Shared memory: accesses of one place that nothing puts in order."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_cli.kernel_interpreter.memory import Fault
from mirage_cli.kernel_interpreter.numbers import float64
from mirage_cli.kernel_interpreter.shared import Clocks, Shared

WARP = np.arange(32)
ONE = np.ones((1, 1))


def _memory() -> Shared:
    """64 bytes of a block of two warps, in the first four of which the first thread has put a 1."""
    clocks = Clocks(2)
    shared = Shared(float64(), 1, 64, clocks=clocks, warps=2)
    _store(shared, 0)
    clocks.meet([0, 1])
    return shared


def _store(shared: Shared, thread: int) -> None:
    one = np.ones(1, dtype=bool)
    shared.store(np.zeros(1, dtype=np.int64), 4, ONE, np.array([thread]), np.array([thread // 32]), one)


def _load(shared: Shared, threads: np.ndarray) -> np.ndarray:
    cells = np.zeros(len(threads), dtype=np.int64)
    return shared.load(cells, 4, threads, threads // 32, np.ones(len(threads), dtype=bool))


@pytest.mark.parametrize("writer", [0, 31, 32])
def test_what_a_warp_has_read_is_written_behind_a_barrier_only(writer: int) -> None:
    shared = _memory()
    assert (_load(shared, WARP) == 1).all()
    with pytest.raises(Fault, match="writes what several threads read with no barrier"):
        _store(shared, writer)
    shared.clocks.meet([0, 1])
    _store(shared, writer)


def test_a_thread_writes_what_it_has_read_itself() -> None:
    shared = _memory()
    _load(shared, WARP[5:6])
    _store(shared, 5)
    with pytest.raises(Fault, match="thread 6 comes to what thread 5 wrote"):
        _load(shared, WARP[6:7])


def test_a_number_is_read_as_what_was_written() -> None:
    """Half of it, or nothing, is a value that nobody knows."""
    shared = _memory()
    cells, all_ = np.array([0, 1, 4]), np.ones(3, dtype=bool)
    assert np.isnan(shared.load(cells, 2, WARP[:3], WARP[:3] // 32, all_)).all()
