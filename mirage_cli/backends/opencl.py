"""The command that compiles the host's part of an OpenCL source; the kernels in it are for the device's own compiler."""

from __future__ import annotations

from mirage_cli.backends.compile import CompileJob
from mirage_cli.backends.cpu import TABLE_FLAGS
from mirage_cli.backends.toolchain import Toolchain

LINK = ("-ldl", "-pthread")


def jobs(toolchain: Toolchain, fragment: str) -> list[CompileJob]:
    """The compilation of ID.opencl."""
    cxx, source, target = toolchain.cxx, f"{fragment}.opencl", f"build/{fragment}.opencl.o"
    flags = (*TABLE_FLAGS, "-fno-exceptions", "-fno-rtti", "-Iinclude", "-x", "c++", "-c", source, "-o", target)
    own = (*cxx.command, *cxx.compile_flags)
    return [CompileJob(fragment, source, target, (*own, *flags), cxx.version, len(own))]
