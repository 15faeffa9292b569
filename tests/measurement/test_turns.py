"""Whoever times on a GPU has it alone; the others share it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from mirage_cli.measurement.turns import turn

FREE, SHARED, TAKEN = "free", "shared", "taken"


def state(folder: Path) -> str:
    """What another process would find."""
    with (folder / f"mirage-{os.geteuid()}-gpu3.lock").open("r") as file:
        for kind, name in ((fcntl.LOCK_EX, FREE), (fcntl.LOCK_SH, SHARED)):
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                return name
            except BlockingIOError:
                continue
        return TAKEN


def test_who_times_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with turn(3, alone=True):
        assert state(tmp_path) == TAKEN
    with turn(3, alone=False), turn(3, alone=False):
        assert state(tmp_path) == SHARED
    assert state(tmp_path) == FREE


def test_a_link_in_its_place_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"mirage-{os.geteuid()}-gpu3.lock").symlink_to(tmp_path / "other")
    with turn(3, alone=True):
        assert not (tmp_path / "other").exists()
