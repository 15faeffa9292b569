"""The CPU suite's cases and its table; nothing is timed here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from samples import cpu_suite, cpu_whole, operators
from samples.cpu_models import MODELS
from samples.cpu_suite import CASES, Result
from samples.cpu_whole import TimedFragment, TimedRun


@pytest.mark.parametrize("name", CASES)
def test_cases_have_activations_and_name_their_weights(name: str) -> None:
    case = CASES[name]
    inputs = [i.name for i in operators.model(case.operator, case.dims, "fp16").graph.input]
    weights = [i for i in inputs if i in cpu_suite.WEIGHTS]
    assert len(weights) < len(inputs)
    assert bool(weights) == (case.operator not in ("attention", "qknorm_gqa"))


def test_small_case_stores_its_weights() -> None:
    case = cpu_suite.SuiteCase("small", cpu_suite.DECODE, "lora", {"n": 2, "h": 8, "r": 2, "d": 4})
    made = cpu_suite.model(case, "fp16")
    assert [i.name for i in made.graph.input] == ["x"]
    assert {"w", "a", "b"} <= {t.name for t in made.graph.initializer}


def test_a_fragment_that_is_left_alone_counts_as_one() -> None:
    case = CASES["prefill_norm_linear"]
    rows = [
        Result(case, "fp32", 1000.0, 500.0, 2.0, 400.0, False),
        Result(case, "fp32", 1000.0, 4000.0, 0.25, 1.0, True),
    ]
    text = cpu_suite.document(rows)
    assert "| 1,000 | 500 | 2.00 | 400 | 2.00 |" in text
    assert "| 1,000 | 4,000 | 0.25 | 1 | 1 (left alone) |" in text
    assert "(256 tokens of 4096)" in text
    assert "- fp32, all: 1.41, least 1.00 (2 cases)" in text
    assert "fp16, all" not in text


def test_whole_models_have_names_of_their_own_and_points_where_sizes_are_symbols() -> None:
    assert len(MODELS) >= 20
    assert not set(MODELS) & set(CASES)
    for timed in MODELS.values():
        symbols = {d.partition("=")[0] for d in timed.dim}
        assert all({p.partition("=")[0] for p in point} == symbols for point in timed.points)


@pytest.mark.torch
def test_every_whole_model_is_made_by_some_architecture() -> None:
    published = pytest.importorskip("samples.zoo.published", exc_type=ImportError)
    assert {timed.architecture for timed in MODELS.values()} == set(published.BUILDS)


FRAGMENT = TimedFragment("linear", "0", 2, 100.0, 80.0, 110.0, 60.0, True)
RUN = TimedRun("small", "1x8", 2, 1000.0, 950.0, 1.05, (FRAGMENT,))


def test_a_whole_models_prediction_takes_what_fragments_save_from_its_measured_time() -> None:
    assert RUN.predicted == pytest.approx(1000 / 900)
    assert RUN.replaced == 2
    elsewhere = replace(RUN, fragments=(replace(FRAGMENT, typical=False),))
    assert elsewhere.predicted is None


def test_a_whole_model_without_fragments_is_the_same_file_and_counts_as_one() -> None:
    alike = replace(RUN, model="same", fragments=(), measured=0.9)
    slow = replace(RUN, model="slow", threads=1, measured=0.97)
    text = cpu_whole.document([RUN, alike, slow], 1.007)
    assert "| `same` | 1x8 | 2 | 1,000 | 950 | 1.00 | 1.00 | 0 |" in text
    assert "| `small` | 1x8 | 2 | 1,000 | 950 | 1.05 | 1.11 | 2 |" in text
    assert "Geometric mean 1.01; least 0.97 (`slow`, 1x8, 1" in text
    assert "1 of 3 rows are below 0.98" in text


def test_the_table_is_of_what_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timed = next(iter(MODELS.values()))
    kept = [replace(RUN, model=timed.name)]
    (tmp_path / f"{timed.name}.json").write_bytes(msgspec.json.encode(kept))
    cpu_suite.main(["--stage", "table", "--keep", str(tmp_path), timed.name])
    assert cpu_whole.kept(timed, tmp_path) == kept
    assert f"| `{timed.name}` | 1x8 | 2 | 1,000 | 950 | 1.05 | 1.11 | 2 |" in capsys.readouterr().out
