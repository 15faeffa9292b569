"""Nodes at which onnx's own shape inference, which is C++, ends the process, or does not end, instead of raising an error.

1. RegexFullMatch and EyeLike read the type of their operand without asking whether there is one;
2. Split writes as many results as `num_outputs` says less than it has outputs;
3. GatherND and LayerNormalization read dimensions that are none where `batch_dims` is negative, or `axis` needs more than
   32 bits;
4. GatherND and Slice do so too where a dimension is negative;
5. Einsum looks for the end of a term without an end where its equation has other signs than letters.

And a node that folding, which is Python, may take hours and all memory for:

6. SplitToSequence is written out with a name for every result, of which a few bytes may tell billions.

And one whose type onnx-ir cannot read back:

7. ZipMap makes a sequence of maps.

Most were found by giving every operator of every version operands without a type, and attributes and operands of
extreme values (onnx 1.23).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Container, Iterator

import onnx
import onnx_ir as ir

from mirage_cli.errors import ModelError
from mirage_cli.frontends.onnx.traversal import all_graphs, all_nodes

NEED_A_TYPE = ("RegexFullMatch", "EyeLike")
#: what attributes that name dimensions may be: from, to
_DIMENSIONS = {("GatherND", "batch_dims"): (0, 1 << 15), ("LayerNormalization", "axis"): (-(1 << 15), 1 << 15)}
_ANY = (-(1 << 63), 1 << 63)
_TERM = r"[a-zA-Z]*(?:\.\.\.)?[a-zA-Z]*"
_EQUATION = re.compile(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?")
SPLIT = "SplitToSequence"
_MAKES_MAPS = ("ai.onnx.ml", "ZipMap")
MOST = 1 << 14  #: results for which folding may write such nodes out, in all
_HIDDEN = "mirage.hidden"  #: a domain whose operators inference does not know


def check(model: ir.Model, path: str) -> None:
    """Cases 3 and 5, where functions are written out and attributes are of their types: raise ModelError."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        given = {name: attribute.value for name, attribute in node.attributes.items()}
        equation = str(given.get("equation", ""))
        if node.op_type == "Einsum" and not _EQUATION.fullmatch(equation.replace(" ", "")):
            wanted = "expected letters, `...`, commas and one `->`"
            raise ModelError(f"{path}: {label_of(node)} has the equation {equation!r}, which is none: {wanted}")
        for name, value in given.items():
            low, high = _DIMENSIONS.get((node.op_type, name), _ANY)
            if isinstance(value, int) and not low <= value < high:
                raise ModelError(f"{path}: {label_of(node)} has {name} = {value}, which is no dimension")


def label_of(node: ir.Node) -> str:
    """The words of a message for a node: its name, or what it computes."""
    if node.name:
        return f"node {node.name!r}"
    output = next((v.name for v in node.outputs if v.name), None)
    return f"a node without a name ({node.op_type})" if output is None else f"the node that computes {output!r}"


def without_negative_dimensions(proto: onnx.ModelProto) -> None:
    """Case 4: let dimensions that are declared to be negative be unknown."""
    for graph in all_graphs(proto):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_value < 0:
                    dim.ClearField("dim_value")


def may_infer(node: onnx.NodeProto, known: Container[str]) -> bool:
    """True if inference may be asked about a node alone, when the types of the `known` tensors are given to it: those
    of what its sub-graphs read are not."""
    own, *inner = all_nodes([node])
    if any(n.op_type == "Split" and _told(n) not in (None, len(n.output)) for n in (own, *inner)):
        return False
    typed = own.op_type not in NEED_A_TYPE or (bool(own.input) and own.input[0] in known)
    return typed and all(n.op_type not in NEED_A_TYPE for n in inner)


def _told(node: onnx.NodeProto) -> int | None:
    return next((a.i for a in node.attribute if a.name == "num_outputs"), None)


def _is_miscounted(node: ir.Node) -> bool:
    """True for a Split into another number of parts than it has results."""
    told = node.attributes.get("num_outputs") if node.op_type == "Split" else None
    return told is not None and told.value != len(node.outputs)


def _lacks_a_type(node: ir.Node) -> bool:
    return node.op_type in NEED_A_TYPE and (not node.inputs or node.inputs[0] is None or node.inputs[0].type is None)


def _results(node: ir.Node) -> int | None:
    """Number of results of a SplitToSequence, where that is known: what it is split by is one size, or the sizes of
    all."""
    if len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    shape, split = node.inputs[0].shape, node.inputs[1]
    sizes = split.shape if split.shape is not None or split.const_value is None else split.const_value.shape
    axis = node.attributes.get("axis")
    try:
        if sizes is not None and len(sizes) == 1:
            return sizes[0] if isinstance(sizes[0], int) else None
        if shape is None or split.const_value is None or split.const_value.size != 1:
            return None
        total, size = shape[0 if axis is None else axis.as_int()], int(split.const_value.numpy().item())
    except (IndexError, TypeError, ValueError, OverflowError, AttributeError):  # an axis or a size that is none
        return None
    return -(-total // size) if isinstance(total, int) and size > 0 else None


@contextlib.contextmanager
def hidden_nodes(model: ir.Model) -> Iterator[Callable[[], bool]]:
    """Cases 1, 2 and 7: keep such nodes from inference, in case 1 where the model does not say their operand's type. Case 6:
    keep such nodes from folding until what is called here finds, by what is known then, how few results they make; it says
    whether it found any."""
    domains: dict[ir.Node, str] = {
        node: node.domain
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if (node.domain in ("", "ai.onnx") and (_lacks_a_type(node) or _is_miscounted(node) or node.op_type == SPLIT))
        or (node.domain, node.op_type) == _MAKES_MAPS
    }
    for node in domains:
        node.domain = _HIDDEN
    if domains:
        model.graph.opset_imports[_HIDDEN] = 1

    left = MOST

    def shown() -> bool:
        nonlocal left
        before = len(domains)
        for node in [n for n in domains if n.op_type == SPLIT]:
            count = _results(node)
            if count is not None and count <= left:
                left -= count
                node.domain = domains.pop(node)
        return len(domains) < before

    try:
        yield shown
    finally:
        for node, domain in domains.items():
            node.domain = domain
        model.graph.opset_imports.pop(_HIDDEN, None)
