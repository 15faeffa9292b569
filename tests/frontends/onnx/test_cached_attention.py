"""GroupQueryAttention behind a cache of any length, taken apart: the same answers in onnxruntime, form by form, for prompts
and steps of sequences of different lengths, with past and present apart and in one buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import mirage_cli as mi
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.runtime import sessions
from mirage_cli.truth import evaluate
from tests.frontends.models import noise, parsed, read

HEADS, SHARED, SIZE = 4, 2, 32
WHOLE = 'k_quant_type = "{0}", v_quant_type = "{0}", kv_cache_bit_width = 8'
FOUR = WHOLE.replace("8", "4")
FORMS = {
    "plain": "",
    "rotary": "do_rotary = 1",
    "interleaved": "do_rotary = 1, rotary_interleaved = 1",
    "partly turned": "do_rotary = 1",
    "packed": "do_rotary = 1",
    "at given places": "do_rotary = 1",
    "soft cap": "softcap = 2.0",
    "window": "local_window_size = 2",
    "scale": "scale = 0.7, local_window_size = 3, softcap = 1.5",
    "smooth": "smooth_softmax = 1",
    "sink": "do_rotary = 1, softcap = 1.5, local_window_size = 3",
    "bias": "softcap = 1.5, local_window_size = 3",
    "bias of heads": "smooth_softmax = 1",
    "norms": "do_rotary = 1",
    "packed norms": "qk_norm_epsilon = 0.1, k_norm_epsilon = 0.7",
    "int8": WHOLE.format("PER_TENSOR"),
    "int8 by channels": "do_rotary = 1, " + WHOLE.format("PER_CHANNEL"),
    "int4": FOUR.format("PER_TENSOR"),
    "int4 by channels": "do_rotary = 1, scale = 0.4, softcap = 1.5, local_window_size = 40, "
    + FOUR.format("PER_CHANNEL"),
    "float8": WHOLE.format("PER_TENSOR"),
    "float8 by channels": "do_rotary = 1, local_window_size = 3, " + WHOLE.format("PER_CHANNEL"),
    "everything": "do_rotary = 1, scale = 0.4, softcap = 1.5, local_window_size = 40, " + WHOLE.format("PER_CHANNEL"),
}
BIASES = {"int4 by channels": (1, 1), "bias": (1, 1), "bias of heads": ("b", HEADS), "everything": (1, HEADS)}
PACKED = ("packed", "packed norms", "int8 by channels", "int4 by channels", "float8 by channels", "everything")
#: element types of caches that have scales
STORED = dict.fromkeys(("int8", "int8 by channels", "everything"), "int8")
STORED |= dict.fromkeys(("int4", "int4 by channels"), "uint8")
STORED |= dict.fromkeys(("float8", "float8 by channels"), "float8e4m3fn")
NORMS = ("norms", "packed norms")
#: which onnxruntime's CPU has not: they are judged by float64
BY_TRUTH = (*NORMS, *(form for form, kind in STORED.items() if kind == "float8e4m3fn"))
NUMPY: dict[str, Any] = {"int8": np.int8, "uint8": np.uint8, "float8e4m3fn": ml_dtypes.float8_e4m3fn}
#: the operator's other inputs: which forms have them
OTHERS = {
    "at": ("at given places",),
    "bias": BIASES,
    "sink": ("sink", "int4 by channels", "everything"),
    "ks": STORED,
    "vs": STORED,
    "gq": NORMS,
    "gk": NORMS,
}
#: new tokens, the filled positions of each sequence with them, the whole length
LONG = ((1, [300, 17, 211], 300), (150, [150, 60], 150), (33, [310], 310))
RUNS = {"prompt": (5, [5, 3], 5), "step": (1, [7, 4], 7), "one token": (1, [1, 1], 1), "more": (3, [8], 8)}


def model(form: str, layers: int = 1, sizes: tuple[str, str, str] = ("s", "p", "r")) -> Any:
    """A model of attentions, one beside the other; `sizes`: new tokens, and the positions of past and present caches."""
    new, past, present = sizes
    told = FORMS[form]
    attributes = ", ".join(filter(None, [f"num_heads = {HEADS}, kv_num_heads = {SHARED}", told]))
    packed, tables = form in PACKED, ("cos", "sin") if "do_rotary" in told else ("", "")
    wide = HEADS + 2 * SHARED if packed else HEADS
    cache = f"{STORED.get(form, 'float')}[b,{SHARED}"
    opset = 19 if cache.startswith("float8") else 18
    types = {"q": f"float[b,{new},{wide * SIZE}]"} | dict.fromkeys(
        () if packed else "kv", f"float[b,{new},{SHARED * SIZE}]"
    )
    row = SIZE // 2 if STORED.get(form) == "uint8" else SIZE
    types |= dict.fromkeys(("pk", "pv"), f"{cache},{past},{row}]") | {"last": "int32[b]", "total": "int32"}
    types |= {"at": "int64[b,s]"} if form in OTHERS["at"] else {}
    types |= {"bias": "float[{},{},s,t]".format(*BIASES[form])} if form in BIASES else {}
    named = [*("qkv" if not packed else ("q", "", "")), "pk", "pv", "last", "total", *tables]
    named += [name if form in forms else "" for name, forms in OTHERS.items()]
    nodes, outputs = [], []
    for n in range(layers) if layers > 1 else [""]:
        kind = f"com.microsoft.GroupQueryAttention <{attributes}>"
        nodes.append(f"y{n}, nk{n}, nv{n} = {kind} ({', '.join(named).rstrip(', ')})")
        outputs += [f"float[b,{new},{HEADS * SIZE}] y{n}", *(f"{cache},{present},{row}] n{c}{n}" for c in "kv")]
    text = f"""<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1]>
    g ({", ".join(f"{kind} {name}" for name, kind in types.items())}) => ({", ".join(outputs)}) {{
        {" ".join(nodes)}
    }}"""
    half = SIZE // 4 if form == "partly turned" else SIZE // 2
    angles = np.outer(np.arange(320), 0.3 ** np.arange(half)).astype(np.float32)
    weights = {"cos": np.cos(angles), "sin": np.sin(angles), "sink": noise(HEADS)}
    scales = 0.01 + np.abs(noise(2, *((1, SHARED, 1, SIZE) if "PER_CHANNEL" in told else (1,)))) / 40
    scales = scales * 8 if STORED.get(form) == "uint8" else scales
    weights |= {"ks": scales[0], "vs": scales[1], "gq": noise(SIZE), "gk": noise(2, SIZE)[1]}
    return parsed(text, **{n: w for n, w in weights.items() if n in named})


def inputs(form: str, new: int, lengths: list[int], total: int, room: int) -> dict[str, NDArray[Any]]:
    """Arrays for it; caches of so many positions hold anything behind what is filled."""
    batch = len(lengths)
    wide = {"q": HEADS} | ({"q": HEADS + 2 * SHARED} if form in PACKED else {"k": SHARED, "v": SHARED})
    arrays: dict[str, NDArray[Any]] = {
        n: noise(batch, new, h * SIZE) * (k + 1) for k, (n, h) in enumerate(wide.items())
    }
    for k, name in enumerate(("pk", "pv")):
        arrays[name] = noise(batch, SHARED, room, SIZE) * (k + 1)
        if STORED.get(form) == "uint8":
            arrays[name] = np.random.default_rng(k).integers(0, 256, (batch, SHARED, room, SIZE // 2), np.uint8)
            continue
        if form in STORED:
            arrays[name] = np.clip(arrays[name] * 50, -128, 127).astype(NUMPY[STORED[form]])
            continue
        for row, length in enumerate(lengths):
            arrays[name][row, :, max(length - new, 0) :] = np.nan
    arrays |= {"last": np.array(lengths, np.int32) - 1, "total": np.array(total, np.int32)}
    if form in BIASES:
        arrays["bias"] = noise(*(batch if d == "b" else d for d in BIASES[form]), new, total)
        if form == "bias of heads":  # which may hide every key but the sink
            arrays["bias"][arrays["bias"] < 0.5] = -np.inf
    if form == "at given places":
        first = 0 if new == total else np.arange(batch)[:, None]  # of a prompt onnxruntime reads the first row's only
        arrays["at"] = 3 + first + np.broadcast_to(np.arange(new), (batch, new))
    return arrays


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("form", FORMS)
def test_it_is_taken_apart_to_the_same(form: str, run: str) -> None:
    before = model(form)
    imported = read(before)
    assert not any(n.op_type == "GroupQueryAttention" for n in imported.model.graph)
    ours = sessions.session(ir.to_proto(imported.model).SerializeToString())
    theirs = before if form in BY_TRUTH else sessions.session(before.SerializeToString())
    for shared in (False, True):
        same(form, (ours, theirs), RUNS[run], shared)


@pytest.mark.parametrize("sizes", [("s", "c", "c"), ("1", "12", "12"), ("1", "6", "7")], ids="-".join)
def test_sizes_that_the_model_knows(sizes: tuple[str, str, str]) -> None:
    """Caches that keep their size, and steps of fixed sizes: how much is filled is known at run time all the same."""
    before = model("rotary", sizes=sizes)
    imported = read(before)
    assert not any(n.op_type == "GroupQueryAttention" for n in imported.model.graph)
    both = (
        sessions.session(ir.to_proto(imported.model).SerializeToString()),
        sessions.session(before.SerializeToString()),
    )
    same("rotary", both, RUNS["step"], shared=sizes[1] == sizes[2])


@pytest.mark.parametrize(
    ("form", "name", "value"),
    [("int8", "kv_cache_bit_width", 4), ("int4", "kv_cache_bit_width", 8)],
)
def test_other_caches_stay(form: str, name: str, value: int) -> None:
    """Their positions hold something else."""
    before = model(form)
    (node,) = before.graph.node
    others = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*others, onnx.helper.make_attribute(name, value)])
    assert any(n.op_type == "GroupQueryAttention" for n in read(before).model.graph)


@pytest.mark.usefixtures("one_isa")
@pytest.mark.parametrize("form", ["everything", "int4 by channels", "float8 by channels"])
def test_its_kernel_says_the_same(form: str, cache: Path, tmp_path: Path) -> None:
    onnx.save(before := model(form), tmp_path / "model.onnx")
    out = tmp_path / "out"
    report = mi.optimize(tmp_path / "model.onnx", out, target="cpu", force=True, jobs=1, cache=str(cache))
    assert [f.name for f in report.replaced] == ["attention"]
    theirs = before if form in BY_TRUTH else sessions.session(before.SerializeToString())
    both = sessions.session(str(out / MODEL), library=out / LIBRARY), theirs
    for run in (*RUNS.values(), *LONG):
        for shared in (False, True):
            same(form, both, run, shared)
    np.savez(tmp_path / "inputs.npz", **inputs(form, *RUNS["step"], RUNS["step"][2] - 1))
    verified = mi.verify(out, inputs=str(tmp_path / "inputs.npz"))
    assert verified.passed
    assert sum("against float64" in f.text for f in verified.findings if f.check == "outputs") == 2 * 3
    assert any("stand in" in note for note in verified.notes) == (form in BY_TRUTH)


def same(form: str, both: tuple[Any, Any], run: tuple[int, list[int], int], shared: bool) -> None:
    """Assert that two sessions give the same, where it has a meaning."""
    new, lengths, total = run
    room = total + 5 if shared else 0 if total == new else total - new
    arrays = inputs(form, new, lengths, total, room)
    own, wanted = (results(s, arrays, shared) for s in both)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(own["y"][row, :length], wanted["y"][row, :length], rtol=1e-4, atol=1e-5)
        for name in ("nk", "nv"):
            caches = own[name][row, :, :length], wanted[name][row, :, :length]
            if form not in STORED:
                np.testing.assert_allclose(*caches, atol=1e-6, rtol=1e-5)
                continue
            steps = np.abs(np.subtract(*(whole(x.astype(NUMPY[STORED[form]])) for x in caches)))
            assert steps.max() <= 1 and (steps > 0).mean() < 0.01  # a quotient may be near a half


def whole(cache: NDArray[Any]) -> NDArray[Any]:
    """The numbers of a cache with scales as integers, one step apart where the next one is."""
    if cache.dtype == np.uint8:
        return np.stack([cache & 15, cache >> 4], -1).astype(int)
    return cache.view(np.int8).astype(int)


def results(session: Any, arrays: dict[str, NDArray[Any]], shared: bool) -> dict[str, NDArray[Any]]:
    """The results of a session; of a model, in float64."""
    if isinstance(session, onnx.ModelProto):
        return evaluate.run(session, arrays)
    return in_place(session, arrays) if shared else dict(sessions.run(session, arrays))


def in_place(session: Any, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The results of a run whose caches are written where they lie."""

    bound = session.io_binding()
    for name, a in arrays.items():
        if not name.startswith("p"):
            bound.bind_cpu_input(name, a)
    bound.bind_output("y", "cpu")
    caches = {f"n{name[1]}": arrays[name].copy() for name in ("pk", "pv")}
    for name, cache in caches.items():
        value = sessions.to_ort(cache)  # of the same memory
        bound.bind_ortvalue_input(f"p{name[1]}", value)
        bound.bind_ortvalue_output(name, value)
    session.run_with_iobinding(bound)
    return {"y": bound.get_outputs()[0].numpy(), **caches}


@pytest.mark.usefixtures("one_isa")
def test_a_product_behind_attention_that_stays(cache: Path, tmp_path: Path) -> None:
    """It reads what the operator gives, no part of it."""
    before = model("packed")
    graph = before.graph
    product = onnx.helper.make_node("MatMul", ["y", "w"], ["z"], "projection")
    graph.node.append(product)
    graph.initializer.append(onnx.numpy_helper.from_array(noise(HEADS * SIZE, 48), "w"))
    graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["b", "s", 48]))
    del graph.output[0]
    onnx.save(before, tmp_path / "model.onnx")
    out = tmp_path / "out"
    report = mi.optimize(
        tmp_path / "model.onnx", out, target="cpu", force=True, jobs=1, cache=str(cache), only=["projection"]
    )
    assert [f.name for f in report.replaced] == ["linear"]
    assert [n.op_type for n in onnx.load(out / MODEL).graph.node if n.domain == "com.microsoft"] == [
        "GroupQueryAttention"
    ]
    both = sessions.session(str(out / MODEL), library=out / LIBRARY), sessions.session(str(tmp_path / "model.onnx"))
    for new, lengths, total in RUNS.values():
        own, wanted = (dict(sessions.run(s, inputs("packed", new, lengths, total, total - new))) for s in both)
        for row, length in enumerate(lengths):
            np.testing.assert_allclose(own["z"][row, :length], wanted["z"][row, :length], rtol=1e-4, atol=1e-4)
