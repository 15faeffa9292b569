"""What is known of a fragment's weights when it is planned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mirage_cli import frontends
from mirage_cli.codegen.cache_rows import CacheRows
from mirage_cli.lax.dtypes import F16, F32, DType
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.optimization import task as works
from mirage_cli.planning.plan import FragmentPlan, TargetPlan
from mirage_cli.suite import cases


def _largest(dtype: DType, gain: list[float], folder: Path) -> list[tuple[tuple[int, ...], float]]:
    """For the norm of a small model with this gain: dimensions of weights, and what their numbers do not exceed."""
    model = cases.norm_mlp_down("small", 2, 8, 16).model(dtype, 0)
    (stored,) = [t for t in model.graph.initializer if t.name == "g"]
    stored.CopyFrom(numpy_helper.from_array(np.resize(gain, 8).astype(numpy_helper.to_array(stored).dtype), "g"))
    onnx.save(model, folder / "m.onnx")
    imported = frontends.load(str(folder / "m.onnx"))
    work = works.group_fragments(partition(imported.graph, works.tensor_names(imported)).fragments, imported)[0]
    return [(work.program.sources[k].dims, top) for k, top in work.largest(imported)]


@pytest.mark.parametrize(
    ("gain", "top"), [([0.5, -5.0], 8.0), ([1.0, 0.9], 1.0), ([0.3, 0.2], 0.5), ([-65504.0, 1.0], 65536.0)]
)
def test_gains_are_below_a_power_of_two(gain: list[float], top: float, tmp_path: Path) -> None:
    assert _largest(F16, gain, tmp_path) == [((8,), top)]


@pytest.mark.parametrize("gain", [[0.0, -0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_of_these_gains_nothing_is_said(gain: list[float], tmp_path: Path) -> None:
    assert _largest(F16, gain, tmp_path) == []


def test_float32_that_holds_float16_is_in_its_range(tmp_path: Path) -> None:
    """The norm is computed in float32, as exporters write it; another reader makes the Cast a tensor of its own."""
    model = cases.norm_mlp_down("small", 2, 8, 16).model(F16, 0)
    graph = model.graph
    for node in graph.node:
        node.input[:] = ["wide" if x == "x" else x for x in node.input]
    wide = [
        helper.make_node("Neg", ["x"], ["less"]),
        helper.make_node("Cast", ["less"], ["wide"], to=TensorProto.FLOAT),
    ]
    back = next(n for n in graph.node if n.op_type == "Div")
    narrow = helper.make_node("Cast", [back.output[0]], ["narrow"], to=TensorProto.FLOAT16)
    for node in graph.node:
        node.input[:] = ["narrow" if x == back.output[0] and node is not back else x for x in node.input]
    for name in {x for n in graph.node for x in n.input if x.startswith("c_")}:
        stored = next(t for t in graph.initializer if t.name == name)
        stored.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(stored).astype(np.float32), name))
    place = list(graph.node).index(back) + 1
    nodes = [*wide, *graph.node[:place], narrow, *graph.node[place:]]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.output.add().CopyFrom(helper.make_tensor_value_info("wide", TensorProto.FLOAT, (2, 8)))
    onnx.save(model, tmp_path / "m.onnx")
    imported = frontends.load(str(tmp_path / "m.onnx"))
    found = works.group_fragments(partition(imported.graph, works.tensor_names(imported)).fragments, imported)
    work = next(w for w in found if any(n.op == "contract" for n in w.program.nodes) and len(w.program.sources) == 4)
    tops = {work.program.sources[k].dtype: top for k, top in work.largest(imported)}
    assert tops == {F32: F16.largest, F16: 2.0}


def test_of_float32_nothing_need_be_known(tmp_path: Path) -> None:
    assert _largest(F32, [3.0, 1.0], tmp_path) == []


@pytest.mark.parametrize("gain", [0.0, 2.0])
def test_what_caches_of_a_window_s_size_copy_is_counted(gain: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gain of 10 us goes where 2 x 4096 rows of 8 heads are read and written besides, at typical sizes and in the mean."""
    plan = TargetPlan("sm_90a", 0, None, (), "", None, 10.0, 5.0, 20.0, gain=gain)  # type: ignore[arg-type]
    work = works.Work("", "attention", None, [], (), ())  # type: ignore[arg-type]
    work.plan = FragmentPlan("", "attention", None, plans={"cuda": plan})  # type: ignore[arg-type]
    monkeypatch.setattr(works.Work, "inside", "GroupQueryAttention")
    for window, lost in ((0, False), (64, False), (4096, True)):
        monkeypatch.setattr(works.Work, "beside", {"": CacheRows("f16", 32, 8, 128, window=window)})
        assert bool(work.losses(plan)) is lost
