"""The domain of linear limits: what is known of a value on tiles of positions that a mask hides.

A mask compares positions. Of each value is known what it is on a tile all of whose positions have a linear form below 0:

    form      itself a linear form of positions, at every position
    zero      0 throughout, for each of these forms; of a truth value: it is false
    one       1 throughout
    lowest    minus infinity throughout
    truth     the forms none of which is below 0 at a position where a truth value is true, and only there
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

Terms: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Form:
    """A sum of positions along axes, each times a whole number, of a number, and of integers that are inputs (`given`, by
    name), each times a whole number."""

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0
    given: tuple[tuple[str, int], ...] = ()

    def of(self, axis: str) -> int:
        """The number that positions along an axis are multiplied with."""
        return dict(self.terms).get(axis, 0)

    def plus(self, other: Form, factor: int = 1) -> Form:
        """The sum with another form times a number."""
        pairs = ((self.terms, other.terms), (self.given, other.given))
        terms, given = (_sum(own, more, factor) for own, more in pairs)
        return Form(terms, self.constant + factor * other.constant, given)

    def times(self, factor: int) -> Form:
        """The form times a number."""
        return Form().plus(self, factor)


def _sum(terms: Terms, others: Terms, factor: int) -> Terms:
    sums = dict(terms)
    for name, n in others:
        sums[name] = sums.get(name, 0) + factor * n
    return tuple(sorted((name, n) for name, n in sums.items() if n))


Forms: TypeAlias = frozenset[Form]
NOWHERE: Forms = frozenset()
EVERYWHERE: Forms = frozenset([Form((), -1)])
STEP = Form((), 1)
FAR = 2.0**31  #: no position is so large


def meet(x: Forms, y: Forms) -> Forms:
    """Forms below 0 where both hold."""
    return y if x == EVERYWHERE else x if y == EVERYWHERE else x & y


def join(x: Forms, y: Forms) -> Forms:
    """Forms below 0 where either holds."""
    return EVERYWHERE if EVERYWHERE in (x, y) else x | y


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a value."""

    form: Form | None = None
    zero: Forms = NOWHERE
    one: Forms = NOWHERE
    lowest: Forms = NOWHERE
    truth: Forms = NOWHERE


UNKNOWN = Known()


def constant(value: Fraction | float | None) -> Known:
    """What is known of a number."""
    whole = value is not None and -FAR < value < FAR and value == int(value)
    return Known(
        Form((), int(value)) if whole and value is not None else None,
        EVERYWHERE if value == 0 else NOWHERE,
        EVERYWHERE if value == 1 else NOWHERE,
        EVERYWHERE if value == float("-inf") else NOWHERE,
    )


def _below(low: Known, high: Known, strictly: int) -> Known:
    """The truth of low < high, or of low <= high."""
    if low.form is None or high.form is None:
        return UNKNOWN
    space = high.form.plus(low.form, -1).plus(STEP, -strictly)
    return Known(zero=frozenset([space]), one=frozenset([space.times(-1).plus(STEP, -1)]), truth=frozenset([space]))


def _equal(x: Known, y: Known) -> Known:
    return Known(zero=join(_below(x, y, 0).zero, _below(y, x, 0).zero))


def _add(x: Known, y: Known) -> Known:
    form = None if x.form is None or y.form is None else x.form.plus(y.form)
    return Known(form, meet(x.zero, y.zero), lowest=join(x.lowest, y.lowest))


def _sub(x: Known, y: Known) -> Known:
    form = None if x.form is None or y.form is None else x.form.plus(y.form, -1)
    return Known(form, meet(x.zero, y.zero), lowest=x.lowest)


def _mul(x: Known, y: Known) -> Known:
    form = None
    for a, b in ((x.form, y.form), (y.form, x.form)):
        if a is not None and b is not None and not b.terms and not b.given:
            form = a.times(b.constant)
    return Known(form, join(x.zero, y.zero), meet(x.one, y.one))


def _and(x: Known, y: Known) -> Known:
    truth = x.truth | y.truth if x.truth and y.truth else NOWHERE
    return Known(zero=join(x.zero, y.zero), one=meet(x.one, y.one), truth=truth)


def _where(c: Known, x: Known, y: Known) -> Known:
    def either(own: Callable[[Known], Forms]) -> Forms:
        return join(meet(c.zero, own(y)), join(meet(c.one, own(x)), meet(own(x), own(y))))

    return Known(None, either(lambda v: v.zero), either(lambda v: v.one), either(lambda v: v.lowest))


_MEANINGS: Mapping[str, Callable[..., Known]] = {
    "add": _add,
    "sub": _sub,
    "neg": lambda x: _sub(Known(Form()), x),
    "mul": _mul,
    "div": lambda x, y: Known(zero=x.zero),
    "rounded": lambda x: x,
    "lt": lambda x, y: _below(x, y, 1),
    "le": lambda x, y: _below(x, y, 0),
    "eq": _equal,
    "and": _and,
    "or": lambda x, y: Known(zero=meet(x.zero, y.zero), one=join(x.one, y.one)),
    "not": lambda x: Known(zero=x.one, one=x.zero),
    "nonzero": lambda x: Known(zero=x.zero, one=x.one),
    "where": _where,
    "exp": lambda x: Known(zero=x.lowest),
    "exp_minus": lambda x, maximum: Known(zero=x.lowest),
}


def applied(op: str, given: Sequence[Known]) -> Known:
    """What is known of an elementwise operator's value."""
    meaning = _MEANINGS.get(op)
    return UNKNOWN if meaning is None else meaning(*given)


def given(name: str, truth: bool) -> Known:
    """What is known of an input of whole numbers, or of truth values: those are 0 or 1."""
    own = Known(Form(given=((name, 1),)))
    return replace(_below(constant(1), own, 0), form=own.form) if truth else own


def at_position(axis: str) -> Known:
    """What is known of the position along an axis."""
    return Known(Form(((axis, 1),)))
