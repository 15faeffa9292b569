"""The patched model written, and tried in onnxruntime before it is handed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mirage_cli.errors import MirageError
from mirage_cli.files.datafile import Piece
from mirage_cli.files.output import MODEL
from mirage_cli.frontends.imported import Imported
from mirage_cli.optimization import assembly
from mirage_cli.optimization.task import Work
from mirage_cli.runtime import loading, sessions
from mirage_cli.runtime.example import Arrays, example_inputs
from mirage_cli.runtime.loading import Trial


@dataclass(frozen=True, slots=True)
class Outcome:
    """The fragments that cannot be part of the patched model, each with the reason, and what else there is to tell."""

    blamed: tuple[tuple[Work, str], ...] = ()
    note: str = ""


def write(
    imported: Imported,
    chosen: Sequence[Work],
    draft: Path,
    library: Path | None,
    max_memory: int,
    pieces: list[Piece],
    sizes: Mapping[str, int],
) -> Outcome:
    """Write the model with the chosen fragments replaced into the draft, beside the library, where it loads and runs; what is
    to blame where it does not and the original does. `sizes` are those of symbolic dimensions to run it with."""
    pieces.clear()
    try:
        assembly.write_model(imported, chosen, draft, pieces)
    except MirageError as error:
        blamed = loading.to_blame(chosen, lambda part: _unwritten(imported, part))
        return Outcome(tuple(blamed) or tuple((w, str(error)) for w in chosen))
    if not chosen:
        return Outcome()
    assert imported.original is not None
    path = draft / MODEL
    small = loading.size(path) <= loading.OPTIMIZED_BYTES
    trial = _Trials(
        str(Path(imported.original.files.path).parent),
        ("", *([str(library)] if library is not None and _on_cpu(chosen) else [])),
        max_memory,
        small,
        _inputs(imported, sizes) if small else None,
    )
    reason = trial.failure(str(path))
    if not reason:
        return Outcome()
    why = trial.original(imported.original.data)
    if why and trial.inputs is not None:  # on these inputs it may not run: then the patched one has to load only
        trial = replace(trial, inputs=None)
        reason = trial.failure(str(path))
        why = reason and trial.original(imported.original.data)
    if not reason:
        return Outcome()
    if why:
        return Outcome(
            (), f"onnxruntime {sessions.version()} does not load the original model ({why}): nor the patched one"
        )

    def fails(part: Sequence[Work]) -> str:
        return _unwritten(imported, part) or trial.failure(assembly.patched(imported, part).SerializeToString())

    blamed = loading.to_blame(chosen, fails)
    return Outcome(tuple(blamed) or tuple((w, reason) for w in chosen))


@dataclass(frozen=True, slots=True)
class _Trials:
    """The setting in which models are tried: the folder of their data, the libraries (the empty name for none), and
    inputs to run them on."""

    data: str
    libraries: tuple[str, ...]
    max_memory: int
    small: bool
    inputs: Arrays | None

    def failure(self, model: str | bytes) -> str:
        """Why a patched model does not load or run, with any of the libraries."""
        data = self.data if isinstance(model, bytes) else ""
        trials = [Trial(model, name, data, self.small, self.inputs) for name in self.libraries]
        reason = next(filter(None, loading.problems(trials, self.max_memory)), "")
        return reason and f"the patched model does not {loading.what_failed(reason)}: {reason}"

    def original(self, model: bytes) -> str:
        """Why the original does not load or run."""
        (why,) = loading.problems([Trial(model, "", self.data, self.small, self.inputs)], self.max_memory)
        return why


def _inputs(imported: Imported, sizes: Mapping[str, int]) -> Arrays | None:
    """Inputs of the model; none where they cannot be made."""
    try:
        return example_inputs(imported.model, sizes, 0)
    except MirageError:
        return None


def _unwritten(imported: Imported, part: Sequence[Work]) -> str:
    """Why a model with these fragments cannot be made."""
    try:
        assembly.patched(imported, part)
    except MirageError as error:
        return str(error)
    return ""


def _on_cpu(chosen: Sequence[Work]) -> bool:
    return all(w.plan is not None and "cpu" in w.plan.plans for w in chosen)
