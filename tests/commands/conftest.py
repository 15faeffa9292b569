"""Running commands: in this process through click's runner, and as real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mirage_cli.main import cli

Run = Callable[..., Result]
PROGRAM = [sys.executable, "-m", "mirage_cli"]


def state_folder(tmp_path: Path) -> Path:
    """Where logs and the secret of kept results of the test with this folder are: beside it."""
    return tmp_path.with_name(f"{tmp_path.name}-state")


@pytest.fixture(autouse=True)
def _private_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of these tests end here, and nothing that the surroundings set changes what is tested."""
    monkeypatch.setenv("XDG_STATE_HOME", str(state_folder(tmp_path)))
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "CXX", "CI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run() -> Run:
    """`run("optimize", path, ...)`: the result of a command in this process; `input` is its standard input."""

    def call(*args: str | Path, input: bytes = b"", **kwargs: Any) -> Result:
        return CliRunner().invoke(cli, [str(a) for a in args], input=input, **kwargs)

    return call


def process(*args: str | Path, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    kwargs = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | kwargs
    return subprocess.run([*PROGRAM, *map(str, args)], text=True, check=False, timeout=120, **kwargs)


def error_of(result: Result) -> dict[str, str]:
    """The error that a command with --json printed: the only thing on standard output, nothing beside it."""
    document = json.loads(result.stdout)
    assert set(document) == {"error"}
    assert set(document["error"]) == {"code", "message", "hint"}
    assert result.stderr == ""
    error: dict[str, str] = document["error"]
    return error


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with changes."""
    return dict(os.environ) | changes
