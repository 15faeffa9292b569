"""Writing fragments back into an ONNX model: operators of the domain `mirage` with the original sub-graphs as functions.

Without the library a runtime inlines the function, so the file keeps giving the original answers; with it the kernel wins.
Equal fragments share one function.

What is patched is the message that was given, not the reader's copy of it: whatever is not replaced keeps its bytes.

1. An operator stands behind the last node that computes one of its outputs.
2. A tensor that a replaced node returns besides, such as a grown cache, is computed apart.
3. A constant that reading folded and that a kernel takes for a weight becomes one, in the place of what computes it.
4. A node that a fragment begins or ends inside of is written out (`expansion.py`).
5. What a node computes and an operator too, while something else still needs the node, gets another name there.
6. Nodes, weights and declarations that only served what was replaced are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
from onnx import helper

from mirage_cli.codegen import cache_rows
from mirage_cli.errors import InvalidGraph
from mirage_cli.frontends import sizes
from mirage_cli.frontends.imported import Imported
from mirage_cli.frontends.onnx import branches
from mirage_cli.frontends.onnx.traversal import all_nodes
from mirage_cli.patching import graph_message, stand_ins
from mirage_cli.patching.expansion import WrittenOut, reads, written_out
from mirage_cli.patching.graph_message import unused_name
from mirage_cli.patching.grown_caches import Grown
from mirage_cli.patching.regions import ONNX_DOMAINS, Region, cloned

DOMAIN = cache_rows.DOMAIN
DOMAIN_VERSION = 1
FUNCTIONS_IR_VERSION = 8  #: the first version of the format that has model-local functions
OVERRIDABLE_IR_VERSION = 4  #: the first one in which a weight that is an input too is a default


def function_of(model: ir.Model, r: Region, op_type: str) -> ir.Function:
    """A model-local function that computes a region. Raises Refused for one that no runtime loads."""
    graph = _graph(model, r, op_type)
    stand_ins.make_loadable(graph)
    return ir.Function(DOMAIN, op_type, graph=graph, attributes=[])


def model_of(model: ir.Model, r: Region, name: str) -> ir.Model:
    """A model of its own that computes a region; tensors from outside are its inputs."""
    return ir.Model(_graph(model, r, name), ir_version=max(model.ir_version or 0, FUNCTIONS_IR_VERSION))


def _graph(model: ir.Model, r: Region, name: str) -> ir.Graph:
    imports = {"" if d in ONNX_DOMAINS else d: v for d, v in model.opset_imports.items() if d != DOMAIN}
    inputs, outputs, nodes = cloned(r, imports.get("", 1))
    for node in nodes:
        node.domain = "" if node.domain in ONNX_DOMAINS else node.domain
    return ir.Graph(inputs, outputs, nodes=nodes, opset_imports=imports, name=name)


@dataclass(frozen=True, slots=True)
class Replacement:
    """One occurrence of a fragment: the operator `op_type` computes the region's outputs from its inputs.

    Regions that share an operator must compute the same function of their inputs.
    """

    op_type: str
    region: Region


def patched(imported: Imported, replacements: Iterable[Replacement], metadata: Mapping[str, str]) -> onnx.ModelProto:
    """The original with operators in the place of regions.

    Raises InvalidGraph for a region with an output that no node computes, and Refused for one that no function can hold.
    """
    assert imported.original is not None
    replacements = list(replacements)
    proto = imported.original.proto()
    functions: dict[str, onnx.FunctionProto] = {}
    for r in replacements:
        if r.op_type not in functions:
            functions[r.op_type] = ir.to_proto(function_of(imported.model, r.region, r.op_type))
    known = imported.model.functions.items()
    functions |= {name: ir.to_proto(f) for (domain, name, _), f in known if domain == DOMAIN and name not in functions}
    if proto.ir_version < OVERRIDABLE_IR_VERSION:
        weights = {t.name for t in proto.graph.initializer}
        _keep(proto.graph.input, [v.name not in weights for v in proto.graph.input])
    _forget_wrong_shapes(proto, imported)
    read = {name for node in all_nodes(proto.graph.node) for name in node.input}
    inner = dict(branches.of_message(proto))
    places: dict[str, list[Replacement]] = {}
    for r in replacements:
        places.setdefault(r.region.branch, []).append(r)
    for branch, own in places.items():
        if branch:
            _Patch(proto, imported.model, functions, inner[branch]).replace(own)
    _Patch(proto, imported.model, functions, read=read).replace(places.get("", ()))
    _fix_inputs(proto, imported.model)
    proto.ir_version = max(proto.ir_version, FUNCTIONS_IR_VERSION)
    _add_functions(proto, functions)
    _import_domains(proto, imported.model.opset_imports)
    there = {p.key: p for p in proto.metadata_props}
    for key, value in metadata.items():
        entry = there.get(key) or proto.metadata_props.add(key=key)
        entry.value = value
    return proto


def _forget_wrong_shapes(proto: onnx.ModelProto, imported: Imported) -> None:
    """Remove declarations of tensors that say one symbol where reading found another: onnxruntime plans memory by them, and
    whether it notices depends on the nodes around."""
    wrong: set[str] = set()
    declarations = [g.value_info for g in (proto.graph, *(g for _, g in branches.of_message(proto)))]
    for value in (value for own in declarations for value in own):
        v = imported.values.get(value.name)
        if v is None or not value.type.tensor_type.HasField("shape"):
            continue
        declared = [d.dim_param for d in value.type.tensor_type.shape.dim]
        found = [sizes.from_extent(e) for e in imported.graph.dims(v)]
        said = [sizes.parse(imported.same.get(name, name)) if name else None for name in declared]
        if len(said) != len(found) or any(s not in (None, size) for s, size in zip(said, found, strict=True)):
            wrong.add(value.name)
    for own in declarations:
        _keep(own, [v.name not in wrong for v in own])


def _add_functions(proto: onnx.ModelProto, functions: Mapping[str, onnx.FunctionProto]) -> None:
    """Add those that are called; ones of the same names, of an earlier run, have been written out."""
    called = {n.op_type for n in all_nodes(proto.graph.node) if n.domain == DOMAIN}
    _keep(proto.functions, [f.domain != DOMAIN or f.name not in functions for f in proto.functions])
    proto.functions.extend(f for name, f in functions.items() if name in called)


def _import_domains(proto: onnx.ModelProto, versions: Mapping[str, int]) -> None:
    """Import what the model has operators of since it was patched."""
    ours = (n.domain for f in proto.functions if f.domain == DOMAIN for n in f.node)
    there = {o.domain for o in proto.opset_import}
    for domain in dict.fromkeys((DOMAIN, *(n.domain for n in all_nodes(proto.graph.node)), *ours)):
        same = ONNX_DOMAINS if domain in ONNX_DOMAINS else (domain,)
        if there.isdisjoint(same):
            version = DOMAIN_VERSION if domain == DOMAIN else versions.get(domain, 1)
            proto.opset_import.add(domain=domain, version=version)
            there.add(domain)


def _fix_inputs(proto: onnx.ModelProto, model: ir.Model) -> None:
    """Declare the sizes that the user fixed, for which kernels are made: runtimes refuse others."""
    shapes = {v.name: v.shape for v in model.graph.inputs}
    numbers: dict[str, int] = {}
    for value in proto.graph.input:
        shape, declared = shapes.get(value.name), value.type.tensor_type
        if shape is None or not value.type.HasField("tensor_type"):
            continue
        if not declared.HasField("shape"):
            for _ in shape:
                declared.shape.dim.add()
        for dim, size in zip(declared.shape.dim, shape, strict=True):
            if isinstance(size, int) and not dim.HasField("dim_value"):
                numbers |= {dim.dim_param: size} if dim.dim_param else {}
                dim.dim_value = size
    for value in (*proto.graph.output, *proto.graph.value_info) if numbers else ():
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in numbers:
                dim.dim_value = numbers[dim.dim_param]


def _defined(graph: onnx.GraphProto) -> set[str]:
    """The tensors of a graph, which its branches see."""
    weights = [*(t.name for t in graph.initializer), *(t.values.name for t in graph.sparse_initializer)]
    return {*weights, *(v.name for v in graph.input), *(name for node in graph.node for name in node.output if name)}


def _keep(field: Any, kept: Sequence[bool]) -> None:
    """Remove elements of a repeated field in place."""
    for k in reversed(range(len(kept))):
        if not kept[k]:
            del field[k]


@dataclass(frozen=True, slots=True)
class _Item:
    """A node of the patched model: where it stands (the file's node, before it or in its place or behind, a count), and
    which node of the file it is, unless it is new."""

    place: tuple[int, int, int]
    node: onnx.NodeProto
    given: int | None = None
    new: bool = False  #: what it computes takes the place of what others compute


class _Patch:
    """The graph being changed, the main one or a `branch`, with what is looked up for every operator; `read` are the tensors
    that the model's nodes read before."""

    def __init__(
        self,
        proto: onnx.ModelProto,
        model: ir.Model,
        functions: Mapping[str, onnx.FunctionProto],
        branch: onnx.GraphProto | None = None,
        read: Collection[str] = (),
    ) -> None:
        self.graph, self.model = proto.graph if branch is None else branch, model
        self.nodes = list(self.graph.node)
        self.values, self.names = graph_message.value_names(proto), graph_message.node_names(proto)
        self.results = {name: k for k, node in enumerate(self.nodes) for name in node.output if name}
        self.weights = {t.name for t in self.graph.initializer}
        self.weights |= {t.values.name for t in self.graph.sparse_initializer}
        self.inputs = {v.name for v in self.graph.input} | (set() if branch is None else _defined(proto.graph))
        self.folded = {n for n, v in model.graph.initializers.items() if n not in self.weights | self.inputs}
        self.known = {*self.results, *self.weights, *self.inputs}
        outputs = [v.name for v in self.graph.output]
        self.idle = set(range(len(self.nodes))) - graph_message.needed_nodes(self.nodes, outputs)
        self.read = {name for node in self.nodes for name in graph_message.reads(node)} | {*read}
        self.sorted = graph_message.is_sorted(self.nodes)
        self.again = [k for k, n in enumerate(self.nodes) if n.domain == DOMAIN and n.op_type in functions]
        self.items: list[_Item] = []
        self.provided: set[str] = set()
        self.added: dict[str, onnx.TensorProto] = {}
        self.shown: dict[str, ir.Value] = {}  #: tensors that the file does not have
        self.read_as: dict[str, ir.Value] = {}  #: results of nodes that are written out, which the file may say less of

    def replace(self, replacements: Sequence[Replacement]) -> None:
        """Make all changes to the graph's nodes, weights and declarations."""
        apart = self.apart(replacements)
        read = [v.name or "" for replacement in replacements for v in replacement.region.inputs]
        read += [part.tensor.name or "" for grown in apart.values() for part in grown.parts]
        written = [v.name or "" for replacement in replacements for v in replacement.region.outputs]
        out = written_out(self.model, self.results, self.known, read, [*written, *apart], self.again)
        self.stay(out)
        for k, (name, grown) in enumerate(apart.items()):
            self.compute_apart(name, grown, self.place(name, out), k)
        for k, replacement in enumerate(replacements):
            self.operator(replacement, out, k)
        others = [name for own in out.nodes.values() for node in own for name in reads(node)]
        for name in dict.fromkeys([*read, *(n for n in others if n not in self.known)]):
            self.constant(name)
        self.finish()

    def apart(self, replacements: Sequence[Replacement]) -> dict[str, Grown]:
        """The tensors that replaced nodes return besides, by name."""
        return {v.name or "": grown for r in replacements for v, grown in r.region.grown.items()}

    def place(self, name: str, out: WrittenOut) -> int:
        """Where the node stands that computes a tensor. Raises InvalidGraph."""
        position = self.results.get(name, out.inside.get(name))
        if position is None:
            raise InvalidGraph(f"the fragment's output {name!r} is not computed by a node")
        return position

    def stay(self, out: WrittenOut) -> None:
        """The file's nodes, those that are written out as what they are made of."""
        for k, node in enumerate(self.nodes):
            if k not in out.nodes:
                self.items.append(_Item((k, 1, 0), node, k))
                continue
            self.names.discard(node.name)
            for i, part in enumerate(out.nodes[k]):
                message: onnx.NodeProto = ir.to_proto(part)
                message.name = unused_name(message.name, self.names)
                self.values.update(message.output)
                self.shown |= {v.name or "": v for v in part.outputs if v.name not in self.known}
                self.read_as |= {v.name or "": v for v in part.outputs if v.name in self.known}
                self.items.append(_Item((k, 1, i), message))

    def operator(self, r: Replacement, out: WrittenOut, k: int) -> None:
        """Case 1."""
        inputs, outputs = ([v.name or "" for v in values] for values in (r.region.inputs, r.region.outputs))
        place = max(self.place(name, out) for name in outputs)
        name = unused_name(f"{r.op_type}_{k}", self.names)
        node = helper.make_node(r.op_type, inputs, outputs, name, domain=DOMAIN)
        self.items.append(_Item((place, 2, k), node, new=True))
        self.provided.update(outputs)

    def compute_apart(self, name: str, grown: Grown, place: int, k: int) -> None:
        """Case 2."""
        operands: list[str] = []

        def add(op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
            node_name = unused_name(f"{name}/{op_type}", self.names)
            node = helper.make_node(op_type, inputs, [output], node_name, **attributes)
            self.items.append(_Item((place, 0, k), node, new=True))
            return output

        for part in grown.parts:
            v = part.tensor.name or ""
            if part.perm:
                dims = unused_name(f"{name}/dims", self.values)
                self.added[dims] = helper.make_tensor(dims, onnx.TensorProto.INT64, [len(part.split)], part.split)
                split = add("Reshape", [v, dims], unused_name(f"{name}/Reshape", self.values))
                v = add("Transpose", [split], unused_name(f"{name}/Transpose", self.values), perm=part.perm)
            operands.append(v)
        if len(operands) > 1:
            add("Concat", operands, name, axis=grown.axis)
        else:
            add("Identity", operands, name)
        self.provided.add(name)

    def constant(self, name: str) -> None:
        """Case 3, for what is one."""
        if name not in self.folded or name in self.added:
            return
        maker = self.nodes[self.results[name]] if name in self.results else None
        if maker is not None and maker.op_type == "Constant" and maker.domain in ONNX_DOMAINS:
            return
        tensor = self.model.graph.initializers[name].const_value
        assert tensor is not None
        stored = ir.serde.serialize_tensor(tensor)
        stored.name = name
        self.added[name] = stored
        self.provided.add(name)

    # --- what stays -------------------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """Cases 5 and 6, and the order."""
        items = sorted(self.items, key=lambda item: item.place)
        for item in items:
            for i, name in enumerate(item.node.output):
                if name in self.provided and not item.new:
                    item.node.output[i] = unused_name(f"{name}/original", self.values)
        nodes = [item.node for item in items]
        outputs = [v.name for v in self.graph.output]
        kept = graph_message.needed_nodes(nodes, outputs)
        weights = self.weights | self.added.keys()
        there = self.inputs | weights | {name for k in kept for name in nodes[k].output}
        possible = [k for k, item in enumerate(items) if item.given in self.idle and k not in kept]
        kept |= set(graph_message.still_possible(nodes, possible, there))
        left = [nodes[k] for k in sorted(kept)]
        self.clean(graph_message.in_order(left) if self.sorted else left, set(outputs))

    def clean(self, nodes: Sequence[onnx.NodeProto], outputs: set[str]) -> None:
        """Put the nodes into the message, and remove what only served others."""
        read = {name for node in nodes for name in graph_message.reads(node)} | outputs
        computed = {name for node in nodes for name in node.output}
        missing = sorted(read & self.values_of_nodes() - computed - self.added.keys() - self.weights - self.inputs)
        if missing:
            raise InvalidGraph(f"nothing computes {missing[0]!r} any more, which the patched model reads")
        graph = self.graph
        del graph.node[:]
        graph.node.extend(nodes)
        stays = [t.name not in self.read or t.name in read | self.inputs for t in graph.initializer]
        _keep(graph.initializer, stays)
        graph.initializer.extend(t for name, t in self.added.items() if name in read)
        there = computed | self.inputs | {t.name for t in graph.initializer}
        _keep(graph.value_info, [v.name in there or v.name not in self.known for v in graph.value_info])
        for name in sorted(
            self.shown.keys() & computed & {n for node in nodes if node.domain == DOMAIN for n in node.input}
        ):
            if (value := self.shown[name]).shape is not None and value.type is not None:  # no runtime infers it
                graph.value_info.append(ir.serde.serialize_value(value))
        for value in graph.output:
            if value.name in self.read_as and self.read_as[value.name].shape is not None:
                value.type.CopyFrom(ir.serde.serialize_value(self.read_as[value.name]).type)
        told = graph.quantization_annotation
        _keep(told, [q.tensor_name in there or q.tensor_name not in self.known for q in told])

    def values_of_nodes(self) -> set[str]:
        """Names that some node or weight has to provide."""
        inner = {v.name or "" for node in self.model.graph for v in node.outputs}
        return self.known | inner | set(self.folded)
