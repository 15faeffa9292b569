"""Attention behind caches of 4 and 8 bits by strips that read keys and values as they are stored: their programs for every
kind of numbers, scales and sizes, refuted where one is another, compiled without a spilled register."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from mirage_cli.backends import toolchain
from mirage_cli.kernel_proof.compare import compare
from mirage_cli.lax.dtypes import BF16, E4M3, F16, F32, I4, I8, I64, U4, U8, DType
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.search.finish.scaling import with_headroom
from mirage_cli.search.schedules.ranking import engine_ranked
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen import kernels
from tests.codegen.kernels import Case, changed, single
from tests.codegen.programs import program
from tests.codegen.test_cuda_compiles import compiled, found_nvcc, in_namespaces

ROWS, KEYS = 1, 100


@dataclass(frozen=True, slots=True)
class Caches:
    """Two heads of keys and values with `group` heads of queries of `size` numbers each."""

    numbers: DType = U4
    zero: int = 8
    scales: str = "one"
    size: int = 64
    dtype: DType = F16
    group: int = 3
    split: bool = True
    window: int = 0
    loop: int = 16
    members: int = 1
    rows: int = ROWS
    arch: str = "sm_90a"


FORMS = {
    "int4": Caches(),
    "int4, whole": Caches(split=False),
    "int4 by channels": Caches(scales="channels", size=96),
    "int4 of a head": Caches(scales="heads", size=32),
    "int4, many rows": Caches(rows=20, members=2, split=False, size=32),
    "int4, window": Caches(window=40, loop=32, size=128),
    "signed int4": Caches(numbers=I4, zero=0, dtype=BF16, scales="channels"),
    "int8": Caches(numbers=I8, zero=0),
    "int8 by channels": Caches(numbers=I8, zero=0, scales="channels", size=96, split=False),
    "int8 in bfloat16": Caches(numbers=I8, zero=0, dtype=BF16, size=32),
    "uint8": Caches(numbers=U8, zero=128, scales="channels"),
    "int8 without scales": Caches(numbers=I8, zero=0, scales=""),
    "float8": Caches(numbers=E4M3, zero=0),
    "float8 by channels": Caches(numbers=E4M3, zero=0, scales="channels", size=128, dtype=BF16),
    "int4, sm_80": Caches(split=False, arch="sm_80"),
    "float8, sm_80": Caches(numbers=E4M3, zero=0, split=False, arch="sm_80"),
}


def _cache(c: Caches, g: Graph, t: DType, name: str) -> int:
    """(q - zero) scale, [2, 2, keys, size]."""
    keys = symbol("keys")
    if c.numbers.per_byte > 1:
        q = g.unpack(g.input(name, (2, 2, keys, c.size // 2), U8), c.numbers)
    else:
        q = g.input(name, (2, 2, keys, c.size), c.numbers)
    q = g.cast(q, F32)
    q = g.map("centred", q, g.fill(c.zero, F32)) if c.zero else q
    shape = {"one": (1,), "heads": (2, 1, 1), "channels": (2, 1, c.size)}.get(c.scales)
    q = g.map("mul", q, g.input(f"{name}s", shape, F32)) if shape else q
    return g.cast(q, t)


def attention(c: Caches, g: Graph, t: DType) -> Sequence[int]:
    """Rows of groups of heads behind `before` keys; values behind `last` count as 0."""
    q = g.input("q", (2, 2, c.group, c.rows, c.size), t)
    k, v = (g.reshape(_cache(c, g, t, n), (2, 2, 1, symbol("keys"), c.size)) for n in "kv")
    before, last = (g.reshape(g.input(n, (2,), I64), (2, 1, 1, 1, 1)) for n in ("before", "last"))
    at, j = g.map("add", before, g.iota(c.rows, 3, 5, I64)), g.iota(symbol("keys"), 4, 5, I64)
    keep = g.map("le", j, at)
    if c.window:
        keep = g.map("and", keep, g.map("lt", compose.shift(g, at, -c.window), j))
    scores = compose.scale(g, compose.matmul(g, q, g.transpose(k, (0, 1, 2, 4, 3))), Fraction(1, 8))
    weights = compose.softmax(g, compose.attention_mask(g, scores, keep), [4])
    written = g.map("le", g.iota(symbol("keys"), 3, 5, I64), last)
    return [compose.matmul(g, weights, compose.select(g, written, v, g.fill(0, t)))]


@cache
def case(form: str) -> Case:
    """The first kernel that is printed for a form with its schedule."""
    c = FORMS[form]
    p, target = program(partial(attention, c), c.dtype), load_target(c.arch)
    for g in Searcher(SearchOptions()).blocks(p)[0]:
        if bool(g.split) != c.split or g.loop is None:
            continue
        for r in engine_ranked("strip", p, g, target, 400):
            s = r.schedule
            if s.loop == c.loop and s.number("members") == c.members:
                named, s = re.sub(r"\W", "", form), replace(s, stages=3)
                graph = with_headroom(p, single(p, g), {})
                found = Case(named, p, graph, (s,), target, sizes=(("keys", KEYS),))
                if found.renders() and found.render().text.count("contract_stored") == 2:
                    return found
    raise AssertionError(f"no kernel of {form}")


@pytest.mark.parametrize(("form", "residues"), [*((f, True) for f in FORMS), *((f, False) for f in [*FORMS][::3])])
def test_stored_columns_are_their_programs(form: str, residues: bool) -> None:
    c = case(form)
    found = compare(c.render().text, c.program, c.graph, c.symbols, residues=residues)
    assert found.reason == "" and found.compared > 0


#: a kernel, its text, what takes its place
CHANGED = {
    "another zero point of keys": ("int4", "DeepColumns<(\\w+), 8>", r"DeepColumns<\1, 7>"),
    "another zero point of values": ("int4", "WideColumns<(\\w+), 8>", r"WideColumns<\1, 7>"),
    "the neighbour's number": ("int4", r"(packed_at<u4>\(\w+, )", r"\g<1>1 + "),
    "rows that lie further apart": ("int8", r"load_columns<GROUP, 64, 0>", "load_columns<GROUP, 128, 0>"),
    "hidden rows hold another number": ("int4", r"load_columns<GROUP, 64, 8>", "load_columns<GROUP, 64, 0>"),
    "numbers of another type": ("signed int4", r"ColumnTile<i4", "ColumnTile<u4"),
    "queries in the order of other numbers": ("int4", r"UnpackedRows<(\w+), 4>", r"UnpackedRows<\1, 8>"),
    "queries in their own order": ("int8", r"UnpackedRows<(\w+), 8>", r"Rows16<\1, true>"),
    "columns in their own order": ("int4", r"slab_col<4>\(", "strip_col("),
    "columns in the order of other numbers": ("int8", r"slab_col<2>\(", "slab_col<4>("),
    "scales of the next column": ("int8 by channels", r"(_scale\[)c\]", r"\g<1>c ^ 1]"),
    "scores without the largest scale": ("int8 by channels", r"(_factor) = \w+_scale\[0\];", r"\1 = 1.0f;"),
    "a key more is shown": ("int4", r"_here \+ (i_\w+) <= ", r"_here + \1 - 1 <= "),
    "positions behind the end": ("int8", r"(\w+_left = .*)offset_t\(16\)", r"\1offset_t(8)"),
}


@pytest.mark.parametrize("change", list(CHANGED))
def test_what_is_changed_is_refuted(change: str) -> None:
    name, old, new = CHANGED[change]
    c = case(name)
    assert compare(changed(c.render().text, old, new), c.program, c.graph, c.symbols).reason


@pytest.mark.parametrize("form", ["int4", "int4 by channels", "int8 by channels", "float8"])
def test_the_search_ends_with_one_kernel(form: str) -> None:
    """Which reads numbers as they are stored, whatever may be in scales: no operand overflows that does not in the program."""
    p = case(form).program
    found = Searcher(SearchOptions()).at({"keys": 8192}).search(p, load_target("sm_90a")).candidates
    assert [s.engine for s in found[0].schedules] == ["strip"]
    best = Case("best", p, found[0].graph, found[0].schedules, load_target("sm_90a"), sizes=(("keys", KEYS),))
    assert best.render().text.count("contract_stored") == 2


def test_bytes_that_are_predicted_are_those_of_stored_numbers() -> None:
    moved = []
    for form in ("int4", "int8"):
        p = case(form).program
        (kernel,) = case(form).graph.kernels
        (best, *_) = engine_ranked("strip", p, kernel.block, load_target("sm_90a"), 1, {"keys": 8192})
        moved.append(best.prediction.moved)
    assert moved[0] == pytest.approx(moved[1] / 2, rel=0.02)


def test_scales_of_any_size_do_not_overflow() -> None:
    """Queries are multiplied with scales of channels over the largest one."""
    c = case("int8 by channels")
    for size in (1e-7, 1.0, 1e7):
        arrays = c.inputs()
        for s, a in zip(c.program.sources, arrays, strict=True):
            if s.name == "ks":
                a[...] = np.abs(a) * size
            elif s.name == "q" and size > 1:
                a[...] = a / size
            elif s.name in ("before", "last"):
                a[...] = 50
        (wanted,) = c.reference(arrays)
        answer = kernels.answered(c, arrays)
        assert not isinstance(answer, str), answer
        np.testing.assert_allclose(answer[0], wanted, rtol=2e-2, atol=2e-2 * np.abs(wanted).max())


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_kernels_compile(arch: str, tmp_path: Path) -> None:
    nvcc: toolchain.Tool = found_nvcc()
    own = [f for f, c in FORMS.items() if c.arch == arch]
    text = in_namespaces({case(f).name: case(f).render().text for f in own})
    said = compiled(nvcc, text, tmp_path, arch, made="-fatbin")
    assert set(re.findall(r"(\d+) bytes (?:stack frame|spill)", said)) == {"0"}
