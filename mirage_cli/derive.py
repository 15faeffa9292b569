"""Programs that a model states: what lies between given tensors, read by the ordinary front end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_cli.errors import InvalidGraph
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax import graph as g
from mirage_cli.lax.canonical import canonical
from mirage_cli.lax.instantiate import instantiate
from mirage_cli.lax.program import Program


def stated(imported: Imported, inputs: Sequence[str], outputs: Sequence[str]) -> Program:
    """The program, in normal form, that computes tensors of a model from others; its sources are in the order of `inputs`.

    Raises InvalidGraph or Refused, naming the tensor, when the model does not state one.
    """
    known = imported.values
    for name in (*inputs, *outputs):
        if name not in known:
            raise InvalidGraph(f"tensor {name!r} is not read from the model")
    boundary = [known[n] for n in inputs]
    if len(set(boundary)) != len(boundary):
        raise InvalidGraph(f"two of the tensors {', '.join(inputs)} are one")
    names = dict(zip(boundary, inputs, strict=True)) | {known[n]: n for n in outputs if known[n] not in boundary}
    # nodes may read more than their result depends on: a choice between equal values has a condition
    more = {v: s.name for v, s in enumerate(imported.graph.steps) if isinstance(s, g.Input) and v not in boundary}
    program = canonical(instantiate(imported.graph, [known[n] for n in outputs], [*boundary, *more], more | names))
    return ordered(program, inputs)


def ordered(program: Program, names: Sequence[str]) -> Program:
    """The program with its sources in the order of `names`. Raises InvalidGraph when it has other ones."""
    found = [s.name for s in program.sources]
    if sorted(found) != sorted(names):
        raise InvalidGraph(f"the nodes read {', '.join(sorted(found))}; the muGraph reads {', '.join(sorted(names))}")
    return replace(
        program,
        sources=tuple(program.sources[found.index(n)] for n in names),
        inputs=tuple(replace(i, source=list(names).index(found[i.source])) for i in program.inputs),
        _axes_of={},
    )
