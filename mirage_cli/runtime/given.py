"""Inputs of a model that somebody gives (`--inputs`), in place of drawn ones: an archive of numpy, or ONNX test data.

An archive (`.npz`) holds the arrays by the inputs' names; characters that names of files cannot have may be written as `entry`
writes them. A folder holds `input_0.pb`, `input_1.pb`, ... in the order of the model's inputs, or a folder `test_data_set_0`
that does.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mirage_cli.errors import UsageError
from mirage_cli.runtime import sessions

Arrays: TypeAlias = dict[str, NDArray[Any]]
LONGEST = 200  #: characters of a name that are kept
DATA_SET = "test_data_set_0"  #: the folder of ONNX test data that is taken where there are several
_FORM = "a file .npz or a folder with input_0.pb"


def read(path: str, model: onnx.ModelProto) -> Arrays:
    """The inputs of a model from a file or folder. Raises UsageError, naming the input, what was expected and what was
    found."""
    place = Path(path)
    wanted = described(model)
    arrays = _folder(place, wanted) if place.is_dir() else _archive(place, wanted)
    for name in arrays:
        if name not in wanted:
            raise UsageError(f"--inputs {path}: the model has no input {name!r}", f"its inputs are {', '.join(wanted)}")
    weights = {t.name for t in model.graph.initializer}
    for name, info in wanted.items():
        if name in arrays:
            arrays[name] = _checked(path, name, arrays[name], info)
        elif name not in weights:
            raise UsageError(
                f"--inputs {path}: expected input {name!r}, found {', '.join(map(repr, arrays)) or 'none'}"
            )
    return {name: arrays[name] for name in wanted if name in arrays}


def described(model: onnx.ModelProto) -> dict[str, onnx.TypeProto.Tensor]:
    """The inputs of a model in order: those that have no default first to be given in a folder."""
    weights = {t.name for t in model.graph.initializer}
    first = [v for v in model.graph.input if v.name not in weights]
    return {v.name: v.type.tensor_type for v in (*first, *(v for v in model.graph.input if v.name in weights))}


def digest(path: str) -> str:
    """The SHA-256 of all that a file, or the files of a folder, holds. Raises UsageError."""
    place, state = Path(path), hashlib.sha256()
    try:
        for file in sorted(_protos(place)) if place.is_dir() else [place]:
            state.update(f"{file.name}\0".encode())
            state.update(hashlib.sha256(file.read_bytes()).digest())
    except OSError as error:
        raise UsageError(f"--inputs {path}: cannot be read: {error.strerror}") from None
    return state.hexdigest()


def entry(name: str) -> str:
    """The name of a tensor in an archive of arrays, which are files there, and arguments of numpy's function before."""
    plain = name.replace("/", "|").replace("\0", "|")
    if len(plain) <= LONGEST and plain not in ("file", "allow_pickle"):
        return plain
    return f"{plain[:LONGEST]}|{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _archive(place: Path, wanted: Mapping[str, Any]) -> Arrays:
    """The arrays of an archive, by the names of inputs."""
    written = {entry(name): name for name in wanted}
    try:
        with place.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UsageError(f"--inputs {place}: expected {_FORM}, found one array")
            return {name if name in wanted else written.get(name, name): archive[name] for name in archive.files}
    except FileNotFoundError:
        raise UsageError(f"--inputs {place}: no such file or folder") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"--inputs {place}: expected {_FORM}: {error}") from None


def _folder(place: Path, wanted: Mapping[str, Any]) -> Arrays:
    """The tensors of a folder of test data, by the names of inputs."""
    files, names = _protos(place), list(wanted)
    if not files:
        raise UsageError(f"--inputs {place}: expected input_0.pb, found no such file", f"give {_FORM}")
    if len(files) > len(names):
        raise UsageError(f"--inputs {place}: expected {len(names)} inputs ({', '.join(names)}), found {len(files)}")
    return {name: _tensor(file) for name, file in zip(names, files, strict=False)}


def _protos(place: Path) -> list[Path]:
    """The files of a folder's inputs, in order: without a gap."""
    own = place if (place / "input_0.pb").is_file() else place / DATA_SET
    numbered = (own / f"input_{k}.pb" for k in range(len(list(own.glob("input_*.pb")))))
    return [path for path in numbered if path.is_file()]


def _tensor(file: Path) -> NDArray[Any]:
    tensor = TensorProto()
    try:
        tensor.ParseFromString(file.read_bytes())
        return np.asarray(numpy_helper.to_array(tensor))
    except (OSError, DecodeError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"--inputs {file}: expected a tensor of ONNX: {error}") from None


def _checked(path: str, name: str, array: NDArray[Any], info: onnx.TypeProto.Tensor) -> NDArray[Any]:
    """An array of the type and shape that an input is said to have. Raises UsageError."""
    where = f"--inputs {path}: input {name!r}"
    if not info.elem_type:
        raise UsageError(f"{where}: the model's input is no tensor")
    wanted = np.dtype(helper.tensor_dtype_to_np_dtype(info.elem_type))
    if wanted.name in sessions.BITS and array.dtype in (sessions.BITS[wanted.name][0], np.dtype(f"V{wanted.itemsize}")):
        array = array.view(wanted)  # how numpy stores what it has no name for
    if array.dtype != wanted:
        raise UsageError(f"{where}: expected {wanted.name}, found {array.dtype.name}")
    if not info.HasField("shape"):
        return array
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in info.shape.dim]
    fits = len(dims) == array.ndim and all(d == n for d, n in zip(dims, array.shape, strict=True) if isinstance(d, int))
    if not fits:
        raise UsageError(f"{where}: expected shape [{_listed(dims)}], found [{_listed(array.shape)}]")
    return array


def _listed(dims: Sequence[Any]) -> str:
    return ", ".join(map(str, dims))
