"""From bytes to an ONNX protobuf message, with errors that say what is wrong with the file."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError

from mirage_cli.errors import ModelError
from mirage_cli.files.rawfile import regular_file

MAX_BYTES = 2**31 - 1  #: of a protobuf message
CHUNK = 1 << 20  #: bytes of a stream that are read at a time
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_MODEL_FIELDS = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26})
#: first bytes of files that are often taken for ONNX models
_FOREIGN = {
    b"version https://git-lfs": "a Git LFS pointer: run `git lfs pull`",
    b"PK\x03\x04": "a zip archive (PyTorch files are): export the model to ONNX",
    b"\x80\x02": "a Python pickle (PyTorch files are): export the model to ONNX",
    b"\x89HDF": "an HDF5 file (Keras files are): export the model to ONNX",
    b"<": "a text in HTML or XML: was the download a web page?",
    b"{": "a JSON text",
    b"GGUF": "a GGUF file",
}


def read_bytes(path: str) -> bytes:
    """The file's content ("-": standard input). Raises ModelError where there is no regular file to read."""
    if path == "-":
        return _all_of(sys.stdin.buffer)
    try:
        with regular_file(path) as (file, size):
            _check_length(path, size)
            return file.read()
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ModelError(f"{path}: expected a model file, found a folder") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error


def _all_of(file: BinaryIO) -> bytes:
    """The content of a stream, at most a little more than `MAX_BYTES`: some have no end."""
    content = bytearray()
    while len(content) <= MAX_BYTES and (more := file.read(CHUNK)):
        content += more
    return bytes(content)


def parse(data: bytes, path: str) -> onnx.ModelProto:
    """The message in `data`. Raises ModelError for a file that is empty, truncated, too large or not an ONNX model."""
    if not data:
        raise ModelError(f"{path}: expected an ONNX model, found an empty file")
    _check_length(path, len(data))
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        raise ModelError(f"{path}: {_what_is_wrong(data)}") from None
    if not model.HasField("graph") or not model.ir_version:
        missing = "graph" if model.ir_version else "ir_version"
        raise ModelError(f"{path}: expected an ONNX model, found a file without {missing}{_foreign(data)}")
    return model


def _check_length(path: str, length: int) -> None:
    if length > MAX_BYTES:
        raise ModelError(
            f"{path}: {length} bytes, but a protobuf file holds at most {MAX_BYTES}",
            "save the weights as external data",
        )


def sha256(data: bytes) -> str:
    """The hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def _foreign(data: bytes) -> str:
    what = next((text for start, text in _FOREIGN.items() if data.startswith(start)), "")
    return f"; it looks like {what}" if what else ""


def _what_is_wrong(data: bytes) -> str:
    """Why `data` does not parse: cut off, or not an ONNX model from the start."""
    fields = 0
    for number, end in _top_fields(data):
        if number not in _MODEL_FIELDS:
            break
        if end > len(data):
            return f"truncated: field {number} of the model ends at byte {end}, the file at byte {len(data)}"
        fields += 1
    if fields and not _foreign(data):
        return f"damaged, or nested too deeply: the ONNX model in it cannot be decoded ({len(data)} bytes)"
    return f"expected an ONNX model (protobuf), found {data[:8]!r}...{_foreign(data)}"


def _top_fields(data: bytes) -> Iterator[tuple[int, int]]:
    """(number, end) of the top-level fields of a message, as far as they can be followed."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            _, position = _varint(data, position)
        elif wire == _BYTES:
            length, position = _varint(data, position)
            position += length
        elif wire in (_FIXED64, _FIXED32):
            position += 8 if wire == _FIXED64 else 4
        else:
            number = 0
        yield number, position
        if number == 0:
            return


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
    return value, len(data) + 1
