"""Normalisations, written with sums, products, roots and quotients.

Where the operator names a type for its statistics (`stash_type`), the values are cast to it and back as the operator
does.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage_cli.errors import Refused
from mirage_cli.frontends.onnx.ops.registry import MICROSOFT, Call, element_type, reads
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.extents import Extent, quotient
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph

EPSILON = 1e-5
_FLOAT = 1  #: ONNX's code of float32


def stashed(call: Call) -> int:
    """Input 0 in the type of the statistics."""
    return compose.converted(call.graph, call.arg(0), element_type(call.integer("stash_type", _FLOAT)))


def along_channels(graph: Graph, v: int | None, rank: int) -> int | None:
    """A vector over the channels, dimension 1 of `rank`."""
    if v is None or rank < 2:
        return v
    return graph.reshape(v, (1, graph.dims(v)[0], *[1] * (rank - 2)))


def normalize(graph: Graph, x: int, dims: Sequence[int], epsilon: float, centre: bool) -> tuple[int, int, int]:
    """(normalised x, mean, 1 / standard deviation) along `dims`; without `centre` the mean is taken as 0."""
    mean = compose.mean(graph, x, dims)
    y = graph.map("sub", x, mean) if centre else x
    deviation = graph.map("sqrt", compose.shift(graph, compose.mean(graph, compose.square(graph, y), dims), epsilon))
    return graph.map("div", y, deviation), mean, deviation


@reads("LayerNormalization")
def _layer_normalization(call: Call) -> list[int | None]:
    """(x - mean) / sqrt(variance + epsilon) from an axis on, times gain, plus bias; mean and deviation as outputs."""
    graph, x = call.graph, stashed(call)
    rank = len(graph.dims(x))
    dims = range(call.axis(-1, rank), rank)
    y, mean, deviation = normalize(graph, x, dims, call.real("epsilon", EPSILON), centre=True)
    y = compose.affine(graph, graph.cast(y, call.dtype(0)), call.arg(1), call.maybe(2))
    return [y, mean if call.wants(1) else None, graph.map("recip", deviation) if call.wants(2) else None]


@reads("RMSNormalization", "SimplifiedLayerNormalization")
def _rms_normalization(call: Call) -> list[int | None]:
    """x / sqrt(mean(x x) + epsilon) from an axis on, times gain, in the gain's type."""
    graph, x = call.graph, stashed(call)
    rank = len(graph.dims(x))
    y, _, deviation = normalize(graph, x, range(call.axis(-1, rank), rank), call.real("epsilon", EPSILON), centre=False)
    y = compose.affine(graph, graph.cast(y, call.dtype(1)), call.arg(1), None)
    return [y, graph.map("recip", deviation) if call.wants(1) else None]


@reads("SimplifiedLayerNormalization", domain=MICROSOFT)
def _simplified_layer_normalization(call: Call) -> int:
    """x / sqrt(mean(x x) + epsilon) from an axis on, times gain."""
    graph, x = call.graph, compose.converted(call.graph, call.arg(0), F32)
    rank = len(graph.dims(x))
    y, _, _ = normalize(graph, x, range(call.axis(-1, rank), rank), call.real("epsilon", EPSILON), centre=False)
    return compose.affine(graph, graph.cast(y, call.dtype(0)), call.arg(1), None)


@reads("GroupNormalization")
def _group_normalization(call: Call) -> int:
    """Layer normalisation over each group of channels, times gain, plus bias (by group before opset 21, then by channel)."""
    graph, x = call.graph, stashed(call) if call.version >= 21 else call.arg(0)
    dims, groups = graph.dims(x), call.integer("num_groups", 1)
    size = quotient(dims[1], groups)
    if size is None:
        raise Refused(f"{dims[1]} channels do not divide into {groups} groups")
    grouped: list[Extent] = [dims[0], groups, size, *dims[2:]]
    y, _, _ = normalize(
        graph, graph.reshape(x, grouped), range(2, len(grouped)), call.real("epsilon", EPSILON), centre=True
    )
    y = graph.cast(y, call.dtype(0))
    gain, bias = call.arg(1), call.arg(2)
    if call.version < 21:
        parameters = (along_channels(graph, v, len(grouped)) for v in (gain, bias))
        return graph.reshape(compose.affine(graph, y, *parameters), dims)
    parameters = (along_channels(graph, v, len(dims)) for v in (gain, bias))
    return compose.affine(graph, graph.reshape(y, dims), *parameters)


@reads("InstanceNormalization")
def _instance_normalization(call: Call) -> int:
    """Layer normalisation over each channel, times gain, plus bias."""
    graph, x = call.graph, call.arg(0)
    rank = len(graph.dims(x))
    y, _, _ = normalize(graph, x, range(2, rank), call.real("epsilon", EPSILON), centre=True)
    return compose.affine(graph, y, along_channels(graph, call.arg(1), rank), along_channels(graph, call.arg(2), rank))


@reads("BatchNormalization")
def _batch_normalization(call: Call) -> int:
    """(x - mean) / sqrt(variance + epsilon) with given statistics, times gain, plus bias; training is refused."""
    graph, x = call.graph, call.arg(0)
    if call.integer("training_mode", 0):
        raise Refused("training mode")
    if not call.integer("spatial", 1):  # before opset 9
        raise Refused("statistics for every element")
    rank = len(graph.dims(x))
    gain, bias, mean, variance = (along_channels(graph, call.arg(i), rank) for i in range(1, 5))
    if mean is None or variance is None:
        raise Refused("statistics are missing")
    deviation = graph.map("sqrt", compose.shift(graph, variance, call.real("epsilon", EPSILON)))
    y = graph.map("div", graph.map("sub", x, mean), deviation)
    return graph.cast(compose.affine(graph, y, gain, bias), graph.dtype(x))


@reads("MeanVarianceNormalization")
def _mean_variance_normalization(call: Call) -> int:
    """(x - mean) / standard deviation: onnxruntime adds nothing to it, and equal elements give NaN."""
    graph, x = call.graph, call.arg(0)
    dims = call.integers("axes", (0, 2, 3))
    y = compose.centred(graph, x, dims)
    deviation = graph.map("sqrt", compose.mean(graph, compose.square(graph, y), dims))
    return graph.map("div", y, deviation)


@reads("LpNormalization")
def _lp_normalization(call: Call) -> int:
    """`share` in the sum of `abs`, or in the `sqrt` of the sum of x x."""
    graph, x = call.graph, call.arg(0)
    dims = [call.axis(-1, len(graph.dims(x)))]
    p = call.integer("p", 2)
    if p == 1:
        return graph.map("share", x, graph.reduce("sum", graph.map("abs", x), dims))
    if p == 2:
        return graph.map("share", x, graph.map("sqrt", graph.reduce("sum", compose.square(graph, x), dims)))
    raise Refused(f"norm of order {p}")
