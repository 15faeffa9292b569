"""Forked processes are as started ones: their surroundings, their ends, their time."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.processes import isolation
from mirage_cli.processes.isolation import Lost, each
from tests import forked


@pytest.fixture(params=["forked", "started"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    source = forked.Source(isolation.begun)
    if request.param == "forked":
        monkeypatch.setattr(isolation, "begun", source.begun)
    yield
    source.close()


def one(function: Any, *args: Any, **options: Any) -> Any:
    ((_, result),) = each(function, [args], 1, apart=True, **options)
    return result


def surroundings() -> list[Any]:
    limit = resource.getrlimit(resource.RLIMIT_CORE)[0]
    own = (os.getcwd(), os.environ["MIRAGE_FORKED"], os.environ["PYTHONSAFEPATH"], sys.path, limit)
    files = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if n in ("0", "1", "2")]
    return [*own, len(os.listdir("/proc/self/fd")), sorted(files)[0], files.count(files[-1])]


@pytest.mark.usefixtures("source")
def test_forked_processes_are_as_started_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIRAGE_FORKED", "so")
    folder, variable, safe, path, limit, files, nowhere, shown = one(surroundings)
    assert (folder, variable, safe, limit) == (str(tmp_path), "so", "1", 0)
    assert path == [place or str(tmp_path) for place in sys.path]
    assert files == 5 and nowhere == os.devnull and shown == 2  # with the connection and the folder that is read
    assert one(os.getpid) not in (os.getpid(), one(os.getpid))
    assert one(os._exit, 5) == Lost("its process ended with exit code 5")
    assert one(sys.exit, 6) == Lost("its process ended with exit code 6")
    assert one(signal.raise_signal, signal.SIGSEGV) == Lost("its process ended with SIGSEGV")
    assert one(os.abort) == Lost("its process ended with SIGABRT")
    assert one(time.sleep, 60, seconds=0.2) == Lost("it took longer than 0.2 s")
    assert one(bytearray, 1 << 40, max_memory=1 << 30) == Lost(isolation.TOO_MUCH)


def test_what_is_read_at_a_start_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    source = forked.Source(isolation.begun)
    monkeypatch.setattr(isolation, "begun", source.begun)
    assert one(eval, "__import__('sys').flags.optimize") == sys.flags.optimize
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    assert one(eval, "__import__('sys').flags.optimize") == 2
    source.close()
