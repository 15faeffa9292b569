"""The sizes at which a model runs, and what runs of `optimize` and `bench` say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mirage_cli as mi
from mirage_cli.benchmark import benchmark
from mirage_cli.benchmark.options import BenchOptions
from mirage_cli.errors import MirageError, UsageError
from mirage_cli.exporters import text
from mirage_cli.runtime import running_sizes, sessions
from tests.frontends.models import parsed

POSITIONS = 100


def positions() -> onnx.ModelProto:
    """A norm and a linear layer behind a table of positions, which ends."""
    graph = """g (float[batch, seq, 16] x) => (float[batch, seq, 16] y) {
        s = Shape <start = 1, end = 2> (x)
        p = Slice(table, zero, s)
        e = Add(x, p)
        n = LayerNormalization(e, gain)
        y = MatMul(n, w)
    }"""
    random = np.random.default_rng(0)
    weights: dict[str, Any] = {
        "table": random.standard_normal((POSITIONS, 16)).astype(np.float32),
        "w": random.standard_normal((16, 16)).astype(np.float32),
        "gain": np.ones(16, np.float32),
        "zero": np.zeros(1, np.int64),
    }
    return parsed(graph, **weights)


@pytest.mark.parametrize(
    ("asked", "found", "name"),
    [
        ({"batch": 3, "seq": POSITIONS}, {"batch": 3, "seq": POSITIONS}, ""),
        ({"batch": 1, "seq": 1024}, {"batch": 1, "seq": POSITIONS}, "seq"),
        ({"batch": 4096, "seq": 101}, {"batch": 4096, "seq": POSITIONS}, "seq"),
        ({"batch": 1 << 20, "seq": 1024}, {"batch": 1 << 20, "seq": 1024}, ""),  # too large to be tried
    ],
)
def test_the_largest_size_that_runs(asked: dict[str, int], found: dict[str, int], name: str) -> None:
    running = running_sizes.running(positions().SerializeToString(), ".", asked)
    assert (running.sizes, "".join(running.names)) == (found, name)
    assert bool(running.problem) == bool(name)


def test_sizes_that_belong_together_are_smaller_together() -> None:
    graph = """g (float[seq, 16] x, float[other, 16] z) => (float[seq, 32] y) {
        s = Shape <start = 0, end = 1> (x)
        p = Slice(table, zero, s)
        e = Add(x, p)
        y = Concat <axis = 1> (e, z)
    }"""
    model = parsed(graph, table=np.zeros((POSITIONS, 16), np.float32), zero=np.zeros(1, np.int64))
    running = running_sizes.running(model.SerializeToString(), ".", {"seq": 1024, "other": 1024})
    assert running.sizes == {"seq": 64, "other": 64} and running.names == ("seq", "other") and running.problem


@pytest.mark.parametrize(("fixed", "found"), [((), (64, 1, 65)), (("new",), (64, 3, 67))])
def test_lengths_of_caches_and_of_masks_fit_each_other(fixed: tuple[str, ...], found: tuple[int, ...]) -> None:
    graph = """g (int64[b, new] ids, float[b, 1, past, 8] past_k, int64[b, all] mask) => (float[b, 1, all, 8] present) {
        rows = Gather(table, ids)
        apart = Unsqueeze(rows, front)
        keys = Concat <axis = 2> (past_k, apart)
        m = Cast <to = 1> (mask)
        wide = Unsqueeze(m, ends)
        present = Mul(keys, wide)
    }"""
    model = parsed(graph, table=np.zeros((9, 8), np.float32), front=np.array([1]), ends=np.array([1, 3]))
    asked = {"b": 1, "past": 64, "new": 3 if "new" in fixed else 64, "all": 64}
    running = running_sizes.running(model.SerializeToString(), ".", asked, fixed=fixed)
    assert tuple(running.sizes[n] for n in ("past", "new", "all")) == found
    assert not running.names  # what fits limits no size


def test_a_mask_of_another_symbol_is_long_enough() -> None:
    running = running_sizes.running(masked().SerializeToString(), ".", {"seq": 2000, "total": 1024}, fixed=("seq",))
    assert running == running_sizes.Running({"seq": 2000, "total": 2048})


def test_a_model_that_never_runs_tells_nothing() -> None:
    model = positions()
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros((POSITIONS, 7), np.float32), "table"))
    assert running_sizes.running(model.SerializeToString(), ".", {"seq": 8}).sizes == {"seq": 8}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(positions(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("options", [{"dim": "seq=200"}, {"dim": "seq=1:101:4096"}, {"shape": "x=1x300x16"}])
def test_a_size_that_does_not_run_is_told_at_once(path: Path, options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="the model does not run at seq") as told:
        mi.optimize(path, dry_run=True, target="cpu", **options)
    assert told.value.hint == f"the largest that runs is seq={POSITIONS}"


def masked() -> onnx.ModelProto:
    """A mask of another symbol, which is read at each position."""
    graph = """g (float[seq, 16] x, float[total] mask) => (float[seq, 16] y) {
        first = Constant<value = int64 {0}>() step = Constant<value = int64 {1}>() behind = Constant<value = int64[1] {1}>()
        rows = Shape<start = 0, end = 1>(x) count = Squeeze(rows)
        at = Range(first, count, step) own = Gather(mask, at) column = Unsqueeze(own, behind) y = Mul(x, column)
    }"""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')


def test_sizes_that_nothing_is_said_of_are_told_beside_it(tmp_path: Path) -> None:
    """Of positions alone --dim does not help."""
    onnx.save(masked(), tmp_path / "model.onnx")
    with pytest.raises(UsageError, match="the model does not run at seq 20000") as told:
        mi.optimize(tmp_path / "model.onnx", dry_run=True, target="cpu", dim="seq=20000")
    assert told.value.hint is not None
    assert told.value.hint.endswith("where nothing is said of total=1024: --dim gives these too")


def test_sizes_that_no_input_has_are_those_of_a_run(tmp_path: Path) -> None:
    graph = """g (float[batch, seq, 16] x) => (float[a, b, 16] y) {
        kept = Compress <axis = 1> (x, chosen)
        n = LayerNormalization(kept, gain)
        y = MatMul(n, w)
    }"""
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((16, 16)).astype(np.float32), "gain": np.ones(16, np.float32)}
    onnx.save(parsed(graph, chosen=np.arange(7) < 5, **weights), tmp_path / "model.onnx")
    report = mi.optimize(tmp_path / "model.onnx", dry_run=True, target="cpu", dim="seq=8:64:128", force=True)
    (inner,) = report.sizes.keys() - {"batch", "seq"}
    assert report.sizes == {"batch": 1, "seq": 64, inner: 5}
    assert f"{inner} 5: on cpu" in text.summary(report)


def test_a_shape_is_told_by_its_symbols_alone(path: Path) -> None:
    assert mi.optimize(path, dry_run=True, target="cpu", shape="x=1x7x16").sizes == {"batch": 1, "seq": 7}


@pytest.mark.usefixtures("one_isa")
def test_times_are_for_sizes_that_run_and_bench_takes_the_same(path: Path, tmp_path: Path, cache: Path) -> None:
    out = tmp_path / "out"
    report = mi.optimize(path, out, target="cpu", force=True, cache=cache)
    assert report.sizes == {"batch": 1, "seq": POSITIONS}
    assert "Predicted for these places at batch 1, seq 100: on cpu" in text.summary(report)
    timed = benchmark.bench_folder(out, BenchOptions(cpu=True, runs=1, seconds=0.01))
    assert timed.settings["inputs"] == {"x": [1, POSITIONS, 16]}
    assert all(r.predicted_us for r in timed.fragments)
    other = benchmark.bench_folder(out, BenchOptions(cpu=True, runs=1, seconds=0.01, dim=("seq=7",)))
    assert other.settings["inputs"] == {"x": [1, 7, 16]}
    assert [r.predicted_us for r in other.fragments] != [r.predicted_us for r in timed.fragments], (
        "those of these sizes"
    )
    with pytest.raises(MirageError, match="onnxruntime failed"):  # as the original does, where the table ends
        sessions.run(
            sessions.session(out / "model.onnx", out / "libmirage.so"), {"x": np.ones((1, 101, 16), np.float32)}
        )
    same = benchmark.bench_folder(out, BenchOptions(cpu=True, runs=1, seconds=0.01, dim=("seq=100", "batch=1")))
    assert [r.predicted_us for r in same.fragments] == [r.predicted_us for r in timed.fragments]


@pytest.mark.usefixtures("one_isa")
@pytest.mark.parametrize(
    ("index", "shapes"), [(5, [(2, 6), (2, 9), (2, 5), (0, 5), (0, 6), (3, 0)]), (0, [(2, 1), (2, 0), (0, 0)])]
)
def test_positions_that_are_not_there_are_refused_as_onnxruntime_does(
    index: int, shapes: list[tuple[int, int]], tmp_path: Path, cache: Path
) -> None:
    graph = "g (float[batch, seq, 16] x) => (float[batch, 16] y) { r = Gather<axis = 1>(x, i) m = MatMul(r, w) y = Tanh(m) }"
    random = np.random.default_rng(0)
    model = parsed(graph, i=np.array(index, np.int64), w=random.standard_normal((16, 16)).astype(np.float32))
    onnx.save(model, tmp_path / "model.onnx")
    report = mi.optimize(tmp_path / "model.onnx", tmp_path / "out", target="cpu", force=True, cache=str(cache))
    assert len(report.replaced) == 1
    patched = sessions.session(tmp_path / "out/model.onnx", tmp_path / "out/libmirage.so")
    original = sessions.session(tmp_path / "model.onnx")
    for batch, seq in shapes:
        feeds = {"x": random.standard_normal((batch, seq, 16)).astype(np.float32)}
        if seq > index:
            np.testing.assert_allclose(patched.run(None, feeds)[0], original.run(None, feeds)[0], atol=1e-6)
            continue
        with pytest.raises(Exception, match="out of data bounds"):
            original.run(None, feeds)
        with pytest.raises(Exception, match=f"position {index} is read has {seq}"):
            patched.run(None, feeds)
    kernel = mi.load_kernel(tmp_path / "out")
    with pytest.raises(MirageError, match=f"{index + 1} positions are read"):
        kernel(*(np.zeros((2, index, 16) if "w" not in t.name else (16, 16), np.float32) for t in kernel.spec.inputs))
