"""Whether onnxruntime loads a patched model, without its library and with it, tried in a process of its own.

onnxruntime inlines the functions of operators that it has no library for, and may end the process where it cannot. What is
to blame is found by trying parts of the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mirage_cli import isolation, runtime

OPTIMIZED_BYTES = 1 << 26  #: of a model and its data up to which onnxruntime may optimize it, as it does by default
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trial:
    """A model to be loaded: its path, or its bytes with the folder of its data."""

    model: str | bytes
    library: str = ""
    data: str = ""
    optimize: bool = False


def load(trial: Trial) -> None:
    """Load a model. Raises MirageError; onnxruntime may end the process."""
    isolation.doing(f"onnxruntime loaded the model {'with' if trial.library else 'without'} the library")
    data, library = Path(trial.data) if trial.data else None, Path(trial.library) if trial.library else None
    runtime.session(trial.model, library, threads=1, optimize=trial.optimize, data=data)


def problems(trials: Sequence[Trial], max_memory: int) -> list[str]:
    """Why each model does not load; nothing for one that does."""
    found = [""] * len(trials)
    for k, outcome in isolation.each(load, [(t,) for t in trials], 1, max_memory, apart=True):
        if isinstance(outcome, isolation.Lost):
            found[k] = outcome.reason
    return found


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
    found = [*to_blame(parts[:half], fails), *to_blame(parts[half:], fails)]
    return found or [(p, reason) for p in parts]
