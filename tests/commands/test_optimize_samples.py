"""Every sample, optimized by force: each fragment is replaced and the answers agree by the accuracy rule, with the library
and without it.

Kernels are compiled for this machine's best instruction set only (a third of the time); other tests compile all of them.
Of samples of both types every other one is of float16, and of what exporters make of one decoder some are left out (their
fragments are those of others, see tests/lax/fragments); MIRAGE_MANY=1 takes all.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from mirage_cli import frontends
from mirage_cli.backends import cpu
from mirage_cli.checks import whole_model
from mirage_cli.lax.dtypes import from_numpy
from mirage_cli.numerics.accuracy import compare
from mirage_cli.options.options import Options
from mirage_cli.runtime import sessions
from samples.inputs import example_inputs
from tests.optimized import SAMPLES, anew, best_isa

PATHS = sorted((SAMPLES / "models").glob("*.onnx")) + sorted((SAMPLES / "operators").glob("*.onnx"))
#: llama's layers as functions, and those of llama_decode_dynamic with sizes; operators that differ from another one in sizes
#: or a factor, which are searched and proved in tests/search/test_cases.py, and those that many tests optimize
SAME = ("llama_composite", "llama_decode")
SAME += ("attention_scaled", "mqa", "ntrans_artifact", "qknorm_gqa_artifact", "rmsnorm_linear")
ODD = (
    {"batch": 1, "sequence": 1, "past": 0},
    {"batch": 7, "sequence": 129, "past": 129},
    {"batch": 1, "sequence": 7, "past": 4097},
    {"batch": 0, "sequence": 7, "past": 7},
)
DIMS = ({"batch": 2, "sequence": 12, "past": 9}, {"batch": 1, "sequence": 33, "past": 70})


@pytest.fixture(autouse=True)
def _one_isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample is compiled for one instruction set, every third for the one that all processors have."""
    path = request.node.callspec.params.get("path") if hasattr(request.node, "callspec") else None
    chosen = "base" if path in PATHS and PATHS.index(path) % 3 == 0 else best_isa()
    monkeypatch.setattr(cpu, "isas", lambda: (chosen,))


def _drawn(paths: list[Path]) -> list[Path]:
    """Those that are there in one type, and of twins one of each, but for SAME."""
    if os.environ.get("MIRAGE_MANY"):
        return paths
    stems = {p.stem for p in paths}
    twins = sorted({s[:-5] for s in stems if {s[:-5] + "_fp16", s[:-5] + "_fp32"} <= stems})
    left = {f"{s}_fp{32 if n % 2 else 16}" for n, s in enumerate(twins)}
    return [p for p in paths if p.stem not in left and p.stem[:-5] not in SAME]


@pytest.mark.parametrize("path", _drawn(PATHS), ids=lambda p: p.stem)
def test_sample(path: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("XDG_STATE_HOME", str(cache / "state"))  # a fragment of several samples is planned once
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(cache))
    report = anew(str(path), out, options)
    assert {f.name: f.reason for f in report.fragments if f.status != "replaced"} == {}
    assert report.coverage["flops"] == pytest.approx(1.0) or "norm" in {f.name for f in report.fragments}
    agree(path, out)
    agree_at_odd_sizes(path, out)
    replaced(out)


def symbolic(path: Path) -> bool:
    """Whether a model has symbolic dimensions."""
    return any(d.dim_param for v in onnx.load(path).graph.input for d in v.type.tensor_type.shape.dim)


def agree_at_odd_sizes(path: Path, out: Path) -> None:
    """Compare the patched model with the original at sizes that divide nothing, outside of any tile, and at 0."""
    if not symbolic(path):
        return
    original, patched = sessions.session(path), sessions.session(out / "model.onnx", out / "libmirage.so")
    for dims in ODD:
        inputs = example_inputs(path, dims=dims)
        found = sessions.run(patched, inputs)
        for name, wanted in sessions.run(original, inputs).items():
            np.testing.assert_allclose(found[name], wanted, rtol=2e-4, atol=2e-5, err_msg=f"{path.stem} {name} {dims}")


def agree(path: Path, out: Path) -> None:
    """Compare the patched model, with the library and without it, with the original and its float64 run."""
    for dims in DIMS if symbolic(path) else DIMS[:1]:
        inputs = example_inputs(path, dims=dims)
        wanted = whole_model.float64_run(frontends.load(str(path)), inputs)
        original = sessions.run(sessions.session(path), inputs)
        for library in (out / "libmirage.so", None):
            found = sessions.run(sessions.session(out / "model.onnx", library), inputs)
            assert list(found) == list(original)
            for name, value in original.items():
                dtype = from_numpy(value.dtype)
                assert dtype is not None
                accuracy = compare(found[name], value, wanted[name], dtype)
                assert accuracy.passed, (path.stem, name, library, str(accuracy))


def replaced(out: Path) -> None:
    """The patched model has every fragment that the report says as an operator, as often as it says."""
    report = json.loads((out / "report.json").read_text())
    model = onnx.load(out / "model.onnx", load_external_data=False)
    used = Counter(n.op_type for n in model.graph.node if n.domain == "mirage")
    assert used == Counter({f"{f['name']}_{f['id']}": f["occurrences"] for f in report["fragments"]})
    assert {f.name for f in model.functions if f.domain == "mirage"} == set(used)
