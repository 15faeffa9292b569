"""Models written to disk: the original's very bytes, or a message with its weights; data files with both."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from mirage_cli.files import datafile
from mirage_cli.files.datafile import Piece
from mirage_cli.files.output import DATA, LIBRARY, MARK, MODEL, MUGRAPHS, PAGE, SCRIPT
from mirage_cli.files.rawfile import DataFile
from mirage_cli.frontends.onnx.external import DataFiles, node_tensors
from mirage_cli.frontends.onnx.original import Original

INSIDE_BYTES = 1024  #: weights up to this size are stored in the file even where others are outside
PROTOBUF_LIMIT = 1_900_000_000  #: bytes of weights from which on they have to be stored outside the file
_EXTERNAL = onnx.TensorProto.EXTERNAL
_OURS = (
    "..",
    ".",
    "",
    MODEL,
    SCRIPT,
    LIBRARY,
    MUGRAPHS,
    MARK,
    PAGE,
    "src",
    "mirage.h",
    "libmirage_torch.so",
    "steps.json",
)
_STALE = "checksum"  #: of a data file as a whole


# --- as it was ----------------------------------------------------------------------------------------------------------
def copy(original: Original, path: Path, pieces: list[Piece] | None = None) -> None:
    """Write the bytes of a model as they were, and its data files under the names that it has for them; where a name lies
    outside of the folder, or is one of ours, the weights go to `<name>.data` as in `save`. Raises OSError."""
    files = original.files.files
    if not all(_may_be_there(name) for name in files):
        save(original.proto(), original.files, path, pieces)
        return
    path.write_bytes(original.data)
    for name, file in files.items():
        place = path.parent / posixpath.normpath(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        _copy_whole(file, place)
        if pieces is not None and posixpath.normpath(name) == DATA:
            pieces.append(Piece(0, file.size, file, 0))


def _may_be_there(name: str) -> bool:
    """True if a data file may have this name in an output folder."""
    first = posixpath.normpath(name).split("/")[0]
    return first == DATA or (first not in _OURS)


def _copy_whole(file: DataFile, place: Path) -> None:
    with place.open("wb") as copy_file:
        file.copy(0, file.size, copy_file.fileno())
        copy_file.flush()
        os.fsync(copy_file.fileno())


# --- with changes -------------------------------------------------------------------------------------------------------
def save(proto: onnx.ModelProto, files: DataFiles, path: Path, pieces: list[Piece] | None = None) -> None:
    """Write a message, of which only the places of weights in `files` are changed: they go to `<name>.data` beside it, each
    range once, and with them new large ones. `pieces` takes down what that file is made of. Raises OSError."""
    tensors = list(_tensors(proto))
    outside = [t for t in tensors if t.data_location == _EXTERNAL]
    if outside or proto.ByteSize() > PROTOBUF_LIMIT:
        large = [t for t in proto.graph.initializer if t.data_location != _EXTERNAL and len(t.raw_data) > INSIDE_BYTES]
        chosen = [*outside, *(large if proto.ByteSize() > PROTOBUF_LIMIT else [])]
        held = [files.tensor(t) if t.data_location == _EXTERNAL else ir.serde.deserialize_tensor(t) for t in chosen]
        places = datafile.write(held, path.with_name(f"{path.name}.data"), pieces)
        for tensor, place in zip(chosen, places, strict=True):
            _point_to(tensor, place)
    path.write_bytes(proto.SerializeToString())


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """All stored tensors of a model."""
    yield from proto.graph.initializer
    yield from node_tensors(proto.graph.node)
    yield from node_tensors(node for function in proto.functions for node in function.node)


def _point_to(tensor: onnx.TensorProto, place: ir.ExternalTensor) -> None:
    """Let a tensor's elements be those at a place of a file."""
    tensor.ClearField("raw_data")
    tensor.data_location = _EXTERNAL
    told = {"location": str(place.location), "offset": str(place.offset), "length": str(place.length)}
    kept = [(e.key, e.value) for e in tensor.external_data if e.key not in told and e.key != _STALE]
    del tensor.external_data[:]
    for key, value in (*told.items(), *kept):
        tensor.external_data.add(key=key, value=value)


# --- of onnx-ir ---------------------------------------------------------------------------------------------------------
def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers."""
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def save_ir(model: ir.Model, path: Path, external: bool) -> None:
    """Write a model that was made here; weights go to `<name>.data` beside it when `external` or when they would not fit into
    the file. Raises OSError."""
    if not external and weight_bytes(model) <= PROTOBUF_LIMIT:
        ir.save(model, path)
        return
    values = [v for graph in model.graphs() for v in graph.initializers.values()]
    large = [(v, v.const_value) for v in values if v.const_value is not None and v.const_value.nbytes > INSIDE_BYTES]
    outside = datafile.write([tensor for _, tensor in large], path.with_name(f"{path.name}.data"))
    try:
        for (value, _), moved in zip(large, outside, strict=True):
            value.const_value = moved
        ir.save(model, path)
    finally:
        for value, tensor in large:
            value.const_value = tensor
