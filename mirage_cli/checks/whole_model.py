"""Whole models: what a file's own nodes mean in float64, and the comparison of a patched model with its original.

What is evaluated is the file as it was given, by `truth`, at its own opset: nothing that was read, folded or rewritten.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from mirage_cli.checks import divergence
from mirage_cli.checks.reference import has_narrowing_casts, nearly_equal
from mirage_cli.checks.sequences import unboxed
from mirage_cli.errors import MirageError, UsageError
from mirage_cli.frontends.imported import Imported
from mirage_cli.frontends.onnx.external import DataFiles
from mirage_cli.frontends.onnx.traversal import all_nodes
from mirage_cli.lax.dtypes import F16, F32, DType, from_numpy
from mirage_cli.numerics.accuracy import DRAWS, Accuracy, Sample, compare, judged, remembered
from mirage_cli.truth import evaluate

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = dict[str, Array]
Draw: TypeAlias = tuple[Arrays, Arrays, Arrays | None]  #: the outputs found, the original's, those of a float64 run
MAX_WORK = 5e10  #: multiply-adds up to which a float64 run is affordable
MAX_ELEMENTS = 1 << 27  #: elements of the largest value
#: without a float64 run: how far root mean square and maximum may be apart, in units of the last place
APART = {"f64": 256.0, "f32": 256.0, "f16": 16.0, "bf16": 16.0}
AS_TYPED = "the original leaves out roundings that its types ask for: compared with a run that has them"
UNROUNDED = "compared with a run without the roundings of casts, which change no more than rounding does"
APART_AT_MOST = 16.0  #: the maximum, as a multiple of that
NOTHING, UNCOMPARED = "nothing", "not compared: it holds no tensors"
TEXTS = "OSU"  #: numpy's kinds of text, which is the same or not
_WIDE = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE})


# --- the float64 run --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Stated:
    """A model as its file states it, and what reads weights that lie outside of it."""

    model: onnx.ModelProto
    load: divergence.Load

    def run(self, inputs: Mapping[str, Array], seconds: float = 0, rounded: bool = False, casts: bool = True) -> Arrays:
        """The outputs in float64, by name; `rounded` makes every tensor one of its type on the way, without `casts` those to
        narrower types keep their numbers. Raises Refused, with the reason, where that cannot be done, OutOfTime where it takes
        longer than `seconds` (0: no limit), and UsageError for inputs that are not the model's."""
        check_inputs(self.model, inputs)
        return evaluate.run(
            self.model,
            inputs,
            load=self.load,
            seconds=seconds,
            most_work=MAX_WORK,
            most_elements=MAX_ELEMENTS,
            rounded=rounded,
            casts=casts,
        )

    def parted(self, inputs: Mapping[str, Array], own: Arrays, exact: Arrays, shown: Callable[[bytes], Arrays]) -> str:
        """The node at which what a runtime makes of the model (`own`) parts from what it means, in words; nothing where
        rounding explains the difference. `shown` runs a model that has other outputs."""
        unit, terms = divergence.unit(self.model), divergence.longest_dimension(inputs)
        if all(divergence.within_rounding(own[n], exact[n], unit, terms) for n in own.keys() & exact.keys()):
            return ""
        plain = divergence.inlined(self.model)
        try:
            return divergence.first_divergence(
                plain, {**inputs} | shown(divergence.showing_all(plain).SerializeToString()), self.load
            )
        except MirageError:
            return ""


def stated(imported: Imported) -> Stated:
    """The model that was read, as it was given."""
    assert imported.original is not None
    return Stated(imported.original.proto(), imported.original.files.array)


def stated_by(model: onnx.ModelProto, path: str) -> Stated:
    """A model whose external data lie beside a path."""
    return Stated(model, DataFiles(path, hashed=False).array)


def check_inputs(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> None:
    """Raise UsageError for an input that is missing or has another number of dimensions than the model says."""
    weights = {t.name for t in model.graph.initializer}
    for v in model.graph.input:
        shape = v.type.tensor_type.shape if v.type.tensor_type.HasField("shape") else None
        if v.name in weights and v.name not in inputs:
            continue
        if v.name not in inputs:
            raise UsageError(f"input {v.name!r} is missing")
        if shape is not None and len(shape.dim) != inputs[v.name].ndim:
            raise UsageError(f"input {v.name!r}: expected {len(shape.dim)} dimensions, found {inputs[v.name].ndim}")


def float64_run(imported: Imported, inputs: Mapping[str, Array], seconds: float = 0) -> Arrays:
    """The outputs in float64 of a model that was read; see `Stated.run`."""
    return stated(imported).run(inputs, seconds)


def rounded_run(of: Stated, inputs: Mapping[str, Array], seconds: float = 0) -> Arrays | None:
    """The outputs with every tensor rounded to its type; none where no tensor has 16 bits or no output is wider, or for lack
    of memory or of `seconds`."""
    outputs = {v.type.tensor_type.elem_type for v in of.model.graph.output}
    if divergence.unit(of.model) < F16.epsilon or not outputs & _WIDE:
        return None
    try:
        return of.run(inputs, seconds, rounded=True)
    except MirageError:
        return None


def unrounded_run(of: Stated, inputs: Mapping[str, Array], seconds: float = 0) -> Arrays | None:
    """The outputs without the roundings of casts; none where there are no such casts, or for lack of memory or of
    `seconds`."""
    if not has_narrowing_casts(of.model):
        return None
    try:
        return of.run(inputs, seconds, casts=False)
    except MirageError:
        return None


# --- comparing --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Compared:
    """One output of the patched model beside the original's. `reference` says what both are measured against."""

    output: str
    accuracy: Accuracy
    reference: str  #: "float64", "original", or "nothing" where it is not compared

    def to_json(self) -> dict[str, Any]:
        """The form of `mirage verify --json`."""
        return {"output": self.output, "reference": self.reference} | self.accuracy.to_json()

    @property
    def text(self) -> str:
        """The distance and what it is from, in words, or why that is not said."""
        if self.reference == NOTHING:
            return self.accuracy.note
        return f"{self.accuracy} against {self.reference}"

    def __str__(self) -> str:
        return f"{self.output}: {self.text}"


def compare_outputs(
    computed: Mapping[str, Array],
    original: Mapping[str, Array],
    exact: Mapping[str, Array] | None,
    again: Callable[[int], Draw] | None = None,
    rounded: Callable[[], Mapping[str, Array] | None] | None = None,
    unrounded: Callable[[], Mapping[str, Array] | None] | None = None,
) -> list[Compared]:
    """Every output by the accuracy rule, against the float64 run `exact`; without one, by its distance from the original's.
    `again` makes further draws, from 1 on, for outputs that do not pass. `rounded` makes a run with the roundings that the
    model's types ask for: onnxruntime's CPU leaves out those between operators of float16, so that the original may be nearer
    to the exact outputs than it says. `unrounded` makes one without the roundings of casts, which what computes in wider types
    has not. Sequences are compared element by element; what holds no tensors is not, unless it is the same or absent."""
    result = list(_boxed(computed, original))
    computed, original = (unboxed(outputs)[0] for outputs in (computed, original))
    draws = remembered(again(k) for k in range(1, DRAWS) if again is not None)

    def more(name: str) -> Iterator[Sample]:
        return ((f[name], o[name], e[name]) for f, o, e in draws() if e is not None)

    for name, own in original.items():
        if name not in computed:
            continue
        if own.dtype.kind in TEXTS:
            result.append(Compared(name, _equal(np.array_equal(computed[name], own)), "original"))
            continue
        dtype = from_numpy(own.dtype) or F32
        if exact is not None and name in exact:
            accuracy = judged((computed[name], own, exact[name]), dtype, partial(more, name))
            typed = None if accuracy.passed or rounded is None else rounded()
            if typed is not None:
                beside = compare(computed[name], typed[name], exact[name], dtype)
                accuracy = replace(beside, note=AS_TYPED) if beside.passed else accuracy
            loose = None if accuracy.passed or unrounded is None else unrounded()
            if loose is not None and nearly_equal(exact[name], loose[name], F16.epsilon):
                beside = compare(computed[name], own, loose[name], dtype)
                accuracy = replace(beside, note=UNROUNDED) if beside.passed else accuracy
            result.append(Compared(name, accuracy, "float64"))
        else:
            result.append(Compared(name, _apart(computed[name], own, dtype), "original"))
    return result


def _boxed(computed: Mapping[str, Any], original: Mapping[str, Any]) -> Iterator[Compared]:
    """Outputs that hold no tensors, and tensors that one of the two has alone."""
    (ours, own), (theirs, others) = unboxed(computed), unboxed(original)
    alone = (ours.keys() ^ theirs.keys()) | (own.keys() ^ others.keys())
    yield from (Compared(name, _equal(False), "original") for name in sorted(alone))
    for name in [n for n in others if n in own]:
        if any(v is None or v == [] for v in (own[name], others[name])):
            yield Compared(name, _equal(own[name] == others[name]), "original")
        else:
            yield Compared(name, Accuracy(True, 0.0, 0.0, 0.0, 0.0, UNCOMPARED), NOTHING)


def _equal(same: bool) -> Accuracy:
    """The verdict on what is the same or is not."""
    far = 0.0 if same else math.inf
    return Accuracy(same, far, 0.0, far, 0.0, "" if same else "it is another one")


def _apart(computed: Array, original: Array, dtype: DType) -> Accuracy:
    """The distance of two results without knowing the right one."""
    wide = np.asarray(original, dtype=np.float64)
    own = compare(computed, original, wide, dtype)
    if own.passed or not dtype.is_float or not math.isfinite(own.rmse):
        return own
    scale = np.abs(wide[np.isfinite(wide)])
    ulp = dtype.epsilon * APART[dtype.name]
    passed = own.rmse <= ulp * math.sqrt(float(np.mean(scale**2)))
    passed = passed and own.max_error <= APART_AT_MOST * ulp * float(scale.max(initial=0.0))
    return Accuracy(passed, own.rmse, 0.0, own.max_error, 0.0, "there is no float64 run to compare with")


# --- models with some operators only ----------------------------------------------------------------------------------
_INLINE = "_original"  #: what is appended to an operator's name so that no library knows it


def with_kernels_of(model: onnx.ModelProto, kept: Sequence[str], domain: str) -> onnx.ModelProto:
    """A copy of a patched model in which only the nodes called `kept` use the library: the others have a name of which the
    library knows nothing, so that onnxruntime takes their functions."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in all_nodes(copy.graph.node):
        if node.domain == domain and node.name not in kept:
            node.op_type += _INLINE
    for function in model.functions:
        if function.domain == domain:
            other = copy.functions.add()
            other.CopyFrom(function)
            other.name += _INLINE
    return copy


def single_operator(model: onnx.ModelProto, node: onnx.NodeProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    """A model of one operator with its function; `values` are examples of its tensors that tell their types and ranks."""

    def info(name: str) -> onnx.ValueInfoProto:
        a = values[name]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), [None] * a.ndim)

    read = list(dict.fromkeys(n for n in node.input if n))
    name = re.sub(r"\W", "_", node.op_type)
    graph = helper.make_graph([node], name, [info(n) for n in read], [info(n) for n in node.output])
    functions = [f for f in model.functions if (f.domain, f.name) == (node.domain, node.op_type)]
    return helper.make_model(graph, opset_imports=model.opset_import, functions=functions, ir_version=model.ir_version)
