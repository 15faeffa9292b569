"""Trials of a patched model in onnxruntime: loaded and run without its library and with it, in a process of its own.

onnxruntime inlines the functions of operators that it has no library for, and may end the process where it cannot; what their
nodes refuse shows when they run. What is to blame is found by trying parts of the operators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from mirage_cli.errors import OutOfTime
from mirage_cli.processes import isolation
from mirage_cli.runtime import sessions

OPTIMIZED_BYTES = 1 << 26  #: of a model and its data up to which onnxruntime may optimize it, as it does by default
RUN_SECONDS = 20.0  #: of a run, which is ended then: it has not failed
LOADS, RUNS = "load", "run"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trial:
    """A model to be loaded: its path, or its bytes with the folder of its data; and run, where there are inputs."""

    model: str | bytes
    library: str = ""
    data: str = ""
    optimize: bool = False
    inputs: Mapping[str, NDArray[Any]] | None = None


def load(trial: Trial) -> None:
    """Load a model, and run it. Raises MirageError; onnxruntime may end the process."""
    which = f"the model {'with' if trial.library else 'without'} the library"
    isolation.doing(f"onnxruntime loaded {which}")
    data, library = Path(trial.data) if trial.data else None, Path(trial.library) if trial.library else None
    session = sessions.session(trial.model, library, threads=1, optimize=trial.optimize, data=data)
    if trial.inputs is not None:
        isolation.doing(f"onnxruntime ran {which}")
        with contextlib.suppress(OutOfTime):
            sessions.run(session, trial.inputs, RUN_SECONDS)


def problems(trials: Sequence[Trial], max_memory: int) -> list[str]:
    """Why each model does not load, or does not run; nothing for one that does."""
    reasons = [""] * len(trials)
    for k, outcome in isolation.each(load, [(t,) for t in trials], 1, max_memory, apart=True):
        if isinstance(outcome, isolation.Lost):
            reasons[k] = outcome.reason
    return reasons


def what_failed(reason: str) -> str:
    """The step that fails, in a word, of which the reason is one of `problems`."""
    return RUNS if reason.startswith(sessions.FAILED) or "while onnxruntime ran" in reason else LOADS


def size(path: Path) -> int:
    """Bytes of a model and of what lies beside it."""
    return sum(p.stat().st_size for p in path.parent.iterdir() if p.is_file())


def to_blame(parts: Sequence[T], fails: Callable[[Sequence[T]], str]) -> list[tuple[T, str]]:
    """The parts that fail alone, each with its reason; where only several of them fail together, all of these."""
    reason = fails(parts)
    if not reason:
        return []
    if len(parts) == 1:
        return [(parts[0], reason)]
    half = len(parts) // 2
    halves = [*to_blame(parts[:half], fails), *to_blame(parts[half:], fails)]
    return halves or [(p, reason) for p in parts]
