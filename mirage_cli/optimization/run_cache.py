"""Whole runs of `mirage optimize` that are kept: a second one with the same model and options is answered by writing files.

An answer is all that a run wrote but for times, with a keyed digest (`files/result_store.py`): it was proved and checked by
this version, with these compilers and packages, on this machine. It holds for the bytes of the model and of its data files.
Weights in data files are not kept but copied from there again. This module imports nothing that reads, searches or renders.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from mirage_cli.backends import toolchain as toolchains
from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.exporters import slots
from mirage_cli.files import codec, result_store
from mirage_cli.files.output import DATA, MARK, PAGE, digest, write_text
from mirage_cli.files.rawfile import DataFile
from mirage_cli.files.result_store import Kept
from mirage_cli.machine import devices
from mirage_cli.optimization import environment
from mirage_cli.optimization.environment import Machine
from mirage_cli.options import debug
from mirage_cli.options.options import Options
from mirage_cli.report.report import SEARCH, Report

if TYPE_CHECKING:
    from mirage_cli.files.datafile import Piece

LARGEST = 1 << 26  #: bytes of an answer's files: a run that wrote more, but for weights that can be copied, is not kept
ROOM = 1 << 29  #: bytes of all answers: the oldest make room
#: packages whose version can change what a run writes; asking for it loads nothing
_PACKAGES = (
    "numpy",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "jinja2",
    "markupsafe",
    "torch",
)
_HEAD = 8  #: bytes that tell the length of an answer's description


def lasting(model: str, options: Options) -> bool:
    """True if a run depends on nothing but what an answer's name says: no measured times, no clock, no open stream."""
    timed = options.gpu is not None or options.measure or options.tuned or options.budget or options.inputs is not None
    return not (timed or options.dry_run or model == "-" or options.cache == "" or debug.requested_stages())


# --- finding ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Answer:
    """A run that was kept: what describes it, the contents of its files, the open files that weights are copied from."""

    head: Mapping[str, Any]
    contents: bytes
    sources: Mapping[str, DataFile]

    def write(self, draft: Path, folder: str, start: float) -> Report:
        """Write all files into a draft that will be `folder`; the report, with the times since `start`."""
        read = time.perf_counter()
        position = 0
        for name, mode, size in self.head["files"]:
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.contents[position : position + size])
            path.chmod(mode)
            position += size
        if self.head["data"]:
            with (draft / DATA).open("wb") as file:
                for piece in self.head["data"]:
                    position = self._copy(piece, position, file)
                file.flush()
                os.fsync(file.fileno())
        kept = codec.checked(self.head["report"], Report)
        done = time.perf_counter()
        seconds = {"read": read - start, "render": done - read, "total": done - start}
        report = replace(kept, seconds=dict.fromkeys(kept.seconds, 0.0) | seconds)
        write_text(draft / MARK, report.text())
        write_text(draft / PAGE, slots.filled(self.head["page"], report.to_json()["seconds"], folder))
        return report

    def _copy(self, piece: Sequence[Any], position: int, file: BinaryIO) -> int:
        """Append a piece of the weights; where in the contents the next one begins."""
        place, size, source, offset = piece
        end: int = position + size
        file.truncate(place)
        file.seek(place)
        if source is not None:
            self.sources[source].copy(offset, size, file.fileno())
            return position
        file.write(self.contents[position:end])
        file.flush()
        return end


def find(model: str, options: Options, tools: Toolchain, cpu: Machine) -> Answer | None:
    """The answer for a model file as it is now, where there is one."""
    store = environment.answers(options) if lasting(model, options) else None
    content = None if store is None else store.read(name_of(model, options, tools, cpu))
    if content is None:
        return None
    end = _HEAD + int.from_bytes(content[:_HEAD], "big")
    head = json.loads(content[_HEAD:end])
    try:
        sources = {n: DataFile(Path(os.path.realpath(Path(model).parent / n))) for n in head["external"]}
        same = digest(Path(model)) == head["sha256"] and {n: f.sha256() for n, f in sources.items()} == head["external"]
    except (OSError, ValueError):
        return None  # reading the model tells what is wrong
    return Answer(head, content[end:], sources) if same else None


def name_of(model: str, options: Options, tools: Toolchain, cpu: Machine) -> str:
    """The name of a run's answer: of all that it depends on but for the bytes of its model."""
    machine = [devices.processor(), platform.platform(), platform.python_version()]
    compilers = [repr(tools), toolchains.candidates(), environment.archs(options)]
    told = [options.to_json(), cpu.to_json(), compilers, machine, packages()]
    return result_store.key("answer", os.path.abspath(model), model, *told)


@functools.lru_cache(maxsize=1)
def packages() -> list[str]:
    """The versions of the packages that take part."""
    versions = []
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    return versions


# --- keeping ----------------------------------------------------------------------------------------------------------
def keep(
    report: Report,
    page: str,
    draft: Path,
    options: Options,
    tools: Toolchain,
    cpu: Machine,
    pieces: Sequence[Piece] = (),
    names: Mapping[int, str] | None = None,
) -> None:
    """Keep a run: its report, its page with slots, the files of its draft, and what its weights are made of (`names` of the
    model's data files by `id`)."""
    store = environment.answers(options)
    if store is None or not store.usable:
        return
    data = [[p.place, p.size, (names or {}).get(id(p.file)), p.offset] for p in pieces]
    paths = [p for p in sorted(draft.rglob("*")) if p.is_file() and p.relative_to(draft).as_posix() not in (MARK, PAGE)]
    paths = [p for p in paths if p.name != DATA or not data]
    own = [(p.place, p.size) for p in pieces if (names or {}).get(id(p.file)) is None]
    if sum(p.stat().st_size for p in paths) + sum(size for _, size in own) > LARGEST:
        return
    contents = [p.read_bytes() for p in paths]
    if own:
        with (draft / DATA).open("rb") as file:
            contents += [os.pread(file.fileno(), size, place) for place, size in own]
    files = [
        [p.relative_to(draft).as_posix(), stat.S_IMODE(p.stat().st_mode), len(c)]
        for p, c in zip(paths, contents, strict=False)
    ]
    #: what was searched is not searched again by who is answered
    fragments = [f if f.search is SEARCH else replace(f, search={**f.search, "cached": True}) for f in report.fragments]
    head = {
        "sha256": report.model["sha256"],
        "external": report.model["external_data"],
        "report": msgspec.to_builtins(replace(report, fragments=fragments)),
        "page": page,
        "files": files,
        "data": data,
    }
    text = json.dumps(head).encode()
    store.write(
        name_of(report.model["path"], options, tools, cpu),
        b"".join([len(text).to_bytes(_HEAD, "big"), text, *contents]),
    )
    make_room(store)


def make_room(store: Kept, room: int | None = None) -> None:
    """Remove the oldest answers beyond the room that there is for them."""
    left = ROOM if room is None else room
    for path, size in sorted(_sizes(store), key=lambda found: -found[0].stat().st_mtime_ns):
        left -= size
        if left < 0:
            path.unlink(missing_ok=True)


def _sizes(store: Kept) -> Iterator[tuple[Path, int]]:
    for path in store.root.glob(f"*{result_store.SUFFIX}"):
        with contextlib.suppress(OSError):
            yield path, path.stat().st_size
