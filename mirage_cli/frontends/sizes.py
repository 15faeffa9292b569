"""Sizes: integers and polynomials of named dimensions, in which shape arithmetic is exact.

Exporters write dimensions such as `past + 1` and compute with them (`Shape`, `Gather`, `Mul`, `Concat`), so sums must
cancel: `(past + 1) - past` is 1. An extent of the graph is a monomial; a sum becomes one symbol with a canonical name,
`(past+1)`, which `from_extent` reads back. What a window keeps of a dimension, the smaller of a size and a number, is a
symbol too, `min[past,7]`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent

MOST_TERMS, HIGHEST_DEGREE, LARGEST = 256, 64, 1 << 63  #: of a polynomial, and of its coefficients: models have a few
LONGEST = 1000  #: characters of a dimension that is read as a polynomial
_TIMES = "·"  #: inside the name of an extent, whose text joins factors by *
Monomial: TypeAlias = tuple[str, ...]  #: the names that are multiplied, sorted; empty for the constant term


class TooLarge(Refused, ValueError):
    """A polynomial that no model's shapes need; a few multiplications can make it larger than memory."""


@dataclass(frozen=True, slots=True)
class Poly:
    """A polynomial that is not a number: `terms` are (names, coefficient) pairs, sorted, no coefficient 0."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Any) -> Any:
        return _combine(self, other, lambda a, b: _sum([*a.items(), *b.items()]))

    def __mul__(self, other: Any) -> Any:
        return _combine(self, other, _product)

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + -1 * other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__

    def __str__(self) -> str:
        text = ""
        for names, factor in sorted(self.terms, key=lambda t: (not t[0], t[0])):  # the constant comes last
            sign = "-" if factor < 0 else "+" if text else ""
            head = [] if abs(factor) == 1 and names else [str(abs(factor))]
            text += sign + "*".join([*head, *names])
        return text


Size: TypeAlias = int | Poly


def _terms(size: Size) -> dict[Monomial, int]:
    return dict(size.terms) if isinstance(size, Poly) else {(): size}


def _sum(terms: Iterable[tuple[Monomial, int]]) -> Size:
    total: dict[Monomial, int] = {}
    for names, factor in terms:
        total[names] = total.get(names, 0) + factor
    kept = sorted((names, factor) for names, factor in total.items() if factor)
    if len(kept) > MOST_TERMS or any(len(n) > HIGHEST_DEGREE or abs(f) >= LARGEST for n, f in kept):
        raise TooLarge(f"a dimension is a polynomial of more than {MOST_TERMS} terms, or of degree {HIGHEST_DEGREE}")
    return Poly(tuple(kept)) if any(names for names, _ in kept) else sum(factor for _, factor in kept)


def _product(a: Mapping[Monomial, int], b: Mapping[Monomial, int]) -> Size:
    return _sum((tuple(sorted(m + n)), f * g) for m, f in a.items() for n, g in b.items())


def _combine(a: Any, b: Any, join: Callable[[dict[Monomial, int], dict[Monomial, int]], Size]) -> Any:
    return join(_terms(a), _terms(b)) if isinstance(b, (int, Poly)) else NotImplemented


def named(name: str) -> Size:
    """The dimension called `name`."""
    return Poly((((name,), 1),))


def at_most(size: Size, limit: int) -> Size:
    """The smaller of a size and a number; of `min[past,7]+1` and 7 it is `min[past+1,7]`, not one within another.

    Raises ValueError for sizes that hold such symbols in another way.
    """
    if isinstance(size, int):
        return min(size, limit)
    for name in (n for monomial, _ in size.terms for n in monomial):
        smaller = _limited(name)
        if smaller is None:
            continue
        more = size - named(name)
        if not isinstance(more, int):
            raise ValueError(f"the smaller of {size} and {limit}")
        inner, own = smaller
        return at_most(inner + more, limit) if own + more >= limit else size
    return named(f"min[{size},{limit}]".replace("*", _TIMES))


def at_least(size: Size, limit: int) -> Size:
    """The larger of a size and a number: of `7-past` and 0 it is `7-min[past,7]`. Raises ValueError where that is not told."""
    if isinstance(size, int):
        return max(size, limit)
    constant = _terms(size).get((), 0)
    if counts(size - limit):
        return size
    if not counts(constant - size):
        raise ValueError(f"the larger of {size} and {limit}")
    return limit if constant <= limit else constant - at_most(constant - size, constant - limit)


def counts(size: Size) -> bool:
    """True if a size is known not to be below 0: what the model names is not, the whole part of a difference may be."""
    return never_negative(size) and (isinstance(size, int) or "-" not in str(size))


def _limited(name: str) -> tuple[Size, int] | None:
    """The size and the number of which a symbol is the smaller one; None for other symbols."""
    match = _LIMITED.fullmatch(name)
    return (parse(match[1]), int(match[2])) if match is not None else None


def names(size: Size) -> list[str]:
    """The symbols in a size, sorted; `past` for `min[past,7]`."""
    symbols: set[str] = set()
    for name in {n for m in _terms(size) for n in m}:
        limited = _limited(name)
        symbols.update([name] if limited is None else names(limited[0]))
    return sorted(symbols)


def substitute(size: Size, numbers: Mapping[str, Size]) -> Size:
    """The size with numbers, or other sizes, for some of its symbols."""
    total: Size = 0
    for monomial, factor in _terms(size).items():
        term: Size = factor
        for name in monomial:
            term = term * _substituted(name, numbers)
        total = total + term
    return total


def _substituted(name: str, numbers: Mapping[str, Size]) -> Size:
    if name in numbers:
        return numbers[name]
    limited, whole = _limited(name), _WHOLE.fullmatch(name)
    if limited is not None:
        return at_most(substitute(limited[0], numbers), limited[1])
    return named(name) if whole is None else floor_quotient(substitute(parse(whole[1]), numbers), int(whole[2]))


def equal_symbols(a: Size, b: Size) -> tuple[str, str] | None:
    """The two symbols that are equal if and only if `a` and `b` are, as `s+1` and `t+1`; None for sizes of another form."""
    terms = _terms(a - b)
    if len(terms) != 2 or sum(terms.values()) != 0 or any(len(names) != 1 for names in terms):
        return None
    (one,), (other,) = terms
    return one, other


def equality_bound(a: Size, b: Size) -> tuple[str, int] | None:
    """(symbol, number) where `a` and `b` are equal if and only if the symbol is at least the number, as `min[past,7]+1`
    and 8 are from 7 on; None where that is not known."""
    terms = _terms(a - b)
    constant = terms.pop((), 0)
    if len(terms) != 1:
        return None
    ((monomial, factor),) = terms.items()
    limited = _limited(monomial[0]) if len(monomial) == 1 else None
    if limited is None or not isinstance(limited[0], Poly) or factor * limited[1] + constant != 0:
        return None
    inner, limit = limited
    symbol = names(inner)[0]
    more = inner - named(symbol)
    return (symbol, limit - more) if isinstance(more, int) else None


def end_bound(a: Size, b: Size) -> tuple[str, int] | None:
    """(symbol, number) where `a` and `b` are equal if and only if the symbol is at most the number, and elsewhere neither is
    1, as `past+1` and `min[past+1,7]` are up to 6; None where that is not known."""
    for size, other in ((a, b), (b, a)):
        limited = _limited(str(other))
        if limited is not None and limited[0] == size and limited[1] > 1 and isinstance(size, Poly):
            symbol = names(size)[0]
            more = size - named(symbol)
            return (symbol, limited[1] - more) if isinstance(more, int) else None
    return None


def told(size: Size, least: Mapping[str, int], most: Mapping[str, int]) -> Size:
    """What `min[past,7]` is where symbols are not below their `least` nor above their `most`: itself where that does not
    tell, as every other size."""
    limited = _limited(str(size))
    if limited is None:
        return size
    if fits(*limited, most):
        return limited[0]
    bound = equality_bound(size, limited[1])
    return limited[1] if bound is not None and least.get(bound[0], 0) >= bound[1] else size


def repeated_bound(a: Size, b: Size) -> tuple[str, int] | None:
    """(symbol, number) from which on one of two sizes is 1 where it is the smaller of the other and 1, as `min[past+1,1]` is
    beside `past+1` from 0 on; None for other sizes."""
    pairs = ((size, _limited(str(other))) for size, other in ((a, b), (b, a)))
    return next((size_bound(size, 1) for size, limited in pairs if limited == (size, 1)), None)


def fits(size: Size, number: int, most: Mapping[str, int]) -> bool:
    """True if a size is at most a number where symbols are not above their `most`."""
    top = substitute(size, most)
    return isinstance(top, int) and top <= number and all(factor > 0 for factor in _terms(size).values())


def size_bound(size: Size, number: int) -> tuple[str, int] | None:
    """(symbol, number) where a size is `number` or more if and only if the symbol is, as `past+1` and 3 are from 2 on; None
    for sizes of another form."""
    terms = _terms(size)
    constant = terms.pop((), 0)
    if len(terms) != 1:
        return None
    ((monomial, factor),) = terms.items()
    if len(monomial) != 1 or factor < 0 or _limited(monomial[0]) is not None:
        return None
    return monomial[0], -((constant - number) // factor)


def never_negative(size: Size) -> bool:
    """True if a size is known not to be below 0, as no symbol is."""
    return all(factor > 0 for factor in _terms(size).values()) or size == 0


def exact_quotient(a: Size, b: Size) -> Size | None:
    """`a / b` when `b` is a monomial that divides every term of `a`, or equals it; else None."""
    if a in (0, b):
        return None if b == 0 else int(a != 0)
    divisor = _terms(b)
    if len(divisor) != 1 or 0 in divisor.values():
        return None
    ((names_b, factor_b),) = divisor.items()
    quotient: list[tuple[Monomial, int]] = []
    for names_a, factor_a in _terms(a).items():
        rest = Counter(names_a)
        rest.subtract(names_b)
        if factor_a % factor_b or min(rest.values(), default=0) < 0:
            return None
        quotient.append((tuple(sorted(rest.elements())), factor_a // factor_b))
    return _sum(quotient)


def floor_quotient(a: Size, b: Size) -> Size:
    """The whole part of a / b: a symbol of its own where it is no polynomial, `[[a]//b]`. Raises ValueError for a number that
    is not above 0."""
    if isinstance(b, int) and b <= 0:
        raise ValueError(f"a size over {b}")
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    exact = exact_quotient(a, b)
    return named(f"[[{a}]//[{b}]]".replace("*", _TIMES)) if exact is None else exact


def content(size: Poly) -> Size:
    """The largest monomial that divides every term."""
    factor = math.gcd(*(f for _, f in size.terms))
    common = Counter(size.terms[0][0])
    for monomial, _ in size.terms[1:]:
        common &= Counter(monomial)
    return _sum([(tuple(sorted(common.elements())), factor)])


# --- extents ----------------------------------------------------------------------------------------------------------
def to_extent(size: Size) -> Extent:
    """The size as a graph extent: a monomial of its symbols and at most one sum. Raises ValueError for negative ones."""
    if isinstance(size, int):
        if size < 0:
            raise ValueError(f"a dimension cannot be {size}")
        return size
    if all(factor < 0 for _, factor in size.terms):
        raise ValueError(f"a dimension cannot be {size}")
    outside = content(size)
    inside = exact_quotient(size, outside)
    name = f"({inside})".replace("*", _TIMES)
    factors = [] if inside == 1 else [ex.symbol(name)]
    return ex.product([*factors, *(ex.product([f, *map(ex.symbol, m)]) for m, f in _terms(outside).items())])


def from_extent(extent: Extent) -> Size:
    """The inverse of `to_extent`."""
    if isinstance(extent, int):
        return extent
    size: Size = extent.factor
    for name in extent.names:
        size = size * (parse(name[1:-1]) if name.startswith("(") else named(name))
    return size


def first_of(extent: Extent, end: Size, least: Mapping[str, int], most: Mapping[str, int]) -> Extent | None:
    """How many of the first elements of a dimension lie before an `end` that is a size, which may be behind the dimension's
    own where symbols are not above their `most`; None for ends that are no such sizes."""
    if not isinstance(extent, int) or isinstance(end, int) or any(factor < 0 for _, factor in end.terms):
        return None
    try:
        return to_extent(told(at_most(end, extent), least, most))
    except ValueError:
        return None


def last_of(extent: Extent, start: Size, end: Size, least: Mapping[str, int], most: Mapping[str, int]) -> Extent | None:
    """How many elements of a dimension lie behind a `start` that is a size and within it; None for other slices."""
    if not isinstance(extent, int) or isinstance(start, int) or not isinstance(end, int) or end < extent:
        return None
    count = extent - start
    try:
        inside = counts(count) and at_most(count, extent) == count
        return to_extent(told(count, least, most)) if inside else None
    except ValueError:
        return None


# --- text -------------------------------------------------------------------------------------------------------------
_LIMITED = re.compile(r"min\[([^\[\]]*),(\d+)\]")
_WHOLE = re.compile(r"\[\[(.*)\]//\[([1-9]\d*)\]\]")
_TOKEN = re.compile(rf"\s*({_LIMITED.pattern}|[A-Za-z_][\w.]*|\d+|//|[-+*{_TIMES}()\[])")


def parse(text: str) -> Size:
    """A dimension as a model writes it: a polynomial where it is one, else a symbol that stands for the whole text."""
    size = _polynomial(text)
    if size is not None:
        return size
    name = re.sub(r"\s+", "", text)
    if _polynomial(name) is not None:  # `a b` is not `ab`, nor `1 2` the number 12
        name = re.sub(r"\s+", "_", text)
    name = name.replace("*", _TIMES).replace("(", "[").replace(")", "]")
    again = named(name)
    stays = _polynomial(name) in (None, again) and not (name.isascii() and name.isdigit())
    return (
        again if stays else named(f"[{name}]")
    )  # what it would be read as, by this function and others, is not itself


def _polynomial(text: str) -> Size | None:
    """A text as a polynomial, where it is one."""
    try:
        tokens = list(_tokens(text)) if len(text) <= LONGEST else []
        size = _parse_sum(tokens)
        if (isinstance(size, int) and abs(size) >= LARGEST) or len(str(size)) > LONGEST:
            return None  # it could not be read again from what is written for it
    except (ValueError, IndexError, RecursionError):
        return None
    return None if tokens else size


def _tokens(text: str) -> Iterator[str]:
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(text)
        position = match.end() if match[1] != "[" else _closed(text, match.end())
        yield text[match.start(1) : position]


def _closed(text: str, position: int) -> int:
    """The end of what a bracket before `position` begins. Raises ValueError."""
    depth = 1
    while depth:
        depth += {"[": 1, "]": -1}.get(text[position], 0)
        position += 1
    return position


def _parse_sum(tokens: list[str]) -> Size:
    size = _parse_product(tokens)
    while tokens and tokens[0] in "+-":
        sign = 1 if tokens.pop(0) == "+" else -1
        size = size + sign * _parse_product(tokens)
    return size


def _parse_product(tokens: list[str]) -> Size:
    size = _parse_atom(tokens)
    while tokens and tokens[0] in ("*", _TIMES, "//"):
        divides = tokens.pop(0) == "//"
        factor = _parse_atom(tokens)
        size = floor_quotient(size, factor) if divides else size * factor
    return size


def _parse_atom(tokens: list[str]) -> Size:
    token = tokens.pop(0)
    if token == "-":
        return -1 * _parse_atom(tokens)
    if token == "(":
        size = _parse_sum(tokens)
        if tokens.pop(0) != ")":
            raise ValueError(token)
        return size
    if token.isdigit():
        return int(token)
    limited = _LIMITED.fullmatch(token)
    if limited is not None:
        inner = _polynomial(limited[1])
        if inner is None or "[" in str(inner):  # a quotient's name within could not be read again
            raise ValueError(token)
        return at_most(inner, int(limited[2]))
    if token[0].isalpha() or token[0] in "_[":
        return named(token)
    raise ValueError(token)
