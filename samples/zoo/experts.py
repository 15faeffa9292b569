"""Causal language models with routed experts, and with latent attention."""

from __future__ import annotations

from torch import nn

from samples.building import LAYERS, decoder
from samples.zoo.decoders import cached


def _batched(model: nn.Module) -> nn.Module:
    """The model with its experts as batched matrix products of the selected weights."""
    model.set_experts_implementation("batched_mm")
    return model


def mixtral(layers: int = LAYERS) -> nn.Module:
    """Two of four experts per token."""
    return _batched(
        decoder("Mixtral", num_hidden_layers=layers, head_dim=16, num_local_experts=4, num_experts_per_tok=2)
    )


def qwen3_moe(layers: int = LAYERS) -> nn.Module:
    """Two of four experts per token, QK norm."""
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
    return _batched(decoder("Qwen3Moe", num_hidden_layers=layers, head_dim=16, **sizes))


LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "moe_intermediate_size": 48,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}


def deepseek_v2(layers: int = LAYERS) -> nn.Module:
    """A dense layer and one of experts; greedy routing."""
    return _batched(decoder("DeepseekV2", num_hidden_layers=layers, **LATENT, head_dim=8))


def deepseek_v3(layers: int = LAYERS) -> nn.Module:
    """A dense layer and one of experts; routing by groups with sigmoid scores."""
    return _batched(decoder("DeepseekV3", num_hidden_layers=layers, **LATENT, n_group=2, topk_group=1, head_dim=8))


ARCHITECTURES = (
    cached("mixtral", "Mixtral", "two of four experts, batched", mixtral, 12),
    cached("qwen3_moe", "Qwen3-MoE", "QK-norm; batched experts", qwen3_moe, 12),
    cached("deepseek_v2", "DeepSeek-V2", "latent attention (MLA); a dense layer, a layer of experts", deepseek_v2, 12),
    cached("deepseek_v3", "DeepSeek-V3", "latent attention (MLA); grouped routing by sigmoid", deepseek_v3, 12),
)
