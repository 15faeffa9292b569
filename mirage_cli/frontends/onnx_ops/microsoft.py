"""Normalisations of onnxruntime's own operators, which its optimiser writes into models."""

from __future__ import annotations

from mirage_cli.frontends.onnx_ops.normalization import EPSILON, normalize
from mirage_cli.frontends.onnx_ops.registry import MICROSOFT, Call, reads
from mirage_cli.lax import compose
from mirage_cli.lax.dtypes import F32

_SKIP_EPSILON = 1e-12  #: the default of the operators with a skip connection


@reads("SimplifiedLayerNormalization", domain=MICROSOFT)
def _simplified_layer_normalization(call: Call) -> int:
    """x / sqrt(mean(x x) + epsilon) from an axis on, times gain."""
    g, x = call.graph, call.graph.cast(call.arg(0), F32)
    rank = len(g.dims(x))
    y, _, _ = normalize(g, x, range(call.axis(-1, rank), rank), call.real("epsilon", EPSILON), centre=False)
    return compose.affine(g, g.cast(y, call.dtype(0)), call.arg(1), None)


@reads("SkipLayerNormalization", domain=MICROSOFT)
def _skip_layer_normalization(call: Call) -> list[int | None]:
    """Layer normalisation of x + skip (+ bias), times gain, plus beta; the sum is the fourth output."""
    return _skip(call, gain=2, beta=3, bias=4, centre=True)


@reads("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_simplified_layer_normalization(call: Call) -> list[int | None]:
    """As SkipLayerNormalization, without mean and beta."""
    return _skip(call, gain=2, beta=None, bias=3, centre=False)


def _skip(call: Call, gain: int, beta: int | None, bias: int, centre: bool) -> list[int | None]:
    g = call.graph
    x = compose.affine(g, g.map("add", call.arg(0), call.arg(1)), None, call.maybe(bias))
    stash = g.cast(x, F32)
    y, mean, deviation = normalize(g, stash, [len(g.dims(x)) - 1], call.real("epsilon", _SKIP_EPSILON), centre)
    y = compose.affine(g, g.cast(y, call.dtype(0)), call.arg(gain), None if beta is None else call.maybe(beta))
    return [
        y,
        mean if centre and call.wants(1) else None,
        g.map("recip", deviation) if call.wants(2) else None,
        x,
    ]
