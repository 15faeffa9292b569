"""Products of matrices: contractions."""

from __future__ import annotations

from mirage_cli.errors import Refused
from mirage_cli.frontends.onnx.ops.elementwise import whole_arithmetic
from mirage_cli.frontends.onnx.ops.registry import MICROSOFT, Call, reads
from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph, UnequalExtents
from mirage_cli.lax.ops import OPS


@reads("MatMul")
def _matmul(call: Call) -> int:
    """A contraction."""
    whole_arithmetic(call.dtype(0))
    return compose.matmul(call.graph, call.arg(0), call.arg(1))


def gemm(call: Call) -> int:
    """alpha times a contraction plus beta times the third operand; transposed operands are other labels."""
    graph, x, y = call.graph, call.arg(0), call.arg(1)
    whole_arithmetic(graph.dtype(x))
    m, k, n = 0, 1, 2
    lhs = [k, m] if call.integer("transA", 0) else [m, k]
    rhs = [n, k] if call.integer("transB", 0) else [k, n]
    z = compose.scale(graph, graph.contract(x, y, lhs, rhs, [m, n]), call.real("alpha", 1.0))
    c, beta = call.maybe(2), call.real("beta", 1.0)
    return z if c is None or beta == 0 else graph.map("add", z, compose.scale(graph, c, beta))


reads("Gemm")(gemm)


@reads("FusedGemm", domain=MICROSOFT)
def _fused_gemm(call: Call) -> int:
    """As Gemm, then an activation that the registry has by its ONNX name."""
    name = call.text("activation", "")
    activation = next((op.name for op in OPS.values() if name and op.onnx == name and op.arity == 1), None)
    if activation is None:
        raise Refused(f"activation {name!r}")
    return call.graph.map(activation, gemm(call))


@reads("FusedMatMul", domain=MICROSOFT)
def _fused_matmul(call: Call) -> int:
    """alpha times a contraction of transposed operands."""
    graph = call.graph
    x = _transposed(graph, call.arg(0), call.integer("transA", 0), call.integer("transBatchA", 0))
    y = _transposed(graph, call.arg(1), call.integer("transB", 0), call.integer("transBatchB", 0))
    return compose.scale(graph, compose.matmul(graph, x, y), call.real("alpha", 1.0))


def _transposed(graph: Graph, x: int, last: int, batch: int) -> int:
    """The last two dimensions exchanged, and before that the first one moved to the last place but one."""
    rank = len(graph.dims(x))
    order = list(range(rank))
    if batch and rank > 2:
        order = [*order[1:-1], order[0], order[-1]]
    if last and rank > 1:
        order[-2:] = order[:-3:-1]
    return graph.transpose(x, order)


# --- Einsum -----------------------------------------------------------------------------------------------------------
@reads("Einsum")
def _einsum(call: Call) -> int:
    """Contractions of two operands at a time, one after the other; a label twice in one operand is refused."""
    graph, values = call.graph, call.args()
    whole_arithmetic(graph.dtype(values[0]))
    terms, out = einsum_labels(call.text("equation", ""), [len(graph.dims(v)) for v in values])
    x, labels = values[0], terms[0]
    for i in range(1, len(values)):
        later = set(out).union(*terms[i + 1 :])
        kept = [n for n in dict.fromkeys([*labels, *terms[i]]) if n in later]
        if i + 1 == len(values):
            kept = out
        try:
            x, labels = graph.contract(x, values[i], labels, terms[i], kept), kept
        except UnequalExtents as unequal:  # either may be 1
            raise UnequalExtents(str(unequal), unequal.pair, broadcast=True) from None
    if labels != out:
        gone = [i for i, n in enumerate(labels) if n not in out]
        x = graph.reduce("sum", x, gone)
        x = graph.reshape(x, [e for i, e in enumerate(graph.dims(x)) if i not in gone])
        left = [n for n in labels if n in out]
        x = graph.transpose(x, [left.index(n) for n in out])
    return x


def einsum_labels(equation: str, ranks: list[int]) -> tuple[list[list[int]], list[int]]:
    """Labels of the operands and of the result of an einsum equation. Raises Refused."""
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    operands = left.split(",")
    if len(operands) != len(ranks):
        raise Refused(f"equation {equation!r} has {len(operands)} operands, the node has {len(ranks)}")
    numbers: dict[str, int] = {}
    rest = max(
        (rank - len(t.replace("...", "")) for t, rank in zip(operands, ranks, strict=True) if "..." in t), default=0
    )

    def labels(text: str, hidden: int) -> list[int]:
        before, dots, after = text.partition("...")
        middle = [numbers.setdefault(f"...{i}", len(numbers)) for i in range(rest - hidden, rest)] if dots else []
        named = [[numbers.setdefault(c, len(numbers)) for c in part] for part in (before, after)]
        return [*named[0], *middle, *named[1]]

    terms = []
    for text, rank in zip(operands, ranks, strict=True):
        hidden = rank - len(text.replace("...", ""))
        if hidden < 0 or (hidden and "..." not in text):
            raise Refused(f"operand {text!r} of the equation does not fit a tensor of rank {rank}")
        term = labels(text, hidden)
        if len(set(term)) != len(term):
            raise Refused(f"operand {text!r} repeats a label: a diagonal")
        terms.append(term)
    if not arrow:
        letters = sorted(c for c in numbers if len(c) == 1 and left.count(c) == 1)
        right = ("..." if rest else "") + "".join(letters)
    out = labels(right, rest)
    if len(set(out)) != len(out) or not set(out) <= set().union(*terms):
        raise Refused(f"result {right!r} of the equation repeats a label or has a new one")
    return terms, out


# --- Conv -------------------------------------------------------------------------------------------------------------
@reads("Conv")
def _conv(call: Call) -> int:
    """A contraction over channels and kernel elements, when windows do not overlap (patches, 1x1) and nothing is padded."""
    graph, x, w = call.graph, call.arg(0), call.arg(1)
    rank, kernel = len(graph.dims(x)), graph.dims(w)[2:]
    if rank < 3 or len(graph.dims(w)) != rank:
        raise Refused(f"a kernel of rank {len(graph.dims(w))} for a tensor of rank {rank}")
    if call.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or any(call.integers("pads", ())):
        raise Refused("a convolution with padding")
    ones = [1] * (rank - 2)
    strides, dilations = call.integers("strides", ones), call.integers("dilations", ones)
    for i, (size, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        if not isinstance(size, int) or size > stride or (dilation != 1 and size != 1):
            raise Refused(f"a convolution whose windows overlap: {size} elements, stride {stride}, dilation {dilation}")
        x = _windows(graph, x, 2 + 2 * i, size, stride)
    y = _over_windows(graph, x, w, call.integer("group", 1))
    bias = call.maybe(2)
    return y if bias is None else graph.map("add", y, graph.reshape(bias, (1, graph.dims(bias)[0], *ones)))


def _windows(graph: Graph, x: int, dim: int, size: int, stride: int) -> int:
    """Dimension `dim` as two: the windows, and the elements of each. Raises Refused where the windows do not fit."""
    dims = graph.dims(x)
    extent = dims[dim]
    count = (extent - size) // stride + 1 if isinstance(extent, int) else ex.quotient(extent, stride)
    if count is None or (size > 1 and ex.product([count, stride]) != extent):
        raise Refused(f"windows of {size} elements with stride {stride} do not fill a dimension of {extent}")
    if size == 1:
        return graph.reshape(graph.slice(x, dim, 0, count, stride), [*dims[:dim], count, 1, *dims[dim + 1 :]])
    return graph.slice(graph.reshape(x, [*dims[:dim], count, stride, *dims[dim + 1 :]]), dim + 1, 0, size)


def _over_windows(graph: Graph, x: int, w: int, groups: int) -> int:
    """The contraction of [batch, channels, (windows, elements) for each dimension] with a kernel. Raises Refused."""
    batch, channels, *windows = graph.dims(x)
    features, own, *kernel = graph.dims(w)
    shares = [ex.quotient(n, groups) for n in (channels, features)]
    if shares[0] is None or shares[1] is None:
        raise Refused(f"{channels} and {features} channels do not divide into {groups} groups")
    x = graph.reshape(x, [batch, groups, shares[0], *windows])
    w = graph.reshape(w, [groups, shares[1], own, *kernel])
    n, group, c, m = range(4)
    places = [4 + i for i in range(len(windows))]
    y = graph.contract(x, w, [n, group, c, *places], [group, m, c, *places[1::2]], [n, group, m, *places[::2]])
    return graph.reshape(y, [batch, features, *windows[::2]])
