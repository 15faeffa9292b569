"""Models at the widths in which they are published, exported for timing: `python -m samples.zoo.published DIR [NAME ...]`.

They have the published widths, heads and inner sizes, but few layers, which are alike; a decoder's vocabulary is shortened
in the same measure, so that its head keeps its share of the time. Weights are random.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from samples.building import VOCABULARY, Case, WithCache, cache_names, cast, randomise, token_ids, written
from samples.cpu_models import MODELS, TimedModel
from samples.zoo.cross import Step
from samples.zoo.encoders import selected
from samples.zoo.run import quiet

IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SPEECH = 16_000  #: samples of a second of sound
Build = Callable[[TimedModel], Case]


def _made(model: str, config: str, **sizes: Any) -> nn.Module:
    """A model of `transformers` by the names of its class and of its configuration's, with random weights."""
    return randomise(getattr(transformers, model)(getattr(transformers, f"{config}Config")(**sizes)))


def _text(model: str, config: str, **sizes: Any) -> Build:
    """An encoder of tokens and their padding mask."""

    def build(timed: TimedModel) -> Case:
        ids = token_ids(timed.tokens, timed.batch)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
        made = _made(model, config, vocab_size=VOCABULARY, **sizes)
        return selected(made, inputs, ("last_hidden_state",), dict.fromkeys(inputs, axes) if timed.dim else None)

    return build


def _seen(name: str, shape: tuple[int, ...], model: str, config: str, **sizes: Any) -> Build:
    """An encoder of one tensor: an image, a spectrum, sound."""

    def build(timed: TimedModel) -> Case:
        inputs = {name: torch.zeros(timed.batch, *shape)}
        return selected(_made(model, config, **sizes), inputs, ("last_hidden_state",), None)

    return build


def _decoder(config: str, causal: str = "", /, **sizes: Any) -> Build:
    """A causal language model: on a prompt, or on one token behind a cache."""

    def build(timed: TimedModel) -> Case:
        made = _made(causal or f"{config}ForCausalLM", config, use_cache=False, **{**IDS, **sizes})
        return _behind(made, timed) if timed.past else Case(made, {"input_ids": token_ids(timed.tokens, timed.batch)})

    return build


def _behind(model: nn.Module, timed: TimedModel) -> Case:
    """One token behind a cache, whose shapes are what the model itself makes of a prompt."""
    with torch.no_grad():
        layers = model(input_ids=token_ids(2, timed.batch), use_cache=True).past_key_values.layers
    past = [torch.zeros(timed.batch, t.shape[1], timed.past, t.shape[3]) for c in layers for t in (c.keys, c.values)]
    inputs = {"input_ids": token_ids(timed.tokens, timed.batch), "past": past}
    case = Case(WithCache(model), inputs, ("logits", *cache_names("present", len(layers))))
    if timed.dim:
        case.inputs["attention_mask"] = torch.ones(timed.batch, timed.past + timed.tokens, dtype=torch.int64)
        length = torch.export.Dim("past")
        case.dynamic = {
            "input_ids": {},
            "past": [{2: length}] * len(past),
            "attention_mask": {1: length + timed.tokens},
        }
    return case


def _cross(config: str, layers: int, heads: int, size: int, seen: int, **sizes: Any) -> Build:
    """A decoder that reads an encoder's `seen` positions: a step behind caches, or both on tokens."""

    def build(timed: TimedModel) -> Case:
        model = _made(f"{config}ForConditionalGeneration", config, use_cache=False, **{**IDS, **sizes})
        if not timed.past:
            inputs = {"input_ids": token_ids(timed.tokens), "decoder_input_ids": token_ids(12)}
            return selected(model, inputs, ("logits",), None)
        lengths = (timed.past, timed.past, seen, seen)
        past = [torch.zeros(1, heads, n, size) for _ in range(layers) for n in lengths]
        parts = ("decoder.key", "decoder.value", "encoder.key", "encoder.value")
        own = (f"present.{k}.{p}" for k in range(layers) for p in parts[:2])
        states = torch.zeros(1, seen, model.config.d_model)
        case = Case(Step(model), {"input_ids": token_ids(1), "past": past, "states": states}, ("logits", *own))
        case.labels = ("input_ids", *(f"past_key_values.{k}.{p}" for k in range(layers) for p in parts), "states")
        return case

    return build


def _widths(hidden: int, layers: int, heads: int, inner: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
    }


BASE = _widths(768, 3, 12, 3072)
SMALL = _widths(384, 3, 6, 1536)
DEBERTA = {
    "relative_attention": True,
    "max_relative_positions": -1,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}
DINO = {"hidden_size": 384, "num_hidden_layers": 3, "num_attention_heads": 6}
WHISPER = {"decoder_start_token_id": 1, "begin_suppress_tokens": None, "num_mel_bins": 80, "max_source_positions": 1500}
MODERN = {**IDS, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 128}


def _whisper(width: int, heads: int, layers: int) -> dict[str, int]:
    parts = ("encoder", "decoder")
    sizes = {"layers": layers, "attention_heads": heads, "ffn_dim": 4 * width}
    return {"d_model": width, **{f"{p}_{k}": v for p in parts for k, v in sizes.items()}}


#: by architecture: how its model is made
BUILDS: dict[str, Build] = {
    "bert_base": _text("BertModel", "Bert", **BASE),
    "distilbert": _text("DistilBertModel", "DistilBert", dim=768, n_layers=3, n_heads=12, hidden_dim=3072),
    "minilm": _text("BertModel", "Bert", **_widths(384, 6, 12, 1536)),
    "roberta_base": _text("RobertaModel", "Roberta", **BASE, **IDS),
    "electra_small": _text("ElectraModel", "Electra", embedding_size=128, **_widths(256, 4, 4, 1024)),
    "modernbert_base": _text("ModernBertModel", "ModernBert", **MODERN, **_widths(768, 3, 12, 1152)),
    "clip_text": _text("CLIPTextModel", "CLIPText", max_position_embeddings=77, **IDS, **_widths(512, 3, 8, 2048)),
    "vit_base": _seen("pixel_values", (3, 224, 224), "ViTModel", "ViT", **BASE),
    "deit_small": _seen("pixel_values", (3, 224, 224), "DeiTModel", "DeiT", **SMALL),
    "dinov2_small": _seen(
        "pixel_values", (3, 224, 224), "Dinov2Model", "Dinov2", image_size=224, patch_size=14, mlp_ratio=4, **DINO
    ),
    "clip_vision": _seen("pixel_values", (3, 224, 224), "CLIPVisionModel", "CLIPVision", patch_size=32, **BASE),
    "wav2vec2_base": _seen("input_values", (SPEECH,), "Wav2Vec2Model", "Wav2Vec2", **BASE),
    "albert_base": _text("AlbertModel", "Albert", embedding_size=128, **BASE),
    "mpnet_base": _text("MPNetModel", "MPNet", **BASE),
    "deberta_v3_small": _text("DebertaV2Model", "DebertaV2", **DEBERTA, **BASE),
    "siglip_base": _seen("pixel_values", (3, 224, 224), "SiglipVisionModel", "SiglipVision", **BASE),
    "beit_base": _seen("pixel_values", (3, 224, 224), "BeitModel", "Beit", use_relative_position_bias=True, **BASE),
    "swin_tiny": _seen("pixel_values", (3, 224, 224), "SwinModel", "Swin", embed_dim=96, depths=[2, 2, 2, 2]),
    "whisper_base": _cross("Whisper", 3, 8, 64, 1500, vocab_size=51865 // 2, **WHISPER, **_whisper(512, 8, 3)),
    "t5_small": _cross(
        "T5", 3, 8, 64, 64, vocab_size=32128 // 2, d_model=512, d_kv=64, d_ff=2048, num_layers=3, num_heads=8
    ),
    "gpt2": _decoder("GPT2", "GPT2LMHeadModel", vocab_size=50257 // 4, n_embd=768, n_layer=3, n_head=12),
    "opt_125m": _decoder(
        "OPT", vocab_size=50272 // 4, hidden_size=768, ffn_dim=3072, num_hidden_layers=3, num_attention_heads=12
    ),
    "qwen2_05b": _decoder("Qwen2", vocab_size=151936 // 8, num_key_value_heads=2, **_widths(896, 3, 14, 4864)),
    "qwen3_06b": _decoder(
        "Qwen3", vocab_size=151936 // 14, head_dim=128, num_key_value_heads=8, **_widths(1024, 2, 16, 3072)
    ),
    "llama32_1b": _decoder("Llama", vocab_size=128256 // 8, num_key_value_heads=8, **_widths(2048, 2, 32, 8192)),
    "smollm2_135m": _decoder("Llama", vocab_size=49152 // 10, num_key_value_heads=3, **_widths(576, 3, 9, 1536)),
    "pythia_160m": _decoder("GPTNeoX", vocab_size=50304 // 4, rotary_pct=0.25, **BASE),
    "bloom_560m": _decoder("Bloom", vocab_size=250880 // 8, hidden_size=1024, n_layer=3, n_head=16),
    "olmo2_1b": _decoder("Olmo2", vocab_size=100352 // 8, **_widths(2048, 2, 16, 8192)),
    "phi_1_5": _decoder("Phi", vocab_size=51200 // 12, **_widths(2048, 2, 32, 8192)),
    "gemma3_270m": _decoder(
        "Gemma3Text",
        "Gemma3ForCausalLM",
        vocab_size=262144 // 9,
        head_dim=256,
        num_key_value_heads=1,
        layer_types=["sliding_attention", "full_attention"],
        **_widths(640, 2, 4, 2048),
    ),
}


class _WhisperEncoder(nn.Module):
    """The encoder of a Whisper model alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.encoder = model.model.encoder

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        """A Mel spectrum [1, 80, 3000] to states [1, 1500, width]."""
        return self.encoder(input_features).last_hidden_state


def _heard(timed: TimedModel) -> Case:
    model = _made("WhisperForConditionalGeneration", "Whisper", **IDS, **WHISPER, **_whisper(384, 6, 2))
    return Case(_WhisperEncoder(model).eval(), {"input_features": torch.zeros(timed.batch, 80, 3000)}, ("states",))


BUILDS["whisper_tiny_encoder"] = _heard


def export(timed: TimedModel, folder: Path) -> Path:
    """Write a model. Raises whatever the exporter raises."""
    path = folder / timed.file
    folder.mkdir(parents=True, exist_ok=True)
    case = cast(BUILDS[timed.architecture](timed), timed.dtype)
    path.write_bytes(written(case, timed.exporter, timed.opset, timed.name))
    return path


def main() -> None:
    """Export the named models, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(MODELS)}")
    given = parser.parse_args()
    quiet()
    for name in given.names or MODELS:
        path = export(MODELS[name], given.folder)
        print(f"{path} {path.stat().st_size}", flush=True)


if __name__ == "__main__":
    main()
