"""Files of weights: opened once, hashed and copied without being loaded, mapped for what is computed with.

Weights can be larger than memory: elements are views of a mapping, see `rawfile.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mirage_cli.files.rawfile import DataFile

ALIGNMENT = (
    4096  #: what offsets of stored tensors are multiples of: pages are mapped and shared between files as they are
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Where bytes of a file of weights come from: `size` of them at `place`, from `offset` of a file, or computed."""

    place: int
    size: int
    file: DataFile | None = None
    offset: int = 0


class StoredTensor(ir.Tensor[NDArray[Any]]):
    """A tensor whose elements are a view of a file, at an offset of it."""

    def __init__(self, file: DataFile, offset: int, dims: Sequence[int], dtype: ir.DataType, name: str) -> None:
        self.file, self.offset = file, offset
        element = dtype.numpy().newbyteorder("<")
        count = int(np.prod(dims, dtype=np.int64))
        flat = np.frombuffer(file.content, element, count, offset) if count else np.empty(0, element)
        super().__init__(flat.reshape(dims), dtype, shape=ir.Shape(dims), name=name)


def write(
    tensors: Iterable[ir.TensorProtocol], path: Path, pieces: list[Piece] | None = None
) -> list[ir.ExternalTensor]:
    """Write the elements of tensors into a new file; tensors that are one range of a file are one range of the new one.

    The results stand in for the tensors in a model beside that file; `pieces` takes down what the file was made of. Raises
    OSError.
    """
    places: dict[tuple[int, int, int], int] = {}
    stored = []
    with path.open("wb") as file:
        for tensor in tensors:
            key = (id(tensor), 0, 0)
            if isinstance(tensor, StoredTensor):
                key = (id(tensor.file), tensor.offset, tensor.nbytes)
            if key not in places:
                places[key] = _append(tensor, file)
                if pieces is not None:
                    pieces.append(_piece(tensor, places[key]))
            stored.append(
                ir.ExternalTensor(
                    path.name,
                    places[key],
                    tensor.nbytes,
                    tensor.dtype,
                    shape=ir.Shape(tensor.shape.numpy()),
                    name=tensor.name or "",
                    doc_string=tensor.doc_string,
                    metadata_props=dict(tensor.metadata_props),
                    base_dir=path.parent,
                )
            )
        file.flush()
        os.fsync(file.fileno())
    return stored


def _piece(tensor: ir.TensorProtocol, place: int) -> Piece:
    if isinstance(tensor, StoredTensor):
        return Piece(place, tensor.nbytes, tensor.file, tensor.offset)
    return Piece(place, tensor.nbytes)


def _append(tensor: ir.TensorProtocol, file: BinaryIO) -> int:
    """Write a tensor's elements behind what is there; their offset."""
    end = file.tell()
    offset = file.seek(-(-end // ALIGNMENT) * ALIGNMENT)
    file.truncate(offset)
    if isinstance(tensor, StoredTensor):
        tensor.file.copy(tensor.offset, tensor.nbytes, file.fileno())
        file.seek(offset + tensor.nbytes)
    else:
        file.write(tensor.tobytes())
        file.flush()
    return offset
