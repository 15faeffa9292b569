"""`mirage verify`: an untouched folder passes, everything that is tampered with is found and named."""

import hashlib
import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from mirage_cli import frontends
from mirage_cli.checks import derivation, stated_program
from mirage_cli.errors import InvalidGraph, ModelError, UsageError
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.verification.findings import Verification, VerifyOptions
from mirage_cli.verification.output_folder import constants
from mirage_cli.verification.story import verify_folder, verify_pair
from tests.optimized import Optimized, once, sample

OPERATOR, OTHER, TWO, MODEL = "rmsnorm_linear_fp32", "lora_fp32", "mlp_fp32", "llama_fp32"


@pytest.fixture
def copied(one_isa: None, copied: Optimized) -> Optimized:
    """Copies of folders whose libraries are soon built: `verify` builds them anew where anything was changed."""
    return copied


def two_fragments(path: Path) -> Path:
    """A model file: fragments on both sides of an operator that none holds; the first has two weights of one shape."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[4,48] x) => (float[4,48] logits) <int64 axis = {1}> {
            a = MatMul(x, w1) s = Sigmoid(a) t = Mul(a, s) b = MatMul(x, w2) h = Mul(t, b)
            c = CumSum(h, axis)
            d = MatMul(c, w3) logits = Tanh(d)
        }""")
    random = np.random.default_rng(0)
    for name in ("w1", "w2", "w3"):
        values = random.normal(size=(48, 48)).astype(np.float32) / 7
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save(model, path)
    return path


@pytest.fixture
def two(one_isa: None, shared_folder: Path, cache: Path, tmp_path: Path) -> Path:
    """A copy of the output folder of a model of two fragments."""
    out = once(shared_folder / "two-fragments", lambda: two_fragments(shared_folder / "two-fragments.onnx"), cache)
    return Path(shutil.copytree(out, tmp_path / "two"))


def checked(folder: Path, **options: Any) -> Verification:
    found = verify_folder(folder, VerifyOptions(**options))
    json.dumps(found.to_json(), allow_nan=False)
    assert found.passed == ("differs" not in found.text())
    return found


def failed(found: Verification, check: str) -> set[str]:
    return {f.where for f in found.of(check) if not f.passed}


def mugraph(folder: Path) -> Path:
    (path,) = (folder / "mugraphs").glob("*.json")
    return path


def source(folder: Path) -> Path:
    return folder / "src" / f"{mugraph(folder).stem}.cpp"


def match_hashes(folder: Path) -> None:
    """Let report.json say of every file what is there, as one would who hides a change."""
    path = folder / "report.json"
    report = json.loads(path.read_text())
    for name in report["files"]:
        if (folder / name).exists():
            report["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    path.write_text(json.dumps(report))


def edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text()
    after = change(before)
    assert after != before
    path.write_text(after)


def rebuild(folder: Path) -> None:
    subprocess.run([str(folder / "src" / "build.sh")], check=True, capture_output=True)
    shutil.rmtree(folder / "src" / "build")


# --- what passes ------------------------------------------------------------------------------------------------------
def test_an_untouched_folder_passes(optimized: Optimized) -> None:
    folder = optimized(OPERATOR)
    found = checked(folder)
    assert found.passed, found.text()
    assert not found.culprits
    assert not found.notes
    (proof,) = found.of("proof")
    log2 = proof.data["verdict"]["log2_bound"]
    assert log2 < -40 and f"verified; chance of a wrong proof below 2^{math.ceil(log2)} (" in found.text()
    stored = json.loads((folder / "report.json").read_text())["fragments"][0]["verification"]
    assert proof.data["verdict"]["primes"] != stored["primes"]  # other random points
    (kernel,) = found.of("kernel")
    assert kernel.data["float"] == stored["float"]  # on the same inputs
    assert {c.output for c in found.outputs} == {"output"}
    assert all(c.reference == "float64" and c.accuracy.rmse > 0 for c in found.outputs)
    assert all(
        f"{c.accuracy.rmse:.2e} (original {c.accuracy.original_rmse:.2e})" in found.text() for c in found.outputs
    )


@pytest.mark.usefixtures("one_isa")
def test_a_model_passes_and_every_fragment_is_named(optimized: Optimized) -> None:
    folder = optimized(MODEL)
    found = checked(folder, seed=2)
    assert found.passed, found.text()
    replaced = [f for f in json.loads((folder / "report.json").read_text())["fragments"] if f["status"] == "replaced"]
    names = {f"{f['name']}_{f['id']}" for f in replaced}
    stored = {f"{f['name']}_{f['id']}": f["verification"]["float"] for f in replaced}
    assert all(f.data["float"] != stored[f.where] for f in found.of("kernel"))  # another seed has other inputs
    for check in ("model", "function", "original", "kernel"):
        assert {f.where for f in found.of(check)} == names
    assert {f.where for f in found.of("proof")} == {f["mugraph"]["file"] for f in replaced}


def test_nodes_that_read_more_than_their_result_depends_on() -> None:
    """A choice between equal values has a condition, of an input and of a weight; one that matters is named."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[3,4] x, float[3,4] y) => (float[3,4] z) {
        b = Less(y, w) c = Where(b, x, x) z = Exp(c)
    }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32), "w"))
    imported = from_proto(proto, frontends.Options({}, {}))
    program = derivation.derived_program(imported, ["x"], ["z"])
    assert [n.op for n in program.nodes] == ["exp"]
    with pytest.raises(InvalidGraph, match="the nodes read"):
        derivation.derived_program(imported, ["x"], ["b"])


def test_functions_that_meet_in_reshapes() -> None:
    """Each of two functions reshapes what passes between them, and another reads it in further dimensions."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[2,3,4] x, float[12,5] w) => (float[2,5] y, float[24] z) {
        e = Sqrt(x) flat = Constant <value = int64[2] {2, 12}> () k = Reshape(e, flat) y = MatMul(k, w)
        line = Constant <value = int64[1] {24}> () l = Reshape(k, line) z = Exp(l)
    }"""
    imported = from_proto(onnx.parser.parse_model(text), frontends.Options({}, {}))
    for inputs, output, ops in ((["k"], "z", ["exp"]), (["k", "w"], "y", ["contract"]), (["x"], "z", ["sqrt", "exp"])):
        program = derivation.derived_program(imported, inputs, [output])
        assert [n.op for n in program.nodes] == ops and [s.name for s in program.sources] == inputs
        assert stated_program.statement(imported, program, "key").passed
    with pytest.raises(InvalidGraph, match="the nodes read"):
        derivation.derived_program(imported, ["w"], ["z"])


def test_without_the_original_the_functions_take_its_place(copied: Optimized) -> None:
    folder = copied(OPERATOR)
    edit(folder / "report.json", lambda text: text.replace(json.loads(text)["model"]["path"], "/nowhere/model.onnx"))
    found = checked(folder)
    assert found.passed, found.text()
    assert not found.of("original")
    assert "/nowhere/model.onnx" in found.text()


def test_a_pair_passes(optimized: Optimized) -> None:
    folder = optimized(OPERATOR)
    found = verify_pair(sample(OPERATOR), folder / "model.onnx", folder / "libmirage.so", VerifyOptions())
    assert found.passed, found.text()
    assert found.of("proof")
    assert found.outputs


def test_a_lone_pair_passes(optimized: Optimized, tmp_path: Path) -> None:
    folder = optimized(OPERATOR)
    shutil.copy(folder / "model.onnx", tmp_path / "patched.onnx")
    found = verify_pair(sample(OPERATOR), tmp_path / "patched.onnx", folder / "libmirage.so", VerifyOptions())
    assert found.passed, found.text()
    assert not found.of("proof")


# --- what does not ----------------------------------------------------------------------------------------------------
def test_a_changed_constant_in_a_mugraph(copied: Optimized) -> None:
    folder = copied(OPERATOR)
    path = mugraph(folder)
    data = json.loads(path.read_text())
    for kernel in data["targets"]["cpu"]["graph"]["kernels"]:
        for op in kernel["block"]["ops"]:
            for node in op.get("thread", ()):
                if "value" in node:
                    node["value"] = "1/3"
    path.write_text(json.dumps(data))
    match_hashes(folder)
    found = checked(folder)
    assert not found.passed
    assert failed(found, "proof") == {f"mugraphs/{path.name}"}
    assert failed(found, "source") == {f"src/{path.stem}.cpp"}
    assert not failed(found, "function")  # the program is still the model's


def test_a_changed_constant_in_mugraph_and_program(copied: Optimized) -> None:
    """Program and muGraph agree with each other, but not with the model."""
    folder = copied(OPERATOR)
    path = mugraph(folder)
    program = json.loads(path.read_text())["program"]
    constants = [n["value"] for n in program["nodes"] if n["op"] == "const"]
    assert constants
    edit(path, lambda text: text.replace(f'"{constants[0]}"', '"5/7"'))
    match_hashes(folder)
    found = checked(folder)
    assert failed(found, "function")
    assert failed(found, "proof") == {f"mugraphs/{path.name}"}


def test_a_changed_schedule(copied: Optimized) -> None:
    folder = copied(OPERATOR)
    path = mugraph(folder)
    data = json.loads(path.read_text())
    tiles = data["targets"]["cpu"]["schedules"][0]["tiles"]
    tiles[next(iter(tiles))] += 1
    path.write_text(json.dumps(data))
    match_hashes(folder)
    found = checked(folder)
    assert failed(found, "source") == {f"src/{path.stem}.cpp"}


def test_an_input_that_is_claimed_to_be_a_weight(copied: Optimized) -> None:
    """A kernel may read weights before the work in front of it has ended: with an input that is a race."""
    folder = copied(OPERATOR)
    path = mugraph(folder)
    data = json.loads(path.read_text())
    source = next(s for s in data["program"]["sources"] if s["name"] == "w")
    assert source["constant"] is False
    source["constant"] = True
    path.write_text(json.dumps(data))
    match_hashes(folder)
    found = checked(folder)
    assert failed(found, "model") == {f"mugraphs/{path.name}"}
    assert "'w', which is no constant" in found.text()


@pytest.mark.parametrize("how", ["computed", "overridden"])
def test_a_weight_that_is_made_an_input_or_computed(two: Path, how: str) -> None:
    path = two / "model.onnx"
    model = onnx.load(path)
    weights = {t.name: t for t in model.graph.initializer}
    place, node = next((k, n) for k, n in enumerate(model.graph.node) if n.domain == "mirage")
    name = next(name for name in node.input if name in weights)
    if how == "computed":  # the same values, written while the model runs
        for n in model.graph.node:
            n.input[:] = ["copied" if n.domain == "mirage" and i == name else i for i in n.input]
        model.graph.node.insert(place, onnx.helper.make_node("Identity", [name], ["copied"]))
    else:
        weight = weights[name]
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, weight.data_type, weight.dims))
    onnx.save(model, path)
    match_hashes(two)
    assert f"mugraphs/{node.op_type.rpartition('_')[2]}.json" in failed(checked(two), "model")


def test_weights_of_a_stored_model() -> None:
    x, b, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in "xby")
    a, default = (numpy_helper.from_array(np.zeros(2, np.float32), n) for n in "ab")
    held = onnx.helper.make_node("Constant", [], ["c"], value_floats=[1.0, 2.0])
    nodes = [held, onnx.helper.make_node("Sum", ["x", "a", "b", "c"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", [x, b], [y], [a, default])
    assert constants(onnx.helper.make_model(graph)) == {"a", "c"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"id": 3}'])
def test_a_damaged_mugraph(copied: Optimized, content: str) -> None:
    folder = copied(OPERATOR)
    mugraph(folder).write_text(content)
    found = checked(folder)
    assert failed(found, "model") == {f"mugraphs/{mugraph(folder).name}"}


def test_a_changed_source_rebuilt(copied: Optimized) -> None:
    folder = copied(OPERATOR)
    edit(source(folder), _other_literal)
    rebuild(folder)
    match_hashes(folder)
    found = checked(folder, trust_library=True)
    assert failed(found, "source") == {f"src/{source(folder).name}"}
    assert failed(found, "library") == {"libmirage.so"}
    assert failed(found, "kernel")


def test_a_changed_source_rebuilt_and_put_back(copied: Optimized) -> None:
    """Only the library is another one, and only its kernels show it."""
    folder = copied(OPERATOR)
    kept = source(folder).read_text()
    edit(source(folder), _other_literal)
    rebuild(folder)
    source(folder).write_text(kept)
    match_hashes(folder)
    found = checked(folder, trust_library=True)
    assert not failed(found, "source")
    assert len(failed(found, "kernel")) == 1
    assert not checked(folder, bisect=True, trust_library=True).passed


def _other_literal(text: str) -> str:
    """Twice the first number that the kernel multiplies by or adds (written as a hexadecimal float)."""
    (head, body) = text.split("namespace", 1)
    return head + "namespace" + re.sub(r"0x1(\.\w+)?p([-+]\d+)", lambda m: f"0x1{m[1] or ''}p{int(m[2]) + 9:+d}", body)


def test_a_foreign_library(optimized: Optimized, copied: Optimized) -> None:
    folder = copied(OPERATOR)
    shutil.copy(optimized(OTHER) / "libmirage.so", folder / "libmirage.so")
    match_hashes(folder)
    found = checked(folder, trust_library=True)
    assert failed(found, "library") == {"libmirage.so"}
    assert failed(found, "kernel")


def test_a_file_that_is_no_library(copied: Optimized) -> None:
    folder = copied(OPERATOR)
    (folder / "libmirage.so").write_text("text")
    match_hashes(folder)
    found = checked(folder, trust_library=True)
    assert failed(found, "library") == {"libmirage.so"}


def test_a_changed_function_body(copied: Optimized) -> None:
    folder = copied(OPERATOR)
    path = folder / "model.onnx"
    model = onnx.load(path)
    (function,) = model.functions
    (root,) = [n for n in function.node if n.op_type == "Sqrt"]
    root.op_type = "Exp"
    onnx.save(model, path)
    match_hashes(folder)
    found = checked(folder)
    assert failed(found, "function") == {function.name}
    assert failed(found, "proof") == {f"mugraphs/{mugraph(folder).name}"}
    assert failed(found, "outputs")


def test_swapped_inputs(two: Path) -> None:
    """Two weights of one shape change places where an operator is called."""
    model = onnx.load(two / "model.onnx")
    shapes = {t.name: list(t.dims) for t in model.graph.initializer if len(t.dims) > 1}
    called = [
        (n, i, k) for n in model.graph.node if n.domain == "mirage" for i in range(len(n.input)) for k in range(i)
    ]
    node, i, k = next(c for c in called if shapes.get(c[0].input[c[1]], 0) == shapes.get(c[0].input[c[2]], 1))
    node.input[i], node.input[k] = node.input[k], node.input[i]
    onnx.save(model, two / "model.onnx")
    match_hashes(two)
    found = checked(two)
    assert failed(found, "outputs") == {"logits"}
    assert failed(found, "original") == {node.op_type}


def test_a_changed_weight_is_found_in_the_outputs(two: Path) -> None:
    path = two / "model.onnx"
    model = onnx.load(path)
    weight = max(model.graph.initializer, key=lambda t: len(t.raw_data))
    weight.raw_data = (numpy_helper.to_array(weight) * np.float32(1.01)).tobytes()
    onnx.save(model, path)
    match_hashes(two)
    found = checked(two)
    assert failed(found, "outputs") == {"logits"}
    assert not failed(found, "proof")


@pytest.mark.parametrize("name", ["model.onnx", "libmirage.so", "src/library.cpp", "report.json", "mugraph", "source"])
def test_a_missing_file(copied: Optimized, name: str) -> None:
    folder = copied(OPERATOR)
    path = {"mugraph": mugraph(folder), "source": source(folder)}.get(name, folder / name)
    where = path.relative_to(folder).as_posix()
    path.unlink()
    found = checked(folder)
    assert where in failed(found, "files")
    assert where in found.culprits


def test_a_changed_file_is_named(copied: Optimized) -> None:
    folder = copied(OPERATOR)
    edit(folder / "src" / "include" / "mirage" / "entry.h", lambda text: text + "// more\n")
    found = checked(folder)
    assert found.culprits == ["src/include/mirage/entry.h"]


def test_bisection_names_the_fragment_and_keeps_what_failed(copied: Optimized, tmp_path: Path) -> None:
    folder = copied(TWO)
    report = json.loads((folder / "report.json").read_text())
    odd, _ = report["fragments"]
    path = folder / "src" / f"{odd['id']}.cpp"
    kept = path.read_text()
    edit(path, lambda text: text.replace("m_exp(", "m_abs("))
    rebuild(folder)
    path.write_text(kept)
    found = checked(folder, bisect=True, save_failing=str(tmp_path / "failing"), trust_library=True)
    operator = f"{odd['name']}_{odd['id']}"
    assert failed(found, "kernel") == {operator}
    assert failed(found, "outputs") == {operator, "output"}
    saved = {p.name for p in (tmp_path / "failing").iterdir()}
    assert saved >= {"inputs.npz", "original.npz", "patched.npz", "operator.onnx", "operator_inputs.npz"}
    small = onnx.load(tmp_path / "failing" / "operator.onnx")
    assert [n.op_type for n in small.graph.node] == [operator]
    right, wrong = (np.load(tmp_path / "failing" / f"operator_{w}.npz") for w in ("original", "patched"))
    assert list(right) == list(wrong)
    assert not all(np.allclose(right[k], wrong[k], rtol=1e-3) for k in right)


# --- clean errors -----------------------------------------------------------------------------------------------------
def test_a_folder_that_is_none(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ModelError, match="output folder"):
            verify_folder(folder, VerifyOptions())


def test_unknown_dimensions_and_inputs(optimized: Optimized) -> None:
    for options in (VerifyOptions(dim=("bat=2",)), VerifyOptions(shape=("nothing=1x2",)), VerifyOptions(dim=("x",))):
        with pytest.raises(UsageError):
            verify_folder(optimized(OPERATOR), options)


def test_pairs_that_do_not_fit(optimized: Optimized, tmp_path: Path) -> None:
    folder = optimized(OPERATOR)
    library = folder / "libmirage.so"
    with pytest.raises(UsageError, match="same inputs"):
        verify_pair(sample(OTHER), folder / "model.onnx", library, VerifyOptions())
    with pytest.raises(ModelError):
        verify_pair(tmp_path / "none.onnx", folder / "model.onnx", library, VerifyOptions())
    text = tmp_path / "text.so"
    text.write_text("text")
    for wrong in (text, tmp_path / "none.so"):
        with pytest.raises(ModelError, match=wrong.name):
            verify_pair(sample(OPERATOR), folder / "model.onnx", wrong, VerifyOptions())


def test_a_pair_with_a_foreign_library(optimized: Optimized) -> None:
    folder = optimized(OPERATOR)
    found = verify_pair(sample(OPERATOR), folder / "model.onnx", optimized(OTHER) / "libmirage.so", VerifyOptions())
    assert failed(found, "library") == {"libmirage.so"}
