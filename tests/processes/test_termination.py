"""Processes that do not end when they are killed, as in a driver that does not answer: nobody waits for them without end.

SIGKILL is kept from real processes here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirage_cli.machine import devices
from mirage_cli.processes import programs, termination
from mirage_cli.processes.isolation import Lost, Pool, Resident, each
from tests.processes.test_isolation import Counter

DOES_NOT_END = r"process \d+ was killed and did not end: a driver or a file system does not answer"
pytestmark = pytest.mark.filterwarnings("ignore:process.* did not end.*:RuntimeWarning")


@pytest.fixture(autouse=True)
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Processes that were to be killed; they end behind the test."""
    kept: list[int] = []
    kill, killpg = os.kill, os.killpg

    def keep(number: int, sent: int) -> None:
        if sent == signal.SIGKILL:
            kept.append(number)
        else:
            kill(number, sent)

    monkeypatch.setattr(os, "kill", keep)
    monkeypatch.setattr(os, "killpg", keep)
    monkeypatch.setattr(termination, "SECONDS", 0.1)
    left: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(termination, "_left", left)
    yield kept
    for number in set(kept):
        for end in (kill, killpg):
            with contextlib.suppress(ProcessLookupError):
                end(number, signal.SIGKILL)
    for p in left:
        assert termination.over(p, 600.0)


def test_a_compiler(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match=f"{DOES_NOT_END}; not waited for any longer"):
        outcome = programs.run(["sh", "-c", "echo said; exec sleep 600"], tmp_path, 0.2)
    assert outcome.problem is not None
    said, _, why = outcome.problem.partition("; ")
    assert (said, outcome.output) == ("sh was stopped: it took more than 0.2 seconds", "said\n")
    assert [p.pid for p in termination._left] == [int(why.split()[1])]


def test_the_drivers_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU-1, H200, 580, 9.0, 1 MiB'\nexec sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(devices, "TIMEOUT", 0.2)
    assert devices.devices() == []
    assert len(termination._left) == 1


def test_a_call(unkillable: list[int]) -> None:
    ((_, found),) = each(time.sleep, [(600,)], 1, apart=True, seconds=0.1)
    assert isinstance(found, Lost)
    assert found.reason.startswith("it took longer than 0.1 s; process ")
    assert len(set(unkillable)) == len(termination._left) == 1


def test_an_object(unkillable: list[int]) -> None:
    """It is not made again, for its process holds what it held, such as a GPU."""
    resident = Resident(Counter, (3,), 60.0)
    assert resident.call("add", (1,), 60.0) == 4
    found = resident.call("wait", (), 0.1)
    assert found.reason == f"it took longer than 0.1 s; {resident.stuck}"
    assert resident.call("add", (1,), 60.0) == Lost(resident.stuck)
    resident.close()
    assert len(unkillable) == 1


def test_searches(unkillable: list[int]) -> None:
    """A call of one fails when those of others go on."""

    def fails(_: object) -> None:
        raise KeyboardInterrupt

    pool = Pool(3)
    with (
        pytest.warns(RuntimeWarning, match=r"processes \d+, \d+ were killed and did not end"),
        pytest.raises(KeyboardInterrupt),
    ):
        pool.map(time.sleep, [(600,), (600,), (0,)], fails)
    assert len(set(unkillable)) == 2


def test_a_process_is_told_of_once() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        with pytest.warns(RuntimeWarning):
            said = termination.awaited(child)
        termination.SECONDS = 600.0
        assert termination.awaited(child) == said
        child.communicate(b"\n")
    assert termination.awaited(child) == ""


SCRIPT = """
import os, time
from mirage_cli.processes import termination as ending
from mirage_cli.processes.isolation import each
os.kill = lambda number, sent: None
ending.SECONDS = 0.1
if __name__ == "__main__":
    (found,) = each(time.sleep, [(600,)], 1, apart=True, seconds=0.1)
    print(found[1].reason)
"""


def test_a_users_program_ends(tmp_path: Path) -> None:
    """At once, as a command does: no end of Python waits for what was left."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("it took longer than 0.1 s; process ")
    assert "Warning: process" in done.stderr
