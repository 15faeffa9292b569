"""The reference's best muGraphs (G1 to G18), written by hand on the programs of the published cases.

A `Golden` draws the muGraph that the reference finds, or ships as an example, for a case: the same operators on tiles in the
same phases. Its grid and loop range are the schedule (`tiles`). Where the reference takes exp of a softmax without a
maximum, so that fp16 overflows, ours has a running maximum and rescaled accumulators, the same flow of data otherwise;
the graph as it was published is there too, outside. Library kernels of the reference are kernels with a block graph here.
Roles (the contracted axis, the input that is normalised) are found in the program, so names do not matter.

`outside` says which rule keeps a muGraph out of our space, in words that the refusal has; empty for those that are in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from mirage_cli.lax.ir.program import Node, Program
from mirage_cli.search.mugraph.evaluate import Tiles
from mirage_cli.search.mugraph.mugraph import KernelGraph
from samples.cases import CASES, Case
from samples.sketch import Drawing, Kernels, Sketch, in_parts, reading, single

Draw: TypeAlias = Callable[[Program], Drawing]


@dataclass(frozen=True, slots=True)
class Golden:
    """One of the reference's muGraphs for a case; `outside` is why it is not in our space, empty where it is; `draw` is
    absent where it cannot be written down as a muGraph of ours."""

    name: str
    what: str
    case: Case
    draw: Draw | None = None
    outside: str = ""

    def build(self, program: Program) -> KernelGraph:
        """The muGraph for the case's program. Raises InvalidGraph for one that breaks a rule."""
        return self.drawing(program).graph

    def tiles(self, program: Program) -> tuple[Tiles, ...]:
        """Its schedule: for each kernel the positions of each grid axis in a block, of the loop axis in an iteration."""
        return self.drawing(program).tiles

    def drawing(self, program: Program) -> Drawing:
        """Both."""
        assert self.draw is not None, f"{self.name} cannot be written down: {self.outside}"
        return self.draw(program)


# --- roles ----------------------------------------------------------------------------------------------------------------
def nodes(p: Program, op: str) -> list[Node]:
    """The nodes of an operator, in program order."""
    return [n for n in p.nodes if n.op == op]


def only(p: Program, op: str) -> Node:
    """The one node of an operator."""
    (node,) = nodes(p, op)
    return node


def node(p: Program, value: str) -> Node:
    """The node that makes a value."""
    definition = p.node(value)
    assert isinstance(definition, Node), f"{value} is an input"
    return definition


def operator_of(p: Program, value: str) -> str:
    """The operator that makes a value, "read" for an input."""
    definition = p.node(value)
    return definition.op if isinstance(definition, Node) else "read"


def other_operand(pair: tuple[str, ...], one: str) -> str:
    """The operand beside `one`."""
    first, second = pair
    return second if first == one else first


def made_by(p: Program, values: tuple[str, ...], *ops: str) -> str:
    """The one of some values that an operator makes."""
    (chosen,) = [v for v in values if operator_of(p, v) in ops]
    return chosen


def shared_operand(*of: Node) -> str:
    """The operand that nodes have in common."""
    (operand,) = set[str].intersection(*(set(n.inputs) for n in of))
    return operand


def free(p: Program, value: str, *without: str) -> tuple[str, ...]:
    """The axes of a value but some, in program order."""
    return tuple(a.name for a in p.axes if a.name in p.axes_of(value) and a.name not in without)


def result(p: Program) -> str:
    """The program's first output."""
    return p.outputs[0].value


def sized(case: str, name: str, **dims: int) -> Case:
    """A published case at other extents."""
    known = CASES[case]
    return replace(known, name=name, dims={**known.dims, **dims})


def column(p: Program, value: str, k: str) -> str:
    """The one axis of a weight beside the contracted one."""
    (axis,) = free(p, value, k)
    return axis


def schedule(grid: dict[str, int], loop: int = 0) -> Tiles:
    """Positions in a block, and in an iteration of the loop if there is one."""
    return grid | ({"loop": loop} if loop else {})


# --- one kernel: normalisation and linear layers ----------------------------------------------------------------------------
def norm_linear(columns: int, loop: int = 0) -> Draw:
    """rms(x) w: product and sum of squares accumulate in one loop over the hidden axis, or without a loop; the division
    follows (G1, G2, G13)."""

    def draw(p: Program) -> Drawing:
        product, total = only(p, "contract"), only(p, "sum")
        (k,) = product.over
        normed = made_by(p, product.inputs, "div")
        w, (above, below) = other_operand(product.inputs, normed), node(p, normed).inputs
        n = column(p, w, k)
        b = Sketch(p, (n,), k if loop else None)
        y = b.contract(b.of(above), b.of(w), k)
        squares = b.of(total.name)
        if loop:
            y, b.known[total.name] = b.accum(y), b.accum(squares)
        return single(p, b.graph(b("div", y, b.of(below))), schedule({n: columns}, loop))

    return draw


def norm_products(columns: int, loop: int) -> Draw:
    """(rms(x) u) * (rms(x) g): one read of x, three accumulators, each product divided by the norm after the loop (G15)."""

    def draw(p: Program) -> Drawing:
        products, total = nodes(p, "contract"), only(p, "sum")
        normed = shared_operand(*products)
        (k,), (above, below) = total.over, node(p, normed).inputs
        n = column(p, other_operand(products[0].inputs, normed), k)
        b = Sketch(p, (n,), k)
        sums = [b.accum(b.contract(b.of(above), b.of(other_operand(c.inputs, normed)), k)) for c in products]
        b.known[total.name] = b.accum(b.of(total.name))
        b.known |= {c.name: b("div", s, b.of(below)) for c, s in zip(products, sums, strict=True)}
        return single(p, b.graph(b.of(result(p))), schedule({n: columns}, loop))

    return draw


def gated(columns: int, loop: int) -> Draw:
    """silu(x u) * (x g): both products of one read of x, gate and product after the loop (G3)."""

    def draw(p: Program) -> Drawing:
        products = nodes(p, "contract")
        (k,) = products[0].over
        n = column(p, other_operand(products[0].inputs, shared_operand(*products)), k)
        b = Sketch(p, (n,), k)
        for c in products:
            b.known[c.name] = b.accum(b.of(c.name))
        return single(p, b.graph(b.of(result(p))), schedule({n: columns}, loop))

    return draw


def gated_apart(columns: int, loop: int, gate: bool) -> Draw:
    """The same in two kernels (G4): the second one takes the product, of silu(x u) with `gate`, else of x u."""

    def draw(p: Program) -> Drawing:
        products, silu = nodes(p, "contract"), only(p, "silu")
        (k,) = products[0].over
        n = column(p, other_operand(products[0].inputs, shared_operand(*products)), k)
        values = [silu.name if gate and c.name in silu.inputs else c.name for c in products]
        kernels = Kernels(p)
        b = Sketch(p, (n,), k)
        for c in products:
            b.known[c.name] = b.accum(b.of(c.name))
        stored = [kernels.store(v, p, p.axes_of(v)) for v in values]
        first = kernels.part(p, values)
        kernels.add(
            first,
            kernels.given,
            b.graph(*(b.of(v) for v in values)),
            [s.tensor for s in stored],
            schedule({n: columns}, loop),
        )
        b = Sketch(reading(p, stored), free(p, result(p)))
        tiles = {a: columns if a == n else 1 for a in b.grid}
        kernels.finish(b.program, [*kernels.given, *(s.tensor for s in stored)], b.graph(b.of(result(p))), tiles)
        return kernels.drawing()

    return draw


def gated_input(columns: int, loop: int) -> Draw:
    """(silu(x) * y) w: gate and product in the loop (G14)."""

    def draw(p: Program) -> Drawing:
        product = only(p, "contract")
        (k,) = product.over
        n = column(p, other_operand(product.inputs, made_by(p, product.inputs, "mul")), k)
        b = Sketch(p, (n,), k)
        return single(p, b.graph(b.accum(b.of(product.name))), schedule({n: columns}, loop))

    return draw


def low_rank(columns: int, loop: int = 0) -> Draw:
    """x w + (x a) b without a loop (G9), or with both paths added in the loop and one accumulator (G10)."""

    def draw(p: Program) -> Drawing:
        total = node(p, result(p))
        second = next(c for c in nodes(p, "contract") if any(operator_of(p, i) == "contract" for i in c.inputs))
        (k,) = node(p, other_operand(total.inputs, second.name)).over
        n = column(p, other_operand(second.inputs, made_by(p, second.inputs, "contract")), *second.over)
        b = Sketch(p, (n,), k if loop else None)
        s = b.of(total.name)
        return single(p, b.graph(b.accum(s) if loop else s), schedule({n: columns}, loop))

    return draw


def at_once(tile: int = 1) -> Draw:
    """The program's own operators in one block without a loop, the grid over all axes that nothing reduces (G11, G17)."""

    def draw(p: Program) -> Drawing:
        reduced = {a for n in p.nodes for a in n.over}
        b = Sketch(p, [a.name for a in p.axes if a.name not in reduced])
        return single(p, b.graph(*(b.of(o.value) for o in p.outputs)), dict.fromkeys(b.grid, tile))

    return draw


def last_division_apart(p: Program) -> Drawing:
    """G11 with the division by the second norm in a kernel of its own."""
    top, _ = node(p, result(p)).inputs
    total = nodes(p, "sum")[-1].name
    kernels = Kernels(p)
    b = Sketch(p, ())
    stored = [kernels.store(v, p, p.axes_of(v)) for v in (top, total)]
    kernels.add(
        kernels.part(p, [top, total]), kernels.given, b.graph(b.of(top), b.of(total)), [s.tensor for s in stored], {}
    )
    b = Sketch(reading(p, stored), free(p, result(p)))
    tiles = dict.fromkeys(b.grid, 64)
    kernels.finish(b.program, [*kernels.given, *(s.tensor for s in stored)], b.graph(b.of(result(p))), tiles)
    return kernels.drawing()


# --- two kernels: a reduction over blocks, stored and combined --------------------------------------------------------------
def attention_in_parts(rows: int, parts: int, iterations: int, stable: bool = True) -> Draw:
    """softmax(q k) v with the keys in parts: shares of numerator and denominator (and their maxima), combined by a second
    kernel (G5, G6, G7, G12, G16). Without `stable` as it was published, exp without a maximum."""

    def draw(p: Program) -> Drawing:
        kernels = Kernels(p)
        _attention(kernels, p, kernels.given, rows, parts, iterations, stable)
        return kernels.drawing()

    return draw


def scores_stored(rows: int, parts: int, iterations: int) -> Draw:
    """The same with the scores stored by a kernel of their own (G8)."""

    def draw(p: Program) -> Drawing:
        scores = only(p, "stable_exp").inputs[0]
        kernels = Kernels(p)
        rest, tensors = _scores(kernels, p, scores)
        _attention(kernels, rest, tensors, rows, parts, iterations, True)
        return kernels.drawing()

    return draw


def exponentials_stored(p: Program) -> Drawing:
    """G8's variant: scores, then their exponentials stored by kernels of their own, then the rest."""
    e = only(p, "stable_exp")
    kernels = Kernels(p)
    rest, tensors = _scores(kernels, p, e.inputs[0])
    exponentials = kernels.store(e.name, p, p.axes_of(e.name))
    b = Sketch(rest, free(p, e.name))
    part = kernels.part(rest, [e.name])
    kernels.add(
        part, tensors[-1:], b.graph(b("exp", b.of(e.inputs[0]))), [exponentials.tensor], dict.fromkeys(b.grid, 16)
    )
    last = reading(rest, [exponentials])
    b = Sketch(last, free(p, result(p), *free(p, result(p))[-1:]))
    kernels.finish(last, [*tensors, exponentials.tensor], b.graph(b.of(result(p))), dict.fromkeys(b.grid, 1))
    return kernels.drawing()


def _scores(kernels: Kernels, p: Program, scores: str) -> tuple[Program, list[int]]:
    """A kernel that stores the scores; what is left of the program, and the tensors that it reads."""
    stored = kernels.store(scores, p, p.axes_of(scores))
    b = Sketch(p, free(p, scores))
    part = kernels.part(p, [scores])
    tiles = {a: 1 if a == b.grid[0] else 64 for a in b.grid}
    kernels.add(
        part, [kernels.given[p.sources.index(s)] for s in part.sources], b.graph(b.of(scores)), [stored.tensor], tiles
    )
    return reading(p, [stored]), [*kernels.given, stored.tensor]


def _attention(
    kernels: Kernels, p: Program, reads: Sequence[int], rows: int, parts: int, iterations: int, stable: bool
) -> None:
    e, total, out = only(p, "stable_exp"), node(p, _denominator(p)), node(p, result(p))
    (k,) = e.over
    scores, quotient = e.inputs[0], next(n.name for n in p.nodes if n.inputs == (e.name, total.name))
    v = other_operand(out.inputs, quotient)
    queries = free(p, scores, k)
    sizes = {a: 1 if a in p.axes_of(v) else rows for a in queries}
    base, outer, inner = in_parts(p, k, parts)
    length = base.extent(inner)
    assert isinstance(length, int)
    b = Sketch(p, (*queries, outer), inner, base, {k: inner})
    s = b.of(scores)
    if stable:
        most = b.make("running", b.make("top", s, over=(inner,)))
        x, weight = b("exp_minus", s, most), b.make("shrink", most)
    else:
        x, weight = b("exp", s), ""
    above = b.accum(b.contract(x, b.of(v), inner), weight)
    below = b.accum(b.sum(x, inner), weight)
    shares = [
        kernels.store("above", base, p.axes_of(out.name) | {outer}),
        kernels.store("below", base, p.axes_of(total.name) | {outer}),
        *([kernels.store("most", base, p.axes_of(total.name) | {outer})] if stable else []),
    ]
    values = [above, below, *([most] if stable else [])]
    kernels.sketch(reads, b, values, shares, schedule({**sizes, outer: 1}, length // iterations))
    b = Sketch(p, queries, None, reading(base, shares, only=True))
    above, below = b.load("above"), b.load("below")
    if stable:
        most = b.load("most")
        weight = b("exp_difference", most, b.make("top", most, over=(outer,)))
        above, below = b("mul", above, weight), b("mul", below, weight)
    quotient = b(node(p, quotient).op, b.sum(above, outer), b.sum(below, outer))
    kernels.sketch([x.tensor for x in shares], b, [quotient], [0], sizes)


def _denominator(p: Program) -> str:
    """The sum of a softmax."""
    (name,) = [n.name for n in nodes(p, "sum") if operator_of(p, n.inputs[0]) == "stable_exp"]
    return name


def products_in_parts(columns: int, parts: int, loop: int) -> Draw:
    """exp(x a) b: the hidden axis of the first product in parts; the second kernel sums these and goes on (G18)."""

    def draw(p: Program) -> Drawing:
        second = node(p, result(p))
        first = node(p, node(p, made_by(p, second.inputs, "exp")).inputs[0])
        w = other_operand(second.inputs, made_by(p, second.inputs, "exp"))
        (k,), (inside,) = first.over, second.over
        base, outer, inner = in_parts(p, k, parts)
        kernels = Kernels(p)
        b = Sketch(p, (outer,), inner, base, {k: inner})
        share = kernels.store("share", base, p.axes_of(first.name) | {outer})
        kernels.sketch(kernels.given, b, [b.accum(b.of(first.name))], [share], schedule({outer: 1}, loop))
        n = column(p, w, inside)
        b = Sketch(p, (n,), None, reading(base, [share]))
        b.known[first.name] = b.sum(b.load("share"), outer)
        kernels.sketch([*kernels.given, share.tensor], b, [b.of(second.name)], [0], {n: columns})
        return kernels.drawing()

    return draw


def inputs_accumulated(p: Program) -> Drawing:
    """G2's variant: tiles of x and of w accumulate over the loop and are multiplied after it. Raises InvalidGraph: this is
    another function."""
    product = only(p, "contract")
    (k,) = product.over
    above, w = node(p, made_by(p, product.inputs, "div")).inputs[0], made_by(p, product.inputs, "read")
    b = Sketch(p, (column(p, w, k),), k)
    return single(
        p, b.graph(b.contract(b.accum(b.of(above)), b.accum(b.of(w)), k)), schedule(dict.fromkeys(b.grid, 64), 64)
    )


NO_MAXIMUM = "exponential of a softmax without its maximum"
NOT_STORED = "which is no result of a reduction or operand of a contraction"

GOLDEN: tuple[Golden, ...] = (
    Golden("G1", "RMSNorm + MatMul, 96 blocks", CASES["osdi_rmsnorm"], norm_linear(64, 64)),
    Golden("G1 16 rows", "the paper's example, 128 blocks", CASES["rmsnorm_linear"], norm_linear(32, 64)),
    Golden("G2", "RMSNorm + MatMul without a loop, 768 blocks", CASES["osdi_rmsnorm"], norm_linear(8)),
    Golden(
        "G2 inputs accumulated",
        "inputs summed over the loop, then multiplied: with the reference's one iteration it is G2, with more it is wrong",
        CASES["osdi_rmsnorm"],
        None,
        "an accumulator adds what it gets; it takes no value along the loop axis itself",
    ),
    Golden("G3", "gated MLP, 64 blocks", CASES["osdi_gated_mlp"], gated(64, 64)),
    Golden("G4", "gated MLP, silu and product stored", CASES["osdi_gated_mlp"], gated_apart(64, 64, True)),
    Golden("G4 silu behind", "gated MLP, both products stored", CASES["osdi_gated_mlp"], gated_apart(64, 64, False)),
    Golden("G5", "GQA, keys in 4 parts", CASES["osdi_gqa"], attention_in_parts(16, 4, 4)),
    Golden("G5 as published", "no maximum", CASES["osdi_gqa"], attention_in_parts(16, 4, 4, False), NO_MAXIMUM),
    Golden("G6 8", "GQA, batch 8", sized("osdi_gqa", "osdi_gqa_8", h=16), attention_in_parts(16, 4, 4)),
    Golden("G6 16", "GQA, batch 16", sized("osdi_gqa", "osdi_gqa_16", h=32), attention_in_parts(16, 2, 8)),
    Golden("G7", "MQA, keys in 16 parts", CASES["mqa_speculative"], attention_in_parts(128, 16, 4)),
    Golden("G8", "MHA, scores stored, keys in 2 parts", CASES["mha_speculative"], scores_stored(16, 2, 4)),
    Golden("G8 exp stored", "MHA, scores and exp stored", CASES["mha_speculative"], exponentials_stored, NOT_STORED),
    Golden("G9", "LoRA without a loop, 64 blocks", CASES["osdi_lora"], low_rank(64)),
    Golden("G10", "LoRA with a loop and one accumulator", CASES["osdi_lora"], low_rank(64, 64)),
    Golden(
        "G10 concatenated",
        "(x, x a) times (w; b)",
        CASES["osdi_lora"],
        None,
        "there is no concatenation of tiles; the products are added, which is the same work",
    ),
    Golden("G11", "nGPT residual, a row for each block", CASES["osdi_ntrans"], at_once()),
    Golden("G11 apart", "the last division in a second kernel", CASES["osdi_ntrans"], last_division_apart, NOT_STORED),
    Golden("G12", "QKNorm GQA, keys in 4 parts", CASES["osdi_qknorm"], attention_in_parts(16, 4, 4)),
    Golden("G13", "RMSNorm with gain + linear, 72 blocks", CASES["rmsnorm_gain_linear"], norm_linear(64, 56)),
    Golden("G14", "SiLU-gated down projection, 56 blocks", CASES["silu_down"], gated_input(64, 296)),
    Golden("G15", "two products of one norm", CASES["rmsnorm_mlp"], norm_products(64, 64)),
    Golden("G16", "online softmax, combined", sized("osdi_gqa", "osdi_gqa_1024", k=1024), attention_in_parts(16, 4, 4)),
    Golden("G17", "demo of the compiler: two elementwise outputs", CASES["jit_demo"], at_once(251)),
    Golden("G18", "MLP, the first product in parts", CASES["mlp"], products_in_parts(64, 16, 64)),
)
