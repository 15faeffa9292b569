"""Random small programs, and helpers that evaluate programs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.domains.field import Residues
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.fragments.instantiate import instantiate
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph, Input
from mirage_cli.lax.ir.program import Node, Program, evaluate_program
from mirage_cli.lax.ops import OPS

Array = NDArray[Any]
UNARY = ("sqrt", "rsqrt", "recip", "sigmoid", "silu", "tanh", "neg", "gelu")
BINARY = ("add", "mul", "div", "sub", "max")
ROWS, INNER, OUTER = 3, 4, 5


def recorded(graph: Graph, outputs: Sequence[int]) -> Program:
    """The program of recorded values, not yet in normal form."""
    inputs = [v for v, step in enumerate(graph.steps) if isinstance(step, Input)]
    return instantiate(graph, outputs, inputs, {v: f"t{v}" for v in [*inputs, *outputs]})


@st.composite
def graphs(draw: st.DrawFn, contractions: int = 2) -> tuple[Graph, int]:
    """A random graph over activations [3, 4] and weights, and its output."""
    g = Graph()
    x = [g.input("x", (ROWS, INNER), F32), g.input("y", (ROWS, INNER), F32), g.input("g", (INNER,), F32)]
    weights = [g.input("w", (INNER, INNER), F32, True), g.input("u", (INNER, INNER), F32, True)]
    for _ in range(draw(st.integers(1, 6))):
        a = draw(st.sampled_from(x))
        b = draw(st.sampled_from(x))
        kind = draw(st.sampled_from(("unary", "binary", "scale", "shift", "norm", "softmax", "linear", "sum", "where")))
        if kind == "unary":
            x.append(g.map(draw(st.sampled_from(UNARY)), a))
        elif kind == "binary":
            x.append(g.map(draw(st.sampled_from(BINARY)), a, b))
        elif kind == "scale":
            x.append(compose.scale(g, a, draw(st.sampled_from((2, 0.5, 3, 0.25)))))
        elif kind == "shift":
            x.append(compose.shift(g, a, draw(st.sampled_from((1, 0.5)))))
        elif kind == "norm":
            x.append(compose.rms_norm(g, a, [-1], 0.125))
        elif kind == "softmax":
            x.append(compose.softmax(g, a, [-1]))
        elif kind == "sum":
            x.append(g.map("mul", a, g.reduce("sum", b, [-1])))
        elif kind == "where":
            x.append(g.map("where", g.map("lt", a, b), a, b))
        elif contractions and len(g.dims(a)) == 2:
            contractions -= 1
            x.append(compose.matmul(g, a, draw(st.sampled_from(weights))))
    return g, x[-1]


def symbols_of(p: Program) -> dict[str, int]:
    """A number for each symbol."""
    return {s: 3 + 2 * k for k, s in enumerate(p.symbols)}


def positive(p: Program, symbols: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """For each source, by its name, numbers in [0.5, 1.5]."""
    rng = np.random.default_rng(seed)
    shapes = {s.name: tuple(ex.value(e, symbols) for e in s.dims) for s in p.sources}
    return {name: rng.uniform(0.5, 1.5, shapes[name]) for name in sorted(shapes)}


def residues(p: Program, symbols: Mapping[str, int], seed: int = 7) -> dict[str, Array]:
    """For each source, by its name, random residues."""
    domain = Residues((), seed)
    return {s.name: domain.random(s.name, [ex.value(e, symbols) for e in s.dims]) for s in p.sources}


def in_floats(p: Program, arrays: Mapping[str, Array], symbols: Mapping[str, int] | None = None) -> list[Array]:
    """The outputs in float64."""
    domain = Float64([a.name for a in p.axes])
    return evaluate_program(p, domain, {k: arrays[s.name] for k, s in enumerate(p.sources)}, symbols)


def in_field(p: Program, arrays: Mapping[str, Array], symbols: Mapping[str, int] | None = None) -> list[Array]:
    """The outputs in the prime fields."""
    domain = Residues([a.name for a in p.axes], 7)
    return evaluate_program(p, domain, {k: arrays[s.name] for k, s in enumerate(p.sources)}, symbols)


def scrambled(p: Program, seed: int) -> Program:
    """The same program with other names, orders of axes, sources, reads and nodes, and swapped operands."""
    rng = random.Random(seed)
    axes = list(p.axes)
    rng.shuffle(axes)
    fresh = [f"z{k}" for k in range(len(axes))]
    rng.shuffle(fresh)
    axis = dict(zip((a.name for a in p.axes), fresh, strict=True))
    order = list(range(len(p.sources)))
    rng.shuffle(order)
    values = [i.name for i in p.inputs] + [n.name for n in p.nodes]
    labels = [f"q{k}" for k in range(len(values))]
    rng.shuffle(labels)
    name = dict(zip(values, labels, strict=True))

    def slots(access: Any) -> Any:
        return tuple(replace(s, axis=axis[s.axis]) if s.axis is not None else s for s in access)

    inputs = [replace(i, name=name[i.name], source=order.index(i.source), access=slots(i.access)) for i in p.inputs]
    rng.shuffle(inputs)
    return replace(
        p,
        axes=tuple(replace(a, name=axis[a.name]) for a in axes),
        sources=tuple(p.sources[k] for k in order),
        inputs=tuple(inputs),
        nodes=tuple(_renamed(n, name, axis, rng) for n in _another_order(p, rng)),
        outputs=tuple(replace(o, value=name[o.value], access=slots(o.access)) for o in p.outputs),
        _axes_of={},
    )


def _another_order(p: Program, rng: random.Random) -> list[Node]:
    made, todo, done = [], list(p.nodes), {i.name for i in p.inputs}
    while todo:
        ready = [n for n in todo if set(n.inputs) <= done]
        n = rng.choice(ready)
        made.append(n)
        done.add(n.name)
        todo.remove(n)
    return made


def _renamed(n: Node, name: Mapping[str, str], axis: Mapping[str, str], rng: random.Random) -> Node:
    inputs = [name[i] for i in n.inputs]
    if n.op == "contract" or (n.op in OPS and OPS[n.op].commutative):
        rng.shuffle(inputs)
    over = [axis[a] for a in n.over]
    rng.shuffle(over)
    return replace(n, name=name[n.name], inputs=tuple(inputs), over=tuple(over), axis=axis[n.axis] if n.axis else None)
