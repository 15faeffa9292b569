"""How busy a machine is, by counters that change while one waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirage_cli.machine import load


@pytest.mark.parametrize(("after", "share"), [("cpu 100 0 100 900 0", 0.0), ("cpu 140 0 110 850 0", 0.5), ("", 0.0)])
def test_what_others_take(after: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = tmp_path / "stat"
    counters.write_text("cpu 100 0 100 800 0\ncpu0 1 2 3 4 5\n")
    monkeypatch.setattr(load, "COUNTERS", counters)
    monkeypatch.setattr(load.time, "sleep", lambda _: counters.write_text(after))
    assert load.busy() == pytest.approx(share)


def test_a_system_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "COUNTERS", tmp_path / "none")
    assert load.busy() == 0


def test_what_this_process_takes_is_not_what_others_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processors for a second: 1.5 of its seconds are taken, 0.5 of these by this process and its children."""
    counters, ticks = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    own = iter([(1.0, 0.0, 0.0, 0.5), (1.1, 0.1, 0.2, 0.6)])
    counters.write_text("cpu 0 0 0 0 0\n")
    monkeypatch.setattr(load, "COUNTERS", counters)
    monkeypatch.setattr(load.os, "times", lambda: next(own))
    others = load.others()
    counters.write_text(f"cpu {ticks} 0 {ticks // 2} {ticks // 2} 0\n")
    assert others() == pytest.approx(0.5)
