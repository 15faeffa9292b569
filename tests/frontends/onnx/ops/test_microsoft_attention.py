"""Attention and rotary embeddings of onnxruntime's own operators: its answers, form by form."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from mirage_cli.truth import evaluate as truth
from tests.frontends import evaluation
from tests.frontends.models import agrees, noise, parsed, read, run

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


def test_its_scores_are_an_output() -> None:
    inputs = "float[2,3,8] q, float[2,5,8] k, float[2,5,8] v"
    text = f"""{HEAD} g ({inputs}) => (float[2,3,8] y, float[2,2,3,5] qk) {{
        y, , , qk = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, , , add)
    }}"""
    agrees(parsed(text, add=WEIGHTS["add"]), **drawn(inputs))


@pytest.mark.parametrize(
    "attributes", ["num_heads = 2", "num_heads = 2, unidirectional = 1", "num_heads = 2, scale = 0.3"]
)
def test_attention_with_weights_inside_is_taken_apart(attributes: str) -> None:
    text = f"""{HEAD} g (float[2,3,6] x) => (float[2,3,8] y) {{
        y = com.microsoft.Attention <{attributes}> (x, w, bias)
    }}"""
    imported = agrees(parsed(text, w=noise(6, 3 * D), bias=noise(3 * D)), x=noise(2, 3, 6))
    assert [n.op_type for n in imported.model.graph] == ["MatMul", "Add", "Split", "MultiHeadAttention"]


MASKS = {
    "ends": (np.array([2, 3], np.int32), True),
    "ends and starts": (np.array([2, 3, 0, 1], np.int32), False),
    "by key": (np.array([[1, 1, 0], [1, 1, 1]], np.int32), True),
    "none": (np.ones((1, 1), np.int32), False),
    "by query": (np.ones((2, 3, 3), np.int32), True),
}


@pytest.mark.parametrize("case", MASKS)
def test_attention_with_a_mask_of_its_own_stays(case: str) -> None:
    """What it is taken apart to runs."""
    mask, apart = MASKS[case]
    text = f"""{HEAD} g (float[2,3,6] x) => (float[2,3,8] y) {{
        y = com.microsoft.Attention <num_heads = 2> (x, w, bias, mask)
    }}"""
    before = parsed(text, w=noise(6, 3 * D), bias=noise(3 * D), mask=mask)
    imported = read(before)
    assert ("Attention" in {n.op_type for n in imported.model.graph}) == (not apart)
    assert apart or "a mask of i32" in next(iter(imported.reasons.values()))
    inputs = {"x": noise(2, 3, 6)}
    (ours,), (theirs,) = run(ir.to_proto(imported.model), inputs), run(before, inputs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize("dims", ["2", "p"])
@pytest.mark.parametrize("case", ["", "unidirectional = 1", "mask", "only present"])
def test_the_cache_of_attention_is_two_concatenations(case: str, dims: str, opset: int) -> None:
    head = HEAD.replace('"" : 18', f'"" : {opset}')
    behind = case != "only present"
    given = f", float[2,2,2,{dims if case != 'mask' else P},4] past" if behind else ""
    mask, past = "mask" if case == "mask" else "", "past" if behind else ""
    attributes = "num_heads = 2" + (f", {case}" if "=" in case else "")
    text = f"""{head} g (float[2,3,8] x{given}) => (float[2,3,8] y, float[a,b,c,d,e] present) {{
        y, present = com.microsoft.Attention <{attributes}> (x, w, bias, {mask}, {past})
    }}"""
    weights = {"w": noise(8, 3 * D), "bias": noise(3 * D)}
    if case == "mask":
        weights["mask"] = WEIGHTS["pad"]
    arrays = {"x": noise(2, 3, 8)} | ({"past": noise(2, 2, 2, 2, 4)} if behind else {})
    agrees(parsed(text, **weights), **arrays)


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
    "smooth": "num_heads = 4, kv_num_heads = 2, smooth_softmax = 1",
    "sink": "num_heads = 4, kv_num_heads = 2, softcap = 2.0",
}


@pytest.mark.parametrize("case", GQA)
@pytest.mark.parametrize("past", [0, 2])
def test_group_query_attention(case: str, past: int) -> None:
    total = S + past
    inputs = "float[1,3,64] q, float[1,3,32] k, float[1,3,32] v"
    cache = ", float[1,2,2,16] pk, float[1,2,2,16] pv" if past else ""
    given = "pk, pv" if past else ", "
    tables = ", cos, sin" if "rotary" in GQA[case] else ", , , , , sink" if case == "sink" else ""
    text = f"""{HEAD} g ({inputs}{cache}) => (float[1,3,64] y, float[1,2,{total},16] nk, float[1,2,{total},16] nv) {{
        y, nk, nv = com.microsoft.GroupQueryAttention <{GQA[case]}> (q, k, v, {given}, last, total{tables})
    }}"""
    lengths = {"last": np.full(1, total - 1, np.int32), "total": np.array(total, np.int32)}
    known = {"sink": noise(4)} if case == "sink" else rope(8, 8) if tables else {}
    agrees(parsed(text, **lengths, **known), **drawn(inputs + cache))


def test_norms_inside_are_norms_in_front() -> None:
    """onnxruntime's CPU kernel has none."""
    inputs = "float[1,3,64] q, float[1,3,32] k, float[1,3,32] v"
    given = {"last": np.full(1, 2, np.int32), "total": np.array(3, np.int32), "gq": noise(16), "gk": noise(2, 16)[1]}
    text = f"""{HEAD} g ({inputs}) => (float[1,3,64] y, float[1,2,3,16] nk, float[1,2,3,16] nv) {{
        y, nk, nv = com.microsoft.GroupQueryAttention <{GQA["plain"]}> (q, k, v, , , last, total{", " * 8}gq, gk)
    }}"""
    model = parsed(text, **given)
    ours, theirs = evaluation.run(read(model), drawn(inputs)), truth.run(model, drawn(inputs))
    for own, name in zip(ours, ("y", "nk", "nv"), strict=True):
        np.testing.assert_allclose(own, theirs[name], rtol=1e-6)


def test_packed_group_query_attention() -> None:
    inputs = "float[1,3,128] q"
    text = f"""{HEAD} g ({inputs}) => (float[1,3,64] y, float[1,2,3,16] nk, float[1,2,3,16] nv) {{
        y, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, , , , , last, total)
    }}"""
    agrees(parsed(text, last=np.full(1, 2, np.int32), total=np.array(3, np.int32)), **drawn(inputs))


def one_token(past: str, present: str, attributes: str, total: Any) -> Any:
    """One new token behind a cache; lengths are inputs."""
    inputs = f"float[2,1,64] q, float[2,1,32] k, float[2,1,32] v, float[2,2,{past},16] pk, float[2,2,{past},16] pv"
    outputs = f"float[2,1,64] y, float[2,2,{present},16] nk, float[2,2,{present},16] nv"
    text = f"""{HEAD} g ({inputs}, int32[2] last) => ({outputs}) {{
        y, nk, nv = com.microsoft.GroupQueryAttention <{attributes}> (q, k, v, pk, pv, last, total)
    }}"""
    return parsed(text, total=np.array(total, np.int32))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("qk_output", 1, "scores as an output"),
        ("causal", 0, "no causal mask"),
        ("sliding_window_cache", 1, "a cache of the window's size"),
        ("", 0, "sequences of unequal new tokens"),
    ],
)
def test_forms_that_stay(name: str, value: int, reason: str) -> None:
    """Each has its reason; a step of sequences of which some have no new token reads their numbers of it."""
    given = one_token("8", "8", "num_heads = 4, kv_num_heads = 2", 8)
    (node,) = given.graph.node
    if name:
        node.attribute.append(helper.make_attribute(name, value))
    else:
        node.input.extend([*[""] * 9, "fresh"])
        given.graph.input.append(helper.make_tensor_value_info("fresh", TensorProto.INT32, [2]))
    (said,) = read(given).reasons.values()
    assert said.endswith(reason)


TOKEN = {n: noise(2, 1, d) * (k + 1) for k, (n, d) in enumerate((("q", 64), ("k", 32), ("v", 32)))}


@pytest.mark.parametrize("case", ["plain", "soft cap", "window", "scale", "smooth"])
@pytest.mark.parametrize(("total", "last"), [(7, [6, 2]), (4, [3, 0]), (8, [7, 3])])
def test_lengths_of_a_cache_that_are_known_at_run_time(case: str, total: int, last: list[int]) -> None:
    """A cache that has room for the new token, one that is not full, and one that grows."""
    model = one_token("7", str(max(total, 7)), GQA[case], total)
    agrees(model, **TOKEN, pk=noise(2, 2, 7, 16), pv=2 * noise(2, 2, 7, 16), last=np.array(last, np.int32))


def test_lengths_of_a_prompt_only_tell_which_results_have_a_meaning() -> None:
    inputs = "float[2,3,64] q, float[2,3,32] k, float[2,3,32] v"
    text = f"""{HEAD} g ({inputs}, int32[2] last) => (float[2,3,64] y, float[2,2,3,16] nk, float[2,2,3,16] nv) {{
        y, nk, nv = com.microsoft.GroupQueryAttention <{GQA["rotary"]}> (q, k, v, , , last, total, cos, sin)
    }}"""
    model = parsed(text, total=np.array(3, np.int32), **rope(8, 8))
    given = drawn(inputs) | {"last": np.array([2, 1], np.int32)}
    ours, theirs = evaluation.run(read(model), given), run(model, given)
    assert np.allclose(ours[0][0], theirs[0][0], atol=1e-5) and np.allclose(ours[0][1, :2], theirs[0][1, :2], atol=1e-5)
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(ours[1:], theirs[1:], strict=True))


REFUSED = {
    "rotary": ("7", "7", 7, "do_rotary = 1", "rotary embeddings inside"),
    "a longer one": ("7", "9", 9, "scale = 0.5", "a cache of 7 positions"),
    "of another name": ("c", "d", 9, "scale = 0.5", "a cache of c positions"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_lengths_do_not_tell_is_refused(case: str) -> None:
    past, present, total, attribute, reason = REFUSED[case]
    model = one_token(past, present, f"num_heads = 4, kv_num_heads = 2, {attribute}", total)
    assert reason in next(iter(read(model).reasons.values()))


def test_several_tokens_behind_lengths_that_are_not_known_are_refused() -> None:
    inputs = "float[1,3,64] q, float[1,3,32] k, float[1,3,32] v, float[1,2,2,16] pk, float[1,2,2,16] pv, int32[1] last"
    text = f"""{HEAD} g ({inputs}) => (float[1,3,64] y, float[1,2,5,16] nk, float[1,2,5,16] nv) {{
        y, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, k, v, pk, pv, last, total)
    }}"""
    reasons = read(parsed(text, total=np.array(5, np.int32))).reasons
    assert "3 new tokens behind lengths (input 5)" in next(iter(reasons.values()))
