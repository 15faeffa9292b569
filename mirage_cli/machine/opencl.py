"""OpenCL platforms and devices, by pyopencl (extra `opencl`)."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

from mirage_cli.errors import UsageError
from mirage_cli.machine.packages import imported

COMMAND = "pip install 'mirage-cli[opencl]'"
LIBRARY = (
    "MIRAGE_OPENCL_LIBRARY"  #: the libOpenCL that kernels use; pyopencl brings its own, which need not be the system's
)
DEVICE = "MIRAGE_OPENCL"  #: PLATFORM:DEVICE on which operators in onnxruntime run, or `off`


def package(purpose: str) -> Any:
    """pyopencl, whose libOpenCL is that of kernels from now on. Raises ToolMissing."""
    cl = imported("pyopencl", purpose, COMMAND)
    importlib.import_module("pyopencl.array")
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return cl
    if LIBRARY not in os.environ and (found := re.search(r"/\S*libOpenCL\S*", maps)):
        os.environ[LIBRARY] = found[0]
    return cl


def described() -> list[str]:
    """The devices as PLATFORM:DEVICE and what is known of each. Raises ToolMissing without pyopencl."""
    return [f"{place}: {_line(device)}" for place, device in _devices(package("OpenCL devices")).items()]


def device(place: str) -> Any:
    """The device PLATFORM:DEVICE, two numbers. Raises UsageError where there is none, ToolMissing without pyopencl."""
    known = _devices(package("OpenCL devices"))
    if place not in known:
        raise UsageError(f"there is no OpenCL device {place!r}", f"devices are {', '.join(known) or 'none'}")
    return known[place]


def _devices(cl: Any) -> dict[str, Any]:
    try:
        platforms = cl.get_platforms()
    except cl.LogicError:  # the loader's word for "none"
        return {}
    return {f"{p}:{d}": device for p, one in enumerate(platforms) for d, device in enumerate(one.get_devices())}


def _line(device: Any) -> str:
    lacks = [
        n for n, extension in (("fp16", "cl_khr_fp16"), ("fp64", "cl_khr_fp64")) if extension not in device.extensions
    ]
    without = f", without {' and '.join(lacks)}" if lacks else ""
    memory = f"{device.local_mem_size // 1024} KiB of local memory"
    return f"{device.name.strip()} of {device.platform.name.strip()}, {device.version.strip()}, {memory}{without}"
