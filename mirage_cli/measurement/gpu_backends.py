"""Backends of a GPU for `gpu`, by torch or by cupy: memory, one stream, graphs and events. Both are imported when
used."""

from __future__ import annotations

import contextlib
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mirage_cli.errors import MirageError, ToolMissing
from mirage_cli.lax.dtypes import DType
from mirage_cli.machine import devices
from mirage_cli.machine.packages import imported
from mirage_cli.runtime.sessions import element_name

Work = Callable[[int], object]
HINT = "pip install torch (a build for the driver's CUDA), or: pip install 'mirage-cli[gpu]' (cupy)"
POISON = 0xFF  #: a byte of which every floating-point element is NaN
LEAD_BYTES = 512 << 20  #: read before a sample: the host has put all work on the stream when the first event comes, and
#: the cache holds nothing of it
_INTEGERS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


def opened(number: int) -> GpuBackend:
    """A backend for GPU `number`: torch, or cupy where there is no torch with CUDA.

    Raises ToolMissing, with the command that installs one, where there is neither, or no GPU; UsageError for a number
    that does not exist; MirageError where the GPU fails, for example since others have all of its memory.
    """
    devices.device(number)
    problems = []
    for kind in (TorchBackend, CupyBackend):
        try:
            return kind(number)
        except ToolMissing as e:
            problems.append(str(e))
        except Exception as e:
            raise kind.failure(e) from e
    raise ToolMissing(f"timing on a GPU needs torch or cupy: {'; '.join(problems)}", HINT)


class Tensors(Protocol):
    """A tensor in device memory, once for each set (`gpu_entry.Sets`)."""

    memory: Memory
    dtype: DType
    shape: tuple[int, ...]
    stride: int


class Memory:
    """Bytes on a GPU. `array` is the framework's array of them, `pointer` their address, aligned to 256."""

    def __init__(self, array: Any, pointer: int, size: int) -> None:
        self.array, self.pointer, self.size = array, pointer, size


class GpuBackend(ABC):
    """Shared by the backends: everything that is not a framework's own call."""

    package: str
    name: str
    cache: int

    @abstractmethod
    def stream(self) -> contextlib.AbstractContextManager[int]:
        """Makes the timing stream the current one; its address."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the stream."""

    @abstractmethod
    def capture(self, work: Work) -> Any:
        """Record work as a graph."""

    @abstractmethod
    def sample(self, graph: Any) -> float:
        """Microseconds of one replay, by events."""

    @abstractmethod
    def spacer(self, stream: int) -> None:
        """An ordinary kernel of one thread."""

    @abstractmethod
    def memory(self, size: int) -> Memory:
        """New bytes, at least one of them."""

    @abstractmethod
    def fill(self, memory: Memory, byte: int) -> None:
        """Give every byte one value."""

    @abstractmethod
    def view(self, memory: Memory, type_name: str) -> Any:
        """The bytes as the framework's array of a numpy type."""

    @abstractmethod
    def write(self, memory: Memory, offset: int, data: NDArray[Any]) -> None:
        """Copy an array's bytes to the device."""

    @abstractmethod
    def read(self, memory: Memory, offset: int, size: int) -> NDArray[np.uint8]:
        """Copy bytes from the device."""

    @abstractmethod
    def normal(self, memory: Memory, dtype: DType, std: float, seed: int, mean: float = 0.0) -> None:
        """Fill with normal random numbers of a floating-point type."""

    def run(self, work: Work) -> None:
        """Do work on the stream and wait for it."""
        with self.failures(), self.stream() as pointer:
            work(pointer)
            self.synchronize()

    def checksum(self, memory: Memory) -> int:
        """A number that depends on all bytes (of a multiple of 8)."""
        return int(self.view(memory, "int64").sum())

    def poisoned(self, memory: Memory, width: int) -> int:
        """Number of elements of `width` bytes that have nothing but poison."""
        return int((self.view(memory, _INTEGERS[width]) == -1).sum())

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """A context in which what the framework raises becomes a MirageError."""
        try:
            yield
        except MirageError:
            raise
        except Exception as e:
            raise self.failure(e) from e

    @classmethod
    def failure(cls, raised: Exception) -> MirageError:
        """The error to show for what a framework raised; frameworks have no common base."""
        if isinstance(raised, MirageError):
            return raised
        said = str(raised).splitlines()[:1]
        return MirageError(f"{cls.package} failed: {': '.join([type(raised).__name__, *said])}")


class TorchBackend(GpuBackend):
    """By torch, which must be a build with CUDA."""

    package = "torch"

    def __init__(self, number: int) -> None:
        self.torch = imported("torch", "timing on a GPU", HINT)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it says of a driver that does not fit is said below
            usable = self.torch.cuda.is_available()
        if not usable:
            own = self.torch.version.cuda
            built = f"it is built for CUDA {own}" if own else "it is built without CUDA"
            raise ToolMissing(f"torch cannot use CUDA here ({built}, {devices.driver()})", HINT)
        self.device = self.torch.device("cuda", number)
        self.torch.cuda.set_device(self.device)
        self.timing = self.torch.cuda.Stream(self.device)
        self.name = f"torch {self.torch.__version__}"
        cache_bytes = getattr(self.torch.cuda.get_device_properties(number), "L2_cache_size", 0)
        self.cache = int(cache_bytes) or devices.cache_bytes("cuda")
        self._one = self.torch.zeros(1, device=self.device)
        self._lead = self.torch.zeros(LEAD_BYTES // 4, device=self.device)

    @contextlib.contextmanager
    def stream(self) -> Iterator[int]:
        """Makes the timing stream the current one."""
        self.timing.wait_stream(self.torch.cuda.default_stream(self.device))
        with self.torch.cuda.stream(self.timing):
            yield int(self.timing.cuda_stream)

    def synchronize(self) -> None:
        """Wait for everything on the device, other streams too."""
        self.torch.cuda.synchronize(self.device)

    def capture(self, work: Work) -> Any:
        """Record work as a graph, kept together with what the work returned: its memory is the graph's."""
        with self.failures():
            self.synchronize()
            graph = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.stream(self.timing):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    kept = work(int(self.timing.cuda_stream))
                except BaseException:
                    with contextlib.suppress(RuntimeError):
                        graph.capture_end()
                    raise
                graph.capture_end()
            return graph, kept

    def sample(self, graph: Any) -> float:
        """Microseconds of one replay, by events."""
        with self.failures(), self.stream():
            start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._lead.sum()
            start.record(self.timing)
            graph[0].replay()
            end.record(self.timing)
            self.synchronize()
            return float(start.elapsed_time(end)) * 1e3

    def spacer(self, stream: int) -> None:
        """An ordinary kernel of one thread."""
        self._one.add_(1)

    def memory(self, size: int) -> Memory:
        """New bytes."""
        with self.failures():
            array = self.torch.empty(max(size, 1), dtype=self.torch.uint8, device=self.device)
            return Memory(array, int(array.data_ptr()), size)

    def fill(self, memory: Memory, byte: int) -> None:
        """Give every byte one value."""
        with self.failures():
            memory.array.fill_(byte)
            self.synchronize()

    def view(self, memory: Memory, type_name: str) -> Any:
        """The bytes as a tensor."""
        return memory.array.view(getattr(self.torch, type_name))

    def write(self, memory: Memory, offset: int, data: NDArray[Any]) -> None:
        """Copy an array's bytes to the device."""
        raw = np.array(data, order="C").reshape(-1).view(np.uint8)
        with self.failures():
            memory.array[offset : offset + raw.size] = self.torch.from_numpy(raw).to(self.device)
            self.synchronize()

    def read(self, memory: Memory, offset: int, size: int) -> NDArray[np.uint8]:
        """Copy bytes from the device."""
        with self.failures():
            self.synchronize()
            return np.asarray(memory.array[offset : offset + size].cpu().numpy())

    def normal(self, memory: Memory, dtype: DType, std: float, seed: int, mean: float = 0.0) -> None:
        """Fill with normal random numbers of a floating-point type."""
        with self.failures():
            random = self.torch.Generator(self.device).manual_seed(seed)
            values = self.view(memory, element_name(dtype))
            values.normal_(mean, std, generator=random)
            self.synchronize()

    def tensor(self, sets: Tensors, number: int) -> Any:
        """The torch tensor of a set, on the same memory."""
        start = number * sets.stride // sets.dtype.bytes
        return self.view(sets.memory, element_name(sets.dtype))[start : start + math.prod(sets.shape)].view(sets.shape)

    def host(self, tensor: Any, kind: np.dtype[Any]) -> NDArray[Any]:
        """A tensor's elements as an array of its type; bfloat16 as that of ml_dtypes."""
        if tensor.dtype == self.torch.bfloat16:
            return np.asarray(tensor.contiguous().view(self.torch.uint16).cpu().numpy()).view(kind)
        return np.asarray(tensor.cpu().numpy())


class CupyBackend(GpuBackend):
    """By cupy."""

    package = "cupy"

    def __init__(self, number: int) -> None:
        self.cupy = imported("cupy", "timing on a GPU", HINT)
        try:
            self.cupy.cuda.Device(number).use()
            properties = self.cupy.cuda.runtime.getDeviceProperties(number)
        except Exception as e:  # as above
            raise ToolMissing(f"cupy cannot use CUDA here: {e} ({devices.driver()})", HINT) from None
        self.timing = self.cupy.cuda.Stream(non_blocking=True)
        self.name = f"cupy {self.cupy.__version__}"
        self.cache = int(properties.get("l2CacheSize", 0)) or devices.cache_bytes("cuda")
        self._one = self.cupy.zeros(1, np.float32)
        self._lead = self.cupy.zeros(LEAD_BYTES // 4, np.float32)
        self.cupy.cuda.Device().synchronize()

    @contextlib.contextmanager
    def stream(self) -> Iterator[int]:
        """Makes the timing stream the current one."""
        with self.timing:
            yield int(self.timing.ptr)

    def synchronize(self) -> None:
        """Wait for everything on the device, other streams too."""
        self.cupy.cuda.Device().synchronize()

    def capture(self, work: Work) -> Any:
        """Record work as a graph, kept together with what the work returned."""
        with self.failures(), self.stream() as pointer:
            self.synchronize()
            self.timing.begin_capture()
            try:
                kept = work(pointer)
            except BaseException:
                with contextlib.suppress(self.cupy.cuda.runtime.CUDARuntimeError):
                    self.timing.end_capture()
                raise
            return self.timing.end_capture(), kept

    def sample(self, graph: Any) -> float:
        """Microseconds of one replay, by events."""
        with self.failures(), self.stream():
            start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
            self._lead.sum()
            start.record(self.timing)
            graph[0].launch(self.timing)
            end.record(self.timing)
            self.synchronize()
            return float(self.cupy.cuda.get_elapsed_time(start, end)) * 1e3

    def spacer(self, stream: int) -> None:
        """An ordinary kernel of one thread."""
        self.cupy.add(self._one, np.float32(1), out=self._one)

    def memory(self, size: int) -> Memory:
        """New bytes."""
        with self.failures():
            array = self.cupy.empty(max(size, 1), np.uint8)
            return Memory(array, int(array.data.ptr), size)

    def fill(self, memory: Memory, byte: int) -> None:
        """Give every byte one value."""
        with self.failures():
            memory.array.fill(byte)
            self.synchronize()

    def view(self, memory: Memory, type_name: str) -> Any:
        """The bytes as an array."""
        return memory.array.view(type_name)

    def write(self, memory: Memory, offset: int, data: NDArray[Any]) -> None:
        """Copy an array's bytes to the device."""
        raw = np.array(data, order="C").reshape(-1).view(np.uint8)
        with self.failures():
            memory.array[offset : offset + raw.size] = self.cupy.asarray(raw)
            self.synchronize()

    def read(self, memory: Memory, offset: int, size: int) -> NDArray[np.uint8]:
        """Copy bytes from the device."""
        with self.failures():
            self.synchronize()
            return np.asarray(self.cupy.asnumpy(memory.array[offset : offset + size]))

    def normal(self, memory: Memory, dtype: DType, std: float, seed: int, mean: float = 0.0) -> None:
        """Fill with normal random numbers; bfloat16, which cupy lacks, by rounding the bits of float32."""
        with self.failures():
            random = self.cupy.random.RandomState(seed)
            wide = random.standard_normal(
                memory.size // dtype.bytes, dtype=np.float64 if dtype.bytes == 8 else np.float32
            )
            wide = wide * std + mean
            if dtype.name == "bf16":
                bits = wide.view(np.uint32)
                self.view(memory, "uint16")[...] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            else:
                self.view(memory, element_name(dtype))[...] = wide
            self.synchronize()
