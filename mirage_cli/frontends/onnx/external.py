"""External data: which files a model may name, and their bytes as lazily read tensors.

A model file is not trusted to name any file. A data file is accepted when, with all links resolved, it lies under the
folder of the path that was given or under the folder of that path's own target: the second covers the Hugging Face
cache, where model and data are links into one folder of blobs. It must be a regular file that holds every range that
the model reads. Files are opened and mapped once, so that nothing changes between the check and the use.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from mirage_cli.errors import ModelError
from mirage_cli.files.datafile import StoredTensor
from mirage_cli.files.rawfile import DataFile
from mirage_cli.frontends.onnx.protobuf import MAX_BYTES
from mirage_cli.frontends.onnx.traversal import graphs


@dataclass(slots=True)
class DataFiles:
    """The data files of the model at `path`, opened on first use; `sha256` of each by the name in the model, if they are
    to be `hashed`."""

    path: str
    hashed: bool = True
    sha256: dict[str, str] = field(default_factory=dict)
    files: dict[str, DataFile] = field(default_factory=dict)

    def tensor(self, proto: onnx.TensorProto) -> ir.TensorProtocol:
        """A tensor whose elements are read from the file when they are needed. Raises ModelError."""
        file, offset, size, dtype = self._range(proto)
        dims = list(proto.dims)
        if dtype.bitwidth < 8:
            packed = np.frombuffer(file.content, np.uint8, size, offset) if size else np.empty(0, np.uint8)
            return ir.PackedTensor(packed, dtype, shape=ir.Shape(dims), name=proto.name)
        return StoredTensor(file, offset, dims, dtype, proto.name)

    def array(self, proto: onnx.TensorProto) -> NDArray[Any]:
        """The elements of a tensor, wherever they are stored. Raises ModelError."""
        if proto.data_location != onnx.TensorProto.EXTERNAL:
            return numpy_helper.to_array(proto)
        return self.tensor(proto).numpy()

    def inline(self, proto: onnx.TensorProto) -> None:
        """Put the elements into the message itself. Raises ModelError."""
        file, offset, size, _ = self._range(proto)
        if size > MAX_BYTES:
            raise ModelError(
                f"{self.path}: constant {proto.name!r} has {size} bytes, of which a model holds {MAX_BYTES}"
            )
        proto.raw_data = file.content[offset : offset + size]
        proto.data_location = onnx.TensorProto.DEFAULT
        del proto.external_data[:]

    def _range(self, proto: onnx.TensorProto) -> tuple[DataFile, int, int, ir.DataType]:
        """The file with offset, size and type of a tensor's elements in it."""
        try:
            info = ExternalDataInfo(proto)
            dtype = ir.DataType(proto.data_type)
            size = math.ceil(math.prod(proto.dims) * dtype.bitwidth / 8)
        except (ValueError, TypeError) as error:
            raise ModelError(f"{self.path}: external data of tensor {proto.name!r}: {error}") from None
        if any(d < 0 for d in proto.dims):
            raise ModelError(f"{self.path}: tensor {proto.name!r} has a negative dimension: {list(proto.dims)}")
        offset = info.offset or 0
        file = self._open(info.location, proto.name)
        length: int | None = info.length
        if length is not None and length != size:
            shape = "x".join(map(str, proto.dims)) or "scalar"
            raise ModelError(
                f"{self.path}: tensor {proto.name!r} ({dtype.name}, {shape}) needs {size} bytes, "
                f"but its external data says {length}"
            )
        if offset + size > file.size:
            raise ModelError(
                f"{self.path}: tensor {proto.name!r} needs bytes {offset} to {offset + size} of {info.location!r}, "
                f"which has {file.size}"
            )
        return file, offset, size, dtype

    def _open(self, location: str, tensor: str) -> DataFile:
        if location not in self.files:
            where = f"{self.path}: external data {location!r} of tensor {tensor!r}"
            try:
                self.files[location] = DataFile(self._resolve(location, where))
                if self.hashed:
                    self.sha256[location] = self.files[location].sha256()
            except ValueError as error:
                raise ModelError(f"{where}: {error}") from None
            except OSError as error:
                raise ModelError(f"{where} cannot be opened: {error.strerror}") from None
        return self.files[location]

    def _resolve(self, location: str, where: str) -> Path:
        """The file that a location means. Raises ModelError for one outside the model's folders."""
        if self.path == "-":
            raise ModelError(
                f"{where} cannot be found for a model on standard input",
                "give the model's path, or the folder of its data: --data DIR",
            )
        if not location or "\0" in location or os.path.isabs(location):
            raise ModelError(f"{where}: expected a path relative to the model, found {location!r}")
        given = Path(self.path)
        try:
            target = Path(os.path.realpath(given.parent / location, strict=True))
            folders = (Path(os.path.realpath(given.parent)), Path(os.path.realpath(given)).parent)
        except FileNotFoundError:
            raise ModelError(f"{where}: no such file", "put the data file beside the model file") from None
        except OSError as error:
            raise ModelError(f"{where} cannot be opened: {error.strerror}") from None
        if not any(target.is_relative_to(folder) for folder in folders):
            raise ModelError(
                f"{where} lies outside the model's folder: it is {target}, expected a file under "
                f"{' or '.join(dict.fromkeys(map(str, folders)))}"
            )
        return target


def inline_inner(model: onnx.ModelProto, files: DataFiles) -> None:
    """Put into the message what is no weight of the main graph: data of attributes, sub-graphs and functions.

    Raises ModelError.
    """
    functions = [node for function in model.functions for node in function.node]
    for tensor in (*node_tensors(model.graph.node), *node_tensors(functions)):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            files.inline(tensor)


def node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    """The tensors in attributes of nodes and in their sub-graphs."""
    for node in nodes:
        for attribute in node.attribute:
            yield from [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]
            for graph in graphs(attribute):
                yield from graph.initializer
                yield from node_tensors(graph.node)
