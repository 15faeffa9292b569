"""TorchScript graphs on their way to ONNX: types of inputs, marks on tensors.

A mark is an identity on one tensor of the graph. It passes through the exporter as an operator of its own domain and is
taken out of the ONNX model again, which tells the ONNX name of that tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx

DOMAIN = "mirage_mark"
MARK = f"{DOMAIN}::mark"
ONNX_MARK = "Mark"

#: operators that give the elements of their first operand
_VIEWS = (
    *("aten::alias", "aten::clone", "aten::contiguous", "aten::detach", "aten::expand", "aten::flatten"),
    *("aten::permute", "aten::reshape", "aten::select", "aten::slice", "aten::squeeze", "aten::t"),
    *("aten::transpose", "aten::unsqueeze", "aten::view"),
)
#: operators that read integers: which operand
_INDICES = {"aten::embedding": 1, "aten::embedding_bag": 1, "aten::index_select": 2, "aten::gather": 2}
#: nodes whose tensors are marked, beside all of PyTorch's operators
_MARKED = ("prim::If", "prim::Loop", "prim::ListUnpack", "prim::TupleUnpack")


# ---- inputs ----------------------------------------------------------------------------------------------------------
def example_inputs(
    torch: Any, module: Any, shapes: Mapping[str, Sequence[int]], types: Mapping[str, str]
) -> dict[str, Any]:
    """Tensors of the given shapes in the order of the module's inputs. A type that is not given is found from the uses:
    64-bit integers for what indexes a table, else the type of the module's parameters."""
    floats = [p.dtype for p in module.parameters() if p.dtype.is_floating_point]
    indices = _index_inputs(module.inlined_graph)
    tensors = {}
    for name in (a.name for a in module.forward.schema.arguments[1:] if a.name in shapes):
        usual = torch.int64 if name in indices else floats[0] if floats else torch.float32
        dtype = getattr(torch, types[name]) if name in types else usual
        tensors[name] = torch.full(tuple(shapes[name]), 0 if not dtype.is_floating_point else 0.5, dtype=dtype)
    return tensors


def described(tensor: Any) -> str:
    """A tensor's type and shape in words."""
    return f"{str(tensor.dtype).removeprefix('torch.')}[{'x'.join(map(str, tensor.shape))}]"


def _index_inputs(graph: Any) -> set[str]:
    """The names of the inputs that index a table, through views."""
    origin = {v.unique(): v.debugName().partition(".")[0] for v in graph.inputs()}
    lists: dict[int, list[str]] = {}
    inputs: set[str] = set()
    for node in nodes(graph):
        kind, read = node.kind(), [v.unique() for v in node.inputs()]
        if kind in _VIEWS and read[0] in origin:
            origin[node.output().unique()] = origin[read[0]]
        elif kind == "prim::ListConstruct":
            lists[node.output().unique()] = [origin[v] for v in read if v in origin]
        elif kind in _INDICES and read[_INDICES[kind]] in origin:
            inputs.add(origin[read[_INDICES[kind]]])
        elif kind == "aten::index":
            inputs.update(lists.get(read[1], ()))
    return inputs


def nodes(block: Any) -> Iterator[Any]:
    """All nodes of a graph or block in order, those of inner blocks too."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from nodes(inner)


# ---- marks -----------------------------------------------------------------------------------------------------------
class _MarkOperator:
    """The identity that marks a tensor, known to torch as long as this process lives. `seen` takes down the shape and type
    of each marked tensor while a module runs."""

    def __init__(self, torch: Any) -> None:
        self.seen: dict[int, Any] = {}
        self.library = torch.library.Library(DOMAIN, "DEF")
        self.library.define("mark(Tensor x, int index) -> Tensor")
        self.library.impl("mark", self.run, "CompositeExplicitAutograd")

    def run(self, x: Any, index: int) -> Any:
        """The operator itself."""
        self.seen[index] = x.new_empty(()).expand(x.shape)  # without memory for its elements
        return x.clone()


_operator = functools.cache(_MarkOperator)


class Marked:
    """A module for inference, in one graph without calls, whose tensors are marked.

    `module` is a module of its own: the one that it was made from does not change. `mutates` names an operator that
    changes a tensor in place, where one is left.
    """

    def __init__(self, torch: Any, module: Any) -> None:
        self.operator = _operator(torch)
        compiled = torch._C._freeze_module(module._c, preserveParameters=True)
        graph = compiled._get_method("forward").graph
        torch._C._jit_pass_inline(graph)
        torch._C._jit_pass_remove_mutation(graph)
        self.mutates = next((n.kind() for n in nodes(graph) if _mutates(n.kind())), None)
        self.inputs = [v.debugName().partition(".")[0] for v in list(graph.inputs())[1:]]
        self.count = 0
        for node in list(graph.nodes()):
            if node.kind().startswith("aten::") or node.kind() in _MARKED:
                for value in list(node.outputs()):
                    if value.type().kind() == "TensorType":
                        self._mark(torch, graph, node, value)
        self.module = torch.jit._recursive.wrap_cpp_module(compiled)

    def run(self, torch: Any, inputs: Sequence[Any]) -> dict[int, Any]:
        """Run the module; for each mark that is passed a tensor of its shape and type. Raises whatever torch does."""
        self.operator.seen.clear()
        with torch.no_grad():
            self.module(*inputs)
        return dict(self.operator.seen)

    def _mark(self, torch: Any, graph: Any, node: Any, value: Any) -> None:
        number = graph.create("prim::Constant")
        number.i_("value", self.count)
        number.output().setType(torch._C.IntType.get())
        number.insertAfter(node)
        mark = graph.create(MARK, [value, number.output()], 1)
        mark.output().setType(value.type())
        number.copyMetadata(node)  # where torch says that an error is
        mark.copyMetadata(node)
        mark.insertAfter(number)
        value.replaceAllUsesAfterNodeWith(mark, mark.output())
        self.count += 1


def _mutates(kind: str) -> bool:
    """True if an operator changes one of its operands, by PyTorch's rule for names."""
    return (kind.endswith("_") and not kind.endswith("__")) or kind in ("aten::append", "aten::_set_item")


def take_marks(proto: onnx.ModelProto) -> dict[int, tuple[str, ...]]:
    """Remove the marks from an exported model; the names under which it has each marked tensor."""
    outputs = [output.name for output in proto.graph.output]
    name_of: dict[int, str] = {}
    same = _unmark(proto.graph, {}, name_of)
    for k in reversed(range(len(proto.opset_import))):
        if proto.opset_import[k].domain == DOMAIN:
            del proto.opset_import[k]
    return {k: (name, *(o for o in outputs if same.get(o) == name)) for k, name in name_of.items()}


def _unmark(graph: onnx.GraphProto, outer: Mapping[str, str], name_of: dict[int, str]) -> dict[str, str]:
    """Take the marks out of a graph and those within it; what each stood for, with those of `outer` around it."""
    same = dict(outer)
    kept = []
    for node in graph.node:
        if node.domain == DOMAIN and node.op_type == ONNX_MARK:
            marked = same.get(node.input[0], node.input[0])
            same[node.output[0]] = marked
            name_of[node.attribute[0].i] = marked
            continue
        node.input[:] = [same.get(name, name) for name in node.input]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _unmark(attribute.g, same, name_of)
        kept.append(node)
    for name in sorted({output.name for output in graph.output} & same.keys()):  # an output keeps its name
        kept.append(onnx.helper.make_node("Identity", [same[name]], [name], name=f"{name}/output"))
    del graph.node[:]
    graph.node.extend(kept)
    del graph.value_info[:]  # the shapes that the exporter found are inferred again, and more of them are known then
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    return same
