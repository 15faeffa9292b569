"""The engine `strip`: run by the interpreter (right answers, nothing read or written outside of tensors, dependent launches
and clusters as the hardware wants them), under nvcc, as golden text, and what it refuses.

MIRAGE_MANY=N draws N kernels of every program, and 10 N of random ones.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_cli.codegen.strip.engine import StripProgram
from mirage_cli.errors import Refused
from mirage_cli.kernel_language.build import names_in
from mirage_cli.lax.dtypes import BF16, F16, F32, I64, DType
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import program_from_json
from mirage_cli.runtime.sessions import numpy_type
from mirage_cli.search.mugraph.documents import graph_from_json, graph_to_json
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.schedules.ranking import engine_ranked
from mirage_cli.search.schedules.schedule import Schedule, schedule_from_json
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen import gains, kernels
from tests.codegen.kernels import Case, single
from tests.codegen.programs import ROWS, program
from tests.codegen.strip_programs import (
    FULL_SIZE,
    HOPPER,
    NAMED,
    TRIES,
    WATCHED,
    block_graphs,
    drawn,
    random_strip,
    shared_case,
    strip_cases,
)
from tests.codegen.test_cuda_compiles import compiled, found_nvcc, in_namespaces
from tests.kernel_language.trees import calls

EDGES = 9  #: inputs at the edges of numbers, of which some kernels take a third each
MANY = int(os.environ.get("MIRAGE_MANY", "0"))
GOLDEN = Path(__file__).parents[1] / "golden"
WAITS = (r"wait_together<GROUP>\(1 \+ group\)", r"__syncthreads\(\)", r"cluster_\w+\(\)", r"copy_wait<\d+>\(\)")
LEAST = -(2.0 - 2.0**-7) * 2.0**127  #: of bfloat16
WAIT = re.compile(rf"^ *((?:{'|'.join(WAITS)}|wait_for_earlier\(\));)$", re.M)


def _drawn(count: int, first: int = 0) -> Iterator[Case]:
    for k, (name, build) in enumerate(NAMED.items()):
        p = program(build, (F16, BF16, F32)[(k + first) % 3])
        yield from strip_cases(f"{name}of{first}", p, "sm_90a", count, k + first, block_graphs(p))


def _random(seeds: Sequence[int]) -> Iterator[Case]:
    for seed in seeds:
        build, dtype = random_strip(seed)
        p = program(build, dtype)
        yield from strip_cases(f"random{seed}of", p, "sm_90a", 1, seed, block_graphs(p))


@pytest.fixture(scope="module")
def all_cases() -> list[Case]:
    return [*_drawn(1), shared_case("of", program(NAMED["long_attention"], F16), 3, 1)]


# --- answers --------------------------------------------------------------------------------------------------------------
def test_strips_are_right(all_cases: list[Case]) -> None:
    """Tiles lie in the ring, and what groups merge lies where it was."""
    assert {c.name.rpartition("of")[0] for c in all_cases} == {*NAMED, ""}
    assert {bool(c.graph.kernels[0].block.split) for c in all_cases} == {False, True}
    assert kernels.problems(all_cases) == kernels.problems(all_cases[::6], at_once=True) == []
    assert kernels.edges(kernels.answered, all_cases[::6], EDGES, 3) == []


def test_rows_that_overflow_with_their_gain() -> None:
    assert gains.problem(gains.strip()) == ""


def test_inputs_are_read_within_their_extents() -> None:
    """Norms of queries and keys, multiplied by numbers for each row and column, of which padding has none."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        q, k, v = (g.input(n, e, t) for n, e in (("q", (2, 19, 16)), ("k", (2, 76, 16)), ("v", (2, 76, 32))))
        k = g.transpose(k, (0, 2, 1))
        q, k = compose.rms_norm(g, q, [2], 1e-3), compose.rms_norm(g, k, [1], 1e-3)
        q, k = g.map("mul", q, g.input("r", (19, 1), t)), g.map("mul", k, g.input("c", (1, 76), t))
        return [compose.matmul(g, compose.softmax(g, compose.matmul(g, q, k), [2]), v)]

    p = program(build, F16)
    found = list(strip_cases("scaled", p, "sm_90a", 2, 3, block_graphs(p)))
    assert len(found) == 2 and kernels.problems(found) == []


@pytest.mark.skipif(not MANY, reason="MIRAGE_MANY is not set")
def test_many_strips() -> None:
    found = [*_drawn(MANY, 1), *_random(range(10 * MANY))]
    assert kernels.problems(found) == kernels.problems(found, at_once=True) == []


def test_rows_without_any_key() -> None:
    """Rows whose every score is -inf, or the least number of the type, and a score that hides all others."""
    p = program(NAMED["additive"], BF16)
    found = [*strip_cases("masked", p, "sm_90a", 2, 5, block_graphs(p))]
    assert len(found) == 2
    for case in found:
        arrays = case.inputs()
        (k,) = [k for k, a in enumerate(arrays) if a.shape == (5, 72)]
        arrays[k] = _hard_mask(arrays[k])
        results = kernels.answered(case, arrays)
        assert not isinstance(results, str), results
        assert case.problem(results, arrays) == ""


def _hard_mask(mask: NDArray[np.generic]) -> NDArray[np.generic]:
    """Rows: all -inf; all the least number; a large one but for one key; -inf but for the last key; all a large one."""
    rows = mask.astype(np.float64)
    rows[0], rows[1], rows[2], rows[3], rows[4] = -np.inf, LEAST, -1e9, -np.inf, -1e9
    rows[2, 40], rows[3, 71] = 1.0, 2.0
    return rows.astype(numpy_type(BF16))


# --- what is refused ------------------------------------------------------------------------------------------------------
def test_what_strips_refuse() -> None:
    p = program(NAMED["linear"], F16)
    whole, split = (next(b for b in block_graphs(p) if bool(b.split) == parted) for parted in (False, True))
    good = Schedule((("a", 8), ("b", 16)), 16, 4, 2, "strip", (("members", 1),))
    assert Case("x", p, single(p, whole), (good,), HOPPER).renders()
    parts = replace(good, tiles=(*good.tiles, ("c", 48)))
    assert Case("x", p, single(p, split), (parts,), HOPPER).renders()
    with pytest.raises(Refused, match="4 warps are no groups of 3"):
        Case("x", p, single(p, whole), (replace(good, numbers=(("members", 3),)),), HOPPER).render()
    with pytest.raises(Refused, match=r"tiles of x. are not aligned to 16 bytes"):
        Case("x", p, single(p, whole), (replace(good, tiles=(("a", 8), ("b", 12))),), HOPPER).render()
    with pytest.raises(Refused, match="bytes of shared memory"):
        Case("x", p, single(p, whole), (good,), replace(HOPPER, shared_bytes=4096)).render()
    with pytest.raises(Refused, match="1 blocks would make a cluster"):
        alone = replace(parts, tiles=(*good.tiles, ("c", 144)))
        Case("x", p, single(p, split), (alone,), HOPPER).render()
    with pytest.raises(Refused, match="sm_80 has no clusters"):
        Case("x", p, single(p, split), (parts,), load_target("sm_80")).render()


def test_few_blocks_keep_multiprocessors_but_for_many_large_clusters() -> None:
    """Clusters of four need four multiprocessors near each other at one time, which others would have to leave first:
    Qwen3-0.6B's output projection by 22 of them took 3 microseconds longer in its step so."""
    p = program(NAMED["linear"], F16)
    whole, split = (next(b for b in block_graphs(p) if bool(b.split) == parted) for parted in (False, True))
    good = Schedule((("a", 8), ("b", 16)), 16, 4, 2, "strip", (("members", 1),))

    def asked(block: BlockGraph, schedule: Schedule) -> int:
        (memory,) = Case("x", p, single(p, block), (schedule,), HOPPER).render().memory
        return memory.shared_bytes

    room = HOPPER.shared_total // 2
    clusters = {n: asked(split, replace(good, tiles=(*good.tiles, ("c", 144 // n)))) for n in (3, 9)}
    assert asked(whole, good) == clusters[3] == room  # 4 blocks, and 12
    assert clusters[9] < room  # 36
    assert asked(whole, replace(good, numbers=(*good.numbers, ("late", 1)))) < room


@pytest.mark.parametrize("name", ["rms_gain", "lora", "causal", "grouped"])
def test_what_is_ranked_is_made(name: str) -> None:
    """Nearly all schedules that the cost model is asked about suit the engine."""
    p = program(NAMED[name], F16)
    ranked = [(b, r.schedule) for b in block_graphs(p) for r in engine_ranked("strip", p, b, HOPPER, 2)]
    made = [b for b, schedule in ranked if Case("x", p, single(p, b), (schedule,), HOPPER).renders()]
    assert ranked and len(made) > 0.75 * len(ranked)


# --- text -----------------------------------------------------------------------------------------------------------------
KEPT = GOLDEN / "strip.json"  #: programs with their muGraphs and schedules, so that the search does not matter here


def _write_kept() -> None:
    """The cases of the golden texts, and those whose waits are left out: two groups of two warps (of four, where warps share
    columns), the least ring, a few iterations, and work behind the loop for several warps."""
    data = {}
    for name, build in {"golden": NAMED["grouped_qknorm"], **WATCHED}.items():
        numbers = (("members", 2), *((("across", 2),) if name == "across" else ()))
        p, random = program(build, F16), np.random.default_rng(3)
        graphs = [b for b in block_graphs(p) if bool(b.split) == (name != "gain")]
        for _ in range(TRIES):
            block = graphs[int(random.integers(len(graphs)))]
            s = drawn(p, block, random)
            tiles = tuple((a, n if n == 1 or a in block.split else 24) for a, n in s.tiles)
            s = replace(s, tiles=tiles, warps=2 * math.prod(n for _, n in numbers), stages=2, numbers=numbers)
            turns = s.tile(block.loop or "") if block.loop in block.split else p.extent(block.loop or "")
            case = Case(name, p, single(p, block), (s,), HOPPER)
            if isinstance(turns, int) and turns >= (3 if name in WATCHED else 1) * s.loop and case.renders():
                data[name] = [p.to_json(), graph_to_json(case.graph), s.to_json()]
                break
    KEPT.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(d)}" for k, d in data.items()) + "\n}\n")


def _kept(name: str) -> Case:
    if os.environ.get("MIRAGE_GOLDEN") and not KEPT.exists():
        _write_kept()
    fragment, graph, schedule = json.loads(KEPT.read_text())[name]
    return Case(name, program_from_json(fragment), graph_from_json(graph), (schedule_from_json(schedule),), HOPPER)


@pytest.mark.parametrize(("kept", "file"), [("golden", "strip"), ("across", "strip_across")])
def test_text_is_as_it_was(kept: str, file: str) -> None:
    """As it is kept in golden/; MIRAGE_GOLDEN=1 writes it anew, of the muGraph that is kept there."""
    rendered = _kept(kept).render()
    for name, text in ((f"{file}.cu", rendered.text), (f"{file}.txt", rendered.tiles[0].text() + "\n")):
        if os.environ.get("MIRAGE_GOLDEN"):
            (GOLDEN / name).write_text(text)
        assert text == (GOLDEN / name).read_text(), f"{name} differs; MIRAGE_GOLDEN=1 accepts the new text"


@pytest.mark.parametrize("name", ["rms_gain", "mixed", "converted", "chosen"])
def test_computed_tiles_are_made_of_tiles(name: str) -> None:
    """All that an operand is computed from is copied ahead to the ring and read by whole chunks."""
    p = program(NAMED[name], F16)
    ranked = [(b, r.schedule) for b in block_graphs(p) if not b.split for r in engine_ranked("strip", p, b, HOPPER, 1)]
    made = [Case("x", p, single(p, b), (s,), HOPPER).render() for b, s in ranked]
    inputs = {i.name for r in made for t in r.kernels for i in t.fields if i.type.const}
    for (tile,) in (r.tiles for r in made):
        assert isinstance(tile, StripProgram)
        body = dict(tile.phases)["body"]
        assert {"tile_floats", "put_vector"} <= names_in(body)
        assert all(names_in(c.args).isdisjoint(inputs) for c in calls(body, "to_float"))
    assert made and inputs


# --- nvcc -----------------------------------------------------------------------------------------------------------------
@pytest.mark.nvcc
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_strips_compile_without_spills(target: str, tmp_path: Path) -> None:
    nvcc = found_nvcc()
    found = [*_full_size(target)]
    assert len(found) == len(FULL_SIZE)
    said = compiled(nvcc, in_namespaces({c.name: c.render().text for c in found}), tmp_path, target, made="-fatbin")
    assert len(re.findall(r"Used \d+ registers", said)) == len(found)
    assert set(re.findall(r"(\d+) bytes (?:stack frame|spill)", said)) == {"0"}


def _full_size(target: str) -> Iterator[Case]:
    """The schedules that the cost model likes best."""
    machine = load_target(target)
    for name, build in FULL_SIZE.items():
        p = program(build, F16)
        graphs = [b for b in block_graphs(p) if machine.features.clusters or not b.split]
        ranks = [
            (r.order, n, b, r.schedule) for n, b in enumerate(graphs) for r in engine_ranked("strip", p, b, machine, 2)
        ]
        for _, _, block, schedule in sorted(ranks, key=lambda r: r[:2]):
            case = Case(name, p, single(p, block), (schedule,), machine)
            if case.renders():
                yield case
                break


def test_a_product_of_sums_has_predicted_times() -> None:
    """Nothing is copied in stages there: what is multiplied is computed of what is read."""

    def sums(g: Graph, t: DType) -> Sequence[int]:
        a, b = (g.reduce("sum", g.input(n, s, t), [1]) for n, s in (("x", (3, 7, 31)), ("y", (31, 5, 33))))
        return [compose.matmul(g, g.reshape(a, (3, 31)), g.reshape(b, (31, 33)))]

    found = Searcher(SearchOptions()).search(program(sums, F32), HOPPER).candidates
    assert found and all(c.predicted_us > 0 for c in found)


def test_what_is_computed_of_rows_that_are_not_aligned_is_left_to_other_engines() -> None:
    """Strips took the places of all candidates, and none could be rendered."""

    def build(g: Graph, t: DType) -> list[int]:
        x, y = (g.map("sigmoid", g.input(name, (ROWS, 2), t)) for name in "xy")
        return [compose.matmul(g, g.transpose(x, (1, 0)), y)]

    p = program(build, BF16)
    found = list(Searcher(SearchOptions(candidates=2)).search(p, load_target("sm_90a")).candidates)
    assert found and all(Case("narrow", p, c.graph, c.schedules, load_target("sm_90a")).renders() for c in found)


def test_what_a_block_knows_before_its_loop_hides_what_the_loop_reads() -> None:
    """Values that were never written: the loop compares its positions with the last one of the block's sequence."""

    def build(g: Graph, t: DType) -> list[int]:
        keys, last = g.input("keys", (symbol("t"),), I64), g.input("last", (3,), I64)
        queries = g.input("queries", (3, 4, 64), t)
        cached_keys, cache = (g.slice(g.input(n, (3, symbol("(f+t)"), 64), t), 1, 0, symbol("t")) for n in "kv")
        scores = g.contract(queries, cached_keys, [0, 1, 3], [0, 2, 3], [0, 1, 2])
        seen = g.map("le", g.reshape(keys, (symbol("t"), 1)), g.reshape(last, (3, 1, 1)))
        clean = g.map("where", seen, cache, g.fill(0, t))
        return [g.contract(compose.softmax(g, scores, [2]), clean, [0, 1, 2], [0, 2, 3], [0, 1, 3])]

    p = program(build, F16)
    found = Searcher(SearchOptions(candidates=2, engines=("strip",))).search(p, HOPPER).candidates
    own = [c for c in found if c.schedules[0].engine == "strip"]
    assert own and all(Case("hidden", p, c.graph, c.schedules, HOPPER).renders() for c in own[:4])
