"""A name for what a program computes, which does not depend on how a model's exporter spelled it.

The normal form (lax/normal/canonical.py) is exact: it is what is searched and proved. Its key leaves out what makes no other
mathematics, so that fragments can be compared across exports of one model. Besides names these are:

1. the layout of tensors: the order of their dimensions, and which of them group elements only. Axes that come together
   wherever either comes are one axis here, also where they do not stand side by side;
2. what constants are beyond `KEY_BITS` bits: exporters fold them in different orders and round in between;
3. the order in which several terms are added, or several factors multiplied.

Programs of one key may thus need kernels of their own; `Program.key` tells them apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir.program import Axis, Input, Node, Program, Slot, Source
from mirage_cli.lax.normal.canonical import order

KEY_BITS = 12  #: of a constant's significant bits that a key looks at


def key(p: Program) -> str:
    """The key of a program in normal form."""
    nodes = tuple(n if n.value is None else replace(n, value=_rounded(n.value)) for n in p.nodes)
    joined = _joined_axes(replace(p, nodes=nodes, _axes_of={}))
    return order(_without_association(_without_layout(joined))).key()


def _rounded(value: Fraction | float) -> Fraction | float:
    if isinstance(value, float) or value == 0:
        return value
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - KEY_BITS)
    return round(value / unit) * unit


# --- 1. layout ----------------------------------------------------------------------------------------------------------
def _joined_axes(p: Program) -> Program:
    """The program with one axis for those that come together everywhere. Accesses keep its slot where its first one is."""
    places: dict[str, list[str]] = {a.name: [] for a in p.axes}
    partial = {n.axis for n in p.nodes if n.axis is not None}
    for name, access in _accesses(p):
        for slot in access:
            if slot.axis is not None:
                places[slot.axis].append(name)
                if slot != Slot(slot.axis, p.extent(slot.axis)):
                    partial.add(slot.axis)
    for n in p.nodes:
        for summed in n.over:
            places[summed].append(n.name)
    groups: dict[tuple[str, ...], list[str]] = {}
    for a in p.axes:
        if a.name not in partial:
            groups.setdefault(tuple(sorted(places[a.name])), []).append(a.name)
    extent = {g[0]: ex.product(p.extent(a) for a in g) for g in groups.values()}
    gone = {a for g in groups.values() for a in g[1:]}

    def slots(access: tuple[Slot, ...]) -> tuple[Slot, ...]:
        return tuple(
            Slot(slot.axis, extent[slot.axis]) if slot.axis in extent else slot
            for slot in access
            if slot.axis is None or slot.axis not in gone
        )

    return replace(
        p,
        axes=tuple(Axis(a.name, extent.get(a.name, a.extent)) for a in p.axes if a.name not in gone),
        inputs=tuple(replace(i, access=slots(i.access)) for i in p.inputs),
        nodes=tuple(replace(n, over=tuple(a for a in n.over if a not in gone)) for n in p.nodes),
        outputs=tuple(replace(o, access=slots(o.access)) for o in p.outputs),
        _axes_of={},
    )


def _accesses(p: Program) -> Iterable[tuple[str, tuple[Slot, ...]]]:
    yield from ((i.name, i.access) for i in p.inputs)
    yield from ((f"output {k}", o.access) for k, o in enumerate(p.outputs))


def _without_layout(p: Program) -> Program:
    """The program with a source for each position of a tensor instead of one for the tensor, which is their product, and
    outputs that do not say how they are stored."""
    sources: list[Source] = []
    place: dict[tuple[int, int], int] = {}
    inputs: list[Input] = []
    products: list[Node] = []
    for i in p.inputs:
        parts = []
        for k, slots in enumerate([(s,) for s in i.access] or [()]):
            if (i.source, k) not in place:
                place[i.source, k] = len(sources)
                sources.append(replace(p.sources[i.source], dims=()))
            parts.append(Input(f"{i.name}.{k}", place[i.source, k], slots))
        inputs += parts
        products.append(Node(i.name, "mul", tuple(part.name for part in parts)))
    outputs = tuple(replace(o, access=(), dims=(ex.product(o.dims),)) for o in p.outputs)
    nodes = (*products, *p.nodes)
    return replace(p, sources=tuple(sources), inputs=tuple(inputs), nodes=nodes, outputs=outputs, _axes_of={})


# --- 3. association -----------------------------------------------------------------------------------------------------
def _without_association(p: Program) -> Program:
    """The program with one node for a sum of several terms, and one for a product of several factors."""
    uses = Counter([i for n in p.nodes for i in n.inputs] + [o.value for o in p.outputs])
    nodes: dict[str, Node] = {}
    joined: set[str] = set()
    for n in p.nodes:
        if n.op in ("add", "mul"):
            inner = {i for i in n.inputs if i in nodes and nodes[i].op == n.op and uses[i] == 1}
            n = replace(n, inputs=tuple(x for i in n.inputs for x in (nodes[i].inputs if i in inner else (i,))))
            joined |= inner
        nodes[n.name] = n
    return replace(p, nodes=tuple(n for v, n in nodes.items() if v not in joined), _axes_of={})
