"""Normalisations of onnxruntime's own operators, which its optimiser writes into models."""

from __future__ import annotations

from mirage_cli.frontends.onnx.ops.normalization import EPSILON, normalize
from mirage_cli.frontends.onnx.ops.registry import MICROSOFT, Call, reads
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir import compose


@reads("SimplifiedLayerNormalization", domain=MICROSOFT)
def _simplified_layer_normalization(call: Call) -> int:
    """x / sqrt(mean(x x) + epsilon) from an axis on, times gain."""
    graph, x = call.graph, compose.converted(call.graph, call.arg(0), F32)
    rank = len(graph.dims(x))
    y, _, _ = normalize(graph, x, range(call.axis(-1, rank), rank), call.real("epsilon", EPSILON), centre=False)
    return compose.affine(graph, graph.cast(y, call.dtype(0)), call.arg(1), None)
