"""Random graphs beside numpy: their fragments, in the order of the steps, compute what the graph says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import mirage_cli as mi
from mirage_cli.planning.plan import PlanOptions, plan_fragment
from tests.python.cases import layer, rms, sigmoid, softmax
from tests.python.computing import Array, computed

SHAPES = [(4, 6), (6,), (2, 4, 6), (4, 1)]


@dataclass(frozen=True)
class Value:
    """A tensor of a graph with its elements."""

    tensor: mi.Tensor
    array: Array


UNARY: dict[str, tuple[Callable[..., mi.Tensor], Callable[[Array], Array]]] = {
    "tanh": (lambda g, a: g.tanh(a), np.tanh),
    "silu": (lambda g, a: g.silu(a), lambda x: x * sigmoid(x)),
    "half": (lambda g, a: 1 - a / 2, lambda x: 1 - x / 2),
    "clamp": (lambda g, a: g.clamp(a, -1, 1), lambda x: np.clip(x, -1, 1)),
    "softmax": (lambda g, a: g.softmax(a), softmax),
    "rms_norm": (lambda g, a: g.rms_norm(a), rms),
    "layer_norm": (lambda g, a: g.layer_norm(a, eps=0.1), lambda x: layer(x, eps=0.1)),
    "mean": (lambda g, a: g.mean(a, 0), lambda x: x.mean(0, keepdims=True)),
    "transpose": (lambda g, a: g.transpose(a), np.transpose),
    "flatten": (lambda g, a: g.reshape(a, (-1,)), np.ravel),
    "slice": (lambda g, a: g.slice(a, 0, 0, -(-a.dims[0] // 2)), lambda x: x[: -(-x.shape[0] // 2)]),
}
BINARY: dict[str, tuple[Callable[..., mi.Tensor], Callable[[Array, Array], Array]]] = {
    "add": (lambda g, a, b: a + b, np.add),
    "sub": (lambda g, a, b: a - b, np.subtract),
    "mul": (lambda g, a, b: a * b, np.multiply),
    "matmul": (lambda g, a, b: a @ b, np.matmul),
    "where": (lambda g, a, b: g.where(g.less(a, b), b, 0.5), lambda x, y: np.where(x < y, y, 0.5)),
}


@st.composite
def graphs(draw: st.DrawFn) -> tuple[mi.KernelGraph, list[Array], list[Array]]:
    """A graph, arrays for its inputs, and what numpy makes of them for each of its outputs."""
    graph = mi.new_kernel_graph()
    random = np.random.default_rng(draw(st.integers(0, 99)))
    values: list[Value] = []
    for shape in draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)):
        array = random.standard_normal(shape).astype(np.float32)
        weight = bool(values) and draw(st.booleans())
        tensor = graph.new_weight(array) if weight else graph.new_input(shape, mi.float32)
        values.append(Value(tensor, array.astype(np.float64)))
    inputs = [v for v in values if v.tensor in graph.inputs]
    for name in draw(st.lists(st.sampled_from([*UNARY, *BINARY]), min_size=1, max_size=6)):
        a, b = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        try:
            if name in UNARY:
                made = Value(UNARY[name][0](graph, a.tensor), UNARY[name][1](a.array))
            else:
                made = Value(BINARY[name][0](graph, a.tensor, b.tensor), BINARY[name][1](a.array, b.array))
        except mi.UsageError:
            continue  # the shapes do not fit, and nothing was added
        assert tuple(made.tensor.dims) == made.array.shape
        values.append(made)
    arrays = {v.tensor: v.array for v in values}
    if not graph.outputs:
        reject()
    return graph, [v.array.astype(np.float32) for v in inputs], [arrays[t] for t in graph.outputs]


def compared(drawn: tuple[mi.KernelGraph, list[Array], list[Array]]) -> Any:
    """The fragments of a graph whose outputs are right."""
    graph, arrays, wanted = drawn
    try:
        found, work = computed(graph, arrays)
    except mi.Refused as error:
        assert re.search("are the same value|is an input or a constant|cannot be part of a kernel", str(error))
        reject()
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return work


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_fragments_compute_the_graph(drawn: tuple[mi.KernelGraph, list[Array], list[Array]]) -> None:
    compared(drawn)


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_fragments_are_found_and_proved(drawn: tuple[mi.KernelGraph, list[Array], list[Array]]) -> None:
    for w in compared(drawn):
        plan = plan_fragment(w.id, w.name, w.program, w.operators, PlanOptions({"cpu": ("cpu",)}))
        assert plan.reasons == {}
        assert plan.plans["cpu"].verdict.log2_bound < -40
