"""The Python interface, in a program of its own."""

from __future__ import annotations

from pathlib import Path

from tests.contract.conftest import Done, Mirage

#: the lines of the contract, with smaller dimensions where the kernel is made
PROGRAM = """
import json
import numpy as np
import mirage_cli as mi

graph = mi.new_kernel_graph()
Q = graph.new_input(dims=(64, 1, 128), dtype=mi.float16)
K = graph.new_input(dims=(64, 128, 4096), dtype=mi.float16)
V = graph.new_input(dims=(64, 4096, 128), dtype=mi.float16)
A = graph.matmul(Q, K); S = graph.softmax(A); O = graph.matmul(S, V)
graph.mark_output(O)                                   # optional: unconsumed results are outputs
assert O.dims == (64, 1, 128), O

graph = mi.new_kernel_graph()
Q = graph.new_input(dims=(2, 1, 8), dtype=mi.float16)
K = graph.new_input(dims=(2, 8, 32), dtype=mi.float16)
V = graph.new_input(dims=(2, 32, 8), dtype=mi.float16)
A = graph.matmul(Q, K); S = graph.softmax(A); O = graph.matmul(S, V)
kernel = graph.superoptimize(target="cpu", jobs=1, cache=CACHE)
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((2, 1, 8), (2, 8, 32), (2, 32, 8)))
out = kernel(inputs=[q, k, v])
scores = np.exp((q.astype(float) @ k.astype(float)))
np.testing.assert_allclose(out, scores / scores.sum(-1, keepdims=True) @ v.astype(float), atol=2e-3)
try:
    kernel(inputs=[q, k, v.astype(np.float32)])
except mi.MirageError as error:
    assert "'input_3' has elements float32, expected float16" in str(error), error
else:
    raise AssertionError("a tensor of another type was taken")
kernel.save("graph")

assert mi.verify("graph").passed
json.dumps(mi.bench("graph", cpu=True, runs=1, seconds=0.1, threads=1).to_json())
report = mi.optimize("model.onnx", "again", target="cpu", force=True, jobs=1, cache=CACHE)
assert [f.name for f in report.replaced] == ["norm_linear"]

for error, base in (
    (mi.UsageError, mi.MirageError), (mi.ConfigError, mi.UsageError), (mi.ModelError, mi.MirageError),
    (mi.UnsupportedFormat, mi.ModelError), (mi.ToolMissing, mi.MirageError), (mi.CheckFailed, mi.MirageError),
):
    assert issubclass(error, base)
try:
    mi.optimize("none.onnx", "none")
except mi.MirageError as error:
    assert (error.code, error.exit_code) == ("model-unreadable", 3)
    assert "none.onnx" in str(error)
"""


def test_the_interface(mirage: Mirage, made: Done, program: Mirage, cache: Path) -> None:
    done = program(PROGRAM.replace("CACHE", repr(str(cache))))
    assert done.code == 0, done.told

    done = mirage(
        "bench", "graph", "--cpu", "--runs", "1", "--seconds", "0.1", "--json"
    )  # the folder of the saved kernel
    assert (done.code, done.told) == (0, "")
    (fragment,) = done.document()["fragments"]
    assert {c["name"]: c["us"]["median"] > 0 for c in fragment["contestants"]} == {"original": True, "mirage": True}
