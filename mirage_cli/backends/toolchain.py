"""Finding compilers: a C++17 compiler for the CPU, nvcc for CUDA.

C++: $CXX, then g++, clang++, c++ on the path, then the `ziglang` package (extra `cc`). nvcc: $NVCC, then the path, then
$CUDA_HOME/bin, $CUDA_PATH/bin, /usr/local/cuda/bin, then NVIDIA's wheels (extra `nvcc`). A variable that is set is
obeyed: what it names must work, nothing else is tried. Every compiler is called with a list of arguments, never through
a shell.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mirage_cli.backends import shared_object
from mirage_cli.errors import ToolMissing
from mirage_cli.files.result_store import Kept, key
from mirage_cli.files.staging import Scratch
from mirage_cli.processes import programs

NVCC_AT_LEAST = (12, 0)  # the first that knows sm_90a
USUAL_CUDA = "/usr/local/cuda"
VERSION_SECONDS = 60.0  # for a compiler to say what it is
PROBE_SECONDS = 300.0  # at its first call zig compiles its standard library
_CXX_PROBE = """#include <atomic>
#include <cstdlib>
template <class T> struct S { static inline std::atomic<int> x{0}; };
template <auto value> constexpr int f() { if constexpr (value > 0) return 1; else return 0; }
static_assert(f<1>() == 1, "C++17");
extern "C" int probe() { return S<int>::x + std::abs(-1); }
"""
_CUDA_PROBE = """#include <cuda_fp16.h>
__global__ void kernel(half* x) { *x = __float2half(1.0f); }
extern "C" int probe(half* x) { kernel<<<1, 1>>>(x); return int(cudaGetLastError()); }
"""
_PARTS = ("g++", "as", "ld")  #: programs that compilers call
_OBEYED = ("CPATH", "CPLUS_", "GCC_", "LIBRARY_PATH", "LD_LIBRARY_PATH", "COMPILER_PATH", "NVCC_", "CUDA_", "ZIG_")
_CXX_HINT = "install a C++ compiler (Debian, Ubuntu: apt install g++; else: pip install 'mirage-cli[cc]') or set $CXX"
_NVCC_HINT = "install the CUDA toolkit or pip install 'mirage-cli[nvcc]', or set $NVCC; without it: --target cpu"


@dataclass(frozen=True, slots=True)
class Tool:
    """A compiler that was found to work: how to call it, what it says it is, where it was found."""

    command: tuple[str, ...]
    version: str
    origin: str
    compile_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{shlex.join(self.command)} ({self.version}, from {self.origin})"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The compilers of one build; `nvcc` is None where only the CPU is built for."""

    cxx: Tool
    nvcc: Tool | None = None


@dataclass(frozen=True, slots=True)
class _Candidate:
    command: tuple[str, ...]
    origin: str
    compile_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()


def _tool(candidate: _Candidate, version: str) -> Tool:
    return Tool(candidate.command, version, candidate.origin, candidate.compile_flags, candidate.link_flags)


def find(cuda: bool = True, kept: Kept | None = None) -> Toolchain:
    """The compilers of this machine; with `cuda` also nvcc, or None for it where there is none.

    One that worked in an earlier run, by what is `kept` of it, is asked for its version only. Raises ToolMissing without a
    C++ compiler, and when $NVCC is set and does not work.
    """
    cxx = find_cxx(kept)
    if not cuda:
        return Toolchain(cxx)
    if "NVCC" in os.environ:
        return Toolchain(cxx, find_nvcc(kept))
    try:
        return Toolchain(cxx, find_nvcc(kept))
    except ToolMissing:
        return Toolchain(cxx)


def candidates() -> list[list[str]]:
    """The candidates of `find`, without calling anything: the compilers that it would try, with their files and
    these' age."""
    rows = []
    for candidate in (*_cxx_candidates(), *_nvcc_candidates()):
        program = programs.which(candidate.command[0])
        status = os.stat(program) if program is not None else None
        age = [] if status is None else [str(status.st_mtime_ns), str(status.st_size)]
        rows.append([*candidate.command, *candidate.compile_flags, *candidate.link_flags, program or "", *age])
    return rows


def find_cxx(kept: Kept | None = None) -> Tool:
    """The C++ compiler, or ToolMissing with what was tried."""
    tried: list[str] = []
    for candidate in _cxx_candidates():
        problem, version = _probe_cxx(candidate, kept)
        if problem is None:
            return _tool(candidate, version)
        tried.append(f"{shlex.join(candidate.command)} (from {candidate.origin}): {problem}")
    raise ToolMissing("no C++17 compiler was found" + "".join(f"; {t}" for t in tried), _CXX_HINT)


def find_nvcc(kept: Kept | None = None) -> Tool:
    """nvcc with a host compiler that it can use, or ToolMissing with what was tried."""
    tried: list[str] = []
    for candidate in _nvcc_candidates():
        problem, version = _probe_nvcc(candidate, kept)
        if problem is None:
            return _tool(candidate, version)
        tried.append(f"{shlex.join(candidate.command)} (from {candidate.origin}): {problem}")
    raise ToolMissing("no usable nvcc was found" + "".join(f"; {t}" for t in tried), _NVCC_HINT)


def is_x86_64() -> bool:
    """True if CPU kernels are compiled for several instruction sets of x86-64."""
    return platform.machine().lower() in ("x86_64", "amd64")


def _cxx_candidates() -> Iterator[_Candidate]:
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        yield _Candidate(tuple(chosen), "$CXX")
        return
    for name in ("g++", "clang++", "c++"):
        if programs.which(name):
            yield _Candidate((name,), "PATH")
    if importlib.util.find_spec("ziglang") is not None:
        # Without a named processor zig compiles for the one it runs on.
        flags = ("-mcpu=x86_64",) if is_x86_64() else ()
        yield _Candidate((sys.executable, "-m", "ziglang", "c++"), "the ziglang package", flags, flags)


def _nvcc_candidates() -> Iterator[_Candidate]:
    host = _host_compiler_flags()
    chosen = shlex.split(os.environ.get("NVCC", ""))
    if chosen:
        yield _Candidate(tuple(chosen), "$NVCC", host, host)
        return
    if programs.which("nvcc"):
        yield _Candidate(("nvcc",), "PATH", host, host)
    homes = [(f"${name}", os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for origin, home in [*homes, (USUAL_CUDA, USUAL_CUDA)]:
        nvcc = Path(home) / "bin" / "nvcc"
        if nvcc.is_file():
            yield _Candidate((str(nvcc),), origin, host, host)
    for root in _wheel_roots():
        headers = ("-isystem", str(root / "include"), "-isystem", str(root / "include" / "cccl"))
        yield _Candidate((str(root / "bin" / "nvcc"),), "NVIDIA's wheels", host + headers, (*host, f"-L{root / 'lib'}"))


def _wheel_roots() -> Iterator[Path]:
    """Where NVIDIA's wheels put the toolkit: site-packages/nvidia/cu13."""
    spec = importlib.util.find_spec("nvidia")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for root in sorted(Path(location).glob("cu[0-9]*"), reverse=True):
            if (root / "bin" / "nvcc").is_file():
                yield root


def _host_compiler_flags() -> tuple[str, ...]:
    """nvcc takes g++ from the path; a compiler chosen by $CXX is handed on unless $NVCC_CCBIN says otherwise."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    if len(chosen) == 1 and "NVCC_CCBIN" not in os.environ:
        return ("-ccbin", chosen[0])
    return ()


def _probe_cxx(candidate: _Candidate, kept: Kept | None) -> tuple[str | None, str]:
    """(None, version) for a compiler that builds a C++17 program, else (what is wrong, "")."""
    flags = ("-std=c++17", "-shared", "-fPIC", "probe.cpp", "-o", "probe.so")
    command = candidate.command + candidate.compile_flags
    problem, output = _version(command, _program(candidate))
    if problem is not None:
        return problem, ""
    problem = _builds((*command, *flags), _CXX_PROBE, _program(candidate), output, kept)
    return problem, output.strip().splitlines()[0] if output.strip() else "unknown version"


def _probe_nvcc(candidate: _Candidate, kept: Kept | None) -> tuple[str | None, str]:
    """(None, version) for an nvcc that is new enough and builds a library, else (what is wrong, "")."""
    problem, output = _version(candidate.command, _program(candidate))
    match = re.search(r"release (\d+)\.(\d+)(?:, V(\S+))?", output)
    if problem is not None or match is None:
        return problem or "it does not tell its version", ""
    if (int(match[1]), int(match[2])) < NVCC_AT_LEAST:
        needed = ".".join(map(str, NVCC_AT_LEAST))
        return f"version {match[1]}.{match[2]} is too old, {needed} or newer is needed", ""
    flags = candidate.compile_flags + candidate.link_flags
    options = ("-std=c++17", "-arch=sm_80", "-shared", "-Xcompiler", "-fPIC", "-cudart", "static")
    command = (*candidate.command, *flags, *options, "probe.cu", "-o", "probe.so")
    problem = _builds(command, _CUDA_PROBE, _program(candidate), output, kept)
    return problem, f"nvcc {match[3] or f'{match[1]}.{match[2]}'}"


def _program(candidate: _Candidate) -> str | None:
    return programs.which(candidate.command[0])


@functools.lru_cache(maxsize=16)
def _version(command: tuple[str, ...], _program: str | None) -> tuple[str | None, str]:
    """(what went wrong or None, what a compiler says of itself)."""
    with Scratch("mirage-") as folder:
        return _run((*command, "--version"), folder, VERSION_SECONDS)


def _builds(command: tuple[str, ...], text: str, program: str | None, version: str, kept: Kept | None) -> str | None:
    """The fault of a compiler that is to build a program, or None."""
    if kept is None:
        return _build(command, text, program)
    name = key("compiler", command, text, version, [_file(p) for p in (program, *_PARTS)], _surroundings())
    if kept.get(name):
        return None
    problem = _build(command, text, program)
    if problem is None:
        kept.put(name, True)
    return problem


@functools.lru_cache(maxsize=16)
def _build(command: tuple[str, ...], text: str, _program: str | None) -> str | None:
    with Scratch("mirage-") as folder:
        source = next(word for word in command if word.startswith("probe.") and not word.endswith(".so"))
        (folder / source).write_text(text)
        problem, _ = _run(command, folder, PROBE_SECONDS)
        return problem or shared_object.problem(folder / "probe.so")


def _file(program: str | None) -> list[str | int]:
    """The identity of a program, which tells it from the one that was there before."""
    place = None if program is None else programs.which(program)
    if place is None:
        return []
    path = os.path.realpath(place)
    status = os.stat(path)
    return [path, status.st_ino, status.st_size, status.st_mtime_ns]


def _surroundings() -> list[tuple[str, str]]:
    """The variables that compilers obey."""
    return sorted((k, v) for k, v in os.environ.items() if k == "PATH" or k.startswith(_OBEYED))


def _run(command: tuple[str, ...], folder: Path, seconds: float) -> tuple[str | None, str]:
    """(what went wrong or None, output) of a short command."""
    outcome = programs.run(command, folder, seconds)
    if outcome.problem is None:
        return None, outcome.output
    return ": ".join([outcome.problem, *programs.error_lines(outcome.output, 1)]), outcome.output
