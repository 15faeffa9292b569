"""Operators that return grown caches beside their result: fragments take their place, caches are computed apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from mirage_cli.checks import derivation, stated_program
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.optimization import coverage
from mirage_cli.optimization.task import group_fragments, regions_of, tensor_names
from mirage_cli.options.options import Options
from mirage_cli.patching import patch
from tests.frontends.models import parsed, read, run
from tests.optimized import anew

pytestmark = pytest.mark.usefixtures("one_isa")

ONNX = '<ir_version: 10, opset_import: ["" : 23]>'
HEADS = "q_num_heads = 4, kv_num_heads = 2"


def model(head: str, inputs: str, outputs: str, call: str) -> onnx.ModelProto:
    return parsed(f"{head} g ({inputs}) => ({outputs}) {{ y, ck, cv = {call} }}")


def flat(rows: str, past: str, total: str, wide: int = 64) -> tuple[str, str]:
    """Inputs and outputs with heads in one dimension; caches have a dimension of their own for them."""
    inputs = f"float[2,{rows},{wide}] q, float[2,{rows},32] k, float[2,{rows},32] v"
    cached = f", float[2,2,{past},16] pk, float[2,2,{past},16] pv" if past else ""
    return inputs + cached, f"float[2,{rows},{wide}] y, float[2,2,{total},16] ck, float[2,2,{total},16] cv"


FOUR = "float[2,4,3,16] q, float[2,2,3,16] k, float[2,2,3,16] v"
OUT = "float[2,4,3,16] y, float[2,2,8,16] ck, float[2,2,8,16] cv"
MODELS = {
    "heads apart": (ONNX, FOUR + ", float[2,2,5,16] pk, float[2,2,5,16] pv", OUT, "Attention(q, k, v, , pk, pv)"),
    "causal": (ONNX, *flat("3", "5", "8"), f"Attention <{HEADS}, is_causal = 1> (q, k, v, , pk, pv)"),
    "any past": (ONNX, *flat("1", "p", "t"), f"Attention <{HEADS}> (q, k, v, , pk, pv)"),
    "onnxruntime's own": (
        '<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>',
        *flat("3", "5", "8", 32),
        "com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, , , , pk, pv)",
    ),
    "no past": (ONNX, *flat("3", "", "3"), f"Attention <{HEADS}, is_causal = 1> (q, k, v)"),
}


def replaced(before: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, float], list[str]]:
    """The model with its fragments as operators, without a library: shares covered, and reasons for what is left."""
    imported = read(before)
    parts = partition(imported.graph, tensor_names(imported))
    work = group_fragments(parts.fragments, imported)
    assert {w.name for w in work} == {"attention"} and not any(w.failed for w in work)
    places = [o for w in work for o in w.occurrences]
    for w in work:
        w.replace = True
    shares = coverage.measure(imported, places)
    left = [group["reason"] for group in coverage.unchanged(imported, parts, work)]
    made = patch.patched(imported, [patch.Replacement(w.op_type, o.region) for w in work for o in w.occurrences], {})
    return made, shares, left


def drawn(m: onnx.ModelProto) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """Arrays for the inputs; symbolic dimensions are 7."""
    random = np.random.default_rng(3)
    dims = {i.name: [d.dim_value or 7 for d in i.type.tensor_type.shape.dim] for i in m.graph.input}
    return {name: random.standard_normal(d).astype(np.float32) for name, d in dims.items()}


@pytest.mark.parametrize("case", MODELS)
def test_the_attention_is_gone_and_its_caches_are_not(case: str) -> None:
    before = model(*MODELS[case])
    after, shares, left = replaced(before)
    assert shares["nodes"] == shares["flops"] == 1.0 and not left
    assert not {"Attention", "MultiHeadAttention"} & {n.op_type for n in after.graph.node}
    beside = {n.op_type for n in after.graph.node if n.domain != "mirage"}
    assert bool(beside) is (case != "heads apart"), beside  # there the operator stores the caches while it reads them
    assert [o.name for o in after.graph.output] == ["y", "ck", "cv"]
    onnx.checker.check_model(after)
    inputs = drawn(before)
    for ours, theirs in zip(run(after, inputs), run(before, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


STAYS = {
    "new rows of any number: where they begin cannot be counted from the end": (
        ONNX,
        *flat("s", "5", "t"),
        f"Attention <{HEADS}> (q, k, v, , pk, pv)",
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_these_stay(case: str) -> None:
    imported = read(model(*STAYS[case]))
    (work,) = group_fragments(partition(imported.graph, tensor_names(imported)).fragments, imported)
    assert work.failed and "computes the fragment and tensors that it reads" in work.reason


def test_two_layers_read_each_other_s_results() -> None:
    """The second attention reads what the first made and its caches: both are replaced."""
    inputs = FOUR.replace("float[2,2,3,16] k, float[2,2,3,16] v", "float[2,4,5,16] pk, float[2,4,5,16] pv")
    outputs = OUT.replace("[2,2,8,16]", "[2,4,8,16]") + ", float[2,4,11,16] dk, float[2,4,11,16] dv"
    text = f"""{ONNX} g ({inputs}) => ({outputs}) {{
        x, ck, cv = Attention (q, q, q, , pk, pv)
        y, dk, dv = Attention (x, x, x, , ck, cv)
    }}"""
    before = parsed(text)
    after, shares, _ = replaced(before)
    assert shares["nodes"] == 1.0 and "Attention" not in {n.op_type for n in after.graph.node}
    for ours, theirs in zip(run(after, drawn(before)), run(before, drawn(before)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_kernel_s_answers(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(*MODELS["causal"]), path)
    report = anew(str(path), tmp_path / "out", Options(target=("cpu",), force=True, cache=cache))
    assert [f.status for f in report.fragments] == ["replaced"]


UNREAD = {
    "onnx": (ONNX, *flat("3", "5", "8"), f"Attention <{HEADS}> (q, k, v, , pk, pv)"),
    "onnxruntime's own": MODELS["onnxruntime's own"],
}


@pytest.mark.parametrize("case", UNREAD)
def test_caches_that_nothing_reads_are_grown_all_the_same(case: str) -> None:
    """onnxruntime refuses an attention without them, or does not look at the past."""
    before = model(*UNREAD[case])
    del before.graph.output[1:]
    imported = read(before)
    region = regions_of(imported).of(["q", "k", "v", "pk", "pv"], ["y"])
    made = patch.patched(imported, [patch.Replacement("f_1", region)], {})
    assert [n.op_type for n in made.graph.node] == ["f_1"]
    inputs = drawn(before)
    np.testing.assert_allclose(run(made, inputs)[0], run(before, inputs)[0], rtol=1e-5, atol=1e-6)


STATED = MODELS | {
    "scores": (
        ONNX,
        flat("6", "12", "18", 32)[0],
        flat("6", "12", "18", 32)[1] + ", float[2,2,6,18] qk",
        "Attention <q_num_heads = 2, kv_num_heads = 2, qk_matmul_output_mode = 2> (q, k, v, , pk, pv)",
    ),
}


@pytest.mark.parametrize("case", ["causal", "onnxruntime's own", "scores"])
def test_the_patched_model_states_the_program(case: str) -> None:
    """As `mirage verify` reads it: the caches that are joined in the function are those beside it, in normal form and step by
    step."""
    head, given, results, call = STATED[case]
    names = "y, ck, cv, qk" if case == "scores" else "y, ck, cv"
    imported = read(parsed(f"{head} g ({given}) => ({results}) {{ {names} = {call} }}"))
    works = group_fragments(partition(imported.graph, tensor_names(imported)).fragments, imported)
    work = next(w for w in works if not w.failed)
    made = patch.patched(imported, [patch.Replacement(work.op_type, work.occurrences[0].region)], {})
    node = next(n for n in made.graph.node if n.domain == patch.DOMAIN)
    inputs = list(node.input)[: len(work.program.sources)]
    program = derivation.derived_program(read(made), inputs, node.output)
    assert program.key() == work.program.key()
    said = stated_program.statement(read(made), program, "key")
    assert said.passed, said.reason


@pytest.mark.parametrize("case", ["heads apart", "causal", "no past"])
def test_the_function_states_what_the_fragment_computes(case: str) -> None:
    """Read back from the patched model's function, as `mirage verify` reads it, the fragment is the same."""
    before = model(*MODELS[case])
    imported = read(before)
    work = group_fragments(partition(imported.graph, tensor_names(imported)).fragments, imported)
    (place,) = work[0].occurrences
    alone = read(ir.to_proto(patch.model_of(imported.model, place.region, "alone")))
    found = partition(alone.graph, tensor_names(alone))
    assert [f.key for f in found.fragments] == [place.fragment.key] and not found.left


@pytest.mark.parametrize(("sizes", "joined"), [((3, 5), True), ((5, 3), True), ((3, 4), False)])
def test_slices_joined_again_are_their_tensor(sizes: tuple[int, int], joined: bool) -> None:
    first, second = sizes
    text = f"""g (float[2,8] x) => (float[2,n] y) {{
        zero = Constant <value_ints = [0]> ()
        cut = Constant <value_ints = [{first}]> ()
        end = Constant <value_ints = [{first + second}]> ()
        axis = Constant <value_ints = [1]> ()
        a = Slice (x, zero, cut, axis)
        b = Slice (x, cut, end, axis)
        y = Concat <axis = 1> (a, b)
    }}"""
    imported = read(parsed(text))
    assert (imported.values["y"] == imported.values["x"]) is joined
    swapped = read(parsed(text.replace("(a, b)", "(b, a)")))
    assert swapped.values["y"] != swapped.values["x"]
