"""What a product rounds its operands to holds them: powers of two are taken out where they may be too large.

A matrix instruction rounds its operands to the model's type. The model bounds what it rounds: a row that is divided by its
norm, for example. A muGraph that divides behind the product rounds the row as it is, times the norm's gain, and in float16
that may overflow. How large an operand may be follows from the types of tensors, and from the numbers of those that are
weights. Where that is more than the type holds, the operand is multiplied by a power of two, and the product by its
inverse, in float32: exact but for numbers below the type's normal ones, of which the power takes as many bits as it has.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeAlias

from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import F32, DType
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import (
    EPILOGUE,
    GRID,
    BlockGraph,
    BlockOp,
    CustomKernel,
    KernelGraph,
    ThreadGraph,
)
from mirage_cli.search.mugraph.mugraph import ThreadNode as Node

#: of what small numbers lose to the power of two: with more bits, rows of the type's smallest normal numbers come out less
#: exact than the accuracy rule allows
MOST_BITS = 4
MOST_PARTS = 64  #: factors or terms up to which a product or sum is one list
Largest: TypeAlias = Mapping[int, float]  #: by source, where it is known: a number that no magnitude in it exceeds


def with_headroom(program: Program, graph: KernelGraph, largest: Largest) -> KernelGraph:
    """The muGraph, changed so that no operand of its products overflows where the program's own do not, as far as sums and
    products of tensors go. Raises Refused where that takes more than `MOST_BITS` bits."""
    if not any(_narrow(n.dtype) for n in program.nodes):
        return graph
    terms = _Terms(program, largest)
    tensors = {k: terms.source(k) for k in range(len(program.sources))}
    first = graph.sources + graph.outputs  # of the tensors between kernels
    kernels = []
    for kernel in graph.kernels:
        made = _Block(terms, kernel, tensors)
        for value, tensor, out in zip(kernel.block.outputs, kernel.outputs, kernel.program.outputs, strict=True):
            tensors[tensor] = made.values[value]
            if tensor >= first and made.bits(value, out.dtype):
                raise Refused(f"{value} is stored as {out.dtype}, which may overflow where the original does not")
        kernels.append(replace(kernel, block=made.run()))
    return replace(graph, kernels=tuple(kernels))


def _narrow(dtype: DType | None) -> bool:
    """True if a type lacks numbers that float32 has room for."""
    return dtype is not None and dtype.is_float and dtype.exponent < F32.exponent


def _largest(dtype: DType) -> float:
    """A number that no magnitude of a type exceeds."""
    return float(2**dtype.bits) if dtype.kind == "int" else dtype.largest


class _Terms:
    """The terms that values are computed of, as numbers: equal ones have one number, whatever the order of sums and products.
    `own` are those that the program itself multiplies, and rounds before."""

    def __init__(self, program: Program, largest: Largest) -> None:
        self._largest = {k: _largest(s.dtype) for k, s in enumerate(program.sources)} | dict(largest)
        self._known: dict[tuple[Any, ...], int] = {}
        self._made: list[tuple[str, Fraction | float | None, tuple[int, ...]]] = []
        self._bounds: dict[int, float | None] = {}
        self.own: set[int] = set()
        values = {i.name: self.source(i.source) for i in program.inputs}
        for n in program.nodes:
            term = values[n.name] = self.of(n.op, [values[i] for i in n.inputs], n.value, n.axis)
            if n.op == "contract" and n.dtype is not None and _narrow(n.dtype):
                self.own.update(values[i] for i in n.inputs)
                # tensors of the model's type: either they are in its range, or the original overflows
                self._bounds |= dict.fromkeys((term, *(values[i] for i in n.inputs)), n.dtype.largest)
        for i in program.inputs:
            self._bounds.pop(values[i.name], None)

    def source(self, number: int) -> int:
        """A tensor that the program reads."""
        return self._number("source", None, None, (number,))

    def of(self, op: str, args: Sequence[int], value: Fraction | float | None = None, label: str | None = None) -> int:
        """The value of an operator."""
        parts = list(args)
        if op in ("add", "mul"):
            flat = [x for a in args for x in (self._made[a][2] if self._made[a][0] == op else (a,))]
            parts = flat if len(flat) <= MOST_PARTS else parts
        if op == "sum" and self._made[parts[0]][0] == "sum":
            return parts[0]
        if op in ("add", "mul", "contract"):
            parts.sort()
        return self._number(op, value, label, tuple(parts))

    def _factors(self, term: int) -> Counter[int]:
        op, _, parts = self._made[term]
        return Counter(parts if op == "mul" else (term,))

    def missing(self, term: int, whole: int) -> list[int] | None:
        """The factors that a value lacks of another one; None where these are none, or the other one lacks some of its own."""
        own, other = self._factors(term), self._factors(whole)
        return list((other - own).elements()) if own < other else None

    def without(self, term: int, factors: Sequence[int]) -> int | None:
        """A value without factors, which it has beside others; None where it has not."""
        own, taken = self._factors(term), Counter(factors)
        rest = list((own - taken).elements())
        return (self.of("mul", rest) if len(rest) > 1 else rest[0]) if taken < own else None

    def bound(self, term: int) -> float | None:
        """A number that no magnitude of a value exceeds, if it is made of tensors by sums and products alone."""
        if term not in self._bounds:
            self._bounds[term] = self._bound(*self._made[term])
        return self._bounds[term]

    def _bound(self, op: str, value: Fraction | float | None, parts: Sequence[int]) -> float | None:
        if op == "source":
            return self._largest[parts[0]]
        if op == "const" and value is not None:
            return abs(float(value))
        bounds = [self.bound(p) for p in parts] if op in ("add", "sub", "centred", "mul", "neg", "abs") else [None]
        known = [b for b in bounds if b is not None]
        if len(known) < len(bounds):
            return None
        return math.prod(known) if op == "mul" else math.fsum(known)

    def _number(self, op: str, value: Fraction | float | None, label: str | None, parts: tuple[int, ...]) -> int:
        key = (op, value, label, parts)
        if key not in self._known:
            self._known[key] = len(self._known)
            self._made.append((op, value, parts))
        return self._known[key]


class _Block:
    """One kernel: what its values are, and its operators with powers of two where these are called for."""

    def __init__(self, terms: _Terms, kernel: CustomKernel, tensors: Mapping[int, int]) -> None:
        self.terms, self.kernel = terms, kernel
        stored = {i.name: tensors[kernel.inputs[i.source]] for i in kernel.program.inputs}
        self.values: dict[str, int] = {}
        for o in kernel.block.ops:
            self.values[o.name] = stored[o.source_value or ""] if o.op == "load" else self.term(o)

    def term(self, o: BlockOp) -> int:
        """The term that an operator computes."""
        args = [self.values[i] for i in o.inputs]
        if o.op in ("accum", "grid_sum"):
            return args[0]
        if o.thread is None:
            return self.terms.of(o.op, args, label=o.axis)
        for n in o.thread.nodes:
            args.append(self.terms.of(n.op, [args[i] for i in n.inputs], n.value))
        return args[-1]

    def run(self) -> BlockGraph:
        """The block graph with powers of two. Raises Refused."""
        graph = self.kernel.block
        for o in self.kernel.block.ops:
            if o.op != "contract" or o.dtype is None:
                continue
            try:
                bits = {i: self.bits(i, o.dtype) for i in o.inputs}
            except Refused:
                handed = self.handed_over(graph, o)
                if handed is None:
                    raise
                graph = handed
                o = graph.op(o.name)
                bits = {i: self.bits(i, o.dtype or F32) for i in o.inputs}
            for i, power in bits.items():
                graph = _operand(graph, o.name, i, power) if power else graph
            power = sum(bits[i] for i in o.inputs)
            graph = _behind(graph, _finished(graph, o.name), power) if power else graph
        return graph if graph is self.kernel.block else graph.validate(self.kernel.program)

    def handed_over(self, graph: BlockGraph, product: BlockOp) -> BlockGraph | None:
        """The graph in which the operand of a product that is too large hands tensors that it is multiplied with over to the
        other one, which is what the program itself multiplies then; None where there is no such operand."""
        for large, other in (product.inputs, product.inputs[::-1]):
            for own in sorted(self.terms.own):
                factors = self.terms.missing(self.values[other], own)
                rest = None if factors is None else self.terms.without(self.values[large], factors)
                loads = [
                    next((o.name for o in graph.ops if o.op == "load" and self.values[o.name] == f), "")
                    for f in factors or ()
                ]
                if rest is None or not all(loads):
                    continue
                less, more = f"{large}_handed", f"{other}_with"
                self.values |= {less: rest, more: own}
                found = _handed(graph, product, large, other, loads, (less, more))
                axes = graph.axes_of(self.kernel.program), found.axes_of(self.kernel.program)
                if all(axes[0][old] == axes[1][new] for old, new in ((large, less), (other, more))):
                    return found
        return None

    def bits(self, value: str, dtype: DType) -> int:
        """The power of two to be taken out of a value that is rounded to a type. Raises Refused."""
        term = self.values[value]
        bound = self.terms.bound(term)
        if not _narrow(dtype) or term in self.terms.own or bound is None or bound <= dtype.largest:
            return 0
        bits = math.ceil(math.log2(bound / dtype.largest)) if math.isfinite(bound) else MOST_BITS + 1
        if bits > MOST_BITS:
            raise Refused(
                f"{value} is rounded to {dtype} before a product, and may overflow where the original does not"
            )
        return bits


def _handed(
    graph: BlockGraph, product: BlockOp, large: str, other: str, loads: Sequence[str], names: tuple[str, str]
) -> BlockGraph:
    """The graph in which a product's `large` operand has 1 in the place of `loads`, which multiply the `other` one."""
    less, more = names
    nodes = tuple(Node("mul", (k if k == 0 else len(loads) + k, k + 1)) for k in range(len(loads)))
    new = [
        _with_ones(graph, large, loads, less),
        BlockOp(more, "thread", (other, *loads), graph.op(other).phase, thread=ThreadGraph(1 + len(loads), nodes)),
    ]
    if (made := graph.op(other).thread) is not None:  # as one function
        arity, count = made.arity, len(made.nodes)
        inner = tuple(
            replace(n, inputs=tuple(i if i < arity else i + len(loads) for i in n.inputs)) for n in made.nodes
        )
        last = arity + len(loads) + count - 1
        outer = tuple(Node("mul", (last + k, arity + k)) for k in range(len(loads)))
        thread = ThreadGraph(arity + len(loads), (*inner, *outer))
        new[1] = replace(new[1], inputs=(*graph.op(other).inputs, *loads), thread=thread)
    taken = {large: less, other: more}
    ops = list[BlockOp]()
    for o in graph.ops:
        own = o.name == product.name
        ops += [*new, replace(o, inputs=tuple(taken[i] for i in o.inputs))] if own else [o]
    return _alive(replace(graph, ops=tuple(ops)))


def _with_ones(graph: BlockGraph, value: str, loads: Sequence[str], name: str) -> BlockOp:
    """A value with 1 in the place of loads, as one function of what has none of them."""
    inputs, nodes = list[str](), list[tuple[str, tuple[Any, ...], Any]]()

    def reads(v: str) -> bool:
        return v in loads or (graph.op(v).thread is not None and any(map(reads, graph.op(v).inputs)))

    def known(op: str, args: tuple[Any, ...], constant: Any = None) -> tuple[str, int]:
        nodes.append((op, args, constant))
        return "node", len(nodes) - 1

    def walked(v: str) -> tuple[str, int]:
        o = graph.op(v)
        if v in loads:
            return known("const", (), Fraction(1))
        if o.thread is None or not reads(v):
            inputs.extend([] if v in inputs else [v])
            return "input", inputs.index(v)
        values = [walked(i) for i in o.inputs]
        for n in o.thread.nodes:
            values.append(known(n.op, tuple(values[i] for i in n.inputs), n.value))
        return values[-1]

    walked(value)
    made = tuple(
        Node(op, tuple(k if kind == "input" else len(inputs) + k for kind, k in args), constant)
        for op, args, constant in nodes
    )
    return BlockOp(name, "thread", tuple(inputs), graph.op(value).phase, thread=ThreadGraph(len(inputs), made))


def _alive(graph: BlockGraph) -> BlockGraph:
    """The graph without values that nothing reads."""
    while True:
        read = {i for o in graph.ops for i in o.inputs} | set(graph.outputs)
        ops = tuple(o for o in graph.ops if o.name in read)
        if len(ops) == len(graph.ops):
            return graph
        graph = replace(graph, ops=ops)


def _scaled(power: int) -> tuple[Node, ...]:
    """The only operand times a power of two."""
    return (Node("const", (), Fraction(2) ** power), Node("mul", (0, 1)))


def _operand(graph: BlockGraph, product: str, value: str, bits: int) -> BlockGraph:
    """The graph in which a product reads a value that is `bits` bits smaller."""
    name = f"{value}_less{bits}"
    made = graph.op(value)
    known = any(o.name == name for o in graph.ops)
    thread = ThreadGraph(1, _scaled(-bits))
    new = BlockOp(name, "thread", (value,), made.phase, thread=thread)
    if made.thread is not None:
        last = made.thread.arity + len(made.thread.nodes)
        nodes = (*made.thread.nodes, Node("const", (), Fraction(1, 1 << bits)), Node("mul", (last - 1, last)))
        new = replace(made, name=name, thread=ThreadGraph(made.thread.arity, nodes))
    ops: list[BlockOp] = []
    for o in graph.ops:
        if o.name == product:
            o = replace(o, inputs=tuple(name if i == value else i for i in o.inputs))
        ops.append(o)
        ops += [new] if o.name == value and not known else []
    return _without(replace(graph, ops=tuple(ops)), value)


def _without(graph: BlockGraph, value: str) -> BlockGraph:
    """The graph without a value that nothing reads any more."""
    read = {i for o in graph.ops for i in o.inputs} | set(graph.outputs)
    return graph if value in read else replace(graph, ops=tuple(o for o in graph.ops if o.name != value))


def _finished(graph: BlockGraph, value: str) -> str:
    """The value in which a sum is complete, over the iterations and blocks that nothing but sums stand between."""
    while True:
        readers = [o for o in graph.ops if value in o.inputs]
        alone = len(readers) == 1 and value not in graph.outputs
        if not alone or readers[0].op not in ("accum", "grid_sum") or readers[0].inputs[0] != value:
            return value
        value = readers[0].name


def _behind(graph: BlockGraph, value: str, bits: int) -> BlockGraph:
    """The graph in which all that read a value find it `bits` bits larger: elementwise readers multiply themselves."""
    name, made = f"{value}_more{bits}", graph.op(value)
    phase = {"accum": EPILOGUE, "grid_sum": GRID}.get(made.op, made.phase)
    new = BlockOp(name, "thread", (value,), phase, thread=ThreadGraph(1, _scaled(bits)))
    ops: list[BlockOp] = []
    for o in graph.ops:
        if value in o.inputs:
            larger = o.thread is not None
            o = _reading(o, value, bits) if larger else replace(o, inputs=_renamed(o.inputs, value, name))
        ops.append(o)
        ops += [new] if o.name == value else []
    outputs = _renamed(graph.outputs, value, name)
    return _without(replace(graph, ops=tuple(ops), outputs=outputs), name)


def _renamed(names: Sequence[str], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if n == old else n for n in names)


def _reading(o: BlockOp, value: str, bits: int) -> BlockOp:
    """An elementwise operator that multiplies one of its operands first."""
    assert o.thread is not None
    arity, place = o.thread.arity, o.inputs.index(value)

    def moved(i: int) -> int:
        return arity + 1 if i == place else i if i < arity else i + 2

    first = (Node("const", (), Fraction(1 << bits)), Node("mul", (place, arity)))
    rest = tuple(replace(n, inputs=tuple(moved(i) for i in n.inputs)) for n in o.thread.nodes)
    return replace(o, thread=ThreadGraph(arity, (*first, *rest)))
