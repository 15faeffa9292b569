"""Layers of published models as cases: each is written once, in words that ONNX nodes and PyTorch both have.

Matrices are [inputs, outputs] and constants of the model, as gains, shifts and biases are; activations and caches are inputs.
Caches are [sequences, heads, keys, depth].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mirage_cli.suite.cases import EPSILON, MICROSOFT, OPSET, Case, Net, Peer, Tensor

ATTENTION_OPSET = 23  #: the first one with the operator Attention
NUMBERS = 4.6  #: the deviation of numbers of 4 bits that are equally likely
INNER_TILES = 8  #: of torch's layout
_GELU = {"gelu": "none", "gelu_tanh": "tanh"}


@dataclass(frozen=True, slots=True)
class Nodes:
    """The words as ONNX nodes: values are names."""

    net: Net

    def matmul(self, a: str, b: str) -> str:
        """a b."""
        return self.net("MatMul", a, b)

    def packed(self, x: str, q: str, s: str, extents: tuple[int, int], block: int) -> str:
        """x W of int4 weights in blocks: W has `extents` [inputs, outputs], q two numbers a byte, s the scales of blocks."""
        inputs, outputs = extents
        size = {"K": inputs, "N": outputs, "bits": 4, "block_size": block}
        return self.net("MatMulNBits", x, q, s, domain=MICROSOFT, **size)

    def add(self, a: str, b: str) -> str:
        """a + b."""
        return self.net("Add", a, b)

    def mul(self, a: str, b: str) -> str:
        """a * b."""
        return self.net("Mul", a, b)

    def act(self, name: str, x: str) -> str:
        """An activation function."""
        return self.net.silu(x) if name == "silu" else self.net("Gelu", x, approximate=_GELU[name])

    def rms(self, x: str, gain: str) -> str:
        """x / sqrt(mean(x²) + epsilon) * gain."""
        return self.net("Mul", self.net.rms(x), gain)

    def layer(self, x: str, gain: str, shift: str) -> str:
        """LayerNormalization over the last axis."""
        return self.net("LayerNormalization", x, gain, shift, epsilon=EPSILON)

    def modulated(self, x: str, scale: str, shift: str, width: int) -> str:
        """LayerNormalization without gain, times 1 + scale, plus shift."""
        one, zero = self.net.vector("one", 1.0, width), self.net.vector("zero", 0.0, width)
        normal = self.net("LayerNormalization", x, one, zero, epsilon=EPSILON)
        return self.add(self.mul(normal, self.add(scale, self.net.number(1))), shift)


@dataclass(frozen=True, slots=True)
class Torch:
    """The words in PyTorch: values are tensors."""

    torch: Any
    f: Any

    def matmul(self, a: Any, b: Any) -> Any:
        """a b."""
        return a @ b

    def packed(self, x: Any, q: Any, s: Any, extents: tuple[int, int], block: int) -> Any:
        """x W, W made of its numbers at every call."""
        return x @ self.dequantised(q, s)

    def dequantised(self, q: Any, s: Any) -> Any:
        """W [inputs, outputs] of bytes [outputs, blocks, bytes] and scales [outputs, blocks]."""
        numbers = self.torch.stack([q & 15, q >> 4], -1).flatten(2).to(s.dtype) - 8
        return (numbers * s[:, :, None]).flatten(1).T

    def add(self, a: Any, b: Any) -> Any:
        """a + b."""
        return a + b

    def mul(self, a: Any, b: Any) -> Any:
        """a * b."""
        return a * b

    def act(self, name: str, x: Any) -> Any:
        """An activation function."""
        return self.f.silu(x) if name == "silu" else self.f.gelu(x, approximate=_GELU[name])

    def rms(self, x: Any, gain: Any) -> Any:
        """x / sqrt(mean(x²) + epsilon) * gain."""
        return self.f.rms_norm(x, (x.shape[-1],), gain, EPSILON)

    def layer(self, x: Any, gain: Any, shift: Any) -> Any:
        """LayerNormalization over the last axis."""
        return self.f.layer_norm(x, (x.shape[-1],), gain, shift, EPSILON)

    def modulated(self, x: Any, scale: Any, shift: Any, width: int) -> Any:
        """LayerNormalization without gain, times 1 + scale, plus shift."""
        return self.f.layer_norm(x, (width,), None, None, EPSILON) * (scale + 1) + shift


@dataclass(frozen=True, slots=True)
class Dequantised(Torch):
    """The words on matrices that were made of int4 weights beforehand: q is one."""

    def packed(self, x: Any, q: Any, s: Any, extents: tuple[int, int], block: int) -> Any:
        """x W."""
        return x @ q


@dataclass(frozen=True, slots=True)
class Int4(Torch):
    """The words on weights in the layout of torch's own product of int4 weights, which is one of bfloat16: s has scales and
    zeros."""

    def packed(self, x: Any, q: Any, s: Any, extents: tuple[int, int], block: int) -> Any:
        """x W."""
        return self.torch._weight_int4pack_mm(x, q, block, s)

    def laid_out(self, q: Any, s: Any) -> tuple[Any, Any]:
        """Bytes, whose first number torch has in the upper half, and scales in that layout."""
        torch = self.torch
        scales = torch.stack([s.T, torch.zeros_like(s.T)], -1).to(torch.bfloat16).contiguous()
        return torch._convert_weight_to_int4pack(((q & 15) << 4 | q >> 4).flatten(1), INNER_TILES), scales


@dataclass(frozen=True, slots=True)
class Dense:
    """One or two products around a row: `norm` (rms, layer, ada, or none) of x, a product to `out` columns, its
    activation; with `gated` times a second product; with `down` a product to that many columns; with `residual` plus x,
    or plus a tensor of its own where there is neither a norm nor a second product. With `block` matrices are int4 weights
    [outputs, blocks, bytes] with a scale for so many positions."""

    rows: int
    width: int
    out: int
    norm: str = ""
    act: str = ""
    gated: bool = False
    bias: bool = False
    down: int = 0
    residual: bool = False
    block: int = 0

    @property
    def result(self) -> int:
        """Columns of the result."""
        return self.down or self.out

    def tensors(self) -> tuple[Tensor, ...]:
        """What the layer reads, in a fixed order."""
        given = [Tensor("x", (self.rows, self.width))]
        if self.norm == "ada":
            given += [Tensor(n, (1, self.width), 0.2) for n in ("scale", "shift")]
        elif self.norm:
            given.append(_vector("gain", self.width, 1.0))
            given += [_vector("shift", self.width)] if self.norm == "layer" else []
        for name, (inputs, outputs) in self.products.items():
            if self.block:
                blocks, scale = inputs // self.block, inputs**-0.5 / NUMBERS
                given.append(Tensor(f"{name}_q", (outputs, blocks, self.block // 2), weight=True, packed=True))
                given.append(Tensor(f"{name}_s", (outputs, blocks), 0.1 * scale, scale, weight=True))
            else:
                given.append(Tensor(name, (inputs, outputs), inputs**-0.5, weight=True))
            given += [_vector(f"{name}_bias", outputs)] if self.bias else []
        if self.residual and not self._own:
            given.append(Tensor("residual", (self.rows, self.result)))
        return tuple(given)

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of its products by name."""
        found = {"up": (self.width, self.out)} | ({"gate": (self.width, self.out)} if self.gated else {})
        return found | ({"down": (self.out, self.down)} if self.down else {})

    @property
    def _own(self) -> bool:
        """True if the residual is x itself."""
        return bool(self.norm or self.down) and self.result == self.width

    def formula(self, w: Any, t: dict[str, Any]) -> Any:
        """The layer in the words `w` on its tensors by name."""
        x = t["x"]
        if self.norm == "rms":
            x = w.rms(x, t["gain"])
        elif self.norm == "layer":
            x = w.layer(x, t["gain"], t["shift"])
        elif self.norm:
            x = w.modulated(x, t["scale"], t["shift"], self.width)
        y = self._product(w, t, "up", x)
        if self.gated:
            y = w.mul(w.act(self.act, self._product(w, t, "gate", x)), y)
        elif self.act:
            y = w.act(self.act, y)
        if self.down:
            y = self._product(w, t, "down", y)
        return w.add(y, t["x"] if self._own else t["residual"]) if self.residual else y

    def _product(self, w: Any, t: dict[str, Any], name: str, x: Any) -> Any:
        if self.block:
            y = w.packed(x, t[f"{name}_q"], t[f"{name}_s"], self.products[name], self.block)
        else:
            y = w.matmul(x, t[name])
        return w.add(y, t[f"{name}_bias"]) if self.bias else y

    @property
    def flops(self) -> float:
        """Operations of its products."""
        return 2.0 * self.rows * self.out * (self.width * (1 + self.gated) + self.down)

    def case(self, name: str) -> Case:
        """It as a row."""
        tensors = self.tensors()
        case = _written(name, tensors, (self.rows, self.result), self.formula, self.flops)
        return replace(case, further=self._peers() if self.block else ())

    def _peers(self) -> tuple[Peer, ...]:
        """What torch has for int4 weights: its own product, and one with the weights as they were."""
        names = [t.name for t in self.tensors()]

        def function(words: type[Torch]) -> Callable[..., Any]:
            return lambda torch, f, *given: self.formula(words(torch, f), dict(zip(names, given, strict=True)))

        def int4(torch: Any, *given: Any) -> list[Any]:
            t = dict(zip(names, given, strict=True))
            found = {n: v.to(torch.bfloat16) for n, v in t.items() if not n.endswith("_q")}
            for n in self.products:
                found[f"{n}_q"], found[f"{n}_s"] = Int4(torch, None).laid_out(t[f"{n}_q"], t[f"{n}_s"])
            return [found[n] for n in names]

        def wide(torch: Any, *given: Any) -> list[Any]:
            t = dict(zip(names, given, strict=True))
            made = {f"{n}_q": Torch(torch, None).dequantised(t[f"{n}_q"], t[f"{n}_s"]) for n in self.products}
            return [(t | made)[n].contiguous() for n in names]

        return Peer("torch int4", int4, function(Int4)), Peer("torch dequantised", wide, function(Dequantised))


def adapted(name: str, rows: int, width: int, rank: int, out: int, scale: float) -> Case:
    """X W + scale ((X A) B): a product with a low-rank adapter."""
    tensors = (
        Tensor("x", (rows, width)),
        Tensor("w", (width, out), width**-0.5, weight=True),
        Tensor("a", (width, rank), width**-0.5, weight=True),
        Tensor("b", (rank, out), rank**-0.5, weight=True),
    )
    flops = 2.0 * rows * (width * out + rank * (width + out))
    return Case(
        name,
        tensors,
        (rows, out),
        lambda net, x, w, a, b: net(
            "Add", net("MatMul", x, w), net("Mul", net("MatMul", net("MatMul", x, a), b), net.number(scale))
        ),
        lambda torch, f, x, w, a, b: x @ w + (x @ a) @ b * scale,
        flops,
    )


def _vector(name: str, width: int, mean: float = 0.0) -> Tensor:
    return Tensor(name, (width,), 0.1, mean, weight=True)


def _written(
    name: str, tensors: tuple[Tensor, ...], output: tuple[int, ...], formula: Callable[..., Any], flops: float
) -> Case:
    """A case of a formula in words on tensors by name."""
    names = [t.name for t in tensors]
    return Case(
        name,
        tensors,
        output,
        lambda net, *given: formula(Nodes(net), dict(zip(names, given, strict=True))),
        lambda torch, f, *given: formula(Torch(torch, f), dict(zip(names, given, strict=True))),
        flops,
    )


# ---- attention -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Attention:
    """softmax(Q K^T / sqrt(depth)) V of `heads` query heads on `kv` key heads. `mask` is none, causal, or window: a query
    sees keys that are not behind it and nearer than `window`."""

    sequences: int
    heads: int
    kv: int
    queries: int
    keys: int
    depth: int
    mask: str = ""
    window: int = 0

    @property
    def _group(self) -> int:
        return self.heads // self.kv

    @property
    def seen(self) -> float:
        """Pairs of a query and a key that the mask lets through, of one head."""
        if not self.mask:
            return self.queries * self.keys
        reach = min(self.window or self.keys, self.keys)
        return sum(min(q + 1, reach) for q in range(self.queries))

    def case(self, name: str) -> Case:
        """It as a row: a single query of each sequence is a step of a decoder, whose group of heads is taken as queries."""
        cache = (self.sequences, self.kv, self.keys, self.depth)
        if self.queries == 1 or self.mask == "window":
            shape: tuple[int, ...] = (self.sequences, self.kv, self._group * self.queries, self.depth)
        else:
            shape = (self.sequences, self.heads, self.queries, self.depth)
        if self.mask == "window":
            shape = (self.sequences, self.kv, self._group, self.queries, self.depth)
        tensors = (Tensor("q", shape), Tensor("k", cache), Tensor("v", cache))
        graphs = {"": self._plain, "causal": self._causal, "window": self._windowed}
        flops = 4.0 * self.sequences * self.heads * self.seen * self.depth
        opset = ATTENTION_OPSET if self.mask == "causal" else OPSET
        made = Case(name, tensors, shape, graphs[self.mask], self._torch, flops, self._sdpa, self._own)
        return replace(made, opset=opset)

    # --- as nodes -----------------------------------------------------------------------------------------------------
    def _scores(self, net: Net, q: str, k: str) -> str:
        return net("Mul", net("MatMul", q, k), net.number(self.depth**-0.5))

    def _plain(self, net: Net, q: str, k: str, v: str) -> str:
        return net.attend(self._scores(net, q, net("Transpose", k, perm=[0, 1, 3, 2])), v)

    def _causal(self, net: Net, q: str, k: str, v: str) -> str:
        return net("Attention", q, k, v, is_causal=1, scale=self.depth**-0.5)

    def _windowed(self, net: Net, q: str, k: str, v: str) -> str:
        keys = net("Unsqueeze", net("Transpose", k, perm=[0, 1, 3, 2]), net.integers(2))
        at = net("Range", net.whole(0), net.whole(self.queries), net.whole(1))
        behind = net("Sub", net("Unsqueeze", at, net.integers(1)), net("Unsqueeze", at, net.integers(0)))
        seen = net("And", net("GreaterOrEqual", behind, net.whole(0)), net("Less", behind, net.whole(self.window)))
        scores = net("Where", seen, self._scores(net, q, keys), net.number(float("-inf")))
        return net.attend(scores, net("Unsqueeze", v, net.integers(2)))

    # --- in PyTorch ---------------------------------------------------------------------------------------------------
    def _seen(self, torch: Any, like: Any) -> Any:
        at = torch.arange(self.queries, device=like.device)
        behind = at[:, None] - at[None, :]
        return (behind >= 0) & (behind < (self.window or self.keys))

    def _torch(self, torch: Any, f: Any, q: Any, k: Any, v: Any) -> Any:
        if self.mask == "window":
            k, v = k[:, :, None], v[:, :, None]
        elif q.shape[1] != k.shape[1]:
            k, v = (t.repeat_interleave(self._group, 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) * self.depth**-0.5
        if self.mask:
            scores = scores.masked_fill(~self._seen(torch, q), -torch.inf)
        return torch.softmax(scores, -1) @ v

    def _own(self, torch: Any, q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        if self.mask == "window":
            k, v = (t.repeat_interleave(self._group, 1) for t in (k, v))
            return q.reshape(self.sequences, self.heads, self.queries, self.depth), k, v, self._seen(torch, q)
        return q, k, v

    def _sdpa(self, torch: Any, f: Any, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
        y = f.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.mask == "causal", **grouped)
        return y.reshape(self.sequences, self.kv, self._group, *y.shape[2:]) if mask is not None else y
