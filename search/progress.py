"""What a search says of itself: counts of what it did, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class SearchStatistics:
    """Counts of what the search of one fragment did."""

    mappings: int = 0
    values: int = 0
    mugraphs: int = 0
    seconds: float = 0.0
    refused: list[str] = field(default_factory=list)

    def add(self, other: SearchStatistics) -> None:
        """Count what the search of a part did."""
        self.mappings += other.mappings
        self.values += other.values
        self.mugraphs += other.mugraphs
        self.seconds += other.seconds
        self.refused += other.refused

    def to_json(self) -> dict[str, Any]:
        """The report's form."""
        return {
            "mappings": self.mappings,
            "values": self.values,
            "muGraphs": self.mugraphs,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Standing:
    """Progress of a search: mappings that are closed, of how many so far; values and muGraphs of these; the best
    prediction in us, once there is one."""

    closed: int = 0
    mappings: int = 0
    values: int = 0
    mugraphs: int = 0
    best_us: float | None = None


Tell = Callable[[Standing], None]
