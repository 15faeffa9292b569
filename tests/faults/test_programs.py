"""The short forms of the recorded runs: `tests/faults/injection.py` and `kills.py`."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import kills
from tests.faults.injection import ROOT
from tests.faults.state import litter

MODEL = ROOT / "samples" / "operators" / "rmsnorm_linear_fp32.onnx"  #: of one fragment
linux = pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and gcc")


@linux
@pytest.mark.parametrize(
    "options",
    [
        ["--situations", "import", "--every", "29", "--faults", "ENOSPC+,KILL"],
        ["--situations", "warm", "--every", "140", "--faults", "KILL", "--model", str(MODEL)],
    ],
)
def test_calls_that_fail(options: list[str]) -> None:
    command = [sys.executable, "-m", "tests.faults.injection", "--workers", "1", *options]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("; 0 problems\n")
    assert "KILL: killed" in done.stdout


@linux
def test_a_file_system_without_locks() -> None:
    command = [sys.executable, "-m", "tests.faults.surroundings", "--situations", "import", "--only", "no locks"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no locks: usage (1 calls failed)" in done.stdout and "its file system has no locks" in done.stdout


def test_imports_at_once() -> None:
    """Some of them are killed, and the cache is emptied beside them."""
    command = [sys.executable, "-m", "tests.faults.races", "--only", "imports", "--imports", "6"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("seed 0: 0 problems\n")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_run_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its processes, in the middle of compiling; what it had searched is taken from the cache."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    slow = tmp_path / "slow-g++"
    probes = 'case "$*" in --version|*probe.*) exec g++ "$@";; esac'
    slow.write_text(f"#!/bin/sh\n{probes}\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    place = kills.Place(tmp_path / "place", MODEL, 1)
    mark = tmp_path.name
    with place.start(mark) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if kills.PLANNED.search(line):
                break
        os.killpg(child.pid, signal.SIGKILL)
    assert not place.out.exists()
    for number in kills.processes(mark):  # the compiler, which has a group of its own
        os.kill(number, signal.SIGKILL)
    with place.start("", "--dry-run", "--json", stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        (fragment,) = json.loads(child.stdout.read())["fragments"]
    assert fragment["search"]["cached"] is True
    assert litter(place.cache, place.root / "state") == []


def test_moments_are_spread_over_phases() -> None:
    lines = [(1.0, "[ 1.0 s] read (1 step)"), (2.0, "[ 2.0 s] read: x"), (9.0, "[ 9.0 s] compile: y"), (9.5, "end")]
    drawn = kills.moments(lines, random.Random(0))
    found = [next(drawn) for _ in range(300)]
    counts = {phase: sum(m.phase == phase for m in found) for phase in ("start", "read", "compile")}
    assert counts == {"start": 100, "read": 100, "compile": 100}
    assert {m.lines for m in found if m.phase == "read"} == {1, 2}
    assert all(0 <= m.seconds <= 7 for m in found)
