"""Functions that are another one on a stretch, at any scale: what is read, cut and brought into normal form gives what the
nodes mean, by an evaluation that shares no code with it.

Random chains of activations, norms, masks, casts and choices whose constants lie between 1e-6 and 1e6, in every spelling that
the vocabulary has; each fragment's program is compared on inputs around these constants, and proved to be what they state.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mirage_cli import frontends
from mirage_cli.checks import stated_program
from mirage_cli.frontends import Imported
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.fragments.lax_fragment import LaxFragment
from mirage_cli.lax.ir.program import evaluate_program
from mirage_cli.optimization.task import tensor_names
from mirage_cli.truth import evaluate

ROWS, COLUMNS = 6, 8
OPTIONS = frontends.Options()


@dataclass
class Writing:
    """A model in the making; `turns` are its constants, around which inputs are drawn."""

    random: random.Random
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    turns: list[float] = field(default_factory=list)

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def number(self, value: float, dtype: type = np.float32) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def turn(self) -> float:
        value = float(np.float32(self.random.choice([-1, 1]) * 10.0 ** self.random.uniform(-6, 6)))
        self.turns.append(value)
        return value

    def ends(self) -> tuple[float, float]:
        middle, width = self.turn(), 10.0 ** self.random.uniform(-3, 0.5)
        ends = (middle - width * abs(middle), middle + width * abs(middle))
        self.turns += ends
        return ends


Step = Callable[[Writing, str], str]


def erf_gelu(w: Writing, x: str) -> str:
    e = w.node("Erf", w.node("Div", x, w.number(2**0.5)))
    return w.node("Mul", w.node("Mul", x, w.node("Add", e, w.number(1))), w.number(0.5))


def tanh_gelu(w: Writing, x: str) -> str:
    cubed = w.node("Mul", w.node("Pow", x, w.number(3)), w.number(0.044715))
    t = w.node("Tanh", w.node("Mul", w.node("Add", x, cubed), w.number((2 / np.pi) ** 0.5)))
    return w.node("Mul", w.node("Mul", x, w.number(0.5)), w.node("Add", t, w.number(1)))


def exp_silu(w: Writing, x: str) -> str:
    low = w.node("Min", w.node("Neg", x), w.number(w.random.choice([20.0, 60.0, 1e9])))
    return w.node("Div", x, w.node("Add", w.node("Exp", low), w.number(1)))


def layer_norm(w: Writing, x: str) -> str:
    centred = w.node("Sub", x, w.node("ReduceMean", x, axes=[-1]))
    root = w.node(
        "Sqrt", w.node("Add", w.node("ReduceMean", w.node("Mul", centred, centred), axes=[-1]), w.number(1e-5))
    )
    return w.node("Div", centred, root)


def softmax(w: Writing, x: str) -> str:
    return w.node("Softmax", x, axis=-1)


def spelled_softmax(w: Writing, x: str) -> str:
    e = w.node("Exp", w.node("Sub", x, w.node("ReduceMax", x, axes=[-1])))
    total = w.node("ReduceSum", e, w.number(-1, np.int64)) if w.opset >= 13 else w.node("ReduceSum", e, axes=[-1])
    return w.node("Div", e, total)


def clip(w: Writing, x: str) -> str:
    low, high = w.ends()
    return w.node("Clip", x, w.number(low), w.number(high))


def where(w: Writing, x: str) -> str:
    test = w.node(w.random.choice(["Greater", "Less"]), x, w.number(w.turn()))
    other = w.node(w.random.choice(["Neg", "Tanh", "Abs", "Relu"]), x)
    return w.node("Where", test, *w.random.sample([x, other], 2))


def masked(w: Writing, x: str) -> str:
    rows = np.random.default_rng(w.random.randrange(1 << 30)).random((ROWS, COLUMNS)) < 0.7
    rows[:, 0] = True
    name = f"c{len(w.weights)}"
    w.weights[name] = rows
    return w.node("Where", name, x, w.number(w.random.choice([0.0, -1e4, -1e9, w.turn()])))


def cast(w: Writing, x: str) -> str:
    kind = w.random.choice(["INT32", "INT64", "INT8", "UINT8", "BOOL", "FLOAT16", "BFLOAT16", "DOUBLE"])
    small = w.node("Clip", x, w.number(-100), w.number(100)) if kind in ("INT8", "UINT8") else x
    small = w.node("Abs", small) if kind == "UINT8" else small
    back = w.node("Cast", w.node("Cast", small, to=getattr(TensorProto, kind)), to=TensorProto.FLOAT)
    return w.node(w.random.choice(["Sub", "Add", "Mul"]), x, back)


def power(w: Writing, x: str) -> str:
    exponent = w.random.choice([2.0, 3.0, 0.5, -0.5, -1.0, 1.5, -2.0, 0.0])
    return w.node("Pow", w.node("Add", w.node("Abs", x), w.number(1e-3)), w.number(exponent))


def more(w: Writing, x: str) -> str:
    return w.node("Mul", x, w.node("Add", w.node("Sigmoid", x), w.number(w.turn() * 1e-3)))


def plain(op: str, **attributes: float) -> Step:
    return lambda w, x: w.node(op, x, **attributes)


def by_turn(op: str, attribute: str) -> Step:
    return lambda w, x: w.node(op, x, **{attribute: abs(w.turn())})


STEPS: tuple[Step, ...] = (
    *(
        erf_gelu,
        tanh_gelu,
        exp_silu,
        layer_norm,
        softmax,
        spelled_softmax,
        clip,
        clip,
        where,
        where,
        masked,
        cast,
        cast,
        power,
        more,
    ),
    *(
        plain(op)
        for op in ("Sigmoid", "Tanh", "Relu", "Softplus", "Softsign", "Abs", "Neg", "Floor", "Ceil", "Round", "Sign")
    ),
    *(plain("HardSwish"), plain("HardSigmoid", alpha=0.1, beta=0.4), plain("Selu"), plain("Elu", alpha=0.7)),
    *(by_turn("LeakyRelu", "alpha"), by_turn("ThresholdedRelu", "alpha"), by_turn("Shrink", "lambd")),
    lambda w, x: w.node("Min", x, w.number(w.turn())),
    lambda w, x: w.node("Max", w.number(w.turn()), x),
    lambda w, x: w.node("Mul", x, w.number(w.turn())),
    lambda w, x: w.node("Add", x, w.number(w.turn())),
)


def written(seed: int) -> tuple[onnx.ModelProto, list[float]]:
    w = Writing(random.Random(seed), random.Random(seed).choice([14, 15, 17]))
    matrix = np.random.default_rng(seed).standard_normal((COLUMNS, COLUMNS)).astype(np.float32)
    w.weights["W"] = matrix
    x = y = w.node("MatMul", "x", "W") if seed % 2 else w.node("Identity", "x")
    for _ in range(w.random.randint(1, 4)):
        y = w.random.choice(STEPS)(w, y)
    if w.random.random() < 0.3:
        y = w.node("Mul", y, x)
    if w.random.random() < 0.5:
        y = w.node("MatMul", y, "W")
    graph = helper.make_graph(
        w.nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, COLUMNS])],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in w.weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", w.opset)], ir_version=8), w.turns


def compared(imported: Imported, fragments: list[LaxFragment], proto: onnx.ModelProto, x: NDArray[np.float32]) -> int:
    """How many fragments' programs give what the nodes mean on this input. Raises AssertionError for one that does not."""
    found = 0
    for fragment in fragments:
        p = fragment.program
        wanted = [s.name for s in p.sources if not s.constant] + [o.name for o in p.outputs]
        there = {n for node in proto.graph.node for n in node.output} | {"x"}
        if not set(wanted) <= there:
            continue
        values = evaluate.run(proto, {"x": x}, [n for n in wanted if n != "x"]) | {"x": x.astype(np.float64)}
        sources = {
            k: np.asarray(imported.constant(s.name) if s.constant else values[s.name]).astype(np.float64)
            for k, s in enumerate(p.sources)
        }
        with np.errstate(all="ignore"):
            (own,) = evaluate_program(p, Float64([a.name for a in p.axes]), sources)
        truth = values[p.outputs[0].name].astype(np.float64)
        if not np.isfinite(truth).all():
            continue
        scale = max(float(np.abs(truth).max(initial=0.0)), 1e-30)
        assert np.abs(own - truth).max() <= 3e-6 * scale, fragment.name
        found += 1
    return found


@pytest.mark.parametrize("part", range(4))
def test_no_function_is_taken_for_another(part: int, count: int = 100) -> None:
    found = 0
    for seed in range(part * count, (part + 1) * count):
        proto, turns = written(seed)
        copy = onnx.ModelProto.FromString(proto.SerializeToString())
        imported = from_proto(copy, OPTIONS)
        draw = np.random.default_rng(seed)
        inputs = [draw.standard_normal((ROWS, COLUMNS)) * s for s in (1.0, 30.0)]
        inputs += [t + draw.standard_normal((ROWS, COLUMNS)) * abs(t) * s for t in turns[:3] for s in (1.0, 1e-2)]
        fragments = partition(imported.graph, tensor_names(imported)).fragments
        for x in inputs:
            found += compared(imported, fragments, proto, x.astype(np.float32))
        for fragment in fragments:
            said = stated_program.statement(imported, fragment.program, str(seed))
            assert said.passed, (seed, said.reason)
    assert found > count  # nearly all of them are read
