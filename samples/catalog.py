"""The list of sample models, and the tables of README.md (`python samples/catalog.py` rewrites them)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from samples.operators import OPERATORS

HERE = Path(__file__).resolve().parent
MODELS, STORED_OPERATORS, README = HERE / "models", HERE / "operators", HERE / "README.md"
BOTH, FP32 = ("fp32", "fp16"), ("fp32",)


@dataclass(frozen=True, slots=True)
class Sample:
    """One model that `export.py` can make; its files are `models/NAME_DTYPE.onnx`."""

    name: str
    architecture: str
    shows: str
    dtypes: tuple[str, ...] = FP32
    exporter: str = "dynamo"
    opset: int = 20

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the sample's files, one per type."""
        return tuple(f"{self.name}_{dtype}.onnx" for dtype in self.dtypes)


SAMPLES = {
    sample.name: sample
    for sample in (
        Sample("llama", "Llama", "grouped-query attention, RoPE, RMSNorm, SwiGLU", BOTH),
        Sample("qwen3", "Qwen3", "QK-norm; heads wider than the hidden size", BOTH),
        Sample(
            "gemma2", "Gemma 2", "soft-capped scores and logits, post-norms, sliding window, GeGLU, tied head", BOTH
        ),
        Sample("gpt2", "GPT-2", "LayerNorm, fused QKV (Gemm, Split), GELU by tanh, tied head", BOTH),
        Sample("bert", "BERT", "post-LayerNorm, GELU, pooler (a second output)", BOTH),
        Sample("vit", "ViT", "patch convolution, class token, 17 positions", BOTH),
        Sample("llama_decode", "Llama", "one new token on a cache of 31: caches in and out", BOTH),
        Sample("llama_opset23", "Llama", "composite Attention and RMSNormalization", opset=23),
        Sample(
            "llama_composite", "Llama", "the same with RotaryEmbedding and grouped heads inside Attention", opset=23
        ),
        Sample("llama_traced", "Llama", "the tracing exporter's form, with a mask input", exporter="tracing", opset=17),
        Sample("llama_dynamic", "Llama", "symbolic batch and sequence, mask input"),
        Sample("llama_decode_dynamic", "Llama", "symbolic batch and cache length, mask input"),
        Sample("llama_eager", "Llama", "eager attention: mask added, Softmax without IsNaN and Where"),
        Sample("llama_lora", "Llama", "unmerged LoRA adapters on the query and value projections"),
        Sample("bert_masked", "BERT", "batch of 2, padding given by an attention_mask"),
        Sample("phi3", "Phi-3", "fused QKV and fused gate and up projections"),
        Sample("gpt_neox", "GPT-NeoX", "parallel residual, partial rotary embedding, fused QKV"),
        Sample("qwen3_moe", "Qwen3-MoE", "routed experts (batched matrix products)"),
    )
}


def _row(path: Path, *texts: str) -> str:
    nodes, size = len(onnx.load(path).graph.node), path.stat().st_size
    shown = f"{size} B" if size < 10_000 else f"{size / 1000:.0f} kB"
    return f"| `{path.name}` | {' | '.join(texts)} | {nodes} | {shown} |"


def _models() -> Iterator[str]:
    yield "| file | architecture | exporter | opset | type | shows | nodes | size |"
    yield "|---|---|---|---|---|---|---|---|"
    for sample in SAMPLES.values():
        for dtype, name in zip(sample.dtypes, sample.files, strict=True):
            texts = (sample.architecture, sample.exporter, str(sample.opset), dtype, sample.shows)
            yield _row(MODELS / name, *texts)


def _operators() -> Iterator[str]:
    yield "| file (and `_fp16`) | computes | small | paper (batch B) | nodes | size |"
    yield "|---|---|---|---|---|---|"
    for name, builder in OPERATORS.items():
        small, paper = (
            ", ".join(f"{k} {v}" for k, v in dims.items()) for dims in (builder.small, builder.paper_text())
        )
        yield _row(STORED_OPERATORS / f"{name}_fp32.onnx", builder.summary, small, paper)


def render(text: str) -> str:
    """README text with the tables between its markers written anew."""
    tables: dict[str, Iterable[str]] = {"models": _models(), "operators": _operators()}
    for name, rows in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = before + begin + "".join(f"{row}\n" for row in rows) + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    README.write_text(render(README.read_text()))
