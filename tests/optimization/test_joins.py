"""A decoder's attention behind its cache, as exporters write it: the grown cache is stored by what reads it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from mirage_cli.checks import kernel_check
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.ir.joints import Parts
from mirage_cli.lax.ir.parts import in_parts
from mirage_cli.optimization.task import group_fragments, tensor_names
from mirage_cli.runtime import sessions
from mirage_cli.verification.findings import VerifyOptions
from mirage_cli.verification.output_folder import read_model
from mirage_cli.verification.story import verify_folder
from tests.frontends.models import parsed, read
from tests.optimized import once

STEP = """g (float[2,4,{new},16] q, float[2,2,p,16] pk, float[2,2,p,16] pv, float[2,2,{new},16] k, float[2,2,{new},16] v)
    => (float[2,4,{new},16] y, float[2,2,t,16] ck, float[2,2,t,16] cv) {{
        ck = Concat <axis = 2> (pk, k)
        cv = Concat <axis = 2> (pv, v)
        kt = Transpose <perm = [0, 1, 3, 2]> (ck)
        rows = Reshape (q, shape)
        s = MatMul (rows, kt)
        scaled = Mul (s, factor)
        w = Softmax <axis = -1> (scaled)
        r = MatMul (w, cv)
        y = Reshape (r, back)
    }}"""
NEW, SIZES = 3, (0, 1, 70)


def step() -> onnx.ModelProto:
    """One call with a cache of any length."""
    weights = {"shape": [2, 2, 2 * NEW, 16], "back": [2, 4, NEW, 16]}
    shapes = {n: np.array(s, np.int64) for n, s in weights.items()}
    return parsed(STEP.format(new=NEW), **shapes, factor=np.float32(0.25))


def drawn(past: int) -> dict[str, NDArray[np.float32]]:
    """Arrays for its inputs."""
    random = np.random.default_rng(past)
    rows = {"q": (4, NEW), "pk": (2, past), "pv": (2, past), "k": (2, NEW), "v": (2, NEW)}
    return {n: random.standard_normal((2, *r, 16), np.float32) for n, r in rows.items()}


@pytest.fixture
def folder(one_isa: None, shared_folder: Path, cache: Path) -> Path:
    """The output folder of the model, optimized for CPUs, beside the model."""
    place = shared_folder / "joins.onnx"

    def model() -> Path:
        onnx.save(step(), place)
        return place

    return once(shared_folder / "joins", model, cache)


def test_the_operator_stores_the_caches(folder: Path) -> None:
    (node,) = read_model(folder / "model.onnx").graph.node
    assert set(node.input[:5]) == {"q", "pk", "pv", "k", "v"} and {*node.output} == {"y", "ck", "cv"}
    original, alone = (sessions.session(m) for m in (folder.with_name("joins.onnx"), folder / "model.onnx"))
    with_library = sessions.session(folder / "model.onnx", folder / "libmirage.so")
    for past in SIZES:
        inputs = drawn(past)
        wanted, plain, made = (sessions.run(s, inputs) for s in (original, alone, with_library))
        for name, exact in wanted.items():
            np.testing.assert_array_equal(plain[name], exact)
            np.testing.assert_allclose(made[name], exact, rtol=1e-5, atol=1e-6 if name == "y" else 0)


def test_it_is_proved_again(folder: Path) -> None:
    found = verify_folder(folder, VerifyOptions())
    assert found.passed, [f for f in found.findings if not f.passed]
    assert {"ck", "cv"} <= {c.output for c in found.outputs}


def test_a_check_sees_what_is_stored() -> None:
    """Kernels whose wholes differ from the parts in a single element are less accurate than the original."""
    imported = read(step())
    (work,) = group_fragments(partition(imported.graph, tensor_names(imported)).fragments, imported)
    program = work.program
    sizes = dict.fromkeys(program.symbols, 9)
    arrays = [
        np.ones([d if isinstance(d, int) else sizes[str(d)] for d in s.dims], np.float32) for s in program.sources
    ]
    own = kernel_check.exact_runner(program)

    def storing(odd: int) -> kernel_check.Runner:
        def run(given: Sequence[NDArray[np.float32]], symbols: object) -> list[NDArray[np.float32]]:
            wholes = [given[k].copy() for k in in_parts(program)]
            if odd >= 0:
                wholes[odd].flat[-1] = np.nextafter(np.float32(1), np.float32(2))
            return [*own(given, sizes), *wholes]

        return run

    case = kernel_check.case_of(program, kernel_check.TYPICAL, arrays, sizes, own)
    assert kernel_check.judge(program, storing(-1), [case]).passed
    for odd in range(2):
        verdict = kernel_check.judge(program, storing(odd), [case])
        assert not verdict.passed and "stored of two parts" in verdict.reason


@pytest.mark.parametrize("inputs", [["k", "pk"], ["pk", "v"], ["pk", "pk"]])
def test_another_joint_is_refuted(inputs: list[str], folder: Path, tmp_path: Path) -> None:
    """A function that joins something else is not what the operator does."""
    copy = Path(shutil.copytree(folder, tmp_path / "out"))
    model = onnx.load(copy / "model.onnx")
    join = next(n for n in model.functions[0].node if n.output[0] == "ck")
    join.input[:] = inputs
    onnx.save(model, copy / "model.onnx")
    found = verify_folder(copy, VerifyOptions())
    assert "function" in {f.check for f in found.findings if not f.passed}


def test_a_file_of_another_joint_is_refuted(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "out"))
    (path,) = (copy / "mugraphs").glob("*.json")
    path.write_text(
        path.read_text().replace(f'"second":{NEW}', '"second":2').replace(f'"second": {NEW}', '"second": 2')
    )
    found = verify_folder(copy, VerifyOptions())
    assert "model" in {f.check for f in found.findings if not f.passed}


def joins_of(text: str, **weights: object) -> list[tuple[Parts, ...]]:
    """The joints of each fragment's sources."""
    imported = read(parsed(text, **weights))
    found = partition(imported.graph, tensor_names(imported)).fragments
    return [tuple(s.parts for s in f.program.sources if s.parts) for f in found]


W = np.eye(16, dtype=np.float32)
LEFT = {
    "nobody else wants the whole": "g (float[1,5,16] a, float[1,2,16] b) => (float[1,7,16] y) "
    "{ c = Concat <axis = 1> (a, b) y = MatMul (c, w) }",
    "the second part is of any length": "g (float[1,5,16] a, float[1,n,16] b) => (float[1,t,16] y, float[1,t,16] c) "
    "{ c = Concat <axis = 1> (a, b) y = MatMul (c, w) }",
    "three parts": "g (float[1,5,16] a, float[1,2,16] b) => (float[1,9,16] y, float[1,9,16] c) "
    "{ c = Concat <axis = 1> (a, b, b) y = MatMul (c, w) }",
    "what it reads is computed of the whole": "g (float[1,5,16] a, float[1,2,16] b) => (float[1,7,16] y, float[1,7,16] c) "
    "{ c = Concat <axis = 1> (a, b) s = CumSum (c, axis) d = MatMul (c, w) y = Add (d, s) }",
    "a part is a weight": "g (float[1,2,16] b) => (float[1,7,16] y, float[1,7,16] c) "
    "{ c = Concat <axis = 1> (first, b) y = MatMul (c, w) }",
}  # fmt: skip


@pytest.mark.parametrize("why", LEFT)
def test_these_are_joined_by_others(why: str) -> None:
    weights = {"w": W, "axis": np.array([1], np.int64), "first": np.ones((1, 5, 16), np.float32)}
    used = {n: a for n, a in weights.items() if n in re.findall(r"\w+", LEFT[why])}
    assert not any(joins_of(LEFT[why], **used))


def test_the_first_of_two_stores_it() -> None:
    text = """g (float[1,5,16] a, float[1,2,16] b) => (float[1,7,16] y, float[1,7,16] z, float[1,7,16] c) {
        c = Concat <axis = 1> (a, b) d = MatMul (c, w) y = Sin (d) e = CumSum (y, axis) f = Add (e, c) z = MatMul (f, w) }"""
    found = joins_of(text, w=W, axis=np.array([1], np.int64))
    assert [len(f) for f in found] == [1, 0] and found[0] == (Parts(1, 2, ("a", "b")),)
