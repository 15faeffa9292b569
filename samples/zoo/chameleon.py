"""Chameleon's language model: layer norms on queries and keys of each head."""

from __future__ import annotations

import transformers
from torch import nn

from samples.building import LAYERS, decoder
from samples.zoo.architecture import Architecture, causal


def chameleon(layers: int = LAYERS) -> nn.Module:
    """The language model on tokens only; the image tokenizer is there but not used."""
    image = {"embed_dim": 8, "num_embeddings": 16, "latent_channels": 8, "resolution": 16, "base_channels": 32}
    options = {**image, "channel_multiplier": [1], "num_res_blocks": 1, "attn_resolutions": None}
    words = {"<image>": 3, **{f"IMGIMG{chr(65 + k)}Z": 100 + k for k in range(16)}}
    vq = transformers.ChameleonVQVAEConfig(**options)
    return decoder(
        "Chameleon",
        causal="ChameleonForConditionalGeneration",
        vq_config=vq.to_dict(),
        vocabulary_map=words,
        num_hidden_layers=layers,
    )


ARCHITECTURES = (
    Architecture(
        "chameleon",
        "Chameleon",
        "layer norm of each query and key head",
        lambda form: causal(chameleon(form.layers), form),
        cached=True,
    ),
)
