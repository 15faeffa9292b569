"""Strips whose rows are quantised weights, read as they are stored: their programs for every kind of numbers, scales and zero
points, refuted where one is another, compiled without a spilled register."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pytest

from mirage_cli.backends import toolchain
from mirage_cli.kernel_proof.compare import compare
from mirage_cli.lax.dtypes import BF16, F16, I4, I8, U4, U8, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.schedules import packed
from mirage_cli.search.schedules.ranking import engine_ranked
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.strip import roles
from tests.codegen.kernels import Case, changed, single
from tests.codegen.programs import program
from tests.codegen.strip_programs import HOPPER, block_graphs
from tests.codegen.test_cuda_compiles import compiled, found_nvcc, in_namespaces


@dataclass(frozen=True, slots=True)
class Product:
    """A product of `rows` rows with `n` columns of `k` numbers in blocks of `size`, and how it is cut: rows of a tile, blocks
    of an iteration, warps, those that share a tile."""

    rows: int = 1
    n: int = 48
    k: int = 1024
    size: int = 32
    numbers: DType = U4
    zero: str = "same"
    dtype: DType = F16
    kind: str = "plain"
    tile: int = 16
    loop: int = 8
    warps: int = 4
    members: int = 1
    share: int = 0
    at_once: int = 0  #: of the other operand's rows; 0: all


def _weight(g: Graph, t: DType, p: Product, name: str) -> int:
    """(q - zero) scale, [n, blocks, size]."""
    blocks = p.k // p.size

    def numbers(name: str, width: int) -> int:
        stored = g.input(name, (p.n, width // p.numbers.per_byte), I8 if p.numbers == I8 else U8, constant=True)
        return g.unpack(stored, p.numbers) if p.numbers.per_byte > 1 else stored

    q = g.cast(g.reshape(numbers(f"{name}q", p.k), (p.n, blocks, p.size)), t)
    if p.zero == "same":
        q = g.map("centred", q, g.fill(8, t, (p.n, blocks, 1)))
    elif p.zero == "whole":
        q = g.map("centred", q, g.cast(g.reshape(numbers(f"{name}z", blocks), (p.n, blocks, 1)), t))
    elif p.zero == "real":
        q = g.map("centred", q, g.input(f"{name}z", (p.n, blocks, 1), t, constant=True))
    return g.map("mul", q, g.input(f"{name}s", (p.n, blocks, 1), t, constant=True))


def _product(p: Product, g: Graph, t: DType) -> Sequence[int]:
    x = g.input("x", (p.rows, p.k), t)
    if p.kind == "norm":
        x = g.map("mul", compose.rms_norm(g, x, [1], 1e-5), g.input("gain", (p.k,), t, constant=True))
    x = g.reshape(x, (p.rows, p.k // p.size, p.size))
    made = [
        g.contract(x, _weight(g, t, p, name), [0, 1, 2], [3, 1, 2], [0, 3]) for name in "ab"[: 1 + (p.kind == "gated")]
    ]
    if p.kind == "gated":
        return [g.map("mul", g.map("silu", made[0]), made[1])]
    if p.kind == "bias":
        return [g.map("add", g.map("add", made[0], g.input("c", (p.n,), t)), g.input("r", (p.rows, p.n), t))]
    return made


def _graphs(name: str) -> tuple[BlockGraph, ...]:
    made = program(partial(_product, PRODUCTS[name]), PRODUCTS[name].dtype)
    return tuple(
        b for b in block_graphs(made) if packed.operands(made, b) and bool(b.split) == bool(PRODUCTS[name].share)
    )


@cache
def _case(name: str) -> Case:
    """The first block graph that the engine makes with the product's schedule."""
    own = PRODUCTS[name]
    made = program(partial(_product, own), own.dtype)
    for block in _graphs(name):
        sides = roles(made, block).sides
        tiles = {
            a: own.share if a in block.split else own.tile if a in sides.rows else own.at_once or own.rows
            for a in block.grid
        }
        schedule = Schedule(tuple(tiles.items()), own.loop, own.warps, 2, "strip", (("members", own.members),))
        case = Case(re.sub(r"\W", "", name), made, single(made, block), (schedule,), HOPPER)
        if case.renders():
            return case
    raise AssertionError(f"no strip for {name}")


PRODUCTS = {
    "one row": Product(),
    "three rows": Product(3, tile=32),
    "eight rows": Product(8, size=128, loop=2, members=2, tile=32),
    "sixteen rows": Product(16, n=80, size=128, zero="whole", loop=8, k=2048, tile=64, members=4),
    "real zero": Product(3, zero="real", dtype=BF16),
    "whole zero": Product(16, zero="whole", tile=64, members=4),
    "signed": Product(5, numbers=I4, zero="whole", loop=8),
    "signed alone": Product(5, numbers=I4, zero="none", loop=8),
    "eight bits": Product(3, numbers=U8, zero="whole", loop=4),
    "eight signed": Product(3, numbers=I8, zero="none", dtype=BF16, loop=4),
    "odd columns": Product(3, n=37),
    "part of an iteration": Product(3, k=1152, loop=8, tile=32),
    "split": Product(3, share=16),
    "one of three": Product(3, at_once=1),
    "gated": Product(3, kind="gated"),
    "gated, one of three": Product(3, kind="gated", at_once=1),
    "norm": Product(3, kind="norm"),
    "norm, one of three": Product(3, kind="norm", at_once=1),
    "bias": Product(2, kind="bias"),
}


@pytest.mark.parametrize("name", list(PRODUCTS))
def test_quantised_rows_are_their_programs(name: str) -> None:
    case = _case(name)
    text = case.render().text
    assert "packed_contract" in text
    for residues in (True, False):
        found = compare(text, case.program, case.graph, {}, residues=residues)
        assert found.reason == "" and found.compared > 0


#: a kernel, its text, what takes its place
CHANGED = {
    "another zero point": ("one row", "SameZero<8>", "SameZero<7>"),
    "the neighbour's number": ("one row", r"(packed_at<u4>\(\w+, )", r"\g<1>1 + "),
    "scales of another iteration": (
        "one row",
        r"(const __half\* const from = \w+ \+ \(\w+ \+ \w+\) \* 32 \+ )\w+_step;",
        r"\g<1>0;",
    ),
    "zero points of the next row": (
        "real zero",
        r"(__nv_bfloat16\* const from = \w+ \+ \(\w+ \+ \w+)(\) \* 32 \+ \w+_step)",
        r"\1 - 1\2",
    ),
    "fewer columns": ("three rows", r"PackedColumns<(\w+), 3>", r"PackedColumns<\1, 2>"),
    "rows of others": ("whole zero", r"member \* 16\}", "0}"),
    "numbers of another type": ("signed", r"PackedTile<i4", "PackedTile<i8"),
}


@pytest.mark.parametrize("change", list(CHANGED))
def test_what_is_changed_is_refuted(change: str) -> None:
    name, old, new = CHANGED[change]
    case = _case(name)
    assert compare(changed(case.render().text, old, new), case.program, case.graph, {}).reason


def test_bytes_that_are_predicted_are_those_of_packed_numbers() -> None:
    case = _case("one row")
    own, block = PRODUCTS["one row"], case.graph.kernels[0].block
    (best, *_) = engine_ranked("strip", case.program, block, HOPPER, 1)
    blocks = own.k // own.size
    assert best.prediction.moved < 3 * own.n * (own.k / 2 + 2 * blocks) + 64 * own.k


@pytest.mark.nvcc
def test_kernels_compile(tmp_path: Path) -> None:
    nvcc: toolchain.Tool = found_nvcc()
    text = in_namespaces({_case(name).name: _case(name).render().text for name in PRODUCTS})
    said = compiled(nvcc, text, tmp_path, "sm_90a", made="-fatbin")
    assert set(re.findall(r"(\d+) bytes (?:stack frame|spill)", said)) == {"0"}
