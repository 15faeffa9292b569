"""A regular file that stays open: hashed and copied without being loaded, mapped for what is computed with.

Weights can be larger than memory. Hashing and copying go through descriptors and leave nothing in a process's memory;
the pages of the mapping are given back by `forget`: they are read again when they are needed.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

CHUNK = 1 << 22  #: bytes that are read at a time
LARGEST = 1 << 26  #: bytes of a document that is read whole; ours have a hundredth of it
#: why the kernel may refuse to copy between two files that can be read and written
_NO_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}


def without_waiting(path: str, flags: int) -> int:
    """Open without waiting for a pipe's other end: an opener for `open`."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


@contextmanager
def regular_file(path: Path | str) -> Iterator[tuple[BufferedReader, int]]:
    """A regular file that is open to be read, and its size in bytes. Raises OSError, also for what is no regular file: a
    pipe or a device, which may have no end."""
    with open(path, "rb", opener=without_waiting) as file:
        yield file, _regular_size(file.fileno(), path)


def content(path: Path | str, most: int = LARGEST) -> bytes:
    """The content of a regular file of at most `most` bytes. Raises OSError, also for other kinds of files and for
    larger ones."""
    with regular_file(path) as (file, size):
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and at most {most} are read", str(path))
        return file.read(size)


def held(path: Path) -> bytes | None:
    """The same; None where there is no such file."""
    try:
        return content(path)
    except OSError:
        return None


def _regular_size(fd: int, path: Path | str) -> int:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "expected a regular file, found another kind", str(path))
    return status.st_size


class DataFile:
    """A regular file that stays open, so that what is read later is what was checked."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises OSError, also for what is no regular file."""
        self.fd = without_waiting(str(path), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        weakref.finalize(self, os.close, self.fd)
        self.size = _regular_size(self.fd, path)
        self.content: mmap.mmap | bytes = mmap.mmap(self.fd, 0, access=mmap.ACCESS_READ) if self.size else b""

    def sha256(self) -> str:
        """The hexadecimal SHA-256 of the file."""
        digest, position = hashlib.sha256(), 0
        while data := os.pread(self.fd, CHUNK, position):
            digest.update(data)
            position += len(data)
        return digest.hexdigest()

    def forget(self) -> None:
        """Give back the memory of the mapping's pages; views stay valid."""
        if isinstance(self.content, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self.content.madvise(mmap.MADV_DONTNEED)

    def copy(self, offset: int, size: int, to: int) -> None:
        """Append a range of the file to the open file `to`: within the kernel where it can do that, as shared blocks
        where the file system has them. Raises OSError."""
        end = offset + size
        while offset < end and hasattr(os, "copy_file_range"):
            try:
                copied = os.copy_file_range(self.fd, to, end - offset, offset)
            except OSError as error:
                if error.errno not in _NO_COPY:
                    raise
                break
            if not copied:
                break
            offset += copied
        while offset < end:
            data = os.pread(self.fd, min(CHUNK, end - offset), offset)
            if not data:
                raise OSError(errno.EIO, "the file has become shorter")
            os.write(to, data)
            offset += len(data)
