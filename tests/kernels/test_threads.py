"""Sessions and Python kernels called by several threads while others are replaced: the short form of samples/threads.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from samples import threads
from tests.optimized import Optimized, sample

OPERATOR = "rmsnorm_linear_fp32"


def calls_of(count: int) -> threads.Stop:
    return lambda _, calls: calls >= count


def test_sessions_and_kernels_in_many_threads(optimized: Optimized, tmp_path: Path) -> None:
    out = optimized(OPERATOR)
    callees = [threads.session_callee(sample(OPERATOR), out, tmp_path, "cpu"), threads.kernels_callee(out, "cpu")]
    found = threads.run(callees, 6, 2, calls_of(40), every=0.02)
    assert not found.problems and not found.different
    assert sum(found.calls.values()) == 6 * 40 and all(found.calls.values())
    assert found.made >= 2 * 2 + 2
    assert found.memory and "0 different" in "\n".join(found.lines())


def test_symbolic_sizes_change_from_call_to_call(tmp_path: Path) -> None:
    made = threads.DIMS
    assert len({tuple(sorted({**threads.DEFAULT_DIMS, **d}.items())) for d in made}) == len(made)


def test_wrong_and_failing_answers_are_found() -> None:
    count = iter(range(1000))

    def changing() -> threads.Call:
        return lambda _: [np.array([next(count) // 40])]

    def failing() -> threads.Call:
        calls: list[int] = []

        def call(k: int) -> Sequence[threads.Tensor]:
            calls.append(k)
            if len(calls) > 1:
                raise ValueError("no more")
            return [np.zeros(1)]

        return call

    found = threads.run([threads.Callee("changing", changing, 1)], 2, 1, calls_of(60), every=60)
    assert found.different["changing"] > 0 and found.failed()
    found = threads.run([threads.Callee("failing", failing, 1)], 1, 1, calls_of(5), every=60)
    assert found.problems == ["failing: ValueError: no more"] and found.failed()


@pytest.mark.parametrize("column", [1, 2, 3])
@pytest.mark.parametrize(("slope", "failed"), [(0, False), (1, True)])
def test_growing_memory_is_a_failure(column: int, slope: int, failed: bool) -> None:
    sizes = [[(200 + slope * t * (k == column)) * threads.MEBI for k in (1, 2, 3)] for t in range(120)]
    found = threads.Result(seconds=120.0, memory=[(float(t), a, b, c, t) for t, (a, b, c) in enumerate(sizes)])
    assert found.failed() == failed
    assert ("GROWS" in "".join(found.lines())) == failed
    assert found.grown(column)[2] == pytest.approx(60 * slope)


@pytest.mark.parametrize(("own", "failed"), [(0, False), (threads.MEBI, True)])
def test_what_originals_leave_too_is_no_growth(own: int, failed: bool) -> None:
    """Every session of a patched model leaves as much as one of an original, and `own` bytes more."""
    usual, base = 3 * threads.MEBI, 200 * threads.MEBI
    plain, patched = (
        threads.Result(seconds=120.0, memory=[(float(t), base, 0, base + n * (t // 2), t // 2) for t in range(120)])
        for n in (usual, usual + own)
    )
    patched.usual = {3: plain.left(3)}
    assert plain.left(3) == pytest.approx(usual) and patched.left(3) == pytest.approx(usual + own)
    assert plain.failed() and patched.failed() == failed
    assert f"without {usual >> 10} KiB for each of 59 sessions" in "".join(patched.lines())


def test_warming_up_is_no_growth() -> None:
    rows = [(float(t), min(t, 20) * 10 * threads.MEBI, 0, 0, t) for t in range(120)]
    assert not threads.Result(seconds=120.0, memory=rows).failed()
