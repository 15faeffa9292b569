"""Kernels for CPUs, run as they are printed: they are their programs, and what is broken is found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from mirage_cli.codegen.requests.request import Packing
from mirage_cli.codegen.source import MAX_PACKINGS, _panels
from mirage_cli.kernel_interpreter import statements
from mirage_cli.kernel_proof.compare import Finding, compare
from mirage_cli.lax.dtypes import F16, F32, I4, I8, U2, U4, U8, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import program_from_json
from mirage_cli.search.schedules.packed import weights
from tests.codegen import kernels
from tests.codegen.kernels import Case
from tests.codegen.programs import NAMED, normed_keys, program
from tests.codegen.test_cpu_kernels import every_case
from tests.codegen.test_two_kernels import cases as two_kernels
from tests.search.programs import built, normed

TASKS = 12  #: of a kernel that are run


def some(tasks: int, cluster: int) -> Sequence[int]:
    """Tasks from the first one to the last one."""
    return sorted({k * (tasks - 1) // (TASKS - 1) for k in range(TASKS)}) if tasks > TASKS else range(tasks)


def found(case: Case, text: str) -> Finding:
    """What comes of running a source for a case."""
    return compare(text, case.program, case.graph, case.symbols, choose=some)


def test_kernels_are_their_programs() -> None:
    cases = [*every_case()[::2], *kernels.cases("keys", program(normed_keys, F32), "cpu", 2)]
    assert [(c.name, f.reason) for c in cases if not (f := found(c, c.render().text)).passed] == []


def test_two_kernels_that_share_a_workspace() -> None:
    for case in two_kernels("n", normed(8))[:2]:
        text = case.render().text
        front, _, size = text.rpartition("return ")
        assert compare(text, case.program, case.graph).passed
        assert (
            "of the workspace" in compare(f"{front}return {size.replace('256', '8')}", case.program, case.graph).reason
        )
        together = text.replace("(workspace) + 256", "(workspace) + 4")
        assert "differs" in compare(together, case.program, case.graph).reason


@pytest.fixture(scope="module")
def case() -> Case:
    """A normalised row times a matrix, for a number of rows that is known at run time only."""
    return next(kernels.cases("symbolic", program(NAMED["symbolic"], F16), "cpu", 1, 19))


def test_sizes_that_are_known_at_run_time_only(case: Case) -> None:
    text = case.render().text
    assert all(found(replace(case, sizes=(("rows", n),)), text).passed for n in (1, 7, 16, 17))


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("scratch(3456 + 128)", "scratch(3072)", "of 3072 bytes of shared memory"),
        ("smaller(16, s_0 - a_at)", "16", "of input 0"),
        ("smaller(4, 18LL - b_at)", "4", "of input 1"),
        ("smaller(32, 33LL - c_step)", "32", "of input 1"),
        ("(memory + 3328)", "(memory + 3076)", "shared memory"),
        ("load_row(t1 + i_a * 48", "load_row(t1 + i_a * 32", "shared memory"),
        ("(a_at + i_a) * 33LL, 33", "(a_at + i_a) * 33LL, 34", "of input 0"),
        ("reduce<Sum>(33,", "reduce<Sum>(32,", "differs"),
        ("steps = 2", "steps = 1", "differs"),
        ("t6[i] = 0x0p+0f", "(void)i", "differs"),
        ("i < 64; ++i", "i < 63; ++i", "differs"),
        ("Known<0, 16,", "Known<0, 3,", "not what it is said to be"),
        ("18, true>>(", "18, false>>(", "not what it is said to be"),
        ("operand(t1 + c_step * 1, 48, 1)", "operand(t1 + 0, 48, 1)", "differs"),
        ("18), true)", "18), false)", "differs"),
        ("+ b_at, row, n_b)", "+ b_at, row, 4)", "output 0"),
        ("row[i_b] = e0;", "row[0] = e0;", "shared memory"),
        ("t10[i_a] = e2;", "t10[0] = e2;", "shared memory"),
        ("size_t>((s_0 + 15) / 16)", "size_t>(1)", "is not written"),
        ("t6, 4, n_a, n_b", "t6, 4, n_b, n_a", "shared memory"),
    ],
)
def test_a_broken_kernel_is_refuted(case: Case, before: str, after: str, why: str) -> None:
    text = case.render().text
    assert text.count(before)
    assert why in found(case, text.replace(before, after, 1)).reason


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (", x0, x0_panels", ", x1, x0_panels", "that of something else"),
        (", x0, x0_panels", ", x0 + 16, x0_panels", "that of something else"),
        ("panels5, 8)", "panels5, 7)", "not packed as it is said to be"),
        ("{0, 4, 1, 5, 40, 0, 0, 0}", "{1, 4, 1, 5, 40, 0, 0, 0}", "not packed as the table says"),
        ("{0, 4, 1, 5, 40, 0, 0, 0}", "{0, 4, 1, 10, 40, 0, 0, 0}", "not packed as it is said to be"),
        ("{0, 4, 1, 5, 40, 0, 0, 0}", "{0, 4, 1, 5, 80, 0, 0, 0}", "not packed as the table says"),
        ("{0, 4, 1, 5, 40, 0, 0, 0}", "{0, 4, 1, 5, 40, 0, 0, 1}", "numbers are split"),
    ],
)
def test_the_packed_form_of_another_operand_is_found(before: str, after: str, why: str) -> None:
    packed = two_kernels("n", normed(8))[0]
    text = packed.render().text
    assert text.count(before)
    assert why in compare(text.replace(before, after), packed.program, packed.graph).reason


def test_a_weight_beside_columns_of_another_type_is_not_packed() -> None:
    """Panels meet rows of float32; a product whose columns are read as float16 takes its operands as they are."""

    def build(g: Graph) -> int:
        return compose.matmul(g, g.input("w", (48, 40), F32, True), g.input("x", (40, 24), F16))

    for case in kernels.cases("mixed", built(build), "cpu", 6):
        text = case.render().text
        assert "float* ;" not in text
        assert found(case, text).passed


def test_more_weights_than_operators_keep_packed_forms_of() -> None:
    """The kernel's pointer is null then, and the operand is taken as it is."""
    case = two_kernels("n", normed(8))[0]
    packings = {Packing(k, 40, 4, 1, 5): k for k in range(MAX_PACKINGS)}
    own = Packing(0, 40, 4, 1, 8)
    assert str(_panels(own, dict(list(packings.items())[1:]))) != str(_panels(own, packings))
    assert len(packings) == MAX_PACKINGS
    text = case.render().text
    without = text.replace("static_cast<const float*>(in[64])", "static_cast<const float*>(nullptr)")
    assert without != text and compare(without, case.program, case.graph).passed


def test_iterations_of_a_vector_loop_that_need_one_another_are_found(case: Case) -> None:
    text = case.render().text
    assert "need one another" in found(case, text.replace("t10[i_a] = e2;", "t10[i_a] = e2 + t10[0];")).reason


@pytest.mark.parametrize(
    ("after", "passes"), [("i < 1 ? 0x0p+0f : t6[i - 1]", True), ("i < 63 ? t6[i + 1] : 0x0p+0f", False)]
)
def test_iterations_of_other_loops_run_in_turn_where_they_need_one_another(
    case: Case, after: str, passes: bool
) -> None:
    text = case.render().text
    assert text.count("t6[i] = 0x0p+0f")
    assert found(case, text.replace("t6[i] = 0x0p+0f", f"t6[i] = {after}")).passed == passes


@pytest.fixture(scope="module")
def scores() -> Case:
    """Scores of rows with keys of their own, each a sum that a function in two loops is given to."""
    made = built(lambda g: g.contract(g.input("k", (19, 23, 8), F32), g.input("q", (19, 8), F32), *AS_SCORES))
    return next(c for c in kernels.cases("scores", made, "cpu", 8) if "reduce<Sum>(" in c.render().text)


AS_SCORES = ([0, 1, 2], [0, 2], [0, 1])


def test_loops_around_functions_run_side_by_side(scores: Case) -> None:
    """One by one they would go on for more turns than are allowed."""
    with mock.patch.object(statements, "MOST_TURNS", 4):
        assert found(scores, scores.render().text).passed


@pytest.mark.parametrize(("more", "passes"), [("{0} - {0}", True), ("{0}", False)])
def test_loops_around_functions_run_in_turn_where_iterations_need_one_another(
    scores: Case, more: str, passes: bool
) -> None:
    """Later ones read what the first one wrote."""
    text = scores.render().text
    (sums,) = re.findall(r"(t\d+)\[[^]]*\] = static_cast<float>\(total\);", text)
    changed = text.replace("return e2;", f"return i_a + i_b > 0 ? e2 + {more.format(f'{sums}[0]')} : e2;")
    assert changed != text and found(scores, changed).passed == passes


def _quantised(g: Graph, numbers: DType, zero: str, rounds: bool = False) -> int:
    """x (q - zero) scale with 40 columns and two blocks of 32."""
    stored = g.input("q", (40, 2, 32 // numbers.per_byte), U8, True)
    if rounds:
        g.declare_rounds(stored)
    q = g.cast(g.unpack(stored, numbers) if numbers.per_byte > 1 else stored, F32)
    of_blocks = (
        g.fill(8, F32, (40, 2, 1)) if zero == "same" else g.input("z", (40, 2, 1), U8 if zero == "whole" else F32, True)
    )
    q = g.map("mul", g.map("centred", q, g.cast(of_blocks, F32)), g.input("s", (40, 2, 1), F32, True))
    return g.contract(g.input("x", (3, 2, 32), F32), q, [0, 1, 2], [3, 1, 2], [0, 3])


def packed_cases(numbers: DType, zero: str, count: int, rounds: bool = False) -> list[Case]:
    """Kernels that take its scales with its numbers."""
    made = built(lambda g: _quantised(g, numbers, zero, rounds))
    return list(
        kernels.cases("q", made, "cpu", count, kind=lambda b: any(w.of.scale for w in weights(made, b).values()))
    )


@pytest.fixture(scope="module")
def quantised() -> Case:
    """A product with numbers of 4 bits and zero points of their own."""
    return packed_cases(U4, "whole", 1)[0]


@pytest.mark.parametrize("numbers", [U4, I4, U2, U8], ids=str)
@pytest.mark.parametrize("zero", ["same", "whole", "real"])
def test_quantised_weights_stay_packed(numbers: DType, zero: str) -> None:
    for case in packed_cases(numbers, zero, 3):
        text = case.render().text
        assert f"stored<{numbers.name.upper()}>" in text and "load_" not in text.replace("load_row", "")
        assert found(case, text).passed


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("stored<U4>(x2, ", "stored<U4>(x2, -1 + ", "of input"),
        ("stored<U4>(", "stored<I4>(", "not packed as it is said to be"),
        ("x1_panels2_1, 2)", "x3_panels2_1, 2)", "that of something else"),
        ("64, 1, x2_panels64_1", "32, 1, x2_panels64_1", "not packed as it is said to be"),
        ("(x1, b_at * 2", "(x1, b_at", "differs"),
        (", 2), 32)", ", 2), 16)", "of input"),
        (", 64, 1, 2560, 4, 0, 0}", ", 64, 1, 2560, 4, 8, 0}", "not packed as it is said to be"),
        ("4, 64, 1, 2560", "1, 64, 1, 2560", "not packed as it is said to be"),
    ],
)
def test_broken_quantised_weights_are_refuted(quantised: Case, before: str, after: str, why: str) -> None:
    text = quantised.render().text
    assert text.count(before), text
    assert why in found(quantised, text.replace(before, after)).reason


# --- activations in 8 bits ----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def rounding() -> Case:
    """The same, of a model that says that its products round what they multiply."""
    return packed_cases(U4, "whole", 1, rounds=True)[0]


def test_weights_that_round_say_so(quantised: Case, rounding: Case) -> None:
    """Activations stay unless the model says otherwise; exactly the product is the same."""
    texts = [case.render().text for case in (quantised, rounding)]
    assert ["to_bytes(" in text for text in texts] == [False, True]
    assert quantised.program.key() != rounding.program.key()
    assert program_from_json(rounding.program.to_json()) == rounding.program
    assert all(found(case, text).passed for case, text in zip((quantised, rounding), texts, strict=True))


@pytest.mark.parametrize("rounds", [False, True])
def test_blocks_of_activations_are_rounded_to_127_parts_of_their_largest(rounds: bool) -> None:
    random = np.random.default_rng(3)
    for case in packed_cases(U4, "whole", 3, rounds):
        drawn = {
            (F32, 3): random.standard_normal((3, 2, 32)).astype(np.float32),
            (U4, 40): random.integers(0, 16, (40, 2, 32)),
            (U8, 40): random.integers(0, 16, (40, 2, 1)),
            (F32, 40): random.random((40, 2, 1)).astype(np.float32),
        }
        x, q, z, scale = drawn.values()
        arrays = [drawn[s.dtype, int(s.dims[0])] for s in case.program.sources]
        results = kernels.interpreted(case, kernels.source_of(case.render().text), arrays)
        assert not isinstance(results, str), results
        part = np.abs(x).max(-1, keepdims=True) / 127
        taken = np.rint(x / part) * part if rounds else x
        wanted = np.einsum("abc,nbc->an", taken.astype(np.float64), (q - z) * scale)
        np.testing.assert_allclose(results[0], wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("pattern", "after", "why"),
    [
        (r"memory \+ (\d+)\)", r"memory + \g<1> + 256)", "beyond the room"),
    ],
)
def test_broken_rounding_is_refuted(rounding: Case, pattern: str, after: str, why: str) -> None:
    text = rounding.render().text
    changed = re.sub(pattern, after, text)
    assert changed != text, text
    assert why in found(rounding, changed).reason


def test_a_kernel_that_rounds_without_being_told_is_refuted(quantised: Case) -> None:
    text = quantised.render().text
    changed = re.sub(r"(operand\(.*?\)), quantised\(", r"to_bytes(\g<1>, memory), quantised(", text)
    assert changed != text and "does not say so" in found(quantised, changed).reason


# --- activations in levels ------------------------------------------------------------------------------------------------
def _levels(g: Graph) -> int:
    """x in levels of a scale that is given, times numbers less zero points of 40 columns."""
    zeros = g.cast(g.input("z", (1, 40), I8, True), F32)
    q = g.map("centred", g.cast(g.input("q", (64, 40), I8, True), F32), zeros)
    scale, zero = (g.input(name, (1, 1), F32) for name in ("scale", "zero"))
    return g.contract(g.map("levels", g.input("x", (3, 64), F32), scale, zero), q, [0, 1], [1, 2], [0, 2])


@pytest.fixture(scope="module")
def levels() -> Case:
    """Its first kernel that is made of one block graph."""
    return next(kernels.cases("levels", built(_levels), "cpu", 1, kind=lambda b: not b.loop))


@pytest.mark.parametrize("limited", [False, True])
def test_levels_are_multiplied_as_bytes(levels: Case, limited: bool) -> None:
    text = levels.render().text
    assert "in_levels(" in text and found(levels, text).passed
    random = np.random.default_rng(3)
    x, q, z = random.standard_normal((3, 64)), random.integers(-128, 128, (64, 40)), random.integers(-128, 128, (1, 40))
    scale, zero = np.full((1, 1), 0.01 if limited else 0.03), np.full((1, 1), 117.0)
    p = levels.program
    made = next(n for n in p.nodes if n.op == "levels")
    drawn = dict(zip((p.input(i).source for i in made.inputs), (x, scale, zero), strict=True))
    arrays = [drawn.get(k, q if s.dims == q.shape else z).astype(np.float32) for k, s in enumerate(p.sources)]
    results = kernels.interpreted(levels, kernels.source_of(text), arrays)
    assert not isinstance(results, str), results
    taken = np.clip(np.rint(x.astype(np.float32) / np.float32(scale)) + zero, 0, 255) - zero
    assert np.array_equal(results[0], taken @ (q - z))


@pytest.mark.parametrize(
    ("pattern", "after", "why"),
    [
        (r"memory \+ (\d+)\)", r"memory + \g<1> + 256)", "beyond the room"),
        (r"same_whole\(0x1p\+0f\)", "same(0x1p-1f)", "no whole number"),
        (r"m_levels\((\w+), ", r"m_levels(0.5f * \g<1>, ", "differs"),
        (r"= m_levels\((\w+), .*?\);", r"= \g<1>;", "differs"),
    ],
)
def test_broken_levels_are_refuted(levels: Case, pattern: str, after: str, why: str) -> None:
    text = levels.render().text
    changed = re.sub(pattern, after, text)
    assert changed != text, text
    assert why in found(levels, changed).reason
