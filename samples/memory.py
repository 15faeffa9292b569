"""Memory of this process."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


class _Heap(ctypes.Structure):
    """The structure that glibc's mallinfo2 gives."""

    _fields_ = [(f"n{k}", ctypes.c_size_t) for k in range(10)]


def in_use() -> int:
    """Bytes of blocks that are in use in the C library's heap, and, at 64 each, of Python's; 0 where glibc is another."""
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        return 0
    tell.restype = _Heap
    gc.collect()
    heap = tell()
    return int(heap.n4 + heap.n7) + 64 * sys.getallocatedblocks()  # hblkhd: mapped; uordblks: on the heap
