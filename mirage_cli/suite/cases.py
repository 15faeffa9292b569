"""The cases of `mirage bench --suite paper`: operators of the Mirage papers and of Llama and DeepSeek at their extents.

A case is one set of tensors and the same computation twice: as ONNX nodes, which `optimize` gets, and as the PyTorch
function that somebody would write, which is the peer and, in float64, the reference. Matrices of linear layers are
weights of the model, activations, keys and values its inputs. Keys are [heads, depth, keys]; torch's fused attention
gets its own copy of them, [heads, keys, depth].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mirage_cli.lax.dtypes import BF16, F16, F32, U8, DType

OPSET, IR_VERSION = 20, 10
EPSILON = 1e-5
DRAWN = 4_194_301  #: different elements of a weight
DTYPES = {"fp16": F16, "bf16": BF16, "fp32": F32}
MICROSOFT = "com.microsoft"
_ONNX = {"f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "f32": TensorProto.FLOAT, "u8": TensorProto.UINT8}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that a case reads: its shape, the mean and deviation of its elements, whether it is a weight, and one of bytes,
    which hold two numbers of 4 bits each."""

    name: str
    shape: tuple[int, ...]
    std: float = 1.0
    mean: float = 0.0
    weight: bool = False
    packed: bool = False

    @property
    def elements(self) -> int:
        """Number of its elements."""
        return math.prod(self.shape)

    def type(self, dtype: DType) -> DType:
        """The type of its elements in a case of this type."""
        return U8 if self.packed else dtype

    def bytes(self, dtype: DType) -> int:
        """Its bytes in a case of this type."""
        return self.elements * self.type(dtype).bytes


class Net:
    """ONNX nodes under construction: `net("MatMul", a, b)` adds one and returns the name of its output. Names end with
    `suffix`, so that a model can hold a graph several times."""

    def __init__(self, dtype: DType, suffix: str = "") -> None:
        self.type = _ONNX[dtype.name]
        self.suffix = suffix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def __call__(self, op: str, *operands: str, **attributes: Any) -> str:
        """Add a node and return its output."""
        name = f"{op.lower()}_{len(self.nodes)}{self.suffix}"
        self.nodes.append(helper.make_node(op, operands, [name], name, **attributes))
        return name

    def number(self, value: float) -> str:
        """A constant scalar of the graph's type."""
        name = f"c_{value:g}"
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(self.type))
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def integers(self, *values: int) -> str:
        """A constant vector of integers."""
        name = "i_" + "_".join(map(str, values))
        self.constants[name] = numpy_helper.from_array(np.asarray(values, np.int64), name)
        return name

    def whole(self, value: int) -> str:
        """A constant integer."""
        name = f"n_{value}"
        self.constants[name] = numpy_helper.from_array(np.asarray(value, np.int64), name)
        return name

    def vector(self, name: str, value: float, width: int) -> str:
        """A constant vector of the graph's type, of one value."""
        array = np.full(width, value, helper.tensor_dtype_to_np_dtype(self.type))
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def rms(self, x: str) -> str:
        """x / sqrt(mean(x^2) + epsilon) over the last axis, as exporters write it."""
        mean = self("ReduceMean", self("Pow", x, self.number(2)), self.integers(-1), keepdims=1)
        return self("Div", x, self("Sqrt", self("Add", mean, self.number(EPSILON))))

    def silu(self, x: str) -> str:
        """x * sigmoid(x)."""
        return self("Mul", x, self("Sigmoid", x))

    def attend(self, scores: str, values: str) -> str:
        """softmax(scores) values."""
        return self("MatMul", self("Softmax", scores, axis=-1), values)


Graph = Callable[..., str]  #: from a Net and the names of the tensors to the name of the output
Function = Callable[..., Any]  #: from torch, its functional module and tensors to a tensor


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer of a case's own: a column's name, what it makes of the tensors beforehand, and what is timed."""

    column: str
    own: Function
    function: Function


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a suite. `torch` computes it in PyTorch, `sdpa` (None where there is none) with torch's fused attention
    from what `own` makes of the tensors beforehand: keys [heads, keys, depth]. `flops` counts its matrix products;
    `further` are peers of its own, `decode` tells rows of few tokens from prefill. Rows of published models say the model,
    what `kind` of layer it is, how many `rows` a call has, the element type if it is their own, and whether they are to
    judge or to fit (`part`)."""

    name: str
    tensors: tuple[Tensor, ...]
    output: tuple[int, ...]
    graph: Graph
    torch: Function
    flops: float
    sdpa: Function | None = None
    own: Function | None = None
    further: tuple[Peer, ...] = ()
    decode: bool = True
    opset: int = OPSET
    model_name: str = ""
    kind: str = ""
    rows: int = 0
    dtype: str = ""
    part: str = ""

    def bytes(self, dtype: DType) -> int:
        """Bytes that it reads and writes at least."""
        return sum(t.bytes(dtype) for t in self.tensors) + math.prod(self.output) * dtype.bytes

    @property
    def shapes(self) -> str:
        """The tensors in short."""
        return ", ".join(f"{t.name}[{', '.join(map(str, t.shape))}]" for t in self.tensors)

    def model(self, dtype: DType, seed: int) -> onnx.ModelProto:
        """The model that is optimized, its weights drawn."""
        random = np.random.default_rng(seed)
        drawn = {t.name: _draw(t, dtype, random) for t in self.tensors if t.weight}
        return self._model(dtype, [""], drawn)

    def repeated(self, dtype: DType, copies: int) -> onnx.ModelProto:
        """A model with that many copies on tensors of their own, all of them inputs: `x_0`, `x_1`, ... and outputs
        `output_0`, ..."""
        return self._model(dtype, [f"_{k}" for k in range(copies)], {})

    def _model(self, dtype: DType, suffixes: Sequence[str], weights: dict[str, onnx.TensorProto]) -> onnx.ModelProto:
        nodes, inputs, outputs, constants = [], [], [], dict[str, onnx.TensorProto]()
        for suffix in suffixes:
            net = Net(dtype, suffix)
            result = self.graph(net, *(t.name + suffix for t in self.tensors))
            net.nodes[-1].output[:] = [f"output{suffix}"]
            assert net.nodes[-1].name == result  # the last node computes the output
            nodes += net.nodes
            constants |= net.constants
            inputs += [(t.name + suffix, t) for t in self.tensors if t.name not in weights]
            outputs.append((f"output{suffix}", self.output))
        microsoft = [helper.make_opsetid(MICROSOFT, 1)] if any(t.packed for t in self.tensors) else []
        graph = helper.make_graph(
            nodes,
            self.name,
            [helper.make_tensor_value_info(n, _ONNX[t.type(dtype).name], t.shape) for n, t in inputs],
            [helper.make_tensor_value_info(n, _ONNX[dtype.name], s) for n, s in outputs],
            [*constants.values(), *weights.values()],
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset), *microsoft],
            ir_version=IR_VERSION,
            producer_name="mirage suite",
        )


def _draw(t: Tensor, dtype: DType, random: np.random.Generator) -> onnx.TensorProto:
    """A weight: as many numbers as `DRAWN`, repeated where it has more (a prime, so that no two rows of it are equal)."""
    if t.packed:
        return numpy_helper.from_array(random.integers(0, 256, t.shape, np.uint8), t.name)
    values = random.standard_normal(min(t.elements, DRAWN), np.float32) * np.float32(t.std) + np.float32(t.mean)
    few = values.astype(helper.tensor_dtype_to_np_dtype(_ONNX[dtype.name]))
    return numpy_helper.from_array(np.resize(few, t.shape), t.name)


# ---- linear layers ---------------------------------------------------------------------------------------------------


def _x(rows: int, width: int) -> Tensor:
    return Tensor("x", (rows, width))


def _weight(name: str, rows: int, columns: int) -> Tensor:
    """A matrix whose rows are contracted, scaled to keep the variance."""
    return Tensor(name, (rows, columns), rows**-0.5, weight=True)


def _rms(functional: Any, x: Any) -> Any:
    return functional.rms_norm(x, (x.shape[-1],), eps=EPSILON)


def rmsnorm_linear(name: str, n: int, h: int, d: int) -> Case:
    """rms(X) W."""
    return Case(
        name,
        (_x(n, h), _weight("w", h, d)),
        (n, d),
        lambda net, x, w: net("MatMul", net.rms(x), w),
        lambda torch, f, x, w: _rms(f, x) @ w,
        2.0 * n * h * d,
    )


def gated_mlp(name: str, n: int, h: int, d: int) -> Case:
    """silu(X W1) * (X W2)."""
    return Case(
        name,
        (_x(n, h), _weight("w1", h, d), _weight("w2", h, d)),
        (n, d),
        lambda net, x, w, v: net("Mul", net.silu(net("MatMul", x, w)), net("MatMul", x, v)),
        lambda torch, f, x, w, v: f.silu(x @ w) * (x @ v),
        4.0 * n * h * d,
    )


def lora(name: str, n: int, h: int, r: int, d: int) -> Case:
    """X W + (X A) B."""
    return Case(
        name,
        (_x(n, h), _weight("w", h, d), _weight("a", h, r), _weight("b", r, d)),
        (n, d),
        lambda net, x, w, a, b: net("Add", net("MatMul", x, w), net("MatMul", net("MatMul", x, a), b)),
        lambda torch, f, x, w, a, b: x @ w + (x @ a) @ b,
        2.0 * n * (h * d + h * r + r * d),
    )


def norm_mlp_down(name: str, n: int, h: int, d: int) -> Case:
    """(silu(N W1) * (N W2)) W3 with N = rms(X) g."""

    def graph(net: Net, x: str, g: str, w1: str, w2: str, w3: str) -> str:
        normal = net("Mul", net.rms(x), g)
        inner = net("Mul", net.silu(net("MatMul", normal, w1)), net("MatMul", normal, w2))
        return net("MatMul", inner, w3)

    def torch(torch: Any, f: Any, x: Any, g: Any, w1: Any, w2: Any, w3: Any) -> Any:
        normal = f.rms_norm(x, (h,), g, EPSILON)
        return (f.silu(normal @ w1) * (normal @ w2)) @ w3

    weights = (_weight("w1", h, d), _weight("w2", h, d), _weight("w3", d, h))
    gain = Tensor("g", (h,), 0.1, 1.0, weight=True)
    return Case(name, (_x(n, h), gain, *weights), (n, h), graph, torch, 6.0 * n * h * d)


def ntrans(name: str, n: int, h: int) -> Case:
    """rms(X + A (rms(H) + X))."""
    return Case(
        name,
        (Tensor("h", (n, h)), _x(n, h), Tensor("a", (n, h), 0.1)),
        (n, h),
        lambda net, s, x, a: net.rms(net("Add", x, net("Mul", a, net("Add", net.rms(s), x)))),
        lambda torch, f, s, x, a: _rms(f, x + a * (_rms(f, s) + x)),
        0.0,
    )


# ---- attention -------------------------------------------------------------------------------------------------------


def attention(name: str, heads: int, queries: int, depth: int, keys: int, norms: bool = False) -> Case:
    """softmax(Q K) V; with `norms` softmax(rms(Q) K) rms(V)."""

    def graph(net: Net, q: str, k: str, v: str) -> str:
        q, v = (net.rms(q), net.rms(v)) if norms else (q, v)
        return net.attend(net("MatMul", q, k), v)

    def normal(f: Any, q: Any, v: Any) -> tuple[Any, Any]:
        return (_rms(f, q), _rms(f, v)) if norms else (q, v)

    def torch(torch: Any, f: Any, q: Any, k: Any, v: Any) -> Any:
        q, v = normal(f, q, v)
        return torch.softmax(q @ k, -1) @ v

    def sdpa(torch: Any, f: Any, q: Any, k: Any, v: Any) -> Any:
        q, v = normal(f, q, v)
        return f.scaled_dot_product_attention(q[None], k[None], v[None], scale=1.0)[0]

    def own(torch: Any, q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        return q, k.transpose(-1, -2).contiguous(), v

    tensors = (
        Tensor("q", (heads, queries, depth)),
        Tensor("k", (heads, depth, keys), depth**-0.5),
        Tensor("v", (heads, keys, depth)),
    )
    flops = 4.0 * heads * queries * keys * depth
    return Case(name, tensors, (heads, queries, depth), graph, torch, flops, sdpa, own)


def latent_attention(name: str, batch: int, heads: int, latent: int, rope: int, keys: int) -> Case:
    """softmax((Q C^T + R K_R) / sqrt(192)) C: the heads of one token share the latents C, keys and values at once."""
    scale = (128 + rope) ** -0.5

    def graph(net: Net, q: str, r: str, c: str, k: str) -> str:
        scores = net("Add", net("MatMul", q, net("Transpose", c, perm=[0, 2, 1])), net("MatMul", r, k))
        return net.attend(net("Mul", scores, net.number(scale)), c)

    def torch(torch: Any, f: Any, q: Any, r: Any, c: Any, k: Any) -> Any:
        scores = q @ c.transpose(-1, -2) + r @ k
        return torch.softmax(scores * scale, -1) @ c

    def sdpa(torch: Any, f: Any, q: Any, k: Any, v: Any) -> Any:
        return f.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], scale=scale)[:, 0]

    def own(torch: Any, q: Any, r: Any, c: Any, k: Any) -> tuple[Any, ...]:
        return torch.cat((q, r), -1), torch.cat((c, k.transpose(-1, -2)), -1), c

    tensors = (
        Tensor("q", (batch, heads, latent), 0.5),
        Tensor("r", (batch, heads, rope)),
        Tensor("c", (batch, keys, latent)),
        Tensor("k", (batch, rope, keys)),
    )
    flops = 2.0 * batch * heads * keys * (2 * latent + rope)
    return Case(name, tensors, (batch, heads, latent), graph, torch, flops, sdpa, own)


# ---- the suite -------------------------------------------------------------------------------------------------------
def paper() -> tuple[Case, ...]:
    """All rows, in their order."""
    decode = (1, 8, 16)
    return (
        *(rmsnorm_linear(f"rmsnorm_linear_b{b}", b, 4096, 6144) for b in decode),
        *(gated_mlp(f"gated_mlp_b{b}", b, 4096, 4096) for b in decode),
        *(lora(f"lora_b{b}", b, 4096, 16, 4096) for b in decode),
        lora("lora_paper", 16, 256, 16, 4096),
        *(attention(f"gqa_b{b}", 2 * b, 256, 64, 4096) for b in (1, 8)),
        *(attention(f"mha_b{b}", 32 * b, 16, 64, 4096) for b in (1, 8)),
        *(attention(f"mqa_b{b}", b, 1024, 64, 4096) for b in (1, 8)),
        *(attention(f"qknorm_gqa_b{b}", 2 * b, 256, 64, 4096, norms=True) for b in (1, 8)),
        *(ntrans(f"ntrans_b{b}", 8 * b, 4096) for b in (1, 8)),
        attention("seed_attention", 64, 1, 128, 4096),
        replace(rmsnorm_linear("prefill_rmsnorm_linear", 4096, 4096, 6144), decode=False),
        replace(gated_mlp("prefill_gated_mlp", 4096, 4096, 14336), decode=False),
        replace(attention("prefill_attention", 32, 4096, 128, 4096), decode=False),
        *(latent_attention(f"mla_b{b}", b, 128, 512, 64, 4096) for b in (1, 16)),
        *(norm_mlp_down(f"norm_mlp_down_b{b}", b, 4096, 14336) for b in (1, 16)),
    )
