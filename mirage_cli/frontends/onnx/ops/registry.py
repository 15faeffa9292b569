"""Readers of ONNX operators, which make primitive steps of them: one for each operator, found by domain and name.

A reader gets a `Call` and returns the graph values of the node's outputs. What it cannot express it refuses with a
reason (`Refused`, or the graph's own `InvalidGraph`); the walk then records the node as opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import onnx_ir as ir

from mirage_cli.errors import Refused
from mirage_cli.frontends import sizes
from mirage_cli.frontends.onnx.ops.shape_values import Known, is_known
from mirage_cli.frontends.sizes import Size
from mirage_cli.lax import dtypes
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.graph import Dims, Graph

ONNX, MICROSOFT = "", "com.microsoft"
#: operators that onnxruntime has in ONNX's own domain, at opsets too at which ONNX has none of the name
RUNTIMES_OWN = ("LayerNormalization", "SimplifiedLayerNormalization")
Results: TypeAlias = int | Sequence[int | None]  #: one output, or all of them (None: not computed)


class Unread(Refused):
    """A node that is not read, but whose only result is known to have these dimensions, and this element type where
    inference may not find it."""

    def __init__(self, reason: str, dims: Sequence[Extent], dtype: DType | None = None) -> None:
        super().__init__(reason)
        self.dims, self.dtype = tuple(dims), dtype


class Scope(Protocol):
    """The walk's knowledge of the model's tensors."""

    def value(self, tensor: ir.Value) -> int:
        """The graph value of a tensor. Raises Refused with the reason when there is none."""

    def known(self, tensor: ir.Value) -> Known | None:
        """The integers in a tensor as far as they are known when the model is read."""

    def need(self, extent: Extent, size: int) -> None:
        """An operator reads a dimension of this extent up to this size: it has no fewer positions in any run."""

    @property
    def least(self) -> Mapping[str, int]:
        """Sizes that symbols are not below in any run of the model."""

    @property
    def most(self) -> Mapping[str, int]:
        """Sizes that symbols are not above in any run of the model."""


@dataclass(frozen=True, slots=True)
class Call:
    """A node that is being read."""

    graph: Graph
    node: ir.Node
    version: int  #: of the operators of the node's domain
    scope: Scope

    # --- operands -----------------------------------------------------------------------------------------------------
    def has(self, i: int) -> bool:
        """True if input `i` is there."""
        return i < len(self.node.inputs) and self.node.inputs[i] is not None

    def tensor(self, i: int) -> ir.Value:
        """Input `i` as the model has it. Raises Refused when it is missing."""
        tensor = self.node.inputs[i] if i < len(self.node.inputs) else None
        if tensor is None:
            raise Refused(f"input {i} is missing")
        return tensor

    def arg(self, i: int) -> int:
        """Input `i` as a graph value. Raises Refused when it has none."""
        return self.scope.value(self.tensor(i))

    def maybe(self, i: int) -> int | None:
        """Input `i`, or None when it is left out."""
        return self.arg(i) if self.has(i) else None

    def args(self) -> list[int]:
        """All inputs."""
        return [self.arg(i) for i in range(len(self.node.inputs))]

    def dims(self, i: int) -> Dims:
        """Dimensions of input `i`."""
        return self.graph.dims(self.arg(i))

    def dtype(self, i: int) -> DType:
        """Element type of input `i`."""
        return self.graph.dtype(self.arg(i))

    def wants(self, output: int) -> bool:
        """True if output `output` is used or a result of the model."""
        if output >= len(self.node.outputs) or not self.node.outputs[output].name:
            return False
        return bool(self.node.outputs[output].uses()) or self.node.outputs[output].is_graph_output()

    # --- values that must be known ------------------------------------------------------------------------------------
    def sizes(self, i: int) -> list[Size]:
        """The elements of a shape argument. Raises Refused unless all are known."""
        known = self.scope.known(self.tensor(i))
        if known is None or not is_known(known):
            raise Refused(f"input {i} ({self.tensor(i).name}) is not known when the model is read")
        return [int(e) if isinstance(e, (int, np.integer)) else e for e in known.ravel()]

    def ints(self, i: int) -> list[int]:
        """The elements of an argument as numbers. Raises Refused unless all are."""
        return [number(size, f"input {i}") for size in self.sizes(i)]

    def extents(self, i: int) -> list[Extent]:
        """The elements of a shape argument as extents. Raises Refused."""
        try:
            return [sizes.to_extent(size) for size in self.sizes(i)]
        except ValueError as error:
            raise Refused(str(error)) from None

    def axes(self, i: int, rank: int) -> list[int] | None:
        """The `axes` attribute or input `i`, as dimensions from 0 on; None when neither is there."""
        axes = self.listed("axes", i)
        return None if axes is None else [dimension(a, rank) for a in axes]

    def listed(self, name: str, i: int) -> list[int] | None:
        """Integers that are an attribute in older versions of the operator and input `i` in newer ones; None when neither
        is there. Raises Refused."""
        if name in self.node.attributes:
            return self.integers(name, ())
        return self.ints(i) if self.has(i) else None

    # --- attributes ---------------------------------------------------------------------------------------------------
    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_int()

    def real(self, name: str, default: float) -> float:
        """A float attribute, exact as a Python float; like one that is stored, the default is a float32."""
        attribute = self.node.attributes.get(name)
        return float(np.float32(default)) if attribute is None else attribute.as_float()

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_string()

    def integers(self, name: str, default: Sequence[int]) -> list[int]:
        """An attribute of integers."""
        attribute = self.node.attributes.get(name)
        return list(default if attribute is None else attribute.as_ints())

    def axis(self, default: int, rank: int) -> int:
        """The `axis` attribute as a dimension from 0 on."""
        return dimension(self.integer("axis", default), rank)


def dimension(axis: int, rank: int) -> int:
    """`axis` counted from 0. Raises Refused when a tensor of `rank` has no such dimension."""
    if not -rank <= axis < rank:
        raise Refused(f"axis {axis} does not exist in a tensor of rank {rank}")
    return axis % rank


def number(size: Size, what: str) -> int:
    """A size that is a number. Raises Refused for a symbolic one."""
    if not isinstance(size, int):
        raise Refused(f"{what} is symbolic: {size}")
    return size


def element_type(code: int) -> DType:
    """The element type of an ONNX type code. Raises Refused for types that are not read."""
    dtype = ELEMENT_TYPES.get(ir.DataType(code))
    if dtype is None:
        raise Refused(f"element type {ir.DataType(code).name.lower()} is not read")
    return dtype


#: ONNX element types that the graph has
ELEMENT_TYPES: dict[ir.DataType, DType] = {
    ir.DataType.DOUBLE: dtypes.F64,
    ir.DataType.FLOAT: dtypes.F32,
    ir.DataType.FLOAT16: dtypes.F16,
    ir.DataType.BFLOAT16: dtypes.BF16,
    ir.DataType.INT64: dtypes.I64,
    ir.DataType.INT32: dtypes.I32,
    ir.DataType.INT16: dtypes.I16,
    ir.DataType.INT8: dtypes.I8,
    ir.DataType.UINT64: dtypes.U64,
    ir.DataType.UINT32: dtypes.U32,
    ir.DataType.UINT16: dtypes.U16,
    ir.DataType.UINT8: dtypes.U8,
    ir.DataType.FLOAT8E4M3FN: dtypes.E4M3,
    ir.DataType.FLOAT8E5M2: dtypes.E5M2,
    ir.DataType.FLOAT4E2M1: dtypes.E2M1,
    ir.DataType.INT4: dtypes.I4,
    ir.DataType.UINT4: dtypes.U4,
    ir.DataType.INT2: dtypes.I2,
    ir.DataType.UINT2: dtypes.U2,
    ir.DataType.BOOL: dtypes.BOOL,
}


@dataclass(frozen=True, slots=True)
class Reader:
    """The reader of one operator; `how` is its line in the documentation."""

    read: Callable[[Call], Results]
    how: str


READERS: dict[tuple[str, str], Reader] = {}


def reads(
    *names: str, domain: str = ONNX, how: str = ""
) -> Callable[[Callable[[Call], Results]], Callable[[Call], Results]]:
    """Register a function as the reader of operators; the documentation takes `how`, or its docstring."""

    def register(function: Callable[[Call], Results]) -> Callable[[Call], Results]:
        text = how or (function.__doc__ or "").strip().split("\n")[0]
        for name in names:
            READERS[domain, name] = Reader(function, text)
        return function

    return register
