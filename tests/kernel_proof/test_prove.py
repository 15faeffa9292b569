"""Kernels of plans are run, and one that does something else is passed over."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from mirage_cli.codegen import source as sources
from mirage_cli.errors import Refused
from mirage_cli.kernel_proof import prove
from mirage_cli.kernel_proof.prove import kernel_run, prove_kernels
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import F16
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.program import Program
from mirage_cli.planning.plan import PlanOptions, plan_fragment
from mirage_cli.search.proof import stand_in
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen.kernels import Case, cases
from tests.codegen.programs import NAMED, ROWS, program
from tests.search.programs import built

ONE = PlanOptions({"cpu": ("cpu",), "cuda": ("sm_90a",)})


def _case(name: str, target: str) -> Case:
    return next(iter(cases(name, program(NAMED[name], F16), target, 1)))


@pytest.mark.parametrize(("name", "target"), [("gated", "cpu"), ("attention", "sm_80"), ("symbolic", "cpu")])
def test_printed_kernels_are_run(name: str, target: str) -> None:
    c = _case(name, target)
    run = prove_kernels(c.program, c.graph, c.schedules, c.target)
    assert run.passed and run.compared and run.extents in ("real", "stand-in"), run.reason


def test_plans_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(prove.VARIABLE, "1")
    found = plan_fragment("abc", "gated", program(NAMED["gated"], F16), 4, ONE)
    assert set(found.plans) == {"cpu", "cuda"}
    for plan in found.plans.values():
        assert plan.verdict.kernels is not None and plan.verdict.kernels.passed
        assert plan.verdict.to_json()["kernels"]["compared"] > 0


def test_kernels_that_do_something_else_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(prove.VARIABLE, "1")
    real = sources.source

    def broken(*arguments: object) -> sources.Rendered:
        rendered = real(*arguments)  # type: ignore[arg-type]
        return replace(rendered, text=rendered.text.replace(" = e0 + ", " = e0 - ").replace(" * e0;", " + e0;"))

    with mock.patch.object(prove, "source", broken):
        found = plan_fragment("abc", "gated", program(NAMED["gated"], F16), 4, PlanOptions({"cpu": ("cpu",)}))
    assert not found.plans
    assert found.reasons["cpu"].startswith("its kernels do not compute it: output 0 differs at")


def test_a_text_that_is_not_of_the_language_is_not_run() -> None:
    c = _case("gated", "cpu")
    with mock.patch.object(
        prove,
        "source",
        lambda *_: sources.Rendered("void kernel0(void* data, size_t block) {\n    goto x;\n}\n", (), (), ()),
    ):
        run = prove_kernels(c.program, c.graph, c.schedules, c.target)
    assert not run.passed and not run.compared and "goto" in run.reason and not run.refuted


def test_a_run_that_is_not_understood_says_nothing_of_the_kernels() -> None:
    c, real = _case("gated", "cpu"), sources.source

    def compared(*arguments: object) -> sources.Rendered:
        rendered = real(*arguments)  # type: ignore[arg-type]
        assert "const float e0 = " in rendered.text
        text = rendered.text.replace(
            "const float e0 = ", "const bool odd = 1.0f < 2.0f; const float e0 = odd ? 1.0f : "
        )
        return replace(rendered, text=text)

    with mock.patch.object(prove, "source", compared):
        run = prove_kernels(c.program, c.graph, c.schedules, c.target)
    assert "ArithmeticError: residues have no <" in run.reason and not run.compared and not run.refuted


def test_kernels_that_are_not_printed_at_shorter_extents_are_run_at_real_ones() -> None:
    c, real, tried = _case("gated", "cpu"), sources.source, list[Program]()

    def at_real(name: str, p: Program, *rest: object) -> sources.Rendered:
        tried.append(p)
        if p != c.program:
            raise Refused("too short")
        return real(name, p, *rest)  # type: ignore[arg-type]

    short = (replace(c.program, sources=tuple(replace(s, name="short") for s in c.program.sources)), c.graph)
    with mock.patch.object(prove, "source", at_real), mock.patch.object(prove, "structured", lambda *_: short):
        run = prove_kernels(c.program, c.graph, c.schedules, c.target)
    assert run.passed and run.extents == "real" and tried == [short[0], short[0], c.program]


def test_large_sizes_are_a_whole_tile_and_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    c = _case("symbolic", "cpu")
    tiles = [s.as_tiles() for s in c.schedules]
    ones, large = prove._affordable(c.program, c.graph, tiles)
    kernels = zip(c.graph.kernels, tiles, strict=True)
    longest = max(t[a] for k, t in kernels for a in k.block.grid if ex.names(k.program.extent(a)))
    assert ones == {"rows": 1} and longest < large["rows"] < 2 * longest
    flat = [dict.fromkeys(s.as_tiles(), 1) for s in c.schedules]
    assert prove._affordable(c.program, c.graph, flat) == [{"rows": 1}, {"rows": 2}]
    monkeypatch.setattr(prove, "MOST_ELEMENTS", 1)
    assert prove._affordable(c.program, c.graph, tiles)[1:] == [{"rows": 3}]  # no tile is whole then


@pytest.mark.parametrize("tile", [1, 16, 48, 128])
@pytest.mark.parametrize("names", [("n",), ("batch", "n"), ("batch", "heads", "n")])
def test_several_symbols_of_an_axis_are_a_tile_and_a_part_together(tile: int, names: tuple[str, ...]) -> None:
    rows = tuple(ex.symbol(n) for n in names)
    p = built(lambda g: compose.softmax(g, g.input("x", (*rows, 8), F16), [-1]))
    graph = Searcher(SearchOptions()).search(p, load_target("sm_80")).candidates[0].graph
    values = stand_in.beyond_a_tile(p, graph, [dict.fromkeys(k.block.grid, tile) for k in graph.kernels])
    count = ex.value(ex.product(rows), values)
    assert count > tile and (tile == 1 or count % tile) and len({*values.values()}) == len(names)


def test_the_environment_leaves_them_without_a_run(tmp_path: Path) -> None:
    c = _case("gated", "cpu")
    run = kernel_run(c.program, c.graph, c.schedules, load_target("cpu"), c.passes, 0, "")
    assert (run.passed, run.compared, run.refuted) == (False, 0, False) and prove.VARIABLE in run.reason


def test_long_axes_beside_symbols_are_shorter() -> None:
    wide = program(lambda g, t: [compose.matmul(g, g.input("x", (ROWS, 256), t), g.input("w", (256, 4096), t))], F16)
    c, real = next(iter(cases("wide", wide, "sm_90a", 1))), sources.source
    run = prove_kernels(c.program, c.graph, c.schedules, c.target)
    assert run.passed and run.extents == "stand-in", run.reason

    def broken(*arguments: object) -> sources.Rendered:
        """All blocks compute the first columns."""
        rendered = real(*arguments)  # type: ignore[arg-type]
        text = re.sub(r"static_cast<offset_t>\(b_block\)", "static_cast<offset_t>(0)", rendered.text)
        assert text != rendered.text
        return replace(rendered, text=text)

    with mock.patch.object(prove, "source", broken):
        assert prove_kernels(c.program, c.graph, c.schedules, c.target).refuted
