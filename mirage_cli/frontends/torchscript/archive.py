"""Looking at a PyTorch file without PyTorch: only TorchScript archives are opened, and nothing is ever unpickled here.

A TorchScript archive is a zip file with a table of constants and code as text. torch.jit.load reads its pickles in C++,
where they can build tensors, numbers and the archive's own classes only. What torch.save writes is a pickle that may run
any program when it is loaded; such files are refused.
"""

from __future__ import annotations

import hashlib
import lzma
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from mirage_cli.errors import ModelError, UnsupportedFormat

MAKE = 'torch.jit.trace(model.eval(), example_inputs).save("model.pt")'
MAX_INFLATION = 64 << 20  #: bytes that an archive may hold beyond four times its size
MAX_ENTRIES = 1 << 20
#: what Python's reader of zip archives raises for damaged ones, beside MirageError's own
_DAMAGED = (
    *(zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError),
    *(zlib.error, lzma.LZMAError, struct.error, OverflowError),
)
#: functions of TorchScript that read or write files. They can be reached by other names (`t = torch`), across lines and by
#: `getattr`, so their names may stand nowhere
_FILES = re.compile(r"(?<!\w)(?:save|from_file)(?!\w)")
#: attributes that are looked up by one plain text, as torch writes them; anything else could be made up of pieces
_LOOKUP = re.compile(r"getattr(?!\w)(?!\(\s*[\w.]+\s*,\s*(?:\"[^\"\\\n]*\"|'[^'\\\n]*')\s*\))")
#: the records at the end of a zip file: of the table of contents, where there is one with 64 bits, and that one
_END, _LOCATOR, _END64 = struct.Struct("<4s4H2IH"), struct.Struct("<4sIQI"), struct.Struct("<4sQ2H2I4Q")
_PICKLE = "a pickle of torch.save (a state_dict or a whole module), which could run any program when it is loaded"


def check(path: str) -> None:
    """Raise ModelError, naming what was found, for a file that is no TorchScript archive or must not be opened."""
    file = Path(path)
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            kind = "a folder" if file.is_dir() else "another kind"
            raise ModelError(f"{path}: expected a regular file, found {kind}")
        with file.open("rb") as f:
            start = f.read(4)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    if not start.startswith(b"PK"):
        what = _PICKLE if start.startswith(b"\x80") else "an empty file" if not start else f"{start!r}..."
        raise UnsupportedFormat(f"{path}: expected a TorchScript archive (zip), found {what}", _hint())
    try:
        with zipfile.ZipFile(file) as archive:
            _check_archive(path, file.stat().st_size, archive)
            with file.open("rb") as f:
                _check_end(path, f, len(archive.infolist()))
    except _DAMAGED as error:
        raise ModelError(f"{path}: the zip archive is damaged: {error}") from None


def sha256(path: str) -> str:
    """The hexadecimal SHA-256 of a file."""
    with Path(path).open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _check_archive(path: str, size: int, archive: zipfile.ZipFile) -> None:
    entries = archive.infolist()
    names = [e.filename for e in entries]
    inner = {name.partition("/")[2] for name in names}
    if len(set(names)) != len(names) or len(names) > MAX_ENTRIES:
        raise ModelError(f"{path}: the zip archive has {len(names)} entries, {len(set(names))} different names")
    if "models/model.json" in inner or "archive_format" in inner or "serialized_exported_program.json" in inner:
        raise UnsupportedFormat(
            f"{path}: expected a TorchScript archive, found one of torch.export",
            "export it to ONNX: torch.onnx.export(torch.export.load(FILE), ..., dynamo=True)",
        )
    if "constants.pkl" not in inner or not any(name.startswith("code/") for name in inner):
        what = _PICKLE if "data.pkl" in inner else "another zip archive"
        raise UnsupportedFormat(f"{path}: expected a TorchScript archive, found {what}", _hint())
    held = sum(e.file_size for e in entries)
    if held > 4 * size + MAX_INFLATION:
        raise ModelError(f"{path}: the archive of {size} bytes would unpack to {held} bytes, which no model does")
    check_code(path, ((e.filename, archive.read(e)) for e in entries if is_code(e.filename)))


def _check_end(path: str, file: BinaryIO, count: int) -> None:
    """Raise ModelError for a zip archive whose table of contents, with `count` entries, is not where all records at its end
    say that it is: readers differ in which of these they believe, so that torch would see other entries than were checked."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _END.size - _LOCATOR.size - _END64.size))
    tail = file.read()
    sign, _, _, _, entries, length, offset, comment = _END.unpack(tail[-_END.size :])
    end, before = size - _END.size, tail[: -_END.size]
    right = sign == b"PK\5\6" and not comment
    if before[-_LOCATOR.size :].startswith(b"PK\6\7"):
        end -= _LOCATOR.size + _END64.size
        _, _, place, _ = _LOCATOR.unpack(before[-_LOCATOR.size :])
        sign, more, _, _, _, _, _, entries, length, offset = _END64.unpack(before[: _END64.size])
        right &= sign == b"PK\6\6" and more == _END64.size - 12 and place == end
    if not right or entries != count or offset + length != end:
        raise ModelError(f"{path}: the zip archive has more than one table of contents, or something behind it")


def is_code(name: str) -> bool:
    """True if an entry of this name is code."""
    return name.lower().endswith(".py")


def check_code(path: str, files: Iterable[tuple[str, bytes]]) -> None:
    """Raise ModelError for code that reads or writes files: a model has no business with them."""
    for name, content in files:
        text = content.decode("utf-8")
        call = _FILES.search(text) or _LOOKUP.search(text)
        if call is not None:
            raise ModelError(f"{path}: {name} says {call[0]!r}, with which it could read or write files: not opened")


def _hint() -> str:
    return f"make a TorchScript file: {MAKE}"
