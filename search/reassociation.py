"""A program with its products in another order: the one that takes the fewest multiply-adds over whole tensors.

Cuts store values of the program. Where a product of matrices is cheaper in another order (latent attention: the query times
the key's matrix, not the latent times it), a value that is worth storing is none of the program's own. So the cheapest way
through the closure without loop or grid is made a program again, and cut as well.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace

from mirage_cli.errors import Refused
from mirage_cli.lax.ir.program import Node, Program
from mirage_cli.lax.normal.identify import free_name, prune
from mirage_cli.lax.normal.normalise import normalise
from mirage_cli.lax.ops import QUOTIENTS
from mirage_cli.search.closure.closure import closure_of
from mirage_cli.search.closure.extract import WholePrices, block_graphs
from mirage_cli.search.closure.mapping import Mapping
from mirage_cli.search.finish.softmaxes import with_maxima
from mirage_cli.search.mugraph.mugraph import EXTREMES, BlockGraph, BlockOp
from mirage_cli.search.schedules.cost import products

CHEAPER = 0.9  #: another order is looked at when it takes less than this share of the multiply-adds


@functools.lru_cache(maxsize=16)
def variants(program: Program) -> tuple[Program, ...]:
    """The program; where there is a much cheaper order of its products, the program in that order; and each of these with
    maxima that can be stored (`with_maxima`), where softmaxes need that."""
    program = _kept_together(program)
    found = [program, *(p for p in _other_orders(program) if multiply_adds(p) < CHEAPER * multiply_adds(program))]
    return (*found, *(p for f in found if (p := with_maxima(f)) is not None))


def _kept_together(program: Program) -> Program:
    """The program in which numbers less the greatest or least of their row are one step, which no search takes apart: they are
    small where both are huge."""
    extremes = {n.name for n in program.nodes if n.op in EXTREMES and n.over}
    if not extremes:
        return program
    changed = (
        replace(n, op="below") if n.op == "sub" and not extremes.isdisjoint(n.inputs) else n for n in program.nodes
    )
    return replace(program, nodes=tuple(changed), _axes_of={})


def _other_orders(program: Program) -> list[Program]:
    """The program in the cheapest order of its products, where it has several of them."""
    if sum(n.op == "contract" for n in program.nodes) < 2:
        return []
    try:
        closure = closure_of(program, Mapping())
        graphs = block_graphs(closure, 1, WholePrices(closure))
    except Refused:
        return []
    return [divisions_pushed_inward(normalise(reassociated(program, g))) for g in graphs[:1]]


def multiply_adds(program: Program) -> float:
    """Multiply-adds of all contractions, times two."""
    return sum(products(program).values())


def reassociated(program: Program, graph: BlockGraph) -> Program:
    """The program whose operators are those of a block graph without loop, grid and stabilisers, on the same axes, sources
    and outputs."""
    names = {operator.name: operator.source_value or "" for operator in graph.ops if operator.op == "load"}
    taken = {i.name for i in program.inputs}
    nodes: list[Node] = []

    def add(node: Node) -> str:
        nodes.append(replace(node, name=free_name(f"v{len(nodes)}", taken)))
        return nodes[-1].name

    for operator in graph.ops:
        if operator.op != "load":
            names[operator.name] = _spell(operator, [names[i] for i in operator.inputs], add)
    outputs = tuple(
        replace(operator, value=names[v]) for operator, v in zip(program.outputs, graph.outputs, strict=True)
    )
    return replace(program, nodes=tuple(nodes), outputs=outputs, _axes_of={}).validate()


def _spell(operator: BlockOp, args: list[str], add: Callable[[Node], str]) -> str:
    """The nodes of one operator; the name of the last."""
    if operator.thread is None:
        return add(Node("", operator.op, tuple(args), operator.over, axis=operator.axis, dtype=operator.dtype))
    values = list(args)
    for n in operator.thread.nodes:
        values.append(add(Node("", n.op, tuple(values[i] for i in n.inputs), value=n.value)))
    return values[-1]


# --- where a softmax divides ---------------------------------------------------------------------------------------------
def divisions_pushed_inward(program: Program) -> Program:
    """The program with the quotients of its softmaxes as far inside as they go, the way a softmax is written: what is stored
    behind them has no arbitrary factor any more."""
    while (move := _movable_division(program)) is not None:
        quotient, product, inner = move
        divided = replace(quotient, name=f"{quotient.name}_inside", inputs=(inner, quotient.inputs[1]))
        inputs = tuple(divided.name if i == inner else i for i in product.inputs)
        moved = (divided, replace(product, name=quotient.name, inputs=inputs))
        nodes = itertools.chain.from_iterable(moved if n is quotient else (n,) for n in program.nodes)
        program = prune(replace(program, nodes=tuple(nodes), _axes_of={}))
    return program.validate()


def _movable_division(program: Program) -> tuple[Node, Node, str] | None:
    """A quotient, the contraction that it divides, and the operand of that which it could divide instead."""
    node_of, loose = {n.name: n for n in program.nodes}, _with_arbitrary_factor(program)
    for q in program.nodes:
        if q.op not in QUOTIENTS or not loose.issuperset(q.inputs):
            continue
        product = node_of[q.inputs[0]]
        inner = [i for i in product.inputs if i in loose]
        if product.op == "contract" and len(inner) == 1 and not program.axes_of(q.inputs[1]) & set(product.over):
            return q, product, inner[0]
    return None


def _with_arbitrary_factor(program: Program) -> set[str]:
    """The values that have the arbitrary factor of an exponential."""
    loose: set[str] = set()
    for n in program.nodes:
        args = [i in loose for i in n.inputs]
        if n.op == "stable_exp" or (args[0] != args[1] if n.op in QUOTIENTS else any(args)):
            loose.add(n.name)
    return loose
