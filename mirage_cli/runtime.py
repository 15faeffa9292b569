"""Running what was built: ONNX Runtime sessions, and the C entry points of a library on arrays.

Every onnxruntime session of this program is made here. onnxruntime and cupy are imported when a function needs them.

Loading a library runs its code. A library is therefore loaded by its absolute path, and not at all when anybody could
have replaced it: when it, or its folder, is writable for everybody. In a folder such as /tmp, where everybody may add
files but only their owners replace them, and in one that a foreign group may write to, there is a warning. Folders
further up are not looked at.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import stat
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.backends.spec import OperatorSpec, TensorSpec
from mirage_cli.errors import MirageError, ModelError, Refused, ToolMissing
from mirage_cli.lax import extents
from mirage_cli.lax.dtypes import BY_NAME, DType

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_ONNX_BF16 = 16
#: what to do where onnxruntime cannot use the GPU; both packages own the same folder, so one has to go first
CUDA_PROVIDER_COMMAND = "pip uninstall -y onnxruntime && pip install onnxruntime-gpu"
#: Element types by the names that numpy, torch and cupy share.
_SHARED_NAMES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "bool": "bool",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
    "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8",
}  # fmt: skip
_LONG_NAMES = {short: long for long, short in _SHARED_NAMES.items()}


# ---- ONNX Runtime ----------------------------------------------------------------------------------------------------


def providers() -> tuple[str, ...]:
    """Which of `cpu` and `cuda` the installed onnxruntime has."""
    import onnxruntime  # noqa: PLC0415

    available = onnxruntime.get_available_providers()
    return tuple(name for name, provider in _PROVIDERS.items() if provider in available)


def version() -> str:
    """The version of onnxruntime."""
    import onnxruntime  # noqa: PLC0415

    return str(onnxruntime.__version__)


def check_provider(provider: str) -> None:
    """Raise ToolMissing, with the command that installs it, where onnxruntime lacks `provider` ("cpu" or "cuda")."""
    if provider not in providers():
        hint = CUDA_PROVIDER_COMMAND if provider == "cuda" else f"providers are {', '.join(_PROVIDERS)}"
        raise ToolMissing(f"the installed onnxruntime has no provider for {provider!r}", hint)


def session(
    model: str | Path | bytes,
    library: Path | None = None,
    provider: str = "cpu",
    threads: int | None = None,
    optimize: bool = True,
    device: int = 0,
    exact: bool = False,
    graph: bool = False,
    data: Path | None = None,
) -> Any:
    """An `onnxruntime.InferenceSession` of a model, with the custom operators of `library`.

    `threads` limits the threads of one operator, `optimize` allows onnxruntime's own graph optimizations. On CUDA
    `device` is the GPU's number, `exact` keeps float32 products in float32 (onnxruntime's default is TF32), and `graph`
    captures the model as a CUDA graph that later calls with the same buffers replay. `data` is the folder of the
    external data of a model given as bytes.

    Threads of a session wait actively for work while it runs and stop when its call ends, so that several sessions of
    one process can be timed in turn without one's idle threads taking the cores from the other.
    Raises ModelError for a model that onnxruntime refuses, ToolMissing for an absent provider, Refused for a library that
    anybody could have replaced.
    """
    import onnxruntime  # noqa: PLC0415

    check_provider(provider)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors come as exceptions
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if data is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(data.absolute()))
    if threads is not None:
        options.intra_op_num_threads = threads
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if library is not None:
        options.register_custom_ops_library(str(check_library(library)))
    if provider == "cuda" and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    wanted: list[Any] = [_PROVIDERS["cpu"]]
    if provider == "cuda":
        settings = {"device_id": device, "use_tf32": int(not exact), "enable_cuda_graph": int(graph)}
        wanted.insert(0, (_PROVIDERS["cuda"], {name: str(value) for name, value in settings.items()}))
    source = model if isinstance(model, bytes) else str(model)
    try:
        made = onnxruntime.InferenceSession(source, options, providers=wanted)
    except Exception as error:  # onnxruntime's exceptions have no common base
        name = "the model" if isinstance(model, bytes) else str(model)
        raise ModelError(f"onnxruntime {onnxruntime.__version__} cannot load {name}: {error}") from error
    if _PROVIDERS[provider] not in made.get_providers():
        raise ToolMissing(
            f"onnxruntime could not start its provider for {provider}", "check the driver and CUDA versions"
        )
    return made


def run(session: Any, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The outputs of a session by name; bfloat16 travels as `ml_dtypes.bfloat16`, which onnxruntime cannot."""
    names = [output.name for output in session.get_outputs()]
    try:
        if all("bfloat16" not in value.type for value in (*session.get_inputs(), *session.get_outputs())):
            return dict(zip(names, session.run(names, dict(inputs)), strict=True))
        feeds = {name: to_ort(array) for name, array in inputs.items()}
        return {
            name: from_ort(value) for name, value in zip(names, session.run_with_ort_values(names, feeds), strict=True)
        }
    except Exception as error:  # as above
        raise MirageError(f"onnxruntime failed: {error}") from error


def to_ort(array: NDArray[Any]) -> Any:
    """An `onnxruntime.OrtValue` on the CPU with the elements of an array, whose memory it may share."""
    from onnxruntime import OrtValue  # noqa: PLC0415

    array = np.asarray(array, order="C")  # not ascontiguousarray, which gives scalars a dimension
    if array.dtype.name != "bfloat16":
        return OrtValue.ortvalue_from_numpy(array)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _ONNX_BF16)


def from_ort(value: Any) -> NDArray[Any]:
    """The elements of an `onnxruntime.OrtValue`; of a bfloat16 one only where it lies on the CPU."""
    if "bfloat16" not in value.data_type():
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    data = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape)) if math.prod(shape) else b""
    return np.frombuffer(data, _numpy_dtype("bfloat16")).reshape(shape)


def numpy_type(dtype: DType) -> np.dtype[Any]:
    """The numpy type of an element type; bfloat16 through ml_dtypes, which onnx brings."""
    return _numpy_dtype(_LONG_NAMES[dtype.name])


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes  # noqa: PLC0415

    made: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return made


# ---- libraries -------------------------------------------------------------------------------------------------------


def check_library(path: Path) -> Path:
    """The absolute path of a library that may be loaded; Refused where anybody could have replaced it."""
    path = Path(path).absolute()
    if not path.is_file():
        raise Refused(f"there is no library {path}")
    for place in (path, path.parent):
        status = place.stat()
        if status.st_mode & stat.S_IWOTH and not (place.is_dir() and status.st_mode & stat.S_ISVTX):
            raise Refused(f"{path} is not loaded: {place} is writable for everybody", f"chmod o-w {place}")
        if status.st_mode & stat.S_IWOTH:
            warnings.warn(f"{path}: everybody may add files to {place}", stacklevel=2)
        elif status.st_mode & stat.S_IWGRP and status.st_gid != os.getegid():
            warnings.warn(f"{path}: group {status.st_gid} may change {place}", stacklevel=2)
    return path


class _Pool(ctypes.Structure):
    """`mirage_pool` of entry.h."""


_Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)
_Run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_Pool._fields_ = [("run", _Run), ("context", ctypes.c_void_p)]


class Kernel:
    """A fragment's kernel as a function on arrays, called through the library's C entry points.

    NumPy arrays and tensors in host memory run on the CPU (`threads` of them, default one), torch, cupy and other
    DLPack tensors in device memory on their device and the framework's current stream. Inputs must be dense, of the
    exact type and shape; nothing is converted or copied. Raises Refused, naming the input, where one is not.
    """

    def __init__(self, library: Path, spec: OperatorSpec, threads: int | None = None) -> None:
        self.spec = spec
        self._library = ctypes.CDLL(str(check_library(library)))
        self._threads = ThreadPoolExecutor(threads) if threads is not None and threads > 1 else None
        self._workers = threads or 1
        self._run = _Run(self._run_tasks)  # kept: ctypes does not own callbacks

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """The outputs, made by the framework of the inputs."""
        arrays = [_adapt(value) for value in inputs]
        places = {(type(array), array.place) for array in arrays}
        if len(places) != 1:
            where = ", ".join(sorted(f"{kind.framework} on {place}" for kind, place in places)) or "no inputs"
            raise Refused(f"{self.spec.op_type}: inputs must share one framework and device, found {where}")
        extents_of = self._check(arrays)
        outputs = [
            arrays[0].empty(tuple(extents.value(d, extents_of) for d in tensor.dims), _LONG_NAMES[tensor.dtype.name])
            for tensor in self.spec.outputs
        ]
        if all(math.prod(output.shape) == 0 for output in outputs):
            return tuple(output.value for output in outputs)
        values = [extents_of[name] for name in self.spec.symbols]
        symbols = (ctypes.c_int64 * len(values))(*values) if values else None
        cuda = arrays[0].place != "cpu"
        with arrays[0].active():
            workspace = self._workspace(arrays[0], symbols, cuda)
            code = self._function("" if cuda else "_cpu", ctypes.c_int, 5)(
                (ctypes.c_void_p * len(arrays))(*(array.pointer for array in arrays)),
                (ctypes.c_void_p * len(outputs))(*(output.pointer for output in outputs)),
                workspace.pointer if workspace is not None else None,
                symbols,
                arrays[0].stream() if cuda else self._pool(),
            )
        if code != 0:
            raise MirageError(f"{self.spec.op_type}: the kernel ended with {'CUDA error' if cuda else 'error'} {code}")
        return tuple(output.value for output in outputs)

    def has(self, place: str) -> bool:
        """Whether the library holds this kernel for `cpu` or `cuda`."""
        return hasattr(self._library, f"mirage_{self.spec.id}" + ("_cpu" if place == "cpu" else ""))

    def _check(self, arrays: Sequence[_Array]) -> dict[str, int]:
        symbols = self.spec.solve([array.shape for array in arrays])
        for tensor, array in zip(self.spec.inputs, arrays, strict=True):
            problem = _unfit(array, tensor)
            if problem is not None:
                raise Refused(f"{self.spec.op_type}: input '{tensor.name}' {problem}")
        return symbols

    def _workspace(self, like: _Array, symbols: Any, cuda: bool) -> _Array | None:
        count = self._function("_workspace" if cuda else "_workspace_cpu", ctypes.c_int64, 1)(symbols)
        if count < 0:
            raise Refused(f"{self.spec.op_type}: the kernel refused these shapes")
        return like.workspace(count) if count else None

    def _function(self, suffix: str, result: type[Any], pointers: int) -> Any:
        """An entry point that takes that many pointers."""
        try:
            function = getattr(self._library, f"mirage_{self.spec.id}{suffix}")
            function.restype, function.argtypes = result, [ctypes.c_void_p] * pointers
            return function
        except AttributeError:
            where = "CPU" if suffix.endswith("cpu") else "CUDA"
            raise Refused(f"{self.spec.op_type}: the library holds no {where} kernel of it") from None

    def _pool(self) -> Any:
        return ctypes.byref(_Pool(self._run, None)) if self._threads is not None else None

    def _run_tasks(self, _pool: int, task: int, count: int, data: int) -> None:
        call = _Task(task)

        def work(first: int) -> None:
            for i in range(first, count, self._workers):
                call(data, i)

        if self._threads is not None:
            list(self._threads.map(work, range(min(self._workers, count))))


def _unfit(array: _Array, tensor: TensorSpec) -> str | None:
    """What keeps an array from being the input `tensor`, or None."""
    found = array.element
    if found != tensor.dtype:
        return f"has elements {found or array.element_name}, expected {tensor.dtype}"
    if not array.dense:
        return "is not dense and row-major; make it contiguous"
    if array.place != "cpu" and array.pointer % 16:
        return "is not aligned to 16 bytes; copy it"
    return None


# ---- arrays of the frameworks ----------------------------------------------------------------------------------------


class _Array(ABC):
    """What `Kernel` must know about an array: where it is, what it holds, and how to make more of its kind."""

    framework: str
    value: Any
    shape: tuple[int, ...]
    element_name: str
    place: str  #: "cpu", or the device
    dense: bool
    pointer: int

    @property
    def element(self) -> DType | None:
        """The element type, None for one that kernels do not know."""
        return BY_NAME.get(_SHARED_NAMES.get(self.element_name, ""))

    @abstractmethod
    def empty(self, shape: tuple[int, ...], name: str) -> _Array:
        """A new array at the same place."""

    def workspace(self, count: int) -> _Array:
        """That many bytes at the same place, aligned to 64 on the host, to 256 elsewhere."""
        return _host_workspace(count) if self.place == "cpu" else self.empty((count,), "uint8")

    def stream(self) -> int:
        """The current CUDA stream."""
        return 0

    def active(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the array's device the current one."""
        return contextlib.nullcontext()


class _Numpy(_Array):
    framework = "numpy"

    def __init__(self, value: NDArray[Any]) -> None:
        self.value = value
        self.shape = value.shape
        self.element_name = value.dtype.name
        self.place = "cpu"
        self.dense = value.flags.c_contiguous and value.dtype.isnative
        self.pointer = value.ctypes.data

    def empty(self, shape: tuple[int, ...], name: str) -> _Array:
        return _Numpy(np.empty(shape, _numpy_dtype(name)))


class _Torch(_Array):
    framework = "torch"

    def __init__(self, value: Any) -> None:
        self.torch = sys.modules["torch"]
        self.value = value
        self.shape = tuple(value.shape)
        self.element_name = str(value.dtype).removeprefix("torch.")
        self.place = str(value.device)
        self.dense = value.is_contiguous() and not value.is_conj() and not value.is_neg()
        self.pointer = value.data_ptr()
        if value.device.type not in ("cpu", "cuda"):
            raise Refused(f"tensors on {self.place} are not supported")

    def empty(self, shape: tuple[int, ...], name: str) -> _Array:
        dtype = getattr(self.torch, name)
        return _Torch(self.torch.empty(shape, dtype=dtype, device=self.value.device))

    def stream(self) -> int:
        return int(self.torch.cuda.current_stream(self.value.device).cuda_stream)

    def active(self) -> contextlib.AbstractContextManager[Any]:
        device: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self.place != "cpu":
            device = self.torch.cuda.device(self.value.device)
        return device


class _Cupy(_Array):
    framework = "cupy"

    def __init__(self, value: Any) -> None:
        self.cupy = sys.modules["cupy"]
        self.value = value
        self.shape = value.shape
        self.element_name = value.dtype.name
        self.place = f"cuda:{value.device.id}"
        self.dense = value.flags.c_contiguous
        self.pointer = value.data.ptr

    def empty(self, shape: tuple[int, ...], name: str) -> _Array:
        with self.value.device:
            return _Cupy(self.cupy.empty(shape, _numpy_dtype(name)))

    def stream(self) -> int:
        return int(self.cupy.cuda.get_current_stream(self.value.device.id).ptr)

    def active(self) -> contextlib.AbstractContextManager[Any]:
        device: contextlib.AbstractContextManager[Any] = self.value.device
        return device


def _adapt(value: Any) -> _Array:
    """The array as `Kernel` sees it; other frameworks' tensors by DLPack, without a copy."""
    framework = type(value).__module__.partition(".")[0]
    if isinstance(value, np.ndarray):
        return _Numpy(value)
    if framework == "torch":
        return _Torch(value)
    if framework == "cupy":
        return _Cupy(value)
    if not hasattr(value, "__dlpack_device__"):
        raise Refused(f"{type(value).__name__} is not an array; pass numpy, torch, cupy or DLPack tensors")
    device = int(value.__dlpack_device__()[0])
    if device == 1:
        return _Numpy(np.from_dlpack(value))
    if device != 2:
        raise Refused(f"tensors on DLPack device {device} are not supported; 1 (CPU) and 2 (CUDA) are")
    try:
        import cupy  # noqa: PLC0415
    except ImportError:
        raise ToolMissing("cupy is needed for these tensors", "pip install 'mirage-cli[gpu]'") from None
    return _Cupy(cupy.from_dlpack(value))


def _host_workspace(count: int) -> _Array:
    memory = np.empty(count + 64, np.uint8)
    return _Numpy(memory[-memory.ctypes.data % 64 :])
