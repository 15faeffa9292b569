"""`--inputs`: what is read, what is refused and how that is said, and what it is used for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from mirage_cli import frontends
from mirage_cli.benchmark.benchmark import BenchOptions
from mirage_cli.benchmark.rows import input_sets
from mirage_cli.checks import given_tensors, kernel_check
from mirage_cli.checks.reference import Nodes
from mirage_cli.errors import UsageError
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.python import api
from mirage_cli.report.reader import read as read_report
from mirage_cli.runtime import given
from mirage_cli.verification.findings import Verification
from tests.codegen.programs import program

Arrays = dict[str, NDArray[np.generic]]
#: rows of five: what is drawn, four rows of eight, does not divide
TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[n,8] x, float[8] g) => (float[m,5] y, float[n,8] z)
<float e = {0.001}> {
    s = Mul (x, x) a = ReduceMean <axes = [1], keepdims = 1> (s) b = Add (a, e) c = Sqrt (b) d = Div (x, c)
    h = Mul (d, g) z = MatMul (h, w) y = Reshape (z, shape)
}"""


def model() -> onnx.ModelProto:
    """A norm and a product, whose result is cut into rows of five."""
    made = onnx.parser.parse_model(TEXT)
    w = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1, 5]), "shape"))
    return made


def inputs(rows: int = 10) -> Arrays:
    """What the model takes."""
    random = np.random.default_rng(1)
    return {
        "x": random.standard_normal((rows, 8)).astype(np.float32),
        "g": random.standard_normal(8).astype(np.float32),
    }


def archive(path: Path, arrays: Arrays) -> str:
    np.savez(path, allow_pickle=False, **{given.entry(n): a for n, a in arrays.items()})
    return str(path)


def folder(path: Path, arrays: Arrays) -> str:
    path.mkdir(parents=True)
    for k, (name, a) in enumerate(arrays.items()):
        (path / f"input_{k}.pb").write_bytes(onnx.numpy_helper.from_array(a, name).SerializeToString())
    return str(path)


# --- reading --------------------------------------------------------------------------------------------------------------
def test_archives_and_folders_hold_the_same(tmp_path: Path) -> None:
    wanted = inputs()
    paths = [archive(tmp_path / "in.npz", wanted), folder(tmp_path / "a", wanted)]
    folder(tmp_path / "b" / given.DATA_SET, wanted)
    for path in (*paths, str(tmp_path / "b")):
        found = given.read(path, model())
        assert list(found) == ["x", "g"]
        assert all(np.array_equal(found[n], wanted[n]) for n in wanted)
    assert given.digest(paths[0]) != given.digest(paths[1])
    assert given.digest(paths[0]) == given.digest(paths[0])


def test_names_that_files_cannot_have(tmp_path: Path) -> None:
    made = model()
    made.graph.input[0].name = "a/x"
    made.graph.node[0].input[:] = ["a/x", "a/x"]
    wanted = {"a/x": inputs()["x"], "g": inputs()["g"]}
    assert list(given.read(archive(tmp_path / "in.npz", wanted), made)) == ["a/x", "g"]


def test_bfloat16_is_stored_as_its_bits(tmp_path: Path) -> None:
    made = model()
    made.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    bits = np.arange(8, dtype=np.uint16)
    found = given.read(archive(tmp_path / "in.npz", {"x": inputs()["x"], "g": bits}), made)
    assert found["g"].dtype.name == "bfloat16"


WRONG: dict[str, tuple[Arrays, str]] = {
    "missing": ({"x": inputs()["x"]}, "expected input 'g', found 'x'"),
    "unknown": (inputs() | {"q": np.zeros(3, np.float32)}, "no input 'q'"),
    "another type": (inputs() | {"g": np.zeros(8)}, "input 'g': expected float32, found float64"),
    "another rank": (inputs() | {"x": np.zeros(8, np.float32)}, r"input 'x': expected shape \[n, 8\], found \[8\]"),
    "another size": (inputs() | {"g": np.zeros(9, np.float32)}, r"input 'g': expected shape \[8\], found \[9\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_the_input(name: str, tmp_path: Path) -> None:
    arrays, message = WRONG[name]
    with pytest.raises(UsageError, match=message):
        given.read(archive(tmp_path / "in.npz", arrays), model())


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected 2 inputs"):
        given.read(folder(tmp_path / "many", inputs() | {"q": np.zeros(3, np.float32)}), model())
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError, match=r"input_0\.pb"):
        given.read(str(tmp_path / "none"), model())
    (tmp_path / "none" / "input_0.pb").write_bytes(b"\xff\xff")
    with pytest.raises(UsageError, match="expected a tensor of ONNX"):
        given.read(str(tmp_path / "none"), model())


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"hello", b"\x93NUMPY\x01\x00"])
def test_files_that_are_no_archive(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"in\.npz"):
        given.read(str(path), model())
    with pytest.raises(UsageError, match="no such file"):
        given.read(str(tmp_path / "nothing.npz"), model())


def test_inputs_with_a_default_may_be_left_out(tmp_path: Path) -> None:
    made = model()
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(8, np.float32), "g"))
    assert list(given.read(archive(tmp_path / "in.npz", {"x": inputs()["x"]}), made)) == ["x"]
    assert list(given.read(archive(tmp_path / "all.npz", inputs()), made)) == ["x", "g"]


# --- tensors of fragments -------------------------------------------------------------------------------------------------
def test_tensors_of_fragments_are_what_the_model_makes_of_its_inputs() -> None:
    imported = from_proto(model(), frontends.Options())
    assert imported.original is not None
    found = given_tensors.tensors_of(imported.original, inputs(), ["d", "g", "w", "nothing"])
    assert found.keys() == {"d", "x", "g"}
    x = inputs()["x"].astype(np.float64)
    np.testing.assert_allclose(found["d"], x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-3), rtol=1e-5)
    with pytest.raises(UsageError, match="does not run with them"):
        given_tensors.tensors_of(imported.original, inputs(4), ["y"])


def test_given_tensors_are_the_first_case_of_a_check() -> None:
    p = program(lambda g, t: [_tanh(g, t)], F32)
    u = np.full((3, 4), 0.5, np.float32)
    drawn = kernel_check.DrawnInputs("given", (u,), {})
    text = '<ir_version: 9, opset_import: ["" : 20]> g (float[3,4] u) => (float[3,4] y) { y = Tanh (u) }'
    nodes = Nodes(onnx.parser.parse_model(text), ("u",), ("y",))
    cases = kernel_check.cases(p, lambda a, s: [np.tanh(a[0])], {}, 1, nodes=nodes, given=[drawn])
    first = next(cases)
    assert isinstance(first, kernel_check.Case)
    assert (first.name, first.number) == ("given", 0)
    assert np.array_equal(first.arrays[0], u)


def _tanh(g: Graph, t: object) -> int:
    return g.map("tanh", g.input("u", (3, 4), F32))


# --- the commands ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder of the model, made with inputs."""
    place = tmp_path_factory.mktemp("given")
    onnx.save(model(), place / "model.onnx")
    api.optimize(
        place / "model.onnx", place / "out", target="cpu", force=True, inputs=archive(place / "in.npz", inputs())
    )
    return place / "out"


def test_the_report_tells_of_the_inputs(optimized: Path) -> None:
    report = read_report(optimized)
    assert report["options"]["inputs"].endswith("in.npz")
    assert [f["status"] for f in report["fragments"]] == ["replaced"]


def test_inputs_that_the_original_refuses_are_no_difference(optimized: Path) -> None:
    found = api.verify(optimized)
    assert found.passed, found.text()
    assert "not compared" in found.text()
    assert any("--inputs" in n for n in found.notes)
    json.dumps(found.to_json())


def test_given_inputs_are_compared(optimized: Path, tmp_path: Path) -> None:
    found = api.verify(optimized, inputs=archive(tmp_path / "in.npz", inputs(5)))
    assert found.passed, found.text()
    assert {c.output for c in found.outputs} == {"y", "z"}
    assert all(c.reference == "float64" for c in found.outputs)
    with pytest.raises(UsageError, match="the original refuses them"):
        api.verify(optimized, inputs=archive(tmp_path / "refused.npz", inputs(4)))


def test_given_inputs_that_show_a_difference(optimized: Path, tmp_path: Path) -> None:
    """Of a folder whose original is another model."""
    other = model()
    other.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "w"))
    onnx.save(other, tmp_path / "other.onnx")
    found: Verification = api.verify(
        tmp_path / "other.onnx",
        optimized / "model.onnx",
        optimized / "libmirage.so",
        inputs=archive(tmp_path / "in.npz", inputs(5)),
    )
    assert not found.passed
    assert "z" in found.culprits


def test_bench_takes_given_inputs(tmp_path: Path) -> None:
    path = archive(tmp_path / "in.npz", inputs(5))
    sets = input_sets(model(), BenchOptions(inputs=path), 1 << 20)
    assert len(sets) >= 2
    assert all(np.array_equal(s["x"], inputs(5)["x"]) for s in sets)


def test_optimize_refuses_inputs_that_do_not_fit(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "model.onnx")
    path = archive(tmp_path / "in.npz", {"x": inputs()["x"]})
    with pytest.raises(UsageError, match="expected input 'g'"):
        api.optimize(tmp_path / "model.onnx", dry_run=True, inputs=path)
