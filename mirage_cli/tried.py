"""The patched model written, and tried in onnxruntime before it is handed over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_cli import assemble, loading, runtime
from mirage_cli.datafile import Piece
from mirage_cli.errors import MirageError
from mirage_cli.frontends.imported import Imported
from mirage_cli.loading import Trial
from mirage_cli.output import MODEL
from mirage_cli.work import Work


@dataclass(frozen=True, slots=True)
class Outcome:
    """The fragments that cannot be part of the patched model, each with the reason, and what else there is to tell."""

    blamed: tuple[tuple[Work, str], ...] = ()
    note: str = ""


def write(
    imported: Imported, chosen: Sequence[Work], draft: Path, library: Path | None, max_memory: int, pieces: list[Piece]
) -> Outcome:
    """Write the model with the chosen fragments replaced into the draft, beside the library, where it loads; what is to blame
    where it does not and the original does."""
    pieces.clear()
    try:
        assemble.write_model(imported, chosen, draft, pieces)
    except MirageError as error:
        blamed = loading.to_blame(chosen, lambda part: _unwritten(imported, part))
        return Outcome(tuple(blamed) or tuple((w, str(error)) for w in chosen))
    if not chosen:
        return Outcome()
    path = draft / MODEL
    libraries = ["", *([str(library)] if library is not None and _on_cpu(chosen) else [])]
    small = loading.size(path) <= loading.OPTIMIZED_BYTES
    found = loading.problems([Trial(str(path), name, optimize=small) for name in libraries], max_memory)
    if not any(found):
        return Outcome()
    assert imported.original is not None
    data = str(Path(imported.original.files.path).parent)
    (why,) = loading.problems([Trial(imported.original.data, data=data, optimize=small)], max_memory)
    if why:
        return Outcome(
            (), f"onnxruntime {runtime.version()} does not load the original model ({why}): nor the patched one"
        )

    def fails(part: Sequence[Work]) -> str:
        if unwritten := _unwritten(imported, part):
            return unwritten
        made = assemble.patched(imported, part).SerializeToString()
        told = loading.problems([Trial(made, name, data, small) for name in libraries], max_memory)
        return next((f"the patched model does not load: {reason}" for reason in told if reason), "")

    blamed = loading.to_blame(chosen, fails)
    return Outcome(
        tuple(blamed) or tuple((w, f"the patched model does not load: {next(filter(None, found))}") for w in chosen)
    )


def _unwritten(imported: Imported, part: Sequence[Work]) -> str:
    """Why a model with these fragments cannot be made."""
    try:
        assemble.patched(imported, part)
    except MirageError as error:
        return str(error)
    return ""


def _on_cpu(chosen: Sequence[Work]) -> bool:
    return all(w.plan is not None and "cpu" in w.plan.plans for w in chosen)
