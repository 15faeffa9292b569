"""Weights that a session packs for products on the CPU."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mirage_cli as mi

pytestmark = pytest.mark.usefixtures("one_isa")
ROWS, MANY, DEEP, WIDE = 19, 75, 70, 53  #: neither whole panels of columns nor whole blocks of rows
RUN = """
import ctypes, json, sys
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.register_custom_ops_library(sys.argv[1] + "/libmirage.so")
bytes_ = ctypes.CDLL(sys.argv[1] + "/libmirage.so").mirage_packed_bytes
bytes_.restype = ctypes.c_uint64
session = ort.InferenceSession(sys.argv[1] + "/model.onnx", options, providers=["CPUExecutionProvider"])
alive = bytes_()
made = [session.run(None, {"x": np.load(sys.argv[2])})[0] for _ in range(2)]
assert np.array_equal(*made)
np.save(sys.argv[3], made[0])
del session
print(json.dumps([alive, bytes_()]))
"""


def _model(turned: bool, dtype: type) -> onnx.ModelProto:
    """gelu(x W), with the weight as it is or turned."""
    w = np.random.default_rng(3).standard_normal((DEEP, WIDE)).astype(dtype)
    kind = TensorProto.FLOAT if dtype is np.float32 else TensorProto.FLOAT16
    stored = numpy_helper.from_array(np.ascontiguousarray(w.T) if turned else w, "w")
    nodes = [helper.make_node("Transpose", ["w"], ["v"], perm=[1, 0])] if turned else []
    nodes += [helper.make_node("MatMul", ["x", "v" if turned else "w"], ["h"])]
    nodes += [helper.make_node("Gelu", ["h"], ["y"])]
    x, y = (helper.make_tensor_value_info(n, kind, ["rows", m]) for n, m in (("x", DEEP), ("y", WIDE)))
    graph = helper.make_graph(nodes, "g", [x], [y], [stored])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.parametrize(
    ("turned", "dtype", "rows"),
    [(False, np.float32, ROWS), (True, np.float32, ROWS), (False, np.float16, ROWS), (True, np.float32, MANY)],
)
def test_packed_weights_give_the_same(
    turned: bool, dtype: type, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(turned, dtype)
    onnx.save(model, tmp_path / "m.onnx")
    dim = {"rows": str(MANY) if rows == MANY else f"1:{ROWS}:64"}
    mi.optimize(tmp_path / "m.onnx", tmp_path / "out", target=["cpu"], force=True, dim=dim)
    sources = "".join(p.read_text() for p in (tmp_path / "out" / "src").glob("*.cpp"))
    assert (" split(" in sources) == (
        rows == MANY
    )  # where the processor multiplies matrices, three numbers are kept for one
    x = np.random.default_rng(4).standard_normal((rows, DEEP)).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    answers, alive = {}, {}
    for packed in ("1", "0"):
        monkeypatch.setenv("MIRAGE_PACK", packed)
        files = [str(tmp_path / n) for n in ("out", "x.npy", f"{packed}.npy")]
        text = subprocess.run([sys.executable, "-c", RUN, *files], check=True, capture_output=True, text=True).stdout
        alive[packed], left = json.loads(text)
        assert left == 0
        answers[packed] = np.load(files[2])
    size = 6 if rows == MANY else np.dtype(dtype).itemsize
    assert alive["0"] == 0 and DEEP * WIDE * size / 1.5 < alive["1"] <= 2 * (
        -(-DEEP // 32) * 32 * (WIDE + 32) * size + 64
    )
    h = x.astype(float) @ np.random.default_rng(3).standard_normal((DEEP, WIDE)).astype(dtype).astype(float)
    wanted = h * (1 + np.vectorize(math.erf)(h / math.sqrt(2))) / 2
    np.testing.assert_allclose(answers["1"], wanted, rtol=0, atol=1e-5 if dtype is np.float32 else 1e-2)
    np.testing.assert_allclose(answers["0"], wanted, rtol=0, atol=1e-5 if dtype is np.float32 else 1e-2)


def test_a_weight_of_both_branches_is_packed_once(tmp_path: Path) -> None:
    """A merged decoder's weights are read in both branches of its `If`."""
    text = f"""<ir_version: 9, opset_import: ["" : 20]> g (float[{ROWS},{DEEP}] x) => (float[{ROWS},{WIDE}] y)
        <float[{DEEP},{WIDE}] w, float zero = {{0}}> {{
      top = ReduceMax <keepdims = 0> (x)
      c = Greater (top, zero)
      y = If (c) <
        then_branch = a () => (float[{ROWS},{WIDE}] p) {{ h = MatMul (x, w)  p = Gelu (h) }},
        else_branch = b () => (float[{ROWS},{WIDE}] q) {{ i = MatMul (x, w)  q = Gelu (i) }}>
    }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(_model(False, np.float32).graph.initializer[0])
    onnx.save(model, tmp_path / "m.onnx")
    mi.optimize(tmp_path / "m.onnx", tmp_path / "out", target=["cpu"], force=True)
    np.save(tmp_path / "x.npy", np.random.default_rng(4).standard_normal((ROWS, DEEP)).astype(np.float32))
    files = [str(tmp_path / n) for n in ("out", "x.npy", "y.npy")]
    text = subprocess.run([sys.executable, "-c", RUN, *files], check=True, capture_output=True, text=True).stdout
    panels = 16 * (-(-WIDE // 16) + 1)  # one of zeros ends them
    assert json.loads(text) == [4 * DEEP * panels, 0]
