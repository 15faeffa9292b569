"""A name for what a program computes, which does not depend on how a model's exporter spelled it.

The normal form (lax/canonical.py) is exact: it is what is searched and proved. Its key leaves out what makes no other
mathematics, so that fragments can be compared across exports of one model. Besides names these are:

1. the layout of weights, which exporters transpose or not (of a weight that is read in one place);
2. dimensions that only group the same elements in other ways;
3. what constants are beyond `KEY_BITS` bits: exporters fold them in different orders and round in between;
4. the order in which several terms are added, or several factors multiplied.

Programs of one key may thus need kernels of their own; `Program.key` tells them apart.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from fractions import Fraction

from mirage_cli.lax import extents as ex
from mirage_cli.lax.canonical import order
from mirage_cli.lax.program import Input, Node, Program

KEY_BITS = 12  #: of a constant's significant bits that a key looks at


def key(p: Program) -> str:
    """The key of a program in normal form."""
    sources = tuple(replace(s, dims=(ex.product(s.dims),)) for s in p.sources)
    outputs = tuple(replace(o, dims=(ex.product(o.dims),)) for o in p.outputs)
    inputs, products = _without_layout(p)
    nodes = [n if n.value is None else replace(n, value=_rounded(n.value)) for n in p.nodes]
    p = replace(p, sources=sources, inputs=inputs, nodes=(*products, *nodes), outputs=outputs, _axes_of={})
    return order(_without_association(p)).key()


def _without_layout(p: Program) -> tuple[tuple[Input, ...], tuple[Node, ...]]:
    """Reads in which a weight that is read once is a product with a read of one slot for each of its dimensions."""
    once = {i.source for i in p.inputs} - {
        b.source for a, b in itertools.combinations(p.inputs, 2) if a.source == b.source
    }
    inputs: list[Input] = []
    products: list[Node] = []
    for i in p.inputs:
        if i.source not in once or not p.sources[i.source].constant or len(i.access) < 2:
            inputs.append(i)
            continue
        parts = [Input(f"{i.name}.{k}", i.source, (slot,)) for k, slot in enumerate(i.access)]
        inputs += parts
        products.append(Node(i.name, "mul", tuple(part.name for part in parts)))
    return tuple(inputs), tuple(products)


def _rounded(value: Fraction | float) -> Fraction | float:
    if isinstance(value, float) or value == 0:
        return value
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - KEY_BITS)
    return round(value / unit) * unit


def _without_association(p: Program) -> Program:
    """The program with one node for a sum of several terms, and one for a product of several factors."""
    uses = Counter([i for n in p.nodes for i in n.inputs] + [o.value for o in p.outputs])
    made: dict[str, Node] = {}
    joined: set[str] = set()
    for n in p.nodes:
        if n.op in ("add", "mul"):
            inner = {i for i in n.inputs if i in made and made[i].op == n.op and uses[i] == 1}
            n = replace(n, inputs=tuple(x for i in n.inputs for x in (made[i].inputs if i in inner else (i,))))
            joined |= inner
        made[n.name] = n
    return replace(p, nodes=tuple(n for v, n in made.items() if v not in joined), _axes_of={})
