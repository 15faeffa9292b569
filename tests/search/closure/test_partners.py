"""Partners: looked up, they are all the pairs that the tests of pairs let through, and few others."""

from __future__ import annotations

import itertools

import pytest

from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.closure.closure import Closure
from mirage_cli.search.closure.form import search_form
from mirage_cli.search.closure.mapping import mappings
from mirage_cli.search.closure.partners import Partners
from mirage_cli.search.closure.pruning import tag
from tests.search.programs import built, program_of


def rotated() -> Program:
    """A sum of a function of twelve reads that all have the reduced axis."""

    def build(g: Graph) -> int:
        total = g.input("s0", (3, 8), F32)
        for k in range(1, 12):
            total = g.map("add", total, g.input(f"s{k}", (3, 8), F32))
        return g.reduce("sum", g.map("tanh", total), [1])

    return built(build)


@pytest.mark.parametrize(
    ("name", "opened"),
    [("rmsnorm_gain_linear", True), ("lora_adapters", True), ("lora_adapters", False), ("attention_masked", True),
     ("ntrans", False)],
)  # fmt: skip
def test_no_pair_is_missed(name: str, opened: bool) -> None:
    form = search_form(program_of(f"{name}_fp32"), opened)
    closure = Closure(form, mappings(form)[0], 3000).run()
    e, wanted = closure.expressions, closure.pruning
    seen = [*dict.fromkeys(v.expr for v in closure.values)][:250]
    tags = [tag(op) for op in wanted.quotients]
    companions = Partners(e, wanted.outputs, tags)
    found = 0
    for count, x in enumerate(seen, 1):
        own = companions.of(x)
        assert len(set(own)) == len(own) and set(own) <= set(seen[:count])
        found += len(own)
        for y in seen[:count]:
            possible = any(
                e.may_hold_product(x, y, (), o)
                or e.may_hold_sum(x, y, o)
                or any(e.may_hold_quotient(a, b, t, o) for t in tags for a, b in ((x, y), (y, x)))
                for o in wanted.outputs
            )
            assert y in own or not possible, f"{e.text(x)} and {e.text(y)}"
    assert 0 < found < len(seen) * (len(seen) + 1) // 2


def test_equal_arrays_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of reads in either phase there are 2^12 combinations: as many ways, but one array for each phase."""
    form = search_form(rotated(), False)
    closure = Closure(form, next(m for m in mappings(form) if m.loop))
    calls: list[int] = []
    function = closure.target.function
    monkeypatch.setattr(closure.target, "function", lambda *args: calls.append(1) or function(*args))
    closure.run()
    made = [v for v in closure.values if any(w.op == "fn" and len(w.args) == 12 for w in v.ways)]
    assert sorted(len(v.ways) for v in made) == [1, 4095]
    assert all(len(set(v.ways)) == len(v.ways) for v in made)
    assert len(calls) <= 2 * sum(len(t.args) > 0 for t in form.terms if hasattr(t, "thread"))
    for u, v in itertools.combinations(made, 2):
        assert u.array is v.array
