"""A fragment as a model of its own: calls of its operator beside the function that holds the original nodes.

onnxruntime inlines the function where the library is absent, so one file gives both sides of a comparison: without the
library the original nodes, optimized by onnxruntime as it likes, and with it the kernel. The model calls the operator
several times on different tensors, enough of them to exceed the cache where that can be done, so that a session's own
time for a call is shared by all of them and weights come from memory as they do in a large model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from mirage_cli.backends.spec import OperatorSpec, TensorSpec
from mirage_cli.errors import ModelError
from mirage_cli.files.output import MODEL
from mirage_cli.frontends.imported import Imported
from mirage_cli.frontends.onnx.external import DataFiles
from mirage_cli.frontends.onnx.traversal import all_nodes
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.ir.parts import input_count
from mirage_cli.lax.ir.program import Source
from mirage_cli.numerics import edges
from mirage_cli.optimization.task import Work
from mirage_cli.patching import graph_message, patch
from mirage_cli.patching.regions import ONNX_DOMAINS
from mirage_cli.processes import isolation
from mirage_cli.runtime import inner_tensors, sessions

Array = NDArray[Any]
MAX_CALLS = 60  #: of an operator in one model
LARGE = 1 << 16  #: bytes of weights that no two calls have in common
MAX_BYTES = 1 << 30  #: of all tensors of a model that calls an operator more than once, and of weights stored in it


@dataclass(frozen=True, slots=True)
class FragmentModel:
    """The parts that models of a fragment are made of.

    `function` computes the original nodes, under the operator's name. `shapes` are the inputs' in the order of
    `spec.inputs`. `constants` are the weights among them by number, with their values at each place of the model where
    the fragment stands; `given` are inputs whose values mean something (integers, truth values); others are drawn.
    """

    spec: OperatorSpec
    function: onnx.FunctionProto
    opsets: Mapping[str, int]
    ir_version: int
    shapes: tuple[tuple[int, ...], ...]
    constants: Mapping[int, tuple[Array, ...]] = field(default_factory=dict)
    given: Mapping[int, Array] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes that one call reads and writes."""
        symbols = self.spec.solve(self.shapes)
        outputs = [(t.dtype, [ex.value(d, symbols) for d in t.dims]) for t in self.spec.outputs]
        inputs = [(t.dtype, shape) for t, shape in zip(self.spec.inputs, self.shapes, strict=True)]
        return sum(math.ceil(math.prod(shape) * dtype.size) for dtype, shape in [*inputs, *outputs])

    @property
    def unit(self) -> float:
        """The largest unit of the floating-point types that it reads, writes or computes in."""
        tensors = (*self.spec.inputs, *self.spec.outputs)
        return sessions.coarsest_unit([_onnx_type(t.dtype) for t in tensors], self.function.node)

    @property
    def stores_weights(self) -> bool:
        """True if weights are part of the model; those that a file cannot hold are inputs."""
        return sum(values[0].nbytes for values in self.constants.values()) <= MAX_BYTES

    def calls(self, working_set: int) -> int:
        """Number of calls that make tensors of more than `working_set` bytes, within the limits above."""
        size = max(self.size, 1)
        return max(1, min(MAX_CALLS, math.ceil(working_set / size), MAX_BYTES // size))

    # --- the model --------------------------------------------------------------------------------------------------
    def model(self, calls: int) -> bytes:
        """A model with that many calls; input i of call k is `in<i>_<k>`, output `out<i>_<k>`."""
        spec = self.spec
        nodes, inputs, outputs, weights = [], [], [], []
        for k in range(calls):
            read = [f"in{i}_{k}" for i in range(len(spec.inputs))]
            written = [f"out{i}_{k}" for i in range(len(spec.outputs))]
            nodes.append(helper.make_node(spec.op_type, read, written, f"call_{k}", domain=patch.DOMAIN))
            for i, (name, tensor) in enumerate(zip(read, spec.inputs, strict=True)):
                if i in self.constants and self.stores_weights:
                    weights.append(numpy_helper.from_array(self.weight(i, k), name))
                else:
                    inputs.append(helper.make_tensor_value_info(name, _onnx_type(tensor.dtype), self.shapes[i]))
            for name, tensor in zip(written, spec.outputs, strict=True):
                outputs.append(helper.make_tensor_value_info(name, _onnx_type(tensor.dtype), None))
        graph = helper.make_graph(nodes, spec.op_type, inputs, outputs, weights)
        opsets = {d: v for d, v in self.opsets.items() if d != patch.DOMAIN} | {patch.DOMAIN: patch.DOMAIN_VERSION}
        message = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(d, v) for d, v in sorted(opsets.items())],
            functions=[self.function],
            ir_version=self.ir_version,
        )
        data: bytes = message.SerializeToString()
        return data

    def inputs(self, calls: int, seed: int) -> dict[str, Array]:
        """Arrays for the inputs of `model(calls)`: drawn, different ones for each call, but for weights and what is
        given."""
        random = np.random.default_rng(seed)
        arrays: dict[str, Array] = {}
        for k in range(calls):
            for i, (tensor, shape) in enumerate(zip(self.spec.inputs, self.shapes, strict=True)):
                name = f"in{i}_{k}"
                if i in self.given:
                    arrays[name] = self.given[i]
                elif i not in self.constants:
                    source = Source(tensor.name, shape, tensor.dtype)
                    arrays[name] = edges.draw(source, shape, "random", random)
                elif not self.stores_weights:
                    arrays[name] = self.weight(i, k)
        return arrays

    def weight(self, i: int, k: int) -> Array:
        """A weight for call `k`: that of a place in the model, whose values kernels may rely on (masks). Further calls have
        one number of a large one changed in its last bit: onnxruntime stores equal weights once, and reads them in caches."""
        places = self.constants[i]
        again, place = divmod(k, len(places))
        weight = places[place]
        if not again or weight.nbytes < LARGE or not np.issubdtype(weight.dtype, np.floating):
            return weight
        own = weight.copy()
        number = own.flat[again]
        own.flat[again] = np.nextafter(number, own.dtype.type(0)) if np.isfinite(number) else number
        return own


def _onnx_type(dtype: DType) -> int:
    return helper.np_dtype_to_tensor_dtype(sessions.numpy_type(dtype))


# ---- from a run of `optimize` ----------------------------------------------------------------------------------------


def from_work(imported: Imported, work: Work, symbols: Mapping[str, int]) -> FragmentModel:
    """The models of a fragment that is about to be patched; `symbols` are sizes for the symbols of its program."""
    spec = work.spec()
    regions = [o.region for o in work.occurrences]
    function: onnx.FunctionProto = ir.to_proto(patch.function_of(imported.model, regions[0], spec.op_type))
    weights = imported.model.graph.initializers
    constants = {}
    for i in range(len(spec.inputs)):
        names = [r.inputs[i].name or "" for r in regions[:MAX_CALLS]]
        if all(n in weights for n in names):
            constants[i] = tuple(imported.constant(n) for n in dict.fromkeys(names))
    shapes = tuple(tuple(ex.value(d, symbols) for d in t.dims) for t in spec.inputs)
    sources = input_count(work.program)
    given = {
        i: np.zeros(shapes[i], sessions.numpy_type(t.dtype))
        for i, t in enumerate(spec.inputs)
        if i >= sources and i not in constants  # only the original nodes read these
    }
    opsets = {"" if d in ONNX_DOMAINS else d: v for d, v in imported.model.opset_imports.items()}
    version = max(imported.model.ir_version or 0, patch.FUNCTIONS_IR_VERSION)
    return FragmentModel(spec, function, opsets, version, shapes, constants, given)


# ---- from an output folder -------------------------------------------------------------------------------------------


def from_folder(
    model: onnx.ModelProto, folder: Path, specs: Sequence[OperatorSpec], feeds: Mapping[str, Array]
) -> dict[str, FragmentModel]:
    """The models of a patched model's fragments, by identifier, but for those that stand in branches alone.

    `model` is `folder`/model.onnx, its external data not loaded. Shapes, integers and truth values are those that the
    model computes from `feeds`. Raises ModelError when it does not have an operator.
    """
    functions = {f.name: f for f in model.functions if f.domain == patch.DOMAIN}
    nodes: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        if node.domain == patch.DOMAIN:
            nodes.setdefault(node.op_type, []).append(node)
    anywhere = {n.op_type for n in all_nodes(model.graph.node) if n.domain == patch.DOMAIN}
    for spec in specs:
        if spec.op_type not in functions or spec.op_type not in anywhere:
            raise ModelError(f"{folder / 'model.onnx'}: expected the operator {spec.op_type}, found none")
    specs = [s for s in specs if s.op_type in nodes]
    weights = graph_message.stored_tensors(model.graph)
    read = [(name, t) for s in specs for name, t in zip(nodes[s.op_type][0].input, s.inputs, strict=True)]
    shapes, values = _computed(model, folder, {n: t for n, t in read if n not in weights}, feeds)
    shapes |= {n: tuple(t.dims) for n, t in weights.items()}
    opsets = {o.domain: o.version for o in model.opset_import}
    files = DataFiles(str(folder / MODEL), hashed=False)
    models = {}
    for spec in specs:
        places = nodes[spec.op_type][:MAX_CALLS]
        constants = {
            i: tuple(files.array(weights[n]) for n in dict.fromkeys(p.input[i] for p in places))
            for i in range(len(spec.inputs))
            if all(p.input[i] in weights for p in places)
        }
        names = places[0].input
        models[spec.id] = FragmentModel(
            spec,
            functions[spec.op_type],
            opsets,
            model.ir_version,
            tuple(shapes[n] for n in names),
            constants,
            {i: values[n] for i, n in enumerate(names) if n in values and i not in constants},
        )
    return models


def _computed(
    model: onnx.ModelProto, folder: Path, tensors: Mapping[str, TensorSpec], feeds: Mapping[str, Array]
) -> tuple[dict[str, tuple[int, ...]], dict[str, Array]]:
    """The shapes of tensors of a model for given inputs, and the values of those that are not floating-point.

    The model is run only where its file does not tell them.
    """
    static = {n: t for n, t in tensors.items() if t.dtype.is_float and all(isinstance(d, int) for d in t.dims)}
    shapes = {n: tuple(ex.value(d, {}) for d in t.dims) for n, t in static.items()}
    wanted = [n for n in tensors if n not in static]
    if not wanted:
        return shapes, {}
    valued = {n: _onnx_type(tensors[n].dtype) for n in wanted if not tensors[n].dtype.is_float}
    isolation.doing("onnxruntime computed the sizes of the fragments' tensors")
    found, values = inner_tensors.computed(model, folder, feeds, wanted, valued)
    return shapes | found, values
