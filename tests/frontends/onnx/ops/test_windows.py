"""What a window keeps of a symbolic dimension: slices of its last elements, and models that need a full window."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_cli.frontends import sizes
from tests.frontends import evaluation
from tests.frontends.models import agrees, noise, parsed, read, run

PAST = sizes.named("past")
KEPT = sizes.at_most(PAST, 7)
WEIGHTS = {"start": np.array([-7]), "end": np.array([2**63 - 1]), "axis": np.array([0])}


def test_the_smaller_of_a_size_and_a_number() -> None:
    assert str(KEPT + 1) == "min[past,7]+1"
    assert sizes.parse("2*(min[past,7]+1)") == 2 * KEPT + 2
    assert sizes.names(KEPT * sizes.named("batch")) == ["batch", "past"]
    assert [sizes.substitute(3 * KEPT - 1, {"past": n}) for n in (0, 6, 7, 90)] == [-1, 17, 20, 20]
    assert str(sizes.substitute(KEPT, {"s": 3})) == "min[past,7]"
    assert sizes.from_extent(sizes.to_extent(3 * KEPT + 3)) == 3 * KEPT + 3
    assert sizes.at_most(5, 7) == 5 and sizes.at_most(9, 7) == 7


def test_windows_of_windows() -> None:
    assert sizes.at_most(KEPT + 1, 7) == sizes.at_most(PAST + 1, 7)
    assert sizes.at_most(KEPT + 1, 9) == KEPT + 1
    with pytest.raises(ValueError, match="smaller"):
        sizes.at_most(2 * KEPT, 7)


def test_where_a_window_is_full() -> None:
    assert sizes.equality_bound(KEPT + 1, 8) == sizes.equality_bound(8, KEPT + 1) == ("past", 7)
    assert sizes.equality_bound(2 * sizes.at_most(PAST + 3, 7), 14) == ("past", 4)
    assert sizes.equality_bound(KEPT + 1, 7) is None  # that is past = 6
    assert sizes.equality_bound(PAST, 7) is None and sizes.equality_bound(KEPT, PAST) is None


def test_where_a_table_reaches_to_the_end() -> None:
    assert sizes.end_bound(PAST, KEPT) == sizes.end_bound(KEPT, PAST) == ("past", 7)
    assert sizes.end_bound(PAST + 1, sizes.at_most(PAST + 1, 7)) == ("past", 6)
    assert sizes.end_bound(PAST, sizes.at_most(PAST, 1)) is None, "that one element is repeated"
    assert sizes.end_bound(PAST, KEPT + 1) is None and sizes.end_bound(PAST, 7) is None
    assert sizes.fits(2 * PAST + 1, 9, {"past": 4}) and not sizes.fits(2 * PAST + 2, 9, {"past": 4})
    assert not sizes.fits(9 - PAST, 9, {"past": 4}), "it is larger for a smaller past"
    assert not sizes.fits(PAST, 9, {})


@pytest.mark.parametrize("past", [0, 1, 7, 12])
def test_the_last_elements_of_a_symbolic_dimension(past: int) -> None:
    text = (
        "g (float[past,3] x) => (float[kept,3] y, int64[2] shape) { y = Slice(x, start, end, axis) shape = Shape(y) }"
    )
    imported = agrees(parsed(text, **WEIGHTS), x=noise(past, 3))
    assert [str(e) for e in imported.shapes["shape"]] == ["min[past,7]", "3"]
    assert imported.notes == []


def test_the_last_elements_up_to_another_end_are_not_read() -> None:
    text = "g (float[past,3] x) => (float[kept,3] y) { y = Slice(x, start, end, axis) }"
    imported = read(parsed(text, **WEIGHTS | {"end": np.array([-1])}))
    assert list(imported.reasons.values()) == ["a slice from -7 up to past-1 of a dimension of past"]


WINDOW = """g (float[past,4] old, float[1,4] new, float[2,4] q, float[2,8] mask) => (float[2,4] y, float[kept,4] next) {
    own = Slice(old, start, end, axis)
    keys = Concat <axis = 0> (own, new)
    turned = Transpose(keys)
    raw = MatMul(q, turned)
    scores = Add(raw, mask)
    p = Softmax(scores)
    y = MatMul(p, keys)
    next = Slice(keys, start, end, axis)
}"""


@pytest.mark.parametrize("past", [7, 8, 31])
def test_a_traced_window_is_full(past: int) -> None:
    """The tracing exporter writes the length of the mask as a number: with fewer elements in the cache the model fails."""
    imported = agrees(parsed(WINDOW, **WEIGHTS), old=noise(past, 4), new=noise(1, 4), q=noise(2, 4), mask=noise(2, 8))
    assert imported.graph.dims(imported.values["keys"]) == (8, 4)
    assert imported.graph.dims(imported.values["next"]) == (7, 4)
    assert imported.notes == ["past is taken to be 7 or more: the model fails below that"]


@pytest.mark.parametrize(("nodes", "least"), [
    ("y = Gather <axis = 0> (x, two)", "past is taken to be 3 or more"),
    ("k = Concat <axis = 0> (x, row) y = Gather <axis = 0> (k, two)", "past is taken to be 2 or more"),
    ("y = Slice (x, two, end, axis)", "past is taken to be 2 or more"),
])  # fmt: skip
def test_indices_tell_how_long_a_dimension_is(nodes: str, least: str) -> None:
    text = f"g (float[past,4] x) => (float[a,b] y) {{ {nodes} }}"
    weights = WEIGHTS | {"two": np.array([2]), "row": noise(1, 4)}
    imported = agrees(parsed(text, **weights), x=noise(5, 4))
    assert imported.notes == [f"{least}: the model fails below that"]


def test_a_first_element_tells_nothing() -> None:
    text = "g (float[past,4] x) => (float[4] y, float[a,4] z) { y = Gather <axis = 0> (x, zero) z = Slice(x, one, end, axis) }"
    weights = WEIGHTS | {"zero": np.array(0), "one": np.array([1])}
    assert agrees(parsed(text, **weights), x=noise(3, 4)).notes == []


def test_where_a_size_is_reached() -> None:
    assert sizes.size_bound(PAST, 3) == ("past", 3) and sizes.size_bound(PAST + 1, 3) == ("past", 2)
    assert sizes.size_bound(2 * PAST + 1, 4) == ("past", 2) and sizes.size_bound(2 * PAST, 4) == ("past", 2)
    assert sizes.size_bound(PAST * sizes.named("b"), 3) is None and sizes.size_bound(KEPT, 3) is None


def test_a_sum_does_not_tell_that_a_window_is_full() -> None:
    """With an empty cache the one element is repeated, and the model works."""
    text = """g (float[past] old, float[1] new, float[8] bias) => (float[8] y) {
        own = Slice(old, start, end, axis)
        all = Concat <axis = 0> (own, new)
        y = Add(all, bias)
    }"""
    imported = read(parsed(text, **WEIGHTS))
    assert list(imported.reasons.values()) == ["add: dimensions (min[past,7]+1), 8 do not broadcast"]
    assert imported.notes == []


def test_a_window_that_is_read_by_a_product_of_batches_may_be_one_element() -> None:
    text = """g (float[past,2,3] old, float[8,3,2] x) => (float[8,2,2] y) {
        own = Slice(old, start, end, axis)
        y = MatMul(own, x)
    }"""
    imported = read(parsed(text, **WEIGHTS | {"start": np.array([-8])}))
    assert imported.notes == []
    assert list(imported.reasons.values()) == ["contraction pairs a dimension of min[past,8] with one of 8"]


TABLE = """g (int64[batch,seq] ids) => (float[a,b,c] y) {
    length = Shape <start = 1, end = 2> (ids)
    own = Slice(positions, zero, length, axis)
    places = Gather(table, own)
    words = Gather(vocabulary, ids)
    sum = Add(words, places)
    y = Relu(sum)
}"""
ROWS = {
    "positions": np.arange(9).reshape(1, 9) * 2 % 9,
    "zero": np.array([0]),
    "axis": np.array([1]),
    "vocabulary": noise(5, 3),
}


def test_a_table_that_is_added_tells_how_long_a_dimension_may_be() -> None:
    """As exporters write a table of positions: what comes behind it has the dimensions of the inputs."""
    imported = read(parsed(TABLE, table=noise(9, 3), **ROWS))
    assert imported.notes == ["seq is taken to be 9 or less: the model fails above that"]
    assert [str(e) for e in imported.graph.dims(imported.values["y"])] == ["batch", "seq", "3"]
    assert imported.limits({"seq": (2, 40)}) == {"seq": (2, 9)} and imported.limits({}) == {"seq": (1, 9)}
    assert (
        len(imported.reasons) == 3
        and imported.reasons["node_Slice"] == "the first seq of 9 elements: there may be fewer"
    )


def test_a_table_of_one_row_is_repeated() -> None:
    """It tells that there is an element, not how many."""
    rows = ROWS | {"positions": np.zeros((1, 1), np.int64)}
    imported = read(parsed(TABLE, table=noise(1, 3), **rows))
    assert imported.notes == ["seq is taken to be 1 or more: kernels refuse none"]
    assert [str(e) for e in imported.graph.dims(imported.values["y"])] == ["batch", "seq", "3"]


def test_a_table_that_nothing_is_added_to_tells_nothing() -> None:
    text = TABLE.replace("words = Gather(vocabulary, ids)", "").replace("Add(words, places)", "Identity(places)")
    imported = read(parsed(text, table=noise(9, 3), **{k: v for k, v in ROWS.items() if k != "vocabulary"}))
    assert [str(e) for e in imported.graph.dims(imported.values["y"])] == ["1", "min[seq,9]", "3"]
    assert imported.notes == []


@pytest.mark.parametrize(("constant", "factor", "limit"), [(7, -1, 0), (7, -1, 3), (7, -1, 9), (2, 1, 1), (0, 3, 0)])
def test_the_larger_of_a_size_and_a_number(constant: int, factor: int, limit: int) -> None:
    size = constant + factor * PAST
    for past in range(12):
        assert sizes.substitute(sizes.at_least(size, limit), {"past": past}) == max(constant + factor * past, limit)


def test_where_the_larger_of_a_size_and_a_number_is_not_told() -> None:
    for size in (PAST, PAST - 3, PAST - sizes.named("s"), sizes.parse("(past-3)//2")):
        with pytest.raises(ValueError, match="the larger of"):
            sizes.at_least(size, 1)


BIAS = """g (float[b,s,s] x) => (float[b,s,s] y) {
    length = Shape <start = 1, end = 2> (x)
    fewer = Sub(one, length)
    row = Max(zero, fewer)
    rows = Slice(bias, row, huge, one)
    less = Sub(nine, length)
    first = Max(zero, less)
    own = Slice(rows, first, huge, two)
    y = Add(x, own)
}"""


@pytest.mark.parametrize("length", [1, 2, 9])
def test_the_last_elements_of_a_table_that_is_added(length: int) -> None:
    """As exporters write the tail of a bias: from max(0, 9 - s) on."""
    weights = {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "nine": np.array([9])}
    model = parsed(BIAS, bias=noise(1, 1, 9), huge=np.array([2**63 - 1]), **weights)
    imported = read(model)
    assert list(imported.reasons) == ["node_Slice", "node_Slice_1"] and imported.limits({}) == {"s": (1, 9)}
    x = noise(2, length, length)
    (right,) = run(model, {"x": x})
    (found,) = evaluation.run(imported, {"x": x}, {"own": noise(1, 1, 9)[..., 9 - length :], "rows": noise(1, 1, 9)})
    assert np.allclose(found, right)
