"""The cost of original operators on a CPU: what is joined moves its tensors once, weights are read and then multiplied, and
operators that compute nothing copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mirage_cli.lax.dtypes import F16, F32, I8, U4, U8, DType
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.joints import Parts
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.schedules.cost import floor_us
from mirage_cli.search.schedules.fitted import Block, Cpu
from mirage_cli.search.schedules.original import DEEP, FUSED, KERNELS, ROW_US, original_us
from mirage_cli.search.schedules.packed import weights
from mirage_cli.search.schedules.target import Target, load_target
from mirage_cli.search.schedules.tiling import BlockModel
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen.programs import Build, behind, program

ROWS, WIDTH = 64, 1024


def cpu(**values: Any) -> Target:
    """A CPU whose operators cost nothing by themselves, with values of its own."""
    own = load_target("cpu")
    return replace(own, kernel_us=0.0, launch_us=0.0, fork_us=0.0, sections=(replace(own.fitted(Cpu), **values),))


def norm(g: Graph, t: DType) -> Sequence[int]:
    x = compose.layer_norm(g, g.input("x", (ROWS, WIDTH), t), [1], 1e-5)
    return [g.map("mul", x, g.input("gain", (WIDTH,), t))]


def linear(depth: int, rows: int | str = ROWS) -> Build:
    def build(g: Graph, t: DType) -> Sequence[int]:
        extent = rows if isinstance(rows, int) else symbol(rows)
        return [compose.linear(g, g.input("x", (extent, depth), t), g.input("w", (depth, 512), t, constant=True))]

    return build


def attention(g: Graph, t: DType) -> Sequence[int]:
    q, k = (g.input(name, (8, 32, 64), t) for name in "qk")
    return [compose.matmul(g, q, g.transpose(k, (0, 2, 1)))]


def test_what_is_joined_moves_its_tensors_once() -> None:
    target = cpu(library_special=1e9)
    moved = 4 * (2 * ROWS * WIDTH + WIDTH)
    expected = moved / (target.bandwidth * target.fitted(Cpu).library_bandwidth) * 1e6
    assert original_us(program(norm, F32), 1, target) == pytest.approx(expected, rel=0.01)


def test_an_operator_costs_what_it_does_beside_its_work() -> None:
    dear = replace(cpu(), kernel_us=7.0)
    assert original_us(program(norm, F32), 1, dear) == pytest.approx(original_us(program(norm, F32), 1, cpu()) + 7.0)


def test_products_take_as_long_to_start_as_kernels() -> None:
    """Elementwise operators do not; small products stay on one thread."""
    slow = replace(cpu(), launch_us=7.0, fork_us=3.0)
    alone = replace(slow, units=1)
    for build, target, more in (
        (norm, slow, 0.0),
        (linear(DEEP), slow, 10.0),
        (linear(8, 1), slow, 7.0),
        (linear(DEEP), alone, 7.0),
    ):
        p, free = program(build, F32), replace(target, launch_us=0.0, fork_us=0.0)
        assert original_us(p, 1, target) == pytest.approx(original_us(p, 1, free) + more)


def test_operators_that_compute_nothing_copy() -> None:
    p, target = program(attention, F32), cpu()
    copied = 4 * (2 * 8 * 32 * 64 + 8 * 32 * 32)
    more = original_us(p, 3, target) - original_us(p, 1, target)
    assert more == pytest.approx(2e6 * copied / (target.bandwidth * target.fitted(Cpu).library_copies))


def test_caches_that_grow_are_read_and_written_in_memory() -> None:
    p, target = program(attention, F32), cpu()
    first, second = p.sources
    grown = replace(p, sources=(first, replace(second, parts=Parts(1, 1))))
    more = original_us(grown, 2, target) - original_us(p, 1, target)
    assert more == pytest.approx(2e6 * 4 * 8 * 32 * 64 / target.bandwidth)


def test_weights_are_read_and_then_multiplied() -> None:
    p, target = program(linear(DEEP), F32), cpu(library_deep=0.0, library_half=8.0)
    c = target.fitted(Cpu)
    moved, flops = 4 * (ROWS * DEEP + DEEP * 512 + ROWS * 512), 2 * (ROWS + 8) * DEEP * 512
    rate = target.flops["f32"] * target.units * c.library_rate
    read, multiplied = moved / (target.bandwidth * c.library_bandwidth), flops / rate
    together = c.library_overlap * min(read, multiplied)
    assert together > 0
    assert original_us(p, 1, target) == pytest.approx((read + multiplied - together) * 1e6)


def test_long_sums_are_slower() -> None:
    small, large = (program(linear(depth), F32) for depth in (DEEP, 2 * DEEP))
    flat, steep = cpu(library_deep=0.0), cpu(library_deep=0.5)
    assert original_us(small, 1, flat) == original_us(small, 1, steep)
    assert original_us(large, 1, flat) < original_us(large, 1, steep)


def test_more_rows_cost_more() -> None:
    p = program(linear(DEEP, "rows"), F32)
    few, many = (original_us(p, 1, cpu(), {"rows": n}) for n in (1, 512))
    assert 5 * few < many


def test_integers_are_multiplied_faster() -> None:
    def quantised(x: DType) -> Build:
        def build(g: Graph, t: DType) -> Sequence[int]:
            w = g.cast(g.input("w", (DEEP, 512), I8, constant=True), t)
            scaled = [g.cast(g.input("x", (512, DEEP), x), t), g.input("s", (1, 1), t)]
            return [compose.linear(g, g.map("mul", *scaled), g.map("mul", w, g.input("r", (1, 512), t, constant=True)))]

        return build

    times = [original_us(program(quantised(x), F32), 1, cpu(library_integers=4.0)) for x in (U8, F32)]
    assert 3 * times[0] < times[1]


def in_blocks(rounds: bool) -> Build:
    """A product with numbers of 4 bits in blocks of 32, which may say that it rounds what it multiplies."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        stored = g.input("w", (512, DEEP // 32, 16), U8, constant=True)
        if rounds:
            g.declare_rounds(stored)
        q = g.map("mul", g.cast(g.unpack(stored, U4), t), g.input("s", (512, DEEP // 32, 1), t, constant=True))
        return [g.contract(g.input("x", (ROWS, DEEP // 32, 32), t), q, [0, 1, 2], [3, 1, 2], [0, 3])]

    return build


def test_products_that_round_what_they_multiply_are_faster_on_both_sides() -> None:
    exact, rounding = (program(in_blocks(rounds), F32) for rounds in (False, True))
    target = cpu()
    assert 1.2 * original_us(rounding, 1, target) < original_us(exact, 1, target)
    times = [min(_ours(p, target)) for p in (exact, rounding)]
    assert 1.5 * times[1] < times[0]
    assert 2 * floor_us(rounding, target) < floor_us(exact, target) and floor_us(rounding, target) < times[1]


def test_what_is_rounded_for_every_tile_of_columns_costs_its_part() -> None:
    dear, free = cpu(round_flops=100.0), cpu(round_flops=0.0)
    (exact, more), (same, less) = ([_ours(program(in_blocks(r), F32), t) for r in (False, True)] for t in (dear, free))
    assert exact == same and all(x > y for x, y in zip(more, less, strict=True))


def _ours(p: Program, target: Target) -> list[float]:
    """Predicted times of the muGraph that takes scales with their numbers, under schedules of whole panels in their order."""
    block = next(b for b in Searcher(SearchOptions()).blocks(p)[0] if not b.split and weights(p, b))
    model = BlockModel(p, block, target, {})
    tiled = (s for s in model.schedules() if all(t % 16 == 0 for _, t in s.tiles))
    return [model.predict(s).us for s in tiled]


def test_small_products_of_activations_are_slow_and_large_ones_are_not() -> None:
    """Scores of 8 heads of 64: their rate, by the side of a score matrix."""

    def scores(side: int) -> Build:
        def build(g: Graph, t: DType) -> Sequence[int]:
            q, k = (g.input(name, (8, side, 64), t) for name in "qk")
            return [compose.matmul(g, q, g.transpose(k, (0, 2, 1)))]

        return build

    target = cpu(library_small=100.0, library_copies=1e9)
    full = target.flops["f32"] * target.units * target.fitted(Cpu).library_rate
    for side, share in ((100, 0.5), (900, 0.9)):
        us = original_us(program(scores(side), F32), 1, target)
        assert 2 * 8 * side**2 * 64 / us * 1e6 == pytest.approx(share * full, rel=1e-3)


def test_one_operator_that_holds_an_attention_passes_blocks_in_caches() -> None:
    """What two products and a softmax apart lose by size and by reading scores, one operator does not."""

    def whole(g: Graph, t: DType) -> Sequence[int]:
        q, k, v = (g.input(name, (8, 100, 64), t) for name in "qkv")
        return [compose.matmul(g, compose.softmax(g, compose.matmul(g, q, g.transpose(k, (0, 2, 1))), [2]), v)]

    target, p = cpu(library_small=100.0, library_special=1e9), program(whole, F32)
    rate = target.flops["f32"] * target.units * target.fitted(Cpu).library_rate
    moved = 4 * 4 * 8 * 100 * 64 / (target.bandwidth * target.fitted(Cpu).library_bandwidth)
    assert original_us(p, 1, target) == pytest.approx(1e6 * (2 * 2 * 8 * 100**2 * 64 / rate + moved), rel=1e-3)
    assert original_us(p, 3, target) > 1.5 * original_us(p, 1, target)


def test_new_rows_behind_caches_and_hidden_positions_have_their_price() -> None:
    """One operator of a library for prompts: half of the products, exponentials, and new rows longer than memory takes."""
    p, target = program(lambda g, t: behind(g, t, symbol("rows"), symbol("keys")), F16), load_target("sm_90a")

    def us(rows: int, keys: int) -> float:
        return original_us(p, FUSED, target, {"rows": rows, "keys": keys}) - KERNELS * target.kernel_us

    n, c = 1 << 15, target.fitted(Block)
    products = 2 * 2 * 2 * 64 * n**2 / 2 / (target.library_rate(F16) * c.library_rate)
    exponentials = 2 * n**2 / 2 / target.special
    new = ROW_US * 2 * 3 * n - 1e6 * 2 * 2 * 3 * n * 64 * 2 / target.bandwidth
    assert us(n, n) == pytest.approx(1e6 * (products + exponentials) + new, rel=1e-3)
    assert us(n, 2 * n) == pytest.approx(3e6 * (products + exponentials) + new, rel=1e-3)
