"""Whether a muGraph equals its program, without the verifier: evaluation of both in decimals of 90 digits.

`Decimals` is a domain of real numbers in which true differences (2**-40 of a constant) stand out by tens of digits. Its
facts can be taken away one by one: `Decimals(..., free={"sqrt"})` puts another function in the place of the root. Where
two sides are equal only with a fact, it is that fact which the equality needs.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Array, ArrayDomain, Axes, Number, contract_arrays
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.lax.ops import OPS
from mirage_cli.search.mugraph.evaluate import Tiles, evaluate_kernels
from mirage_cli.search.mugraph.mugraph import KernelGraph

DIGITS = 90
CONTEXT = decimal.Context(prec=DIGITS, traps=[], Emin=-(10**6), Emax=10**6)
SQRT_PI = Decimal(
    "1.7724538509055160272981674833411451827975494561223871282138077898529112845910321813749506567385446654"
)
ROUNDING = Decimal("1e-70")  #: relative differences above this are true ones
CALLS = {"rsqrt": ("sqrt",), "gelu": ("erf",), "gelu_tanh": ("tanh",), "softsign": ("abs",)}  #: what operators call
FACTS = ("exp", "infinity", "positions", "truth values", "0/0", "maxima")  #: what can be free besides functions


def _erf(x: Decimal) -> Decimal:
    """The error function by its series of positive terms."""
    if abs(x) > 12:
        return Decimal(1).copy_sign(x)
    term = total = x
    n = 0
    while abs(term) > abs(total) * Decimal(10) ** -DIGITS:
        n += 1
        term = term * 2 * x * x / (2 * n + 1)
        total += term
    return total * 2 / SQRT_PI * (-x * x).exp()


def _tanh(x: Decimal) -> Decimal:
    e = (2 * x).exp()
    return Decimal(1).copy_sign(x) if e.is_infinite() else (e - 1) / (e + 1)


def _truth(test: Callable[[Decimal, Decimal], bool]) -> Callable[[Decimal, Decimal], Decimal]:
    return lambda x, y: Decimal(test(x, y))


FUNCTIONS: dict[str, Callable[..., Decimal]] = {
    "sqrt": Decimal.sqrt,
    "erf": _erf,
    "tanh": _tanh,
    "abs": abs,
    "relu": lambda x: max(x, Decimal(0)),
    "max": max,
    "min": min,
    "lt": _truth(lambda x, y: x < y),
    "le": _truth(lambda x, y: x <= y),
    "eq": _truth(lambda x, y: x == y),
}


def _other(name: str) -> Callable[..., Decimal]:
    """A function without the properties of the true one: a cubic polynomial of its own, symmetric if the true one is."""
    rng = np.random.default_rng(list(name.encode()))
    a, b, c = (Decimal(int(v)) / 7 for v in rng.integers(1, 30, 3))
    weight = Decimal(1 if name in OPS and OPS[name].commutative else 3)
    return lambda *args: a + b * (x := sum(((weight**k) * v for k, v in enumerate(args)), Decimal(0))) + c * x * x * x


class Decimals(ArrayDomain):
    """Arrays of decimals. `free` names the facts that are not used."""

    def __init__(self, order: Sequence[Hashable], free: Collection[str] = (), seed: int = 0) -> None:
        super().__init__(order)
        self.free = frozenset(free)
        self.rng = np.random.default_rng(seed)

    # --- arithmetic -----------------------------------------------------------------------------------------------------
    def const(self, value: Number) -> Array:
        if isinstance(value, float) and not np.isfinite(value):
            return np.asarray(Decimal("1.37") if "infinity" in self.free else Decimal(value), dtype=object)
        exact = Fraction(value)
        return np.asarray(Decimal(exact.numerator) / Decimal(exact.denominator), dtype=object)

    def add(self, x: Array, y: Array) -> Array:
        return np.asarray(x + y, dtype=object)

    def sub(self, x: Array, y: Array) -> Array:
        return np.asarray(x - y, dtype=object)

    def mul(self, x: Array, y: Array) -> Array:
        return np.asarray(x * y, dtype=object)

    def div(self, x: Array, y: Array, guard: str = "") -> Array:
        q = np.asarray(x / y, dtype=object)
        if not guard:
            return q
        if "0/0" in self.free:
            return q * Decimal({"div0": "2.3", "share": "2.9"}[guard])
        return self._each(lambda v: Decimal(0) if v.is_nan() else v, q)

    def select(self, condition: Array, x: Array, y: Array) -> Array:
        if "truth values" in self.free:
            return np.asarray(condition * (x - y) + y, dtype=object)
        return np.where(condition != 0, x, y)

    def sum(self, x: Array, over: Axes) -> Array:
        return np.asarray(np.sum(x, axis=self.dims(over), keepdims=True), dtype=object)

    def contract(self, x: Array, y: Array, over: Axes) -> Array:
        return contract_arrays(x, y, self.dims(over), np.matmul)

    # --- functions ------------------------------------------------------------------------------------------------------
    def _each(self, function: Callable[..., Decimal], *args: Array) -> Array:
        return np.asarray(np.frompyfunc(function, len(args), 1)(*args), dtype=object)

    def call(self, name: str, *args: Array) -> Array:
        return self._each(_other(name) if name in self.free else FUNCTIONS[name], *args)

    def _power(self, x: Array) -> Array:
        return self._each(_other("exp") if "exp" in self.free else Decimal.exp, x)

    def exp(self, x: Array) -> Array:
        return self._power(x)

    def extreme(self, kind: str, x: Array, over: Axes) -> Array:
        raise InvalidGraph(f"{kind} of an axis is no part of a fragment")

    def iota(self, axis: Hashable, extent: int, offset: int = 0) -> Array:
        positions = [Decimal(i) for i in range(offset, offset + extent)]
        if "positions" in self.free:
            positions = [i * i * i * Decimal("0.3") + Decimal("0.7") for i in positions]
        return self.along(axis, np.asarray(positions, dtype=object))

    # --- stabilisers ----------------------------------------------------------------------------------------------------
    def _maximum(self, x: Array, dims: tuple[int, ...]) -> Array:
        m = np.asarray(np.max(x, axis=dims, keepdims=True), dtype=object)
        if "maxima" in self.free:
            return self._each(lambda _: Decimal(float(self.rng.uniform(-1, 1))), m)
        return m

    def stable_exp(self, x: Array, over: Axes) -> Array:
        return self.exp_minus(x, self._maximum(x, self.dims(over)))

    def running_max(self, previous: Array | None, x: Array, over: Axes) -> Array:
        m = self._maximum(x, self.dims(over))
        return m if previous is None or "maxima" in self.free else np.maximum(previous, m)

    def exp_minus(self, x: Array, maximum: Array) -> Array:
        if "exp" in self.free:
            return np.asarray(self._power(x) / self._power(maximum), dtype=object)
        return self._each(lambda v, m: Decimal(0) if m == -Decimal("inf") else (v - m).exp(), x, maximum)

    def exp_difference(self, old: Array, new: Array) -> Array:
        if "exp" in self.free:
            return np.asarray(self._power(old) / self._power(new), dtype=object)
        return self._each(lambda a, b: Decimal(1) if a == b else (a - b).exp(), old, new)


# --- points ---------------------------------------------------------------------------------------------------------------
def inputs(p: Program, seed: int, kind: str, free: Collection[str] = ()) -> dict[int, Array]:
    """Stored tensors: `normal` numbers, or small `integers`, among which there are ties, zeros and whole rows that a mask
    leaves out."""
    rng = np.random.default_rng([seed, len(kind)])
    symbols = {s: 3 + 2 * k for k, s in enumerate(p.symbols)}
    arrays = {}
    for k, s in enumerate(p.sources):
        shape = [ex.value(e, symbols) for e in s.dims]
        if not s.dtype.is_float and "truth values" not in free:
            arrays[k] = (rng.uniform(size=shape) < (0.6 if kind == "normal" else 0.3)).astype(float)
        elif kind == "normal":
            arrays[k] = rng.normal(size=shape) * rng.choice([0.5, 1.0, 2.0])
        else:
            arrays[k] = rng.integers(-1, 3, shape).astype(float)
    return arrays


def evaluate(
    p: Program,
    graph: KernelGraph | None,
    tiles: Sequence[Tiles],
    domain: Callable[[Program], Any],
    arrays: Mapping[int, Array],
) -> list[Array]:
    """The outputs of a muGraph, or of its program without one."""
    symbols = {s: 3 + 2 * k for k, s in enumerate(p.symbols)}
    if graph is None:
        return evaluate_program(p, domain(p), arrays, symbols)
    return evaluate_kernels(graph, list(tiles), domain, arrays, symbols)


_decimal = np.frompyfunc(lambda v: Decimal(float(v)), 1, 1)


def difference(
    p: Program, graph: KernelGraph, tiles: Sequence[Tiles], seed: int, kind: str = "normal", free: Iterable[str] = ()
) -> Decimal:
    """The largest difference of an output entry at a point, relative to the entries; infinite where only one side is a
    number. For `integers` entries at which a side is no number do not count."""
    free = frozenset(free)
    with decimal.localcontext(CONTEXT):
        arrays = {k: np.asarray(_decimal(a), dtype=object) for k, a in inputs(p, seed, kind, free).items()}
        numbers = iter(range(1000))

        def domain(q: Program) -> Decimals:
            return Decimals([a.name for a in q.axes], free, seed * 1000 + next(numbers))

        wanted = evaluate(p, None, tiles, domain, arrays)
        found = evaluate(p, graph, tiles, domain, arrays)
        worst = Decimal(0)
        for w, f in zip(wanted, found, strict=True):
            if w.shape != f.shape:
                return Decimal("inf")
            pairs = [(Decimal(x), Decimal(y)) for x, y in zip(w.ravel(), f.ravel(), strict=True)]
            scale = max([abs(x) for x, _ in pairs if x.is_finite()], default=Decimal(0))
            worst = max([worst, *(_apart(x, y, scale, kind == "normal") for x, y in pairs)])
        return worst


def _apart(x: Decimal, y: Decimal, scale: Decimal, strict: bool) -> Decimal:
    if x.is_finite() and y.is_finite():
        return abs(x - y) / max(scale, Decimal("1e-12"))
    same = (x.is_nan() and y.is_nan()) or x == y
    return Decimal("inf") if strict and not same else Decimal(0)


def equal(p: Program, graph: KernelGraph, tiles: Sequence[Tiles], free: Iterable[str] = ()) -> bool:
    """Whether both sides agree at several points."""
    free = tuple(free)
    points = ((1, "normal"), (2, "normal"), (3, "integers"), (4, "integers"))
    return all(difference(p, graph, tiles, seed, kind, free) < ROUNDING for seed, kind in points)


def needed(p: Program, graph: KernelGraph, tiles: Sequence[Tiles]) -> tuple[str, ...]:
    """The facts each of which the equality of both sides needs; or, where each one is dispensable alone, a smallest set of
    which one is needed. Nothing if they are equal without all facts."""
    names = {n.op for n in p.nodes}
    names |= {n.op for k in graph.kernels for o in k.block.ops if o.thread for n in o.thread.nodes}
    names |= {f for n in names for f in CALLS.get(n, ())}
    facts = [*FACTS, *(f for f in FUNCTIONS if f in names)]
    alone = tuple(f for f in facts if not equal(p, graph, tiles, [f]))
    if alone or equal(p, graph, tiles, facts):
        return alone
    for f in tuple(facts):
        fewer = [g for g in facts if g != f]
        if not equal(p, graph, tiles, fewer):
            facts = fewer
    return (" or ".join(facts),)
