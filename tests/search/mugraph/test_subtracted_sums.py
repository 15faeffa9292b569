"""Means that are subtracted from their numbers: those of equal numbers are exact on CUDA, so that nothing is left."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_cli.lax.dtypes import BF16, F16, F32, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.search.mugraph.row_values import rows_of
from mirage_cli.search.mugraph.subtracted_sums import Step, subtracted, wide_row_sums, wide_sums
from mirage_cli.search.schedules.rows import Shape, schedule_of
from mirage_cli.search.schedules.target import load_target
from tests.codegen import kernels
from tests.codegen.kernels import Case, single
from tests.codegen.programs import Build, program
from tests.codegen.row_programs import whole_graph

LENGTH = 127  #: the sum of so many equal numbers is rounded in float32, and so is a seventh part of seven of them
HOPPER = load_target("sm_90a")


def _layer_norm(g: Graph, t: DType) -> list[int]:
    return [compose.layer_norm(g, g.input("x", (3, LENGTH), t), [1], 1e-5)]


def _columns(g: Graph, t: DType) -> list[int]:
    x = g.input("x", (LENGTH, 6), t)
    return [compose.layer_norm(g, g.map("add", x, g.input("r", (LENGTH, 6), t)), [0], 1e-5)]


def _cases() -> list[Case]:
    """Rows along memory, of a warp and of a cluster; across it; a block that holds the row, and one that walks it."""
    found = []
    for name, build, shape in (
        ("along", _layer_norm, Shape(64, 2, 64, 1)),
        ("cluster", _layer_norm, Shape(64, 64, 1, 1, 2, 1)),
        ("turns", _layer_norm, Shape(64, 64, 2, 1, 1, 1, 2)),
        ("across", _columns, Shape(64, 8, 16, 2)),
    ):
        p = program(build, F32)
        schedule = schedule_of(p, graph := whole_graph(p), shape, {})
        found.append(Case(name, p, single(p, graph), (schedule,), HOPPER))
    p = program(_layer_norm, F32)
    found += kernels.cases("held", p, "sm_80", 1, 0, lambda g: g.loop is None)
    found += kernels.cases("walked", p, "sm_80", 1, 0, lambda g: g.loop is not None)
    return found


def test_what_is_left_of_equal_numbers_is_nothing() -> None:
    """And of others what the mean leaves."""
    found = _cases()
    assert {s.engine for c in found for s in c.schedules} == {"rows", "block"} and len(found) == 6
    assert kernels.problems(found) == []
    for case in found:
        arrays = [np.full_like(a, 1.9731) for a in case.inputs()]
        (result,) = kernels.answered(case, arrays)
        assert isinstance(result, np.ndarray) and not result.any(), case.name


@pytest.mark.parametrize(
    ("build", "dtype", "wide"), [(_layer_norm, F32, 1), (_layer_norm, BF16, 0), (_columns, F16, 1)]
)
def test_sums_of_numbers_that_float32_sums_exactly_stay_in_it(build: Build, dtype: DType, wide: int) -> None:
    p = program(build, dtype)
    graph = whole_graph(p)
    assert len(wide_sums(p, graph)) == len(wide_row_sums(rows_of(p, graph))) == wide


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([("m", "mul", ("s", "c")), ("d", "sub", ("x", "m"))], {"s"}),
        ([("n", "extent", ()), ("m", "div", ("s", "n")), ("d", "sub", ("m", "x"))], {"s"}),
        ([("a", "accum", ("s",)), ("d", "sub", ("x", "a"))], {"s"}),
        ([("m", "mul", ("s", "x")), ("d", "sub", ("x", "m"))], set()),  # of no constant
        ([("m", "div", ("c", "s")), ("d", "sub", ("x", "m"))], set()),
        ([("m", "mul", ("s", "c")), ("d", "sub", ("m", "c"))], set()),  # nothing of the row is left over
        ([("m", "sqrt", ("s",)), ("d", "sub", ("x", "m"))], set()),
    ],
)
def test_sums_that_are_subtracted(steps: list[Step], found: set[str]) -> None:
    first: list[Step] = [("x", "load", ()), ("c", "const", ()), ("s", "sum", ("x",))]
    assert subtracted([*first, *steps]) == found
