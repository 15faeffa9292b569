"""`mirage compare`: what changed between two reports, and what of it is worse."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mirage_cli as mi
from mirage_cli.errors import ModelError
from mirage_cli.inspection import comparison
from tests.commands.conftest import Run, error_of
from tests.exporters import reports
from tests.optimized import Optimized

Report = dict[str, Any]
Edit = Callable[[Report], None]


def fragment(key: str, **changes: Any) -> dict[str, Any]:
    return reports.replaced().to_json() | {
        "id": key,
        "name": "norm_linear",
        "mugraph": {"file": None, "kernels": 1, "grid": [], "loop": None, "text": ["kernel 0"]},
        "predicted_us": 10.0,
        "original_us": 40.0,
        "measured": [],
        **changes,
        "predictions": {"cpu": predicted(changes.get("predicted_us", 10.0))},
    }


def predicted(us: float, target: str = "cpu") -> dict[str, Any]:
    return {**reports.PREDICTION, "target": target, "predicted_us": us, "original_us": 40.0}


def measured(us: float, device: str = "GPU") -> list[dict[str, Any]]:
    return [{"device": device, "original_us": 30.0, "mirage_us": us, "peers": {}}]


REPORT: Report = reports.report(path="m.onnx").to_json() | {
    "options": {"force": False, "dim": [], "shape": []},
    "seconds": {"total": 3.0},
    "fragments": [fragment("a"), fragment("b", name="attention")],
    "coverage": {"flops": 0.9, "nodes": 0.5},
}


def written(folder: Path, edit: Edit | None = None) -> Path:
    """An output folder with the report above, changed."""
    report = copy.deepcopy(REPORT)
    if edit is not None:
        edit(report)
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(report))
    (folder / "libmirage.so").write_bytes(b"x" * 1000)
    return folder


@pytest.fixture
def compare(tmp_path: Path) -> Callable[[Edit], comparison.Comparison]:
    """The comparison of the report above with a changed one, and the other way round, which must not fail either."""

    def made(edit: Edit, tolerance: float = comparison.TOLERANCE) -> comparison.Comparison:
        old, new = written(tmp_path / "old"), written(tmp_path / "new", edit)
        assert comparison.compare(new, old).text()
        return comparison.compare(old, new, tolerance)

    return made


def changes(found: comparison.Comparison) -> dict[str, str]:
    return {row["id"]: row["change"] for row in found.document["fragments"]}


def worse(found: comparison.Comparison) -> list[str]:
    return [r.what for r in found.regressions]


def test_a_folder_and_itself(optimized: Optimized) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    found = mi.compare(folder, str(folder), 0)
    assert found == comparison.compare(folder, folder, 0)
    document = found.to_json()
    assert set(changes(found).values()) == {"same"}
    assert document["options"] == {}
    assert document["regressions"] == []
    assert document["bytes"]["library"] == [(folder / "libmirage.so").stat().st_size] * 2
    assert "1 fragment without a change\n\nNothing is worse by more than 0 %." in found.text()


def test_new_and_gone(compare: Any) -> None:
    found = compare(lambda r: r.update(fragments=[fragment("c"), fragment("a")]))
    assert changes(found) == {"c": "new", "a": "same", "b": "gone"}
    rows = {row["id"]: row for row in found.document["fragments"]}
    assert rows["c"]["predicted_us"] == {"cpu": [None, 10.0]}
    assert rows["b"]["status"] == ["replaced", None]
    assert found.regressions == ()


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"mugraph": fragment("a")["mugraph"] | {"text": ["kernel 0", "kernel 1"]}}, ["muGraph"]),
        ({"schedule": {}}, ["schedule"]),
        ({"occurrences": 3, "status": "kept"}, ["status", "places"]),
    ],
)
def test_the_same_program_in_another_way(compare: Any, change: dict[str, Any], differs: list[str]) -> None:
    found = compare(lambda r: r["fragments"][0].update(change))
    row = found.document["fragments"][0]
    assert (row["change"], row["differs"]) == ("changed", differs)
    assert changes(found)["b"] == "same"


def test_totals_take_the_original_where_nothing_is_replaced(compare: Any) -> None:
    found = compare(lambda r: r["fragments"][0].update(status="kept"))
    assert found.document["predicted_us"] == {"cpu": [40.0, 100.0]}
    assert (found.document["replaced"], found.document["places"]) == ([2, 1], [4, 2])
    assert worse(found) == [
        "norm_linear a: places where it is replaced",
        "all fragments as predicted for cpu (us)",
    ]


def test_predictions_count_where_nothing_was_measured(compare: Any) -> None:
    found = compare(lambda r: r["fragments"][0].update(predictions={"cpu": predicted(10.6)}))
    assert worse(found) == ["norm_linear a as predicted for cpu (us)"]
    assert found.regressions[0].percent == pytest.approx(6)
    assert "10.0 us -> 10.6 us  +6.0 %" in " ".join(found.text().split("   "))


def test_targets_are_compared_with_themselves_only(compare: Any) -> None:
    def other(report: Report) -> None:
        for f in report["fragments"]:
            f["predictions"] = {"cuda": predicted(170.0, "sm_90a")}

    found = compare(other)
    assert found.regressions == ()
    assert found.document["predicted_us"] == {"cpu": [40.0, None], "sm_90a": [None, 680.0]}
    assert "for different targets: what is predicted is not compared.\nNothing is worse" in found.text()


def test_one_target_of_two_is_compared(compare: Any) -> None:
    both = {"cpu": predicted(10.6), "cuda": predicted(9.0, "sm_90a")}
    found = compare(lambda r: r["fragments"][0].update(predictions=both))
    assert worse(found) == ["norm_linear a as predicted for cpu (us)"]


def test_measured_times_count_before_predictions(tmp_path: Path) -> None:
    def measure(*times: float) -> Edit:
        return lambda r: [f.update(measured=measured(us)) for f, us in zip(r["fragments"], times, strict=True)] and None

    old = written(tmp_path / "old", measure(10.0, 20.0))
    new = written(tmp_path / "new", measure(11.0, 20.0))
    report = json.loads((new / "report.json").read_text())
    report["fragments"][1]["predictions"] = {"cpu": predicted(100.0)}
    (new / "report.json").write_text(json.dumps(report))
    found = comparison.compare(old, new)
    assert worse(found) == ["norm_linear a on GPU (us)", "all fragments as predicted for cpu (us)"]
    assert found.document["measured_us"] == {"GPU": [60.0, 62.0]}


def test_another_device_is_not_compared(compare: Any) -> None:
    found = compare(lambda r: r["fragments"][0].update(measured=measured(99.0)))
    assert found.document["measured_us"] == {}
    assert found.document["fragments"][0]["measured_us"] == {"GPU": [None, 99.0]}
    assert found.regressions == ()


@pytest.mark.parametrize(("share", "percent"), [(0.8, 11.11), (0.0, 100.0)])
def test_less_coverage_is_worse(compare: Any, share: float, percent: float) -> None:
    found = compare(lambda r: r["coverage"].update(flops=share))
    assert [(r.what, r.percent) for r in found.regressions] == [("coverage of flops", percent)]


def test_another_model_has_other_totals(compare: Any) -> None:
    def other(report: Report) -> None:
        report["model"]["sha256"] = "11"
        report["coverage"]["flops"] = 0.1
        report["fragments"] = [fragment("z", predicted_us=1000.0)]

    found = compare(other)
    assert found.regressions == ()
    assert "The models are not the same file." in found.text()


def test_options_that_differ(compare: Any) -> None:
    found = compare(lambda r: r["options"].update(force=True, later=1))
    assert found.document["options"] == {"force": [False, True], "later": [None, 1]}
    assert "--force: false -> true" in found.text()


def test_the_tolerance_decides(compare: Any) -> None:
    assert compare(lambda r: r["fragments"][0].update(predictions={"cpu": predicted(10.6)}), 7.0).regressions == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "Expected `object`, got `array`"),
        ('{"schema_version": 2}', "Expected schema version 1, found 2"),
        ('{"schema_version": 1}', "missing required field `mirage`"),
    ],
)
def test_what_is_no_report(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        comparison.compare(tmp_path, tmp_path)


def test_what_is_no_folder(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(ModelError, match=f"{place}: expected an output folder of mirage optimize"):
            comparison.compare(place, place)


def test_the_command(run: Run, tmp_path: Path) -> None:
    old = written(tmp_path / "old")
    new = written(tmp_path / "new", lambda r: r["fragments"][0].update(predictions={"cpu": predicted(10.4)}))
    assert run("compare", old, new).exit_code == 0
    assert run("compare", old, new, "--fail-on-regression").exit_code == 0
    failed = run("compare", old, new, "--json", "--fail-on-regression", "3%")
    assert failed.exit_code == 1
    document = json.loads(failed.stdout)
    assert [r["what"] for r in document["regressions"]] == ["norm_linear a as predicted for cpu (us)"]
    assert run("compare", old, new, "--fail-on-regression", "4").exit_code == 0


def test_wrong_usage(run: Run, tmp_path: Path) -> None:
    old = str(written(tmp_path / "old"))
    misplaced = run("compare", "--fail-on-regression", old, old)
    assert misplaced.exit_code == 2
    assert "folders come before this option" in misplaced.stderr
    assert run("compare", old, old, "--fail-on-regression", "-1").exit_code == 2
    missing = run("compare", old, str(tmp_path / "none"), "--json")
    assert missing.exit_code == 3
    assert error_of(missing)["code"] == "model-unreadable"
