"""Fixtures of all tests."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from mirage_cli.backends import toolchain
from mirage_cli.errors import ToolMissing
from mirage_cli.machine import load
from mirage_cli.processes import COLLECTED, isolation
from tests import forked
from tests.optimized import cache, cache_folder, copied, one_isa, optimized, own_cache, shared_folder

__all__ = ["cache", "copied", "one_isa", "optimized", "own_cache", "shared_folder"]

BEGUN = isolation.begun

# How loaded a machine is decides no test.
hypothesis.settings.register_profile("mirage", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("mirage")


def pytest_collection_finish() -> None:
    """Garbage is collected as often as in the program itself, and what was collected by pytest stays until the end: the
    collector, which timing calls, need not go through it each time."""
    gc.set_threshold(*COLLECTED)
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_state(shared_folder: Path) -> Iterator[None]:
    """Logs and the secret that seals kept results are this test run's own, beside its cache. Kernels run where that is tested
    (tests/kernel_proof), not for each plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRAGE_KERNEL_RUNS", "0")
        patch.setenv("MIRAGE_RATES", "file")  # nor is how fast it is
        patch.setattr(load, "COUNTERS", Path(os.devnull))  # how loaded the machine is decides nothing
        patch.setenv("XDG_STATE_HOME", str(cache_folder(shared_folder) / "state"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _forked(_own_state: None) -> Iterator[None]:
    """Calls in processes of their own fork these; `started` takes it back for a test."""
    if not hasattr(os, "pidfd_open"):
        yield
        return
    source = forked.Source(isolation.begun)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "begun", source.begun)
        yield
    source.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls in processes of their own start these."""
    monkeypatch.setattr(isolation, "begun", BEGUN)


@pytest.fixture(scope="session")
def cxx() -> toolchain.Toolchain:
    try:
        return toolchain.Toolchain(toolchain.find_cxx())
    except ToolMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def with_nvcc(cxx: toolchain.Toolchain) -> toolchain.Toolchain:
    try:
        return toolchain.Toolchain(cxx.cxx, toolchain.find_nvcc())
    except ToolMissing as missing:
        pytest.skip(str(missing))
