"""The original nodes of a fragment, and copies of them that stand on their own.

A region runs from a fragment's inputs to its outputs. What its nodes read beside the inputs becomes part of the copy,
so that the copy needs nothing from outside:

1. small constants and those that hold one number, as nodes;
2. tensors that are stretches of an input (`mirage_cli.patching.grown_caches`), cut out of it;
3. integers that only describe shapes, as nodes too: from the shapes of the inputs where they hold sizes that are not
   numbers. The model's own chain of nodes may start anywhere, at a tensor that the fragment does not have.

What is left (large tables of integers, results of operators with sub-graphs, sizes that no input tells) is passed
in: inputs behind those that were asked for, in the order in which they are met.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.frontends.onnx.branches import BRANCH, branch_of
from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.graph import Dims
from mirage_cli.patching.grown_caches import Grown, Part

ONNX_DOMAINS = ("", "ai.onnx")  #: two spellings of one
SMALL_CONSTANT_BYTES = 4096  #: up to this size a constant becomes a node of the copy
ANY_CONSTANT = 9  #: the opset from which on a Constant holds other types than floats
EXACT = 2.0**53  #: up to which float64 holds integers
#: types of inputs that onnxruntime's Shape lacks; it takes a Cast in front of one away
SHAPELESS = (ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2)
FILLS_SINCE, SLICE_BY_INPUTS = 9, 10  #: opsets: of ConstantOfShape, of a Slice whose bounds are inputs
FILL_ELEMENTS = 2**16  #: up to this size it is looked at whether a constant holds one number only


@dataclass(frozen=True, slots=True)
class Facts:
    """The reader's knowledge of a model's tensors, by name.

    Tensors with the same number in `values` are equal, `dims` are their dimensions, `shapes` the elements (extents) of
    small integer tensors; `grown` are those that can be computed apart from the node that returns them; `results` are all
    that a node returns in the file, by the first one: reading removes those that nothing reads.
    """

    values: Mapping[str, int] = field(default_factory=dict)
    dims: Mapping[str, Dims] = field(default_factory=dict)
    shapes: Mapping[str, NDArray[np.object_]] = field(default_factory=dict)
    grown: Mapping[str, Grown] = field(default_factory=dict)
    results: Mapping[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Size:
    """`factor` times a product of sizes: dimension `dim` of input `input` divided by `divisor`, for each in `parts`."""

    factor: int
    parts: tuple[tuple[int, int, int], ...] = ()  #: (input, dim, divisor)


@dataclass(frozen=True, slots=True)
class Shape:
    """An integer tensor of dimensions `dims` that holds sizes."""

    dims: tuple[int, ...]
    elements: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A tensor as a part of an input along an axis."""

    of: ir.Value
    axis: int
    part: Part


@dataclass(frozen=True, slots=True)
class Region:
    """The original nodes between tensors.

    `inputs` are the `asked` ones and then whatever else the nodes need; `same` maps tensors to inputs that are equal,
    `stretches` to parts of inputs; `grown` are tensors that the nodes return besides, and what these are made of.
    `results` is for some nodes how many results they have in the file.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    asked: int
    constants: tuple[ir.Value, ...]
    shapes: Mapping[ir.Value, Shape]
    same: Mapping[ir.Value, ir.Value]
    stretches: Mapping[ir.Value, Stretch]
    grown: Mapping[ir.Value, Grown]
    results: Mapping[ir.Node, int] = field(default_factory=dict)

    @property
    def node_names(self) -> list[str]:
        """The names of the nodes, in order."""
        return [n.name or "" for n in self.nodes]

    @property
    def entangled(self) -> ir.Node | None:
        """A node that computes an input of the region besides what the region needs of it, or none; inputs that can be
        computed apart from it do not count."""
        makers = {v.producer() for v in self.inputs if v not in self.grown}
        return next((n for n in self.nodes if n in makers), None)

    @property
    def branch(self) -> str:
        """The branch that it stands in; nothing for the main graph."""
        return next(iter(self.branches), "")

    @property
    def torn(self) -> bool:
        """True if it stands in several branches, or reads what its own cannot see."""
        return len(self.branches) > 1 or any(branch_of(v) not in ("", self.branch) for v in self.inputs)

    @property
    def branches(self) -> list[str]:
        """The branches of its nodes."""
        return sorted({str(n.meta.get(BRANCH, "")) for n in self.nodes})

    @property
    def recomputed(self) -> ir.Value | None:
        """An input that no node reads, since they compute what it holds themselves, or none. With inputs that do not depend
        on each other, fragment and nodes would not be the same function."""
        read = {v for n in self.nodes for v in n.inputs if v is not None}
        read |= {self.same.get(v, v) for v in (*read, *self.outputs)} | {s.of for s in self.stretches.values()}
        return next((v for v in self.inputs[: self.asked] if v not in read), None)

    def signature(self) -> str:
        """Equal for regions whose nodes are the same: operators, attributes, constants, and what reads what. Names, and the
        order of the nodes in the file, do not matter."""
        known = {v: f"input {k}" for k, v in enumerate(self.inputs)}
        known |= {v: known[i] for v, i in self.same.items()}
        known |= {
            v: f"{known[s.of]} {s.axis} {s.part.start} {s.part.stop} {s.part.perm}" for v, s in self.stretches.items()
        }
        known |= {v: repr(s) for v, s in self.shapes.items()}
        known |= {v: _digest(v.const_value) for v in self.constants}
        for node in self.nodes:  # in an order in which they can be computed
            read = ["" if i is None else known[i] for i in node.inputs]
            given = [_attribute(a) for _, a in sorted(node.attributes.items())]
            count = self.results.get(node, len(node.outputs))
            text = f"{_onnx(node.domain)} {node.op_type} {node.overload} {read} {given} {count}"
            own = hashlib.sha256(text.encode()).hexdigest()
            known |= {v: f"{own} {k}" for k, v in enumerate(node.outputs) if v not in known}
        return hashlib.sha256("\n".join(known[v] for v in self.outputs).encode()).hexdigest()


def _onnx(domain: str) -> str:
    """A domain in one spelling."""
    return "" if domain in ONNX_DOMAINS else domain


def _attribute(a: ir.Attr) -> str:
    """An attribute's name and value."""
    message = ir.to_proto(a)
    message.doc_string = ""
    return str(message.SerializeToString().hex())


def _digest(tensor: ir.TensorProtocol | None) -> str:
    assert tensor is not None
    return f"{tensor.dtype} {tensor.shape} {hashlib.sha256(tensor.tobytes()).hexdigest()}"


# ---- finding them ----------------------------------------------------------------------------------------------------


class Regions:
    """The regions of one model, whose tensors and nodes are looked up once."""

    def __init__(self, model: ir.Model, facts: Facts | None = None) -> None:
        self.facts = facts or Facts()
        self.tensors = tensors_by_name(model)
        self.positions = {node: i for i, node in enumerate(model.graph)}

    def of(self, inputs: Sequence[str], outputs: Sequence[str]) -> Region:
        """The nodes that compute `outputs` from `inputs`. Raises InvalidGraph for names that the model lacks."""
        missing = [n for n in (*inputs, *outputs) if n not in self.tensors]
        if missing:
            raise InvalidGraph(f"the model has no tensor {missing[0]!r}")
        walk = _Walk(self, [self.tensors[n] for n in inputs], [self.tensors[n] for n in outputs])
        walk.run()
        return Region(
            tuple(sorted(walk.nodes, key=self.positions.__getitem__)),
            (*walk.inputs, *walk.extra),
            tuple(walk.outputs),
            len(walk.inputs),
            tuple(walk.constants),
            walk.shapes,
            walk.same,
            walk.stretches,
            {
                v: self.facts.grown[v.name or ""]
                for n in walk.nodes
                for v in n.outputs
                if v.name in self.facts.grown and v not in walk.outputs
            },
            {n: count for n in walk.nodes if (count := self.count(n)) > len(n.outputs)},
        )

    def count(self, node: ir.Node) -> int:
        """Number of results of a node in the file: attention without its grown caches may not look at the past ones."""
        named = next((v.name for v in node.outputs if v.name), "")
        op_type, count = self.facts.results.get(named, ("", 0))
        return count if op_type == node.op_type else 0  # several operators in one are read as such


def tensors_by_name(model: ir.Model) -> dict[str, ir.Value]:
    """Every tensor of the main graph by its name."""
    tensors: dict[str, ir.Value] = {v.name: v for v in model.graph.inputs if v.name}
    tensors |= dict(model.graph.initializers.items())
    for node in model.graph:
        tensors |= {v.name: v for v in node.outputs if v.name}
    return tensors


class _Walk:
    """One way back from the outputs. Sets are dicts, so that their order is that in which things are met."""

    def __init__(self, regions: Regions, inputs: list[ir.Value], outputs: list[ir.Value]) -> None:
        self.facts, self.inputs, self.outputs = regions.facts, inputs, outputs
        self.nodes: dict[ir.Node, None] = {}
        self.extra: dict[ir.Value, None] = {}
        self.constants: dict[ir.Value, None] = {}
        self.shapes: dict[ir.Value, Shape] = {}
        self.same: dict[ir.Value, ir.Value] = {}
        self.stretches: dict[ir.Value, Stretch] = {}
        self.known = {
            part.tensor: Stretch(v, grown.axis, part)
            for v in inputs
            if (grown := self.facts.grown.get(v.name or "")) is not None
            for part in grown.parts
        }
        numbers = [(self.facts.values.get(v.name or ""), v) for v in inputs]
        self.equal: dict[int | None, ir.Value] = {n: v for n, v in reversed(numbers) if n is not None}
        self.sizes = _sizes([self.facts.dims.get(v.name or "", ()) for v in inputs])

    def run(self) -> None:
        """Visit everything between the inputs and the outputs."""
        seen = set(self.inputs)
        todo = self.outputs[::-1]
        while todo:
            v = todo.pop()
            if v in seen:
                continue
            seen.add(v)
            producer = v.producer()
            if v not in self.outputs and self.ends(v, producer):
                continue
            if producer is None:
                self.extra[v] = None
            elif producer not in self.nodes:
                self.nodes[producer] = None
                todo.extend(i for i in reversed(producer.inputs) if i is not None)

    def ends(self, v: ir.Value, producer: ir.Node | None) -> bool:
        """True if the walk ends at a tensor, which is noted."""
        name = v.name or ""
        number = self.facts.values.get(name)
        if number in self.equal:
            self.same[v] = self.equal[number]
            return True
        if v in self.known:
            self.stretches[v] = self.known[v]
            return True
        if not v.is_graph_input() and v.const_value is not None and _is_embedded(v.const_value):
            self.constants[v] = None
            return True
        shape = self.shape(self.facts.shapes[name]) if name in self.facts.shapes else None
        if shape is not None:
            self.shapes[v] = shape
            return True
        if producer is not None and any(a.type in GRAPHS for a in producer.attributes.values()):
            self.extra[v] = None  # a function cannot hold what its sub-graphs read from around it
            return True
        return False

    def shape(self, elements: NDArray[np.object_]) -> Shape | None:
        """The elements in terms of the inputs' dimensions; None where these do not tell them."""
        sizes = [self.size(e) for e in elements.ravel()]
        known = [s for s in sizes if s is not None]
        return Shape(elements.shape, tuple(known)) if len(known) == len(sizes) else None

    def size(self, e: Extent) -> Size | None:
        """An extent in terms of the inputs' dimensions; None where these do not tell it."""
        if isinstance(e, int):
            return Size(e)
        if any(n not in self.sizes for n in e.names):
            return None
        return Size(e.factor, tuple(self.sizes[n] for n in e.names))


_T = ir.DataType
#: the types of ConstantOfShape at every opset
_FILLS = (_T.FLOAT, _T.FLOAT16, _T.DOUBLE, _T.INT64, _T.INT32, _T.INT16, _T.INT8, _T.UINT8, _T.BOOL)
GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _sizes(inputs: Sequence[Dims]) -> dict[str, tuple[int, int, int]]:
    """For each symbol a dimension that is a multiple of it: (input, dim, factor)."""
    sources: dict[str, tuple[int, int, int]] = {}
    for k, dims in enumerate(inputs):
        for i, e in enumerate(dims):
            if isinstance(e, ex.Symbolic) and len(e.names) == 1:
                known = sources.get(e.names[0])
                if known is None or (e.factor < known[2]):
                    sources[e.names[0]] = (k, i, e.factor)
    return sources


def _is_embedded(tensor: ir.TensorProtocol) -> bool:
    return tensor.nbytes <= SMALL_CONSTANT_BYTES or is_fill(tensor)


def is_fill(tensor: ir.TensorProtocol) -> bool:
    """True if a tensor holds one number only."""
    if tensor.dtype not in _FILLS or not 1 <= tensor.size <= FILL_ELEMENTS:
        return False
    data = np.frombuffer(tensor.tobytes(), np.uint8).reshape(tensor.size, -1)
    return bool((data == data[0]).all())


# ---- copying them ----------------------------------------------------------------------------------------------------


def cloned(region: Region, opset: int) -> tuple[list[ir.Value], list[ir.Value], list[ir.Node]]:
    """Copies of a region's inputs, outputs and nodes, with nodes of an opset for its constants and shapes in front."""
    copy = _Copy({v.name or "" for v in (*region.inputs, *region.constants, *region.shapes, *region.stretches)}, opset)
    for v in region.inputs:
        copy.values[v] = ir.Value(name=v.name, shape=v.shape, type=v.type)
    copy.values |= {v: copy.values[i] for v, i in region.same.items()}
    copy.names |= {v.name or "" for n in region.nodes for v in n.outputs}
    for v in region.constants:
        copy.constant(v)
    for v, shape in region.shapes.items():
        copy.shape(v, shape, [copy.values[i] for i in region.inputs])
    for v, s in region.stretches.items():
        copy.stretch(v, s)
    for n in region.nodes:
        copy.node(n, region.results.get(n, 0))
    return [copy.values[v] for v in region.inputs], [copy.values[v] for v in region.outputs], copy.nodes


class _Copy:
    """Nodes of a copy in the making; `values` maps original tensors to theirs, `names` are those in use."""

    def __init__(self, names: set[str], opset: int) -> None:
        self.names, self.opset = names, opset
        self.values: dict[ir.Value, ir.Value] = {}
        self.nodes: list[ir.Node] = []
        self.dimensions: dict[tuple[int, int], ir.Value] = {}

    def node(self, n: ir.Node, results: int) -> None:
        """Copy a node; what it returns besides and is an input already gets another name. It has so many results, at least."""
        inputs = [None if i is None else self.values[i] for i in n.inputs]
        names = [self.fresh("again", v).name if v in self.values else v.name for v in n.outputs]
        outputs = [ir.Value(name=m, shape=v.shape, type=v.type) for m, v in zip(names, n.outputs, strict=True)]
        self.values |= {v: o for v, o in zip(n.outputs, outputs, strict=True) if v not in self.values}
        if results:
            named = next(v for v in outputs if v.name)
            outputs = [v if v.name else self.fresh("besides", named) for v in outputs]
            outputs += [self.fresh("besides", named) for _ in range(results - len(outputs))]
        attributes = list(n.attributes.values())
        copy = ir.Node(n.domain, n.op_type, inputs, attributes, overload=n.overload, outputs=outputs, name=n.name)
        self.nodes.append(copy)

    def constant(self, v: ir.Value) -> None:
        """A constant as a node: a large one that holds one number from that number."""
        tensor = v.const_value
        assert tensor is not None
        result = ir.Value(name=v.name, shape=v.shape, type=v.type)
        if tensor.nbytes <= SMALL_CONSTANT_BYTES or self.opset < FILLS_SINCE:
            self.stored(tensor.numpy(), tensor.dtype, result)
        else:
            dims = self.integers(list(tensor.shape.numpy()), "shape", v)
            self.add("ConstantOfShape", [dims], result, value=ir.tensor(tensor.numpy().reshape(-1)[:1], tensor.dtype))
        self.values[v] = result

    def stretch(self, v: ir.Value, stretch: Stretch) -> None:
        """A part of an input as nodes, in its own layout."""
        part, end = stretch.part, np.iinfo(np.int64).max
        limits = [part.start, end if part.stop is None else part.stop, stretch.axis]
        if self.opset < SLICE_BY_INPUTS:
            told = {k: [n] for k, n in zip(("starts", "ends", "axes"), limits, strict=True)}
            part_of_input = self.add("Slice", [self.values[stretch.of]], self.fresh("stretch", v), **told)
        else:
            bounds = [self.integers([n], what, v) for n, what in zip(limits, ("start", "stop", "axis"), strict=True)]
            part_of_input = self.add("Slice", [self.values[stretch.of], *bounds], self.fresh("stretch", v))
        if part.perm:
            back = [part.perm.index(d) for d in range(len(part.perm))]
            part_of_input = self.add("Transpose", [part_of_input], self.fresh("turned", v), perm=back)
            part_of_input = self.add(
                "Reshape", [part_of_input, self.integers(part.flat, "dims", v)], self.fresh("flat", v)
            )
        part_of_input.shape, part_of_input.type = v.shape, v.type
        self.values[v] = part_of_input

    def shape(self, v: ir.Value, shape: Shape, inputs: Sequence[ir.Value]) -> None:
        """An integer tensor of sizes as nodes."""
        result = ir.Value(name=v.name, shape=v.shape, type=v.type)
        self.values[v] = result
        dtype = v.dtype or ir.DataType.INT64
        if not any(e.parts for e in shape.elements):
            numbers = np.array([e.factor for e in shape.elements], dtype.numpy()).reshape(shape.dims)
            self.stored(numbers, dtype, result)
            return
        elements = [self.size(e, v, inputs) for e in shape.elements]
        joined = elements[0]
        if len(elements) > 1:
            joined = self.add("Concat", elements, self.fresh("sizes", v), axis=0)
        if shape.dims != (len(elements),):
            joined = self.add("Reshape", [joined, self.integers(shape.dims, "shape", v)], self.fresh("reshaped", v))
        self.add("Cast", [joined], result, to=dtype.value)

    def size(self, size: Size, v: ir.Value, inputs: Sequence[ir.Value]) -> ir.Value:
        """A size as a tensor of one element."""
        if not size.parts:
            return self.integers([size.factor], "number", v)
        product = None
        for k, i, divisor in size.parts:
            part = self.dimension(inputs[k], k, i)
            if divisor != 1:
                part = self.add("Div", [part, self.integers([divisor], "divisor", v)], self.fresh("quotient", v))
            product = part if product is None else self.add("Mul", [product, part], self.fresh("product", v))
        assert product is not None
        if size.factor == 1:
            return product
        return self.add("Mul", [product, self.integers([size.factor], "factor", v)], self.fresh("multiple", v))

    def dimension(self, v: ir.Value, k: int, i: int) -> ir.Value:
        """The extent of dimension `i` of input `k`, which is `v`."""
        if (k, i) not in self.dimensions:
            sized = v
            if v.dtype in SHAPELESS:
                wide = self.add("Cast", [v], self.fresh("wide", v), to=ir.DataType.FLOAT.value)
                sized = self.add("Neg", [wide], self.fresh("as_large", v))
            dims = self.add("Shape", [sized], self.fresh("shape", v))
            index = self.integers([i], "dimension", v)
            self.dimensions[k, i] = self.add("Gather", [dims, index], self.fresh("extent", v), axis=0)
        return self.dimensions[k, i]

    def integers(self, numbers: Sequence[int], what: str, v: ir.Value) -> ir.Value:
        """A vector of integers."""
        return self.stored(np.array(numbers, np.int64), ir.DataType.INT64, self.fresh(what, v))

    def stored(self, numbers: NDArray[Any], dtype: ir.DataType, output: ir.Value) -> ir.Value:
        """A Constant; of integers, where the opset knows floats only, one of float64 that is cast. Raises Refused for integers
        that float64 lacks."""
        if self.opset >= ANY_CONSTANT or dtype.is_floating_point():
            return self.add("Constant", [], output, value=ir.tensor(numbers, dtype))
        wide = numbers.astype(np.float64)
        if wide.size and np.abs(wide).max() > EXACT:
            raise Refused(f"opset {self.opset} has no constant for the integers in {output.name!r}")
        wide_constant = self.add("Constant", [], self.fresh("wide", output), value=ir.tensor(wide))
        return self.add("Cast", [wide_constant], output, to=dtype.value)

    def add(self, op_type: str, inputs: Sequence[ir.Value], output: ir.Value, **attributes: Any) -> ir.Value:
        """A new node, which is called like its output."""
        self.nodes.append(ir.node(op_type, list(inputs), attributes, outputs=[output], name=f"{output.name}/{op_type}"))
        return output

    def fresh(self, what: str, v: ir.Value) -> ir.Value:
        """A tensor with a name that is not used yet."""
        base = f"{v.name}/{what}"
        name, count = base, 0
        while name in self.names:
            count += 1
            name = f"{base}_{count}"
        self.names.add(name)
        return ir.Value(name=name)
