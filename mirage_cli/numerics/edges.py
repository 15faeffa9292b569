"""Inputs at the edges of what numbers can be, made for a program from what its operators are.

Every kind takes ordinary inputs and changes rows of one of them: huge values, rows without any key or with one, rows of
equal or of almost equal values, numbers that lose their last bits, NaN and infinities, values just at a comparison's
limit. A row is what lies along the axes that some operator reduces. Rows take the variants of a kind in turn, so that one
run shows many of them. Weights of the model stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np
from ml_dtypes import iinfo  # of numpy's types too
from numpy.typing import NDArray

from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import F32, DType, from_numpy
from mirage_cli.lax.ir.program import Program, Source, read
from mirage_cli.lax.ops.registry import OPS
from mirage_cli.numerics.epsilons import inputs_showing_constants
from mirage_cli.runtime import sessions

Array: TypeAlias = NDArray[Any]
#: of a row: its values, and what chance there is; the result is converted to the row's type
Variant: TypeAlias = Callable[[Array, np.random.Generator], Array]

MASKED, SINGLE = "masked rows", "single keys"
EQUAL, CANCELLING, TINY, ENDS = "equal rows", "cancelling", "subnormal", "ends of functions"
HUGE, SPIKES, TIES = "huge", "one huge value", "ties"
INTEGERS, NOT_FINITE, CONSTANTS = "largest integers", "not finite", "constants"
TOGETHER, ALONE = (
    1e2,
    1e4,
)  #: what all inputs are multiplied with in "huge", and one of them: scores are 1e4 times as large
SAFE = 2.0**60  #: the square of this, summed over a row, is a float32
COUNT = 2.0**29  #: an integer that several of are no more than a type of 32 bits holds
PLACES = 4  #: how many rows of an input show one variant
ROWS = 64  #: into how many rows an input is cut that nothing is reduced of
_LADDER = (0.0, 1e-30, 1e-8, 1e-3, 0.5, 1.0, 4.0, 9.0, 20.0, 60.0, 88.5, 104.0, 1e4)


_SCALES = {"random": 1.0, "longer": 1.0, "large": 30.0, "tiny": 1e-4, "zero": 0.0}  #: of random numbers, by case


@dataclass(frozen=True, slots=True)
class Edge:
    """Inputs of a program in the order of its sources, and the kind of what is special about them."""

    kind: str
    arrays: tuple[Array, ...]


def edges(program: Program, arrays: Sequence[Array], symbols: Mapping[str, int], seed: int) -> Iterator[Edge]:
    """Ordinary inputs (in the order of the sources) changed in every way that the program's operators call for; of each kind
    one comes first, then the second ones, and so on."""
    facts = Facts(program)
    random = np.random.default_rng([seed, len(program.nodes)])
    kinds = [_huge(facts, arrays), _small(facts, arrays, random)]
    for kind, sources, variants in _plan(facts, arrays):
        kinds.append(_changed(facts, kind, sources, variants, arrays, symbols, random))
    kinds.append(_showing_constants(facts, arrays, symbols, random))
    yield from _in_turn(kinds)


def _in_turn(kinds: Sequence[Iterator[Edge]]) -> Iterator[Edge]:
    """One of each kind, then the second ones, and so on."""
    for turn in zip_longest(*kinds):
        yield from (e for e in turn if e is not None)


# --- ordinary inputs --------------------------------------------------------------------------------------------------
def draw(source: Source, dims: Sequence[int], case: str, random: np.random.Generator) -> NDArray[Any]:
    """A random array for one source: normal numbers (scaled by the case), small integers, truth values that leave no row
    without a true one, or, where several elements share one, bytes, of which `dims` are then."""
    shape = tuple(dims)
    if source.dtype.kind == "bool":
        truth = random.random(shape) < 0.7
        if truth.ndim:
            truth[..., :1] = True
        return np.asarray(truth)
    if source.packed:
        return random.integers(0, 256, shape, dtype=np.uint8)
    if source.dtype.kind == "int":
        return random.integers(0, 4, shape).astype(sessions.numpy_type(source.dtype))
    values = random.standard_normal(shape) * (_SCALES[case] if not source.constant else 1.0)
    return np.asarray(values).astype(sessions.numpy_type(source.dtype))


def large(program: Program, arrays: Sequence[Array], symbols: Mapping[str, int], seed: int) -> Iterator[Edge]:
    """Those of the changed inputs that hold numbers larger than usual."""
    facts, random = Facts(program), np.random.default_rng([seed, len(program.nodes)])
    yield from _huge(facts, arrays)
    for kind, sources, variants in _plan(facts, arrays):
        if kind == SPIKES:
            yield from _changed(facts, kind, sources, variants, arrays, symbols, random)


def not_finite(program: Program, arrays: Sequence[Array], symbols: Mapping[str, int], seed: int) -> Iterator[Edge]:
    """Those of the changed inputs that hold NaN or infinities, of each kind in turn."""
    facts, random = Facts(program), np.random.default_rng([seed, len(program.nodes)])
    kinds = [
        _changed(facts, kind, sources, variants, arrays, symbols, random)
        for kind, sources, variants in _plan(facts, arrays)
        if kind in (NOT_FINITE, MASKED, SINGLE)
    ]
    for edge in _in_turn(kinds):
        if any(a.dtype.kind != "b" and not np.isfinite(a.astype(np.float64)).all() for a in edge.arrays):
            yield edge


# --- what the operators of a program are ------------------------------------------------------------------------------
class Facts:
    """The properties of a program that the kinds depend on: which axes are reduced, what is a weight, what reaches an
    exponential without being multiplied or summed, and whether there are functions and comparisons."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.reduced = frozenset(a for n in program.nodes for a in n.over)
        self.sums = any(n.over for n in program.nodes)
        ops = [OPS[n.op] for n in program.nodes if n.op in OPS]
        given = {i.name for i in program.inputs}
        for n in program.nodes:
            given |= {n.name} if given.intersection(n.inputs) else set()
        #: positions compare alike whatever is given
        self.compares = any(n.op in OPS and OPS[n.op].predicate and given.intersection(n.inputs) for n in program.nodes)
        self.functions = any(not o.linear and not o.predicate for o in ops)
        self.limits = sorted(
            {
                float(n.value)
                for n in program.nodes
                if n.op == "const" and n.value is not None and abs(float(n.value)) <= SAFE
            }
        )
        nodes = program.nodes
        self.scores = self._behind([x for n in nodes if n.op in ("stable_exp", "max") and n.over for x in n.inputs])
        constant = {n.name for n in nodes if n.op == "const"}
        products = [n.inputs for n in nodes if n.op in ("mul", "div") and not constant & set(n.inputs)]
        #: sources that something varying is multiplied with or divided by, beside elementwise operators
        self.factors = self._behind([x for inputs in products for x in inputs], ("exp", "stable_exp"))
        #: sources that reach a sum, or an operator that computes with them, by elementwise operators alone
        self.summed = self._behind(
            [x for n in nodes if n.op in ("sum", "contract") for x in n.inputs], ("exp", "stable_exp")
        )
        self.computed = self._behind(
            [x for n in nodes if n.op in ("add", "sub", "mul", "sum", "contract") for x in n.inputs]
        )

    def _behind(self, todo: list[str], ends: Sequence[str] = ()) -> frozenset[int]:
        """The sources of values, behind elementwise operators and exponentials that are not among `ends`."""
        node_of = {n.name: n for n in self.program.nodes}
        read = {i.name: i.source for i in self.program.inputs}
        sources: set[int] = set()
        for name in todo:  # grows
            if name in read:
                sources.add(read[name])
            elif node_of[name].op not in ends and not (node_of[name].over and node_of[name].op != "stable_exp"):
                todo += [x for x in node_of[name].inputs if x not in todo]
        return frozenset(sources)

    def rows(self, source: int, symbols: Mapping[str, int]) -> Array:
        """The positions of a source's elements [row, position in it], as the input that reads most of it has them; of one
        without an axis that is reduced, parts of equal length."""
        p = self.program
        entries = [i for i in p.inputs if i.source == source]
        stored = np.arange(math.prod(ex.value(s.extent, symbols) for s in entries[0].access))
        at = max((read(p, i.access, stored, 0, symbols) for i in entries), key=np.size)
        along = [k for k, a in enumerate(p.axes) if a.name in self.reduced and at.shape[k] > 1]
        if not along:
            length = max(1, at.size // ROWS)
            return at.reshape(-1)[: at.size // length * length].reshape(-1, length)
        free = [k for k in range(len(p.axes)) if k not in along]
        count = math.prod(at.shape[k] for k in free)
        rows: Array = at.transpose([*free, *along]).reshape(count, -1 if count else 0)
        return rows


# --- kinds ------------------------------------------------------------------------------------------------------------
def _plan(facts: Facts, arrays: Sequence[Array]) -> Iterator[tuple[str, list[int], Sequence[Variant]]]:
    """The kinds that change single sources: their names, the sources, the variants."""
    given = [k for k, s in enumerate(facts.program.sources) if not s.constant]
    types = {k: facts.program.sources[k].dtype for k in given}
    floats = [k for k in given if types[k].is_float and arrays[k].size]
    truths = [k for k in given if types[k].kind == "bool" and arrays[k].size]
    masks = [k for k in floats if k in facts.scores]
    larger = facts.summed | facts.factors  # what a least number makes of these overflows in one order, in another not
    for some, least in (
        ([k for k in masks if k not in larger], None),
        ([k for k in masks if k in larger], -SAFE),
    ):
        if some:
            yield MASKED, some, [partial(_all, low=low) for low in (-np.inf, least)] + [_same, _lower_half]
            yield SINGLE, some, [partial(_one, at=at, low=low) for at in (-1, 0, 1) for low in (-np.inf, least)]
    if truths:
        yield MASKED, truths, [partial(_truth, value=v) for v in (False, True)]
        yield SINGLE, truths, [partial(_but_one, at=at, value=v) for at in (-1, 0) for v in (False, True)]
    if facts.sums:
        yield EQUAL, floats, [_constant, _equal, _zeros, _negative_zeros, _almost, _far]
        yield CANCELLING, floats, [_alternating, _offset]
    yield SPIKES, floats, [partial(_spike, sign=1.0), partial(_spike, sign=-1.0, at=-1), _same]
    if facts.functions:
        yield ENDS, floats, [partial(_unit, value=s * v) for v in _LADDER for s in (1.0, -1.0)] + [_ladder]
    if facts.compares:
        yield TIES, floats, [partial(_limits, values=[0.0, *facts.limits])]
    integers = [k for k in given if types[k].kind == "int" and arrays[k].size]
    limits = [k for k in integers if k not in facts.computed]
    yield INTEGERS, limits, [_largest, _least, _inexact]
    yield (
        INTEGERS,
        [k for k in integers if k not in limits],
        [partial(_all, low=s * COUNT) for s in (1, -1)] + [_inexact],
    )
    yield NOT_FINITE, floats, [partial(_one_replaced, value=v) for v in (np.nan, np.inf, -np.inf)] + [_same]


def _huge(facts: Facts, arrays: Sequence[Array]) -> Iterator[Edge]:
    """Larger numbers than usual: in all inputs, then in one after the other."""
    sources = [k for k, s in enumerate(facts.program.sources) if s.dtype.is_float and not s.constant]

    def larger(k: int, factor: float) -> Array:
        return converted(arrays[k].astype(np.float64) * factor, arrays[k].dtype)

    yield Edge(HUGE, tuple(larger(k, TOGETHER) if k in sources else a for k, a in enumerate(arrays)))
    for k in sources:
        yield Edge(HUGE, (*arrays[:k], larger(k, ALONE), *arrays[k + 1 :]))


def _small(facts: Facts, arrays: Sequence[Array], random: np.random.Generator) -> Iterator[Edge]:
    """One input after the other that holds nothing but numbers around the smallest normal one of its type, then some of the
    type's smallest steps; other rows would hide what becomes of these."""
    sources = [k for k, s in enumerate(facts.program.sources) if s.dtype.is_float and not s.constant and arrays[k].size]
    for variant in (_least_normal, partial(_smallest_steps, most=100), partial(_smallest_steps, most=1)):
        for k in sources:
            changed = converted(variant(arrays[k], random), arrays[k].dtype)
            yield Edge(TINY, (*arrays[:k], changed, *arrays[k + 1 :]))


def _showing_constants(
    facts: Facts, arrays: Sequence[Array], symbols: Mapping[str, int], random: np.random.Generator
) -> Iterator[Edge]:
    """Numbers for which constants that the program adds, such as a norm's epsilon, are not lost beside the rest."""
    weights = {
        k: float(np.sqrt(np.square(arrays[k], dtype=np.float64).mean())) if arrays[k].size else 0.0
        for k, s in enumerate(facts.program.sources)
        if s.constant
    }
    for numbers in inputs_showing_constants(facts.program, weights, symbols):
        changed = list(arrays)
        for k, pair in numbers.items():
            rows = facts.rows(k, symbols)
            a = np.array(arrays[k], order="C")
            values = np.resize(np.array(pair), rows.shape[1:]) * random.uniform(0.9, 1.1, rows.shape)
            a.reshape(-1)[rows] = converted(values, a.dtype)
            changed[k] = a
        yield Edge(CONSTANTS, tuple(changed))


def _changed(
    facts: Facts,
    kind: str,
    sources: Sequence[int],
    variants: Sequence[Variant],
    arrays: Sequence[Array],
    symbols: Mapping[str, int],
    random: np.random.Generator,
) -> Iterator[Edge]:
    """The sources one after the other with their rows changed; as often as it takes to show every variant."""
    shown = dict.fromkeys(sources, 0)
    while left := [s for s in sources if shown[s] < len(variants)]:
        for source in left:
            rows = facts.rows(source, symbols)
            count = min(len(rows), PLACES * len(variants))
            a = np.array(arrays[source], order="C")
            flat = a.reshape(-1)
            for k, row in enumerate(rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]):
                values = variants[(shown[source] + k) % len(variants)](flat[row], random)
                flat[row] = converted(values, a.dtype)
            shown[source] += count
            yield Edge(kind, (*arrays[:source], a, *arrays[source + 1 :]))


def converted(values: Array, dtype: np.dtype[Any]) -> Array:
    """Values in a type; finite ones stay finite."""
    own = from_numpy(dtype)
    if own is None or not own.is_float:
        return values.astype(dtype)
    return np.where(np.isfinite(values), np.clip(values, -own.largest, own.largest), values).astype(dtype)


# --- variants of a row ------------------------------------------------------------------------------------------------
def _same(row: Array, random: np.random.Generator) -> Array:
    return row


def _wide(row: Array) -> NDArray[np.float64]:
    return row.astype(np.float64)


def _type(row: Array) -> DType:
    return from_numpy(row.dtype) or F32


def _lowest(row: Array, low: float | None) -> float:
    return -_type(row).largest if low is None else low


def _all(row: Array, random: np.random.Generator, low: float | None) -> Array:
    return np.full(row.shape, _lowest(row, low))


def _lower_half(row: Array, random: np.random.Generator) -> Array:
    values = _wide(row)
    values[: len(row) // 2] = -np.inf
    return values


def _one(row: Array, random: np.random.Generator, at: int, low: float | None) -> Array:
    values = np.full(row.shape, _lowest(row, low))
    values[at % len(row)] = row[at % len(row)]
    return values


def _truth(row: Array, random: np.random.Generator, value: bool) -> Array:
    return np.full(row.shape, value)


def _but_one(row: Array, random: np.random.Generator, at: int, value: bool) -> Array:
    values = np.full(row.shape, value)
    values[at] = not value
    return values


def _constant(row: Array, random: np.random.Generator) -> Array:
    return np.full(row.shape, 1.5)


def _equal(row: Array, random: np.random.Generator) -> Array:
    """Of a number with all of the type's bits, whose powers are rounded."""
    return np.full(row.shape, random.uniform(1.0, 2.0))


def _zeros(row: Array, random: np.random.Generator) -> Array:
    return np.zeros(row.shape)


def _negative_zeros(row: Array, random: np.random.Generator) -> Array:
    return np.full(row.shape, -0.0)


def _almost(row: Array, random: np.random.Generator) -> Array:
    """Equal but for the last bit of some."""
    return 1.5 + _type(row).epsilon * random.integers(0, 2, row.shape)


def _far(row: Array, random: np.random.Generator) -> Array:
    """Equal, and far from 0."""
    return np.full(row.shape, _middle(row) * (1 + random.integers(0, 8) / 8))


def _middle(row: Array) -> float:
    """A number that leaves half of the type's bits for what is added to it."""
    return float(2.0 ** (-math.log2(_type(row).epsilon) // 2))


def _alternating(row: Array, random: np.random.Generator) -> Array:
    return _wide(row) + _middle(row) * np.where(np.arange(len(row)) % 2, -1.0, 1.0)


def _offset(row: Array, random: np.random.Generator) -> Array:
    return _wide(row) + _middle(row)


def _spike(row: Array, random: np.random.Generator, sign: float, at: int | None = None) -> Array:
    """The last place is one that loops get wrong."""
    return _one_replaced(row, random, sign * min(SAFE, _type(row).largest), at)


def _one_replaced(row: Array, random: np.random.Generator, value: float, at: int | None = None) -> Array:
    values = _wide(row)
    values[random.integers(len(row)) if at is None else at] = value
    return values


def _unit(row: Array, random: np.random.Generator, value: float) -> Array:
    return _one_replaced(np.zeros(row.shape), random, value)


def _ladder(row: Array, random: np.random.Generator) -> Array:
    steps: Array = random.choice(_LADDER, row.shape) * random.choice((-1.0, 1.0), row.shape)
    return steps


def _smallest_steps(row: Array, random: np.random.Generator, most: int) -> Array:
    """At most so many of the type's smallest steps."""
    return _type(row).normal * _type(row).epsilon * random.integers(-most, most + 1, row.shape)


def _least_normal(row: Array, random: np.random.Generator) -> Array:
    return _type(row).normal * random.uniform(-2.0, 2.0, row.shape)


def _limits(row: Array, random: np.random.Generator, values: Sequence[float]) -> Array:
    return random.choice(values, row.shape)


def _range(row: Array) -> tuple[int, int]:
    """The least and the largest integer of a row's type."""
    limits = iinfo(row.dtype)  # type: ignore[no-untyped-call]
    return int(limits.min), int(limits.max)


def _largest(row: Array, random: np.random.Generator) -> Array:
    return np.full(row.shape, _range(row)[1])


def _least(row: Array, random: np.random.Generator) -> Array:
    return np.full(row.shape, _range(row)[0])


def _inexact(row: Array, random: np.random.Generator) -> Array:
    """Around the first whole number that float32 lacks, as far as the type reaches."""
    return np.minimum((1 << 24) + random.integers(0, 4, row.shape), _range(row)[1])
