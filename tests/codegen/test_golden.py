"""Rendered sources as they are kept in golden/: what a change of a template or a pass does shows in their diff.

MIRAGE_GOLDEN=1 writes them anew. The muGraph is kept as well, so that the search does not matter here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_cli.codegen.source import Rendered, source
from mirage_cli.lax.dtypes import F16
from mirage_cli.lax.ir.program import Program, program_from_json
from mirage_cli.search.mugraph.documents import graph_from_json, graph_to_json
from mirage_cli.search.mugraph.mugraph import BlockGraph, KernelGraph
from mirage_cli.search.schedules.schedule import Schedule, schedule_from_json
from mirage_cli.search.schedules.target import load_target

from .kernels import cases
from .programs import NAMED, program

GOLDEN = Path(__file__).parent / "golden"
MUGRAPHS = GOLDEN / "mugraphs.json"
TARGETS = {"cpu": ("cpu", "cpp"), "cuda": ("sm_80", "cu")}
PROGRAMS = {"cpu": "gated", "cuda": "attention_causal"}
SIZES = {"b": 4, "c": 16}
LOOPS: dict[str, Callable[[BlockGraph], bool]] = {
    "cpu": lambda g: g.loop is not None and len(g.grid) == 2,
    "cuda": lambda g: any(o.op == "running" for o in g.ops) and g.grid == ("a", "b", "c"),
}


def _write_mugraphs() -> None:
    """A loop with a running maximum, or several accumulators, and partial last tiles."""
    lines = []
    for kind, name in PROGRAMS.items():
        fragment = program(NAMED[name], F16)
        (case,) = cases(kind, fragment, TARGETS[kind][0], 1, 1, LOOPS[kind])
        (kernel,) = case.graph.kernels
        tiles = tuple((a, SIZES.get(a, 1)) for a in kernel.block.grid)
        schedule = replace(case.schedules[0], tiles=tiles, loop=16)
        data = [fragment.to_json(), graph_to_json(case.graph), [schedule.to_json()]]
        lines.append(f"{json.dumps(kind)}: {json.dumps(data)}")
    MUGRAPHS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _read(kind: str) -> tuple[Program, KernelGraph, list[Schedule]]:
    if os.environ.get("MIRAGE_GOLDEN") and not MUGRAPHS.exists():
        _write_mugraphs()
    fragment, graph, schedules = json.loads(MUGRAPHS.read_text())[kind]
    return program_from_json(fragment), graph_from_json(graph), [schedule_from_json(s) for s in schedules]


def _render(kind: str) -> Rendered:
    fragment, graph, schedules = _read(kind)
    return source("golden", fragment, graph, schedules, load_target(TARGETS[kind][0]), graph.text())


def compare(name: str, text: str) -> None:
    """The text is that of a file in golden/, or becomes it."""
    path = GOLDEN / name
    if os.environ.get("MIRAGE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; MIRAGE_GOLDEN=1 accepts the new text"


@pytest.mark.parametrize("kind", list(TARGETS))
def test_source(kind: str) -> None:
    compare(f"kernel.{TARGETS[kind][1]}", _render(kind).text)


@pytest.mark.parametrize("kind", list(TARGETS))
def test_tile_program(kind: str) -> None:
    (tile,) = _render(kind).tiles
    compare(f"tiles_{kind}.txt", tile.text() + "\n")


@pytest.mark.parametrize("kind", list(TARGETS))
def test_equal_input_gives_equal_text(kind: str) -> None:
    assert _render(kind) == _render(kind)
