"""Writing fragments into a TorchScript module: its own graph, with calls of torch.ops.mirage in the place of the fragments.

The marks of the front end tell which tensors of the graph are a fragment's inputs and outputs; everything else stays as
it was. Weights that the fragment reads in another form than the module has them become buffers of the patched module.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mirage_cli.backends import torch_library
from mirage_cli.backends.spec import OperatorSpec
from mirage_cli.files.output import SCRIPT
from mirage_cli.frontends.imported import Imported, Script
from mirage_cli.frontends.torchscript.graph import MARK
from mirage_cli.frontends.torchscript.modules import TYPES, import_torch, to_tensor


@dataclass(frozen=True, slots=True)
class Call:
    """One place of a fragment: `inputs` and `outputs` are tensors of the ONNX model."""

    operator: OperatorSpec
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def write(imported: Imported, calls: Sequence[Call], path: Path) -> list[str]:
    """Write the module of `imported`, as it was before its ONNX model was patched, with operators for `calls`; in the process
    where the module is.

    Returns what is worth telling: the places that were left as they are, and why. Raises MirageError.
    """
    assert imported.script is not None
    if isinstance(imported.script, Script):
        return _write(imported, imported.script, calls, path)
    notes: list[str] = imported.script.call(write, calls, path)
    return notes


def _write(imported: Imported, script: Script, calls: Sequence[Call], path: Path) -> list[str]:
    """The same in that process."""
    mutates = script.marked.mutates
    if not calls or mutates:
        shutil.copyfile(imported.path, path)
        why = f"its {mutates} changes a tensor in place" if mutates else "no fragment was replaced"
        return [f"{path.name} is the original module: {why}"]
    torch = import_torch()
    with torch.no_grad(), _declared(torch, list({c.operator.id: c.operator for c in calls}.values())):
        patch = _Patch(torch, imported, script, calls)
        notes = patch.replace_all(calls)
        patch.save(path)
    return notes


class _Patch:
    """A module being changed."""

    def __init__(self, torch: Any, imported: Imported, script: Script, calls: Sequence[Call]) -> None:
        marked = script.marked
        self.torch, self.imported = torch, imported
        self.own = {**dict(marked.module.named_parameters()), **dict(marked.module.named_buffers())}
        self.buffers = self.missing(calls)
        self.compiled = self.with_buffers(marked)
        self.graph = self.compiled._get_method("forward").graph
        self.inputs = list(self.graph.inputs())
        self.first = next(iter(self.graph.nodes()))
        self.attributes: dict[str, Any] = {}  #: parameters and buffers that calls read, by their path
        self.values: dict[int, list[Any]] = {}  #: equal tensors of the graph, by their value in the imported graph
        self.collect(marked.inputs, script)

    # --- weights ----------------------------------------------------------------------------------------------------------
    def missing(self, calls: Sequence[Call]) -> dict[str, tuple[str, NDArray[Any]]]:
        """For each constant that calls read and that the module has not: the name of its buffer, its elements."""
        buffers: dict[str, tuple[str, NDArray[Any]]] = {}
        for name in dict.fromkeys(n for call in calls for n in call.inputs):
            value = self.imported.model.graph.initializers.get(name)
            if value is None or value.const_value is None:
                continue
            own, stored = self.own.get(name), value.const_value
            kind = str(stored.dtype.numpy())
            if own is None or (*own.shape, f"torch.{kind}") != (*stored.shape.numpy(), str(own.dtype)):
                letters = re.sub(r"\W+", "_", name).strip("_")
                buffers[name] = f"mirage_{len(buffers)}_{letters}", self.imported.constant(name)
        return buffers

    def with_buffers(self, marked: Any) -> Any:
        """The compiled module with the new buffers, in one graph again."""
        torch = self.torch
        outer = torch.nn.Module()
        outer.original = marked.module
        for buffer, elements in self.buffers.values():
            outer.register_buffer(buffer, to_tensor(torch, elements))
        scripted = torch.jit.script(outer)
        names = ", ".join(marked.inputs)
        scripted.define(f"def forward(self, {names}):\n    return self.original({names})\n")
        kept = [buffer for buffer, _ in self.buffers.values()]
        return torch._C._freeze_module(scripted._c, kept, preserveParameters=True)

    def weight(self, name: str) -> Any:
        """The graph's value of a constant of the ONNX model."""
        path = self.buffers[name][0] if name in self.buffers else f"original.{name}"
        module, value = self.compiled, self.inputs[0]
        *parents, last = path.split(".")
        for k, part in enumerate(parents):
            module = module.getattr(part)
            value = self.attribute(".".join(parents[: k + 1]), value, part, module._type())
        return self.attribute(path, value, last, self.torch._C.TensorType.get())

    def attribute(self, path: str, owner: Any, name: str, kind: Any) -> Any:
        """An attribute of the module, read in front of everything else."""
        if path not in self.attributes:
            node = self.graph.create("prim::GetAttr", [owner], 1)
            node.s_("name", name)
            node.output().setType(kind)
            node.insertBefore(self.first)
            self.attributes[path] = node.output()
        return self.attributes[path]

    # --- tensors ----------------------------------------------------------------------------------------------------------
    def collect(self, inputs: Sequence[str], script: Script) -> None:
        """Take down the graph's tensors: inputs, then what is marked, in order."""
        values = self.imported.values
        for name, value in zip(inputs, self.inputs[1:], strict=True):
            if name in values:
                self.values.setdefault(values[name], []).append(value)
        for node in self.graph.nodes():
            mark = node.inputsAt(1).toIValue() if node.kind() == MARK else None
            if mark is None or mark not in script.names or mark not in script.seen:
                continue
            for number in dict.fromkeys(values[n] for n in script.names[mark] if n in values):
                if self.agrees(number, script.seen[mark]):
                    self.values.setdefault(number, []).append(node.output())

    def agrees(self, number: int, seen: Any) -> bool:
        """True if a value has the type and shape of a tensor of the graph: exporters compute some in another type."""
        graph = self.imported.graph
        kind = TYPES.get(graph.dtype(number).name, graph.dtype(number).name)
        return tuple(graph.dims(number)) == tuple(seen.shape) and f"torch.{kind}" == str(seen.dtype)

    def equal(self, name: str) -> list[Any]:
        """The tensors of the graph that are equal to one of the ONNX model."""
        return self.values.get(self.imported.values.get(name, -1), [])

    # --- calls ------------------------------------------------------------------------------------------------------------
    def replace_all(self, calls: Sequence[Call]) -> list[str]:
        """Put calls into the graph, each when what it reads is there; why places were left as they are.

        What a call makes need not be a tensor of the graph: between two fragments it may be a view that only the ONNX
        model has. Whatever else the ONNX model does with it, the graph does with its own tensors.
        """
        waiting, notes = list(calls), []
        while ready := [c for c in waiting if all(self.knows(n) for n in c.inputs)]:
            waiting = [c for c in waiting if c not in ready]
            notes += [note for call in ready for note in self.replace(call)]
        for call in waiting:
            lost = next(n for n in call.inputs if not self.knows(n))
            notes.append(f"{_place(call)} stays as it was: the TorchScript graph has no tensor that is {lost}")
        return notes

    def knows(self, name: str) -> bool:
        """True if the graph has a tensor of the ONNX model."""
        return name in self.imported.model.graph.initializers or bool(self.equal(name))

    def replace(self, call: Call) -> list[str]:
        """Put one call into the graph; or the reason why not."""
        constant = self.imported.model.graph.initializers
        read = [self.weight(n) if n in constant else self.equal(n)[0] for n in call.inputs]
        node = self.graph.create(f"{torch_library.DOMAIN}::{call.operator.op_type}", read, len(call.outputs))
        self.insert(node, read)
        old = [v for n in call.outputs for v in self.equal(n)]
        if any(use.user.isBefore(node) for v in old for use in v.uses()):
            node.destroy()
            return [f"{_place(call)} stays as it was: its results are read before all of its inputs are known"]
        for name, new in zip(call.outputs, node.outputs(), strict=True):
            new.setType(self.torch._C.TensorType.get())
            for v in self.equal(name):
                v.replaceAllUsesWith(new)
            if name in self.imported.values:
                self.values[self.imported.values[name]] = [new]
        return []

    def insert(self, node: Any, read: Sequence[Any]) -> None:
        """Insert a node behind the last of the nodes that make what it reads."""
        makers = [v.node() for v in read if v.node().kind() != "prim::Param"]
        last = None
        for maker in makers:
            last = maker if last is None or maker.isAfter(last) else last
        if last is None:
            node.insertBefore(self.first)
        else:
            node.insertAfter(last)

    # --- the result -------------------------------------------------------------------------------------------------------
    def save(self, path: Path) -> None:
        """Write the module, without marks and without what nothing reads any more."""
        torch = self.torch
        for node in [n for n in self.graph.nodes() if n.kind() == MARK]:
            node.output().replaceAllUsesWith(node.inputsAt(0))
            node.destroy()
        torch._C._jit_pass_dce(self.graph)
        compiled = torch._C._freeze_module(self.compiled, preserveParameters=True)
        torch.jit._recursive.wrap_cpp_module(compiled).save(str(path))


def _place(call: Call) -> str:
    return f"{SCRIPT}: {call.operator.op_type} up to {call.outputs[0]}"


@contextmanager
def _declared(torch: Any, operators: Sequence[OperatorSpec]) -> Iterator[None]:
    """Let torch know operators without kernels: it writes no calls of unknown ones."""
    library = torch.library.Library(torch_library.DOMAIN, "FRAGMENT")
    try:
        for operator in operators:
            with suppress(RuntimeError):  # the library of another output folder has declared it
                library.define(torch_library.schema(operator))
        yield
    finally:
        library._destroy()
