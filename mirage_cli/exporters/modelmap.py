"""The map of a model: its nodes in order as small squares, those of a fragment in the fragment's colour.

Neighbours that belong together are one run, which links to what is said of them. A large model's squares stand for several
nodes each, so that the page stays light.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from mirage_cli.exporters.drawing.labels import counted, short

MOST = 6000  #: squares of a map, about
LABELLED = 1200  #: nodes up to which runs of fragments bear its number
FINE = 400  #: nodes from which squares are small
NAME = 60  #: columns of a node's name
GONE = "gone"  #: the kind of nodes that nothing needs any more
LEFT = "left"  #: the kind of nodes that stay and are in no fragment


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring nodes: their `kind` (a fragment's status, `LEFT` or `GONE`), the fragment's number (0: none), how many
    squares and nodes, where the page tells more of them, and what they are in words."""

    kind: str
    number: int
    squares: int
    nodes: int
    anchor: str
    title: str


@dataclass(frozen=True, slots=True)
class Map:
    """The runs, nodes for a square, whether numbers are written and squares are small, and nodes of each kind."""

    runs: list[Run]
    scale: int
    labelled: bool
    fine: bool
    counts: dict[str, int]


def fragment_anchor(identifier: str) -> str:
    """The place on the page of a fragment."""
    return f"fragment-{identifier}"


def left_anchor(group: int) -> str:
    """The place on the page of a group of nodes that were left."""
    return f"left-{group}"


def model_map(report: Mapping[str, Any]) -> Map:
    """The map of a report; without runs where the report does not know the order of the nodes."""
    operators: Mapping[str, str] = report.get("operators", {})
    owners = _owners(report)
    scale = -(-len(operators) // MOST) or 1
    runs, counts = [], dict.fromkeys(("replaced", "kept", "failed", LEFT, GONE), 0)
    for (kind, group, place), nodes in groupby(operators, lambda n: owners.get(n, (GONE, 0, 0))):
        names = list(nodes)
        counts[kind] += len(names)
        runs.append(_run(report, operators, kind, group, place, names, scale))
    return Map(runs, scale, len(operators) <= LABELLED, len(operators) > FINE, {k: n for k, n in counts.items() if n})


def _owners(report: Mapping[str, Any]) -> dict[str, tuple[str, int, int]]:
    """For each node its kind, its fragment (or group of nodes that were left) and place; replaced fragments first."""
    owners: dict[str, tuple[str, int, int]] = {}
    order = sorted(enumerate(report["fragments"]), key=lambda item: item[1]["status"] != "replaced")
    for k, f in order:
        for place, names in enumerate(f["nodes"]):
            for name in names:
                owners.setdefault(name, (f["status"], k, place))
    for k, u in enumerate(report["unchanged"]):
        for name in u["nodes"]:
            owners.setdefault(name, (LEFT, k, 0))
    return owners


def _run(
    report: Mapping[str, Any],
    operators: Mapping[str, str],
    kind: str,
    group: int,
    place: int,
    names: list[str],
    scale: int,
) -> Run:
    shown = [f"{operators[n]} {short(n, NAME)}" for n in names[:1] + names[1:][-1:]]
    told = f"{counted(len(names), 'node')}: {' to '.join(shown)}"
    number, anchor = 0, ""
    if kind == LEFT:
        anchor = left_anchor(group)
        told = f"left, {short(report['unchanged'][group]['reason'], 2 * NAME)}; {told}"
    elif kind == GONE:
        told = f"not needed any more; {told}"
    else:
        f = report["fragments"][group]
        number, anchor = group + 1, fragment_anchor(f["id"])
        told = f"{number} {short(f['name'], NAME)}, {kind}, place {place + 1} of {f['occurrences']}; {told}"
    return Run(kind, number, -(-len(names) // scale), len(names), anchor, told)
