"""Sums that something is subtracted from or that are subtracted, as a mean is from its numbers.

What is left of such a difference may be as small as the sum's own rounding: a layer norm of equal numbers is 0, and the
rounding of their mean divided by the root of epsilon otherwise. These sums are kept in float64 and rounded once, scaled:
the mean of equal float32 numbers is then that number. Numbers of 16 bits need none of this, as float32 holds the sum of
thousands that are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.mugraph.row_values import Rows

Step = tuple[str, str, tuple[str, ...]]  #: a value, the operator that makes it, its operands
EXACT_BYTES = 2  #: of types whose numbers float32 sums without rounding where they are equal
FIXED = ("const", "extent")


class Difference(NamedTuple):
    """A sum that is an operand of a difference, and the `other` operand."""

    sum: str
    other: str


def subtracted(steps: Iterable[Step]) -> frozenset[str]:
    """The sums that are an operand of a difference."""
    return frozenset(d.sum for d in sum_differences(steps))


def sum_differences(steps: Iterable[Step]) -> list[Difference]:
    """The differences with an operand that is a sum, as it is or multiplied and divided by constants."""
    fixed, scaled, differences_of_sums = set[str](), dict[str, str](), list[Difference]()
    for name, op, args in steps:
        if op in FIXED:
            fixed.add(name)
        elif op == "sum":
            scaled[name] = name
        elif op == "accum" and args[0] in scaled:
            scaled[name] = scaled[args[0]]
        elif op == "mul" or (op == "div" and args[1] in fixed):
            of = [a for a in args if a not in fixed]
            if len(of) == 1 and of[0] in scaled:
                scaled[name] = scaled[of[0]]
        elif op == "sub" and not fixed.intersection(args):
            differences_of_sums += [Difference(scaled[a], b) for a, b in (args, args[::-1]) if a in scaled]
    return differences_of_sums


def steps_of(graph: BlockGraph) -> Iterator[Step]:
    """The operators of a block graph, those of its thread graphs one by one."""
    for o in graph.ops:
        if o.thread is None or not o.thread.nodes:
            yield o.name, o.op, o.inputs
            continue
        names = [*o.inputs, *(f"{o.name}.{k}" for k in range(len(o.thread.nodes) - 1)), o.name]
        for n, name in zip(o.thread.nodes, names[len(o.inputs) :], strict=True):
            yield name, n.op, tuple(names[i] for i in n.inputs)


def wide_sums(program: Program, graph: BlockGraph) -> frozenset[str]:
    """The operators of a block graph whose sums are kept in float64: of numbers that are not loaded in 16 bits."""
    ops = {o.name: o for o in graph.ops}
    types = {i.name: program.sources[i.source].dtype for i in program.inputs}
    wide = set[str]()
    for name in subtracted(steps_of(graph)):
        of = ops[ops[name].inputs[0]]
        if of.op != "load" or types[of.source_value or ""].bytes > EXACT_BYTES:
            wide.add(name)
    return frozenset(wide)


def wide_row_sums(rows: Rows) -> frozenset[str]:
    """The same of the values of a row."""
    types = {i.name: rows.program.sources[i.source].dtype for i in rows.program.inputs}
    wide = set[str]()
    for name in subtracted((v.name, v.op, v.args) for v in rows.values.values()):
        of = rows.values[rows.values[name].args[0]]
        if of.op != "load" or types[of.read].bytes > EXACT_BYTES:
            wide.add(name)
    return frozenset(wide)
