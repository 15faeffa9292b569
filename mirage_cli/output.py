"""The output folder: written beside its place and renamed, so that it is absent, the old one or complete."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirage_cli.errors import UsageError

MARK = "report.json"  #: what tells an output folder of ours
LIBRARY, MUGRAPHS = "libmirage.so", "mugraphs"  #: the kernels in it, and the files that describe them


def digest(path: Path) -> str:
    """The sha256 of a regular file, in hexadecimal digits. Raises OSError, also for what never ends."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return hashlib.file_digest(file, "sha256").hexdigest()


def _without_waiting(path: str, flags: int) -> int:
    """Open without waiting for a pipe's other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def check_target(folder: Path) -> None:
    """Raise UsageError when `folder` is something that must not be replaced."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, expected a folder to write to")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise UsageError(
            f"{folder} holds files that mirage did not write", "choose another folder with -o, or empty this one"
        )
    parent = folder.absolute().parent
    if not parent.is_dir():
        raise UsageError(f"the folder {parent} does not exist", f"mkdir -p {parent}")


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place when the block ends without an error."""
    check_target(folder)
    place = folder.absolute()
    draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".part", dir=place.parent))
    try:
        yield draft
        draft.chmod(0o755)
        if place.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".old", dir=place.parent))
            os.rename(place, old / "previous")
            os.rename(draft, place)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a file and force it to disk."""
    with path.open("w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
