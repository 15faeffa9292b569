"""`--measure`: what is not faster on this machine stays, fragment by fragment and as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from mirage_cli.exporters import text
from mirage_cli.measurement.timing import Distribution
from mirage_cli.optimization import fragment_times, pipeline
from mirage_cli.optimization.fragment_times import MIRAGE, ORIGINAL, UNCOMPARED, Comparison, Entry
from mirage_cli.optimization.task import Work, against
from mirage_cli.options.options import Options
from mirage_cli.report import forms
from mirage_cli.report.report import Report
from tests.frontends.models import noise, parsed
from tests.optimized import anew, sample

pytestmark = pytest.mark.usefixtures("one_isa")
NAME = "rmsnorm_linear_fp32"


def took(original: float, ours: float) -> Comparison:
    times = {ORIGINAL: original, MIRAGE: ours}
    return Comparison(tuple(Entry(name, Distribution((us, us, us))) for name, us in times.items()))


def run(folder: Path, cache: Path, **options: Any) -> Report:
    return anew(str(sample(NAME)), folder, Options(target=("cpu",), measure=True, jobs=1, cache=str(cache), **options))


def unchanged(folder: Path) -> bool:
    return (folder / "model.onnx").read_bytes() == sample(NAME).read_bytes()


def test_both_are_timed_for_real(tmp_path: Path, own_cache: Path) -> None:
    report = run(tmp_path / "out", own_cache, force=True)
    (f,) = report.replaced
    (row,) = f.measured
    assert row["target"] == "cpu" and row["mirage_us"] and row["original_us"]
    assert report.whole is not None and report.whole["mirage_us"] and report.whole["original_us"]
    assert "Measured on" in text.summary(report) and "the whole model: " in text.summary(report)
    assert "measured  " in text.summary(report)


@pytest.mark.parametrize(
    ("fragment", "whole", "force", "replaced", "reason"),
    [
        ((3.0, 2.0), (30.0, 20.0), False, True, ""),
        ((2.0, 3.0), (30.0, 20.0), False, False, ": 3.00 us against 2.00 us (--force"),
        ((3.0, 2.0), (20.0, 21.0), False, False, "the whole model is not faster on"),
        ((2.0, 3.0), (20.0, 21.0), True, True, ""),
    ],
)
def test_only_what_is_faster_stays(
    tmp_path: Path,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    fragment: tuple[float, float],
    whole: tuple[float, float],
    force: bool,
    replaced: bool,
    reason: str,
) -> None:
    monkeypatch.setattr(pipeline, "measure_fragments", lambda models, *_: dict.fromkeys(models, took(*fragment)))
    monkeypatch.setattr(fragment_times, "measure_model", lambda *_: took(*whole))
    report = run(tmp_path / "out", own_cache, force=force)
    assert bool(report.replaced) == replaced == (not unchanged(tmp_path / "out"))
    assert reason in report.fragments[0].reason
    assert (tmp_path / "out" / "libmirage.so").exists() == replaced


@pytest.mark.parametrize("force", [False, True])
def test_what_the_original_cannot_be_compared_with_stays_by_force(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    lost = Comparison((Entry(ORIGINAL, problem="failed: no provider"), Entry(MIRAGE, problem=UNCOMPARED)))
    monkeypatch.setattr(pipeline, "measure_fragments", lambda models, *_: dict.fromkeys(models, lost))
    monkeypatch.setattr(fragment_times, "measure_model", lambda *_: took(3.0, 2.0))
    report = run(tmp_path / "out", own_cache, force=force)
    assert bool(report.replaced) == force
    assert any(UNCOMPARED in text for text in (*report.notes, report.fragments[0].reason))


def test_parts_of_operators_are_the_first_to_stay(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is slower with a part of one of its operators may be faster without it."""
    text_of_model = (
        "g (float[4,8] x) => (float[4,2] z) { y = MatMul (x, a) m = Softmax <axis = 0> (y) z = MatMul (m, b) }"
    )
    model = tmp_path / "model.onnx"
    onnx.save(parsed(text_of_model, a=noise(8, 6), b=noise(6, 2)), model)
    both = [took(20.0, 21.0), took(20.0, 10.0)]
    monkeypatch.setattr(pipeline, "measure_fragments", lambda models, *_: dict.fromkeys(models, took(3.0, 2.0)))
    monkeypatch.setattr(fragment_times, "measure_model", lambda *_: both.pop(0))
    monkeypatch.setattr(Work, "inside", property(lambda w: "Operator" * (w.outputs[0].name == "z")))
    options = Options(target=("cpu",), measure=True, jobs=1, cache=str(own_cache))
    report = anew(str(model), tmp_path / "out", options)
    reasons = {f.status: f.reason for f in report.fragments}
    assert not both and set(reasons) == {"replaced", "kept"}
    assert "the whole model is not faster on" in reasons["kept"]
    assert report.whole is not None and report.whole["mirage_us"] == 10.0


def test_times_in_words() -> None:
    row: forms.Measured = {"device": "a CPU", "original_us": 3.0, "mirage_us": 46.25, "peers": {}}
    assert against(row) == "46.2 us against 3.00 us"
    assert against(row | {"original_us": 50.0}) == "46.2 us against 50.0 us, but not in most rounds side by side"
    assert against(row | {"mirage_us": None}) == "no time against 3.00 us"


def test_a_patched_model_with_other_answers_has_no_time(tmp_path: Path) -> None:
    one, other = sample(NAME), sample("rmsnorm_gain_linear_fp32")
    files = fragment_times.Files(str(one), str(other), str(tmp_path / "none.so"))
    found = fragment_times.measure_model(files, {})
    assert not found.faster and found.entry(MIRAGE).us is None
