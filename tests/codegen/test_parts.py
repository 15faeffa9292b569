"""Sources that callers give in two parts: kernels read them and store them whole, at once or one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from mirage_cli.errors import InvalidGraph
from mirage_cli.kernel_proof.compare import compare
from mirage_cli.kernel_proof.prove import prove_kernels
from mirage_cli.lax.dtypes import F16, DType
from mirage_cli.lax.extents import Extent, symbol
from mirage_cli.lax.ir import compose, parts
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.joints import Parts
from mirage_cli.lax.ir.parts import in_parts
from mirage_cli.lax.ir.program import Program, program_from_json
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions

from . import kernels
from .kernels import Case, cases
from .programs import program
from .strip_programs import block_graphs, strip_cases

PAST = 71
HOPPER = load_target("sm_90a")


def _grouped(g: Graph, t: DType, length: Extent = PAST + 1) -> Sequence[int]:
    """One query of three heads for each of two key heads."""
    q, k, v = (g.input(n, e, t) for n, e in (("q", (2, 3, 16)), ("k", (2, length, 16)), ("v", (2, length, 32))))
    scores = compose.scale(g, compose.matmul(g, q, g.transpose(k, (0, 2, 1))), 0.25)
    return [compose.matmul(g, compose.softmax(g, scores, [2]), v)]


def _attention(new: int = 1, only: str = "") -> Program:
    """Attention whose keys and values (or `only` the tensor that is called so) are in parts, `new` positions in the second."""
    p = program(_grouped, F16)
    own = [k for k, s in enumerate(p.sources) if len(s.dims) == 3 and s.dims[1] == PAST + 1]
    own = [k for k in own if not only or p.sources[k].dims[2] == (16 if only == "keys" else 32)]
    return replace(
        p, sources=tuple(replace(s, parts=Parts(1, new)) if k in own else s for k, s in enumerate(p.sources))
    )


def _cases(p: Program, engine: str) -> list[Case]:
    if engine == "strip":
        return list(strip_cases("parts", p, "sm_90a", 4, 1, block_graphs(p)))
    return list(cases("parts", p, engine, 2))


def _wholes(c: Case) -> tuple[int, bool]:
    """How many tensors kernels store while they read them, and whether a launch of its own joins others."""
    text = c.render().text
    return text.count("store_tile<"), "join_chunks(" in text or "join_rows(" in text


@pytest.mark.parametrize("engine", ["strip", "sm_80", "cpu"])
@pytest.mark.parametrize("new", [1, 5, PAST + 1])
def test_kernels_store_the_whole(engine: str, new: int) -> None:
    p = _attention(new)
    found = _cases(p, engine)
    assert found
    for c in found:
        finding = compare(c.render().text, p, c.graph)
        assert finding.passed and finding.compared >= sum(2 * (PAST + 1) * n for n in (16, 32)), (c, finding)


def test_strips_are_stored_from_where_they_are_read() -> None:
    best = _stored()
    assert _wholes(best) == (2, False) and compare(best.render().text, best.program, best.graph).passed
    told = [_wholes(c) for c in _cases(_attention(), "strip")]
    assert all(joined == (stored < 2) for stored, joined in told) and len(set(told)) > 1, told


@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "cpu"])
@pytest.mark.parametrize("new", [1, 3])
def test_parts_of_any_length(target: str, new: int) -> None:
    p = program(partial(_grouped, length=symbol(f"(past+{new})")), F16)
    p = parts.parted(p, {k: Parts(1, new) for k, s in enumerate(p.sources) if s.dims[1] != 3})
    chosen = load_target(target)
    best = Searcher(SearchOptions()).search(p, chosen).candidates[0]
    run = prove_kernels(p, best.graph, best.schedules, chosen)
    assert run.passed and run.compared, run.reason
    assert _wholes(Case("best", p, best.graph, best.schedules, chosen)) == (
        (0, True) if target == "cpu" else (2, False)
    )


def test_one_tensor_may_be_in_parts() -> None:
    for only in ("keys", "values"):
        p = _attention(3, only)
        for c in [*_cases(p, "strip"), *_cases(p, "cpu")]:
            assert len(in_parts(p)) == 1 and compare(c.render().text, p, c.graph).passed


@cache
def _stored() -> Case:
    """The kernel that the search prefers."""
    p = _attention(3)
    best, *_ = Searcher(SearchOptions()).search(p, HOPPER).candidates
    return Case("best", p, best.graph, best.schedules, HOPPER)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" < 69 ", " < 70 "),
        (" < 69 ", " < 68 "),
        (" - 1104", " - 1088"),
        ("store_tile<GROUP, ", "if (turn > 0) store_tile<GROUP, "),
        ("_0 + a_at * 1152", "_0 + a_at * 1136"),
    ],
)
def test_a_kernel_that_stores_something_else_is_refuted(old: str, new: str) -> None:
    c = _stored()
    text = c.render().text
    assert old in text, text
    assert not compare(text.replace(old, new), c.program, c.graph).passed


@pytest.mark.parametrize("engine", ["cpu", "sm_80"])
@pytest.mark.parametrize("size", [1096, 1088])
def test_a_join_of_other_rows_is_refuted(engine: str, size: int) -> None:
    c = _cases(_attention(3), engine)[0]
    text, old = c.render().text, "static_cast<int64_t>(1104)"
    assert old in text, text
    assert not compare(text.replace(old, f"static_cast<int64_t>({size})"), c.program, c.graph).passed


def test_shorter_extents_keep_the_joint() -> None:
    for c in (_stored(), _cases(_attention(3), "cpu")[0]):
        run = prove_kernels(c.program, c.graph, c.schedules, c.target)
        assert run.passed and run.compared, run.reason


def test_parts_are_part_of_a_program() -> None:
    p = _attention(3)
    assert program_from_json(p.to_json()) == p
    for wrong in ((3, 1), (-1, 1)):
        with pytest.raises(InvalidGraph, match="cannot be in two parts"):
            in_parts(replace(p, sources=tuple(replace(s, parts=Parts(*wrong)) for s in p.sources)))
    assert len({p.key(), _attention(1).key(), program(_grouped, F16).key()}) == 3
    arrays = [np.arange(np.prod([int(str(e)) for e in s.dims]))[None] for s in p.sources]
    given = parts.apart(p, arrays, lead=1)
    k = in_parts(p)[0]
    inner = int(str(p.sources[k].dims[2]))
    first, second = given[k].reshape(2, PAST - 2, inner), given[len(p.sources)].reshape(2, 3, inner)
    assert (np.concatenate([first, second], 1).reshape(1, -1) == arrays[k]).all()


def test_a_compiled_kernel_stores_the_whole(tmp_path: Path) -> None:
    p = _attention(5)
    found = list(cases("compiled", p, "cpu", 2))
    harness = kernels.build({c.name: c.render().text for c in found}, tmp_path, kernels.CPU_FLAGS)
    assert kernels.run(harness, found) == []
    short = [*found[0].inputs()]
    results = kernels.call(harness, found[0], short)
    assert not isinstance(results, str) and len(results) == 3
    assert all((r == short[k]).all() for r, k in zip(results[1:], in_parts(p), strict=True))
