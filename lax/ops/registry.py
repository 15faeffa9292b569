"""The registry: one declaration says everything about an operator.

`meaning` is written once over an abstract `Domain` and is interpreted by every domain (float64, residues, abstract
terms, degrees, cost). Consumers look facts up here and never compare names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mirage_cli.errors import InvalidGraph

if TYPE_CHECKING:
    from mirage_cli.lax.domains.domain import Domain

RealFunction = Callable[..., "np.typing.NDArray[np.float64]"]


@dataclass(frozen=True, slots=True)
class Op:
    """An elementwise operator.

    `meaning(d, *args)` gives the value in domain `d`. `c` is the C expression with `{0}`, `{1}` for the operands, over
    floats. `real` is the float64 function of an operator that the algebra does not look into (its `meaning` is then
    `d.call(name, ...)`). `commutative` and `linear` (indices of operands in which it is linear) are algebraic facts,
    `predicate` says that the result is a truth value (0 or 1), `whole` that results are whole numbers within so many of one
    another and of 0 where operands behind the first are equal, `slow` that it grows less than any power of its operands,
    `product` that its last step is a product, which compilers may fuse with a difference that reads it, `flops` is its
    price in multiply-adds.
    """

    name: str
    arity: int
    meaning: Callable[..., Any]
    c: str
    real: RealFunction | None = None
    commutative: bool = False
    linear: tuple[int, ...] = ()
    predicate: bool = False
    slow: bool = False
    product: bool = False
    whole: int = 0
    flops: int = 1
    onnx: str = ""  #: ONNX operator of the same meaning and operand order, if any
    doc: str = ""

    def apply(self, d: Domain[Any], *args: Any) -> Any:
        """The operator's value in a domain."""
        if len(args) != self.arity:
            raise InvalidGraph(f"operator {self.name} takes {self.arity} operands, got {len(args)}")
        return self.meaning(d, *args)


OPS: dict[str, Op] = {}


def define(op: Op) -> Op:
    """Add an operator to the registry. Raises InvalidGraph when the name is taken."""
    if op.name in OPS:
        raise InvalidGraph(f"operator {op.name} is defined twice")
    OPS[op.name] = op
    return op


def lookup(name: str) -> Op:
    """The operator called `name`. Raises InvalidGraph when there is none."""
    try:
        return OPS[name]
    except KeyError:
        raise InvalidGraph(f"unknown operator {name!r}; known: {', '.join(sorted(OPS))}") from None


def opaque(name: str, arity: int, real: RealFunction, c: str, **facts: Any) -> Op:
    """Define an operator that the algebra treats as an unknown function of its operands."""
    return define(Op(name, arity, lambda d, *args: d.call(name, *args), c, real, **facts))
