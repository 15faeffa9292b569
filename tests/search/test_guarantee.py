"""The guarantee by brute force (tests/search/guarantee.py has the whole of it as a command): nothing is lacking."""

from __future__ import annotations

import pytest

from tests.search.exhaustive import Enumerator, Inputs, World
from tests.search.guarantee import compare

IK, JK, ROW, K = (frozenset(s) for s in ("ik", "jk", "i", "k"))

#: axes, reduced ones, tensors, operators of programs, steps of block graphs, shard of these, every so-manieth program
RUNS: list[tuple[str, str, Inputs, int, int, tuple[int, int], int]] = [
    ("ik", "k", (IK,), 3, 3, (0, 1), 1),
    ("ik", "k", (IK,), 4, 4, (1, 12), 12),
    ("ik", "k", (IK, ROW), 3, 3, (0, 3), 2),
    ("ik", "k", (IK, K), 3, 3, (1, 4), 9),
    ("ik", "k", (IK, IK), 2, 3, (0, 4), 1),
    ("ijk", "k", (IK, JK), 2, 3, (0, 3), 2),
    ("ijk", "jk", (IK, JK), 3, 3, (3, 9), 8),
]


@pytest.mark.parametrize(
    "run", RUNS, ids=lambda r: f"{r[0]}-{'+'.join(''.join(sorted(a)) for a in r[2])}-{r[3]}-{r[4]}"
)
def test_no_graph_is_lacking(run: tuple[str, str, Inputs, int, int, tuple[int, int], int]) -> None:
    axes, reduced, inputs, operators, steps, shard, every = run
    tally = compare(World(tuple(axes), tuple(reduced)), inputs, operators, steps, shard, every)
    assert tally.programs > 5
    assert tally.pairs["contained"] > 2, str(tally)
    assert not tally.lacking, tally.lacking[:5]


def test_shards_are_the_whole() -> None:
    world = World(("i", "k"), ("k",), "k")
    whole = {g for g, _ in Enumerator(world, (IK,), 3).graphs()}
    parts = [[g for g, _ in Enumerator(world, (IK,), 3, (n, 3)).graphs()] for n in range(3)]
    assert set().union(*parts) == whole
    assert sum(map(len, parts)) <= len(whole) + 2 * len({g for g in whole if len(g) < 4})


def test_each_graph_is_met_once() -> None:
    found = [g for g, _ in Enumerator(World(("i", "k"), ("k",), "k", "k"), (IK, K), 2).graphs()]
    assert len(found) == len(set(found)) > 100


def test_a_closure_that_prunes_too_much_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison notices when quotients are not regrouped."""
    from mirage_cli.lax.domains.expr import Expressions

    monkeypatch.setattr(Expressions, "may_hold_quotient", lambda self, x, y, tag, e: False)
    assert compare(World(("i", "k"), ("k",)), (IK, ROW), 2, 2).lacking
