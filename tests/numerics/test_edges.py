"""Inputs at the edges of numbers: what kinds a program calls for, and that each typical numeric fault is found by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_cli.checks import kernel_check as checks
from mirage_cli.checks import random_inputs
from mirage_cli.checks.kernel_check import Runner
from mirage_cli.lax.dtypes import BOOL, F16, F32, I64, DType
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.numerics import edges
from tests.codegen.programs import Build, program

Array = NDArray[Any]
Kernel = Callable[..., Array]
EPSILON = np.float32(1e-5)
FINITE_KINDS = {edges.HUGE, edges.SPIKES, edges.TINY}


# --- originals, in the arithmetic of their types --------------------------------------------------------------------------
def _softmax(x: Array, mask: Array) -> Array:
    s = (x + mask).astype(np.float32)
    e = np.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(x.dtype)


def _guarded(x: Array, mask: Array) -> Array:
    y = _softmax(x, mask)
    return np.where(np.isnan(y), 0, y).astype(x.dtype)


def _rms(x: Array) -> Array:
    wide = x.astype(np.float32)
    return (wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + EPSILON)).astype(x.dtype)


def _layer(x: Array) -> Array:
    wide = x.astype(np.float32)
    return _rms((wide - wide.sum(-1, keepdims=True) / np.float32(x.shape[-1])).astype(np.float32)).astype(x.dtype)


def _product(x: Array, w: Array) -> Array:
    return (x.astype(np.float32) @ w.astype(np.float32)).astype(x.dtype)


def _normed(x: Array, w: Array) -> Array:
    return _product(_rms(x), w)


def _attention(p: Array, v: Array) -> Array:
    return (_guarded(p, np.zeros((), p.dtype)).astype(np.float32) @ v.astype(np.float32)).astype(p.dtype)


def _silu(x: Array) -> Array:
    wide = x.astype(np.float32)
    return (wide / (1 + np.exp(-wide))).astype(x.dtype)


def _sigmoid(x: Array, w: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x.astype(np.float32) * w.astype(np.float32)))).astype(np.float32)


def _of_sigmoids(x: Array, w: Array, more: float = 1.0) -> Array:
    s = _sigmoid(x, w)
    return (s / np.sqrt((s * s).mean(-1, keepdims=True) + EPSILON * np.float32(more))).astype(x.dtype)


def _larger_epsilon(x: Array, w: Array) -> Array:
    return _of_sigmoids(x, w, 1.25)


def _without_last(x: Array) -> Array:
    wide = x.astype(np.float32)
    squares = (wide * wide)[:, :-1].sum(-1, keepdims=True) / np.float32(x.shape[-1])
    return (wide / np.sqrt(squares + EPSILON)).astype(x.dtype)


def _kept(x: Array) -> Array:
    return np.where(x <= 1, x, 0).astype(x.dtype)


# --- the same with a fault --------------------------------------------------------------------------------------------
def _without_maximum(x: Array, mask: Array) -> Array:
    e = np.exp((x + mask).astype(np.float32))
    return (e / e.sum(-1, keepdims=True)).astype(x.dtype)


def _maximum_from_zero(x: Array, mask: Array) -> Array:
    s = (x + mask).astype(np.float32)
    e = np.exp(s - np.maximum(s.max(-1, keepdims=True), 0))
    return (e / e.sum(-1, keepdims=True)).astype(x.dtype)


def _running(x: Array, mask: Array) -> Array:
    """Two tiles; the first one's weight is exp(-inf + inf) where it has no key."""
    s = (x + mask).astype(np.float32)
    first = s[..., : s.shape[-1] // 2].max(-1, keepdims=True)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True) * np.exp(first - top) / np.exp(first - top)
    return (e / total).astype(x.dtype)


def _masked_rows_are_zero(x: Array, mask: Array) -> Array:
    s = (x + mask).astype(np.float32)
    top = s.max(-1, keepdims=True)
    e = np.where(np.isneginf(top), 0, np.exp(s - top))
    return (e / np.maximum(e.sum(-1, keepdims=True), 1e-30)).astype(x.dtype)


def _without_epsilon(x: Array) -> Array:
    wide = x.astype(np.float32)
    return (wide / np.sqrt((wide * wide).mean(-1, keepdims=True))).astype(x.dtype)


def _one_pass(x: Array) -> Array:
    wide = x.astype(np.float32)
    mean = wide.mean(-1, keepdims=True)
    return ((wide - mean) / np.sqrt((wide * wide).mean(-1, keepdims=True) - mean * mean + EPSILON)).astype(x.dtype)


def _rounded_reciprocal(x: Array) -> Array:
    wide = x.astype(np.float32)
    return _rms(wide - wide.sum(-1, keepdims=True) * (np.float32(1) / np.float32(x.shape[-1]))).astype(x.dtype)


def _half_sums(x: Array, w: Array) -> Array:
    total = np.zeros((x.shape[0], w.shape[1]), x.dtype)
    for k in range(x.shape[1]):
        total += x[:, k : k + 1] * w[k]
    return total


def _flushed(x: Array, w: Array) -> Array:
    def flush(a: Array) -> Array:
        return np.where(np.abs(a) < np.finfo(a.dtype).smallest_normal, 0, a).astype(a.dtype)

    return _product(flush(x), w)


def _deferred_in_half(x: Array, w: Array) -> Array:
    """The norm behind a product that is rounded to float16 before."""
    wide = x.astype(np.float32)
    return (_product(x, w) / np.sqrt((wide * wide).mean(-1, keepdims=True) + EPSILON)).astype(x.dtype)


def _nan_hidden(p: Array, v: Array) -> Array:
    wide = p.astype(np.float32)
    e = np.exp(wide - wide.max(-1, keepdims=True))
    y = (e @ v.astype(np.float32)) / e.sum(-1, keepdims=True)
    return np.where(np.isnan(y), 0, y).astype(p.dtype)


def _growing(x: Array) -> Array:
    e = np.exp(x.astype(np.float32))
    return (x * (e / (1 + e))).astype(x.dtype)


def _twice(x: Array, w: Array) -> Array:
    return np.tanh(_product(np.concatenate([x, x], axis=1), w))


def _once(x: Array, w: Array) -> Array:
    """x (V + W) for x V + x W."""
    return np.tanh(_product(x, w[: len(w) // 2] + w[len(w) // 2 :]))


def _less(x: Array) -> Array:
    return np.where(x < 1, x, 0).astype(x.dtype)


def _scores(guarded: bool) -> Build:
    def build(g: Graph, t: DType) -> Sequence[int]:
        s = g.map("add", g.input("x", (9, 37), t), g.input("mask", (9, 37), t))
        y = compose.softmax(g, s, [1])
        return [compose.select(g, g.map("isnan", y), g.fill(0, t), y) if guarded else y]

    return build


def _weighed(g: Graph, t: DType) -> Sequence[int]:
    p = compose.softmax(g, g.input("p", (9, 12), t), [1])
    p = compose.select(g, g.map("isnan", p), g.fill(0, t), p)
    return [compose.matmul(g, p, g.input("v", (12, 20), t))]


def _of_rows(norm: Callable[[Graph, int, Sequence[int], float], int]) -> Build:
    return lambda g, t: [norm(g, g.input("x", (24, 61), t), [1], float(EPSILON))]


def _linear(normed: bool) -> Build:
    def build(g: Graph, t: DType) -> Sequence[int]:
        x = g.input("x", (24, 200), t)
        x = compose.rms_norm(g, x, [1], float(EPSILON)) if normed else x
        return [compose.matmul(g, x, g.input("w", (200, 30), t))]

    return build


def _norm_of_sigmoids(g: Graph, t: DType) -> Sequence[int]:
    s = g.map("sigmoid", g.map("mul", g.input("x", (9, 40), t), g.input("w", (40,), t)))
    return [compose.rms_norm(g, s, [1], float(EPSILON))]


def _repeated(g: Graph, t: DType) -> Sequence[int]:
    x = g.input("x", (9, 6), t)
    return [g.map("tanh", compose.matmul(g, g.concat([x, x], 1), g.input("w", (12, 20), t)))]


def _bounded(g: Graph, t: DType) -> Sequence[int]:
    x = g.input("x", (40, 45), t)
    return [g.map("where", g.map("le", x, g.fill(1, t)), x, g.fill(0, t))]


FAULTS: dict[str, tuple[Build, DType, Kernel, Kernel, set[str]]] = {
    "no maximum subtracted": (_scores(False), F32, _softmax, _without_maximum, {edges.HUGE}),
    "a maximum that begins at 0": (_scores(False), F32, _softmax, _maximum_from_zero, {edges.MASKED}),
    "exp(-inf + inf) between tiles": (_scores(False), F32, _softmax, _running, {edges.MASKED}),
    "masked rows are NaN": (_scores(True), F32, _guarded, _softmax, {edges.MASKED}),
    "masked rows are 0": (_scores(False), F32, _softmax, _masked_rows_are_zero, {edges.MASKED}),
    "no epsilon": (_of_rows(compose.rms_norm), F32, _rms, _without_epsilon, {edges.EQUAL}),
    "another epsilon": (_norm_of_sigmoids, F16, _of_sigmoids, _larger_epsilon, {edges.CONSTANTS}),
    "a row's last number left out": (_of_rows(compose.rms_norm), F16, _rms, _without_last, {edges.SPIKES}),
    "variance in one pass": (_of_rows(compose.layer_norm), F32, _layer, _one_pass, {edges.CANCELLING}),
    "a rounded reciprocal": (_of_rows(compose.layer_norm), F32, _layer, _rounded_reciprocal, {edges.EQUAL}),
    "sums in float16": (_linear(False), F16, _product, _half_sums, {edges.HUGE}),
    "subnormal numbers flushed": (_linear(False), F16, _product, _flushed, {edges.TINY}),
    "products that overflow": (_linear(True), F16, _normed, _deferred_in_half, {edges.HUGE, edges.SPIKES}),
    "NaN of values hidden": (_weighed, F32, _attention, _nan_hidden, {edges.NOT_FINITE}),
    "weights that are added first": (_repeated, F32, _twice, _once, {edges.NOT_FINITE}),
    "exp of large arguments": (
        lambda g, t: [g.map("silu", g.input("x", (40, 45), t))], F32, _silu, _growing, {edges.ENDS, edges.HUGE},
    ),
    "< in the place of <=": (_bounded, F32, _kept, _less, {edges.TIES}),
}  # fmt: skip


def _runner(p: Program, function: Kernel) -> Runner:
    """A function of inputs in the order in which the graph names them, as what runs the program's sources."""
    order = sorted(range(len(p.sources)), key=lambda k: int(p.sources[k].name[1:]))

    def run(arrays: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
        with np.errstate(all="ignore"):
            return [function(*(arrays[k] for k in order))]

    return run


def _failing(p: Program, original: Kernel, kernel: Kernel) -> dict[str, str]:
    """The kinds that a kernel fails on, with what is said of it."""
    found = {}
    for case in checks.cases(p, _runner(p, original), {}, 1):
        assert not isinstance(case, str)
        accuracy = case.compared(p, _runner(p, kernel)(case.arrays, case.symbols))
        if not accuracy.passed:
            found[case.name] = str(accuracy)
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_at_the_edge_that_it_concerns(fault: str) -> None:
    build, dtype, original, kernel, kinds = FAULTS[fault]
    p = program(build, dtype)
    assert _failing(p, original, original) == {}
    found = _failing(p, original, kernel)
    assert kinds <= set(found), found
    verdict = checks.check(p, _runner(p, kernel), _runner(p, original), {}, 1)
    assert not verdict.passed
    assert verdict.case in found


# --- kinds ------------------------------------------------------------------------------------------------------------
def _edges(p: Program, symbols: Mapping[str, int] | None = None) -> tuple[list[Array], list[edges.Edge]]:
    drawn = checks.inputs(p, "random", 1, {}, symbols or {})
    arrays = [drawn[k] for k in range(len(p.sources))]
    return arrays, list(edges.edges(p, arrays, symbols or {}, 1))


def test_kinds_follow_from_the_operators() -> None:
    def kinds(build: Build, dtype: DType = F32) -> set[str]:
        return {e.kind for e in _edges(program(build, dtype))[1]}

    always = {edges.HUGE, edges.SPIKES, edges.TINY, edges.NOT_FINITE}
    sums = always | {edges.EQUAL, edges.CANCELLING}
    assert kinds(_linear(False)) == sums
    assert kinds(_linear(True)) == sums | {edges.ENDS, edges.CONSTANTS}
    assert kinds(_scores(False)) == sums | {edges.MASKED, edges.SINGLE}
    assert kinds(_bounded) == always | {edges.TIES}
    assert kinds(lambda g, t: [g.cast(g.input("n", (5,), I64), t)]) == {edges.HUGE, edges.INTEGERS}


def test_queries_and_keys_are_no_masks() -> None:
    def build(g: Graph, t: DType) -> Sequence[int]:
        q, k, v = (g.input(n, (2, e, 16), t) for n, e in (("q", 5), ("k", 7), ("v", 7)))
        scores = compose.attention_mask(g, compose.matmul(g, q, g.transpose(k, (0, 2, 1))), g.input("m", (5, 7), BOOL))
        return [compose.matmul(g, compose.softmax(g, scores, [2]), v)]

    p = program(build, F32)
    (mask,) = [k for k, s in enumerate(p.sources) if s.dtype == BOOL]
    arrays, found = _edges(p)
    masked = [e for e in found if e.kind in (edges.MASKED, edges.SINGLE)]
    assert masked
    for e in masked:
        assert [k for k, a in enumerate(e.arrays) if a is not arrays[k]] == [mask]
    rows = {tuple(row) for e in masked for row in e.arrays[mask]}
    assert {(False,) * 7, (True,) * 7, (False,) * 6 + (True,)} <= rows


def test_masks_that_are_summed_and_integers_that_are_computed_with() -> None:
    """The squares of a mask's least number are no float32, and the sum of the largest integers is no integer."""

    def normed(g: Graph, t: DType) -> Sequence[int]:
        return [compose.softmax(g, compose.rms_norm(g, g.input("x", (9, 37), t), [1], 1e-5), [1])]

    def multiplied(g: Graph, t: DType) -> Sequence[int]:
        m = g.input("m", (9, 37), t)
        return [compose.softmax(g, g.map("div", g.map("mul", m, g.input("s", (9, 37), t)), m), [1])]

    for built in (normed, multiplied):
        masked = [e.arrays[0] for e in _edges(program(built, F32))[1] if e.kind == edges.MASKED]
        assert min(float(a[np.isfinite(a)].min()) for a in masked) == -edges.SAFE

    def counted(g: Graph, t: DType) -> Sequence[int]:
        return [g.cast(g.map("add", *(g.input(name, (5,), I64) for name in "nm")), t)]

    found = [a for e in _edges(program(counted, F32))[1] if e.kind == edges.INTEGERS for a in e.arrays]
    assert max(int(np.abs(a).max()) for a in found) == edges.COUNT


def test_each_edge_changes_what_it_is_about() -> None:
    p = program(_scores(False), F16)
    arrays, found = _edges(p)
    by_kind = {kind: [e for e in found if e.kind == kind] for kind in {e.kind for e in found}}
    for kind, made in by_kind.items():
        finite = all(np.isfinite(a).all() for e in made for a in e.arrays)
        assert finite == (kind not in (edges.MASKED, edges.SINGLE, edges.NOT_FINITE)), kind
        assert all(a.dtype == np.float16 and a.shape == (9, 37) for e in made for a in e.arrays)
    everything = [np.concatenate([a.ravel() for e in made for a in e.arrays]) for made in by_kind.values()]
    values = np.concatenate(everything)
    assert np.isnan(values).any() and np.isposinf(values).any() and np.isneginf(values).any()
    assert np.abs(values[np.isfinite(values)]).max() == np.finfo(np.float16).max
    assert ((values != 0) & (np.abs(values) < np.finfo(np.float16).smallest_normal)).any()
    assert np.signbit(values[values == 0]).any()
    rows = [row for e in by_kind[edges.MASKED] for a in e.arrays for row in a]
    assert any(np.isneginf(row).all() for row in rows)
    assert any((row == np.finfo(np.float16).min).all() for row in rows)
    assert any(len(set(row.tolist())) == 1 for e in by_kind[edges.EQUAL] for a in e.arrays for row in a)
    assert all(a.base is None or a is not b for e in found for a, b in zip(e.arrays, arrays, strict=True))


def test_inputs_that_are_not_finite() -> None:
    p = program(_scores(False), F16)
    arrays, found = _edges(p)
    spoiled = [e for e in found if not all(np.isfinite(a).all() for a in e.arrays)]
    own = list(edges.not_finite(p, arrays, {}, 1))
    assert Counter(e.kind for e in own) == Counter(e.kind for e in spoiled)
    assert {e.kind for e in own[:3]} == {edges.MASKED, edges.SINGLE, edges.NOT_FINITE}


def test_ordinary_inputs_and_weights_stay() -> None:
    def build(g: Graph, t: DType) -> Sequence[int]:
        return [compose.matmul(g, g.input("x", (4, 9), t), g.input("w", (9, 5), t, constant=True))]

    p = program(build, F32)
    (weight,) = p.constants
    before = checks.inputs(p, "random", 1, {}, {})
    arrays, found = _edges(p)
    assert all(e.arrays[weight] is arrays[weight] for e in found)
    assert all(np.array_equal(a, before[k]) for k, a in enumerate(arrays))


def test_one_row_shows_all_variants_one_after_the_other() -> None:
    def build(g: Graph, t: DType) -> Sequence[int]:
        return [compose.softmax(g, g.input("x", (1, 6), t), [1])]

    _, found = _edges(program(build, F32))
    spoiled = [e.arrays[0] for e in found if e.kind == edges.NOT_FINITE]
    assert [np.isnan(a).any() for a in spoiled].count(True) == 1
    assert any(np.isposinf(a).any() for a in spoiled) and any(np.isneginf(a).any() for a in spoiled)


def test_rows_are_those_of_the_input_that_reads_most() -> None:
    """Of a source that is read in parts, none of which is reduced."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        x = g.input("x", (6, 24), t)
        few, many = g.slice(x, 1, 0, 2), g.slice(x, 1, 2, 12)
        return [g.map("tanh", few), g.map("tanh", many)]

    arrays, found = _edges(program(build, F32))
    assert arrays[0].shape == (6, 24)
    spoiled = np.isnan(np.stack([e.arrays[0] for e in found if e.kind == edges.NOT_FINITE])).any(axis=(0, 1))
    assert spoiled[2:14].any()
    assert not spoiled[:2].any() and not spoiled[14:].any()


def test_edges_are_the_same_every_time() -> None:
    p = program(_linear(True), F32)
    first, second = (_edges(p)[1] for _ in range(2))
    assert [e.kind for e in first] == [e.kind for e in second]
    for a, b in zip(first, second, strict=True):
        assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a.arrays, b.arrays, strict=True))


# --- sizes ------------------------------------------------------------------------------------------------------------
def _sizes(limits: checks.Limits) -> dict[str, list[int]]:
    p = program(lambda g, t: [compose.rms_norm(g, g.input("x", (symbol("rows"), 33), t), [1], 1e-5)], F32)
    found: dict[str, list[int]] = {}
    for d in checks.draws(p, {}, 1, limits):
        if d.name in (random_inputs.SHORTEST, random_inputs.LONGEST, checks.EMPTY):
            found.setdefault(d.name, []).append(d.symbols["rows"])
    return found


def test_sizes_at_their_limits() -> None:
    free = _sizes({})
    assert free == {random_inputs.SHORTEST: [1], random_inputs.LONGEST: [random_inputs.LONG], checks.EMPTY: [0]}
    assert _sizes({"rows": (3, 20)}) == {random_inputs.SHORTEST: [3], random_inputs.LONGEST: [20]}


def test_what_the_original_refuses_when_empty_is_no_case() -> None:
    from mirage_cli.errors import MirageError

    p = program(lambda g, t: [compose.rms_norm(g, g.input("x", (symbol("rows"), 33), t), [1], 1e-5)], F32)

    def original(arrays: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
        if symbols["rows"] == 0:
            raise MirageError("no rows")
        return _runner(p, _rms)(arrays, symbols)  # type: ignore[return-value]

    names = [c.name for c in checks.cases(p, original, {}, 1) if not isinstance(c, str)]
    assert checks.EMPTY not in names
    assert random_inputs.LONGEST in names


# --- verdicts ---------------------------------------------------------------------------------------------------------
def test_the_report_names_the_worst_kind_and_what_is_better() -> None:
    """An original whose intermediate products overflow."""
    p = program(_linear(True), F16)

    def original(x: Array, w: Array) -> Array:
        return np.where(np.abs(x).max(-1, keepdims=True) > 5000, np.nan, _normed(x, w)).astype(x.dtype)

    found = checks.check(p, _runner(p, _normed), _runner(p, original), {}, 1)
    assert found.passed
    assert found.edges is not None
    told = found.to_json()["edges"]
    assert set(told["kinds"]) >= FINITE_KINDS
    assert told["worst"] in told["kinds"]
    assert set(told["better"]) & {edges.HUGE, edges.SPIKES}
    assert found.edges.accuracy.used <= 1


def test_what_failed_can_be_had_again() -> None:
    build, dtype, original, kernel, _ = FAULTS["masked rows are NaN"]
    p = program(build, dtype)
    found = checks.check(p, _runner(p, kernel), _runner(p, original), {}, 1)
    drawn = list(checks.draws(p, {}, 1))[found.number]
    assert drawn.name == found.case == edges.MASKED
    assert np.isnan(_runner(p, kernel)(drawn.arrays, drawn.symbols)[0]).any()


def test_outputs_of_few_numbers_are_judged_over_more_draws() -> None:
    """Two numbers whose original is exact by luck: errors as large as the original's usual ones are right, larger ones not."""

    def build(g: Graph, t: DType) -> Sequence[int]:
        return [g.reduce("sum", g.input("x", (2, 300), t), [1])]

    p = program(build, F16)
    first = checks.inputs(p, "random", 1, {}, {})[0]

    def noisy(size: float, lucky: bool) -> Runner:
        def run(arrays: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
            (x,) = arrays
            with np.errstate(all="ignore"):
                total = x.astype(np.float64).sum(1, keepdims=True)
                luck = lucky and np.array_equal(x, first)
                noise = np.where(x[:, :1] > 0, size, -size) * (0 if luck else 1)
                return [(total * (1 + noise)).astype(x.dtype)]

        return run

    plain = checks.CASES
    found = {c.name: c for c in checks.cases(p, noisy(0.01, True), {}, 1) if not isinstance(c, str)}
    case = found[plain[0]]
    for size, passed in ((0.012, True), (0.1, False)):
        kernel = noisy(size, False)
        results = list(kernel(case.arrays, case.symbols))
        assert not case.compared(p, results).passed
        assert case.compared(p, results, kernel).passed is passed
