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
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, EXTREMES, BlockGraph, BlockOp, ThreadNode


def _of_thread(nodes: Sequence[ThreadNode], operands: Sequence[Known]) -> Known:
    values = list(operands)
    for n in nodes:
        given = [values[i] for i in n.inputs]
        values.append(constant(n.value) if n.op == "const" else applied(n.op, given))
    return values[-1]


@dataclass(slots=True)
class _Walk:
    """The values of a block graph, in order."""

    program: Program
    values: dict[str, Known] = field(default_factory=dict)

    def take(self, o: BlockOp) -> None:
        """The value of an operator."""
        operands = [self.values[i] for i in o.inputs]
        match o.op:
            case "iota":
                value = at_position(o.axis or "")
            case "load" if (kind := self.kind(o.source_value or "")) != "float":
                value = given(o.source_value or "", kind == "bool")
            case "extent":
                extent = self.program.extent(o.axis or "")
                value = constant(Fraction(extent)) if isinstance(extent, int) else UNKNOWN
            case "thread" if o.thread is not None:
                value = _of_thread(o.thread.nodes, operands)
            case "contract":
                value = Known(zero=join(operands[0].zero, operands[1].zero))
            case "sum":
                value = Known(zero=operands[0].zero)
            case "top":
                value = Known(lowest=operands[0].lowest)
            case _:
                value = UNKNOWN
        self.values[o.name] = value

    def kind(self, name: str) -> str:
        """Whether an input holds floats, whole numbers or truth values."""
        source = self.program.input(name).source
        return self.program.sources[source].dtype.kind


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


def shown_loads(program: Program, graph: BlockGraph) -> frozenset[str]:
    """Values that are the rows of a load which a comparison of positions with integers shows, and zeros: copies leave the
    others out, where iterations are hidden too."""
    facts, ops = known_values(program, graph), {o.name: o for o in graph.ops}
    found = set()
    for o in graph.ops:
        if o.op == "thread" and o.thread is not None and [n.op for n in o.thread.nodes] == ["const", "where"]:
            condition, load = (ops.get(i) for i in (*o.inputs, "", "")[:2])
            given = condition is not None and any(f.given for f in facts[condition.name].truth)
            found |= {o.name} if given and load is not None and load.op == "load" else set()
    return frozenset(found) if given_limits(program, graph) else frozenset()


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
