"""Graphs made into kernels, called, saved, loaded and found again in the cache."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_cli as mi
from mirage_cli.files.output import LIBRARY
from mirage_cli.kernels import call_order
from mirage_cli.optimization import environment, story
from mirage_cli.python import kernel_graph
from tests.backends.test_kernel import Foreign
from tests.python.cases import rms, sigmoid, softmax
from tests.python.computing import by_onnxruntime

OPTIONS: dict[str, Any] = {"target": "cpu", "jobs": 1}


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def block() -> tuple[mi.KernelGraph, dict[str, Any]]:
    """A norm, a product and a residual, and a transposed softmax of them: two kernels, weights, two outputs."""
    weights = {"w": random(16), "square": random(16, 16) / 4}
    graph = mi.new_kernel_graph()
    x = graph.new_input(("rows", 16), mi.float32, "x")
    w, square = (graph.new_weight(a, name=n) for n, a in weights.items())
    y = x + graph.rms_norm(x, weight=w) @ square
    graph.mark_output(y)
    graph.mark_output(graph.transpose(graph.softmax(y)))
    return graph, weights


def wanted(x: Any, weights: dict[str, Any]) -> tuple[Any, Any]:
    x = x.astype(np.float64)
    y = x + (rms(x) * weights["w"]) @ weights["square"]
    return y, softmax(y).T


@pytest.fixture(scope="module")
def kernel(cache: Path) -> mi.GraphKernel:
    return block()[0].superoptimize(cache=str(cache), **OPTIONS)


def test_the_documented_example(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cache_folder", lambda options: cache)
    found = doctest.testmod(kernel_graph)
    assert (found.failed, found.attempted > 10) == (0, True)


def test_the_guide(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The guide's example, but for the building of its kernel."""

    def original(graph: mi.KernelGraph, **options: Any) -> Any:
        assert options == {"target": "cpu"}
        return lambda inputs: by_onnxruntime(graph, *inputs)

    monkeypatch.setattr(mi.KernelGraph, "superoptimize", original)
    guide = (Path(__file__).parents[2] / "docs/guide.md").read_text()
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "new_kernel_graph" in b)
    weight, tensor = (random(*s).astype(np.float16) for s in ((64, 32), (3, 64)))
    names: dict[str, Any] = {"mi": mi, "weight": weight, "tensor": tensor}
    exec(compile(block, "guide.md", "exec"), names)
    assert f"```text\n{capsys.readouterr().out}```" in guide
    y = rms(tensor.astype(np.float64)) @ weight
    np.testing.assert_allclose(names["out"], y * sigmoid(y) * 0.5, rtol=2e-2, atol=2e-2)


def test_several_kernels(kernel: mi.GraphKernel) -> None:
    for rows in (5, 1, 5):
        x = random(rows, 16)
        y, t = kernel(inputs=[x])
        for found, right in zip((y, t), wanted(x, block()[1]), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
    assert len(kernel.report.replaced) == 2


def test_outputs_of_the_caller(kernel: mi.GraphKernel) -> None:
    x = random(4, 16)
    out = np.zeros((4, 16), np.float32), np.zeros((16, 4), np.float32)
    assert kernel(x, out=out) == out
    for found, right in zip(out, kernel(x), strict=True):
        assert np.array_equal(found, right)
    with pytest.raises(mi.Refused, match="1 outputs, expected 2"):
        kernel(x, out=out[0])
    with pytest.raises(mi.Refused, match=r"has shape \[4, 16\], expected \[16, 4\]"):
        kernel(x, out=(out[0], out[0]))


def test_what_does_not_fit(kernel: mi.GraphKernel) -> None:
    with pytest.raises(mi.Refused, match=r"2 inputs, expected 1: x: f32\[rows, 16\]"):
        kernel(random(4, 16), random(4, 16))
    with pytest.raises(mi.Refused, match=r"'x' has shape \[4, 15\], expected \[rows, 16\]"):
        kernel(random(4, 15))
    with pytest.raises(mi.Refused, match="input 'x' has elements float64, expected float32"):
        kernel(random(4, 16).astype(np.float64))
    with pytest.raises(mi.Refused, match="list is not an array"):
        kernel([1.0])
    with pytest.raises(mi.UsageError, match="not both"):
        kernel(random(4, 16), inputs=[])


def test_other_libraries(kernel: mi.GraphKernel) -> None:
    x = random(3, 16)
    for found, right in zip(kernel(Foreign(x)), kernel(x), strict=True):
        assert np.array_equal(found, right)


def test_what_is_known_of_it(kernel: mi.GraphKernel) -> None:
    assert 0 < kernel.error_bound < 2**-40
    assert set(kernel.proof) == {f.id for f in kernel.report.replaced}
    assert {p.stem for p in kernel.sources} == set(kernel.proof)
    assert kernel.mugraph.count("kernel 0:") == len(kernel.proof)
    assert (kernel.has("cpu"), kernel.has("cuda")) == (True, False)
    assert repr(kernel).endswith(
        "kernels for cpu: (x: f32[rows, 16]) -> " + ", ".join(map(str, kernel.spec.outputs)) + ">"
    )


def test_the_cache_answers(cache: Path, kernel: mi.GraphKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "optimize", lambda *given: pytest.fail("it was built again"))
    assert block()[0].superoptimize(cache=str(cache), **OPTIONS).folder == kernel.folder
    with pytest.raises(pytest.fail.Exception):
        block()[0].superoptimize(cache=str(cache), confidence=50, **OPTIONS)


def test_a_changed_folder_is_built_again(tmp_path: Path) -> None:
    graph = mi.new_kernel_graph()
    graph.exp(graph.new_input((3,), mi.float32))
    folder = graph.superoptimize(cache=tmp_path / "cache", **OPTIONS).folder
    (folder / LIBRARY).unlink()  # the loaded file stays as it is
    (folder / LIBRARY).touch()
    kernel = graph.superoptimize(cache=tmp_path / "cache", **OPTIONS)
    assert kernel.folder == folder
    assert np.array_equal(kernel(np.zeros(3, np.float32)), np.ones(3))


def test_saved_and_loaded(kernel: mi.GraphKernel, tmp_path: Path) -> None:
    kernel.save(tmp_path / "out")
    kernel.save(tmp_path / "out")
    x = random(2, 16)
    for threads in (None, 2):
        loaded = mi.load_kernel(tmp_path / "out", threads=threads)
        assert isinstance(loaded, mi.GraphKernel)
        for found, right in zip(loaded(x), kernel(x), strict=True):
            assert np.array_equal(found, right)
    one = mi.load_kernel(tmp_path / "out", kernel.report.replaced[0].id)
    assert isinstance(one, mi.Kernel)
    assert mi.verify(tmp_path / "out").passed
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(mi.UsageError, match="holds files that mirage did not write"):
        kernel.save(tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("calls"), "missing required field `calls`"),
        (lambda d: d["calls"].reverse(), "before .* reads it"),
        (lambda d: d["results"].append("nowhere"), "nothing computes the result 'nowhere'"),
    ],
)
def test_damaged_steps(kernel: mi.GraphKernel, tmp_path: Path, change: Any, message: str) -> None:
    kernel.save(tmp_path / "out")
    path = tmp_path / "out" / call_order.FILE
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(mi.ModelError, match=message):
        mi.load_kernel(tmp_path / "out")
    path.unlink()
    with pytest.raises(mi.ModelError, match="expected the folder of a graph, found no"):
        mi.GraphKernel(tmp_path / "out")


def test_without_a_cache() -> None:
    graph = mi.new_kernel_graph()
    graph.exp(graph.new_input((3,), mi.float32))
    kernel = graph.superoptimize(cache=False, **OPTIONS)
    folder = kernel.folder
    assert np.array_equal(kernel(np.zeros(3, np.float32)), np.ones(3))
    assert folder.exists()
    del kernel
    assert not folder.exists()


# --- what cannot be a kernel ------------------------------------------------------------------------------------------
def refused(graph: mi.KernelGraph, **options: Any) -> mi.MirageError:
    with pytest.raises(mi.MirageError) as caught:
        graph.superoptimize(cache=False, **(OPTIONS | options))
    return caught.value


def test_an_operator_that_no_kernel_has() -> None:
    graph = mi.new_kernel_graph()
    x, y = graph.new_input((4, 8), mi.float32), graph.new_input((4, 3), mi.float32)
    graph.exp(graph.concat([graph.relu(x), graph.relu(y)], 1))
    error = refused(graph)
    assert isinstance(error, mi.Refused)
    assert "'concat_1' cannot be part of a kernel" in str(error)
    assert "read across its joint" in str(error)
    assert "mirage_cli.optimize" in error.hint


def test_outputs_that_are_one_value() -> None:
    graph = mi.new_kernel_graph()
    x, y = graph.new_input((4,), mi.float32), graph.new_input((4,), mi.float32)
    graph.mark_output(x + y)
    graph.mark_output(x + y)
    assert "outputs 'add_1' and 'add_2' are the same value" in str(refused(graph))


@pytest.mark.parametrize(
    ("option", "value"), [("only", "*"), ("skip", "*"), ("dry_run", True), ("force", False), ("strict", False)]
)
def test_options_that_do_not_fit(option: str, value: Any) -> None:
    graph = mi.new_kernel_graph()
    graph.exp(graph.new_input((4,), mi.float32))
    error = refused(graph, **{option: value})
    assert isinstance(error, mi.UsageError)
    assert str(error).startswith(f"{option}: a graph's kernels compute all of it")
    assert "unknown option 'forse'" in str(refused(graph, forse=True))
