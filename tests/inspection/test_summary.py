"""`mirage inspect`: fragments, reasons and shares of models, without a search; what an output folder holds."""

import cProfile
import json
import pstats
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mirage_cli.errors import ModelError, UsageError
from mirage_cli.inspection.summary import Inspection, inspect
from mirage_cli.optimization import coverage, story
from mirage_cli.options.options import Options
from tests.optimized import Optimized, anew, sample


def names(d: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for f in d["fragments"]:
        found[f["name"]] = found.get(f["name"], 0) + f["occurrences"]
    return found


def checked(found: Inspection) -> dict[str, Any]:
    """The document, if it and the text are well-formed."""
    data: dict[str, Any] = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert max(map(len, found.text().splitlines())) <= 100
    assert found.text().endswith("\n")
    return data


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("llama_fp32", {"norm_linear": 7, "attention": 2, "norm_gated_mlp": 2}),
        ("llama_dynamic_fp32", {"norm_linear": 7, "attention": 2, "norm_gated_mlp": 2}),
        ("gpt2_fp32", {"attention": 2, "norm_mlp": 2}),
        ("vit_fp32", {"attention": 2, "norm_mlp": 2}),
        ("rmsnorm_linear_fp32", {"norm_linear": 1}),
        ("gqa_fp32", {"attention": 1}),
    ],
)
def test_fragments_of_samples(name: str, wanted: dict[str, int]) -> None:
    data = checked(inspect(str(sample(name)), Options()))
    found = names(data)
    assert {k: found.get(k, 0) for k in wanted} == wanted
    for f in data["fragments"]:
        assert f["searched"] == f["occurrences"] == len(f["nodes"])
        assert f["program"]["ops"] >= 1 and f["program"]["inputs"] and f["program"]["outputs"]
    assert sum(f["flops"] for f in data["fragments"]) == pytest.approx(data["coverage"]["flops"], abs=1e-3)


def test_symbols_inputs_and_reasons() -> None:
    found = inspect(str(sample("llama_dynamic_fp32")), Options())
    data = checked(found)
    assert data["kind"] == "model"
    assert data["symbols"] == ["batch", "sequence"]
    assert data["inputs"][0] == {"name": "input_ids", "dtype": "i64", "dims": ["batch", "sequence"]}
    assert data["outputs"][0]["dtype"] == "f32"
    told = {n: u["reason"] for u in data["unchanged"] for n in u["nodes"]}
    assert told["node_embedding"] == coverage.LOOKUP
    assert coverage.SHAPES in told.values()
    for line in ("symbols  batch, sequence", "Left as they were: ", coverage.LOOKUP, "node_embedding"):
        assert line in found.text()


def test_dimensions_are_fixed() -> None:
    path = str(sample("llama_dynamic_fp32"))
    data = checked(inspect(path, Options(dim=("batch=2", "sequence=1:16:64"))))
    assert data["symbols"] == ["sequence"]
    assert data["inputs"][0]["dims"] == [2, "sequence"]
    with pytest.raises(UsageError, match="nonsense"):
        inspect(path, Options(dim=("nonsense=1:2:3",)))


def test_only_and_skip() -> None:
    path = str(sample("llama_fp32"))
    whole = checked(inspect(path, Options()))
    attention = next(f for f in whole["fragments"] if f["name"] == "attention")
    node = attention["nodes"][0][-1]
    found = inspect(path, Options(skip=(node,)))
    data = checked(found)
    skipped = next(f for f in data["fragments"] if f["name"] == "attention")
    assert (skipped["occurrences"], skipped["searched"]) == (2, 1)
    assert "skipped at 1 place" in found.text()
    assert data["notes"] == []
    assert data["coverage"]["flops"] < whole["coverage"]["flops"]
    told = {n: u["reason"] for u in data["unchanged"] for n in u["nodes"]}
    assert told[node] == coverage.EXCLUDED


def test_patterns_that_fit_nothing_are_noted() -> None:
    found = inspect(str(sample("mlp_fp32")), Options(only=("*",), skip=("lm_head",)))
    note = "--skip 'lm_head': no node of the model has such a name"
    assert found.to_json()["notes"] == [note]
    assert f"Notes\n  {note}\n" in found.text()


@pytest.mark.parametrize("read", [inspect, lambda path, options: story.optimize(path, Path(), options)])
def test_only_what_no_node_is_called_is_an_error_with_near_names(read: Callable[[str, Options], object]) -> None:
    options = Options(only=("*", "node_linaer*"), dry_run=True, target=("cpu",))
    with pytest.raises(UsageError, match=r"--only 'node_linaer\*': no node of the model has such a name") as told:
        read(str(sample("llama_fp32")), options)
    assert "did you mean node_linear" in told.value.hint


def test_an_output_folder(optimized: Optimized) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    found = inspect(str(folder), Options())
    data = checked(found)
    assert data["kind"] == "folder"
    assert {"model.onnx", "libmirage.so", "report.json", "report.html"} <= set(data["files"])
    (f,) = data["fragments"]
    assert (f["name"], f["status"], f["occurrences"]) == ("norm_linear", "replaced", 1)
    assert 0 < f["error_bound"] < 2**-40
    assert f["error"] > 0 and f["original_error"] > 0
    assert "norm_linear" in found.text() and "1 fragment replaced" in found.text()


def test_folders_that_are_no_output(tmp_path: Path, optimized: Optimized) -> None:
    with pytest.raises(ModelError, match=r"found no report\.json"):
        inspect(str(tmp_path), Options())
    (tmp_path / "report.json").write_text("[1")
    with pytest.raises(ModelError, match="cannot be read"):
        inspect(str(tmp_path), Options())
    (tmp_path / "report.json").write_text("[]")
    with pytest.raises(ModelError, match="Expected `object`, got `array`"):
        inspect(str(tmp_path), Options())
    report = json.loads((optimized("rmsnorm_linear_fp32") / "report.json").read_text())
    for key in ("fragments", "model", "unchanged"):
        (tmp_path / "report.json").write_text(json.dumps({k: v for k, v in report.items() if k != key}))
        with pytest.raises(ModelError, match=key):
            inspect(str(tmp_path), Options())
    (tmp_path / "report.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="cannot be read"):
        inspect(str(tmp_path), Options())


def test_files_that_are_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(ModelError):
        inspect(str(path), Options())
    path.write_bytes(b"not a model at all")
    with pytest.raises(ModelError):
        inspect(str(path), Options())


def test_hostile_names(tmp_path: Path) -> None:
    model = onnx.load(sample("rmsnorm_linear_fp32"))
    for k, node in enumerate(model.graph.node):
        node.name = f"\x1b[31m{k}\n{'n' * 300}<script>"
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    found = inspect(str(path), Options())
    checked(found)
    assert "\x1b" not in found.text()


def deep(layers: int, path: Path) -> None:
    """A model of `layers` gated MLPs with norms and residuals, all different."""
    random = np.random.default_rng(0)
    nodes, weights = [], [numpy_helper.from_array(np.array(1e-5, np.float32), "eps")]
    x = "x"
    for k in range(layers):
        for name in ("a", "b"):
            weights.append(numpy_helper.from_array(random.standard_normal((8, 8)).astype(np.float32), f"{k}{name}"))
        steps: tuple[tuple[str, tuple[str, ...], str, dict[str, Any]], ...] = (
            ("Mul", (x, x), "sq", {}),
            ("ReduceMean", (f"{k}_sq",), "mean", {"axes": [-1]}),
            ("Add", (f"{k}_mean", "eps"), "shifted", {}),
            ("Sqrt", (f"{k}_shifted",), "root", {}),
            ("Div", (x, f"{k}_root"), "normed", {}),
            ("MatMul", (f"{k}_normed", f"{k}a"), "gate", {}),
            ("Sigmoid", (f"{k}_gate",), "sig", {}),
            ("MatMul", (f"{k}_sig", f"{k}b"), "down", {}),
            ("Sin", (f"{k}_down",), "sin", {}),
            ("Add", (x, f"{k}_sin"), "y", {}),
        )
        nodes += [helper.make_node(op, list(i), [f"{k}_{o}"], name=f"{k}_{o}", **a) for op, i, o, a in steps]
        x = f"{k}_y"
    graph = helper.make_graph(
        nodes,
        "deep",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", 8])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_work_grows_with_the_model_and_not_with_its_square(tmp_path: Path) -> None:
    """Counted in calls of functions, not in seconds: four times the nodes may take six times the calls, not sixteen."""
    calls = []
    for layers in (20, 80):
        path = tmp_path / f"{layers}.onnx"
        deep(layers, path)
        profile = cProfile.Profile()
        data = checked(profile.runcall(inspect, str(path), Options(skip=("5_y",))))
        assert data["model"]["nodes"] == 10 * layers
        calls.append(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
    print(calls)
    assert calls[1] < 6 * calls[0]


CACHED = """<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1]>
g (float[1,1,8] q, float[1,1,8] k, float[1,1,8] v, float[1,2,7,4] pk, float[1,2,7,4] pv)
    => (float[1,1,8] y, float[1,2,8,4] nk, float[1,2,8,4] nv) {
    y, nk, nv = com.microsoft.MultiHeadAttention <num_heads=2> (q, k, v, , , , pk, pv)
}"""


def test_a_node_that_also_computes_what_its_fragment_reads(tmp_path: Path) -> None:
    """The grown caches are inputs of the attention and outputs of the same node: they are computed apart."""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(CACHED), path)
    found = inspect(str(path), Options()).document
    assert [(f["name"], f["searched"]) for f in found["fragments"]] == [("attention", 1)]
    report = anew(str(path), tmp_path / "out", Options(target=("cpu",), force=True, jobs=1))
    assert [(f.status, f.reason) for f in report.fragments] == [("replaced", "")]
