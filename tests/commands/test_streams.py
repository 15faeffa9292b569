"""Real processes: terminals, pipes, signals, standard streams that are closed."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirage_cli.main import CLOSED_PIPE
from tests.commands.conftest import PROGRAM, environment, process
from tests.optimized import sample

MODEL = sample("rmsnorm_linear_fp32")
DRY = ["optimize", str(MODEL), "--dry-run", "--target", "cpu", "--jobs", "1", "--no-cache"]
RED = "\x1b[31m"


def default_signals() -> None:
    """What a background process may have ignored, as a terminal's foreground process has it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def terminal() -> Iterator[tuple[int, Callable[[], str]]]:
    """(file descriptor of a new terminal, function that gives what was written to it and closes it)."""
    ours, theirs = pty.openpty()

    def written() -> str:
        os.close(theirs)
        data = b""
        try:
            while chunk := os.read(ours, 65536):
                data += chunk
        except OSError:  # the other end is closed
            pass
        return data.decode()

    try:
        yield theirs, written
    finally:
        os.close(ours)


def on_terminal(*arguments: str, **changes: str) -> tuple[int, str, str]:
    """(exit code, standard output, what the terminal on standard error shows)."""
    with terminal() as (device, written):
        child = subprocess.Popen(
            [*PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=device,
            env=environment(**{"TERM": "xterm-256color"} | changes),
        )
        shown = written()
        output, _ = child.communicate()
    return child.returncode, output.decode(), shown


def test_bars_are_shown_on_a_terminal() -> None:
    longer = [str(sample("gpt2_fp32")) if word == str(MODEL) else word for word in DRY]  # than between two pictures
    code, output, shown = on_terminal(*longer, "--json", NO_COLOR="1")
    assert code == 0
    assert json.loads(output)["fragments"]
    assert "search and prove" in shown
    assert re.search(r"\b(\d+)/\1\b", shown)
    assert "left" in shown
    assert "mappings" in shown and "candidates" in shown and "best" in shown, "what is being searched"
    assert "\x1b[3" not in shown, "colour in spite of NO_COLOR"


STAGES = r"\[ +[0-9.]+ s\] read \(1 step\)\r?\n\[ +[0-9.]+ s\] search and prove \(1 step\)\r?\n"


def test_a_terminal_without_a_cursor_shows_lines() -> None:
    code, _, shown = on_terminal(*DRY, TERM="dumb")
    assert code == 0 and re.fullmatch(STAGES, shown)


def test_quiet_shows_nothing() -> None:
    assert on_terminal(*DRY, "-q") == (0, "", "")


def test_a_line_for_each_stage_in_pipes() -> None:
    done = process(*DRY)
    assert done.returncode == 0 and re.fullmatch(STAGES, done.stderr)
    assert "\x1b" not in done.stdout
    assert process(*DRY, "--json").stderr == ""


def test_lines_with_verbose() -> None:
    done = process(*DRY, "-v")
    assert done.returncode == 0
    assert "mappings" in done.stderr and "best" in done.stderr
    assert "\r" not in done.stderr and "\x1b" not in done.stderr


def test_colour_is_for_terminals_without_no_color() -> None:
    assert RED in on_terminal("optimize", "--fore")[2]
    assert RED in on_terminal("optimize", "--fore", NO_COLOR="")[2]
    shown = on_terminal("optimize", "--fore", NO_COLOR="1")[2]
    assert shown.startswith("Error: No such option")
    assert "\x1b" not in shown
    assert "\x1b" not in process("optimize", "--fore").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["optimize", "--help"],
        ["optimize", "--print-config"],
        ["optimize", "none.onnx", "--json"],
    ],
)
def test_a_closed_pipe_ends_quietly(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = process(*arguments, stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (CLOSED_PIPE, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_standard_output_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        done = process("--help", stdout=full)
    assert done.returncode == 5
    assert done.stderr.startswith("Error: No space left on device\n")


def test_closed_streams_are_no_trouble() -> None:
    command = " ".join([*PROGRAM, "--version"])
    for closing in (">&-", "2>&-", "<&-", "<&- >&- 2>&-"):
        assert (
            subprocess.run(["sh", "-c", f"{command} {closing}"], stdout=subprocess.DEVNULL, check=False).returncode == 0
        )
    done = subprocess.run(
        ["sh", "-c", f"{' '.join(PROGRAM)} optimize - --dry-run <&-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (3, "Error: -: standard input is closed\n")


def test_a_terminal_is_no_model() -> None:
    with terminal() as (device, _):
        done = process("optimize", "-", "--dry-run", stdin=device)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: -: standard input is a terminal\n")


def waiting() -> subprocess.Popen[str]:
    """A run that waits for the rest of its standard input."""
    child = subprocess.Popen(
        [*PROGRAM, "optimize", "-", "--dry-run", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,  # noqa: PLW1509 - this test starts no threads
    )
    assert child.stdin is not None
    child.stdin.write(" " * 2**20)  # more than a pipe holds: when this returns, the child is reading
    child.stdin.flush()
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])  # SIGTERM: below
def test_interrupted(number: signal.Signals) -> None:
    with waiting() as child:
        child.send_signal(number)
        output, told = child.communicate()
    assert child.returncode == 130
    assert json.loads(output) == {"error": {"code": "interrupted", "message": "interrupted", "hint": ""}}
    assert "Traceback" not in told


COMPILER = """#!/bin/sh
case "$*" in
  *--version*|*probe*) exec g++ "$@" ;;
esac
touch {mark}
exec sleep 600
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_compiling_nothing_is_left(tmp_path: Path, number: signal.Signals) -> None:
    mark, compiler = tmp_path / "mark", tmp_path / "slow-g++"
    compiler.write_text(COMPILER.format(mark=mark))
    compiler.chmod(0o755)
    place = tmp_path / "place"
    place.mkdir()
    arguments = ["--target", "cpu", "--jobs", "2", "--no-cache", "--force"]
    with subprocess.Popen(
        [*PROGRAM, "optimize", str(MODEL), "-o", str(place / "out"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(CXX=str(compiler)),
        preexec_fn=default_signals,  # noqa: PLW1509 - this test starts no threads
        start_new_session=True,
    ) as child:
        while not mark.exists():  # until a compilation has begun
            assert child.poll() is None, child.communicate()
            time.sleep(0.05)
        assert sorted(p.suffix for p in place.iterdir()) == [".lock", ".part"]
        os.killpg(child.pid, number)
        output, told = child.communicate(timeout=60)
    assert (child.returncode, output, told.splitlines()[-1]) == (130, "", "Error: interrupted")
    assert list(place.iterdir()) == []
