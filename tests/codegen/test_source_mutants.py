"""Changed sources in short: every kind of change is made, and the float check sees through it without comparing bytes."""

from __future__ import annotations

from pathlib import Path

from .source_mutants import KINDS, OUTCOMES, base, mutants_of, outcome

#: one change of each kind that a kernel's answers depend on
TOLD = ("number", "index")


def test_changes_are_seen_by_the_float_check_alone(tmp_path: Path) -> None:
    kernel = base("rms_linear", tmp_path)
    found = mutants_of(kernel.text)
    assert set(found) >= {*TOLD, "bound", "extent", "exchange"} and set(found) <= set(KINDS)
    assert all(m.text != kernel.text for kind in found.values() for m in kind)
    results = {kind: outcome(kernel, found[kind][len(found[kind]) // 2], tmp_path / kind) for kind in TOLD}
    assert set(results.values()) <= {*OUTCOMES[:3]}, results
    assert OUTCOMES[2] in results.values()
