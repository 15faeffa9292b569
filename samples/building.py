"""Parts of the exports of `export.py` and `zoo/`: random weights, small decoders, caches as lists, and writing.

A parameter's values depend on the seed and its name only: every variant of an architecture has the same weights, and
fp16 and bf16 are fp32 rounded.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers
from google.protobuf.message import Message
from torch import Tensor, nn

SEED, LAYERS, VOCABULARY, TOKENS, CACHED = 0, 2, 128, 16, 31
LESS_ONE = ("Gemma2RMSNorm", "Gemma3RMSNorm")  #: norms that store their gain less one
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass
class Case:
    """A model with the arguments it is exported on; a list of tensors is one argument and several graph inputs."""

    model: nn.Module
    inputs: dict[str, Tensor | list[Tensor]]
    outputs: tuple[str, ...] = ("logits",)
    dynamic: dict[str, Any] | None = None
    labels: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The graph's inputs: their `labels` if there are any."""
        if self.labels:
            return list(self.labels)
        flat = (
            [name] if isinstance(value, Tensor) else cache_names("past_key_values", len(value) // 2)
            for name, value in self.inputs.items()
        )
        return [name for names in flat for name in names]

    @property
    def axes(self) -> dict[str, dict[int, str]]:
        """The symbolic dimensions in the tracing exporter's form: names by graph input and dimension."""
        given = [d for v in (self.dynamic or {}).values() for d in (v if isinstance(v, list) else [v])]
        return {n: {k: str(d.__name__) for k, d in dims.items()} for n, dims in zip(self.names, given, strict=True)}


def cache_names(prefix: str, layers: int) -> list[str]:
    """Names of a cache's tensors, key and value for each layer."""
    return [f"{prefix}.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]


# Weights


def randomise(model: nn.Module, prefix: str = "") -> nn.Module:
    """Give every parameter its own random values of a sane scale, norm gains and biases included."""
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            rng = np.random.default_rng([SEED, zlib.crc32(f"{prefix}{path}.{name}".encode())])
            mean, std = _distribution(module, name, parameter)
            values = mean + std * rng.standard_normal(tuple(parameter.shape))
            parameter.data = torch.from_numpy(np.asarray(values, np.float32))
    return model.eval()


def _distribution(module: nn.Module, name: str, parameter: Tensor) -> tuple[float, float]:
    kind = type(module).__name__
    if "Norm" in kind:
        return float(name == "weight" and kind not in LESS_ONE), 0.1
    if name == "bias":
        return 0.0, 0.1
    if kind == "Embedding" or "Embeddings" in kind:
        return 0.0, 0.5
    if parameter.ndim <= 1:  # a scale
        return 1.0, 0.1
    if kind == "Conv1D" or (parameter.ndim == 3 and kind != "Conv1d"):  # stored [in, out]; experts: [expert, out, in]
        return 0.0, parameter.shape[0 if kind == "Conv1D" else 2] ** -0.5
    return 0.0, (parameter.numel() / parameter.shape[0]) ** -0.5


def cast(case: Case, dtype: str) -> Case:
    """The same case in another type; buffers such as RoPE frequencies stay fp32, as when loading a checkpoint."""
    if dtype == "fp32":
        return case
    for parameter in case.model.parameters():
        parameter.data = parameter.data.to(TYPES[dtype])
    for name, value in case.inputs.items():
        case.inputs[name] = [_to(t, dtype) for t in value] if isinstance(value, list) else _to(value, dtype)
    return case


def _to(tensor: Tensor, dtype: str) -> Tensor:
    return tensor.to(TYPES[dtype]) if tensor.is_floating_point() else tensor


# Architectures


def decoder(name: str, **options: Any) -> nn.Module:
    """A causal language model of `transformers`: two layers of hidden size 64, 4 query and 2 key heads."""
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
    attention, model = options.pop("attention", "sdpa"), options.pop("causal", f"{name}ForCausalLM")
    config = getattr(transformers, f"{name}Config")(**{**sizes, **options})
    config._attn_implementation = attention
    return randomise(getattr(transformers, model)(config))


def token_ids(tokens: int = TOKENS, batch: int = 1) -> Tensor:
    """Token ids [batch, tokens], counting up."""
    return torch.arange(batch * tokens).reshape(batch, tokens) % VOCABULARY


def prompt(model: nn.Module, tokens: int = TOKENS) -> Case:
    """A model of token ids, exported on one prompt."""
    return Case(model, {"input_ids": token_ids(tokens)})


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


# Writing


def written(case: Case, exporter: str, opset: int, name: str) -> bytes:
    """The exported model as it is, but without documentation strings, its graph called `name`.

    Raises whatever the exporter raises.
    """
    names: dict[str, Any] = {"input_names": case.names, "output_names": list(case.outputs)}
    with torch.no_grad(), tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "model.onnx"
        if exporter == "tracing":
            axes = {"dynamic_axes": case.axes} if case.dynamic else {}
            torch.onnx.export(
                case.model, tuple(case.inputs.values()), raw, opset_version=opset, dynamo=False, **axes, **names
            )
        else:
            options = {"dynamic_shapes": case.dynamic, "external_data": False, "verbose": False, **names}
            torch.onnx.export(case.model, (), raw, kwargs=case.inputs, opset_version=opset, dynamo=True, **options)
        model = onnx.load(raw)
    strip(model)
    for key, module in (("torch", torch), ("transformers", transformers)):
        model.metadata_props.add(key=key, value=module.__version__.split("+")[0])
    model.graph.name = name
    return model.SerializeToString(deterministic=True)


def strip(message: Message) -> None:
    """Clear documentation strings and metadata everywhere: stack traces and paths of the machine that exported."""
    for field, value in message.ListFields():
        if field.name in ("doc_string", "metadata_props"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for part in value if isinstance(value, Iterable) else (value,):
                strip(part)
