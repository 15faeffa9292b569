"""Where the statements of a kernel of warpgroups stand."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir


@dataclass(slots=True)
class Statements:
    """Statements by place. `start`: variables that live as long as a block's tile; `operands`: left operands that are
    computed of loaded tiles, or split; `whole`: products of those that may not be split; `added`: what adds up products of
    parts; `prologue`, `body`, `epilogue`; `rescale`: what was accumulated, weighed anew; `weights`: what
    stands below a running maximum; `words`: left operands of late products; `publish`, `grid`: before and after blocks that
    reduce together have exchanged `published` numbers of each thread; `fetched`: inputs with rows and columns
    that are read behind the loop; `sides`: what helpers compute for position `c_` of
    the loop axis of a full slot of `side_ring`, in vectors called `side_names`; `cleared`: what makes rows of its tiles 0 that
    a comparison does not show."""

    start: list[ir.Statement] = field(default_factory=list)
    prologue: list[ir.Statement] = field(default_factory=list)
    operands: list[ir.Statement] = field(default_factory=list)
    whole: list[ir.Statement] = field(default_factory=list)
    added: list[ir.Statement] = field(default_factory=list)
    body: list[ir.Statement] = field(default_factory=list)
    rescale: list[ir.Statement] = field(default_factory=list)
    weights: list[ir.Statement] = field(default_factory=list)
    words: list[ir.Statement] = field(default_factory=list)
    epilogue: list[ir.Statement] = field(default_factory=list)
    publish: list[ir.Statement] = field(default_factory=list)
    grid: list[ir.Statement] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    published: int = 0
    sides: list[ir.Statement] = field(default_factory=list)
    side_names: list[str] = field(default_factory=list)
    side_ring: str = ""
    cleared: list[ir.Statement] = field(default_factory=list)


def taken(kind: str, into: ir.Expression, value: ir.Expression) -> ir.Assign:
    """One more operand of a sum, or of a maximum."""
    return k.assign(into, value, "+=") if kind == "sum" else k.assign(into, k.call("fmaxf", into, value))
