"""Some of the spoiled kernels of `spoiled_stages.py`: each kind is refuted, and says what it is."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_cli.kernel_interpreter import statements
from tests.kernel_proof import spoiled_stages as spoiled

REASONS = {
    "a wait is left out": "has not waited for it",
    "a read is in front of its wait": "has not waited for it",
    "an arrival is left out": "never comes to barrier",
    "an arrival is said twice": "has been at",
    "blocks may not be resident": "may not run at the same time",
    "nobody opens the gate": "nobody has opened the gate",
    "a number that other launches have": "another launch may have the same number",
    "tasks are done by several blocks": "two blocks write one element",
    "a pointer says that nobody writes": "says that nobody writes",
}


@pytest.mark.parametrize("kind", spoiled.SPOILS)
def test_each_kind_is_refuted(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "MOST_TURNS", spoiled.MOST_TURNS)
    b = spoiled.base("rows and products")
    changed = spoiled.SPOILS[kind](b, b.kernel.body, b.text, np.random.default_rng(2))
    assert changed is not None and changed != (b.kernel.body, b.text)
    reason = b.reason(*changed)
    assert REASONS.get(kind, "") in reason and reason


def test_drawn_ones_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "MOST_TURNS", spoiled.MOST_TURNS)
    for _, s in zip(range(8), spoiled.draw(5), strict=False):
        assert not spoiled.accepted(s), f"{s.name}: {', '.join(s.kinds)}"
