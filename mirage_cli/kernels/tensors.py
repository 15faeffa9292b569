"""Tensors of PyTorch, cupy, pyopencl, numpy and, by DLPack, of other libraries, as kernels see them:
shape, type, place, address.

Nothing here copies or converts elements. torch and cupy are never imported for their own sake: whoever passes such a
tensor has imported them; cupy is imported for device tensors of other libraries.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from mirage_cli.errors import WrongTensor
from mirage_cli.frontends.torchscript.modules import to_array
from mirage_cli.machine import opencl
from mirage_cli.machine.packages import imported
from mirage_cli.runtime import sessions

ALIGNMENT = 64  #: bytes, of scratch memory in host memory; allocators on devices give more

#: what decides how a kernel is called: for each tensor its shape, type, device and whether it is dense and row-major
Key: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """A tensor described: `element` is its type by numpy's name, `place` is "cpu" or such as "cuda:0" or "opencl:0x55"."""

    shape: tuple[int, ...]
    element: str
    place: str
    dense: bool
    writable: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """A place where a library has memory: `address` of a tensor of its own, the current `stream` there (0 on
    the host), and `enter`, which gives a context in which the place's device is the current one, or None when it is."""

    address: Callable[[Any], int]
    stream: Callable[[], int]
    enter: Callable[[], contextlib.AbstractContextManager[Any] | None]


class Framework(ABC):
    """A library of tensors."""

    name: str

    @abstractmethod
    def look(self, tensors: Iterable[Any]) -> tuple[Key, list[int]]:
        """The key of tensors and their addresses: what every call needs, so it is quick. Raises AttributeError for what
        is no tensor of this library."""

    @abstractmethod
    def describe(self, tensor: Any) -> Description:
        """A tensor in words. Raises WrongTensor for one in memory of another kind."""

    @abstractmethod
    def place(self, tensor: Any) -> Place:
        """The place where a tensor is."""

    @abstractmethod
    def maker(self, like: Any, shape: tuple[int, ...], element: str) -> Callable[[], Any]:
        """A function that makes new tensors where `like` is, on the current stream."""

    @abstractmethod
    def where(self, tensor: Any) -> Any:
        """A key that tells the place of a tensor from others, quickly."""

    def start(self, pointer: int) -> tuple[object, int]:
        """Where the elements of a tensor with this address begin: a memory, and an address in it."""
        return None, pointer

    @abstractmethod
    def copy(self, like: Any, array: np.ndarray[Any, Any]) -> Any:
        """A tensor where `like` is with the elements of an array; it is there when this returns."""

    @abstractmethod
    def host(self, tensor: Any) -> np.ndarray[Any, Any]:
        """The elements of a tensor in host memory."""

    def scratch(self, like: Any, count: int) -> tuple[Callable[[], Any], Callable[[Any], int]]:
        """A function that makes scratch memory of so many bytes where `like` is, on the current stream, and one that
        tells where in it these bytes begin."""
        return self.maker(like, (count,), "uint8"), self.place(like).address


class _Numpy(Framework):
    """Arrays in host memory."""

    name = "numpy"

    def look(self, tensors: Iterable[Any]) -> tuple[Key, list[int]]:
        key: list[Any] = []
        pointers = []
        for a in tensors:
            flags = a.flags
            key += a.shape, a.dtype, flags.c_contiguous, flags.writeable
            pointers.append(a.__array_interface__["data"][0])
        return tuple(key), pointers

    def describe(self, tensor: Any) -> Description:
        dense = tensor.flags.c_contiguous and tensor.dtype.isnative
        return Description(tensor.shape, tensor.dtype.name, "cpu", dense, tensor.flags.writeable)

    def place(self, tensor: Any) -> Place:
        return Place(_address, _no_stream, _nothing)

    def maker(self, like: Any, shape: tuple[int, ...], element: str) -> Callable[[], Any]:
        return partial(np.empty, shape, sessions.numpy_dtype(element))

    def where(self, tensor: Any) -> Any:
        return None

    def copy(self, like: Any, array: np.ndarray[Any, Any]) -> Any:
        return np.array(array, order="C")

    def host(self, tensor: Any) -> np.ndarray[Any, Any]:
        return np.asarray(tensor)

    def scratch(self, like: Any, count: int) -> tuple[Callable[[], Any], Callable[[Any], int]]:
        return partial(np.empty, count + ALIGNMENT, np.uint8), _aligned


class _Torch(Framework):
    """PyTorch's tensors on the CPU and on CUDA devices."""

    name = "torch"

    def __init__(self) -> None:
        self.torch = sys.modules["torch"]

    def look(self, tensors: Iterable[Any]) -> tuple[Key, list[int]]:
        key: list[Any] = []
        pointers = []
        for t in tensors:
            key += t.shape, t.dtype, t.device, t.is_contiguous() and not t.is_neg()
            pointers.append(t.data_ptr())
        return tuple(key), pointers

    def describe(self, tensor: Any) -> Description:
        if tensor.device.type not in ("cpu", "cuda"):
            raise WrongTensor(f"tensors on {tensor.device} are not supported")
        dense = tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()
        return Description(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), str(tensor.device), dense)

    def place(self, tensor: Any) -> Place:
        address = self.torch.Tensor.data_ptr
        if tensor.device.type == "cpu":
            return Place(address, _no_stream, _nothing)
        cuda, index = self.torch.cuda, tensor.device.index
        quick = getattr(self.torch._C, "_cuda_getCurrentRawStream", None)  # 2 us less than a Stream object
        stream = partial(quick, index) if quick else lambda: int(cuda.current_stream(index).cuda_stream)
        current = getattr(self.torch._C, "_cuda_getDevice", cuda.current_device)
        return Place(address, stream, lambda: None if current() == index else cuda.device(index))

    def maker(self, like: Any, shape: tuple[int, ...], element: str) -> Callable[[], Any]:
        strides = tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
        dtype, device = getattr(self.torch, element), like.device
        quick: Any = self.torch._C if device.type == "cuda" else None
        for name in ("_dynamo", "guards", "_empty_strided_cuda"):  # what torch.compile's own code calls; 1 us less
            quick = getattr(quick, name, None)
        if quick is not None:
            return partial(quick, shape, strides, dtype)
        return partial(self.torch.empty_strided, shape, strides, dtype=dtype, device=device)  # quicker than empty

    def where(self, tensor: Any) -> Any:
        return tensor.device

    def copy(self, like: Any, array: np.ndarray[Any, Any]) -> Any:
        array, torch = np.array(array, order="C"), self.torch
        if array.dtype.name == "bfloat16":  # numpy and torch have no common name for it
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(like.device)
        return torch.from_numpy(array).to(like.device)

    def host(self, tensor: Any) -> np.ndarray[Any, Any]:
        return to_array(self.torch, tensor)

    def scratch(self, like: Any, count: int) -> tuple[Callable[[], Any], Callable[[Any], int]]:
        return super().scratch(like, count) if like.device.type != "cpu" else NUMPY.scratch(like, count)


class _Cupy(Framework):
    """Arrays of cupy."""

    name = "cupy"

    def __init__(self) -> None:
        self.cupy = sys.modules["cupy"]

    def look(self, tensors: Iterable[Any]) -> tuple[Key, list[int]]:
        key: list[Any] = []
        pointers = []
        for a in tensors:
            data = a.data
            key += a.shape, a.dtype, data.device_id, a.flags.c_contiguous
            pointers.append(data.ptr)
        return tuple(key), pointers

    def describe(self, tensor: Any) -> Description:
        dense = tensor.flags.c_contiguous and tensor.dtype.isnative
        return Description(tensor.shape, tensor.dtype.name, f"cuda:{tensor.data.device_id}", dense)

    def place(self, tensor: Any) -> Place:
        cuda, device = self.cupy.cuda, self.cupy.cuda.Device(tensor.data.device_id)
        current = cuda.runtime.getDevice
        return Place(
            lambda a: int(a.data.ptr),
            lambda: int(cuda.get_current_stream().ptr),
            lambda: None if current() == device.id else device,
        )

    def maker(self, like: Any, shape: tuple[int, ...], element: str) -> Callable[[], Any]:
        return partial(self.cupy.ndarray, shape, sessions.numpy_dtype(element))

    def where(self, tensor: Any) -> Any:
        return tensor.data.device_id

    def copy(self, like: Any, array: np.ndarray[Any, Any]) -> Any:
        with self.cupy.cuda.Device(like.data.device_id):
            copied = self.cupy.asarray(np.array(array, order="C"))
            self.cupy.cuda.get_current_stream().synchronize()  # kernels may read weights before the stream comes to them
        return copied

    def host(self, tensor: Any) -> np.ndarray[Any, Any]:
        return np.asarray(self.cupy.asnumpy(tensor))


class _Tensor(int):
    """The address of a `mirage_opencl_tensor`, a buffer and the bytes in front of the tensor in it, which lives as long as
    this number does."""

    def __new__(cls, buffer: int, offset: int) -> _Tensor:
        """Raises WrongTensor for a tensor that does not begin at a multiple of 16 bytes."""
        if offset % 16:
            raise WrongTensor(
                f"an array begins {offset} bytes behind its buffer's start, not a multiple of 16; copy it"
            )
        memory = (ctypes.c_uint64 * 4)()
        first = ctypes.addressof(memory) // 8 % 2
        memory[first], memory[first + 1] = buffer, offset
        self = int.__new__(cls, ctypes.addressof(memory) + 8 * first)
        self.memory, self.buffer, self.offset = memory, buffer, offset
        return self

    memory: Any
    buffer: int
    offset: int


class _OpenCL(Framework):
    """Arrays of pyopencl, on whose queue kernels run."""

    name = "pyopencl"

    def __init__(self) -> None:
        self.array = opencl.package("arrays of pyopencl").array

    def look(self, tensors: Iterable[Any]) -> tuple[Key, list[int]]:
        key: list[Any] = []
        pointers: list[int] = []
        for a in tensors:
            key += a.shape, a.dtype, a.queue and a.queue.int_ptr, a.flags.c_contiguous
            pointers.append(_opencl_address(a))
        return tuple(key), pointers

    def describe(self, tensor: Any) -> Description:
        if tensor.queue is None:
            raise WrongTensor("an array of pyopencl has no queue to run kernels on: give it one with with_queue")
        dense = tensor.flags.c_contiguous and tensor.dtype.isnative
        return Description(tensor.shape, tensor.dtype.name, f"opencl:{tensor.context.int_ptr:#x}", dense)

    def place(self, tensor: Any) -> Place:
        queue = tensor.queue
        return Place(_opencl_address, lambda: int(queue.int_ptr), _nothing)

    def maker(self, like: Any, shape: tuple[int, ...], element: str) -> Callable[[], Any]:
        return partial(self.array.Array, like.queue, shape, sessions.numpy_dtype(element))

    def where(self, tensor: Any) -> Any:
        return tensor.queue.int_ptr

    def start(self, pointer: int) -> tuple[object, int]:
        assert isinstance(pointer, _Tensor)
        return pointer.buffer, pointer.offset

    def copy(self, like: Any, array: np.ndarray[Any, Any]) -> Any:
        return self.array.to_device(like.queue, np.array(array, order="C"))

    def host(self, tensor: Any) -> np.ndarray[Any, Any]:
        return np.asarray(tensor.get())


def _opencl_address(a: Any) -> _Tensor:
    return _Tensor(a.base_data.int_ptr if a.size else 0, a.offset)


NUMPY = _Numpy()
_FRAMEWORKS: dict[type, Framework] = {np.ndarray: NUMPY}  #: by type of tensor; grows with the types that are met


def framework_of(tensor: Any) -> Framework | None:
    """The library that a tensor belongs to; None for one of a library that only DLPack makes known."""
    kind = type(tensor)
    framework = _FRAMEWORKS.get(kind)
    if framework is None:
        framework = next((f for f in (_framework(base) for base in kind.__mro__) if f is not None), None)
        if framework is not None:
            _FRAMEWORKS[kind] = framework
    return framework


def _framework(kind: type) -> Framework | None:
    if kind in _FRAMEWORKS:
        return _FRAMEWORKS[kind]
    own: dict[str, Callable[[], Framework]] = {
        "torch.Tensor": _Torch,
        "cupy.ndarray": _Cupy,
        "pyopencl.Array": _OpenCL,
    }
    kind_of_framework = own.get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
    if kind_of_framework is None:
        return None
    _FRAMEWORKS[kind] = kind_of_framework()
    return _FRAMEWORKS[kind]


def as_known_tensor(tensor: Any) -> Any:
    """The tensor itself, or for one of another library a numpy or cupy array of the same memory.

    Raises WrongTensor for what is no tensor, or is on a device that kernels do not run on; ToolMissing without cupy.
    """
    if framework_of(tensor) is not None:
        return tensor
    if not hasattr(tensor, "__dlpack_device__"):
        raise WrongTensor(f"{type(tensor).__name__} is not an array; pass numpy, torch, cupy or DLPack tensors")
    device = int(tensor.__dlpack_device__()[0])
    if device == 1:
        return np.from_dlpack(tensor)
    if device != 2:
        raise WrongTensor(f"tensors on DLPack device {device} are not supported; 1 (CPU) and 2 (CUDA) are")
    cupy = imported("cupy", f"tensors of {type(tensor).__module__.partition('.')[0]}", "pip install 'mirage-cli[gpu]'")
    return cupy.from_dlpack(tensor)


def _address(a: Any) -> int:
    return int(a.__array_interface__["data"][0])


def _aligned(a: Any) -> int:
    return -(-_address(a) // ALIGNMENT) * ALIGNMENT


def _no_stream() -> int:
    return 0


def _nothing() -> None:
    return None
