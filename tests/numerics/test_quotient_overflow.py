"""Whether muGraphs divide what is too large for float32, found before any kernel is built."""

from __future__ import annotations

from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.planning.plan import PlanOptions, plan_fragment
from mirage_cli.search.search import SearchOptions
from tests.search.finish.test_scaling import made


def _softsign(g: Graph, x: int) -> int:
    return g.map("div", x, g.map("add", g.map("abs", x), g.fill(1, F32)))


def _powers(count: int, growth: float = 1.0) -> str:
    """What is found for softsign(x) ** count, written as products of quotients, in a model with values that grow so fast."""

    def build(g: Graph) -> int:
        s = _softsign(g, g.input("x", (4, 6), F32))
        value = s
        for _ in range(count - 1):
            value = g.map("mul", value, s)
        return compose.rms_norm(g, value, [1], 1e-2)

    p = made(build)
    return ", ".join(
        sorted(
            plan_fragment(
                "abc", "norm", p, 3, PlanOptions({"cpu": ("cpu",)}, SearchOptions(growth=growth))
            ).reasons.values()
        )
    )


def test_products_of_three_huge_numbers_are_not_divided_any_more() -> None:
    assert _powers(1) == _powers(2) == ""
    assert "products overflow float32 before they are divided (one huge value inputs)" in _powers(3)


def test_a_model_that_divides_third_powers_may_do_so() -> None:
    assert _powers(3, 6.0) == ""
