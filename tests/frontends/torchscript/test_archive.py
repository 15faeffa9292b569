"""PyTorch files are looked at without PyTorch: TorchScript archives pass, everything else is refused before it is opened."""

import pickle
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirage_cli import frontends
from mirage_cli.errors import ModelError, ToolMissing, UnsupportedFormat
from mirage_cli.frontends.torchscript import archive as torchscript_file
from mirage_cli.frontends.torchscript import modules

CODE = "class M(Module):\n  def forward(self, x: Tensor) -> Tensor:\n    return torch.relu(x)\n"
SCRIPT = {
    "data.pkl": b"\x80\x02.",
    "constants.pkl": b"\x80\x02.",
    "code/__torch__.py": CODE.encode(),
    "version": b"3\n",
}


def archive(path: Path, files: dict[str, bytes], folder: str = "model/") -> str:
    """A zip file with an inner folder, as PyTorch writes them."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(folder + name, content)
    return str(path)


def test_a_torchscript_archive_passes(tmp_path: Path) -> None:
    torchscript_file.check(archive(tmp_path / "m.pt", SCRIPT))


def test_without_torch_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')")
    monkeypatch.syspath_prepend(str(tmp_path))  # where the process looks that reads modules
    with pytest.raises(ToolMissing, match="torch is needed") as caught:
        frontends.load(archive(tmp_path / "m.ts", SCRIPT))
    assert (caught.value.exit_code, caught.value.hint) == (4, "pip install 'mirage-cli[torch]'")


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (print, ("unpickled",))


@pytest.mark.parametrize("name", ["plain.pt", "zipped.pt", "zipped.ts"])
def test_pickles_are_refused_and_not_opened(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, content = tmp_path / name, pickle.dumps(Harmful())
    if name.startswith("plain"):
        path.write_bytes(content)
    else:
        archive(path, {"data.pkl": content, "version": b"3\n", "data/0": bytes(64)})
    with pytest.raises(UnsupportedFormat, match=r"found a pickle of torch\.save") as caught:
        frontends.load(str(path))
    assert "torch.jit.trace(" in caught.value.hint
    assert capsys.readouterr().out == ""


def test_an_archive_of_torch_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormat, match=r"one of torch\.export") as caught:
        frontends.load(archive(tmp_path / "m.pt", {"models/model.json": b"{}", "archive_format": b"pt2"}))
    assert "torch.onnx.export" in caught.value.hint


@pytest.mark.parametrize(
    "call",
    [
        "torch.save(x, 'f')",
        "ops.aten.save(x)",
        "torch.from_file('f')",
        "torch . save(x, 'f')",
        "torch.\\\n save(x, 'f')",
        "t = torch\n  t.save(x, 'f')",
        "f = torch.save\n  f(x, 'f')",
        "getattr(torch, 'save')(x, 'f')",
        "getattr(torch, 'sa' 've')(x, 'f')",
        "getattr(torch, '\\x73ave')(x, 'f')",
        "getattr(torch,\n'sa'\n've')(x, 'f')",
    ],
)
def test_code_that_writes_files_is_refused(tmp_path: Path, call: str) -> None:
    files = SCRIPT | {"code/__torch__/inner.py": f"def __setstate__(self, x):\n  {call}\n".encode()}
    with pytest.raises(ModelError, match=r"inner\.py says .* could read or write files"):
        torchscript_file.check(archive(tmp_path / "m.pt", files))


def test_attributes_that_torch_looks_up_by_text_pass(tmp_path: Path) -> None:
    code = CODE + '    _0 = getattr(self, "0")\n    _1 = getattr(_0.layers, "1")\n    saved = self.save_memory\n'
    torchscript_file.check(archive(tmp_path / "m.pt", SCRIPT | {"code/__torch__.py": code.encode()}))


def test_names_that_lead_out_of_the_archive(tmp_path: Path) -> None:
    """Nothing is unpacked: an entry's name is no path of a file."""
    path = archive(tmp_path / "m.pt", SCRIPT | {"../../escaped": b"x", "/absolute": b"x"})
    torchscript_file.check(path)
    assert [p.name for p in tmp_path.iterdir()] == ["m.pt"] and not (tmp_path.parent.parent / "escaped").exists()


def test_an_archive_that_grows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchscript_file, "MAX_INFLATION", 1000)
    with pytest.raises(ModelError, match="would unpack to"):
        torchscript_file.check(archive(tmp_path / "m.pt", SCRIPT | {"data/0": bytes(100_000)}))


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "m.pt", SCRIPT)
    with zipfile.ZipFile(path, "a") as made, pytest.warns(UserWarning, match="Duplicate name"):
        made.writestr("model/data.pkl", b"other")
    with pytest.raises(ModelError, match="5 entries, 4 different names"):
        torchscript_file.check(path)


SAVING = CODE.replace("return", "torch.save(x, 'f')\n    return").encode()
END = "<4s4H2IH"


def parts(path: Path, code: bytes, before: int) -> tuple[bytes, bytes]:
    """(entries, table of contents) of an archive that stands behind so many bytes."""
    with zipfile.ZipFile(path, "w") as made:
        for name, content in (SCRIPT | {"code/__torch__.py": code}).items():
            made.writestr(zipfile.ZipInfo(f"model/{name}"), content)
    data = path.read_bytes()
    *_, offset, _ = struct.unpack(END, data[-22:])
    table, place = bytearray(data[offset:-22]), 0
    while place < len(table):
        name, extra, comment = struct.unpack_from("<3H", table, place + 28)
        struct.pack_into("<I", table, place + 42, struct.unpack_from("<I", table, place + 42)[0] + before)
        place += 46 + name + extra + comment
    return data[:offset], bytes(table)


def end(length: int, offset: int, count: int = len(SCRIPT), comment: int = 0) -> bytes:
    return struct.pack(END, b"PK\5\6", 0, 0, count, count, length, offset, comment)


def end64(length: int, offset: int, place: int) -> bytes:
    count = len(SCRIPT)
    record = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, offset)
    return record + struct.pack("<4sIQI", b"PK\6\7", 0, place, 1)


def test_two_tables_of_contents(tmp_path: Path) -> None:
    """Python takes the table that stands before the end, torch the one that the end tells of."""
    path, room = tmp_path / "m.pt", b"PK\3\4".ljust(4096, b"\0")
    bad, its_table = parts(path, SAVING, len(room))
    shift = len(room) + len(bad)
    good, _ = parts(path, CODE.encode(), 0)
    _, table = parts(path, CODE.encode(), shift - len(good))
    path.write_bytes(room + bad + its_table + good + table + end(len(table), shift))
    with zipfile.ZipFile(path) as archive:
        assert archive.read("model/code/__torch__.py") == CODE.encode()
    with pytest.raises(ModelError, match="more than one table of contents"):
        torchscript_file.check(str(path))


def test_the_end_of_an_archive(tmp_path: Path) -> None:
    """As torch writes it, with records of 64 bits, and what readers may understand in two ways."""
    path = tmp_path / "m.pt"
    files, table = parts(path, CODE.encode(), 0)
    size, place = len(table), len(files) + len(table)
    first = files + table
    torchscript_file.check(str(path))
    path.write_bytes(first + end64(size, len(files), place) + end(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFF))
    torchscript_file.check(str(path))
    for bad in (
        end(size, len(files)) + b"more",
        end(size, len(files), comment=4) + b"more",
        end(size, len(files), len(SCRIPT) - 1),
        end64(size, len(files), place - 1) + end(size, len(files)),
        b"more" + end64(size, len(files), place) + end(size, len(files)),
    ):
        path.write_bytes(first + bad)
        with pytest.raises(ModelError, match=r"more than one table of contents|damaged"):
            torchscript_file.check(str(path))


def test_what_a_module_prints_is_not_told(capfd: pytest.CaptureFixture[str]) -> None:
    """Standard output is for data; torch writes what modules print to Python's."""
    with modules.silent():
        print("\x1b[31m")
    print("data")
    assert capfd.readouterr().out == "data\n"


def test_code_is_looked_at_as_torch_reads_it(tmp_path: Path) -> None:
    """Its reader of archives tells what torch.jit.load would run, which need not be what Python's tells."""
    loaded = []
    code = {"code/__torch__.py": CODE.encode(), "data.pkl": b"save"}
    reader = SimpleNamespace(get_all_records=code.keys, get_record=code.__getitem__)
    torch = SimpleNamespace(
        _C=SimpleNamespace(PyTorchFileReader=lambda path: reader),
        jit=SimpleNamespace(load=lambda path, map_location: loaded.append(path) or SimpleNamespace(eval=dict)),
    )
    assert modules.open_module(torch, "m.pt") == {} and loaded == ["m.pt"]
    code["code/__torch__.py"] = SAVING
    with pytest.raises(ModelError, match=r"__torch__\.py says 'save'"):
        modules.open_module(torch, "m.pt")
    assert loaded == ["m.pt"]


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (None, "no such file"),
        (b"", "an empty file"),
        (b"hello", "expected a TorchScript archive"),
        (b"PK\x03\x04" + bytes(99), "damaged"),
    ],
)
def test_files_that_are_no_archive(tmp_path: Path, content: bytes | None, phrase: str) -> None:
    path = tmp_path / "m.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=phrase):
        torchscript_file.check(str(path))


def test_a_folder_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="found a folder"):
        torchscript_file.check(str(tmp_path))


def test_a_truncated_archive(tmp_path: Path) -> None:
    path = Path(archive(tmp_path / "m.pt", SCRIPT))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ModelError, match="damaged"):
        torchscript_file.check(str(path))
