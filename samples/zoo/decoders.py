"""Causal language models with dense layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from torch import nn

from samples.building import LAYERS, TOKENS, VOCABULARY, decoder, randomise
from samples.zoo.architecture import Architecture, causal


def llama(layers: int = LAYERS, **options: Any) -> nn.Module:
    """Llama: 4 query and 2 key heads of 16."""
    return decoder("Llama", num_hidden_layers=layers, head_dim=16, **options)


def qwen2(layers: int = LAYERS) -> nn.Module:
    """Biases on the query, key and value projections."""
    return decoder("Qwen2", num_hidden_layers=layers)


def qwen3(layers: int = LAYERS) -> nn.Module:
    """Heads of 32: the projections are wider than the hidden size."""
    return decoder("Qwen3", num_hidden_layers=layers, head_dim=32)


def gemma2(layers: int = LAYERS) -> nn.Module:
    """A window of 8 in every other layer; soft-capping exists in eager attention only."""
    options = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8, "intermediate_size": 128}
    return decoder("Gemma2", num_hidden_layers=layers, attention="eager", **options)


def gemma3(layers: int = LAYERS) -> nn.Module:
    """A window of 8 and its own rotation in the first layer, full attention in the second."""
    types = ["sliding_attention", "full_attention"][:layers]
    options = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8, "layer_types": types}
    sizes = {"num_hidden_layers": layers, "intermediate_size": 128}
    return decoder("Gemma3Text", causal="Gemma3ForCausalLM", **sizes, **options)


def phi3(layers: int = LAYERS) -> nn.Module:
    """Fused projections."""
    return decoder("Phi3", num_hidden_layers=layers)


def mistral(layers: int = LAYERS) -> nn.Module:
    """A window of 8."""
    return decoder("Mistral", num_hidden_layers=layers, head_dim=16, sliding_window=8)


def gpt2(layers: int = LAYERS) -> nn.Module:
    """Hidden size 96, three heads of 32."""
    sizes = {
        "vocab_size": VOCABULARY,
        "n_positions": 32,
        "n_embd": 96,
        "n_layer": layers,
        "n_head": 3,
        "use_cache": False,
    }
    config = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)
    return randomise(transformers.GPT2LMHeadModel(config))


def gpt_neox(layers: int = LAYERS) -> nn.Module:
    """A quarter of each head is rotated; attention and MLP run side by side."""
    return decoder("GPTNeoX", num_hidden_layers=layers, use_parallel_residual=True)


def olmo2(layers: int = LAYERS) -> nn.Module:
    """Norms behind attention and MLP, and over whole queries and keys."""
    return decoder("Olmo2", num_hidden_layers=layers)


def cohere(layers: int = LAYERS) -> nn.Module:
    """One LayerNorm without bias for attention and MLP, which run side by side; rotation of neighbours; QK norm."""
    return decoder("Cohere", num_hidden_layers=layers, use_qk_norm=True, logit_scale=0.25)


def cached(name: str, title: str, shows: str, model: Callable[[int], nn.Module], tokens: int = TOKENS) -> Architecture:
    """A causal language model that can be exported with a cache."""
    return Architecture(name, title, shows, lambda form: causal(model(form.layers), form, tokens), cached=True)


ARCHITECTURES = (
    cached("llama", "Llama", "grouped-query attention, RoPE, RMSNorm, SwiGLU", llama),
    cached("qwen2", "Qwen2", "biases on QKV", qwen2),
    cached("qwen3", "Qwen3", "QK-norm, wide heads", qwen3, 20),
    cached("gemma2", "Gemma 2", "soft-capping, post-norms, window, GeGLU, tied head", gemma2, 24),
    cached("gemma3", "Gemma 3", "QK-norm, post-norms, window, two rotations", gemma3, 24),
    cached("phi3", "Phi-3", "fused QKV, fused gate and up", phi3),
    cached("mistral", "Mistral", "sliding window", mistral, 24),
    cached("gpt2", "GPT-2", "LayerNorm, fused QKV, GELU, tied head", gpt2),
    cached("gpt_neox", "GPT-NeoX", "parallel residual, partial rotation, fused QKV", gpt_neox),
    cached("olmo2", "OLMo 2", "post-norms, norms of whole queries and keys", olmo2),
    cached("cohere", "Cohere", "parallel block, LayerNorm without bias, QK norm, interleaved rotation", cohere),
)
