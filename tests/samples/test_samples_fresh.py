"""Every checked-in sample is valid, small, free of machine paths, and runs; tables and operators are up to date."""

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from samples import catalog, operators  # noqa: E402
from samples.inputs import example_inputs, padding_mask, score_mask  # noqa: E402
from tests import alone  # noqa: E402

MODELS = sorted(name for sample in catalog.SAMPLES.values() for name in sample.files)
SMALL = sorted(f"{name}_{dtype}.onnx" for name in operators.OPERATORS for dtype in operators.DTYPES)
FILES = [catalog.MODELS / name for name in MODELS] + [catalog.STORED_OPERATORS / name for name in SMALL]
HALVES = [path for path in FILES if path.stem.endswith("_fp16")]
COMPOSITE_SUPPORT = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 23)
MACHINE_PATH = re.compile(rb"site-packages|\.py\b|/(tmp|root|home|Users|opt|usr|work)/|[A-Z]:\\")

Outputs = list[NDArray[Any]]


def name_of(path: Path) -> str:
    return path.stem


def run(path: Path, inputs: dict[str, NDArray[Any]] | None = None) -> Outputs:
    opset = onnx.load(path).opset_import[0].version
    if opset > 22 and not COMPOSITE_SUPPORT:
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has no opset {opset}")
    session = alone.session(path)
    return list(session.run(None, example_inputs(path) if inputs is None else inputs))


@cache
def outputs(path: Path) -> Outputs:
    return run(path)


def distance(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Root mean square difference, relative to the root mean square of `b`."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))


def test_the_folders_hold_exactly_the_catalog() -> None:
    assert sorted(path.name for path in catalog.MODELS.iterdir()) == MODELS
    assert sorted(path.name for path in catalog.STORED_OPERATORS.iterdir()) == SMALL


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file_is_valid_small_and_carries_no_paths(path: Path) -> None:
    assert path.stat().st_size < 1_000_000
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    for tensor in model.graph.initializer:
        assert tensor.data_location == onnx.TensorProto.DEFAULT
        tensor.ClearField("raw_data")
    assert MACHINE_PATH.search(model.SerializeToString()) is None


@pytest.mark.parametrize("sample", catalog.SAMPLES.values(), ids=lambda sample: sample.name)
def test_model_is_what_the_catalog_says(sample: catalog.Sample) -> None:
    for dtype, name in zip(sample.dtypes, sample.files, strict=True):
        model = onnx.load(catalog.MODELS / name)
        assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", sample.opset)]
        assert {value.type.tensor_type.elem_type for value in model.graph.output} == {operators.DTYPES[dtype]}
        assert {entry.key for entry in model.metadata_props} == {"torch", "transformers"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_runs_with_finite_outputs(path: Path) -> None:
    for array in outputs(path):
        assert array.size
        assert np.isfinite(array).all()
        assert 1e-3 < float(np.std(array.astype(np.float64))) < 100


@pytest.mark.parametrize("path", HALVES, ids=name_of)
def test_fp16_is_fp32_rounded(path: Path) -> None:
    full = path.with_stem(path.stem.removesuffix("fp16") + "fp32")
    for rounded, exact in zip(outputs(path), outputs(full), strict=True):
        assert rounded.dtype == np.float16
        assert distance(rounded, exact) < 4e-3


@pytest.mark.parametrize("variant", ["opset23", "composite", "traced", "dynamic", "eager"])
def test_llama_variants_agree(variant: str) -> None:
    path = catalog.MODELS / f"llama_{variant}_fp32.onnx"
    given = example_inputs(catalog.MODELS / "llama_fp32.onnx")
    if variant in ("traced", "dynamic"):
        given["attention_mask"] = np.ones_like(given["input_ids"])
    [logits], [expected] = run(path, given), outputs(catalog.MODELS / "llama_fp32.onnx")
    np.testing.assert_allclose(logits, expected, atol=2e-5)


def test_decode_step_continues_the_prompt() -> None:
    ids = example_inputs(catalog.MODELS / "llama_fp32.onnx")["input_ids"]
    expected, decode = outputs(catalog.MODELS / "llama_fp32.onnx")[0], catalog.MODELS / "llama_decode_dynamic_fp32.onnx"
    session = alone.session(decode)
    caches = [value.name for value in session.get_inputs() if value.name.startswith("past")]
    past = {name: np.zeros((1, 2, 0, 16), np.float32) for name in caches}
    for step in range(ids.shape[1]):
        mask = np.ones((1, step + 1), np.int64)
        given = {"input_ids": ids[:, step : step + 1], "attention_mask": mask, **past}
        logits, *grown = session.run(None, given)
        past = dict(zip(caches, grown, strict=True))
        np.testing.assert_allclose(logits[:, 0], expected[:, step], atol=2e-5)


@pytest.mark.parametrize("name", ["llama_dynamic", "llama_decode_dynamic"])
def test_symbolic_dimensions_take_other_sizes(name: str) -> None:
    path = catalog.MODELS / f"{name}_fp32.onnx"
    given = example_inputs(path, seed=3, dims={"batch": 3, "sequence": 7, "past": 21})
    logits, *_ = run(path, given)
    assert logits.shape == (*given["input_ids"].shape, 128)
    assert np.isfinite(logits).all()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_inputs_depend_on_the_seed_alone(path: Path) -> None:
    first, again, other = example_inputs(path), example_inputs(path), example_inputs(path, seed=1)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)


def test_masks_leave_every_query_something_to_see() -> None:
    assert padding_mask((5, 12)).sum(1).tolist() == [12, 9, 6, 3, 12]
    assert padding_mask((2, 8), at_start=True)[1].tolist() == [False, False, *[True] * 6]
    seen = score_mask((3, 10, 48), np.random.default_rng(0))
    assert seen.any(-1).all()
    assert not seen[:, 1, :24].any()


@pytest.mark.parametrize("name", operators.OPERATORS)
def test_operator_files_are_current(name: str) -> None:
    for dtype in operators.DTYPES:
        data = operators.build(name, "small", dtype).SerializeToString(deterministic=True)
        assert data == (catalog.STORED_OPERATORS / f"{name}_{dtype}.onnx").read_bytes(), "run: make samples"


@pytest.mark.parametrize("name", operators.OPERATORS)
def test_operators_have_the_papers_sizes(name: str) -> None:
    one, eight = (operators.build(name, "paper", "fp16", batch=batch) for batch in (1, 8))
    assert one.ByteSize() < 10_000
    grows = operators.OPERATORS[name].per_batch
    assert (one != eight) == bool(grows)


def test_unknown_operators_and_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="no operator 'gemm'"):
        operators.build("gemm")
    with pytest.raises(ValueError, match="expected 'small' or 'paper'"):
        operators.build("gqa", "huge")


def test_gqa_without_the_maximum_is_softmax() -> None:
    exp, softmax = (catalog.STORED_OPERATORS / f"{name}_fp32.onnx" for name in ("gqa_exp", "gqa"))
    np.testing.assert_allclose(outputs(exp)[0], outputs(softmax)[0], atol=1e-5)


def test_readme_tables_are_current() -> None:
    text = catalog.README.read_text()
    assert catalog.render(text) == text, "run: make samples"
