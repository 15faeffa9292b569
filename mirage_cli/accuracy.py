"""The accuracy rule: how far a result may be from a float64 run of the original.

Per output, root mean square and maximum error are at most `FACTOR` times the original's own plus two units in the last
place of the output's type at the tensor's scale (`SMALL_FACTOR` below `SMALL` elements), and the pattern of values that
are not finite is the same, unless the original's come from an overflow that the result avoids: then it is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax.dtypes import DType

FACTOR = 2.0
SMALL_FACTOR = 3.0
SMALL = 1000
ULPS = 2.0
FINITE = 0
ILL_CONDITIONED = 10.0  #: the factor for inputs made to be extreme, on which the order of a sum alone decides the error


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of a result and of the original, against float64, and the verdict."""

    passed: bool
    rmse: float
    original_rmse: float
    max_error: float
    original_max_error: float
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The report's form."""
        return {
            "passed": self.passed,
            "rmse": self.rmse,
            "original_rmse": self.original_rmse,
            "max_error": self.max_error,
            "original_max_error": self.original_max_error,
            "note": self.note,
        }

    def __str__(self) -> str:
        text = (
            f"rmse {self.rmse:.2e} (original {self.original_rmse:.2e}), "
            f"max {self.max_error:.2e} (original {self.original_max_error:.2e})"
        )
        return f"{text}: {self.note}" if self.note else text


def compare(
    result: NDArray[Any],
    original: NDArray[Any],
    reference: NDArray[np.float64],
    dtype: DType,
    factor: float | None = None,
) -> Accuracy:
    """Judge `result` against `reference`, given what the `original` made of the same inputs (arrays of one shape).

    `factor` takes the place of the rule's own (which depends on the number of elements) when it is larger.
    """
    if result.shape != reference.shape:
        return Accuracy(False, np.inf, 0.0, np.inf, 0.0, f"shape {result.shape} instead of {reference.shape}")
    r, o, t = (np.asarray(a, dtype=np.float64) for a in (result, original, reference))
    if not dtype.is_float:
        same = bool(np.array_equal(result, original))
        return Accuracy(same, 0.0, 0.0, 0.0, 0.0, "" if same else "integers differ")
    note = _pattern(r, o, t)
    if note.startswith("!"):
        return Accuracy(False, np.inf, 0.0, np.inf, 0.0, note[1:])
    finite = np.isfinite(t) & np.isfinite(r)
    ours = finite & np.isfinite(o)
    if not finite.any():
        return Accuracy(True, 0.0, 0.0, 0.0, 0.0, note)
    error, own = np.abs(r[finite] - t[finite]), np.abs(o[ours] - t[ours]) if ours.any() else np.zeros(1)
    scale = np.abs(t[finite])
    factor = max(FACTOR if finite.sum() >= SMALL else SMALL_FACTOR, factor or 0.0)
    rmse, original_rmse = _rms(error), _rms(own)
    max_error, original_max = float(error.max()), float(own.max())
    passed = rmse <= factor * original_rmse + ULPS * _ulp(_rms(scale), dtype)
    passed = passed and max_error <= factor * original_max + ULPS * _ulp(float(scale.max()), dtype)
    return Accuracy(passed, rmse, original_rmse, max_error, original_max, note)


def _pattern(r: NDArray[np.float64], o: NDArray[np.float64], t: NDArray[np.float64]) -> str:
    """What is to be said of values that are not finite; a leading `!` marks a failure.

    A value must be of the original's kind or, where the original's is not finite, of the true one's.
    """
    ours, original, true = (_kind(x) for x in (r, o, t))
    better = (ours == true) & (ours != original) & (original != FINITE)
    wrong = (ours != original) & ~better
    lost, gained = wrong & (original == FINITE), wrong & (ours == FINITE)
    if lost.any():
        return f"!{int(lost.sum())} values are not finite where the original's are"
    if gained.any():
        return f"!{int(gained.sum())} values are finite where the original's are not"
    if wrong.any():
        return "!infinities or NaNs differ from the original's"
    return "better: the original overflows, this does not" if better.any() else ""


def _kind(x: NDArray[np.float64]) -> NDArray[np.int8]:
    """FINITE, or 1, -1 for infinities and 2 for NaN."""
    return np.where(np.isnan(x), 2, np.where(np.isinf(x), np.sign(x), FINITE)).astype(np.int8)


def _rms(x: NDArray[np.float64]) -> float:
    top = float(np.max(x, initial=0.0))
    return top * float(np.sqrt(np.mean((x / top) ** 2))) if top > 0 else 0.0


def _ulp(scale: float, dtype: DType) -> float:
    """One unit in the last place of a number of this size."""
    if scale <= 0.0:
        return float(np.finfo(np.float32).tiny) * dtype.epsilon
    return float(2.0 ** np.floor(np.log2(scale)) * dtype.epsilon)
