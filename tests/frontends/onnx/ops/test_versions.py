"""Every operator that is read, in every version that it has from opset 7 on: it is read as what onnxruntime computes.

No version can be forgotten: they are those of `onnx.defs`. Where onnxruntime has no kernel, `onnx.reference` answers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from mirage_cli.frontends.imported import Imported
from mirage_cli.frontends.onnx.folding import FOLDED
from mirage_cli.frontends.onnx.ops import READERS
from mirage_cli.frontends.onnx.ops.registry import RUNTIMES_OWN
from mirage_cli.frontends.onnx.preparation import OLDEST_OPSET
from tests import alone
from tests.frontends import evaluation
from tests.frontends.models import read
from tests.frontends.onnx.ops.version_cases import CASES, Case, Tensor, feeds, model

NEWEST = onnx.defs.onnx_opset_version()
READ = sorted(name for domain, name in READERS if domain == "")


@functools.cache
def versions() -> dict[str, list[int]]:
    """For each operator that is read the first opset, from OLDEST_OPSET on, of every version."""
    since: dict[str, set[int]] = {name: set() for name in READ}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.name in since:
            since[schema.name].add(schema.since_version)
    for name in RUNTIMES_OWN:
        since[name].add(OLDEST_OPSET)
    return {name: _from_oldest(sorted(found)) for name, found in since.items()}


def _from_oldest(since: list[int]) -> list[int]:
    old = [v for v in since if v <= OLDEST_OPSET]
    return [*([OLDEST_OPSET] if old else []), *(v for v in since if v > OLDEST_OPSET)]


VERSIONS = [(name, opset) for name, opsets in versions().items() for opset in opsets]


def answer(proto: onnx.ModelProto, given: dict[str, Tensor]) -> tuple[str, list[Tensor]]:
    """Who answers, and the outputs: onnxruntime without optimisations, `onnx.reference` where it has no kernel."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return "onnxruntime", list(alone.session(proto, options).run(None, given))
    except Exception:  # onnxruntime's errors have no common base class
        return "onnx", list(ReferenceEvaluator(proto).run(None, given))


def same(imported: Imported, ours: list[Tensor], theirs: list[Tensor]) -> Iterator[str]:
    """The differences."""
    assert len(ours) == len(theirs)
    for k, (v, a, b) in enumerate(zip(imported.graph.outputs, ours, theirs, strict=True)):
        b = np.asarray(b)
        if a.shape != b.shape:
            yield f"output {k} has shape {a.shape}, not {b.shape}"
        elif not np.allclose(a, b.astype(np.float64), rtol=2e-5, atol=2e-6, equal_nan=True):
            yield f"output {k} ({imported.graph.tensors[v]}) is {a.ravel()[:12]}, not {b.ravel()[:12]}"


def test_every_operator_that_is_read_has_a_case() -> None:
    assert CASES.keys() == set(READ)


@pytest.mark.parametrize(("name", "opset"), VERSIONS)
def test_a_version_is_read_as_what_it_is(name: str, opset: int) -> None:
    answered = set()
    for c in CASES[name](opset):
        proto = model(name, c, opset)
        who, theirs = answer(proto, feeds(c))
        answered.add(who)
        imported = read(proto)
        assert imported.reasons == {}, describe(name, c, opset)
        ours = evaluation.run(imported, feeds(c))
        assert list(same(imported, ours, theirs)) == [], describe(name, c, opset)
    assert answered


@pytest.mark.parametrize(("name", "opset"), VERSIONS)
def test_constants_are_folded_to_what_they_are(name: str, opset: int) -> None:
    for c in CASES[name](opset):
        proto = model(name, c, opset, stored=True)
        _, theirs = answer(proto, {})
        imported = read(proto)
        ours = evaluation.run(imported, {})
        assert list(same(imported, ours, theirs)) == [], describe(name, c, opset)


def describe(name: str, c: Case, opset: int) -> str:
    shapes = [None if x is None else np.shape(getattr(x, "array", x)) for x in c.inputs]
    return f"{name} {c.attributes} of {shapes} at opset {opset}"


def test_what_is_folded_is_known() -> None:
    assert "Softmax" not in FOLDED and "Resize" not in FOLDED
