"""Mixtures of experts, taken apart: the same answers in every form, rows of tables that kernels read where they are, and all
of an operator or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from mirage_cli import frontends
from mirage_cli.checks import whole_model
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.lax.ir import graph as g
from mirage_cli.options.options import Options
from mirage_cli.runtime import sessions
from mirage_cli.truth import evaluate
from mirage_cli.verification.findings import VerifyOptions
from mirage_cli.verification.story import verify_folder
from tests.frontends.models import read
from tests.optimized import anew

EXPERTS, WIDE = 4, 64
SWIGLU = {"activation_type": "swiglu", "swiglu_fusion": 1, "normalize_routing_weights": 1}
FORMS: dict[str, dict[str, Any]] = {
    "side by side": {**SWIGLU, "activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 2.0, "block_size": 32},
    "halves": {**SWIGLU, "swiglu_fusion": 2, "block_size": 16, "biased": True},
    "columns": {**SWIGLU, "expert_weight_bits": 8},
    "mixed": {**SWIGLU, "block_size": 32, "fc1_expert_weight_bits": 8, "fc3_expert_weight_bits": 8},
    "2 bits": {"activation_type": "silu", "normalize_routing_weights": 1, "block_size": 16, "expert_weight_bits": 2},
    "given shares": {"activation_type": "relu", "block_size": 32, "shares": True},
    "normalised shares": {"activation_type": "gelu", "normalize_routing_weights": 1, "block_size": 32, "shares": True},
    "floats": {"activation_type": "silu", "normalize_routing_weights": 1, "biased": True},
    "gated floats": SWIGLU,
    "zero points": {**SWIGLU, "block_size": 32, "zeros": True},
    "zero points of columns": {**SWIGLU, "expert_weight_bits": 4, "zeros": True},
    "zero points of 2 bits": {**SWIGLU, "block_size": 16, "expert_weight_bits": 2, "zeros": True},
    "zero points of 8 bits": {**SWIGLU, "expert_weight_bits": 8, "zeros": True, "biased": True},
    "shares of all": {"activation_type": "relu"},
}  #: attributes, and what else the operator reads
STAY: dict[str, dict[str, Any]] = {
    "shares of all": {"activation_type": "relu", "block_size": 32},
    "a third product": {**SWIGLU, "swiglu_fusion": 0, "block_size": 32},
    "another choice": {**SWIGLU, "block_size": 32, "use_sparse_mixer": 1},
    "limits behind": {**SWIGLU, "block_size": 32, "swiglu_limit": 2.0, "swiglu_limit_after_activation": 1},
    "numbers of 4 bits that are no integers": {**SWIGLU, "block_size": 32, "quant_type": "nvfp4"},
}
NOT_ON_CPUS = ("halves", "mixed")  #: forms that onnxruntime's CPU has not
OURS = ("biased", "shares", "zeros")


def model(told: dict[str, Any], kind: str = "QMoE", wide: int = WIDE) -> onnx.ModelProto:
    """A norm, routing, a mixture of two of four experts and a sum."""
    random = np.random.default_rng(2)
    floats = "block_size" not in told and "expert_weight_bits" not in told
    kind = "MoE" if floats else kind

    def noise(*dims: int) -> Any:
        return random.standard_normal(dims).astype(np.float32)

    weights = {"gain": 1 + noise(wide) / 8, "route": noise(wide, EXPERTS), "dims": np.array([-1, EXPERTS])}
    more = {"weights": numpy_helper.from_array(abs(noise(1, EXPERTS)), "weights")} if told.get("shares") else {}
    named: list[str] = []
    for n, (out, deep) in enumerate(((wide * (1 + (told["activation_type"] == "swiglu")), wide), (wide, wide)), 1):
        bits, size = (
            told.get(f"fc{n}_expert_weight_bits", told.get("expert_weight_bits", 4)),
            told.get("block_size", deep),
        )
        scales = (EXPERTS, out, deep // size) if "block_size" in told else (EXPERTS, out)
        own = {"w": random.integers(0, 256, (EXPERTS, out, deep * bits // 8)).astype(np.uint8)}
        own |= {"s": (abs(noise(*scales)) + 0.5) / 2**bits}
        own = {"w": noise(EXPERTS, out, deep) / 8} if floats else own
        own |= {"b": noise(EXPERTS, out)} if told.get("biased") else {}
        weights |= {f"{k}{n}": v for k, v in own.items()}
        named += [f"{k}{n}" if k in own else "" for k in ("wb" if floats else "wsb")]
        if told.get("zeros"):
            lines = (out, -(-deep // size * bits // 8)) if "block_size" in told else (-(-out * bits // 8),)
            weights[f"z{n}"] = random.integers(0, 256, (EXPERTS, *lines)).astype(np.uint8)
    if kind == "QMoE":
        named += ["", "", "", *(f"z{n}" if told.get("zeros") else "" for n in (1, 2)), ""]
    named += ["shares"] if more else []
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["x", "gain"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "route"], ["r"]),
        helper.make_node("Reshape", ["r", "dims"], ["logits"]),
        *([helper.make_node("Abs", ["logits"], ["shares"])] if more else []),
        helper.make_node(
            kind,
            ["n", "logits", *named],
            ["m"],
            domain="com.microsoft",
            k=2,
            **{k: v for k, v in told.items() if k not in OURS and not (floats and k == "block_size")},
        ),
        helper.make_node("Add", ["x", "m"], ["y"]),
    ]
    dims = ["batch", "sequence", wide]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(v, n) for n, v in weights.items()])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def rows(wide: int = WIDE) -> dict[str, Any]:
    """Two sequences of three tokens."""
    return {"x": np.random.default_rng(7).standard_normal((2, 3, wide)).astype(np.float32)}


@pytest.mark.parametrize("form", FORMS)
def test_the_parts_are_the_operator(form: str) -> None:
    whole = model(FORMS[form])
    imported = read(whole)
    parts = ir.to_proto(imported.model)
    assert "TopK" in {n.op_type for n in parts.graph.node}
    exact, apart = (evaluate.run(m, rows(), ["y"])["y"] for m in (whole, parts))
    assert np.abs(exact - apart).max() <= 1e-9 * np.abs(exact).max()
    for name in "nm":  # onnxruntime's MoE gives other answers where it may write in place of what it reads
        whole.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    for m in (whole, parts) if form not in NOT_ON_CPUS else (parts,):
        found, *_ = sessions.run(sessions.session(m.SerializeToString()), rows()).values()
        off = np.abs(found - exact).max() / np.abs(exact).max()
        assert off < (1e-5 if m is parts else 2e-2)  # of 8 bits onnxruntime rounds activations
    chosen = [v for v, s in enumerate(imported.graph.steps) if isinstance(s, g.Choose)]
    assert len(chosen) >= 2
    assert len({imported.graph.inputs[v][1] for v in chosen}) == 1  # one index
    assert {imported.values[n] for n in ("n", "m")} <= {*imported.graph.bounds}


@pytest.mark.parametrize("form", STAY)
def test_what_stays(form: str) -> None:
    imported = read(model(STAY[form]))
    assert [*imported.reasons.values()] == ["which experts a row takes is chosen at run time"]


def test_indices_that_may_be_others_are_not_read() -> None:
    """Rows by an index of which nothing is known, or that was found among more."""
    whole = model(FORMS["floats"])
    parts = ir.to_proto(read(whole).model)
    top = next(n for n in parts.graph.node if n.op_type == "TopK")
    index = next(n for n in parts.graph.node if n.input[:1] == [top.output[1]])
    given = onnx.ModelProto()
    given.CopyFrom(parts)
    given.graph.input.append(helper.make_tensor_value_info("any", TensorProto.INT64, [None, 2]))
    next(n for n in given.graph.node if n.name == index.name).input[0] = "any"
    assert "its indices are not known when the model is read" in read(given).reasons.values()
    wider = onnx.ModelProto()
    wider.CopyFrom(parts)
    node = next(n for n in wider.graph.node if n.name == top.name)
    wider.graph.node.insert(
        list(wider.graph.node).index(node),
        helper.make_node("Concat", [top.input[0], top.input[0]], ["twice"], name="twice", axis=-1),
    )
    node.input[0] = "twice"
    assert "its indices, below 8, are not known to be rows of 4" in read(wider).reasons.values()


@pytest.mark.usefixtures("one_isa")
@pytest.mark.parametrize("form", ["side by side", "zero points"])
def test_replaced_whole_or_not_at_all(form: str, tmp_path: Path, cache: Path) -> None:
    path, out = tmp_path / "model.onnx", tmp_path / "out"
    onnx.save(model(FORMS[form]), path)
    how = {"target": ("cpu",), "force": True, "jobs": 1, "cache": str(cache), "dim": ("batch=2", "sequence=1:1:4")}
    report = anew(str(path), out, Options(**how))
    assert {f.name: f.reason for f in report.fragments if f.status != "replaced"} == {}
    assert report.coverage["weight_bytes"] == 1.0
    sources = "".join(f.read_text() for f in (out / "src").glob("*.cpp"))
    assert "_index[" in sources and "quantised(stored<U4>" in sources
    exact = whole_model.float64_run(frontends.load(str(path)), rows())
    patched = sessions.session((out / MODEL).read_bytes(), library=out / LIBRARY)
    ours = sessions.run(patched, rows())["y"]
    assert np.abs(ours - exact["y"]).max() < 1e-5 * np.abs(exact["y"]).max()
    assert verify_folder(out, VerifyOptions()).passed
    report = anew(str(path), out, Options(**how, skip=("m/experts/product_2",)))
    kept = {f.name: f.reason for f in report.fragments if f.status != "replaced"}
    assert kept["gated_mlp"] == "another part of QMoE is not replaced"
    assert "QMoE" in {n.op_type for n in onnx.load(out / MODEL).graph.node}
