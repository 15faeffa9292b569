"""Rows of tables that are chosen when a kernel runs: every engine that reads them computes its program, reads the row that the
index names, and is refuted where it reads another."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.kernel_proof.compare import compare
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.ir.joints import Chosen
from mirage_cli.lax.ir.parts import apart, index_sources, input_sources, joined
from mirage_cli.lax.ir.program import Axis, Input, Output, Program, Slot, Source, program_from_json
from mirage_cli.lax.normal.identify import fuse_axes
from mirage_cli.optimization.task import tensor_names
from mirage_cli.search.schedules.ranking import CHOOSING, engine_ranked
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen import kernels
from tests.codegen.kernels import Case, single
from tests.frontends.models import noise, parsed, read

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> g (float[rows,1,1,64] x, float[rows,5] r) => '
TOP = "(float[rows,2,1,48] y) { v, i = TopK (r, two) f = Reshape (i, flat) "
BACK = "m = Reshape (e, matrices) k = Transpose <perm = [0, 1, 3, 2]> (m) y = MatMul (x, k) }"
UNPACKED = """w = Gather (q, f) s = Gather (c, f) b = Reshape (w, lines) d = Reshape (s, blocks)
    e = com.microsoft.GatherBlockQuantized <bits = 4, block_size = 32, gather_axis = 0, quantize_axis = 2> (b, zero, d)"""
NUMBERS = {"two": [2], "flat": [-1], "matrices": [-1, 2, 48, 64]}
FORMS = {
    "floats": ("e = Gather (q, f) ", {"q": noise(5, 48, 64)}),
    "nd": ("n = Unsqueeze (f, flat) e = GatherND (q, n) ", {"q": noise(5, 48, 64)}),
    "int4": (
        UNPACKED,
        {
            "q": np.random.default_rng(1).integers(0, 256, (5, 48, 32)).astype(np.uint8),
            "c": noise(5, 48, 2),
            "lines": np.array([1, -1, 32]),
            "blocks": np.array([1, -1, 2]),
            "zero": np.array([0]),
        },
    ),
    "zeros": (
        """e = com.microsoft.GatherBlockQuantized <bits = 4, block_size = 32, gather_axis = 0, quantize_axis = 2>
        (q, f, c, z) """,
        {
            "q": np.random.default_rng(1).integers(0, 256, (5, 48, 32)).astype(np.uint8),
            "c": noise(5, 48, 2),
            "z": np.random.default_rng(2).integers(0, 256, (5, 48, 1)).astype(np.uint8),
        },
    ),
}


@cache
def chosen(form: str) -> Program:
    """Rows times matrices that an index chooses."""
    text, weights = FORMS[form]
    numbers = {k: np.array(n) for k, n in NUMBERS.items()}
    imported = read(parsed(HEAD + TOP + text + BACK, **weights, **numbers))
    (fragment,) = partition(imported.graph, tensor_names(imported)).fragments
    return fragment.program


@pytest.mark.parametrize("form", FORMS)
def test_a_program_reads_tables_and_an_index(form: str) -> None:
    p = chosen(form)
    assert program_from_json(p.to_json()).key() == p.key()
    (index,) = index_sources(p)
    assert (str(index.dtype), [str(e) for e in index.dims]) == ("i64", ["2*rows"])
    tables = [s for s in input_sources(p) if s.constant]
    assert [str(s.dims[0]) for s in tables] == ["rows_0"] * len(tables)
    sizes = {"rows": 3}
    arrays = [
        np.random.default_rng(k).standard_normal([ex.value(e, sizes) for e in s.dims]) for k, s in enumerate(p.sources)
    ]
    given = apart(p, arrays)
    assert len(given) == len(arrays) + 1
    assert sorted(given[-1]) == list(range(6)) != list(given[-1])
    assert all(map(np.array_equal, joined(p, given), arrays))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", ["cpu", "sm_80"])
def test_kernels_are_their_programs(form: str, target: str) -> None:
    p, machine, seen = chosen(form), load_target(target), set[str]()
    found = list(kernels.cases(f"chosen{form}", p, target, 2))
    for engine in CHOOSING if target != "cpu" else ():
        ranked = (
            (g, r) for g in Searcher(SearchOptions()).blocks(p)[0] for r in engine_ranked(engine, p, g, machine, 1)
        )
        own = [Case(f"chosen{form}{engine}", p, single(p, g), (r.schedule,), machine) for g, r in ranked]
        found += [c for c in own if c.renders()][:2]
    for case in found:
        text, seen = case.render().text, seen | {case.schedules[0].engine}
        assert compare(text, p, case.graph, case.symbols).passed
        other = re.sub(r"(x\d_index)\[(.*?)\]\)\)", r"\1[0]))", text, count=1)
        assert other != text
        assert not compare(other, p, case.graph, case.symbols).passed
        still = re.sub(r"_moved = .*;", "_moved = 0;", text)
        assert not compare(still, p, case.graph, case.symbols).passed
    strips = target != "cpu" and form != "zeros"  # a strip does not unpack zero points of so few blocks
    assert seen == ({"block", "strip"} if strips else {"block"})


def test_places_and_rows_stay_apart() -> None:
    """Axes that stand side by side everywhere are one, but where the one walks places and the other rows."""
    slots = tuple(Slot(a, 4) for a in "abc")
    source = Source("w", (4, 4, 4), F32, constant=True, chosen=Chosen(2, 8, 0, ("t", "i")))
    axes = tuple(Axis(a, 4) for a in "abc")
    p = Program(axes, (source,), (Input("x", 0, slots),), (), (Output("x", slots, (4, 4, 4), F32),))
    assert [s.axis for s in fuse_axes(p).inputs[0].access] == ["a", "c"]
    with pytest.raises(InvalidGraph):
        index_sources(Program(axes, (Source("w", (4,), F32, constant=True, chosen=Chosen(1, 8)),), (), (), ()))


def test_other_engines_are_refused() -> None:
    case = next(kernels.cases("chosen", chosen("floats"), "sm_80", 1))
    (own,) = case.schedules
    other = Case(
        "x", case.program, case.graph, (own.__class__(own.tiles, own.loop, own.warps, own.stages, "rows"),), case.target
    )
    with pytest.raises(Refused, match="does not read chosen rows"):
        other.render()
