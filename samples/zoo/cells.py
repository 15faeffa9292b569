"""The matrix: every architecture in every form, by exporter, opset, type, with and without a cache, shapes fixed or not."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from samples.building import LAYERS
from samples.zoo import blocks, chameleon, cross, decoders, encoders, experts
from samples.zoo.architecture import Architecture, Form

FAMILIES = (decoders, experts, chameleon, encoders, cross, blocks)
ARCHITECTURES: dict[str, Architecture] = {a.name: a for family in FAMILIES for a in family.ARCHITECTURES}
#: the newest opset that each exporter of torch 2.13 writes is 23 and 20
EXPORTERS = (("dynamo", 18), ("dynamo", 20), ("dynamo", 23), ("tracing", 17), ("tracing", 20))
DTYPES = ("fp32", "fp16", "bf16")


@dataclass(frozen=True, slots=True)
class Cell:
    """One export. Its name is ARCHITECTURE/EXPORTER+OPSET-TYPE[-cache][-dynamic]."""

    architecture: str
    exporter: str = "dynamo"
    opset: int = 20
    dtype: str = "fp32"
    cache: bool = False
    dynamic: bool = False
    layers: int = LAYERS

    @property
    def variant(self) -> str:
        """The name without the architecture."""
        marks = [f"{self.exporter}{self.opset}", self.dtype, *["cache"] * self.cache, *["dynamic"] * self.dynamic]
        return "-".join(marks)

    @property
    def name(self) -> str:
        """The cell's name, unique in the matrix."""
        return f"{self.architecture}/{self.variant}"

    @property
    def file(self) -> str:
        """The name of the cell's file among those that are checked in."""
        return f"{self.architecture}_{self.variant.replace('-', '_')}.onnx"

    @property
    def form(self) -> Form:
        """The form in which the model is called; the tracing exporter takes causal models only with a mask."""
        return Form(self.cache, self.dynamic, masked=self.dynamic or self.exporter == "tracing", layers=self.layers)


#: one layer of architectures that samples/models lacks, in different forms; checked in, for tests (`--store`)
STORED = (
    Cell("mistral", opset=23, dtype="fp16", cache=True, dynamic=True, layers=1),
    Cell("olmo2", "tracing", 17, layers=1),
    Cell("cohere", opset=18, layers=1),
    Cell("gemma3", dtype="bf16", cache=True, layers=1),
    Cell("chameleon", dynamic=True, layers=1),
    Cell("deepseek_v3", dtype="fp16", layers=1),
    Cell("modernbert", opset=23, layers=1),
    Cell("clip", dtype="fp16", layers=1),
    Cell("whisper", dtype="fp16", layers=1),
    Cell("t5", dtype="fp16", layers=1),
)


def matrix() -> Iterator[Cell]:
    """All cells."""
    for a in ARCHITECTURES.values():
        caches = (False, True) if a.cached else (False,)
        for (exporter, opset), dtype, cache, dynamic in product(EXPORTERS, DTYPES, caches, (False, True)):
            yield Cell(a.name, exporter, opset, dtype, cache, dynamic)


def spread() -> list[Cell]:
    """The cells that differ from fp32 at opset 20 by dynamo in one thing, and a few that differ in several; those that
    differ least are first."""
    several = (
        Cell("", opset=23, dtype="fp16", cache=True, dynamic=True),
        Cell("", "tracing", 17, "fp16", cache=True, dynamic=True),
        Cell("", "tracing", 20, "bf16", dynamic=True),
    )
    chosen = [c for c in matrix() if _apart(Cell(c.architecture), c) <= 1 or replace(c, architecture="") in several]
    return sorted(chosen, key=lambda c: _apart(Cell(c.architecture), c))


def _apart(one: Cell, other: Cell) -> int:
    """In how many things two cells of one architecture differ."""
    parts = [((c.exporter, c.opset), c.dtype, c.cache, c.dynamic) for c in (one, other)]
    return sum(x != y for x, y in zip(*parts, strict=True))


def select(patterns: Iterable[str]) -> list[Cell]:
    """The cells that match any of the patterns: NAME, a glob over names, or an architecture.

    Raises ValueError for a pattern that matches none.
    """
    cells, selected = list(matrix()), set[Cell]()
    for pattern in patterns:
        matching = {c for c in cells if fnmatch.fnmatch(c.name, pattern) or fnmatch.fnmatch(c.architecture, pattern)}
        if not matching:
            raise ValueError(f"no cell matches {pattern!r}; architectures: {', '.join(ARCHITECTURES)}")
        selected |= matching
    return [c for c in cells if c in selected]
