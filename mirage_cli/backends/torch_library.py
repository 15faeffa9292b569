"""libmirage_torch.so: the operators of an output folder for PyTorch, registered when the library is loaded.

It calls the C entry points of libmirage.so in the same folder. PyTorch is needed neither to compile nor to link it (see
docs/decisions/0013): its stable C interface is looked up in the process that loads the library.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from mirage_cli.backends import cpu
from mirage_cli.backends.compile import TIMEOUT, run_command
from mirage_cli.backends.library import describe
from mirage_cli.backends.spec import OperatorSpec
from mirage_cli.backends.toolchain import Tool
from mirage_cli.codegen import render

LIBRARY = "libmirage_torch.so"
SOURCE = "torch_library.cpp"
DOMAIN = "mirage"  #: of torch.ops


def schema(op: OperatorSpec) -> str:
    """An operator's declaration as torch.library takes it, without the domain."""
    inputs = ", ".join(f"Tensor in{k}" for k in range(len(op.inputs)))
    outputs = "Tensor" if len(op.outputs) == 1 else f"({', '.join(['Tensor'] * len(op.outputs))})"
    return f"{op.op_type}({inputs}) -> {outputs}"


def source(operators: Sequence[OperatorSpec], with_cpu: Collection[str], with_cuda: Collection[str]) -> str:
    """The source for operators of which some have CPU and some CUDA kernels, by identifier."""
    described = [describe(op, op.id in with_cpu, op.id in with_cuda) | {"schema": schema(op)} for op in operators]
    return render.render(f"{SOURCE}.j2", operators=described)


def build(folder: Path, operators: Sequence[OperatorSpec], cxx: Tool, timeout: float = TIMEOUT) -> Path:
    """Write src/torch_library.cpp in an output folder whose libmirage.so has been built, and make the library of it;
    src/build.sh makes it too. Raises CompileError."""
    src = folder / "src"
    with_cpu, with_cuda = ({op.id for op in operators if (src / f"{op.id}{s}").is_file()} for s in (".cpp", ".cu"))
    (src / SOURCE).write_text(source(operators, with_cpu, with_cuda), encoding="utf-8")
    command = (*cxx.command, *cxx.compile_flags, *cpu.TABLE_FLAGS, "-fno-rtti", "-Iinclude", "-shared", SOURCE)
    command = (*command, *cxx.link_flags, "-ldl", "-o", f"../{LIBRARY}")
    with (src / "build.sh").open("a", encoding="utf-8") as script:
        script.write(f"{shlex.join(command)}\n")
    error, _ = run_command(command, f"{LIBRARY} does not build", src, timeout)
    if error is not None:
        raise error
    return folder / LIBRARY
