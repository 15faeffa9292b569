"""The CPU suite's cases and its table; nothing is timed here."""

from __future__ import annotations

import pytest

from samples import cpu_suite, operators
from samples.cpu_suite import CASES, Result


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
    text = cpu_suite.document(rows, "a machine", "versions")
    assert "| 1,000 | 500 | 2.00 | 400 | 2.00 |" in text
    assert "| 1,000 | 4,000 | 0.25 | 1 | 1 (left alone) |" in text
    assert "(256 tokens of 4096)" in text
    assert "- fp32, all: 1.41, least 1.00 (2 cases)" in text
    assert "fp16, all" not in text
