"""The engine `rows`: run by the interpreter, under nvcc, as golden text, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from mirage_cli.codegen import engines
from mirage_cli.codegen.requests.request import Kernel, Request
from mirage_cli.codegen.rows.engine import CLUSTER_ARRIVE, CLUSTER_WAIT, SYNC, rows_kernel
from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import BF16, F16, F32, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.finish.split_reduction import two_kernels
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.mugraph.row_values import rows_of
from mirage_cli.search.schedules.ranking import MODELS, engine_ranked
from mirage_cli.search.schedules.ranking import ranked as all_ranked
from mirage_cli.search.schedules.rows import Shape, check, predicted_us, schedule_of, shape_of, shapes
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen import kernels
from tests.codegen.kernels import Case, single
from tests.codegen.programs import NAMED as CONTRACTIONS
from tests.codegen.programs import ROWS, program
from tests.codegen.row_programs import NAMED, random_rows, row_cases, whole_graph
from tests.codegen.test_cuda_compiles import compiled, found_nvcc
from tests.codegen.test_golden import compare

RANDOM = 16
HOPPER = load_target("sm_90a")


def _wide_norm(g: Graph, t: DType) -> list[int]:
    return [compose.rms_norm(g, g.input("x", (3, 4096), t), [1], 1e-5)]


def _graphs(p: Program) -> list[BlockGraph]:
    return [g for g in Searcher(SearchOptions()).blocks(p)[0] if not g.split]


def _shared() -> Iterator[Case]:
    """Rows that two and four blocks share, the 32 warps of one, and rows one after the other."""
    for name, cluster, slots in (("layernorm", 2, 1), ("softmax", 4, 2), ("both", 2, 2)):
        p = program(NAMED[name], F32)
        rows = rows_of(p, graph := whole_graph(p))
        lanes = 64 if rows.length() > 64 else 32
        schedule = schedule_of(p, graph, Shape(lanes, lanes, slots, 1 if slots > 1 else 4, cluster, 1), {})
        yield Case(f"{name}cluster", p, single(p, graph), (schedule,), HOPPER)
    p = program(_wide_norm, F32)
    schedule = schedule_of(p, whole_graph(p), Shape(1024, 1024, 1, 4, 1, 1), {})
    yield Case("manywarps", p, single(p, whole_graph(p)), (schedule,), HOPPER)
    for name, shape in (("layernorm", Shape(64, 64, 1, 8, 1, 1, 2)), ("channels", Shape(128, 4, 6, 4, 1, 0, 2))):
        p = program(NAMED[name], F16 if name == "layernorm" else F32)
        schedule = schedule_of(p, whole_graph(p), shape, {})
        yield Case(f"{name}turns", p, single(p, whole_graph(p)), (schedule,), HOPPER)


def combined() -> Iterator[Case]:
    """Both kernels of a reduction in parts; the second one of this engine."""
    p = program(CONTRACTIONS["deep_attention"], F16)
    for block in Searcher(SearchOptions()).blocks(p)[0]:
        if len(block.split) != 1:
            continue
        try:
            graph = two_kernels(p, block, 2 if p.extent(block.split[0]) != 150 else 5)
            first, second = graph.kernels
            rows = engine_ranked("rows", second.program, second.block, HOPPER, 99)
        except Refused:
            continue
        if rows:
            own = engine_ranked("block", first.program, first.block, HOPPER, 1)
            yield Case(f"combined{block.split[0]}", p, graph, (own[0].schedule, rows[-1].schedule), HOPPER)
            return


@pytest.fixture(scope="module")
def all_cases() -> list[Case]:
    found = [*_shared(), *combined()]
    for k, (name, build) in enumerate(NAMED.items()):
        dtype = (F16, F32, BF16)[k % 3]
        made, target = program(build, dtype), ("sm_80", "sm_90a")[k % 2]
        found += row_cases(f"{name}{dtype.name}", made, target, 2, k, _graphs(made))
    for seed in range(RANDOM):
        build, dtype = random_rows(seed)
        found += row_cases(f"random{seed}", program(build, dtype), "sm_90a", 1, seed)
    return found


def test_rows_are_right(all_cases: list[Case]) -> None:
    assert len(all_cases) == 7 + 2 * len(NAMED) + RANDOM
    assert kernels.problems(all_cases) == []


def _without(number: int) -> engines.OwnEngine:
    """The engine, whose kernels lack one of the two places where threads of a block, or blocks of a cluster, meet."""

    def make(r: Request) -> Kernel:
        made = rows_kernel(r)
        meeting = (SYNC,) if r.schedule.number("cluster") == 1 else (CLUSTER_ARRIVE, CLUSTER_WAIT)
        body, many = made.kernel.body, len(meeting)
        places = [n for n in range(len(body)) if body[n : n + many] == meeting]
        assert len(places) == 2
        shorter = body[: places[number]] + body[places[number] + many :]
        return replace(made, kernel=replace(made.kernel, body=shorter))

    return engines.OwnEngine(MODELS["rows"], make)


def test_a_barrier_that_is_missing_is_found() -> None:
    """Of a block and of a cluster."""
    p = program(NAMED["layernorm"], F16)
    block = schedule_of(p, whole_graph(p), Shape(128, 64, 1, 8), {})
    for case in (Case("block", p, single(p, whole_graph(p)), (block,), HOPPER), next(_shared())):
        for number in range(2):
            with mock.patch.dict(engines.ENGINES, {"rows": _without(number)}):
                (problem,) = kernels.problems([case])
            assert "no barrier between them" in problem or "may not have begun" in problem, (case.name, problem)


# --- what is chosen and what is refused -----------------------------------------------------------------------------------
def test_values_of_a_norm() -> None:
    p = program(_wide_norm, F16)
    rows = rows_of(p, whole_graph(p))
    assert (rows.row, rows.kept, rows.vector, rows.levels, rows.length()) == (("b",), ("a",), "b", 1, 4096)
    assert [v.op for v in rows.values.values() if v.level == 0 and v.op != "const"] == ["load", "mul"]


@pytest.mark.parametrize("name", ["norm", "layernorm", "softmax", "channels", "chain"])
def test_loops_and_whole_rows_are_one(name: str) -> None:
    """Graphs that walk the row give the same values as those that hold it."""
    p = program(NAMED[name], F16)
    texts = {tuple(sorted(v.op for v in rows_of(p, g).values.values() if v.op != "const")) for g in _graphs(p)}
    assert tuple(sorted(v.op for v in rows_of(p, whole_graph(p)).values.values() if v.op != "const")) in texts


def test_the_engine_is_chosen_for_rows_and_only_there() -> None:
    p = program(_wide_norm, F16)
    (best, *_) = all_ranked(p, whole_graph(p), HOPPER, 4)
    assert best.schedule.engine == "rows"
    assert best.schedule.validate(whole_graph(p)) == best.schedule
    assert not engine_ranked("rows", p, whole_graph(p), load_target("cpu"), 4)
    q = program(CONTRACTIONS["matmul"], F16)
    assert not [r for g in _graphs(q) for r in engine_ranked("rows", q, g, HOPPER, 4)]


def test_predictions_are_of_the_shape() -> None:
    """A schedule says what its shape was; more rows never take less time."""
    p = program(_wide_norm, F16)
    rows = rows_of(p, graph := whole_graph(p))
    for shape in shapes(rows, HOPPER):
        assert shape_of(schedule_of(p, graph, shape, {})) == shape
    s = program(NAMED["symbolic"], F16)
    few, many = (
        min(
            predicted_us(s, rows_of(s, whole_graph(s)), x, HOPPER, {"rows": n})
            for x in shapes(rows_of(s, whole_graph(s)), HOPPER)
        )
        for n in (8, 1 << 20)
    )
    assert few < many


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        (Shape(128, 128, 1, 3), "chunks of 3 elements"),
        (Shape(128, 128, 2, 8), "hold 2048 of a row's 4096 positions"),
        (Shape(256, 128, 4, 8, 2), "blocks share rows"),
        (Shape(64, 1, 512, 8), "registers for each thread"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shape: Shape, problem: str) -> None:
    p = program(_wide_norm, F16)
    graph = whole_graph(p)
    case = Case("x", p, single(p, graph), (schedule_of(p, graph, shape, {}),), HOPPER)
    with pytest.raises(Refused, match=problem):
        case.render()


def test_threads_have_room_for_what_others_show_them() -> None:
    """nvcc spills 404 bytes where 32 threads that lie apart share rows, four at a time, and have 64 registers each."""
    p = program(lambda g, t: [compose.matmul(g, g.input("x", (1, 64), t), g.input("w", (64, 56), t))], F32)
    rows = rows_of(p, next(g for g in _graphs(p) if not any(o.op == "contract" for o in g.ops)))
    assert not rows.along
    check(rows, Shape(512, 16, 4, 4), load_target("sm_80"))
    with pytest.raises(Refused, match="about 160 registers"):
        check(rows, Shape(1024, 32, 2, 4), load_target("sm_80"))


def test_a_row_of_unknown_length_is_refused() -> None:
    p = program(lambda g, t: [compose.rms_norm(g, g.input("x", (3, ROWS), t), [1], 1e-5)], F16)
    with pytest.raises(Refused, match="not known before the kernel runs"):
        list(shapes(rows_of(p, whole_graph(p)), HOPPER))


# --- text and nvcc --------------------------------------------------------------------------------------------------------
def test_source() -> None:
    """As it is kept in golden/; MIRAGE_GOLDEN=1 writes it anew."""
    p = program(NAMED["layernorm"], F16)
    schedule = schedule_of(p, whole_graph(p), Shape(128, 64, 1, 8, 1, 1), {})
    case = Case("golden", p, single(p, whole_graph(p)), (schedule,), HOPPER)
    compare("rows.cu", case.render().text)
    compare("rows.txt", case.render().tiles[0].text() + "\n")


@pytest.mark.nvcc
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_sources_compile(target: str, tmp_path: Path) -> None:
    """Without a warning, a spilled register or a local array: the widest for both targets, each other program for one."""
    machine, texts = load_target(target), list[str]()
    programs = {"wide": _wide_norm, **dict([*NAMED.items()][target == "sm_90a" :: 2])}
    for k, (name, build) in enumerate(programs.items()):
        p = program(build, (F16, F32, BF16)[k % 3])
        graph = whole_graph(p)
        found = engine_ranked("rows", p, graph, machine, 99)
        for n, r in enumerate((found[0], found[-1])):
            case = Case(f"{name}{n}", p, single(p, graph), (r.schedule,), machine)
            texts += [f"namespace of_{case.name} {{", case.render().text, "}"]
    headers = [f'#include "{h}"' for h in ("mirage/cuda/launch.cuh", "mirage/cuda/rows.cuh", "mirage/entry.h")]
    made = "-c" if target == "sm_80" else "-fatbin"  # the part of the host is the same for both
    said = compiled(found_nvcc(), "\n".join([*headers, *texts]), tmp_path, target, made=made)
    assert len(re.findall(r"Used (\d+) registers", said)) == 2 * len(programs)
    assert set(re.findall(r"(\d+) bytes (?:stack frame|spill)", said)) == {"0"}
