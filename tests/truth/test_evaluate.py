"""What holds for whole models: order, domains, functions, sub-graphs, limits, rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper

from mirage_cli.errors import OutOfTime, Refused
from mirage_cli.truth import evaluate
from tests.truth.case import by_onnxruntime, same

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def value(name: str, kind: int, shape: Sequence[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    *,
    weights: Mapping[str, np.ndarray] | None = None,
    functions: Sequence[FunctionProto] = (),
    opsets: Sequence[tuple[str, int]] = (("", 21),),
    kinds: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model; inputs are arrays, whose types and shapes are declared (types as in `kinds`, where they are there)."""
    declared = [
        value(name, (kinds or {}).get(name, helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype)), np.shape(x))
        for name, x in inputs.items()
    ]
    kept = [numpy_helper.from_array(x, name) for name, x in (weights or {}).items()]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(list(nodes), "graph", declared, results, kept)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def f(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def agrees(one: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> None:
    """Assert that onnxruntime and the program give the same."""
    got = evaluate.run(one, feeds)
    for output, wanted in zip(one.graph.output, by_onnxruntime(one, feeds), strict=True):
        same(got[output.name], wanted)


def test_values_are_float64_and_integers_stay_what_they_are() -> None:
    one = model([node("Div", ["x", "y"], ["z"]), node("Shape", ["x"], ["s"])], {"x": f(1), "y": f(3)}, ["z", "s"])
    got = evaluate.run(one, {"x": f(1), "y": f(3)})
    assert got["z"].dtype == np.float64
    assert got["z"][0] == 1 / 3
    assert got["s"].dtype == np.int64


def test_only_what_is_asked_for_is_evaluated() -> None:
    one = model(
        [node("Nonsense", ["x"], ["a"]), node("Neg", ["x"], ["b"]), node("Abs", ["b"], ["c"])], {"x": f(1)}, ["c"]
    )
    assert list(evaluate.run(one, {"x": f(2)}, ["b"])) == ["b"]
    assert [n.op_type for n, _ in evaluate.trace(one, {"x": f(2)})] == ["Neg", "Abs"]
    assert [n.op_type for n, _ in evaluate.trace(one, {"x": f(2)}, ["b"])] == ["Neg"]


def test_inputs_and_weights_can_be_asked_for() -> None:
    one = model([node("Neg", ["x"], ["y"])], {"x": f(1)}, ["y"], weights={"w": f(5)})
    got = evaluate.run(one, {"x": f(2)}, ["w", "x"])
    assert (got["w"][0], got["x"][0]) == (5.0, 2.0)
    with pytest.raises(Refused, match="'nothing'"):
        evaluate.run(one, {"x": f(2)}, ["nothing"])


def test_nodes_are_put_in_order() -> None:
    nodes = [node("Abs", ["b"], ["c"]), node("Add", ["a", "a"], ["b"]), node("Neg", ["x"], ["a"])]
    assert evaluate.run(model(nodes, {"x": f(1)}, ["c"]), {"x": f(3)})["c"][0] == 6


def test_a_circle_is_refused() -> None:
    one = model([node("Abs", ["b"], ["c"]), node("Neg", ["c"], ["b"])], {}, ["c"])
    with pytest.raises(Refused, match="circle"):
        evaluate.run(one, {})


def test_a_name_made_twice_is_refused() -> None:
    one = model([node("Abs", ["x"], ["c"]), node("Neg", ["x"], ["c"])], {"x": f(1)}, ["c"])
    with pytest.raises(Refused, match="made twice"):
        evaluate.run(one, {"x": f(1)})


def test_a_long_chain_needs_no_recursion() -> None:
    nodes = [node("Neg", [f"x{i}"], [f"x{i + 1}"]) for i in range(5000)]
    one = model(nodes[::-1], {"x0": f(1)}, ["x5000"])
    assert evaluate.run(one, {"x0": f(1)})["x5000"][0] == 1


def test_what_is_missing_names_the_node() -> None:
    one = model([node("Add", ["x", "y"], ["z"], name="sum")], {"x": f(1)}, ["z"])
    with pytest.raises(Refused, match=r"Add 'sum'.*'y'"):
        evaluate.run(one, {"x": f(1)})


def test_what_has_no_meaning_names_the_node() -> None:
    for domain, op, version in (
        ("", "Nonsense", 21),
        ("", "Gelu", 13),
        ("elsewhere", "Gelu", 1),
        ("", "RandomNormal", 21),
    ):
        one = model([node(op, [], ["z"], name="odd", domain=domain)], {}, ["z"], opsets=[("", version)])
        with pytest.raises(Refused, match=f"{op} 'odd'"):
            evaluate.run(one, {})


def test_an_opset_that_is_too_old_or_too_new_is_refused() -> None:
    for version in (6, 99):
        one = model([node("Neg", ["x"], ["z"])], {"x": f(1)}, ["z"], opsets=[("", version)])
        with pytest.raises(Refused, match=f"version {version}"):
            evaluate.run(one, {"x": f(1)})


def test_onnx_under_its_other_name() -> None:
    one = model([node("Neg", ["x"], ["z"], domain="ai.onnx")], {"x": f(1)}, ["z"], opsets=[("ai.onnx", 12)])
    assert evaluate.run(one, {"x": f(1)})["z"][0] == -1
    soft = model(
        [node("Softmax", ["x"], ["z"])], {"x": np.zeros((2, 2, 2), np.float32)}, ["z"], opsets=[("ai.onnx", 12)]
    )
    assert evaluate.run(soft, {"x": np.zeros((2, 2, 2), np.float32)})["z"][0, 0, 0] == 0.25


def test_microsoft_without_an_import() -> None:
    agrees(model([node("QuickGelu", ["x"], ["z"], domain="com.microsoft")], {"x": f(1)}, ["z"]), {"x": f(0.3)})


def test_operators_that_onnxruntime_has_in_onnx_itself() -> None:
    x, w = np.arange(6, dtype=np.float32).reshape(2, 3), f(1, 2, 3)
    for op, inputs in (("SimplifiedLayerNormalization", ["x", "w"]), ("LayerNormalization", ["x", "w", "w"])):
        one = model([node(op, inputs, ["z"])], {"x": x, "w": w}, ["z"], opsets=[("", 11)])
        agrees(one, {"x": x, "w": w})


SCALE = helper.make_function(
    "own",
    "Scaled",
    ["a", "b"],
    ["c"],
    [
        helper.make_node("Elu", ["a"], ["e"]),
        helper.make_node("Add", ["e", "b"], ["c"]),
    ],
    [helper.make_opsetid("", 21)],
    attributes=["alpha"],
)
SCALE.node[0].attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT))


def test_functions_with_attributes_by_reference() -> None:
    opsets = [("", 21), ("own", 1)]
    for attributes in ({"alpha": 3.0}, {}):
        nodes = [node("Scaled", ["x", "y"], ["z"], domain="own", **attributes)]
        one = model(nodes, {"x": f(-1, 2), "y": f(1, 1)}, ["z"], functions=[SCALE], opsets=opsets)
        agrees(one, {"x": f(-1, 2), "y": f(1, 1)})


def test_a_function_is_evaluated_in_its_own_opset() -> None:
    body = [helper.make_node("Softmax", ["a"], ["c"])]
    old = helper.make_function("own", "Soft", ["a"], ["c"], body, [helper.make_opsetid("", 12)])
    one = model(
        [node("Soft", ["x"], ["z"], domain="own")], {"x": np.zeros((2, 2, 2), np.float32)}, ["z"], functions=[old],
        opsets=[("", 21), ("own", 1)],
    )  # fmt: skip
    assert evaluate.run(one, {"x": np.zeros((2, 2, 2), np.float32)})["z"][0, 0, 0] == 0.25


def test_overloads_are_apart() -> None:
    functions = []
    for overload, op in (("first", "Neg"), ("second", "Abs")):
        body = [helper.make_node(op, ["a"], ["c"])]
        made = helper.make_function("own", "F", ["a"], ["c"], body, [helper.make_opsetid("", 21)])
        made.overload = overload
        functions.append(made)
    nodes = [
        node("F", ["x"], ["y"], domain="own", overload="first"),
        node("F", ["y"], ["z"], domain="own", overload="second"),
    ]
    one = model(nodes, {"x": f(2)}, ["y", "z"], functions=functions, opsets=[("", 21), ("own", 1)])
    got = evaluate.run(one, {"x": f(2)})
    assert (got["y"][0], got["z"][0]) == (-2.0, 2.0)


def test_a_function_that_calls_itself_is_refused() -> None:
    body = [helper.make_node("F", ["a"], ["c"], domain="own")]
    own = helper.make_function("own", "F", ["a"], ["c"], body, [helper.make_opsetid("own", 1)])
    one = model(
        [node("F", ["x"], ["z"], domain="own")], {"x": f(1)}, ["z"], functions=[own], opsets=[("", 21), ("own", 1)]
    )
    with pytest.raises(Refused, match="deep"):
        evaluate.run(one, {"x": f(1)})


def test_sub_graphs_read_from_around_them() -> None:
    inner = helper.make_graph([node("Add", ["x", "w"], ["k"])], "then", [], [value("k", FLOAT, [2])])
    other = helper.make_graph([node("Mul", ["y", "y"], ["k"])], "else", [], [value("k", FLOAT, [2])])
    nodes = [
        node("Neg", ["x"], ["y"]),
        node("If", ["c"], ["z"], then_branch=inner, else_branch=other),
    ]
    for condition in (True, False):
        feeds = {"x": f(1, 2), "c": np.array(condition)}
        agrees(model(nodes, feeds, ["z"], weights={"w": f(5, 6)}), feeds)


def test_a_sub_graph_in_a_sub_graph_reads_from_the_outermost() -> None:
    deepest = helper.make_graph([node("Mul", ["s", "x"], ["k"])], "then", [], [value("k", FLOAT, [1])])
    other = helper.make_graph([node("Identity", ["s"], ["k"])], "else", [], [value("k", FLOAT, [1])])
    body = helper.make_graph(
        [
            node("Identity", ["c"], ["d"]),
            node("Less", ["i", "three"], ["few"]),
            node("If", ["few"], ["t"], then_branch=deepest, else_branch=other),
        ],
        "body",
        [value("i", INT64, []), value("c", BOOL, []), value("s", FLOAT, [1])],
        [value("d", BOOL, []), value("t", FLOAT, [1])],
    )
    nodes = [node("Loop", ["n", "", "start"], ["z"], body=body)]
    weights = {"n": np.array(5), "start": f(1), "three": np.array(3)}
    feeds = {"x": f(2)}
    agrees(model(nodes, feeds, ["z"], weights=weights), feeds)


def test_sequences() -> None:
    body = helper.make_graph([node("Exp", ["e"], ["g"])], "body", [value("e", FLOAT, None)], [value("g", FLOAT, None)])
    nodes = [
        node("SequenceConstruct", ["x", "y"], ["s"]),
        node("SequenceInsert", ["s", "y", "zero"], ["t"]),
        node("SequenceErase", ["t", "last"], ["u"]),
        node("SequenceAt", ["u", "last"], ["first"]),
        node("SequenceLength", ["t"], ["length"]),
        node("ConcatFromSequence", ["t"], ["joined"], axis=0),
        node("ConcatFromSequence", ["u"], ["stacked"], axis=1, new_axis=1),
        node("SplitToSequence", ["joined", "two"], ["parts"], axis=0),
        node("SequenceMap", ["parts"], ["mapped"], body=body),
        node("SequenceAt", ["mapped", "last"], ["tail"]),
        node("SplitToSequence", ["joined"], ["single"], axis=0, keepdims=0),
        node("SequenceAt", ["single", "zero"], ["one"]),
        node("SequenceEmpty", [], ["none"]),
        node("SequenceInsert", ["none", "x"], ["some"]),
        node("SequenceAt", ["some", "zero"], ["again"]),
    ]
    outputs = ["first", "length", "joined", "stacked", "tail", "one", "again"]
    weights = {"zero": np.array(0), "last": np.array(-1), "two": np.array(4)}
    feeds = {"x": f(1, 2), "y": f(3, 4)}
    agrees(model(nodes, feeds, outputs, weights=weights), feeds)


def test_a_sequence_is_no_output() -> None:
    one = model([node("SequenceConstruct", ["x"], ["s"])], {"x": f(1)}, ["s"])
    with pytest.raises(Refused, match="'s' is not a tensor"):
        evaluate.run(one, {"x": f(1)})


EMPTY = [
    ("Add", {"x": (0, 3), "y": (1, 3)}, {}),
    ("MatMul", {"x": (0, 3), "y": (3, 2)}, {}),
    ("MatMul", {"x": (2, 0), "y": (0, 3)}, {}),
    ("Gemm", {"x": (0, 3), "y": (3, 2)}, {}),
    ("Softmax", {"x": (0, 3)}, {}),
    ("Concat", {"x": (0, 3), "y": (2, 3)}, {"axis": 0}),
    ("Transpose", {"x": (0, 3)}, {}),
    ("ReduceSum", {"x": (0, 3)}, {}),
    ("LayerNormalization", {"x": (0, 3), "y": (3,)}, {}),
    ("Conv", {"x": (0, 2, 4, 4), "y": (3, 2, 2, 2)}, {}),
    ("Where", {"x": (0, 3), "y": (1, 3)}, {}),
    ("Attention", {"x": (2, 2, 0, 4), "y": (2, 2, 3, 4)}, {}),
]


@pytest.mark.parametrize(("op", "shapes", "attributes"), EMPTY)
def test_dimensions_without_elements(
    op: str, shapes: Mapping[str, tuple[int, ...]], attributes: Mapping[str, Any]
) -> None:
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    names = {"Where": ["c", "x", "y"], "Attention": ["x", "y", "y"]}.get(op, list(feeds))
    feeds |= {"c": np.zeros((1, 3), np.bool_)} if op == "Where" else {}
    one = model([node(op, names, ["z"], **attributes)], feeds, ["z"], opsets=[("", 23)])
    if op == "Attention":
        assert evaluate.run(one, feeds)["z"].shape == (2, 2, 0, 4)
    else:
        agrees(one, feeds)


def test_the_time_is_limited() -> None:
    body = helper.make_graph(
        [node("Identity", ["c"], ["d"]), node("Neg", ["s"], ["t"])],
        "body",
        [value("i", INT64, []), value("c", BOOL, []), value("s", FLOAT, [1])],
        [value("d", BOOL, []), value("t", FLOAT, [1])],
    )
    one = model([node("Loop", ["", "", "x"], ["z"], body=body)], {"x": f(1)}, ["z"])
    with pytest.raises(OutOfTime):
        evaluate.run(one, {"x": f(1)}, seconds=0.2)


def test_the_work_of_an_operator_is_limited() -> None:
    x = np.ones((10, 10), np.float32)
    one = model([node("MatMul", ["x", "x"], ["z"], name="big")], {"x": x}, ["z"])
    evaluate.run(one, {"x": x}, most_work=1000)
    with pytest.raises(Refused, match=r"MatMul 'big'.*multiply-adds"):
        evaluate.run(one, {"x": x}, most_work=999)


def test_the_elements_of_a_value_are_limited_before_it_is_made() -> None:
    feeds = {"n": np.array([10**7, 10**7])}
    for op in ("ConstantOfShape", "Expand"):
        inputs = ["n"] if op == "ConstantOfShape" else ["x", "n"]
        one = model([node(op, inputs, ["z"], name="big")], {"n": feeds["n"], "x": f(1)}, ["z"])
        with pytest.raises(Refused, match=f"{op} 'big'.*elements"):
            evaluate.run(one, {**feeds, "x": f(1)}, most_elements=10**6)


def test_values_are_rounded_on_the_way_where_asked() -> None:
    nodes = [node("Div", ["x", "y"], ["q"]), node("Mul", ["q", "y"], ["z"])]
    for kind, dtype in ((FLOAT, np.float32), (TensorProto.FLOAT16, np.float16)):
        x, y = np.array([1, 5], dtype), np.array([3, 7], dtype)
        one = model(nodes, {"x": x, "y": y}, ["q"], kinds={"x": kind, "y": kind})
        np.testing.assert_array_equal(
            evaluate.run(one, {"x": x, "y": y}, rounded=True)["q"], (x / y).astype(np.float64)
        )
        assert not np.array_equal(evaluate.run(one, {"x": x, "y": y})["q"], (x / y).astype(np.float64))
    exact = np.array([1 / 3, 5.0])
    fed = evaluate.run(one, {"x": exact, "y": exact}, ["x"], rounded=True)["x"]
    np.testing.assert_array_equal(fed, exact.astype(np.float16).astype(np.float64))


def test_rounded_bfloat16_is_that_of_ml_dtypes() -> None:
    import ml_dtypes

    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    one = model([node("Identity", ["x"], ["z"])], {"x": x}, ["z"], kinds={"x": TensorProto.BFLOAT16})
    wanted = x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(evaluate.run(one, {"x": x}, rounded=True)["z"], wanted.astype(np.float64))
    np.testing.assert_array_equal(evaluate.run(one, {"x": wanted})["z"], wanted.astype(np.float64))
    np.testing.assert_array_equal(evaluate.run(one, {"x": wanted.view(np.uint16)})["z"], wanted.astype(np.float64))


@pytest.mark.parametrize("number", [-3e9, 5e9, np.nan])
def test_a_uint32_that_depends_on_its_place_has_no_value(number: float) -> None:
    one = model([node("Cast", ["x"], ["z"], to=TensorProto.UINT32)], {"x": f(number)}, ["z"])
    with pytest.raises(Refused, match="place in the tensor"):
        evaluate.run(one, {"x": f(number)})


def test_casts_round_or_keep_the_number() -> None:
    nodes = [node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16), node("Cast", ["h"], ["z"], to=FLOAT)]
    one = model(nodes, {"x": f(0.1)}, ["z"])
    assert evaluate.run(one, {"x": f(0.1)})["z"][0] == float(np.float16(np.float32(0.1)))
    assert evaluate.run(one, {"x": f(0.1)}, casts=False)["z"][0] == float(np.float32(0.1))
    assert evaluate.run(one, {"x": f(0.1)}, overflows=False)["z"][0] == float(np.float16(np.float32(0.1)))
    assert evaluate.run(one, {"x": f(1e6)})["z"][0] == np.inf
    assert evaluate.run(one, {"x": f(1e6)}, overflows=False)["z"][0] == 1e6
    whole = model([node("Cast", ["x"], ["z"], to=INT64)], {"x": f(1.7)}, ["z"])
    assert evaluate.run(whole, {"x": f(1.7)}, casts=False)["z"][0] == 1
    wider = model([node("Div", ["x", "x"], ["y"]), node("Cast", ["y"], ["z"], to=FLOAT)], {"x": np.float16([3])}, ["z"])
    assert evaluate.run(wider, {"x": np.array([1 / 3])})["z"][0] == 1


def test_a_weight_beside_the_file_is_read_when_it_is_needed() -> None:
    one = model([node("Add", ["x", "w"], ["z"])], {"x": f(1)}, ["z"], weights={"w": f(5)})
    one.graph.initializer[0].data_location = TensorProto.EXTERNAL
    one.graph.initializer[0].ClearField("raw_data")
    seen = []

    def load(proto: TensorProto) -> np.ndarray:
        seen.append(proto.name)
        return f(7)

    assert evaluate.run(one, {"x": f(1)}, load=load)["z"][0] == 8
    assert seen == ["w"]
    with pytest.raises(Refused, match="outside the file"):
        evaluate.run(one, {"x": f(1)})


def test_nothing_else_of_the_program_is_imported() -> None:
    import subprocess
    import sys

    script = (
        "import sys, mirage_cli.truth.evaluate; print(*sorted(n for n in sys.modules if n.startswith('mirage_cli')))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    others = {n for n in run.stdout.split() if not n.startswith("mirage_cli.truth")}
    package = {"mirage_cli", "mirage_cli.machine", "mirage_cli.machine.deferred"}  # which any import of it brings
    assert others == package | {"mirage_cli.errors"}
