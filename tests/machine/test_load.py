"""How busy a machine is, by counters that change while one waits."""

from __future__ import annotations

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
