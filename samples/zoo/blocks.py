"""Blocks in plain torch: an adapted decoder, a normalised transformer block, a diffusion transformer block."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from samples.building import Case, LoraLinear, randomise
from samples.zoo.architecture import BATCH, Architecture, Form, causal
from samples.zoo.decoders import llama

WIDTH, HEADS, ROWS, INNER = 64, 4, 16, 192


def adapted(model: nn.Module, names: tuple[str, ...]) -> nn.Module:
    """The decoder (`model.layers.NUMBER` and below) with adapters beside the linear layers of these names."""
    for path, module in list(model.named_modules()):
        for name in names:
            base = getattr(module, name, None)
            if isinstance(base, nn.Linear):
                layer = LoraLinear(base)
                for adapter in ("lora_a", "lora_b"):
                    randomise(getattr(layer, adapter), f"{path.split('.')[2]}.{name}.{adapter}")
                setattr(module, name, layer)
    return model


ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(-3, -2)


def _unit(x: Tensor) -> Tensor:
    """Length one along the last dimension, in fp32 as nGPT computes it."""
    return functional.normalize(x.float(), dim=-1).to(x.dtype)


class NormalisedBlock(nn.Module):
    """nGPT: everything lives on the unit sphere, and a step goes towards what attention and MLP suggest."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))
        self.up, self.gate = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        self.alpha_attention, self.alpha_mlp = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.scale_qk = nn.Parameter(torch.ones(WIDTH // HEADS))
        self.scale_up, self.scale_gate = nn.Parameter(torch.ones(INNER)), nn.Parameter(torch.ones(INNER))

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [batch, rows, width] of length one to the next ones."""
        q, k, v = (_heads(layer(hidden)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.scale_qk * _unit(q), self.scale_qk * _unit(k)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=(WIDTH // HEADS) ** 0.5)
        update = _unit(self.o_proj(seen.transpose(1, 2).flatten(2)))
        hidden = _unit(hidden + self.alpha_attention.abs() * (update - hidden))
        up = self.scale_up * self.up(hidden)
        gate = self.scale_gate * self.gate(hidden) * WIDTH**0.5
        update = _unit(self.down(up * functional.silu(gate)))
        return _unit(hidden + self.alpha_mlp.abs() * (update - hidden))


class DiffusionBlock(nn.Module):
    """A diffusion transformer's block: norms without gain whose scale and shift, and gates, come from a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.condition = nn.Linear(WIDTH, 6 * WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, hidden: Tensor, condition: Tensor) -> Tensor:
        """Hidden states [batch, rows, width] and a condition [batch, width] to the next states."""
        parts = self.condition(functional.silu(condition))[:, None].chunk(6, dim=-1)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = parts
        x = functional.layer_norm(hidden, (WIDTH,), eps=1e-6) * (1 + scale_a) + shift_a
        q, k, v = (_heads(t) for t in self.qkv(x).chunk(3, dim=-1))
        seen = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        hidden = hidden + gate_a * self.out(seen)
        x = functional.layer_norm(hidden, (WIDTH,), eps=1e-6) * (1 + scale_m) + shift_m
        return hidden + gate_m * self.down(functional.gelu(self.up(x), approximate="tanh"))


def _ngpt(form: Form) -> Case:
    axes = {"hidden": {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}}
    batch = BATCH if form.dynamic else 1
    hidden = {"hidden": torch.zeros(batch, ROWS, WIDTH)}
    return Case(randomise(NormalisedBlock()), dict(hidden), ("next",), axes if form.dynamic else None)


def _diffusion(form: Form) -> Case:
    rows = torch.export.Dim("batch")
    axes = {"hidden": {0: rows, 1: torch.export.Dim("sequence")}, "condition": {0: rows}}
    batch = BATCH if form.dynamic else 1
    inputs = {"hidden": torch.zeros(batch, ROWS, WIDTH), "condition": torch.zeros(batch, WIDTH)}
    return Case(randomise(DiffusionBlock()), dict(inputs), ("next",), axes if form.dynamic else None)


ARCHITECTURES = (
    Architecture(
        "lora",
        "Llama with LoRA",
        "unmerged adapters beside every linear layer, as peft writes them",
        lambda form: causal(adapted(llama(form.layers), ALL_LINEAR), form),
        mlps=0,  # gate and up projections with their adapters are called lora
        cached=True,
    ),
    Architecture("ngpt", "nGPT block", "unit norms instead of a residual stream", _ngpt, 1, 1),
    Architecture("diffusion", "Diffusion transformer block", "adaptive norm, gates", _diffusion, 1, 1),
)
