"""Check that a file is a whole shared library: to load one that was cut short ends the process that does it."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

_ELF, _64_LITTLE = b"\x7fELF", b"\x02\x01"
_HEADER = 64  #: bytes of a 64-bit ELF header
_SECTIONS, _COUNTS = 40, 58  #: where it has the offset of the table of sections, their size and number


def problem(path: Path) -> str | None:
    """The fault of a library that a compiler told it wrote, or None."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER)
        size = path.stat().st_size
    except OSError as error:
        return f"it told of no error and wrote no {path.name} ({error.strerror})"
    if sys.platform != "linux":
        return None if size else f"{path.name}, which it wrote, is empty"
    if not header.startswith(_ELF):
        return f"{path.name}, which it wrote, is no shared library ({size} bytes)"
    if header[4:6] == _64_LITTLE and len(header) == _HEADER:
        (start,), (each, count) = (
            struct.unpack_from("<Q", header, _SECTIONS),
            struct.unpack_from("<HH", header, _COUNTS),
        )
        if start + each * count <= size:
            return None
    elif len(header) == _HEADER:
        return None
    return f"{path.name}, which it wrote, is cut short ({size} bytes)"
