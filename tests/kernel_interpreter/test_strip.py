"""Kernels of the engine `strip`, run as they are printed: all are their programs, and one that is changed is found out.

MIRAGE_MANY=1 runs the kernel of every program, and leaves out every wait of more kernels.
"""

from __future__ import annotations

import os
import re
from functools import cache

import pytest

from mirage_cli.kernel_proof.compare import compare
from mirage_cli.lax.dtypes import BF16, F16, F32
from mirage_cli.search.schedules import strip
from mirage_cli.search.schedules.schedule import Schedule
from tests.codegen.kernels import Case, single
from tests.codegen.programs import program
from tests.codegen.strip.test_strip_columns import SMALL
from tests.codegen.strip.test_strips import WAIT, _kept
from tests.codegen.strip_programs import HOPPER, NAMED, block_graphs, shared_case, strip_cases

MANY = bool(os.environ.get("MIRAGE_MANY"))
DRAWN = list(NAMED)[:: 1 if MANY else 4]
KEPT = ("golden", "gain", "rows", "qknorm", "across")
LEFT_OUT = KEPT if MANY else ("gain",)
FLOAT64 = KEPT if MANY else ("across",)


def _told(case: Case, text: str, residues: bool = True) -> str:
    return compare(text, case.program, case.graph, case.symbols, residues=residues).reason


@cache
def _rendered(name: str) -> tuple[Case, str]:
    case = _together() if name == "together" else _kept(name)
    return case, case.render().text


def _together() -> Case:
    """Four warps that multiply together, in a cluster of blocks."""
    build, dtype = SMALL["latent256"]
    p = program(build, dtype)
    block = next(b for b in block_graphs(p) if b.split)
    sizes = {a: 64 if a in strip.roles(p, block).sides.rows or a in block.split else 1 for a in block.grid}
    numbers = (("members", 4), ("across", 2))
    return Case("together", p, single(p, block), (Schedule(tuple(sizes.items()), 64, 8, 2, "strip", numbers),), HOPPER)


# --- programs -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", DRAWN)
def test_strips_are_their_programs(name: str) -> None:
    k = list(NAMED).index(name)
    p = program(NAMED[name], (F16, BF16, F32)[k % 3])
    (case,) = strip_cases(name, p, "sm_90a", 1, k, block_graphs(p))
    assert _told(case, case.render().text) == ""


@pytest.mark.parametrize("name", [*KEPT, "together"])
def test_kept_kernels_are_their_programs(name: str) -> None:
    assert _told(*_rendered(name)) == ""


@pytest.mark.parametrize("name", FLOAT64)
def test_strips_over_float64(name: str) -> None:
    assert _told(*_rendered(name), residues=False) == ""


def test_shares_that_a_second_kernel_combines() -> None:
    case = shared_case("shared", program(NAMED["long_attention"], F16), 3, 1)
    assert _told(case, case.render().text) == ""


# --- what is wrong is found ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_wait_that_is_missing_is_found(name: str) -> None:
    """All but the last wait for copies: behind the loop none is on its way."""
    case, text = _rendered(name)
    waits = list(WAIT.finditer(text))
    passed = [m[1] for m in waits if not _told(case, text[: m.start()] + text[m.end() + 1 :])]
    assert len(waits) >= 7 and passed == ["copy_wait<0>();"]


BARRIER, ORDER, EDGE = "with no barrier between", "differs at", "outside|of shared memory|which has"
#: kernel, text that is there once or more often, what takes its first place, what is said then
CHANGED = {
    "a barrier of other threads": (
        "across",
        "wait_together<GROUP>(1 + group)",
        "wait_together<GROUP>(1)",
        "other threads",
    ),
    "a barrier of too few": (
        "across",
        "wait_together<GROUP>(1 + group)",
        "wait_together<64>(1 + group)",
        "other threads",
    ),
    "a barrier for some": (
        "rows",
        "        wait_together<GROUP>(1 + group);",
        "        if (lane_of() > 3) __syncthreads();",
        "threads wait",
    ),
    "the stage before": (
        "across",
        "slot = slot == 1 ? 0 : slot + 1;",
        "slot = 0;",
        "copy is on its way|differs|barrier",
    ),
    "a stage that is read": (
        "rows",
        "const int free = slot == 0 ? 1 : slot - 1;",
        "const int free = slot;",
        "barrier|way|differs",
    ),
    "stages that overlap": (
        "across",
        "slot * 3072;\n            load",
        "slot * 2048;\n            load",
        "way|differs|barrier",
    ),
    "one row too far": ("across", "i_c < 264 ? from", "i_c < 265 ? from", EDGE),
    "zeros before the end": ("rows", "i_d < 264 ? from : nullptr", "i_d < 48 ? from : nullptr", ORDER),
    "elements too few": ("across", "in_group, x0, 32,", "in_group, x0, 31,", ORDER),
    "rows that are not aligned": (
        "across",
        "(c_at + c_step + i_c) * 32;",
        "(c_at + c_step + i_c) * 32 + 1;",
        "vector of 16",
    ),
    "a tile's other row": ("across", "member * 16}, Columns8", "member * 8}, Columns8", ORDER),
    "another depth": ("across", "strip_contract<2>(t4", "strip_contract<1>(t4", "not read"),
    "other columns": ("across", "share * 2}", "share}", ORDER),
    "more columns than a tile has": ("across", "share * 2}", "share * 2 + 4}", "outside of a tile"),
    "a tile the other way round": ("across", "Columns8<Tile_t0, true>", "Columns8<Tile_t0, false>", ORDER),
    "a row too short": (
        "across",
        "StripSum::join(x, c_at + c_step + i_c < 264",
        "StripSum::join(x, c_at + c_step + i_c < 263",
        ORDER,
    ),
    "no start": ("across", "t11.fill(0.0f);", "", ORDER),
    "no sum over lanes": ("across", "over_row<StripSum>(t11.v[m_][h_])", "t11.v[m_][h_]", ORDER),
    "shares of other warps": ("across", "put_share<2>", "put_share<1>", "barrier|differs|different"),
    "shares that are not joined": ("across", "join_shares<StripMax, 2, 2>(t7_top, t7_top_own, member);", "", ORDER),
    "a maximum that is not kept": ("across", "t7_max.v[m_][h_] = high;", "", ORDER),
    "no scaling": ("across", "*= t7_shrink.v[m_][i_ >> 1]", "*= 1.0f", ORDER),
    "a pitch too small": ("across", "* 36 + c]", "* 28 + c]", "barrier|different|differs"),
    "another block": (
        "across",
        "+ i), to, share",
        "+ i), to + 1, share",
        "a cluster has 2 blocks",
    ),
    "its own block": ("across", "* 4, i / 96, share", "* 4, rank, share", "bytes of|different values"),
    "bytes too few": ("across", "expect_sent(sent, ", "expect_sent(sent, -4 + ", "bytes of"),
    "what is not awaited": ("across", "await_sent(sent);", "", "different values|barrier"),
    "a result too far": ("across", "if (a_at + i_a < 19) put", "if (a_at + i_a < 20) put", "which has"),
    "a result that is missing": ("across", "if (a_at + i_a < 19) put", "if (a_at + i_a < 18) put", "not written"),
    "an uncommitted copy": ("across", "        copy_commit();", "", "way|differs"),
    "a longer wait": ("rows", "copy_wait<1>();", "copy_wait<2>();", ORDER),
    "what is not shown": ("together", "show_products();", "", ORDER),
    "rows of other warps": ("together", "member * 16}", "member * 16 + 64}", "outside|other rows"),
    "a sum of a tile that is short": ("gain", "e < Tile_t1::VEC", "e < Tile_t1::VEC - 1", ORDER),
    "a shuffle by some": (
        "golden",
        "sum += __shfl_xor_sync",
        "if (k % 3 == 0) sum += __shfl_xor_sync",
        "not all threads",
    ),
    "an inverse of another": (
        "golden",
        "t9_inverse[i] = 1.0f / t9[i];",
        "t9_inverse[i] = 1.0f / t9[i ^ 1];",
        "barrier",
    ),
    "a reduction too short": ("golden", "reduce<StripSum, 24, 2,", "reduce<StripSum, 24, 1,", ORDER),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_change_is_found(what: str) -> None:
    name, old, new, told = CHANGED[what]
    case, text = _rendered(name)
    assert old in text
    assert re.search(told, _told(case, text.replace(old, new, 1))), _told(case, text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("across", "StripMax::join(x, c_at + c_step + i_c < 264 ?", "StripMax::join(x, c_at + c_step + i_c < 265 ?"),
        ("across", "== 0 && share == 0", "== 0 && share == 1"),
        ("across", "o < 24 && a_at", "o < 25 && a_at"),
        ("across", "if (!(c_at + c_step + i_c < 264))", "if (false)"),
    ],
)
def test_what_changes_nothing_is_let_through(name: str, old: str, new: str) -> None:
    """A maximum decides the range only; all shares of a row have it; rows that are zero anyway, what is multiplied by them."""
    case, text = _rendered(name)
    assert old in text and _told(case, text.replace(old, new)) == ""
