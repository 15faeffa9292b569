"""Where a tensor that callers give as two is joined."""

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


def parts_from_json(data: Mapping[str, Any] | None) -> Parts | None:
    """The inverse of `Parts.to_json`; None of nothing."""
    if data is None:
        return None
    first, second = data["names"]
    return Parts(data["dim"], data["second"], (first, second))
