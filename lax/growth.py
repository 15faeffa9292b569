"""How fast the values of a program grow with its inputs: the highest power of a huge number among them.

A quotient grows with the difference of two powers, so that what a norm gives does not grow at all. Weights of a model are
numbers of size one.
"""

from __future__ import annotations

from fractions import Fraction

from mirage_cli.lax.program import Node, Program

BOUNDED = (
    "exp",
    "stable_exp",
    "sigmoid",
    "tanh",
    "erf",
    "log",
    "sin",
    "cos",
    "eq",
    "lt",
    "le",
    "and",
    "or",
    "not",
    "iota",
)


def growth(p: Program) -> float:
    """The highest power of the inputs that are no weights among the values of a program."""
    found: dict[str, float] = {i.name: float(i.source not in p.constants) for i in p.inputs}
    constants = {n.name: n.value for n in p.nodes if n.op == "const"}
    for n in p.nodes:
        found[n.name] = _power(n, [found[i] for i in n.inputs], [constants.get(i) for i in n.inputs])
    return max(found.values(), default=0.0)


def _power(n: Node, args: list[float], numbers: list[Fraction | float | None]) -> float:
    """The power with which the value of an operator grows, of those of its operands, some of which are `numbers`."""
    if n.op in BOUNDED:
        return 0.0
    if n.op in ("mul", "contract"):
        return args[0] + args[1]
    if n.op in ("div", "div0"):
        return max(0.0, args[0] - args[1])
    if n.op in ("sqrt", "rsqrt", "recip"):
        return args[0] / 2 if n.op == "sqrt" else 0.0
    if n.op == "pow":
        return args[0] * max(0.0, float(numbers[1])) if numbers[1] is not None else args[0]
    return max(args, default=0.0)
