"""Writing fragments back into an ONNX model: operators of the domain `mirage` with the original sub-graphs as functions.

Without the library a runtime inlines the function, so the file keeps giving the original answers; with it the kernel wins.
Equal fragments share one function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass, RemoveUnusedNodesPass, TopologicalSortPass

from mirage_cli import datafile
from mirage_cli.errors import InvalidGraph
from mirage_cli.grown import Grown
from mirage_cli.regions import Region, cloned

DOMAIN = "mirage"
DOMAIN_VERSION = 1
FUNCTIONS_IR_VERSION = 8  #: the first version of the format that has model-local functions
INSIDE_BYTES = 1024  #: weights up to this size are stored in the file even where others are outside
PROTOBUF_LIMIT = 1_900_000_000  #: bytes of weights from which on they have to be stored outside the file


def function_of(model: ir.Model, r: Region, op_type: str) -> ir.Function:
    """A model-local function that computes a region."""
    return ir.Function(DOMAIN, op_type, graph=_graph(model, r, op_type), attributes=[])


def model_of(model: ir.Model, r: Region, name: str) -> ir.Model:
    """A model of its own that computes a region; tensors from outside are its inputs."""
    return ir.Model(_graph(model, r, name), ir_version=model.ir_version)


def _graph(model: ir.Model, r: Region, name: str) -> ir.Graph:
    inputs, outputs, nodes = cloned(r)
    imports = {d: v for d, v in model.opset_imports.items() if d != DOMAIN}
    return ir.Graph(inputs, outputs, nodes=nodes, opset_imports=imports, name=name)


@dataclass(frozen=True, slots=True)
class Replacement:
    """One occurrence of a fragment: the operator `op_type` computes the region's outputs from its inputs.

    Regions that share an operator must compute the same function of their inputs.
    """

    op_type: str
    region: Region


def patch(model: ir.Model, replacements: Iterable[Replacement], metadata: Mapping[str, str]) -> None:
    """Put operators in the place of their regions, in the model itself; nodes that nothing needs any more are removed.

    Raises InvalidGraph for a region with an output that no node computes.
    """
    replacements = list(replacements)
    functions: dict[str, ir.Function] = {}
    for r in replacements:  # functions first: replacing changes what the original nodes read
        if r.op_type not in functions and (DOMAIN, r.op_type, "") not in model.functions:
            functions[r.op_type] = function_of(model, r.region, r.op_type)
    _Patch(model).replace(replacements)
    model.ir_version = max(model.ir_version or 0, FUNCTIONS_IR_VERSION)
    model.graph.opset_imports[DOMAIN] = DOMAIN_VERSION
    model.metadata_props.update(metadata)
    RemoveUnusedNodesPass()(model)
    for f in functions.values():  # now: their nodes keep outputs that nothing reads, which runtimes may insist on
        model.functions[f.identifier()] = f
    for p in (RemoveUnusedFunctionsPass(), TopologicalSortPass()):  # type: ignore[no-untyped-call]
        p(model)


class _Patch:
    """The model being changed, with what is looked up for every operator: positions of its nodes, names in use."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.positions = {node: i for i, node in enumerate(model.graph)}
        nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
        self.node_names = {node.name or "" for node in nodes}
        self.value_names = {v.name or "" for v in model.graph.inputs} | set(model.graph.initializers)
        self.value_names |= {v.name or "" for node in nodes for v in node.outputs}
        self.current: dict[ir.Value, ir.Value] = {}  #: what took the place of a value

    def replace(self, replacements: Iterable[Replacement]) -> None:
        """Insert the operators, each behind the last node that computes one of its outputs."""
        for k, r in enumerate(replacements):
            for old, grown in r.region.grown.items():
                if old not in self.current:
                    self.take_apart(old, grown)
            inputs = [self.current.get(v, v) for v in r.region.inputs]
            outputs = [
                ir.Value(shape=v.shape, type=v.type, doc_string=v.doc_string, metadata_props=dict(v.metadata_props))
                for v in r.region.outputs
            ]
            name = _unused(f"{r.op_type}_{k}", self.node_names)
            node = ir.Node(DOMAIN, r.op_type, inputs, outputs=outputs, name=name)
            producers = [_producer(v) for v in r.region.outputs]
            self.model.graph.insert_after(max(producers, key=self.positions.__getitem__), node)
            for old, new in zip(r.region.outputs, outputs, strict=True):
                self.exchange(old, new)

    def take_apart(self, old: ir.Value, grown: Grown) -> None:
        """Compute a tensor that a replaced node returns besides by nodes of its own."""
        made: list[ir.Value] = []
        producer = _producer(old)

        def add(op_type: str, inputs: list[ir.Value], **attributes: int | tuple[int, ...]) -> ir.Value:
            name = _unused(f"{old.name}/{op_type}", self.node_names)
            output = ir.Value(name=_unused(f"{old.name}/{op_type}", self.value_names))
            self.model.graph.insert_before(producer, ir.node(op_type, inputs, attributes, outputs=[output], name=name))
            return output

        for part in grown.parts:
            v = self.current.get(part.tensor, part.tensor)
            if part.perm:
                stored = ir.Value(name=_unused(f"{old.name}/dims", self.value_names))
                stored.const_value = ir.tensor(np.array(part.split, np.int64), name=stored.name)
                stored.shape, stored.type = ir.Shape([len(part.split)]), ir.TensorType(ir.DataType.INT64)
                self.model.graph.register_initializer(stored)
                v = add("Transpose", [add("Reshape", [v, stored])], perm=part.perm)
            made.append(v)
        new = add("Concat", made, axis=grown.axis) if len(made) > 1 else add("Identity", made)
        new.shape, new.type = old.shape, old.type
        self.exchange(old, new)

    def exchange(self, old: ir.Value, new: ir.Value) -> None:
        """Let everything that reads `old` read `new`, which takes its name."""
        name = old.name
        old.name, new.name = _unused(f"{name}/original", self.value_names), name
        for i, out in enumerate(self.model.graph.outputs):
            if out is old:
                self.model.graph.outputs[i] = new
        ir.convenience.replace_all_uses_with(old, new)
        self.current[old] = new


def _unused(name: str, used: set[str]) -> str:
    """The name, with a number behind it if it is taken; it is taken from now on."""
    found, count = name, 0
    while found in used:
        count += 1
        found = f"{name}_{count}"
    used.add(found)
    return found


def _producer(v: ir.Value) -> ir.Node:
    producer = v.producer()
    if producer is None:
        raise InvalidGraph(f"the fragment's output {v.name!r} is not computed by a node")
    return producer


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers."""
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def save(model: ir.Model, path: Path, external: bool, pieces: list[datafile.Piece] | None = None) -> None:
    """Write a model; weights go to `<name>.data` beside it when `external` or when they would not fit into the file.

    Weights that are in files are copied from there, each range once; `pieces` takes down how. Raises OSError.
    """
    if not external and weight_bytes(model) <= PROTOBUF_LIMIT:
        ir.save(model, path)
        return
    values = [v for graph in model.graphs() for v in graph.initializers.values()]
    large = [(v, v.const_value) for v in values if v.const_value is not None and v.const_value.nbytes > INSIDE_BYTES]
    outside = datafile.write([tensor for _, tensor in large], path.with_name(f"{path.name}.data"), pieces)
    try:
        for (value, _), moved in zip(large, outside, strict=True):
            value.const_value = moved
        ir.save(model, path)
    finally:
        for value, tensor in large:
            value.const_value = tensor
