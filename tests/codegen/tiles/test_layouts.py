"""Layouts: the cheapest by the cost model, against enumeration; the model against counts by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_cli.codegen.tiles import layouts as module
from mirage_cli.codegen.tiles.layouts import Factor, choices, layouts, minimise
from mirage_cli.codegen.tiles.lower import lower
from mirage_cli.codegen.tiles.tile import FRAGMENT, Buffer, Contract, TileProgram
from mirage_cli.codegen.tiles.traffic import layout_cost, wavefronts
from mirage_cli.lax.dtypes import F16, F32, DType
from tests.codegen.kernels import cases
from tests.codegen.programs import NAMED, program

FIXED = settings(deadline=None, derandomize=True, max_examples=60, database=None)


def lowered(name: str, dtype: DType, target: str = "sm_80") -> TileProgram:
    """The tile program of a random muGraph and schedule, without any pass."""
    (case,) = cases("k", program(NAMED[name], dtype), target, 1, 5)
    (kernel,) = case.graph.kernels
    return lower(kernel.program, kernel.block, case.schedules[0], case.target)


def operands(t: TileProgram) -> Iterator[Buffer]:
    """The tiles that contractions read."""
    for n in (*t.prologue, *t.body, *t.epilogue):
        if isinstance(n, Contract):
            yield from (t.buffers[b] for b in (n.a, n.b))


def earlier_rule(t: TileProgram) -> TileProgram:
    """The rule that the pass replaced: a chunk more where a pitch is a multiple of 128 bytes, or 32 or 64."""
    changed = {}
    for b in operands(t):
        if b.rows and (b.pitch * b.dtype.bytes % 128 == 0 or b.pitch * b.dtype.bytes in (32, 64)):
            changed[b.name] = replace(b, pitch=b.pitch + 16 // b.dtype.bytes)
    return replace(t, buffers=t.buffers | changed)


@pytest.mark.parametrize("name", ["matmul", "attention_boolean", "rms_linear", "layer_norm_gelu", "lora", "columns"])
@pytest.mark.parametrize("dtype", [F16, F32])
def test_no_choice_of_layouts_is_cheaper(name: str, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pitches for each shape, so that all combinations can be gone through."""
    monkeypatch.setattr(module, "PADDING", (0, 1))
    t = lowered(name, dtype)
    free = {b: found for b in t.buffers if len(found := choices(t, b)) > 1}
    every = [t.buffers | dict(zip(free, some, strict=True)) for some in itertools.product(*free.values())]
    assert 1 < len(every) <= 1024, len(every)
    assert layout_cost(layouts(t)) == min(layout_cost(replace(t, buffers=buffers)) for buffers in every)


@pytest.mark.parametrize("name", list(NAMED))
def test_never_dearer_than_the_earlier_rule(name: str) -> None:
    t = lowered(name, F16)
    best = layouts(t)
    assert layout_cost(best) <= min(layout_cost(t), layout_cost(earlier_rule(t)))
    assert list(best.buffers) == list(t.buffers)
    for b, old in t.buffers.items():
        new = best.buffers[b]
        assert sorted(new.axes) == sorted(old.axes)
        assert new == old if old.place == FRAGMENT else new.pitch >= new.n_cols


def test_nothing_changes_on_the_cpu() -> None:
    t = lowered("attention", F16, "cpu")
    assert layouts(t) is t


def test_wavefronts_are_counted_by_banks() -> None:
    assert wavefronts([4 * i for i in range(32)], 4) == 1
    assert wavefronts([2 * i for i in range(32)], 2) == 1
    assert wavefronts([128 * i for i in range(32)], 4) == 32
    assert wavefronts([0] * 32, 4) == 1
    assert wavefronts([96 * i for i in range(8)], 16) == 2
    assert wavefronts([112 * i for i in range(8)], 16) == 1


@st.composite
def sums(draw: st.DrawFn) -> tuple[list[Factor], dict[str, int]]:
    """Random costs over pairs of a few tiles."""
    sizes = {name: draw(st.integers(1, 3)) for name in "abcde"}
    parts = []
    for _ in range(draw(st.integers(0, 8))):
        scope = tuple(draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=2, unique=True)))
        costs = {c: draw(st.integers(0, 20)) for c in itertools.product(*(range(sizes[b]) for b in scope))}
        parts.append(Factor(scope, costs))
    return parts, sizes


def total(parts: list[Factor], taken: dict[str, int]) -> int:
    return sum(f.costs[tuple(taken[b] for b in f.scope)] for f in parts)


@FIXED
@given(sums())
def test_elimination_is_exact(instance: tuple[list[Factor], dict[str, int]]) -> None:
    parts, sizes = instance
    every = (dict(zip(sizes, c, strict=True)) for c in itertools.product(*(range(n) for n in sizes.values())))
    assert total(parts, minimise(parts, sizes)) == min(total(parts, taken) for taken in every)


@FIXED
@given(sums())
def test_without_room_for_tables_no_single_change_helps(instance: tuple[list[Factor], dict[str, int]]) -> None:
    parts, sizes = instance
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TABLE", 0)
        found = minimise(parts, sizes)
    assert total(parts, found) <= total(parts, dict.fromkeys(sizes, 0))
    for name, size in sizes.items():
        assert all(total(parts, found) <= total(parts, found | {name: k}) for k in range(size))
