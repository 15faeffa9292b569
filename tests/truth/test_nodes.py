"""ONNX's own cases for single nodes."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from mirage_cli.truth import evaluate
from mirage_cli.truth.calls.values import FLOATS, FORMATS, stored, tensor
from tests import node_tests

#: why a case is left out, by the beginning of its name
LEFT_OUT = {
    "test_bernoulli": "random",
    "test_training_dropout": "random",
    "test_image_decoder": "Pillow is no dependency",
    "test_not_": "versions of the opset before 7",
    "test_dynamicquantizelinear": "a tie in float32 that is none in float64",
    "test_resize_downsample_scales_linear_align_corners": "onnxruntime takes the whole new length, as the text says",
    "test_resize_downsample_scales_cubic_align_corners": "onnxruntime takes the whole new length, as the text says",
}


@cache
def cases() -> dict[str, list[Any]]:
    """The cases, by the operator of their first node."""
    found = defaultdict(list)
    for case in node_tests.collect():  # pools are tried against onnxruntime
        if not any(node.domain.endswith((".training", ".ml")) for node in case.model.graph.node):
            found[_operator(case.model)].append(case)
    return dict(found)


def _operator(model: onnx.ModelProto) -> str:
    return str(model.graph.node[0].op_type) if model.graph.node else ""


def reason(case: Any) -> str:
    """Why a case is left out; empty for one that is tried."""
    if any(isinstance(x, list) or x is None for ins, outs in case.data_sets for x in (*ins, *outs)):
        return "sequences and optionals are neither fed nor given"
    return next((why for start, why in LEFT_OUT.items() if case.name.startswith(start)), "")


def numbers(x: Any) -> Any:
    """A stored tensor as numbers."""
    return stored(x, None).data if isinstance(x, TensorProto) else x


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    np.seterr(all="ignore")


@pytest.mark.filterwarnings("ignore")
def test_the_cases_of_onnx() -> None:
    tried, left_out, failed = 0, 0, []
    for case in (case for several in cases().values() for case in several):
        if reason(case):
            left_out += 1
            continue
        tried += 1
        try:
            for inputs, outputs in case.data_sets:
                check(case, [numbers(x) for x in inputs], [numbers(x) for x in outputs])
        except Exception as error:
            failed.append(f"{case.name}: {type(error).__name__}: {error}")
    assert not failed, "\n".join(failed)
    assert tried > 1500
    assert left_out < 60


def check(case: Any, inputs: list[Any], outputs: list[Any]) -> None:
    """Assert that a case gives its outputs within the rounding of their types."""
    feeds = {value.name: x for value, x in zip(case.model.graph.input, inputs, strict=True)}
    got = evaluate.run(case.model, feeds)
    for value, wanted in zip(case.model.graph.output, outputs, strict=True):
        kind = value.type.tensor_type.elem_type
        expected = tensor(np.asarray(wanted), kind).data
        found = got[value.name]
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        if kind in FLOATS:
            step = 2.0 ** (1 - FORMATS[kind].bits) if kind in FORMATS else 1e-9
            np.testing.assert_allclose(found, expected, rtol=max(case.rtol, step), atol=1e-5 + step * (kind != 1))
        else:
            np.testing.assert_array_equal(found, expected)
