"""How work on a GPU is timed and judged, on a device that follows a script; on a real one where there is one."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mirage_cli.backends.spec import OperatorSpec, TensorSpec
from mirage_cli.errors import CheckFailed, MirageError, Refused, ToolMissing
from mirage_cli.lax.dtypes import BF16, BOOL, F16, F32, I32
from mirage_cli.machine import devices
from mirage_cli.measurement import gpu_backends
from mirage_cli.measurement.gpu import COLD, MAX_SETS, Call, GpuTimer, Timed, honest, sets_for
from mirage_cli.measurement.gpu_entry import Judged, Sets, entry
from mirage_cli.measurement.timing import Effort
from tests.gpu_fake import STREAM, FakeBackend

#: samples of one graph each, no warm-up
PLAIN = Effort(runs=6, warm_up=1, warm_seconds=0.0, sample_seconds=0.0)


def contestant(device: FakeBackend, name: str, us: float) -> Call:
    return lambda k, stream: device.spend(us, name)


def test_a_time_is_that_of_one_call() -> None:
    device = FakeBackend()
    found = GpuTimer(backend=device).times({"a": contestant(device, "a", 4.0)}, 3, PLAIN)
    assert found["a"].samples == pytest.approx((4.0,) * 6)


def test_calls_take_all_sets_in_turn_on_the_timing_stream() -> None:
    device, seen = FakeBackend(), []

    def call(k: int, stream: int) -> None:
        seen.append((k, stream))
        device.spend(1.0)

    GpuTimer(backend=device).times({"a": call}, 3, PLAIN)
    assert seen[:6] == [(0, STREAM), (1, STREAM), (2, STREAM)] * 2


def test_contestants_are_replayed_in_turns() -> None:
    device = FakeBackend()
    GpuTimer(backend=device).times({n: contestant(device, n, 1.0) for n in "abc"}, 1, PLAIN)
    rounds = "".join(device.log[-18:])
    assert rounds == "abcbcacababcbcacab"


def test_short_work_is_repeated_within_the_graph() -> None:
    device = FakeBackend()
    effort = Effort(runs=2, warm_up=1, warm_seconds=0.0, sample_seconds=1e-3)
    prepared = GpuTimer(backend=device).prepare(contestant(device, "a", 10.0), 5, effort)
    assert prepared.calls == 100
    assert device.sample(prepared.graph) == pytest.approx(1000.0)


def test_isolated_calls_have_a_kernel_between_them_whose_time_is_left_out() -> None:
    device = FakeBackend()
    timer = GpuTimer(backend=device)
    found = timer.times({"a": contestant(device, "a", 4.0)}, 2, PLAIN, isolated=True)
    assert found["a"].samples == pytest.approx((4.0,) * 6)
    assert list(found) == ["a"]
    assert "a|a|" in "".join(device.log)


def test_sets_exceed_the_cache_within_limits() -> None:
    assert sets_for(1000, 10_000) * 1000 > COLD * 10_000
    assert sets_for(10**9, 10_000) == 2
    assert sets_for(0, 10**9) == MAX_SETS


# ---- kernels of ours -------------------------------------------------------------------------------------------------

CODE = """
#include <stdint.h>
#include <stddef.h>
long long mirage_ab_workspace(const int64_t* e) { return e[0] > 1000 ? -1 : 4; }
int mirage_ab(const void* const* in, void* const* out, void* workspace, const int64_t* e, void* stream) {
    if (stream != (void*)77) return 9;
    if (*(uint32_t*)workspace != 0xffffffffu) return 10;
    for (int64_t i = 0; i < e[0]; ++i) ((float*)out[0])[i] = 2.0f * ((const float*)in[0])[i];
    return 0;
}
"""
N = 50
SPEC = OperatorSpec("ab", "Twice_ab", (TensorSpec("x", F32, (N,)),), (TensorSpec("y", F32, (N,)),))


def symbolic() -> OperatorSpec:
    from mirage_cli.lax.extents import symbol

    n = symbol("n")
    return OperatorSpec("ab", "Twice_ab", (TensorSpec("x", F32, (n,)),), (TensorSpec("y", F32, (n,)),), ("n",))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("entry")
    (folder / "k.c").write_text(CODE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "libk.so", "k.c"], cwd=folder, check=True)
    return folder / "libk.so"


def test_an_entry_point_is_called_with_the_tensors_of_a_set(library: Path) -> None:
    device = FakeBackend()
    made = entry(device, library, symbolic(), [(N,)], 3, seed=1)
    GpuTimer(backend=device).run(made.call, 3)
    for k in range(3):
        assert np.array_equal(made.outputs[0].get(k), 2 * made.inputs[0].get(k))
    assert not np.array_equal(made.inputs[0].get(0), made.inputs[0].get(1))
    assert made.workspace is not None


def test_an_entry_point_says_what_it_refuses(library: Path) -> None:
    device = FakeBackend()
    with pytest.raises(Refused, match="refused these shapes"):
        entry(device, library, symbolic(), [(2000,)], 2, seed=1)
    other = OperatorSpec("cd", "Other_cd", SPEC.inputs, SPEC.outputs)
    with pytest.raises(Refused, match="no CUDA kernel"):
        entry(device, library, other, [(N,)], 2, seed=1)
    with pytest.raises(MirageError, match="CUDA error 9"):
        entry(device, library, symbolic(), [(N,)], 2, seed=1).call(0, STREAM + 1)


@pytest.mark.parametrize("dtype", [F16, BF16, F32, I32, BOOL], ids=str)
def test_sets_hold_what_is_put_and_tell_what_was_not_written(dtype: object) -> None:
    device = FakeBackend()
    sets = Sets(device, dtype, (3, 5), 4)  # type: ignore[arg-type]
    sets.poison()
    assert sets.unwritten() == 4 * 15
    values = np.arange(15).reshape(3, 5) % 2
    sets.put(2, values)
    assert np.array_equal(sets.get(2).astype(int), values)
    assert sets.unwritten() == 3 * 15
    assert sets.pointer(1) - sets.pointer(0) == 256 and sets.pointer(0) % 256 == 0


class Twice:
    """y = 2 x on the fake device; `spoil` is what goes wrong at a call, told by its number."""

    def __init__(self, spoil: Callable[[Twice, int, int], None] = lambda twice, k, count: None) -> None:
        self.device, self.spoil, self.count = FakeBackend(), spoil, 0
        self.x, self.y = Sets(self.device, F32, (N,), 3), Sets(self.device, F32, (N,), 3)
        self.x.draw(1)

        def wanted(k: int) -> list[tuple[np.ndarray, np.ndarray]]:
            x = self.x.get(k)
            return [(2 * x, 2 * x.astype(np.float64))]

        self.subject = Judged(self.call, [self.x], [self.y], wanted, [0, 2])

    def call(self, k: int, stream: int) -> None:
        self.count += 1
        self.device.spend(5.0)
        self.y.put(k, 2 * self.x.get(k))
        self.spoil(self, k, self.count)

    def honest(self) -> Timed:
        timer = GpuTimer(backend=self.device)
        peer = timer.prepare(contestant(self.device, "peer", 7.0), 3, PLAIN)
        return honest(timer, self.subject, 3, {"peer": peer}, PLAIN)


def test_a_right_kernel_is_timed_both_ways_beside_its_peers() -> None:
    found = Twice().honest()
    assert found.accuracy.passed and found.accuracy.rmse == 0.0
    assert found.chained.median == pytest.approx(5.0) and found.isolated.median == pytest.approx(5.0)
    assert {n: d.median for n, d in found.others.items()} == pytest.approx({"peer": 7.0})


def late(twice: Twice, k: int, count: int) -> None:
    if count > 30:
        twice.y.put(k, np.zeros(N))


def partial(twice: Twice, k: int, count: int) -> None:
    twice.device.fill(twice.y.memory, gpu_backends.POISON)


def input_changed(twice: Twice, k: int, count: int) -> None:
    twice.x.put(1, np.zeros(N))


def slightly_off(twice: Twice, k: int, count: int) -> None:
    twice.y.put(k, 2.001 * twice.x.get(k))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (slightly_off, "wrong answers before it was timed: rmse"),
        (partial, "before it was timed.*were not written"),
        (input_changed, "input 0 was changed"),
        (late, "wrong answers in the timed graph of"),
    ],
)
def test_a_wrong_kernel_has_no_time(spoil: Callable[[Twice, int, int], None], message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        Twice(spoil).honest()


def test_without_a_gpu_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "devices", lambda: [])
    with pytest.raises(ToolMissing, match="no NVIDIA GPU"):
        GpuTimer(0)


def test_without_torch_and_cupy_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "device", lambda number: None)

    for name in ("torch", "cupy"):
        monkeypatch.setitem(sys.modules, name, None)
    absent = r"needs torch or cupy: torch is needed .* is not installed; cupy is needed .* is not installed"
    with pytest.raises(ToolMissing, match=absent) as caught:
        GpuTimer(0)
    assert "pip install" in caught.value.hint


def test_what_a_framework_raises_becomes_an_error_of_ours() -> None:
    with pytest.raises(MirageError, match="fake failed: ValueError: invalid"):
        FakeBackend().run(lambda stream: int("invalid"))


# ---- a real device ---------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [gpu_backends.TorchBackend, gpu_backends.CupyBackend])
def test_a_copy_on_the_device(kind: type[gpu_backends.GpuBackend]) -> None:
    if not devices.devices():
        pytest.skip("no GPU")
    pytest.importorskip(kind.package)
    device = kind(0)  # type: ignore[call-arg]
    timer = GpuTimer(backend=device)  # type: ignore[arg-type]
    x, y = (Sets(device, BF16, (1 << 22,), 4) for _ in range(2))
    x.draw(1)
    runtime = ctypes.CDLL("libcudart.so")

    def call(k: int, stream: int) -> None:
        code = runtime.cudaMemcpyAsync(
            ctypes.c_void_p(y.pointer(k)),
            ctypes.c_void_p(x.pointer(k)),
            ctypes.c_size_t(x.size),
            3,
            ctypes.c_void_p(stream),
        )
        if code:
            raise MirageError(f"CUDA error {code}")

    subject = Judged(call, [x], [y], lambda k: [(x.get(k), x.get(k).astype(np.float64))], [0, 3])
    found = honest(timer, subject, 4, effort=Effort(seconds=0.1))
    assert 0.5 < found.chained.median < 1000.0 and 0.5 < found.isolated.median < 1000.0
