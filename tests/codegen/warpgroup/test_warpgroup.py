"""The engine `warpgroup`: what it takes and refuses, the boxes of its tiles, its statements, and what nvcc says of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mirage_cli.codegen.source import source
from mirage_cli.codegen.warpgroup.boxes import tensor_map
from mirage_cli.codegen.warpgroup.plan import HELD, Plan, plan
from mirage_cli.codegen.warpgroup.products import PAIRS
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir, printer
from mirage_cli.kernel_language.reader import read_kernels
from mirage_cli.lax.dtypes import BF16, F16, F32, F64, DType
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.schedules.ranking import engine_ranked
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.schedules.tiling import PRODUCER_REGISTERS, consumer_registers
from mirage_cli.search.schedules.warpgroup import WarpgroupModel, rows_axis, single_axes
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen.kernels import single
from tests.codegen.programs import Build, behind, program
from tests.codegen.test_cuda_compiles import compiled, found_nvcc

GOLDEN = Path(__file__).parents[1] / "golden" / "warpgroup.cu"
TARGET = load_target("sm_90a")
SEARCHER = Searcher(SearchOptions())


def _norm_linear(g: Graph, t: DType) -> Sequence[int]:
    x = compose.rms_norm(g, g.input("x", (200, 136), t), [1], 1e-5)
    return [compose.linear(g, x, g.input("w", (136, 264), t, True))]


def _linear_turned(g: Graph, t: DType) -> Sequence[int]:
    return [compose.linear(g, g.input("x", (200, 136), t), g.input("w", (264, 136), t, True), transposed=True)]


def _heads(g: Graph, t: DType) -> Sequence[int]:
    """A product whose columns are heads, with a bias; results are stored head by head."""
    x = g.contract(g.input("x", (200, 136), t), g.input("w", (136, 3, 64), t, True), (0, 1), (1, 2, 3), (0, 2, 3))
    return [g.transpose(g.map("add", x, g.input("bias", (3, 64), t, True)), (1, 0, 2))]


def _gain_gated(g: Graph, t: DType) -> Sequence[int]:
    x = g.map("mul", compose.rms_norm(g, g.input("x", (300, 200), t), [1], 1e-5), g.input("gain", (200,), t))
    first, second = (compose.linear(g, x, g.input(n, (200, 328), t)) for n in ("w", "v"))
    return [g.map("mul", first, g.map("silu", second))]


def _attention(g: Graph, t: DType, keys: int = 328) -> Sequence[int]:
    q, k, v = (g.input(n, e, t) for n, e in (("q", (3, 200, 64)), ("k", (3, 64, keys)), ("v", (3, keys, 64))))
    scores = compose.scale(g, compose.matmul(g, q, k), 0.25)
    return [compose.matmul(g, compose.softmax(g, scores, [2]), v)]


def _grouped(g: Graph, t: DType) -> Sequence[int]:
    """Attention in which two heads of queries read one of keys."""
    q, k, v = (g.input(n, e, t) for n, e in (("q", (3, 2, 200, 64)), ("k", (3, 1, 64, 328)), ("v", (3, 1, 328, 64))))
    scores = compose.scale(g, compose.matmul(g, q, k), 0.25)
    return [compose.matmul(g, compose.softmax(g, scores, [3]), v)]


def _key_norm(g: Graph, t: DType) -> Sequence[int]:
    q, k, v = (g.input(n, e, t) for n, e in (("q", (3, 200, 64)), ("k", (3, 64, 328)), ("v", (3, 328, 64))))
    scores = compose.matmul(g, compose.rms_norm(g, q, [2], 1e-5), k)
    return [compose.matmul(g, compose.softmax(g, scores, [2]), compose.rms_norm(g, v, [2], 1e-5))]


def _between(g: Graph, t: DType) -> Sequence[int]:
    """A product of what is computed with numbers of rows, with a residual."""
    x, m, r, c = (g.input(n, e, t) for n, e in (("x", (100, 72)), ("m", (100, 1)), ("r", (100, 104)), ("gain", (72,))))
    scaled = g.map("div", g.map("mul", c, g.map("sub", x, m)), g.map("sqrt", g.map("mul", m, m)))
    shifted = g.map("add", scaled, c)
    return [g.map("add", compose.linear(g, shifted, g.input("w", (72, 104), t, True)), r)]


def _turned(g: Graph, t: DType) -> Sequence[int]:
    return [compose.linear(g, g.input("x", (130, 72), t), g.input("w", (136, 72), t, True), transposed=True)]


#: builds with what a block takes: rows, columns, positions of the loop, warps, stages, numbers
CASES: dict[str, tuple[Build, tuple[int, int, int, int, int], dict[str, int]]] = {
    "norm": (_norm_linear, (128, 128, 64, 12, 3), {"cluster": 2, "band": 2}),
    "turned": (_linear_turned, (256, 128, 64, 12, 3), {"cluster": 1}),
    "heads": (_heads, (128, 64, 64, 12, 3), {"cluster": 2}),
    "gated": (_gain_gated, (128, 64, 64, 12, 3), {"cluster": 1}),
    "attention": (_attention, (128, 64, 128, 12, 2), {"turns": 1}),
    "narrow": (_grouped, (64, 64, 64, 8, 3), {"resident": 2}),
    "shared": (_attention, (128, 64, 64, 12, 2), {"cluster": 2}),
    "ahead": (_attention, (128, 64, 64, 12, 2), {"ahead": 1}),
    "kept": (_attention, (128, 64, 64, 12, 2), {"turns": 1, "kept": 1}),
    "keynorm": (_key_norm, (128, 64, 128, 12, 2), {"turns": 1}),
    "cached": (lambda g, t: behind(g, t, 100, 328), (64, 64, 64, 8, 2), {}),
}


#: the same of float32, whose numbers are split
FLOATS: dict[str, tuple[Build, tuple[int, int, int, int, int], dict[str, int]]] = {
    "between": (_between, (64, 64, 32, 8, 3), {"resident": 2}),
    "beside": (_turned, (128, 64, 32, 12, 3), {"cluster": 2, "turns": 1}),
}


def _schedule(p: Program, g: BlockGraph, sizes: tuple[int, int, int, int, int], numbers: dict[str, int]) -> Schedule:
    rows, columns, loop, warps, stages = sizes
    single = single_axes(p, g)
    axis = rows_axis(p, g, single)
    tiles = tuple((a, 1 if a in single else rows if a == axis else columns) for a in g.grid)
    return Schedule(tiles, loop, warps, stages, "warpgroup", tuple(numbers.items()))


class Made(NamedTuple):
    """A kernel, and what it was made of."""

    program: Program
    graph: BlockGraph
    schedule: Schedule
    text: str
    kernel: ir.Kernel


def _source(name: str, p: Program, g: BlockGraph, s: Schedule) -> Made:
    rendered = source(name, p, single(p, g), [s], TARGET, name)
    return Made(p, g, s, rendered.text, rendered.kernels[0])


@cache
def _made(name: str, dtype: DType = F16) -> Made:
    """The first block graph of a case that the engine takes."""
    build, sizes, numbers = (CASES | FLOATS)[name]
    p = program(build, F32 if name in FLOATS else dtype)
    for g in SEARCHER.blocks(p)[0]:
        if g.split:
            continue
        try:
            return _source(name, p, g, _schedule(p, g, sizes, numbers))
        except Refused:
            continue
    raise AssertionError(f"{name}: no graph is taken")


@cache
def _split(dtype: DType = F16) -> Made:
    p = program(_attention, dtype)
    for g in SEARCHER.blocks(p)[0]:
        if g.split == (g.loop,):
            s = _schedule(p, g, (128, 64, 64, 12, 2), {})
            try:
                return _source(
                    "split", p, g, replace(s, tiles=tuple((a, 192 if a == g.loop else n) for a, n in s.tiles))
                )
            except Refused:
                continue
    raise AssertionError("no split graph is taken")


# --- statements -----------------------------------------------------------------------------------------------------------
def test_golden() -> None:
    """A product over keys with a running maximum, whose last tiles are partial."""
    text = _made("attention").text
    if os.environ.get("MIRAGE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize("name", [*CASES, *FLOATS, "split"])
def test_text_says_all_of_a_kernel(name: str) -> None:
    kernel = (_split() if name == "split" else _made(name)).kernel
    assert read_kernels(printer.text(kernel)) == {"kernel0": kernel}


def nodes(tree: Any) -> Iterator[Any]:
    """The parts of a tree, in the order in which they stand."""
    if isinstance(tree, tuple):
        for t in tree:
            yield from nodes(t)
    elif is_dataclass(tree):
        yield tree
        for f in fields(tree):
            yield from nodes(getattr(tree, f.name))


def called(tree: Any) -> list[str]:
    """The functions that are called, in the order in which calls stand."""
    functions = [n.function for n in nodes(tree) if isinstance(n, ir.Call)]
    return [f.name if isinstance(f, ir.Member) else f.path[-1] for f in functions]


def calls(tree: Any, name: str) -> list[ir.Call]:
    """The calls of a function."""
    return [n for n in nodes(tree) if isinstance(n, ir.Call) and called(n)[0] == name]


def function(kernel: ir.Kernel, name: str) -> ir.Lambda:
    """A function of a kernel."""
    (found,) = [n.value for n in nodes(kernel) if isinstance(n, ir.Variable) and n.name == name and n.value]
    assert isinstance(found, ir.Lambda)
    return found


@pytest.mark.parametrize("name", [*CASES, *FLOATS])
def test_every_barrier_that_is_waited_for_is_arrived_at(name: str) -> None:
    made = _made(name)
    waited = {x for c in calls(made.kernel, "wait") for x in k.names_in(c.function)}
    released = {x for c in calls(made.kernel, "release") for x in k.names_in(c.args)}
    filled = {x for n in nodes(made.kernel) if isinstance(n, ir.Variable) and n.name == "full" for x in k.names_in(n)}
    for ring in {t.ring for t in plan(*made[:3]).tiles}:
        assert f"{ring}_full" in waited & filled
        assert f"{ring}_empty" in waited & released


def test_kept_operands_are_read_once_and_freed_before_the_loop() -> None:
    """Queries in registers: their tile is free for the next unit's while this one's keys are walked."""
    kept, read = _made("kept"), _made("attention")
    (held,) = plan(*kept[:3]).ring(HELD)
    (load,) = calls(kept.kernel, "load_words")
    assert load.function == k.name("load_words", False)
    assert load.args[1:3] == (k.name(held.name), ir.lift(128))
    freed = [c for c in calls(kept.kernel, "release") if "held_empty" in k.names_in(c)]
    assert len(freed) == 1
    order = list(nodes(kept.kernel))
    assert order.index(freed[0]) < order.index(function(kept.kernel, "scores"))
    last = k.binary("==", "step", k.name("steps") - 1)
    tests = [[n.condition for n in nodes(x.kernel) if isinstance(n, ir.If)] for x in (kept, read)]
    assert [last in t for t in tests] == [False, True] and not calls(read.kernel, "load_words")


def test_numbers_of_rows_are_made_before_the_loop() -> None:
    """What depends on rows alone is neither read nor divided in an iteration; a residual is asked for while products run."""
    kernel = _made("between").kernel
    loops = [n for n in nodes(kernel) if isinstance(n, ir.For) and n.start == k.declare("int", "step", 0)]
    assert loops and not any("m_sqrt" in called(n) for n in loops) and "m_sqrt" in called(kernel)
    assert len(calls(kernel, "fetch_ahead")) == 1 and not any("fetch_ahead" in called(n) for n in loops)


def test_small_products_of_parts_come_first() -> None:
    """Those that are left out are 2^-24 of a product."""
    assert PAIRS[-1] == (0, 0) and [sum(x) for x in PAIRS] == [2, 2, 2, 1, 1, 0] and len(set(PAIRS)) == 6


def test_exponentials_follow_the_late_product_and_maxima_do_not() -> None:
    kernel = _made("attention").kernel
    scores, words = (called(function(kernel, f)) for f in ("scores", "words"))
    assert "top_of_row" in scores and "exp_below" not in scores
    assert words.index("exp_below") < words.index("pack")
    (loop,) = [n for n in nodes(kernel) if isinstance(n, ir.For) and n.start == k.declare("int", "step", 1)]
    order = [f for f in called(loop) if f in ("scores", "products_wait", "__any_sync", "words")]
    assert order == ["products_wait", "scores", "products_wait", "__any_sync", "words"]


def test_a_maximum_stays_behind_only_where_weights_stay_small() -> None:
    """Weights of up to 2^8 may not meet another factor before they are numbers of 16 bits."""
    assert calls(_made("attention").kernel, "raised")
    assert not calls(_made("keynorm").kernel, "raised")


# --- boxes ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [*CASES, *FLOATS])
def test_boxes_cover_tiles_once(name: str) -> None:
    """What the blocks of a cluster bring together is the tile."""
    made = _made(name)
    planned = plan(*made[:3])
    for t in planned.tiles:
        loads = list(dict.fromkeys(c for c in calls(made.kernel, "load_box") if t.name in k.names_in(c.args[0])))
        shared = any(ir.Literal("true") in c.function.args for c in loads if isinstance(c.function, ir.Name))
        height = next(d.box for d in tensor_map(planned, t, shared).dimensions if d.axis == t.outer)
        ranks = range(planned.cluster if shared else 1)
        places = [value(c.args[0], {"rank": rank, t.name: 0}) for c in loads for rank in ranks]
        covered = [at + row * 128 for at in places for row in range(height)]
        assert sorted(covered) == list(range(0, t.bytes, 128)), t.name


def value(e: ir.Expression, names: Mapping[str, int]) -> int:
    """Sums and products of whole numbers and names."""
    match e:
        case ir.Literal(text):
            return int(text)
        case ir.Name((name,)):
            return names[name]
        case ir.Binary("+", x, y):
            return value(x, names) + value(y, names)
        case ir.Binary("*", x, y):
            return value(x, names) * value(y, names)
    raise AssertionError(e)


def test_rings_expect_the_bytes_of_their_tiles() -> None:
    for name in CASES | FLOATS:
        made = _made(name)
        planned = plan(*made[:3])
        wanted = {sum(t.bytes for t in planned.ring(r)) for r in {t.ring for t in planned.tiles}}
        assert {value(c.args[0], {}) for c in calls(made.kernel, "expect")} == wanted


# --- refusals -------------------------------------------------------------------------------------------------------------
def _refused(build: Build, dtype: DType, change: Callable[[Schedule], Schedule], target: str = "sm_90a") -> set[str]:
    p = program(build, dtype)
    reasons = set()
    for g in SEARCHER.blocks(p)[0]:
        if g.split or g.loop is None:
            continue
        s = change(_schedule(p, g, (128, 64, 64, 12, 2), {}))
        try:
            source("refused", p, single(p, g), [s], load_target(target), "")
            return set()
        except Refused as reason:
            reasons.add(str(reason))
    return reasons


def test_what_does_not_suit_is_refused_with_a_reason() -> None:
    def same(s: Schedule) -> Schedule:
        return s

    def odd(g: Graph, t: DType) -> Sequence[int]:
        return _attention(g, t, 333)

    assert any("loaded tiles alone" in r for r in _refused(_attention, F32, same))
    assert any("in f64" in r for r in _refused(_norm_linear, F64, same))
    assert any("sm_80 has no products of warpgroups" in r for r in _refused(_norm_linear, F16, same, "sm_80"))
    assert any("multiples of 16 bytes" in r for r in _refused(odd, F16, same))
    assert any("no multiple of 64" in r for r in _refused(_norm_linear, F16, lambda s: replace(s, loop=32)))
    assert any("rows for" in r for r in _refused(_norm_linear, F16, lambda s: replace(s, warps=16)))
    assert any("bytes of shared memory" in r for r in _refused(_norm_linear, F16, lambda s: replace(s, stages=32)))
    wide = _refused(_gain_gated, F16, lambda s: replace(s, tiles=tuple((a, 256) for a, _ in s.tiles)))
    assert any("registers" in r for r in wide)


# --- schedules ------------------------------------------------------------------------------------------------------------
def _ranked(build: Build, target: str = "sm_90a") -> list[Plan]:
    p = program(build, F16)
    found = []
    for g in SEARCHER.blocks(p)[0]:
        for r in engine_ranked("warpgroup", p, g, load_target(target), 4):
            assert r.prediction.shared <= TARGET.shared_bytes
            try:
                source("ranked", p, single(p, g), [r.schedule], load_target(target), "")
            except Refused:
                continue
            found.append(plan(p, g, r.schedule))
    return found


@pytest.mark.parametrize("build", [_norm_linear, _heads, _gain_gated, _attention, _grouped, _key_norm])
def test_schedules_for_many_rows(build: Build) -> None:
    assert _ranked(build)
    assert not _ranked(build, "sm_80")


def test_matrix_instructions_find_the_registers_that_threads_begin_with() -> None:
    """Two blocks of three warpgroups have 80 each; one of 128 columns holds 64 results, and the compiler needs 90."""
    p = program(_linear_turned, F16)
    columns: dict[int, set[int]] = {1: set(), 2: set()}
    for g in SEARCHER.blocks(p)[0]:
        try:
            model = WarpgroupModel(p, g, TARGET, {})
        except Refused:
            continue
        for s in model.schedules():
            if s.warps == 12:
                columns[s.number("resident")].update(n for a, n in s.tiles if a not in (model.rows, g.loop))
    assert columns[2] == {64} and {64, 128, 256} <= columns[1]


def test_no_schedules_for_few_rows() -> None:
    def few(g: Graph, t: DType) -> Sequence[int]:
        return [compose.linear(g, g.input("x", (16, 136), t), g.input("w", (136, 264), t, True))]

    assert not _ranked(few)


def test_no_schedules_where_rows_do_not_begin_at_multiples_of_16_bytes() -> None:
    """They would take the places of those of other engines."""

    def square(g: Graph, t: DType) -> Sequence[int]:
        n = symbol("n")
        return [compose.matmul(g, g.input("x", (n, n), t), g.input("y", (n, 31), t))]

    found = SEARCHER.search(program(square, F16), TARGET).candidates
    assert {s.engine for c in found for s in c.schedules} == {"block"}


# --- nvcc -----------------------------------------------------------------------------------------------------------------
@pytest.mark.nvcc
def test_nvcc_keeps_fragments_in_registers(tmp_path: Path) -> None:
    """No warning, nothing spilled, no product that waits for another one."""
    nvcc = found_nvcc()
    lines = [f'#include "mirage/{h}"' for h in ("cuda/launch.cuh", "cuda/warpgroup_split.cuh", "entry.h")]
    for name, dtype in (
        ("norm", F16),
        ("gated", BF16),
        ("attention", F16),
        ("ahead", F16),
        ("kept", F16),
        ("keynorm", BF16),
        ("between", F32),
        ("beside", F32),
    ):
        lines += [f"namespace of_{name} {{", _made(name, dtype).text, "}"]
    lines += ["namespace of_split {", _split().text, "}"]
    said = compiled(nvcc, "\n".join(lines), tmp_path, "sm_90a", made="-fatbin")
    assert set(re.findall(r"(\d+) bytes (?:stack frame|spill)", said)) == {"0"}
    assert not re.findall(r"C75\d\d", said)


@pytest.mark.parametrize(("consumers", "resident"), [(2, 1), (3, 1), (1, 2), (2, 2)])
def test_roles_take_no_more_registers_than_a_block_begins_with(consumers: int, resident: int) -> None:
    # A thread begins with what `__launch_bounds__` leaves it, in steps of 8; a warpgroup that asks for more than others
    # have given back waits for ever.
    begin = 65536 // (128 * (consumers + 1) * resident) // 8 * 8
    taken = PRODUCER_REGISTERS + consumers * consumer_registers(consumers, resident)
    assert begin * (consumers + 1) - 8 * consumers < taken <= begin * (consumers + 1)
