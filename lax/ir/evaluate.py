"""Interpreters: the value of a graph or of a named-axis program in a domain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Array, Axes, Domain
from mirage_cli.lax.dtypes import unpacked
from mirage_cli.lax.ir import graph as g
from mirage_cli.lax.ops import lookup


class ArrayValues(Domain[Array], Protocol):
    """A domain whose values are arrays with `lead` leading dimensions that are not the tensor's."""

    lead: int


def evaluate_graph(
    graph: g.Graph,
    domain: ArrayValues,
    inputs: Mapping[str, Array],
    symbols: Mapping[str, int] | None = None,
) -> list[Array]:
    """The outputs of a graph in an array domain whose axes are dimension positions.

    `inputs` gives each `Input` an array of its dimensions (behind the domain's leading ones), `symbols` each symbolic
    extent a number. Raises InvalidGraph for operators that are not read (opaque) and for missing inputs.
    """
    values: dict[int, Array] = {}
    symbols = symbols or {}
    with np.errstate(all="ignore"):
        for v in graph.cone(graph.outputs):
            args = [values[a] for a in graph.inputs[v]]
            values[v] = step_value(graph, v, domain, args, inputs, symbols)
    return [values[v] for v in graph.outputs]


def step_value(
    graph: g.Graph, v: int, d: ArrayValues, args: list[Array], inputs: Mapping[str, Array], symbols: Mapping[str, int]
) -> Array:
    """The value of step `v` whose operands are `args`. Raises InvalidGraph for an opaque one and a missing input."""
    step, dims = graph.steps[v], [ex.value(e, symbols) for e in graph.dims(v)]
    rank, lead = len(dims), d.lead
    match step:
        case g.Input(name):
            if name not in inputs:
                raise InvalidGraph(f"no value for input {name!r}")
            return inputs[name]
        case g.Fill(value):
            return broadcast_to(fit(np.asarray(d.const(value)), rank, lead), dims, lead)
        case g.Map(op):
            result = lookup(op).apply(d, *[fit(a, rank, lead) for a in args])
            return broadcast_to(result, dims, lead)
        case g.Cast():
            return args[0]
        case g.StableExp(over):
            return d.stable_exp(args[0], _negative(over, rank))
        case g.Reduce("sum", over):
            return d.sum(args[0], _negative(over, rank))
        case g.Reduce(kind, over):
            return d.extreme(kind, args[0], _negative(over, rank))
        case g.Contract(lhs, rhs, out):
            return _contract(d, args[0], args[1], lhs, rhs, out)
        case g.Reshape():
            return args[0].reshape(args[0].shape[:lead] + tuple(dims))
        case g.Unpack():
            return unpacked(args[0].astype(np.uint8), graph.dtype(v)).astype(args[0].dtype)
        case g.Transpose(perm):
            return args[0].transpose([*range(lead), *[p + lead for p in perm]])
        case g.Expand():
            return broadcast_to(args[0], dims, lead)
        case g.Slice(dim, start, stride):
            extent = args[0].shape[dim + lead]
            first = max(0, start + extent) if start < 0 else start
            return np.take(args[0], first + stride * np.arange(dims[dim]), axis=dim + lead)
        case g.Concat(dim):
            return np.concatenate(args, axis=dim + lead)
        case g.Iota(dim):
            return broadcast_to(fit(d.iota(dim - rank, dims[dim]), rank, lead), dims, lead)
        case g.Choose():
            index = args[1][(0,) * lead]  # numbers of rows are the same in all fields
            chosen: Array = np.take(args[0], index.astype(np.int64), axis=lead)
            return chosen
        case g.Opaque(label):
            raise InvalidGraph(f"operator {label} is not read and has no value")


def _contract(d: ArrayValues, x: Array, y: Array, lhs: Axes, rhs: Axes, out: Axes) -> Array:
    labels = [*out, *[label for label in dict.fromkeys([*lhs, *rhs]) if label not in out]]
    over = [i - len(labels) for i in range(len(out), len(labels))]
    x, y = (_place(a, own, labels, d.lead) for a, own in ((x, lhs), (y, rhs)))
    result = d.contract(x, y, over)
    return result.reshape(result.shape[: d.lead + len(out)])


def _place(a: Array, own: Axes, labels: Axes, lead: int) -> Array:
    order = sorted(range(len(own)), key=lambda i: labels.index(own[i]))
    a = a.transpose([*range(lead), *[i + lead for i in order]])
    sizes = dict(zip([own[i] for i in order], a.shape[lead:], strict=True))
    return a.reshape(a.shape[:lead] + tuple(sizes.get(label, 1) for label in labels))


def fit(a: Array, rank: int, lead: int) -> Array:
    """`a` with ones put in front of its own dimensions, so that it has `rank` of them."""
    missing = rank - (a.ndim - lead)
    return a.reshape(a.shape[:lead] + (1,) * missing + a.shape[lead:]) if missing > 0 else a


def broadcast_to(a: Array, dims: list[int], lead: int) -> Array:
    """`a` repeated to the given dimensions."""
    return np.broadcast_to(a, a.shape[:lead] + tuple(dims))


def _negative(dims: tuple[int, ...], rank: int) -> list[int]:
    return [i - rank for i in dims]
