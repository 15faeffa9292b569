"""Kernels called on tensors of several libraries: what is taken, what is refused, whose memory and stream is used."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import mirage_cli as mi
from mirage_cli.backends.spec import OperatorSpec, TensorSpec
from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.errors import MirageError, ModelError, Refused, UsageError, WrongTensor
from mirage_cli.kernels import tensors
from mirage_cli.kernels.kernel import MAX_PLANS, Kernel, load_kernel
from mirage_cli.lax.dtypes import F32
from tests.optimized import Optimized

from .conftest import random
from .kernels import AFFINE, BATCH, NEGATE_BF16, PICKY, REVERSE, WHICH


class Foreign:
    """A tensor of some other framework."""

    def __init__(self, array: np.ndarray[Any, Any], device: int = 1) -> None:
        self.array = array
        self.device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)


# --- on the host ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [None, 3])
def test_numpy(library: Path, threads: int | None) -> None:
    x = random(7, 4)
    assert np.array_equal(Kernel(library, AFFINE, threads)(x), 2 * x + 1)
    x = random(200, 3)
    reverse = Kernel(library, REVERSE, threads)
    for _ in range(2):
        y, total = reverse(x, np.zeros((10, 5), np.int64))
        assert np.array_equal(y, x[::-1].reshape(100, 6))
        assert total.shape == ()
        assert total == 200


def test_no_symbols_bfloat16_empty(library: Path) -> None:
    assert Kernel(library, WHICH)(random(1)).shape == (2,)
    x = random(3, 4).astype(ml_dtypes.bfloat16)
    assert (Kernel(library, NEGATE_BF16)(x) == -x).all()
    assert Kernel(library, AFFINE)(random(0, 4)).shape == (0, 4)


def test_ways_to_call(library: Path) -> None:
    kernel, x = Kernel(library, AFFINE), random(3, 4)
    wanted = 2 * x + 1
    out = np.zeros((3, 4), np.float32)
    assert np.array_equal(kernel(inputs=[x]), wanted)
    (found,) = kernel.run([x])
    assert np.array_equal(found, wanted)
    for given in (out, [out], (out,)):
        out[:] = 0
        assert kernel(x, out=given) is out
        assert np.array_equal(out, wanted)
    assert kernel(x) is not kernel(x)
    with pytest.raises(UsageError, match=r"one by one or as inputs=\[...\], not both"):
        kernel(x, inputs=[x])
    assert repr(kernel) == "<affine_a0(x: f32[batch, 4]) -> y: f32[batch, 4]>"


def test_what_follows_from_the_shapes_is_computed_once(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(library, AFFINE)
    planned: list[Any] = []
    plan = Kernel._plan
    monkeypatch.setattr(Kernel, "_plan", lambda self, *given: planned.append(given) or plan(self, *given))
    for rows in (3, 3, 5, 3, 5, 5):
        x = random(rows, 4)
        assert np.array_equal(kernel(x), 2 * x + 1)
    assert len(planned) == 2


def test_few_shapes_are_remembered(library: Path) -> None:
    kernel = Kernel(library, AFFINE)
    for rows in range(MAX_PLANS + 3):
        kernel(np.zeros((rows, 4), np.float32))
    assert len(kernel._plans) == 3


def test_several_threads_at_once(library: Path) -> None:
    kernel = Kernel(library, AFFINE)
    wrong: list[int] = []

    def calls(number: int) -> None:
        for k in range(200):
            x = np.full((1 + (number + k) % 5, 4), number + k, np.float32)
            if not np.array_equal(kernel(x), 2 * x + 1):
                wrong.append(number)

    threads = [threading.Thread(target=calls, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_dlpack(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(7, 4)
    assert np.array_equal(Kernel(library, AFFINE)(Foreign(x)), 2 * x + 1)
    with pytest.raises(Refused, match="DLPack device 7"):
        Kernel(library, AFFINE)(Foreign(x, 7))
    with pytest.raises(Refused, match="list is not an array"):
        Kernel(library, AFFINE)([1.0])
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MirageError, match="cupy is needed"):
        Kernel(library, AFFINE)(Foreign(x, 2))


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (np.zeros((3, 4)), "input 'x' has elements float64, expected float32"),
        (np.zeros((3, 4), ">f4"), "input 'x' is not dense"),
        (np.zeros((3, 4), np.complex64), "input 'x' has elements complex64, expected float32"),
        (np.zeros((4, 3), np.float32).T, "input 'x' is not dense"),
        (np.zeros((6, 4), np.float32)[::2], "input 'x' is not dense"),
        (np.zeros((3, 5), np.float32), r"input 0 'x' has shape \[3, 5\], expected \[batch, 4\] with batch = 3"),
        (np.zeros(4, np.float32), r"input 0 'x' has shape \[4\], expected \[batch, 4\]"),
    ],
)
def test_inputs_that_do_not_fit(library: Path, x: Any, reason: str) -> None:
    kernel = Kernel(library, AFFINE)
    kernel(np.zeros((3, 4), np.float32))
    for _ in range(2):  # what is refused is not remembered as fitting
        with pytest.raises(WrongTensor, match=reason) as caught:
            kernel(x)
        assert caught.value.exit_code == 2


def test_outputs_that_do_not_fit(library: Path) -> None:
    kernel, x = Kernel(library, AFFINE), random(3, 4)
    memory = np.zeros((6, 4), np.float32)
    fixed = np.zeros((3, 4), np.float32)
    fixed.flags.writeable = False
    for out, reason in (
        (np.zeros((3, 4)), "output 'y' has elements float64, expected float32"),
        (np.zeros((2, 4), np.float32), r"output 'y' has shape \[2, 4\], expected \[3, 4\]"),
        (memory[::2], "output 'y' is not dense"),
        (fixed, "output 'y' cannot be written"),
        (Foreign(memory[:3]), "output 'y' is of type Foreign, expected numpy"),
        ([fixed, fixed], "2 outputs, expected 1"),
        (x, "output 'y' shares memory with 'x'"),
    ):
        for _ in range(2):
            with pytest.raises(WrongTensor, match=reason):
                kernel(x, out=out)
    with pytest.raises(Refused, match="shares memory with 'x'"):
        kernel(memory[1:4], out=memory[3:6])
    assert kernel(memory[:3], out=memory[3:6]) is not None
    y, total = np.zeros((2, 6), np.float32), np.zeros((), np.int64)
    both = Kernel(library, REVERSE)(random(4, 3), np.zeros((2, 5), np.int64), out=[y, total])
    assert both[0] is y
    assert total == 4
    inside = np.zeros(8, np.int64)
    with pytest.raises(Refused, match="output 'total' shares memory with 'y'"):
        Kernel(library, REVERSE)(
            random(4, 3),
            np.zeros((2, 5), np.int64),
            out=[inside[:6].view(np.float32).reshape(2, 6), inside[2:3].reshape(())],
        )


def test_other_failures(library: Path) -> None:
    with pytest.raises(Refused, match="inputs must share one framework and device, found no inputs"):
        Kernel(library, AFFINE)()
    with pytest.raises(Refused, match="inputs must share one framework and device, found list, numpy on cpu"):
        Kernel(library, REVERSE)(random(4, 3), [1])
    with pytest.raises(Refused, match="2 inputs, expected 1"):
        Kernel(library, AFFINE)(random(4, 4), random(4, 4))
    with pytest.raises(MirageError, match="picky_d3: the kernel ended with error 2"):
        Kernel(library, PICKY)(random(9))
    kernel = Kernel(library, AFFINE)
    assert kernel.has("cpu")
    assert not kernel.has("cuda")


# --- torch on the host ------------------------------------------------------------------------------------------------
@pytest.mark.torch
def test_torch_on_the_host(library: Path) -> None:
    torch = pytest.importorskip("torch")
    kernel, x = Kernel(library, AFFINE), torch.randn(3, 4)
    y = kernel(x)
    assert isinstance(y, torch.Tensor)
    assert torch.equal(y, 2 * x + 1)
    assert kernel(x, out=y) is y
    assert torch.equal(Kernel(library, NEGATE_BF16)(x.bfloat16()), -x.bfloat16())
    parameter = torch.nn.Parameter(x)
    assert torch.equal(kernel(parameter), 2 * x + 1)
    rows = torch.randn(200, 3)
    y, _ = Kernel(library, REVERSE)(rows, torch.zeros(10, 5, dtype=torch.int64))
    assert torch.equal(y, rows.flip(0).reshape(100, 6))
    with pytest.raises(Refused, match="input 'x' is not dense"):
        kernel(torch.randn(4, 4).T)
    with pytest.raises(Refused, match="has elements float64, expected float32"):
        kernel(x.double())
    with pytest.raises(Refused, match="found numpy on cpu, torch on cpu"):
        Kernel(library, REVERSE)(rows, np.zeros((10, 5), np.int64))
    with pytest.raises(Refused, match="tensors on meta are not supported"):
        kernel(torch.empty(3, 4, device="meta"))


# --- a device, played by the host ---------------------------------------------------------------------------------------
@dataclass
class Memory:
    """What `cupy.ndarray.data` tells."""

    ptr: int
    device_id: int


class Played:
    """A module that looks like cupy; its devices are in host memory."""

    def __init__(self) -> None:
        played, self.device, self.entered, self.made = self, 0, [], 0

        class Device:
            def __init__(self, id: int) -> None:
                self.id = id

            def __enter__(self) -> None:
                self.before, played.device = played.device, self.id
                played.entered.append(self.id)

            def __exit__(self, *_: object) -> None:
                played.device = self.before

        class ndarray:
            def __init__(self, shape: Any, dtype: Any, shift: int = 0) -> None:
                played.made += 1
                size = int(np.prod(shape)) * np.dtype(dtype).itemsize
                self.memory = np.zeros(size + 64, np.uint8)
                start = -self.memory.ctypes.data % 16 + shift
                self.host = self.memory[start : start + size].view(dtype).reshape(shape)
                self.data = Memory(self.host.ctypes.data, played.device)
                self.shape, self.dtype, self.flags = self.host.shape, self.host.dtype, self.host.flags

        ndarray.__module__ = "cupy._core.core"
        self.ndarray = ndarray
        stream = types.SimpleNamespace(ptr=4711)
        runtime = types.SimpleNamespace(getDevice=lambda: played.device)
        self.cuda = types.SimpleNamespace(Device=Device, runtime=runtime, get_current_stream=lambda: stream)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    played = Played()
    monkeypatch.setitem(sys.modules, "cupy", played)
    monkeypatch.setattr(tensors, "_FRAMEWORKS", dict(tensors._FRAMEWORKS))
    with contextlib.suppress(KeyError):
        del tensors._FRAMEWORKS[played.ndarray]
    yield played


#: y = x + the stream's number, by way of a workspace
ADD = OperatorSpec(
    "f5", "add_f5", (TensorSpec("x", F32, (BATCH,)),), (TensorSpec("y", F32, (BATCH,)),), ("batch",), True
)
ADD_SOURCE = """#include <stdint.h>
int64_t mirage_f5_workspace(const int64_t* extents) { return extents[0] > 6 ? -1 : extents[0] * 4; }
int mirage_f5(const void* const* in, void* const* out, void* workspace, const int64_t* extents, void* stream) {
    float* scratch = (float*)workspace;
    if ((uintptr_t)workspace % 16 != 0) return 7;
    for (int64_t i = 0; i < extents[0]; ++i) scratch[i] = (float)(uintptr_t)stream;
    for (int64_t i = 0; i < extents[0]; ++i) ((float*)out[0])[i] = ((const float*)in[0])[i] + scratch[i];
    return 0;
}
"""


@pytest.fixture(scope="module")
def stand_in(cxx: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose CUDA entry point runs on the host."""
    folder = tmp_path_factory.mktemp("stand_in")
    (folder / "add.cpp").write_text(f'extern "C" {{\n{ADD_SOURCE}}}\n')
    command = [*cxx.cxx.command, "-shared", "-fPIC", "-o", "libadd.so", "add.cpp"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "libadd.so"


def test_a_device(stand_in: Path, cupy: Played) -> None:
    kernel = Kernel(stand_in, ADD)
    x = cupy.ndarray((3,), np.float32)
    x.host[:] = [1, 2, 3]
    for _ in range(2):
        made = cupy.made
        y = kernel(x)
        assert type(y) is cupy.ndarray
        assert y.host.tolist() == [4712, 4713, 4714]  # the current stream is handed on
        assert cupy.made == made + 2  # the output and the workspace, from the caller's library
    assert cupy.entered == []
    assert kernel(x, out=y) is y


def test_the_current_device_is_changed_when_it_has_to_be(stand_in: Path, cupy: Played) -> None:
    kernel = Kernel(stand_in, ADD)
    cupy.device = 1
    x = cupy.ndarray((3,), np.float32)
    cupy.device = 0
    y = kernel(x)
    assert y.data.device_id == 1
    assert set(cupy.entered) == {1}
    assert cupy.device == 0
    with pytest.raises(Refused, match="output 'y' is on cuda:0, expected cuda:1"):
        kernel(x, out=cupy.ndarray((3,), np.float32))


def test_what_a_device_refuses(stand_in: Path, cupy: Played) -> None:
    kernel = Kernel(stand_in, ADD)
    with pytest.raises(Refused, match="add_f5: input 'x' is not aligned to 16 bytes"):
        kernel(cupy.ndarray((3,), np.float32, shift=4))
    with pytest.raises(Refused, match="output 'y' is not aligned to 16 bytes"):
        kernel(cupy.ndarray((3,), np.float32), out=cupy.ndarray((3,), np.float32, shift=4))
    with pytest.raises(Refused, match="refused these shapes"):
        kernel(cupy.ndarray((7,), np.float32))
    with pytest.raises(Refused, match="the library holds no CPU kernel"):
        kernel(np.zeros(3, np.float32))


# --- from a folder ------------------------------------------------------------------------------------------------------
def test_a_folder_with_one_fragment(optimized: Optimized) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    (file,) = (folder / "mugraphs").glob("*.json")
    rng = np.random.default_rng(0)
    for kernel in (mi.load_kernel(folder), load_kernel(str(folder), file.stem, threads=2)):
        assert isinstance(kernel, mi.Kernel)
        assert kernel.constants == frozenset()
        given = {t.name: rng.standard_normal(t.dims).astype(np.float32) for t in kernel.spec.inputs}
        x, w = (given[n].astype(np.float64) for n in "xw")
        wanted = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) @ w
        assert np.allclose(kernel(*given.values()), wanted, rtol=1e-4, atol=1e-4)
        assert load_kernel(folder, kernel.spec.op_type).spec == kernel.spec


def test_a_folder_with_several(optimized: Optimized) -> None:
    folder = optimized("llama_fp32")
    names = sorted(p.stem for p in (folder / "mugraphs").glob("*.json"))
    with pytest.raises(
        UsageError, match=f"expected the name or identifier of one fragment, there are {len(names)}"
    ) as caught:
        load_kernel(folder)
    assert names[0] in caught.value.hint
    with pytest.raises(UsageError, match="'nothing' fits none"):
        load_kernel(folder, "nothing")
    with pytest.raises(UsageError, match="'' fits none"):
        load_kernel(folder, "")
    assert load_kernel(folder, names[0][:8]).spec == load_kernel(folder, names[0]).spec
    (attention,) = (i for i in names if load_kernel(folder, i).spec.op_type.startswith("attention_"))
    assert (
        load_kernel(folder, "attention").spec
        == load_kernel(folder, "atten*").spec
        == load_kernel(folder, attention).spec
    )
    model = onnx.load(folder / "model.onnx")
    weights = {t.name for t in model.graph.initializer}
    for name in names:
        kernel = load_kernel(folder, name)
        nodes = [n for n in model.graph.node if n.op_type == kernel.spec.op_type]
        assert kernel.constants == {k for k, i in enumerate(nodes[0].input) if i in weights} != frozenset()


def test_the_beginning_of_several_identifiers_is_none(tmp_path: Path) -> None:
    for name in ("ab12", "ab34"):
        (tmp_path / "mugraphs").mkdir(exist_ok=True)
        (tmp_path / "mugraphs" / f"{name}.json").touch()
    with pytest.raises(UsageError, match="'ab' fits 2") as caught:
        load_kernel(tmp_path, "ab")
    assert caught.value.hint == "one of ab12, ab34"


def test_folders_that_are_none(copied: Optimized, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"found no mugraphs/\*.json"):
        load_kernel(tmp_path)
    folder = copied("rmsnorm_linear_fp32")
    (file,) = (folder / "mugraphs").glob("*.json")
    for text in ("", "[]", "{}", '{"operator": {}, "targets": {}}'):
        file.write_text(text)
        with pytest.raises(MirageError, match=r"cannot be read|: expected an? [a-z ]+.*, found "):
            load_kernel(folder)


def test_importing_is_light() -> None:
    heavy = "('onnx', 'onnxruntime', 'jinja2', 'torch', 'cupy')"
    script = f"import sys, mirage_cli.kernels.kernel; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
