"""What the models predict, held against `predictions.json`: a constant that moves or is fitted anew shows itself there.

For each target, program and engine: how many schedules of all block graphs there are, and with them the sum of their
microseconds and the best one; at the key `original` the floor and the time of the original operators.
`python -m tests.search.schedules.test_predictions` writes the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from mirage_cli.lax.dtypes import F16, F32, DType
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.search.schedules.architectures import ENGINES
from mirage_cli.search.schedules.cost import bytes_once, floor_us
from mirage_cli.search.schedules.original import original_us
from mirage_cli.search.schedules.ranking import ranked
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen.programs import Build, program

FILE = Path(__file__).with_name("predictions.json")
TARGETS = ("cpu", "sm_80", "sm_90a")
MOST = 40  #: schedules of a block graph and an engine


def _attention(queries: int, keys: int, heads: int = 32, width: int = 128) -> Build:
    def build(g: Graph, t: DType) -> Sequence[int]:
        extents = (("q", (heads, queries, width)), ("k", (heads, width, keys)), ("v", (heads, keys, width)))
        q, k, v = (g.input(n, e, t) for n, e in extents)
        return [compose.matmul(g, compose.softmax(g, compose.matmul(g, q, k), [2]), v)]

    return build


def _linear(g: Graph, t: DType) -> Sequence[int]:
    x = compose.rms_norm(g, g.input("x", (2048, 1024), t), [1], 1e-5)
    return [compose.linear(g, x, g.input("w", (1024, 2048), t))]


def _computed(g: Graph, t: DType) -> Sequence[int]:
    x = g.map("silu", g.input("x", (1024, 1024), t))
    return [compose.linear(g, x, g.input("w", (1024, 1024), t))]


def _symbolic(g: Graph, t: DType) -> Sequence[int]:
    x = g.map("silu", g.input("x", (symbol("rows"), 512), t))
    return [compose.linear(g, x, g.input("w", (512, 4096), t))]


def _norm(rows: int, length: int) -> Build:
    def build(g: Graph, t: DType) -> Sequence[int]:
        x = compose.layer_norm(g, g.input("x", (rows, length), t), [1], 1e-5)
        return [g.map("mul", x, g.input("gain", (length,), t))]

    return build


def _columns(g: Graph, t: DType) -> Sequence[int]:
    return [compose.softmax(g, g.input("x", (16, 64, 512), t), [1])]


PROGRAMS: dict[str, tuple[Build, DType]] = {
    "decode": (_attention(16, 4096, 2), F16),
    "prefill": (_attention(256, 1024), F16),
    "wide": (_attention(64, 2048, 8, 256), F16),
    "linear": (_linear, F16),
    "computed": (_computed, F16),
    "exact": (_attention(8, 512, 8, 64), F32),
    "symbolic": (_symbolic, F32),
    "norm": (_norm(64, 16384), F16),
    "short": (_norm(4096, 128), F16),
    "columns": (_columns, F16),
}


def _digits(us: float) -> float:
    """Microseconds in as many digits as libraries of mathematics agree on."""
    return float(f"{us:.12g}")


def _lines(said: dict[str, dict[str, list[object]]]) -> str:
    """A line of the file for each target."""
    return ",\n".join(f" {json.dumps(target)}: {json.dumps(found)}" for target, found in said.items())


def predictions(name: str) -> dict[str, dict[str, list[object]]]:
    """What the file says of a program: engines by target."""
    p = program(*PROGRAMS[name])
    blocks, _ = Searcher(SearchOptions(candidates=12)).blocks(p)
    found: dict[str, dict[str, list[object]]] = {}
    for target in map(load_target, TARGETS):
        own = [r for b in blocks for r in ranked(p, b, target, MOST, apart=True)]
        said = found[target.name] = {"original": [_digits(floor_us(p, target)), _digits(original_us(p, 4, target))]}
        for engine in ("block", *ENGINES):
            if mine := sorted((r for r in own if r.schedule.engine == engine), key=lambda r: r.order):
                total, best = math.fsum(r.prediction.us for r in mine), mine[0]
                said[engine] = [len(mine), _digits(total), best.schedule.to_json(), _digits(best.prediction.us)]
    return found


def test_bytes_of_several_reads_count_once() -> None:
    """Halves are half of a tensor each; the whole beside a half is the whole."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        x = g.input("x", (64, 2), t)
        first, second = (g.slice(x, 1, at, 1) for at in (0, 1))
        return [g.map("mul", first, second), g.map("add", x, first)]

    both = program(build, F16)
    halves = program(lambda g, t: build(g, t)[:1], F16)
    assert (bytes_once(halves), bytes_once(both)) == (2 * (128 + 64), 2 * (128 + 64 + 128))


@pytest.mark.parametrize("name", PROGRAMS)
def test_predictions(name: str) -> None:
    assert predictions(name) == json.loads(FILE.read_text(encoding="utf-8"))[name]


def test_the_file_has_all_engines() -> None:
    known = json.loads(FILE.read_text(encoding="utf-8")).values()
    assert {e for said in known for e in said["sm_90a"]} == {"original", "block", *ENGINES}


if __name__ == "__main__":
    lines = ",\n".join(f'"{n}": {{\n{_lines(predictions(n))}\n}}' for n in PROGRAMS)
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
