"""What the reference's test takes for equal and is not: each pair passes its arithmetic and is refuted here.

The reference (Mirage's artifact) evaluates both sides once, at one point, modulo 167 and 83: element i of every input is i
modulo 13861, exp(x) is 3 to the power of x's second residue modulo 167 with second residue 0, the inverse of 0 is 1, a root
is a power that is one for half of all residues only, silu is x exp(x), maxima compare with half of the modulus.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import (
    PROLOGUE,
    BlockGraph,
    BlockOp,
    CustomKernel,
    KernelGraph,
    ThreadGraph,
    ThreadNode,
)
from mirage_cli.search.proof.verify import Verdict, verify
from tests.lax.programs import in_floats, positive, recorded

Array = NDArray[np.int64]
P, Q, OMEGA, BOTH = 167, 83, 3, 13861
Shapes = dict[str, tuple[int, ...]]
Formula = Callable[[Any, dict[str, Any]], Any]


class Reference:
    """The reference's arithmetic: pairs of residues, in an array [2, ...]."""

    moduli = np.array([P, Q])

    def __init__(self) -> None:
        self.exponentials = 0

    def inputs(self, shapes: Shapes) -> dict[str, Array]:
        """Its test's inputs: the same numbers for all of one size."""
        return {name: self._reduced(self._counted(shape)) for name, shape in shapes.items()}

    def _counted(self, shape: tuple[int, ...]) -> Array:
        numbers = np.arange(np.prod(shape), dtype=np.int64).reshape(shape) % BOTH
        return np.stack([numbers, numbers])

    def _reduced(self, x: Array) -> Array:
        found: Array = x % self._moduli(x)
        return found

    def _moduli(self, x: Array) -> Array:
        return self.moduli.reshape((2,) + (1,) * (x.ndim - 1))

    def _power(self, x: Array, exponents: tuple[int, int]) -> Array:
        parts = [
            [pow(int(v), e, m) for v in row.ravel()]
            for row, e, m in zip(x, exponents, self.moduli.tolist(), strict=True)
        ]
        return np.array(parts, dtype=np.int64).reshape(x.shape)

    def add(self, x: Array, y: Array) -> Array:
        return self._reduced(x + y)

    def sub(self, x: Array, y: Array) -> Array:
        return self._reduced(x - y)

    def mul(self, x: Array, y: Array) -> Array:
        return self._reduced(x * y)

    def div(self, x: Array, y: Array) -> Array:
        """By the inverse; that of 0 is 1."""
        return self.mul(x, np.where(y == 0, 1, self._power(y, (P - 2, Q - 2))))

    def matmul(self, x: Array, y: Array) -> Array:
        return self._reduced(np.matmul(x, y))

    def total(self, x: Array) -> Array:
        """The sum over the last dimension, which stays."""
        return self._reduced(x.sum(axis=-1, keepdims=True))

    def exp(self, x: Array) -> Array:
        self.exponentials += 1
        powers = np.array([pow(OMEGA, k, P) for k in range(Q)])[x[1]]
        return np.stack([powers, np.zeros_like(powers)])

    def silu(self, x: Array) -> Array:
        return self.mul(x, self.exp(x))

    def sqrt(self, x: Array) -> Array:
        return self._power(x, ((P + 1) // 4, (Q + 1) // 4))

    def relu(self, x: Array) -> Array:
        return np.maximum(x, self._moduli(x) // 2)

    def clamp(self, x: Array, low: float, high: float) -> Array:
        """To fixed thirds of the modulus, whatever the limits are."""
        return np.clip(x, self._moduli(x) // 3, 2 * self._moduli(x) // 3)


class Ours:
    """The same operators recorded as a program."""

    def __init__(self) -> None:
        self.g = Graph()

    def inputs(self, shapes: Shapes) -> dict[str, int]:
        """Inputs by name."""
        return {name: self.g.input(name, shape, F32) for name, shape in shapes.items()}

    def __getattr__(self, op: str) -> Callable[..., int]:
        return lambda *args: self.g.map(op, *args)

    def matmul(self, x: int, y: int) -> int:
        return compose.matmul(self.g, x, y)

    def total(self, x: int) -> int:
        rank = len(self.g.dims(x))
        return self.g.reshape(self.g.reduce("sum", x, [rank - 1]), (*self.g.dims(x)[:-1], 1))

    def clamp(self, x: int, low: float, high: float) -> int:
        return self.min(self.max(x, self.g.fill(low, F32)), self.g.fill(high, F32))


def fingerprint(formula: Formula, shapes: Shapes) -> Array:
    """What the reference compares."""
    arithmetic = Reference()
    found: Array = formula(arithmetic, arithmetic.inputs(shapes))
    return found


def recording(formula: Formula, shapes: Shapes) -> Program:
    """The formula as a program, as it stands."""
    ours = Ours()
    inputs = ours.inputs(shapes)
    return recorded(ours.g, [formula(ours, inputs)])


def as_kernel(p: Program, tensors: tuple[str, ...]) -> KernelGraph:
    """A program's operators one by one as a single block, over stored tensors in the order of their names."""
    ops = [BlockOp(i.name, "load", (), PROLOGUE, source_value=i.name) for i in p.inputs]
    for n in p.nodes:
        if n.op in ("contract", "sum"):
            ops.append(BlockOp(n.name, n.op, n.inputs, PROLOGUE, n.over, dtype=n.dtype))
        else:
            node = ThreadNode(n.op, tuple(range(len(n.inputs))), n.value)
            ops.append(BlockOp(n.name, "thread", n.inputs, PROLOGUE, thread=ThreadGraph(len(n.inputs), (node,))))
    block = BlockGraph((), (), None, tuple(ops), tuple(o.value for o in p.outputs))
    count = len(tensors)
    kernel = CustomKernel(p, block, tuple(tensors.index(s.name) for s in p.sources), (count,))
    return KernelGraph(count, 1, count + 1, (kernel,)).validate()


def proof(right: Formula, wrong: Formula, shapes: Shapes) -> Verdict:
    """The verdict on a muGraph of one formula for the program of another."""
    p = recording(right, shapes)
    return verify(p, as_kernel(recording(wrong, shapes), tuple(s.name for s in p.sources)), [{}])


# --- the pairs --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Pair:
    """Two formulas that differ and that the reference's test takes for equal."""

    right: Formula
    wrong: Formula
    shapes: Shapes


def _gated(first: str, second: str) -> Formula:
    return lambda a, x: a.mul(a.silu(a.matmul(x["x"], x[first])), a.matmul(x["x"], x[second]))


def _residual(state: str, stream: str) -> Formula:
    """nGPT's step with unit norms: the stream moves towards the state."""

    def formula(a: Any, x: dict[str, Any]) -> Any:
        unit = a.div(x[state], a.sqrt(a.total(a.mul(x[state], x[state]))))
        moved = a.add(x[stream], a.mul(x["alpha"], a.sub(unit, x[stream])))
        return a.div(moved, a.sqrt(a.total(a.mul(moved, moved))))

    return formula


def _squared_root(first: str, second: str) -> Formula:
    """sqrt(x - y) sqrt(x - y): x - y where it is not negative."""

    def formula(a: Any, x: dict[str, Any]) -> Any:
        root = a.sqrt(a.sub(x[first], x[second]))
        return a.mul(root, root)

    return formula


MLP = {"x": (4, 6), "w1": (6, 5), "w2": (6, 5)}
ROWS: Shapes = {"h": (4, 6), "x": (4, 6), "alpha": (4, 6)}
ONE: Shapes = {"x": (3, 4)}
PAIRS = {
    "weights of a gated MLP exchanged": Pair(_gated("w1", "w2"), _gated("w2", "w1"), MLP),
    "state and stream of a residual exchanged": Pair(_residual("h", "x"), _residual("x", "h"), ROWS),
    "silu is x exp(x)": Pair(lambda a, x: a.silu(x["x"]), lambda a, x: a.mul(x["x"], a.exp(x["x"])), ONE),
    "the quotient by nothing": Pair(
        lambda a, x: a.div(x["x"], a.sub(x["h"], x["alpha"])),
        lambda a, x: a.add(x["x"], a.sub(x["h"], x["alpha"])),
        ROWS,
    ),
    "an exponential of an exponential": Pair(
        lambda a, x: a.exp(a.exp(x["x"])), lambda a, x: a.exp(a.exp(a.add(x["x"], x["x"]))), ONE
    ),
    "the square of the root of a negative": Pair(
        lambda a, x: _squared_root("x", "t")(a, _with_totals(a, x)),
        lambda a, x: _squared_root("t", "x")(a, _with_totals(a, x)),
        ONE,
    ),
    "relu of twice": Pair(lambda a, x: a.relu(x["x"]), lambda a, x: a.relu(a.add(x["x"], x["x"])), ONE),
    "other limits": Pair(lambda a, x: a.clamp(x["x"], 0.0, 6.0), lambda a, x: a.clamp(x["x"], -1.0, 1.0), ONE),
}


def _with_totals(a: Any, x: dict[str, Any]) -> dict[str, Any]:
    return {**x, "t": a.total(x["x"])}


@pytest.mark.parametrize("name", PAIRS)
def test_the_reference_accepts_and_we_refute(name: str) -> None:
    pair = PAIRS[name]
    assert np.array_equal(fingerprint(pair.right, pair.shapes), fingerprint(pair.wrong, pair.shapes))
    verdict = proof(pair.right, pair.wrong, pair.shapes)
    assert not verdict.passed
    assert "differs" in verdict.reason
    right, wrong = (recording(f, pair.shapes) for f in (pair.right, pair.wrong))
    (expected,), (found,) = (in_floats(p, positive(right, {})) for p in (right, wrong))
    assert not np.allclose(expected, found, rtol=1e-3, equal_nan=True)


@pytest.mark.parametrize("name", PAIRS)
def test_the_right_one_is_proved(name: str) -> None:
    """Also with a second exponential, roots, maxima and quotients."""
    pair = PAIRS[name]
    verdict = proof(pair.right, pair.right, pair.shapes)
    assert verdict.passed, verdict.reason
    assert verdict.log2_bound < -40


def test_a_quotient_by_zero_everywhere_is_refused() -> None:
    """x / (y - y) is x for the reference; here no point has a value, so nothing is proved, not even of itself."""
    right: Formula = lambda a, x: a.div(x["x"], a.sub(x["h"], x["h"]))
    wrong: Formula = lambda a, x: a.add(x["x"], a.sub(x["h"], x["h"]))
    shapes: Shapes = {"x": (4, 6), "h": (4, 6)}
    assert np.array_equal(fingerprint(right, shapes), fingerprint(wrong, shapes))
    for other in (wrong, right):
        verdict = proof(right, other, shapes)
        assert not verdict.passed
        assert "division by zero" in verdict.reason


def test_the_reference_does_see_differences() -> None:
    """Its arithmetic as it is here refuses what it can see: a sum in the place of a product, another operand of one size."""
    product: Formula = lambda a, x: a.mul(a.silu(a.matmul(x["x"], x["w1"])), a.matmul(x["x"], x["w2"]))
    total: Formula = lambda a, x: a.add(a.silu(a.matmul(x["x"], x["w1"])), a.matmul(x["x"], x["w2"]))
    assert not np.array_equal(fingerprint(product, MLP), fingerprint(total, MLP))
    assert not np.array_equal(
        fingerprint(lambda a, x: a.exp(x["x"]), ONE), fingerprint(lambda a, x: a.exp(a.add(x["x"], x["x"])), ONE)
    )
    root: Formula = lambda a, x: a.mul(a.sqrt(x["x"]), a.sqrt(x["x"]))
    found = fingerprint(root, {"x": (1, 5)})[:, 0]
    assert found[:, 1].tolist() == [1, 1]
    assert any(found[0, k] == P - k for k in range(2, 5)) or any(found[1, k] == Q - k for k in range(2, 5))
