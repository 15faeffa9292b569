"""Programs that a model states: what lies between given tensors, read by the ordinary front end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_cli.errors import InvalidGraph, MirageError
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax.fragments import symbols
from mirage_cli.lax.fragments.instantiate import instantiate
from mirage_cli.lax.ir import graph as g
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.parts import in_parts, index_place, numbered, parted
from mirage_cli.lax.ir.program import Program, Source
from mirage_cli.lax.normal.canonical import canonical, order


def derived_program(imported: Imported, inputs: Sequence[str], outputs: Sequence[str]) -> Program:
    """The program, in normal form, that computes tensors of a model from others; its sources are in the order of `inputs`.

    Raises InvalidGraph or Refused, naming the tensor, when the model does not state one.
    """
    known = imported.values
    for name in (*inputs, *outputs):
        if name not in known:
            raise InvalidGraph(f"tensor {name!r} is not read from the model")
    try:
        return _between(imported.graph, known, inputs, outputs)
    except MirageError:
        graph, new = turned_back(imported.graph, [known[n] for n in inputs])
        if graph.steps == imported.graph.steps:
            raise
        return _between(graph, {name: new[v] for name, v in known.items()}, inputs, outputs)


def chosen_names(imported: Imported, program: Program, given: Sequence[str]) -> dict[int, str]:
    """For the chosen sources of a program, by number, what a model calls the rows, where `given` are its names of the tensors
    that an operator takes. Raises InvalidGraph where it chooses none."""
    found, graph, values = dict[int, str](), imported.graph, imported.values
    for k, s in enumerate(program.sources):
        if s.chosen:
            read = tuple(values.get(given[n]) for n in (k, index_place(program, k)))
            names = (n for n, v in values.items() if isinstance(graph.steps[v], g.Choose) and graph.inputs[v] == read)
            if (name := next(names, None)) is None:
                raise InvalidGraph(f"no rows of {given[k]} are chosen by {given[index_place(program, k)]}")
            found[k] = name
    return found


def joined_as(imported: Imported, program: Program, other: Program, given: Sequence[str]) -> Program:
    """The program with its sources in the parts that those of another one are in, where the model says that they are: `given`
    are its names of the tensors that an operator takes. Raises InvalidGraph where it says something else."""
    seconds = iter(given[len(other.sources) :])
    joins = {}
    for k in in_parts(other):
        parts = other.sources[k].parts
        assert parts is not None
        joins[k] = replace(parts, names=(given[k], next(seconds)))
    new = parted(program, joins)
    check_joints(new, imported.graph, imported.values)
    return new


def check_joints(program: Program, graph: Graph, values: Mapping[str, int]) -> None:
    """Raise InvalidGraph for a source in parts that a graph, whose tensors are `values`, does not make of them, and for one
    that it does not choose of its table."""
    for s in program.sources:
        if s.chosen and not _is_chosen(s, graph, values):
            raise InvalidGraph(f"{s.name} is no rows of {s.chosen.names[0]} that {s.chosen.names[1]} chooses")
        if s.parts is None:
            continue
        step, read = graph.steps[values[s.name]], [values.get(n) for n in s.parts.names]
        same = isinstance(step, g.Concat) and step.dim == s.parts.dim and graph.inputs[values[s.name]] == tuple(read)
        if not same or graph.dims(graph.inputs[values[s.name]][1])[s.parts.dim] != s.parts.second:
            raise InvalidGraph(f"{s.name} is not {s.parts.names[1]} behind {s.parts.names[0]}")


def _is_chosen(s: Source, graph: Graph, values: Mapping[str, int]) -> bool:
    """True if a graph chooses a source as it says."""
    assert s.chosen is not None
    v, (table, index) = values[s.name], (values.get(n) for n in s.chosen.names)
    same = isinstance(graph.steps[v], g.Choose) and graph.inputs[v] == (table, index)
    return (
        same
        and graph.dims(graph.inputs[v][0])[0] == s.chosen.rows
        and s.chosen.lead == len(graph.dims(graph.inputs[v][1]))
    )


def named_as(program: Program, other: Program) -> Program:
    """A stated program with the symbols of another, if it has the same sources but for names (`symbols.named_as`)."""
    renamed = symbols.named_as(program, other)
    return program if renamed is program else ordered(order(renamed), [s.name for s in program.sources])


def _between(graph: Graph, known: Mapping[str, int], inputs: Sequence[str], outputs: Sequence[str]) -> Program:
    """The program between tensors whose values are `known`."""
    boundary = [known[n] for n in inputs]
    if len(set(boundary)) != len(boundary):
        raise InvalidGraph(f"two of the tensors {', '.join(inputs)} are one")
    names = dict(zip(boundary, inputs, strict=True)) | {known[n]: n for n in outputs if known[n] not in boundary}
    tables = {i for v in boundary if isinstance(graph.steps[v], g.Choose) for i in graph.inputs[v]}
    names |= {v: n for n, v in known.items() if v in tables - {*boundary}}
    # nodes may read more than their result depends on: a choice between equal values has a condition
    more = {v: s.name for v, s in enumerate(graph.steps) if isinstance(s, g.Input) and v not in boundary}
    program = canonical(instantiate(graph, [known[n] for n in outputs], [*boundary, *more], more | names))
    return ordered(program, inputs)


def turned_back(graph: Graph, kept: Sequence[int] = ()) -> tuple[Graph, list[int]]:
    """The graph without transpositions that undo the one before, and for each value the new one. What reads the elements of a
    value of `kept` in other dimensions reads that value.

    A function cuts the past and the new positions out of a grown cache, in the layout that the model has them in, and joins
    them again: only so is that seen to be the cache. And where functions meet, a reshape is behind another one.
    """
    into, new = Graph(), list[int]()
    shaped = {graph.inputs[v][0]: v for v in reversed(kept) if isinstance(graph.steps[v], g.Reshape)}
    for v, (step, inputs, tensor) in enumerate(zip(graph.steps, graph.inputs, graph.tensors, strict=True)):
        read = [new[i] for i in inputs]
        before = into.steps[read[0]] if isinstance(step, g.Transpose) else None
        if isinstance(before, g.Transpose) and isinstance(step, g.Transpose) and _undone(before.perm, step.perm):
            new.append(into.inputs[read[0]][0])
        elif isinstance(step, g.Reshape):
            new.append(into.reshape(read[0], tensor.dims))
        else:
            new.append(into.record(step, read, tensor.dims, tensor.dtype))
        assert into.dims(new[v]) == tensor.dims
        if v in shaped:
            into.bounds.append(into.record(g.Reshape(), (new[v],), graph.dims(shaped[v]), tensor.dtype))
            new[v] = into.reshape(into.bounds[-1], tensor.dims)
    into.outputs = [new[v] for v in graph.outputs]
    return into, new


def _undone(first: Sequence[int], then: Sequence[int]) -> bool:
    """True if one permutation of dimensions after another leaves them as they were."""
    return [first[p] for p in then] == list(range(len(then)))


def ordered(program: Program, names: Sequence[str]) -> Program:
    """The program with its sources in the order of `names`. Raises InvalidGraph when it has other ones."""
    own = [s.name for s in program.sources]
    if sorted(own) != sorted(names):
        raise InvalidGraph(f"the nodes read {', '.join(sorted(own))}; the muGraph reads {', '.join(sorted(names))}")
    return replace(
        program,
        sources=numbered([program.sources[own.index(n)] for n in names]),
        inputs=tuple(replace(i, source=list(names).index(own[i.source])) for i in program.inputs),
        _axes_of={},
    )
