"""The text that `mirage optimize` prints. `MIRAGE_GOLDEN=1` writes the golden file anew."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_cli.exporters import text
from mirage_cli.options.options import Options
from tests.exporters import reports
from tests.exporters.graphs import HOSTILE

GOLDEN = Path(__file__).parent / "golden" / "summary.txt"


def test_golden() -> None:
    found = text.summary(reports.report(reports.replaced(), reports.kept(), reports.failed()), "out")
    if os.environ.get("MIRAGE_GOLDEN"):
        GOLDEN.write_text(found, encoding="utf-8")
    assert found == GOLDEN.read_text(encoding="utf-8"), "MIRAGE_GOLDEN=1 writes the file anew"


def test_what_is_said_of_other_outcomes() -> None:
    nothing = text.summary(reports.report())
    assert "There is no fragment to improve; the model was copied as it is." in nothing
    assert "Fragment " not in nothing
    none = text.summary(reports.report(reports.kept(), reports.failed()))
    assert "None of 2 fragments was replaced; the model was copied as it is." in none
    one = text.summary(reports.report(reports.replaced()))
    assert "1 fragment replaced, at 2 places of the model." in one
    dry = replace(reports.report(reports.replaced()), options=Options(dry_run=True).to_json())
    assert "would be replaced" in text.summary(dry)
    assert "mirage verify" not in text.summary(dry)


def test_a_reason_that_is_told_of_a_fragment_is_not_told_again() -> None:
    kept = reports.kept()
    left = [{"nodes": ["a", "b"], "reason": kept.reason}, {"nodes": ["c"], "reason": "layout only"}]
    told = text.summary(replace(reports.report(kept), unchanged=left))
    assert told.count(kept.reason) == 1
    assert "Left as they were: 3 nodes\n  2 x in fragments that are not replaced\n  1 x layout only (c)\n" in told


def test_commands_are_quoted() -> None:
    assert "mirage verify 'my out'" in text.summary(reports.report(), "my out")


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_fit_and_steer_nothing(name: str) -> None:
    r = reports.report(
        reports.replaced(name, (name,)),
        reports.failed(name),
        path=name,
        unchanged=[{"nodes": [name] * 5, "reason": name}],
        notes=[name],
    )
    found = text.summary(r)
    assert not [c for c in found if not c.isprintable() and c != "\n"]
    assert found.encode("utf-8")
    assert max(map(len, found.splitlines())) <= text.WIDTH
