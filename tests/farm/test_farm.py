"""A farm of real processes: the same results whatever its workers do, and refusals by name."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.errors import FarmLost, ToolMissing, UsageError
from mirage_cli.farm import certificates, client, offers
from mirage_cli.farm.client import Farm
from mirage_cli.files.output import digests
from mirage_cli.machine.devices import Device
from mirage_cli.optimization import story
from mirage_cli.options.options import Options
from mirage_cli.processes.jobs import Here, Kind
from tests.farm import kinds
from tests.farm.serve import GPU
from tests.optimized import sample

pytest.importorskip("distributed", reason="Dask is not installed")
ROOT = Path(__file__).parents[2]
SAMPLE = "rmsnorm_linear_fp32"


def begun(*command: str, **more: Any) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    return subprocess.Popen([sys.executable, *command], text=True, cwd=ROOT, env=environment, **more)


@contextlib.contextmanager
def local(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`mirage farm local`: its address and its process."""
    process = begun("-m", "mirage_cli", "farm", "local", "--port", "0", *options, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@contextlib.contextmanager
def worker(address: str, name: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = begun("-m", "tests.farm.serve", address, name, *words)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with local("--workers", "2") as (found, _):
        yield found


@pytest.fixture
def crew(address: str) -> Iterator[Farm]:
    with opened(address) as made:
        yield made


@contextlib.contextmanager
def opened(address: str, count: int = 1) -> Iterator[Farm]:
    made = Farm(address, None, Here(1)).open()
    try:
        await_workers(made, count)
        yield made
    finally:
        made.close()


def await_workers(crew: Farm, count: int) -> None:
    until = time.monotonic() + 60
    while len(crew._workers()) < count:
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE", 3.0)
    monkeypatch.setattr(client, "TICK", 0.2)


def results(crew: Farm, kind: Kind, *jobs: tuple[Any, ...]) -> dict[int, Any]:
    return dict(crew.each(kind, jobs))


# --- results ----------------------------------------------------------------------------------------------------------
def test_the_folder_is_that_of_a_local_run(address: str, crew: Farm, tmp_path: Path, one_isa: None) -> None:
    options = Options(target=("cpu",), force=True, seed=7, cache=str(tmp_path / "cache"))
    report = story.optimize(str(sample(SAMPLE)), tmp_path / "there", Options(**vars_of(options, scheduler=address)))
    story.optimize(str(sample(SAMPLE)), tmp_path / "here", Options(**vars_of(options, cache="")))
    assert digests(tmp_path / "there") == digests(tmp_path / "here")
    assert report.farm["here"] == 0 and not report.farm["problems"]
    assert sum(w["jobs"] for w in report.farm["workers"].values()) == 5  # a plan, three objects, a check


def vars_of(options: Options, **changed: Any) -> dict[str, Any]:
    return {name: getattr(options, name) for name in Options.__slots__} | changed


def test_what_does_not_come_back_right_is_made_here(crew: Farm) -> None:
    assert results(crew, kinds.SQUARE, (2,), (3,)) == {0: "4 there", 1: "9 there"}
    assert results(crew, kinds.ENDED, (2,)) == {0: "4 here"}
    assert results(crew, kinds.WRONG, (1,), (2,)) == {0: "1 there", 1: "4 here"}
    assert results(crew, kinds.NOBODY, (2,)) == {0: "4 here"}
    told = crew.summary()
    assert told["here"] == 3
    assert "its process ended with SIGSEGV" in told["problems"][0]
    assert "is not taken: 2 is no square of 2" in told["problems"][1]


def test_equal_jobs_of_two_runs_are_made_once(crew: Farm, address: str, tmp_path: Path) -> None:
    with opened(address) as other:
        found: list[Any] = []
        threads = [
            threading.Thread(
                target=lambda c=c: found.extend(c.each(kinds.COUNTED, [(3, str(tmp_path))], names=["same"]))
            )
            for c in (crew, other)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert found == [(0, "9 there")] * 2
    assert (tmp_path / "count").read_text() == "made\n"


# --- faults -----------------------------------------------------------------------------------------------------------
def held_by(folder: Path, name: str) -> int:
    """The process of the worker that has a job."""
    until = time.monotonic() + 60
    while not (folder / name).exists() or not (folder / name).read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    return int((folder / name).read_text())


def meanwhile(action: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def test_jobs_of_workers_that_are_killed_are_made_by_others_and_then_here(tmp_path: Path) -> None:
    with local("--workers", "2") as (address, _), opened(address, 2) as crew:
        first = meanwhile(lambda: os.kill(held_by(tmp_path, "held3"), signal.SIGKILL))
        assert results(crew, kinds.HELD, (3, str(tmp_path))) == {0: "9 there"}
        first.join()
        second = meanwhile(lambda: os.kill(held_by(tmp_path, "held4"), signal.SIGKILL))
        assert results(crew, kinds.HELD, (4, str(tmp_path))) == {0: "16 here"}
        second.join()


def test_a_scheduler_that_is_gone_ends_the_run_and_the_next_one_goes_on(tmp_path: Path, one_isa: None) -> None:
    out, cache = tmp_path / "out", tmp_path / "cache"
    command = [
        "-m",
        "mirage_cli",
        "optimize",
        str(sample(SAMPLE)),
        "-o",
        str(out),
        "--target",
        "cpu",
        "--force",
        "--json",
        "-v",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with local("--workers", "1") as (address, process):
        run = begun(*command, "--force", "--cache", str(cache), "--scheduler", address, **pipes)
        assert run.stderr is not None
        while "] compile (" not in run.stderr.readline():  # the plan is kept now
            assert run.poll() is None
        process.kill()
        said, _ = run.communicate(timeout=60)
        assert (run.returncode, json.loads(said)["error"]["code"]) == (4, "farm-lost")
        assert not out.exists()
    report = story.optimize(str(sample(SAMPLE)), out, Options(target=("cpu",), force=True, cache=str(cache)))
    assert report.fragments[0].search["cached"] and report.replaced


def test_a_gpu_that_hangs_is_left_and_another_measures(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        address, _ = stack.enter_context(local("--workers", "0"))
        for name in ("first", "second"):
            stack.enter_context(worker(address, name, "gpu"))
        crew = stack.enter_context(opened(address, 2))
        assert crew.devices() == [Device(0, "", "Test", "1", "9.0", "")]
        assert results(crew, kinds.HANGING, (3, str(tmp_path))) == {0: "9 there"}
        (problem,) = crew.summary()["problems"]
        assert "is not used any more: it took longer than 1 s" in problem
        assert len(crew._serving(offers.needed(True, (GPU,)))) == 1


def test_workers_that_dask_starts_are_the_farms(tmp_path: Path) -> None:
    words = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--preload", "mirage_cli.inspection.workers")
    with local("--workers", "0") as (address, _):
        process = begun("-m", "distributed.cli.dask_worker", address, *words, stderr=subprocess.DEVNULL)
        try:
            with opened(address) as crew:
                assert results(crew, kinds.SQUARE, (2,)) == {0: "4 there"}
        finally:
            process.terminate()
            process.wait(30)


# --- who takes part ---------------------------------------------------------------------------------------------------
def test_workers_of_other_versions_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE", 60.0)
    with local("--workers", "0") as (address, _), worker(address, "old", "version=0.0.1 (abc)"):
        with pytest.raises(ToolMissing, match=r"worker old is not used: mirage 0\.0\.1 \(abc\) in place of"):
            Farm(address, None, Here(1)).open()
        new = begun("-m", "mirage_cli", "farm", "worker", address, "--jobs", "1", stderr=subprocess.PIPE)
        _, said = new.communicate(timeout=60)
        assert new.returncode == 2
        assert "is a farm of other versions: mirage 0.0.1 (abc) in place of" in said


def test_connections_beyond_this_machine_ask_for_certificates(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="plain tcp is for this machine only"):
        Farm("tcp://10.0.0.1:8786", None, Here(1)).open()
    with pytest.raises(UsageError, match=r"farm\.key: No such file or directory, and tls://10\.0\.0\.1:8786 asks"):
        Farm("tls://10.0.0.1:8786", str(tmp_path), Here(1)).open()
    own, other = tmp_path / "own", tmp_path / "other"
    certificates.make(own), certificates.make(other)
    with pytest.raises(UsageError, match="is there already"):
        certificates.make(own)
    with local("--workers", "1", "--certificates", str(own)) as (address, _):
        assert address.startswith("tls://")
        with contextlib.closing(Farm(address, str(own), Here(1)).open()) as crew:
            await_workers(crew, 1)
            assert results(crew, kinds.SQUARE, (2,)) == {0: "4 there"}
        with pytest.raises(FarmLost):
            Farm(address, str(other), Here(1)).open()
        with pytest.raises(FarmLost):
            Farm(address.replace("tls", "tcp"), None, Here(1)).open()
    os.chmod(own / certificates.KEY, 0o644)
    with pytest.raises(UsageError, match="others can read it"):
        Farm("tls://10.0.0.1:8786", str(own), Here(1)).open()
