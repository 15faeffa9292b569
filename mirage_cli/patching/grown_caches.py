"""Tensors that an operator returns beside its result, such as grown caches, as what they are made of.

Attention returns its keys and values too: the past ones and the new ones behind them. A fragment reads these, and the node
that it replaces computes them. So they are computed by nodes of their own where the fragment takes that node's place, and
the fragment's original cuts the past and the new ones out of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.graph import Concat, Graph, Reshape, Transpose

KEEP, REST = 0, -1  #: in the dimensions of an ONNX Reshape: as it was; whatever is left


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a grown tensor, from `start` to `stop` along its axis (below 0: from the end on; None: the end).

    It is `tensor` of the model, with the dimensions `split` and then transposed by `perm` where these are given; `flat`
    are its own dimensions again.
    """

    tensor: ir.Value
    start: int
    stop: int | None
    split: tuple[int, ...] = ()
    perm: tuple[int, ...] = ()
    flat: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Grown:
    """Parts one after the other along `axis`; one part alone is another name or layout of a tensor."""

    axis: int
    parts: tuple[Part, ...]


def grown_tensors(model: ir.Model, graph: Graph, values: Mapping[str, int]) -> dict[str, Grown]:
    """For tensors of nodes with several results what they are made of, as far as tensors of the model make them up."""
    first: dict[int, ir.Value] = {}
    tensors = [*model.graph.inputs, *model.graph.initializers.values()]
    for v in (*tensors, *(o for node in model.graph for o in node.outputs)):
        if v.name in values:
            first.setdefault(values[v.name or ""], v)
    grown: dict[str, Grown] = {}
    for node in model.graph:
        if len(node.outputs) > 1:
            own = _Tensors(graph, first, node)
            names = [v.name or "" for v in node.outputs]
            own_grown = {name: own.made_of(values[name]) for name in names if name in values}
            grown |= {name: m for name, m in own_grown.items() if m is not None}
    return grown


@dataclass(frozen=True, slots=True)
class _Tensors:
    """The tensors of a model that hold values, but for those that one node computes."""

    graph: Graph
    first: Mapping[int, ir.Value]
    apart_from: ir.Node

    def holding(self, number: int) -> ir.Value | None:
        """A tensor that holds a value."""
        tensor = self.first.get(number)
        return None if tensor is None or tensor.producer() is self.apart_from else tensor

    def made_of(self, number: int) -> Grown | None:
        """A value as a concatenation of tensors, or as one of them."""
        step = self.graph.steps[number]
        if not isinstance(step, Concat):
            part = self.part(number, 0, None)
            return None if part is None else Grown(0, (part,))
        inputs = self.graph.inputs[number]
        bounds = _bounds([self.graph.dims(v)[step.dim] for v in inputs])
        parts = [self.part(v, *b) for v, b in zip(inputs, bounds or (), strict=bounds is not None)]
        whole_parts = tuple(p for p in parts if p is not None)
        return Grown(step.dim, whole_parts) if whole_parts and len(whole_parts) == len(inputs) else None

    def part(self, number: int, start: int, stop: int | None) -> Part | None:
        """A stretch that a tensor is, or becomes when its dimensions are split and transposed."""
        tensor, step = self.holding(number), self.graph.steps[number]
        if tensor is not None:
            return Part(tensor, start, stop)
        if not isinstance(step, Transpose):
            return None
        (split,) = self.graph.inputs[number]
        flat = self.graph.inputs[split][0] if isinstance(self.graph.steps[split], Reshape) else None
        tensor = None if flat is None else self.holding(flat)
        if flat is None or tensor is None:
            return None
        shapes = self.graph.dims(split), self.graph.dims(flat)
        there, back = _dims(*shapes), _dims(*shapes[::-1])
        return None if there is None or back is None else Part(tensor, start, stop, there, step.perm, back)


def _bounds(extents: list[Extent]) -> list[tuple[int, int | None]] | None:
    """Where stretches of these extents stand, counted from the end, so that the first one may be symbolic."""
    numbers = [e for e in extents[1:] if isinstance(e, int)]
    if len(numbers) < len(extents) - 1:
        return None
    behind = [sum(numbers[k:]) for k in range(len(extents))]
    starts = [0, *(-n for n in behind[:-1])]
    return [(start, -n if n else None) for start, n in zip(starts, behind, strict=True)]


def _dims(wanted: tuple[Extent, ...], given: tuple[Extent, ...]) -> tuple[int, ...] | None:
    """Dimensions as ONNX's Reshape takes them; None where two of them are symbolic and new."""
    dims = [
        KEEP if k < len(given) and e == given[k] else e if isinstance(e, int) else REST for k, e in enumerate(wanted)
    ]
    return tuple(dims) if dims.count(REST) < 2 else None
