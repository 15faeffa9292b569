"""Writing fragments back into an ONNX model: operators of the domain `mirage` with the original sub-graphs as functions.

Without the library a runtime inlines the function, so the file keeps giving the original answers; with it the kernel wins.
Equal fragments share one function. What a function needs beside the fragment's tensors is passed to it (tensors of the
model) or lives in it (small constants such as shapes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass, RemoveUnusedNodesPass, TopologicalSortPass

from mirage_cli.errors import InvalidGraph

DOMAIN = "mirage"
DOMAIN_VERSION = 1
SMALL_CONSTANT = 64  #: elements up to which a constant lives in the function rather than being passed to it
PROTOBUF_LIMIT = 1_900_000_000  #: bytes of weights from which on they have to be stored outside the file


@dataclass(frozen=True, slots=True)
class Region:
    """The original nodes between tensors: `inputs` are those asked for and then whatever else the nodes need."""

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    constants: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]

    @property
    def node_names(self) -> list[str]:
        """The names of the nodes, in order."""
        return [n.name or "" for n in self.nodes]


def values_by_name(model: ir.Model) -> dict[str, ir.Value]:
    """Every tensor of the main graph by its name."""
    found: dict[str, ir.Value] = {v.name: v for v in model.graph.inputs if v.name}
    found |= dict(model.graph.initializers.items())
    for node in model.graph:
        found |= {v.name: v for v in node.outputs if v.name}
    return found


def region(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> Region:
    """The nodes that compute `outputs` from `inputs`. Raises InvalidGraph for names that the model lacks."""
    known = values_by_name(model)
    missing = [n for n in (*inputs, *outputs) if n not in known]
    if missing:
        raise InvalidGraph(f"the model has no tensor {missing[0]!r}")
    boundary = [known[n] for n in inputs]
    nodes: set[ir.Node] = set()
    extra: dict[ir.Value, None] = {}
    constants: dict[ir.Value, None] = {}
    todo = [known[n] for n in outputs]
    while todo:
        v = todo.pop()
        if any(v is b for b in boundary):
            continue
        producer = v.producer()
        if producer is not None:
            if producer not in nodes:
                nodes.add(producer)
                todo.extend(i for i in producer.inputs if i is not None)
        elif _is_small_constant(v):
            constants[v] = None
        else:
            extra[v] = None
    ordered = [n for n in model.graph if n in nodes]
    others = sorted(extra, key=lambda v: v.name or "")
    fixed = sorted(constants, key=lambda v: v.name or "")
    return Region(tuple(ordered), (*boundary, *others), tuple(fixed), tuple(known[n] for n in outputs))


def _is_small_constant(v: ir.Value) -> bool:
    tensor = v.const_value
    return tensor is not None and tensor.size <= SMALL_CONSTANT


def _clone(r: Region) -> tuple[list[ir.Value], list[ir.Value], list[ir.Node]]:
    """Copies of a region's inputs, outputs and nodes (constants as nodes in front)."""
    copy: dict[ir.Value, ir.Value] = {}
    for v in r.inputs:
        copy[v] = ir.Value(name=v.name, shape=v.shape, type=v.type)
    nodes: list[ir.Node] = []
    for v in r.constants:
        assert v.const_value is not None
        copy[v] = ir.Value(name=v.name, shape=v.shape, type=v.type)
        attribute = ir.AttrTensor("value", v.const_value)
        nodes.append(ir.Node("", "Constant", [], [attribute], outputs=[copy[v]], name=f"{v.name}_constant"))
    for n in r.nodes:
        outputs = []
        for v in n.outputs:
            copy[v] = ir.Value(name=v.name, shape=v.shape, type=v.type)
            outputs.append(copy[v])
        inputs = [None if i is None else copy[i] for i in n.inputs]
        attributes = list(n.attributes.values())
        nodes.append(
            ir.Node(n.domain, n.op_type, inputs, attributes, overload=n.overload, outputs=outputs, name=n.name)
        )
    return [copy[v] for v in r.inputs], [copy[v] for v in r.outputs], nodes


def function_of(model: ir.Model, r: Region, op_type: str) -> ir.Function:
    """A model-local function that computes a region."""
    inputs, outputs, nodes = _clone(r)
    imports = {d: v for d, v in model.opset_imports.items() if d != DOMAIN}
    graph = ir.Graph(inputs, outputs, nodes=nodes, opset_imports=imports, name=op_type)
    return ir.Function(DOMAIN, op_type, graph=graph, attributes=[])


def model_of(model: ir.Model, r: Region, name: str) -> ir.Model:
    """A model of its own that computes a region; tensors from outside are its inputs."""
    inputs, outputs, nodes = _clone(r)
    imports = {d: v for d, v in model.opset_imports.items() if d != DOMAIN}
    graph = ir.Graph(inputs, outputs, nodes=nodes, opset_imports=imports, name=name)
    return ir.Model(graph, ir_version=model.ir_version)


@dataclass(frozen=True, slots=True)
class Replacement:
    """One occurrence of a fragment: the tensors that operator `op_type` reads and computes."""

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def patch(
    model: ir.Model, replacements: Iterable[Replacement], metadata: Mapping[str, str]
) -> dict[str, list[list[str]]]:
    """Put operators in the place of their regions, in the model itself; nodes that nothing needs any more are removed.

    Returns for each operator the names of the original nodes, a list for each occurrence.
    """
    replaced: dict[str, list[list[str]]] = {}
    known = values_by_name(model)
    regions = [(r, region(model, r.inputs, r.outputs)) for r in replacements]
    for r, original in regions:  # functions first: replacing changes what the original nodes read
        replaced.setdefault(r.op_type, []).append(original.node_names)
        if (DOMAIN, r.op_type, "") not in model.functions:
            function = function_of(model, original, r.op_type)
            model.functions[function.identifier()] = function
    current: dict[ir.Value, ir.Value] = {}
    for k, (r, original) in enumerate(regions):
        inputs = [current.get(v, v) for v in original.inputs]
        current |= _replace(model, r, inputs, known, f"{r.op_type}_{k}")
    model.graph.opset_imports[DOMAIN] = DOMAIN_VERSION
    model.metadata_props.update(metadata)
    for p in (RemoveUnusedNodesPass(), RemoveUnusedFunctionsPass(), TopologicalSortPass()):  # type: ignore[no-untyped-call]
        p(model)
    return replaced


def _replace(
    model: ir.Model, r: Replacement, inputs: Sequence[ir.Value], known: Mapping[str, ir.Value], name: str
) -> dict[ir.Value, ir.Value]:
    """Insert an operator and let everything read its results; returns the new value for each old one."""
    outputs = [ir.Value(shape=known[n].shape, type=known[n].type) for n in r.outputs]
    node = ir.Node(DOMAIN, r.op_type, list(inputs), outputs=outputs, name=name)
    last = max((known[n].producer() for n in r.outputs), key=lambda n: _position(model, n))
    model.graph.insert_after(_node(last), node)
    changed = {}
    for tensor, new in zip(r.outputs, outputs, strict=True):
        old = known[tensor]
        old.name, new.name = f"{tensor}/original", tensor
        for i, out in enumerate(model.graph.outputs):
            if out is old:
                model.graph.outputs[i] = new
        ir.convenience.replace_all_uses_with(old, new)
        changed[old] = new
    return changed


def _node(n: ir.Node | None) -> ir.Node:
    if n is None:
        raise InvalidGraph("a fragment's output is not computed by a node")
    return n


def _position(model: ir.Model, n: ir.Node | None) -> int:
    return next((k for k, x in enumerate(model.graph) if x is n), -1)


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers."""
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def save(model: ir.Model, path: Path, external: bool) -> None:
    """Write a model; weights go to `<name>.data` beside it when `external` or when they would not fit into the file."""
    if external or weight_bytes(model) > PROTOBUF_LIMIT:
        ir.save(model, path, external_data=f"{path.name}.data", size_threshold_bytes=1024)
    else:
        ir.save(model, path)
