"""Small changes of kernels: a number off by one, an operator for another, a statement dropped, a guard loosened."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.printer import text

OTHER = {
    "+": "-",
    "-": "+",
    "*": "+",
    "/": "*",
    "%": "/",
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "&&": "||",
    "||": "&&",
    "^": "&",
    "&": "|",
    "|": "&",
    "<<": ">>",
    ">>": "<<",
}
STATEMENTS = get_args(ir.Statement)
Build = Callable[[Any], Any]


@dataclass(frozen=True)
class Mutant:
    """A changed kernel, and what was changed."""

    what: str
    kernel: ir.Kernel


def mutants(kernel: ir.Kernel) -> list[Callable[[], Mutant]]:
    """All changes of a kernel that are known, not yet made."""
    return [
        lambda n=node, b=build, c=changed, st=statement: Mutant(_told(n, c, st), b(c))
        for node, changed, statement, build in _changes(kernel)
    ]


def draw(kernel: ir.Kernel, count: int, seed: int) -> list[Mutant]:
    """So many random changes of a kernel, or all there are."""
    found = mutants(kernel)
    random = np.random.default_rng(seed)
    return [found[int(k)]() for k in random.permutation(len(found))[:count]]


def _told(node: Any, changed: Any, statement: Any) -> str:
    def short(x: Any) -> str:
        try:
            return text(x).strip().splitlines()[0][:120] if x is not None else "nothing"
        except (TypeError, ValueError, AttributeError):  # a part that the printer has no rule for
            return repr(x)[:120]

    return f"{short(node)} -> {short(changed)} in: {short(statement)}"


def _changes(kernel: ir.Kernel) -> Iterator[tuple[Any, Any, Any, Build]]:
    steps = [
        s
        for node, _, _ in _nodes(kernel.body, None, lambda body: body)
        if isinstance(node, ir.For)
        for s in (node.start, node.step)
    ]
    for node, statement, build in _nodes(kernel.body, None, lambda body: replace(kernel, body=body)):
        for changed in _changed(node):
            if changed is not None or not any(node is s for s in steps):  # a loop has all its parts
                yield node, changed, statement, build


def _nodes(value: Any, statement: Any, build: Build) -> Iterator[tuple[Any, Any, Build]]:
    """Every node below a value with the statement that it is in, and what makes the whole from another one in its place."""
    if isinstance(value, tuple):
        for k, item in enumerate(value):

            def around(new: Any, k: int = k) -> Any:
                return build((*value[:k], *(() if new is None else (new,)), *value[k + 1 :]))

            yield from _nodes(item, statement, around)
        return
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return
    statement = value if isinstance(value, STATEMENTS) else statement
    yield value, statement, build
    for f in dataclasses.fields(value):
        inner = getattr(value, f.name)
        if isinstance(inner, tuple) or dataclasses.is_dataclass(inner):
            yield from _nodes(inner, statement, lambda new, name=f.name: build(replace(value, **{name: new})))


def _changed(node: Any) -> Iterator[Any]:
    """What a node is changed into; None: it is dropped."""
    match node:
        case ir.Literal(number) if number.isdigit():
            yield ir.Literal(str(int(number) + 1))
            if int(number):
                yield ir.Literal(str(int(number) - 1))
        case ir.Literal("true"):
            yield ir.Literal("false")
        case ir.Literal("false"):
            yield ir.Literal("true")
        case ir.Literal(number) if number.startswith("0x1") and number.endswith("f"):
            yield ir.Literal(number.replace("0x1", "0x3", 1))
        case ir.Binary(op, left, right) if op in OTHER:
            yield replace(node, op=OTHER[op])
            if op in ("-", "/", "<", ">", "%"):
                yield replace(node, left=right, right=left)
        case ir.Select(_, yes, no):
            yield yes
            yield no
        case ir.Do() | ir.Assign() | ir.Break():
            yield None
        case ir.If(_, then, otherwise, static):
            if not static:
                yield ir.Scope(then)
            yield ir.Scope(otherwise)
        case ir.Step(op, _):
            yield replace(node, op="--" if op == "++" else "++")
    if isinstance(node, ir.Assign) and node.op in ("+=", "*="):
        yield replace(node, op="=")
