"""Kernels of the engine `block`, run as they are printed: they are their programs, and what is broken is found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mirage_cli.kernel_proof.compare import Finding, compare
from mirage_cli.kernel_proof.run import all_blocks
from mirage_cli.lax.dtypes import F16, F32, DType
from tests.codegen import kernels
from tests.codegen.kernels import Case
from tests.codegen.programs import NAMED, program
from tests.codegen.rows.test_rows import combined
from tests.codegen.test_cuda_kernels import every_case
from tests.codegen.test_sizes import attention, best

BLOCKS = 24  #: of a kernel that are run


def some(blocks: int, cluster: int) -> Sequence[int]:
    """Blocks from the first one to the last one."""
    return sorted({k * (blocks - 1) // (BLOCKS - 1) for k in range(BLOCKS)}) if blocks > BLOCKS else range(blocks)


def found(case: Case, text: str, residues: bool = True) -> Finding:
    """What comes of running a source for a case: some blocks of a kernel, all where another one reads what they store."""
    choose = some if len(case.graph.kernels) == 1 else all_blocks
    return compare(text, case.program, case.graph, case.symbols, residues=residues, choose=choose)


def test_kernels_are_their_programs() -> None:
    """Every second one: the same kernels as float32 runs them are all looked at beside their printer."""
    cases = [*every_case()[1::2], *combined()]
    assert [(c.name, f.reason) for c in cases if not (f := found(c, c.render().text)).passed] == []


@pytest.mark.parametrize("dtype", [F16, F32])
def test_sizes_that_are_known_at_run_time_only(dtype: DType) -> None:
    """No key at all is for float64: residues have no softmax over nothing."""
    case = best("block", program(attention, dtype), "sm_90a", "block")
    text = case.render().text
    for keys in (0, 1, 7, 129):
        at = replace(case, sizes=(("keys", keys),))
        assert found(at, text, residues=keys > 0).passed


@pytest.fixture(scope="module")
def whole() -> Case:
    """Attention with keys and values in a ring of two stages."""
    return next(kernels.cases("attention", program(NAMED["attention"], F16), "sm_90a", 1, 9))


@pytest.fixture(scope="module")
def split() -> Case:
    """A normalised row times a matrix, in two parts of blocks of their own."""
    return next(kernels.cases("deep", program(NAMED["deep"], F16), "sm_80", 1, 7, lambda g: bool(g.split)))


def refuted(case: Case, before: str, after: str) -> str:
    """Why a source is refuted in which the first `before` is `after`."""
    text = case.render().text
    assert text.count(before)
    return found(case, text.replace(before, after, 1)).reason


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("copy_wait<0>();", "copy_wait<1>();", "differs"),
        ("load_stage(step + 1);\n", "load_stage(step + 2);\n", "differs"),
        ("t0 + step % 2 * 512;", "t0 + (step + 1) % 2 * 512;", "differs"),
        ("copy_commit();\n    };", "};", "copies are on their way"),
        ("e_step + i_e < 37 ? from", "e_step + i_e < 38 ? from", "reads element 1184 of input 2, which has 1184"),
        ("e_step + i_e < 37 ? from", "e_step + i_e < 36 ? from", "differs"),
        ("? from : nullptr, i_e * 16}", "? from : nullptr, i_e * 17}", "as a vector of 16 bytes"),
        ("x2 + a_at * 592 +", "x2 + a_at * 592 + 3 +", "as a vector of 16 bytes"),
        ("t0 + slot * 512, x2, 16,", "t0 + slot * 512, x2, 15,", "differs"),
        ("contract<16, true, 16, false, 16>", "contract<16, true, 16, true, 16>", "differs"),
        ("contract<16, true, 16, false, 16>", "contract<32, true, 16, false, 16>", "no barrier"),
        ("t9.v[m_][n_][i_] *= t6_shrink[0];", "", "differs"),
        ("t9.fill(0x0p+0f);", "", "differs"),
        ("if (r < 1) t10[0] += x;", "t10[0] += x;", "shared memory"),
        ("if (F_t6::row(m_, i_) < 1) {", "{", "shared memory"),
        ("if (F_t9::row(m_, i_) < 1)", "if (F_t9::row(m_, i_) < 2)", "different values"),
        ("reduce_rows<Sum,", "reduce_rows<Max,", "differs"),
        ("Sum::none()", "1.0f", "differs"),
    ],
)
def test_a_broken_kernel_is_refuted(whole: Case, before: str, after: str, why: str) -> None:
    assert why in refuted(whole, before, after)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("if (!last_to_arrive(arrivals + tile, 2)) return;", "", "has not waited"),
        ("if (!last_to_arrive(arrivals + tile, 2)) return;", "last_to_arrive(arrivals + tile, 2);", "has not waited"),
        ("last_to_arrive(arrivals + tile, 2)", "last_to_arrive(arrivals + tile, 1)", "has not waited"),
        ("last_to_arrive(arrivals + tile, 2)", "last_to_arrive(arrivals + tile, 3)", "is not written"),
        ("s < 2; ++s", "s < 1; ++s", "differs"),
        ("own_share = share_of(part)", "own_share = share_of(0)", "different values"),
        ("own_share[1024 + i]", "own_share[1023 + i]", "differs"),
        ("cudaMemsetAsync(p.arrivals, 0, 1 * 1", "cudaMemsetAsync(p.arrivals, 0, 0 * 1", "is not written"),
        ("return 8704;", "return 8192;", "of the workspace"),
        ("i_c < 200 && b_at + i_b < 21 ? x1", "i_c < 200 ? x1", "of input 1"),
        ("round < 16; ++round", "round < 15; ++round", "differs"),
        ("round * THREADS + static_cast<int>(threadIdx.x)", "round * THREADS", "differs"),
        ("reduce<Sum, 3, 128", "reduce<Sum, 3, 127", "differs"),
        ("0x1.9p+7f", "0x1.8p+7f", "differs"),
        ("< 3 && b_at + i_b < 21", "< 3", "of output 0"),
    ],
)
def test_a_broken_reduction_over_blocks_is_refuted(split: Case, before: str, after: str, why: str) -> None:
    assert why in refuted(split, before, after)


def test_a_barrier_that_is_missing_is_found(whole: Case, split: Case) -> None:
    """All but those between what one thread does alone: in the prologue, after a sum of one row, and on both sides of the
    square root."""
    needed = []
    for case in (whole, split):
        text = case.render().text
        places = [m.span() for m in re.finditer(r"__syncthreads\(\);", text)]
        needed.append(["no barrier" in found(case, text[:a] + text[b:]).reason for a, b in places])
    assert needed == [[False, True, False, True, True], [False, True, True, False, False, True]]


def test_what_changes_nothing_passes(whole: Case) -> None:
    """Weights of keys behind the last one meet rows of zeros; rows of queries behind the last one are never stored."""
    assert not refuted(whole, "? t6.v[m_][n_][i_] : 0.0f", "? t6.v[m_][n_][i_] : 1.0f")
    assert not refuted(whole, "contract<16, true, 16, false, 16>", "contract<16, true, 24, false, 16>")
