"""Which libraries may be loaded: loading one runs its code.

`optimize` seals the hashes of what it writes with a secret of the user. Who gets a folder from elsewhere, or changes a file
in one, cannot make that seal. What is not sealed is not loaded unless the user says so; its kernels can be built anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mirage_cli.backends import toolchain, torch_library
from mirage_cli.backends.library import Options, build_library
from mirage_cli.backends.spec import KernelSource, OperatorSpec
from mirage_cli.errors import MirageError, Refused
from mirage_cli.files import result_store
from mirage_cli.files.output import LIBRARY, SCRIPT, digest
from mirage_cli.report.report import sealed

UNKNOWN = "it was not loaded, since this user's mirage did not build it (--trust-library loads it)"
RUNS = (LIBRARY, torch_library.LIBRARY, SCRIPT)  #: files of an output folder that are programs


def is_own(folder: Path, report: Mapping[str, Any]) -> bool:
    """True if the programs in an output folder are those that this user's mirage wrote there, of the model that its
    report tells of."""
    own = bool(report.get("seal")) and result_store.seal(sealed(report["files"], report["model"])) == report["seal"]
    return own and not changed(folder, report["files"])


def changed(folder: Path, files: Mapping[str, str]) -> list[str]:
    """The programs in a folder that are links, or have other hashes than `files` says."""
    there = [name for name in RUNS if (folder / name).is_symlink() or (folder / name).exists()]
    return [name for name in there if (folder / name).is_symlink() or hashed(folder / name) != files.get(name)]


def hashed(path: Path) -> str:
    """The sha256 of a regular file; empty where it cannot be told."""
    try:
        return digest(path)
    except OSError:
        return ""


def check_unchanged(folder: Path, report: Mapping[str, Any]) -> None:
    """Raise Refused for a folder whose programs are not those of its report: links to elsewhere, or other files."""
    for name in changed(folder, report["files"]):
        what = "a link" if (folder / name).is_symlink() else "not the file that its report.json tells of"
        raise Refused(
            f"{folder / name} is not loaded: it is {what}", "optimize the model again, or copy the folder whole"
        )


def rebuilt(specs: Sequence[OperatorSpec], rendered: Mapping[str, bytes], folder: Path, jobs: int) -> str:
    """Build a library of CPU kernels in `folder`, of rendered sources by their names in src/; what is to be said of that."""
    texts = {name: content.decode() for name, content in rendered.items()}
    sources = {s.id: KernelSource(s.id, texts.get(f"{s.id}.cpp"), texts.get(f"{s.id}.cu")) for s in specs}
    own = [replace(s, others=()) for s in specs if f"{s.id}.cpp" in texts]
    try:
        result = build_library(own, sources, folder, toolchain.find(cuda=False), Options(workers=jobs))
    except MirageError as error:
        return f"{LIBRARY} was not loaded, and cannot be built anew: {error}"
    if result.library is None:
        return f"{LIBRARY} was not loaded, and cannot be built anew: {next(iter(result.failed.values()), 'no CPU kernels')}"
    return f"{LIBRARY} was not loaded: kernels and outputs are those of the sources, built anew"
