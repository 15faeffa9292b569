"""Exports the sample models: `python samples/export.py [NAME ...] [--out DIR] [--check]` (needs torch, transformers).

Two layers, random weights that depend on the seed and the parameter's name only: every variant of an architecture has
the same weights, and fp16 is fp32 rounded. The list of samples is in `catalog.py`; this file says how each is made.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import onnx
import torch
import transformers
from torch import Tensor, nn
from transformers.models.llama import modeling_llama

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from samples.building import Case, cast, prompt, token_ids, written
from samples.catalog import MODELS, SAMPLES, Sample
from samples.zoo import blocks, decoders, experts
from samples.zoo.architecture import Form, causal
from samples.zoo.encoders import bert_model, vit_model

SIZE_LIMIT = 1_000_000


# Architectures


def bert(masked: bool = False) -> Case:
    """BERT with its pooler; `masked` adds the padding mask and a batch of 2."""
    inputs = {"input_ids": token_ids(batch=2 if masked else 1)}
    if masked:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    return Case(bert_model(), dict(inputs), ("last_hidden_state", "pooler_output"))


def vit() -> Case:
    """32 x 32 pixels in patches of 8: 16 patches and the class token."""
    return Case(vit_model(), {"pixel_values": torch.zeros(1, 3, 32, 32)})


# Variants


def llama_composite() -> Case:
    """Rotary embedding and attention as the standard's own operators, grouped heads left to Attention."""
    transformers.AttentionInterface.register("standard", _standard_attention)
    return prompt(StandardRotary(decoders.llama(attention="standard")))


class StandardRotary(nn.Module):
    """A Llama that calls the standard's RotaryEmbedding, for as long as its forward runs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        """The logits."""
        with mock.patch.object(modeling_llama, "apply_rotary_pos_emb", _standard_rotary):
            return self.model(input_ids=input_ids).logits


def _standard_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = (table[..., : table.shape[-1] // 2] for table in (cos, sin))
    rotary = torch.onnx.ops.rotary_embedding
    return rotary(q, cos, sin), rotary(k, cos, sin)


def _standard_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    out, *_rest = torch.onnx.ops.attention(query, key, value, is_causal=True, scale=scaling)
    return out.transpose(1, 2), None


CASES: dict[str, Callable[[], Case]] = {
    "llama": lambda: prompt(decoders.llama()),
    "qwen3": lambda: prompt(decoders.qwen3(), 20),
    "gemma2": lambda: prompt(decoders.gemma2(), 24),
    "gpt2": lambda: prompt(decoders.gpt2()),
    "bert": bert,
    "vit": vit,
    "llama_decode": lambda: causal(decoders.llama(), Form(cache=True)),
    "llama_opset23": lambda: prompt(decoders.llama()),
    "llama_composite": llama_composite,
    "llama_traced": lambda: causal(decoders.llama(), Form(masked=True)),
    "llama_dynamic": lambda: causal(decoders.llama(), Form(dynamic=True, masked=True)),
    "llama_decode_dynamic": lambda: causal(decoders.llama(), Form(cache=True, dynamic=True, masked=True)),
    "llama_eager": lambda: prompt(decoders.llama(attention="eager")),
    "llama_lora": lambda: prompt(blocks.adapted(decoders.llama(), ("q_proj", "v_proj"))),
    "bert_masked": lambda: bert(masked=True),
    "phi3": lambda: prompt(decoders.phi3()),
    "gpt_neox": lambda: prompt(decoders.gpt_neox()),
    "qwen3_moe": lambda: prompt(experts.qwen3_moe(), 12),
}


# Writing


def export(sample: Sample, dtype: str, folder: Path) -> Path:
    """Write one file and return its path."""
    path = folder / f"{sample.name}_{dtype}.onnx"
    data = written(cast(CASES[sample.name](), dtype), sample.exporter, sample.opset, path.stem)
    if len(data) > SIZE_LIMIT:
        raise SystemExit(f"{path.name}: {len(data)} bytes, the limit is {SIZE_LIMIT}")
    onnx.checker.check_model(data, full_check=True)
    path.write_bytes(data)
    return path


def check(samples: Iterable[tuple[Sample, str]]) -> list[str]:
    """Names of the checked-in files that a new export would change."""
    changed = []
    with tempfile.TemporaryDirectory() as folder:
        for sample, dtype in samples:
            new = export(sample, dtype, Path(folder))
            old = MODELS / new.name
            same = old.is_file() and old.read_bytes() == new.read_bytes()
            print(f"{new.name}: {'same' if same else 'DIFFERS'}")
            if not same:
                changed.append(new.name)
    return changed


def main() -> None:
    """Export the chosen samples, or compare a new export with what is checked in."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all of them by default")
    parser.add_argument("--all", action="store_true", help="every sample (the default without names)")
    parser.add_argument("--out", type=Path, default=MODELS, metavar="DIR")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a checked-in file would change")
    given = parser.parse_args()
    if unknown := set(given.names) - set(SAMPLES):
        parser.error(f"no sample {', '.join(sorted(unknown))}; there are {', '.join(SAMPLES)}")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    names = SAMPLES if given.all or not given.names else given.names
    chosen = [(SAMPLES[name], dtype) for name in names for dtype in SAMPLES[name].dtypes]
    if given.check:
        sys.exit(1 if check(chosen) else 0)
    given.out.mkdir(parents=True, exist_ok=True)
    for sample, dtype in chosen:
        path = export(sample, dtype, given.out)
        print(f"{path} {path.stat().st_size}", flush=True)


if __name__ == "__main__":
    main()
