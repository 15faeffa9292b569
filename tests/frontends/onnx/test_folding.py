"""What becomes a constant when a model is read: only what `onnx.reference` computes as onnxruntime does."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest

from mirage_cli.frontends.onnx.folding import FOLDED
from mirage_cli.frontends.onnx.preparation import OLDEST_OPSET
from tests.frontends import evaluation
from tests.frontends.models import agrees, noise, parsed, read
from tests.frontends.onnx.ops.test_versions import answer, describe, same
from tests.frontends.onnx.ops.version_cases import CASES, EDGES, Case, Stored, case, model, s

WHOLE = np.array([[-7, 7, -1], [5, 0, 9]], np.int64)
DIVISORS = np.array([2, -2, 3], np.int64)
AXIS = Stored(np.array(1))
NEWEST = 27  #: opset that onnxruntime supports


def _mod(_: int) -> list[Case]:
    return [case(WHOLE, DIVISORS), case(WHOLE, DIVISORS, fmod=1), case(noise(2, 3), np.float32([2, -2, 3]), fmod=1)]


MORE = {
    "Mod": _mod,
    "CumSum": lambda _: [case(x, AXIS) for x in (noise(2, 3), WHOLE)] + [case(WHOLE, AXIS, exclusive=1, reverse=1)],
    "ScatterElements": lambda _: [
        case(noise(3, 3), s([1, 0, 2]), noise(1, 3) + 2),
        case(noise(2, 3), s([2], [0]), noise(2, 1), axis=1),
    ],
    "Div": lambda _: [case(WHOLE, DIVISORS), case(EDGES, noise(4))],
    "Sub": lambda _: [case(WHOLE, DIVISORS), case(EDGES, noise(4))],
    "Mul": lambda _: [case(WHOLE, DIVISORS), case(EDGES, noise(4))],
    "Neg": lambda _: [case(WHOLE), case(EDGES)],
    "Abs": lambda _: [case(WHOLE), case(EDGES)],
    "Sign": lambda _: [case(WHOLE), case(EDGES)],
    "Relu": lambda _: [case(EDGES)],
    "Max": lambda opset: [case(EDGES, np.zeros_like(EDGES)), *([case(WHOLE, DIVISORS)] if opset >= 12 else [])],
    "Min": lambda opset: [case(EDGES, np.zeros_like(EDGES)), *([case(WHOLE, DIVISORS)] if opset >= 12 else [])],
    "ReduceMean": lambda _: [case(WHOLE), case(EDGES)],
    "Floor": lambda _: [case(EDGES)],
    "Round": lambda _: [case(EDGES)],
    "Sqrt": lambda _: [case(EDGES)],
    "Reciprocal": lambda _: [case(EDGES)],
    "Cast": lambda _: [case(EDGES, to=t) for t in (1, 6, 7, 9, 10, 11)] + [case(WHOLE, to=t) for t in (1, 6, 7, 9, 10)],
}  # fmt: skip


@functools.cache
def versions(op: str) -> list[int]:
    since = {x.since_version for x in onnx.defs.get_all_schemas_with_history() if (x.domain, x.name) == ("", op)}
    old = [OLDEST_OPSET] if any(v <= OLDEST_OPSET for v in since) else []
    return [*old, *sorted(v for v in since if OLDEST_OPSET < v <= NEWEST)]


def test_everything_that_is_folded_has_a_case() -> None:
    assert CASES.keys() | MORE.keys() >= FOLDED
    assert MORE.keys() <= FOLDED


@pytest.mark.parametrize(("op", "opset"), [(op, v) for op in sorted(MORE) for v in versions(op)])
def test_constants_are_what_onnxruntime_computes(op: str, opset: int) -> None:
    for c in MORE[op](opset):
        proto = model(op, c, opset, stored=True)
        who, theirs = answer(proto, {})
        imported = read(proto)
        if imported.reasons:  # it stays as it is
            assert op in ("Cast", "Div"), describe(op, c, opset)
            continue
        assert list(same(imported, evaluation.run(imported, {}), theirs)) == [], f"{describe(op, c, opset)}: {who}"


def test_weights_that_a_function_reads_are_still_read() -> None:
    """What its body cuts out of them is no new constant: the call names the whole weight."""
    text = """<ir_version: 9, opset_import: ["" : 18, "f" : 1]> g (float[2, 8] x) => (float[2, 4] y) { y = f.part (x, w) }
        <domain: "f", opset_import: ["" : 18]> part (x, w) => (y) {
            first = Constant <value_ints = [2]> ()
            last = Constant <value_ints = [6]> ()
            axis = Constant <value_ints = [1]> ()
            own = Slice (w, first, last, axis)
            y = MatMul (x, own)
        }"""
    imported = agrees(parsed(text, w=noise(8, 8)), x=noise(2, 8))
    assert {"x", "w", "y"} <= imported.values.keys()
