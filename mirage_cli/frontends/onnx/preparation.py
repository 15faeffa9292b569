"""The model that is read: checked, with functions inlined and constants folded.

The checks of `onnx` see a skeleton in which weights are inputs, so that their size does not matter. No model is brought to
another opset: readers know every version of their operators from `OLDEST_OPSET` on.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx_ir.passes import common as passes

from mirage_cli.errors import ModelError, UsageError
from mirage_cli.frontends import sizes
from mirage_cli.frontends.imported import Options
from mirage_cli.frontends.names import Names
from mirage_cli.frontends.onnx import branches, folding, fragile, inlined_size, inlining, tolerated
from mirage_cli.frontends.onnx.external import DataFiles, node_tensors
from mirage_cli.frontends.onnx.ops.registry import MICROSOFT
from mirage_cli.frontends.onnx.parts import cached_attention, experts, rotary
from mirage_cli.frontends.onnx.parts.cut_points import store_what_is_cut_at
from mirage_cli.frontends.onnx.parts.groups import sort_groups
from mirage_cli.frontends.onnx.traversal import all_graphs
from mirage_cli.lax.dtypes import from_numpy
from mirage_cli.options.dims import check_inputs, check_known, check_rank

OLDEST_OPSET = 7  #: nodes of models of older ones are not read
_ANY_OPSET = 13  #: for models that have operators of other domains only
SMALL_BYTES = 1024  #: weights up to this size stay in the skeleton: shape arguments are among them
#: attributes of onnxruntime's operators that are looked at before these are read
CONTRIBUTED = {
    **dict.fromkeys(("epsilon", "scale", "softcap", "qk_norm_epsilon"), "FLOAT"),
    **dict.fromkeys(("do_rotary", "num_heads", "kv_num_heads", "local_window_size"), "INT"),
    **dict.fromkeys(("k_quant_type", "v_quant_type"), "STRING"),
    "qkv_hidden_sizes": "INTS",
}
_ELEMENT_TYPES = {t.value for t in ir.DataType} - {ir.DataType.UNDEFINED.value}
MOST_ELEMENTS, MOST_DIMENSIONS = 1 << 60, 32  #: of a tensor, as numpy can hold it; dimensions of 0 count as 1
MOST_SPARSE = 1 << 26  #: elements of a weight that is stored without its zeros
_TYPED_DATA = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


# --- checking and converting ------------------------------------------------------------------------------------------
def checked(proto: onnx.ModelProto, path: str, notes: list[str]) -> onnx.ModelProto:
    """A valid model, which is `proto` after some edits. Raises ModelError."""
    _write_out_sparse_weights(proto, path)
    tolerated.bring_into_form(proto)
    _check_versions(proto, path)
    _check_sizes(proto, path)
    inlined_size.check(proto, path)
    fragile.without_negative_dimensions(proto)
    try:
        with _unheard():
            onnx.checker.check_model(skeleton(proto))
    except (onnx.checker.ValidationError, ValueError) as error:
        raise ModelError(f"{path}: the ONNX checker refuses the model: {_one_line(str(error))}") from None
    opset = default_opset(proto) or OLDEST_OPSET
    if opset < OLDEST_OPSET:
        notes.append(f"operators of opset {opset} are not read (from {OLDEST_OPSET} on)")
    return proto


def _write_out_sparse_weights(proto: onnx.ModelProto, path: str) -> None:
    """Let weights that are stored without their zeros have them, in place. Raises ModelError."""
    for graph in all_graphs(proto):
        for sparse in graph.sparse_initializer:
            where = f"{path}: sparse weight {sparse.values.name!r}"
            if (
                any(d < 0 for d in sparse.dims)
                or math.prod(sparse.dims) > MOST_SPARSE
                or len(sparse.dims) > MOST_DIMENSIONS
            ):
                raise ModelError(f"{where}: expected at most {MOST_SPARSE} elements, found {list(sparse.dims)}")
            if onnx.TensorProto.EXTERNAL in (sparse.values.data_location, sparse.indices.data_location):
                raise ModelError(f"{where}: expected it in the model, found a file of its own")
            try:
                graph.initializer.append(numpy_helper.from_array(_dense(sparse), sparse.values.name))
            except (ValueError, IndexError, TypeError, KeyError) as error:
                raise ModelError(f"{where} cannot be read: {error}") from None
        del graph.sparse_initializer[:]


def _dense(sparse: onnx.SparseTensorProto) -> NDArray[Any]:
    values, places = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    dense[tuple(places.T) if places.ndim == 2 else np.unravel_index(places, dense.shape)] = values
    return dense


def _one_line(text: str) -> str:
    """A message of `onnx` without its line breaks."""
    return " ".join(text.replace("==> Context:", "in:").split())


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Standard output of C++, where the checker warns of experimental operators, goes nowhere: it is for data."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # closed from the start
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _check_sizes(proto: onnx.ModelProto, path: str) -> None:
    """Raise ModelError for stored tensors whose data do not fit their type and shape: the checker does not see large
    weights, and lets constants pass that nothing can hold."""
    functions = [node for function in proto.functions for node in function.node]
    inner = ((t, "constant") for nodes in (proto.graph.node, functions) for t in node_tensors(nodes))
    for tensor, kind in (*((t, "weight") for t in proto.graph.initializer), *inner):
        where = f"{path}: {kind} {tensor.name!r}"
        if any(d < 0 for d in tensor.dims):
            raise ModelError(f"{where} has a negative dimension: {list(tensor.dims)}")
        if math.prod(max(d, 1) for d in tensor.dims) >= MOST_ELEMENTS or len(tensor.dims) > MOST_DIMENSIONS:
            raise ModelError(f"{where} has dimensions that no tensor can have: {list(tensor.dims)[:MOST_DIMENSIONS]}")
        if tensor.data_type not in _ELEMENT_TYPES:
            raise ModelError(f"{where} has an unknown element type: {tensor.data_type}")
        bits, elements = _bits(tensor), math.prod(tensor.dims)
        if tensor.data_location == onnx.TensorProto.EXTERNAL or not bits:
            continue
        if tensor.HasField("raw_data"):
            wanted, stored, unit = math.ceil(elements * bits / 8), len(tensor.raw_data), "bytes"
        elif bits in (8, 16, 32, 64):
            wanted, stored, unit = elements, max(len(getattr(tensor, f)) for f in _TYPED_DATA), "elements"
        else:  # packed
            continue
        if wanted != stored:
            shape = "x".join(map(str, tensor.dims)) or "scalar"
            raise ModelError(f"{where} ({shape}) needs {wanted} {unit}, the file has {stored}")


def _bits(tensor: onnx.TensorProto) -> int:
    """Bits of an element; 0 for complex numbers and for types without a fixed size."""
    if tensor.data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
        return 0
    try:
        return ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError):
        return 0


def default_opset(proto: onnx.ModelProto) -> int | None:
    """The version of ONNX's own operators."""
    return next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), None)


def _check_versions(proto: onnx.ModelProto, path: str) -> None:
    """Raise ModelError for a version of ONNX's own operators that is missing or too new."""
    newest, opset = onnx.defs.onnx_opset_version(), default_opset(proto)
    if opset is None and not any(node.domain in ("", "ai.onnx") for node in proto.graph.node):
        proto.opset_import.add(domain="", version=_ANY_OPSET)  # operators of other domains only
        opset = _ANY_OPSET
    if opset is None:
        raise ModelError(f"{path}: the model names no version of the ONNX operators (opset_import)")
    if not 1 <= opset <= newest:
        raise ModelError(f"{path}: expected opset 1 to {newest}, found {opset}")
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(f"{path}: expected IR version up to {onnx.IR_VERSION}, found {proto.ir_version}")


def skeleton(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without its large weights, which become inputs."""
    small = onnx.ModelProto(ir_version=proto.ir_version)
    small.opset_import.extend(proto.opset_import)
    small.functions.extend(proto.functions)
    graph = small.graph
    graph.name = proto.graph.name or "graph"
    for part in ("node", "input", "output", "value_info"):
        getattr(graph, part).extend(getattr(proto.graph, part))
    declared = {value.name for value in graph.input}
    for tensor in proto.graph.initializer:
        kept = tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.ByteSize() <= SMALL_BYTES
        if kept:
            graph.initializer.append(tensor)
        if tensor.name not in declared and (not kept or proto.ir_version < 4):  # there weights have to be inputs too
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for value in (*graph.input, *graph.output):  # the checker wants a shape, runtimes do not
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()
    tolerated.hide(small, default_opset(proto) or OLDEST_OPSET)
    return small


def to_ir(proto: onnx.ModelProto, files: DataFiles, path: str) -> ir.Model:
    """The model as onnx-ir holds it; weights in other files stay there until they are read. Raises ModelError."""
    external = [t for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    weights = {tensor.name: files.tensor(tensor) for tensor in external}
    try:
        with _quiet():  # names are not to be trusted on a terminal
            model = ir.serde.deserialize_model(proto)
    except Exception as wrapped:  # onnx-ir wraps whatever goes wrong
        raise ModelError(f"{path}: the model cannot be read: {_cause(wrapped)}") from None
    for name, tensor in weights.items():
        model.graph.initializers[name].const_value = tensor
    for name, value in list(model.graph.initializers.items()):
        if value.const_value is None:
            raise ModelError(f"{path}: weight {name!r} has no elements")
        if proto.ir_version < 4 and value in model.graph.inputs:
            model.graph.inputs.remove(value)
    return model


def _cause(error: BaseException) -> BaseException:
    """The error that others were raised from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


# --- what the user says about dimensions ------------------------------------------------------------------------------
def fix_dimensions(model: ir.Model, options: Options) -> None:
    """Put the numbers that the user gave into the shapes of the model. Raises UsageError when they do not fit."""
    inputs = {value.name: value for value in model.graph.inputs}
    known = {n for value in inputs.values() for n in _names(value)}
    check_known(options.dims, known)
    numbers = told_sizes(model) | dict(options.dims)
    check_inputs(options.shapes, map(str, inputs))
    for name, shape in options.shapes.items():
        _fix_shape(name, inputs[name], shape, numbers)
    for name, kind in options.types.items():
        declared = inputs[name].dtype
        element_type = from_numpy(declared.numpy()) if declared is not None else None
        if element_type is None or element_type.name != kind:
            raise UsageError(
                f"--shape {name}: the model's input has type {element_type or declared}, which cannot be {kind}"
            )
    if numbers or options.shapes:
        _put_sizes(model, numbers)


def rename_symbols(model: ir.Model, names: Mapping[str, str]) -> None:
    """Give symbols other names in all shapes of the model."""
    _put_sizes(model, {old: sizes.named(name) for old, name in names.items()})


def _put_sizes(model: ir.Model, numbers: Mapping[str, sizes.Size]) -> None:
    for value in _values(model):
        if value.shape is not None:
            value.shape = ir.Shape([_fixed(d, numbers) for d in _dims(value)])


def told_sizes(model: ir.Model) -> dict[str, int]:
    """The symbols that are numbers wherever the model runs."""
    return _joined_sizes(model) | _cache_sizes(model)


def _joined_sizes(model: ir.Model) -> dict[str, int]:
    """The symbols that are joined to a number: tensors of a Concat differ along its axis alone."""
    found: dict[str, int] = {}
    for node in model.graph:
        shapes = [_dims(v) for v in node.inputs if node.op_type == "Concat" and v is not None and v.shape is not None]
        axis = node.attributes.get_int("axis", 0)
        if len(shapes) < len(node.inputs) or not shapes or len(shapes[0]) <= abs(axis):
            continue
        beside = [[d for k, d in enumerate(dims) if k != axis % len(dims)] for dims in shapes if dims]
        for dims in zip(*beside, strict=False):
            number = next((d for d in dims if isinstance(d, int)), None)
            symbols = (d for d in dims if isinstance(d, str) and d.isidentifier())
            found |= {name: number for name in symbols if number is not None}
    return found


def _cache_sizes(model: ir.Model) -> dict[str, int]:
    """The symbols that stand for the size of a head in caches of GroupQueryAttention, which its queries and keys tell."""
    found: dict[str, int] = {}
    for node in model.graph:
        past = node.inputs[3] if node.op_type == "GroupQueryAttention" and len(node.inputs) > 3 else None
        if past is None or past.shape is None or len(past.shape) != 4 or not isinstance(name := _dims(past)[3], str):
            continue
        counts = [a.as_int() for n in ("num_heads", "kv_num_heads") if (a := node.attributes.get(n)) is not None]
        packed = node.inputs[1] is None
        whole = node.inputs[0 if packed else 1]
        width = whole.shape[-1] if whole is not None and whole.shape is not None and len(whole.shape) else None
        if isinstance(width, int) and len(counts) == 2 and name.isidentifier():
            found[name] = width // max(counts[0] + 2 * counts[1] if packed else counts[1], 1)
    return found


def _fix_shape(name: str, value: ir.Value, shape: Sequence[int], numbers: dict[str, int]) -> None:
    dims = _dims(value) if value.shape is not None else [None] * len(shape)
    check_rank(name, ["?" if d is None else d for d in dims], shape)
    for given, declared in zip(shape, dims, strict=True):
        if declared is None:
            continue
        size = sizes.substitute(sizes.parse(declared) if isinstance(declared, str) else declared, numbers)
        unknown = sizes.names(size)
        if len(unknown) == 1:  # one symbol in a sum such as past + 1: solve for it
            rest = sizes.substitute(size, {unknown[0]: 0})
            factor = sizes.exact_quotient(size - rest, sizes.named(unknown[0]))
            value_of = sizes.exact_quotient(given - rest, factor) if isinstance(factor, int) else None
            if isinstance(value_of, int) and value_of >= 0:
                numbers[unknown[0]] = value_of
                continue
        if size != given:
            raise UsageError(f"--shape {name}: the model says {declared}, which cannot be {given}")
    value.shape = ir.Shape(list(shape))


def _fixed(dim: int | str | None, numbers: Mapping[str, sizes.Size]) -> int | str | None:
    if not isinstance(dim, str):
        return dim
    size = sizes.parse(dim)
    if not set(sizes.names(size)) & numbers.keys():
        return dim
    fixed = sizes.substitute(size, numbers)
    return fixed if isinstance(fixed, int) else str(fixed)


def _dims(value: ir.Value) -> list[int | str | None]:
    return [d if isinstance(d, int) else d.value for d in value.shape or ()]


def _names(value: ir.Value) -> set[str]:
    """The symbols in a tensor's dimensions."""
    return {n for d in _dims(value) if isinstance(d, str) for n in sizes.names(sizes.parse(d))}


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        yield from node.outputs


# --- simplifying ------------------------------------------------------------------------------------------------------
def simplify(model: ir.Model, notes: list[str], path: str) -> None:
    """Inline functions, fold constants and infer shapes, in place; every node gets a name of its own.

    Raises ModelError for calls that do not fit their functions, and for a constant outside of 64 bits.
    """
    opset = model.opset_imports.get("") or OLDEST_OPSET
    with _quiet(), _without_defaults(model):
        kept, choices = _operands_of_calls(model), branches.choices(model)
        _inline(model, path)
        _check_attributes(model, path)
        fragile.check(model, path)
        with fragile.hidden_nodes(model) as shown:
            if opset >= OLDEST_OPSET:
                folding.fold_constants(model, notes, shown, kept)
            _lift_and_infer(model, path)
        branches.lift(model, choices)
        if opset >= OLDEST_OPSET:
            store_what_is_cut_at(model, opset)
            sort_groups(model)
            cached_attention.take_apart(model, opset)
            experts.take_apart(model, opset)
            rotary.take_apart(model, opset)
        _name_nodes(model)
        passes.NameFixPass()(model)


def _lift_and_infer(model: ir.Model, path: str) -> None:
    try:
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    except OverflowError:  # the number of elements of a tensor that is declared to be huge
        raise ModelError(f"{path}: a constant of the model needs more than 64 bits") from None
    except (ValueError, TypeError) as error:  # a Constant with another attribute, or a reference to one
        raise ModelError(f"{path}: a constant of the model cannot be read: {error}") from None
    try:
        passes.RemoveUnusedNodesPass()(model)
    except Exception as wrapped:  # a result without a name that is read all the same
        raise ModelError(f"{path}: nodes that nothing reads cannot be removed: {_cause(wrapped)}") from None
    # without data propagation: it writes a ConstantOfShape of any size out as a list
    try:
        passes.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=False)(model)
    except ir.serde.SerdeError as wrapped:  # a type that onnx-ir does not have
        raise ModelError(f"{path}: what is inferred of the model cannot be read: {_cause(wrapped)}") from None


@contextlib.contextmanager
def _without_defaults(model: ir.Model) -> Iterator[None]:
    """Hide the stored values of inputs: they are defaults that a caller may override, which the passes overlook."""
    defaults = [(v, v.const_value) for v in model.graph.inputs if v.const_value is not None]
    for value, _ in defaults:
        del model.graph.initializers[value.name or ""]
        value.const_value = None
    try:
        yield
    finally:
        for value, tensor in defaults:
            value.const_value = tensor
            model.graph.register_initializer(value)


def _operands_of_calls(model: ir.Model) -> set[str]:
    """The weights that calls of functions read, numbers that shapes are computed of excepted: what a function computes of
    them is its own, and its caller still says which weights it reads."""
    calls = [n for n in model.graph if n.op_identifier() in model.functions]
    stored = {v for n in calls for v in n.inputs if v is not None and v.const_value is not None}
    return {v.name or "" for v in stored if v.const_value is not None and v.const_value.dtype.is_floating_point()}


def _inline(model: ir.Model, path: str) -> None:
    """Replace calls of model-local functions by their nodes."""
    for function in model.functions.values():
        for domain, version in model.opset_imports.items():
            if domain in function.opset_imports:  # the checker has seen that its operators are the same there
                function.opset_imports[domain] = version
        for node in function:  # its symbols are not the model's, even where they have the same names
            for output in node.outputs:
                if output.shape is not None and not output.shape.is_static():
                    output.shape = None
    try:
        inlining.inline(model)
    except Exception as wrapped:  # onnx-ir raises whatever its steps do
        raise ModelError(f"{path}: calls of the model's functions cannot be written out: {_cause(wrapped)}") from None


def _check_attributes(model: ir.Model, path: str) -> None:
    """Raise ModelError for an attribute of another type than its operator has: the checker does not look into functions,
    and does not know the operators of onnxruntime."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        wanted = _attribute_types(node.domain, node.op_type, model.opset_imports.get(node.domain) or 0)
        for name, attribute in node.attributes.items():
            kind = ir.AttributeType(attribute.type).name
            if wanted.get(name, kind) != kind:
                where = f"{fragile.label_of(node)} ({node.op_type})"
                raise ModelError(f"{path}: {where}: expected {wanted[name]} as attribute {name!r}, found {kind}")


@functools.cache
def _attribute_types(domain: str, op_type: str, version: int) -> Mapping[str, str]:
    """The types of an operator's attributes, as far as they are known here, by name."""
    if domain == MICROSOFT:
        return CONTRIBUTED
    domain = "" if domain == "ai.onnx" else domain
    if not version or not onnx.defs.has(op_type, version, domain):
        return {}
    return {
        k: str(a.type).rpartition(".")[2] for k, a in onnx.defs.get_schema(op_type, version, domain).attributes.items()
    }


def _name_nodes(model: ir.Model) -> None:
    """Names that are not empty and differ over all graphs of the model."""
    names = Names()
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        node.name = names.new(node.name or f"node_{node.op_type}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The passes log what they skip, and numpy warns of constants that overflow; a user can do nothing about either."""
    loggers = [logging.getLogger(name) for name in ("onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
