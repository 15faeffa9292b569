"""Kernels on an OpenCL device: sources compiled into one library, and called on buffers of the device."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_cli.codegen.render import include_dir
from mirage_cli.lax import extents
from mirage_cli.lax.dtypes import packed
from mirage_cli.machine import opencl
from mirage_cli.runtime import sessions
from tests.codegen.kernels import Case

pytest.importorskip("pyopencl")
cl = opencl.package("tests")


OFFSET = 256  #: bytes in front of a tensor in its buffer
MESSAGE = 'extern "C" const char* mirage_test_message() { return mirage::opencl::message(); }\n'


class Tensor(ctypes.Structure):
    _fields_ = (("buffer", ctypes.c_void_p), ("offset", ctypes.c_size_t))


class Library:
    """Sources as one shared object."""

    def __init__(self, sources: Sequence[str], path: Path) -> None:
        (path / "all.cpp").write_text("\n".join([*sources, MESSAGE]))
        command = ["g++", "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{include_dir()}"]
        subprocess.run([*command, str(path / "all.cpp"), "-o", str(path / "all.so"), "-ldl"], check=True)
        self.library = ctypes.CDLL(str(path / "all.so"))
        self.library.mirage_test_message.restype = ctypes.c_char_p
        self.context = cl.create_some_context(interactive=False)
        self.queue = cl.CommandQueue(self.context)

    def run(self, case: Case, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The outputs of a case; inputs do not begin where their buffers do. Raises RuntimeError with what failed."""
        types = [s.dtype for s in case.program.sources]
        arrays = [packed(a, t) if t.per_byte > 1 else a for a, t in zip(arrays, types, strict=True)]
        outputs = [
            np.full([extents.value(e, case.symbols) for e in o.dims], 77, sessions.numpy_type(o.dtype))
            for o in case.program.outputs
        ]
        buffers = [self.buffer(a) for a in (*arrays, *outputs)]
        sizes = (ctypes.c_int64 * max(1, len(case.symbols)))(*case.symbols.values())
        workspace = getattr(self.library, f"mirage_{case.name}_workspace_opencl")(sizes)
        scratch = Tensor(cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(1, workspace)).int_ptr, 0)
        places = [ctypes.cast(ctypes.pointer(Tensor(b.int_ptr, OFFSET)), ctypes.c_void_p) for b in buffers]
        given, taken = places[: len(arrays)], places[len(arrays) :]
        status = getattr(self.library, f"mirage_{case.name}_opencl")(
            (ctypes.c_void_p * len(given))(*given),
            (ctypes.c_void_p * len(taken))(*taken),
            ctypes.byref(scratch),
            sizes,
            ctypes.c_void_p(self.queue.int_ptr),
        )
        if status:
            raise RuntimeError(self.library.mirage_test_message().decode())
        for o, b in zip(outputs, buffers[len(arrays) :], strict=True):
            cl.enqueue_copy(self.queue, o, b, src_offset=OFFSET)
        self.queue.finish()
        return outputs

    def buffer(self, array: NDArray[Any]) -> Any:
        """A buffer that holds an array behind its first bytes."""
        buffer = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, OFFSET + max(1, array.nbytes))
        if array.nbytes:
            cl.enqueue_copy(self.queue, buffer, np.ascontiguousarray(array), dst_offset=OFFSET)
        return buffer
