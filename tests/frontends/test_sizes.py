"""Sizes: exact arithmetic on polynomials of named dimensions, against evaluation with numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_cli.frontends import sizes
from mirage_cli.frontends.sizes import Poly, Size, named, parse

B, S = named("b"), named("s")
NUMBERS = {"b": 3, "s": 7, "past": 11}
known = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def at(size: Size) -> int:
    found = sizes.substitute(size, NUMBERS)
    assert isinstance(found, int)
    return found


@st.composite
def polynomials(draw: st.DrawFn) -> Size:
    total: Size = draw(st.integers(-3, 3))
    for names in draw(st.lists(st.lists(st.sampled_from(sorted(NUMBERS)), max_size=3), max_size=4)):
        term: Size = draw(st.integers(-4, 4))
        for name in names:
            term = term * named(name)
        total = total + term
    return total


@known
@given(polynomials(), polynomials())
def test_arithmetic_commutes_with_evaluation(a: Size, b: Size) -> None:
    assert at(a + b) == at(a) + at(b)
    assert at(a - b) == at(a) - at(b)
    assert at(a * b) == at(a) * at(b)
    assert a - b + b == a and a * b == b * a
    assert a - a == 0


@known
@given(polynomials(), polynomials())
def test_quotients_are_exact(a: Size, b: Size) -> None:
    quotient = sizes.exact_quotient(a, b)
    if quotient is not None:
        assert quotient * b == a
    if isinstance(b, int) and b:
        assert sizes.exact_quotient(a * b, b) == a


@known
@given(polynomials())
def test_texts_and_extents_are_read_back(a: Size) -> None:
    assert parse(str(a)) == a
    try:
        extent = sizes.to_extent(a)
    except ValueError:
        return
    assert sizes.from_extent(extent) == a


def test_sums_cancel() -> None:
    assert parse("past + 1") - parse("past") == 1
    assert parse("s") - parse("s") == 0
    assert parse("2*b*s") == 2 * B * S
    assert parse("b*(s+1)-b") == B * S
    assert str(parse("1 + past - past*2")) == "-past+1"


@pytest.mark.parametrize(
    "text", ["floor(s/2)", "s // 2", "batch-size!", "", "past +", "(b", "3b", "Max(1, s)", "unk__0 %"]
)
def test_other_texts_are_symbols(text: str) -> None:
    size = parse(text)
    assert isinstance(size, Poly) and len(sizes.names(size)) == 1
    assert sizes.from_extent(sizes.to_extent(size)) == size
    assert parse(text) == size


def test_equal_texts_are_equal_symbols() -> None:
    assert parse("floor(s / 2)") == parse("floor(s/2)") != parse("floor(s/3)")


def test_extents_have_no_negative_size() -> None:
    for size in (-1, -B, -2 * B * S, -B - 1):
        with pytest.raises(ValueError, match="cannot be"):
            sizes.to_extent(size)


def test_quotients_that_are_none() -> None:
    assert sizes.exact_quotient(B + 1, B) is None
    assert sizes.exact_quotient(B, 2) is None
    assert sizes.exact_quotient(B, 0) is None
    assert sizes.exact_quotient(0, 0) is None
    assert sizes.exact_quotient(B + 1, B + 1) == 1
    assert sizes.exact_quotient(B * S + 2 * B, B) == S + 2


# --- texts that mean harm ---------------------------------------------------------------------------------------------
def test_long_texts_are_symbols() -> None:
    """The work of reading a sum grows with the square of its length."""
    assert parse("a+" * 499 + "a") == 500 * named("a")
    for count in (501, 50_001):
        text = "+".join(["a"] * count)
        assert len(text) > sizes.LONGEST and parse(text) == named(text)


def test_polynomials_that_are_long_to_write_are_symbols() -> None:
    """Eight sums multiplied are 256 terms. Written out they could not be read again: two dimensions that are equal would
    differ wherever one of them went through a text."""
    text = "*".join(f"(a{k}+b{k})" for k in range(8))
    size = parse(text)
    assert size == named("[" + "·".join(f"[a{k}+b{k}]" for k in range(8)) + "]")
    assert parse(str(size)) == size == sizes.from_extent(sizes.to_extent(size))


@pytest.mark.parametrize("text", [str(sizes.LARGEST), f"{sizes.LARGEST // 2}*2", f"-{sizes.LARGEST}", "9" * 900])
def test_numbers_that_no_file_can_hold_are_symbols(text: str) -> None:
    """The front end and every runtime hold dimensions in 64 bits."""
    size = parse(text)
    assert isinstance(size, Poly) and len(sizes.names(size)) == 1
    assert parse(str(sizes.LARGEST - 1)) == sizes.LARGEST - 1


def test_factors_that_no_file_can_hold() -> None:
    text = f"{sizes.LARGEST}*a"
    assert parse(text) == named(f"{sizes.LARGEST}·a")
    with pytest.raises(sizes.TooLarge):
        _ = sizes.LARGEST // 2 * named("a") * 2


def test_sizes_that_are_never_negative() -> None:
    a, b = sizes.named("a"), sizes.named("b")
    assert all(sizes.never_negative(size) for size in (0, 3, a, a + 2 * b + 1, a + b - b))
    assert not any(sizes.never_negative(size) for size in (-1, a - 1, a - b, -1 * a))


def test_whole_parts_of_quotients_are_symbols_in_sums() -> None:
    """Two ways to write the number of windows of a convolution, and what is added to one of them."""
    text = "((samples//5) - 9)//4"
    windows = parse(text)
    assert parse(f"{text} + 2") - 1 == windows + 1 == parse(f"1 + ({text})")
    assert sizes.names(windows) == ["[[[[samples]//[5]]-9]//[4]]"]
    for size in (windows, windows + 1, 3 * windows, parse("min[a//2,7]+1"), parse("a*(b//4)+c//d")):
        assert parse(str(size)) == size == sizes.from_extent(sizes.to_extent(size))


@pytest.mark.parametrize("text", ["s//0", "s//-2", "([s", "s]", "[s", "a/b", "a%3"])
def test_texts_that_are_no_sizes_are_symbols_as_a_whole(text: str) -> None:
    size = parse(text)
    assert len(sizes.names(size)) == 1 and parse(str(size)) == size
    assert isinstance(size, Poly) and [*dict(size.terms).values()] == [1]


@known
@given(st.integers(0, 99), st.integers(1, 9), st.integers(1, 9))
def test_quotients_of_numbers_are_pythons(a: int, b: int, c: int) -> None:
    assert parse(f"{a}//{b}*{c}//2-1") == a // b * c // 2 - 1
    assert sizes.floor_quotient(a * named("s"), 1) == a * named("s")
