"""Which iterations of a loop add nothing: what a mask hides, as linear limits of the positions that it may show.

Where a mask hides, scores are minus infinity, exponentials 0, and so is every product with them. An iteration all of whose
elements fail one comparison leaves sums and maxima as they are, so blocks may leave it out. What is known of each value is
in `lax/domains/limits.py`.

What a mask hides is taken to be a number: 0 times infinity or NaN would not be 0. Scores that are hidden by a finite number
are left out where `lax/normal/hiding.py` takes it for minus infinity: in a row without any other they count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from mirage_cli.lax.domains.limits import (
    EVERYWHERE,
    NOWHERE,
    UNKNOWN,
    Form,
    Forms,
    Known,
    applied,
    at_position,
    constant,
    given,
    join,
    meet,
)
from mirage_cli.lax.ir.program import Node, Program
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, EXTREMES, BlockGraph, BlockOp, ThreadNode


def _of_thread(nodes: Sequence[ThreadNode], operands: Sequence[Known]) -> list[Known]:
    """What is known of the operands and then of each node."""
    values = list(operands)
    for n in nodes:
        given = [values[i] for i in n.inputs]
        values.append(constant(n.value) if n.op == "const" else applied(n.op, given))
    return values


@dataclass(slots=True)
class _Walk:
    """The values of a block graph, in order."""

    program: Program
    values: dict[str, Known] = field(default_factory=dict)

    def take(self, o: BlockOp) -> None:
        """The value of an operator."""
        operands = [self.values[i] for i in o.inputs]
        match o.op:
            case "load":
                value = _read(self.program, o.source_value or "")
            case "thread" if o.thread is not None:
                value = _of_thread(o.thread.nodes, operands)[-1]
            case "top":
                value = Known(lowest=operands[0].lowest)
            case _:
                value = _structural(self.program, o, operands)
        self.values[o.name] = value


def _read(program: Program, name: str) -> Known:
    """What is known of an input: of whole numbers and truth values that they are inputs."""
    kind = program.sources[program.input(name).source].dtype.kind
    return UNKNOWN if kind == "float" else given(name, kind == "bool")


def _structural(program: Program, o: BlockOp | Node, operands: Sequence[Known]) -> Known:
    """What is known of a value that is not elementwise."""
    match o.op:
        case "iota":
            return at_position(o.axis or "")
        case "extent":
            extent = program.extent(o.axis or "")
            return constant(Fraction(extent)) if isinstance(extent, int) else UNKNOWN
        case "contract":
            return Known(zero=join(operands[0].zero, operands[1].zero))
        case "sum":
            return Known(zero=operands[0].zero)
    return UNKNOWN


def masked_sums(program: Program) -> Mapping[str, Forms]:
    """For axes that products of a program sum over the forms of positions, each once along that axis, that make terms 0."""
    values, found = {i.name: _read(program, i.name) for i in program.inputs}, dict[str, Forms]()
    for n in program.nodes:
        operands = [values[i] for i in n.inputs]
        if n.op == "const":
            values[n.name] = constant(n.value)
        elif n.op in ("iota", "extent", "contract", "sum"):
            values[n.name] = _structural(program, n, operands)
        else:
            values[n.name] = applied("exp", operands[:1]) if n.op == "stable_exp" else applied(n.op, operands)
        for axis in n.over if n.op == "contract" else ():
            forms = frozenset(f for f in values[n.name].zero if abs(f.of(axis)) == 1)
            found |= {axis: found.get(axis, NOWHERE) | forms} if forms else {}
    return found


def known_values(program: Program, graph: BlockGraph) -> Mapping[str, Known]:
    """What is known of a block graph's values."""
    walk = _Walk(program)
    for o in graph.ops:
        walk.take(o)
    return walk.values


def limits(program: Program, graph: BlockGraph) -> tuple[Form, ...]:
    """Forms of positions that hide iterations, in which those along the loop stand once (times 1 or -1)."""
    return tuple(f for f in _forms(program, graph) if not f.given and abs(f.of(graph.loop or "")) == 1)


def given_limits(program: Program, graph: BlockGraph) -> tuple[Form, ...]:
    """Forms with integers that are inputs that hide iterations."""
    return tuple(f for f in _forms(program, graph) if f.given)


def compared_integers(program: Program, graph: BlockGraph) -> frozenset[str]:
    """The inputs with integers that a mask compares with positions, and those by which iterations are hidden."""
    facts = known_values(program, graph).values()
    compared = {v for x in facts for forms in (x.zero, x.one, x.lowest, x.truth) for f in forms for v, _ in f.given}
    whole = {v for v in compared if program.sources[program.input(v).source].dtype.kind == "int"}
    return frozenset(whole.union(v for f in given_limits(program, graph) for v, _ in f.given))


def held_limits(program: Program, graph: BlockGraph, tiles: Mapping[str, int]) -> tuple[Form, ...]:
    """Those of them in which positions along the loop stand once, and of whose integers a block has one each: along all of
    their axes it holds a single position."""
    single = {a for a in graph.grid if tiles.get(a) == 1}
    known = (f for f in given_limits(program, graph) if abs(f.of(graph.loop or "")) == 1)
    return tuple(f for f in known if all(program.axes_of(v) <= single for v, _ in f.given))


def shown_loads(program: Program, graph: BlockGraph) -> Mapping[str, str]:
    """Values that are the rows of a load which a comparison of positions with integers shows, and zeros, where iterations are
    hidden too, each with that load: copies leave the other rows out, or these are made 0 in the tile."""
    loads = {o.name for o in graph.ops if o.op == "load"}
    chosen = [(o, load) for o in graph.ops if (load := _or_zero(o)) in loads]
    if not chosen or not given_limits(program, graph):
        return {}
    facts, found = known_values(program, graph), dict[str, str]()
    for o, load in chosen:
        assert o.thread is not None
        condition = _of_thread(o.thread.nodes, [facts[i] for i in o.inputs])[o.thread.nodes[-1].inputs[0]]
        found |= {o.name: load} if any(f.given for f in condition.truth) else {}
    return found


def _or_zero(o: BlockOp) -> str:
    """The operand that an elementwise operator chooses, or 0, by a condition; nothing for others."""
    if o.thread is None or not o.thread.nodes or o.thread.nodes[-1].op != "where":
        return ""
    (_, value, otherwise), nodes = o.thread.nodes[-1].inputs, (*[None] * o.thread.arity, *o.thread.nodes)
    zero = nodes[otherwise]
    return o.inputs[value] if value < o.thread.arity and zero is not None and zero.value == 0 else ""


def _forms(program: Program, graph: BlockGraph) -> list[Form]:
    """Forms that hide iterations: one on all of whose positions, and on all of the block's, one of them is below 0 leaves all
    that iterations hand on as it is."""
    if graph.loop is None:
        return []
    values = known_values(program, graph)
    hidden: Forms = EVERYWHERE
    phase = {o.name: o.phase for o in graph.ops}
    for o in graph.ops:
        if o.op in ("accum", "running"):
            given = values[o.inputs[0]]
            hidden = meet(hidden, given.zero if o.op == "accum" else given.lowest)
        elif o.op in EXTREMES and o.phase == EPILOGUE and phase[o.inputs[0]] == BODY:
            hidden = NOWHERE
    return sorted(hidden, key=lambda f: (f.terms, f.constant, f.given)) if hidden != EVERYWHERE else []
