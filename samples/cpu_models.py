"""The whole models that are timed on the CPU: which, in which form, at which sizes. How they are made: `zoo/published.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimedModel:
    """A published model in one form: `tokens` in each of `batch` sequences (1 and 1 for images and sound), one step behind a
    cache where there is a `past`. With `dim`, as `optimize` takes it, sizes are symbols, and it is timed at each of
    `points`, as `bench` takes them."""

    name: str
    architecture: str
    tokens: int = 1
    batch: int = 1
    past: int = 0
    dtype: str = "fp32"
    exporter: str = "dynamo"
    opset: int = 20
    dim: tuple[str, ...] = ()
    points: tuple[tuple[str, ...], ...] = ((),)
    apart: bool = False  #: no constant was fitted to it, nor anything mended by looking at it

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}.onnx"

    def size(self, point: tuple[str, ...]) -> str:
        """What it is timed at, in words."""
        if point:
            return " ".join(point)
        past = f" behind {self.past}" if self.past else ""
        return f"{self.batch}x{self.tokens}{past}"


def encoder(architecture: str, tokens: int = 1, batch: int = 1, dtype: str = "fp32") -> TimedModel:
    """All positions at once."""
    name = f"{architecture}_{tokens}" if tokens > 1 else architecture
    name = f"{name}_b{batch}" if batch > 1 else name
    return TimedModel(name if dtype == "fp32" else f"{name}_{dtype}", architecture, tokens, batch, 0, dtype)


def step(architecture: str, past: int, dtype: str = "fp32") -> TimedModel:
    """One position behind a cache."""
    name = f"{architecture}_step" + ("" if dtype == "fp32" else f"_{dtype}")
    return TimedModel(name, architecture, 1, 1, past, dtype)


def _models() -> Iterator[TimedModel]:
    symbolic = ("batch=1:1:8", "sequence=2:64:512")
    points = tuple((f"batch={b}", f"sequence={s}") for b, s in ((1, 16), (4, 16), (1, 128), (8, 64), (1, 384)))
    yield TimedModel("minilm", "minilm", 64, 2, dim=symbolic, points=points, exporter="tracing", opset=17)
    yield encoder("bert_base", 128)
    yield encoder("bert_base", 16)
    yield encoder("distilbert", 384)
    yield encoder("roberta_base", 64)
    yield encoder("electra_small", 128)
    yield encoder("modernbert_base", 256)
    yield encoder("clip_text", 77)
    yield encoder("clip_vision")
    yield encoder("vit_base")
    yield encoder("deit_small")
    yield encoder("dinov2_small")
    yield encoder("wav2vec2_base")
    yield encoder("whisper_tiny_encoder")
    yield step("whisper_base", 64)
    yield encoder("t5_small", 64)
    yield step("t5_small", 32)
    yield encoder("gpt2", 96)
    yield step("gpt2", 128)
    yield encoder("opt_125m", 32)
    yield encoder("qwen2_05b", 64)
    yield step("qwen2_05b", 256)
    yield step("qwen3_06b", 128)
    yield encoder("llama32_1b", 32)
    yield step("llama32_1b", 128)
    yield encoder("gemma3_270m", 128)
    yield step("gemma3_270m", 256)
    past = tuple((f"past={n}",) for n in (31, 511))
    yield TimedModel("smollm2_135m_step", "smollm2_135m", 1, 1, 127, dim=("past=1:256:1024",), points=past)
    yield encoder("bert_base", 128, dtype="fp16")
    yield step("llama32_1b", 128, "fp16")


_KEPT_APART = (
    encoder("albert_base", 128),
    encoder("mpnet_base", 64),
    encoder("deberta_v3_small", 64),
    encoder("siglip_base"),
    encoder("beit_base"),
    encoder("swin_tiny"),
    encoder("pythia_160m", 64),
    step("bloom_560m", 64),
    step("olmo2_1b", 128),
    step("phi_1_5", 128),
)

MODELS: dict[str, TimedModel] = {
    m.name: m for m in (*_models(), *(dataclasses.replace(m, apart=True) for m in _KEPT_APART))
}
