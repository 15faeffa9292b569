"""The accuracy rule: how far a result may be from a float64 run of the original.

Per output, root mean square and maximum error are at most `FACTOR` times the original's own plus two units in the last
place of the output's type at the tensor's scale (`SMALL_FACTOR` below `SMALL` elements), and the pattern of values that
are not finite is the same, unless the original's come from an overflow that the result avoids: then it is better, and within
`LOST` units and what is allowed elsewhere. A value whose true one is nearer to where the type's range ends than the error
that is allowed may be infinite or not: on which side it is rounded says nothing.

One draw of the inputs may find the original near to float64 by luck: an output may have few numbers, or errors of few (those
of exp(x) are those of the largest results), or errors that are one (that of a norm's mean shifts a whole row). What does not
pass is judged together with more draws (`judged`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax.dtypes import F16, F32, DType

FACTOR = 2.0
SMALL_FACTOR = 3.0
SMALL = 1000
ULPS = 2.0
FINITE = 0
LOST = 64.0  #: units in the last place that a value may be off at least where the original overflows and has no error itself
ILL_CONDITIONED = 10.0  #: the factor for inputs made to be extreme, on which the order of a sum alone decides the error
DIGITS = 3  #: of an error in reports
DRAWS = 16  #: draws of the inputs over which an output is judged that does not pass
ONCE = 2.0  #: times the error that is allowed, once in so many draws
IN_A_ROW = 4  #: draws that fail one after the other, which is no bad luck any more
T = TypeVar("T")
#: results, what the original makes of the same inputs, and the float64 run
Sample: TypeAlias = tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of a result and of the original, against float64, and the verdict."""

    passed: bool
    rmse: float
    original_rmse: float
    max_error: float
    original_max_error: float
    note: str = ""
    used: float = 0.0  #: how much of the error that the rule allows there is

    def to_json(self) -> dict[str, Any]:
        """The report's form."""
        return {k: v for k, v in asdict(self).items() if k != "used"}

    def __str__(self) -> str:
        text = (
            f"rmse {self.rmse:.2e} (original {self.original_rmse:.2e}), "
            f"max {self.max_error:.2e} (original {self.original_max_error:.2e})"
        )
        return f"{text}: {self.note}" if self.note else text


def rounded_figure(error: float) -> float:
    """An error as reports tell it, to `DIGITS` digits: what follows depends on how numpy rounds on a processor."""
    return float(f"{error:.{DIGITS - 1}e}")


def judged(
    sample: Sample,
    dtype: DType,
    more: Callable[[], Iterable[Sample]] | None = None,
    factor: float | None = None,
    mixed: bool = False,
    spoiled: bool = False,
) -> Accuracy:
    """`compare` for one draw of the inputs; where that does not pass, for all draws together: `more` makes the others, of the
    same shapes. Every draw counts as much as the others, whatever the size of its numbers. An error of the first draw that is
    at most `ONCE` times what is allowed is luck where it does not come again: then the other draws decide, since all
    together would have the one that was chosen for its error among them."""
    first = compare(*sample, dtype, factor, mixed, spoiled)
    if first.passed or more is None or not np.isfinite(first.rmse):
        return first
    draws = [sample]
    for s in more():
        if s[2].shape == sample[2].shape:
            draws.append(s)
            if len(draws) == IN_A_ROW and not any(compare(*d, dtype, factor, mixed, spoiled).passed for d in draws):
                return first
    over = compare(*joined_draws(draws, dtype), dtype, factor, mixed, spoiled)
    if not over.passed and first.used <= ONCE and len(draws) == DRAWS:
        over = compare(*joined_draws(draws[1:], dtype), dtype, factor, mixed, spoiled)
    if not over.passed:
        return first
    unit = (
        _size(sample) if all(_ordinary(d, dtype) for d in draws) else 1.0
    )  # figures are at the size of the first draw
    return replace(
        over,
        rmse=over.rmse * unit,
        original_rmse=over.original_rmse * unit,
        max_error=over.max_error * unit,
        original_max_error=over.original_max_error * unit,
    )


def joined_draws(draws: Sequence[Sample], dtype: DType) -> Sample:
    """Draws as one sample, in which each counts as much as the others where none has numbers that are too large or small to
    be scaled."""
    if all(_ordinary(d, dtype) for d in draws):
        draws = [_of_size_one(d) for d in draws]
    r, o, t = (np.concatenate([np.ravel(d[k]) for d in draws]) for k in range(3))
    return r, o, t


def remembered(items: Iterable[T]) -> Callable[[], Iterator[T]]:
    """A function that gives the same items again and again; each is taken from `items` once, when it is first asked
    for."""
    source, known = iter(items), list[T]()

    def again() -> Iterator[T]:
        yield from known
        for x in source:
            known.append(x)
            yield x

    return again


def _ordinary(sample: Sample, dtype: DType) -> bool:
    """True if a multiple of a sample is as accurate: nothing overflows, nothing is so small that it loses digits."""
    r, o, t = (np.abs(np.asarray(a, dtype=np.float64)) for a in sample)
    inside = all(bool((a < dtype.largest).all()) for a in (r, o, t))  # no NaN either
    return inside and _rms(t) * dtype.epsilon > max(dtype.normal, _flushed(dtype))


def _of_size_one(sample: Sample) -> Sample:
    """A sample divided by the size of its true numbers."""
    r, o, t = (np.asarray(a, dtype=np.float64) / _size(sample) for a in sample)
    return r, o, t


def _size(sample: Sample) -> float:
    """The power of two that is next to the size of the true numbers."""
    return float(2.0 ** np.round(np.log2(_rms(np.abs(sample[2])))))


def compare(
    result: NDArray[Any],
    original: NDArray[Any],
    reference: NDArray[np.float64],
    dtype: DType,
    factor: float | None = None,
    mixed: bool = False,
    spoiled: bool = False,
) -> Accuracy:
    """Judge `result` against `reference`, given what the `original` made of the same inputs (arrays of one shape).

    `factor` takes the place of the rule's own (which depends on the number of elements) when it is larger. With `mixed`,
    for inputs so large that sums overflow on their way, infinities and NaN are not told apart: another order makes one of the
    other. Beside results beyond the type's range those within it are what is left of sums as large, in float32's units of
    these. With `spoiled`, for inputs that are not finite themselves, neither are they, and a value may be finite or not as the
    true one is: some functions of a runtime lose a NaN.
    """
    if result.shape != reference.shape:
        return Accuracy(False, np.inf, 0.0, np.inf, 0.0, f"shape {result.shape} instead of {reference.shape}")
    values, originals, exact = (np.asarray(a, dtype=np.float64) for a in (result, original, reference))
    if not dtype.is_float:
        same = bool(np.array_equal(result, original))
        return Accuracy(same, 0.0, 0.0, 0.0, 0.0, "" if same else "integers differ")
    finite = np.isfinite(exact) & np.isfinite(originals)
    factor = max(FACTOR if finite.sum() >= SMALL else SMALL_FACTOR, factor or 0.0)
    margin = factor * float(np.abs(originals[finite] - exact[finite]).max(initial=0.0)) + ULPS * _ulp(
        dtype.largest, dtype
    )
    note = _pattern(values, originals, exact, dtype, mixed or spoiled, spoiled, margin)
    if note.startswith("!"):
        return Accuracy(False, np.inf, 0.0, np.inf, 0.0, note[1:])
    known = np.isfinite(exact) & np.isfinite(values)
    both = known & np.isfinite(originals)
    if not known.any():
        return Accuracy(True, 0.0, 0.0, 0.0, 0.0, note)
    lost = known & ~both
    own = np.abs(originals[both] - exact[both])
    original_rmse, original_max = _rms(own), float(own.max(initial=0.0))
    error = np.abs(values[lost] - exact[lost])
    allowed = LOST * _ulp(float(np.abs(exact[known]).max()), dtype) + factor * original_max
    alone = float(error.max(initial=0.0)) / allowed
    if not both.any():
        return Accuracy(alone <= 1.0, _rms(error), 0.0, float(error.max()), 0.0, note, alone)
    error, scale = np.abs(values[both] - exact[both]), np.abs(exact[both])
    rmse, max_error = _rms(error), float(error.max())
    beyond = float(np.abs(exact[np.isfinite(exact)]).max())
    sums = F32.epsilon * beyond if beyond > dtype.largest else 0.0
    used = max(
        rmse / (factor * original_rmse + ULPS * _ulp(_rms(scale), dtype) + sums),
        max_error / (factor * original_max + ULPS * _ulp(float(scale.max()), dtype) + sums),
        alone,
    )
    return Accuracy(used <= 1.0, rmse, original_rmse, max_error, original_max, note, used)


def identical(result: NDArray[Any], wanted: NDArray[Any]) -> Accuracy:
    """Judge a tensor that is moved, not computed: bit by bit."""
    same = result.shape == wanted.shape and result.tobytes() == wanted.tobytes()
    return Accuracy(same, 0.0, 0.0, 0.0, 0.0, "" if same else "a tensor that is stored of two parts differs from them")


def _pattern(
    values: NDArray[np.float64],
    originals: NDArray[np.float64],
    exact: NDArray[np.float64],
    dtype: DType,
    mixed: bool,
    spoiled: bool,
    margin: float,
) -> str:
    """A note on values that are not finite; a leading `!` marks a failure.

    A value must be of the original's kind or of the true one's: where the original's is not finite, where the type has no
    number for the true one, so that it is infinite in the type, or with `spoiled`. Of either kind where the true one is
    within `margin` of the numbers that are rounded to infinity.
    """
    end = dtype.largest * (1.0 + dtype.epsilon / 4)
    beyond = np.isfinite(exact) & (np.abs(exact) >= end)
    sides = (FINITE, 1) if mixed else (FINITE, np.sign(exact))
    near = np.isfinite(exact) & (np.abs(np.abs(exact) - end) <= margin)
    exact = np.where(beyond, np.copysign(np.inf, exact), exact)
    ours, original, true = (~np.isfinite(x) if mixed else _kind(x) for x in (values, originals, exact))
    right = (ours == true) & (spoiled | beyond)
    avoided = (ours == true) & (ours != original) & (original != FINITE)
    either = near & ((ours == sides[0]) | (ours == sides[1]))
    wrong = (ours != original) & ~avoided & ~right & ~either
    lost, gained = wrong & (original == FINITE), wrong & (ours == FINITE)
    if lost.any():
        return f"!{int(lost.sum())} values are not finite where the original's are"
    if gained.any():
        return f"!{int(gained.sum())} values are finite where the original's are not"
    if wrong.any():
        return "!infinities or NaNs differ from the original's"
    return "better: the original overflows, this does not" if avoided.any() and not spoiled else ""


def _kind(x: NDArray[np.float64]) -> NDArray[np.int8]:
    """FINITE, or 1, -1 for infinities and 2 for NaN."""
    return np.where(np.isnan(x), 2, np.where(np.isinf(x), np.sign(x), FINITE)).astype(np.int8)


def _rms(x: NDArray[np.float64]) -> float:
    top = float(np.max(x, initial=0.0))
    return top * float(np.sqrt(np.mean((x / top) ** 2))) if top > 0 else 0.0


def _ulp(scale: float, dtype: DType) -> float:
    """One unit in the last place of a number of this size.

    Below the smallest normal number float16 has units of one size. Numbers that small of types with float32's exponents
    may be taken for 0, by the original and by us, so that a unit is as large as they are.
    """
    if scale > dtype.normal:
        return float(2.0 ** np.floor(np.log2(scale)) * dtype.epsilon) + _flushed(dtype)
    return max(dtype.normal * dtype.epsilon, _flushed(dtype))


def _flushed(dtype: DType) -> float:
    """The largest number that may be taken for 0."""
    return 0.0 if dtype == F16 else F32.normal if dtype.exponent == F32.exponent else dtype.normal
