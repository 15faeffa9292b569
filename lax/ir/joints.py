"""Sources that callers give as other tensors: in two parts, or as a table with the numbers of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Parts:
    """A source in two parts, the first in front of the `second` positions of the other along dimension `dim`; `names` are the
    model's for both and no part of a program's identity."""

    dim: int
    second: int
    names: tuple[str, str] = ("", "")

    def __str__(self) -> str:
        return f" in parts (last {self.second} along {self.dim})"

    @property
    def place(self) -> tuple[int, int]:
        """All of it but the names."""
        return self.dim, self.second

    def to_json(self) -> dict[str, Any]:
        """A JSON document that `parts_from_json` reads back."""
        return {"dim": self.dim, "second": self.second, "names": list(self.names)}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A source that has, at each place of its first `lead` dimensions, a row of a stored table: of `rows` rows the one whose
    number is in memory. Sources with one index have one number `by`. `names` are the model's for table and index, and no part
    of a program's identity."""

    lead: int
    rows: int
    by: int = 0
    names: tuple[str, str] = ("", "")

    def __str__(self) -> str:
        return f" chosen (of {self.rows} by {self.by} at {self.lead})"

    @property
    def place(self) -> tuple[str, int, int]:
        """What tells it apart, but for the index, whose number depends on others."""
        return "chosen", self.lead, self.rows

    def to_json(self) -> dict[str, Any]:
        """A JSON document that `chosen_from_json` reads back."""
        return {"lead": self.lead, "rows": self.rows, "by": self.by, "names": list(self.names)}


def chosen_from_json(data: Mapping[str, Any] | None) -> Chosen | None:
    """The inverse of `Chosen.to_json`; None of nothing."""
    if data is None:
        return None
    table, index = data["names"]
    return Chosen(data["lead"], data["rows"], data["by"], (table, index))


def parts_from_json(data: Mapping[str, Any] | None) -> Parts | None:
    """The inverse of `Parts.to_json`; None of nothing."""
    if data is None:
        return None
    first, second = data["names"]
    return Parts(data["dim"], data["second"], (first, second))
