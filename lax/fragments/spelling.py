"""One spelling in graphs: what decides where fragments are cut must not depend on how a model writes it.

Fragments are programs in normal form (lax/normal/canonical.py), but where they begin and end is decided on the graph. Three
things are brought into one form there:

1. exp(x - max(x)) along some dimensions is the stabilised exponential where its factor exp(-max) cancels in everything
   that is computed from it: a softmax, however it is spelled;
2. a constant factor of an operand of a product of two computed values (queries and keys, weights and values; no weights,
   packed ones either) becomes a factor of the product, also through rotary embeddings and other linear steps on the way. So
   a scale of the scores is one thing, whether it stands on the queries, the keys, both by its root, or the scores;
3. in a sum of a product's result with other terms, constants (a bias) are added before the others (a residual).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir import graph as g
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ops import QUOTIENTS

ONE = Fraction(1)


def one_spelling(graph: Graph) -> tuple[Graph, list[int]]:
    """The graph with one spelling of softmaxes, of the scales of products and of sums, and for each value the new one."""
    first, to_first = _softmaxes(graph)
    second, to_second = _scales(first)
    third, to_third = _sums(second)
    return third, [to_third[to_second[v]] for v in to_first]


def _recorded_again(graph: Graph, v: int, inputs: Sequence[int], into: Graph) -> int:
    """Step `v` recorded in another graph."""
    tensor = graph.tensors[v]
    return into.record(graph.steps[v], inputs, tensor.dims, tensor.dtype)


# --- 1. softmaxes -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Power:
    """The power with which exp(-max) is a factor of a value, and the dimensions along which that factor is the same."""

    degree: int
    same: frozenset[int]


def _softmaxes(graph: Graph) -> tuple[Graph, list[int]]:
    """The graph with stabilised exponentials in the place of exponentials of differences to a maximum."""
    chosen = {v: dims for v in range(len(graph.steps)) if (dims := _maximum(graph, v)) is not None}
    if chosen:
        users = graph.consumers()
        live = set(graph.cone(graph.outputs))
        chosen = {v: dims for v, dims in chosen.items() if _cancels(graph, v, dims, users, live)}
    if not chosen:
        return graph, list(range(len(graph.steps)))
    into, new = Graph(), list[int]()
    for v, inputs in enumerate(graph.inputs):
        if v in chosen:
            x = graph.inputs[inputs[0]][0]
            new.append(into.stable_exp(new[x], chosen[v]))
        else:
            new.append(_recorded_again(graph, v, [new[i] for i in inputs], into))
    into.outputs = [new[v] for v in graph.outputs]
    return into, new


def _maximum(graph: Graph, v: int) -> tuple[int, ...] | None:
    """The dimensions of the maximum in `v` = exp(x - max(x)); None for other values."""
    if graph.steps[v] != g.Map("exp"):
        return None
    (d,) = graph.inputs[v]
    if graph.steps[d] != g.Map("sub"):
        return None
    x, m = graph.inputs[d]
    step = graph.steps[m]
    if isinstance(step, g.Reduce) and step.kind == "max" and graph.inputs[m] == (x,) and graph.dims(d) == graph.dims(x):
        return step.dims
    return None


def _cancels(graph: Graph, e: int, dims: tuple[int, ...], users: list[list[int]], live: set[int]) -> bool:
    """True if the factor exp(-max) of `e`, the same along `dims`, cancels in all that the outputs need of it."""
    power = {e: _Power(1, frozenset(dims))}
    pending = {e}
    while pending:
        v = min(pending)
        pending.discard(v)
        if v != e:
            power_here = _power(graph, v, power)
            if power_here is None:
                return False
            if power_here.degree == 0:
                continue
            power[v] = power_here
        if v in graph.outputs:
            return False
        pending.update(u for u in users[v] if u in live)
    return True


def _power(graph: Graph, v: int, power: dict[int, _Power]) -> _Power | None:
    """The power of a value from those of its operands (absent: 0); None where the factor is no factor of it."""
    step, inputs = graph.steps[v], graph.inputs[v]
    known = [power.get(i) for i in inputs]
    rank = len(graph.dims(v))
    match step:
        case g.Cast():
            return known[0]
        case g.Expand() if known[0] is not None:
            return known[0]
        case g.Transpose(perm) if known[0] is not None:
            return _Power(known[0].degree, frozenset(i for i, p in enumerate(perm) if p in known[0].same))
        case g.Reduce("sum", dims) if known[0] is not None:
            return known[0] if set(dims) <= known[0].same else None
        case g.Contract(lhs, rhs, out):
            varies: set[int] = set()
            for labels, p in zip((lhs, rhs), known, strict=True):
                varies |= {label for i, label in enumerate(labels) if p is not None and i not in p.same}
            if not varies <= set(out):
                return None
            return _Power(sum(p.degree for p in known if p), frozenset(i for i, k in enumerate(out) if k not in varies))
        case g.Map(op):
            degrees = [p.degree if p is not None else 0 for p in known]
            degree = _map_degree(op, degrees)
            if degree is None:
                return None
            same = set(range(rank))
            for p, i in zip(known, inputs, strict=True):
                lead = rank - len(graph.dims(i))
                same &= set(range(lead)) | {d + lead for d in p.same} if p is not None else same
            return _Power(degree, frozenset(same))
    return None


def _map_degree(op: str, degrees: list[int]) -> int | None:
    """The power of an elementwise operator's result; None where it is not a product of powers."""
    if op == "mul":
        return sum(degrees)
    if op in QUOTIENTS:
        return degrees[0] - degrees[1]
    if op == "neg" or (op in ("add", "sub") and degrees[0] == degrees[1]):
        return degrees[0]
    return None


# --- 2. scales --------------------------------------------------------------------------------------------------------
def _scales(graph: Graph) -> tuple[Graph, list[int]]:
    """The graph with constant factors of operands of products as factors of the products."""
    factor, stored = _factors(graph), _stored(graph)
    scaled = {v for v, inputs in enumerate(graph.inputs) if any(factor[i] != 1 for i in inputs)}
    products = {v for v in scaled if isinstance(graph.steps[v], g.Contract)}
    moved = {v for v in products if not any(stored[i] for i in graph.inputs[v])}
    if not moved:
        return graph, list(range(len(graph.steps)))
    bare = _needed_without_factor(graph, factor, [i for v in moved for i in graph.inputs[v]])
    into, new, base = Graph(), list[int](), dict[int, int]()
    for v, inputs in enumerate(graph.inputs):
        if v in moved:
            product = _recorded_again(graph, v, [base.get(i, new[i]) for i in inputs], into)
            new.append(compose.scale(into, product, _moved(graph, v, factor)))
        else:
            new.append(_recorded_again(graph, v, [new[i] for i in inputs], into))
        if v in bare:
            base[v] = _base(graph, v, factor, new, base, into)
    into.outputs = [new[v] for v in graph.outputs]
    return into, new


def _stored(graph: Graph) -> list[bool]:
    """For each value whether it is a constant, or elementwise operators and views of such make it, as they unpack weights."""
    stored: list[bool] = []
    for step, inputs in zip(graph.steps, graph.inputs, strict=True):
        made = isinstance(step, (*g.VIEWS, g.Cast, g.Map)) and all(stored[i] for i in inputs)
        stored.append(made or isinstance(step, g.Fill) or (isinstance(step, g.Input) and step.constant))
    return stored


def _base_of(graph: Graph, v: int) -> int:
    """The value behind views and casts."""
    while isinstance(graph.steps[v], (*g.VIEWS, g.Cast)):
        (v,) = graph.inputs[v]
    return v


def _is_constant(graph: Graph, v: int) -> bool:
    step = graph.steps[_base_of(graph, v)]
    return isinstance(step, g.Fill) or (isinstance(step, g.Input) and step.constant)


def _moved(graph: Graph, v: int, factor: list[Fraction]) -> Fraction:
    x, y = graph.inputs[v]
    return factor[x] * factor[y]


def _factors(graph: Graph) -> list[Fraction]:
    """For each value a constant that all its elements have as a factor, by linear steps from where it is multiplied in."""
    factor: list[Fraction] = []
    for v, (step, inputs) in enumerate(zip(graph.steps, graph.inputs, strict=True)):
        known = [factor[i] for i in inputs]
        scale = _scale(graph, v)
        match step:
            case g.Map("mul" | "div") if scale is not None:
                factor.append(factor[scale[0]] * scale[1])
            case g.Map("mul"):
                factor.append(known[0] * known[1])
            case g.Map("div"):
                factor.append(known[0] / known[1])
            case g.Reshape() | g.Transpose() | g.Expand() | g.Slice() | g.Map("neg"):
                factor.append(known[0])
            case g.Cast() if graph.dtype(v).is_float and graph.dtype(inputs[0]).is_float:
                factor.append(known[0])
            case g.Concat() | g.Map("add" | "sub") if len(set(known)) == 1:
                factor.append(known[0])
            case _:
                factor.append(ONE)
    return factor


def _scale(graph: Graph, v: int) -> tuple[int, Fraction] | None:
    """(x, c) when `v` is x times the constant c, of x's dimensions; else None."""
    inputs = graph.inputs[v]
    if graph.steps[v] not in (g.Map("mul"), g.Map("div")):
        return None
    for x, c in (inputs, inputs[::-1]):
        value = graph.fill_value(c)
        if not isinstance(value, Fraction) or value == 0 or graph.dims(x) != graph.dims(v):
            continue
        if graph.steps[v] == g.Map("mul"):
            return x, value
        if c == inputs[1]:
            return x, 1 / value
    return None


def _needed_without_factor(graph: Graph, factor: list[Fraction], wanted: Iterable[int]) -> set[int]:
    """The values that are needed without their factors, from those that are `wanted` without."""
    needed: set[int] = set()
    todo = list(wanted)
    while todo:
        v = todo.pop()
        if v in needed or (factor[v] == 1 and not _mixed(graph, v, factor)):
            continue
        needed.add(v)
        scale = _scale(graph, v)
        todo.extend([scale[0]] if scale is not None else graph.inputs[v])
    return needed


def _mixed(graph: Graph, v: int, factor: list[Fraction]) -> bool:
    """True if factors that cancel stand before a value that has none."""
    linear = isinstance(graph.steps[v], g.Map) and graph.steps[v] in (g.Map("mul"), g.Map("div"))
    return linear and any(factor[i] != 1 for i in graph.inputs[v])


def _base(graph: Graph, v: int, factor: list[Fraction], new: list[int], base: dict[int, int], into: Graph) -> int:
    """The value without its factor."""
    scale = _scale(graph, v)
    if scale is not None:
        return base.get(scale[0], new[scale[0]])
    if isinstance(graph.steps[v], g.Input | g.Fill | g.Opaque):
        return new[v]
    return _recorded_again(graph, v, [base.get(i, new[i]) for i in graph.inputs[v]], into)


# --- 3. sums ----------------------------------------------------------------------------------------------------------
def _sums(graph: Graph) -> tuple[Graph, list[int]]:
    """The graph with sums of one product's result and other terms added up in one order."""
    readers = graph.consumers()
    inner = {
        v
        for v, users in enumerate(readers)
        if _is_sum(graph, v) and len(users) == 1 and v not in graph.outputs and _is_sum(graph, users[0])
        if graph.dims(users[0]) == graph.dims(v)
        and graph.inputs[users[0]].count(v) == 1  # x + x doubles with each step
    }
    into, new = Graph(), list[int]()
    for v, inputs in enumerate(graph.inputs):
        terms = _terms(graph, v, inner) if _is_sum(graph, v) and v not in inner else []
        first = [t for t in terms if isinstance(graph.steps[_base_of(graph, t)], g.Contract)]
        if len(terms) < 3 or len(first) != 1 or graph.dims(first[0]) != graph.dims(v):
            new.append(_recorded_again(graph, v, [new[i] for i in inputs], into))
            continue
        rest = sorted((t for t in terms if t != first[0]), key=lambda t: (not _is_constant(graph, t), t))
        total = new[first[0]]
        for t in rest:
            total = into.map("add", total, new[t])
        new.append(total)
    into.outputs = [new[v] for v in graph.outputs]
    return into, new


def _is_sum(graph: Graph, v: int) -> bool:
    return graph.steps[v] == g.Map("add") and graph.dtype(v).is_float


def _terms(graph: Graph, v: int, inner: set[int]) -> list[int]:
    """The terms of a sum, over sums that only it reads."""
    terms, todo = list[int](), list(reversed(graph.inputs[v]))
    while todo:
        i = todo.pop()
        if i in inner:
            todo += reversed(graph.inputs[i])
        else:
            terms.append(i)
    return terms
