"""Kernels without some of the optimizer passes: as right as with them, and as much worse as they should be; stores along
axes that an output lacks; functions that only several kernels need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_cli.codegen.requests.passes import ALL, BLOCK_PASSES, PASSES, Passes, without
from mirage_cli.codegen.source import source
from mirage_cli.codegen.tiles.access import shared_halves, synchronises
from mirage_cli.codegen.tiles.memory import least_bytes, live_ranges, nbytes
from mirage_cli.codegen.tiles.optimize import optimized, price
from mirage_cli.codegen.tiles.order import barrier_counts
from mirage_cli.codegen.tiles.tile import Barrier, Load, Store, TileProgram
from mirage_cli.codegen.tiles.traffic import layout_cost
from mirage_cli.errors import UsageError
from mirage_cli.kernel_language import build
from mirage_cli.lax.dtypes import F16, F32, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.finish.unfuse import unfused, unfused_block
from mirage_cli.search.mugraph.mugraph import (
    PROLOGUE,
    BlockGraph,
    BlockOp,
    CustomKernel,
    KernelGraph,
    ThreadGraph,
    ThreadNode,
)
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from samples import passes as table

from . import kernels
from .kernels import Case, cases
from .programs import NAMED, program
from .strip_programs import NAMED as STRIPS

OFF = [*((name,) for name in BLOCK_PASSES), PASSES]
PICKED = ("attention_boolean", "layer_norm_gelu", "deep")


def variants(case: Case) -> list[Case]:
    """A case without each pass, and without all of them."""
    found = []
    for k, names in enumerate(OFF):
        passes = without(names)
        graph = case.graph if passes.fusion else unfused(case.graph)
        found.append(replace(case, name=f"{case.name}off{k}", graph=graph, passes=passes))
    return found


def some(target: str) -> list[Case]:
    """Kernels with a softmax, with several sums, and (for CUDA) with a reduction over blocks."""
    found: list[Case] = []
    for name, dtype in zip(PICKED, (F16, F32, F16), strict=True):
        split = name == "deep" and target != "cpu"
        kind = (lambda g: bool(g.split)) if split else None
        found += cases(name.replace("_", ""), program(NAMED[name], dtype), target, 1, 3, kind)
    assert len(found) == len(PICKED)
    return found


def tile(case: Case) -> TileProgram:
    (found,) = case.render().tiles
    return found


@pytest.fixture(scope="module")
def on_gpu() -> list[Case]:
    return some("sm_80")


def test_cpu_kernels_without_passes_are_right(tmp_path: Path) -> None:
    every = [v for c in some("cpu")[:2] for v in variants(c) if v.passes.off != ("layouts",)]
    texts = {c.name: c.render().text for c in every}
    assert len(set(texts.values())) == len(every)
    harness = kernels.build(texts, tmp_path, kernels.CPU_FLAGS)
    assert kernels.run(harness, every) == []


def test_cuda_kernels_without_passes_are_right(on_gpu: list[Case]) -> None:
    assert kernels.problems(v for c in on_gpu for v in variants(c)) == []


def test_each_pass_is_worth_something(on_gpu: list[Case]) -> None:
    full = [tile(c) for c in on_gpu]
    plain = {names: [tile(variants(c)[k]) for c in on_gpu] for k, names in enumerate(OFF)}

    def barriers(tiles: Sequence[TileProgram]) -> list[int]:
        return [sum(barrier_counts(t)) for t in tiles]

    def costs(tiles: Sequence[TileProgram]) -> list[int]:
        return [layout_cost(t) for t in tiles]

    assert all(a <= b for a, b in zip(costs(full), costs(plain[("layouts",)]), strict=True))
    assert sum(costs(full)) < sum(costs(plain[("layouts",)]))
    assert all(a <= b for a, b in zip(barriers(full), barriers(plain[("order",)]), strict=True))
    assert sum(barriers(full)) < sum(barriers(plain[("fusion",)]))
    for a, b in zip(full, plain[("memory",)], strict=True):
        assert b.shared_bytes == sum(nbytes(b, x) for x in b.offsets) > a.shared_bytes
    assert sum(len(t.offsets) for t in full) < sum(len(t.offsets) for t in plain[("fusion",)])


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
@pytest.mark.parametrize("name", list(NAMED))
def test_the_best_order_is_no_worse_than_the_given_one(name: str, target: str) -> None:
    """And its memory plan is the least that its order (for CUDA: with its barriers) allows."""
    for case in cases("k", program(NAMED[name], F16), target, 2, 4):
        best, given = tile(case), tile(replace(case, passes=Passes(order=False)))
        assert price(best) <= price(given)
        between = least_bytes(best, intervals=target != "cpu")
        assert best.shared_bytes == (between if between <= best.shared_bytes else least_bytes(best))


@pytest.mark.parametrize("name", ["attention_boolean", "layer_norm_gelu", "two_outputs", "deep"])
def test_no_barrier_is_missing_or_idle(name: str) -> None:
    """Between two barriers nothing that was written is read or overwritten; without any one of them something would be."""
    for case in cases("k", program(NAMED[name], F16), "sm_80", 3, 6):
        t = tile(case)
        prologue = [n for n in t.prologue if not isinstance(n, Load)]
        for nodes in (prologue, t.body, t.epilogue) if t.graph.loop else ([*prologue, *t.epilogue],):
            clear = [k for k, n in enumerate(nodes) if isinstance(n, Barrier)]
            assert not conflicts(t, nodes)
            assert all(conflicts(t, [n for j, n in enumerate(nodes) if j != k]) for k in clear)


def conflicts(t: TileProgram, nodes: Sequence[Any]) -> bool:
    """Whether some bytes are written and touched again without a barrier in between."""
    read: set[int] = set()
    written: set[int] = set()

    def lines(names: frozenset[str]) -> set[int]:
        return {at // 128 for b in names for at in range(t.offsets[b], t.offsets[b] + nbytes(t, b), 128)}

    for n in nodes:
        if isinstance(n, Load):  # ahead of the loop, or of everything
            continue
        if isinstance(n, Barrier):
            read, written = set(), set()
            continue
        (reads, writes), (reads_behind, writes_behind) = shared_halves(t, n)
        if lines(reads) & written or lines(writes) & (read | written):
            return True
        if synchronises(n):
            read, written = lines(reads_behind), lines(writes_behind)
        else:
            read, written = read | lines(reads), written | lines(writes)
    return False


def test_an_unfused_graph_has_single_operators(on_gpu: list[Case]) -> None:
    for case in on_gpu:
        (kernel,) = case.graph.kernels
        single = unfused_block(kernel.block).validate(kernel.program)
        assert len(single.ops) > len(kernel.block.ops)
        assert all(len(o.thread.nodes) == 1 for o in single.ops if o.thread is not None)
        assert all(o.name.isidentifier() for o in single.ops)


def test_kernels_without_overlap_are_launched_one_after_the_other() -> None:
    p = program(STRIPS["long_attention"], F16)
    found = Searcher(SearchOptions(engines=("strip",))).search(p, load_target("sm_90a")).candidates
    best = next(c for c in found if c.schedules[0].engine == "strip")
    texts = [
        source("a", p, best.graph, best.schedules, load_target("sm_90a"), "", q).text
        for q in (ALL, without(["overlap"]))
    ]
    assert [", true, stream, p)" in t for t in texts] == [True, False]
    assert texts[0] == texts[1].replace(", false, stream, p)", ", true, stream, p)")


def test_without_their_engines_kernels_are_those_of_blocks() -> None:
    p = program(NAMED["deep"], F16)
    found = Searcher(SearchOptions(engines=())).search(p, load_target("sm_90a")).candidates
    assert {s.engine for c in found for s in c.schedules} == {"block"}


def test_unknown_passes_are_named() -> None:
    assert without([]) == ALL and without(PASSES).off == PASSES
    with pytest.raises(UsageError, match="unknown pass 'speed'"):
        without(["order", "speed"])


# --- stores along axes that an output lacks ---------------------------------------------------------------------------------
def _rows_and_products(g: Graph, t: DType) -> Sequence[int]:
    """Outputs [h, q, d] and [h, q, 1]: the grid may split d, which the second one lacks."""
    x, w = g.input("x", (2, 5, 33), t), g.input("w", (2, 33, 20), t)
    return [compose.matmul(g, x, w), g.reduce("sum", compose.square(g, x), [2])]


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
def test_one_of_several_blocks_stores(target: str, tmp_path: Path) -> None:
    found: list[Case] = []
    for case in cases("rows", program(_rows_and_products, F32), target, 12, 1, lambda g: not g.split):
        t = tile(case)
        lacking = {axis for n in t.epilogue if isinstance(n, Store) for axis in n.once}
        for axis in lacking:
            assert build.binary("==", f"{axis}_at", 0) in kernels.parts(case.render().kernels)
        for n in t.epilogue:
            if isinstance(n, Store):
                own = {s.axis for s in t.program.outputs[n.output].access}
                several = {a for a, size in t.schedule.tiles if size < t.program.extent(a)}  # type: ignore[operator]
                assert set(n.once) == several - own
        if lacking:
            found.append(case)
    assert found
    if target == "cpu":
        harness = kernels.build({c.name: c.render().text for c in found[:2]}, tmp_path, kernels.CPU_FLAGS)
        assert kernels.run(harness, found[:2]) == []
    else:
        assert kernels.problems(found[:2]) == []


# --- exp_difference ---------------------------------------------------------------------------------------------------------
def _difference(p: Program, target: str) -> Case:
    """A kernel that computes exp(a - b) of two inputs."""
    loads = tuple(BlockOp(f"t{k}", "load", (), PROLOGUE, source_value=i.name) for k, i in enumerate(p.inputs))
    weight = BlockOp(
        "w", "thread", ("t0", "t1"), PROLOGUE, thread=ThreadGraph(2, (ThreadNode("exp_difference", (0, 1)),))
    )
    block = BlockGraph((p.axes[0].name,), (), None, (*loads, weight), ("w",))
    graph = KernelGraph(2, 1, 3, (CustomKernel(p, block, (0, 1), (2,)),))
    schedule = Schedule(((block.grid[0], 2),), 0, *((1, 1) if target == "cpu" else (4, 2)))
    return Case(f"difference{target.replace('_', '')}", p, graph, (schedule,), load_target(target))


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
def test_weights_of_shares(target: str, tmp_path: Path) -> None:
    """exp(a - b), and 1 where both are -inf."""
    p = program(lambda g, t: [g.map("add", g.input("a", (3, 17), t), g.input("b", (3, 17), t))], F32)
    case = _difference(p, target)
    random = np.random.default_rng(0)
    arrays: list[NDArray[Any]] = [random.uniform(-9, 0, (3, 17)).astype(np.float32) for _ in p.sources]
    arrays[0][0, :5] = -np.inf
    arrays[1][0, :3] = -np.inf
    if target == "cpu":
        harness = kernels.build({case.name: case.render().text}, tmp_path, kernels.CPU_FLAGS)
        (found,) = kernels.call(harness, case, arrays)
    else:
        (found,) = kernels.answered(case, arrays)
    named = [arrays[i.source] for i in p.inputs]
    with np.errstate(invalid="ignore"):
        wanted = np.where(named[0] == named[1], 1.0, np.exp(named[0] - named[1]))
    assert not isinstance(found, str)
    np.testing.assert_allclose(found.reshape(3, 17), wanted, rtol=1e-5)


# --- the table --------------------------------------------------------------------------------------------------------------
def test_the_table_of_passes(capsys: pytest.CaptureFixture[str]) -> None:
    table.main(["osdi_rmsnorm", "layer_norm_linear_gelu_fp16"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:4]] == ["`osdi_rmsnorm`", "`layer_norm_linear_gelu_fp16`"]
    assert all(len(line.split("|")) == len(table.HEADER) + 2 for line in lines[:4])
    assert lines[5].startswith("2 of 2 memory plans")


def test_lives_between_barriers_cover_lives_in_nodes() -> None:
    """What is alive together at some node is alive together in some interval."""
    for case in cases("k", program(NAMED["attention_boolean"], F16), "sm_80", 3, 2):
        t = optimized(tile(case))
        nodes, intervals = live_ranges(t), live_ranges(t, intervals=True)
        for x, (a, b) in nodes.items():
            for y, (c, d) in nodes.items():
                (low, high), (first, last) = intervals[x], intervals[y]
                assert not (a <= d and c <= b) or (low <= last and first <= high), (x, y)
