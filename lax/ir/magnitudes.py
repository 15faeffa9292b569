"""Properties of the numbers of a graph's value that follow from its computation: their sign, their range, what was
rounded off.

Only a few steps are looked behind: exporters compute masks, positions and variances in short chains. What is said holds of
numbers; NaN may come out of anything that is no comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from mirage_cli.lax.dtypes import BOOL, DType
from mirage_cli.lax.ir.graph import VIEWS, Cast, Concat, Contract, Fill, Graph, Iota, Map, Reduce, StableExp

DEEPEST = 12  #: steps behind a value that are looked at
MOST = 256  #: values that are looked at
LARGEST = 1 << 63  #: of a range
Range = tuple[int, int]
_POSITIVE = ("exp", "sigmoid", "abs")
_KEEP_SIGN = ("add", "mul", "div", "sqrt", "rsqrt", "recip", "where", "round_f16", "round_bf16")


def never_negative(graph: Graph, v: int) -> bool:
    """True if no number of a value has a sign, that of -0 among them."""
    return _never_negative(graph, v, DEEPEST, {})


def _never_negative(graph: Graph, v: int, depth: int, seen: dict[int, bool]) -> bool:
    if v not in seen:
        seen[v] = depth > 0 and len(seen) < MOST and _has_no_sign(graph, v, depth, seen)
    return seen[v]


def _has_no_sign(graph: Graph, v: int, depth: int, seen: dict[int, bool]) -> bool:
    step, inputs = graph.steps[v], graph.inputs[v]
    if graph.dtype(v) == BOOL:
        return True
    match step:
        case Fill(value):
            return value >= 0
        case Iota() | StableExp():
            return True
        case Map("mul") if inputs[0] == inputs[1]:
            return True
        case Map(op) if op in _POSITIVE:
            return True
        case Map(op) if op not in _KEEP_SIGN:
            return False
        case Map("where"):
            inputs = inputs[1:]
        case Map() | Reduce() | Contract() | Cast() | Concat():
            pass
        case _ if not isinstance(step, VIEWS):
            return False
    return all(_never_negative(graph, i, depth - 1, seen) for i in inputs)


def whole_range(graph: Graph, v: int) -> Range | None:
    """(least, largest) of a value that holds whole numbers only; None where that is not known."""
    return _whole_range(graph, v, DEEPEST, {})


def _whole_range(graph: Graph, v: int, depth: int, seen: dict[int, Range | None]) -> Range | None:
    if v not in seen:
        computed = _computed_range(graph, v, depth, seen) if depth and len(seen) < MOST else None
        known = computed is not None and -LARGEST <= computed[0] <= computed[1] <= LARGEST
        seen[v] = computed if known else integer_range(graph.dtype(v))
    return seen[v]


def integer_range(dtype: DType) -> Range | None:
    """The numbers of an integer type, truth values among them; None for floats."""
    if dtype == BOOL:
        return 0, 1
    if dtype.kind != "int":
        return None
    bits = dtype.bits
    return (0, (1 << bits) - 1) if dtype.name.startswith("u") else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _computed_range(graph: Graph, v: int, depth: int, seen: dict[int, Range | None]) -> Range | None:
    step, inputs = graph.steps[v], graph.inputs[v]
    match step:
        case Fill(Fraction() as value):
            return (int(value), int(value)) if value.denominator == 1 else None
        case Iota(dim):
            extent = graph.dims(v)[dim]
            return (0, max(extent - 1, 0)) if isinstance(extent, int) else None
        case Map("where"):
            inputs = inputs[1:]
        case Map() | Cast() | Concat():
            pass
        case Reduce("max" | "min") if math.prod(e if isinstance(e, int) else 0 for e in graph.dims(inputs[0])):
            pass
        case _ if not isinstance(step, VIEWS):
            return None
    ranges = [r for i in inputs if (r := _whole_range(graph, i, depth - 1, seen)) is not None]
    if len(ranges) != len(inputs):
        return None
    return _of_map(step.op, ranges) if isinstance(step, Map) else _hull(ranges)


def _hull(ranges: Sequence[Range]) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _of_map(op: str, ranges: Sequence[Range]) -> Range | None:
    """The range of an operator's results."""
    (a, b), (c, d) = ranges[0], ranges[-1]
    match op:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "neg":
            return -b, -a
        case "mul":
            corners = (a * c, a * d, b * c, b * d)
            return min(corners), max(corners)
        case "min":
            return min(a, c), min(b, d)
        case "max":
            return max(a, c), max(b, d)
        case "where":
            return _hull(ranges)
    return None


# --- narrowing --------------------------------------------------------------------------------------------------------
def narrowed(graph: Graph, v: int) -> bool:
    """True if numbers of a wider type were rounded to the type of `v`, a float of 16 bits, and only moved since then."""
    if not graph.dtype(v).is_float or graph.dtype(v).bytes > 2:
        return False
    waiting, seen = [v], {v}
    while waiting:
        w = waiting.pop()
        if isinstance(graph.steps[w], Cast) and not _fits(graph, graph.inputs[w][0], graph.dtype(w)):
            return True
        if isinstance(graph.steps[w], (*VIEWS, Concat)):
            waiting += [i for i in graph.inputs[w] if i not in seen]
            seen.update(graph.inputs[w])
        if len(seen) > MOST:
            return True
    return False


def _fits(graph: Graph, v: int, to: DType) -> bool:
    """True if a narrower type holds all numbers of a value."""
    dtype = graph.dtype(v)
    if not dtype.is_float:
        known = whole_range(graph, v)
        return known is not None and max(-known[0], known[1]) <= 2 ** (to.mantissa + 1)
    if dtype.mantissa <= to.mantissa and dtype.exponent <= to.exponent:
        return True
    while isinstance(graph.steps[v], VIEWS):
        (v,) = graph.inputs[v]
    widened = isinstance(graph.steps[v], Cast) and graph.dtype(graph.inputs[v][0]) == to
    return widened or graph.steps[v] == Map(f"round_{to}")
