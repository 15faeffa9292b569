"""Running what was built: ONNX Runtime sessions, and which libraries may be loaded.

Every onnxruntime session of this program is made here. onnxruntime is imported when a function needs it.

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
import re
import stat
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.errors import MirageError, ModelError, OutOfResources, OutOfTime, Refused, ToolMissing
from mirage_cli.lax.dtypes import DType
from mirage_cli.machine import devices

if TYPE_CHECKING:
    import onnx

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
#: element types that numpy lacks and onnxruntime takes as their bits: the type of these, and ONNX's number
BITS: dict[str, tuple[Any, int]] = {
    "bfloat16": (np.uint16, 16),
    "float8_e4m3fn": (np.uint8, 17),
    "float8_e5m2": (np.uint8, 19),
}
FAILED = "onnxruntime failed"  #: how the error of a run begins that onnxruntime refuses
#: what to do where onnxruntime cannot use the GPU; both packages own the same folder, so one has to go first
CUDA_PROVIDER_COMMAND = "pip uninstall -y onnxruntime && pip install onnxruntime-gpu"
CUDA_LIBRARIES_COMMAND = "pip install 'onnxruntime-gpu[cuda,cudnn]'"  #: what onnxruntime's provider needs beside itself
#: CUDA errors that say what has to be done: the class of error, and the hint
_CUDA_FAILURES: dict[int, tuple[type[MirageError], str]] = {
    2: (OutOfResources, "other programs may hold the GPU's memory: nvidia-smi shows them"),
    35: (ToolMissing, devices.UPDATE),
    222: (ToolMissing, devices.UPDATE),
} | dict.fromkeys((98, 209, 218), (Refused, "optimize again with --arch native on this machine, or with --arch sm_80"))
#: The names that numpy, torch and cupy share for element types.
_ELEMENT_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "bool": "bool",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8",
    "i4": "int4", "u4": "uint4", "i2": "int2", "u2": "uint2", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
    "e2m1": "float4_e2m1fn",
}  # fmt: skip
_SMALL = ("int4", "uint4", "int2", "uint2", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
_FOREIGN = ("bfloat16", *_SMALL)  #: names that numpy knows from ml_dtypes
#: of products with quantized weights, by `accuracy_level`: float16, bfloat16 and integers of 8 bits
_ACTIVATION_UNITS = {2: 2.0**-10, 3: 2.0**-7, 4: 2.0**-7}
_JOINED_LEVEL = 4  #: that onnxruntime gives products which it joins with the weights' DequantizeLinear


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
    """Raise ToolMissing, with the command that installs it, where onnxruntime lacks `provider` ("cpu" or "cuda"), or the
    driver is too old for it."""
    if provider not in providers():
        hint = CUDA_PROVIDER_COMMAND if provider == "cuda" else f"providers are {', '.join(_PROVIDERS)}"
        raise ToolMissing(f"the installed onnxruntime has no provider for {provider!r}", hint)
    if provider == "cuda":
        devices.check_driver("onnxruntime", _cuda_version())


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
    stream: int = 0,
) -> Any:
    """An `onnxruntime.InferenceSession` of a model, with the custom operators of `library`.

    `threads` limits the threads of one operator, `optimize` allows onnxruntime's own graph optimizations. On CUDA
    `device` is the GPU's number, `exact` keeps float32 products in float32 (onnxruntime's default is TF32), and `graph`
    captures the model as a CUDA graph that later calls with the same buffers replay, all on the CUDA stream with the
    address `stream` where one is given. `data` is the folder of the external data of a model given as bytes.

    On the CPU a model in bfloat16, for which onnxruntime has no kernels there, computes in float32 and rounds every result
    (`in_float32`), and weights in float4e2m1 are float8e4m3fn (`in_float8`).

    Threads of a session wait actively for work while it runs and stop when its call ends, so that several sessions of
    one process can be timed in turn without one's idle threads taking the cores from the other.
    Raises ModelError for a model that onnxruntime refuses, ToolMissing for an absent provider, Refused for a library that
    anybody could have replaced.
    """
    with contextlib.ExitStack() as opened:
        return _session(model, library, provider, threads, optimize, device, exact, graph, data, stream, opened)


def _session(
    model: str | Path | bytes,
    library: Path | None,
    provider: str,
    threads: int | None,
    optimize: bool,
    device: int,
    exact: bool,
    graph: bool,
    data: Path | None,
    stream: int,
    opened: contextlib.ExitStack,
) -> Any:
    """The same; what it opens stays open until it is there."""
    import onnxruntime  # noqa: PLC0415

    check_provider(provider)
    onnxruntime.set_default_logger_severity(4)  # errors come as exceptions; a GPU's number alone makes it warn
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if data is not None:
        folder = opened.enter_context(_utf8_path(data.absolute()))
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    if threads is not None:
        options.intra_op_num_threads = threads
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if library is not None:
        options.register_custom_ops_library(opened.enter_context(_utf8_path(check_library(library))))
    if provider == "cuda" and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    wanted: list[Any] = [_PROVIDERS["cpu"]]
    if provider == "cuda":
        settings = {"device_id": device, "use_tf32": int(not exact), "enable_cuda_graph": int(graph)}
        settings |= {"user_compute_stream": stream} if stream else {}
        wanted.insert(0, (_PROVIDERS["cuda"], {name: str(value) for name, value in settings.items()}))
    source = model if isinstance(model, bytes) else opened.enter_context(_utf8_path(Path(model)))
    spare = _of_types_that_compute(source, library is not None, data) if provider == "cpu" else None
    session_of_model = _loaded(source, options, wanted, spare)
    if _PROVIDERS[provider] not in session_of_model.get_providers():
        built = f"for CUDA {_cuda_version() or 'of an unknown version'}; {devices.driver()}"
        raise ToolMissing(
            f"onnxruntime (built {built}) could not start its provider for {provider}", CUDA_LIBRARIES_COMMAND
        )
    return session_of_model


@contextlib.contextmanager
def _utf8_path(path: Path) -> Iterator[str]:
    """A path as onnxruntime takes it, in UTF-8: one of other bytes by way of its folder, or itself, opened."""
    try:
        str(path).encode()
        yield str(path)
        return
    except UnicodeEncodeError:
        pass
    inside = path.name.isascii()
    descriptor = os.open(path.parent if inside else path, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}" if inside else f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _cuda_version() -> str:
    """The version of CUDA that onnxruntime is built for; empty where it does not tell."""
    import onnxruntime  # noqa: PLC0415

    return str(getattr(onnxruntime, "cuda_version", ""))


def _cuda_code(error: Exception) -> int | None:
    """The cudaError_t that an exception of onnxruntime tells of."""
    match = re.search(r"CUDA (?:failure|error) (\d+)", str(error))
    if match is not None:
        return int(match[1])
    return 2 if "cudaErrorMemoryAllocation" in str(error) else None


def _first_message(error: Exception) -> str:
    """The message of onnxruntime on a CUDA failure, without the places in its own sources."""
    return re.sub(r"(?s)^.*?(CUDA failure \d+: [^;\n]*?)\s*(;.*)?$", r"\1", str(error))


def _cuda_error(message: str, code: int | None) -> MirageError:
    """The error for a cudaError_t, with what has to be done about it."""
    kind, hint = _CUDA_FAILURES.get(code or 0, (MirageError, ""))
    return kind(message, hint)


def _loaded(source: str | bytes, options: Any, providers: list[Any], spare: Callable[[], bytes | None] | None) -> Any:
    """A session of a model; where an operator lacks a kernel, of what `spare` makes in its place, or with the basic
    optimizations (such as constant folding), by which the operator may go."""
    import onnxruntime  # noqa: PLC0415

    try:
        # with its fallback onnxruntime takes the CPU for a GPU that fails, and prints so on standard output
        return onnxruntime.InferenceSession(source, options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime's exceptions have no common base
        missing = lacks_kernel(error)
        other = spare() if spare is not None and missing else None
        plain = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if other is None and missing and options.graph_optimization_level == plain:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
            return _loaded(source, options, providers, None)
        if other is None:
            name = "the model" if isinstance(source, bytes) else source
            if (code := _cuda_code(error)) is not None:
                raise _cuda_error(
                    f"onnxruntime cannot start its provider for cuda: {_first_message(error)}", code
                ) from error
            raise ModelError(f"onnxruntime {onnxruntime.__version__} cannot load {name}: {error}") from error
    if isinstance(source, str):
        folder = str(Path(source).absolute().parent)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return _loaded(other, options, providers, None)


def lacks_kernel(error: Exception) -> bool:
    """True if a model does not load since onnxruntime has no kernel of one of its operators there."""
    return "NOT_IMPLEMENTED" in str(error)


def _of_types_that_compute(source: str | bytes, library: bool, data: Path | None) -> Callable[[], bytes | None]:
    """A function that makes a model with tensors in bfloat16 or float4e2m1 one of types that onnxruntime computes in; it gives
    None for other models."""

    def make() -> bytes | None:
        import onnx  # noqa: PLC0415

        from mirage_cli.runtime.bfloat16 import holds_bfloat16, in_float32  # noqa: PLC0415
        from mirage_cli.runtime.float4 import holds_float4, in_float8  # noqa: PLC0415

        model = (
            onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source, load_external_data=False)
        )
        if not holds_bfloat16(model) and not holds_float4(model):
            return None
        if holds_float4(model):
            folder = (data or Path()) if isinstance(source, bytes) else Path(source).parent
            model = in_float8(model, library, folder)
        made: bytes = (in_float32(model, library) if holds_bfloat16(model) else model).SerializeToString()
        return made

    return make


def run(session: Any, inputs: Mapping[str, NDArray[Any]], seconds: float = 0) -> dict[str, NDArray[Any]]:
    """The outputs of a session by name; bfloat16 and floats of 8 bits travel as those of `ml_dtypes`, for which it has none.

    A run that takes longer than `seconds` (0: no limit) is ended between two of its operators, with OutOfTime. Weights in
    numbers of 4 bits and floats of 8 are not handed over: the model itself holds them (`hold`).
    """
    asked = {value.name for value in session.get_inputs()}
    inputs = {name: a for name, a in inputs.items() if name in asked or a.dtype.name not in _SMALL}
    names = [output.name for output in session.get_outputs()]
    with _ended_after(seconds) as options:
        try:
            plain = all("bfloat16" not in value.type for value in (*session.get_inputs(), *session.get_outputs()))
            if plain and not any(a.dtype.name in BITS for a in inputs.values()):
                results = session.run(names, dict(inputs), options)
                return {o.name: _of_type(o.type, x) for o, x in zip(session.get_outputs(), results, strict=True)}
            feeds = {name: to_ort(array) for name, array in inputs.items()}
            results = session.run_with_ort_values(names, feeds, options)
            return {name: from_ort(value) for name, value in zip(names, results, strict=True)}
        except Exception as error:  # as above
            if options.terminate:
                raise OutOfTime(f"it took longer than {seconds:g} s") from None
            raise _cuda_error(f"{FAILED}: {error}", _cuda_code(error)) from error


def hold(model: onnx.ModelProto, weights: Mapping[str, NDArray[Any]]) -> None:
    """Put weights into a model, as far as they are of types that onnxruntime takes from models only."""
    from onnx import numpy_helper  # noqa: PLC0415

    small = (numpy_helper.from_array(w, name) for name, w in weights.items() if w.dtype.name in _SMALL)
    model.graph.initializer.extend(small)


def _of_type(type_: str, array: Any) -> Any:
    """An output of onnxruntime; the bytes of float8e4m3fn, the one such type it hands over, as the numbers they are."""
    if type_ != "tensor(float8e4m3fn)" or array.dtype != np.uint8:
        return array
    import ml_dtypes  # noqa: PLC0415

    return array.view(ml_dtypes.float8_e4m3fn)


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[Any]:
    """Options of a run of onnxruntime that end it when its time is over."""
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    timer = threading.Timer(seconds, setattr, (options, "terminate", True))
    timer.daemon = True
    if seconds:
        timer.start()
    try:
        yield options
    finally:
        timer.cancel()


def to_ort(array: NDArray[Any]) -> Any:
    """An `onnxruntime.OrtValue` on the CPU with the elements of an array, whose memory it may share."""
    from onnxruntime import OrtValue  # noqa: PLC0415

    array = np.asarray(array, order="C")  # not ascontiguousarray, which gives scalars a dimension
    if array.dtype.name not in BITS:
        return OrtValue.ortvalue_from_numpy(array)
    bits, kind = BITS[array.dtype.name]
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(bits), kind)


def from_ort(value: Any) -> NDArray[Any]:
    """The elements of an `onnxruntime.OrtValue`; of a bfloat16 one only where it lies on the CPU."""
    if "bfloat16" not in value.data_type():
        array: NDArray[Any] = _of_type(value.data_type(), np.asarray(value.numpy()))
        return array
    shape = tuple(value.shape())
    data = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape)) if math.prod(shape) else b""
    return np.frombuffer(data, numpy_dtype("bfloat16")).reshape(shape)


def coarsest_unit(tensors: Iterable[int], nodes: Iterable[onnx.NodeProto]) -> float:
    """The largest unit of the floating-point types among the element types of `tensors` and those that `nodes` convert to:
    an output in float32 may hold what was computed in float16."""
    from mirage_cli.frontends.onnx.ops.registry import ELEMENT_TYPES  # noqa: PLC0415

    nodes = list(nodes)
    codes = {*tensors, *(a.i for n in nodes if n.op_type == "Cast" for a in n.attribute if a.name == "to")}
    units = [t.epsilon for code, t in ELEMENT_TYPES.items() if code in codes]
    return max((*units, *map(activation_unit, nodes)), default=0.0)


def original_nodes(patched: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes of a patched model, with those of its functions, which are the original's."""
    return [*patched.graph.node, *(n for f in patched.functions for n in f.node)]


def activation_unit(node: onnx.NodeProto) -> float:
    """The unit of the numbers that onnxruntime may make of the activations in a product with quantized weights: those of
    `accuracy_level`, and of 8 bits where it joins a product with the weights' DequantizeLinear by blocks. 0 elsewhere."""
    given = {a.name: a.i for a in node.attribute}
    level = given.get("accuracy_level", 0) if node.op_type == "MatMulNBits" else 0
    if node.op_type == "DequantizeLinear" and given.get("block_size", 0):
        level = _JOINED_LEVEL
    return _ACTIVATION_UNITS.get(level, 0.0)


def numpy_type(dtype: DType) -> np.dtype[Any]:
    """The numpy type of an element type; bfloat16 through ml_dtypes, which onnx brings."""
    return numpy_dtype(element_name(dtype))


def element_name(dtype: DType) -> str:
    """The name of an element type that numpy, torch and cupy share."""
    return _ELEMENT_NAMES[dtype.name]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy type of a shared name, such as "float32" or "bfloat16"."""
    if name not in _FOREIGN:
        return np.dtype(name)
    import ml_dtypes  # noqa: PLC0415

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


# ---- memory ----------------------------------------------------------------------------------------------------------

_M_PERTURB = -6  #: of mallopt, see malloc.h
_ONES = 0x100  #: what makes malloc fill memory with bytes of ones


@contextlib.contextmanager
def unclean_memory() -> Iterator[None]:
    """Meanwhile memory that C's malloc gives holds bytes of ones, which are NaN in all types of floats, and no zeros as fresh
    memory does, so that a kernel that reads what nothing has written gives wrong answers. Only glibc can do so."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(_M_PERTURB, _ONES)
    try:
        yield
    finally:
        mallopt(_M_PERTURB, 0)


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


def opencl_failure(library: ctypes.CDLL, name: str) -> MirageError:
    """The error of an OpenCL kernel `name` of a library whose entry point has failed, in the library's words."""
    library.mirage_opencl_message.restype = ctypes.c_char_p
    return MirageError(f"{name}: {library.mirage_opencl_message().decode(errors='replace')}")


def cuda_failure(library: ctypes.CDLL, name: str, code: int) -> MirageError:
    """The error of the kernel `name` of a library whose entry point returned a cudaError_t, in the library's words."""
    text = ctypes.create_string_buffer(f"CUDA error {code}".encode(), 1024)
    if hasattr(library, "mirage_cuda_error"):
        library.mirage_cuda_error(ctypes.c_int(code), text, ctypes.c_size_t(len(text)))
    return _cuda_error(f"{name}: the kernel ended with {text.value.decode(errors='replace')}", code)
