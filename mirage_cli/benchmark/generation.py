"""Tokens a second of a folder in onnxruntime-genai, original against patched: the prompt and the steps behind it apart.

Both run in turns in one process of its own, which imports nothing else that brings an onnxruntime.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mirage_cli import __version__
from mirage_cli.benchmark.options import BenchOptions
from mirage_cli.errors import UsageError
from mirage_cli.frontends import folders
from mirage_cli.machine import devices, packages
from mirage_cli.measurement.timing import Distribution
from mirage_cli.processes import isolation
from mirage_cli.processes.isolation import Lost
from mirage_cli.report import models, reader

PROMPT = 128  #: tokens of the prompt, where the model takes as many and what is generated
LEAST, MOST = 3, 100  #: rounds, unless their number is given
ORIGINAL, MIRAGE = "original", "mirage"
HINT = (
    "pip install onnxruntime-genai (or onnxruntime-genai-cuda); without --generate the models are timed in onnxruntime"
)


@dataclass(frozen=True, slots=True)
class Speed:
    """A folder's tokens a second, in its prompt and its steps, and the tokens that it went on with; or why there are none."""

    name: str
    prompt: Distribution | None = None
    steps: Distribution | None = None
    tokens: tuple[int, ...] = ()
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """An element of `contestants`."""
        times = {k: d and d.to_json() for k, d in (("prompt", self.prompt), ("steps", self.steps))}
        return {"name": self.name, "tokens_per_second": times, "tokens": list(self.tokens), "problem": self.problem}


@dataclass(frozen=True, slots=True)
class GenerationReport:
    """Generation measured, by contestant; the original is absent where its folder is not there any more, which is a note."""

    device: str
    runtime: str
    prompt_tokens: int
    contestants: tuple[Speed, ...]
    notes: tuple[str, ...] = ()

    @property
    def wrong(self) -> bool:
        """True if a folder does not generate."""
        return any(s.problem for s in self.contestants)

    @property
    def same(self) -> int:
        """The number of tokens up to the first one in which the contestants differ."""
        told = [s.tokens for s in self.contestants]
        return next((k for k, ts in enumerate(zip(*told, strict=False)) if len(set(ts)) > 1), min(map(len, told)))

    def to_json(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "mirage": __version__,
            "device": self.device,
            "runtime": self.runtime,
            "prompt_tokens": self.prompt_tokens,
            "contestants": [s.to_json() for s in self.contestants],
            "same_tokens": self.same,
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """A table, tokens a second: medians with quartiles."""
        lines = [f"{self.runtime} on {self.device}", "", f"{'tokens a second':16}{'prompt':>24}{'steps':>24}"]
        for s in self.contestants:
            lines.append(f"{s.name:16}{_cell(s.prompt):>24}{_cell(s.steps):>24}  {s.problem}".rstrip())
        count = max(len(s.tokens) for s in self.contestants)
        lines += ["", f"prompt of {self.prompt_tokens} tokens, {count} generated"]
        lines += [f"the same tokens: {self.same} of {count}"] if len(self.contestants) > 1 else []
        return "\n".join([*lines, *self.notes]) + "\n"


def generate(folder: Path, count: int, options: BenchOptions) -> GenerationReport:
    """Measure `count` tokens behind a prompt. `folder` is the output of a folder of onnxruntime-genai, or such a folder.

    Raises ModelError for another folder, UsageError where its model has no room for so many tokens, ToolMissing without
    onnxruntime-genai, Crashed and OutOfTime for what ends the process that measures.
    """
    config = folders.read_config(folder)
    length = int(config["model"].get("context_length", PROMPT + count))
    prompt = min(PROMPT, length - count)
    if prompt < 1:
        raise UsageError(f"--generate {count}: the model has room for {length} tokens, its prompt included")
    notes: tuple[str, ...] = ()
    contestants = [(MIRAGE if folders.is_output(folder) else ORIGINAL, str(folder.absolute()))]
    original = _original(folder)
    if original is not None and (original / folders.CONFIG).is_file():
        contestants.insert(0, (ORIGINAL, str(original.absolute())))
    elif original is not None:
        notes = (f"the original folder {original} is not there any more",)
    words = int(config["model"].get("vocab_size", 0)) or 2
    tokens = np.random.default_rng(options.seed).integers(0, words, prompt).astype(np.int32)
    provider = "cuda" if options.gpu is not None else "cpu" if options.cpu else ""
    job = (contestants, tokens, count, provider, options.seconds, options.runs)
    ((_, found),) = isolation.each(measured, [job], 1, options.max_memory, apart=True, seconds=options.timeout)
    if isinstance(found, Lost):
        raise found.raised()
    runtime, speeds = found
    return GenerationReport(devices.name(provider or "cpu", options.gpu or 0), runtime, prompt, tuple(speeds), notes)


def _original(folder: Path) -> Path | None:
    """The folder that an output folder was made from; None for what is no output. Raises ModelError."""
    if not folders.is_output(folder):
        return None
    index = models.index(folder)
    if index is not None:
        return Path(index.folder)
    file = Path(reader.read(folder)["model"]["path"])
    return next((p for p in file.parents if (p / folders.CONFIG).is_file()), file.parent)


def measured(
    contestants: Sequence[tuple[str, str]],
    prompt: np.ndarray[Any, Any],
    count: int,
    provider: str,
    seconds: float,
    runs: int | None,
) -> tuple[str, list[Speed]]:
    """The runtime's name and what each folder reaches, in turns; made in a process of its own."""
    genai = packages.imported("onnxruntime_genai", "--generate", HINT)
    speeds, ready = {}, {}
    for name, folder in contestants:
        try:
            ready[name] = _opened(genai, folder, provider)
            _once(genai, ready[name], prompt, count)  # the first run allocates
        except Exception as error:  # whatever a model or its library raises
            ready.pop(name, None)
            speeds[name] = Speed(name, problem=f"failed: {' '.join(str(error).split())}")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ready}
    tokens: dict[str, tuple[int, ...]] = {}
    end, names = time.perf_counter() + seconds, list(ready)
    for k in range(runs or MOST):
        if not ready or (runs is None and k >= LEAST and time.perf_counter() > end):
            break
        for name in names[k % len(names) :] + names[: k % len(names)]:
            *took, tokens[name] = _once(genai, ready[name], prompt, count)
            times[name].append((len(prompt) / took[0], max(count - 1, 1) / took[1]))
    for name, rows in times.items():
        first, steps = (Distribution(column) for column in zip(*rows, strict=True))
        speeds[name] = Speed(name, first, steps if count > 1 else None, tokens[name])
    version = getattr(genai, "__version__", "")
    return f"onnxruntime-genai {version}".strip(), [speeds[name] for name, _ in contestants]


def _opened(genai: Any, folder: str, provider: str) -> Any:
    """A folder's model on the provider of its configuration, or on another one."""
    config = genai.Config(folder)
    if provider:
        config.clear_providers()
        if provider != "cpu":
            config.append_provider(provider)
    return genai.Model(config)


def _once(genai: Any, model: Any, prompt: np.ndarray[Any, Any], count: int) -> tuple[float, float, tuple[int, ...]]:
    """Seconds until the first token is there, seconds for the others, and all of them: the likeliest ones."""
    parameters = genai.GeneratorParams(model)
    length = len(prompt) + count
    parameters.set_search_options(max_length=length, min_length=length, do_sample=False)
    generator = genai.Generator(model, parameters)
    start = time.perf_counter()
    generator.append_tokens(prompt[None])
    generator.generate_next_token()
    first = time.perf_counter()
    for _ in range(count - 1):
        generator.generate_next_token()
    end = time.perf_counter()
    return first - start, end - first, tuple(int(t) for t in generator.get_sequence(0)[len(prompt) :])


def _cell(rate: Distribution | None) -> str:
    if rate is None:
        return "-"
    low, high = rate.quartiles
    return f"{rate.median:.0f} ({low:.0f}-{high:.0f})"
