"""`--dim` and `--shape`: what is read from them, what is refused."""

from __future__ import annotations

import pytest

from mirage_cli.errors import UsageError
from mirage_cli.options import dims
from mirage_cli.options.dims import Range


def test_numbers_and_ranges() -> None:
    found = dims.parse(["batch=4", "seq=0:128:4096", "past=7:7:7"])
    assert found == {"batch": Range(4, 4, 4), "seq": Range(0, 128, 4096), "past": Range(7, 7, 7)}
    assert [found[name].fixed for name in found] == [True, False, True]
    assert dims.numbers(found) == {"batch": 4, "past": 7}
    assert dims.typical(found) == {"batch": 4, "seq": 128, "past": 7}


@pytest.mark.parametrize("text", ["batch=4", "seq=1:128:4096", "a=b=3"])
def test_a_range_prints_as_it_is_written(text: str) -> None:
    ((name, found),) = dims.parse([text]).items()
    assert f"{name}={found}" == text


def test_a_symbol_may_hold_an_equals_sign() -> None:
    assert dims.parse(["a=b=3"]) == {"a=b": Range(3, 3, 3)}


@pytest.mark.parametrize(
    "text",
    ["batch", "batch=", "=4", "batch=x", "batch=-1", "batch=1:2", "batch=1:2:3:4", "batch=1::3", "batch=²", "b=+1"],
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected SYMBOL=N or SYMBOL=MIN:TYPICAL:MAX") as caught:
        dims.parse([text])
    assert text in str(caught.value)


@pytest.mark.parametrize("text", ["s=0:0:2", "s=2:1:3", "s=1:4:3", "s=3:3:2", "s=1:2:2147483648"])
def test_numbers_out_of_order_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected 0 <= MIN <= TYPICAL <= MAX, 1 <= TYPICAL, at most 2147483647"):
        dims.parse([text])


@pytest.mark.parametrize("text", ["s=0", "s=2147483648"])
def test_a_single_number_is_bounded(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected 1 <= N, at most 2147483647"):
        dims.parse([text])


def test_a_symbol_comes_once() -> None:
    with pytest.raises(UsageError, match=r"s is 1:2:3 already"):
        dims.parse(["s=1:2:3", "s=4"])


def test_unknown_symbols_name_the_known_ones() -> None:
    ranges = dims.parse(["bach=4"])
    with pytest.raises(UsageError, match=r"--dim bach: the inputs have no such symbol; they have batch, seq") as caught:
        dims.check_known(ranges, ["seq", "batch", "seq"])
    assert caught.value.hint == "did you mean batch?"
    with pytest.raises(UsageError, match="they have none"):
        dims.check_known(ranges, [])
    dims.check_known(ranges, ["bach", "seq"])


def test_shapes() -> None:
    assert dims.parse_shapes(["x=1x128", "y:0=7"]) == {"x": (1, 128), "y:0": (7,)}


@pytest.mark.parametrize("text", ["x", "x=", "=1x2", "x=1x", "x=1*2", "x=1x-2", "x=1,2"])
def test_another_form_of_shape_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected NAME=1x128x\.\.\."):
        dims.parse_shapes([text])


@pytest.mark.parametrize("text", ["x=0x2", "x=2147483648"])
def test_dimensions_of_a_shape_are_bounded(text: str) -> None:
    with pytest.raises(UsageError, match="at least 1 and at most 2147483647"):
        dims.parse_shapes([text])


def test_an_input_comes_once() -> None:
    with pytest.raises(UsageError, match="x is 1x2 already"):
        dims.parse_shapes(["x=1x2", "x=1x2"])


def test_types_behind_shapes() -> None:
    texts = ["ids=1x128:i64", "x=2x3"]
    assert dims.parse_shapes(texts) == {"ids": (1, 128), "x": (2, 3)}
    assert dims.parse_types(texts) == {"ids": "i64"}


@pytest.mark.parametrize("text", ["x=1x2:int", "x=1:", "x=:f32", "x=1:f32:f32"])
def test_other_types_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--shape x=.*: expected"):
        dims.parse_shapes([text])
