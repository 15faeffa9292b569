"""Commands that compile CUDA kernels, each for all architectures at once, and link a library that holds them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mirage_cli.backends.compile import CompileJob
from mirage_cli.backends.cpu import LINKER_FLAGS
from mirage_cli.backends.toolchain import Tool
from mirage_cli.errors import UsageError

FLAGS = ("-std=c++17", "-O3", "-Xcompiler", "-fPIC,-fvisibility=hidden")
#: Without these, names of temporary files are left in objects and libraries, which then differ from build to build.
SAME_OBJECT, SAME_LIBRARY = "--objdir-as-tempdir", "--no-device-link"


def jobs(nvcc: Tool, fragment: str, archs: Sequence[str]) -> list[CompileJob]:
    """The compilation of ID.cu."""
    source, target = f"{fragment}.cu", f"build/{fragment}.cuda.o"
    flags = (*FLAGS, SAME_OBJECT, *arch_flags(archs))
    command = (*nvcc.command, *nvcc.compile_flags, *flags, "-Iinclude", "-c", source, "-o", target)
    own = len(nvcc.command) + len(nvcc.compile_flags)
    return [CompileJob(fragment, source, target, command, nvcc.version, own)]


def link_command(nvcc: Tool, objects: Sequence[str], library: str, archs: Sequence[str]) -> tuple[str, ...]:
    """The command that makes the library; CUDA's run time is linked statically, so it loads where there is no CUDA."""
    linker = [part for flag in LINKER_FLAGS for part in ("-Xlinker", flag)]
    shared = ("-shared", "-Xcompiler", "-fPIC", "-cudart", "static", SAME_LIBRARY, *arch_flags(archs))
    return (*nvcc.command, *shared, *linker, *objects, *nvcc.link_flags, "-o", library)


def arch_flags(archs: Sequence[str]) -> tuple[str, ...]:
    """One -gencode for each architecture, such as sm_90a; with code that newer devices' drivers translate, where the
    architecture's features are theirs too (sm_90a's are not)."""
    flags: list[str] = []
    for arch in archs:
        match = re.fullmatch(r"sm_(\d{2,3}[af]?)", arch)
        if match is None:
            raise UsageError(f"{arch!r} is not a CUDA architecture", "name one such as sm_80 or sm_90a")
        name = match[1]
        code = f"sm_{name}" if name[-1].isalpha() else f"[sm_{name},compute_{name}]"
        flags += ["-gencode", f"arch=compute_{name},code={code}"]
    return tuple(flags)
