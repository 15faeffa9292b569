"""Kernels of the engine `warpgroup`, run as they are printed: all are their programs, and one that is changed is found out.

MIRAGE_MANY=1 makes all changes, not every third one.
"""

from __future__ import annotations

import os
from functools import cache

import pytest

from mirage_cli.kernel_proof.compare import compare
from mirage_cli.kernel_proof.run import Source
from mirage_cli.lax.dtypes import BF16, F16, DType
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import KernelGraph
from tests.codegen import kernels
from tests.codegen.kernels import single
from tests.codegen.warpgroup.test_warpgroup import CASES, FLOATS, TARGET, _made, _split


@cache
def _rendered(name: str, dtype: DType = F16) -> tuple[Program, KernelGraph, str]:
    made = _split(dtype) if name == "split" else _made(name, dtype)
    return made.program, single(made.program, made.graph), made.text


def _told(name: str, old: str = "", new: str = "", residues: bool = True, dtype: DType = F16) -> str:
    """What is found of a kernel in whose text something was replaced."""
    p, graph, text = _rendered(name, dtype)
    assert old in text
    return compare(text.replace(old, new) if old else text, p, graph, {}, residues=residues).reason


# --- programs -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [*CASES, *FLOATS, "split"])
def test_kernels_are_their_programs(name: str) -> None:
    assert _told(name) == ""


@pytest.mark.parametrize(("name", "dtype"), [("turned", BF16), ("norm", F16)])
def test_kernels_over_float64(name: str, dtype: DType) -> None:
    assert _told(name, residues=False, dtype=dtype) == ""


# --- changes ------------------------------------------------------------------------------------------------------------
#: of a case: what is replaced by what, and what is said of it
CHANGES = [
    # who waits for whom
    ("attention", "early_empty[early.slot].wait(early.parity ^ 1);", "", "no barrier between"),
    ("attention", "held_full[held.slot].wait(held.parity);", "", "no barrier between"),
    ("attention", "late_full[late.slot].wait(late.parity);", "", "no barrier between"),
    ("attention", "early.parity ^ 1", "early.parity", "nobody is left"),
    ("attention", "early_full[s].start(1)", "early_full[s].start(2)", "nobody is left"),
    ("attention", "early_empty[s].start(8)", "early_empty[s].start(7)", "no barrier between"),
    ("attention", "early_empty[s].start(8)", "early_empty[s].start(4)", "before somebody has waited"),
    ("attention", "full.expect(16384)", "full.expect(8192)", "nobody is left"),
    ("attention", "full.expect(16384)", "full.expect(32768)", "nobody is left"),
    ("attention", "    __syncthreads();\n", "", "may not have been started"),
    ("attention", "barriers_started();", "", "may not see that this barrier was started"),
    ("attention", "__syncwarp();", "", "no barrier between"),
    ("attention", "if (group == 1) arrive_named(1, 256);", "", "nobody is left"),
    ("attention", "wait_named(1 + group, 256);", "", "comes twice"),
    ("attention", "if (step == steps - 1) {", "if (step == 0) {", "no barrier between"),
    ("attention", "wait_for_earlier();", "", "has not waited"),
    # what is brought before the kernel in front has ended
    ("norm", "begun = min(steps, 3);", "begun = 4;", "more than 1 arrivals"),
    ("norm", "if (begun == 0) {", "if (begun <= 1) {", "more than 1 arrivals"),
    # products
    ("attention", "products_wait<1>();", "products_wait<2>();", "used before"),
    ("attention", "products_begin();", "", "not begun"),
    ("norm", "products_wait<1>();\n", "", "no barrier between"),
    ("norm", "if (step > 0) release(early_empty[before]);", "release(early_empty[early.slot]);", "no barrier between"),
    ("ahead", "late_full[late.slot].wait(late.parity);", "", "no barrier between"),
    ("attention", "wgmma<128, __half, false, true>", "wgmma<64, __half, false, true>", "registers for 64 columns"),
    ("attention", "wgmma<64, __half, true>", "wgmma<64, __half, false>", "no barrier between"),
    ("turned", "wgmma<128, __half, false, false>", "wgmma<128, __half, false, true>", "differs"),
    # places
    ("attention", "load_box<3>(t1 + 8192,", "load_box<3>(t1 + 4096,", "a copy is on its way"),
    ("attention", "late.slot * 16384", "late.slot * 8192", "no barrier between"),
    ("attention", "+ 81920)", "+ 73728)", "there is no barrier here"),
    ("attention", "384, 83056", "384, 82000", "bytes of shared memory"),
    ("turned", "{136ull, 200ull}", "{136ull, 201ull}", "a box reads element"),
    ("turned", "{0, 272ull}", "{0, 276ull}", "the host function returns"),
    ("turned", "k / 4 * 16384 + k % 4 * 32", "k / 4 * 16384 + k % 2 * 32", "differs"),
    ("turned", "< 200 ? parameters.y0", "< 201 ? parameters.y0", "writes element"),
    ("norm", "264 - b_at - 0", "256 - b_at - 0", "is not written"),
    ("norm", "b_at + 0 + rank * 64", "b_at + 0 + rank * 32", "differs"),
    # clusters
    ("norm", "wait_cluster();\n    launch", "__syncthreads();\n    launch", "may not have been started"),
    ("norm", "    wait_cluster();\n}", "}", "may end before"),
    ("norm", "full, at, 3)", "full, at, 1)", "nobody is left"),
    ("norm", "start(16)", "start(8)", "before somebody has waited"),
    ("split", "exchange_full->wait_cluster(", "exchange_full->wait(", "no barrier between"),
    ("split", "exchange_empty->wait_cluster(exchange.parity ^ 1);", "", "no barrier between"),
    # parts of float32
    ("between", "show_products();", "", "differs"),
    ("between", "split_full[split.slot].wait(split.parity);", "", "no barrier between"),
    ("between", "split_empty[split.slot].wait(split.parity ^ 1);", "", "no barrier between"),
    ("between", "split_full[s].start(3)", "split_full[s].start(2)", "no barrier between"),
    ("between", "multiply_floats<64, 32, true>", "multiply_floats<64, 32, false>", "no barrier between"),
    ("between", "split_tile<32, 64, 96>", "split_tile<32, 64, 128>", "differs"),
    ("beside", "k > 0);", "true);", "differs"),
    # rows of caches that nothing was written to
    ("cached", "known[late.slot].wait(late.parity);", "", "no barrier between"),
    ("cached", "show_products();", "", "differs"),
    ("cached", "clear_row(", "if (false) clear_row(", "differs"),
    ("cached", "c_ < 64; c_ += 96", "c_ < 63; c_ += 96", "differs"),
    ("cached", "+ -63 - f_step", "- f_step", "differs"),
    # helpers
    ("keynorm", "known[place.slot].wait(place.parity);", "", "no barrier between"),
    (
        "keynorm",
        "__syncwarp();\n                    if (lane == 0) known",
        "if (lane == 0) known",
        "no barrier between",
    ),
]


@pytest.mark.parametrize(("name", "old", "new", "said"), CHANGES[:: 1 if os.environ.get("MIRAGE_MANY") else 3])
def test_changed_kernels_are_found_out(name: str, old: str, new: str, said: str) -> None:
    assert said in _told(name, old, new)


def test_all_parts_of_float32_count() -> None:
    """Over numbers that are rounded a kernel is as accurate as float32, and not with another part in the place of one."""
    made = _made("between")
    case = kernels.Case("between", made.program, single(made.program, made.graph), (made.schedule,), TARGET)
    text, arrays = case.render().text, case.inputs()
    for old, new, right in (("", "", True), ("[m][k][1]", "[m][k][2]", False)):
        results = kernels.interpreted(case, Source(text.replace(old, new) if old else text), arrays)
        assert not isinstance(results, str), results
        assert (case.problem(results, arrays) == "") == right


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("norm", "c_step + c_ < 136 ? e1 : 0.0f", "e1"),  # boxes are 0 outside of a tensor
        (
            "norm",
            "release(early_empty[before]);",
            "release(early_empty[early.slot]);",
        ),  # the last one frees the first slot
    ],
)
def test_changes_that_change_nothing(name: str, old: str, new: str) -> None:
    assert _told(name, old, new) == ""
