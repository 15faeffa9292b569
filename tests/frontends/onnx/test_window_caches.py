"""GroupQueryAttention behind a cache of the window's size, taken apart: what onnxruntime says, over random windows, sizes of
caches, heads, prompts, steps and batches, with past and present apart and in one buffer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import helper

import mirage_cli as mi
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.runtime import sessions
from tests.frontends.models import noise, read

Arrays = dict[str, NDArray[Any]]
SIZE, TABLE = 32, 64
TYPES: dict[str, Any] = {"int8": np.int8, "uint8": np.uint8, "float": np.float32}


def model(
    r: random.Random, heads: int, shared: int, window: int, stored: str = "float", **more: Any
) -> onnx.ModelProto:
    """One attention, of new tokens `s` behind a cache of `p` positions."""
    packed, rotary, sunk = (r.random() < 0.5 for _ in range(3))
    wide, row = heads + 2 * shared if packed else heads, SIZE // 2 if stored == "uint8" else SIZE
    cache = ["b", shared, "p", row]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(TYPES[stored]))
    values = [("q", 1, ["b", "s", wide * SIZE])] + [(n, 1, ["b", "s", shared * SIZE]) for n in ("" if packed else "kv")]
    values += [("pk", kind, cache), ("pv", kind, cache), ("last", 6, ["b"]), ("total", 6, [])]
    angles = np.outer(np.arange(TABLE), 0.3 ** np.arange(SIZE // 2)).astype(np.float32)
    weights = {"cos": np.cos(angles), "sin": np.sin(angles), "sink": noise(heads)}
    weights |= {n: np.array([0.09 if stored == "uint8" else 0.02], np.float32) for n in ("ks", "vs")}
    names = [
        "q",
        *(("", "") if packed else "kv"),
        "pk",
        "pv",
        "last",
        "total",
        *(["cos", "sin"] if rotary else ["", ""]),
    ]
    names += ["", "", "sink" if sunk else "", *(["ks", "vs"] if stored != "float" else [])]
    told: dict[str, Any] = {"local_window_size": window, "sliding_window_cache": 1, "do_rotary": int(rotary)}
    told |= {"softcap": r.choice([0.0, 2.0]), "scale": r.choice([0.0, 0.4])} | more
    if stored != "float":
        bits = 4 if stored == "uint8" else 8
        told |= {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": bits}
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        ["y", "nk", "nv"],
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=shared,
        **told,
    )
    results = [
        ("y", 1, ["b", "s", heads * SIZE]),
        ("nk", kind, ["b", shared, "n", row]),
        ("nv", kind, ["b", shared, "n", row]),
    ]
    graph = helper.make_graph(
        [node],
        "g",
        *([helper.make_tensor_value_info(*v) for v in group] for group in (values, results)),
        [onnx.numpy_helper.from_array(a, n) for n, a in weights.items() if n in names],
    )
    versions = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=9)


def new_rows(before: onnx.ModelProto, r: np.random.Generator, batch: int, new: int) -> Arrays:
    """Queries, keys and values."""
    widths = {v.name: v.type.tensor_type.shape.dim[2].dim_value for v in before.graph.input if v.name in "qkv"}
    return {n: r.standard_normal((batch, new, w)).astype(np.float32) for n, w in widths.items()}


def caches(before: onnx.ModelProto, batch: int, slots: int) -> Arrays:
    """Empty caches, which hold anything."""
    found = {}
    for v in before.graph.input:
        if v.name in ("pk", "pv"):
            dims = v.type.tensor_type.shape.dim
            kind = helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
            empty = np.full((batch, dims[1].dim_value, slots, dims[3].dim_value), 101, kind)
            found[v.name] = empty * np.float32(np.nan) if kind == np.float32 else empty
    return found


def in_place(session: Any, arrays: Arrays) -> Arrays:
    """The results of a run whose caches are written where they lie."""
    bound, held = session.io_binding(), {n: arrays[n].copy() for n in ("pk", "pv")}
    for name, a in arrays.items():
        if name not in held:
            bound.bind_cpu_input(name, a)
    bound.bind_output("y", "cpu")
    for name, a in held.items():
        value = sessions.to_ort(a)
        bound.bind_ortvalue_input(name, value)
        bound.bind_ortvalue_output(f"n{name[1]}", value)
    session.run_with_iobinding(bound)
    return {"y": bound.get_outputs()[0].numpy(), "nk": held["pk"], "nv": held["pv"]}


def goes_on(before: onnx.ModelProto, both: tuple[Any, Any], r: random.Random, window: int) -> None:
    """Assert that two sessions say the same of a prompt, of chunks and steps behind it, after going back as far as the
    caches still hold, and again; each goes on with its own caches. Sequences begin at lengths of their own."""
    slots = window + r.choice([0, 1, 2, window, 3 * window])
    batch, several = r.choice([1, 1, 3]), slots - window + 1
    drawn, shared = np.random.default_rng(r.randrange(2**32)), r.random() < 0.5
    lengths = np.zeros(batch, int)
    held = [caches(before, batch, slots) for _ in both]
    for turn in range(9):
        limit = r.choice([window, slots + 3, 2 * slots + 1])
        new = r.randint(1, limit + 1) if turn == 0 or (batch == 1 and r.random() < 0.3) else 1
        if turn == 5:  # back: of what is dropped nothing is left that a query may see
            dropped = several * -(-np.maximum(lengths - slots, 0) // several)
            lowest = [d + window - 1 if d else 1 for d in dropped]
            back = np.array([r.randint(min(low, n), n) for low, n in zip(lowest, lengths, strict=True)])
            again = several * -(-np.maximum(back - slots, 0) // several)
            lengths = np.where(again == dropped, back, lengths)
        if max(lengths) + new >= TABLE:
            break
        lengths = lengths + new
        if turn == 1 and batch > 1:
            lengths = np.array([r.randint(1, n) if n <= slots else n for n in lengths])  # shorter ones: rows are there
        shared_inputs = new_rows(before, drawn, batch, new)
        shared_inputs |= {"last": (lengths - 1).astype(np.int32), "total": np.array(max(lengths), np.int32)}
        given = [shared_inputs | own for own in held]
        found = [in_place(s, g) if shared else dict(sessions.run(s, g)) for s, g in zip(both, given, strict=True)]
        np.testing.assert_allclose(
            found[0]["y"], found[1]["y"], rtol=1e-4, atol=2e-5, err_msg=f"turn {turn}: {lengths}"
        )
        kept = lengths - several * -(-np.maximum(lengths - slots, 0) // several)
        for name in ("nk", "nv"):
            for row, n in enumerate(kept):
                a, b = (x[name][row, :, :n].astype(np.float64) for x in found)
                assert found[0][name].dtype != np.float32 or np.allclose(a, b, rtol=1e-5, atol=1e-6)
                assert found[0][name].dtype == np.float32 or (a != b).mean() < 0.02
        held = [{"pk": x["nk"], "pv": x["nv"]} for x in (found if held[0]["pk"].dtype == np.float32 else found[1:] * 2)]


@pytest.mark.parametrize("stored", ["float", "int8", "uint8"])
@pytest.mark.parametrize("seed", range(6))
def test_it_is_taken_apart_to_the_same(seed: int, stored: str) -> None:
    r = random.Random(f"{seed} {stored}")
    shared, window = r.choice([1, 2]), r.randint(1, 9)
    before = model(r, shared * r.choice([1, 2, 3]), shared, window, stored)
    imported = read(before)
    assert not any(n.op_type == "GroupQueryAttention" for n in imported.model.graph)
    both = (
        sessions.session(ir.to_proto(imported.model).SerializeToString()),
        sessions.session(before.SerializeToString()),
    )
    for _ in range(6):
        goes_on(before, both, r, window)


@pytest.mark.parametrize("stored", ["float", "uint8"])
def test_its_kernels_say_the_same(stored: str, cache: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if stored != "float":  # which are compiled for all instruction sets
        request.getfixturevalue("one_isa")
    r = random.Random(f"kernels {stored}")
    onnx.save(before := model(r, 4, 2, 5, stored, do_rotary=0), tmp_path / "model.onnx")
    out = tmp_path / "out"
    report = mi.optimize(tmp_path / "model.onnx", out, target="cpu", force=True, jobs=1, cache=str(cache))
    assert [f.name for f in report.replaced] == ["attention"]
    both = sessions.session(str(out / MODEL), library=out / LIBRARY), sessions.session(before.SerializeToString())
    for _ in range(20):
        goes_on(before, both, r, 5)
    assert mi.verify(out).passed


def test_one_with_a_bias_stays() -> None:
    """Which has a number for all positions."""
    r = random.Random(0)
    before = model(r, 2, 2, 4)
    node = before.graph.node[0]
    del node.input[9:]
    node.input.extend(["", "bias"])
    before.graph.input.append(helper.make_tensor_value_info("bias", 1, [1, 1, "s", "t"]))
    assert any(n.op_type == "GroupQueryAttention" for n in read(before).model.graph)
