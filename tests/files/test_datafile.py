"""Files of weights: hashed, copied and shared without being loaded; models and outputs made of links; what memory is taken."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from mirage_cli import frontends
from mirage_cli.files import rawfile
from mirage_cli.files.datafile import StoredTensor, write
from mirage_cli.files.rawfile import DataFile
from mirage_cli.optimization import environment, pipeline
from mirage_cli.options.options import Options
from mirage_cli.patching import patch, saving
from mirage_cli.verification.findings import VerifyOptions
from mirage_cli.verification.story import verify_folder
from tests.frontends.models import noise, parsed
from tests.optimized import anew, sample

pytestmark = pytest.mark.usefixtures("one_isa")

CONTENT = bytes(range(256)) * 64
FLOAT = ir.DataType.FLOAT


@pytest.fixture
def file(tmp_path: Path) -> DataFile:
    (tmp_path / "w").write_bytes(CONTENT)
    return DataFile(tmp_path / "w")


def no_copy(*args: object) -> int:
    raise OSError(95, "Operation not supported")


@pytest.mark.parametrize("kernel", [True, False])
def test_ranges_are_copied_and_equal_ranges_shared(
    file: DataFile, tmp_path: Path, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel:
        monkeypatch.setattr(os, "copy_file_range", no_copy, raising=False)
    monkeypatch.setattr(rawfile, "CHUNK", 1000)
    first = StoredTensor(file, 16, [8, 50], FLOAT, "first")
    tied = StoredTensor(file, 16, [50, 8], FLOAT, "tied")
    own = ir.Tensor(noise(30, 10), name="own")
    last = StoredTensor(file, len(CONTENT) - 8, [2], FLOAT, "last")
    made = write([first, own, tied, last, own], tmp_path / "new.data")
    assert [t.offset for t in made] == [0, 4096, 0, 8192, 4096]
    stored = (tmp_path / "new.data").read_bytes()
    assert stored[:1600] == CONTENT[16:1616] and stored[4096:5296] == noise(30, 10).tobytes()
    assert stored[8192:] == CONTENT[-8:]
    for before, after in zip([first, own, tied, last, own], made, strict=True):
        assert (before.name, before.shape, before.dtype) == (after.name, after.shape, after.dtype)
        assert before.numpy().tobytes() == after.numpy().tobytes()


def test_a_file_that_was_cut_in_the_meantime(file: DataFile, tmp_path: Path) -> None:
    tensor = StoredTensor(file, 0, [1024], FLOAT, "w")
    os.truncate(tmp_path / "w", 100)
    with pytest.raises(OSError, match="shorter"):
        write([tensor], tmp_path / "new.data")


def test_hashes_and_memory_that_is_given_back(file: DataFile, tmp_path: Path) -> None:
    assert file.sha256() == hashlib.sha256(CONTENT).hexdigest()
    values = StoredTensor(file, 0, [64], FLOAT, "w").numpy()
    before = values.tobytes()
    file.forget()
    assert values.tobytes() == before
    (tmp_path / "empty").touch()
    empty = DataFile(tmp_path / "empty")
    empty.forget()
    assert empty.sha256() == hashlib.sha256().hexdigest()


def test_descriptors_are_closed(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(CONTENT)
    fd = DataFile(tmp_path / "w").fd  # dropped at once
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


# --- tied weights -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["gpt2_fp32", "gemma2_fp16"])
@pytest.mark.parametrize("external", [False, True])
def test_tied_weights_are_stored_once(name: str, external: bool, tmp_path: Path) -> None:
    """The table is embedding and head; patching takes nothing twice, in the file or outside of it."""
    model = onnx.load(sample(name))
    source = tmp_path / "in" / "model.onnx"
    source.parent.mkdir()
    onnx.save(model, source, save_as_external_data=external, location="weights.bin", size_threshold=1024)
    imported = frontends.load(str(source))
    run = pipeline.Run(str(source), Options(), environment.toolchain(Options()))
    run.imported = imported
    run.parts = pipeline.partition(imported.graph, pipeline.works.tensor_names(imported))
    work = pipeline.works.group_fragments(run.parts.fragments, imported)
    replacements = [patch.Replacement(w.op_type, o.region) for w in work for o in w.occurrences]
    assert imported.original is not None
    made = patch.patched(imported, replacements, {})
    saving.save(made, imported.original.files, tmp_path / "model.onnx")
    stored = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    large = [t for t in onnx.load(tmp_path / "model.onnx").graph.initializer if len(t.raw_data) > 1024]
    assert len({t.raw_data for t in large}) == len(large)
    size, before = (sum(p.stat().st_size for p in folder.glob("*.*")) for folder in (tmp_path, source.parent))
    functions = sum(f.ByteSize() for f in stored.functions)
    assert size - functions < before + 4096 * len(large) * external
    if name.startswith("gpt2"):
        (table,) = [t.name for t in stored.graph.initializer if list(t.dims) == [128, 96]]
        assert len([n for n in stored.graph.node if table in n.input]) == 2  # embedding and head


def test_two_names_for_one_range_stay_one_range(tmp_path: Path) -> None:
    model = parsed("g (float[2,64] x) => (float[2,64] y) { a = MatMul(x, u) y = MatMul(a, v) }")
    (tmp_path / "w").write_bytes(noise(64, 64).tobytes())
    for name in "uv":
        tensor = model.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=[64, 64])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w")
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    original = frontends.load(str(tmp_path / "in.onnx")).original
    assert original is not None
    saving.save(original.proto(), original.files, tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx.data").stat().st_size == 64 * 64 * 4


# --- links ------------------------------------------------------------------------------------------------------------
def hub(tmp_path: Path) -> Path:
    """A model in the layout of the Hugging Face cache: links into a folder of blobs."""
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "0a1b"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    onnx.save(weighted(), blobs / "aa", save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    (blobs / "model.onnx_data").rename(blobs / "bb")
    (snapshot / "model.onnx").symlink_to("../../blobs/aa")
    (snapshot / "model.onnx_data").symlink_to("../../blobs/bb")
    return snapshot / "model.onnx"


def weighted() -> onnx.ModelProto:
    text = "g (float[3,48] x) => (float[3,40] y) { a = Relu(x) b = MatMul(a, w) y = Relu(b) }"
    return parsed(text, w=noise(48, 40))


def test_from_a_cache_of_links_to_a_copy_of_hard_links(tmp_path: Path, cache: Path) -> None:
    """`optimize` reads through the links, and what it wrote can be verified where every file is a hard link or a link."""
    path = hub(tmp_path)
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(cache))
    report = anew(str(path), tmp_path / "out", options)
    assert [f.status for f in report.fragments] == ["replaced"]
    assert list(report.model["external_data"]) == ["model.onnx_data"]
    os_copy(tmp_path / "out", tmp_path / "linked")
    found = verify_folder(tmp_path / "linked", VerifyOptions(jobs=1))
    assert found.passed, [str(f) for f in found.findings if not f.passed]
    assert not [note for note in found.notes if "changed" in note or "not there" in note]


def os_copy(source: Path, target: Path) -> None:
    """`cp -l`."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            os.link(path, place)


# --- memory -----------------------------------------------------------------------------------------------------------
SIZE = 64 << 20
LAYERS = 16
GROWTH = """
import resource, sys
from pathlib import Path
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def grown(function, warm):
    function(warm)
    before = peak()
    function(sys.argv[1])
    print(peak() - before)
"""
READ_AND_WRITE = """
from mirage_cli import frontends; from mirage_cli.patching import saving
from mirage_cli.benchmark.rows import original_model
from mirage_cli.measurement.contestant import Place
def work(path):
    imported = frontends.load(path)
    saving.save(imported.original.proto(), imported.original.files, Path(path + ".out"))
    told = {"path": path, "format": "onnx", "sha256": imported.sha256, "external_data": imported.external}
    assert original_model(Path(), {"model": told}, Place())[0] == Path(path)
"""


def layers(folder: Path, count: int, name: str) -> Path:
    """A chain of products with float16 weights in a sparse file."""
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", [f"h{k}" if k else "x", f"w{k}"], [f"h{k + 1}"]) for k in range(count)],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [1, 1024])],
            [helper.make_tensor_value_info(f"h{count}", TensorProto.FLOAT16, [1, 1024])],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    side = SIZE // LAYERS // 1024 // 2
    for k in range(count):
        dims = [1024, side] if k % 2 == 0 else [side, 1024]
        tensor = model.graph.initializer.add(name=f"w{k}", data_type=TensorProto.FLOAT16, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", f"{name}.data"), ("offset", str(k * (SIZE // LAYERS)))):
            tensor.external_data.add(key=key, value=value)
    with (folder / f"{name}.data").open("wb") as data:
        data.truncate(count * (SIZE // LAYERS))
    (folder / name).write_bytes(model.SerializeToString())
    return folder / name


@pytest.mark.skipif(sys.platform != "linux", reason="counts resident memory as Linux does")
def test_large_models_pass_through_little_memory(tmp_path: Path) -> None:
    """Growth of a process's peak over that of the same work on a small model: pages of mapped files count, so that
    reading or copying what is mapped would take all of the model's size."""
    large, small = layers(tmp_path, LAYERS, "large.onnx"), layers(tmp_path, 2, "small.onnx")
    text = GROWTH + READ_AND_WRITE + f"grown(work, {json.dumps(str(small))})"
    done = subprocess.run([sys.executable, "-c", text, str(large)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < SIZE // 4
