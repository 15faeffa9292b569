"""The distribution of a population: groups, the worst rows, the page, and documents put together."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.errors import ModelError, UsageError
from mirage_cli.suite import distribution, documents, page, population, suite
from mirage_cli.suite.report import SuiteReport, row_of
from mirage_cli.suite.suite import SuiteOptions
from tests.suite.test_suite import LIMITS, us

ROWS = {c.name: c for c in population.models() if c.dtype == "fp16"}
NAMES = sorted(ROWS)[:4]
SETTINGS = suite.settings_of(SuiteOptions("models"))


def figures(ours: float | str, predicted: float = 10.0, **found: Any) -> dict[str, Any]:
    mirage = {"problem": ours} if isinstance(ours, str) else {"us": us(ours), "isolated_us": us(ours + 1)}
    kernel = {"tiles": {"a": 16, "b": 64}, "loop": 32, "warps": 4, "engine": "strip"}
    return {"mirage": mirage, "kernels": [kernel], "predicted_us": predicted} | found


def report(*ours: tuple[float | str, float], **found: Any) -> SuiteReport:
    """Rows whose times are the first numbers and whose peers' times are the second ones."""
    rows = [
        row_of(ROWS[name], "fp16", figures(mine, **found), {"torch.compile": {"us": us(peer)}})
        for name, (mine, peer) in zip(NAMES, ours, strict=False)
    ]
    return SuiteReport("1", SETTINGS, LIMITS, tuple(rows))


FOUR = report((10.0, 20.0), (20.0, 10.0), (10.0, 10.0), ("WRONG: rmse 1", 5.0))


def test_a_row_without_a_time_is_behind() -> None:
    whole = distribution.group("all", FOUR.rows, LIMITS)
    assert (whole.count, whole.ahead, whole.far_behind) == (4, 0.5, 0.5)
    assert whole.ratio == pytest.approx(1.0) and whole.least == 0.5
    assert whole.error == pytest.approx(2 ** (1 / 3)) and whole.worst_error == 2.0


def test_groups_hold_every_row_once() -> None:
    for _, members in distribution.groups(FOUR):
        assert sum(g.count for g in members if g.name != "all") == 4


def test_the_worst_rows_come_first_with_their_reasons() -> None:
    names = [r.name for r in distribution.worst(FOUR)]
    assert names == [NAMES[3], NAMES[1], NAMES[2], NAMES[0]]
    assert distribution.reason(FOUR.rows[3], LIMITS) == "WRONG: rmse 1"
    slow = distribution.reason(FOUR.rows[1], LIMITS)
    assert slow == "the model expected 10.00 us, strip 16 x 64 loop 32 warps 4"
    tuned = report((20.0, 10.0), tuning={"own_us": 30.0, "chosen_us": 20.0, "tried": 8, "refused": 3})
    assert "its own choice took 30.00 us, 8 candidates tried, 3 refused" in distribution.reason(tuned.rows[0], LIMITS)
    assert distribution.group("all", tuned.rows, LIMITS).behind_tuned == 1.5


def test_text_and_document_tell_the_same() -> None:
    lines = distribution.text(FOUR).splitlines()
    whole = next(line.split() for line in lines if line.startswith("all "))
    assert whole[1:6] == ["4", "1.00", "0.50", "50%", "50%"]
    data = json.loads(json.dumps(distribution.to_json(FOUR), allow_nan=False))
    assert data["distribution"]["part"][0]["ahead"] == 0.5
    assert data["rows"][0]["kind"] == ROWS[NAMES[0]].kind and data["rows"][0]["part"] in population.PARTS
    assert "| all | 4 | 1.00 |" in distribution.markdown(FOUR)


def test_the_page_needs_nothing_but_itself() -> None:
    text = page.page(FOUR)
    assert not re.search(r"<script|https?://|src=|@import", text)
    assert all(text.count(name) >= 2 for name in NAMES)
    assert text.count("<svg") == 2 and "WRONG: rmse 1" in text
    assert "<svg" not in page.page(report(("failed", 1.0)))


def test_documents_are_put_together(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(FOUR.to_json()))
    second.write_text(json.dumps(report((40.0, 20.0)).to_json()))
    found = suite.run(SuiteOptions("models", results=(first, second)))
    assert {r.name: r.us for r in found.rows} == dict(zip(NAMES, (40.0, 20.0, 10.0, None), strict=True))
    assert found.rows[0].figures["kernels"] == FOUR.rows[0].figures["kernels"]
    assert distribution.text(found)
    with pytest.raises(UsageError, match="none of the rows"):
        suite.run(SuiteOptions("models", only=("*_fp32",), results=(first,)))
    with pytest.raises(UsageError, match="its suite is models, not paper"):
        suite.run(SuiteOptions("paper", results=(first,)))


def test_a_document_tells_the_machine_of_its_peers(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(FOUR.to_json()))
    found = documents.read(path, SETTINGS)
    assert found.machine == LIMITS["gpu_state"]
    assert found.peers[NAMES[0]] == {"torch.compile": {"us": us(20.0)}}


def test_documents_of_another_version_are_told(tmp_path: Path) -> None:
    name, path = NAMES[0], tmp_path / "old.json"
    settings = suite.settings_of(SuiteOptions("models"))
    for limits, row in (({"flops": 1e15}, {"dtype": "fp16"}), ({"flops": {}}, {})):
        rows = [{"name": name, "peers": {}, **row}]
        path.write_text(json.dumps({"mirage": "0", "settings": settings, "limits": limits, "rows": rows}))
        with pytest.raises(ModelError, match="expected documents of this version"):
            suite.run(SuiteOptions("models", results=(path,)))
