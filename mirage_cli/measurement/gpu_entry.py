"""C entry points of a library on sets of tensors in device memory, as subjects of `gpu.honest`.

timer = GpuTimer(0)
entry = Entry(timer.backend, library, spec, shapes, sets)
entry.draw(seed)
timer.times({"a": entry.call, ...}, sets)
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mirage_cli.backends.spec import OperatorSpec
from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import DType
from mirage_cli.measurement.gpu_backends import POISON, GpuBackend, Memory
from mirage_cli.numerics.accuracy import Accuracy, compare
from mirage_cli.runtime import sessions

Array = NDArray[Any]
#: for the number of a set, each output: what the original makes of it and the float64 result
Wanted: TypeAlias = Callable[[int], Sequence[tuple[Array, NDArray[np.float64]]]]
_ALIGNED = 256


class Sets:
    """A tensor in device memory, once for each set: dense, each at an address of its own, aligned to 256 bytes."""

    def __init__(self, backend: GpuBackend, dtype: DType, shape: Sequence[int], sets: int) -> None:
        self.backend, self.dtype, self.shape, self.sets = backend, dtype, tuple(shape), sets
        self.size = math.prod(self.shape) * dtype.bytes
        self.stride = -(-self.size // _ALIGNED) * _ALIGNED
        self.memory: Memory = backend.memory(self.stride * sets)

    def pointer(self, number: int) -> int:
        """The address of the tensor of a set."""
        return self.memory.pointer + number * self.stride

    def draw(self, seed: int, std: float = 1.0, mean: float = 0.0) -> None:
        """Normal random numbers, different ones in every set; small integers where the type is none of floats."""
        if self.dtype.is_float:
            self.backend.normal(self.memory, self.dtype, std, seed, mean)
            return
        random = np.random.default_rng(seed)
        for k in range(self.sets):
            self.put(k, random.integers(0, 2 if self.dtype.kind == "bool" else 4, self.shape))

    def put(self, number: int, array: Array) -> None:
        """Give the tensor of a set the elements of an array."""
        data = np.asarray(array, sessions.numpy_type(self.dtype)).reshape(self.shape)
        self.backend.write(self.memory, number * self.stride, data)

    def get(self, number: int) -> Array:
        """The tensor of a set as an array on the host."""
        raw = self.backend.read(self.memory, number * self.stride, self.size)
        return raw.view(sessions.numpy_type(self.dtype)).reshape(self.shape)

    def poison(self) -> None:
        """Overwrite everything with NaN, integers with -1."""
        self.backend.fill(self.memory, POISON)

    def unwritten(self) -> int:
        """Number of elements, of all sets, that are still poison."""
        padding = (self.stride - self.size) // self.dtype.bytes * self.sets
        return self.backend.poisoned(self.memory, self.dtype.bytes) - padding


class Entry:
    """A fragment's kernel with inputs and outputs for each set, and the workspace it asks for."""

    def __init__(
        self,
        backend: GpuBackend,
        library: Path,
        spec: OperatorSpec,
        inputs: Sequence[Sets],
        outputs: Sequence[Sets],
        workspace: Memory | None = None,
    ) -> None:
        """Raises Refused where the library lacks the kernel, the kernel refuses the shapes or they do not fit `spec`."""
        self.backend, self.spec, self.inputs, self.outputs = backend, spec, tuple(inputs), tuple(outputs)
        symbols = spec.solve([t.shape for t in inputs])
        values = [symbols[name] for name in spec.symbols]
        self._extents = (ctypes.c_int64 * len(values))(*values) if values else None
        self._loaded = ctypes.CDLL(str(sessions.check_library(library)))
        size = self._function("_workspace", ctypes.c_int64, 1)(self._extents)
        if size < 0:
            raise Refused(f"{spec.op_type}: the kernel refused these shapes")
        self.workspace = workspace or (backend.memory(size) if size else None)
        if self.workspace is not None:
            backend.fill(self.workspace, POISON)  # a kernel may not rely on what it finds there
        self._kernel = self._function("", ctypes.c_int, 5)
        sets = min(t.sets for t in (*inputs, *outputs))
        self._in = [(ctypes.c_void_p * len(inputs))(*(t.pointer(k) for t in inputs)) for k in range(sets)]
        self._out = [(ctypes.c_void_p * len(outputs))(*(t.pointer(k) for t in outputs)) for k in range(sets)]

    def __len__(self) -> int:
        """The number of sets."""
        return len(self._in)

    def call(self, number: int, stream: int) -> None:
        """Put the kernel for one set on a stream. Raises MirageError when it reports a CUDA error."""
        place = self.workspace.pointer if self.workspace is not None else None
        code = self._kernel(self._in[number], self._out[number], place, self._extents, stream)
        if code != 0:
            raise sessions.cuda_failure(self._loaded, self.spec.op_type, code)

    def _function(self, suffix: str, result: type[Any], pointers: int) -> Any:
        try:
            function = getattr(self._loaded, f"mirage_{self.spec.id}{suffix}")
        except AttributeError:
            raise Refused(f"{self.spec.op_type}: the library holds no CUDA kernel of it") from None
        function.restype, function.argtypes = result, [ctypes.c_void_p] * pointers
        return function


def entry(
    backend: GpuBackend,
    library: Path,
    spec: OperatorSpec,
    shapes: Sequence[Sequence[int]],
    sets: int,
    seed: int,
    std: float = 0.125,
) -> Entry:
    """An entry point with inputs of the given shapes, drawn with the standard deviation `std`, and poisoned outputs."""
    symbols = spec.solve(shapes)
    inputs = [Sets(backend, t.dtype, s, sets) for t, s in zip(spec.inputs, shapes, strict=True)]
    outputs = [Sets(backend, t.dtype, [ex.value(d, symbols) for d in t.dims], sets) for t in spec.outputs]
    for i, tensor in enumerate(inputs):
        tensor.draw(seed + i, std)
    for tensor in outputs:
        tensor.poison()
    return Entry(backend, library, spec, inputs, outputs)


class Judged:
    """Calls with the tensors that they read and write, and what is right: a subject for `gpu.honest`.

    `call` makes the calls of one set; `wanted` gives the right outputs of a set. The sets `compared` are, all elements or
    those at `positions` of each output; in all sets every element must have been written, and no input may change.
    """

    def __init__(
        self,
        call: Callable[[int, int], object],
        inputs: Sequence[Sets],
        outputs: Sequence[Sets],
        wanted: Wanted,
        compared: Sequence[int],
        positions: Sequence[NDArray[np.int64] | None] | None = None,
    ) -> None:
        self.call = call
        self._positions = positions or [None] * len(outputs)
        self._inputs, self._outputs, self._wanted, self._compared = inputs, outputs, wanted, compared
        self._sums = [t.backend.checksum(t.memory) for t in inputs]

    def poison(self) -> None:
        """Overwrite all outputs with NaN."""
        for t in self._outputs:
            t.poison()

    def verdict(self) -> Accuracy:
        """The worst accuracy of the compared sets; not passed where an element was not written or an input changed."""
        for k, (tensor, before) in enumerate(zip(self._inputs, self._sums, strict=True)):
            if tensor.backend.checksum(tensor.memory) != before:
                return Accuracy(False, np.inf, 0.0, np.inf, 0.0, f"input {k} was changed")
        for k, tensor in enumerate(self._outputs):
            count = tensor.unwritten()
            if count:
                return Accuracy(False, np.inf, 0.0, np.inf, 0.0, f"{count} elements of output {k} were not written")
        accuracies = [
            compare(tensor.get(k) if p is None else tensor.get(k).reshape(-1)[p], original, right, tensor.dtype)
            for k in self._compared
            for tensor, p, (original, right) in zip(self._outputs, self._positions, self._wanted(k), strict=True)
        ]
        return max(accuracies, key=lambda a: (not a.passed, a.rmse / (a.original_rmse + 1e-30)))
