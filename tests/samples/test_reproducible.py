"""The same model, options and seed give the same bytes: the short form of `python -m samples.reproducible --all`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from samples import reproducible
from samples.reproducible import SURROUNDINGS, against, check, differing, leaves, main, models, timeless


def test_surroundings_do_not_matter(tmp_path: Path) -> None:
    """Two fragments, which several processes plan where there are several."""
    (model,) = models(["mlp_fp32"])
    files, problems = check(model, ("--target", "cpu"), tmp_path)
    assert problems == []
    assert {"model.onnx", "libmirage.so", "report.json", "src/build.sh"} <= files.keys()
    assert len([file for file in files if file.startswith("mugraphs/") and file.endswith(".json")]) == 2


def test_surroundings_differ() -> None:
    assert len({s.variables["PYTHONHASHSEED"] for s in SURROUNDINGS.values()}) == len(SURROUNDINGS)


def test_what_differs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def optimize(
        model: Path, options: object, around: object, place: Path, cache: Path, turn: int
    ) -> reproducible.Outcome:
        if place.name == "again":
            return reproducible.Outcome(problem="it went wrong")
        return reproducible.Outcome({"model.onnx": place.name, "src/a.cpp": "1"})

    monkeypatch.setattr(reproducible, "optimize", optimize)
    there = tmp_path / "there.json"
    there.write_text(json.dumps({"mlp_fp32": {"model.onnx": "plain", "src/a.cpp": "2"}, "other": {}}))
    assert main(["mlp_fp32", "--digests", str(tmp_path / "here.json"), "--against", str(there)]) == 1
    printed = capsys.readouterr().out
    for line in ("elsewhere: model.onnx differs", "again: it went wrong", "mlp_fp32: src/a.cpp differs"):
        assert line in printed
    assert json.loads((tmp_path / "here.json").read_text()) == {"mlp_fp32": {"model.onnx": "plain", "src/a.cpp": "1"}}


def test_files_that_one_folder_lacks_differ() -> None:
    assert differing({"a": "1", "b": "2"}, {"a": "1", "c": "2"}) == ["b", "c"]
    assert against({"m": {"src/a": "1"}}, {"m": {"src/a": "1", "src/b": "2"}, "n": {"src/a": "2"}}) == [
        "m: src/b differs"
    ]


def test_other_compilers_make_other_libraries() -> None:
    here = {"m": {"libmirage.so": "1", "src/build.sh": "1"}}
    assert against(here, {"m": {"libmirage.so": "2", "src/build.sh": "2"}}) == []


def test_places_of_reports_that_differ_are_named() -> None:
    one = {"a": [{"b": 1, "c": 2}], "d": 0}
    assert leaves(one, one) == []
    assert leaves(one, {"a": [{"b": 1, "c": 3}], "e": 0}) == ["a.0.c", "d", "e"]
    assert leaves(one, {"a": [], "d": 0}) == ["a"]


def test_times_are_left_out() -> None:
    assert timeless({"seconds": 1, "a": [{"seconds": 2, "b": 3}]}) == {"a": [{"b": 3}]}
