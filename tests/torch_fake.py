"""A device for tests that is torch on the CPU: everything but time is as on a GPU. Import it only where torch is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.measurement.gpu_backends import Memory, TorchBackend, Work

STREAM = 77


class CpuTorch(TorchBackend):
    name = "torch on the CPU"
    cache = 1 << 12

    def __init__(self) -> None:
        import torch

        self.torch, self.device = torch, torch.device("cpu")

    @contextlib.contextmanager
    def stream(self) -> Iterator[int]:
        yield STREAM

    def synchronize(self) -> None:
        pass

    def capture(self, work: Work) -> Any:
        return work

    def sample(self, graph: Any) -> float:
        graph(STREAM)
        return 5000.0

    def spacer(self, stream: int) -> None:
        pass

    def memory(self, size: int) -> Memory:
        array = self.torch.empty(max(size, 1) + 256, dtype=self.torch.uint8)
        array = array[-array.data_ptr() % 256 :][: max(size, 1)]
        return Memory(array, array.data_ptr(), size)

    def read(self, memory: Memory, offset: int, size: int) -> NDArray[np.uint8]:
        return np.array(memory.array[offset : offset + size].numpy())
