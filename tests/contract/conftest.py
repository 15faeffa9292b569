"""The installed command as a stranger has it: a program, its arguments, what it prints and its exit code.

`MIRAGE_COMMAND=/path/to/bin/mirage` tests another installation, such as a wheel's; by default that of this interpreter
with the modules of this folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.optimized import sample

ROOT = Path(__file__).resolve().parents[2]
NAME = "rmsnorm_linear_fp32"
ELSEWHERE = os.environ.get("MIRAGE_COMMAND", "")
PROGRAM = [ELSEWHERE] if ELSEWHERE else [sys.executable, "-m", "mirage_cli"]
PYTHON = str(Path(ELSEWHERE).with_name("python")) if ELSEWHERE else sys.executable
#: what the surroundings may have set
DROPPED = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "CI", "CXX", "PYTHONPATH", "MIRAGE_DEBUG")


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    output: str
    told: str

    def document(self) -> Any:
        """The one JSON document that is all of its standard output."""
        return json.loads(self.output)

    def error(self) -> dict[str, str]:
        """The error of a command with --json."""
        document = self.document()
        assert set(document) == {"error"}
        assert set(document["error"]) == {"code", "message", "hint"}
        assert self.told == ""
        error: dict[str, str] = document["error"]
        return error


Mirage = Callable[..., Done]


@pytest.fixture(scope="session")
def surroundings(cache: Path) -> dict[str, str]:
    """The environment of all programs here: a cache and a state folder of this test run."""
    kept = {name: value for name, value in os.environ.items() if name not in DROPPED}
    named = {"XDG_STATE_HOME": str(cache / "state"), "OPENBLAS_NUM_THREADS": "1"}
    return kept | named | ({} if ELSEWHERE else {"PYTHONPATH": str(ROOT)})


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stranger's folder."""
    return tmp_path_factory.mktemp("stranger")


@pytest.fixture(scope="session")
def run(surroundings: dict[str, str], place: Path) -> Callable[..., Done]:
    """`run(["program", ...])` in the stranger's folder; `data` is its standard input, `more` changes the environment."""

    def call(arguments: list[str], data: bytes = b"", **more: str) -> Done:
        done = subprocess.run(
            arguments, cwd=place, env=surroundings | more, input=data, capture_output=True, check=False, timeout=300
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    return call


@pytest.fixture(scope="session")
def mirage(run: Callable[..., Done]) -> Mirage:
    """`mirage("optimize", path, ...)`."""

    def call(*arguments: str | Path, **keywords: Any) -> Done:
        return run([*PROGRAM, *map(str, arguments)], **keywords)

    return call


@pytest.fixture(scope="session")
def program(run: Callable[..., Done]) -> Mirage:
    """`program(text)`: a Python program of the stranger's."""
    return lambda text: run([PYTHON, "-c", text])


@pytest.fixture(scope="session")
def made(mirage: Mirage, place: Path, cache: Path) -> Done:
    """The one run of `mirage optimize`, which writes the folder `out`."""
    (place / "model.onnx").write_bytes(sample(NAME).read_bytes())
    options = ["--target", "cpu", "--force", "--jobs", "1", "--cache", str(cache), "--json"]
    return mirage("optimize", "model.onnx", "-o", "out", *options)
