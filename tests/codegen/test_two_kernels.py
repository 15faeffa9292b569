"""Reductions over blocks as two kernels on the CPU, which has no grid reductions: shares stored, then combined."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_cli.lax.ir.program import Program
from mirage_cli.search.finish.split_reduction import two_kernels
from mirage_cli.search.schedules.ranking import ranked
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.codegen.kernels import CPU_FLAGS, SANITIZERS, Case, build, run
from tests.search.programs import attention, normed, program_of


def cases(name: str, program: Program) -> list[Case]:
    """A case for each block graph with a split reduction, in two and in four parts by turns."""
    target, made = load_target("cpu"), list[Case]()
    for block in Searcher(SearchOptions(candidates=1)).blocks(program)[0]:
        if block.split:
            graph = two_kernels(program, block, 2 + 2 * (len(made) % 2))
            choices = [ranked(k.program, k.block, target, 3)[-1].schedule for k in graph.kernels]
            made.append(Case(f"{name}{len(made)}", program, graph, tuple(choices), target))
    return made


@pytest.mark.slow
def test_shares_are_combined(tmp_path: Path) -> None:
    programs = {"a": attention(5, 12), "n": normed(8), "b": program_of("attention_boolean_fp32")}
    made = [c for name, p in programs.items() for c in cases(name, p)[:4]]
    assert len(made) >= 10
    harness = build({c.name: c.render().text for c in made}, tmp_path, (*CPU_FLAGS, *SANITIZERS), 2)
    assert not run(harness, made)
