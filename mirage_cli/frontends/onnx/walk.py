"""From the nodes of an ONNX model to a graph of primitive operators.

Nodes are read in order. A node that no reader expresses becomes opaque: its results are new tensors for whatever
reads them, and the reason is kept. Nothing is left out silently.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.analysis import analyze_implicit_usage

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.frontends import sizes
from mirage_cli.frontends.names import entered
from mirage_cli.frontends.onnx import fragile, tolerated
from mirage_cli.frontends.onnx.branches import BRANCH, branch_of
from mirage_cli.frontends.onnx.ops import READERS, positions, shape_values
from mirage_cli.frontends.onnx.ops.quantized import scaled_integers
from mirage_cli.frontends.onnx.ops.registry import ELEMENT_TYPES, RUNTIMES_OWN, Call, Results, Unread
from mirage_cli.frontends.onnx.ops.shape_values import Known
from mirage_cli.frontends.onnx.parts import splicing
from mirage_cli.frontends.onnx.preparation import OLDEST_OPSET, rename_symbols
from mirage_cli.frontends.sizes import Size
from mirage_cli.lax.dtypes import BOOL, I64
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.graph import Choose, Dims, Graph, Tensor, UnequalExtents, exact

COUNTED = 2**16  #: elements of a constant up to which it may be positions
COMPARED = 2**23  #: and up to which it may be a comparison of positions: a larger one is a weight
FRONT = 2**12  #: elements that tell whether the others are looked at
_ONNX_TYPES = {ours: theirs.value for theirs, ours in ELEMENT_TYPES.items()}
_SHAPE_OPERATORS = frozenset({"Shape", "Size"})


@dataclass(frozen=True, slots=True)
class Reading:
    """A graph, the values of the model's tensors in it, integer tensors of extents, why nodes are not read, the sizes that
    symbols are not below, or not above, in any run of the model, symbols that others are equal to in all of them, and what
    branches read from around them."""

    graph: Graph
    values: dict[str, int]
    shapes: dict[str, Known]
    reasons: dict[str, str]
    least: dict[str, int]
    most: dict[str, int]
    same: dict[str, str]
    around: dict[str, str]


def read_graph(model: ir.Model) -> Reading:
    """The graph of a model whose functions are inlined and whose nodes have names of their own.

    Where nodes tell what sizes every run has, as a contraction that a window is full, or that two symbols are equal (one
    takes the other's name then, in the model too), the model is read again with that."""
    declared = [(o, o.shape) for node in model.graph for o in node.outputs]
    walk, same = _walked(model, {}, {}), dict[str, str]()
    while walk.learnt or walk.ends or walk.same:
        for output, shape in declared:
            output.shape = shape
        if walk.same:
            rename_symbols(model, walk.same)
            declared = [(output, output.shape) for output, _ in declared]
            same = {n: walk.same.get(to, to) for n, to in same.items()} | walk.same
            walk = _walked(model, {}, {})
        else:
            walk = _walked(model, walk.least | walk.learnt, walk.most | walk.ends)
    shapes = {name: extents for name, known in walk.shapes.items() if (extents := _extents(known)) is not None}
    values = _rows_named(walk.graph, walk.values)
    return Reading(walk.graph, values, shapes, walk.reasons, walk.least, walk.most, same, walk.around)


def _rows_named(graph: Graph, values: dict[str, int]) -> dict[str, int]:
    """Tensors of a model by their names, and chosen rows that are none of these by what they are chosen of and by."""
    names = {v: name for name, v in reversed(values.items())}
    rows = {v: read for v, read in enumerate(graph.inputs) if isinstance(graph.steps[v], Choose) and v not in names}
    return values | {f"{names[table]}[{names[index]}]": v for v, (table, index) in rows.items()}


def _walked(model: ir.Model, least: dict[str, int], most: dict[str, int]) -> _Walk:
    """The model read once."""
    walk = _Walk(model, least, most)
    for value in model.graph.inputs:
        walk.input(value)
    walk.given = list(dict.fromkeys(n for t in walk.graph.tensors for d in t.dims for n in names_of(d)))
    for node in model.graph:
        walk.node(node)
    walk.graph.outputs = [walk.anything(value) for value in model.graph.outputs]
    ends = {v.name or "" for v in splicing.between(model)}
    between = (walk.values.get(name) for name in (*ends, *(own for own, name in walk.around.items() if name in ends)))
    walk.graph.bounds = list(dict.fromkeys(v for v in between if v is not None))
    return walk


def _extents(known: Known) -> Known | None:
    """Known integers as extents; None where some are not known, or sizes that may be negative."""
    if not shape_values.is_known(known):
        return None
    elements = np.empty(known.size, object)
    try:
        elements[:] = [e if isinstance(e, int) else sizes.to_extent(e) for e in known.ravel()]
    except ValueError:
        return None
    return elements.reshape(known.shape)


@dataclass(slots=True)
class _Walk:
    """The reading so far. It is the `Scope` of the readers."""

    model: ir.Model
    least: dict[str, int]  #: sizes that symbols are not below in any run
    most: dict[str, int]  #: those that they are not above
    graph: Graph = field(default_factory=Graph)
    values: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    hidden: dict[str, int] = field(default_factory=dict)  #: stand-ins for tensors that the graph cannot hold
    unreadable: dict[str, str] = field(default_factory=dict)  #: why a tensor has no graph value
    shapes: dict[str, Known] = field(default_factory=dict)
    captures: dict[ir.Graph, set[ir.Value]] = field(default_factory=dict)
    symbols: set[str] = field(default_factory=set)  #: those of the first `heard` values
    heard: int = 0
    learnt: dict[str, int] = field(default_factory=dict)  #: larger least sizes, which contractions and indices tell
    ends: dict[str, int] = field(default_factory=dict)  #: smaller greatest ones, which sums tell
    same: dict[str, str] = field(default_factory=dict)  #: symbols of inputs that are equal to earlier ones
    given: list[str] = field(default_factory=list)  #: the symbols of inputs, in order
    branch: str = ""  #: that of the node which is read
    around: dict[str, str] = field(default_factory=dict)  #: tensors by what branches call them that read them

    def __post_init__(self) -> None:
        self.captures = analyze_implicit_usage(self.model.graph)

    # --- what readers ask for -----------------------------------------------------------------------------------------
    def value(self, tensor: ir.Value) -> int:
        """The graph value of a tensor. Raises Refused with the reason when there is none."""
        name = tensor.name or ""
        if self.branch and name not in self.shapes and tensor.const_value is None:
            name = self.entered(tensor)
        if name not in self.values:
            if name in self.unreadable:
                raise Refused(f"input {name!r} {self.unreadable[name]}")
            if tensor.const_value is not None:
                self.values[name] = self.constant(tensor.const_value, name)
            elif name in self.shapes:
                self.values[name] = self.materialize(self.shapes[name], tensor)
            else:
                raise Refused(f"input {name!r} comes from outside the model's main graph")
        return self.values[name]

    def entered(self, tensor: ir.Value) -> str:
        """The name of a tensor where the branch reads it: another one for what is from around it, if it can be read."""
        name, own = tensor.name or "", entered(self.branch, tensor.name or "")
        if branch_of(tensor) == self.branch or name not in self.values:
            return name
        if own not in self.values:
            v = self.values[name]
            self.values[own] = self.graph.opaque(f"entering {own}", (v,), self.graph.tensors[v])
            self.around[own] = name
        return own

    def known(self, tensor: ir.Value) -> Known | None:
        """The integers in a tensor as far as they are known."""
        if tensor.name in self.shapes:
            return self.shapes[tensor.name]
        return None if tensor.is_graph_input() else shape_values.constant(tensor.const_value)

    def anything(self, tensor: ir.Value) -> int:
        """The tensor's graph value, or a stand-in that keeps the order of computation."""
        name = tensor.name or ""
        try:
            return self.value(tensor)
        except Refused as refusal:
            if name not in self.hidden:
                self.unreadable.setdefault(name, str(refusal))
                self.hidden[name] = self.graph.opaque(f"tensor {name}", (), Tensor((), BOOL))
            return self.hidden[name]

    # --- inputs and constants -----------------------------------------------------------------------------------------
    def input(self, value: ir.Value) -> None:
        """Record an input of the model."""
        name = value.name or ""
        tensor = self.declared(value, name)
        if isinstance(tensor, str):
            self.unreadable[name] = tensor
            self.hidden[name] = self.graph.input(name, (), BOOL)
        else:
            self.values[name] = self.graph.input(name, tensor.dims, tensor.dtype)

    def declared(self, value: ir.Value, prefix: str) -> Tensor | str:
        """The type and shape that the model declares of a tensor, unnamed dimensions as symbols; or why the graph
        cannot hold it."""
        if not isinstance(value.type, ir.TensorType):
            return "has no known element type" if value.type is None else "is no tensor"
        dtype = ELEMENT_TYPES.get(value.type.dtype)
        if dtype is None:
            return f"has element type {value.type.dtype.name.lower()}, which is not read"
        if value.shape is None:
            return "has an unknown number of dimensions"
        dims: list[Extent] = []
        for i, d in enumerate(value.shape):
            text = d if isinstance(d, int) else d.value
            size: Size = (
                sizes.named(f"{prefix}.{i}") if text is None else text if isinstance(text, int) else sizes.parse(text)
            )
            try:
                dims.append(sizes.to_extent(size))
            except ValueError:
                return f"has dimension {size}"
        return Tensor(tuple(dims), dtype)

    def constant(self, stored: ir.TensorProtocol, name: str) -> int:
        """A stored tensor: one number where all elements are equal, positions where integers count, a comparison of positions
        where it is one throughout, else a constant input. Raises Refused."""
        dtype = ELEMENT_TYPES.get(stored.dtype)
        if dtype is None:
            raise Refused(f"constant {name!r} has element type {stored.dtype.name.lower()}, which is not read")
        dims = tuple(int(d) for d in stored.shape.numpy())
        if 0 < stored.size <= (COMPARED if dtype.per_byte == 1 else COUNTED):
            elements = stored.numpy()
            front = elements.reshape(-1)[:FRONT]
            others = front[front != front[0]]
            if stored.size == 1 or (not others.size and bool((elements == front[0]).all())):
                return self.graph.fill(float(front[0]) if dtype.is_float else int(front[0]), dtype, dims)
            counts = dtype.kind == "int" and stored.size <= COUNTED
            walk = positions.of_numbers(elements) if counts else None
            if walk is not None:
                return positions.counted(self.graph, walk, dims, dtype)
            band = positions.band_of(elements) if bool((others == others[:1]).all()) else None
            if band is not None:
                return band.recorded(self.graph, dims, dtype)
        return self.graph.input(name, dims, dtype, constant=True)

    def materialize(self, known: Known, tensor: ir.Value) -> int:
        """Known integers as a graph value. Raises Refused when some are not known."""
        if not shape_values.is_known(known):
            raise Refused(f"input {tensor.name!r} is a shape that is not fully known")
        dtype = I64 if tensor.dtype is None else ELEMENT_TYPES.get(tensor.dtype, I64)
        elements = known.ravel().tolist()
        if all(isinstance(e, int) and e == elements[0] for e in elements):  # one number, as where it is stored
            return self.graph.fill(exact(elements[0]) if elements else 0, dtype, known.shape)
        parts = [self.graph.reshape(positions.number(self.graph, e, dtype), (1,)) for e in elements]
        return self.graph.reshape(self.graph.concat(parts, 0), known.shape)

    # --- nodes --------------------------------------------------------------------------------------------------------
    def node(self, node: ir.Node) -> None:
        """Read one node, or record it as opaque with the reason."""
        self.branch = str(node.meta.get(BRANCH, ""))
        try:
            shapes = self.known_outputs(node)
            if shapes is not None:
                self.shapes.update((o.name or "", s) for o, s in zip(node.outputs, shapes, strict=False))
                if len(shapes) == len(node.outputs) and all(map(shape_values.is_known, shapes)):
                    return
            results = self.read(node)
            self.check(node, results)
        except (Refused, InvalidGraph) as refusal:
            if isinstance(refusal, UnequalExtents):
                self.learn(refusal)
            if isinstance(refusal, Unread):
                node.outputs[0].shape = _shape(refusal.dims)
                if refusal.dtype is not None:
                    node.outputs[0].type = ir.TensorType(ir.DataType(_ONNX_TYPES[refusal.dtype]))
            self.opaque(node, str(refusal))
            return
        except (TypeError, ValueError, IndexError) as error:  # attributes and ranks that the checker does not look at
            self.opaque(node, f"it does not have its operator's form: {error}")
            return
        for output, v in zip(node.outputs, results, strict=False):
            if v is not None and output.name:
                self.values[output.name] = v
                self.complete(output, v)
                if splicing.END in node.meta:
                    self.graph.bounds.append(v)

    def learn(self, unequal: UnequalExtents) -> None:
        """Two extents are equal in every run that does not fail: a window is full, a table reaches to the end, or two symbols
        are one. Nodes of a branch tell nothing: it may not run."""
        if self.branch:
            return
        a, b = map(sizes.from_extent, unequal.pair)
        equal = None if unequal.broadcast else sizes.equal_symbols(a, b)
        if equal is not None and set(equal) <= set(self.given):
            first, later = sorted(equal, key=self.given.index)
            self.same.setdefault(later, first)
        self.at_least(sizes.repeated_bound(a, b) if unequal.broadcast else sizes.equality_bound(a, b))
        end = sizes.end_bound(a, b)
        if end is not None and end[1] < self.most.get(end[0], sizes.LARGEST):
            self.ends[end[0]] = min(end[1], self.ends.get(end[0], sizes.LARGEST))

    def at_least(self, bound: tuple[str, int] | None) -> None:
        """A symbol is a number or more in every run that does not fail."""
        if not self.branch and bound is not None and bound[1] > self.least.get(bound[0], 0):
            self.learnt[bound[0]] = max(bound[1], self.learnt.get(bound[0], 0))

    def need(self, extent: Extent, size: int) -> None:
        """A dimension has so many positions in every run that does not fail. That it has one says nothing."""
        self.at_least(sizes.size_bound(sizes.from_extent(extent), size) if size > 1 else None)

    def complete(self, output: ir.Value, v: int) -> None:
        """Give a tensor of the model the type and dimensions that were read where it has none: inference does not know
        the operators of other domains, and a fragment's original needs them to be a model of its own."""
        tensor = self.graph.tensors[v]
        if output.type is None:
            output.type = ir.TensorType(ir.DataType(_ONNX_TYPES[tensor.dtype]))
        if output.shape is None:
            output.shape = _shape(tensor.dims)

    def read(self, node: ir.Node) -> list[int | None]:
        """The node's outputs as graph values. Raises Refused or InvalidGraph with the reason."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        reader = READERS.get((domain, node.op_type))
        version = self.model.opset_imports.get(domain) or 1
        if domain == "" and version < OLDEST_OPSET:
            raise Refused(f"operators of opset {version} are not read (from {OLDEST_OPSET} on)")
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            raise Refused("it contains sub-graphs")
        if (product := scaled_integers(node)) is not None and (product.name or "") in self.reasons:
            raise Refused("it is a part of a product of integers, of which runtimes make one operator")
        if reader is None:
            kind = "operator" if domain == "" else f"operator of domain {domain}"
            raise Refused(f"the {kind} is not read")
        if domain == "" and node.op_type not in RUNTIMES_OWN and not onnx.defs.has(node.op_type, version):
            raise Refused(f"opset {version} has no such operator")
        results: Results = reader.read(Call(self.graph, node, version, self))
        listed: list[int | None] = [results] if isinstance(results, int) else list(results)
        for output in node.outputs[len(listed) :]:
            if output.name and (output.uses() or output.is_graph_output()):
                raise Refused(f"output {output.name!r} is not read")
        return listed

    def check(self, node: ir.Node, results: list[int | None]) -> None:
        """Refuse a reading that disagrees with what the model says of the results: one of them is wrong."""
        for output, v in zip(node.outputs, results, strict=False):
            if v is None or not output.name:
                continue
            if isinstance(output.type, ir.TensorType) and ELEMENT_TYPES.get(output.type.dtype) != self.graph.dtype(v):
                raise Refused(f"read as {self.graph.dtype(v)}, but the model says {output.type.dtype.name.lower()}")
            if output.shape is None:
                continue
            if not _agree(output.shape, self.graph.dims(v)) and not self.corrected(node, output, v):
                raise Refused(f"read as {self.graph.tensors[v]}, but the model says {output.shape}")

    def corrected(self, node: ir.Node, output: ir.Value, v: int) -> bool:
        """Give an output of the model the dimensions that it was read with, where inference finds them too: runtimes only
        warn of others that are declared."""
        inferred = self.inferred(node).get(output.name or "") if output.is_graph_output() else None
        shape = None if inferred is None else ir.serde.deserialize_type_proto_for_shape(inferred)
        if shape is None or not _agree(shape, self.graph.dims(v)):
            return False
        output.shape = shape
        return True

    def known_outputs(self, node: ir.Node) -> list[Known] | None:
        """The integers that the node computes, as far as they are known."""
        if node.domain not in ("", "ai.onnx") or (self.model.opset_imports.get("") or 1) < OLDEST_OPSET:
            return None
        if node.op_type in _SHAPE_OPERATORS:
            return self.shape_of(node)
        if any(o.dtype is not None and not o.dtype.is_integer() and o.dtype != ir.DataType.BOOL for o in node.outputs):
            return None
        return shape_values.propagate(node, [None if i is None else self.known(i) for i in node.inputs])

    def shape_of(self, node: ir.Node) -> list[Known] | None:
        """The result of a Shape or Size node."""
        tensor = node.inputs[0]
        if tensor is None:
            return None
        try:
            dims: Iterable[Extent] = self.graph.dims(self.value(tensor))
        except Refused:
            declared = self.declared(tensor, tensor.name or "")
            if tensor.name in self.unreadable and tensor.shape is not None and tensor.shape.is_static():
                dims = [int(d) for d in tensor.shape.numpy()]
            elif isinstance(declared, str):
                return None
            else:
                dims = declared.dims
        counts = [sizes.from_extent(e) for e in dims]
        if node.op_type == "Size":
            total: Size = 1
            try:
                for size in counts:
                    total = total * size
            except sizes.TooLarge:
                return None
            return [shape_values.array(total)]
        start = node.attributes["start"].as_int() if "start" in node.attributes else 0
        end = node.attributes["end"].as_int() if "end" in node.attributes else len(counts)
        return [shape_values.array(counts[start:end])]

    # --- what is not read ---------------------------------------------------------------------------------------------
    def opaque(self, node: ir.Node, reason: str) -> None:
        """Record the outputs of a node that is not read."""
        name = node.name or ""
        self.reasons[name] = reason
        captured: set[ir.Value] = set()
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                captured |= self.captures.get(attribute.as_graph(), set())
            elif attribute.type == ir.AttributeType.GRAPHS:
                for graph in attribute.as_graphs():
                    captured |= self.captures.get(graph, set())
        outer = sorted((v for v in captured if v.graph is self.model.graph), key=lambda v: v.name or "")
        inputs = list(dict.fromkeys(self.anything(v) for v in itertools.chain(node.inputs, outer) if v is not None))
        named = [(i, output) for i, output in enumerate(node.outputs) if output.name]
        if any(output.shape is None or any(self.nameless(d) for d in output.shape) for _, output in named):
            self.infer(node)
        for i, output in named:
            self.opaque_output(f"{node.op_type} {name}", inputs, output, i, node)

    def opaque_output(self, label: str, inputs: list[int], output: ir.Value, i: int, node: ir.Node) -> None:
        """Record one output of an opaque node: as a tensor where its dimensions are known."""
        name = output.name or ""
        tensor = self.declared(output, name)
        if isinstance(tensor, str):
            self.unreadable[name] = f"(from node {node.name!r}, which is not read) {tensor}"
            self.hidden[name] = self.graph.opaque(label, inputs, Tensor((), BOOL), i)
        else:
            self.values[name] = self.graph.opaque(label, inputs, tensor, i)

    def nameless(self, dim: int | ir.SymbolicDim) -> bool:
        """True if a dimension has no name, or one of which nothing was heard so far: exporters make up names."""
        if isinstance(dim, int):
            return False
        for tensor in self.graph.tensors[self.heard :]:
            self.symbols.update(n for d in tensor.dims for n in names_of(d))
        self.heard = len(self.graph.tensors)
        return dim.value is None or not self.symbols.issuperset(sizes.names(sizes.parse(dim.value)))

    def infer(self, node: ir.Node) -> None:
        """Infer the types of a node's outputs from the dimensions that were read; the model's inference stopped earlier."""
        types = self.inferred(node)
        for output in node.outputs:
            if output.name not in types:
                continue
            output.type = output.type or ir.serde.deserialize_type_proto_for_type(types[output.name])
            inferred = ir.serde.deserialize_type_proto_for_shape(types[output.name])
            if output.shape is None or inferred is None or len(inferred) != len(output.shape):
                output.shape = output.shape or inferred
                continue
            pairs = zip(output.shape, inferred, strict=True)
            output.shape = ir.Shape(
                [
                    new if self.nameless(old) and (isinstance(new, int) or new.value is not None) else old
                    for old, new in pairs
                ]
            )

    def inferred(self, node: ir.Node) -> dict[str, onnx.TypeProto]:
        """The types that inference finds of a node's outputs from the dimensions that were read, by name."""
        version = self.model.opset_imports.get(node.domain)
        if version is None or not onnx.defs.has(node.op_type, version, node.domain):
            return {}
        types: dict[str, onnx.TypeProto] = {}
        data: dict[str, onnx.TensorProto] = {}
        for value in node.inputs:
            if value is None or value.name is None or value.name not in self.values:
                continue
            tensor = self.graph.tensors[self.values[value.name]]
            if any(isinstance(e, int) and e >= sizes.LARGEST for e in tensor.dims):
                return {}
            shape = [e if isinstance(e, int) else str(sizes.from_extent(e)) for e in tensor.dims]
            types[value.name] = onnx.helper.make_tensor_type_proto(_ONNX_TYPES[tensor.dtype], shape)
            fixed = value.const_value if not value.is_graph_input() else None
            if fixed is not None and fixed.size <= shape_values.MAX_ELEMENTS:
                data[value.name] = ir.serde.serialize_tensor(fixed)
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        try:
            proto = ir.serde.serialize_node(node)
            if not fragile.may_infer(proto, types):
                return {}
            inferred = onnx.shape_inference.infer_node_outputs(schema, proto, types, data)
            return {name: kind for name, kind in inferred.items() if not tolerated.holds_maps(kind)}
        except Exception:  # a node that cannot be inferred stays without dimensions, which is recorded as its reason
            return {}


def names_of(extent: Extent) -> list[str]:
    """The symbols in an extent, those of sums too."""
    return sizes.names(sizes.from_extent(extent))


def _shape(dims: Dims) -> ir.Shape:
    """Dimensions as a model writes them."""
    return ir.Shape([e if isinstance(e, int) else str(sizes.from_extent(e)) for e in dims])


def _agree(declared: ir.Shape, dims: Dims) -> bool:
    """True if numbers that are declared are those of the dimensions."""
    if len(declared) != len(dims):
        return False
    return not any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(declared, dims, strict=True))
