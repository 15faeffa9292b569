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
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import torch
import transformers
from google.protobuf.message import Message
from torch import Tensor, nn
from transformers.models.llama import modeling_llama

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from samples.catalog import MODELS, SAMPLES, Sample

SEED, LAYERS, VOCABULARY, TOKENS, CACHED = 0, 2, 128, 16, 31
SIZE_LIMIT = 1_000_000


@dataclass
class Case:
    """A model with the arguments it is exported on; a list of tensors is one argument and several graph inputs."""

    model: nn.Module
    inputs: dict[str, Tensor | list[Tensor]]
    outputs: tuple[str, ...] = ("logits",)
    dynamic: dict[str, Any] | None = None

    @property
    def names(self) -> list[str]:
        """The graph's inputs."""
        flat = (
            [name] if isinstance(value, Tensor) else _cache_names("past_key_values")
            for name, value in self.inputs.items()
        )
        return [name for names in flat for name in names]


def _cache_names(prefix: str) -> list[str]:
    return [f"{prefix}.{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]


# Weights


def randomise(model: nn.Module, prefix: str = "") -> nn.Module:
    """Give every parameter its own random values of a sane scale, norm gains and biases included."""
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            rng = np.random.default_rng([SEED, zlib.crc32(f"{prefix}{path}.{name}".encode())])
            mean, std = _distribution(module, name, parameter)
            values = mean + std * rng.standard_normal(tuple(parameter.shape))
            parameter.data = torch.from_numpy(values.astype(np.float32))
    return model.eval()


def _distribution(module: nn.Module, name: str, parameter: Tensor) -> tuple[float, float]:
    kind = type(module).__name__
    if "Norm" in kind:
        return float(name == "weight" and kind != "Gemma2RMSNorm"), 0.1  # Gemma stores the gain less one
    if name == "bias":
        return 0.0, 0.1
    if kind == "Embedding" or "Embeddings" in kind:
        return 0.0, 0.5
    if kind == "Conv1D" or parameter.ndim == 3:  # stored [in, out]; experts: [expert, out, in]
        return 0.0, parameter.shape[0 if kind == "Conv1D" else 2] ** -0.5
    return 0.0, (parameter.numel() / parameter.shape[0]) ** -0.5


def half(case: Case) -> Case:
    """The same case in fp16; buffers such as RoPE frequencies stay fp32, as when loading a checkpoint."""
    for parameter in case.model.parameters():
        parameter.data = parameter.data.half()
    case.inputs = {k: [_half(t) for t in v] if isinstance(v, list) else _half(v) for k, v in case.inputs.items()}
    return case


def _half(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


# Architectures


def _decoder(name: str, **options: Any) -> nn.Module:
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "use_cache": False,
    }
    attention = options.pop("attention", "sdpa")
    config = getattr(transformers, f"{name}Config")(**{**sizes, **options})
    config._attn_implementation = attention
    return randomise(getattr(transformers, f"{name}ForCausalLM")(config))


def _ids(tokens: int = TOKENS, batch: int = 1) -> Tensor:
    return torch.arange(batch * tokens).reshape(batch, tokens) % VOCABULARY


def _prompt(model: nn.Module, tokens: int = TOKENS) -> Case:
    return Case(model, {"input_ids": _ids(tokens)})


def _llama(**options: Any) -> nn.Module:
    """Llama: 4 query and 2 key heads of 16."""
    return _decoder("Llama", head_dim=16, **options)


def qwen3() -> Case:
    """Heads of 32: the projections are wider than the hidden size."""
    return _prompt(_decoder("Qwen3", head_dim=32), 20)


def gemma2() -> Case:
    """A window of 8 in every other layer; soft-capping exists in eager attention only."""
    options = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8, "intermediate_size": 128}
    return _prompt(_decoder("Gemma2", attention="eager", **options), 24)


def gpt2() -> Case:
    """Hidden size 96, three heads of 32."""
    sizes = {
        "vocab_size": VOCABULARY,
        "n_positions": 32,
        "n_embd": 96,
        "n_layer": LAYERS,
        "n_head": 3,
        "use_cache": False,
    }
    config = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)
    return _prompt(randomise(transformers.GPT2LMHeadModel(config)))


ENCODER = {"hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 192}


def bert(masked: bool = False) -> Case:
    """BERT with its pooler; `masked` adds the padding mask and a batch of 2."""
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=32, **ENCODER)
    inputs = {"input_ids": _ids(batch=2 if masked else 1)}
    if masked:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    return Case(randomise(transformers.BertModel(config)), inputs, ("last_hidden_state", "pooler_output"))


def vit() -> Case:
    """32 x 32 pixels in patches of 8: 16 patches and the class token."""
    config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=10, **ENCODER)
    return Case(randomise(transformers.ViTForImageClassification(config)), {"pixel_values": torch.zeros(1, 3, 32, 32)})


class WithCache(nn.Module):
    """A decoder whose cache is a flat list of tensors, key and value per layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, past: list[Tensor], attention_mask: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Logits, then the caches grown by the new tokens."""
        cache = transformers.DynamicCache(config=self.model.config)
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        return (out.logits, *(t for layer in out.past_key_values.layers for t in (layer.keys, layer.values)))


class MaskedLogits(nn.Module):
    """Tokens and mask to logits, positionally: what the tracing exporter can name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The logits."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


class LoraLinear(nn.Module):
    """A linear layer with an unmerged low-rank adapter."""

    def __init__(self, base: nn.Linear, rank: int = 4, scale: float = 2.0) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """W x + scale B A x."""
        return self.base(x) + self.scale * self.lora_b(self.lora_a(x))


# Variants


def llama_decode(dynamic: bool = False) -> Case:
    """One token on a cache of CACHED; `dynamic` makes batch and cache length symbols and adds the padding mask."""
    batch = 2 if dynamic else 1
    past = [torch.zeros(batch, 2, CACHED, 16) for _ in range(2 * LAYERS)]
    case = Case(WithCache(_llama()), {"input_ids": _ids(1, batch), "past": past}, ("logits", *_cache_names("present")))
    if dynamic:
        case.inputs["attention_mask"] = torch.ones(batch, CACHED + 1, dtype=torch.int64)
        rows, length = torch.export.Dim("batch"), torch.export.Dim("past")
        caches = [{0: rows, 2: length}] * len(past)
        case.dynamic = {"input_ids": {0: rows}, "past": caches, "attention_mask": {0: rows, 1: length + 1}}
    return case


def llama_dynamic() -> Case:
    """Symbolic batch and sequence."""
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    inputs = {"input_ids": _ids(batch=2), "attention_mask": torch.ones(2, TOKENS, dtype=torch.int64)}
    return Case(MaskedLogits(_llama()), inputs, dynamic=dict.fromkeys(inputs, axes))


def llama_traced() -> Case:
    """The tracing exporter takes causal models only with a mask."""
    return Case(
        MaskedLogits(_llama()), {"input_ids": _ids(), "attention_mask": torch.ones(1, TOKENS, dtype=torch.int64)}
    )


def llama_composite() -> Case:
    """Rotary embedding and attention as the standard's own operators, grouped heads left to Attention."""
    transformers.AttentionInterface.register("standard", _standard_attention)
    return _prompt(StandardRotary(_llama(attention="standard")))


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


def llama_lora() -> Case:
    """Adapters on the query and value projections."""
    model = _llama()
    for index, layer in enumerate(model.model.layers):
        for name in ("q_proj", "v_proj"):
            adapted = LoraLinear(getattr(layer.self_attn, name))
            for adapter in ("lora_a", "lora_b"):
                randomise(getattr(adapted, adapter), f"{index}.{name}.{adapter}")
            setattr(layer.self_attn, name, adapted)
    return _prompt(model)


def phi3() -> Case:
    """Fused projections."""
    return _prompt(_decoder("Phi3"))


def gpt_neox() -> Case:
    """A quarter of each head is rotated; attention and MLP run side by side."""
    return _prompt(_decoder("GPTNeoX", use_parallel_residual=True))


def qwen3_moe() -> Case:
    """Two of four experts per token."""
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
    model = _decoder("Qwen3Moe", head_dim=16, **sizes)
    model.set_experts_implementation("batched_mm")
    return _prompt(model, 12)


CASES: dict[str, Callable[[], Case]] = {
    "llama": lambda: _prompt(_llama()),
    "qwen3": qwen3,
    "gemma2": gemma2,
    "gpt2": gpt2,
    "bert": bert,
    "vit": vit,
    "llama_decode": llama_decode,
    "llama_opset23": lambda: _prompt(_llama()),
    "llama_composite": llama_composite,
    "llama_traced": llama_traced,
    "llama_dynamic": llama_dynamic,
    "llama_decode_dynamic": lambda: llama_decode(dynamic=True),
    "llama_eager": lambda: _prompt(_llama(attention="eager")),
    "llama_lora": llama_lora,
    "bert_masked": lambda: bert(masked=True),
    "phi3": phi3,
    "gpt_neox": gpt_neox,
    "qwen3_moe": qwen3_moe,
}


# Writing


def export(sample: Sample, dtype: str, folder: Path) -> Path:
    """Write one file and return its path."""
    case = CASES[sample.name]()
    if dtype == "fp16":
        case = half(case)
    path = folder / f"{sample.name}_{dtype}.onnx"
    names: dict[str, Any] = {"input_names": case.names, "output_names": list(case.outputs)}
    with torch.no_grad(), tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "model.onnx"
        if sample.exporter == "tracing":
            torch.onnx.export(
                case.model, tuple(case.inputs.values()), raw, opset_version=sample.opset, dynamo=False, **names
            )
        else:
            options = {"dynamic_shapes": case.dynamic, "external_data": False, "verbose": False, **names}
            torch.onnx.export(
                case.model, (), raw, kwargs=case.inputs, opset_version=sample.opset, dynamo=True, **options
            )
        model = onnx.load(raw)
    strip(model)
    for key, module in (("torch", torch), ("transformers", transformers)):
        model.metadata_props.add(key=key, value=module.__version__.split("+")[0])
    model.graph.name = path.stem
    onnx.checker.check_model(model, full_check=True)
    data = model.SerializeToString(deterministic=True)
    if len(data) > SIZE_LIMIT:
        raise SystemExit(f"{path.name}: {len(data)} bytes, the limit is {SIZE_LIMIT}")
    path.write_bytes(data)
    return path


def strip(message: Message) -> None:
    """Clear documentation strings and metadata everywhere: stack traces and paths of the machine that exported."""
    for field, value in message.ListFields():
        if field.name in ("doc_string", "metadata_props"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for part in value if isinstance(value, Iterable) else (value,):
                strip(part)


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
