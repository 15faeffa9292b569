"""Extents: how many coordinates an axis or a dimension has, as a number or a product of symbols.

A symbol is a name that the model gives to a dimension ("batch", "past_len + 1"); sums are opaque symbols of their own.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, order=True)
class Symbolic:
    """`factor` times the product of `names` (sorted, not empty): a monomial of symbols."""

    factor: int
    names: tuple[str, ...]

    def __str__(self) -> str:
        head = [] if self.factor == 1 else [str(self.factor)]
        return "*".join(head + list(self.names))


Extent: TypeAlias = int | Symbolic

ONE: Extent = 1
_SUM = re.compile(r"\(([\w.]+)([+-]\d+)\)")


def symbol(name: str) -> Extent:
    """The extent that is called `name`."""
    return Symbolic(1, (name,))


def product(extents: Iterable[Extent]) -> Extent:
    """The product of extents; 1 for none."""
    factor, names = 1, list[str]()
    for e in extents:
        if isinstance(e, Symbolic):
            factor *= e.factor
            names.extend(e.names)
        else:
            factor *= e
    return Symbolic(factor, tuple(sorted(names))) if names and factor else factor


def quotient(a: Extent, b: Extent) -> Extent | None:
    """`a / b` when `b` divides `a` as a monomial, else None."""
    fa, na = (a.factor, Counter(a.names)) if isinstance(a, Symbolic) else (a, Counter[str]())
    fb, nb = (b.factor, Counter(b.names)) if isinstance(b, Symbolic) else (b, Counter[str]())
    if fb == 0 or fa % fb or any(na[n] < c for n, c in nb.items()):
        return None
    rest = tuple(sorted((na - nb).elements()))
    return Symbolic(fa // fb, rest) if rest else fa // fb


def difference(total: Extent, part: Extent) -> int | None:
    """k when `total` is the symbol that front ends give to the sum of `part` and the number k, such as `(past+1)`."""
    if not isinstance(total, Symbolic) or total.factor != 1 or len(total.names) != 1:
        return None
    match = _SUM.fullmatch(total.names[0])
    return int(match[2]) if match is not None and symbol(match[1]) == part else None


def less(total: Extent, number: int) -> Extent | None:
    """The extent that has `number` fewer coordinates, of a number or of a symbol that is a sum; None where it has no name."""
    if isinstance(total, int):
        return total - number if total >= number else None
    match = _SUM.fullmatch(total.names[0]) if total.factor == len(total.names) == 1 else None
    if match is None:
        return None
    rest = int(match[2]) - number
    return symbol(f"({match[1]}{rest:+d})" if rest else match[1])


def value(e: Extent, symbols: Mapping[str, int]) -> int:
    """The number that `e` is under an assignment of its symbols.

    Raises KeyError when a symbol has no value.
    """
    return e if isinstance(e, int) else e.factor * math.prod(symbols[n] for n in e.names)


def names(e: Extent) -> tuple[str, ...]:
    """The symbols of an extent."""
    return e.names if isinstance(e, Symbolic) else ()


def to_json(e: Extent) -> int | str:
    """A number, or the text of a monomial such as `2*batch`."""
    return e if isinstance(e, int) else str(e)


def from_json(data: int | str) -> Extent:
    """The inverse of `to_json`. Raises ValueError for a number of more digits than Python reads."""
    if isinstance(data, int):
        return data
    factor, symbols = 1, []
    for part in data.split("*"):
        if part.isascii() and part.isdigit():
            factor *= int(part)
        else:
            symbols.append(part)
    return product([factor, *map(symbol, symbols)])
