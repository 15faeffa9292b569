"""External data: which files a model may name, and that they are mapped rather than loaded."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from mirage_cli import frontends
from mirage_cli.errors import ModelError, UsageError
from mirage_cli.frontends.imported import Imported
from mirage_cli.frontends.onnx import external
from mirage_cli.optimization import reading
from mirage_cli.options.options import Options
from tests.frontends.models import parsed

DATA = np.array([1, 2], np.float32).tobytes()
Entries = dict[str, str]


def weight(model: onnx.ModelProto, dims: list[int], entries: Entries, name: str = "w") -> None:
    tensor = model.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.dims.extend(dims)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def load(folder: Path, entries: Entries, dims: list[int] | None = None) -> Imported:
    model = parsed("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    weight(model, dims or [2], entries)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return frontends.load(str(path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "model"
    found.mkdir()
    (tmp_path / "outside").write_bytes(DATA)
    (found / "w").write_bytes(DATA)
    return found


def test_data_beside_the_model(folder: Path) -> None:
    imported = load(folder, {"location": "w"})
    assert imported.constant("w").tolist() == [1, 2]
    assert imported.external == {"w": hashlib.sha256(DATA).hexdigest()}


def test_data_at_an_offset_in_a_folder_below(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "w").write_bytes(bytes(16) + DATA + bytes(4))
    imported = load(folder, {"location": "data/w", "offset": "16", "length": "8"})
    assert imported.constant("w").tolist() == [1, 2]


def link_outside(folder: Path) -> None:
    (folder / "link").symlink_to("../outside")


def link_to_device(folder: Path) -> None:
    (folder / "link").symlink_to("/dev/zero")


def dangling_link(folder: Path) -> None:
    (folder / "link").symlink_to("nowhere")


def circular_link(folder: Path) -> None:
    (folder / "link").symlink_to("link")


def folder_link(folder: Path) -> None:
    (folder / "link").symlink_to("..")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "link")


def subfolder(folder: Path) -> None:
    (folder / "link").mkdir()


def empty(folder: Path) -> None:
    (folder / "link").touch()


def nothing(folder: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("prepare", "entries", "words"),
    [
        (nothing, {"location": "../outside"}, "lies outside"),
        (nothing, {"location": "w/../../outside"}, "w/../../outside"),
        (nothing, {"location": "/etc/passwd"}, "relative to the model"),
        (nothing, {"location": ""}, "relative to the model"),
        (nothing, {}, "relative to the model"),
        (nothing, {"location": "missing"}, "no such file"),
        (nothing, {"location": "w" * 5000}, "File name too long"),
        (nothing, {"location": "w/x"}, "Not a directory"),
        (link_outside, {"location": "link"}, "lies outside"),
        (folder_link, {"location": "link/outside"}, "lies outside"),
        (link_to_device, {"location": "link"}, "lies outside"),
        (dangling_link, {"location": "link"}, "no such file"),
        (circular_link, {"location": "link"}, "cannot be opened"),
        (pipe, {"location": "link"}, "regular file"),
        (subfolder, {"location": "link"}, "regular file"),
        (empty, {"location": "link"}, "which has 0"),
        (nothing, {"location": "w", "offset": "4"}, "needs bytes 4 to 12 of 'w', which has 8"),
        (nothing, {"location": "w", "offset": str(2**63)}, "which has 8"),
        (nothing, {"location": "w", "offset": "-4"}, "non-negative"),
        (nothing, {"location": "w", "offset": "four"}, "four"),
        (nothing, {"location": "w", "length": "4"}, "needs 8 bytes, but its external data says 4"),
    ],
)
def test_refused_data(folder: Path, prepare: Callable[[Path], None], entries: Entries, words: str) -> None:
    prepare(folder)
    with pytest.raises(ModelError) as caught:
        load(folder, entries)
    assert words in str(caught.value) and "'w'" in str(caught.value)
    assert str(caught.value).startswith(str(folder / "model.onnx"))


@pytest.mark.parametrize("dims", [[-2], [-1, -2], [2**62], [3]])
def test_dimensions_that_do_not_fit_the_data(folder: Path, dims: list[int]) -> None:
    with pytest.raises(ModelError, match=r"negative dimension|which has 8|no tensor can have"):
        load(folder, {"location": "w"}, dims)


def test_links_inside_the_folder_and_hard_links(folder: Path) -> None:
    (folder / "soft").symlink_to("w")
    os.link(folder / "w", folder / "hard")
    for name in ("soft", "hard"):
        assert load(folder, {"location": name}).constant("w").tolist() == [1, 2]


def test_a_cache_in_which_model_and_data_are_links_to_blobs(tmp_path: Path) -> None:
    """The layout of the Hugging Face cache: snapshots of links into a folder of blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    model = parsed("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    weight(model, [2], {"location": "model.onnx_data"})
    (blobs / "aa").write_bytes(model.SerializeToString())
    (blobs / "bb").write_bytes(DATA)
    (snapshot / "model.onnx").symlink_to("../../blobs/aa")
    (snapshot / "model.onnx_data").symlink_to("../../blobs/bb")
    imported = frontends.load(str(snapshot / "model.onnx"))
    assert imported.constant("w").tolist() == [1, 2]
    (snapshot / "model.onnx_data").unlink()
    (snapshot / "model.onnx_data").symlink_to("../../secret")
    (tmp_path / "secret").write_bytes(DATA)
    with pytest.raises(ModelError, match="lies outside"):
        frontends.load(str(snapshot / "model.onnx"))


def test_large_data_is_mapped_and_not_loaded(folder: Path) -> None:
    """A sparse file: its weights are views of one mapping, whatever its size."""
    rows = 2**22
    with (folder / "w").open("wb") as file:
        file.truncate(4 * 8 * rows)
    model = parsed(f"g (float[2,{rows}] x) => (float[2,4] y) {{ a = MatMul(x, u) b = MatMul(x, v) y = Add(a, b) }}")
    weight(model, [rows, 4], {"location": "w"}, "u")
    weight(model, [rows, 4], {"location": "w", "offset": str(4 * 4 * rows)}, "v")
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    imported = frontends.load(str(path))
    tensors = [imported.constant(name) for name in "uv"]
    assert all(not t.flags.owndata and not t.flags.writeable for t in tensors)
    roots = []
    for t in tensors:
        root = t
        while isinstance(root.base, np.ndarray):
            root = root.base
        roots.append(root.base)
    buffers = {id(b.obj) if isinstance(b, memoryview) else id(b) for b in roots}
    assert len(buffers) == 1


def load_constant(folder: Path, dims: list[int]) -> Imported:
    model = parsed("g (float[2] x) => (float[2] y) { c = Constant <value = float[2] {0, 0}> () y = Add(x, c) }")
    tensor = model.graph.node[0].attribute[0].t
    tensor.dims[:] = dims
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w")
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return frontends.load(str(path))


def test_data_of_functions_and_constants_is_put_into_the_model(folder: Path) -> None:
    imported = load_constant(folder, [2])
    assert imported.constant("c").tolist() == [1, 2]
    assert list(imported.external) == ["w"]


@pytest.mark.parametrize(("dims", "words"), [([-1], "negative dimension"), ([1 << 32], "of which a model holds")])
def test_constants_are_not_put_in_whatever_their_size(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dims: list[int], words: str
) -> None:
    """A sparse file beside the model can be as large as it likes; all but the last elements of it are no tensor."""
    monkeypatch.setattr(external.DataFile, "sha256", lambda _: "")
    with (folder / "w").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelError, match=words):
        load_constant(folder, dims)


def test_a_model_on_standard_input_has_no_folder() -> None:
    from mirage_cli.frontends.imported import Options
    from mirage_cli.frontends.onnx import front_end

    model = parsed("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    weight(model, [2], {"location": "w"})
    with pytest.raises(ModelError, match="standard input") as caught:
        front_end.from_proto(model, Options())
    assert caught.value.hint


def test_a_model_on_standard_input_with_the_folder_of_its_data(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parsed("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    weight(model, [2], {"location": "w"})
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(model.SerializeToString())))
    imported = reading.read_model("-", Options(data=str(folder)))
    assert list(imported.external) == ["w"]
    assert imported.constant("w").tobytes() == (folder / "w").read_bytes()[:8]
    with pytest.raises(UsageError, match=r"--data .*: a model on standard input has such a folder"):
        reading.read_model(str(tmp_path / "m.onnx"), Options(data=str(folder)))
