"""The reference's best muGraphs (G1 to G18), written by hand on the programs of the published cases.

A `Golden` draws the muGraph that the reference finds, or ships as an example, for a case: the same operators on tiles in the
same phases. Its grid and loop range are the schedule (`tiles`). Where the reference takes exp of a softmax without a
maximum, so that fp16 overflows, ours has a running maximum and rescaled accumulators, the same flow of data otherwise.
Roles (the contracted axis, the input that is normalised) are found in the program, so names do not matter.

`outside` says which rule keeps a muGraph out of our space; such a one is drawn where it can be written down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mirage_cli.lax.program import Node, Program
from mirage_cli.search.evaluate import Tiles
from mirage_cli.search.mugraph import KernelGraph
from samples.cases import CASES, Case
from samples.sketch import Sketch, single


@dataclass(frozen=True, slots=True)
class Drawing:
    """A muGraph with the tiles of each kernel."""

    graph: KernelGraph
    tiles: tuple[Tiles, ...]


@dataclass(frozen=True, slots=True)
class Golden:
    """One of the reference's muGraphs for a case; `outside` is why it is not in our space, empty where it is."""

    name: str
    what: str
    case: Case
    draw: Callable[[Program], Drawing] | None
    outside: str = ""

    def build(self, program: Program) -> KernelGraph:
        """The muGraph for the case's program."""
        assert self.draw is not None, f"{self.name} cannot be written down: {self.outside}"
        return self.draw(program).graph

    def tiles(self, program: Program) -> tuple[Tiles, ...]:
        """Its schedule: positions of each grid axis in a block, of the loop axis in an iteration."""
        assert self.draw is not None, f"{self.name} cannot be written down: {self.outside}"
        return self.draw(program).tiles


# --- roles ----------------------------------------------------------------------------------------------------------------
def nodes(p: Program, op: str) -> list[Node]:
    """The nodes of an operator, in program order."""
    return [n for n in p.nodes if n.op == op]


def only(p: Program, op: str) -> Node:
    """The one node of an operator."""
    (node,) = nodes(p, op)
    return node


def made(p: Program, value: str) -> str:
    """The operator that makes a value, "read" for an input."""
    node = p.node(value)
    return node.op if isinstance(node, Node) else "read"


def other(pair: tuple[str, ...], one: str) -> str:
    """The operand beside `one`."""
    first, second = pair
    return second if first == one else first


def by(p: Program, values: tuple[str, ...], op: str) -> str:
    """The one of some values that an operator makes."""
    (found,) = [v for v in values if made(p, v) == op]
    return found


def below(p: Program, value: str, *ops: str) -> list[str]:
    """What a value is computed from, of these operators, itself included."""
    found: dict[str, None] = {}
    todo = [value]
    while todo:
        v = todo.pop()
        node = p.node(v)
        if isinstance(node, Node):
            todo += node.inputs
        if made(p, v) in ops:
            found[v] = None
    return list(found)


def free(p: Program, value: str, *without: str) -> tuple[str, ...]:
    """The axes of a value but some, in program order."""
    return tuple(a.name for a in p.axes if a.name in p.axes_of(value) and a.name not in without)


def sized(case: str, name: str, **dims: int) -> Case:
    """A published case at other extents."""
    known = CASES[case]
    return replace(known, name=name, dims={**known.dims, **dims})


# --- normalisation and a linear layer ---------------------------------------------------------------------------------------
def norm_linear(columns: int, loop: int) -> Callable[[Program], Drawing]:
    """G1, G2: rms(x) w: both accumulate in one loop over the hidden axis, or without a loop, and are divided after it."""

    def draw(p: Program) -> Drawing:
        product = only(p, "contract")
        (k,) = product.over
        normed = by(p, product.inputs, "div")
        w, (top, root) = other(product.inputs, normed), p.node(normed).inputs  # type: ignore[union-attr]
        total = only(p, "sum")
        (column,) = free(p, w, k)
        b = Sketch(p, (column,), k if loop else None)
        loaded = {v: b.load(v) for v in below(p, top, "read")}
        x = loaded[by(p, p.node(total.inputs[0]).inputs[:1], "read")]  # type: ignore[union-attr]
        weighted = b.like(top, loaded)
        each = b.contract(weighted, b.load(w), k)
        squares = b.sum(b("mul", x, x), k)
        if loop:
            each, squares = b.accum(each), b.accum(squares)
        block = b.graph(b("div", each, b.like(root, {total.name: squares})))
        return Drawing(single(p, block), ({column: columns} | ({"loop": loop} if loop else {}),))

    return draw


# --- gated linear layers ----------------------------------------------------------------------------------------------------
def gated(columns: int, loop: int) -> Callable[[Program], Drawing]:
    """G3: both products of one read of the activations, gate and product after the loop."""

    def draw(p: Program) -> Drawing:
        products = nodes(p, "contract")
        (k,) = products[0].over
        (x,) = set(products[0].inputs) & set(products[1].inputs)
        (column,) = free(p, other(products[0].inputs, x), k)
        b = Sketch(p, (column,), k)
        tile = b.load(x)
        sums = {n.name: b.accum(b.contract(tile, b.load(other(n.inputs, x)), k)) for n in products}
        return Drawing(single(p, b.graph(b.like(p.outputs[0].value, sums))), ({column: columns, "loop": loop},))

    return draw


def gated_input(columns: int, loop: int) -> Callable[[Program], Drawing]:
    """G14: silu(x) * y is computed in the loop and multiplied by the weights there."""

    def draw(p: Program) -> Drawing:
        product = only(p, "contract")
        (k,) = product.over
        gate = by(p, product.inputs, "mul")
        w = other(product.inputs, gate)
        (column,) = free(p, w, k)
        b = Sketch(p, (column,), k)
        tile = b.like(gate, {v: b.load(v) for v in below(p, gate, "read")})
        block = b.graph(b.accum(b.contract(tile, b.load(w), k)))
        return Drawing(single(p, block), ({column: columns, "loop": loop},))

    return draw


def normed_products(columns: int, loop: int) -> Callable[[Program], Drawing]:
    """G15: (rms(x) u) * (rms(x) g): the norm's statistics are accumulated beside both products, each divided after the loop."""

    def draw(p: Program) -> Drawing:
        products = nodes(p, "contract")
        (k,) = products[0].over
        (normed,) = set(products[0].inputs) & set(products[1].inputs)
        x, root = p.node(normed).inputs  # type: ignore[union-attr]
        (column,) = free(p, other(products[0].inputs, normed), k)
        b = Sketch(p, (column,), k)
        tile = b.load(x)
        sums = [b.accum(b.contract(tile, b.load(other(n.inputs, normed)), k)) for n in products]
        squares = b.accum(b.sum(b("mul", tile, tile), k))
        below_line = b.like(root, {only(p, "sum").name: squares})
        quotients = {n.name: b("div", s, below_line) for n, s in zip(products, sums, strict=True)}
        return Drawing(single(p, b.graph(b.like(p.outputs[0].value, quotients))), ({column: columns, "loop": loop},))

    return draw


# --- LoRA -------------------------------------------------------------------------------------------------------------------
def low_rank(columns: int, loop: int) -> Callable[[Program], Drawing]:
    """G9 (no loop), G10 (both paths added in the loop, one accumulator): x w + (x a) b."""

    def draw(p: Program) -> Drawing:
        second = next(n for n in nodes(p, "contract") if any(made(p, i) == "contract" for i in n.inputs))
        first = p.node(by(p, second.inputs, "contract"))
        full = next(n for n in nodes(p, "contract") if n not in (first, second))
        (k,), (rank,) = full.over, second.over
        (x,) = set(full.inputs) & set(first.inputs)  # type: ignore[union-attr]
        w = other(full.inputs, x)
        (column,) = free(p, w, k)
        b = Sketch(p, (column,), k if loop else None)
        tile = b.load(x)
        c = b.contract(tile, b.load(w), k)
        d = b.contract(tile, b.load(other(first.inputs, x)), k)  # type: ignore[union-attr]
        e = b.contract(d, b.load(other(second.inputs, first.name)), rank)
        s = b("add", c, e)
        block = b.graph(b.accum(s) if loop else s)
        return Drawing(single(p, block), ({column: columns} | ({"loop": loop} if loop else {}),))

    return draw


# --- elementwise and row-wise -----------------------------------------------------------------------------------------------
def whole_rows(p: Program) -> Drawing:
    """G11: rms(x + alpha (rms(h) + x)) with a whole row in the block: no loop, nothing stored between the norms."""
    first, second = nodes(p, "sum")
    (k,) = first.over
    b = Sketch(p, free(p, p.outputs[0].value, k))
    known = {v: b.load(v) for v in (i.name for i in p.inputs)}
    known[first.name] = b.sum(b.like(first.inputs[0], known), k)
    known[second.name] = b.sum(b.like(second.inputs[0], known), k)
    return Drawing(single(p, b.graph(b.like(p.outputs[0].value, known))), (dict.fromkeys(b.grid, 1),))


def elementwise(tile: int) -> Callable[[Program], Drawing]:
    """G17: mid = a + b; a + mid and exp(mid) from one kernel."""

    def draw(p: Program) -> Drawing:
        axes = tuple(a.name for a in p.axes)
        b = Sketch(p, axes)
        known = {i.name: b.load(i.name) for i in p.inputs}
        known[only(p, "exp").inputs[0]] = b.like(only(p, "exp").inputs[0], known)
        return Drawing(single(p, b.graph(*(b.like(o.value, known) for o in p.outputs))), (dict.fromkeys(axes, tile),))

    return draw


GOLDEN: tuple[Golden, ...] = (
    Golden("G1", "RMSNorm + MatMul, 96 blocks", CASES["osdi_rmsnorm"], norm_linear(64, 64)),
    Golden("G1 16 rows", "the paper's example: 128 blocks", CASES["rmsnorm_linear"], norm_linear(32, 64)),
    Golden("G2", "RMSNorm + MatMul without a loop, 768 blocks", CASES["osdi_rmsnorm"], norm_linear(8, 0)),
    Golden("G3", "gated MLP, 64 blocks", CASES["osdi_gated_mlp"], gated(64, 64)),
    Golden("G9", "LoRA without a loop, 64 blocks", CASES["osdi_lora"], low_rank(64, 0)),
    Golden("G10", "LoRA with a loop and one accumulator", CASES["osdi_lora"], low_rank(64, 64)),
    Golden("G11", "nGPT residual, a row for each block", CASES["osdi_ntrans"], whole_rows),
    Golden("G13", "RMSNorm with gain + linear, 72 blocks", CASES["rmsnorm_gain_linear"], norm_linear(64, 56)),
    Golden("G14", "SiLU-gated down projection, 56 blocks", CASES["silu_down"], gated_input(64, 296)),
    Golden("G15", "two products of one norm", CASES["rmsnorm_mlp"], normed_products(64, 64)),
    Golden("G17", "demo of the compiler: two elementwise outputs", CASES["jit_demo"], elementwise(251)),
)
