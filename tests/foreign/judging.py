"""What a patched model's outputs may be, beside those of the original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax.dtypes import F32, DType, from_numpy
from mirage_cli.numerics import accuracy

WRONG, INACCURATE = "wrong", "inaccurate"
NEAR = 4.0  #: times what the accuracy rule allows that are bad luck, or a little less exact, and no wrong number
#: where there is no float64 run: the error that is allowed, as a share of the largest number, by the type's name
SHARES = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 6e-2}


class Difference(NamedTuple):
    """How an output differs: WRONG, or INACCURATE where it is off by little more than it may be, `used` times as much."""

    kind: str
    text: str
    used: float = np.inf

    @property
    def may_be_luck(self) -> bool:
        """Whether the accuracy rule allows it where it does not come again on other draws."""
        return self.used <= accuracy.ONCE


def differences(
    names: Sequence[str],
    found: Sequence[Any],
    original: Sequence[Any],
    random: Sequence[bool],
    exact: Mapping[str, NDArray[np.float64]],
    apart: Sequence[Any] = (),
) -> list[Difference]:
    """What is wrong with outputs. `exact` are those of a float64 run as far as there is one, `random` says which are
    random, and `apart` are the original's without onnxruntime's own optimizations: as far as these are apart, ours may be."""
    result = []
    for k, name in enumerate(names):
        other = apart[k] if len(apart) == len(names) else None
        said = _difference(found[k], original[k], random[k], exact.get(name), other)
        if said is not None:
            result.append(said._replace(text=f"{name}: {said.text}"))
    return result


def _difference(found: Any, original: Any, random: bool, exact: Any, apart: Any) -> Difference | None:
    if isinstance(original, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(original):
            return Difference(WRONG, f"{len(original)} elements expected")
        others = apart if isinstance(apart, list | tuple) and len(apart) == len(original) else [None] * len(original)
        each = (_difference(f, o, random, None, a) for f, o, a in zip(found, original, others, strict=True))
        return next((d for d in each if d is not None), None)
    if not isinstance(original, np.ndarray):
        return None if random or found == original else Difference(WRONG, f"{found!r} instead of {original!r}"[:200])
    if found.dtype != original.dtype or found.shape != original.shape:
        return Difference(WRONG, f"{found.dtype}{list(found.shape)} instead of {original.dtype}{list(original.shape)}")
    if random or original.size == 0:
        return None
    dtype = from_numpy(original.dtype) if original.dtype.kind != "O" else None
    if original.dtype.kind in "fV" and dtype is not None and dtype.is_float:
        return _floats(found, original, dtype, exact, apart)
    if original.dtype.kind in "iu":
        return _integers(found, original)
    same = np.array_equal(found, original) if original.dtype.kind in "bOUS" else found.tobytes() == original.tobytes()
    return None if same else Difference(WRONG, f"{original.dtype} values differ")


def _floats(found: Any, original: Any, dtype: DType, exact: Any, apart: Any) -> Difference | None:
    if found.tobytes() == original.tobytes():
        return None
    if isinstance(exact, np.ndarray) and exact.shape == original.shape:
        judged = accuracy.compare(found, original, exact.astype(np.float64), dtype)
        if judged.passed:
            return None
        kind = INACCURATE if np.isfinite(judged.rmse) and judged.used <= NEAR else WRONG
        return Difference(kind, f"{judged}, {judged.used:.1f} times what is allowed", judged.used)
    f, o = (np.asarray(a, dtype=np.float64) for a in (found, original))
    if not np.array_equal(np.isfinite(f), np.isfinite(o)) or not np.array_equal(np.isnan(f), np.isnan(o)):
        return Difference(WRONG, "values that are not finite differ (no float64 run)")
    known = np.isfinite(o)
    if not np.array_equal(f[~known], o[~known], equal_nan=True):
        return Difference(WRONG, "infinities differ (no float64 run)")
    error = float(np.abs(f[known] - o[known]).max(initial=0.0))
    own = _apart(original, apart)
    allowed = SHARES.get(dtype.name, SHARES[F32.name]) * float(np.abs(o[known]).max(initial=0.0)) + 4 * own + 1e-30
    if error <= allowed:
        return None
    text = f"largest difference {error:.2e}, {allowed:.2e} allowed (no float64 run)"
    return Difference(INACCURATE if error <= NEAR * allowed else WRONG, text)


def far(original: Any, exact: NDArray[Any]) -> str:
    """How an original's output is not that of a float64 run; empty where it is, up to rounding."""
    if not isinstance(original, np.ndarray) or original.dtype.kind not in "fiubV":
        return ""
    if original.shape != exact.shape:
        return f"shape {list(original.shape)}, {list(exact.shape)} by the float64 run"
    dtype = from_numpy(original.dtype)
    o, e = (np.asarray(a, dtype=np.float64) for a in (original, exact))
    if (np.isnan(o) != np.isnan(e)).any():
        return "NaN at other places than in the float64 run"
    known = np.isfinite(o) & np.isfinite(e)
    error = float(np.abs(o[known] - e[known]).max(initial=0.0))
    share = SHARES.get(dtype.name, 0.0) if dtype is not None else SHARES["f16"]
    if error <= 10 * share * float(np.abs(e[known]).max(initial=0.0)):
        return ""
    return f"{original.dtype}: {error:.1e} apart, where the largest number is {float(np.abs(e[known]).max()):.1e}"


def _apart(original: Any, apart: Any) -> float:
    """How far the original is from itself without optimizations."""
    if not isinstance(apart, np.ndarray) or apart.shape != original.shape:
        return 0.0
    with np.errstate(all="ignore"):
        gap = np.abs(np.asarray(apart, dtype=np.float64) - np.asarray(original, dtype=np.float64))
    return float(gap[np.isfinite(gap)].max(initial=0.0))


def _integers(found: Any, original: Any) -> Difference | None:
    wrong = found != original
    if not wrong.any():
        return None
    text = f"{int(wrong.sum())} of {wrong.size} integers differ"
    by = np.abs(found.astype(np.float64) - original.astype(np.float64)).max()
    quantized = original.dtype.itemsize == 1 and by <= 1 and wrong.mean() <= 0.02
    return Difference(INACCURATE if quantized else WRONG, f"{text}, by {by:g} at most")


def agrees(outputs: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether outputs are those that somebody wrote down, within what the onnx package allows."""
    return len(outputs) == len(expected) and all(_agree(a, b) for a, b in zip(outputs, expected, strict=True))


def _agree(a: Any, b: Any) -> bool:
    if isinstance(b, list | tuple):
        return isinstance(a, list | tuple) and agrees(a, b)
    if not isinstance(b, np.ndarray) or not isinstance(a, np.ndarray):
        return bool(a == b) if b is not None and a is not None else a is b
    if a.shape != b.shape or b.dtype.kind not in "fiub":
        return a.shape == b.shape and bool(np.array_equal(a, b))
    return bool(
        np.allclose(
            a.astype(np.float64),
            b.astype(np.float64),
            rtol=1e-3,
            atol=1e-5 if b.dtype.kind == "f" else 0,
            equal_nan=True,
        )
    )
