"""Files and folders for a while: written beside their place and put there complete, removed when a process was killed.

What is not complete has a name that ends in `.part` and is locked by the process that works on it. The lock is the system's
and ends with that process, so a part that is not locked was left by one that was killed, and `sweep` removes it. On a file
system without locks nothing is swept.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

from mirage_cli.errors import UsageError

PART = ".part"  #: how the names of what is not complete end


def put(path: Path, *content: bytes, keep: bool = False) -> None:
    """Write a file, which appears with all of its content; with `keep` one that is there stays. Raises OSError and leaves
    nothing then."""
    fd, name = _locked_file(path.parent)
    with open(fd, "wb") as part:
        try:
            part.writelines(content)
            part.flush()
            if not keep:
                os.replace(name, path)
                return
            try:
                os.link(name, path)
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links: of two processes at this moment the last one wins
                if not path.exists():
                    os.replace(name, path)
                    return
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        os.unlink(name)


def _locked_file(folder: Path) -> tuple[int, str]:
    """(descriptor of a new file of a folder, locked; its path)."""
    while True:
        fd, name = tempfile.mkstemp(suffix=PART, dir=folder)
        _lock(fd)
        if os.fstat(fd).st_nlink:
            return fd, name
        os.close(fd)  # swept before it was locked


def copy_tree(source: Path, target: Path) -> None:
    """Copy the files below a folder into another, which may be there. Raises OSError, the first that happens."""
    for folder, _, names in os.walk(source):
        into = target / Path(folder).relative_to(source)
        into.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copy(Path(folder) / name, into / name)


def sweep(folder: Path, prefix: str = "") -> None:
    """Remove what killed processes of this user left in a folder under names that begin with `prefix`."""
    try:
        left = [Path(e) for e in os.scandir(folder) if e.name.startswith(prefix) and e.name.endswith(PART)]
    except OSError:
        return
    for path in left:
        remove(path)


def remove(path: Path, locks: bool = True) -> bool:
    """Remove a file or folder of this user's that no process works on; whether that was so. Where there are no `locks`
    to tell, it stays if they are needed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            return False
        if not _free(fd, locks):
            return False
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _free(fd: int, locks: bool) -> bool:
    """True if nobody else has a file locked; on a file system without locks, whether they are not needed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return not locks
    return True


class Scratch:
    """A new folder of this process, removed when its block or its process ends; what killed ones left goes first.

    It is in `folder`, or where the system keeps temporary files. Raises UsageError where there is no place for these.
    """

    def __init__(self, prefix: str, folder: Path | None = None) -> None:
        try:
            where = folder or Path(tempfile.gettempdir())
        except FileNotFoundError as error:
            raise UsageError(f"there is no folder for temporary files: {error.strerror}", "set TMPDIR") from None
        sweep(where, prefix)
        self.path, fd = _locked_folder(prefix, where)
        self._removal = weakref.finalize(self, _removed, self.path, fd)

    def close(self) -> None:
        """Remove it."""
        self._removal()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def _locked_folder(prefix: str, where: Path) -> tuple[Path, int]:
    """A new folder, and the descriptor that keeps it locked."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, suffix=PART, dir=where))
        with contextlib.suppress(FileNotFoundError):  # swept before it was locked
            fd = os.open(path, os.O_RDONLY)
            _lock(fd)
            if path.exists():
                return path, fd
            os.close(fd)


@contextlib.contextmanager
def waited(folder: Path) -> Iterator[None]:
    """Work in a folder that is there, one process (or thread) after the other."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        _lock(fd)
        yield
    finally:
        os.close(fd)


def locks(folder: Path) -> bool:
    """True if processes can keep each other out of files of a folder (of bytes of them, as databases do)."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
    return True


def _removed(path: Path, fd: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(fd)


def _lock(fd: int) -> None:
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(fd, fcntl.LOCK_EX)
