"""Kernels that leave out what a mask hides are proved: one iteration less is refuted, one more is not, on every engine."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_cli.codegen import source as sources
from mirage_cli.kernel_proof import prove
from mirage_cli.kernel_proof.compare import Finding, compare
from mirage_cli.kernel_proof.nearer import nearer
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import BOOL, F16, F32, I64, DType
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.schedules.ranking import engine_ranked
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen import kernels
from tests.codegen.kernels import Case, single
from tests.codegen.programs import program

END, FIRST = re.compile(r"const int end = ([^;]+);"), re.compile(r"const int first = ([^;]*whole[^;]*);")
LESS = {END: r"const int end = (\1) - 1;", FIRST: r"const int first = (\1) + 1;"}
MORE = {
    END: r"const int end = (\1) < whole ? (\1) + 1 : whole;",
    FIRST: r"const int first = (\1) > 0 ? (\1) - 1 : 0;",
}
ENGINES = {"cpu": ("cpu", "block"), "block": ("sm_80", "block"), "strip": ("sm_90a", "strip")}
ENGINES |= {"warpgroup": ("sm_90a", "warpgroup")}


def attention(rows: int, keys: int, window: int, behind: int, depth: int = 16, zeros: bool = False) -> Program:
    """Attention in which a row sees so many keys up to its own place, which lies some positions further; `zeros` where it
    sees none (else NaN)."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        q, k, v = (g.input(n, (2, e, depth), t) for n, e in (("q", rows), ("k", keys), ("v", keys)))
        scores = compose.scale(g, compose.matmul(g, q, g.transpose(k, (0, 2, 1))), Fraction(1, 4))
        i, j = compose.shift(g, g.iota(rows, 1, 3, t), behind), g.iota(keys, 2, 3, t)
        keep = g.map("and", g.map("le", j, i), g.map("lt", i, compose.shift(g, j, window)))
        weights = compose.softmax(g, compose.attention_mask(g, scores, keep), [2])
        if zeros:
            weights = compose.select(g, g.map("isnan", weights), g.fill(0, t), weights)
        return [compose.matmul(g, weights, v)]

    return program(build, F32 if depth < 64 else F16)


def _cases(engine: str, p: Program) -> Iterator[Case]:
    """Kernels of an engine that walk the keys, one for each block graph."""
    target, name = ENGINES[engine]
    machine = load_target(target)
    for g in Searcher(SearchOptions()).blocks(p)[0]:
        found = engine_ranked(name, p, g, machine, 40)
        made = (Case("hidden", p, single(p, g), (r.schedule,), machine) for r in found)
        yield from itertools.islice((c for c in made if c.renders() and END.search(c.render().text)), 1)


@cache
def _case(engine: str) -> Case:
    """A kernel that leaves out iterations at both ends."""
    sizes = (128, 384, 60, 200, 64) if engine == "warpgroup" else (40, 160, 20, 110)
    return next(c for c in _cases(engine, attention(*sizes)) if FIRST.search(c.render().text))


def _finding(c: Case, text: str) -> Finding:
    return compare(text, c.program, c.graph)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_iteration_less_is_refuted(engine: str) -> None:
    c = _case(engine)
    text = c.render().text
    assert _finding(c, text).passed, _finding(c, text).reason
    for limit, spoiled in LESS.items():
        assert limit.search(text)
        assert "differs" in _finding(c, limit.sub(spoiled, text)).reason, spoiled


@pytest.mark.parametrize("engine", ENGINES)
def test_one_iteration_more_is_not(engine: str) -> None:
    c = _case(engine)
    text = c.render().text
    for limit, more in MORE.items():
        changed = limit.sub(more, text)
        assert changed != text and _finding(c, changed).passed, (more, _finding(c, changed).reason)


def test_tiles_that_show_all_by_mistake_are_refuted() -> None:
    """Where a tile shows all, positions are not compared."""
    c = _case("warpgroup")
    text = c.render().text
    shown = re.compile(r"( - \w+_step >= )0( && .* >= 0)?\) {")
    assert shown.search(text)
    assert "differs" in _finding(c, shown.sub(r"\g<1>-999) {", text)).reason


def test_masks_that_reach_beyond_a_stand_in_are_made_smaller() -> None:
    """On the shorter axes a window of 600 hides nothing at its far end."""
    p = attention(2000, 2000, 600, 0)
    c = next(c for c in _cases("cpu", p) if FIRST.search(c.render().text))
    run = prove.prove_kernels(p, c.graph, c.schedules, c.target)
    assert run.passed and run.extents == "stand-in", run.reason
    real = sources.source

    def broken(*arguments: object) -> sources.Rendered:
        rendered = real(*arguments)  # type: ignore[arg-type]
        return replace(rendered, text=FIRST.sub(LESS[FIRST], rendered.text))

    with mock.patch.object(prove, "source", broken):
        run = prove.prove_kernels(p, c.graph, c.schedules, c.target)
    assert run.refuted and "differs" in run.reason


def test_numbers_that_are_compared_keep_their_order() -> None:
    p = attention(16, 1000, 600, 984)
    c = next(_cases("cpu", p))
    near = nearer(p, c.graph)
    assert near is not None and nearer(*near) is None
    numbers = sorted(n.value for n in near[0].nodes if n.op == "const" and isinstance(n.value, Fraction))
    assert {abs(n) for n in numbers} == {Fraction(1, 4), 500, 305}
    assert nearer(attention(40, 72, 20, 32), c.graph) is None


# --- lengths that are inputs ------------------------------------------------------------------------------------------------
def cached(window: int) -> Program:
    """Attention whose rows begin behind as many keys as an input says, another one for each sequence; `places` are those of
    the keys."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        rows, keys = symbol("rows"), symbol("keys")
        q, k, v = (g.input(n, (2, e, 16), t) for n, e in (("q", rows), ("k", keys), ("v", keys)))
        before, places = g.input("before", (2,), I64), g.input("places", (keys,), I64)
        at = g.map("add", g.reshape(before, (2, 1, 1)), g.iota(rows, 1, 3, I64))
        j = g.reshape(places, (1, 1, keys))
        near = g.map("lt", g.map("sub", at, g.fill(window, I64)), j)
        scores = compose.matmul(g, q, g.transpose(k, (0, 2, 1)))
        keep = g.map("and", g.map("le", j, at), near)
        return [compose.matmul(g, compose.softmax(g, compose.attention_mask(g, scores, keep), [2]), v)]

    return program(build, F32)


KEYS = 41
SEEN = re.compile(r"if \(m_le\(0\.0f, (.*)\) != 0\.0f\) (seen_\d) = 1;")


@cache
def _cached_case() -> Case:
    p = cached(5)
    extents = {str(a.extent): a.name for a in p.axes}
    graphs = [g for g in Searcher(SearchOptions()).blocks(p)[0] if g.loop == extents["keys"] and not g.split]
    tiles = {extents["2"]: 1, extents["rows"]: 2}
    schedule = Schedule(tuple((a, tiles.get(a, 16)) for a in graphs[0].grid), 4)
    return Case("cached", p, single(p, graphs[0]), (schedule,), load_target("cpu"), sizes=(("rows", 5), ("keys", KEYS)))


def padded() -> Program:
    """Attention to the keys that truth values show, others for each sequence."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        q, k, v = (g.input(n, (2, e, 16), t) for n, e in (("q", 5), ("k", KEYS), ("v", KEYS)))
        keep = g.reshape(g.input("keep", (2, KEYS), BOOL), (2, 1, KEYS))
        scores = compose.matmul(g, q, g.transpose(k, (0, 2, 1)))
        return [compose.matmul(g, compose.softmax(g, compose.attention_mask(g, scores, keep), [2]), v)]

    return program(build, F32)


@cache
def _padded_case() -> Case:
    p = padded()
    axes = {str(a.extent): a.name for a in p.axes}
    graph = next(g for g in Searcher(SearchOptions()).blocks(p)[0] if g.loop == axes[str(KEYS)] and not g.split)
    tiles = {axes["2"]: 1, axes["5"]: 2}
    schedule = Schedule(tuple((a, tiles.get(a, 16)) for a in graph.grid), 4)
    return Case("padded", p, single(p, graph), (schedule,), load_target("cpu"))


def test_tests_of_truth_values_that_hide_too_much_are_refuted() -> None:
    c = _padded_case()
    text = c.render().text
    (test,) = SEEN.finditer(text)
    found = {
        by: compare(text.replace(test[1], f"{test[1]} {by}"), c.program, c.graph) for by in ("- 1.0f", "+ 1.0f", "")
    }
    assert "differs" in found["- 1.0f"].reason
    assert found["+ 1.0f"].passed and found[""].passed, found


def test_tiles_whose_truth_values_hide_all_are_not_read() -> None:
    """In front of the keys that count and behind them."""
    c, random = _padded_case(), np.random.default_rng(0)
    keep = (np.arange(KEYS) < 13) ^ np.array([[False], [True]])
    arrays = [keep if s.dtype is BOOL else random.normal(size=s.dims).astype(np.float32) for s in c.program.sources]
    (wanted,) = c.reference(arrays)
    for s, a in zip(c.program.sources, arrays, strict=True):
        if s.dtype is not BOOL and s.dims[1] == KEYS:
            a[0, 16:], a[1, :12] = np.nan, np.nan
    (result,) = kernels.answered(c, arrays)
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limit", ["seen_0", "seen_1"])
def test_tests_of_lengths_that_are_too_narrow_are_refuted(limit: str) -> None:
    c = _cached_case()
    text = c.render().text
    assert {m[2] for m in SEEN.finditer(text)} == {"seen_0", "seen_1"}

    def changed(by: str) -> str:
        def other(m: re.Match[str]) -> str:
            return m[0].replace(m[1], f"{m[1]} {by}") if m[2] == limit else m[0]

        return compare(SEEN.sub(other, text), c.program, c.graph, c.symbols).reason

    assert "differs" in changed("- 4.0f")
    assert changed("+ 4.0f") == changed("- 0.0f") == ""


def test_iterations_behind_lengths_are_not_computed() -> None:
    """Each of two sequences has the keys that its length and window show: tiles of 4 keys with others hold anything
    (a row behind the last one counts)."""
    c, arrays = _cached_case(), list[NDArray[Any]]()
    for source in c.program.sources:
        dims = tuple(ex.value(e, c.symbols) for e in source.dims)
        whole = {(2,): np.array([3, 30]), (KEYS,): np.arange(KEYS)}.get(dims)
        arrays.append(np.ones(dims, np.float32) if whole is None else whole)
    (wanted,) = kernels.answered(c, arrays)
    for a in arrays:
        if a.shape[:2] == (2, KEYS):
            a[0, 12:], a[1, :24], a[1, 36:] = (np.nan,) * 3
    (result,) = kernels.answered(c, arrays)
    assert np.isfinite(result).all()
    np.testing.assert_array_equal(result, wanted)


# --- numbers --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("zeros", [False, True])
def test_rows_that_see_nothing_come_out_as_the_original_ones(zeros: bool, tmp_path: Path) -> None:
    """Rows whose window lies behind the last key give NaN, or 0 where the model says so."""
    p = attention(40, 72, 20, 60, zeros=zeros)
    found = [replace(c, name=f"hidden{n}") for n, c in enumerate(itertools.islice(_cases("cpu", p), 6))]
    assert any(FIRST.search(c.render().text) for c in found)
    harness = kernels.build({c.name: c.render().text for c in found}, tmp_path, kernels.CPU_FLAGS)
    for c in found:
        arrays = c.inputs()
        (result,) = kernels.call(harness, c, arrays)
        (wanted,) = c.reference(arrays)
        unseen = np.arange(40) + 60 - 19 > 71
        assert np.isfinite(result[:, ~unseen]).all()
        assert (result[:, unseen] == 0).all() if zeros else np.isnan(result[:, unseen]).all()
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_hidden_is_not_read(engine: str) -> None:
    """Whatever keys and values hold where no row of a block sees them, results are those of the others."""
    c = _case(engine)
    (reads,) = kernels.answered(c, arrays := c.inputs())
    spoiled = [a.copy() for a in arrays]
    step = c.schedules[0].loop
    hidden = (141 if engine == "warpgroup" else 91) // step * step  # keys in front of the first row's window
    assert hidden
    for i in c.program.inputs:
        keys = [n for n, s in enumerate(i.access) if s.extent in (384, 160)]
        if keys:
            spoiled[i.source][(slice(None),) * keys[0] + (slice(hidden),)] = np.nan
    (result,) = kernels.answered(c, spoiled)
    np.testing.assert_array_equal(result, reads)


def test_keys_behind_the_end_count_as_nothing() -> None:
    """Warpgroups hide them once, in the last iteration: one key too few or too many is refuted."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        q, k, v = (g.input(n, (2, e, 64), t) for n, e in (("q", 128), ("k", 200), ("v", 200)))
        scores = compose.scale(g, compose.matmul(g, q, g.transpose(k, (0, 2, 1))), Fraction(1, 4))
        return [compose.matmul(g, compose.softmax(g, scores, [2]), v)]

    p, target = program(build, F16), load_target("sm_90a")
    made = (
        Case("odd", p, single(p, g), (r.schedule,), target)
        for g in Searcher(SearchOptions()).blocks(p)[0]
        for r in engine_ranked("warpgroup", p, g, target, 1)
    )
    c = next(c for c in made if c.renders())
    text = c.render().text
    assert text.count(" < 200") == text.count("_step + c_ < 200") == 1
    assert _finding(c, text).passed, _finding(c, text).reason
    for hidden in ("_step + c_ < 199", "_step + c_ < 201"):
        assert "differs" in _finding(c, text.replace("_step + c_ < 200", hidden)).reason
    assert "differs" in _finding(c, re.sub(r"(_step \+ \d+ > )200\)", r"\g<1>256)", text)).reason
