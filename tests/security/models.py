"""Models that mean harm, each a few kilobytes: declared sizes, depths and names that no honest exporter writes.

Every maker gives the bytes of a file. What a reader must do with each is in `test_models.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
IMPORTS = (helper.make_opsetid("", 20), helper.make_opsetid("f", 1))
Dims = Sequence[int | str]


def info(name: str, dims: Dims = (2,), kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(dims))


def model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    outputs: Sequence[onnx.ValueInfoProto] = (),
    weights: Iterable[onnx.TensorProto] = (),
    functions: Iterable[onnx.FunctionProto] = (),
    imports: Sequence[onnx.OperatorSetIdProto] = IMPORTS,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes), "g", list(inputs or [info("x")]), list(outputs or [info("y")]), list(weights)
    )
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def node(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, list(inputs), list(outputs), **attributes)


def ints(name: str, values: Sequence[int]) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def function(name: str, nodes: Sequence[onnx.NodeProto]) -> onnx.FunctionProto:
    return helper.make_function("f", name, ["a"], ["b"], list(nodes), IMPORTS)


# --- functions --------------------------------------------------------------------------------------------------------
def doubling(depth: int) -> onnx.ModelProto:
    """Functions each of which calls the next one twice: 2^depth nodes when they are written out."""
    made = [
        function(
            f"f{k}",
            [node(f"f{k + 1}", ["a"], ["m"], domain="f"), node(f"f{k + 1}", ["m"], ["b"], domain="f")],
        )
        for k in range(depth)
    ]
    made.append(function(f"f{depth}", [node("Relu", ["a"], ["b"])]))
    return model([node("f0", ["x"], ["y"], domain="f")], functions=made)


def calling(names: Sequence[str]) -> onnx.ModelProto:
    """Functions that call each other in a ring: one name is a function that calls itself."""
    made = [
        function(n, [node(m, ["a"], ["b"], domain="f")]) for n, m in zip(names, [*names[1:], names[0]], strict=True)
    ]
    return model([node(names[0], ["x"], ["y"], domain="f")], functions=made)


def chained(depth: int) -> onnx.ModelProto:
    """Functions each of which calls the next one once."""
    made = [function(f"f{k}", [node(f"f{k + 1}", ["a"], ["b"], domain="f")]) for k in range(depth)]
    made.append(function(f"f{depth}", [node("Relu", ["a"], ["b"])]))
    return model([node("f0", ["x"], ["y"], domain="f")], functions=made)


def two_of_a_name() -> onnx.ModelProto:
    """Two functions of one domain and name."""
    made = chained(2)
    made.functions.append(function("f1", [node("Neg", ["a"], ["b"])]))
    return made


def taken_names() -> onnx.ModelProto:
    """A function called twice whose value `t` and nodes `n` and `k` have names, plain and numbered, that the model has
    already: of values and nodes in both branches of a condition, of a weight, of what a loop carries."""
    body = function("f0", [node("Neg", ["a"], ["t"], name="n"), node("Exp", ["t"], ["b"], name="k")])
    taken = {"then": ("Relu", "t", "n_1"), "else": ("Abs", "t_1", "k_1")}
    parts = {
        f"{which}_branch": helper.make_graph(
            [node(kind, ["x"], [value], name=name), node("Mul", [value, "u"], [which], name=f"{which} product")],
            which,
            [],
            [info(which)],
        )
        for which, (kind, value, name) in taken.items()
    }
    carried = [info("t_2_1", (), INT64), info("d", (), TensorProto.BOOL), info("t_4")]
    steps = [node("Identity", ["d"], ["e"], name="again"), node("Mul", ["t_4", "v"], ["s"], name="k_3")]
    loop = helper.make_graph(steps, "loop", carried, [info("e", (), TensorProto.BOOL), info("s")])
    nodes = [
        node("f0", ["x"], ["u"], domain="f", name="one"),
        node("f0", ["u"], ["v"], domain="f", name="two"),
        node("If", ["c"], ["w"], name="n", **parts),
        node("Loop", ["three", "", "w"], ["t_3"], name="k", body=loop),
        node("Add", ["t_3", "t_2"], ["y"], name="k_2"),
    ]
    weights = [numpy_helper.from_array(np.array([5, 6], np.float32), "t_2")]
    weights.append(numpy_helper.from_array(np.array(3, np.int64), "three"))
    return model(nodes, [info("x"), info("c", (), TensorProto.BOOL)], weights=weights, functions=[body])


def alike() -> onnx.ModelProto:
    """Calls of functions that differ in their overload alone, and operators of other people that differ from them in their
    domain, in its capitals or in their overload, or are called as mirage calls functions meanwhile."""

    def called(domain: str, name: str, overload: str, operands: tuple[str, str]) -> onnx.NodeProto:
        made = node(name, operands[:1], operands[1:], domain=domain, name=f"{domain}.{name}.{overload}")
        made.overload = overload
        return made

    def declared(overload: str, kind: str) -> onnx.FunctionProto:
        made = function("g", [node(kind, ["a"], ["b"])])
        made.overload = overload
        return made

    parts = [("f", "g", "one"), ("f", "g", "two"), ("f", "g", ""), ("f", "g", "One"), ("F", "g", "one")]
    parts += [("function0", "f", ""), ("function1", "f", ""), ("function_0", "f", ""), ("", "Relu", "")]
    names = ["x", *(f"v{k}" for k in range(len(parts) - 1)), "y"]
    nodes = [called(*part, step) for part, step in zip(parts, itertools.pairwise(names), strict=True)]
    domains = ("F", "function0", "function1", "function_0")
    imports = [*IMPORTS, *(helper.make_opsetid(d, 1) for d in domains)]
    return model(nodes, functions=[declared("one", "Neg"), declared("two", "Exp")], imports=imports)


# --- graphs -----------------------------------------------------------------------------------------------------------
def nested(depth: int) -> bytes:
    """A graph in an attribute of a node in a graph in an attribute ..., which no builder of messages would make."""

    def part(field: int, content: bytes) -> bytes:
        length, size = bytearray(), len(content)
        while size > 127:
            length.append(size & 127 | 128)
            size >>= 7
        return bytes([field << 3 | 2]) + bytes([*length, size]) + content

    graph = b""
    for _ in range(depth):
        graph = part(1, part(4, b"If") + part(5, part(1, b"then_branch") + part(6, graph)))
    return b"\x08\x0a" + part(7, graph) + part(8, b"\x10\x14")


def cyclic() -> onnx.ModelProto:
    return model([node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])])


def twice() -> onnx.ModelProto:
    return model([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])])


def chain(count: int, prefix: str = "t") -> onnx.ModelProto:
    """A chain of elementwise operators."""
    names = ["x", *(f"{prefix}{k}" for k in range(count - 1)), "y"]
    return model([node("Relu" if k % 2 else "Neg", [a], [b]) for k, (a, b) in enumerate(itertools.pairwise(names))])


def wide(count: int) -> onnx.ModelProto:
    """Many inputs, each with a weight, added up in groups."""
    nodes = [node("Add", [f"x{k}", f"w{k}"], [f"y{k}"]) for k in range(count)]
    return model(
        nodes,
        [info(f"x{k}") for k in range(count)],
        [info(f"y{k}") for k in range(count)],
        [numpy_helper.from_array(np.ones(2, np.float32), f"w{k}") for k in range(count)],
    )


def many_imports(count: int) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 20), *(helper.make_opsetid(f"domain{k}", 1) for k in range(count))]
    return model([node("Relu", ["x"], ["y"])], imports=imports)


def same_names(count: int) -> onnx.ModelProto:
    """Nodes that all have one name, each with a result that nothing reads."""
    nodes = [node("Relu", ["x"], [f"t{k}"], name="n") for k in range(count)]
    return model(
        [*nodes, node("Relu", ["x"], ["y"], name="n")], outputs=[info("y"), *(info(f"t{k}") for k in range(count))]
    )


def many_functions(count: int) -> onnx.ModelProto:
    made = [function(f"f{k}", [node("Relu", ["a"], ["b"])]) for k in range(count)]
    names = ["x", *(f"t{k}" for k in range(count - 1)), "y"]
    calls = [node(f"f{k}", [a], [b], domain="f") for k, (a, b) in enumerate(itertools.pairwise(names))]
    return model(calls, functions=made)


def many_calls(count: int) -> onnx.ModelProto:
    """One function called many times: all that it makes has the same names."""
    names = ["x", *(f"t{k}" for k in range(count - 1)), "y"]
    body = function("f0", [node("Neg", ["a"], ["m"], name="n"), node("Relu", ["m"], ["b"], name="n")])
    return model([node("f0", [a], [b], domain="f") for a, b in itertools.pairwise(names)], functions=[body])


def uncalled(count: int) -> onnx.ModelProto:
    """Functions that the graph does not call, each of which calls the next one twice."""
    made = doubling(count)
    del made.graph.node[:]
    made.graph.node.append(node("Relu", ["x"], ["y"]))
    return made


def fanned(count: int) -> onnx.ModelProto:
    """One value that everything reads."""
    made = [node("Mul", ["s", f"x{k}"], [f"y{k}"]) for k in range(count)]
    values = [info(f"{v}{k}") for v in "xy" for k in range(count)]
    return model([node("Relu", ["x"], ["s"]), *made], [info("x"), *values[:count]], values[count:])


def branches(count: int) -> onnx.ModelProto:
    """Conditions, each with two graphs that read what the one before has given."""
    nodes, last = [], "x"
    for k in range(count):
        parts = {
            f"{w}_branch": helper.make_graph([node(o, [last], [f"{w}{k}"])], w, [], [info(f"{w}{k}")])
            for w, o in (("then", "Relu"), ("else", "Neg"))
        }
        nodes.append(node("If", ["c"], [f"t{k}"], **parts))
        last = f"t{k}"
    return model([*nodes, node("Relu", [last], ["y"])], [info("x"), info("c", [], TensorProto.BOOL)])


def looping(times: int) -> onnx.ModelProto:
    """A loop that doubles its input so many times."""
    body = helper.make_graph(
        [node("Identity", ["c"], ["d"]), node("Add", ["s", "s"], ["t"])],
        "body",
        [info("i", (), INT64), info("c", (), TensorProto.BOOL), info("s")],
        [info("d", (), TensorProto.BOOL), info("t")],
    )
    weights = [
        numpy_helper.from_array(np.array(times, np.int64), "m"),
        numpy_helper.from_array(np.array(True), "go"),
    ]
    return model([node("Loop", ["m", "go", "x"], ["y"], body=body)], weights=weights)


def dividing(whole: onnx.ModelProto, folded: bool) -> onnx.ModelProto:
    """A model with an input `x` and one more output: the least integer divided by -1, at which onnxruntime 1.31 ends its
    process (SIGFPE). Where it is `folded`, when the model is loaded, else when it runs."""
    made = onnx.ModelProto()
    made.CopyFrom(whole)
    made.graph.node.extend(
        [
            node("Cast", ["x"], ["integers"], to=INT64),
            node("Mul", ["integers", "nothing"], ["zeros"]),
            node("Add", ["zeros", "least"], ["same"]),
            node("Div", ["least" if folded else "same", "minus"], ["quotient"]),
        ]
    )
    made.graph.initializer.extend([ints("least", [-(1 << 63)]), ints("minus", [-1]), ints("nothing", [0])])
    made.graph.output.append(helper.make_tensor_value_info("quotient", INT64, None))
    return made


def filling(elements: int) -> onnx.ModelProto:
    """A tensor of so many elements on the way to a small one."""
    nodes = [
        node("ConstantOfShape", ["size"], ["long"]),
        node("ReduceMax", ["long"], ["most"], keepdims=0),
        node("Add", ["x", "most"], ["y"]),
    ]
    return model(nodes, weights=[ints("size", [elements])])


def _squares(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], inputs: Sequence[str] = ("x",)
) -> onnx.ModelProto:
    """A model on matrices of 4 x 4, with a weight `w`."""
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    return model(nodes, [info(n, (4, 4)) for n in inputs], [info(n, (4, 4)) for n in outputs], [weight])


def _steps(first: str, count: int) -> list[tuple[str, str]]:
    """(name, next name) of a chain."""
    return list(itertools.pairwise([first, *(f"{first}{k}" for k in range(count))]))


def behind_a_product(count: int) -> onnx.ModelProto:
    """A chain of elementwise operators behind a product that is a result too."""
    steps = _steps("s", count)
    return _squares(
        [node("MatMul", ["x", "w"], ["s"]), *(node("Relu", [a], [b]) for a, b in steps)], ["s", steps[-1][1]]
    )


def doubled(count: int) -> onnx.ModelProto:
    """The same with values that are each the double of the one before: 2^count ways through the graph."""
    steps = _steps("s", count)
    return _squares(
        [node("MatMul", ["x", "w"], ["s"]), *(node("Add", [a, a], [b]) for a, b in steps)], ["s", steps[-1][1]]
    )


def skips(count: int) -> onnx.ModelProto:
    """Sums of neighbours of which the later ones read the earlier ones again, in reverse."""
    steps = _steps("x", count)
    nodes = [node("Add", [a, steps[count - 1 - k][0] if 2 * k > count else a], [b]) for k, (a, b) in enumerate(steps)]
    return _squares(nodes, [steps[-1][1]])


def transposed(count: int) -> onnx.ModelProto:
    """Views of views."""
    steps = _steps("x", count)
    views = [
        node("Transpose", [a], [b], perm=[1, 0]) if k % 2 else node("Slice", [a, "one", "end", "one"], [b])
        for k, (a, b) in enumerate(steps)
    ]
    weights = [ints("one", [1]), ints("end", [1 << 30])]
    nodes = [*views, node("Relu", [steps[-1][1]], ["y"])]
    return model(nodes, [info("x", (count + 4, count + 4))], [info("y", ("a", "b"))], weights)


def products(count: int) -> onnx.ModelProto:
    """A chain of products with one weight."""
    steps = _steps("x", count)
    return _squares([node("MatMul", [a, "w"], [b]) for a, b in steps], [steps[-1][1]])


def read_by_all(count: int) -> onnx.ModelProto:
    """A product that many operators read, whose results meet again."""
    made = [f"y{k}" for k in range(count)]
    nodes = [node("MatMul", ["x", "w"], ["s"]), *(node("Mul", ["s", f"x{k}"], [y]) for k, y in enumerate(made))]
    return _squares([*nodes, node("Sum", made, ["y"])], ["y"], ["x", *(f"x{k}" for k in range(count))])


def long_chain(count: int) -> onnx.ModelProto:
    """Products that all read the end of one chain of elementwise operators."""
    steps = [("x", "s"), *_steps("s", count)]
    chain = [node("Relu" if k % 2 else "Neg", [a], [b]) for k, (a, b) in enumerate(steps)]
    few = range(0, count, 4)
    nodes = [node("MatMul", [steps[-1][1], f"x{k}"], [f"y{k}"]) for k in few]
    return _squares([*chain, *nodes], [f"y{k}" for k in few], ["x", *(f"x{k}" for k in few)])


def ladder(count: int) -> onnx.ModelProto:
    """Products that read every fourth step of a chain of elementwise operators behind a product."""
    steps = _steps("s", count)
    chain = [node("Relu" if k % 2 else "Neg", [a], [b]) for k, (a, b) in enumerate(steps)]
    few = range(0, count, 4)
    nodes = [node("MatMul", [steps[k][1], f"x{k}"], [f"y{k}"]) for k in few]
    first = node("MatMul", ["x", "w"], ["s"])
    return _squares([first, *chain, *nodes], [f"y{k}" for k in few], ["x", *(f"x{k}" for k in few)])


def concatenated(count: int) -> onnx.ModelProto:
    """A tensor that grows at its end."""
    steps = _steps("x", count)
    nodes = [node("Concat", [a, "x"], [b], axis=0) for a, b in steps]
    return model(nodes, [info("x", (4, 4))], [info(steps[-1][1], ("n", 4))])


def symbols(text: str) -> onnx.ModelProto:
    """An input whose dimension is written as `text`."""
    return model([node("Relu", ["x"], ["y"])], [info("x", [text, 4])], [info("y", [text, 4])])


# --- sizes ------------------------------------------------------------------------------------------------------------
def filled(dims: Sequence[int], kind: str = "ConstantOfShape") -> onnx.ModelProto:
    """A tensor of `dims` that the model makes of nothing."""
    nodes = [
        node("ConstantOfShape", ["s"], ["t"]),
        node("ReduceSum", ["t"], ["u"], keepdims=0),
        node("Add", ["x", "u"], ["y"]),
    ]
    return model(nodes, weights=[ints("s", dims)])


def grown(kind: str, count: int) -> onnx.ModelProto:
    """A constant that one operator makes large."""
    c = numpy_helper.from_array(np.ones((1,), np.float32), "c")
    one, n = ints("one", [1]), ints("n", [count])
    weights = [c, one, n]
    if kind == "Range":
        weights = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in (("a", 0), ("b", count), ("d", 1))]
        made = [node("Range", ["a", "b", "d"], ["r"]), node("Cast", ["r"], ["t"], to=FLOAT)]
    elif kind == "Tile":
        made = [node("Tile", ["c", "n"], ["t"])]
    elif kind == "Expand":
        made = [node("Expand", ["c", "n"], ["t"])]
    elif kind == "Pad":
        weights.append(ints("p", [0, count]))
        made = [node("Pad", ["c", "p"], ["t"])]
    elif kind == "OneHot":
        weights += [ints("i", [0]), numpy_helper.from_array(np.array([0, 1], np.float32), "v")]
        made = [node("OneHot", ["i", "n", "v"], ["t"])]
    elif kind == "MaxUnpool":
        side = math.isqrt(count)
        weights += [numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "m"), ints("s", [1, 1, side, side])]
        weights.append(numpy_helper.from_array(np.zeros((1, 1, 1, 1), np.int64), "i"))
        made = [node("MaxUnpool", ["m", "i", "s"], ["t"], kernel_shape=[1, 1])]
    elif kind == "Resize":
        weights.append(numpy_helper.from_array(np.array([float(count)], np.float32), "z"))
        made = [node("Resize", ["c", "", "z"], ["t"])]
    elif kind == "Doubling":
        made = [node("Concat", ["c" if k == 0 else f"t{k}"] * 2, [f"t{k + 1}"], axis=0) for k in range(count)]
        made.append(node("Identity", [f"t{count}"], ["t"]))
    elif kind == "EyeLike":
        weights.append(ints("nn", [count, count]))
        made = [node("ConstantOfShape", ["nn"], ["e"]), node("EyeLike", ["e"], ["t"])]
    elif kind == "Squares":
        made = [node("Mul", ["n" if k == 0 else f"q{k}"] * 2, [f"q{k + 1}"]) for k in range(20)]
        made += [node("Expand", ["c", "q20"], ["t"])]
    elif kind == "BlackmanWindow":
        weights.append(numpy_helper.from_array(np.array(count, np.int64), "b"))
        made = [node("BlackmanWindow", ["b"], ["t"])]
    elif kind == "RandomNormal":
        made = [node("RandomNormal", [], ["t"], shape=[count])]
    elif kind == "Upsample":
        made = [node("ConstantOfShape", ["n"], ["k"]), node("CumSum", ["k", "zero"], ["t"])]
        weights.append(numpy_helper.from_array(np.array(0, np.int64), "zero"))
    nodes = [*made, node("ReduceSum", ["t"], ["u"], keepdims=0), node("Add", ["x", "u"], ["y"])]
    return model(nodes, weights=weights)


def worked(kind: str, size: int) -> onnx.ModelProto:
    """A few constants that become a few numbers by an operator whose work one of its attributes says."""
    weights = [numpy_helper.from_array(np.ones((1, 1, 2, 2), np.float32), "c")]
    if kind == "Conv":
        made = node("Conv", ["c", "c"], ["t"], dilations=[2 * size, 2 * size], pads=[size] * 4)
    elif kind == "RoiAlign":
        weights += [numpy_helper.from_array(np.array([[0, 0, 1, 1]], np.float32), "r"), ints("b", [0])]
        made = node("RoiAlign", ["c", "r", "b"], ["t"], sampling_ratio=size)
    elif kind == "TfIdfVectorizer":
        weights.append(ints("i", [1, 2, 3, 4]))
        grams: dict[str, object] = {"ngram_counts": [0, 1], "ngram_indexes": [0, 1], "pool_int64s": [1, 2, 3]}
        made = node(kind, ["i"], ["t"], max_gram_length=2, min_gram_length=1, max_skip_count=size, mode="TF", **grams)
    else:
        made = node(kind, ["c"], ["t"], kernel_shape=[size + 1, size + 1], pads=[size] * 4, strides=[size, size])
    return model([made, node("ReduceSum", ["t"], ["u"], keepdims=0), node("Add", ["x", "u"], ["y"])], weights=weights)


def declared(dims: Sequence[int]) -> onnx.ModelProto:
    """Inputs that are declared to be huge, and a product of them."""
    a, b = dims
    return model(
        [node("MatMul", ["x", "w"], ["t"]), node("Softmax", ["t"], ["y"])],
        [info("x", [a, b]), info("w", [b, a])],
        [info("y", [a, a])],
    )


def weight(dims: Sequence[int], raw: bytes = b"", kind: int = FLOAT) -> onnx.ModelProto:
    """A weight that is declared with `dims` and holds `raw`."""
    t = TensorProto(name="w", data_type=kind, raw_data=raw)
    t.dims.extend(dims)
    return model([node("Add", ["x", "w"], ["y"])], weights=[t])


def constant(dims: Sequence[int], raw: bytes = b"", kind: int = FLOAT) -> onnx.ModelProto:
    """The same as a node's attribute."""
    t = TensorProto(name="w", data_type=kind, raw_data=raw)
    t.dims.extend(dims)
    return model([node("Constant", [], ["w"], value=t), node("Add", ["x", "w"], ["y"])])


def sparse(where: str, dims: Sequence[int]) -> onnx.ModelProto:
    """A sparse tensor with one element in `dims`."""
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    s = onnx.SparseTensorProto(values=values, indices=numpy_helper.from_array(np.zeros(1, np.int64), "i"))
    s.dims.extend(dims)
    if where == "constant":
        return model([node("Constant", [], ["w"], sparse_value=s), node("Add", ["x", "w"], ["y"])])
    made = model([node("Add", ["x", "w"], ["y"])])
    if where == "branch":
        branch = helper.make_graph([node("Identity", ["w"], ["z"])], "g", [], [info("z")])
        branch.sparse_initializer.append(s)
        return model(
            [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], [info("c", (), TensorProto.BOOL)]
        )
    made.graph.sparse_initializer.append(s)
    return made
