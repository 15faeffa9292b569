"""Functions of one value that are spelled out in smaller operators, recognised by what they compute.

`x (1 + erf(x / sqrt(2))) / 2` is gelu(x), however its factors stand and however an exporter rounded its constants. A
value that depends on one other value r only, by elementwise operators and constants, is a function of r: it is tried at
points on both sides of 0, and where a function of the registry gives the same numbers there, up to a simple constant
factor and what a float32 rounds, it is that function. (That the programs then agree is checked like everything else:
by the float check against the original operators.)
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mirage_cli.lax.domain import Float64
from mirage_cli.lax.ops import OPS
from mirage_cli.lax.program import Node, Program

Points: TypeAlias = NDArray[np.float64]

FUNCTIONS = ("gelu", "gelu_tanh", "silu", "sigmoid")
STARTS = frozenset({"erf", "tanh", "exp", "sigmoid"})  #: what such a function is made of
TOLERANCE = 1e-6  #: relative: constants are rounded to float32
LARGEST_DENOMINATOR = 16  #: of the constant factor
POINTS: Points = np.array(
    [-30.0, -9.3, -5.1, -3.3, -2.2, -1.4, -0.9, -0.45, -0.11, 0.07, 0.3, 0.8, 1.3, 2.1, 3.7, 6.2, 11.0, 40.0]
)


def recognised(p: Program) -> Program:
    """The program with such values as operators of the registry."""
    if not any(n.op in STARTS for n in p.nodes):
        return p
    domain = Float64(())
    known = {name: OPS[name].apply(domain, POINTS) for name in FUNCTIONS}
    constant: dict[str, float] = {}
    of: dict[str, dict[str, Points]] = {
        i.name: {i.name: POINTS} for i in p.inputs
    }  #: value -> what it is of r -> points
    changed = False
    began: set[str] = set()  #: values with an operator of STARTS behind them
    nodes: list[Node] = []
    for n in p.nodes:
        if n.op == "const" and n.value is not None:
            constant[n.name] = float(n.value)
            nodes.append(n)
            continue
        of[n.name] = _of(n, of, constant, domain)
        if n.op in STARTS or began.intersection(n.inputs):
            began.add(n.name)
        found = _match(of[n.name], known) if n.name in began and n.op in ("mul", "div") else None
        of[n.name][n.name] = POINTS
        changed |= found is not None
        nodes += [n] if found is None else _written(n, *found)
    return replace(p, nodes=tuple(nodes), _axes_of={}) if changed else p


def _of(n: Node, of: dict[str, dict[str, Points]], constant: dict[str, float], domain: Float64) -> dict[str, Points]:
    """For each value that decides `n` alone, `n` at the points."""
    computed = [i for i in n.inputs if i not in constant]
    if n.op not in OPS or n.over or n.op == "iota" or not computed:
        return {}
    decisive = set.intersection(*(set(of[i]) for i in computed))
    with np.errstate(all="ignore"):
        return {
            r: np.asarray(
                OPS[n.op].apply(domain, *(of[i][r] if i in of else np.float64(constant[i]) for i in n.inputs))
            )
            for r in sorted(decisive)
        }


def _match(candidates: dict[str, Points], known: dict[str, Points]) -> tuple[str, str, Fraction] | None:
    """(function, what it is a function of, factor), or None."""
    for r, points in candidates.items():
        if points.shape != POINTS.shape or not np.isfinite(points).all():
            continue
        for name, wanted in known.items():
            at = int(np.argmax(np.abs(wanted)))
            factor = Fraction(float(points[at] / wanted[at])).limit_denominator(LARGEST_DENOMINATOR)
            if factor and np.allclose(points, float(factor) * wanted, rtol=TOLERANCE, atol=TOLERANCE):
                return name, r, factor
    return None


def _written(n: Node, function: str, r: str, factor: Fraction) -> list[Node]:
    """The nodes of a recognised value."""
    if factor == 1:
        return [Node(n.name, function, (r,))]
    names = (f"{n.name}.{function}", f"{n.name}.factor")
    return [
        Node(names[0], function, (r,)),
        Node(names[1], "const", value=factor),
        Node(n.name, "mul", names),
    ]
