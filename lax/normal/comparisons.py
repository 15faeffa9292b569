"""Comparisons of positions in programs: the linear forms that decide them, and which answer alike everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from mirage_cli.lax.domains.limits import STEP, UNKNOWN, Form, Known, applied, at_position, constant
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.program import Node, Program


def known_values(p: Program) -> Mapping[str, Known]:
    """What is known of the values of a program that positions and numbers decide."""
    known = {i.name: UNKNOWN for i in p.inputs}
    for n in p.nodes:
        if n.op == "iota":
            known[n.name] = at_position(n.axis or "")
        elif n.op == "extent":
            extent = p.extent(n.axis or "")
            known[n.name] = constant(Fraction(extent)) if isinstance(extent, int) else UNKNOWN
        else:
            known[n.name] = constant(n.value) if n.op == "const" else applied(n.op, [known[i] for i in n.inputs])
    return known


def never_negative(p: Program, form: Form, more: Extent = 0) -> bool:
    """True if a form and an extent are 0 or more together, wherever that is."""
    least, extents = form.constant, Counter[Extent]({more: 1})
    for axis, factor in form.terms:
        if factor < 0:
            least -= factor
            extents[p.extent(axis)] += factor
    symbols = [n for e, n in extents.items() if not isinstance(e, int)]
    least += sum(n * e for e, n in extents.items() if isinstance(e, int)) + sum(symbols)
    return not form.given and min(symbols, default=0) >= 0 and least >= 0


def decided(p: Program) -> Program:
    """The program with numbers for comparisons that answer alike at all positions."""
    known = known_values(p)
    nodes = []
    for n in p.nodes:
        forms = [f for i in n.inputs if (f := known[i].form) is not None] if n.op in ("lt", "le", "eq") else []
        answer = _answer(p, n.op, forms[1].plus(forms[0], -1)) if len(forms) == 2 else None
        nodes.append(n if answer is None else Node(n.name, "const", value=Fraction(answer)))
    return replace(p, nodes=tuple(nodes), _axes_of={})


def _answer(p: Program, op: str, space: Form) -> bool | None:
    """Whether `space` between two positions is what a comparison of them wants: everywhere, nowhere, or somewhere (None)."""
    above, below = (never_negative(p, f.plus(STEP, -1)) for f in (space, space.times(-1)))
    least, most = (never_negative(p, f) for f in (space, space.times(-1)))
    always, never = {"lt": (above, most), "le": (least, below), "eq": (least and most, above or below)}[op]
    return always if always or never else None
