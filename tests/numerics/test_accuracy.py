"""The accuracy rule, on errors whose size is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_cli.lax.dtypes import BF16, F16, F32, I64, DType
from mirage_cli.numerics.accuracy import ILL_CONDITIONED, SMALL, Sample, compare, judged, rounded_figure

Floats = NDArray[np.float64]
NAN, INF = float("nan"), float("inf")


def _true(count: int) -> Floats:
    return np.linspace(1.0, 1.9, count)


def _off(count: int, error: float) -> Floats:
    """Alternately above and below the true values, so that the root mean square of the error is `error` too."""
    return _true(count) + error * np.where(np.arange(count) % 2, -1.0, 1.0)


@pytest.mark.parametrize(
    ("count", "own", "error", "dtype", "passed"),
    [
        (SMALL, 1e-3, 1.99e-3, F32, True),
        (SMALL, 1e-3, 2.01e-3, F32, False),
        (SMALL - 1, 1e-3, 2.99e-3, F32, True),
        (SMALL - 1, 1e-3, 3.01e-3, F32, False),
        (SMALL, 0.0, 1.9 * 2.0**-23, F32, True),
        (SMALL, 0.0, 2.1 * 2.0**-23, F32, False),
        (SMALL, 0.0, 1.9 * 2.0**-10, F16, True),
        (SMALL, 0.0, 2.1 * 2.0**-10, F16, False),
    ],
)
def test_twice_the_original_and_two_units(count: int, own: float, error: float, dtype: DType, passed: bool) -> None:
    found = compare(_off(count, error), _off(count, own), _true(count), dtype)
    assert found.passed is passed
    assert found.rmse == pytest.approx(error)
    assert found.max_error == pytest.approx(error)
    assert found.original_rmse == pytest.approx(own)
    assert found.original_max_error == pytest.approx(own)


def test_one_element_far_off_is_enough() -> None:
    """The root mean square alone would let it pass."""
    result = _off(100000, 1e-3)
    result[7] += 0.01
    found = compare(result, _off(100000, 1e-3), _true(100000), F32)
    assert found.rmse < 1.1e-3
    assert not found.passed


def test_many_elements_slightly_off_are_enough() -> None:
    """The greatest error alone would let it pass."""
    original = _true(SMALL)
    original[0] += 1e-3
    found = compare(_off(SMALL, 9e-4), original, _true(SMALL), F32)
    assert found.max_error < found.original_max_error
    assert not found.passed


def test_the_unit_grows_with_the_values() -> None:
    error = 1000 * 2.0**-23
    assert compare(_off(SMALL, error) * 1024, _true(SMALL) * 1024, _true(SMALL) * 1024, F32).passed is False
    shifted = compare(_true(SMALL) * 1024 + error, _true(SMALL) * 1024, _true(SMALL) * 1024, F32)
    assert shifted.passed


def test_a_larger_factor_takes_the_place_of_the_rules_own() -> None:
    arguments = _off(SMALL, 9e-3), _off(SMALL, 1e-3), _true(SMALL), F32
    assert not compare(*arguments).passed
    assert compare(*arguments, ILL_CONDITIONED).passed
    small = _off(10, 2.9e-3), _off(10, 1e-3), _true(10), F32
    assert compare(*small, 1.0).passed


@pytest.mark.parametrize(
    ("result", "original", "true", "note"),
    [
        (NAN, 1.0, 1.0, "1 values are not finite where the original's are"),
        (INF, 1.0, 1.0, "1 values are not finite where the original's are"),
        (INF, 1.0, INF, "1 values are not finite where the original's are"),
        (-INF, 1.0, 1e39, "1 values are not finite where the original's are"),
        (1.0, INF, INF, "1 values are finite where the original's are not"),
        (1.0, NAN, NAN, "1 values are finite where the original's are not"),
        (1.0, -INF, INF, "1 values are finite where the original's are not"),
        (-INF, INF, INF, "infinities or NaNs differ from the original's"),
        (NAN, INF, INF, "infinities or NaNs differ from the original's"),
        (NAN, INF, 1.0, "infinities or NaNs differ from the original's"),
    ],
)
def test_patterns_that_fail(result: float, original: float, true: float, note: str) -> None:
    found = compare(*_with(result, original, true), F32)
    assert not found.passed
    assert found.note == note


@pytest.mark.parametrize(
    ("result", "original", "true", "note"),
    [
        (NAN, NAN, NAN, ""),
        (-INF, -INF, -INF, ""),
        (INF, INF, 1.0, ""),
        (NAN, NAN, 1.0, ""),
        (NAN, NAN, INF, ""),
        (1.0, 1.0, INF, ""),
        (1.0, INF, 1.0, "better: the original overflows, this does not"),
        (1.0, NAN, 1.0, "better: the original overflows, this does not"),
        (INF, NAN, INF, "better: the original overflows, this does not"),
        (INF, 1.0, 1e39, ""),  # no float32
    ],
)
def test_patterns_that_pass(result: float, original: float, true: float, note: str) -> None:
    found = compare(*_with(result, original, true), F32)
    assert found.passed
    assert found.note == note
    assert found.rmse == 0.0


def _with(*values: float) -> tuple[Any, Any, Any]:
    arrays = [np.ones(5) for _ in values]
    for a, value in zip(arrays, values, strict=True):
        a[3] = value
    return arrays[0], arrays[1], arrays[2]


def test_integers_are_equal_or_wrong() -> None:
    big = np.array([2**60, 2**60 + 1])
    assert compare(big, big, big.astype(np.float64), I64).passed
    other = compare(big + 1, big, big.astype(np.float64), I64)
    assert not other.passed
    assert other.note == "integers differ"


def test_shapes_differ() -> None:
    found = compare(np.ones((2, 3)), np.ones((3, 2)), np.ones((3, 2)), F32)
    assert not found.passed
    assert found.note == "shape (2, 3) instead of (3, 2)"


@pytest.mark.parametrize("value", [np.zeros((0, 4)), np.full(3, NAN), np.zeros(())])
def test_nothing_to_measure_passes(value: Floats) -> None:
    assert compare(value, value, value, F16).passed


def test_zeros_are_compared_with_the_smallest_unit() -> None:
    assert compare(np.zeros(4), np.zeros(4), np.zeros(4), F32).passed
    assert not compare(np.full(4, 1e-30), np.zeros(4), np.zeros(4), F32).passed


def test_both_figures_are_told() -> None:
    found = compare(_off(4, 1e-3), _off(4, 2e-3), _true(4), F32)
    assert str(found) == "rmse 1.00e-03 (original 2.00e-03), max 1.00e-03 (original 2.00e-03)"
    assert found.to_json() == {
        "passed": True,
        "rmse": found.rmse,
        "original_rmse": found.original_rmse,
        "max_error": found.max_error,
        "original_max_error": found.original_max_error,
        "note": "",
    }


def test_infinity_is_what_a_type_has_no_number_for() -> None:
    """70,000 in float16: infinity is right, also where the original has NaN; so is what rounds down to the largest number."""
    assert compare(*_with(INF, INF, 70000.0), F16).passed
    assert compare(*_with(INF, NAN, 70000.0), F16).note == "better: the original overflows, this does not"
    assert not compare(*_with(INF, NAN, 65000.0), F16).passed
    assert compare(*_with(65504.0, INF, 65510.0), F16).passed


@pytest.mark.parametrize(("elsewhere", "passes"), [(0.2, True), (0.01, False)])
def test_where_the_original_has_no_number_its_error_elsewhere_counts(elsewhere: float, passes: bool) -> None:
    """A variance that cancels: NaN in one row of the original, and few digits in its others."""
    ours, original, true = (a.astype(np.float32) for a in _with(1.5, NAN, 1.0))
    original[0] += elsewhere
    found = compare(ours, original, true, F32)
    assert found.passed == passes
    assert found.note.startswith("better")


@pytest.mark.parametrize(
    ("result", "original", "true", "passes"),
    [
        (INF, 65504.0, 65510.0, True),
        (INF, 65504.0, 65457.0, True),  # three units of 32 below the end, of which the original has no error
        (INF, 65408.0, 65408.0, False),
        (-INF, 65504.0, 65510.0, False),
        (NAN, 65504.0, 65510.0, False),
        (65504.0, INF, 65530.0, True),
        (65504.0, INF, 65600.0, False),
        (-INF, -65504.0, -65510.0, True),
    ],
)
def test_at_the_end_of_the_range_rounding_decides(result: float, original: float, true: float, passes: bool) -> None:
    assert compare(*_with(result, original, true), F16).passed == passes


def test_inputs_that_are_not_finite_give_anything_that_is_not_finite() -> None:
    for ours, original, true in ((NAN, INF, INF), (INF, NAN, NAN), (NAN, 1.0, NAN), (1.0, NAN, 1.0)):
        assert not compare(*_with(ours, original, true), F32).passed or original != true
        assert compare(*_with(ours, original, true), F32, spoiled=True).passed
    assert not compare(*_with(NAN, 1.0, 1.0), F32, spoiled=True).passed
    assert not compare(*_with(1.0, NAN, NAN), F32, spoiled=True).passed


def test_the_smallest_numbers() -> None:
    """float16 keeps its subnormal numbers; types with float32's exponents may lose theirs."""
    least = 2.0**-24
    wanted = np.full(SMALL, 100 * least)
    assert compare(wanted + 2 * least, wanted, wanted, F16).passed
    assert not compare(wanted * 0, wanted, wanted, F16).passed
    tiny = np.full(SMALL, 2.0**-128)
    for dtype in (F32, BF16):
        assert compare(tiny * 0, tiny, tiny, dtype).passed
        assert not compare(tiny * 0, tiny * 64, tiny * 64, dtype).passed


def test_what_does_not_pass_is_judged_over_more_draws() -> None:
    def draw(error: float, own: float, count: int = 2) -> Sample:
        return _off(count, error), _off(count, own), _true(count)

    lucky = draw(1e-3, 1e-9)
    assert not judged(lucky, F32).passed
    assert judged(lucky, F32, lambda: [draw(1e-3, 1e-3)] * 15).passed
    assert not judged(lucky, F32, lambda: [draw(1e-2, 1e-3)] * 15).passed
    assert not judged(lucky, F32, lambda: [lucky] * 3 + [draw(1e-3, 1e-3)] * 12).passed  # no luck four times in a row
    many = draw(1e-3, 1e-9, SMALL)
    assert judged(many, F32, lambda: [draw(1e-3, 1e-3, SMALL)] * 15).passed
    worst = draw(5e-3, 1e-3)  # at most twice what is allowed, and it does not come again
    assert judged(worst, F32, lambda: [draw(1e-3, 1e-3)] * 15).passed
    assert not judged(worst, F32, lambda: [draw(1e-3, 1e-3)] * 14).passed  # too few to tell
    assert not judged(draw(7e-3, 1e-3), F32, lambda: [draw(1e-3, 1e-3)] * 15).passed
    infinite = (np.full(2, INF), *lucky[1:])
    assert not judged(infinite, F32, lambda: [draw(1e-3, 1e-3)] * 15).passed


def test_errors_of_few_numbers_are_judged_over_more_draws() -> None:
    """One result of a thousand is large, as of an exponential: its error alone is that of the output."""

    def draw(error: float, own: float, size: float = 1e4) -> Sample:
        true = np.full(SMALL, 1e-3)
        true[7] = size
        return true * (1 + error), true * (1 + own), true

    lucky = draw(1e-5, 1e-9)
    assert not judged(lucky, F32).passed
    assert judged(lucky, F32, lambda: [draw(1e-5, 1e-5)] * 15).passed
    assert not judged(lucky, F32, lambda: [draw(1e-5, 1e-6)] * 15).passed
    assert judged(lucky, F32, lambda: [draw(1e-5, 1e-5, 1.0)] * 15).passed  # every draw counts as much as the others


def test_overflows_on_the_way_give_infinity_or_nan() -> None:
    for ours, original in ((NAN, INF), (INF, NAN), (-INF, INF)):
        assert not compare(*_with(ours, original, 1.0), F32).passed
        assert compare(*_with(ours, original, 1.0), F32, mixed=True).passed
    assert not compare(*_with(NAN, 1.0, 1.0), F32, mixed=True).passed
    assert compare(*_with(1.0, NAN, 1.0), F32, mixed=True).note.startswith("better")


def test_what_the_original_lacks_is_within_some_units() -> None:
    unit = 2.0**-10
    for units, passed in ((60, True), (70, False)):
        result = np.where(np.arange(8) == 3, 1 + units * unit, 1.0)
        original = np.where(np.arange(8) == 3, np.inf, 1.0)
        assert compare(result, original, np.ones(8), F16).passed is passed
        assert compare(result[3:4], original[3:4], np.ones(1), F16).passed is passed


def test_errors_are_told_to_three_digits() -> None:
    just_above = float(np.nextafter(1.23456e-8, 1.0))
    assert [rounded_figure(x) for x in (0.0, 1.23456e-8, just_above, 9.996, INF)] == [0.0, 1.23e-8, 1.23e-8, 10.0, INF]
    assert np.isnan(rounded_figure(NAN))
