"""Graphs written in Python: operators on tensors, made into kernels by `superoptimize`.

    import mirage_cli as mi

    graph = mi.new_kernel_graph()
    q = graph.new_input(dims=(64, 1, 128), dtype=mi.float16)
    k = graph.new_input(dims=(64, 128, 4096), dtype=mi.float16)
    v = graph.new_input(dims=(64, 4096, 128), dtype=mi.float16)
    graph.matmul(graph.softmax(graph.matmul(q, k)), v)
    kernel = graph.superoptimize()

Elementwise operators take numbers beside tensors, and broadcast as numpy does. All operands of an operator have one type.
Every operator raises UsageError, which names it, what was expected and what was found, where its operands do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mirage_cli.errors import UsageError
from mirage_cli.kernels.graph_kernel import GraphKernel
from mirage_cli.lax.ir.graph import Dims
from mirage_cli.python import building, shapes
from mirage_cli.python.recording import ONNX_TYPES, Recording, Tensor
from mirage_cli.python.types import bool_, element_type, float32
from mirage_cli.report.stages import Progress
from mirage_cli.runtime import sessions


class KernelGraph(Recording):
    """A graph of operators; `print(graph)` shows it. `inputs` and `outputs` list its tensors."""

    # --- products and sums ----------------------------------------------------------------------------------------------
    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """The matrix product of the last two dimensions, [..., m, k] x [..., k, n] -> [..., m, n]; others broadcast."""
        a, b = self._operands("matmul", a, b)
        return self._result("matmul", "MatMul", [a, b], shapes.matmul("matmul", a, b))

    def reduction(self, a: Tensor, dim: int, keepdim: bool = True) -> Tensor:
        """The sum along a dimension, which stays with size 1 unless `keepdim` is False."""
        return self._reduced("reduction", "ReduceSum", a, dim, keepdim)

    def mean(self, a: Tensor, dim: int, keepdim: bool = True) -> Tensor:
        """The mean along a dimension, which stays with size 1 unless `keepdim` is False."""
        return self._reduced("mean", "ReduceMean", a, dim, keepdim)

    # --- elementwise, of one tensor -----------------------------------------------------------------------------------------
    def exp(self, a: Tensor) -> Tensor:
        """The exponential."""
        return self._unary("exp", "Exp", a)

    def log(self, a: Tensor) -> Tensor:
        """The natural logarithm."""
        return self._unary("log", "Log", a)

    def sqrt(self, a: Tensor) -> Tensor:
        """The square root."""
        return self._unary("sqrt", "Sqrt", a)

    def square(self, a: Tensor) -> Tensor:
        """a * a."""
        (a,) = self._operands("square", a)
        return self._result("square", "Mul", [a, a], a.dims, text=f"square({a.name})")

    def neg(self, a: Tensor) -> Tensor:
        """-a."""
        return self._unary("neg", "Neg", a)

    def abs(self, a: Tensor) -> Tensor:
        """The absolute value."""
        return self._unary("abs", "Abs", a)

    def tanh(self, a: Tensor) -> Tensor:
        """The hyperbolic tangent."""
        return self._unary("tanh", "Tanh", a)

    def sigmoid(self, a: Tensor) -> Tensor:
        """1 / (1 + exp(-a))."""
        return self._unary("sigmoid", "Sigmoid", a)

    def relu(self, a: Tensor) -> Tensor:
        """max(a, 0)."""
        return self._unary("relu", "Relu", a)

    def silu(self, a: Tensor) -> Tensor:
        """a * sigmoid(a)."""
        (a,) = self._operands("silu", a)
        name = self._fresh(None, "silu")
        factor = self._node("Sigmoid", [a], a.dims, a.dtype, f"{name}/sigmoid")
        return self._result("silu", "Mul", [a, factor], a.dims, text=f"silu({a.name})", name=name)

    def gelu(self, a: Tensor, approximate: str = "none") -> Tensor:
        """The Gaussian error linear unit, exact or with `approximate="tanh"`."""
        if approximate not in ("none", "tanh"):
            raise UsageError(f"gelu: expected approximate='none' or 'tanh', found {approximate!r}")
        text = "" if approximate == "none" else ", approximate=tanh"
        return self._unary("gelu", "Gelu", a, text, approximate=approximate)

    def clamp(self, a: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
        """The elements with `min` and `max` in the place of those below and above."""
        (a,) = self._operands("clamp", a)
        if min is None and max is None:
            raise UsageError("clamp: expected min, max or both")
        low, high = (None if x is None else self._number("clamp", x, a.dtype) for x in (min, max))
        return self._result("clamp", "Clip", [a, low, high], a.dims, text=f"clamp({a.name}, {min}, {max})")

    def cast(self, a: Tensor, dtype: Any) -> Tensor:
        """The elements in another type."""
        (a,) = self._operands("cast", a)
        wanted = element_type(dtype)
        return self._result("cast", "Cast", [a], a.dims, wanted, f"cast({a.name})", to=ONNX_TYPES[wanted].value)

    # --- elementwise, of several --------------------------------------------------------------------------------------------
    def add(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """a + b."""
        return self._elementwise("add", "Add", a, b)

    def sub(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """a - b."""
        return self._elementwise("sub", "Sub", a, b)

    def mul(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """a * b."""
        return self._elementwise("mul", "Mul", a, b)

    def div(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """a / b."""
        return self._elementwise("div", "Div", a, b)

    def pow(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """a to the power of b."""
        return self._elementwise("pow", "Pow", a, b)

    def minimum(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """The smaller of both."""
        return self._elementwise("minimum", "Min", a, b)

    def maximum(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """The larger of both."""
        return self._elementwise("maximum", "Max", a, b)

    def equal(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """The truth values of a = b, as a tensor of bool."""
        return self._elementwise("equal", "Equal", a, b, predicate=True)

    def less(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """The truth values of a < b, as a tensor of bool."""
        return self._elementwise("less", "Less", a, b, predicate=True)

    def less_equal(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """The truth values of a <= b, as a tensor of bool."""
        return self._elementwise("less_equal", "LessOrEqual", a, b, predicate=True)

    def where(self, condition: Tensor, a: Tensor | float, b: Tensor | float) -> Tensor:
        """`a` where `condition`, a tensor of bool, is true, else `b`."""
        first, second = self._operands("where", a, b)
        (mask,) = self._operands("where", condition)
        if mask.dtype != bool_:
            raise UsageError(f"where: expected a condition of type bool, found {mask}")
        dims = shapes.broadcast("where", [mask, first, second])
        return self._result("where", "Where", [mask, first, second], dims, first.dtype)

    def mask(self, a: Tensor, seen: Tensor, value: float = -np.inf) -> Tensor:
        """`a` where `seen`, a tensor of bool, is true, else `value`: scores as a softmax behind it wants them."""
        return self.where(seen, a, value)

    # --- normalisations ---------------------------------------------------------------------------------------------------
    def softmax(self, a: Tensor, dim: int = -1) -> Tensor:
        """exp(a) divided by its sum along a dimension, without overflow."""
        (a,) = self._operands("softmax", a)
        dim = shapes.dim_of("softmax", a, dim)
        return self._result("softmax", "Softmax", [a], a.dims, text=f"softmax({a.name}, dim={dim})", axis=dim)

    def rms_norm(
        self, a: Tensor, normalized_shape: Any = None, weight: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        """a / sqrt(mean(a * a) + eps), times `weight`, with the mean over the last dimensions, those of `normalized_shape`
        (by default the last one)."""
        given = [a] if weight is None else [a, weight]
        a, *scales = self._operands("rms_norm", *given)
        count = shapes.normalized("rms_norm", a, normalized_shape)
        self._check_scales("rms_norm", a, count, scales)
        name = self._fresh(None, "rms_norm")
        x = a
        if a.dtype != float32:
            x = self._node("Cast", [a], a.dims, float32, f"{name}/float32", to=ONNX_TYPES[float32].value)
        dims = (*a.dims[: len(a.dims) - count], *(1 for _ in range(count)))
        steps = self._node("Mul", [x, x], a.dims, float32, f"{name}/square")
        steps = self._node("ReduceMean", [steps, self._integers(range(-count, 0))], dims, float32, f"{name}/mean")
        steps = self._node("Add", [steps, self._number("rms_norm", eps, float32)], dims, float32, f"{name}/eps")
        steps = self._node("Sqrt", [steps], dims, float32, f"{name}/sqrt")
        parts = [("Div", [x, steps], "normalized")]
        parts += [("Cast", [], "cast")] if a.dtype != float32 else []
        parts += [("Mul", [s], "scaled") for s in scales]
        result = x
        for k, (op, operands, part) in enumerate(parts):
            dtype = float32 if k == 0 else a.dtype
            attributes = {"to": ONNX_TYPES[a.dtype].value} if op == "Cast" else {}
            read = operands if k == 0 else [result, *operands]
            result = self._node(
                op, read, a.dims, dtype, name if k == len(parts) - 1 else f"{name}/{part}", **attributes
            )
        text = ", ".join([a.name, *(f"weight={s.name}" for s in scales), f"eps={eps:g}"])
        return self._line(result, f"rms_norm({text})")

    def layer_norm(
        self,
        a: Tensor,
        normalized_shape: Any = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        """(a - mean) / sqrt(variance + eps), times `weight`, plus `bias`, over the last dimensions, those of
        `normalized_shape` (by default the last one)."""
        a, *scales = self._operands("layer_norm", *(t for t in (a, weight, bias) if t is not None))
        count = shapes.normalized("layer_norm", a, normalized_shape)
        self._check_scales("layer_norm", a, count, scales)
        names = [n for n, t in (("weight", weight), ("bias", bias)) if t is not None]
        text = [a.name, *(f"{n}={s.name}" for n, s in zip(names, scales, strict=True)), f"eps={eps:g}"]
        if weight is None:
            sizes = [d for d in a.dims[len(a.dims) - count :] if isinstance(d, int)]
            if len(sizes) < count:
                raise UsageError(f"layer_norm: expected a weight for dimensions without a number, found {a}")
            scales.insert(0, self._constant(np.ones(sizes, sessions.numpy_type(a.dtype)), "1"))
        return self._result(
            "layer_norm", "LayerNormalization", [a, *scales], a.dims, text=f"layer_norm({', '.join(text)})", axis=-count,
            epsilon=eps,
        )  # fmt: skip

    # --- views ------------------------------------------------------------------------------------------------------------
    def transpose(self, a: Tensor, axes: Sequence[int] | None = None) -> Tensor:
        """The dimensions in another order: dimension i of the result is `axes[i]` of `a`; by default they are reversed."""
        (a,) = self._operands("transpose", a)
        rank = len(a.dims)
        order = [shapes.dim_of("transpose", a, d) for d in (range(rank)[::-1] if axes is None else axes)]
        if sorted(order) != list(range(rank)):
            raise UsageError(f"transpose: expected each dimension of {a} once, found {list(axes or ())}")
        dims = tuple(a.dims[d] for d in order)
        return self._result("transpose", "Transpose", [a], dims, text=f"transpose({a.name}, {order})", perm=order)

    def reshape(self, a: Tensor, dims: Sequence[shapes.Dim]) -> Tensor:
        """The same elements in row-major order with other dimensions, one of which may be -1: what is left."""
        (a,) = self._operands("reshape", a)
        wanted, numbers = shapes.reshaped("reshape", a, dims)
        text = f"reshape({a.name}, {shapes.shown(wanted)})"
        return self._result("reshape", "Reshape", [a, self._integers(numbers)], wanted, text=text)

    def slice(self, a: Tensor, dim: int, start: int | None, stop: int | None = None, step: int = 1) -> Tensor:
        """Positions `start:stop:step` of one dimension, as Python's slices have them, upwards."""
        (a,) = self._operands("slice", a)
        dim = shapes.dim_of("slice", a, dim)
        taken = shapes.sliced("slice", a, dim, start, stop, step)
        dims = (*a.dims[:dim], len(taken), *a.dims[dim + 1 :])
        ends = [self._integers([n]) for n in (taken.start, taken.stop, dim, taken.step)]
        text = f"slice({a.name}, dim={dim}, {taken.start}:{taken.stop}:{taken.step})"
        return self._result("slice", "Slice", [a, *ends], dims, text=text)

    def concat(self, tensors: Sequence[Tensor], dim: int) -> Tensor:
        """Tensors one behind the other along a dimension. Kernels read across the joints of equal parts only."""
        parts = self._operands("concat", *tensors)
        dim = shapes.dim_of("concat", parts[0], dim)
        dims = shapes.concatenated("concat", parts, dim)
        text = f"concat([{', '.join(t.name for t in parts)}], dim={dim})"
        return self._result("concat", "Concat", parts, dims, text=text, axis=dim)

    # --- kernels ----------------------------------------------------------------------------------------------------------
    def superoptimize(self, progress: Progress | None = None, **options: Any) -> GraphKernel:
        """The kernels of the graph: searched, proved, compiled and compared with float64.

        Parameters
        ----------
        progress
            Is told how far it is, as by `mirage_cli.optimize`.
        options
            Those of `mirage optimize`, with underscores: `target`, `arch`, `gpu`, `jobs`, `seed`, `cache` ... Every
            fragment is replaced (`force`), and one that fails is an error (`strict`).

        Returns
        -------
        GraphKernel
            A function on tensors. The same graph with the same options is answered from the cache.

        Raises Refused, naming the operator and the reason, for what cannot be part of a kernel; UsageError for options that
        do not fit; ToolMissing without a C++ compiler.
        """
        return building.superoptimize(self, progress, options)

    # --- how operators are recorded ---------------------------------------------------------------------------------------
    def _result(
        self,
        what: str,
        op_type: str,
        operands: Sequence[Tensor | None],
        dims: Dims,
        dtype: Any = None,
        text: str = "",
        name: str = "",
        **attributes: Any,
    ) -> Tensor:
        """The result of one ONNX operator, of the first operand's type if not said otherwise, and its line."""
        given = [t for t in operands if t is not None]
        result = self._node(
            op_type, operands, dims, dtype or given[0].dtype, name or self._fresh(None, what), **attributes
        )
        return self._line(result, text or f"{what}({', '.join(t.name for t in given)})")

    def _unary(self, what: str, op_type: str, a: Tensor, text: str = "", **attributes: Any) -> Tensor:
        (a,) = self._operands(what, a)
        return self._result(what, op_type, [a], a.dims, text=f"{what}({a.name}{text})", **attributes)

    def _elementwise(self, what: str, op_type: str, a: Any, b: Any, predicate: bool = False) -> Tensor:
        operands = self._operands(what, a, b)
        dims = shapes.broadcast(what, operands)
        return self._result(what, op_type, operands, dims, bool_ if predicate else operands[0].dtype)

    def _reduced(self, what: str, op_type: str, a: Tensor, dim: int, keepdim: bool) -> Tensor:
        (a,) = self._operands(what, a)
        dim = shapes.dim_of(what, a, dim)
        dims = (*a.dims[:dim], *((1,) if keepdim else ()), *a.dims[dim + 1 :])
        text = f"{what}({a.name}, dim={dim})"
        return self._result(what, op_type, [a, self._integers([dim])], dims, text=text, keepdims=int(keepdim))

    def _check_scales(self, what: str, a: Tensor, count: int, scales: Sequence[Tensor]) -> None:
        wanted = a.dims[len(a.dims) - count :]
        for s in scales:
            if s.dims != wanted:
                raise UsageError(
                    f"{what}: expected a weight and a bias with dimensions {shapes.shown(wanted)}, found {s}"
                )


def new_kernel_graph() -> KernelGraph:
    """A graph without operators, to which inputs and operators are added.

    Examples
    --------
    Attention of one query for each of two heads, on the CPU:

    >>> import mirage_cli as mi
    >>> import numpy as np
    >>> graph = mi.new_kernel_graph()
    >>> Q = graph.new_input(dims=(2, 1, 8), dtype=mi.float16, name="Q")
    >>> K = graph.new_input(dims=(2, 8, 32), dtype=mi.float16, name="K")
    >>> V = graph.new_input(dims=(2, 32, 8), dtype=mi.float16, name="V")
    >>> A = graph.matmul(Q, K)
    >>> S = graph.softmax(A)
    >>> O = graph.matmul(S, V)
    >>> graph.mark_output(O)
    >>> print(graph)
    Q f16[2, 1, 8] = input
    K f16[2, 8, 32] = input
    V f16[2, 32, 8] = input
    matmul_1 f16[2, 1, 32] = matmul(Q, K)
    softmax_1 f16[2, 1, 32] = softmax(matmul_1, dim=2)
    matmul_2 f16[2, 1, 8] = matmul(softmax_1, V)
    outputs matmul_2
    >>> kernel = graph.superoptimize(target="cpu")
    >>> kernel
    <1 kernel for cpu: (Q: f16[2, 1, 8], K: f16[2, 8, 32], V: f16[2, 32, 8]) -> matmul_2: f16[2, 1, 8]>
    >>> kernel.error_bound < 2**-40
    True
    >>> q, k, v = (np.ones(shape, np.float16) for shape in ((2, 1, 8), (2, 8, 32), (2, 32, 8)))
    >>> kernel(inputs=[q, k, v])[0]
    array([[1., 1., 1., 1., 1., 1., 1., 1.]], dtype=float16)
    """
    return KernelGraph()
