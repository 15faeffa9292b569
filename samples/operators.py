"""The paper's operators, and close relatives, as ONNX models: `build("gqa", "paper", "fp16")`.

Each operator is one function from dimensions to a graph. Activations and weights are inputs, so the files store no
numbers. Key tensors come as [heads, head_dim, keys], the way the paper's programs have them, unless a name says
otherwise. `python samples/operators.py --out DIR [NAME ...]` writes the small ones, `--size paper` the large ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from samples.inputs import MEAN, STD, random_inputs

OPSET, IR_VERSION = 20, 10
DTYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16}
EPSILON = 1e-5
Made: TypeAlias = str | tuple[str, ...]  #: what an operator's function returns: its output, or its outputs


class Net:
    """A graph under construction; values are names, `net("MatMul", a, b)` adds a node and returns its output."""

    def __init__(self, dtype: str) -> None:
        self.dtype = DTYPES[dtype]
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def __call__(self, op: str, *operands: str, **attributes: Any) -> str:
        """Add a node and return its output."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [name], name, **attributes))
        return name

    def input(self, name: str, *shape: int, std: float = 1.0, mean: float = 0.0, boolean: bool = False) -> str:
        """A graph input; `mean` and `std` are what `inputs` draws it with."""
        value = helper.make_tensor_value_info(name, TensorProto.BOOL if boolean else self.dtype, shape)
        for key, number, default in ((MEAN, mean, 0.0), (STD, std, 1.0)):
            if number != default:
                value.metadata_props.add(key=key, value=repr(number))
        self.inputs.append(value)
        return name

    def weight(self, name: str, *shape: int) -> str:
        """A weight whose second last axis is contracted, scaled to keep the variance."""
        return self.input(name, *shape, std=round(shape[-2] ** -0.5, 6))

    def gain(self, name: str, *shape: int) -> str:
        """A factor or variance around one."""
        return self.input(name, *shape, mean=1.0, std=0.1)

    def bias(self, name: str, *shape: int) -> str:
        """A small shift."""
        return self.input(name, *shape, std=0.1)

    def number(self, value: float, *shape: int) -> str:
        """A constant of the graph's type, one number throughout."""
        name = "_".join(("c", f"{value:g}", *map(str, shape)))
        array = np.full(shape, value, helper.tensor_dtype_to_np_dtype(self.dtype))
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def integers(self, *values: int) -> str:
        """A constant vector of integers: axes or a shape."""
        name = "i_" + "_".join(map(str, values))
        self.constants[name] = numpy_helper.from_array(np.asarray(values, np.int64), name)
        return name

    def model(self, name: str, results: Made) -> onnx.ModelProto:
        """The finished, checked model, with shapes inferred; its outputs are called `output`, or `output_0` and so on."""
        values = (results,) if isinstance(results, str) else results
        new = {v: "output" if isinstance(results, str) else f"output_{k}" for k, v in enumerate(values)}
        for node in self.nodes:
            node.input[:] = [new.get(v, v) for v in node.input]
            node.output[:] = [new.get(v, v) for v in node.output]
        outputs = [helper.make_tensor_value_info(new[v], self.dtype, None) for v in values]
        graph = helper.make_graph(self.nodes, name, self.inputs, outputs, [*self.constants.values()])
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="mirage samples")
        model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        del model.graph.value_info[:]
        onnx.checker.check_model(model, full_check=True)
        return model


def _rms(net: Net, x: str, axis: int = -1) -> str:
    """x / sqrt(mean(x^2) + epsilon): Pow, ReduceMean, Add, Sqrt, Div, which onnxruntime fuses when a gain follows."""
    mean = net("ReduceMean", net("Pow", x, net.number(2)), net.integers(axis), keepdims=1)
    return net("Div", x, net("Sqrt", net("Add", mean, net.number(EPSILON))))


def _unit(net: Net, x: str) -> str:
    """x / |x|, the Euclidean norm over the last axis."""
    return net("Div", x, net("ReduceL2", x, net.integers(-1), keepdims=1))


def _silu(net: Net, x: str) -> str:
    return net("Mul", x, net("Sigmoid", x))


def _heads(net: Net, h: int, q: int, k: int, d: int, std: float | None = None) -> tuple[str, str, str]:
    """Query, key and value; keys scaled to give scores of unit variance unless `std` is given."""
    std = round(d**-0.5, 6) if std is None else std
    return net.input("q", h, q, d), net.input("k", h, d, k, std=std), net.input("v", h, k, d)


def _softmax_values(net: Net, scores: str, v: str) -> str:
    return net("MatMul", net("Softmax", scores, axis=-1), v)


def attention(net: Net, h: int, q: int, k: int, d: int) -> str:
    """softmax(Q K) V."""
    query, key, value = _heads(net, h, q, k, d)
    return _softmax_values(net, net("MatMul", query, key), value)


def attention_exp(net: Net, h: int, q: int, k: int, d: int) -> str:
    """exp(Q K) V / sum(exp(Q K)), no maximum subtracted."""
    query, key, value = _heads(net, h, q, k, d)
    weights = net("Exp", net("MatMul", query, key))
    return net("MatMul", net("Div", weights, net("ReduceSum", weights, net.integers(-1), keepdims=1)), value)


def attention_scaled(net: Net, h: int, q: int, k: int, d: int) -> str:
    """softmax(Q K / sqrt(d)) V."""
    query, key, value = _heads(net, h, q, k, d, 1.0)
    return _softmax_values(net, net("Mul", net("MatMul", query, key), net.number(d**-0.5)), value)


def attention_masked(net: Net, h: int, q: int, k: int, d: int) -> str:
    """softmax(Q K / sqrt(d) + mask) V; the mask holds -inf."""
    query, key, value = _heads(net, h, q, k, d, 1.0)
    scores = net("Mul", net("MatMul", query, key), net.number(d**-0.5))
    return _softmax_values(net, net("Add", scores, net.input("mask", q, k)), value)


def attention_boolean(net: Net, h: int, q: int, k: int, d: int) -> str:
    """softmax(mask ? Q K / sqrt(d) : -inf) V."""
    query, key, value = _heads(net, h, q, k, d, 1.0)
    scores = net("Mul", net("MatMul", query, key), net.number(d**-0.5))
    mask = net.input("mask", q, k, boolean=True)
    return _softmax_values(net, net("Where", mask, scores, net.number(-np.inf)), value)


def attention_softcap(net: Net, h: int, q: int, k: int, d: int) -> str:
    """softmax(c tanh(Q K / (c sqrt(d)))) V with c = 5."""
    query, key, value = _heads(net, h, q, k, d, 1.0)
    scores = net("Mul", net("MatMul", query, key), net.number(d**-0.5))
    capped = net("Mul", net("Tanh", net("Div", scores, net.number(5.0))), net.number(5.0))
    return _softmax_values(net, capped, value)


def qknorm(net: Net, h: int, q: int, k: int, d: int) -> str:
    """softmax(rms(Q) rms(K) / sqrt(d)) V, norms over the head dimension."""
    query, key, value = _heads(net, h, q, k, d)
    key = net("Mul", _rms(net, key, axis=1), net.number(d**-0.5))
    return _softmax_values(net, net("MatMul", _rms(net, query), key), value)


def qknorm_artifact(net: Net, h: int, q: int, k: int, d: int) -> str:
    """softmax(rms(Q) K) rms(V), as the paper's script has it."""
    query, key, value = _heads(net, h, q, k, d)
    query, value = _rms(net, query), _rms(net, value)
    return _softmax_values(net, net("MatMul", query, key), value)


def qknorm_k_gain(net: Net, h: int, q: int, k: int, d: int) -> str:
    """softmax((rms(Q) g) (rms(K) g') / sqrt(d)) V, norms over the head dimension, one gain for all heads."""
    query, key, value = _heads(net, h, q, k, d)
    query = net("Mul", _rms(net, query), net.gain("gq", d))
    key = net("Mul", net("Mul", _rms(net, key, axis=1), net.gain("gk", d, 1)), net.number(d**-0.5))
    return _softmax_values(net, net("MatMul", query, key), value)


def _latent(net: Net, h: int, q: int, k: int, nope: int, rope: int, c: int) -> tuple[str, str, str, str, str, str]:
    """Queries without and with positions, latents, keys with positions, and the weights to keys and to values."""
    query = net.input("q", h, q, nope), net.input("q_rope", h, q, rope)
    cached = net.input("latent", 1, k, c), net.input("k_rope", 1, rope, k)
    return *query, *cached, net.input("w_uk", h, nope, c, std=round(c**-0.5, 6)), net.weight("w_uv", h, c, nope)


def _latent_scores(net: Net, a: str, b: str, nope: int, rope: int) -> str:
    return net("Mul", net("Add", a, b), net.number((nope + rope) ** -0.5))


def mla(net: Net, h: int, q: int, k: int, nope: int, rope: int, c: int) -> str:
    """Latent attention, softmax((Q (C U)^T + R K_R) / sqrt(d)) (C W): keys and values are made from the latents C."""
    query, rotated, latent, key, up, out = _latent(net, h, q, k, nope, rope, c)
    keys = net("MatMul", up, net("Transpose", latent, perm=[0, 2, 1]))
    scores = _latent_scores(net, net("MatMul", query, keys), net("MatMul", rotated, key), nope, rope)
    return _softmax_values(net, scores, net("MatMul", latent, out))


def mla_absorbed(net: Net, h: int, q: int, k: int, nope: int, rope: int, c: int) -> str:
    """The same with the linears absorbed, (softmax(((Q U) C^T + R K_R) / sqrt(d)) C) W: the latents are keys and values."""
    query, rotated, latent, key, up, out = _latent(net, h, q, k, nope, rope, c)
    keys = net("Transpose", latent, perm=[0, 2, 1])
    inner = net("MatMul", net("MatMul", query, up), keys)
    scores = _latent_scores(net, inner, net("MatMul", rotated, key), nope, rope)
    return net("MatMul", _softmax_values(net, scores, latent), out)


def rmsnorm_linear(net: Net, n: int, h: int, d: int) -> str:
    """rms(X) W."""
    return net("MatMul", _rms(net, net.input("x", n, h)), net.weight("w", h, d))


def rmsnorm_gain_linear(net: Net, n: int, h: int, d: int) -> str:
    """(rms(X) g) W."""
    normal = net("Mul", _rms(net, net.input("x", n, h)), net.gain("g", h))
    return net("MatMul", normal, net.weight("w", h, d))


def residual_norm_qkv(net: Net, n: int, h: int, q: int, kv: int) -> Made:
    """S = X + R, N = rms(S) g: N W_q, N W_k, N W_v and S itself."""
    total = net("Add", net.input("x", n, h), net.input("r", n, h))
    normal = net("Mul", _rms(net, total), net.gain("g", h))
    return *(net("MatMul", normal, net.weight(f"w_{k}", h, d)) for k, d in (("q", q), ("k", kv), ("v", kv))), total


def layer_norm_linear_gelu(net: Net, n: int, h: int, d: int) -> str:
    """gelu(layer_norm(X) W + b)."""
    x, gain, shift = net.input("x", n, h), net.gain("g", h), net.bias("s", h)
    normal = net("LayerNormalization", x, gain, shift, axis=-1, epsilon=EPSILON)
    return net("Gelu", net("Add", net("MatMul", normal, net.weight("w", h, d)), net.bias("b", d)))


def group_norm_linear(net: Net, n: int, g: int, c: int, p: int, d: int) -> str:
    """group_norm(X) W + b over the channels of X[n, c, p], in the exporter's form (InstanceNormalization)."""
    x, gain, shift = net.input("x", n, c, p), net.gain("g", c, 1), net.bias("s", c, 1)
    groups = (net("Reshape", x, net.integers(0, g, -1)), net.number(1.0, g), net.number(0.0, g))
    grouped = net("InstanceNormalization", *groups, epsilon=EPSILON)
    scaled = net("Add", net("Mul", net("Reshape", grouped, net.integers(n, c, p)), gain), shift)
    rows = net("Transpose", scaled, perm=[0, 2, 1])
    return net("Add", net("MatMul", rows, net.weight("w", c, d)), net.bias("b", d))


def batch_norm_linear(net: Net, n: int, h: int, d: int) -> str:
    """batch_norm(X) W + b, statistics given."""
    statistics = (net.gain("g", h), net.bias("s", h), net.bias("mean", h), net.gain("var", h))
    normal = net("BatchNormalization", net.input("x", n, h), *statistics, epsilon=EPSILON)
    return net("Gemm", normal, net.weight("w", h, d), net.bias("b", d))


def gated_mlp(net: Net, n: int, h: int, d: int) -> str:
    """silu(X W1) * (X W2)."""
    x = net.input("x", n, h)
    gate, up = net("MatMul", x, net.weight("w1", h, d)), net("MatMul", x, net.weight("w2", h, d))
    return net("Mul", _silu(net, gate), up)


def norm_gated_mlp(net: Net, n: int, h: int, d: int) -> str:
    """silu(N W1) * (N W2) with N = rms(X) g."""
    normal = net("Mul", _rms(net, net.input("x", n, h)), net.gain("g", h))
    gate, up = net("MatMul", normal, net.weight("w1", h, d)), net("MatMul", normal, net.weight("w2", h, d))
    return net("Mul", _silu(net, gate), up)


def rmsnorm_mlp(net: Net, n: int, h: int, d: int) -> str:
    """(rms(X) W1) * (rms(X) W2)."""
    normal = _rms(net, net.input("x", n, h))
    return net("Mul", net("MatMul", normal, net.weight("w1", h, d)), net("MatMul", normal, net.weight("w2", h, d)))


def gated_mlp_down(net: Net, n: int, h: int, d: int) -> str:
    """(silu(X W1) * (X W2)) W3."""
    return net("MatMul", gated_mlp(net, n, h, d), net.weight("w3", d, h))


def norm_gated_mlp_down(net: Net, n: int, h: int, d: int) -> str:
    """(silu(N W1) * (N W2)) W3 with N = rms(X) g."""
    return net("MatMul", norm_gated_mlp(net, n, h, d), net.weight("w3", d, h))


def gated_down(net: Net, n: int, h: int, d: int) -> str:
    """(silu(X) * Y) W, a gated MLP's second half."""
    x, y = net.input("x", n, h), net.input("y", n, h)
    return net("MatMul", net("Mul", _silu(net, x), y), net.weight("w", h, d))


def mlp(net: Net, n: int, h: int, d: int) -> str:
    """exp(X A) B."""
    hidden = net("Exp", net("MatMul", net.input("x", n, h), net.weight("a", h, d)))
    return net("MatMul", hidden, net.weight("b", d, h))


def lora(net: Net, n: int, h: int, r: int, d: int) -> str:
    """X W + (X A) B."""
    x, w = net.input("x", n, h), net.weight("w", h, d)
    low = net("MatMul", net("MatMul", x, net.weight("a", h, r)), net.weight("b", r, d))
    return net("Add", net("MatMul", x, w), low)


def lora_scaled(net: Net, n: int, h: int, r: int, d: int) -> str:
    """X W + 2 (X A) B."""
    x, w = net.input("x", n, h), net.weight("w", h, d)
    low = net("MatMul", net("MatMul", x, net.weight("a", h, r)), net.weight("b", r, d))
    return net("Add", net("MatMul", x, w), net("Mul", low, net.number(2.0)))


def lora_adapters(net: Net, n: int, h: int, r: int, d: int, a: int) -> str:
    """X W + sum_i s_i (X A_i) B_i with s = 2, 1, 1/2, ... for a adapters."""
    x = net.input("x", n, h)
    total = net("MatMul", x, net.weight("w", h, d))
    for i in range(a):
        low = net("MatMul", net("MatMul", x, net.weight(f"a{i}", h, r)), net.weight(f"b{i}", r, d))
        total = net("Add", total, net("Mul", low, net.number(2.0 ** (1 - i))))
    return total


def ntrans(net: Net, n: int, h: int) -> str:
    """unit(X + alpha (unit(H) - X)), Euclidean norms."""
    x, alpha, state = net.input("x", n, h, std=round(h**-0.5, 6)), net.bias("alpha", n, h), net.input("h", n, h)
    return _unit(net, net("Add", x, net("Mul", alpha, net("Sub", _unit(net, state), x))))


def ntrans_artifact(net: Net, n: int, h: int) -> str:
    """rms(X + alpha (rms(H) + X)), as the paper's script has it."""
    x, alpha, state = net.input("x", n, h), net.bias("alpha", n, h), net.input("h", n, h)
    return _rms(net, net("Add", x, net("Mul", alpha, net("Add", _rms(net, state), x))))


def moe(net: Net, e: int, n: int, h: int, d: int) -> str:
    """exp(X A) B for every expert."""
    hidden = net("Exp", net("MatMul", net.input("x", e, n, h), net.weight("a", e, h, d)))
    return net("MatMul", hidden, net.weight("b", e, d, h))


def moe_gated(net: Net, e: int, n: int, h: int, d: int) -> str:
    """(silu(X W1) * (X W2)) W3 for every expert, X shared."""
    x = net.input("x", 1, n, h)
    gate, up = net("MatMul", x, net.weight("w1", e, h, d)), net("MatMul", x, net.weight("w2", e, h, d))
    return net("MatMul", net("Mul", _silu(net, gate), up), net.weight("w3", e, d, h))


def jit_demo(net: Net, n: int, h: int) -> Made:
    """M = A + B: A + M and exp(M)."""
    a = net.input("a", n, h)
    middle = net("Add", a, net.input("b", n, h))
    return net("Add", a, middle), net("Exp", middle)


@dataclass(frozen=True, slots=True)
class Builder:
    """One operator: its graph function and its dimensions; those in `per_batch` are for a batch of one."""

    graph: Callable[..., Made]
    small: Mapping[str, int]
    paper: Mapping[str, int]
    per_batch: str = ""

    @property
    def summary(self) -> str:
        """The formula, from the graph function's docstring."""
        return (self.graph.__doc__ or "").removesuffix(".")

    def dims(self, size: str, batch: int) -> dict[str, int]:
        """The dimensions of `size`; a batch applies to the paper's sizes only."""
        if size == "small":
            return dict(self.small)
        if size != "paper":
            raise ValueError(f"size {size!r}: expected 'small' or 'paper'")
        return {name: extent * (batch if name == self.per_batch else 1) for name, extent in self.paper.items()}

    def paper_text(self) -> dict[str, str]:
        """The paper's dimensions with the batch as B."""
        return {k: (f"{v}B" if v > 1 else "B") if k == self.per_batch else str(v) for k, v in self.paper.items()}


def _attention(graph: Callable[..., str], small: Sequence[int], paper: Sequence[int]) -> Builder:
    (h, q, k, d), (ph, pq, pk, pd) = small, paper
    return Builder(graph, {"h": h, "q": q, "k": k, "d": d}, {"h": ph, "q": pq, "k": pk, "d": pd}, "h")


def _linear(graph: Callable[..., str], small: Sequence[int], paper: Sequence[int], per_batch: str = "n") -> Builder:
    (n, h, d), (pn, ph, pd) = small, paper
    return Builder(graph, {"n": n, "h": h, "d": d}, {"n": pn, "h": ph, "d": pd}, per_batch)


_GQA = (2, 256, 4096, 64)
_MLA_SMALL = {"h": 3, "q": 2, "k": 40, "nope": 16, "rope": 8, "c": 24}
_MLA = {"h": 128, "q": 1, "k": 4096, "nope": 128, "rope": 64, "c": 512}
#: the operators that are stored
OPERATORS: dict[str, Builder] = {
    "rmsnorm_linear": _linear(rmsnorm_linear, (5, 48, 40), (2, 4096, 6144)),
    "rmsnorm_gain_linear": _linear(rmsnorm_gain_linear, (1, 64, 56), (1, 3584, 4608)),
    "residual_norm_qkv": Builder(
        residual_norm_qkv, {"n": 5, "h": 48, "q": 32, "kv": 16}, {"n": 8, "h": 4096, "q": 4096, "kv": 1024}, "n"
    ),
    "layer_norm_linear_gelu": _linear(layer_norm_linear_gelu, (6, 48, 64), (8, 4096, 4096)),
    "group_norm_linear": Builder(
        group_norm_linear,
        {"n": 2, "g": 4, "c": 24, "p": 15, "d": 20},
        {"n": 1, "g": 32, "c": 320, "p": 4096, "d": 320},
        "n",
    ),
    "batch_norm_linear": _linear(batch_norm_linear, (7, 36, 32), (8, 4096, 1000)),
    "gated_mlp": _linear(gated_mlp, (8, 64, 48), (8, 4096, 4096), ""),
    "norm_gated_mlp": _linear(norm_gated_mlp, (3, 64, 80), (8, 4096, 14336)),
    "gated_down": _linear(gated_down, (4, 72, 48), (1, 18944, 3584)),
    "mlp": _linear(mlp, (9, 64, 8), (16, 8192, 8), ""),
    "lora": Builder(lora, {"n": 6, "h": 32, "r": 4, "d": 72}, {"n": 16, "h": 256, "r": 16, "d": 4096}),
    "lora_scaled": Builder(lora_scaled, {"n": 6, "h": 32, "r": 4, "d": 72}, {"n": 16, "h": 256, "r": 16, "d": 4096}),
    "lora_adapters": Builder(
        lora_adapters,
        {"n": 6, "h": 32, "r": 4, "d": 72, "a": 2},
        {"n": 16, "h": 256, "r": 16, "d": 4096, "a": 2},
    ),
    "gqa": _attention(attention, (2, 24, 40, 16), _GQA),
    "gqa_exp": _attention(attention_exp, (2, 24, 40, 16), _GQA),
    "gqa_decode": _attention(attention, (2, 4, 96, 16), (2, 8, 4096, 64)),
    "mha": _attention(attention, (6, 5, 33, 16), (32, 16, 4096, 64)),
    "mqa": _attention(attention, (1, 48, 64, 16), (1, 1024, 4096, 64)),
    "qknorm_gqa": _attention(qknorm, (2, 12, 40, 16), _GQA),
    "qknorm_gqa_artifact": _attention(qknorm_artifact, (2, 12, 40, 16), _GQA),
    "mla": Builder(mla, _MLA_SMALL, _MLA),
    "mla_absorbed": Builder(mla_absorbed, _MLA_SMALL, _MLA),
    "attention_scaled": _attention(attention_scaled, (3, 10, 50, 24), _GQA),
    "attention_masked": _attention(attention_masked, (3, 10, 48, 16), _GQA),
    "attention_boolean": _attention(attention_boolean, (3, 10, 48, 16), _GQA),
    "attention_softcap": _attention(attention_softcap, (3, 10, 48, 16), _GQA),
    "ntrans": Builder(ntrans, {"n": 3, "h": 96}, {"n": 1, "h": 4096}, "n"),
    "ntrans_artifact": Builder(ntrans_artifact, {"n": 3, "h": 96}, {"n": 1, "h": 4096}, "n"),
    "moe": Builder(moe, {"e": 4, "n": 3, "h": 32, "d": 40}, {"e": 8, "n": 8, "h": 4096, "d": 4096}),
    "moe_gated": Builder(moe_gated, {"e": 4, "n": 3, "h": 32, "d": 40}, {"e": 8, "n": 8, "h": 4096, "d": 1536}),
}

#: every operator's function: the stored ones' and those of relatives that only `cases.py` uses
GRAPHS: dict[str, Callable[..., Made]] = {name: builder.graph for name, builder in OPERATORS.items()} | {
    f.__name__: f for f in (attention, gated_mlp_down, jit_demo, norm_gated_mlp_down, qknorm_k_gain, rmsnorm_mlp)
}


def model(name: str, dims: Mapping[str, int], dtype: str) -> onnx.ModelProto:
    """The operator `name` with these dimensions."""
    net = Net(dtype)
    return net.model(name, GRAPHS[name](net, **dims))


def build(name: str, size: str = "small", dtype: str = "fp32", *, batch: int = 1) -> onnx.ModelProto:
    """The operator `name` as a model; `batch` is the paper's B and leaves small sizes alone."""
    if name not in OPERATORS:
        raise ValueError(f"no operator {name!r}; there are {', '.join(OPERATORS)}")
    return model(name, OPERATORS[name].dims(size, batch), dtype)


def inputs(model: onnx.ModelProto, seed: int) -> dict[str, NDArray[Any]]:
    """Random inputs for a model of `build`, scaled so that fp16 neither overflows nor vanishes."""
    return random_inputs(model, seed)


def main() -> None:
    """Write the chosen operators."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all of them by default")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "operators", metavar="DIR")
    parser.add_argument("--size", choices=("small", "paper"), default="small")
    parser.add_argument("--batch", type=int, default=1, help="the paper's B")
    parser.add_argument("--dtype", choices=DTYPES, help="small: both by default; paper: fp16")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    dtypes = [given.dtype] if given.dtype else [*DTYPES] if given.size == "small" else ["fp16"]
    for name in given.names or OPERATORS:
        for dtype in dtypes:
            path = given.out / f"{name}_{dtype}.onnx"
            path.write_bytes(build(name, given.size, dtype, batch=given.batch).SerializeToString(deterministic=True))
            print(path)


if __name__ == "__main__":
    main()
