"""Programs that answer line by line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mirage_cli.errors import CheckFailed
from mirage_cli.processes.conversation import conversation

DOUBLES = "import sys\nfor letter in iter(lambda: sys.stdin.read(1), ''): print(2 * letter, flush=True)"


def test_each_question_has_its_answer(tmp_path: Path) -> None:
    with conversation((sys.executable, "-c", DOUBLES), tmp_path, 20.0) as own:
        assert [own.ask(letter) for letter in "abc"] == ["aa", "bb", "cc"]


@pytest.mark.parametrize(
    ("program", "timeout", "reason"),
    [("raise SystemExit(3)", 20.0, "it ended"), ("import time; time.sleep(60)", 0.2, "no answer in 0.2 seconds")],
)
def test_a_program_without_an_answer_has_a_reason(tmp_path: Path, program: str, timeout: float, reason: str) -> None:
    with (
        conversation((sys.executable, "-c", program), tmp_path, timeout) as own,
        pytest.raises(CheckFailed, match=reason),
    ):
        own.ask("a")


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="cannot be run"), conversation(("./none",), tmp_path, 1.0):
        pass
