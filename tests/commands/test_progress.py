"""How progress is shown: bars on a terminal, a line for each stage elsewhere, all lines with --verbose."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mirage_cli.commands import progress
from mirage_cli.commands.common import Voice
from mirage_cli.commands.progress import Bars, Lines, Stages, bars
from mirage_cli.search.progress import Standing


@contextmanager
def standard_error(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> Iterator[None]:
    """Standard error is a terminal, or a file."""
    ours, theirs = pty.openpty()
    with open(os.devnull, "w") as nowhere, os.fdopen(theirs, "w") as device, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", device if terminal else nowhere)
        patch.setenv("TERM", "xterm-256color")
        yield
    os.close(ours)


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_error(monkeypatch, True):
        check_terminal(monkeypatch)


def check_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress.on_terminal()
    with Voice().progress() as shown:
        assert isinstance(shown, Bars)
    with Voice(as_json=True).progress() as shown:
        assert isinstance(shown, Bars)
    with Voice(quiet=True).progress() as shown:
        assert shown is None
    with Voice(verbose=True).progress() as shown:
        assert isinstance(shown, Lines)
    monkeypatch.setenv("TERM", "dumb")
    assert not progress.on_terminal()
    with Voice().progress() as shown:
        assert isinstance(shown, Stages)


def test_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_error(monkeypatch, False):
        assert not progress.on_terminal()
        monkeypatch.setattr(sys, "stderr", None)
        assert not progress.on_terminal()
        with Voice().progress() as shown:
            assert isinstance(shown, Stages)
        with Voice(as_json=True).progress() as shown:
            assert shown is None


def test_long_stages_tell_of_a_step_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    clock = iter((0.0, 1.0, 1.0, 5.0, 12.0, 12.0, 15.0, 22.5, 22.5))
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    lines = Stages(told.append)
    lines.stage("read", 1)
    assert told == []  # an error in it stands alone
    lines.stage("compile", 4)
    for text in "abcd":
        lines.step(text)
    lines.search("id", "norm", standing(2, 40.0))
    first = ["[   1.00 s] read (1 step)", "[   1.00 s] compile (4 steps)"]
    assert told == [*first, "[  12.00 s] compile: b", "[  22.50 s] compile: d"]


def test_lines() -> None:
    told: list[str] = []
    lines = Lines(told.append)
    lines.stage("compile", 2)
    lines.step("a")
    lines.stage("read", 1)
    lines.step("b")
    assert [line.partition(" s] ")[2] for line in told] == [
        "compile (2 steps)",
        "compile: a",
        "read (1 step)",
        "read: b",
    ]


def standing(closed: int, best: float | None = None) -> Standing:
    return Standing(closed, 10, 1200, 3, best)


def test_lines_of_a_search() -> None:
    told: list[str] = []
    lines = Lines(told.append)
    lines.stage("search", 2)
    for closed, best in ((1, None), (2, 40.0), (3, 40.0), (4, 21.125)):
        lines.search("id", "norm", standing(closed, best))
    lines.search("id", "norm", None)
    assert [line.partition(" s] ")[2] for line in told[1:]] == [
        "search: norm: 2 of 10 mappings, 1,200 values, 3 candidates, best 40 us",
        "search: norm: 4 of 10 mappings, 1,200 values, 3 candidates, best 21.1 us",
    ]


def test_searches_are_parts_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_error(monkeypatch, False), bars() as shown:
        shown.search("a", "early", standing(1))
        shown.stage("search", 4)
        seen = []
        for change in (
            lambda: shown.search("a", "norm", standing(5)),
            lambda: shown.search("b", "mlp", standing(10, 3.5)),
            lambda: (shown.search("a", "norm", None), shown.step("norm x2: done")),
            lambda: (shown.search("c", "gone", None), shown.step("known")),
        ):
            change()
            (task,) = shown._display.tasks
            seen.append((round(task.completed, 6), task.fields["text"], shown._display.line))
        assert seen == [
            (0.45, "", "norm: 5 of 10 mappings, 1,200 values, 3 candidates"),
            (1.35, "", "mlp: 10 of 10 mappings, 1,200 values, 3 candidates, best 3.5 us"),
            (1.9, "norm x2: done", ""),
            (2.9, "known", ""),
        ]


def test_bars_finish_the_stage_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_error(monkeypatch, False), bars() as shown:
        shown.step("before any stage")
        shown.stage("compile", 3)
        shown.step("[bold]a[/bold]")
        assert [(t.description, t.completed, t.total) for t in shown._display.tasks] == [("compile", 1, 3)]
        shown.stage("read", 1)
        assert [(t.description, t.completed) for t in shown._display.tasks] == [("compile", 3), ("read", 0)]
