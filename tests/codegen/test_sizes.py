"""Kernels whose extents are known at run time only, at sizes that divide nothing and at 0: of every engine that runs here, and
with several muGraphs that sizes choose from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mirage_cli.codegen.engines import kernel_of
from mirage_cli.codegen.requests.request import Request
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.printer import CPP
from mirage_cli.lax.dtypes import F16, F32, DType
from mirage_cli.lax.extents import Symbolic, symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.schedules.alternatives import Alternative, Bound
from mirage_cli.search.schedules.ranking import ranked
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions

from . import kernels
from .kernels import Case, single
from .programs import program

SIZES = (0, 1, 7, 129)
KEYS = Symbolic(1, ("keys",))


def attention(g: Graph, t: DType, queries: str = "") -> Sequence[int]:
    """Few queries of two heads on a number of keys that is known at run time only."""
    rows = symbol(queries) if queries else 3
    q, k, v = (g.input(n, (2, e, 16), t) for n, e in (("q", rows), ("k", symbol("keys")), ("v", symbol("keys"))))
    scores = compose.scale(g, compose.matmul(g, q, g.transpose(k, (0, 2, 1))), 0.25)
    y = compose.matmul(g, compose.softmax(g, scores, [2]), v)
    return [y if queries else g.map("add", y, g.map("silu", g.input("r", (1, 3, 16), t)))]


def _norm(g: Graph, t: DType) -> Sequence[int]:
    x = compose.rms_norm(g, g.input("x", (symbol("rows"), 72), t), [1], 1e-5)
    return [g.map("mul", x, g.input("gain", (72,), t))]


def _norm_linear(g: Graph, t: DType) -> Sequence[int]:
    x = compose.rms_norm(g, g.input("x", (symbol("rows"), 136), t), [1], 1e-5)
    return [compose.linear(g, x, g.input("w", (136, 56), t, constant=True))]


def best(name: str, p: Program, target: str, engine: str, parts: int = 0) -> Case:
    """The first kernel of an engine that renders; with `parts`, one whose blocks share a loop of unknown length."""
    machine = load_target(target)
    for block in Searcher(SearchOptions()).blocks(p)[0]:
        if bool(block.split) != bool(parts):
            continue
        for r in ranked(p, block, machine, 200, apart=True):
            case = Case(name, p, single(p, block), (r.schedule,), machine)
            if (r.schedule.engine, r.schedule.parts) == (engine, parts) and case.renders():
                return case
    raise AssertionError(f"no kernel of the engine {engine} for {name}")


def _both(name: str, low: Case, high: Case, most: int) -> Case:
    """One source: a kernel for few keys, and one for more, in two ranges."""
    few = Alternative((Bound(KEYS, 0, most),), low.graph, low.schedules)
    more = Alternative((Bound(KEYS, most + 1, 200),), high.graph, high.schedules)
    return replace(high, name=name, others=(few, more))


def _cuda() -> Iterator[Case]:
    for dtype in (F16, F32):
        p = program(attention, dtype)
        block, strip = (best(f"{e}{dtype.name}", p, "sm_90a", e) for e in ("block", "strip"))
        shared = [best(f"parts{n}{dtype.name}", p, "sm_90a", "strip", n) for n in ((2, 8) if dtype is F16 else (4,))]
        yield from (block, *shared)
        yield _both(f"both{dtype.name}", strip, shared[-1], 7)
    yield best("rowsf16", program(_norm, F16), "sm_90a", "rows")
    for engine in ("block", "strip"):
        yield best(f"linear{engine}", program(_norm_linear, F16), "sm_90a", engine)


@dataclass(frozen=True, slots=True)
class Hollow(Case):
    """A case whose softmax is over nothing: what it is multiplied with is summed over nothing, the other terms stay."""

    def reference(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[np.float64]]:
        """The other term of `_attention`."""
        (r,) = (a.astype(np.float64) for a in arrays if a.size == 48)
        return [np.broadcast_to(r / (1 + np.exp(-r)), (2, 3, 16))]


def _at(case: Case, sizes: Sequence[int]) -> list[Case]:
    """A case at sizes of its symbol."""
    found = [replace(case, sizes=tuple((s, n) for s in case.program.symbols)) for n in sizes]
    if case.program.symbols != ("keys",):
        return found
    return [
        Hollow(**{f.name: getattr(c, f.name) for f in fields(c)}) if dict(c.sizes)["keys"] == 0 else c for c in found
    ]


@pytest.fixture(scope="module")
def on_gpu() -> list[Case]:
    """Kernels of CUDA's engines, two of them in one source."""
    return list(_cuda())


def test_cuda_kernels_at_odd_sizes(on_gpu: list[Case]) -> None:
    assert kernels.problems(at for c in on_gpu for at in _at(c, SIZES)) == []
    assert kernels.problems((at for c in on_gpu for at in _at(c, (7,))), at_once=True) == []


@pytest.fixture(scope="module")
def on_cpu() -> list[Case]:
    """Kernels for few queries, two of them in one source, and for any number of queries."""
    first, second, *_ = found = list(kernels.cases("cpu", program(attention, F32), "cpu", 3, 1))
    linear = best("linear", program(_norm_linear, F32), "cpu", "block")
    any_number = program(lambda g, t: attention(g, t, "rows"), F32)
    low, high = kernels.cases("any", any_number, "cpu", 2, 3)
    return [*found, _both("both", first, second, 7), linear, _both("drawn", low, high, 20)]


@pytest.fixture(scope="module")
def harness(on_cpu: list[Case], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, watched by sanitizers."""
    flags, folder = [*kernels.CPU_FLAGS, *kernels.SANITIZERS], tmp_path_factory.mktemp("sizes")
    return kernels.build({c.name: c.render().text for c in on_cpu}, folder, flags)


def test_a_mugraph_of_two_ranges_is_printed_once(on_cpu: list[Case], on_gpu: list[Case]) -> None:
    found = [c for c in (*on_cpu, *on_gpu) if c.others]
    assert found
    for case in found:
        made = case.render()
        ways = [case.graph, *(o.graph for o in case.others)]
        assert len(made.memory) == sum(len(w.kernels) for w in ways)
        assert len(made.kernels) == sum(len(w.kernels) for w in ways[:2])


def test_cpu_kernels_at_odd_sizes(on_cpu: list[Case], harness: Path) -> None:
    assert kernels.run(harness, [at for c in on_cpu[:-1] for at in _at(c, (*SIZES, 4097))]) == []


@settings(max_examples=25, deadline=None, derandomize=True)
@given(rows=st.integers(1, 150), keys=st.integers(1, 300))
def test_cpu_kernels_at_drawn_sizes(on_cpu: list[Case], harness: Path, rows: int, keys: int) -> None:
    case = replace(on_cpu[-1], sizes=(("keys", keys), ("rows", rows)))
    assert kernels.run(harness, [case]) == []


def _heads(g: Graph, t: DType) -> Sequence[int]:
    """Rows of sequences, whose products are stored by heads: two axes of unknown length that do not become one."""
    x = g.input("x", (symbol("batch"), symbol("rows"), 40), t)
    y = compose.linear(g, x, g.input("w", (40, 32), t, constant=True))
    return [g.transpose(g.reshape(y, (symbol("batch"), symbol("rows"), 2, 16)), (0, 2, 1, 3))]


def test_products_leave_out_rows_behind_the_end_of_a_sequence(tmp_path: Path) -> None:
    """Tiles of several sequences that are longer than what there is: each has a product of the rows that there are."""
    p, machine = program(_heads, F32), load_target("cpu")
    batch, rows = (next(a.name for a in p.axes if a.extent == symbol(name)) for name in ("batch", "rows"))
    block = next(b for b in Searcher(SearchOptions()).blocks(p)[0] if not b.split)
    ways = (r.schedule for r in ranked(p, block, machine, 400, apart=True))
    found = (
        Case("heads", p, single(p, block), (way,), machine)
        for way in ways
        if way.tile(batch) > 1 and way.tile(rows) >= 64
    )
    case = next(c for c in found if c.renders())
    text = case.render().text
    assert re.search(rf"for \(int i_{batch} = 0;[^;]*; \+\+i_{batch}\) {{\s*mirage::contract<[^;]*, n_{rows}, ", text)
    built = kernels.build({"heads": text}, tmp_path, [*kernels.CPU_FLAGS, *kernels.SANITIZERS])
    sizes = [(n, length) for n in (1, 3, 9) for length in (1, 16, 50, 129)]
    assert kernels.run(built, [replace(case, sizes=(("batch", n), ("rows", length))) for n, length in sizes]) == []


@pytest.mark.parametrize("dtype", [F16, F32])
def test_blocks_share_a_loop_of_unknown_length(dtype: DType) -> None:
    case = best("t", program(attention, dtype), "sm_90a", "strip", 4)
    (schedule,) = case.schedules
    assert schedule.tile(case.graph.kernels[0].block.loop or "") == 2 * schedule.loop
    made, together = case.render(), 4 * schedule.loop
    assert (k.name("s_0") + (together - 1)) / together * schedule.loop in kernels.parts(made.kernels)
    assert "* 4 *" in made.text.replace("* 4;", "* 4 *")  # four blocks for each tile


def test_offsets_of_unknown_sizes_have_64_bits(on_gpu: list[Case]) -> None:
    for case in on_gpu:
        for kernel in case.render().kernels:
            (offsets,) = (s for s in kernel.body if isinstance(s, ir.Alias) and s.name == "offset_t")
            assert offsets.type == ir.Type("int64_t")


def test_kernels_name_no_symbols_but_their_own() -> None:
    """A product with 1 / 255 is a quotient by a number, which no sum of the fragment over other positions makes 0."""
    build = lambda g, t: [g.map("exp", compose.scale(g, g.input("x", (symbol("rows"), 72), t), Fraction(1, 255)))]
    case = best("scaled", program(build, F32), "cpu", "block")
    (part,), (schedule,) = case.graph.kernels, case.schedules
    elsewhere = (Symbolic(1, ("past",)),)
    request = Request(part.program, part.block, schedule, case.target, 0, ("past", "rows"), hollow=elsewhere)
    made = kernel_of(request)
    assert "/ 0x1.fep+7f" in CPP.function(made.kernel)
    assert {int(n) for n in re.findall(r"\bs_(\d+)\b", CPP.function(made.kernel))} <= set(request.numbers) == {1}
