"""Numbers less their mean are rounded as those that the mean is of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import mirage_cli as mi
from mirage_cli.runtime import sessions
from mirage_cli.search.finish.centering import _Forms, rounded_alike
from mirage_cli.search.mugraph.mugraph import PROLOGUE, BlockGraph, BlockOp, ThreadGraph, ThreadNode
from samples.sketch import Sketch
from tests.search.programs import normed

P = normed()
SQUARE = [ThreadNode("mul", (0, 0))]
FOURTH = [*SQUARE, ThreadNode("mul", (1, 1))]  #: (x x) (x x)
OTHERWISE = [*SQUARE, ThreadNode("mul", (0, 1)), ThreadNode("mul", (0, 2))]  #: x (x (x x))


def thread(inputs: tuple[str, ...], nodes: list[ThreadNode]) -> BlockOp:
    return BlockOp("", "thread", inputs, PROLOGUE, thread=ThreadGraph(len(inputs), tuple(nodes)))


def graph(term: list[ThreadNode], own: list[ThreadNode], stored: bool = False) -> BlockGraph:
    """own(x) - sum(term(x)) / 3, or `stored` term(x) in the place of own(x)."""
    b = Sketch(P, ("a", "b"))
    x = b.load("x1")
    t = b.add(thread((x,), term))
    mean = b.add(thread((b.sum(t, "c"),), [ThreadNode("const", (), 1 / 3), ThreadNode("mul", (0, 1))]))
    if stored:
        return b.graph(b.add(thread((t, mean), [ThreadNode("sub", (0, 1))])))
    moved = [ThreadNode(n.op, tuple(i + (i > 0) for i in n.inputs)) for n in own]  # behind the mean, which is operand 1
    return b.graph(b.add(thread((x, mean), [*moved, ThreadNode("sub", (1 + len(own), 1))])))


def texts(g: BlockGraph) -> list[str]:
    made = rounded_alike(g)
    assert [o.name for o in made.ops] == [o.name for o in g.ops]
    return [o.thread.text(["x", "m"][: len(o.inputs)]) for o in made.ops if o.thread is not None]


def test_the_difference_reads_what_is_summed() -> None:
    for own in (FOURTH, OTHERWISE):
        first, _, last = texts(graph(FOURTH, own))
        assert first == "rounded(mul(mul(x, x), mul(x, x)))"
        assert last == f"sub({first}, m)"
    first, _, last = texts(graph(OTHERWISE, FOURTH))
    assert last == f"sub({first}, m)"
    assert texts(graph(FOURTH, [], stored=True))[0] == "rounded(mul(mul(x, x), mul(x, x)))"


def test_what_is_not_summed_or_no_product_stays() -> None:
    for term, own in ((FOURTH, SQUARE), ([ThreadNode("add", (0, 0))], [ThreadNode("add", (0, 0))])):
        g = graph(term, own)
        assert rounded_alike(g) == g


def test_equal_forms_of_long_chains() -> None:
    """Sixty squarings are 2^60 factors, which are counted and not written out."""
    nodes = [ThreadNode("mul", (k, k)) for k in range(60)]
    forms = _Forms()
    assert forms.of(thread(("x",), nodes)) == forms.of(thread(("x",), nodes))
    more = [*nodes[:59], ThreadNode("mul", (0, 59)), ThreadNode("mul", (59, 60))]
    assert forms.of(thread(("x",), more))[-1] != forms.of(thread(("x",), nodes))[-1]


@pytest.mark.parametrize("power", ["q = Mul(s, s)", "t = Mul(s, x) q = Mul(t, x)"], ids=["squared", "one by one"])
def test_layer_norms_of_equal_powers_are_zero(power: str, tmp_path: Path) -> None:
    """Whose numbers are rounded, and divided by the root of epsilon where anything is left of them."""
    text = f"""<ir_version: 10, opset_import: ["" : 23]> g (float[33, 3] x) => (float[33, 3] y)
        <float[3] w = {{1, 1, 1}}, float[3] b = {{0, 0, 0}}> {{
            s = Mul(x, x) {power} y = LayerNormalization <axis = 1, epsilon = 1e-5> (q, w, b)
        }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    mi.optimize(str(tmp_path / "m.onnx"), str(tmp_path / "out"), target=["cpu"], force=True)
    session = sessions.session(tmp_path / "out" / "model.onnx", tmp_path / "out" / "libmirage.so")
    for size in (1, 10, 100):
        rows = np.random.default_rng(size).uniform(1, 2, (33, 1)).astype(np.float32) * size
        assert not sessions.run(session, {"x": np.repeat(rows, 3, axis=1)})["y"].any()
