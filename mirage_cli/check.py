"""The float check of a fragment: the built kernel against float64, beside what the original operators make of it.

Inputs are random and adversarial (large, tiny and constant values, masked rows); weights are the model's own. On random
inputs the accuracy rule holds as it is; on adversarial ones, where the order of a sum decides the error of the original
and of ours alike, its factor is `ILL_CONDITIONED`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.accuracy import ILL_CONDITIONED, Accuracy, compare
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domain import Float64
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.program import Program, Source, evaluate_program

Arrays = dict[int, NDArray[Any]]
MAX_WORK = 4e10  #: multiply-adds of the largest operator up to which float64 is affordable
MAX_ELEMENTS = 1 << 28  #: elements of the largest value
SYMBOL_VALUES = (5, 17, 3, 9)  #: what symbols are in the check
CASES = ("random", "large", "tiny", "zero")
_NUMPY = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u64": "uint64",
    "u32": "uint32",
    "u16": "uint16",
    "u8": "uint8",
    "bool": "bool",
}
_SCALES = {"random": 1.0, "large": 30.0, "tiny": 1e-4, "zero": 0.0}


@dataclass(frozen=True, slots=True)
class FloatCheck:
    """The verdict over all cases: the worst accuracy, or why there was no check."""

    passed: bool
    worst: Accuracy | None
    case: str = ""
    skipped: str = ""

    def to_json(self) -> dict[str, Any]:
        """The report's `verification.float`."""
        if self.worst is None:
            return {"target": "cpu", "skipped": self.skipped}
        return {
            "target": "cpu",
            "passed": self.passed,
            "case": self.case,
            "error": self.worst.rmse,
            "original_error": self.worst.original_rmse,
            "max_error": self.worst.max_error,
            "original_max_error": self.worst.original_max_error,
            "note": self.worst.note,
        }


def too_large(program: Program) -> str:
    """Why a program is not evaluated in float64, or nothing."""
    symbols = symbol_values(program)
    size = {a.name: ex.value(a.extent, symbols) for a in program.axes}
    for n in program.nodes:
        axes = frozenset(n.over).union(*(program.axes_of(i) for i in n.inputs))
        work = float(np.prod([float(size[a]) for a in axes]))
        held = float(np.prod([float(size[a]) for a in program.axes_of(n.name)]))
        if work > MAX_WORK or held > MAX_ELEMENTS:
            return f"a value of {held:.1e} elements ({work:.1e} multiply-adds) is too large for a float64 run"
    return ""


def symbol_values(program: Program) -> dict[str, int]:
    """Numbers for the symbols of a program."""
    return {s: SYMBOL_VALUES[k % len(SYMBOL_VALUES)] + k // len(SYMBOL_VALUES) for k, s in enumerate(program.symbols)}


def inputs(program: Program, case: str, seed: int, constants: Mapping[int, NDArray[Any]]) -> Arrays:
    """Arrays for the sources of a program; `constants` are taken as they are."""
    symbols = symbol_values(program)
    random = np.random.default_rng(seed)
    return {
        k: constants[k] if k in constants else draw(s, [ex.value(e, symbols) for e in s.dims], case, random)
        for k, s in enumerate(program.sources)
    }


def draw(source: Source, dims: Sequence[int], case: str, random: np.random.Generator) -> NDArray[Any]:
    """A random array for one source: normal numbers (scaled by the case), small integers, or truth values that leave no
    row without a true one."""
    shape = tuple(dims)
    if source.dtype.kind == "bool":
        truth = random.random(shape) < 0.7
        if truth.ndim:
            truth[..., 0] = True
        return np.asarray(truth)
    if source.dtype.kind == "int":
        return random.integers(0, 4, shape).astype(numpy_type(source.dtype))
    values = random.standard_normal(shape) * (_SCALES[case] if not source.constant else 1.0)
    return np.asarray(values).astype(numpy_type(source.dtype))


def numpy_type(dtype: DType) -> np.dtype[Any]:
    """The numpy type of an element type (bfloat16 through ml_dtypes, which onnx brings)."""
    if dtype.name == "bf16":
        import ml_dtypes  # noqa: PLC0415

        brain: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return brain
    return np.dtype(_NUMPY[dtype.name])


def check(
    program: Program,
    kernel: Callable[[Sequence[NDArray[Any]]], Sequence[NDArray[Any]]],
    original: Callable[[Sequence[NDArray[Any]]], Sequence[NDArray[Any]]],
    constants: Mapping[int, NDArray[Any]],
    seed: int,
) -> FloatCheck:
    """Compare `kernel` and `original` (both take the sources in order) with float64 on every case."""
    reason = too_large(program)
    if reason:
        return FloatCheck(True, None, skipped=reason)
    worst: tuple[float, Accuracy, str] | None = None
    for case in CASES:
        arrays = inputs(program, case, seed, constants)
        ordered = [arrays[k] for k in range(len(program.sources))]
        wide = {k: np.asarray(a).astype(np.float64) for k, a in arrays.items()}
        reference = evaluate_program(program, Float64([a.name for a in program.axes]), wide, symbol_values(program))
        for o, result, own, wanted in zip(program.outputs, kernel(ordered), original(ordered), reference, strict=True):
            factor = None if case == "random" else ILL_CONDITIONED
            accuracy = compare(np.asarray(result), np.asarray(own), wanted, o.dtype, factor)
            if not accuracy.passed:
                return FloatCheck(False, accuracy, case)
            ratio = accuracy.rmse / (accuracy.original_rmse + 1e-30)
            if worst is None or (case == "random" and ratio > worst[0]):
                worst = (ratio, accuracy, case)
    return FloatCheck(True, worst[1] if worst else None, worst[2] if worst else "", "" if worst else "no outputs")
