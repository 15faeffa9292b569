"""A graph that has to consist of kernels alone: whether it does, and the order in which they are called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from mirage_cli.backends.spec import OperatorSpec
from mirage_cli.errors import Refused
from mirage_cli.files.output import write_text
from mirage_cli.frontends.imported import Imported
from mirage_cli.kernels.call_order import FILE, Step, Steps
from mirage_cli.lax import extents as ex
from mirage_cli.lax.fragments.lax_fragment import Partition
from mirage_cli.optimization import coverage
from mirage_cli.optimization.task import Work, spec_of, tensor_names

HINT = "mirage_cli.optimize leaves such operators of a model to onnxruntime"


def check_complete(imported: Imported, parts: Partition, work: Sequence[Work]) -> None:
    """Raise Refused, naming an operator and the reason, where fragments that have not failed do not compute everything, and
    for an output that is another one, an input or a constant.

    Asked before the search it saves its time.
    """
    graph = _Graph(imported, [w for w in work if not w.failed])
    for value in graph.missing():
        raise Refused(*_why(imported, parts, work, value))
    outputs = imported.model.graph.outputs
    names = graph.all(outputs)
    for k, (name, output) in enumerate(zip(names, outputs, strict=True)):
        if name in names[:k]:
            raise Refused(f"outputs '{outputs[names.index(name)].name}' and '{output.name}' are the same value")
        if name not in graph.step_of:
            raise Refused(f"output '{output.name}' is an input or a constant: nothing computes it")


def write(imported: Imported, parts: Partition, work: Sequence[Work], identifier: str, draft: Path) -> None:
    """Write the steps of a graph, before its model is patched. Raises Refused as `check_complete` does."""
    check_complete(imported, parts, work)
    write_text(draft / FILE, ordered_steps(imported, work, identifier).text())


def ordered_steps(imported: Imported, work: Sequence[Work], identifier: str) -> Steps:
    """The calls of the kernels that were built, in order; they are complete."""
    graph = _Graph(imported, [w for w in work if w.replace])
    model = imported.model.graph
    inputs = tuple(spec_of(v, imported) for v in model.inputs if v.name not in model.initializers)
    outputs = tuple(spec_of(v, imported) for v in model.outputs)
    results = graph.all(model.outputs)
    symbols = tuple(sorted({n for t in (*inputs, *outputs) for d in t.dims for n in ex.names(d)}))
    cuda = all("cuda" in w.plan.plans for w in graph.work if w.plan is not None)
    spec = OperatorSpec(identifier, f"graph_{identifier}", inputs, outputs, symbols, cuda)
    calls = graph.ordered(results)
    read = {name for call in calls for name in call.inputs}
    weights = tuple(sorted(name for name in read if name in model.initializers))
    return Steps(spec, calls, results, weights)


class _Graph:
    """A model as calls of kernels on values; a value goes by the name of the first tensor that holds it."""

    def __init__(self, imported: Imported, work: Sequence[Work]) -> None:
        self.imported, self.work = imported, work
        self.names = tensor_names(imported)
        self.step_of: dict[str, Step] = {}
        for w in work:
            for o in w.occurrences:
                call = Step(w.id, self.all(o.region.inputs), self.all(o.region.outputs))
                self.step_of |= dict.fromkeys(call.outputs, call)

    def name(self, v: ir.Value) -> str:
        """The name of a tensor's value; a weight keeps its own."""
        own = v.name or ""
        if own in self.imported.model.graph.initializers or own not in self.imported.values:
            return own
        return self.names[self.imported.values[own]]

    def all(self, values: Sequence[ir.Value]) -> tuple[str, ...]:
        """The names of several."""
        return tuple(self.name(v) for v in values)

    def given(self, name: str) -> bool:
        """True if a value is an input or a weight."""
        graph = self.imported.model.graph
        return name in graph.initializers or any(v.name == name for v in graph.inputs)

    def missing(self) -> list[str]:
        """Values that are needed and that no call computes, from the outputs back."""
        missing, seen = list[str](), set[str]()
        todo = [*self.all(self.imported.model.graph.outputs)][::-1]
        while todo:
            name = todo.pop()
            if name in seen or self.given(name):
                continue
            seen.add(name)
            if name in self.step_of:
                todo.extend(self.step_of[name].inputs)
            else:
                missing.append(name)
        return missing

    def ordered(self, results: Sequence[str]) -> tuple[Step, ...]:
        """The calls that results need, each behind those whose outputs it reads."""
        order: dict[Step, None] = {}
        todo = [(self.step_of[name], False) for name in reversed(results)]
        while todo:
            call, ready = todo.pop()
            if ready:
                order[call] = None
            elif call not in order:
                todo.append((call, True))
                todo.extend((self.step_of[i], False) for i in reversed(call.inputs) if i in self.step_of)
        return tuple(order)


def _why(imported: Imported, parts: Partition, work: Sequence[Work], name: str) -> tuple[str, str]:
    """(message, hint) for a value that no kernel computes."""
    node = next((n for n in imported.model.graph for o in n.outputs if o.name == name), None)
    if node is None:
        return f"nothing computes '{name}'", HINT
    reasons = (g["reason"] for g in coverage.unchanged(imported, parts, work) if node.name in g["nodes"])
    failed = (w.reason for w in work if w.failed for o in w.occurrences if node in o.region.nodes)
    reason = next(failed, None) or next(reasons, coverage.UNDECIDED)
    return f"{node.op_type} '{node.name}' cannot be part of a kernel: {reason}", HINT
