"""A device for tests: memory is the host's, work takes the time that it says, a graph does its work at every replay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax.dtypes import DType
from mirage_cli.measurement.gpu_backends import GpuBackend, Memory, Work
from mirage_cli.runtime.sessions import numpy_type

STREAM = 77


class FakeBackend(GpuBackend):
    package = "fake"
    name = "fake 1"
    cache = 1 << 20

    def __init__(self) -> None:
        self.us = 0.0  # spent by the work that runs now
        self.log: list[str] = []

    def spend(self, us: float, name: str = "") -> None:
        """What a contestant's work does."""
        self.us += us
        self.log.append(name)

    @contextlib.contextmanager
    def stream(self) -> Iterator[int]:
        yield STREAM

    def synchronize(self) -> None:
        pass

    def capture(self, work: Work) -> Any:
        return work

    def sample(self, graph: Any) -> float:
        self.us = 0.0
        graph(STREAM)
        return self.us

    def spacer(self, stream: int) -> None:
        self.spend(1.5, "|")

    def memory(self, size: int) -> Memory:
        array = np.empty(max(size, 1) + 256, np.uint8)
        start = -array.ctypes.data % 256
        array = array[start : start + max(size, 1)]
        return Memory(array, array.ctypes.data, size)

    def fill(self, memory: Memory, byte: int) -> None:
        memory.array.fill(byte)

    def view(self, memory: Memory, type_name: str) -> Any:
        return memory.array.view(type_name)

    def write(self, memory: Memory, offset: int, data: NDArray[Any]) -> None:
        raw = np.array(data, order="C").reshape(-1).view(np.uint8)
        memory.array[offset : offset + raw.size] = raw

    def read(self, memory: Memory, offset: int, size: int) -> NDArray[np.uint8]:
        return np.array(memory.array[offset : offset + size])

    def normal(self, memory: Memory, dtype: DType, std: float, seed: int, mean: float = 0.0) -> None:
        values = memory.array.view(numpy_type(dtype))
        values[...] = np.random.default_rng(seed).normal(mean, std, values.shape)
