"""The normal form of a program, in which equal mathematics spelled differently is equal text.

Passes, in order:
1. `stabilise`: `exp(x - max(x))` under a quotient in which the maximum cancels is the stabilised exponential;
   `hidden_scores` (lax/normal/hiding.py): scores that the lowest numbers hide are minus infinity;
   `assembled` (lax/normal/positions.py): a product that others hold position by position is a choice among these;
2. `normalise` (lax/normal/normalise.py): constants and denominators travel outwards through everything that is linear in them;
   `recognised` (lax/normal/functions.py): functions of one value that are spelled out are operators of the registry;
3. `tidy`, `merge_reductions` (lax/normal/identify.py, lax/normal/alpha.py): the fewest axes, every value computed once;
4. `order`: operands of commutative operators, sources, values and axes get canonical order and names.

"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir.parts import numbered
from mirage_cli.lax.ir.program import Axis, Input, Node, Output, Program
from mirage_cli.lax.normal.alpha import merge_reductions
from mirage_cli.lax.normal.functions import recognised
from mirage_cli.lax.normal.hiding import hidden_scores
from mirage_cli.lax.normal.identify import dedupe, rename_axes, tidy
from mirage_cli.lax.normal.normalise import normalise
from mirage_cli.lax.normal.positions import assembled
from mirage_cli.lax.ops import OPS, QUOTIENTS

ROUNDS = 3  #: refinements of the marks that tell values, sources and axes apart


def canonical(p: Program) -> Program:
    """The normal form of a program."""
    spelled = normalise(assembled(hidden_scores(stabilise(p))[0]))
    named = recognised(spelled)
    return order(tidy(merge_reductions(tidy(spelled if named is spelled else normalise(named))))).validate()


# --- 1. the stabilised exponential ------------------------------------------------------------------------------------
def stabilise(p: Program) -> Program:
    """`exp(x - max(x; over))` as a stabilised exponential wherever its factor cancels in every output."""
    nodes = {n.name: n for n in p.nodes}
    for n in p.nodes:
        difference = nodes.get(n.inputs[0]) if n.op == "exp" else None
        if difference is None or difference.op != "sub":
            continue
        x, m = difference.inputs
        top = nodes.get(m)
        if top is None or top.op != "max" or top.inputs != (x,):
            continue
        if all(exponent_degree(p, n.name).get(o.value) == 0 for o in p.outputs):
            stable = Node(n.name, "stable_exp", (x,), top.over)
            p = replace(p, nodes=tuple(stable if k is n else k for k in p.nodes), _axes_of={})
    return dedupe(p)


def exponent_degree(p: Program, e: str) -> dict[str, int]:
    """The power with which the value `e` enters each value as a common factor; values without one are absent."""
    degree: dict[str, int] = {e: 1}
    for n in p.nodes:
        if n.name == e:
            continue
        known = [degree.get(i) if e_reaches(p, e, i) else 0 for i in n.inputs]
        result = _degree(n, known)
        if result is not None:
            degree[n.name] = result
    for i in p.inputs:
        degree[i.name] = 0
    return degree


def _degree(n: Node, known: Sequence[int | None]) -> int | None:
    if any(k is None for k in known):
        return None
    powers = [k for k in known if k is not None]
    if n.op in ("mul", "contract"):
        return sum(powers)
    if n.op in QUOTIENTS:
        return powers[0] - powers[1]
    if n.op in ("sum", "neg"):
        return powers[0]
    if not any(powers):
        return 0
    if n.op in ("add", "sub") and powers[0] == powers[1]:
        return powers[0]
    return None


def e_reaches(p: Program, e: str, v: str) -> bool:
    """True if value `v` depends on value `e`."""
    nodes = {n.name: n for n in p.nodes}
    todo = [v]
    while todo:
        x = todo.pop()
        if x == e:
            return True
        if x in nodes:
            todo.extend(nodes[x].inputs)
    return False


# --- 4. order and names ---------------------------------------------------------------------------------------------------
def order(p: Program) -> Program:
    """Canonical order of operands, values and sources, canonical names of axes and values."""
    marks, axis_marks = _marks(p)
    nodes = {
        n.name: replace(n, inputs=tuple(sorted(n.inputs, key=marks.__getitem__)) if _commutes(n) else n.inputs)
        for n in p.nodes
    }
    reads = {i.name: i for i in p.inputs}
    visited: list[str] = []

    def visit(v: str) -> None:
        if v not in seen:
            seen.add(v)
            for i in nodes[v].inputs if v in nodes else ():
                visit(i)
            visited.append(v)

    seen: set[str] = set()
    for o in p.outputs:
        visit(o.value)
    inputs = [reads[v] for v in visited if v in reads]
    ordered = [nodes[v] for v in visited if v in nodes]
    place = {v: k for k, v in enumerate([i.name for i in inputs] + [n.name for n in ordered])}
    names = {i.name: f"x{k}" for k, i in enumerate(inputs)} | {n.name: f"v{k}" for k, n in enumerate(ordered)}
    sources = list(dict.fromkeys(i.source for i in inputs))

    def operands(n: Node) -> tuple[str, ...]:
        chosen = sorted(n.inputs, key=place.__getitem__) if _commutes(n) else n.inputs
        return tuple(names[i] for i in chosen)

    p = replace(
        p,
        sources=numbered([p.sources[s] for s in sources]),
        inputs=tuple(Input(names[i.name], sources.index(i.source), i.access) for i in inputs),
        nodes=tuple(replace(n, name=names[n.name], inputs=operands(n)) for n in ordered),
        outputs=tuple(replace(o, value=names[o.value]) for o in p.outputs),
        _axes_of={},
    )
    return _name_axes(p, axis_marks)


def _commutes(n: Node) -> bool:
    return n.op == "contract" or (n.op in OPS and OPS[n.op].commutative)


def _name_axes(p: Program, marks: dict[str, str]) -> Program:
    """Axes in order of appearance (outputs, then inputs, then nodes), named a, b, c ...

    The axis of an `extent` stands for its number of positions only: the first axis with as many.
    """
    appearing: dict[str, None] = {}
    for access in [o.access for o in p.outputs] + [i.access for i in p.inputs]:
        appearing.update((s.axis, None) for s in access if s.axis is not None)
    for n in p.nodes:
        own = (n.axis,) if n.op == "iota" and n.axis is not None else ()
        appearing.update((a, None) for a in (*own, *sorted(n.over, key=marks.__getitem__)))
    chosen: dict[str, str] = {}
    for n in p.nodes:
        if n.op == "extent" and n.axis is not None:
            same = next((a for a in appearing if p.extent(a) == p.extent(n.axis)), n.axis)
            appearing[same] = None
            chosen[n.axis] = same
    names = {a: _letters(k) for k, a in enumerate(appearing)}
    nodes = tuple(replace(n, axis=chosen[n.axis]) if n.op == "extent" and n.axis else n for n in p.nodes)
    p = replace(p, nodes=nodes, axes=tuple(a for a in p.axes if a.name in appearing), _axes_of={})
    renamed = rename_axes(p, {a: "\0" + n for a, n in names.items()})
    renamed = rename_axes(renamed, {"\0" + n: n for n in names.values()})
    axes = tuple(Axis(names[a], p.extent(a)) for a in appearing)
    nodes = tuple(replace(n, over=tuple(sorted(n.over))) for n in renamed.nodes)
    return replace(renamed, axes=axes, nodes=nodes, _axes_of={})


def _letters(k: int) -> str:
    return chr(ord("a") + k) if k < 26 else f"a{k}"


def _marks(p: Program) -> tuple[dict[str, str], dict[str, str]]:
    """Hashes of values and of axes that do not depend on names: equal for equal mathematics on equal shapes.

    Values are told apart by what they are computed from and, in further rounds, by what sources and axes are used for.
    """
    axis = {a.name: _hash("axis", ex.to_json(a.extent), _roles(p, a.name)) for a in p.axes}
    source = {
        k: _hash(
            s.dims,
            s.dtype,
            s.constant,
            *(m for m in ("unwritten", "rounds") if getattr(s, m)),
            *(s.parts.place if s.parts else ()),
            *(s.chosen.place if s.chosen else ()),
        )
        for k, s in enumerate(p.sources)
    }
    marks = _value_marks(p, source, axis)
    for _ in range(ROUNDS):
        uses = _uses(p, marks)
        read = {k: sorted((marks[i.name], uses[i.name]) for i in p.inputs if i.source == k) for k in source}
        walked = {
            a: sorted(
                [(uses[i.name], k) for i in p.inputs for k, s in enumerate(i.access) if s.axis == a]
                + [(marks[n.name], -1) for n in p.nodes if a in n.over or (a == n.axis and n.op == "iota")]
            )
            for a in axis
        }
        source = {k: _hash(m, read[k]) for k, m in source.items()}
        axis = {a: _hash(m, walked[a]) for a, m in axis.items()}
        marks = _value_marks(p, source, axis)
    return marks, axis


def _value_marks(p: Program, source: dict[int, str], axis: dict[str, str]) -> dict[str, str]:
    marks = {}
    for i in p.inputs:
        slots = [(axis.get(s.axis or "", "-"), ex.to_json(s.extent), s.offset) for s in i.access]
        marks[i.name] = _hash("read", source[i.source], slots)
    for n in p.nodes:
        args = [marks[i] for i in n.inputs]
        own = ex.to_json(p.extent(n.axis)) if n.op == "extent" and n.axis else axis.get(n.axis or "", "-")
        over = sorted(axis[a] for a in n.over)
        marks[n.name] = _hash(n.op, sorted(args) if _commutes(n) else args, over, str(n.value), own, n.dtype)
    return marks


def _uses(p: Program, marks: dict[str, str]) -> dict[str, str]:
    """For each value a hash of what is computed from it."""
    users: dict[str, list[object]] = {v: [] for v in marks}
    for k, o in enumerate(p.outputs):
        users[o.value].append(("output", k, "", ""))
    uses: dict[str, str] = {}
    for n in reversed(p.nodes):
        uses[n.name] = _hash(sorted(map(repr, users[n.name])))
        for k, i in enumerate(n.inputs):
            users[i].append((n.op, 0 if _commutes(n) else k, marks[n.name], uses[n.name]))
    return uses | {i.name: _hash(sorted(map(repr, users[i.name]))) for i in p.inputs}


def _roles(p: Program, axis: str) -> list[object]:
    """Where an axis appears in outputs: what tells two axes of one extent apart."""
    return [(k, [s.axis for s in o.access].index(axis)) for k, o in enumerate(p.outputs) if _stores(o, axis)]


def _stores(o: Output, axis: str) -> bool:
    return any(s.axis == axis for s in o.access)


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
