"""Numbers that a narrower type does not hold, and powers that are no roots: what onnxruntime computes, and no more steps than
that needs."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_cli.frontends.imported import Imported
from mirage_cli.lax.ir import graph as g
from tests.frontends import evaluation
from tests.frontends.models import agrees, noise, parsed, read, run

CODES = {"i8": 3, "u8": 2, "i16": 5, "u16": 4, "i32": 6, "i64": 7}
ODD = np.array(
    [
        np.nan,
        np.inf,
        -np.inf,
        1e30,
        -1e30,
        3e9,
        -3e9,
        2.0**31,
        -(2.0**31),
        300.7,
        -300.7,
        129.0,
        -129.5,
        4e4,
        -0.5,
        7.0,
    ],
    np.float32,
)
HALF = {"float16": 10, "bfloat16": 16}


def operators(imported: Imported) -> list[str]:
    return [s.op for s in imported.graph.steps if isinstance(s, g.Map)]


@pytest.mark.parametrize("kind", CODES)
def test_what_is_left_of_a_float_in_an_integer_type(kind: str) -> None:
    text = f"g (float[16] x) => (float[16] y) {{ i = Cast <to = {CODES[kind]}> (x) y = Cast <to = 1> (i) }}"
    imported = agrees(parsed(text), x=ODD)
    assert operators(imported) == [f"to_{kind}"]


@pytest.mark.parametrize(("code", "reason"), [(12, "depends on their place"), (13, "wraps around")])
def test_floats_as_wide_unsigned_integers_are_left(code: int, reason: str) -> None:
    """onnxruntime gives uint32 one number in the middle of a tensor and another one at its end."""
    text = f"g (float[16] x) => (float[16] y) {{ i = Cast <to = {code}> (x) y = Cast <to = 1> (i) }}"
    (found,) = read(parsed(text)).reasons.values()
    assert reason in found


@pytest.mark.parametrize("source", [10, 11, 16])
@pytest.mark.parametrize("kind", ["i32", "i64"])
def test_floats_of_other_widths(source: int, kind: str) -> None:
    text = f"""g (float[16] x) => (float[16] y) {{
        a = Cast <to = {source}> (x) i = Cast <to = {CODES[kind]}> (a) y = Cast <to = 1> (i) }}"""
    imported = read(parsed(text))
    inside = ODD[np.abs(ODD) < 2**15]
    text = text.replace("[16]", f"[{len(inside)}]")
    agrees(parsed(text), x=inside)
    assert f"to_{kind}" in operators(imported)


def test_truth_values_and_positions_are_numbers_of_every_type() -> None:
    """As exporters compute masks: no operator more than before."""
    text = """g (float[4] x, float[4] z) => (float[4] y) {
        m = Less(x, z) f = Cast <to = 1> (m) n = Sub(one, f) i = Cast <to = 7> (n) b = Cast <to = 6> (i)
        r = Range(first, last, step) q = Cast <to = 1> (r) p = Cast <to = 7> (q) k = Cast <to = 1> (p)
        e = Cast <to = 1> (b) a = Add(e, k) y = Mul(a, x)
    }"""
    weights = {"one": np.float32(1), "first": np.array(0), "last": np.array(4), "step": np.array(1)}
    imported = agrees(parsed(text, **weights), x=noise(4), z=np.zeros(4, np.float32))
    assert sorted(operators(imported)) == ["add", "lt", "mul", "sub"]


@pytest.mark.parametrize("kind", HALF)
@pytest.mark.parametrize("between", ["a", "Transpose(a)", "Slice(a, zero, two, axis)", "Concat <axis = 0> (a, a)"])
def test_what_is_rounded_off_is_gone(kind: str, between: str) -> None:
    view = f"b = {between}" if "(" in between else "b = Identity(a)"
    back = {"Transpose(a)": "d = Transpose(c)"}.get(between, "d = Identity(c)")
    text = f"""g (float[4,4] x) => (float[a,b] y) {{
        a = Cast <to = {HALF[kind]}> (x) {view} c = Cast <to = 1> (b) {back} s = Slice(x, zero, two, axis)
        t = Slice(d, zero, two, axis) y = Sub(s, t)
    }}"""
    weights = {"zero": np.array([0]), "two": np.array([2]), "axis": np.array([0])}
    model, x = parsed(text, **weights), {"x": noise(4, 4)}
    imported = read(model)
    assert operators(imported).count(f"round_{'f16' if kind == 'float16' else 'bf16'}") == 1
    (ours,), (theirs,) = evaluation.run(imported, x), run(model, x)
    assert np.abs(theirs).max() > 1e-5
    assert np.array_equal(ours, theirs.astype(np.float64))


@pytest.mark.parametrize("to", HALF.values())
def test_narrow_arithmetic_is_read_without_rounding(to: int) -> None:
    """Norms in float32 between products in float16: the fragments of mixed precision stay as they were."""
    text = f"""g (float[4,8] x) => (float[4,8] y) {{
        a = Cast <to = {to}> (x) b = Cast <to = {to}> (w) c = MatMul(a, b) d = Cast <to = 1> (c)
        e = Mul(d, d) m = ReduceMean <keepdims = 1> (e, axis) r = Sqrt(m) n = Div(d, r) h = Cast <to = {to}> (n)
        k = Add(h, h) y = Cast <to = 1> (k)
    }}"""
    imported = read(parsed(text, w=noise(8, 8), axis=np.array([-1])))
    assert imported.reasons == {} and not any(op.startswith("round_") for op in operators(imported))


def test_a_number_is_rounded_once() -> None:
    text = """g (float[4] x) => (float[4] y) {
        a = Cast <to = 10> (x) b = Cast <to = 1> (a) c = Cast <to = 10> (b) d = Cast <to = 1> (c) y = Add(d, x)
    }"""
    imported = agrees(parsed(text), x=noise(4))
    assert operators(imported) == ["round_f16", "add"]


@pytest.mark.parametrize("kind", ["LayerNormalization", "SimplifiedLayerNormalization"])
def test_a_normalisation_of_rounded_numbers(kind: str) -> None:
    """Its statistics are in float32, which is a way back from float16 too."""
    text = f"g (float[4,8] x) => (float16[4,8] y) {{ a = Cast <to = 10> (x) y = {kind}(a, w) }}"
    imported = read(parsed(text, w=np.ones(8, np.float16)))
    assert imported.reasons == {} and operators(imported)[0] == "round_f16"


@pytest.mark.parametrize("simple", [True, False])
def test_a_sum_before_a_normalisation_is_not_rounded(simple: bool) -> None:
    """onnxruntime's SkipLayerNormalization of float16 adds in float32; the sum is rounded where it is an output."""
    name, more = ("SkipSimplifiedLayerNormalization", "") if simple else ("SkipLayerNormalization", ", beta")
    text = f"""<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
    g (float16[2,3,64] x, float16[2,3,64] z) => (float16[2,3,64] y, float16[2,3,64] s) {{
        y, , , s = com.microsoft.{name} (x, z, gain{more})
    }}"""
    weights = {"gain": 1 + noise(64) / 8} | ({} if simple else {"beta": noise(64)})
    model = parsed(text, **{n: w.astype(np.float16) for n, w in weights.items()})
    given = {"x": (100 + noise(2, 3, 64)).astype(np.float16), "z": (noise(2, 3, 64)[::-1] / 8).astype(np.float16)}
    imported = read(model)
    assert imported.reasons == {}
    ours, theirs = evaluation.run(imported, given), run(model, given)
    unit = 2.0**-10
    assert np.abs(ours[0] - theirs[0]).max() <= unit * max(1, np.abs(ours[0]).max())  # one rounding of what is written
    assert np.array_equal(ours[1].astype(np.float16), theirs[1])


@pytest.mark.parametrize("exponent", [0.5, -0.5, 1.5, -1.0])
def test_powers_of_what_may_be_negative(exponent: float) -> None:
    text = "g (float[6] x) => (float[6] y) { y = Pow(x, e) }"
    imported = agrees(parsed(text, e=np.float32(exponent)), x=np.float32([-np.inf, -2, -0.0, 0, 3, np.inf]))
    assert operators(imported) == (["recip"] if exponent == -1 else ["pow"])


@pytest.mark.parametrize(("exponent", "root"), [(0.5, "sqrt"), (-0.5, "rsqrt")])
def test_roots_of_what_is_never_negative(exponent: float, root: str) -> None:
    text = """g (float[4,6] x) => (float[4,6] y) {
        s = Mul(x, x) m = ReduceMean <keepdims = 1> (s, axis) v = Add(m, eps) r = Pow(v, e) y = Mul(x, r)
    }"""
    weights = {"axis": np.array([-1]), "eps": np.float32(1e-6), "e": np.float32(exponent)}
    imported = agrees(parsed(text, **weights), x=noise(4, 6))
    assert root in operators(imported) and "pow" not in operators(imported)


def test_bounds_that_are_left_out_are_the_largest_numbers() -> None:
    x = np.float32([-np.inf, np.inf, np.nan, 3])
    for bounds in ("(x)", "(x, low)", "(x, , low)"):
        weights = {"low": np.float32(1)} if "low" in bounds else {}
        agrees(parsed(f"g (float[4] x) => (float[4] y) {{ y = Clip{bounds} }}", **weights), x=x)
