"""Cases of the larger operators of ONNX: layers, images, attention, quantized tensors, sub-graphs."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.truth.case import Case, case
from tests.truth.cases import FLOAT, INT64, b, f, i, n, pos, s, texts, unit


def normalizations() -> list[Case]:
    """Normalizations."""
    x = f(2, 4, 3, 3)
    one, two, mean, variance = pos(4), f(4), f(4), pos(4)
    return [
        case("BatchNormalization", x, one, two, mean, variance),
        case("BatchNormalization", x, one, two, mean, variance, epsilon=0.1),
        case("BatchNormalization", f(2, 3), pos(3), f(3), f(3), pos(3), spatial=0, until=8),
        case("BatchNormalization", x, one, two, mean, variance, training_mode=1, outputs=3, momentum=0.7, since=14),
        case("InstanceNormalization", x, one, two, epsilon=0.01),
        case("LayerNormalization", x, pos(3), f(3)),
        case("LayerNormalization", x, pos(3, 3), axis=2, epsilon=0.1, outputs=3),
        case("SimplifiedLayerNormalization", x, pos(3)),
        case("RMSNormalization", x, pos(3), epsilon=0.1),
        case("RMSNormalization", x, pos(4, 3, 3), axis=1),
        case("GroupNormalization", x, pos(2), f(2), num_groups=2, until=20),
        case("GroupNormalization", x, one, two, num_groups=2, since=21),
        case("MeanVarianceNormalization", x),
        case("MeanVarianceNormalization", x, axes=[1, 2]),
        case("MeanVarianceNormalization", np.full((1, 2, 2, 2), 2, np.float32)),
        case("LpNormalization", x),
        case("LpNormalization", x, axis=1, p=1),
        case("LpNormalization", np.zeros((2, 3), np.float32)),
        case("LRN", x, size=3),
        case("LRN", x, size=5, alpha=0.1, beta=0.5, bias=2.0),
    ]


def pools() -> list[Case]:
    """Convolutions and pools."""
    x, k = f(1, 4, 7, 6), f(6, 4, 3, 2)
    return [
        case("Conv", x, k),
        case("Conv", x, k, f(6), pads=[1, 0, 2, 1], strides=[2, 1]),
        case("Conv", x, f(6, 2, 3, 3), group=2, dilations=[2, 1]),
        case("Conv", x, k, auto_pad="SAME_UPPER", strides=[2, 2]),
        case("Conv", x, k, auto_pad="SAME_LOWER", strides=[2, 2]),
        case("Conv", x, k, auto_pad="VALID"),
        case("Conv", f(2, 3, 9), f(4, 3, 3)),
        case("Conv", f(1, 2, 4, 4, 4), f(3, 2, 2, 2, 2)),
        case("ConvTranspose", x, f(4, 3, 3, 2)),
        case("ConvTranspose", x, f(4, 3, 3, 2), f(6), group=2, strides=[2, 2], pads=[1, 0, 1, 1]),
        case("ConvTranspose", x, f(4, 3, 3, 3), strides=[3, 2], output_padding=[1, 1], dilations=[2, 1]),
        case("ConvTranspose", x, f(4, 3, 3, 3), strides=[2, 2], output_shape=[15, 13]),
        case("ConvTranspose", x, f(4, 3, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER"),
        case("ConvInteger", n(9, 1, 1, 4, 4, dtype=np.uint8), n(9, 2, 1, 2, 2, dtype=np.uint8), s(3, np.uint8)),
        case("GlobalAveragePool", x),
        case("GlobalMaxPool", x),
        case("GlobalLpPool", x, p=3),
        case("MaxPool", x, kernel_shape=[3, 2], outputs=2, since=8),
        case("MaxPool", x, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], outputs=2, since=8),
        case("MaxPool", x, kernel_shape=[3, 2], storage_order=1, outputs=2, since=8),
        case("MaxPool", x, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
        case("MaxPool", x, kernel_shape=[3, 2], auto_pad="SAME_LOWER", strides=[2, 2]),
        case("MaxPool", x, kernel_shape=[2, 2], ceil_mode=1, strides=[3, 3], dilations=[2, 1], since=10),
        case("MaxPool", n(99, 1, 1, 4, 4, dtype=np.int8), kernel_shape=[2, 2], since=12),
        case("AveragePool", x, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
        case("AveragePool", x, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], count_include_pad=1),
        case("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1, since=10),
        case("AveragePool", x, kernel_shape=[2, 2], ceil_mode=1, strides=[3, 3], count_include_pad=1, since=10),
        case("AveragePool", x, kernel_shape=[3, 2], auto_pad="SAME_UPPER", strides=[2, 2]),
        case("AveragePool", x, kernel_shape=[2, 2], dilations=[2, 2], since=19),
        case("LpPool", x, kernel_shape=[3, 2], p=3, strides=[2, 2], pads=[1, 0, 1, 1]),
        case("LpPool", x, kernel_shape=[3, 2], ceil_mode=1, dilations=[2, 1], strides=[2, 2], since=18),
        case("MaxUnpool", f(1, 1, 2, 2), i(0, 3, 9, 14).reshape(1, 1, 2, 2), kernel_shape=[2, 2], strides=[2, 2]),
        case("Col2Im", f(1, 12, 9), i(4, 4), i(2, 2)),
        case("DeformConv", f(1, 2, 5, 5), f(3, 2, 2, 2), f(1, 8, 4, 4), loose=8),
        case(
            "DeformConv",
            f(1, 4, 5, 5),
            f(4, 2, 2, 2),
            f(1, 16, 5, 5),
            f(4),
            pos(1, 8, 5, 5),
            group=2,
            offset_group=2,
            pads=[1, 0, 0, 1],
            loose=8,
        ),
    ]


def resizing() -> list[Case]:
    """Interpolation."""
    x = f(1, 1, 5, 4)
    found = [
        case("Upsample", x, scales=[1.0, 1.0, 2.0, 3.0], until=8),
        case("Upsample", x, scales=[1.0, 1.0, 2.0, 3.0], mode="linear", until=8),
        case("Upsample", x, np.array([1, 1, 2, 1.5], np.float32), since=9, until=9),
        case("Resize", x, np.array([1, 1, 0.6, 1.5], np.float32), since=10, until=10),
        case("Resize", x, np.array([1, 1, 0.6, 1.5], np.float32), mode="linear", since=10, until=10),
    ]
    none = np.zeros(0, np.float32)
    for mode in ("nearest", "linear", "cubic"):
        for coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"):
            since = 19 if coordinates == "half_pixel_symmetric" else 11
            options = {"mode": mode, "coordinate_transformation_mode": coordinates, "since": since}
            found += [
                case("Resize", x, none, np.array([1, 1, 0.6, 1.5], np.float32), loose=4, **options),
                case("Resize", x, none, None, i(1, 1, 8, 3), loose=4, **{**options, "since": max(since, 13)}),
            ]
        found += [case("Resize", x, none, np.array([1, 1, 0.6, 0.5], np.float32), mode=mode, antialias=1, since=18)
                  for _ in range(mode != "nearest")]  # fmt: skip
    found += [
        case("Resize", x, none, np.array([1, 1, 1.7, 1.3], np.float32), nearest_mode=how, since=11)
        for how in ("floor", "ceil", "round_prefer_ceil", "round_prefer_floor")
    ]
    region = np.array([0, 0, 0.2, 0.1, 1, 1, 0.9, 1.3], np.float32)
    found += [
        case("Resize", x, region, None, i(1, 1, 3, 7), mode="linear", extrapolation_value=9.0, since=13,
             coordinate_transformation_mode="tf_crop_and_resize", loose=4),
        case("Resize", x, none, np.array([1, 1, 0.8, 0.8], np.float32), mode="cubic", exclude_outside=1,
             cubic_coeff_a=-0.5, since=11),
        case("Resize", x, None, None, i(8, 8), axes=[2, 3], keep_aspect_ratio_policy="not_larger", since=18),
        case("Resize", x, None, None, i(8, 8), axes=[2, 3], keep_aspect_ratio_policy="not_smaller", since=18),
    ]  # fmt: skip
    image, grid = f(2, 2, 4, 5), 1.3 * unit(2, 3, 3, 2)
    for padding in ("zeros", "border", "reflection"):
        for corners in (0, 1):
            options = {"padding_mode": padding, "align_corners": corners, "loose": 16}
            found += [
                case("GridSample", image, grid, mode=m, until=19, **options) for m in ("bilinear", "nearest", "bicubic")
            ]
            found += [
                case("GridSample", image, grid, mode=m, since=20, **options) for m in ("linear", "nearest", "cubic")
            ]
            found += [case("GridSample", f(1, 2, 3, 4, 2), unit(1, 2, 2, 2, 3), mode="linear", since=20, **options)]
    boxes = np.array([[0, 0, 3, 3], [1, 1, 4.5, 3.7], [0.2, 0.4, 1.1, 0.9]], np.float32)
    found += [
        case("AffineGrid", f(2, 2, 3), i(2, 1, 3, 4), align_corners=1),
        case("AffineGrid", f(2, 3, 4), i(2, 1, 3, 4, 2)),
        case("RoiAlign", f(2, 2, 6, 6), boxes, i(0, 1, 1), output_height=2, output_width=3),
        case("RoiAlign", f(2, 2, 6, 6), boxes, i(0, 1, 1), output_height=2, output_width=2, sampling_ratio=2, mode="max"),
        case("RoiAlign", f(2, 2, 6, 6), boxes, i(0, 1, 1), coordinate_transformation_mode="output_half_pixel",
             spatial_scale=0.5, since=16),
        case("MaxRoiPool", f(2, 2, 6, 6), np.array([[0, 0, 0, 3, 3], [1, 1, 1, 4, 3]], np.float32), pooled_shape=[2, 2]),
    ]  # fmt: skip
    return found


def attentions() -> list[Case]:
    """Attention and what belongs to it."""
    q, k, v = f(2, 4, 3, 8), f(2, 2, 5, 8), f(2, 2, 5, 6)
    past = (f(2, 2, 2, 8), f(2, 2, 2, 6))
    least = np.where(np.arange(3) == 1, np.float32(-np.inf), pos(2, 4, 8, 3)).swapaxes(2, 3)  # scores of one query
    found = [
        case("Attention", q, k, v),
        case("Attention", least, pos(2, 2, 5, 8), v),
        case("Attention", least, pos(2, 2, 5, 8), v, is_causal=1),
        case("Attention", least, pos(2, 2, 5, 8), v, np.where(np.arange(5) < 2, f(3, 5), np.float32(-np.inf))),
        case("Attention", q, k, v, scale=0.3, softcap=2.0),
        case("Attention", q, k, v, f(3, 5)),
        case("Attention", q, k, v, b(2, 1, 3, 5) | (np.arange(5) == 0)),
        case("Attention", q, k, v, is_causal=1),
        case("Attention", q, k, v, None, *past, outputs=3),
        case("Attention", q, k, v, f(3, 7), *past, is_causal=1, outputs=3),
        case("Attention", f(2, 3, 32), f(2, 5, 16), f(2, 5, 12), q_num_heads=4, kv_num_heads=2),
        case("Attention", q, k, v, None, None, None, i(3, 5), since=24),
        case("RotaryEmbedding", f(2, 3, 4, 8), f(10, 4), f(10, 4), n(10, 2, 4)),
        case("RotaryEmbedding", f(2, 4, 24), f(2, 4, 4), f(2, 4, 4), num_heads=3),
        case(
            "RotaryEmbedding", f(2, 4, 24), f(2, 4, 2), f(2, 4, 2), num_heads=3, rotary_embedding_dim=4, interleaved=1
        ),
    ]
    for mode in range(4):
        found += [case("Attention", q, k, v, f(3, 7), *past, softcap=1.5, outputs=4, qk_matmul_output_mode=mode)]
    return found


def quantizations() -> list[Case]:
    """Quantized tensors."""
    x, u = 5 * f(2, 6), n(255, 2, 6, dtype=np.uint8)
    zero = s(3, np.uint8)
    each = (pos(6), n(9, 6, dtype=np.int8))
    a, c = n(255, 2, 3, dtype=np.uint8), n(255, 3, 4, dtype=np.uint8)
    kernel = n(255, 2, 1, 2, 2, dtype=np.uint8)
    image = n(255, 1, 1, 4, 4, dtype=np.uint8)
    return [
        case("QuantizeLinear", x, s(0.07), zero),
        case("QuantizeLinear", x, s(0.07), s(-5, np.int8)),
        case("QuantizeLinear", x, s(0.07)),
        case("QuantizeLinear", x, *each, since=13),
        case("QuantizeLinear", x, pos(2), n(9, 2, dtype=np.uint8), axis=0, since=13),
        case("QuantizeLinear", x, pos(2, 3), n(9, 2, 3, dtype=np.int8), block_size=2, since=21),
        case("QuantizeLinear", x, s(0.7), output_dtype=TensorProto.INT16, since=21),
        case("DequantizeLinear", u, s(0.07), zero),
        case("DequantizeLinear", u, s(0.07)),
        case("DequantizeLinear", n(999, 2, 6, dtype=np.int32), s(0.07)),
        case("DequantizeLinear", u.astype(np.int8), *each, since=13),
        case("DequantizeLinear", u, pos(2, 3), n(9, 2, 3, dtype=np.uint8), block_size=2, since=21),
        case("DynamicQuantizeLinear", x, outputs=3, loose=4),
        case("DynamicQuantizeLinear", np.zeros(3, np.float32), outputs=3),
        case("DynamicQuantizeLinear", np.array([1, 2, -np.inf], np.float32), outputs=3),
        case("DynamicQuantizeLinear", np.array([1, np.inf, -2], np.float32), outputs=3),
        case("QLinearMatMul", a, s(0.03), zero, c, s(0.05), s(9, np.uint8), s(0.7), s(100, np.uint8)),
        case("QLinearMatMul", a, s(0.03), zero, c.astype(np.int8), pos(4), n(9, 4, dtype=np.int8), s(30), s(99, np.uint8)),
        case("QLinearConv", image, s(0.03), zero, kernel, s(0.05), s(9, np.uint8), s(0.7), s(100, np.uint8)),
        case("QLinearConv", image, s(0.03), zero, kernel, pos(2), n(9, 2, dtype=np.uint8), s(20), s(100, np.uint8),
             n(999, 2, dtype=np.int32), pads=[1, 1, 0, 0]),
    ]  # fmt: skip


def recurrent() -> list[Case]:
    """Recurrent layers."""
    found = []
    for op, gates, states in (("RNN", 1, 1), ("GRU", 3, 1), ("LSTM", 4, 2)):
        for direction, count in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            x, w, r = f(4, 3, 2), f(count, gates * 5, 2), f(count, gates * 5, 5)
            bias, first = f(count, 2 * gates * 5), [f(count, 3, 5) for _ in range(states)]
            lengths = np.array([2, 4, 3], np.int32)
            options = {"hidden_size": 5, "direction": direction, "outputs": 1 + states, "loose": 8}
            found += [case(op, x, w, r, **options), case(op, x, w, r, bias, lengths, *first, **options)]
            found += [case(op, x, w, r, bias, None, *first, clip=0.5, **options)]
    x, w, r = f(4, 3, 2), f(1, 15, 2), f(1, 15, 5)
    found += [
        case("GRU", x, w, r, f(1, 30), hidden_size=5, linear_before_reset=1, loose=8),
        case("GRU", x, w, r, hidden_size=5, activations=["HardSigmoid", "Softsign"], activation_alpha=[0.3],
             activation_beta=[0.4], loose=8),
        case("RNN", x, f(1, 5, 2), f(1, 5, 5), hidden_size=5, activations=["Relu"], outputs=2, loose=8),
        case("LSTM", x, f(1, 20, 2), f(1, 20, 5), None, None, None, None, f(1, 15), hidden_size=5, outputs=3, loose=8),
        case("LSTM", x, f(1, 20, 2), f(1, 20, 5), hidden_size=5, input_forget=1, outputs=3, loose=8),
    ]  # fmt: skip
    return found


def signals() -> list[Case]:
    """Fourier transforms, windows, losses, texts."""
    target = np.array([1, 0, 2])
    found = [
        case("DFT", f(2, 6, 1), axis=1, until=19, loose=8),
        case("DFT", f(2, 6, 2), s(8, np.int64), axis=1, inverse=1, until=19, loose=8),
        case("DFT", f(2, 6, 1), None, s(1, np.int64), onesided=1, since=20, loose=8),
        case("STFT", f(1, 16, 1), s(4, np.int64), pos(8), s(8, np.int64), loose=8),
        case("STFT", f(1, 16, 1), s(4, np.int64), None, s(8, np.int64), onesided=0, loose=8),
        case("MelWeightMatrix", s(8, np.int64), s(16, np.int64), s(8192, np.int64), s(0.0), s(4096.0)),
    ]
    found += [case(op, s(9, np.int64)) for op in ("HannWindow", "HammingWindow", "BlackmanWindow")]
    found += [case(op, s(9, np.int64), periodic=0) for op in ("HannWindow", "HammingWindow", "BlackmanWindow")]
    for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        for how in ("mean", "sum", "none"):
            found += [
                case(op, f(3, 4), target, reduction=how),
                case(op, f(3, 4), target, pos(4), reduction=how, ignore_index=0),
                case(op, f(3, 4, 2), n(4, 3, 2), reduction=how),
            ]
    found += [
        case("StringConcat", texts("a", "b"), texts("c", "d")),
        case("RegexFullMatch", texts("ab", "b"), pattern="a.*"),
        case("StringSplit", texts("a b", "c"), outputs=2),
        case("StringNormalizer", texts("Monday", "tuesday"), case_change_action="UPPER", stopwords=["tuesday"]),
        case("TfIdfVectorizer", i(1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8), mode="TF", min_gram_length=2, max_gram_length=2,
             max_skip_count=0, ngram_counts=[0, 4], ngram_indexes=[0, 1, 2, 3, 4, 5, 6],
             pool_int64s=[2, 3, 5, 4, 5, 6, 7, 8, 6, 7]),
    ]  # fmt: skip
    return found


def _body(nodes: list, inputs: list, outputs: list) -> object:
    values = [
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in part] for part in (inputs, outputs)
    ]
    return helper.make_graph(nodes, "body", *values)


def control() -> list[Case]:
    """Sub-graphs."""
    node = helper.make_node
    counter = [("i", INT64, []), ("c", TensorProto.BOOL, []), ("s", FLOAT, [2])]
    turn = [node("Add", ["s", "s"], ["t"]), node("Identity", ["c"], ["d"]), node("Mul", ["t", "t"], ["u"])]
    loop = _body(turn, counter, [("d", TensorProto.BOOL, []), ("t", FLOAT, [2]), ("u", FLOAT, [2])])
    step = [node("Add", ["s", "x"], ["t"]), node("Mul", ["t", "x"], ["u"])]
    scan = _body(step, [("s", FLOAT, [3]), ("x", FLOAT, [3])], [("t", FLOAT, [3]), ("u", FLOAT, [3])])
    one = _body(
        [node("Constant", [], ["k"], value=helper.make_tensor("v", FLOAT, [1], [1.0]))], [], [("k", FLOAT, [1])]
    )
    two = _body(
        [node("Constant", [], ["k"], value=helper.make_tensor("v", FLOAT, [1], [2.0]))], [], [("k", FLOAT, [1])]
    )
    return [
        case("Loop", s(3, np.int64), s(True, np.bool_), f(2), outputs=2, body=loop),
        case("Loop", s(0, np.int64), None, f(2), outputs=2, body=loop),
        case("Loop", None, s(False, np.bool_), f(2), outputs=2, body=loop),
        case("Scan", None, f(2, 3), f(2, 4, 3), outputs=2, body=scan, num_scan_inputs=1, until=8),
        case("Scan", i(2, 4), f(2, 3), f(2, 4, 3), outputs=2, body=scan, num_scan_inputs=1, directions=[1], until=8),
        case("Scan", f(3), f(4, 3), outputs=2, body=scan, num_scan_inputs=1, since=9),
        case("Scan", f(3), f(3, 4), outputs=2, body=scan, num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1],
             scan_input_directions=[1], scan_output_directions=[1], since=9),
        case("If", s(True, np.bool_), then_branch=one, else_branch=two),
        case("If", s(False, np.bool_), then_branch=one, else_branch=two),
    ]  # fmt: skip


CASES = [
    *normalizations(),
    *pools(),
    *resizing(),
    *attentions(),
    *quantizations(),
    *recurrent(),
    *signals(),
    *control(),
]
