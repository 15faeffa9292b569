"""Samples optimized once for a whole test run: `optimized("rmsnorm_linear_fp32")` is an output folder to read, not to write.

Workers of one run share the folders and the objects compiled on the way (`MIRAGE_TEST_CACHE` keeps them between runs).
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
import pytest

from mirage_cli.backends import cpu
from mirage_cli.files import result_store as kept
from mirage_cli.optimization import run_cache, story
from mirage_cli.options.options import Options
from mirage_cli.report.report import Report

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
Optimized = Callable[[str], Path]


def sample(name: str) -> Path:
    """The file of a sample, a model's or an operator's."""
    return next(p for folder in ("models", "operators") if (p := SAMPLES / folder / f"{name}.onnx").exists())


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this test run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def cache(shared_folder: Path) -> Path:
    """The cache folder of this test run's `optimize` calls."""
    return cache_folder(shared_folder)


def cache_folder(shared: Path) -> Path:
    """The cache folder of a test run with this shared folder."""
    kept = os.environ.get("MIRAGE_TEST_CACHE")
    return Path(kept) if kept else shared / "mirage-cache"


@pytest.fixture
def own_cache(cache: Path, tmp_path: Path) -> Path:
    """A cache of one test, which may make parts fail: results of its own beside the compiled objects of the test run."""
    (cache / "objects").mkdir(mode=0o700, parents=True, exist_ok=True)
    own = tmp_path / "own-cache"
    own.mkdir()
    share_objects(cache)
    (own / "objects").symlink_to(cache / "objects")
    return own


def share_objects(cache: Path) -> None:
    """Let a test with a folder of state of its own use the objects that the test run compiles."""
    own = Path(platformdirs.user_state_dir("mirage", appauthor=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(cache / "state"))
        kept.secret(kept.PROGRAMS_SECRET)
    own.mkdir(parents=True, exist_ok=True)
    if own != cache / "state" / "mirage":
        shutil.copy(cache / "state" / "mirage" / kept.PROGRAMS_SECRET, own)


def best_isa() -> str:
    """The newest instruction set for which kernels are made and that this machine has."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return "base"
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags:
        return "avx512"
    return "avx2" if {"avx2", "fma", "f16c"} <= flags else "base"


@contextmanager
def for_one_isa() -> Iterator[None]:
    """Kernels are compiled for this machine's best instruction set only, in a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "isas", lambda: (best_isa(),))
        yield


@pytest.fixture
def one_isa() -> Iterator[None]:
    """A whole test `for_one_isa`."""
    with for_one_isa():
        yield


@pytest.fixture(scope="session")
def optimized(shared_folder: Path, cache: Path) -> Optimized:
    """Samples optimized by force for the CPU, each once for all workers (and each choice of instruction sets); whole models
    for the best one."""

    def folder(name: str) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            if sample(name).parent.name == "models":
                patch.setattr(cpu, "isas", lambda: (best_isa(),))
            out = shared_folder / "-".join(("optimized", *cpu.isas(), name))
            return once(out, lambda: sample(name), cache)

    return folder


def once(out: Path, model: Callable[[], Path], cache: Path) -> Path:
    """A model's output folder, which the first worker that asks for it makes."""
    with out.with_name(f"{out.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            with pytest.MonkeyPatch.context() as patch:  # whichever test asks first, with a state of its own or not
                patch.setenv("XDG_STATE_HOME", str(cache / "state"))
                anew(str(model()), out, Options(target=("cpu",), force=True, jobs=1, cache=str(cache)))
    return out


def anew(model: str, out: Path, options: Options) -> Report:
    """`optimize` without the answers of earlier runs, whose names do not tell of what tests change in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_cache, "find", lambda *_: None)
        return story.optimize(model, out, options)


@pytest.fixture
def copied(optimized: Optimized, tmp_path: Path) -> Optimized:
    """The same as copies that a test may change."""

    def folder(name: str) -> Path:
        return Path(shutil.copytree(optimized(name), tmp_path / name))

    return folder
