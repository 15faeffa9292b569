"""Products of many rows with quantised weights: these are unpacked by a kernel of their own, then warpgroups multiply.
Whatever the numbers are, that is the program; where a kernel is another one, it is refuted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import pytest

from mirage_cli.kernel_proof.compare import compare
from mirage_cli.kernel_proof.prove import prove_kernels
from mirage_cli.lax.dtypes import BF16, E2M1, F16, I4, I8, U2, U4, U8, DType
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.finish.kernels import unpacked
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.progress import SearchStatistics
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen.kernels import Case, changed
from tests.codegen.programs import program

HOPPER = load_target("sm_90a")
ROWS, COLUMNS, DEPTH, BLOCK = 70, 72, 128, 32
KINDS: dict[str, tuple[DType, DType, bool]] = {
    "u4": (F16, U4, False),
    "u4 with zero points": (F16, U4, True),
    "i4": (BF16, I4, False),
    "u2 with zero points": (F16, U2, True),
    "e2m1": (F16, E2M1, False),
    "u8": (F16, U8, True),
    "i8": (BF16, I8, False),
}


def product(numbers: DType, zeros: bool, rows: int, g: Graph, t: DType) -> Sequence[int]:
    """x (q - zero) scale, numbers in blocks along what is summed."""
    blocks = DEPTH // BLOCK

    def stored(name: str, each: int) -> int:
        if numbers.is_float:
            return g.input(name, (COLUMNS, each), numbers, constant=True)
        whole = g.input(name, (COLUMNS, each // numbers.per_byte), I8 if numbers == I8 else U8, constant=True)
        return g.unpack(whole, numbers) if numbers.per_byte > 1 else whole

    q = g.cast(g.reshape(stored("q", DEPTH), (COLUMNS, blocks, BLOCK)), t)
    zero = g.cast(g.reshape(stored("z", blocks), (COLUMNS, blocks, 1)), t) if zeros else g.fill(2, t, (1, 1, 1))
    q = g.map("centred", q, zero)
    w = g.map("mul", q, g.input("s", (COLUMNS, blocks, 1), t, constant=True))
    x = g.reshape(g.input("x", (rows, DEPTH), t), (rows, blocks, BLOCK))
    return [g.contract(x, w, [0, 1, 2], [3, 1, 2], [0, 3])]


def made(kind: str, rows: int = ROWS) -> Program:
    dtype, numbers, zeros = KINDS[kind]
    return program(partial(product, numbers, zeros, rows), dtype)


@cache
def case(kind: str) -> Case:
    """Weights unpacked by `rows`, several at a time, and multiplied by `warpgroup`."""
    p, searcher = made(kind), Searcher(SearchOptions(engines=("rows", "warpgroup"), schedules=64))
    behind = searcher._behind(p, unpacked(p), HOPPER, 0.0, SearchStatistics())
    found = [c for c in behind if multiplies(c.graph, c.schedules)]
    return Case(kind.replace(" ", ""), p, found[0].graph, found[0].schedules, HOPPER)


def multiplies(graph: KernelGraph, schedules: Sequence[Schedule]) -> bool:
    return [s.engine for s in schedules] == ["rows", "warpgroup"]


@pytest.mark.parametrize("kind", list(KINDS))
def test_weights_are_unpacked_once(kind: str) -> None:
    own = case(kind)
    text = own.render().text
    assert ("number_in(" in text) == (KINDS[kind][1].per_byte > 1)
    for residues in (True, False):
        found = compare(text, own.program, own.graph, {}, residues=residues)
        assert found.reason == "" and found.compared == ROWS * COLUMNS


#: what is changed, and what takes its place
CHANGED = {
    "another zero point": ("u4", r"number_in\((.*?), j\) - 0x1p\+1f", r"number_in(\1, j) - 0x1p+2f"),
    "neighbours the other way round": ("u4", r"number_in\((.*?), j\)", r"number_in(\1, WIDTH - 1 - j)"),
    "numbers of another type": ("i4", r"load_numbers<i4", "load_numbers<i2"),
    "numbers of another chunk": ("u4", r"(load_numbers<u4, WIDTH>\(p\.\w+, .*?) \+ i_d\)", r"\1)"),
    "the scale of another block": ("u4", r"= p\.(\w+)\[i_b \* 4 \+ i_c\]", r"= p.\1[i_b * 4 + (i_c + 1) % 4]"),
    "read before it is written": ("u4", r"(?s)(kernel1\(.*?)wait_for_earlier\(\);", r"\1"),
}


@pytest.mark.parametrize("change", list(CHANGED))
def test_what_is_changed_is_refuted(change: str) -> None:
    kind, old, new = CHANGED[change]
    own = case(kind)
    assert compare(changed(own.render().text, old, new), own.program, own.graph, {}).reason


def test_kernels_are_proved_at_shorter_axes() -> None:
    own = case("u4 with zero points")
    found = prove_kernels(own.program, own.graph, own.schedules, HOPPER)
    assert found.passed and found.compared > 0


def test_only_weights_are_computed_first() -> None:
    assert [labels for _, labels in unpacked(made("u4"))] == [("source 1", "source 2"), ("source 0", "v2")]
    p = program(lambda g, t: [g.map("neg", g.input("x", (3, 4), t))], F16)
    assert len(unpacked(p)) == 1


@pytest.mark.parametrize(("rows", "engines"), [(8, ["strip"]), (4096, ["rows", "warpgroup"])])
def test_many_rows_are_worth_it(rows: int, engines: list[str]) -> None:
    def large(g: Graph, t: DType) -> Sequence[int]:
        q = g.unpack(g.input("q", (4096, 32, 16), U8, constant=True), U4)
        w = g.map("mul", g.cast(q, t), g.input("s", (4096, 32, 1), t, constant=True))
        return [g.contract(g.input("x", (rows, 32, 32), t), w, [0, 1, 2], [3, 1, 2], [0, 3])]

    best = Searcher(SearchOptions()).search(program(large, F16), HOPPER).candidates[0]
    assert [s.engine for s in best.schedules] == engines
