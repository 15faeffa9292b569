"""Files that are no models, or not whole: an error that names the file and says what is wrong with it."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from mirage_cli import frontends
from mirage_cli.errors import ModelError, UnsupportedFormat
from mirage_cli.frontends.onnx import protobuf
from tests.frontends.models import noise, parsed

GOOD = parsed("g (float[2,3] x) => (float[2,3] y) { a = Add(x, w) y = Exp(a) }", w=noise(3)).SerializeToString()


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        frontends.load(str(path))
    assert caught.value.exit_code == 3 and str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty file"),
        (b"hello, world\n", "expected an ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"PK\x03\x04" + bytes(100), "zip archive"),
        (b"\x80\x02}q\x00.", "pickle"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (b'{"a": 1}', "JSON"),
        (b"GGUF\x03\x00\x00\x00", "GGUF"),
        (bytes(64), "expected an ONNX model"),
        (b"\xff" * 64, "expected an ONNX model"),
        (b"\x08\x09", "without graph"),
        (bytes(range(256)), "expected an ONNX model"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert words in refusal(path)


@pytest.mark.parametrize("length", range(1, len(GOOD), 3))
def test_truncated_models(tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(GOOD[:length])
    assert refusal(path)


@pytest.mark.parametrize("position", range(0, len(GOOD), 5))
@pytest.mark.parametrize("value", [0, 0x7F, 0xFF])
def test_damaged_models_are_read_or_refused(tmp_path: Path, position: int, value: int) -> None:
    """Whatever a changed byte means: an error of ours, or a model."""
    path = tmp_path / "model.onnx"
    path.write_bytes(GOOD[:position] + bytes([value]) + GOOD[position + 1 :])
    try:
        imported = frontends.load(str(path))
    except ModelError as error:
        assert str(error).startswith(str(path))
    else:
        assert imported.graph.outputs


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "nothing.onnx")
    folder = tmp_path / "folder.onnx"
    folder.mkdir()
    assert "folder" in refusal(folder)
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    assert "regular file" in refusal(pipe)
    dangling = tmp_path / "link.onnx"
    dangling.symlink_to("nowhere")
    assert "no such file" in refusal(dangling)


def test_a_link_to_a_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(GOOD)
    (tmp_path / "model.onnx").symlink_to("blob")
    imported = frontends.load(str(tmp_path / "model.onnx"))
    assert imported.node_count == 2 and imported.sha256 == protobuf.sha256(GOOD)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD)))
    assert frontends.load("-").path == "-"


@pytest.mark.parametrize("name", ["model.pth", "model.pt2", "model.safetensors", "model.txt", "model", "model.ort"])
def test_suffixes_that_are_not_read(name: str) -> None:
    with pytest.raises(UnsupportedFormat, match=r"expected a model file \(\.onnx") as caught:
        frontends.load(name)
    assert caught.value.exit_code == 3
    assert bool(caught.value.hint) == (name not in ("model.txt", "model"))


def test_suffixes_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "MODEL.ONNX").write_bytes(GOOD)
    assert frontends.load(str(tmp_path / "MODEL.ONNX")).node_count == 2


def test_a_file_that_protobuf_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "MAX_BYTES", 10)
    with pytest.raises(ModelError, match="holds at most 10") as caught:
        protobuf.parse(GOOD, "model.onnx")
    assert "external data" in caught.value.hint


def test_names_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(GOOD.replace(b"\x12\x01g*", b"\x12\x01\xff*"))
    assert path.read_bytes() != GOOD
    assert "not UTF-8" in refusal(path)
