"""A block graph looked up in the closure of its mapping: `represented(closure, block)`.

Every operator is evaluated on the closure's stand-in (same inputs, functions, phases and coordinates). In the closure have
to be

1. every value that is loaded, multiplied by a contraction, reduced, accumulated, exponentiated or stored, found by phase,
   axes and array;
2. every operator that is not elementwise, as one of the ways of its result;
3. for every elementwise region between these, ways from what it reads to what it makes (the closure keeps a region as one
   function, so the values inside need not be there).

The block graph comes in the exponential form, operator by operator (search/finish/unstabilised.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from mirage_cli.errors import Refused
from mirage_cli.lax.domains.expr import Expr
from mirage_cli.lax.domains.field import Residue
from mirage_cli.search.closure.closure import Closure, Derivation, Value
from mirage_cli.search.closure.form import OPENED, Extreme, Fn, Leaf, StableExp
from mirage_cli.search.closure.pruning import tag
from mirage_cli.search.closure.space import AFTER, BEFORE, BODY, GRID, P
from mirage_cli.search.mugraph.mugraph import BODY as IN_BODY
from mirage_cli.search.mugraph.mugraph import BlockGraph, BlockOp, ThreadNode

COMMUTATIVE = ("mul", "add", "contract")  #: ways whose operands are in order of their numbers
Numbers: TypeAlias = tuple[int, ...]


def check_represented(closure: Closure, block: BlockGraph) -> None:
    """Check that a closure holds a block graph for its program. Raises Refused, saying what is missing and why."""
    walk = _Walk(closure, block)
    for o in block.ops:
        walk.values[o.name] = walk.op(o)
    for k, name in enumerate(block.outputs):
        if walk.need(walk.values[name], f"output {name}") not in closure.outputs[k]:
            raise Refused(f"output {name} is a value of the search, but not the fragment's output {k}")


@dataclass(frozen=True, slots=True, eq=False)
class _BlockValue:
    """A value of a block graph. `number` is that of the closure's value, if there is one; `reads` are the numbers of what an
    elementwise region read for it, None behind any other operator."""

    phase: int
    live: frozenset[str]
    array: Residue
    expr: Expr | None
    number: int | None
    reads: frozenset[int] | None = None


class _Walk:
    """One walk through a block graph, beside a closure; `values` are those so far."""

    def __init__(self, closure: Closure, block: BlockGraph) -> None:
        self.closure, self.block = closure, block
        self.target, self.space, self.expressions = closure.target, closure.space, closure.expressions
        self.values: dict[str, _BlockValue] = {}
        self._ways: dict[int, list[Derivation]] = {}

    def op(self, operator: BlockOp) -> _BlockValue:
        """The value of an operator."""
        args = [self.values[i] for i in operator.inputs]
        match operator.op:
            case "load" | "iota" | "extent":
                return self.load(operator)
            case "thread":
                return self.thread(operator, args)
            case "stable_exp":
                return self.exponential(operator, args[0])
            case "max" | "min":
                return self.extreme(operator, args[0])
            case "contract":
                return self.contract(operator, args)
            case "sum":
                return self.sum(operator, args[0])
        return self.cross(operator, args[0])

    # --- asking the closure ---------------------------------------------------------------------------------------------
    def value(
        self, phase: int, live: frozenset[str], array: Residue, expr: Expr | None, reads: frozenset[int] | None = None
    ) -> _BlockValue:
        """A value, with what the closure knows of it."""
        known = self.closure.find(phase, live, array)
        if known is None:
            return _BlockValue(phase, live, array, expr, None, reads)
        return _BlockValue(phase, live, array, known.expr, known.number, reads)

    def ways(self, number: int) -> list[Derivation]:
        """The ways of a value and of those equal to it, from the first of the values equal to each operand."""
        if number not in self._ways:
            equal = self.equal(number)
            self._ways[number] = [self.from_first(w) for v in equal for w in v.ways]
        return self._ways[number]

    def equal(self, number: int) -> list[Value]:
        """The values of the closure that are equal to one of them, in one phase."""
        v = self.closure.values[number]
        return self.closure.all_of(v.phase, v.live, v.array)

    def from_first(self, way: Derivation) -> Derivation:
        """A way with the first of equal values in the place of each operand."""
        args = tuple(self.equal(a)[0].number for a in way.args)
        return replace(way, args=tuple(sorted(args)) if way.op in COMMUTATIVE else args)

    def need(self, value: _BlockValue, what: str) -> int:
        """The number of a value that has to be in the closure."""
        if value.number is None:
            raise Refused(f"{what}: {self.why(value)}")
        if value.reads is not None and not self.region(value.number, value.reads):
            raise Refused(f"{what} is a value of the search, but not as a function of what it is computed from here")
        return value.number

    def why(self, value: _BlockValue) -> str:
        """The reason for which a value is missing."""
        if value.expr is None:
            return "it is none of the elementwise functions that the fragment has"
        return self.closure.objection(value.expr, value.live) or "it is missing, though its expression and axes fit"

    def region(self, goal: int, reads: frozenset[int]) -> bool:
        """True if elementwise ways lead from the values `reads` to `goal`."""
        ways: dict[int, list[Numbers]] = {}
        todo = [goal]
        while todo:
            v = todo.pop()
            if v not in ways and v not in reads:
                options = self.ways(v)
                ways[v] = [w.args for w in options if w.op in OPENED or self.is_function(w.op, w.term)]
                todo += [a for args in ways[v] for a in args]
        known, before = set(reads), -1
        while len(known) > before:
            before = len(known)
            known.update(v for v, options in ways.items() if any(known.issuperset(args) for args in options))
        return goal in known

    def is_function(self, op: str, term: int) -> bool:
        """True if a derivation applies an elementwise function."""
        return op == "fn" and isinstance(self.closure.form.terms[term], Fn)

    def derived_by(
        self, operator: BlockOp, result: _BlockValue, op: str, args: Numbers, over: frozenset[str] = frozenset()
    ) -> _BlockValue:
        """`result`, if the closure computes it by `op` of `args`, among other ways."""
        number = self.need(result, f"{operator.name} = {operator.op}({', '.join(operator.inputs)})")
        if not self.has_way(number, op, args, over):
            raise Refused(
                f"{operator.name} is a value of the search, but not by {operator.op} of {', '.join(operator.inputs)}"
            )
        return result

    def has_way(self, number: int | None, op: str, args: Numbers, over: frozenset[str] = frozenset()) -> bool:
        """True if a value of the closure has this way."""
        ways = () if number is None else self.ways(number)
        return any((w.op, w.args, frozenset(w.over)) == (op, args, over) for w in ways)

    # --- operators ------------------------------------------------------------------------------------------------------
    def load(self, operator: BlockOp) -> _BlockValue:
        """An input, or what is known of an axis."""
        for number, t in enumerate(self.closure.form.terms):
            if not isinstance(t, Leaf):
                continue
            if (
                (t.value == operator.source_value)
                if operator.op == "load"
                else ((t.known, t.axis) == (operator.op, operator.axis))
            ):
                phase = BODY if operator.phase == IN_BODY and self.block.loop in t.axes else BEFORE
                return self.value(phase, t.axes, self.target.arrays[number], self.closure.pruning.exprs[number])
        read = operator.source_value or f"{operator.op} {operator.axis}"
        raise Refused(f"{operator.name} reads {read}, which the fragment does not need")

    def phase(self, operator: BlockOp, args: list[_BlockValue]) -> int:
        """Where a reduction belongs: with the latest of its operands, in the body where it takes a part of the loop axis."""
        latest = max(a.phase for a in args)
        return BODY if latest == BEFORE and operator.phase == IN_BODY and self.block.loop in operator.over else latest

    def contract(self, operator: BlockOp, args: list[_BlockValue]) -> _BlockValue:
        """A contraction; of values with the same axes it is a sum of products."""
        x, y = args
        numbers = tuple(
            sorted(
                self.need(a, f"operand {i} of {operator.name}") for a, i in zip((x, y), operator.inputs, strict=True)
            )
        )
        over, phase, live = frozenset(operator.over), self.phase(operator, [x, y]), x.live | y.live
        e = None if x.expr is None or y.expr is None else self.expressions.mul(x.expr, y.expr)
        product = self.value(phase, live, x.array * y.array % P, e)
        result = self.summed(product, over)
        if self.has_way(product.number, "mul", numbers) and self.has_way(
            result.number, "sum", (product.number or 0,), over
        ):
            return result
        return self.derived_by(operator, result, "contract", numbers, over)

    def sum(self, operator: BlockOp, x: _BlockValue) -> _BlockValue:
        """A sum within a tile."""
        number = self.need(x, f"operand {operator.inputs[0]} of {operator.name}")
        over = frozenset(operator.over)
        x = _BlockValue(self.phase(operator, [x]), x.live, x.array, x.expr, x.number)
        return self.derived_by(operator, self.summed(x, over), "sum", (number,), over)

    def summed(self, x: _BlockValue, over: frozenset[str]) -> _BlockValue:
        """The sum of a value over the tile parts of axes. Raises Refused for axes that the fragment does not reduce."""
        if kept := sorted(over - self.space.reduced):
            raise Refused(f"a reduction over {', '.join(kept)}, which the fragment does not reduce")
        expr = None if x.expr is None else self.expressions.sum(x.expr, self.space.tile_factors(over, x.phase))
        return self.value(x.phase, x.live - over, self.space.sum(x.array, over, x.phase), expr)

    def cross(self, operator: BlockOp, x: _BlockValue) -> _BlockValue:
        """Accumulation over the loop, and sums over blocks."""
        number = self.need(x, f"operand {operator.inputs[0]} of {operator.name}")
        kind, phase = ("l", AFTER) if operator.op == "accum" else ("g", GRID)
        axis = self.block.loop if operator.op == "accum" else next(iter(self.block.split), None)
        if axis is None or not self.space.depends(x.array, axis, kind):
            place = "iteration" if kind == "l" else "block"
            raise Refused(f"{operator.name} sums {operator.inputs[0]}, which is the same in every {place}")
        expr = None if x.expr is None else self.expressions.sum(x.expr, [(axis, kind)])
        return self.derived_by(
            operator, self.value(phase, x.live, self.space.total(x.array, axis, kind), expr), operator.op, (number,)
        )

    def exponential(self, operator: BlockOp, x: _BlockValue) -> _BlockValue:
        """A stabilised exponential."""
        number = self.need(x, f"exponent in {operator.name}")
        array = self.target.exponential(x.array)
        expr = None if x.expr is None else self.expressions.call("stable", x.expr)
        value = self.value(x.phase, x.live, array, expr)
        if not self.is_stable(self.need(value, f"exponential in {operator.name}"), number):
            raise Refused(f"{operator.name} takes a maximum from an exponential that has none in the fragment")
        return value

    def is_stable(self, value: int, argument: int) -> bool:
        """True if a value is a stabilised exponential of another."""
        ways = [w for w in self.ways(value) if w.op == "fn" and w.args == (argument,)]
        return any(isinstance(self.closure.form.terms[w.term], StableExp) for w in ways)

    def extreme(self, operator: BlockOp, x: _BlockValue) -> _BlockValue:
        """The greatest or least of a value's elements."""
        number, over = self.need(x, f"operand of {operator.name}"), operator.over
        phase = self.space.extreme_phase(over, x.phase)
        expr = None if x.expr is None else self.expressions.call((operator.op, over), x.expr)
        array = self.target.extreme(operator.op, over, x.array)
        value = self.value(x.phase if phase is None else phase, x.live - set(over), array, expr)
        ways = self.ways(self.need(value, f"{operator.name} = {operator.op}({operator.inputs[0]})"))
        if not any(w.args == (number,) and isinstance(self.closure.form.terms[w.term], Extreme) for w in ways):
            raise Refused(f"{operator.name} is no {operator.op} of a value of the search")
        return value

    # --- elementwise ----------------------------------------------------------------------------------------------------
    def thread(self, operator: BlockOp, args: list[_BlockValue]) -> _BlockValue:
        """The value of an elementwise operator."""
        assert operator.thread is not None
        (node,) = operator.thread.nodes
        live = frozenset[str]().union(*(a.live for a in args))
        array = self.target.function(operator.thread, [a.array for a in args])
        value = self.value(
            max((a.phase for a in args), default=BEFORE), live, array, self.combined(node, args), self.reads(args)
        )
        if node.op == "exp" and value.number is not None and self.is_only_stable(value.number):
            raise Refused(f"{operator.name} takes the exponential of a softmax without its maximum")
        return value

    def is_only_stable(self, number: int) -> bool:
        """True if a value is known as a stabilised exponential only."""
        return not any(w.op in OPENED or self.is_function(w.op, w.term) for w in self.ways(number))

    def reads(self, args: list[_BlockValue]) -> frozenset[int]:
        """The results of other operators that an elementwise value reads."""
        numbers: set[int] = set()
        for a in args:
            numbers |= a.reads if a.reads is not None else {a.number} if a.number is not None else set()
        return frozenset(numbers)

    def combined(self, n: ThreadNode, args: list[_BlockValue]) -> Expr | None:
        """The abstract expression of an operator of the algebra; None for others, and where one of an operand is not known."""
        known = [a.expr for a in args if a.expr is not None]
        if len(known) < len(args) or n.op not in OPENED:
            return None
        e, (x, y) = self.expressions, known
        if n.op == "mul":
            return e.mul(x, y)
        return e.add(x, y) if n.op == "add" else e.div(x, y, tag(n.op))
