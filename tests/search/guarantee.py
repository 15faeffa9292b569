"""The guarantee of docs/search.md against exhaustive enumeration: `python -m tests.search.guarantee --steps 5`.

For all programs over given tensors: every block graph that computes the same, found without pruning by expressions, is
looked up in the closure. It has to be there if each of its values is an abstract subexpression of the program's output and
has axes that the closure admits; this is so whenever its abstract expression equals the program's (OSDI'25, theorem 1).
The others cancel something, (x y) / y for x, and are counted.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from mirage_cli.errors import Refused
from mirage_cli.lax.domains.expr import Expr
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.ir.program import Axis, Input, Node, Output, Program, Slot, Source
from mirage_cli.search.closure.closure import MAX_OPEN_VALUES, Closure, Derivation, Value
from mirage_cli.search.closure.form import Fn, Leaf, search_form
from mirage_cli.search.closure.mapping import Mapping
from mirage_cli.search.closure.pruning import Pruning
from tests.search.exhaustive import AFTER, BEFORE, GRID, Axes, Enumerator, Graph, Inputs, Made, Step, World

EXTENT = 8


@dataclass(slots=True)
class Tally:
    """What was compared: programs, block graphs of small programs' values, pairs by outcome; `lacking` must stay empty."""

    programs: int = 0
    graphs: int = 0
    pairs: Counter[str] = field(default_factory=Counter)
    lacking: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        found = ", ".join(f"{n} {what}" for what, n in sorted(self.pairs.items()))
        return (
            f"{self.programs} programs, {self.graphs} block graphs; of those that compute a program: {found or 'none'}"
        )


def program_of(world: World, inputs: Inputs, graph: Graph) -> Program:
    """The program that a graph without phases is."""
    sources = tuple(Source(f"t{k}", (EXTENT,) * len(a), F32) for k, a in enumerate(inputs))
    slots = [tuple(Slot(a, EXTENT) for a in world.axes if a in axes) for axes in inputs]
    reads = tuple(Input(f"x{k}", k, s) for k, s in enumerate(slots))
    names = [r.name for r in reads]
    nodes = []
    for s in graph[len(inputs) :]:
        over = (s.over,) if s.over else ()
        dtype = F32 if s.op == "contract" else None
        nodes.append(Node(f"v{len(nodes)}", s.op, tuple(names[a] for a in s.args), over, dtype=dtype))
        names.append(nodes[-1].name)
    axes = tuple(Axis(a, EXTENT) for a in world.axes)
    plain = Program(axes, sources, reads, tuple(nodes), ())
    own = tuple(Slot(a, EXTENT) for a in world.axes if a in plain.axes_of(names[-1]))
    return Program(axes, sources, reads, tuple(nodes), (Output(names[-1], own, (EXTENT,) * len(own), F32),)).validate()


def programs(world: World, inputs: Inputs, most: int) -> Iterator[tuple[Graph, Made]]:
    """All programs that read all the tensors and sum all the reduced axes."""
    for graph, made in Enumerator(world, inputs, most).graphs():
        read = {a for s in graph[len(inputs) :] for a in s.args}
        summed = {s.over for s in graph if s.over}
        if set(range(len(inputs))) <= read and summed == set(world.reduced):
            yield graph, made


def mappings(world: World) -> list[World]:
    """The world under every mapping."""
    return [
        World(world.axes, world.reduced, loop, split) for loop in ("", *world.reduced) for split in ("", *world.reduced)
    ]


class Checker:
    """One program and the closure of it under a mapping."""

    def __init__(self, world: World, inputs: Inputs, program: Graph) -> None:
        self.world, self.inputs, self.program = world, inputs, program
        self.form = search_form(program_of(world, inputs, program))
        assert self.form.opened
        self.wanted = Pruning(self.form)
        self.multiplies = {s.over for s in program if s.op == "contract"}
        self.goal = self.wanted.exprs[self.form.outputs[0]]
        self.closures: dict[World, Closure | None] = {}

    def closure(self, world: World) -> Closure | None:
        """The closure under a mapping; None beyond the bound on its values."""
        if world not in self.closures:
            mapping = Mapping(world.loop or None, world.split or None)
            self.closures[world] = None
            with contextlib.suppress(Refused):
                self.closures[world] = Closure(self.form, mapping, MAX_OPEN_VALUES, self.wanted).run()
        return self.closures[world]

    def outcome(self, world: World, graph: Graph) -> str:
        """contained, outside (why) or lacking (what)."""
        if any(s.op == "contract" and s.over not in self.multiplies for s in graph):
            return "outside: contracts where the program only sums"
        closure = self.closure(world)
        if closure is None:
            return f"outside: a closure of more than {MAX_OPEN_VALUES} values"
        space = closure.space
        leaf = {t.value: n for n, t in enumerate(self.form.terms) if isinstance(t, Leaf)}
        machine = Enumerator(world, self.inputs, 0)
        machine.domain = closure.target.domain
        values: list[Made] = []
        exprs: list[Expr] = []
        found_as: list[list[Value]] = []
        for s in graph:
            if s.op == "load":
                k, phase = s.args
                term = leaf[f"x{k}"]
                made, expr = Made(phase, self.inputs[k], closure.target.arrays[term]), self.wanted.exprs[term]
            else:
                found = machine.apply(s, values)
                assert found is not None
                made, args = found, [exprs[a] for a in s.args]
                expr = self.expression(s, args, [space.tile_factors((s.over,), made.phase)] if s.over else [], world)
            values.append(made)
            exprs.append(expr)
            found_as.append([v for v in closure.all_of(made.phase, made.axes, made.array) if v.expr == expr])
        if not all(map(self.wanted.holds, exprs)):
            assert exprs[-1] != self.goal, "a graph of the program's own expression has a value that is no part of it"
            return "outside: cancels something"
        if not all(self.wanted.fits(v.axes) for v in values):
            return "outside: a product larger than any value of the program"
        for s, known in zip(graph, found_as, strict=True):
            if not known:
                return f"lacking: the value of {s}"
            args = {v.number for a in s.args for v in found_as[a]} if s.op != "load" else set[int]()
            if not any(_operator(w) == s.op and set(w.args) <= args for v in known for w in v.ways):
                return f"lacking: {s} as a way to value {known[0].number}"
        return "contained"

    def expression(self, s: Step, args: list[Expr], factors: list[tuple[object, ...]], world: World) -> Expr:
        """The abstract expression of a step."""
        e = self.wanted.expressions
        match s.op:
            case "mul":
                return e.mul(args[0], args[1])
            case "add":
                return e.add(args[0], args[1])
            case "div":
                return e.div(args[0], args[1])
            case "exp":
                return self.exponential(args[0])
            case "accum":
                return e.sum(args[0], [(world.loop, "l")])
            case "grid_sum":
                return e.sum(args[0], [(world.split, "g")])
            case "sum":
                return e.sum(args[0], factors[0])
        return e.sum(e.mul(args[0], args[1]), factors[0])

    def exponential(self, x: Expr) -> Expr:
        """exp of an expression, as the form has it where it has it."""
        for n, t in enumerate(self.form.terms):
            if isinstance(t, Fn) and t.args and self.wanted.exprs[t.args[0]] == x:
                return self.wanted.exprs[n]
        return self.wanted.expressions.call("another exponential", x)


def _operator(way: Derivation) -> str:
    return {"fn": "exp"}.get(way.op, way.op)


def compare(
    world: World, inputs: Inputs, operators: int, steps: int, shard: tuple[int, int] = (0, 1), every: int = 1
) -> Tally:
    """Programs of up to so many operators (all, or every so-manieth) against all block graphs of so many steps (of a shard),
    under all mappings."""
    tally = Tally()
    by_value: dict[tuple[Axes, bytes], list[Graph]] = defaultdict(list)
    checker = functools.lru_cache(maxsize=4096)(functools.partial(Checker, world, inputs))
    for graph, made in itertools.islice(programs(world, inputs, operators), 0, None, every):
        tally.programs += 1
        by_value[_value(made)].append(graph)
    for mapped in mappings(world):
        final = (AFTER, GRID) if mapped.loop else (BEFORE, GRID)
        for graph, made in Enumerator(mapped, inputs, steps, shard).graphs():
            tally.graphs += 1
            if made.phase not in final:
                continue
            for program in by_value.get(_value(made), ()):
                outcome = checker(program).outcome(mapped, graph)
                tally.pairs[outcome.split(":")[0] if outcome.startswith("lacking") else outcome] += 1
                if outcome.startswith("lacking"):
                    tally.lacking.append(f"{mapped}: {graph} for {program}: {outcome}")
    return tally


def _value(made: Made) -> tuple[Axes, bytes]:
    """What a value is outside of its world: an output has no coordinates but those of free axes."""
    return made.axes, made.array.tobytes()


def signatures(axes: tuple[str, ...], reduced: tuple[str, ...], most: int) -> Iterator[Inputs]:
    """All sets of up to `most` tensors that have all the axes between them."""
    own = [frozenset(c) for n in range(1, len(axes) + 1) for c in itertools.combinations(axes, n)]
    for count in range(1, most + 1):
        for inputs in itertools.combinations_with_replacement(own, count):
            if frozenset[str]().union(*inputs) == frozenset(axes):
                yield inputs


def main() -> None:
    """Compare over all sets of tensors and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", default="ik", help="names of the axes, a letter each")
    parser.add_argument("--reduced", default="k", help="those that are summed")
    parser.add_argument("--tensors", type=int, default=2, help="tensors that a program reads, at most")
    parser.add_argument("--operators", type=int, default=4, help="operators of a program, at most")
    parser.add_argument("--steps", type=int, default=4, help="operators of a block graph, at most")
    parser.add_argument("--shard", default="0/1", help="a part of the block graphs: K/N")
    parser.add_argument("--every", type=int, default=1, help="take every N-th program")
    given = parser.parse_args()
    world = World(tuple(given.axes), tuple(given.reduced))
    part, parts = map(int, given.shard.split("/"))
    lacking = 0
    for inputs in signatures(world.axes, world.reduced, given.tensors):
        start = time.perf_counter()
        tally = compare(world, inputs, given.operators, given.steps, (part, parts), given.every)
        names = " ".join("".join(sorted(a)) for a in inputs)
        print(f"tensors {names}: {tally} ({time.perf_counter() - start:.0f} s)", flush=True)
        print(*tally.lacking, sep="\n", end="\n" if tally.lacking else "")
        lacking += len(tally.lacking)
    raise SystemExit(lacking > 0)


if __name__ == "__main__":
    main()
