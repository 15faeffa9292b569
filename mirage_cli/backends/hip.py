"""The command that compiles a HIP source, for all architectures at once, with a clang that has AMD's back end. ROCm is not
needed: headers and functions are ours, and libamdhip64 is found when a kernel starts."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from mirage_cli.backends.compile import CompileJob
from mirage_cli.backends.toolchain import VERSION_SECONDS, Tool, Toolchain
from mirage_cli.errors import ToolMissing
from mirage_cli.files.staging import Scratch
from mirage_cli.processes import programs
from mirage_cli.search.schedules.architectures import architectures

LINK = ("-ldl",)
HINT = "Debian, Ubuntu: apt install clang-19 clang-tools-19 lld-19; or ROCm's clang; or set $HIP_CLANG"
PLACES = ("/opt/rocm/llvm/bin", *(f"/usr/lib/llvm-{n}/bin" for n in range(24, 16, -1)))  #: 17 is the first with gfx942
FLAGS = (
    "-x",
    "hip",
    "-std=c++17",
    "-O3",
    "-nogpuinc",
    "-nogpulib",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
)
_PROBE = "__attribute__((global)) void kernel(float* x) { *x = 1.0f; }\n"


def jobs(toolchain: Toolchain, fragment: str) -> list[CompileJob]:
    """The compilation of ID.hip. Raises ToolMissing without such a clang."""
    clang, source, target = find(), f"{fragment}.hip", f"build/{fragment}.hip.o"
    command = (*clang.command, *FLAGS, *offloads(), "-Iinclude", "-c", source, "-o", target)
    return [CompileJob(fragment, source, target, command, clang.version)]


def offloads() -> tuple[str, ...]:
    """An option for each architecture."""
    return tuple(f"--offload-arch={a}" for a in architectures("hip"))


@functools.cache
def find() -> Tool:
    """A clang that makes device code, or ToolMissing with what was tried: $HIP_CLANG, then ROCm's and Debian's folders, then
    the path. The device code of a library is bundled by a program beside it."""
    tried = []
    for command, origin in _candidates():
        with Scratch("mirage-") as folder:
            (folder / "probe.hip").write_text(_PROBE)
            # without start-up code, which needs ROCm's functions
            flags = (*FLAGS, *offloads(), "--cuda-device-only", "-c", "probe.hip", "-o", "probe.o")
            outcome = programs.run((*command, *flags), folder, VERSION_SECONDS)
            said = programs.run((*command, "--version"), folder, VERSION_SECONDS)
        if outcome.problem is None and said.problem is None:
            return Tool(command, said.output.strip().splitlines()[0], origin)
        tried.append("; ".join([shlex.join(command), *programs.error_lines(outcome.output, 1)]))
    raise ToolMissing("no clang that compiles HIP was found" + "".join(f"; {t}" for t in tried), HINT)


def _candidates() -> Iterator[tuple[tuple[str, ...], str]]:
    if chosen := shlex.split(os.environ.get("HIP_CLANG", "")):
        yield tuple(chosen), "$HIP_CLANG"
        return
    for place in PLACES:
        if (clang := Path(place) / "clang++").is_file():
            yield (str(clang),), place
    if programs.which("clang++"):
        yield ("clang++",), "PATH"
