"""Attention and rotary embeddings of onnxruntime's own operators: its answers, form by form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontends import evaluation
from tests.frontends.models import agrees, noise, parsed, read

HEAD = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>'
B, S, T, N, H, P = 2, 3, 5, 2, 4, 2
D = N * H
MHA = {
    "plain": ("float[2,3,8] q, float[2,5,8] k, float[2,5,8] v", "q, k, v", "num_heads = 2"),
    "scale": ("float[2,3,8] q, float[2,5,8] k, float[2,5,8] v", "q, k, v", "num_heads = 2, scale = 0.25"),
    "values of another size": ("float[2,3,8] q, float[2,5,8] k, float[2,5,12] v", "q, k, v", "num_heads = 2"),
    "bias": ("float[2,3,8] q, float[2,5,8] k, float[2,5,8] v", "q, k, v, bias", "num_heads = 2"),
    "padding": ("float[2,3,8] q, float[2,5,8] k, float[2,5,8] v", "q, k, v, , pad", "num_heads = 2"),
    "scores bias": ("float[2,3,8] q, float[2,5,8] k, float[2,5,8] v", "q, k, v, , , add", "num_heads = 2"),
    "keys by head": ("float[2,3,8] q, float[2,2,5,4] k, float[2,2,5,4] v", "q, k, v", "num_heads = 2"),
    "causal": ("float[2,3,8] q, float[2,3,8] k, float[2,3,8] v", "q, k, v", "num_heads = 2, unidirectional = 1"),
}
WEIGHTS: dict[str, Any] = {
    "bias": noise(3 * D),
    "pad": np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], np.int32),
    "add": noise(B, N, S, T),
}


def drawn(inputs: str) -> dict[str, Any]:
    """Arrays for declared inputs."""
    found = {}
    for k, declared in enumerate(inputs.split(", float")):
        dims, name = declared.removeprefix("float").removeprefix("[").split("] ")
        found[name] = np.random.default_rng(k).standard_normal([int(d) for d in dims.split(",")]).astype(np.float32)
    return found


@pytest.mark.parametrize("case", MHA)
def test_multi_head_attention(case: str) -> None:
    inputs, operands, attributes = MHA[case]
    text = f"""{HEAD} g ({inputs}) => (float[b,s,d] y) {{
        y = com.microsoft.MultiHeadAttention <{attributes}> ({operands})
    }}"""
    used = {n: w for n, w in WEIGHTS.items() if n in operands.split(", ")}
    agrees(parsed(text, **used), **drawn(inputs))


@pytest.mark.parametrize("queries", [True, False])
def test_packed_operands_are_parts(queries: bool) -> None:
    """onnxruntime's CPU kernels do not take them: the answers of the same node with its operands apart."""
    packed = noise(2, 3, N, 3 if queries else 2, H)
    q = packed[:, :, :, 0] if queries else noise(2, 3, N, H)
    k, v = packed[:, :, :, -2], packed[:, :, :, -1]
    apart = {n: x.reshape(2, 3, D) for n, x in (("q", q), ("k", k), ("v", v))}
    inputs, operands = ("float[2,3,2,3,4] p", "p") if queries else ("float[2,3,8] q, float[2,3,2,2,4] p", "q, p")
    node = "y = com.microsoft.MultiHeadAttention <num_heads = 2>"
    one = read(parsed(f"{HEAD} g ({inputs}) => (float[2,3,8] y) {{ {node} ({operands}) }}"))
    three = "float[2,3,8] q, float[2,3,8] k, float[2,3,8] v"
    other = read(parsed(f"{HEAD} g ({three}) => (float[2,3,8] y) {{ {node} (q, k, v) }}"))
    given = {"p": packed} if queries else {"p": packed, "q": apart["q"]}
    (found,), (wanted,) = evaluation.run(one, given), evaluation.run(other, apart)
    np.testing.assert_allclose(found, wanted)


def test_its_cache_is_a_concatenation() -> None:
    inputs = "float[2,3,8] q, float[2,3,8] k, float[2,3,8] v, float[2,2,2,4] pk, float[2,2,2,4] pv"
    text = f"""{HEAD} g ({inputs}) => (float[2,3,8] y, float[2,2,5,4] nk, float[2,2,5,4] nv) {{
        y, nk, nv = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, , , , pk, pv)
    }}"""
    agrees(parsed(text), **drawn(inputs))


@pytest.mark.parametrize(
    "attributes", ["num_heads = 2", "num_heads = 2, unidirectional = 1", "num_heads = 2, scale = 0.3"]
)
def test_attention_with_weights_inside_is_taken_apart(attributes: str) -> None:
    text = f"""{HEAD} g (float[2,3,6] x) => (float[2,3,8] y) {{
        y = com.microsoft.Attention <{attributes}> (x, w, bias)
    }}"""
    imported = agrees(parsed(text, w=noise(6, 3 * D), bias=noise(3 * D)), x=noise(2, 3, 6))
    assert [n.op_type for n in imported.model.graph] == ["MatMul", "Add", "Split", "MultiHeadAttention"]


def rope(length: int, half: int = 2) -> dict[str, Any]:
    """Caches of cosines and sines."""
    angles = np.outer(np.arange(length), 0.3 ** np.arange(half)).astype(np.float32)
    return {"cos": np.cos(angles), "sin": np.sin(angles)}


@pytest.mark.parametrize("attributes", ["", "<interleaved = 1>", "<num_heads = 2, rotary_embedding_dim = 4>"])
@pytest.mark.parametrize("positions", [np.array([2]), np.array([[0, 1, 2], [3, 5, 4]])])
def test_rotary_embedding(attributes: str, positions: Any) -> None:
    text = f"""{HEAD} g (float[2,3,8] x) => (float[2,3,8] y) {{
        y = com.microsoft.RotaryEmbedding {attributes} (x, at, cos, sin)
    }}"""
    agrees(parsed(text, at=positions.astype(np.int64), **rope(8)), x=noise(2, 3, 8))


def test_rotary_embedding_by_head() -> None:
    text = f"""{HEAD} g (float[2,2,3,4] x) => (float[2,2,3,4] y) {{
        y = com.microsoft.RotaryEmbedding (x, at, cos, sin)
    }}"""
    agrees(parsed(text, at=np.array([1], np.int64), **rope(8)), x=noise(2, 2, 3, 4))


GQA = {
    "plain": "num_heads = 4, kv_num_heads = 2",
    "rotary": "num_heads = 4, kv_num_heads = 2, do_rotary = 1",
    "interleaved": "num_heads = 4, kv_num_heads = 2, do_rotary = 1, rotary_interleaved = 1",
    "soft cap": "num_heads = 4, kv_num_heads = 2, softcap = 2.0",
    "window": "num_heads = 4, kv_num_heads = 2, local_window_size = 2",
    "scale": "num_heads = 4, kv_num_heads = 2, scale = 0.7",
}


@pytest.mark.parametrize("case", GQA)
@pytest.mark.parametrize("past", [0, 2])
def test_group_query_attention(case: str, past: int) -> None:
    total = S + past
    inputs = "float[1,3,64] q, float[1,3,32] k, float[1,3,32] v"
    cache = ", float[1,2,2,16] pk, float[1,2,2,16] pv" if past else ""
    given = "pk, pv" if past else ", "
    tables = ", cos, sin" if "rotary" in GQA[case] else ""
    text = f"""{HEAD} g ({inputs}{cache}) => (float[1,3,64] y, float[1,2,{total},16] nk, float[1,2,{total},16] nv) {{
        y, nk, nv = com.microsoft.GroupQueryAttention <{GQA[case]}> (q, k, v, {given}, last, total{tables})
    }}"""
    lengths = {"last": np.full(1, total - 1, np.int32), "total": np.array(total, np.int32)}
    agrees(parsed(text, **lengths, **(rope(8, 8) if tables else {})), **drawn(inputs + cache))


def test_packed_group_query_attention() -> None:
    inputs = "float[1,3,128] q"
    text = f"""{HEAD} g ({inputs}) => (float[1,3,64] y, float[1,2,3,16] nk, float[1,2,3,16] nv) {{
        y, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, , , , , last, total)
    }}"""
    agrees(parsed(text, last=np.full(1, 2, np.int32), total=np.array(3, np.int32)), **drawn(inputs))


def test_lengths_that_are_not_known_are_refused() -> None:
    inputs = "float[1,3,64] q, float[1,3,32] k, float[1,3,32] v, int32[1] last"
    text = f"""{HEAD} g ({inputs}) => (float[1,3,64] y, float[1,2,3,16] nk, float[1,2,3,16] nv) {{
        y, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, k, v, , , last, total)
    }}"""
    reasons = read(parsed(text, total=np.array(3, np.int32))).reasons
    assert "lengths of sequences (input 5)" in next(iter(reasons.values()))
