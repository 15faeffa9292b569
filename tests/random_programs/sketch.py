"""A program on its way: tensors with their dimensions, nodes, inputs and constants; its ONNX model and its float64 values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from mirage_cli.runtime import sessions

from .meaning import meant
from .rounding import SUMS, exchanged, rounded

Array = NDArray[Any]
Dim = int | str  #: a number, or the name of a symbol
Pick = Callable[[int], int]  #: one of so many choices, the simplest first
OPSET = 23
SYMBOL = "n"
PRODUCTS = ("MatMul", "Gemm", "Einsum")
ELEMENT_TYPES = {
    "float32": onnx.TensorProto.FLOAT,
    "float16": onnx.TensorProto.FLOAT16,
    "bfloat16": onnx.TensorProto.BFLOAT16,
    "float64": onnx.TensorProto.DOUBLE,
    "int64": onnx.TensorProto.INT64,
    "int32": onnx.TensorProto.INT32,
    "bool": onnx.TensorProto.BOOL,
}
FLOATS = tuple(list(ELEMENT_TYPES)[:4])


@dataclass(frozen=True)
class Value:
    """A tensor of a program. `exact`: every evaluation gives the same elements, so that comparisons, rounding and signs of it
    do too; `size`: about how large its elements are for inputs of size 1."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    exact: bool = False
    size: float = 1.0

    @property
    def is_float(self) -> bool:
        """Whether its elements are floats."""
        return self.dtype in FLOATS

    @property
    def static(self) -> bool:
        """Whether all of its dimensions are numbers."""
        return all(isinstance(d, int) for d in self.dims)


@dataclass(frozen=True)
class Node:
    """A node of a program; `inputs` and `outputs` are tensors' names, `dtype` is the type of the latter."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    dtype: str


@dataclass(frozen=True)
class Program:
    """A random program: what `model` and `evaluate` need."""

    inputs: tuple[Value, ...]
    constants: Mapping[str, tuple[str, Array]]  #: element type and elements by name
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]

    @property
    def dynamic(self) -> bool:
        """Whether it has a dimension that is a symbol."""
        return any(not v.static for v in self.inputs)

    def shape(self, v: Value, n: int) -> tuple[int, ...]:
        """A tensor's shape where the symbol is `n`."""
        return tuple(n if isinstance(d, str) else d for d in v.dims)

    def evaluate(
        self,
        arrays: Mapping[str, Array],
        rounding: np.random.Generator | None = None,
        lost: Mapping[float, float] | None = None,
    ) -> list[Array]:
        """What the outputs are for these inputs, in float64; with `rounding`, what they are where every result of a node is
        rounded to its type, up or down by chance; with `lost`, where sums give others of infinity and NaN."""
        values = {name: _wide(a) for name, (_, a) in self.constants.items()} | {k: _wide(a) for k, a in arrays.items()}
        with np.errstate(all="ignore"):
            for node in self.nodes:
                operands = [values[i] for i in node.inputs]
                if rounding is not None:
                    made = rounded(node.op, operands, node.attributes, node.dtype, rounding)
                else:
                    made = meant(node.op, operands, node.attributes)
                if lost and node.op in SUMS:
                    made = [exchanged(a, lost) for a in made]
                for name, a in zip(node.outputs, made, strict=True):
                    values[name] = _wide(np.asarray(a))
        return [values[v.name] for v in self.outputs]


def _wide(a: Array) -> Array:
    return a.astype(np.float64) if a.dtype.kind not in "biu" else a


def model(programs: Mapping[str, Program]) -> onnx.ModelProto:
    """One model of many programs side by side; their tensors, nodes and symbols carry the programs' names."""
    nodes, inputs, outputs, constants = [], [], [], []
    for prefix, p in programs.items():

        def info(v: Value, prefix: str = prefix) -> onnx.ValueInfoProto:
            dims = [f"{prefix}_{d}" if isinstance(d, str) else d for d in v.dims]
            return helper.make_tensor_value_info(f"{prefix}_{v.name}", ELEMENT_TYPES[v.dtype], dims)

        for k, n in enumerate(p.nodes):
            read, made = ([f"{prefix}_{i}" for i in names] for names in (n.inputs, n.outputs))
            attributes: Any = {
                a: ELEMENT_TYPES[x] if (n.op, a) == ("Cast", "to") else x for a, x in n.attributes.items()
            }
            nodes.append(helper.make_node(n.op, read, made, f"{prefix}_{n.op}{k}", **attributes))
        inputs += [info(v) for v in p.inputs]
        outputs += [info(v) for v in p.outputs]
        for name, (dtype, a) in p.constants.items():
            proto = numpy_helper.from_array(a.astype(sessions.numpy_dtype(dtype)), f"{prefix}_{name}")
            constants.append(proto)
    graph = helper.make_graph(nodes, "programs", inputs, outputs, constants)
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(whole, full_check=True)
    return whole


class Unfit(Exception):
    """A choice that does not fit: nothing was added."""


@dataclass
class Sketch:
    """A program that grows."""

    pick: Pick
    dtype: str
    seed: int
    symbolic: bool = False
    inputs: list[Value] = field(default_factory=list)
    constants: dict[str, tuple[str, Array]] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    count: int = 0

    def one(self, choices: Sequence[Any]) -> Any:
        """One of some choices."""
        return choices[self.pick(len(choices))]

    def maybe(self, chance: int) -> bool:
        """True one time in `chance`."""
        return self.pick(chance) == chance - 1

    def name(self, kind: str) -> str:
        """A name that is not taken."""
        self.count += 1
        return f"{kind}{self.count}"

    # --- leaves -----------------------------------------------------------------------------------------------------------
    def input(self, dims: Sequence[Dim], dtype: str | None = None) -> Value:
        """A new input."""
        v = Value(self.name("x"), dtype or self.dtype, tuple(dims), exact=True)
        self.inputs.append(v)
        self.values.append(v)
        return v

    def weight(self, dims: Sequence[Dim], scale: float = 1.0, dtype: str | None = None) -> Value:
        """A new constant of random elements."""
        dtype = dtype or self.dtype
        random = np.random.default_rng([self.seed, self.count])
        return self.constant((random.standard_normal([int(d) for d in dims]) * scale), dtype, scale)

    def constant(self, array: Any, dtype: str | None = None, size: float | None = None) -> Value:
        """A new constant with these elements."""
        dtype = dtype or self.dtype
        made = np.asarray(array).astype(sessions.numpy_dtype(dtype))
        name = self.name("c")
        self.constants[name] = dtype, made
        wide = np.abs(made.astype(np.float64))
        return Value(name, dtype, made.shape, True, size or float(wide.max(initial=0.0)) or 1.0)

    def leaf(self, dims: Sequence[Dim], scale: float = 1.0) -> Value:
        """A new input or constant."""
        if all(isinstance(d, int) for d in dims) and self.maybe(2):
            return self.weight(dims, scale)
        v = self.input(dims)
        return v if scale == 1.0 else self.node("Mul", [v, self.constant(scale)], v.dims, size=scale, keep=False)

    def indices(self, numbers: Sequence[int]) -> Value:
        """A constant of integers."""
        return self.constant(np.array(numbers, dtype=np.int64), "int64")

    # --- nodes ------------------------------------------------------------------------------------------------------------
    def nodes_of(
        self,
        op: str,
        operands: Sequence[Value],
        dims: Sequence[Sequence[Dim]],
        dtype: str | None = None,
        exact: bool = False,
        size: float = 1.0,
        keep: bool = True,
        **attributes: Any,
    ) -> list[Value]:
        """A new node with an output of each of `dims`. Raises Unfit for outputs that are too large."""
        if op in PRODUCTS and any(0 in v.dims for v in operands) and all(0 not in d for d in dims):
            raise Unfit  # onnxruntime (1.31) does not write products over an axis without elements
        limit = 300.0 if "float16" in (self.dtype, dtype) else 1e4
        if size > limit or any(elements(d) > MOST for d in dims):
            raise Unfit
        kind = dtype or operands[0].dtype
        made = [Value(self.name("t"), kind, tuple(d), exact, size) for d in dims]
        names = tuple(v.name for v in operands)
        given = {a: float(np.float32(x)) if isinstance(x, float) else x for a, x in attributes.items()}
        self.nodes.append(Node(op, names, tuple(v.name for v in made), given, kind))
        if keep:
            self.values += made
        return made

    def node(self, op: str, operands: Sequence[Value], dims: Sequence[Dim], **more: Any) -> Value:
        """A new node with one output."""
        return self.nodes_of(op, operands, [dims], **more)[0]

    def done(self) -> Program:
        """The program: its outputs are the results that nothing reads, and now and then one that something reads."""
        read = {i for n in self.nodes for i in n.inputs}
        made = {o for n in self.nodes for o in n.outputs}
        results = [v for v in self.values if v.name in made]
        outputs = [v for v in results if v.name not in read or self.maybe(12)]
        used = [v for v in self.inputs if v.name in read]
        constants = {k: c for k, c in self.constants.items() if k in read}
        return Program(tuple(used), constants, tuple(self.nodes), tuple(outputs))


MOST = 40_000  #: elements of a value


def elements(dims: Sequence[Dim]) -> int:
    """How many elements a tensor has, with symbols taken for 40."""
    return math.prod(40 if isinstance(d, str) else d for d in dims)
