"""Kernels that need nothing of one another as one launch: the search chooses them, the proof runs their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from mirage_cli.codegen import source as sources
from mirage_cli.codegen.requests.passes import without
from mirage_cli.codegen.source import source
from mirage_cli.kernel_proof import prove
from mirage_cli.kernel_proof.compare import compare
from mirage_cli.kernel_proof.prove import prove_kernels
from mirage_cli.lax.dtypes import F16, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.proof.stand_in import structured
from mirage_cli.search.schedules.schedule import launches
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Candidate, Searcher, SearchOptions

from .programs import program

HOPPER = load_target("sm_90a")


COLUMNS = (("q", 128), ("k", 64), ("v", 64))


def _siblings(g: Graph, t: DType) -> Sequence[int]:
    """Queries, keys and values of a normed row, keys with a bias; two of them are of one size."""
    x = compose.rms_norm(g, g.input("x", (1, 256), t), [1], 1e-5)
    q, k, v = (compose.linear(g, x, g.input(n, (256, cols), t, constant=True)) for n, cols in COLUMNS)
    return [q, g.map("add", k, g.input("c", (64,), t, constant=True)), v]


@cache
def _found() -> tuple[Program, Candidate]:
    p = program(_siblings, F16)
    best, *_ = Searcher(SearchOptions()).search(p, HOPPER).candidates
    return p, best


def test_the_search_prefers_one_launch() -> None:
    _, best = _found()
    assert launches(best.graph, best.schedules) == [range(3)]
    alone = [Searcher(SearchOptions()).search(k.program, HOPPER).candidates[0] for k in best.graph.kernels]
    assert (
        max(c.predicted_us for c in alone) < best.predicted_us < sum(c.predicted_us for c in alone) - HOPPER.launch_us
    )


def test_one_kernel_is_printed_and_proved() -> None:
    p, best = _found()
    text = source("s", p, best.graph, best.schedules, HOPPER, "").text
    assert text.count("__global__") == text.count("mirage::launch") == 1
    apart = source("s", p, best.graph, best.schedules, HOPPER, "", without(["siblings"])).text
    assert apart.count("__global__") == apart.count("mirage::launch") == 3
    run = prove_kernels(p, best.graph, best.schedules, HOPPER)
    assert run.passed and run.compared, run.reason


def _printed() -> tuple[str, Program, KernelGraph]:
    p, best = _found()
    short = structured(p, best.graph, [s.as_tiles() for s in best.schedules], {}, 1)
    return source("s", *short, best.schedules, HOPPER, "").text, *short


SPOILED = {
    "blocks of another one's": ("blockIdx.x < parameters.end0", "blockIdx.x < parameters.end1"),
    "a range that ends late": ("p.end0 = static_cast<unsigned>(", "p.end0 = static_cast<unsigned>(1 + "),
    "a range that ends early": ("p.end1 = static_cast<unsigned>(", "p.end1 = static_cast<unsigned>(-1 + "),
    "another one's result": ("y0 = parameters.y0_1", "y0 = parameters.y0_2"),
}


def test_swapped_matrices_are_refused() -> None:
    text, p, g = _printed()
    assert compare(text, p, g, {}, 1).passed
    first, *others = ({n for n in kernel.inputs if len(p.sources[n].dims) > 1} for kernel in g.kernels)
    ((k,), (v,)) = (own - first for own in others)
    swapped = text.replace(f"(in[{k}])", "(other)").replace(f"(in[{v}])", f"(in[{k}])").replace("(other)", f"(in[{v}])")
    assert swapped != text and not compare(swapped, p, g, {}, 1).passed


@pytest.mark.parametrize("kind", SPOILED)
def test_spoiled_ranges_are_refused(kind: str) -> None:
    text, p, g = _printed()
    old, new = SPOILED[kind]
    assert text.count(old) >= 1
    assert not compare(text.replace(old, new), p, g, {}, 1).passed


def test_kernels_of_one_launch_are_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much work it is: by themselves they would have no ranges."""
    p, best = _found()
    real = sources.source

    def broken(*arguments: object) -> sources.Rendered:
        rendered = real(*arguments)  # type: ignore[arg-type]
        old, new = SPOILED["a range that ends late"]
        return replace(rendered, text=rendered.text.replace(old, new))

    monkeypatch.setattr(prove, "AFFORDABLE", 0)
    assert prove_kernels(p, best.graph, best.schedules, HOPPER).passed
    monkeypatch.setattr(prove, "source", broken)
    assert prove_kernels(p, best.graph, best.schedules, HOPPER).refuted


def test_only_blocks_that_are_alike_start_together() -> None:
    _, best = _found()
    g, (first, second, third) = best.graph, best.schedules
    wider = replace(second, warps=2 * second.warps)
    assert launches(g, (first, wider, third)) == [range(1), range(1, 2), range(2, 3)]
    assert launches(g, (first, second, third), siblings=False) == [range(n, n + 1) for n in range(3)]


def test_a_kernel_that_reads_another_ones_result_waits() -> None:
    _, best = _found()
    first, second, third = best.graph.kernels
    reads = replace(second, inputs=(*second.inputs[:-1], first.outputs[0]))
    chained = replace(best.graph, kernels=(first, reads, third))
    assert launches(chained, best.schedules) == [range(1), range(1, 3)]
