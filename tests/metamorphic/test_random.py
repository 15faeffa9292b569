"""Random sequences of edits: each keeps the answers in onnxruntime, and all of them together keep the fragments."""

from __future__ import annotations

from random import Random

import onnx
import onnx_ir as ir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.metamorphic.fragments import difference, found, same_answers
from tests.metamorphic.rewriting import EDITS, Editor
from tests.metamorphic.test_edits import original

PROPERTY = settings(
    max_examples=6, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
SAMPLES = ("llama_fp32", "gpt2_fp32", "vit_fp32")
#: not `duplicated`: copies of a value in layouts of their own (by other edits) are tensors of their own
TOGETHER = sorted(EDITS.keys() - {"duplicated"})


@PROPERTY
@given(
    name=st.sampled_from(SAMPLES),
    edits=st.lists(st.sampled_from(TOGETHER), min_size=2, max_size=6),
    seed=st.integers(0, 2**16),
)
def test_sequences_of_edits_keep_the_fragments(name: str, edits: list[str], seed: int) -> None:
    model, fragments = original(name)
    edited, random = model, Random(seed)
    for edit in edits:
        made = ir.from_proto(onnx.shape_inference.infer_shapes(edited))
        EDITS[edit](Editor(made, random))
        edited = ir.to_proto(made)
        same_answers(model, edited, name)
    assert difference(fragments, found(edited)) == ""
