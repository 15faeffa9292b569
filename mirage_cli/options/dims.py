"""Parsing of `--dim` and `--shape`: numbers and ranges for symbolic dimensions, fixed shapes for inputs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mirage_cli.errors import UsageError

LARGEST = 2**31 - 1  #: of a dimension
DIM_FORM = "SYMBOL=N or SYMBOL=MIN:TYPICAL:MAX"
SHAPE_FORM = "NAME=1x128x..."
#: types that an input may be said to have, behind its shape: NAME=1x128:i64
TYPES = ("f16", "bf16", "f32", "f64", "i8", "u8", "i32", "i64", "bool")


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a dimension takes: from `low` to `high`, most often `typical`. One number is all three. `said` is False
    for what is merely taken for likely and limits nothing, `step` is a size of it that is as frequent as the typical one."""

    low: int
    typical: int
    high: int
    said: bool = True
    step: int | None = None

    @property
    def fixed(self) -> bool:
        """True if the dimension has one value only; else it stays symbolic."""
        return self.low == self.high

    def __str__(self) -> str:
        return str(self.low) if self.fixed else f"{self.low}:{self.typical}:{self.high}"


def parse(texts: Iterable[str]) -> dict[str, Range]:
    """The ranges of `SYMBOL=N` and `SYMBOL=MIN:TYPICAL:MAX`.

    A dimension that may be empty has MIN 0. Raises UsageError for another form, for numbers out of order, for one that is 0
    always or typically, and for a symbol that comes twice.
    """
    ranges: dict[str, Range] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        parts = value.split(":")
        if not name or len(parts) not in (1, 3) or not all(map(_is_number, parts)):
            raise UsageError(f"--dim {text}: expected {DIM_FORM}")
        if name in ranges:
            raise UsageError(f"--dim {text}: {name} is {ranges[name]} already")
        low, typical, high = map(int, parts * 3 if len(parts) == 1 else parts)
        if not (0 <= low <= typical <= high <= LARGEST and typical):
            order = "1 <= N" if len(parts) == 1 else "0 <= MIN <= TYPICAL <= MAX, 1 <= TYPICAL"
            raise UsageError(f"--dim {text}: expected {order}, at most {LARGEST}")
        ranges[name] = Range(low, typical, high)
    return ranges


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of `NAME=1x128x...`, with or without a type behind them.

    Raises UsageError for another form, a dimension of 0, and a name that comes twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        parts = value.partition(":")[0].split("x")
        if not name or not all(map(_is_number, parts)):
            raise UsageError(f"--shape {text}: expected {SHAPE_FORM}")
        if name in shapes:
            raise UsageError(f"--shape {text}: {name} is {'x'.join(map(str, shapes[name]))} already")
        shape = tuple(map(int, parts))
        if not all(1 <= d <= LARGEST for d in shape):
            raise UsageError(f"--shape {text}: a dimension is at least 1 and at most {LARGEST}")
        shapes[name] = shape
    parse_types(texts)
    return shapes


def parse_types(texts: Iterable[str]) -> dict[str, str]:
    """The types in `NAME=1x128:i64`, for the inputs that have one. Raises UsageError for an unknown type."""
    types: dict[str, str] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        _, colon, kind = value.partition(":")
        if colon and kind not in TYPES:
            raise UsageError(f"--shape {text}: expected a type behind the colon ({', '.join(TYPES)}), found {kind!r}")
        if colon:
            types[name] = kind
    return types


def numbers(ranges: Mapping[str, Range]) -> dict[str, int]:
    """The dimensions that have one value only."""
    return {name: r.low for name, r in ranges.items() if r.fixed}


def typical(ranges: Mapping[str, Range]) -> dict[str, int]:
    """The usual value of each dimension."""
    return {name: r.typical for name, r in ranges.items()}


def limits(ranges: Mapping[str, Range]) -> dict[str, tuple[int, int]]:
    """The least and the largest value of each dimension of which they are said."""
    return {name: (r.low, r.high) for name, r in ranges.items() if r.said}


def check_known(names: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError for a symbol of `--dim` that is not among the `known` ones of a model, naming these."""
    symbols = sorted(set(known))
    for name in sorted(set(names) - set(symbols)):
        raise UsageError(
            f"--dim {name}: the inputs have no such symbol; they have {', '.join(symbols) or 'none'}",
            _suggestion(name, symbols),
        )


def check_inputs(names: Iterable[str], inputs: Iterable[str]) -> None:
    """Raise UsageError for an input of `--shape` that a model has not, naming those that it has."""
    known = list(inputs)
    for name in names:
        if name not in known:
            raise UsageError(
                f"--shape {name}: the model has no such input; it has {', '.join(known) or 'none'}",
                _suggestion(name, known),
            )


def check_rank(name: str, declared: Sequence[object], given: Sequence[int]) -> None:
    """Raise UsageError where `--shape` gives an input another number of dimensions than the model does."""
    if len(declared) != len(given):
        model, asked = ("x".join(map(str, d)) or "a single number" for d in (declared, given))
        raise UsageError(
            f"--shape {name}={asked}: the model says {model}, which has {len(declared)} dimensions and not {len(given)}"
        )


def _suggestion(name: str, known: list[str]) -> str | None:
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20
