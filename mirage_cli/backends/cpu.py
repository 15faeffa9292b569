"""Commands that compile CPU kernels, once for each instruction set, and link a library without CUDA."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from mirage_cli.backends.compile import CompileJob
from mirage_cli.backends.toolchain import Tool, is_x86_64

FLAGS = (
    "-std=c++17",
    "-O3",
    "-falign-loops=64",  # a product's loop takes a tenth longer in three lines of the cache of decoded instructions
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fvisibility=hidden",
    "-Wall",
)
#: The same for what holds no loop over elements: it compiles in half the time and is called as fast.
TABLE_FLAGS = tuple("-O1" if flag == "-O3" else flag for flag in FLAGS)
#: Instruction sets from the lowest up, as templates/include/mirage/ort_ops.hpp counts them.
ISA_FLAGS = {
    "base": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": (
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-mfma",
        "-mf16c",
        "-mprefer-vector-width=512",
    ),
}
#: Only RegisterCustomOps and the C entry points are seen from outside, nothing is undefined, nothing unused is linked.
LINKER_FLAGS = ("--version-script=exports.map", "-z", "defs", "--as-needed") if sys.platform == "linux" else ()

_SHARED = re.compile(r"^MIRAGE_PRODUCTS\((.*)\)$", re.MULTILINE)  #: as templates/kernel.cpp.j2 prints it


def isas() -> tuple[str, ...]:
    """The instruction sets that this machine's kernels are compiled for, lowest first."""
    return tuple(ISA_FLAGS) if is_x86_64() else ("base",)


def jobs(cxx: Tool, fragment: str) -> list[CompileJob]:
    """The compilations of ID.cpp."""
    return [
        _job(
            cxx,
            fragment,
            f"{fragment}.cpp",
            f"build/{fragment}.{isa}.o",
            (*FLAGS, *ISA_FLAGS[isa], f"-DMIRAGE_ISA={isa}"),
        )
        for isa in isas()
    ]


def shared_jobs(cxx: Tool, source: str) -> list[CompileJob]:
    """The compilations of what the kernels of a library share, as the source of one of them declares it."""
    return [
        _job(
            cxx,
            "products",
            "include/mirage/cpu/products.cpp",
            f"build/products_{re.sub('[^0-9A-Za-z]+', '_', operands).strip('_')}.{isa}.o",
            (*FLAGS, *ISA_FLAGS[isa], f"-DMIRAGE_ISA={isa}", f"-DMIRAGE_SHARED={operands}"),
        )
        for operands in _SHARED.findall(source)
        for isa in isas()
    ]


def library_jobs(cxx: Tool, archs: Sequence[str], others: Sequence[str] = ()) -> list[CompileJob]:
    """The compilations of library.cpp, which holds the operators' tables, and of runtime.cpp, the same in all libraries;
    `archs` are those of its CUDA kernels, if any, `others` the kinds of further ones."""
    cuda = ("-DMIRAGE_WITH_CUDA", f"-DMIRAGE_ARCHS={', '.join(archs)}") if archs else ()
    flags = (*TABLE_FLAGS, "-fno-exceptions", "-fno-rtti", *cuda, *(f"-DMIRAGE_WITH_{o.upper()}" for o in others))
    sources = {"library": "library.cpp", "runtime": "include/mirage/runtime.cpp"}
    return [_job(cxx, name, source, f"build/{name}.o", flags) for name, source in sources.items()]


def link_command(cxx: Tool, objects: Sequence[str], library: str) -> tuple[str, ...]:
    """The command that makes the library of object files.

    Objects of lower instruction sets come first: of an inline function that several objects hold, the linker keeps
    the first, and that one must run everywhere.
    """
    flags = (f"-Wl,{','.join(LINKER_FLAGS)}",) if LINKER_FLAGS else ()
    return (*cxx.command, *cxx.compile_flags, "-shared", "-fPIC", *flags, *objects, *cxx.link_flags, "-o", library)


def _job(cxx: Tool, fragment: str, source: str, target: str, flags: Sequence[str]) -> CompileJob:
    command = (*cxx.command, *cxx.compile_flags, *flags, "-Iinclude", "-c", source, "-o", target)
    return CompileJob(fragment, source, target, command, cxx.version, len(cxx.command) + len(cxx.compile_flags))
