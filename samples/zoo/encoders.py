"""Encoders of text and images."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn

from samples.building import LAYERS, TOKENS, VOCABULARY, Case, randomise, token_ids
from samples.zoo.architecture import BATCH, Architecture, Form

SIZES = {"hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 192}


def _sized(form: Form) -> dict[str, int]:
    return {**SIZES, "num_hidden_layers": form.layers}


class Selected(nn.Module):
    """A model called with its inputs by name in a fixed order, that gives the named ones of its outputs."""

    def __init__(self, model: nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.inputs, self.outputs = model, inputs, outputs

    def forward(self, first: Tensor, second: Tensor | None = None, third: Tensor | None = None) -> tuple[Tensor, ...]:
        """The outputs for up to three inputs."""
        given = dict(zip(self.inputs, (first, second, third), strict=False))
        results = self.model(**given)
        return tuple(results[name] for name in self.outputs)


def selected(
    model: nn.Module, inputs: dict[str, Tensor], outputs: tuple[str, ...], dynamic: dict[str, dict[int, object]] | None
) -> Case:
    """A case of `Selected`; `dynamic` gives symbolic dimensions by the model's input names."""
    slots = dict(zip(inputs, ("first", "second", "third"), strict=False))
    axes = None if dynamic is None else {slots[name]: dims for name, dims in dynamic.items()}
    case = Case(Selected(model, tuple(inputs), outputs), {slots[n]: t for n, t in inputs.items()}, outputs, axes)
    case.labels = tuple(inputs)
    return case


def text_inputs(form: Form, tokens: int = TOKENS) -> tuple[dict[str, Tensor], dict[str, dict[int, object]] | None]:
    """Token ids, with a padding mask in some forms, and the symbolic dimensions."""
    batch = BATCH if form.dynamic else 1
    inputs = {"input_ids": token_ids(tokens, batch)}
    if form.masked:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    return inputs, dict.fromkeys(inputs, axes) if form.dynamic else None


def pixels(form: Form) -> tuple[dict[str, Tensor], dict[str, dict[int, object]] | None]:
    """Images of 32 x 32, and the symbolic batch."""
    inputs = {"pixel_values": torch.zeros(BATCH if form.dynamic else 1, 3, 32, 32)}
    return inputs, {"pixel_values": {0: torch.export.Dim("batch")}} if form.dynamic else None


def bert_model() -> nn.Module:
    """BERT with its pooler."""
    return randomise(
        transformers.BertModel(transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=32, **SIZES))
    )


def vit_model() -> nn.Module:
    """Patches of 8 x 8: 16 patches and the class token."""
    return randomise(
        transformers.ViTForImageClassification(
            transformers.ViTConfig(image_size=32, patch_size=8, num_labels=10, **SIZES)
        )
    )


def _bert(form: Form) -> Case:
    inputs, axes = text_inputs(form)
    return selected(bert_model(), inputs, ("last_hidden_state", "pooler_output"), axes)


def _modernbert(form: Form) -> Case:
    """A window of 8 in the last layer; no biases; GeGLU with fused gate and up projections."""
    sizes = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    config = transformers.ModernBertConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        local_attention=8,
        layer_types=["full_attention", "sliding_attention"][-form.layers :],
        **sizes,
        **_sized(form),
    )
    inputs, axes = text_inputs(form, 24)
    return selected(randomise(transformers.ModernBertModel(config)), inputs, ("last_hidden_state",), axes)


def _vit(form: Form) -> Case:
    inputs, axes = pixels(form)
    return selected(vit_model(), inputs, ("logits",), axes)


def _clip(form: Form) -> Case:
    """Both towers and the similarity of texts and images."""
    text = {**_sized(form), "vocab_size": VOCABULARY, "max_position_embeddings": 32, "projection_dim": 48}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    image = {**_sized(form), "image_size": 32, "patch_size": 8, "projection_dim": 48}
    config = transformers.CLIPConfig(text_config={**text, **ids}, vision_config=image, projection_dim=48)
    inputs, axes = text_inputs(form)
    seen, other = pixels(form)
    if axes is not None and other is not None:
        axes = {**axes, "pixel_values": {0: torch.export.Dim("images")}}
    ordered = {"input_ids": inputs["input_ids"], **seen, **{k: v for k, v in inputs.items() if k == "attention_mask"}}
    return selected(
        randomise(transformers.CLIPModel(config)), ordered, ("logits_per_image", "text_embeds", "image_embeds"), axes
    )


ARCHITECTURES = (
    Architecture("bert", "BERT", "post-LayerNorm, GELU, pooler", _bert),
    Architecture("modernbert", "ModernBERT", "RoPE, GeGLU, window, LayerNorm without bias", _modernbert),
    Architecture("vit", "ViT", "patch convolution, class token", _vit),
    Architecture("clip", "CLIP", "two towers, quick GELU", _clip, attentions=2 * LAYERS, mlps=2 * LAYERS),
)
