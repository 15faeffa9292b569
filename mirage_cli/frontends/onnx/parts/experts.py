"""Mixtures of experts (QMoE, MoE), taken apart: the choice of experts, which others compute, and products with chosen weights.

A row's experts are those with its largest logits. Their weights are rows of tables, which kernels read where they are; as
operators of onnxruntime they are gathered, unpacked on the way. What an execution provider does in its own way stays: shares
of quantised experts that are not normalised, a third product, weights that a GPU's kernel keeps in another layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from mirage_cli.frontends.onnx.ops.registry import MICROSOFT
from mirage_cli.frontends.onnx.parts import splicing
from mirage_cli.frontends.onnx.parts.cut_points import take_place
from mirage_cli.frontends.onnx.parts.groups import WHOLE
from mirage_cli.frontends.onnx.parts.splicing import OLDEST, spliced
from mirage_cli.lax.dtypes import packed, unpacked

LEAST = 16  #: positions of a block that can be unpacked; powers of two
#: inputs of a third product
_NOT_READ = {"QMoE": (8, 9, 10, 13), "MoE": (6, 7)}

#: the parts of the text: [rows, k] numbers of experts and their shares; both products; their sum
TEXT = """(x, logits%(names)s) => (y) {
    let count = [%(k)d], flat = [-1], rows = [-1, 1, 1, %(wide)d], columns = [0, %(k)d, 1, 1], places = [1]
    tops, chosen = TopK <axis = -1> (logits, count)
    index = Reshape (chosen, flat)
    %(shares)s
    input = Reshape (x, rows)
    %(first)s
    %(active)s
    %(second)s
    share = Reshape (shares, columns)
    weighed = Mul (hidden_2, share)
    total = ReduceSum <keepdims = 0> (weighed, places)
    dims = Shape (x)
    y = Reshape (total, dims)
}"""
OF_CHOSEN = """wide_tops = Cast <to = 1> (tops)
    wide_shares = Softmax <axis = -1> (wide_tops)
    shares = CastLike (wide_shares, x)"""
OF_ALL = """wide_logits = Cast <to = 1> (logits)
    wide_weights = Softmax <axis = -1> (wide_logits)
    weights = CastLike (wide_weights, x)
    shares = GatherElements <axis = 1> (weights, chosen)"""
GIVEN = "shares = GatherElements <axis = 1> (weights, chosen)"
NORMALISED = """own = GatherElements <axis = 1> (weights, chosen)
    sum = ReduceSum <keepdims = 1> (own, places)
    shares = Div (own, sum)"""
#: the products of rows with the matrices of their experts
PRODUCT = """let matrix_%(n)d = [-1, %(k)d, %(out)d, %(deep)d]
    %(floats)s
    experts_%(n)d = Reshape (floats_%(n)d, matrix_%(n)d)
    across_%(n)d = Transpose <perm = [0, 1, 3, 2]> (experts_%(n)d)
    product_%(n)d = MatMul (%(x)s, across_%(n)d)
    %(biased)s"""
FLOATS = "floats_%(n)d = Gather <axis = 0> (w%(n)d, index)"
UNPACKED = """%(scales)s
    floats_%(n)d = com.microsoft.GatherBlockQuantized <bits = %(bits)d, block_size = %(block)d, gather_axis = 0,
        quantize_axis = 2> (w%(n)d, index, each_%(n)d%(zeros)s)"""
AS_STORED = "each_%(n)d = Identity (s%(n)d)"
REPEATED = """let single_%(n)d = [0, 0, 1], times_%(n)d = [1, 1, %(blocks)d]
    column_%(n)d = Reshape (s%(n)d, single_%(n)d)
    each_%(n)d = Expand (column_%(n)d, times_%(n)d)"""
BIASED = """let bias_dims_%(n)d = [-1, %(k)d, 1, %(out)d]
    own_bias_%(n)d = Gather <axis = 0> (b%(n)d, index)
    bias_%(n)d = Reshape (own_bias_%(n)d, bias_dims_%(n)d)
    hidden_%(n)d = Add (product_%(n)d, bias_%(n)d)"""
UNBIASED = "hidden_%(n)d = Identity (product_%(n)d)"
ACTIVATIONS = {
    "relu": "active = Relu (hidden_1)",
    "silu": """gate = Sigmoid (hidden_1)
    active = Mul (hidden_1, gate)""",
    "gelu": """let half = 0.5, unit = 1.0, cubic = 0.044715, slope = 0.7978845608028654
    square = Mul (hidden_1, hidden_1)
    cube = Mul (square, hidden_1)
    more = Mul (cube, cubic)
    bent = Add (hidden_1, more)
    steep = Mul (bent, slope)
    tanh = Tanh (steep)
    above = Add (tanh, unit)
    part = Mul (hidden_1, half)
    active = Mul (part, above)""",
    "identity": "active = Identity (hidden_1)",
}
#: gates and what they gate, side by side or one half behind the other
SIDE_BY_SIDE = """let even = [0], odd = [1], end = [%(out)d], last = [3], by = [2]
    gate_of = Slice (hidden_1, even, end, last, by)
    gated_of = Slice (hidden_1, odd, end, last, by)"""
HALVES = """let even = [0], odd = [%(half)d], end = [%(out)d], last = [3], by = [1]
    gate_of = Slice (hidden_1, even, odd, last, by)
    gated_of = Slice (hidden_1, odd, end, last, by)"""
LIMITED = """let top = %(limit)r
    bottom = Neg (top)
    gate_in = Min (gate_of, top)
    below = Min (gated_of, top)
    gated_in = Max (below, bottom)"""
UNLIMITED = """gate_in = Identity (gate_of)
    gated_in = Identity (gated_of)"""
SWIGLU = """let alpha = %(alpha)r, beta = %(beta)r
    %(split)s
    %(limited)s
    steep = Mul (gate_in, alpha)
    open = Sigmoid (steep)
    gate = Mul (gate_in, open)
    gated = Add (gated_in, beta)
    active = Mul (gate, gated)"""


def take_apart(model: ir.Model, opset: int) -> None:
    """Take all such nodes apart, in place, where the opset has the operators."""
    for node in list(model.graph):
        if node.domain == MICROSOFT and node.op_type in _NOT_READ and opset >= OLDEST + 2:
            mixture = _mixture(node)
            if mixture is not None:
                for v in (*mixture.first.given, *mixture.second.given):
                    if v is not None and v.name not in model.graph.initializers:
                        model.graph.register_initializer(v)
                (y,) = spliced(node, "experts", mixture.text(), mixture.given(), [None], mixture.kind, True)
                y.shape, y.type = node.outputs[0].shape, node.outputs[0].type
                maker = y.producer()
                if node.op_type == "QMoE" and mixture.told.get("weights_prepacked", -1) != 0 and maker is not None:
                    splicing.mark(model, maker.meta[splicing.WHOLE], splicing.ON_CPUS)
                take_place(node, [(node.outputs[0], y)])


@dataclass(frozen=True, slots=True)
class _Layer:
    """The matrices [experts, out, deep] of a product: weights, scales, bias and zero points (of blocks); bits of a number (0:
    of floats), positions of a block and whether rows have a scale for each."""

    given: Sequence[ir.Value | None]
    out: int
    deep: int
    bits: int = 0
    block: int = 0
    scaled: bool = False

    @property
    def floats(self) -> list[ir.Value]:
        """What it has of the type of activations."""
        return [v for v in (*self.given[: 0 if self.bits else 1], *self.given[1:3]) if v is not None]

    def text(self, n: int, x: str, k: int) -> str:
        """The text of product number `n` of `x`."""
        numbers = {"n": n, "k": k, "x": x, "out": self.out, "deep": self.deep, "bits": self.bits, "block": self.block}
        numbers |= {"blocks": self.deep // self.block if self.block else 0}
        numbers |= {"zeros": "" if self.given[3] is None else f", z{n}"}
        parts = {
            "scales": AS_STORED if self.scaled else REPEATED,
            "biased": UNBIASED if self.given[2] is None else BIASED,
        }
        parts = {name: text % numbers for name, text in parts.items()}
        return PRODUCT % {**numbers, **parts, "floats": (UNPACKED if self.bits else FLOATS) % {**numbers, **parts}}


@dataclass(frozen=True, slots=True)
class _Mixture:
    """A node that is taken apart: its attributes, and both layers."""

    node: ir.Node
    told: Mapping[str, Any]
    first: _Layer
    second: _Layer
    weights: ir.Value | None
    kind: ir.DataType

    def given(self) -> list[ir.Value]:
        """What the text takes."""
        every = [*self.node.inputs[:2], self.weights, *self.first.given, *self.second.given]
        return [v for v in every if v is not None]

    def text(self) -> str:
        """The whole text."""
        k, normalised = self.told.get("k", 1), bool(self.told.get("normalize_routing_weights", 0))
        given = [("weights", self.weights)]
        for n, layer in ((1, self.first), (2, self.second)):
            given += [(f"{letter}{n}", v) for letter, v in zip("wsbz", layer.given, strict=True)]
        return TEXT % {
            "names": "".join(f", {name}" for name, v in given if v is not None),
            "k": k,
            "wide": self.first.deep,
            "shares": (OF_CHOSEN if normalised else OF_ALL)
            if self.weights is None
            else (NORMALISED if normalised else GIVEN),
            "first": self.first.text(1, "input", k),
            "active": self.activation(),
            "second": self.second.text(2, "active", k),
        }

    def activation(self) -> str:
        """The text of what is between both products."""
        kind = self.told.get("activation_type", "relu")
        if kind != "swiglu":
            return ACTIVATIONS[kind]
        numbers = {"out": self.first.out, "half": self.first.out // 2}
        limit = self.told.get("swiglu_limit", math.inf)
        return SWIGLU % {
            "alpha": self.told.get("activation_alpha", 1.0),
            "beta": self.told.get("activation_beta", 0.0),
            "split": (SIDE_BY_SIDE if self.told.get("swiglu_fusion", 0) == 1 else HALVES) % numbers,
            "limited": LIMITED % {"limit": limit} if math.isfinite(limit) else UNLIMITED,
        }


def _mixture(node: ir.Node) -> _Mixture | None:
    """A node that can be taken apart; None for others, which stay."""
    told = {name: a.value for name, a in node.attributes.items()}
    given: list[ir.Value | None] = [*node.inputs, *[None] * 21]
    quantised, kind = node.op_type == "QMoE", told.get("activation_type", "relu")
    normalised, weights = bool(told.get("normalize_routing_weights", 0)), given[14] if quantised else None
    ways = kind == "swiglu" and told.get("swiglu_fusion", 0) in (1, 2)
    stays = (
        told.get("use_sparse_mixer", 0)
        or told.get("swiglu_limit_after_activation", 0)
        or told.get("weights_prepacked", -1) > 0
        or any(given[i] is not None for i in _NOT_READ[node.op_type])
    )
    others = any(v is not None for v in given[15 if quantised else 8 :]) or told.get("quant_type", "int") != "int"
    own_way = quantised and weights is None and not normalised  # execution providers compute shares in different ways
    if stays or others or own_way or not (ways or kind in ACTIVATIONS):
        return None
    if any(not math.isfinite(told.get(n, 0.0)) for n in ("activation_alpha", "activation_beta")):
        return None
    places: Sequence[tuple[Sequence[int | None], str]] = (((2, 3, 4, 11), "fc1"), ((5, 6, 7, 12), "fc2"))
    if not quantised:
        places = (((2, None, 3, None), ""), ((4, None, 5, None), ""))
    first, second = (_layer([None if i is None else given[i] for i in at], name, told) for at, name in places)
    x, k = given[0], told.get("k", 1)
    if x is None or first is None or second is None or k < 1:
        return None
    wide = first.deep if x.shape is None else x.shape[-1]
    inner = first.out // 2 if kind == "swiglu" else first.out
    same = wide == first.deep == second.out and inner == second.deep
    types = {v.dtype for v in (x, *first.floats, *second.floats) if v.dtype is not None}
    return _Mixture(node, told, first, second, weights, *types) if same and len(types) == 1 else None


def _layer(given: Sequence[ir.Value | None], name: str, told: Mapping[str, Any]) -> _Layer | None:
    """The matrices of a product, where they are stored and can be unpacked."""
    weight, scale, bias, zero = given
    stored = [v for v in given if v is not None]
    if weight is None or any(v.const_value is None or v.is_graph_input() or v.shape is None for v in stored):
        return None
    assert weight.shape is not None
    dims = [int(d) for d in weight.shape.numpy()]
    if len(dims) != 3 or min(dims) < 1:
        return None
    if not name:
        return _Layer((weight, None, bias, None), dims[1], dims[2])
    bits = told.get(f"{name}_expert_weight_bits", told.get("expert_weight_bits", 4))
    if bits not in WHOLE or weight.dtype != ir.DataType.UINT8 or scale is None or scale.shape is None:
        return None
    out, deep, block = dims[1], dims[2] * 8 // bits, told.get("block_size", 0)
    scales = [int(d) for d in scale.shape.numpy()][2:]
    if not block:
        block = deep & -deep  # rows of one scale, in blocks that can be unpacked
        fits = scales == []
    else:
        fits = scales == [deep // block] and deep % block == 0 and block & (block - 1) == 0
    if not fits or block < LEAST:
        return None
    if zero is not None and zero.dtype == ir.DataType.UINT8:
        assert zero.shape is not None
        lines = [out, -(-deep // block * bits // 8)] if scales else [-(-out * bits // 8)]
        if zero.shape.numpy() != (dims[0], *lines):
            return None
        zero = zero if scales else _for_blocks(zero, bits, out, deep // block)
    elif zero is not None:
        return None
    return _Layer((weight, scale, bias, zero), out, deep, bits, block, bool(scales))


def _for_blocks(zero: ir.Value, bits: int, out: int, blocks: int) -> ir.Value:
    """Zero points [experts, out] of rows, for each block of them: [experts, out, blocks], packed along the last dimension."""
    stored, dtype, each = zero.const_value, WHOLE[bits], WHOLE[bits].per_byte
    assert stored is not None
    dims = (int(stored.shape.numpy()[0]), out, -(-blocks // each))

    def repeated() -> ir.TensorProtocol:
        numbers = unpacked(stored.numpy(), dtype)[:, :out, None]
        filled = np.repeat(numbers, dims[2] * each, axis=2)
        return ir.tensor(packed(filled, dtype).reshape(dims))

    name = f"{zero.name}/blocks"
    tensor = ir.LazyTensor(repeated, dtype=ir.DataType.UINT8, shape=ir.Shape(dims), name=name)
    return ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
