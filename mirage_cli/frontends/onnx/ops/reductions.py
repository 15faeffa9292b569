"""Reductions and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mirage_cli.errors import Refused
from mirage_cli.frontends.onnx.ops.elementwise import floating, whole_arithmetic
from mirage_cli.frontends.onnx.ops.registry import Call, dimension, reads
from mirage_cli.lax.dtypes import BOOL
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph

ALONG_ONE_AXIS = 13  #: the opset from which on a softmax is along one axis
Reduction = Callable[[Graph, int, Sequence[int]], int]


def reduced_dims(call: Call) -> list[int]:
    """The dimensions that the node reduces: its axes, all of them, or none."""
    rank = len(call.dims(0))
    axes = call.axes(1, rank)
    if axes:
        return sorted(set(axes))
    return [] if call.integer("noop_with_empty_axes", 0) else list(range(rank))


def _without(graph: Graph, x: int, dims: Sequence[int]) -> int:
    """Drop reduced dimensions."""
    return graph.reshape(x, [e for i, e in enumerate(graph.dims(x)) if i not in dims])


def _reduction(function: Reduction, rounds: bool, empty: float | None = None) -> Callable[[Call], int]:
    """A reader. `rounds`: not exact for integers; `empty`: the result over no elements, where `function` has none."""

    def read(call: Call) -> int:
        graph, x = call.graph, floating(call) if rounds else call.arg(0)
        dims = reduced_dims(call)
        if empty is not None and any(graph.dims(x)[d] == 0 for d in dims):
            kept = [1 if i in dims else e for i, e in enumerate(graph.dims(x))]
            least = empty if graph.dtype(x) != BOOL else float(empty > 0)
            if not (graph.dtype(x).is_float or graph.dtype(x) == BOOL):
                raise Refused("an integer maximum over no elements")
            result = graph.expand(graph.fill(least, graph.dtype(x)), kept)
        else:
            result = function(graph, x, dims)
        return result if call.integer("keepdims", 1) else _without(graph, result, dims)

    return read


def _sum(graph: Graph, x: int, dims: Sequence[int]) -> int:
    whole_arithmetic(graph.dtype(x))
    return graph.reduce("sum", x, dims)


def _prod(graph: Graph, x: int, dims: Sequence[int]) -> int:
    whole_arithmetic(graph.dtype(x))
    return graph.reduce("prod", x, dims)


reads("ReduceSum", how="`sum`")(_reduction(_sum, False))
reads("ReduceProd", how="`prod`")(_reduction(_prod, False))
reads("ReduceMax", how="`max`")(_reduction(lambda g, x, d: g.reduce("max", x, d), False, -math.inf))
reads("ReduceMin", how="`min`")(_reduction(lambda g, x, d: g.reduce("min", x, d), False, math.inf))
reads("ReduceMean", how="`sum` divided by the number of elements")(_reduction(compose.mean, True))
reads("ReduceSumSquare", how="`sum` of x x")(_reduction(lambda g, x, d: _sum(g, compose.square(g, x), d), False))
reads("ReduceL1", how="`sum` of `abs`")(_reduction(lambda g, x, d: _sum(g, g.map("abs", x), d), False))
reads("ReduceL2", how="`sqrt` of the `sum` of x x")(
    _reduction(lambda g, x, d: g.map("sqrt", _sum(g, compose.square(g, x), d)), True)
)
reads("ReduceLogSum", how="`log` of the `sum`")(_reduction(lambda g, x, d: g.map("log", _sum(g, x, d)), True))
reads("ReduceLogSumExp", how="`log` of the `sum` of `exp`, with the maximum taken out")(
    _reduction(compose.log_sum_exp, True, -math.inf)
)


@reads("Softmax")
def _softmax(call: Call) -> int:
    """`StableExp` divided by its `sum`: the maximum is not part of the algebra; before opset 13 along all dimensions from
    the axis on."""
    return compose.softmax(call.graph, call.arg(0), _softmax_dims(call))


def _softmax_dims(call: Call) -> list[int]:
    """The dimensions along which a softmax is taken: its axis, and before opset 13 all behind it too."""
    rank = len(call.dims(0))
    if call.version >= ALONG_ONE_AXIS:
        return [call.axis(-1, rank)]
    axis = call.integer("axis", 1)
    return [] if axis == rank else list(range(dimension(axis, rank), rank))


@reads("LogSoftmax")
def _log_softmax(call: Call) -> int:
    """x - max, minus the `log` of the `sum` of its `exp`."""
    return compose.log_softmax(call.graph, call.arg(0), _softmax_dims(call))


@reads("GlobalAveragePool")
def _global_average_pool(call: Call) -> int:
    """The mean over all dimensions behind the second."""
    return compose.mean(call.graph, call.arg(0), range(2, len(call.dims(0))))
