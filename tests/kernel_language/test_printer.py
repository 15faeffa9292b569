"""Kernels printed and read back: every engine's, and random trees of the grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_cli.codegen.source import source
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.printer import text
from mirage_cli.kernel_language.reader import read_expression, read_kernels, read_statements
from mirage_cli.kernel_language.tokens import PRECEDENCE, Tokens, marked
from mirage_cli.lax.dtypes import BF16, F16, F32
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher
from samples.cases import CASES, program, search_options
from tests.codegen import kernels, programs, row_programs, strip_programs
from tests.kernel_language.texts import GOLDENS

TYPES = (F16, F32, BF16)
SUITE = ("mha_prefill", "mqa_incremental", "rmsnorm_gain_linear", "silu_down")


def tokens(printed: str) -> list[str]:
    """What stands in a text, without its parentheses and braces."""
    return [t for t in Tokens(marked(printed)).tokens if t not in ("(", ")", "{", "}", "")]


def spans(printed: str, kernel: str) -> str:
    """The text of a kernel in a source, and that of its parameters."""
    struct = re.search(rf"^struct Parameters{kernel.removeprefix('kernel')} \{{.*?\}};", printed, re.M | re.S)
    head = rf"^(?:__global__ void __launch_bounds__\([^)]*\)\s*|void ){kernel}\(.*?^\}}"
    body = re.search(head, printed, re.M | re.S)
    assert struct is not None and body is not None
    return struct[0] + "\n" + body[0]


def same(printed: str) -> int:
    """How many kernels a source has, each of which is printed as it stands there."""
    found = read_kernels(printed)
    heads = re.findall(r"^__global__ void __launch_bounds__|^void kernel", printed, re.M)
    assert len(found) == len(heads)
    for name, kernel in found.items():
        again = text(kernel)
        assert read_kernels(again) == {name: kernel}
        assert tokens(again) == tokens(spans(printed, name))
    return len(found)


# --- what is printed ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("golden", GOLDENS)
def test_goldens(golden: str) -> None:
    assert same(GOLDENS[golden]) == 1


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
def test_engine_block(target: str) -> None:
    found = list[ir.Kernel]()
    for k, (name, build) in list(enumerate(programs.NAMED.items()))[::2]:
        p = programs.program(build, TYPES[k % 3])
        found += [kernel for c in kernels.cases(name, p, target, 1, k) for kernel in c.render().kernels]
    for kernel in found:
        assert read_kernels(text(kernel)) == {kernel.name: kernel}
    assert len(found) >= len(programs.NAMED) // 2 - 1


def test_engine_rows() -> None:
    found = 0
    for k, (name, build) in enumerate(row_programs.NAMED.items()):
        p = programs.program(build, TYPES[k % 3])
        arch = ("sm_80", "sm_90a")[k % 2]
        for c in row_programs.row_cases(name, p, arch, 3, k):
            (kernel,) = c.render().kernels
            assert read_kernels(text(kernel)) == {kernel.name: kernel}
            found += 1
    assert found >= 2 * len(row_programs.NAMED)


def test_engine_strip() -> None:
    found = list[ir.Kernel]()
    for k, (name, build) in list(enumerate(strip_programs.NAMED.items()))[::2]:
        p = programs.program(build, TYPES[k % 3])
        graphs = strip_programs.block_graphs(p)
        for c in strip_programs.strip_cases(name, p, "sm_90a", 1, k, graphs):
            found += c.render().kernels
    assert all(read_kernels(text(kernel)) == {kernel.name: kernel} for kernel in found)
    assert len(found) >= len(strip_programs.NAMED) // 2 - 2


def sources(case: str, target: str) -> Iterator[str]:
    """The sources of the best two muGraphs of a published case."""
    p, machine = program(CASES[case]), load_target(target)
    for found in Searcher(search_options(CASES[case], p)).search(p, machine).candidates[:2]:
        try:
            yield source(case, p, found.graph, found.schedules, machine, case).text
        except Refused:
            continue


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_published_cases(target: str) -> None:
    assert sum(same(s) for case in SUITE for s in sources(case, target)) >= len(SUITE)


# --- trees --------------------------------------------------------------------------------------------------------------
NAMES = st.sampled_from(["a", "b_", "__c", "S1"])
TYPE = st.builds(ir.Type, NAMES, st.tuples(st.builds(ir.Literal, st.just("4"))) | st.just(()), st.integers(0, 2))
LEAVES = st.builds(ir.Literal, st.sampled_from(["1", "0x1p-3f", "true", "INFINITY"])) | st.builds(
    ir.Name, st.tuples(NAMES) | st.tuples(NAMES, NAMES)
)


def _deeper(inner: st.SearchStrategy[ir.Expression]) -> st.SearchStrategy[ir.Expression]:
    several = st.lists(inner, max_size=2).map(tuple)
    return st.one_of(
        st.builds(ir.Binary, st.sampled_from(sorted(PRECEDENCE)), inner, inner),
        st.builds(ir.Unary, st.sampled_from(["-", "!", "~", "&", "*", "(void)"]), inner),
        st.builds(ir.Select, inner, inner, inner),
        st.builds(ir.Cast, st.sampled_from(["static", "reinterpret"]), TYPE, inner),
        st.builds(ir.Index, inner, inner),
        st.builds(ir.Member, inner.filter(lambda e: not isinstance(e, ir.Literal)), NAMES, st.just(()), st.booleans()),
        st.builds(ir.Call, inner, several),
        st.builds(ir.List, several),
        st.builds(lambda e: ir.Call(ir.Name(("f",), (e,)), ()), inner.filter(lambda e: not isinstance(e, ir.Name))),
        st.builds(lambda e: ir.Lambda((), (ir.Return(e),)), inner),
    )


EXPRESSIONS: st.SearchStrategy[ir.Expression] = st.recursive(LEAVES, _deeper, max_leaves=8)


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS)
def test_random_expressions(e: ir.Expression) -> None:
    assert read_expression(text(e)) == e
    assert read_statements(text(ir.Return(e))) == (ir.Return(e),)


GO = ir.Do((ir.Call(ir.Name(("go",)), ()),))
X = ir.Name(("x",))


def test_a_side_of_a_choice_stays_with_its_choice() -> None:
    """`if (x) if (x) go(); else break;` would say something else."""
    outer = ir.If(X, (ir.If(X, (GO,)),), (ir.Break(),))
    assert read_statements(text(outer)) == (outer,)


def test_several_statements_stand_in_braces() -> None:
    assert read_statements(text(ir.If(X, (GO, GO)))) == (ir.If(X, (GO, GO)),)
    assert read_statements(text((GO, ir.Scope((GO,))))) == (GO, ir.Scope((GO,)))


def test_text_is_laid_out() -> None:
    body = "    const float* const x = a + (b - c);\n    if (x) go();\n"
    loop = f"#pragma unroll\nfor (int i = 0; i < 4; ++i) {{\n{body}}}\n"
    assert text(read_statements(loop)) == loop
