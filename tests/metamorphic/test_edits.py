"""Edits that keep the meaning of a model keep its fragments: the same keys as often, the same coverage."""

from __future__ import annotations

from functools import cache
from random import Random

import onnx
import onnx_ir as ir
import pytest

from tests.metamorphic import noise, products, spelling
from tests.metamorphic.fragments import Found, difference, found, same_answers, sample
from tests.metamorphic.rewriting import EDITS, Editor

#: for each edit the samples on which it is tried; each has places for it
WHERE = {
    noise.identities: ["bert"],
    noise.swapped: ["qwen3"],
    noise.renamed: ["gemma2"],
    noise.reordered: ["llama"],
    noise.unused: ["vit"],
    noise.duplicated: ["llama"],
    noise.shared: ["llama_traced"],
    noise.constants_as_nodes: ["llama"],
    noise.constants_as_initializers: ["llama_traced"],
    noise.reshape_pairs: ["gpt2"],
    noise.transpose_pairs: ["llama"],
    spelling.layer_norms: ["gpt2"],
    spelling.rms_norms: ["llama_composite"],
    spelling.gelus: ["bert", "gemma2"],
    spelling.sigmoids: ["llama"],
    spelling.softmaxes: ["llama", "gemma2"],
    spelling.squares: ["llama"],
    spelling.quotients: ["qwen3"],
    spelling.differences: ["llama"],
    products.gemms: ["llama", "vit"],
    products.einsums: ["llama"],
    products.matmuls: ["gpt2"],
    products.transposed_weights: ["phi3"],
    products.scales: ["llama", "vit"],
    products.split_scales: ["gpt_neox"],
    products.slices: ["gpt2"],
    products.repeats: ["llama"],
    products.grouped_heads: ["llama"],
    products.transposed_products: ["llama"],
    products.convolutions: ["llama"],
    spelling.reassociated: ["vit"],
}
CASES = [(function.__name__, name) for function, names in WHERE.items() for name in names]


@cache
def original(name: str) -> tuple[onnx.ModelProto, Found]:
    """A sample with its shapes inferred, and its fragments."""
    model = onnx.shape_inference.infer_shapes(sample(name))
    return model, found(model)


@pytest.mark.parametrize(("edit", "name"), CASES)
def test_an_edit_keeps_the_fragments(edit: str, name: str) -> None:
    model, fragments = original(f"{name}_fp32")
    edited = ir.from_proto(model)
    assert EDITS[edit](Editor(edited, Random(0))) > 0
    proto = ir.to_proto(edited)
    same_answers(model, proto, f"{name}_fp32")
    assert difference(fragments, found(proto)) == ""
