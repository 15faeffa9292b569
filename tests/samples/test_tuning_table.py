"""The table of `make tuning`: what was tried for each case, and the model's error."""

from __future__ import annotations

from typing import Any

import pytest

from mirage_cli.optimization import environment
from mirage_cli.options.options import Options
from mirage_cli.suite.cases import gated_mlp
from samples import tuning as command
from samples.tuning import Row, table


def tuning(own: float | None, best: float | None) -> dict[str, Any]:
    return {
        "tried": 3,
        "refused": 1,
        "own": "x",
        "chosen": "y",
        "own_us": own,
        "chosen_us": best,
        "candidates": [
            {"candidate": "x", "engines": ["block"], "predicted_us": 11.5},
            {"candidate": "y", "engines": ["strip"], "predicted_us": 12.0},
            {"candidate": "z", "engines": ["block"], "problem": "wrong: rmse"},
            {"candidate": "r", "engines": ["block"], "problem": "refused: too large"},
        ],
    }


def test_the_table() -> None:
    rows = [
        Row("gqa_b1", 31.2, tuning(18.0, 9.0)),
        Row("lora_b1", 5.0, tuning(9.0, 9.0)),
        Row("mla", 0.0, {"problem": "no"}),
    ]
    lines = list(table(rows))
    assert lines[2] == "| gqa_b1 | 3 | 1 | 31 | 11.50 | 18.00 | 9.00 | 2.00 | strip |"
    assert lines[4] == "| mla |  |  |  |  |  |  |  | no |"
    assert (
        lines[-1] == "The model's own choice takes 1.41 times what the tuned one takes (geometric mean of 2 fragments)."
    )


def test_what_has_no_time_does_not_count() -> None:
    lines = list(table([Row("gqa_b1", 31.2, tuning(None, None)), Row("lora_b1", 5.0, tuning(18.0, 9.0))]))
    assert "| - | - |  |" in lines[2]
    assert lines[-1].startswith("The model's own choice takes 2.00 times")


def test_a_case_without_fragments_has_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(target=("cpu",), tune_candidates=0)
    monkeypatch.setattr(command, "planned", lambda case, dtype, plans, seed: (None, []))
    monkeypatch.setattr(command, "device", lambda number: None)
    assert list(command.tuned(gated_mlp("gated", 1, 8, 16), "fp16", options, environment.toolchain(options))) == []
