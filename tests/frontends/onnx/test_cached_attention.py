"""GroupQueryAttention behind a cache of any length, taken apart: the same answers in onnxruntime, form by form, for prompts
and steps of sequences of different lengths, with past and present apart and in one buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import mirage_cli as mi
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.runtime import sessions
from tests.frontends.models import noise, parsed, read

HEADS, SHARED, SIZE = 4, 2, 32
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
    "everything": "do_rotary = 1, scale = 0.4, softcap = 1.5, local_window_size = 40",
}
BIASES = {"bias": (1, 1), "bias of heads": ("b", HEADS)}
PACKED = ("packed", "everything")
#: new tokens, the filled positions of each sequence with them, the whole length
LONG = ((1, [300, 17, 211], 300), (150, [150, 60], 150), (33, [310], 310))
RUNS = {"prompt": (5, [5, 3], 5), "step": (1, [7, 4], 7), "one token": (1, [1, 1], 1), "more": (3, [8], 8)}


def model(form: str, layers: int = 1) -> Any:
    """A model of attentions, one beside the other."""
    told = FORMS[form]
    attributes = ", ".join(filter(None, [f"num_heads = {HEADS}, kv_num_heads = {SHARED}", told]))
    packed = form in PACKED
    queries = f"float[b,s,{(HEADS + 2 * SHARED if packed else HEADS) * SIZE}] q"
    apart = "" if packed else "".join(f", float[b,s,{SHARED * SIZE}] {n}" for n in "kv")
    caches = "".join(f", float[b,{SHARED},p,{SIZE}] {n}" for n in ("pk", "pv"))
    places = ", int64[b,s] at" if form == "at given places" else ""
    tables = ", cos, sin" if "do_rotary" in told else ""
    tables += {"at given places": ", at", "sink": ", , , sink"}.get(form, ", , , , bias" if form in BIASES else "")
    places += ", float[{},{},s,t] bias".format(*BIASES[form]) if form in BIASES else ""
    numbers = range(layers) if layers > 1 else [""]
    outputs = ", ".join(
        f"float[b,s,{HEADS * SIZE}] y{n}, float[b,{SHARED},r,{SIZE}] nk{n}, float[b,{SHARED},r,{SIZE}] nv{n}"
        for n in numbers
    )
    operands = f"q, {' , ' if packed else 'k, v'}, pk, pv, last, total{tables}"
    kind = f"com.microsoft.GroupQueryAttention <{attributes}>"
    nodes = "\n".join(f"y{n}, nk{n}, nv{n} = {kind} ({operands})" for n in numbers)
    text = f"""<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
    g ({queries}{apart}{caches}, int32[b] last, int32 total{places}) =>
      ({outputs}) {{
        {nodes}
    }}"""
    half = SIZE // 4 if form == "partly turned" else SIZE // 2
    angles = np.outer(np.arange(320), 0.3 ** np.arange(half)).astype(np.float32)
    weights = {"cos": np.cos(angles), "sin": np.sin(angles), "sink": noise(HEADS)}
    return parsed(text, **{n: w for n, w in weights.items() if f" {n}" in tables})


def inputs(form: str, new: int, lengths: list[int], total: int, room: int) -> dict[str, NDArray[Any]]:
    """Arrays for it; caches of so many positions hold anything behind what is filled."""
    batch = len(lengths)
    wide = {"q": HEADS} | ({"q": HEADS + 2 * SHARED} if form in PACKED else {"k": SHARED, "v": SHARED})
    arrays: dict[str, NDArray[Any]] = {
        n: noise(batch, new, h * SIZE) * (k + 1) for k, (n, h) in enumerate(wide.items())
    }
    for k, name in enumerate(("pk", "pv")):
        arrays[name] = noise(batch, SHARED, room, SIZE) * (k + 1)
        for row, length in enumerate(lengths):
            arrays[name][row, :, max(length - new, 0) :] = np.nan
    arrays |= {"last": np.array(lengths, np.int32) - 1, "total": np.array(total, np.int32)}
    if form in BIASES:
        arrays["bias"] = noise(*(batch if d == "b" else d for d in BIASES[form]), new, total)
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
    ours, theirs = (sessions.session(m.SerializeToString()) for m in (ir.to_proto(imported.model), before))
    for shared in (False, True):
        same(form, (ours, theirs), RUNS[run], shared)


def test_its_kernel_says_the_same(cache: Path, tmp_path: Path) -> None:
    form = "everything"
    onnx.save(model(form), tmp_path / "model.onnx")
    out = tmp_path / "out"
    report = mi.optimize(tmp_path / "model.onnx", out, target="cpu", force=True, jobs=1, cache=str(cache))
    assert [f.name for f in report.replaced] == ["attention"]
    both = sessions.session(str(out / MODEL), library=out / LIBRARY), sessions.session(str(tmp_path / "model.onnx"))
    for run in (*RUNS.values(), *LONG):
        for shared in (False, True):
            same(form, both, run, shared)
    assert mi.verify(out).passed


def same(form: str, both: tuple[Any, Any], run: tuple[int, list[int], int], shared: bool) -> None:
    """Assert that two sessions give the same, where it has a meaning."""
    new, lengths, total = run
    room = total + 5 if shared else 0 if total == new else total - new
    arrays = inputs(form, new, lengths, total, room)
    own, wanted = (in_place(s, arrays) if shared else dict(sessions.run(s, arrays)) for s in both)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(own["y"][row, :length], wanted["y"][row, :length], rtol=1e-4, atol=1e-5)
        for name in ("nk", "nv"):
            caches = own[name][row, :, :length], wanted[name][row, :, :length]
            np.testing.assert_allclose(*caches, rtol=1e-5, atol=1e-6)


def in_place(session: Any, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The results of a run whose caches are written where they lie."""
    import onnxruntime as ort

    bound = session.io_binding()
    for name, a in arrays.items():
        if not name.startswith("p"):
            bound.bind_cpu_input(name, a)
    bound.bind_output("y", "cpu")
    caches = {f"n{name[1]}": arrays[name].copy() for name in ("pk", "pv")}
    for name, cache in caches.items():
        value = ort.OrtValue.ortvalue_from_numpy(cache)  # of the same memory
        bound.bind_ortvalue_input(f"p{name[1]}", value)
        bound.bind_ortvalue_output(name, value)
    session.run_with_iobinding(bound)
    return {"y": bound.get_outputs()[0].numpy(), **caches}
