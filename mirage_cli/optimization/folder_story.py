"""`mirage optimize` of a folder of models: every one of them as a file alone, all other files beside them, the configuration
with the libraries in it. The output appears as a whole or not at all, as that of a file does."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from mirage_cli import __version__
from mirage_cli.errors import UsageError
from mirage_cli.files.output import LIBRARY, MARK, claimed, digests, replaced, write_text
from mirage_cli.files.rawfile import DataFile
from mirage_cli.frontends import folders, sizes
from mirage_cli.frontends.folders import CONFIG, HERE, ModelFolder
from mirage_cli.frontends.onnx import protobuf
from mirage_cli.optimization import assembly, environment, story
from mirage_cli.options import dims
from mirage_cli.options.options import Options
from mirage_cli.report.models import FolderReport, Index
from mirage_cli.report.report import SCHEMA_VERSION, Report, as_text, enforce
from mirage_cli.report.stages import Progress


def optimize(path: Path, out: Path, options: Options, progress: Progress | None = None) -> FolderReport:
    """Optimize every model of a folder into the folder `out` (nothing is written with `dry_run`): a model alone into `out`
    itself, several into folders of their own below it.

    Raises as `story.optimize` does, ModelError for a folder that has no models that are known of, and UsageError where a
    file of the folder has the name of one that is to be written.
    """
    source = folders.read(path)
    if os.path.realpath(out).startswith(os.path.join(os.path.realpath(path), "")):
        raise UsageError(f"{out} lies in {path}, whose files are copied", "choose another folder with -o")
    own = options_of(source, options)
    if options.dry_run:
        nowhere = nullcontext(out)
        found = {m.file: story.made(str(path / m.file), out, nowhere, own[m.file], progress) for m in source.members}
        return FolderReport(str(path), found, source.notes)
    with claimed(out, path / source.members[0].file), replaced(out) as draft:
        reports = {}
        for m in source.members:
            place = _below(draft / m.place)
            reports[m.file] = story.made(str(path / m.file), out / m.place, place, own[m.file], progress)
        _complete(source, reports, draft)
    for report in reports.values():
        enforce(report, options)
    return FolderReport(str(path), reports, source.notes)


def options_of(source: ModelFolder, options: Options) -> dict[str, Options]:
    """The options of each model: kernels for what it runs on where nothing is asked for, and of --dim and --shape those that
    are of its inputs. Raises UsageError for what none has."""
    own = {m.file: replace(options, target=_target(source.providers(m.file), options)) for m in source.members}
    if len(source.members) == 1 or not (options.dim or options.shape):
        return own
    inputs = {m.file: _inputs(source.path / m.file) for m in source.members}
    asked, shapes = dims.parse(options.dim), dims.parse_shapes(options.shape)
    dims.check_known(asked, [symbol for known in inputs.values() for symbols in known.values() for symbol in symbols])
    dims.check_inputs(shapes, [name for known in inputs.values() for name in known])
    return {
        file: replace(own[file], dim=_of(options.dim, set().union(*known.values())), shape=_of(options.shape, known))
        for file, known in inputs.items()
    }


def _target(providers: set[str], options: Options) -> tuple[str, ...]:
    """The kinds that are asked for, of a model that runs on these providers: CUDA by those who can compile for it."""
    if options.target or options.measure:
        return options.target
    if "cuda" in providers and environment.compiles_for_gpus(options):
        return ("cuda",)
    alone = providers == {"cpu"} and not options.arch and options.gpu is None
    return ("cpu",) if alone else ()


def _of(texts: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """Those of `NAME=...` whose names are known."""
    return tuple(text for text in texts if text.rpartition("=")[0] in known)


def _inputs(file: Path) -> dict[str, set[str]]:
    """The symbols in the dimensions of a model's inputs."""
    graph = protobuf.parse(protobuf.read_bytes(str(file)), str(file)).graph
    weights = {t.name for t in graph.initializer}
    return {
        i.name: {n for d in i.type.tensor_type.shape.dim if d.dim_param for n in sizes.names(sizes.parse(d.dim_param))}
        for i in graph.input
        if i.name not in weights
    }


@contextmanager
def _below(place: Path) -> Iterator[Path]:
    """A new folder in a draft, or the draft itself."""
    place.mkdir(parents=True, exist_ok=True)
    yield place


def _complete(source: ModelFolder, reports: dict[str, Report], draft: Path) -> None:
    """Put all else that a folder has into a draft with the outputs of its models; `reports` get what that adds."""
    data = [posixpath.join(posixpath.dirname(m), d) for m, r in reports.items() for d in r.model["external_data"]]
    for name in source.others({*reports, *map(posixpath.normpath, data)}):
        _copy(source.path / name, draft / name, source.path)
    if source.config is not None:
        patched = {m.file: (draft / m.place / LIBRARY).exists() for m in source.members}
        write_text(draft / CONFIG, as_text(source.configured(patched)))
    first = source.members[0]
    if first.place == HERE:
        report = reports[first.file]
        reports[first.file] = assembly.finished(replace(report, notes=[*report.notes, *source.notes]), draft)
        write_text(draft / MARK, reports[first.file].text())
        return
    places = {m.place: m.file for m in source.members}
    own = digests(draft, places)
    index = Index(__version__, SCHEMA_VERSION, str(source.path), places, list(source.notes), own)
    write_text(draft / MARK, index.text())


def _copy(file: Path, place: Path, folder: Path) -> None:
    """Copy a file of the folder, as shared blocks where the file system has them. Raises UsageError for a taken name."""
    if place.exists():
        raise UsageError(f"{file}: the output has a file of this name", "rename it, or optimize the models one by one")
    place.parent.mkdir(parents=True, exist_ok=True)
    data = DataFile(Path(os.path.realpath(file)))
    with place.open("wb") as copied:
        data.copy(0, data.size, copied.fileno())
        copied.flush()
        os.fsync(copied.fileno())
