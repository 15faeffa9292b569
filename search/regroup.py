"""A program with its products in another order: the one that takes the fewest multiply-adds over whole tensors.

Cuts store values of the program. Where a product of matrices is cheaper in another order (latent attention: the query times
the key's matrix, not the latent times it), a value that is worth storing is none of the program's own. So the cheapest way
through the closure without loop or grid is made a program again, and cut as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from mirage_cli.errors import Refused
from mirage_cli.lax.normalise import normalise
from mirage_cli.lax.program import Node, Program
from mirage_cli.search import mapping as mappings
from mirage_cli.search.closure import closure_of
from mirage_cli.search.extract import WholePrices, block_graphs
from mirage_cli.search.mugraph import BlockGraph, BlockOp

CHEAPER = 0.9  #: another order is looked at when it takes less than this share of the multiply-adds


@functools.lru_cache(maxsize=16)
def variants(program: Program) -> tuple[Program, ...]:
    """The program, and where there is a much cheaper order of its products, the program in that order."""
    if sum(n.op == "contract" for n in program.nodes) < 2:
        return (program,)
    try:
        closure = closure_of(program, mappings.Mapping())
        found = block_graphs(closure, 1, WholePrices(closure))
    except Refused:
        return (program,)
    others = [
        p for g in found[:1] if products(p := settled(normalise(regrouped(program, g)))) < CHEAPER * products(program)
    ]
    return (program, *others)


def products(program: Program) -> float:
    """Multiply-adds of all contractions."""
    total = 0.0
    for n in program.nodes:
        if n.op == "contract":
            axes = frozenset(n.over).union(*(program.axes_of(i) for i in n.inputs))
            total += math.prod(float(mappings.numeric(program.extent(a))) for a in axes)
    return total


def regrouped(program: Program, graph: BlockGraph) -> Program:
    """The program whose operators are those of a block graph without loop, grid and stabilisers, on the same axes, sources
    and outputs."""
    names = {o.name: o.source_value or "" for o in graph.ops if o.op == "load"}
    nodes: list[Node] = []

    def add(node: Node) -> str:
        nodes.append(replace(node, name=f"v{len(nodes)}"))
        return nodes[-1].name

    for o in graph.ops:
        if o.op != "load":
            names[o.name] = _spell(o, [names[i] for i in o.inputs], add)
    outputs = tuple(replace(o, value=names[v]) for o, v in zip(program.outputs, graph.outputs, strict=True))
    return replace(program, nodes=tuple(nodes), outputs=outputs, _axes_of={}).validate()


def _spell(o: BlockOp, args: list[str], add: Callable[[Node], str]) -> str:
    """The nodes of one operator; the name of the last."""
    if o.thread is None:
        return add(Node("", o.op, tuple(args), o.over, axis=o.axis, dtype=o.dtype))
    values = list(args)
    for n in o.thread.nodes:
        values.append(add(Node("", n.op, tuple(values[i] for i in n.inputs), value=n.value)))
    return values[-1]


# --- where a softmax divides ---------------------------------------------------------------------------------------------
def settled(program: Program) -> Program:
    """The program with the quotients of its softmaxes as far inside as they go, the way a softmax is written: what is stored
    behind them has no arbitrary factor any more."""
    made = {n.name: n for n in program.nodes}
    while (move := _move(program, made)) is not None:
        quotient, product, inner = move
        divided = replace(made[quotient], name=f"{product}_divided", inputs=(inner, made[quotient].inputs[1]))
        inputs = tuple(divided.name if i == inner else i for i in made[product].inputs)
        made[divided.name] = divided
        made[quotient] = replace(made[product], name=quotient, inputs=inputs)
    return _ordered(program, made)


def _move(program: Program, made: Mapping[str, Node]) -> tuple[str, str, str] | None:
    """A quotient, the contraction that it divides, and the operand of that which it could divide instead."""
    loose = _loose(made)
    for q in made.values():
        if q.op not in ("div", "div0") or not loose.get(q.inputs[0]) or not loose.get(q.inputs[1]):
            continue
        product = made[q.inputs[0]]
        inner = [i for i in product.inputs if loose.get(i)]
        if product.op != "contract" or len(inner) != 1:
            continue
        if not _axes(program, made, q.inputs[1]) & set(product.over):
            return q.name, product.name, inner[0]
    return None


def _loose(made: Mapping[str, Node]) -> dict[str, bool]:
    """For each value whether it has the arbitrary factor of an exponential."""
    found: dict[str, bool] = {}

    def visit(v: str) -> bool:
        if v not in found and v in made:
            n = made[v]
            args = [visit(i) for i in n.inputs]
            quotient = n.op in ("div", "div0")
            found[v] = n.op == "stable_exp" or (args[0] != args[1] if quotient else any(args))
        return found.get(v, False)

    for v in made:
        visit(v)
    return found


def _axes(program: Program, made: Mapping[str, Node], v: str) -> frozenset[str]:
    if v not in made:
        return program.axes_of(v)
    own = frozenset[str]().union(*(_axes(program, made, i) for i in made[v].inputs))
    return own - set(made[v].over) if made[v].op in ("contract", "sum") else own


def _ordered(program: Program, made: Mapping[str, Node]) -> Program:
    """The program of these nodes, those that its outputs need, in order and numbered."""
    names: dict[str, str] = {}
    nodes: list[Node] = []

    def visit(v: str) -> str:
        if v not in made:
            return v
        if v not in names:
            inputs = tuple(visit(i) for i in made[v].inputs)
            names[v] = f"v{len(nodes)}"
            nodes.append(replace(made[v], name=names[v], inputs=inputs))
        return names[v]

    outputs = tuple(replace(o, value=visit(o.value)) for o in program.outputs)
    return replace(program, nodes=tuple(nodes), outputs=outputs, _axes_of={}).validate()
