"""Decoders of onnxruntime-genai's own builder: small, with random weights, patched, and run by onnxruntime-genai. What needs
the extra `genai` is skipped where it is not installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_cli as mi

TOKENS = [[5, 9, 33, 70, 12]]
LENGTH = 24


@pytest.fixture(scope="module")
def genai() -> Any:
    pytest.importorskip("transformers", reason="transformers is not installed")
    return pytest.importorskip("onnxruntime_genai", reason="onnxruntime-genai is not installed")


@pytest.fixture(scope="module")
def weights(genai: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of two layers as transformers keeps it."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("genai")
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=320,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(place / "hf")
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(320)}, unk_token="w3"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w3").save_pretrained(place / "hf")
    return place / "hf"


def built(weights: Path, precision: str, place: Path) -> Path:
    """A folder of the builder."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(weights), "-o", str(place)]
    command += ["-p", precision, "-e", "cpu", "-c", str(place / "cache"), "--extra_options", "int4_block_size=32"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return place


def tokens(genai: Any, folder: Path) -> list[int]:
    """What a folder goes on with, greedily."""
    parameters = genai.GeneratorParams(model := genai.Model(str(folder)))
    parameters.set_search_options(max_length=LENGTH, min_length=LENGTH, do_sample=False)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(np.array(TOKENS, dtype=np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(t) for t in generator.get_sequence(0)]


@pytest.mark.parametrize("precision", ["int4", "fp32"])
def test_a_patched_decoder_says_the_same(genai: Any, weights: Path, precision: str, tmp_path: Path) -> None:
    folder = built(weights, precision, tmp_path / "built")
    report = mi.optimize(folder / "model.onnx", tmp_path / "out", target="cpu", force=True, jobs=1)
    assert len(report.replaced) >= 4
    for name in ("genai_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path / "out")
    path = tmp_path / "out" / "genai_config.json"
    config = json.loads(path.read_text())
    config["model"]["decoder"]["session_options"]["custom_ops_library"] = "libmirage.so"
    path.write_text(json.dumps(config))
    said = tokens(genai, folder)
    assert len(said) > len(TOKENS[0]) and tokens(genai, tmp_path / "out") == said
