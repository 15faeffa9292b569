"""Whole models: a float64 run of what was read, and the comparison of a patched model with its original.

The float64 run takes the graph that the front end read, node by node, in the domain of the reference; nodes that are not
read are computed by the evaluator of the `onnx` package on float64 arrays.
"""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

from mirage_cli import runtime
from mirage_cli.accuracy import DRAWS, Accuracy, Sample, compare, judged, kept
from mirage_cli.errors import MirageError, OutOfTime, Refused, UsageError
from mirage_cli.frontends import sizes
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax import extents as ex
from mirage_cli.lax import graph as g
from mirage_cli.lax.domain import Float64
from mirage_cli.lax.dtypes import BF16, F16, F32, DType, from_numpy
from mirage_cli.lax.evaluate import step_value

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = dict[str, Array]
Draw: TypeAlias = tuple[Arrays, Arrays, Arrays | None]  #: the outputs found, the original's, those of a float64 run
MAX_WORK = 5e10  #: multiply-adds up to which a float64 run is affordable
MAX_ELEMENTS = 1 << 27  #: elements of the largest value
#: without a float64 run: how far root mean square and maximum may be apart, in units of the last place
APART = {"f64": 256.0, "f32": 256.0, "f16": 16.0, "bf16": 16.0}
AS_TYPED = "the original leaves out roundings that its types ask for: compared with a run that has them"
APART_AT_MOST = 16.0  #: the maximum, as a multiple of that


# --- the float64 run --------------------------------------------------------------------------------------------------
def float64_run(imported: Imported, inputs: Mapping[str, Array], seconds: float = 0, rounded: bool = False) -> Arrays:
    """The outputs of a model in float64, by name; `rounded` makes every tensor of 16 bits one of its type on the way. Raises
    Refused, with the reason, where that cannot be done, and OutOfTime where it takes longer than `seconds` (0: no limit)."""
    run = _Run(imported, inputs, time.monotonic() + seconds if seconds else math.inf, rounded)
    names = [v.name or "" for v in imported.model.graph.outputs]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict(zip(names, run.outputs(), strict=True))


def rounded_run(imported: Imported, inputs: Mapping[str, Array], seconds: float = 0) -> Arrays | None:
    """The outputs with every tensor of 16 bits rounded to its type; none where no output is wider, or for lack of memory or
    of `seconds`."""
    outputs = {imported.graph.dtype(v) for v in imported.graph.outputs}
    if not half_tensors(imported) or outputs <= {F16, BF16}:
        return None
    try:
        return float64_run(imported, inputs, seconds, rounded=True)
    except MirageError:
        return None


def half_tensors(imported: Imported) -> frozenset[int]:
    """The values of a model's tensors of 16 bits."""
    return frozenset(v for v in imported.values.values() if imported.graph.dtype(v) in (F16, BF16))


class _Run:
    """One evaluation; values are dropped after their last use."""

    def __init__(
        self, imported: Imported, inputs: Mapping[str, Array], until: float = math.inf, rounded: bool = False
    ) -> None:
        self.imported, self.graph, self.until = imported, imported.graph, until
        self.rounded = half_tensors(imported) if rounded else frozenset[int]()
        self.inputs = inputs
        self.symbols = _symbols(imported.graph, inputs)
        self.order = self.graph.cone(self.graph.outputs)
        self.nodes = {f"{n.op_type} {n.name}": n for n in imported.model.graph}
        self.made: dict[str, list[Array]] = {}
        self.values: dict[int, Array] = {}

    def outputs(self) -> list[Array]:
        last = {a: v for v in self.order for a in (v, *self.graph.inputs[v])}
        last.update(dict.fromkeys(self.graph.outputs, -1))
        for v in self.order:
            _check_time(self.until)
            self.values[v] = self.value(v)
            if v in self.rounded:
                self.values[v] = self.values[v].astype(runtime.numpy_type(self.graph.dtype(v))).astype(np.float64)
            for a in {v, *self.graph.inputs[v]}:
                if last[a] == v:
                    del self.values[a]
        return [self.values[v] for v in self.graph.outputs]

    def value(self, v: int) -> Array:
        step = self.graph.steps[v]
        if isinstance(step, g.Opaque):
            return self.opaque(v, step)
        self.check_size(v, step)
        if isinstance(step, g.Input):
            if not step.constant:
                return np.asarray(self.inputs[step.name]).astype(np.float64)
            wide = np.asarray(self.imported.constant(step.name)).astype(np.float64)
            self.imported.forget()
            return wide
        args = [self.values[a] for a in self.graph.inputs[v]]
        return step_value(self.graph, v, Float64(), args, {}, self.symbols)

    def check_size(self, v: int, step: g.Step) -> None:
        held = math.prod(float(ex.value(e, self.symbols)) for e in self.graph.dims(v))
        work = held
        if isinstance(step, g.Contract):
            size: dict[int, float] = {}
            for labels, a in zip((step.lhs, step.rhs), self.graph.inputs[v], strict=True):
                for label, n in zip(labels, self.values[a].shape, strict=True):
                    size[label] = max(size.get(label, 1.0), float(n))
            work = math.prod(size.values())
        if held > MAX_ELEMENTS or work > MAX_WORK:
            raise Refused(f"a value of {held:.1e} elements ({work:.1e} multiply-adds) is too large for a float64 run")

    # --- nodes that are not read ----------------------------------------------------------------------------------------
    def opaque(self, v: int, step: g.Opaque) -> Array:
        if step.label not in self.made:
            node = self.nodes.get(step.label)
            if node is None:
                raise Refused(f"{step.label} has no float64 value")
            self.made[step.label] = self.compute(node)
        found = self.made[step.label][step.output]
        for e, n in zip(self.graph.dims(v), found.shape, strict=True):
            if isinstance(e, ex.Symbolic) and len(e.names) == 1:
                self.symbols.setdefault(e.names[0], n // e.factor)
        return found.astype(np.float64)

    def compute(self, node: ir.Node) -> list[Array]:
        feeds = {f"i{k}": self.argument(v) for k, v in enumerate(node.inputs) if v is not None}
        proto = ir.to_proto(node)
        del proto.input[:], proto.output[:]
        proto.input.extend(f"i{k}" if v is not None else "" for k, v in enumerate(node.inputs))
        proto.output.extend(f"o{k}" if v.name else "" for k, v in enumerate(node.outputs))
        opsets = [helper.make_opsetid(d, n) for d, n in self.imported.model.opset_imports.items()]
        names = [n for n in proto.output if n]
        given, made = (
            [helper.make_value_info(n, helper.make_tensor_type_proto(0, None)) for n in x] for x in (feeds, names)
        )
        model = helper.make_model(helper.make_graph([proto], "node", given, made), opset_imports=opsets)
        try:
            found = dict(zip(names, _evaluator(self.until)(model).run(None, feeds), strict=True))
        except OutOfTime:
            raise
        except Exception as error:  # the evaluator raises whatever its operators do
            raise Refused(f"{node.op_type} {node.name!r} has no float64 value: {error}") from None
        return [np.asarray(found[n]) if n else np.zeros(()) for n in proto.output]

    def argument(self, tensor: ir.Value) -> Array:
        """A tensor as the evaluator takes it: integers and truth values in their type, anything else in float64."""
        name = tensor.name or ""
        v = self.imported.values.get(name)
        dtype = None if v is None else self.graph.dtype(v)
        if tensor.const_value is not None and (dtype is None or not dtype.is_float):
            return tensor.const_value.numpy()  # float64 does not hold the largest integers, which mean "to the end"
        if v is None or dtype is None:
            raise Refused(f"tensor {name!r} has no float64 value")
        if v not in self.values:
            self.values[v] = self.value(v)  # a constant that only this node reads
        return self.values[v] if dtype.is_float else self.values[v].astype(runtime.numpy_type(dtype))


def _check_time(until: float) -> None:
    if time.monotonic() > until:
        raise OutOfTime("its float64 run took too long")


def _evaluator(until: float) -> type[ReferenceEvaluator]:
    """An evaluator that ends at some time: it makes sub-graphs, such as bodies of loops, evaluators of its own kind."""

    class Timed(ReferenceEvaluator):
        """Looks at the clock before every run."""

        def run(self, *args: Any, **kwargs: Any) -> Any:
            _check_time(until)
            return super().run(*args, **kwargs)

    return Timed


def _symbols(graph: g.Graph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """Numbers for the symbols, from the shapes of the inputs. Raises UsageError for an input of another shape."""
    found: dict[str, int] = {}
    given = [(s.name, graph.dims(v)) for v, s in enumerate(graph.steps) if isinstance(s, g.Input) and not s.constant]
    for name, dims in given:
        if name not in inputs or len(dims) != inputs[name].ndim:
            raise UsageError(f"input {name!r}: expected {len(dims)} dimensions")
        for e, n in zip(dims, inputs[name].shape, strict=True):
            if isinstance(e, ex.Symbolic) and len(e.names) == 1:
                found.setdefault(e.names[0], n // e.factor)
    for tensor in graph.tensors:
        for e in tensor.dims:
            for name in ex.names(e):
                size = sizes.substitute(sizes.parse(name[1:-1]) if name.startswith("(") else sizes.named(name), found)
                if isinstance(size, int):
                    found.setdefault(name, size)
    return found


# --- comparing --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Compared:
    """One output of the patched model beside the original's. `reference` says what both are measured against."""

    output: str
    accuracy: Accuracy
    reference: str  #: "float64" or "original"

    def to_json(self) -> dict[str, Any]:
        """The form of `mirage verify --json`."""
        return {"output": self.output, "reference": self.reference} | self.accuracy.to_json()

    def __str__(self) -> str:
        return f"{self.output}: {self.accuracy} against {self.reference}"


def compare_outputs(
    found: Mapping[str, Array],
    original: Mapping[str, Array],
    exact: Mapping[str, Array] | None,
    again: Callable[[int], Draw] | None = None,
    rounded: Callable[[], Mapping[str, Array] | None] | None = None,
) -> list[Compared]:
    """Every output by the accuracy rule, against the float64 run `exact`; without one, by its distance from the original's.
    `again` makes further draws, from 1 on, for outputs that do not pass. `rounded` makes a run with the roundings that the
    model's types ask for: onnxruntime's CPU leaves out those between operators of float16, so that the original may be nearer
    to the exact outputs than it says."""
    result = []
    draws = kept(again(k) for k in range(1, DRAWS) if again is not None)

    def more(name: str) -> Iterator[Sample]:
        return ((f[name], o[name], e[name]) for f, o, e in draws() if e is not None)

    for name, own in original.items():
        dtype = from_numpy(own.dtype) or F32
        if exact is not None and name in exact:
            accuracy = judged((found[name], own, exact[name]), dtype, partial(more, name))
            typed = None if accuracy.passed or rounded is None else rounded()
            if typed is not None:
                beside = compare(found[name], typed[name], exact[name], dtype)
                accuracy = replace(beside, note=AS_TYPED) if beside.passed else accuracy
            result.append(Compared(name, accuracy, "float64"))
        else:
            result.append(Compared(name, _apart(found[name], own, dtype), "original"))
    return result


def _apart(found: Array, original: Array, dtype: DType) -> Accuracy:
    """The distance of two results without knowing the right one."""
    wide = np.asarray(original, dtype=np.float64)
    own = compare(found, original, wide, dtype)
    if own.passed or not dtype.is_float or not math.isfinite(own.rmse):
        return own
    scale = np.abs(wide[np.isfinite(wide)])
    ulp = dtype.epsilon * APART[dtype.name]
    passed = own.rmse <= ulp * math.sqrt(float(np.mean(scale**2)))
    passed = passed and own.max_error <= APART_AT_MOST * ulp * float(scale.max(initial=0.0))
    return Accuracy(passed, own.rmse, 0.0, own.max_error, 0.0, "there is no float64 run to compare with")


# --- models with some operators only ----------------------------------------------------------------------------------
_INLINE = "_original"  #: what is appended to an operator's name so that no library knows it


def keep(model: onnx.ModelProto, kept: Sequence[str], domain: str) -> onnx.ModelProto:
    """A copy of a patched model in which only the nodes called `kept` use the library: the others have a name of which the
    library knows nothing, so that onnxruntime takes their functions."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.domain == domain and node.name not in kept:
            node.op_type += _INLINE
    for function in model.functions:
        if function.domain == domain:
            other = copy.functions.add()
            other.CopyFrom(function)
            other.name += _INLINE
    return copy


def single(model: onnx.ModelProto, node: onnx.NodeProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    """A model of one operator with its function; `values` are examples of its tensors that tell their types and ranks."""

    def info(name: str) -> onnx.ValueInfoProto:
        a = values[name]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), [None] * a.ndim)

    read = list(dict.fromkeys(n for n in node.input if n))
    name = re.sub(r"\W", "_", node.op_type)
    graph = helper.make_graph([node], name, [info(n) for n in read], [info(n) for n in node.output])
    functions = [f for f in model.functions if (f.domain, f.name) == (node.domain, node.op_type)]
    return helper.make_model(graph, opset_imports=model.opset_import, functions=functions, ir_version=model.ir_version)
