"""Cases of onnxruntime's own operators."""

from __future__ import annotations

import numpy as np

from tests.truth.case import Case, microsoft
from tests.truth.cases import f, i, n, pos, s, unit


def i32(*values: int) -> np.ndarray:
    """Integers as int32."""
    return np.array(values, np.int32)


def simple() -> list[Case]:
    """Elementwise operators, products and normalizations."""
    x = f(2, 3, 8)
    return [
        microsoft("Gelu", f(9)),
        microsoft("FastGelu", f(2, 8)),
        microsoft("FastGelu", f(2, 8), f(8)),
        microsoft("QuickGelu", f(9)),
        microsoft("QuickGelu", f(9), alpha=0.7),
        microsoft("BiasGelu", f(2, 8), f(8)),
        microsoft("BiasSplitGelu", f(2, 3, 2560), f(2560)),
        microsoft("BiasAdd", f(2, 3, 320), f(320), f(2, 3, 320)),
        microsoft("IsAllFinite", f(3), f(2)),
        microsoft("BiasSoftmax", f(2, 3, 4), f(2, 1, 4), axis=2, is_inner_broadcast=0),
        microsoft("Inverse", f(2, 3, 3) + 3 * np.eye(3, dtype=np.float32), loose=8),
        microsoft("Trilu", f(3, 4), upper=0),
        microsoft("GridSample", f(1, 2, 4, 5), unit(1, 3, 3, 2), mode="bilinear", loose=8),
        microsoft("GroupNorm", f(2, 4, 4, 320), pos(320), f(320), groups=32, activation=1),
        microsoft("FusedConv", f(1, 2, 5, 5), f(3, 2, 2, 2), f(3), activation="Relu"),
        microsoft("FusedConv", f(1, 2, 5, 5), f(3, 2, 2, 2), f(3), f(1, 3, 4, 4), activation="LeakyRelu",
                  activation_params=[0.3]),
        microsoft("FusedGemm", f(2, 3), f(3, 4), f(4), activation="LeakyRelu", activation_alpha=0.3, alpha=0.5),
        microsoft("FusedGemm", f(3, 2), f(4, 3), transA=1, transB=1, activation="Relu"),
        microsoft("FusedMatMul", f(2, 3, 4), f(2, 5, 4), transB=1, alpha=0.3),
        microsoft("FusedMatMul", f(2, 4, 3), f(2, 4, 5), transA=1),
        microsoft("FusedMatMul", f(4, 2, 3), f(2, 3, 5), transBatchA=1),
        microsoft("FusedMatMul", f(3, 2, 4), f(2, 3, 5), transBatchA=1, transA=1),
        microsoft("FusedMatMul", f(2, 4, 3), f(3, 2, 5), transBatchB=1),
        microsoft("SkipLayerNormalization", x, f(2, 3, 8), pos(8), f(8), f(8), outputs=4),
        microsoft("SkipLayerNormalization", x, f(3, 8), pos(8), epsilon=0.1),
        microsoft("SkipSimplifiedLayerNormalization", x, f(2, 3, 8), pos(8), f(8), outputs=4),
        microsoft("SkipSimplifiedLayerNormalization", x, f(1, 3, 8), pos(8), epsilon=0.1),
        microsoft("EmbedLayerNormalization", n(9, 2, 3, dtype=np.int32), n(2, 2, 3, dtype=np.int32), f(9, 8), f(5, 8),
                  f(2, 8), pos(8), f(8), n(2, 2, 3, dtype=np.int32), outputs=3),
        microsoft("EmbedLayerNormalization", n(9, 2, 3, dtype=np.int32), None, f(9, 8), f(5, 8), None, pos(8), f(8),
                  outputs=2),
    ]  # fmt: skip


def convolutions() -> list[Case]:
    """Causal convolutions with a state: dilations, both layouts."""
    x, w, rows = f(2, 6, 5), f(6, 1, 3), f(2, 5, 2, 3)
    op, two = "CausalConvWithState", {"outputs": 2}
    return [
        microsoft(op, x, w, f(6), f(2, 6, 2), activation="silu", **two),
        microsoft(op, x, w, **two),
        microsoft(op, x[..., :1].copy(), w, None, f(2, 6, 2), **two),
        microsoft(op, x, w, f(6), f(2, 6, 4), dilation=2, activation="swish", **two),
        microsoft(op, rows, w, f(6), f(2, 4, 2, 3), dilation=2, channels_last=1, **two),
    ]


def attentions() -> list[Case]:
    """Attention and MultiHeadAttention."""
    x, w, bias = f(2, 4, 8), f(8, 24), f(24)
    past = f(2, 2, 2, 3, 4)
    q, k, v = f(2, 4, 8), f(2, 5, 8), f(2, 5, 12)
    own = {"num_heads": 2}
    return [
        microsoft("Attention", x, w, bias, **own),
        microsoft("Attention", x, w, bias, unidirectional=1, **own),
        microsoft("Attention", x, w, bias, scale=0.2, **own),
        microsoft("Attention", x, w, bias, i32(2, 4), **own),
        microsoft("Attention", x, w, bias, i32(3, 4, 1, 0), **own),
        microsoft("Attention", x, w, bias, n(2, 2, 4, dtype=np.int32) | i32(1, 0, 0, 0), **own),
        microsoft("Attention", x, w, bias, n(2, 2, 4, 4, dtype=np.int32) | i32(1, 0, 0, 0), **own),
        microsoft("Attention", x, w, bias, None, past, unidirectional=1, outputs=2, **own),
        microsoft("Attention", x, w, bias, n(2, 2, 7, dtype=np.int32) | i32(1, 0, 0, 0, 0, 0, 0), past, outputs=2, **own),
        microsoft("Attention", x, w, bias, None, None, f(2, 2, 4, 4), **own),
        microsoft("Attention", x, w, bias, None, None, f(1, 2, 4, 4), unidirectional=1, **own),
        microsoft("Attention", x, f(8, 28), f(28), qkv_hidden_sizes=[8, 8, 12], **own),
        microsoft("MultiHeadAttention", q, k, v, **own),
        microsoft("MultiHeadAttention", q, k, v, f(28), scale=0.2, **own),
        microsoft("MultiHeadAttention", q, f(2, 4, 8), v[:, :4].copy(), unidirectional=1, **own),
        microsoft("MultiHeadAttention", q, k, v, None, i32(3, 5), **own),
        microsoft("MultiHeadAttention", q, k, v, None, n(2, 2, 5, dtype=np.int32) | i32(1, 0, 0, 0, 0), **own),
        microsoft("MultiHeadAttention", q, k, v, None, n(2, 2, 4, 5, dtype=np.int32) | i32(1, 0, 0, 0, 0), **own),
        microsoft("MultiHeadAttention", q, k, v, None, None, f(2, 2, 4, 5), **own),
        microsoft("MultiHeadAttention", q, k, v, None, None, f(1, 1, 4, 5), **own),
        microsoft("MultiHeadAttention", q, f(2, 5, 8), f(2, 5, 8), None, None, None, f(2, 2, 3, 4), f(2, 2, 3, 4),
                  outputs=3, **own),
        microsoft("MultiHeadAttention", q, f(2, 4, 8), f(2, 4, 8), f(24), None, f(1, 2, 4, 7), f(2, 2, 3, 4),
                  f(2, 2, 3, 4), outputs=3, unidirectional=1, **own),
        microsoft("MultiHeadAttention", q, f(2, 2, 5, 4), f(2, 2, 5, 4), **own),
        microsoft("MultiHeadAttention", q, f(2, 2, 5, 4), f(2, 2, 5, 4), f(24), **own),
        microsoft("MultiHeadAttention", f(2, 4, 2, 3, 4), **own),
        microsoft("MultiHeadAttention", q, f(2, 5, 2, 2, 4), **own),
        microsoft("MultiHeadAttention", q, k, v, None, None, None, None, None, outputs=3, **own),
    ]  # fmt: skip


def decoding() -> list[Case]:
    """DecoderMaskedMultiHeadAttention."""
    one, past = [f(2, 1, 8) for _ in range(3)], (f(2, 2, 5, 4), f(2, 2, 5, 4))
    end, shared = i32(3), {"num_heads": 2, "outputs": 3, "past_present_share_buffer": 1}
    op = "DecoderMaskedMultiHeadAttention"
    return [
        microsoft(op, *one, n(2, 2, 4, dtype=np.int32) | i32(1, 0, 0, 0), None, *past, end, scale=0.3, **shared),
        microsoft(op, *one, None, f(1, 2, 1, 4), *past, end, None, None, f(24), **shared),
        microsoft(op, *one, None, None, *past, end, **shared),
        microsoft(op, one[0], f(2, 2, 5, 4), f(2, 2, 5, 4), num_heads=2),
    ]


def windowed(cos: np.ndarray, sin: np.ndarray) -> list[Case]:
    """GroupQueryAttention with caches of a window's size: a prompt, steps before and after positions are dropped, several
    tokens at once; caches with room for the window alone and for more. Rows behind what a cache keeps may hold anything."""

    def given(compared: int, slots: int, tokens: int, *ends: int) -> Case:
        batch = len(ends)
        new = (f(batch, tokens, n) for n in (64, 32, 32))
        caches = (f(batch, 2, slots, 16), f(batch, 2, slots, 16))
        told = {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 4, "sliding_window_cache": 1, "do_rotary": 1}
        last, whole = i32(*(e - 1 for e in ends)), s(max(ends), np.int32)
        return microsoft(
            "GroupQueryAttention", *new, *caches, last, whole, cos, sin, outputs=3, compared=compared, **told
        )

    full = [(4, 9, 9), (4, 1, 4), (4, 1, 5), (4, 1, 12, 7), (6, 1, 9, 12), (6, 3, 9)]
    partial = [(4, 3, 3), (6, 1, 7), (6, 1, 11, 5), (6, 3, 8), (6, 8, 16)]
    return [given(compared, *sizes) for compared, some in ((3, full), (1, partial)) for sizes in some]


def grouped() -> list[Case]:
    """GroupQueryAttention and RotaryEmbedding."""
    own = {"num_heads": 4, "kv_num_heads": 2, "outputs": 3}
    first = (f(2, 4, 64), f(2, 4, 32), f(2, 4, 32), f(2, 2, 0, 16), f(2, 2, 0, 16))
    later = (f(2, 1, 64), f(2, 1, 32), f(2, 1, 32), f(2, 2, 5, 16), f(2, 2, 5, 16))
    chunk = (f(1, 3, 64), f(1, 3, 32), f(1, 3, 32), f(1, 2, 5, 16), f(1, 2, 5, 16))
    cos, sin = f(20, 8), f(20, 8)
    ends = (i32(3, 3), s(4, np.int32))
    more = (i32(5, 5), s(6, np.int32))
    third = (i32(7), s(8, np.int32))
    rotary = {"do_rotary": 1}
    least = np.where(np.arange(4)[:, None] == 1, np.float32(-np.inf), np.float32(1)) * pos(2, 4, 64)
    return [
        microsoft(
            "GroupQueryAttention", least, pos(2, 4, 32), first[2], None, None, *ends, num_heads=4, kv_num_heads=2
        ),
        microsoft("GroupQueryAttention", *first, *ends, **own),
        microsoft("GroupQueryAttention", *first, *ends, scale=0.2, softcap=1.5, **own),
        microsoft("GroupQueryAttention", *first, *ends, cos, sin, **rotary, **own),
        microsoft("GroupQueryAttention", *first, *ends, cos, sin, rotary_interleaved=1, **rotary, **own),
        microsoft("GroupQueryAttention", *first, *ends, local_window_size=2, **own),
        microsoft("GroupQueryAttention", *later, *more, **own),
        microsoft("GroupQueryAttention", *later, *more, cos, sin, **rotary, **own),
        microsoft("GroupQueryAttention", *later, *more, local_window_size=3, **own),
        microsoft("GroupQueryAttention", *later, i32(5, 3), s(6, np.int32), cos, sin, **rotary, **own),
        microsoft("GroupQueryAttention", *chunk, *third, cos, sin, **rotary, **own),
        microsoft("GroupQueryAttention", *chunk, *third, local_window_size=2, **own),
        microsoft("GroupQueryAttention", f(2, 4, 128), None, None, *first[3:], *ends, cos, sin, **rotary, **own),
        microsoft("GroupQueryAttention", *first, *ends, None, None, None, f(2, 4, 4, 4), **own),
        microsoft("GroupQueryAttention", *later, *more, None, None, None, f(1, 1, 1, 6), **own),
        microsoft("GroupQueryAttention", *first, *ends, smooth_softmax=1, **own),
        microsoft("GroupQueryAttention", *first, *ends, None, None, None, None, f(4), **own),
        microsoft("GroupQueryAttention", *first[:3], None, None, *ends, **own),
        microsoft("GroupQueryAttention", *first, i32(1, 3), s(4, np.int32), **own),
        *windowed(cos, sin),
        *(
            microsoft(
                "GroupQueryAttention",
                *new,
                *whole,
                *behind,
                *[None] * 5,
                scale,
                2 * scale,
                k_quant_type=kind,
                v_quant_type=kind,
                kv_cache_bit_width=bits,
                **own,
            )
            for kind, scale in (("PER_TENSOR", pos(1) / 50), ("PER_CHANNEL", pos(1, 2, 1, 16) / 50))
            for new, behind in ((first[:3], ends), (later[:3], more))
            for bits, most, row, stored in ((8, 99, 16, np.int8), (4, 256, 8, np.uint8))
            for whole in [[n(most, 2, 2, behind[1] - new[0].shape[1], row, dtype=stored)] * 2]
        ),
        microsoft("RotaryEmbedding", f(2, 4, 24), n(9, 2, 4), f(10, 4), f(10, 4)),
        microsoft("RotaryEmbedding", f(2, 4, 24), i(3), f(10, 4), f(10, 4), interleaved=1),
        microsoft("RotaryEmbedding", f(2, 3, 4, 8), n(9, 2, 4), f(10, 4), f(10, 4)),
        microsoft("RotaryEmbedding", f(2, 4, 24), n(9, 2, 4), f(10, 2), f(10, 2), num_heads=3, rotary_embedding_dim=4),
        microsoft("RotaryEmbedding", f(2, 4, 24), n(9, 2, 4), f(10, 4), f(10, 4), scale=2.0),
    ]


def quantized() -> list[Case]:
    """Products with quantized weights."""
    found = []
    for bits, size, deep in ((4, 16, 32), (4, 32, 40), (8, 16, 32), (2, 16, 32)):
        blocks = -(-deep // size)
        packed = n(256, 6, blocks, size * bits // 8, dtype=np.uint8)
        scales = pos(6, blocks)
        own = {"K": deep, "N": 6, "bits": bits, "block_size": size, "loose": 16}
        row = -(-blocks * bits // 8)
        found += [
            microsoft("MatMulNBits", f(2, 3, deep), packed, scales, **own),
            microsoft("MatMulNBits", f(3, deep), packed, scales, n(256, 6, row, dtype=np.uint8), **own),
            microsoft("MatMulNBits", f(3, deep), packed, scales.reshape(-1), None, None, f(6), **own),
        ]
        if bits == 4:
            groups = n(blocks, deep, dtype=np.int32)
            found += [
                microsoft("MatMulNBits", f(3, deep), packed, scales, 8 + f(6, blocks), **own),
                microsoft("MatMulNBits", f(3, deep), packed, scales, None, groups, **own),
            ]
    scales, places = pos(9, 2), np.array([[3, -1], [0, 8]])
    for bits in (2, 4, 8):
        own = {"bits": bits, "block_size": 16, "loose": 4}
        data, by = n(256, 9, 4 * bits, dtype=np.uint8), n(256, 9, -(-2 * bits // 8), dtype=np.uint8)
        found += [microsoft("GatherBlockQuantized", data, places, scales, *z, **own) for z in ((), (by,))]
    u, signed = n(255, 2, 3, dtype=np.uint8), n(100, 3, 4, dtype=np.int8)
    z = s(7, np.uint8)
    found += [
        microsoft("MatMulIntegerToFloat", u, signed, s(0.1), s(0.2), z, s(3, np.int8), f(4)),
        microsoft("MatMulIntegerToFloat", u, signed, s(0.1), pos(4), z),
        microsoft("DynamicQuantizeMatMul", f(2, 3), signed, pos(4), n(9, 4, dtype=np.int8), f(4), loose=64),
        microsoft("QLinearAdd", u, s(0.1), z, u[:1].copy(), s(0.2), z, s(0.3), s(3, np.uint8)),
        microsoft("QLinearMul", u, s(0.1), z, u[:1].copy(), s(0.2), z, s(3.3), s(3, np.uint8)),
        microsoft(
            "QGemm", u, s(0.1), z, n(100, 4, 3, dtype=np.uint8), s(0.2), z, None, s(3.3), s(3, np.uint8), transB=1
        ),
        microsoft("QGemm", u, s(0.1), z, signed, s(0.2), s(3, np.int8), n(99, 4, dtype=np.int32)),
        microsoft("QuantizeLinear", f(2, 3), s(0.1), s(3, np.int16)),
        microsoft("DequantizeLinear", n(99, 2, 3, dtype=np.uint16), s(0.1), s(3, np.uint16)),
    ]
    return found


def experts() -> list[Case]:
    """MoE and QMoE."""
    x, rows, found = f(2, 3, 32), f(6, 4), list[Case]()
    first, second, biases = f(4, 16, 32), f(4, 32, 16), (f(4, 16), f(4, 32))
    for kind in ("relu", "gelu", "silu", "identity"):
        own = {"k": 2, "activation_type": kind, "normalize_routing_weights": int(kind == "gelu"), "loose": 16}
        found.append(microsoft("MoE", x, rows, first, biases[0], second, biases[1], **own))
    gated = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "normalize_routing_weights": 1, "loose": 64}
    found.append(microsoft("MoE", x, rows, f(4, 16, 32), None, f(4, 32, 8), **gated))
    gated |= {"activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 2.0}
    for bits, size in ((2, 0), (4, 0), (8, 0), (4, 16)):
        blocks = (2, 1) if size else (None, None)
        own = {**gated, "expert_weight_bits": bits} | ({"block_size": size} if size else {})
        q = [n(256, 4, wide, deep * bits // 8, dtype=np.uint8) for wide, deep in ((32, 32), (32, 16))]
        s = [pos(4, 32, *([b] if b else [])) / 100 for b in blocks]
        zeros = [n(256, 4, *([32, 1] if size else [32 * bits // 8]), dtype=np.uint8) for _ in q]
        given = (x, rows, q[0], s[0], f(4, 32), q[1], s[1], f(4, 32))
        found.append(microsoft("QMoE", *given, **own))
        found.append(microsoft("QMoE", *given, None, None, None, *zeros, None, pos(6, 4), **own))
    return found


CASES = [*simple(), *attentions(), *decoding(), *grouped(), *quantized(), *experts(), *convolutions()]
