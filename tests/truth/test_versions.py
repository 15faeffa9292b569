"""Every operator in every version of the opset from 7 on, against onnxruntime on the CPU."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import numpy as np
import onnx
import pytest

from mirage_cli.truth import evaluate
from mirage_cli.truth.table import MEANINGS, OLDEST
from tests.truth import cases, layer_cases
from tests.truth.case import NEWEST, Case, by_onnxruntime, compare, feeds, model

CASES = [*cases.CASES, *layer_cases.CASES]

#: what onnxruntime says where it has no kernel, or this machine not what one needs
ABSENT = ("NOT_IMPLEMENTED", "Could not find an implementation", "Failed to construct locale")


@cache
def spans(op: str) -> list[tuple[int, int]]:
    """The versions of an operator: from which version of the opset on, up to which one."""
    starts = sorted(schemas().get(op, []))
    if not starts:
        return [(OLDEST, NEWEST)]
    ends = [*(start - 1 for start in starts[1:]), onnx.defs.onnx_opset_version()]
    return [(max(a, OLDEST), e) for a, e in zip(starts, ends, strict=True) if e >= OLDEST]


@cache
def schemas() -> dict[str, list[int]]:
    """Since which versions of the opset each operator is as it is."""
    found = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            found[schema.name].append(schema.since_version)
    return dict(found)


@cache
def by_operator() -> dict[str, list[Case]]:
    found = defaultdict(list)
    for case in CASES:
        found[case.op].append(case)
    return dict(found)


def agrees(case: Case, version: int) -> bool:
    """Whether onnxruntime has an answer, which then has to be the same."""
    one = model(case, version)
    try:
        wanted = by_onnxruntime(one, feeds(case))
    except Exception as error:
        if any(text in str(error) for text in ABSENT):
            return False
        raise
    compare(one, feeds(case), wanted, case.loose)
    return True


@pytest.mark.parametrize("op", sorted(by_operator()))
def test_an_operator_in_all_its_versions(op: str) -> None:
    answered = 0
    tried = 0
    for start, end in spans(op):
        version = min(end, NEWEST)
        for case in by_operator()[op]:
            if start <= NEWEST and case.since <= version <= case.until:
                tried += 1
                answered += agrees(case, version)
    if not answered:
        pytest.skip(f"onnxruntime has no kernel for any of {tried} cases")


#: operators whose results are whole numbers, or say nothing of the numbers of their inputs
EXACT = {"Ceil", "ConstantOfShape", "EyeLike", "Floor", "Hardmax", "MelWeightMatrix", "Round", "Sign"}
EXACT |= {"CastLike", "Constant", "If", "TfIdfVectorizer"}


def test_nothing_goes_through_float32() -> None:
    finer, coarse = set(), set()
    for case in CASES:
        spanned = [(max(a, case.since), min(b, NEWEST, case.until)) for a, b in spans(case.op)]
        for version in [b for a, b in spanned if a <= b][-1:]:
            fed = {
                k: x.astype(np.float64) * (1 + 1e-11) if x.dtype == np.float32 else x for k, x in feeds(case).items()
            }
            for got in evaluate.run(model(case, version), fed).values():
                if got.dtype == np.float64:
                    exact = np.array_equal(got, got.astype(np.float32), equal_nan=True)
                    (coarse if exact else finer).add(case.op)
    assert len(finer) > 120
    assert coarse - finer == EXACT


def test_every_operator_with_a_meaning_has_a_case_in_every_version() -> None:
    missing = [
        (op, version)
        for (domain, op), _ in MEANINGS.items()
        if not domain
        for start, end in spans(op)
        for version in [min(end, NEWEST)]
        if start <= NEWEST and not any(c.since <= version <= c.until for c in by_operator().get(op, []))
    ]
    assert {op for op, _ in missing} == UNTRIED


#: random ones are refused; those on sequences are tried together; the older forms of the last have cases
UNTRIED = {
    *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength"),
    *("SequenceMap", "SplitToSequence", "ConcatFromSequence"),
    *("Optional", "OptionalGetElement", "OptionalHasElement", "ImageDecoder", "Scatter", "Upsample"),
}
