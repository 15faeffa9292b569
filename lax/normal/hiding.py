"""Scores that a mask hides by a very low number, such as the lowest one of float32: they count as minus infinity.

exp(s - 3.4e38 - max) is not 0 over the real numbers, and in a row of which nothing else is shown it counts. It is 0 in
floating point beside any score that is shown, as long as no score comes near to 2^125 (the guide promises nothing beyond
2^60). So scores x of a softmax become where(shown, x, -inf) where

1. x depends on comparisons of positions, and for one answer to all of them is a score, for every other one a score, or
   nothing, and a number of -2^125 or less. Nothing that a model reads is added to it: a mask that is an input may hide too;
2. these comparisons show some position in every row: the least distance between bounds of positions is 0 or more.

Proofs take a program with this done for what its nodes state, and say so (`described`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

from mirage_cli.lax.domains.limits import STEP, Form
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.program import Node, Program
from mirage_cli.lax.normal.comparisons import known_values, never_negative

Number: TypeAlias = Fraction | float
HIDES = -(2**125)  #: the largest number that hides: no score that is promised anything reaches a quarter of it
SCORES = 2**60  #: what may be added to what is shown
COMPARISONS = 4  #: that one softmax may depend on


@dataclass(frozen=True, slots=True)
class _Level:
    """A value that is `number`, plus scores if `scored`; what the model reads has no number."""

    number: Number
    scored: bool = True


SCORED, READ = _Level(Fraction(0)), _Level(math.inf - math.inf)


@dataclass(frozen=True, slots=True)
class _Mask:
    """The answers of comparisons for which scores are shown, the forms that are 0 or more where they are given, and the
    numbers that hide elsewhere."""

    answers: Mapping[str, bool]
    forms: tuple[Form, ...]
    numbers: frozenset[Number]


def hidden_scores(p: Program) -> tuple[Program, tuple[Number, ...]]:
    """The program with such scores as minus infinity, and the numbers that hid them."""
    numbers = set[Number]()
    if any(n.value is not None and -math.inf < float(n.value) <= HIDES for n in p.nodes):
        for e, scores, over in _softmaxes(p):
            mask = _mask(p, scores)
            if mask is not None and _shows(p, mask.forms, over):
                p = _rewritten(p, e, scores, over, mask)
                numbers |= mask.numbers
    return p, tuple(sorted(numbers))


def described(numbers: Iterable[Number]) -> list[str]:
    """What else has to hold, in words."""
    return [f"scores that {float(n):.6g} hides weigh nothing: no score is beyond 2^123" for n in numbers]


def _softmaxes(p: Program) -> Iterator[tuple[Node, str, tuple[str, ...]]]:
    """Exponentials with the scores that they are of, less their maximum, and the axes along which that is taken."""
    nodes = {n.name: n for n in p.nodes}
    for n in p.nodes:
        if n.op == "stable_exp":
            yield n, n.inputs[0], n.over
        below = nodes.get(n.inputs[0]) if n.op == "exp" else None
        top = nodes.get(below.inputs[1]) if below is not None and below.op == "sub" else None
        if below is not None and top is not None and top.op == "max" and top.over and top.inputs == below.inputs[:1]:
            yield n, below.inputs[0], top.over


# --- 1. what hides ------------------------------------------------------------------------------------------------------
def _mask(p: Program, scores: str) -> _Mask | None:
    """What hides scores, if nothing but comparisons of positions does, by very low numbers."""
    cone = _elementwise(p, scores)
    known = known_values(p)
    compared = {n.name: min(known[n.name].truth, key=str) for n in cone if n.op in ("lt", "le") and known[n.name].truth}
    if not 1 <= len(compared) <= COMPARISONS:
        return None
    shown, numbers = list[Mapping[str, bool]](), set[Number]()
    for answers in itertools.product((True, False), repeat=len(compared)):
        given = dict(zip(compared, answers, strict=True))
        level = _level(cone, given, scores)
        if level is not None and level.scored and -SCORES <= level.number <= SCORES:
            shown.append(given)
        elif level is None or not level.number <= HIDES:
            return None
        elif math.isfinite(level.number):
            numbers.add(level.number)
    if len(shown) != 1 or not numbers:
        return None
    forms = (f if shown[0][name] else f.times(-1).plus(STEP, -1) for name, f in compared.items())
    return _Mask(shown[0], tuple(forms), frozenset(numbers))


def _elementwise(p: Program, value: str) -> list[Node]:
    """The nodes from which elementwise operators make a value, in order."""
    needed, cone = {value}, list[Node]()
    for n in reversed(p.nodes):
        if n.name in needed:
            cone.append(n)
            needed |= set() if n.over else set(n.inputs)
    return cone[::-1]


def _level(cone: Sequence[Node], answers: Mapping[str, bool], scores: str) -> _Level | None:
    """What scores are where comparisons have these answers; None where a mask may be in them that is not understood."""
    levels: dict[str, _Level | None] = {name: _Level(Fraction(answer), False) for name, answer in answers.items()}
    for n in cone:
        if n.name not in levels:
            given = [levels.get(i, READ) for i in n.inputs]
            known = [x for x in given if x is not None]
            levels[n.name] = _made(n, known) if len(known) == len(given) or n.over else None
    return levels[scores]


def _made(n: Node, given: Sequence[_Level]) -> _Level | None:
    """The level of an operator's value."""
    numbers, scored = [x.number for x in given], any(x.scored for x in given)
    match n.op:
        case "const" if n.value is not None:
            return _Level(n.value, False)
        case op if n.over or op in ("iota", "extent"):
            return SCORED
        case "mul" | "div" if SCORED in given and all(x in (SCORED, READ) for x in given):
            return SCORED
        case "where" if not given[0].scored:
            return given[1 if numbers[0] else 2]
        case "max" if READ not in given and any(not x.scored and x.number <= HIDES for x in given):
            return max(given, key=lambda x: x.number)
        case op if len(given) == 1 and (given[0] == SCORED or op.startswith("round")):
            return given[0]
        case "add" | "sub":
            number = numbers[0] + numbers[1] * (1 if n.op == "add" else -1)
        case "neg":
            number = -numbers[0]
        case "mul" if not all(x.scored for x in given):
            number = numbers[0] * numbers[1]
        case "div" if not given[1].scored and numbers[1]:
            number = numbers[0] / numbers[1]
        case "and" | "or" | "not" | "nonzero" if not scored:
            number = Fraction({"and": all(numbers), "not": not numbers[0]}.get(n.op, any(numbers)))
        case _:
            return None
    return None if math.isnan(number) else _Level(number, scored)


# --- 2. what is shown ---------------------------------------------------------------------------------------------------
def _shows(p: Program, forms: Sequence[Form], over: Sequence[str]) -> bool:
    """True if in every row some position has no form below 0."""
    keys = {a for f in forms for a, _ in f.terms} & set(over)
    if len(keys) != 1 or any(f.given for f in forms):
        return False
    (key,) = keys
    low, high = (
        [Form()],
        list[tuple[Form, Extent]]([(Form((), -1), p.extent(key))]),
    )  #: bounds of positions, some with an extent
    for f in forms:
        rest = f.plus(Form(((key, 1),)), -f.of(key))
        match f.of(key):
            case 1:
                low.append(rest.times(-1))
            case -1:
                high.append((rest, 0))
            case factor if factor or not never_negative(p, f):
                return False
    return all(never_negative(p, h.plus(g, -1), e) for g in low for h, e in high)


# --- the program --------------------------------------------------------------------------------------------------------
def _rewritten(p: Program, e: Node, scores: str, over: tuple[str, ...], mask: _Mask) -> Program:
    """The program with an exponential of scores that are minus infinity where a mask hides them."""
    nodes, made = {n.name: n for n in p.nodes}, list[Node]()

    def node(what: str, op: str, inputs: Sequence[str] = (), **more: object) -> str:
        made.append(Node(f"{e.name}.{what}", op, tuple(inputs), **more))  # type: ignore[arg-type]
        return made[-1].name

    keep = ""
    for name, answer in mask.answers.items():
        n = nodes[name]
        turned = {"lt": "le", "le": "lt"}[n.op]
        one = name if answer else node(f"{name}.not", turned, n.inputs[::-1])
        keep = node(f"{name}.and", "and", (keep, one)) if keep else one
    shown = {name: node(f"{name}.is", "const", value=Fraction(answer)) for name, answer in mask.answers.items()}
    for n in _elementwise(p, scores):
        if n.name not in shown and not shown.keys().isdisjoint(n.inputs):
            made.append(replace(n, name=f"{e.name}.{n.name}", inputs=tuple(shown.get(i, i) for i in n.inputs)))
            shown[n.name] = made[-1].name
    low = node("low", "const", value=-math.inf)
    masked = node("masked", "where", (keep, shown[scores], low))
    if e.op == "stable_exp":
        made.append(replace(e, inputs=(masked,)))
    else:
        made.append(replace(e, inputs=(node("below", "sub", (masked, node("top", "max", (masked,), over=over))),)))
    return replace(p, nodes=tuple(m for n in p.nodes for m in (made if n is e else [n])), _axes_of={})
