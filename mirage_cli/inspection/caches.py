"""`mirage cache`: the folder of earlier results, what is in it, and tunings carried from one machine to another."""

from __future__ import annotations

import json
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mirage_cli.errors import ModelError, UsageError
from mirage_cli.exporters.drawing.labels import counted
from mirage_cli.files import rawfile, result_store, staging
from mirage_cli.optimization import environment
from mirage_cli.optimization.environment import ANSWERS, GRAPHS, OBJECTS, RESULTS, TUNINGS
from mirage_cli.options.options import Options
from mirage_cli.tuning.cache import Measurement, Row, Settled, TuningCache, exported, imported

SUFFIXES = (".o", result_store.SUFFIX, staging.PART)  #: of files in the folders of objects, results and answers


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a command: a document, and the same as text."""

    document: Any
    lines: list[str] = field(default_factory=list)

    def to_json(self) -> Any:
        """The document."""
        return self.document

    def text(self) -> str:
        """The lines."""
        return "\n".join(self.lines)


def folder(options: Options) -> Path:
    """The cache's folder. Raises UsageError where there is none."""
    place = environment.cache_folder(options)
    if place is None:
        why = "--no-cache: there is no cache then" if options.cache == "" else "the user's home is not known"
        raise UsageError(why, "name a folder with --cache")
    return place


def where(options: Options) -> Answer:
    """The folder."""
    root = folder(options)
    folders = {name: str(root / name) for name in (OBJECTS, RESULTS, ANSWERS, GRAPHS, TUNINGS)}
    return Answer({"cache": str(root), **folders}, [str(root)])


def listed(options: Options) -> Answer:
    """The content of the cache: compiled objects and results in all, tunings one by one, the fastest of a program
    first."""
    root = folder(options)
    objects, results = _sizes(root, OBJECTS), [*_sizes(root, RESULTS), *_sizes(root, ANSWERS)]
    graphs = _graphs(root)
    rows = _tunings(root).rows() if (root / TUNINGS).is_dir() else []
    document = {
        "cache": str(root),
        "objects": {"files": len(objects), "bytes": sum(objects)},
        "results": {"files": len(results), "bytes": sum(results)},
        "graphs": {"folders": len(graphs), "bytes": sum(map(_weight, graphs))},
        "tunings": [r.to_json() for r in rows],
    }
    lines = [f"{root}: {_counts(objects, results)}, {counted(len(graphs), 'graph')}, {len(rows)} tunings"]
    programs: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        programs.setdefault(row.columns, []).append(row)
    return Answer(document, lines + [_line(columns, own) for columns, own in programs.items()])


def _line(columns: tuple[str, ...], rows: list[Row]) -> str:
    program, extents, dtype, architecture, device, driver, _ = columns
    times = [r for r in rows if isinstance(r.value, Measurement) and r.value.us is not None]
    best = min(times, key=_us, default=None)
    name = str((best or rows[0]).description.get("name", ""))
    sizes = ", ".join(f"{k}={v}" for k, v in json.loads(extents).items())
    said = f"{_us(best):.2f} us" if best is not None else "no time"
    tried = sum(not isinstance(r.value, Settled) for r in rows)
    parts = [f"{name} {program}", dtype, sizes, f"{architecture} {device} (driver {driver})", f"{said}, {tried} tried"]
    return "  " + ", ".join(p for p in parts if p)


def _us(row: Row) -> float:
    return row.value.us or 0.0 if isinstance(row.value, Measurement) else 0.0


def export(options: Options) -> Answer:
    """All tunings as a document that `bring` reads; compiled objects stay."""
    root = folder(options)
    document = exported(_tunings(root).rows() if (root / TUNINGS).is_dir() else [])
    return Answer(document, json.dumps(document, indent=1).splitlines())


def bring(options: Options, file: str) -> Answer:
    """Add the tunings of a document (`-`: standard input). Raises ModelError for one that is not well-formed."""
    cache = _tunings(folder(options))
    if not cache.usable:
        raise UsageError(f"{cache.root} cannot be used as a cache: {cache.problem}", "name another folder with --cache")
    taken, left = cache.merge(imported(_read(file), file))
    return Answer({"taken": taken, "left": left}, [f"{taken} tunings taken, {left} left: what is here says as much"])


def clean(options: Options) -> Answer:
    """Remove everything that was kept: objects, results and answers, the kernels of graphs built in Python, and tunings. What
    other processes work on at this moment stays."""
    root = folder(options)
    objects, results = _sizes(root, OBJECTS), [*_sizes(root, RESULTS), *_sizes(root, ANSWERS)]
    files = (OBJECTS, RESULTS, ANSWERS)
    for path in (p for name in files for p in _files(root, name) if p.suffix != staging.PART):
        path.unlink(missing_ok=True)
    for name in files:
        staging.sweep(root / name)
    weights = [(p, _weight(p)) for p in _graphs(root)]
    removed = [weight for path, weight in weights if staging.remove(path, locks=False)]
    count = _tunings(root).clear() if (root / TUNINGS).is_dir() else 0
    document = {
        "objects": len(objects),
        "results": len(results),
        "graphs": len(removed),
        "bytes": sum(objects) + sum(results) + sum(removed),
        "tunings": count,
    }
    return Answer(
        document, [f"removed {_counts(objects, results)}, {counted(len(removed), 'graph')} and {count} tunings"]
    )


def _counts(objects: list[int], results: list[int]) -> str:
    """Numbers of files of each kind, with their bytes."""
    kinds = (("compiled object", objects), ("result", results))
    return ", ".join(f"{counted(len(sizes), name)} ({sum(sizes) / 2**20:.1f} MiB)" for name, sizes in kinds)


def _read(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read(rawfile.LARGEST)
        return rawfile.content(file).decode()
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, AttributeError, ValueError) as error:
        raise ModelError(f"{file}: cannot be read: {error}") from None


def _files(root: Path, name: str) -> list[Path]:
    return sorted(p for p in (root / name).glob("*") if p.suffix in SUFFIXES and p.is_file())


def _graphs(root: Path) -> list[Path]:
    """The folders of graphs that were built in Python, half-made ones too."""
    return sorted(p for p in (root / GRAPHS).glob("*") if p.is_dir() and not p.is_symlink())


def _weight(folder: Path) -> int:
    return sum(map(_size, folder.rglob("*")))


def _sizes(root: Path, name: str) -> list[int]:
    return [_size(p) for p in _files(root, name)]


def _size(path: Path) -> int:
    """Bytes of a file; nothing of what is none, or has gone meanwhile."""
    try:
        status = path.stat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _tunings(root: Path) -> TuningCache:
    return TuningCache(root / TUNINGS)
