"""Encoders with a decoder that reads them by cross attention; with a cache, the decoder's step on its own."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn

from samples.building import CACHED, LAYERS, VOCABULARY, Case, randomise, token_ids
from samples.zoo.architecture import BATCH, Architecture, Form
from samples.zoo.encoders import selected

FRAMES = 32  #: Mel frames of the example; the encoder sees half of them


class Step(nn.Module):
    """One token of the decoder: the caches hold, for each layer, its own keys and values and those of the encoder."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, past: list[Tensor], states: Tensor) -> tuple[Tensor, ...]:
        """Logits, then the decoder's own caches, grown by the token. `states` is what the encoder made."""
        own, cross = transformers.DynamicCache(), transformers.DynamicCache()
        for layer in range(len(past) // 4):
            k, v, cross_k, cross_v = past[4 * layer : 4 * layer + 4]
            own.update(k, v, layer)
            cross.update(cross_k, cross_v, layer)
        cache = transformers.EncoderDecoderCache(own, cross)
        given = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=states)
        out = self.model(decoder_input_ids=input_ids, encoder_outputs=given, past_key_values=cache, use_cache=True)
        layers = out.past_key_values.self_attention_cache.layers
        return (out.logits, *(t for layer in layers for t in (layer.keys, layer.values)))


def _step(model: nn.Module, form: Form, heads: int, size: int, seen: int) -> Case:
    """A step behind `CACHED` tokens and `seen` positions of the encoder."""
    batch = BATCH if form.dynamic else 1
    past = [
        torch.zeros(batch, heads, length, size) for _ in range(form.layers) for length in (CACHED, CACHED, seen, seen)
    ]
    inputs: dict[str, Tensor | list[Tensor]] = {
        "input_ids": token_ids(1, batch),
        "past": past,
        "states": torch.zeros(batch, seen, model.config.d_model),
    }
    parts = ("decoder.key", "decoder.value", "encoder.key", "encoder.value")
    own = parts[:2]
    case = Case(Step(model), inputs, ("logits", *(f"present.{k}.{p}" for k in range(form.layers) for p in own)))
    case.labels = ("input_ids", *(f"past_key_values.{k}.{p}" for k in range(form.layers) for p in parts), "states")
    if form.dynamic:
        rows, length, other = (torch.export.Dim(n) for n in ("batch", "past", "encoded"))
        caches = [{0: rows, 2: d} for _ in range(form.layers) for d in (length, length, other, other)]
        case.dynamic = {"input_ids": {0: rows}, "past": caches, "states": {0: rows, 1: other}}
    return case


def _whisper(form: Form) -> Case:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=16,
        d_model=64,
        encoder_layers=form.layers,
        decoder_layers=form.layers,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=192,
        decoder_ffn_dim=192,
        max_source_positions=FRAMES // 2,
        max_target_positions=64,
        decoder_start_token_id=1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        begin_suppress_tokens=None,
        use_cache=False,
    )
    model = randomise(transformers.WhisperForConditionalGeneration(config))
    if form.cache:
        return _step(model, form, 4, 16, FRAMES // 2)
    batch = BATCH if form.dynamic else 1
    inputs = {"input_features": torch.zeros(batch, 16, FRAMES), "decoder_input_ids": token_ids(12, batch)}
    rows = torch.export.Dim("batch")
    axes = {"input_features": {0: rows}, "decoder_input_ids": {0: rows, 1: torch.export.Dim("sequence")}}
    return selected(model, inputs, ("logits",), axes if form.dynamic else None)


def _t5(form: Form) -> Case:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=64,
        d_kv=16,
        d_ff=192,
        num_layers=form.layers,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        use_cache=False,
    )
    model = randomise(transformers.T5ForConditionalGeneration(config))
    if form.cache:
        return _step(model, form, 4, 16, 16)
    batch = BATCH if form.dynamic else 1
    inputs = {"input_ids": token_ids(16, batch), "decoder_input_ids": token_ids(12, batch)}
    rows = torch.export.Dim("batch")
    axes = {
        "input_ids": {0: rows, 1: torch.export.Dim("encoded")},
        "decoder_input_ids": {0: rows, 1: torch.export.Dim("sequence")},
    }
    return selected(model, inputs, ("logits",), axes if form.dynamic else None)


ARCHITECTURES = (
    Architecture(
        "whisper",
        "Whisper",
        "convolutions, encoder, decoder with cross attention",
        _whisper,
        attentions=3 * LAYERS,
        mlps=2 * LAYERS,
        cached=True,
        encoder=True,
    ),
    Architecture(
        "t5",
        "T5",
        "relative position bias, RMSNorm, cross attention",
        _t5,
        attentions=3 * LAYERS,
        mlps=2 * LAYERS,
        cached=True,
        encoder=True,
    ),
)
