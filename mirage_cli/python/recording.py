"""A graph in the making: its tensors and the ONNX nodes that compute them, as `mirage optimize` will read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mirage_cli.errors import Refused, UsageError
from mirage_cli.frontends.onnx.ops.registry import ELEMENT_TYPES
from mirage_cli.kernels import tensors
from mirage_cli.lax.dtypes import DType, from_numpy
from mirage_cli.lax.ir.graph import Dims
from mirage_cli.python import shapes
from mirage_cli.python.shapes import shown
from mirage_cli.python.types import BY_NAME, element_type
from mirage_cli.runtime import sessions

if TYPE_CHECKING:
    from mirage_cli.python.kernel_graph import KernelGraph

OPSET, IR_VERSION = 21, 10  #: the oldest onnxruntime that is supported reads these
ONNX_TYPES = {dtype: code for code, dtype in ELEMENT_TYPES.items()}
_NAME = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A value of a graph: an input, a weight or an operator's result. The operators of Python work on it."""

    name: str
    dims: Dims
    dtype: DType
    graph: KernelGraph = field(repr=False)
    value: ir.Value = field(repr=False)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{shown(self.dims)}"

    def __add__(self, other: Tensor | float) -> Tensor:
        return self.graph.add(self, other)

    def __radd__(self, other: float) -> Tensor:
        return self.graph.add(other, self)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self.graph.sub(self, other)

    def __rsub__(self, other: float) -> Tensor:
        return self.graph.sub(other, self)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self.graph.mul(self, other)

    def __rmul__(self, other: float) -> Tensor:
        return self.graph.mul(other, self)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self.graph.div(self, other)

    def __rtruediv__(self, other: float) -> Tensor:
        return self.graph.div(other, self)

    def __pow__(self, other: Tensor | float) -> Tensor:
        return self.graph.pow(self, other)

    def __neg__(self) -> Tensor:
        return self.graph.neg(self)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.graph.matmul(self, other)


@dataclass(frozen=True, slots=True)
class Operation:
    """A line of a printed graph: what is computed and how."""

    results: tuple[Tensor, ...]
    text: str

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.results))} = {self.text}"


class Recording:
    """Tensors and nodes, and how more of them are recorded."""

    def __init__(self) -> None:
        self._graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name="graph")
        self._lines: list[Operation] = []
        self._marked: list[Tensor] = []
        self._used: set[ir.Value] = set()  #: values that operators read
        self._names: set[str] = set()

    # --- what there is ----------------------------------------------------------------------------------------------------
    @property
    def inputs(self) -> list[Tensor]:
        """The inputs, in the order in which the kernel takes them."""
        given = set(self._graph.inputs)
        return [t for line in self._lines for t in line.results if t.value in given]

    @property
    def outputs(self) -> list[Tensor]:
        """The outputs: those that are marked, in that order, else all results that no operator reads."""
        return self._marked or [t for t in self._made() if t.value not in self._used]

    def __str__(self) -> str:
        names = ", ".join(t.name for t in self.outputs)
        return "\n".join([*map(str, self._lines), f"outputs {names or 'none'}"])

    def __repr__(self) -> str:
        given, results = (", ".join(map(str, ts)) for ts in (self.inputs, self.outputs))
        return f"<graph of {len(self._made())} operators: ({given}) -> ({results})>"

    def _made(self) -> list[Tensor]:
        """The results of operators."""
        return [t for line in self._lines for t in line.results if t.value.producer() is not None]

    def model(self) -> ir.Model:
        """The graph as an ONNX model of its own. Raises UsageError for one without inputs or outputs."""
        if not self.inputs:
            raise UsageError("the graph has no input: add one with new_input")
        if not self.outputs:
            raise UsageError("the graph computes nothing: add an operator")
        self._graph.outputs.extend(t.value for t in self.outputs)
        try:
            return ir.Model(self._graph.clone(), ir_version=IR_VERSION)
        finally:
            self._graph.outputs.clear()

    # --- adding to it -----------------------------------------------------------------------------------------------------
    def new_input(self, dims: Sequence[shapes.Dim], dtype: Any = "float16", name: str | None = None) -> Tensor:
        """A tensor that is given to the kernel.

        Parameters
        ----------
        dims
            Its dimensions: positive numbers, or names of dimensions that are known when the kernel is called.
        dtype
            `mirage_cli.float16`, `bfloat16`, `float32` or `bool_`, or numpy's or torch's type of that name.
        name
            What messages and `print(graph)` call it.

        Raises UsageError for what is none of these.
        """
        name = self._fresh(name, "input")
        tensor = self._tensor(name, shapes.dimensions(f"input '{name}'", dims), element_type(dtype))
        self._graph.inputs.append(tensor.value)
        self._lines.append(Operation((tensor,), "input"))
        return tensor

    def new_weight(self, elements: Any, name: str | None = None) -> Tensor:
        """A tensor that is part of the graph: an array of numpy, or a tensor of another library, which is copied.

        Kernels may read weights early and keep them in another order, so a graph with its weights inside is the faster one.
        Raises UsageError for elements of another type than inputs can have, or none.
        """
        name = self._fresh(name, "weight")
        array = _host(elements, name)
        dtype = from_numpy(array.dtype)
        if dtype not in BY_NAME.values() or not array.size:
            expected = f"elements of type {', '.join(BY_NAME)}"
            raise UsageError(f"weight '{name}': expected {expected}, found {array.dtype.name}{list(array.shape)}")
        assert dtype is not None
        tensor = self._tensor(name, array.shape, dtype)
        tensor.value.const_value = ir.tensor(array, name=name)
        self._graph.register_initializer(tensor.value)
        self._lines.append(Operation((tensor,), "weight"))
        return tensor

    def mark_output(self, tensor: Tensor) -> None:
        """Make a result an output. Without any mark all results that no operator reads are outputs.

        Raises UsageError for a tensor of another graph, an input or weight, and one that is marked already.
        """
        self._own("mark_output", tensor)
        if tensor.value.producer() is None:
            raise UsageError(f"mark_output: expected the result of an operator, found the input or weight {tensor}")
        if tensor in self._marked:
            raise UsageError(f"mark_output: {tensor} is an output already")
        self._marked.append(tensor)

    def _own(self, what: str, tensor: Any) -> Tensor:
        """A tensor of this graph. Raises UsageError."""
        if not isinstance(tensor, Tensor):
            raise UsageError(f"{what}: expected a tensor of the graph, found {type(tensor).__name__}")
        if tensor.graph is not self:
            raise UsageError(f"{what}: {tensor} belongs to another graph")
        return tensor

    def _operands(self, what: str, *given: Any) -> list[Tensor]:
        """Tensors of this graph of one type, numbers among them as constants of that type. Raises UsageError."""
        typed = [self._own(what, x) for x in given if not isinstance(x, (int, float)) or isinstance(x, bool)]
        if not typed:
            raise UsageError(f"{what}: expected a tensor among the operands, found numbers only")
        first = typed[0]
        for t in typed[1:]:
            if t.dtype != first.dtype:
                raise UsageError(f"{what}: expected operands of one type, found {first} and {t}; cast one of them")
        return [x if isinstance(x, Tensor) else self._number(what, x, first.dtype) for x in given]

    def _number(self, what: str, number: float, dtype: DType) -> Tensor:
        """A constant without dimensions. Raises UsageError for a number that the type cannot hold."""
        with np.errstate(over="ignore"):
            array = np.array(number).astype(sessions.numpy_type(dtype))
        if np.isfinite(number) and not np.isfinite(array.astype(np.float64)):
            raise UsageError(f"{what}: {number:g} is beyond the range of {sessions.element_name(dtype)}")
        return self._constant(array, f"{number:g}")

    def _integers(self, numbers: Iterable[int]) -> Tensor:
        """A constant vector of integers."""
        return self._constant(np.array([*numbers], np.int64), "")

    def _constant(self, array: NDArray[Any], text: str) -> Tensor:
        """A constant of the model that is no weight: lines show it as `text`."""
        value = ir.Value(name=self._fresh(None, "constant"))
        value.const_value = ir.tensor(array, name=value.name)
        value.shape, value.dtype = ir.Shape(array.shape), value.const_value.dtype
        self._graph.register_initializer(value)
        dtype = from_numpy(array.dtype)
        assert dtype is not None
        return Tensor(text, array.shape, dtype, self._whole(), value)

    def _node(
        self, op_type: str, inputs: Sequence[Tensor | None], dims: Dims, dtype: DType, name: str, **attributes: Any
    ) -> Tensor:
        """The result of an ONNX operator, both called `name`."""
        tensor = self._tensor(name, dims, dtype)
        values = [t.value if t is not None else None for t in inputs]
        self._graph.append(ir.node(op_type, values, attributes, outputs=[tensor.value], name=name))
        self._used.update(v for v in values if v is not None)
        return tensor

    def _line(self, result: Tensor, text: str) -> Tensor:
        """Note how a tensor was made."""
        self._lines.append(Operation((result,), text))
        return result

    def _tensor(self, name: str, dims: Dims, dtype: DType) -> Tensor:
        shape = ir.Shape([d if isinstance(d, int) else str(d) for d in dims])
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(ONNX_TYPES[dtype]))
        return Tensor(name, tuple(dims), dtype, self._whole(), value)

    def _whole(self) -> KernelGraph:
        return cast("KernelGraph", self)

    def _fresh(self, name: str | None, kind: str) -> str:
        """A name that no tensor has yet. Raises UsageError for one that was asked for and is taken or malformed."""
        if name is None:
            count = 1
            while f"{kind}_{count}" in self._names:
                count += 1
            name = f"{kind}_{count}"
        elif not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"name: expected letters, digits, _ and dots, not a digit first, found {name!r}")
        elif name in self._names:
            raise UsageError(f"name: another tensor of the graph is called {name!r}")
        self._names.add(name)
        return name


def _host(elements: Any, name: str) -> NDArray[Any]:
    """The elements of a tensor of any library as an array of their own. Raises UsageError."""
    try:
        framework = tensors.framework_of(elements)
        return np.array(framework.host(elements) if framework else np.from_dlpack(elements), order="C")
    except (Refused, TypeError, AttributeError, BufferError, RuntimeError) as error:
        raise UsageError(f"weight '{name}': expected an array, found {type(elements).__name__}: {error}") from None
