"""The output folder: written beside its place and put there at once, so that it is absent, the old one or complete.

Beside a folder `out` that is being written are `.out.lock`, which a run holds until it ends, and the draft `.out.*.part`. A
run that is killed leaves them; the next one takes the lock over and removes the rest. The lock is the system's and ends
with its process: there are none to be removed by hand.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from mirage_cli.errors import Busy, UsageError
from mirage_cli.files.rawfile import content, regular_file

MARK = "report.json"  #: what tells an output folder of ours
PAGE = "report.html"  #: the same for people
MODEL, DATA = "model.onnx", "model.onnx.data"  #: the patched model, and its weights where the original has such a file
SCRIPT = "model.pt"  #: the patched module of a TorchScript file
LIBRARY, MUGRAPHS = "libmirage.so", "mugraphs"  #: the kernels in it, and the files that describe them
SOURCES = "src"  #: the text that the library was compiled from
_DRAFT, _OLD = ".part", ".old"  #: how the names of folders beside the output folder end
_PREVIOUS = "previous"  #: what is replaced, where it cannot be exchanged
#: what a folder answers in which nothing can be made; /proc has no room for new names
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST)
_HERE, _EXCHANGE = -100, 2  #: AT_FDCWD and RENAME_EXCHANGE of Linux
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)  #: what file systems without it answer


def digest(path: Path) -> str:
    """The sha256 of a regular file, in hexadecimal digits. Raises OSError, also for what may never end."""
    with regular_file(path) as (file, _):
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_target(folder: Path, model: Path | None = None) -> None:
    """Raise UsageError when `folder` is something that must not or cannot be replaced: what mirage did not write, a mount
    point, where the `model` lies that is to be read."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, expected a folder to write to")
    foreign = _foreign(folder) if folder.is_dir() else ""
    if foreign:
        raise UsageError(
            f"{folder} holds files that mirage did not write, such as {foreign}",
            "choose another folder with -o, or empty this one",
        )
    if model is not None and os.path.realpath(model).startswith(os.path.join(os.path.realpath(folder), "")):
        raise UsageError(f"{model} lies in {folder}, which would be replaced", "choose another folder with -o")
    if os.path.ismount(folder):
        raise UsageError(f"{folder} is a mount point, which cannot be replaced", f"write into it: -o {folder / 'out'}")


@contextmanager
def claimed(folder: Path, model: Path | None = None, replacing: bool = True) -> Iterator[None]:
    """Nobody else writes `folder` while the block runs, and what killed runs have left beside it is removed. Raises Busy when
    another run writes it, UsageError for what `check_target` refuses where the whole folder is to be replaced. Folders above
    it are made, and stay where something was written.

    On a file system without locks runs do not know of each other: each writes a draft of its own, and none is removed.
    """
    if replacing:
        check_target(folder, model)
    place = folder.absolute()
    path = place.with_name(f".{place.name}.lock")
    made = [p for p in place.parents if not p.exists()]
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock, held = _locked(path, folder)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
        hint = "the folder is written beside its place: choose one with -o whose parent can be written to"
        reason = "" if error.errno == errno.ENOENT else f": {error.strerror}"  # nothing can be made there
        raise UsageError(f"{place.parent} cannot be written to{reason}", hint) from None
    try:
        if held:
            _recover(place)
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(lock)
        with contextlib.suppress(OSError):  # a run that failed leaves nothing
            for parent in made:
                parent.rmdir()


def _locked(path: Path, folder: Path) -> tuple[int, bool]:
    """(the open lock file, whether it is locked). Raises Busy while another process has it."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), path.lstat()):
                    return lock, True
            os.close(lock)  # its holder has ended and removed it meanwhile
        except BlockingIOError:
            os.close(lock)
            raise Busy(f"another run of mirage writes {folder}") from None
        except OSError:
            return lock, False


def _recover(place: Path) -> None:
    """Remove what killed runs left beside a folder; one that was killed between two renames has the old folder there."""
    name = re.compile(rf"\.{re.escape(place.name)}\.[a-z0-9_]{{8}}({re.escape(_DRAFT)}|{re.escape(_OLD)})")
    for left in sorted(p for p in place.parent.iterdir() if name.fullmatch(p.name)):
        if not place.exists() and (left / _PREVIOUS).is_dir():
            os.rename(left / _PREVIOUS, place)
        shutil.rmtree(left, ignore_errors=True)


def _foreign(folder: Path) -> str:
    """A file in a folder that its report does not tell of, or nothing; models of a folder have reports of their own."""
    try:
        report = json.loads(content(folder / MARK))
        known = {*report["files"], MARK, PAGE} if "mirage" in report else set()
        inner = [folder / place for place in report.get("models", ())] if known else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        known, inner = set(), []
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        drawing = path.suffix == ".svg" and path.parent == folder / MUGRAPHS and bool(known)
        if (path.is_symlink() or not path.is_dir()) and name not in known and not drawing:
            own = next((place for place in inner if path.is_relative_to(place)), None)
            if own is None or (foreign := _foreign(own)):
                return name if own is None else (own / foreign).relative_to(folder).as_posix()
    return ""


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, which the caller has `claimed`; it takes its place when the block ends well."""
    check_target(folder)
    place = folder.absolute()
    draft = _beside(place, _DRAFT)
    try:
        yield draft
        draft.chmod(0o755)
        if not place.exists():
            os.rename(draft, place)
        elif not _exchanged(draft, place):
            _replace(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def renewed(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, which the caller has `claimed`; its files take the places of those of the same names in
    `folder`, each at once, when the block ends well."""
    draft = _beside(folder.absolute(), _DRAFT)
    try:
        yield draft
        for path in sorted(draft.iterdir()):
            os.replace(path, folder / path.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _beside(place: Path, suffix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=suffix, dir=place.parent))


def _exchanged(one: Path, other: Path) -> bool:
    """Let two paths change places in one step; False where the system cannot. Raises OSError."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    problem = ctypes.get_errno()
    if problem in _NO_EXCHANGE:
        return False
    raise OSError(problem, os.strerror(problem), str(other))


def _replace(draft: Path, place: Path) -> None:
    """Put a draft in the place of a folder, in two steps; when the second fails the folder is put back."""
    old = _beside(place, _OLD)
    try:
        os.rename(place, old / _PREVIOUS)
        try:
            os.rename(draft, place)
        except BaseException:
            os.rename(old / _PREVIOUS, place)
            raise
    finally:
        if place.exists():
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def steady(folder: Path) -> Iterator[None]:
    """Raise Busy, in place of whatever else happens, when another run replaces an output folder while the block reads it."""
    before = _identity(folder)
    try:
        yield
    except Exception:
        _same(folder, before)
        raise
    _same(folder, before)


def _same(folder: Path, before: list[int]) -> None:
    if before and _identity(folder) != before:
        raise Busy(f"{folder} was replaced by another run of mirage meanwhile", "run the command again") from None


def _identity(folder: Path) -> list[int]:
    """The identity of an output folder, which tells it from the one that takes its place; empty for what is none."""
    try:
        own, mark = folder.stat(), (folder / MARK).stat()
    except OSError:
        return []
    return [own.st_dev, own.st_ino, mark.st_ino, mark.st_mtime_ns]


def write_text(path: Path, text: str) -> None:
    """Write a file and force it to disk."""
    with path.open("w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())


def digests(folder: Path, apart: Collection[str] = ()) -> dict[str, str]:
    """The sha256 of every file in an output folder by its path there, but for its reports and drawings, and for what lies in
    the folders `apart`, which have reports of their own."""
    aside = {folder / MARK, folder / PAGE}
    by_path = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p not in aside):
        drawing = path.suffix == ".svg" and path.parent == folder / MUGRAPHS
        if not drawing and not any(path.is_relative_to(folder / place) for place in apart):
            by_path[path.relative_to(folder).as_posix()] = digest(path)
    return by_path
