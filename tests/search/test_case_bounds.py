"""The error bound of every published case, at its extents, from figures alone; and proofs at the real extents."""

import pytest

from mirage_cli.lax.bounds.bound import Arguments, difference, largest_difference, program_degrees
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import PROLOGUE, BlockGraph, BlockOp, KernelGraph
from mirage_cli.search.proof import degrees, stand_in
from mirage_cli.search.proof.verify import DEFAULT_CONFIDENCE, MAX_DRAWS, verify
from samples.cases import CASES, program
from tests.search.programs import built, one_kernel


@pytest.mark.parametrize("name", CASES)
def test_the_bound_of_a_published_case(name: str) -> None:
    """With a muGraph of the program's own figures, five fields do."""
    p = program(CASES[name])
    arguments = Arguments()
    sides = [program_degrees(p, {}, arguments) for _ in range(2)]
    worst = largest_difference([difference(a, b) for a, b in zip(*sides, strict=True)])
    assert degrees.bound(worst, arguments, 5, MAX_DRAWS).log2 < -DEFAULT_CONFIDENCE


def long_sum(rows: int) -> tuple[Program, KernelGraph]:
    """x x^T over a long axis, and the muGraph that does it at once, on tiles of 64 rows."""

    def build(g: Graph) -> int:
        x = g.input("x", (rows, 2048), F32)
        return compose.matmul(g, x, g.transpose(x, (1, 0)))

    p = built(build)
    product = next(n for n in p.nodes if n.op == "contract")
    loads = [BlockOp(i.name, "load", (), PROLOGUE, source_value=i.name) for i in p.inputs]
    ops = (*loads, BlockOp("y", "contract", product.inputs, PROLOGUE, product.over))
    row = next(a.name for a in p.axes if a.extent == rows)
    return p, one_kernel(p, BlockGraph((row,), (), None, ops, ("y",)))


def test_real_extents_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done on a stand-in by default, because it is long, is done at the real extents when asked for."""
    monkeypatch.setattr(stand_in, "AFFORDABLE", 1e6)
    p, graph = long_sum(256)
    (row,) = graph.kernels[0].block.grid
    for extents, wanted in (("auto", "stand-in"), ("real", "real")):
        verdict = verify(p, graph, [{row: 64}], extents=extents)  # type: ignore[arg-type]
        assert verdict.passed, verdict.reason
        assert verdict.extents == wanted
