"""What onnxruntime joins by itself when a session is made: nodes that a model has and a run has not.

1. DequantizeLinear of weights in whole numbers with the products that read it;
2. x Sigmoid(x), and GELU spelled out;
3. a sum with the normalisation that reads it;
4. a constant bias, and a constant factor, with the product in front of it;
5. MatMulInteger with what scales its sums, a constant bias, and the quantisation of an operand that nothing else reads;
6. a product of activations in 8 bits with DequantizeLinear in front of both operands, on CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from mirage_cli.frontends.onnx.ops.quantized import scaled_integers
from mirage_cli.frontends.onnx.parts.splicing import INSIDE

_PRODUCTS = ("MatMul", "Gemm", "MatMulNBits")
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
_NORMS = ("SimplifiedLayerNormalization",)


def launched(nodes: Iterable[ir.Node]) -> int:
    """How many of the nodes a run has as operators of their own."""
    return sum(not _joined(node) for node in nodes)


def unpacks(nodes: Iterable[ir.Node]) -> bool:
    """Whether the nodes have a product of packed weights (case 1): spelled as two, it is one for onnxruntime."""
    return any(_is_joined_with_product(node) for node in nodes)


def multiplies_integers(nodes: Iterable[ir.Node]) -> bool:
    """Whether the nodes have a product that a CPU computes in integers of 8 bits (case 6), though it is spelled in floats."""
    return any(n.op_type in ("MatMul", "Gemm") and _reads_integers(n) for n in nodes)


def inside(nodes: Iterable[ir.Node]) -> str:
    """The operator of the file that some of the nodes are a part of, or nothing: a run has one where the reader has many."""
    return next((str(told) for n in nodes if (told := n.meta.get(INSIDE)) is not None), "")


def torn(v: ir.Value) -> ir.Node | None:
    """The node of case 1 that computes a tensor, on its own if somebody else takes the product; None for other tensors."""
    maker = v.producer()
    while maker is not None and maker.op_type in ("Transpose", "Cast") and maker.inputs[0] is not None:
        maker = maker.inputs[0].producer()
    return maker if maker is not None and _is_packed(maker) else None


def _joined(node: ir.Node) -> bool:
    """True if a node becomes a part of another."""
    match node.op_type:
        case "DequantizeLinear":
            return _is_joined_with_product(node)
        case "DynamicQuantizeLinear":
            alone = not any(v.is_graph_output() for v in node.outputs)
            return alone and [user.op_type for user, _ in node.outputs[0].uses()] == ["MatMulInteger"]
        case "Cast":
            return scaled_integers(node) is not None
        case "Sigmoid":
            return any(user.op_type == "Mul" and node.inputs[0] in user.inputs for user in _users(node))
        case "Add":
            behind = any(m is not None and scaled_integers(m) is not None for m in _makers(node))
            scaled = behind and any(map(_is_weight, node.inputs))
            return scaled or _is_read_by_norm(node) or _is_constant_beside(node, (*_PRODUCTS, "Erf"))
        case "Mul" | "Div":
            before_erf = any(user.op_type == "Erf" for user in _users(node))
            return (
                before_erf
                or _is_constant_beside(node, _PRODUCTS)
                or _ends_gelu(node)
                or scaled_integers(node) is not None
            )
    return False


def _is_read_by_norm(node: ir.Node) -> bool:
    """True if a sum is read by a normalisation: LayerNormalization of three dimensions joins one that nothing else reads, and
    the others have been one operator with their sums before they were read."""
    users, shape = _users(node), node.outputs[0].shape
    alone = len(users) == 1 and not node.outputs[0].is_graph_output() and shape is not None and len(shape) == 3
    return any(u.op_type in _NORMS for u in users) or (alone and users[0].op_type == "LayerNormalization")


def _is_joined_with_product(node: ir.Node) -> bool:
    return _is_packed(node) and any(user.op_type in (*_PRODUCTS, "Transpose") for user in _users(node))


def _is_packed(node: ir.Node) -> bool:
    """True for DequantizeLinear of weights in whole numbers."""
    weight = node.inputs[0] if node.op_type == "DequantizeLinear" else None
    return weight is not None and _is_weight(weight) and weight.dtype is not None and weight.dtype.is_integer()


def _reads_integers(product: ir.Node) -> bool:
    """True if both operands are dequantised, activations among them by one scale; those of Gemm have zero points, and its bias
    is dequantised too where its result is not quantised."""
    makers = [None if m is None or m.op_type != "DequantizeLinear" else m for m in _makers(product)]
    stored = [(m.inputs[0], m.inputs[1]) for m in makers[:2] if m is not None]
    scales = [s.shape for q, s in stored if q is not None and s is not None and not _is_weight(q)]
    if len(stored) < 2 or any(q is None or q.dtype not in _BYTES for q, _ in stored):
        return False
    if not scales or any(s is None or not s.is_static() or math.prod(s.numpy()) != 1 for s in scales):
        return False
    if product.op_type == "Gemm":
        rounded = {user.op_type for user in _users(product)} == {"QuantizeLinear"}
        return all(len(m.inputs) > 2 for m in makers[:2] if m is not None) and (None not in makers or rounded)
    return True


def _is_constant_beside(node: ir.Node, kinds: tuple[str, ...]) -> bool:
    """True if one operand is a constant and the other the result of such a node."""
    beside = any(maker is not None and maker.op_type in kinds for maker in _makers(node))
    return beside and any(_is_weight(v) for v in node.inputs)


def _ends_gelu(node: ir.Node) -> bool:
    """True for the products of 1 + erf(x / sqrt(2)) with x and, behind it, with a half."""
    makers = [m for m in _makers(node) if m is not None]
    half = any(_is_weight(v) for v in node.inputs) and any(m.op_type == "Mul" and _ends_gelu(m) for m in makers)
    return half or any(m.op_type == "Add" and _is_constant_beside(m, ("Erf",)) for m in makers)


def _is_weight(v: ir.Value | None) -> bool:
    """True for what is known when a session is made."""
    maker = None if v is None else v.producer()
    return v is not None and (v.const_value is not None or (maker is not None and maker.op_type == "Constant"))


def _makers(node: ir.Node) -> list[ir.Node | None]:
    return [v.producer() if v is not None else None for v in node.inputs]


def _users(node: ir.Node) -> list[ir.Node]:
    return [user for v in node.outputs for user, _ in v.uses()]
