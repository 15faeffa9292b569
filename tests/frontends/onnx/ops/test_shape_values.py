"""What the reader knows of integers: the shape arithmetic of exporters, with symbols, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage_cli.frontends.imported import Options
from mirage_cli.lax import extents as ex
from tests.frontends.models import agrees, noise, parsed, read, run

ZERO, ONE = np.array([0]), np.array([1])


def shapes(text: str, name: str, **weights: Any) -> list[str]:
    """The elements of an integer tensor as text."""
    return [str(e) for e in read(parsed(text, **weights)).shapes[name].ravel()]


def test_head_splitting_as_exporters_write_it() -> None:
    text = """g (float[b,s,8] x) => (float[b,2,s,4] y) {
        shape = Shape(x)
        batch = Gather <axis = 0> (shape, zero)
        length = Gather <axis = 0> (shape, one)
        bu = Unsqueeze(batch, axes)
        lu = Unsqueeze(length, axes)
        target = Concat <axis = 0> (bu, lu, two, four)
        h = Reshape(x, target)
        y = Transpose <perm = [0, 2, 1, 3]> (h)
    }"""
    weights = {"zero": np.array(0), "one": np.array(1), "axes": ZERO, "two": np.array([2]), "four": np.array([4])}
    assert shapes(text, "target", **weights) == ["b", "s", "2", "4"]
    imported = agrees(parsed(text, **weights), x=noise(2, 3, 8))
    assert [str(e) for e in imported.graph.dims(imported.graph.outputs[0])] == ["b", "2", "s", "4"]


def test_expanding_heads_with_where_and_constant_of_shape() -> None:
    """Expand(-1 means the own size) as the tracing exporter writes it."""
    text = """g (float[b,2,1,s] x) => (float[b,2,3,s] y) {
        shape = Shape(x)
        batch = Slice(shape, zero, one)
        length = Slice(shape, three, four)
        wanted = Concat <axis = 0> (batch, minus, three, length)
        count = Shape(wanted)
        ones = ConstantOfShape <value = int64[1] {1}> (count)
        negative = Mul(ones, minus)
        own = Equal(wanted, negative)
        target = Where(own, ones, wanted)
        y = Expand(x, target)
    }"""
    weights = {"zero": ZERO, "one": ONE, "three": np.array([3]), "four": np.array([4]), "minus": np.array([-1])}
    assert shapes(text, "target", **weights) == ["b", "1", "3", "s"]
    agrees(parsed(text, **weights), x=noise(2, 2, 1, 5))


def test_ranges_and_masks_over_symbols() -> None:
    text = """g (float[b,s] x) => (float[b,s,s] y) {
        shape = Shape <start = 1> (x)
        length = Squeeze(shape)
        positions = Range(zero, length, one)
        row = Unsqueeze(positions, last)
        seen = LessOrEqual(positions, row)
        filled = Where(seen, low, high)
        wide = Unsqueeze(x, middle)
        y = Add(wide, filled)
    }"""
    weights: dict[str, Any] = {"zero": np.array(0), "one": np.array(1), "last": np.array([1]), "middle": np.array([1])}
    model = parsed(text, **weights, low=np.float32(0), high=np.float32(-9))
    agrees(model, x=noise(2, 4))


def test_sums_of_cached_and_new_positions() -> None:
    text = """g (float[b,past,4] k, float[b,1,4] n, float[b,"past + 1"] mask) => (float[b,"past + 1"] y) {
        all = Concat <axis = 1> (k, n)
        s = ReduceSum <keepdims = 0> (all, axes)
        y = Mul(s, mask)
    }"""
    model = parsed(text.replace('"past + 1"', "total"), axes=np.array([2]))
    for value in (model.graph.input[2], model.graph.output[0]):
        value.type.tensor_type.shape.dim[1].dim_param = "past + 1"
    agrees(model, k=noise(2, 3, 4), n=noise(2, 1, 4), mask=noise(2, 4))


def test_differences_of_sizes_that_cancel() -> None:
    text = """g (float[b,past] k, float[b,s] n) => (float[b,s] y) {
        all = Concat <axis = 1> (k, n)
        total = Shape <start = 1, end = 2> (all)
        gone = Shape <start = 1, end = 2> (k)
        rest = Sub(total, gone)
        batch = Shape <start = 0, end = 1> (k)
        target = Concat <axis = 0> (batch, rest)
        y = Reshape(n, target)
    }"""
    assert shapes(text, "target") == ["b", "s"]
    agrees(parsed(text), k=noise(2, 3), n=noise(2, 5))


def test_sizes_as_data_may_be_negative() -> None:
    text = """g (float[b,s] x) => (int64[1] y, float[b,s] z) {
        shape = Shape(x)
        rows = Slice(shape, zero, one)
        columns = Slice(shape, one, two)
        product = Mul(rows, columns)
        less = Sub(rows, product)
        y = Sub(less, five)
        f = Cast <to = 1> (y)
        z = Mul(x, f)
    }"""
    agrees(parsed(text, zero=ZERO, one=ONE, two=np.array([2]), five=np.array([5])), x=noise(2, 3))


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("Add(n, n)", ["2*b", "16"]),
        ("Div(n, two)", ["[[b]//[2]]", "4"]),
        ("Max(n, two)", ["(b-min[b,2]+2)", "8"]),
        ("Max(n, nothing)", ["b", "8"]),
        ("Div(eight, two)", ["4", "4"]),
        ("Mod(eight, three)", ["2", "2"]),
        ("Min(n, n)", ["b", "8"]),
        ("Max(eight, three)", ["8", "8"]),
        ("Abs(n)", ["b", "8"]),
        ("Cast <to = 6> (n)", ["b", "8"]),
        ("Identity(n)", ["b", "8"]),
        ("ReduceProd <keepdims = 1> (n)", ["8*b"]),
        ("ReduceSum <keepdims = 1> (n)", ["(b+8)"]),
        ("Tile(n, one)", None),
    ],
)
def test_operators_on_sizes(operator: str, expected: list[str] | None) -> None:
    text = f"g (float[b,8] x) => (int64[k] y) {{ n = Shape(x) y = {operator} }}"
    if "to = 6" in operator:
        text = text.replace("int64[k]", "int32[k]")
    weights = {"two": np.array([2]), "three": np.array([3, 3]), "eight": np.array([8, 8]), "one": np.array([1])}
    imported = read(parsed(text, **weights, nothing=np.array([0])))
    found = imported.shapes.get("y")
    if found is None and "y" in imported.model.graph.initializers:  # folded
        found = imported.model.graph.initializers["y"].const_value.numpy()  # type: ignore[union-attr]
    assert (None if found is None else [str(e) for e in found]) == expected


@pytest.mark.parametrize("a", [7, -7, 8, 2**53 + 1, -(2**53) - 1])
@pytest.mark.parametrize("b", [2, -2, 3])
def test_integer_division_and_remainder_are_onnxs(a: int, b: int) -> None:
    """Shape() keeps the integers out of constant folding: b * 0 + a."""
    text = """g (float[n] x) => (int64[1] y, int64[1] z) {
        n = Shape(x)
        nothing = Mul(n, zero)
        left = Add(nothing, a)
        y = Div(left, b)
        z = Mod(left, b)
    }"""
    model = parsed(text, zero=ZERO, a=np.array([a]), b=np.array([b]))
    imported = read(model)
    found = [int(imported.shapes[name][0]) if name in imported.shapes else None for name in "yz"]
    stored = imported.model.graph.initializers
    found = [
        int(stored[name].const_value.numpy()[0]) if name in stored else value  # type: ignore[union-attr]
        for name, value in zip("yz", found, strict=True)
    ]
    expected = [int(x[0]) for x in run(model, {"x": noise(2)})]
    assert found == expected


def test_numbers_for_symbols_reach_everything() -> None:
    text = "g (float[b,s] x) => (float[c] y) { n = Size(x) t = Unsqueeze(n, zero) y = Reshape(x, t) }"
    imported = read(parsed(text, zero=ZERO), Options(dims={"b": 2, "s": 3}))
    assert imported.graph.dims(imported.graph.outputs[0]) == (6,)
    imported = read(parsed(text, zero=ZERO), Options(shapes={"x": (4, 3)}))
    assert imported.graph.dims(imported.graph.outputs[0]) == (12,)
    imported = read(parsed(text, zero=ZERO), Options(dims={"b": 2}))
    assert imported.graph.dims(imported.graph.outputs[0]) == (ex.product([2, ex.symbol("s")]),)


@pytest.mark.parametrize("length", [0, 1, 2, 7, 8, 9, 30])
def test_the_larger_and_the_smaller_of_sizes_and_whole_parts(length: int) -> None:
    """What the reader says of them, beside what onnxruntime computes."""
    text = """g (float[s,t] x) => (int64[14] y) {
        s = Shape <start = 0, end = 1> (x)
        t = Shape <start = 1, end = 2> (x)
        both = Add(s, t)
        left = Sub(eight, s)
        a = Max(zero, left)
        b = Max(left, one)
        c = Min(s, eight)
        d = Min(eight, both, both)
        e = Max(both, t)
        f = Min(t, both)
        h = Max(s, zero)
        i = Max(left, eight)
        j = Min(left, zero)
        half = Div(s, two)
        rest = Mod(s, two)
        twice = Mul(half, two)
        k = Add(twice, rest)
        l = Mod(both, one)
        m = Div(half, two)
        y = Concat <axis = 0> (a, b, c, d, e, f, h, i, j, half, rest, k, l, m)
    }"""
    model = parsed(text, zero=ZERO, one=ONE, two=np.array([2]), eight=np.array([8]))
    agrees(model, x=noise(length, 3))
