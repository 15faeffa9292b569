"""Folders of onnxruntime-genai's own builder: small decoders with random weights, every architecture in one quantisation.

A program of its own, `python -m tests.runtime.genai_builds FOLDER`: torch and transformers are imported once for all of them.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

#: architecture, and what is said of it -> precision and further options of the builder
CELLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "llama": ("int4", ()),
    "llama last": ("int4", ("prune_lm_head=true",)),
    "mistral": ("int4", ("use_qdq=true",)),
    "qwen2": ("int4", ("int4_is_symmetric=false", "int4_block_size=16")),
    "qwen3": ("int8", ()),
    "gemma": ("int4", ("int4_block_size=64",)),
    "granite": ("fp32", ()),
    "nemotron": ("int8", ()),
    "olmo": ("fp32", ()),
    "hunyuan_v1_dense": ("int4", ()),
    "phi3": ("int4", ()),
    "ernie4_5": ("int4", ()),
    "gemma2": ("fp32", ()),
    "smollm3": ("int4", ()),
}
WINDOW = 8
#: those whose first layer sees so many positions, with a cache of the window's size, and what their configuration has
WINDOWED: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 16, "query_pre_attn_scalar": 16},
    "smollm3": {"use_sliding_window": True},
}
WORDS = 128
_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": WORDS + 32,  # tokenizers may add words of their own
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
#: what some architectures have beside: heads of which the others make a quarter of all, layers
_OWN: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 16},
    "gemma": {"head_dim": 16},
    "nemotron": {"head_dim": 32},
    "hunyuan_v1_dense": {"head_dim": 16},
    "phi3": {"num_hidden_layers": 2, "original_max_position_embeddings": 64},
    "ernie4_5": {"num_hidden_layers": 2, "head_dim": 16},
}


def weights(name: str, place: Path) -> None:
    """A decoder as transformers keeps it."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    more = dict(_OWN.get(name, {})) | WINDOWED.get(name, {})
    if name in WINDOWED:
        kinds = ["sliding_attention", "full_attention"]
        more |= {"sliding_window": WINDOW, "layer_types": kinds, "num_hidden_layers": len(kinds)}
    config = AutoConfig.for_model(name, **{**_SIZES, **more})
    AutoModelForCausalLM.from_config(config).save_pretrained(place)
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(WORDS)}, unk_token="w3"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w3").save_pretrained(place)


def main(place: Path) -> None:
    """Build all folders below a place."""
    for name, (precision, more) in CELLS.items():
        weights(name.partition(" ")[0], place / f"{name}-weights")
        given = ["-i", str(place / f"{name}-weights"), "-o", str(place / name), "-c", str(place / "cache")]
        sys.argv = ["builder", *given, "-p", precision, "-e", "cpu", *(["--extra_options", *more] if more else [])]
        runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
