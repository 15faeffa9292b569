"""From a closure to block graphs: the k cheapest ways through its AND/OR graph.

Best-first over partial choices: a state holds a derivation for each value that is needed so far and the values that still
need one; its price is what was chosen plus, for every open value, its cheapest derivation, which never overestimates.
Values shared by several users are paid once.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from mirage_cli.search.closure.closure import Closure, Derivation, Value
from mirage_cli.search.closure.form import OPENED, Extreme, Fn, Leaf, StableExp
from mirage_cli.search.closure.mapping import numeric
from mirage_cli.search.closure.space import AFTER, BEFORE, BODY, GRID
from mirage_cli.search.mugraph.mugraph import BODY as IN_BODY
from mirage_cli.search.mugraph.mugraph import EPILOGUE, PROLOGUE, BlockGraph, BlockOp, ThreadGraph, ThreadNode
from mirage_cli.search.mugraph.mugraph import GRID as IN_GRID

PHASE = {BEFORE: PROLOGUE, BODY: IN_BODY, AFTER: EPILOGUE, GRID: IN_GRID}
MAX_STATES = 100_000
RESIDENT = 1 << 15  #: elements that a block can keep for its whole life
PROHIBITIVE = 1e6  #: the factor of what no kernel does
WAYS_KEPT = 4  #: derivations of one value that are worth a look, cheapest first
Ranked: TypeAlias = list[tuple[float, Derivation]]  #: derivations of a value with their own prices
_Chosen: TypeAlias = tuple["_Chosen | None", int, Derivation]  #: a choice without its last step, and that step


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs of derivations in a typical tile: multiply-adds of one thread block over its whole loop."""

    closure: Closure
    _elements: dict[tuple[frozenset[str], int], int] = field(default_factory=dict)
    _flops: dict[int, int] = field(default_factory=dict)

    def tile(self, axis: str, phase: int) -> int:
        """Positions of an axis that a block holds at once."""
        extent = numeric(self.closure.form.program.extent(axis))
        mapping = self.closure.mapping
        if axis not in self.closure.space.reduced:
            return min(extent, 32)
        if axis == mapping.split:
            extent = max(1, extent // 8)
        return min(extent, 64) if axis == mapping.loop and phase == BODY else extent

    def elements(self, axes: frozenset[str], phase: int) -> int:
        """Elements of a tile."""
        n = self._elements.get((axes, phase))
        if n is None:
            n = self._elements[axes, phase] = math.prod(self.tile(a, phase) for a in axes)
        return n

    def repeats(self, phase: int) -> int:
        """Number of times that a phase runs."""
        loop = self.closure.mapping.loop
        if phase != BODY or loop is None:
            return 1
        extent = numeric(self.closure.form.program.extent(loop))
        if loop == self.closure.mapping.split:
            extent = max(1, extent // 8)
        return -(-extent // 64)

    def price(self, value: Value, way: Derivation) -> float:
        """The price of one derivation."""
        closure, n = self.closure, self.elements(value.live, value.phase)
        repeat = self.repeats(value.phase)
        match way.op:
            case "load":
                term = closure.form.terms[way.term]
                if isinstance(term, Leaf) and term.known:
                    return 0.1 * n
                return 2.0 * n * repeat + self.residence(n, value.phase)
            case "fn":
                return (1.0 + self.flops(way.term)) * n * repeat
            case "mul" | "add":
                return 2.0 * n * repeat
            case "div" | "div0" | "share":
                return 5.0 * n * repeat
            case "contract":
                depth = self.elements(frozenset(way.over), value.phase)
                staged = sum(self.staging(closure.values[a]) for a in way.args)
                return (0.125 * n * depth + staged) * repeat * self.batches(way)
            case "sum":
                return 1.0 * self.elements(value.live | frozenset(way.over), value.phase) * repeat
            case "accum":
                before = closure.values[way.args[0]]
                fused = any(w.op == "contract" for w in before.ways)
                return (0.0 if fused else 1.0) * n * self.repeats(BODY)
        return 4.0 * n  # grid_sum

    def flops(self, function: int) -> int:
        """Multiply-adds of a function of the form, for one element."""
        if function not in self._flops:
            term = self.closure.form.terms[function]
            self._flops[function] = term.thread.flops() if isinstance(term, Fn) else 8
        return self._flops[function]

    def residence(self, elements: int, phase: int) -> float:
        """Keeping a tile in the block for its whole life; prohibitive beyond what a block can hold."""
        if phase == BODY:
            return 0.0
        return 1.0 * elements if elements <= RESIDENT else PROHIBITIVE * elements

    def batches(self, way: Derivation) -> float:
        """A factor for a contraction of several batches at once: prohibitive, as no kernel has a tile of them."""
        x, y = (self.closure.values[a].live for a in way.args)
        held = (x & y & frozenset(self.closure.space.reduced)) - frozenset(way.over)
        return PROHIBITIVE if held else 1.0

    def staging(self, operand: Value) -> float:
        """Writing a computed operand where a matrix product can read it."""
        if any(w.op == "load" for w in operand.ways) or self.quantised(operand):
            return 0.0
        return 2.0 * self.elements(operand.live, operand.phase)

    def quantised(self, operand: Value) -> bool:
        """True if a value is computed of whole numbers, which products take as they are stored, and of loads that neighbouring
        numbers share."""
        loads = self.loads(operand)
        reads = {i.name: i for i in self.closure.form.program.inputs}
        types = {v: self.closure.form.program.sources[reads[v].source].dtype for v in loads}
        inner = {reads[v].access[-1].axis for v, t in types.items() if t.kind == "int" and t.bytes == 1}
        sharing = (reads[v] for v, t in types.items() if t.is_float)
        return bool(inner) and not any(s.axis in inner for r in sharing for s in r.access)

    def loads(self, value: Value) -> frozenset[str]:
        """The inputs that a value is computed of elementwise, nothing where there is more behind it."""
        terms, values = self.closure.form.terms, self.closure.values
        for way in value.ways:
            term = terms[way.term] if way.op == "load" else None
            if isinstance(term, Leaf):
                return frozenset() if term.known else frozenset((term.value,))
            parts = [self.loads(values[a]) for a in way.args] if way.op in ("fn", "mul") else [frozenset[str]()]
            if all(parts):
                return frozenset[str]().union(*parts)
        return frozenset()


class WholePrices(Prices):
    """Costs of derivations over whole tensors, for a closure without loop or split."""

    def tile(self, axis: str, phase: int) -> int:
        """All positions of an axis."""
        return numeric(self.closure.form.program.extent(axis))

    def residence(self, elements: int, phase: int) -> float:
        """Nothing is held."""
        return 0.0

    def batches(self, way: Derivation) -> float:
        """Nor is there a tile."""
        return 1.0


def block_graphs(
    closure: Closure, count: int, prices: Prices | None = None, until: float = math.inf
) -> list[BlockGraph]:
    """Up to `count` cheapest block graphs for the outputs of a closure, cheapest first; none when it is not reached; those
    that are found `until` a moment of the clock `time.monotonic`."""
    if not all(closure.outputs):
        return []
    ways = _ranked(closure, prices or Prices(closure))
    graphs: list[BlockGraph] = []
    seen: set[tuple[BlockOp, ...]] = set()
    for goals in itertools.product(*closure.outputs):
        for choice in itertools.islice(choices(ways, goals, until), count):
            graph = build_block_graph(closure, choice, goals)
            if graph.ops not in seen:
                seen.add(graph.ops)
                graphs.append(graph)
    return graphs[: count * max(1, len(closure.outputs[0]))]


def choices(
    known_ways: Mapping[int, Ranked], goals: tuple[int, ...], until: float = math.inf
) -> Iterator[dict[int, Derivation]]:
    """Complete choices of derivations, cheapest first, `until` a moment. Sets of values are integers: bits of their places in
    `numbers`."""
    ways = _reached(known_ways, goals)
    numbers = sorted(ways)
    place = {v: k for k, v in enumerate(numbers)}
    least = {v: min(price for price, _ in ways[v]) for v in numbers}
    options = [
        [(price, way, [(1 << place[a], least[a]) for a in set(way.args)]) for price, way in ways[v]] for v in numbers
    ]
    order = itertools.count()
    start = sum(1 << place[v] for v in set(goals))
    queue: list[tuple[float, int, _Chosen | None, int, int]] = []
    heapq.heappush(queue, (sum(least[v] for v in frozenset(goals)), next(order), None, 0, start))
    for _ in range(MAX_STATES):
        if not queue or time.monotonic() > until:
            return
        bound, _, last, known, todo = heapq.heappop(queue)
        if not todo:
            chosen = {numbers[value]: way for value, way in _derivations(last)}
            if _acyclic(chosen):
                yield chosen
            continue
        value = todo.bit_length() - 1
        rest, left = bound - least[numbers[value]], todo ^ (1 << value)
        known |= 1 << value
        for price, way, args in options[value]:
            opened, more = 0, 0.0
            for bit, cost in args:
                if not (known | left) & bit:
                    opened, more = opened | bit, more + cost
            heapq.heappush(queue, (rest + price + more, next(order), (last, value, way), known, left | opened))


def _derivations(last: _Chosen | None) -> Iterator[tuple[int, Derivation]]:
    """The steps of a choice, last first."""
    while last is not None:
        last, value, way = last
        yield value, way


def _reached(ways: Mapping[int, Ranked], goals: Iterable[int]) -> dict[int, Ranked]:
    """Those of the values that derivations of the goals may take."""
    reached: dict[int, Ranked] = {}
    todo = [*goals]
    while todo:
        value = todo.pop()
        if value not in reached:
            reached[value] = ways[value]
            todo += (a for _, way in ways[value] for a in way.args)
    return reached


def _ranked(closure: Closure, prices: Prices) -> dict[int, Ranked]:
    """For each value its most promising derivations, with their own price, ranked by the price of the whole tree."""
    own = [[prices.price(v, w) for w in v.ways] for v in closure.values]
    tree: dict[int, float] = {}

    def whole(v: Value) -> list[float]:
        priced = zip(own[v.number], v.ways, strict=True)
        return [price + sum(tree.get(a, 1e30) for a in way.args) for price, way in priced]

    for _ in range(3):  # derivations may refer to later values: a few sweeps settle the estimates
        for v in closure.values:
            tree[v.number] = min(tree.get(v.number, 1e30), min(whole(v), default=1e30))
    ranked = {}
    for v in closure.values:
        cheapest = sorted(zip(whole(v), itertools.count(), strict=False))[:WAYS_KEPT]
        ranked[v.number] = [(own[v.number][k], v.ways[k]) for _, k in cheapest]
    return ranked


def _acyclic(chosen: Mapping[int, Derivation]) -> bool:
    return _sorted(chosen) is not None


def _sorted(chosen: Mapping[int, Derivation]) -> list[int] | None:
    """The chosen values in topological order; None when they go round in a circle."""
    done: dict[int, None] = {}
    path: set[int] = set()

    def visit(v: int) -> bool:
        if v in done:
            return True
        if v in path:
            return False
        path.add(v)
        if not all(visit(a) for a in chosen[v].args):
            return False
        path.discard(v)
        done[v] = None
        return True

    return list(done) if all(visit(v) for v in sorted(chosen)) else None


# --- building the block graph -------------------------------------------------------------------------------------------


def build_block_graph(closure: Closure, chosen: Mapping[int, Derivation], goals: tuple[int, ...]) -> BlockGraph:
    """The block graph of a complete choice; its grid holds every axis that no reduction touches, and the split one."""
    names = {v: f"t{k}" for k, v in enumerate(_sorted(chosen) or [])}
    ops = [_op(closure, closure.values[v], chosen[v], names) for v in names]
    program, mapping = closure.form.program, closure.mapping
    stored = {s.axis for o in program.outputs for s in o.access}
    free = [a.name for a in program.axes if a.name not in closure.form.reduced and a.name in stored]
    split = (mapping.split,) if mapping.split else ()
    return BlockGraph((*free, *split), split, mapping.loop, tuple(ops), tuple(names[v] for v in goals))


def _op(closure: Closure, value: Value, way: Derivation, names: Mapping[int, str]) -> BlockOp:
    name, phase = names[value.number], PHASE[value.phase]
    inputs = tuple(names[a] for a in way.args)
    if way.op in OPENED:
        return BlockOp(name, "thread", inputs, phase, thread=ThreadGraph(2, (ThreadNode(way.op, (0, 1)),)))
    if way.op in ("contract", "sum"):
        return BlockOp(name, way.op, inputs, phase, way.over, dtype=way.dtype)
    if way.op in ("accum", "grid_sum"):
        return BlockOp(name, way.op, inputs, phase)
    term = closure.form.terms[way.term]
    if isinstance(term, Fn):
        return BlockOp(name, "thread", inputs, phase, thread=term.thread)
    if isinstance(term, Extreme):
        return BlockOp(name, term.kind, inputs, phase, term.over)
    if isinstance(term, StableExp):
        return BlockOp(name, "stable_exp", inputs, phase, term.over)
    assert isinstance(term, Leaf)
    if term.known:
        return BlockOp(name, term.known, (), phase, axis=term.axis)
    return BlockOp(name, "load", (), phase, source_value=term.value)
