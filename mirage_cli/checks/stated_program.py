"""The proof begins at the file: that a fragment's program computes what its nodes state, as the front end reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from mirage_cli.checks import derivation
from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.frontends import sizes
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax import extents as ex
from mirage_cli.lax.fragments.instantiate import untidied
from mirage_cli.lax.ir import graph as g
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.proof.statement import CONFIDENCE, Statement, prove_statement

SMALL, STEP = 3, 2  #: what symbols are where they differ: 3, 5, 7, ...


def statement(imported: Imported, program: Program, key: str, confidence: int = CONFIDENCE) -> Statement:
    """The proof for a program between tensors of a model, which its sources and outputs name; sources in parts are what the
    model makes of these."""
    try:
        stated = stated_program(imported, [s.name for s in program.sources], [o.name for o in program.outputs])
        assert imported.stated is not None
        derivation.check_joints(program, imported.stated, imported.stated_values)
        return prove_statement(
            stated, program, key, confidence, assignments((*stated.symbols, *program.symbols), imported.least)
        )
    except (Refused, InvalidGraph) as reason:
        return Statement(False, 0.0, str(reason))


def stated_program(imported: Imported, inputs: Sequence[str], outputs: Sequence[str]) -> Program:
    """The program that the nodes between tensors state, step by step, but for transpositions that undo each other where a
    grown cache is only so seen to be one of the tensors. Raises Refused or InvalidGraph."""
    graph, values = imported.stated, imported.stated_values
    assert graph is not None
    for name in (*inputs, *outputs):
        if name not in values:
            raise InvalidGraph(f"tensor {name!r} is not read from the model")
    try:
        return _between(graph, values, inputs, outputs)
    except (Refused, InvalidGraph):
        turned, new = derivation.turned_back(graph, [values[n] for n in inputs])
        if turned.steps == graph.steps:
            raise
        return _between(turned, {name: new[v] for name, v in values.items()}, inputs, outputs)


def _between(graph: g.Graph, values: Mapping[str, int], inputs: Sequence[str], outputs: Sequence[str]) -> Program:
    """The program between tensors that are `values` of a graph. Raises InvalidGraph where it reads others in their place."""
    names = {v: s.name for v, s in enumerate(graph.steps) if isinstance(s, g.Input)}
    names |= {values[n]: n for n in outputs} | {values[n]: n for n in inputs}
    boundary = [values[n] for n in inputs]
    others = [v for v, s in enumerate(graph.steps) if isinstance(s, g.Input) and v not in boundary]
    program = untidied(graph, [values[n] for n in outputs], [*boundary, *others], names)
    missing = {*inputs} - {s.name for s in program.sources}
    if missing:
        raise InvalidGraph(f"its nodes do not read {', '.join(sorted(missing))}")
    return program


def assignments(symbols: Iterable[str], least: Mapping[str, int] = MappingProxyType({})) -> list[Mapping[str, int]]:
    """Numbers for symbols that fit each other (`past` and `(past+1)`): all 1 or the `least` that they may be, then small ones
    that differ."""
    known = {s: sizes.from_extent(ex.symbol(s)) for s in symbols}
    roots = sorted({n for size in known.values() for n in sizes.names(size)})
    chosen: list[Mapping[str, int]] = []
    low = {s: max(1, least.get(s, 1)) for s in roots}
    for values in (low, {s: low[s] + SMALL - 1 + STEP * k for k, s in enumerate(roots)}):
        solved = {s: sizes.substitute(size, values) for s, size in known.items()}
        numbers = values | {s: n for s, n in solved.items() if isinstance(n, int)}
        if numbers.keys() >= known.keys() and min(numbers.values(), default=1) > 0 and numbers not in chosen:
            chosen.append(numbers)
    if not chosen and known:
        raise Refused(f"no small numbers fit the sizes {', '.join(sorted(known))}")
    return chosen or [{}]
