"""The output folder: its files, the report, the same bytes twice, loading with and without the library."""

from __future__ import annotations

import json
from pathlib import Path

from tests.contract.conftest import NAME, Done, Mirage
from tests.optimized import Optimized

KEYS = {
    "model": ["path", "sha256", "external_data", "format", "opset", "nodes"],
    "seconds": ["read", "search", "verify", "tune", "render", "compile", "total"],
    "coverage": ["flops", "weight_bytes", "nodes"],
}
FRAGMENT = {
    "program": ["inputs", "outputs", "ops", "axes"],
    "search": ["mappings", "values", "muGraphs", "seconds"],
    "mugraph": ["file", "kernels", "grid", "loop", "text"],
    "verification": ["mode", "primes", "degree", "applications", "rounds", "error_bound", "seconds", "float"],
}
#: knows onnxruntime and numpy only
LOADING = """
import sys
import numpy as np, onnxruntime as ort
feeds = {"x": np.random.default_rng(1).standard_normal((5, 48)), "w": np.random.default_rng(2).standard_normal((48, 40))}
feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
outputs = []
for model, library in (("model.onnx", None), ("out/model.onnx", None), ("out/model.onnx", "out/libmirage.so")):
    so = ort.SessionOptions()
    if library:
        so.register_custom_ops_library(library)
    (output,) = ort.InferenceSession(model, so, providers=["CPUExecutionProvider"]).run(None, feeds)
    outputs.append(output)
assert (outputs[0] == outputs[1]).all(), "without the library: the original answers"
np.testing.assert_allclose(outputs[2], outputs[0], rtol=1e-4, atol=1e-5)
assert (outputs[2] != outputs[0]).any(), "with the library: kernels of its own"
assert not [name for name in sys.modules if name.startswith("mirage")]
"""


def test_the_files(made: Done, place: Path) -> None:
    (fragment,) = made.document()["fragments"]
    found = {str(p.relative_to(place / "out")) for p in (place / "out").rglob("*") if p.is_file()}
    own = fragment["id"]
    assert {"model.onnx", "libmirage.so", "mirage.h", "report.json", "report.html"} <= found
    assert {f"mugraphs/{own}.json", f"mugraphs/{own}.svg", f"src/{own}.cpp", "src/build.sh"} <= found
    assert f"src/{own}.cu" not in found, "for the CPU only"
    assert own in (place / "out" / "mirage.h").read_text()
    page = (place / "out" / "report.html").read_text()
    assert "://" not in page.replace("http://www.w3.org/", ""), "the page works offline"


def test_the_report(made: Done, place: Path) -> None:
    assert (made.code, made.told) == (0, "")
    report = made.document()
    assert json.loads((place / "out" / "report.json").read_text()) == report
    assert (report["mirage"], report["schema_version"]) == ("0.1.0", 1)
    assert report["options"]["force"] is True
    for key, names in KEYS.items():
        assert set(names) <= set(report[key]), key
    (fragment,) = report["fragments"]
    for key, names in FRAGMENT.items():
        assert set(names) <= set(fragment[key]), key
    assert {"target", "error", "original_error"} <= set(fragment["verification"]["float"])
    assert {"id", "name", "occurrences", "nodes", "schedule", "predicted_us", "floor_us", "measured"} <= set(fragment)
    assert fragment["verification"]["error_bound"] < 2**-40
    assert report["unchanged"] == []


def test_the_same_bytes_twice(made: Done, place: Path, optimized: Optimized) -> None:
    """Another run, of another file name, gives the same model, muGraphs and sources."""
    for name in ("model.onnx", "mugraphs", "src"):
        both = [place / "out" / name, optimized(NAME) / name]
        if both[0].is_dir():
            assert len({tuple(sorted(str(p.relative_to(f)) for p in f.rglob("*"))) for f in both}) == 1
        for file in [both[0]] if both[0].is_file() else [p for p in both[0].rglob("*") if p.is_file()]:
            assert file.read_bytes() == (optimized(NAME) / file.relative_to(place / "out")).read_bytes(), file


def test_loading(made: Done, program: Mirage) -> None:
    done = program(LOADING)
    assert done.code == 0, done.told
