"""Programs in the output folder that run as they stand: `run.py` the model in onnxruntime, `run.cpp` the kernels alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_cli.backends.spec import OperatorSpec, TensorSpec
from mirage_cli.codegen.render import render
from mirage_cli.errors import MirageError
from mirage_cli.files.output import LIBRARY, write_text
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.extents import value
from mirage_cli.options.dims import Range
from mirage_cli.planning import ranges
from mirage_cli.runtime import example

PYTHON, CPP = "run.py", "run.cpp"
_PROVIDERS = ["CUDAExecutionProvider", "CPUExecutionProvider"]
#: element types: the type in C++ and its number 1
_ONES = {
    "f32": ("float", "1.0f"),
    "f64": ("double", "1.0"),
    "f16": ("uint16_t", "0x3c00"),
    "bf16": ("uint16_t", "0x3f80"),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in C++: the type of its elements, one of them, their number, and what it is."""

    type: str
    one: str
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that is called: tensors, and the values of its symbols."""

    id: str
    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    extents: str
    symbols: str


def write(imported: Imported, specs: Sequence[OperatorSpec], draft: Path, sizes: Mapping[str, int]) -> None:
    """Write the programs into a draft for symbols of these sizes: `run.py` where inputs can be drawn with numpy, `run.cpp`
    where there is a library."""
    try:
        drawn = None if imported.original is None else example.expressions(imported.original.proto(), sizes)
    except MirageError:
        drawn = None
    there = (draft / LIBRARY).exists()
    if drawn is not None:
        cuda = all(s.has_cuda for s in specs)
        rows = [(ascii(name), text) for name, text in drawn.items()]
        write_text(draft / PYTHON, render("run.py.j2", inputs=rows, providers=_PROVIDERS[not cuda :], library=there))
    if there:
        write_text(draft / CPP, render("run.cpp.j2", kernels=[_kernel(s, sizes) for s in specs]))


def _kernel(spec: OperatorSpec, sizes: Mapping[str, int]) -> Kernel:
    values = ranges.typical(spec.symbols, {n: Range(k, k, k) for n, k in sizes.items()})
    inputs, outputs = (tuple(_tensor(t, values) for t in ts) for ts in (spec.inputs, spec.outputs))
    extents = ", ".join(str(values[s]) for s in spec.symbols) or "0"
    return Kernel(spec.id, spec.op_type, inputs, outputs, extents, ", ".join(spec.symbols) or "no symbols")


def _tensor(t: TensorSpec, values: Mapping[str, int]) -> Tensor:
    count = math.prod(value(d, values) for d in t.dims)
    kind, one = _ONES.get(t.dtype.name) or (_integer(t.dtype), "0")
    return Tensor(kind, one, count, str(t))


def _integer(dtype: DType) -> str:
    return {1: "uint8_t", 2: "int16_t", 4: "int32_t", 8: "int64_t"}[dtype.bytes]
