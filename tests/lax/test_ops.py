"""Every operator of the registry: its meaning in float64 and in the fields, its facts, its forms in files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax.bounds.bound import Degree, Degrees
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.domains.field import PRIMES, Residues
from mirage_cli.lax.dtypes import BOOL, F32
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import program_from_json
from mirage_cli.lax.ops import OPS, QUOTIENTS, Op, lookup
from mirage_cli.lax.ops.registry import define
from mirage_cli.search.mugraph.mugraph import ThreadGraph, ThreadNode
from tests.lax.programs import recorded

LOGICAL = ("and", "or", "xor", "not")
CONDITION = {"where": 0}  #: operand that is a truth value
NARROW = {"i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u16": np.uint16, "u8": np.uint8}


def _wrapped(x: float, dtype: Any) -> float:
    """What x86 leaves of a float in an integer type: the low bits of a word, which is its smallest where `x` does not fit."""
    bits = 64 if dtype == np.int64 else 32
    word = (
        math.trunc(x)
        if math.isfinite(x) and -(2 ** (bits - 1)) <= math.trunc(x) < 2 ** (bits - 1)
        else -(2 ** (bits - 1))
    )
    return float(np.int64(word).astype(dtype))


NUMPY: dict[str, Callable[..., Any]] = {  #: operators without an ONNX operator of the same operands (or a rough one)
    "erf": lambda x: np.array([math.erf(t) for t in x]),
    "div0": lambda x, y: np.nan_to_num(x / y, nan=0.0, posinf=np.inf, neginf=-np.inf),
    "share": lambda x, y: np.where(y == 0, x * 0.0, x / y),
    "below": lambda x, y: x - y,
    "centred": lambda x, y: x - y,
    "rounded": lambda x: x,
    "rsqrt": lambda x: x**-0.5,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * np.array([0.5 * (1 + math.erf(t / math.sqrt(2))) for t in x]),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "log1p_exp": lambda x: np.log(1 + np.exp(x)),
    "trunc": lambda x: np.sign(x) * np.floor(np.abs(x)),
    "max": lambda x, y: np.where(x > y, x, y),
    "min": lambda x, y: np.where(x < y, x, y),
    "levels": lambda x, s, z: np.array(
        [min(max(round(a / b) + c, 0), 255) - c for a, b, c in zip(x, s, z, strict=True)]
    ),
    "isnan": lambda x: np.array([math.isnan(t) for t in x], dtype=float),
    "isinf": lambda x: (np.abs(x) == np.inf).astype(float),
    "nonzero": lambda x: 1.0 - (x == 0),
    **{f"to_{name}": lambda x, t=t: np.array([_wrapped(v, t) for v in x]) for name, t in NARROW.items()},
    "round_f16": lambda x: x.astype(np.float32).astype(np.float16),
    "round_bf16": lambda x: x.astype(np.float32).astype(ml_dtypes.bfloat16),
}
each_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))


def operands(op: Op, count: int = 64) -> list[np.ndarray]:
    """Arguments in the operator's domain, special values among them where it is defined there."""
    rng = np.random.default_rng(len(op.name))
    found = []
    for k in range(op.arity):
        x = rng.uniform(-3, 3, count)
        if op.name in ("log", "sqrt", "rsqrt") or (op.name == "pow" and k == 0):
            x = np.abs(x) + 0.1
        if op.name in LOGICAL or CONDITION.get(op.name) == k:
            x = np.round(rng.uniform(0, 1, count))
        if op.name in ("eq", "lt", "le", "nonzero"):
            x = np.round(x)
        if op.name.startswith(("to_", "round_")):
            x *= 10.0 ** rng.integers(-9, 12, count)
            x[:4] = (np.nan, np.inf, -np.inf, 0.0)
        if op.name in ("isnan", "isinf"):
            x[:4] = (np.nan, np.inf, -np.inf, 0.0)
        found.append(x)
    return found


def onnx_result(op: Op, args: list[np.ndarray]) -> np.ndarray:
    """What ONNX's reference evaluator computes."""
    boolean = [op.name in LOGICAL or CONDITION.get(op.name) == k for k in range(op.arity)]
    inputs = [
        helper.make_tensor_value_info(f"x{k}", TensorProto.BOOL if b else TensorProto.DOUBLE, [None])
        for k, b in enumerate(boolean)
    ]
    output = TensorProto.BOOL if op.predicate else TensorProto.DOUBLE
    node = helper.make_node(op.onnx, [i.name for i in inputs], ["y"])
    graph = helper.make_graph([node], "one", inputs, [helper.make_tensor_value_info("y", output, [None])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    onnx.checker.check_model(model)
    feeds = {f"x{k}": a.astype(bool) if b else a for k, (a, b) in enumerate(zip(args, boolean, strict=True))}
    return np.asarray(ReferenceEvaluator(model).run(None, feeds)[0], dtype=np.float64)


@each_op
def test_float_meaning(op: Op) -> None:
    args = operands(op)
    assert op.onnx or op.name in NUMPY, f"{op.name}: give it an ONNX operator, or a numpy function in this test"
    with np.errstate(all="ignore"):
        wanted = NUMPY[op.name](*args) if op.name in NUMPY else onnx_result(op, args)
        found = op.apply(Float64(), *args)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


class Rationals:
    """Exact arithmetic; anything else is outside of it."""

    def const(self, value: Any) -> Fraction:
        return Fraction(value)

    def add(self, x: Fraction, y: Fraction) -> Fraction:
        return x + y

    def sub(self, x: Fraction, y: Fraction) -> Fraction:
        return x - y

    def mul(self, x: Fraction, y: Fraction) -> Fraction:
        return x * y

    def div(self, x: Fraction, y: Fraction, guard: str = "") -> Fraction:
        return x / y

    def select(self, condition: Fraction, x: Fraction, y: Fraction) -> Fraction:
        return x if condition else y


def exact(op: Op, args: tuple[Fraction, ...]) -> Fraction | None:
    """The rational value, None for operators that are not rational functions."""
    try:
        result = op.apply(Rationals(), *args)  # type: ignore[arg-type]
    except AttributeError:
        return None
    return result if isinstance(result, Fraction) else None


@each_op
def test_field_meaning(op: Op) -> None:
    """Rational operators are the same in the fields; others are functions of their operands and of nothing else."""
    d = Residues((), 3)
    small = [Fraction(n) for n in (1, 2, -3, 5)]
    truths = [Fraction(0), Fraction(1)]
    choices = [truths if op.name in LOGICAL or CONDITION.get(op.name) == k else small for k in range(op.arity)]
    for args in itertools.product(*choices):
        value = op.apply(d, *(d.const(a) for a in args))
        wanted = exact(op, args)
        if wanted is None or op.name in ("div0", "share"):
            np.testing.assert_array_equal(value, op.apply(d, *(d.const(a) for a in args)))
        else:
            np.testing.assert_array_equal(value, d.const(wanted))
            np.testing.assert_allclose(op.apply(Float64(), *map(float, args)), float(wanted), rtol=1e-12)
    if exact(op, tuple(c[-1] for c in choices)) is None:
        x = [d.random(f"operand {k}", (4000,)) for k in range(op.arity)]
        value = op.apply(d, *x)
        assert value.shape == (len(d.primes), 4000)
        assert len(np.unique(value[0])) > 3990, "an unknown function should hardly ever collide"
        other = Residues((), 4)
        assert not np.array_equal(value, op.apply(other, *x)), "another seed is another function"


def test_guarded_quotients_are_no_others() -> None:
    d = Residues((), 3)
    x, y = d.random("x", (5,), nonzero=True), d.random("y", (5,), nonzero=True)
    for one, other in itertools.combinations(QUOTIENTS, 2):
        first, second = (OPS[op].apply(d, x, y) for op in (one, other))
        assert not np.any(first == second)
        ratio = OPS["div"].apply(d, first, second)
        assert all(len(np.unique(r)) == 1 for r in ratio), "they differ by one factor"


@pytest.mark.parametrize(
    ("x", "y", "div0", "share"),
    [(0, 0, 0, 0), (1, 2, 0.5, 0.5), (1, 0, np.inf, 0), (np.nan, 0, np.nan, np.nan), (np.nan, 1, np.nan, np.nan),
     (np.nan, np.nan, 0, np.nan), (0, np.nan, 0, np.nan), (np.inf, np.inf, 0, np.nan), (0, np.inf, 0, 0)],
)  # fmt: skip
def test_where_guarded_quotients_are_zero(x: float, y: float, div0: float, share: float) -> None:
    with np.errstate(all="ignore"):
        found = [OPS[op].apply(Float64(), np.float64(x), np.float64(y)) for op in ("div0", "share")]
    np.testing.assert_array_equal(found, [div0, share])


@each_op
def test_facts(op: Op) -> None:
    args = operands(op)
    with np.errstate(all="ignore"):
        value = op.apply(Float64(), *args)
        if op.commutative:
            np.testing.assert_array_equal(value, op.apply(Float64(), *reversed(args)))
            d = Residues((), 5)
            x, y = d.random("x", (9,)), d.random("y", (9,))
            np.testing.assert_array_equal(op.apply(d, x, y), op.apply(d, y, x))
        for k in range(op.arity):
            other = operands(op)[k][::-1]
            mixed = [*args]
            mixed[k] = 2 * args[k] + 3 * other
            swapped = [*args]
            swapped[k] = other
            zero = [*args]
            zero[k] = np.zeros_like(other)
            combined = 2 * value + 3 * op.apply(Float64(), *swapped)
            offset = op.apply(Float64(), *zero)  # linear in one operand alone: the rest of the value counts once
            if k in op.linear:
                np.testing.assert_allclose(op.apply(Float64(), *mixed), combined - 4 * offset, rtol=1e-9, atol=1e-9)
    if op.predicate:
        assert set(np.unique(value)) <= {0.0, 1.0}
    assert op.flops >= 1
    assert all(f"{{{k}}}" in op.c for k in range(op.arity)), "the C expression reads every operand"
    assert op.c.count("(") == op.c.count(")")


@each_op
def test_degree(op: Op) -> None:
    """Degrees bound what is seen: a rational operator along a line is a quotient of polynomials of at most its degree."""
    degree = op.apply(Degrees({}), *(Degree(1, 0, frozenset("a"), frozenset(), 0) for _ in range(op.arity)))
    assert isinstance(degree, Degree)
    if exact(op, (Fraction(1),) * op.arity) is None:
        assert degree.applications >= 1
        return
    points = [Fraction(n) for n in range(3, 3 + degree.num + degree.den + 3)]
    lines = [(Fraction(2 * k + 1), Fraction(k + 7, 2)) for k in range(op.arity)]
    values = [exact(op, tuple(a * t + b for a, b in lines)) for t in points]
    if CONDITION.get(op.name) is None:
        assert _is_quotient(points, values, degree.num, degree.den)


def _is_quotient(points: list[Fraction], values: list[Any], num: int, den: int) -> bool:
    """Whether polynomials n of degree `num` and d of degree `den` with n(t) = d(t) v(t) at all points exist."""
    rows = [
        [t**k for k in range(num + 1)] + [-v * t**k for k in range(den + 1)]
        for t, v in zip(points, values, strict=True)
    ]
    return _rank(rows) < num + den + 2


def _rank(rows: list[list[Fraction]]) -> int:
    rank = 0
    for column in range(len(rows[0])):
        pivot = next((r for r in range(rank, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for r in range(rank + 1, len(rows)):
            factor = rows[r][column] / rows[rank][column]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[rank], strict=True)]
        rank += 1
    return rank


@each_op
def test_forms(op: Op) -> None:
    g = Graph()
    truth = [op.name in LOGICAL or CONDITION.get(op.name) == k for k in range(op.arity)]
    args = [g.input(f"x{k}", (3, 4), BOOL if t else F32) for k, t in enumerate(truth)]
    p = recorded(g, [g.map(op.name, *args)])
    assert program_from_json(p.to_json()) == p
    assert f"{op.name}(" in str(p)
    thread = ThreadGraph(op.arity, (ThreadNode(op.name, tuple(range(op.arity))),)).validate()
    names = [f"t{k}" for k in range(op.arity)]
    assert thread.text(names) == f"{op.name}({', '.join(names)})"


def test_wrong_use_is_refused() -> None:
    with pytest.raises(InvalidGraph, match="operator add takes 2 operands, got 1"):
        lookup("add").apply(Float64(), np.zeros(1))
    with pytest.raises(InvalidGraph, match="unknown operator 'nope'; known: abs, "):
        lookup("nope")
    with pytest.raises(InvalidGraph, match="operator add is defined twice"):
        define(OPS["add"])


def test_primes_are_prime_and_products_fit() -> None:
    assert len(set(PRIMES)) == len(PRIMES)
    assert all(p < 1 << 31 and pow(2, p - 1, p) == 1 and pow(3, p - 1, p) == 1 for p in PRIMES)
