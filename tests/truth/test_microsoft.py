"""onnxruntime's own operators against onnxruntime on the CPU."""

from __future__ import annotations

import pytest

from mirage_cli.truth.table import MEANINGS
from tests.truth.case import Case, by_onnxruntime, compare, feeds, model
from tests.truth.microsoft_cases import CASES

#: what onnxruntime has a kernel for on other devices alone
ELSEWHERE = {"BiasAdd", "BiasSoftmax", "BiasSplitGelu", "GroupNorm", "IsAllFinite"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_an_operator_of_onnxruntime(case: Case) -> None:
    one = model(case, 17)
    try:
        wanted = by_onnxruntime(one, feeds(case))
    except Exception as error:
        if "NOT_IMPLEMENTED" not in str(error) and "not implemented for CPU" not in str(error):
            raise
        compare(one, feeds(case), [None] * case.outputs)
        pytest.skip("no kernel on the CPU")
    compared = [w if i < case.compared else None for i, w in enumerate(wanted)]
    compare(one, feeds(case), compared, case.loose)


def test_every_operator_with_a_meaning_has_a_case() -> None:
    assert {op for domain, op in MEANINGS if domain == "com.microsoft"} - {case.op for case in CASES} == UNTRIED


#: other names of what is tried, and layouts that are those of an operator that is
UNTRIED = {"TransposeMatMul", "QLinearConv"}
