"""An output folder with OpenCL kernels in use: on arrays of pyopencl, in onnxruntime, in `bench`, `verify` and `doctor`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_cli as mi
from mirage_cli.benchmark import benchmark
from mirage_cli.benchmark.options import BenchOptions
from mirage_cli.errors import UsageError, WrongTensor
from mirage_cli.inspection import doctor
from mirage_cli.machine import opencl
from mirage_cli.options.options import Options
from mirage_cli.verification.findings import VerifyOptions
from mirage_cli.verification.story import verify_folder
from tests.optimized import anew, sample

pytestmark = pytest.mark.opencl
pytest.importorskip("pyopencl")
SESSION = """
import ctypes, sys
import numpy as np, onnxruntime
from mirage_cli.machine import opencl
opencl.package("this test")
folder, runs = sys.argv[1], int(sys.argv[2])
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(f"{folder}/libmirage.so")
random = np.random.default_rng(0)
inputs = {n: random.standard_normal(s).astype(np.float32) for n, s in (("x", (5, 48)), ("w", (48, 40)))}
plain = onnxruntime.InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"]).run(None, inputs)[0]
session = onnxruntime.InferenceSession(f"{folder}/model.onnx", options, providers=["CPUExecutionProvider"])
for _ in range(runs):
    np.testing.assert_allclose(session.run(None, inputs)[0], plain, rtol=1e-5, atol=1e-4)
counts = (ctypes.c_uint64 * 4)()
ctypes.CDLL(f"{folder}/libmirage.so").mirage_opencl_counts(counts)
print(*counts)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    out = tmp_path_factory.mktemp("opencl") / "out"
    options = Options(target=("opencl",), force=True, jobs=1, cache=str(cache))
    report = anew(str(sample("rmsnorm_linear_fp32")), out, options)
    assert [sorted(f.schedule) for f in report.fragments] == [["cpu", "opencl"]]
    return out


@pytest.fixture(scope="module")
def queue() -> Any:
    cl = opencl.package("tests")
    return cl.CommandQueue(cl.Context([opencl.device("0:0")]))


def arrays(kernel: Any, queue: Any) -> tuple[list[Any], list[Any]]:
    random = np.random.default_rng(1)
    own = [random.standard_normal(t.dims).astype(np.float32) for t in kernel.spec.inputs]
    return own, [opencl.package("tests").array.to_device(queue, a) for a in own]


def test_called_on_arrays(folder: Path, queue: Any) -> None:
    kernel = mi.load_kernel(folder)
    assert kernel.has("opencl") and kernel.has("cpu") and not kernel.has("cuda")
    own, there = arrays(kernel, queue)
    wanted, found = kernel(*own), kernel(*there)
    np.testing.assert_allclose(found.get(), wanted, rtol=1e-5, atol=1e-5)
    found.fill(0.0)
    assert kernel(*there, out=found) is found
    np.testing.assert_allclose(found.get(), wanted, rtol=1e-5, atol=1e-5)


def test_arrays_that_do_not_fit(folder: Path, queue: Any) -> None:
    kernel = mi.load_kernel(folder)
    own, there = arrays(kernel, queue)
    whole = opencl.package("tests").array.empty(queue, 48 * 48, np.float32)
    with pytest.raises(WrongTensor, match="multiple of 16"):
        kernel(whole[1:241].reshape(5, 48), there[1])
    with pytest.raises(WrongTensor, match="no queue"):
        kernel(there[0].with_queue(None), there[1])
    with pytest.raises(WrongTensor, match="share one framework"):
        kernel(there[0], own[1])
    with pytest.raises(WrongTensor, match="shares memory with 'x'"):
        kernel(whole[:240].reshape(5, 48), there[1], out=whole[40:240].reshape(5, 40))
    inside = kernel(whole[:240].reshape(5, 48), there[1], out=whole[240:440].reshape(5, 40))
    assert inside.get().shape == (5, 40)


def in_session(folder: Path, runs: int, device: str | None) -> subprocess.CompletedProcess[str]:
    surroundings = {k: v for k, v in os.environ.items() if k != opencl.DEVICE}
    surroundings |= {} if device is None else {opencl.DEVICE: device}
    command = [sys.executable, "-c", SESSION, str(folder), str(runs)]
    return subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("device", "least", "most"), [("0:0", 6, 6), ("off", 0, 0), (None, 3, 6)])
def test_behind_the_provider_of_the_cpu(folder: Path, device: str | None, least: int, most: int) -> None:
    done = in_session(folder, 6, device)
    assert done.returncode == 0, done.stderr
    calls, to, back, shared = map(int, done.stdout.split())
    assert least <= calls <= most
    assert to + back + shared == calls * 4 * (5 * 48 + 48 * 40 + 5 * 40)


def test_a_named_device_has_to_be_there(folder: Path) -> None:
    done = in_session(folder, 1, "7:0")
    assert done.returncode != 0 and "there is no device 7:0" in done.stderr


def test_timed_by_events(folder: Path) -> None:
    report = benchmark.bench_folder(folder, BenchOptions(opencl="0:0", seconds=0.05, only=("norm_linear",)))
    assert not report.wrong and report.settings["provider"] == "opencl"
    times = {e.name: e.us for e in report.fragments[0].comparison.entries}
    assert set(times) == {"original", "mirage", "kernel"} and all(
        t is not None and t.median > 0 for t in times.values()
    )
    with pytest.raises(UsageError, match="no OpenCL device '9:9'"):
        benchmark.bench_folder(folder, BenchOptions(opencl="9:9"))
    with pytest.raises(UsageError, match="exclude each other"):
        benchmark.bench_folder(folder, BenchOptions(opencl="0:0", cpu=True))


def test_verified(folder: Path) -> None:
    found = verify_folder(folder, VerifyOptions())
    assert found.passed, found.text()


def test_listed() -> None:
    item = doctor._opencl()
    assert item.ok and item.found.startswith("0:0: ") and "local memory" in item.found
