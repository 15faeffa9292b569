"""A fragment tuned as a job: real libraries, on a GPU that is made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.codegen.requests.passes import ALL
from mirage_cli.lax.dtypes import F16
from mirage_cli.planning.plan import PlanOptions, plan_fragment
from mirage_cli.processes.isolation import Resident
from mirage_cli.tuning import session
from mirage_cli.tuning.bench import BenchJob
from mirage_cli.tuning.cache import Measurement, Settled
from mirage_cli.tuning.candidates import THOROUGH
from mirage_cli.tuning.session import Bench, Beside, TuneJob, measured
from tests.codegen.programs import NAMED, program


class Made:
    """Stands in for the GPU: every library is there when it is asked for, and takes as long as its name has letters."""

    stuck = ""
    fronts: list[Path | None]

    def __init__(self, job: BenchJob, process: Resident) -> None:
        self.beside = lambda: None
        Made.fronts = []

    def begin(self) -> None:
        pass

    def start(self) -> str:
        return ""

    def answers(self, library: Path) -> str:
        return "" if library.is_file() else "wrong: no library"

    check = answers

    def time(self, libraries: Sequence[Path], samples: int, step: bool = False) -> list[Measurement]:
        if step:
            front = self.beside()
            assert front is None or cast(Path, front).is_file()
            Made.fronts.append(front)
        return [Measurement(5.0, 5.0, 5.0, samples) for _ in libraries]


@pytest.mark.nvcc
def test_the_kernel_in_front_is_there_for_the_second_round(
    with_nvcc: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_nvcc.nvcc is not None
    monkeypatch.setattr(session, "IsolatedBench", Made)
    p = program(NAMED["rms_linear"], F16)
    first, second = plan_fragment("ab", "norm", p, 3, PlanOptions({"cuda": ("sm_90a",)}, pool=2)).pool
    front = Beside("cd", p, second)
    pool = (("first", first), ("second", second))
    unread = cast(Any, None)  # the check, which the GPU is asked for
    job = TuneJob("ab", p, pool, {}, unread, "sm_90a", "sm_90a", ALL, Settled(2, 0.0), (), front)
    at = Bench(with_nvcc.nvcc, 2, None)
    outcome = measured(job, at)
    at.close()
    assert [t.result.samples for t in outcome.tuned.trials] == [THOROUGH] * 2
    assert [t.key for t in outcome.tuned.ranking] == ["first", "second"]
    (library,) = Made.fronts
    assert library is not None and library.parent.name == "beside"


def test_processes_are_handed_on_and_ended() -> None:
    at = Bench(cast(Any, None), 1, None)
    with at.process() as first, at.process() as second:
        assert first is not second
    with at.process() as again:
        assert again in (first, second)
        at.close("it was interrupted")
        assert again.call("ready", (), 1.0).reason == "it was interrupted"
    with at.process() as last:
        assert last.call("ready", (), 1.0).reason == "it was interrupted"
