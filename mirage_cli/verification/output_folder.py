"""An output folder read back: the report, the patched model, its operators with their muGraph files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from mirage_cli import frontends
from mirage_cli.backends.spec import OperatorSpec, TensorSpec, operator_spec
from mirage_cli.checks import derivation
from mirage_cli.checks.kernel_check import CheckJob, Extra, Limits
from mirage_cli.checks.whole_inputs import with_wholes
from mirage_cli.codegen import cache_rows
from mirage_cli.codegen.cache_rows import CacheRows
from mirage_cli.errors import InvalidGraph, MirageError, UsageError
from mirage_cli.files.output import MODEL, MUGRAPHS
from mirage_cli.frontends import Imported, sizes
from mirage_cli.frontends.onnx import protobuf
from mirage_cli.frontends.onnx.external import DataFiles
from mirage_cli.frontends.onnx.parts import cached_attention
from mirage_cli.frontends.onnx.traversal import all_graphs, all_nodes
from mirage_cli.lax.dtypes import U8
from mirage_cli.lax.ir.parts import given_otherwise, input_count, input_sources, output_names
from mirage_cli.lax.ir.program import Program
from mirage_cli.options import dims
from mirage_cli.patching import graph_message, patch
from mirage_cli.patching.regions import ONNX_DOMAINS
from mirage_cli.report import mugraph_file
from mirage_cli.report.report import REPLACED
from mirage_cli.report.stored_plan import StoredPlan, plan_from_json
from mirage_cli.runtime import sessions
from mirage_cli.verification.findings import Verification, VerifyOptions


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment of a patched model: its muGraph file read back, and the nodes that call its operator."""

    id: str
    file: str
    stored: StoredPlan
    spec: OperatorSpec
    nodes: tuple[onnx.NodeProto, ...]

    @property
    def op_type(self) -> str:
        """The operator's name."""
        return self.spec.op_type

    @property
    def unwritten(self) -> frozenset[int]:
        """The numbers of the inputs that no kernel writes, and that are no weights."""
        return self.stored.program.early - self.stored.program.constants

    def program(self, model: Imported, node: onnx.NodeProto) -> Program:
        """The program that a model states at one place. Raises InvalidGraph or Refused where it states none."""
        branch = next((b for name in node.output if (b := model.branches.get(name))), "")
        own, names = self.stored.program, model.entered(branch, node.input)
        wholes = iter(node.output[len(own.outputs) :])
        rows = derivation.chosen_names(model, own, names)
        sources = [
            next(wholes) if s.parts else rows.get(k, n)
            for k, (s, n) in enumerate(zip(own.sources, names, strict=False))
        ]
        program = derivation.derived_program(model, sources, node.output[: len(own.outputs)])
        return derivation.joined_as(model, program, own, names)


def read_model(path: Path) -> onnx.ModelProto:
    """A patched model as it is stored, without its external data. Raises ModelError."""
    return protobuf.parse(protobuf.read_bytes(str(path)), str(path))


def fragments(
    folder: Path, model: onnx.ModelProto, report: Mapping[str, Any], result: Verification
) -> Iterator[Fragment]:
    """The fragments of a patched model; what is missing or does not fit becomes a finding."""
    nodes: dict[str, list[onnx.NodeProto]] = {}
    for n in all_nodes(model.graph.node):
        if n.domain == patch.DOMAIN:
            nodes.setdefault(n.op_type, []).append(n)
    functions = {f.name for f in model.functions if f.domain == patch.DOMAIN}
    fixed, given = constants(model), frozenset(v.name for v in model.graph.input)
    for op_type, places in nodes.items():
        if cache_rows.named(op_type) is not None:
            continue
        identifier = op_type.rpartition("_")[2]
        file = f"{MUGRAPHS}/{identifier}.json"
        if not result.add("model", op_type, "" if op_type in functions else "the operator has no function"):
            continue
        try:
            fragment = read_fragment(folder, identifier, op_type, places)
            check_constants(fragment, fixed, given)
            yield fragment
        except MirageError as error:
            result.add("model", file, str(error))
    for f in report.get("fragments", ()):
        op_type = f"{f['name']}_{f['id']}"
        if f["status"] == REPLACED and op_type not in nodes:
            result.add("model", op_type, "report.json says that it was replaced, the model has no such operator")


def operators_beside(model: onnx.ModelProto, result: Verification) -> list[CacheRows]:
    """The operators of a patched model that bring new rows into caches; functions that say something else become findings."""
    names = sorted({n.op_type for n in all_nodes(model.graph.node) if n.domain == patch.DOMAIN})
    beside = [rows for rows in map(cache_rows.named, names) if rows is not None]
    functions = {f.name: f for f in model.functions if f.domain == patch.DOMAIN}
    opset = next((o.version for o in model.opset_import if o.domain in ONNX_DOMAINS), 1)
    for rows in beside:
        wanted = ir.to_proto(cached_attention.rows_function(rows, opset))
        there = functions.get(rows.op_type)
        same = there is not None and _said(there) == _said(wanted)
        result.add("function", rows.op_type, "" if same else "its function is not that of its name")
    return beside


def _said(function: onnx.FunctionProto) -> list[Any]:
    """What a function says, whatever its nodes are called."""
    nodes = [(n.domain, n.op_type, tuple(n.input), tuple(n.output), list(n.attribute)) for n in function.node]
    return [list(function.input), list(function.output), nodes]


def read_fragment(folder: Path, identifier: str, op_type: str, places: list[onnx.NodeProto]) -> Fragment:
    """A fragment's muGraph file. Raises ModelError or InvalidGraph when it is missing or does not fit the model."""
    file = f"{MUGRAPHS}/{identifier}.json"
    data = mugraph_file.read(folder / file)
    stored = plan_from_json(data)
    spec = operator_spec(identifier, data["operator"], stored.targets)
    spec.validate()
    if stored.id != identifier or spec.op_type != op_type:
        raise InvalidGraph(f"it is of operator {spec.op_type}, id {stored.id}, and not of {op_type}")
    if not stored.targets:
        raise InvalidGraph("it has no muGraph")
    own = stored.program
    described = [(t.dtype, t.dims) for t in spec.inputs[: input_count(own)] + spec.outputs]
    wanted = [(U8 if s.packed else s.dtype, s.tensor_dims) for s in input_sources(own)]
    wanted += [(o.dtype, o.dims) for o in own.outputs] + [(s.dtype, s.dims) for s in own.sources if s.parts]
    if described != wanted:
        raise InvalidGraph("the tensors of its operator are not those of its program")
    for n in places:
        if (len(n.input), len(n.output)) != (len(spec.inputs), len(spec.outputs)):
            raise InvalidGraph(f"its operator has {len(spec.inputs)} inputs, node {n.name} has {len(n.input)}")
    return Fragment(identifier, file, stored, spec, tuple(places))


def constants(model: onnx.ModelProto) -> frozenset[str]:
    """The tensors that nothing writes while a model runs: its weights (one that is an input too may be overridden) and
    what its Constant nodes hold."""
    weights = {t.name for graph in all_graphs(model) for t in graph.initializer} - {v.name for v in model.graph.input}
    nodes = (n for n in all_nodes(model.graph.node) if n.domain in ONNX_DOMAINS and n.op_type == "Constant")
    return frozenset(weights | {o for n in nodes for o in n.output})


def check_constants(f: Fragment, fixed: frozenset[str], given: frozenset[str]) -> None:
    """Raise InvalidGraph where the muGraph file takes a tensor for a weight that is none in the model, or one that kernels of
    the model may write for an input that is `given`.

    A kernel may read weights before the work in front of it has ended, so that would be a race.
    """
    for n in f.nodes:
        for k in sorted(f.stored.program.constants):
            if n.input[k] not in fixed:
                raise InvalidGraph(
                    f"it takes input {k} for a weight; at node {n.name} that is {n.input[k]!r}, which is no constant"
                )
        for k in sorted(f.unwritten):
            if n.input[k] not in given:
                raise InvalidGraph(
                    f"it takes input {k} for one of the model; at node {n.name} that is {n.input[k]!r}, which is none"
                )


# --- the float check of a kernel --------------------------------------------------------------------------------------
def check_job(
    f: Fragment,
    program: Program,
    model: onnx.ModelProto,
    folder: Path,
    library: Path,
    imported: Imported,
    seed: int,
    limits: Limits,
) -> CheckJob:
    """The check of a fragment's CPU kernel against float64, with the weights of its first place. Raises MirageError."""
    node = f.nodes[0]
    stored = {name: t for graph in all_graphs(model) for name, t in graph_message.stored_tensors(graph).items()}
    files = DataFiles(str(folder / MODEL), hashed=False)
    weights = {k: files.array(stored[n]) for k, n in enumerate(node.input) if n in stored}
    count = input_count(program)
    extra: list[Extra] = [weights[k] if k in weights else f.spec.inputs[k] for k in range(count, len(node.input))]
    own = {k for k, s in enumerate(program.sources) if not s.chosen}
    constants = {k: w for k, w in weights.items() if k in own}
    wholes = [f"whole{k}" for k in given_otherwise(program)]
    proto = _fragment_model(f, model, [f"in{k}" for k in range(len(node.input))], output_names(program))
    names = with_wholes(proto, program, wholes)
    sessions.hold(proto, {names[k]: w for k, w in constants.items()})
    return CheckJob(program, f.spec, library, proto.SerializeToString(), names, constants, tuple(extra), seed, limits)


def _fragment_model(
    f: Fragment, model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]
) -> onnx.ModelProto:
    """One call of the operator, with its function."""

    def info(name: str, t: TensorSpec) -> onnx.ValueInfoProto:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(sessions.numpy_type(t.dtype)))
        return helper.make_tensor_value_info(name, kind, [d if isinstance(d, int) else str(d) for d in t.dims])

    node = helper.make_node(f.op_type, inputs, outputs, domain=patch.DOMAIN)
    graph = helper.make_graph(
        [node],
        f.op_type,
        [info(n, t) for n, t in zip(inputs, f.spec.inputs, strict=True)],
        [info(n, t) for n, t in zip(outputs, f.spec.outputs, strict=True)],
    )
    functions = [x for x in model.functions if (x.domain, x.name) == (patch.DOMAIN, f.op_type)]
    return helper.make_model(graph, opset_imports=model.opset_import, functions=functions, ir_version=model.ir_version)


def check_pair(path: Path, original: Imported, patched_path: Path, patched: Imported) -> None:
    """Raise UsageError, naming the first that does not fit, for models whose inputs or outputs differ."""
    for what in ("inputs", "outputs"):
        ours, theirs = (
            {v.name: (v.dtype, None if v.shape is None else len(v.shape)) for v in getattr(m.model.graph, what)}
            for m in (original, patched)
        )
        if ours != theirs:
            odd: Iterator[str] = (str(n) for n in [*ours, *theirs] if ours.get(n) != theirs.get(n))
            raise UsageError(f"{path} and {patched_path} do not have the same {what}: {next(odd)!r} differs")


def against_original(f: Fragment, original: Imported) -> str:
    """Why the original model states another program at some place, or nothing."""
    for n in f.nodes:
        try:
            program = f.program(original, n)
        except MirageError as error:
            return f"the original model states no such program at node {n.name}: {error}"
        if program.key() != f.stored.program.key():
            return f"the original model states another program at node {n.name}"
    return ""


# --- symbols of the inputs --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Symbols:
    """The names of a model's symbolic dimensions, and the numbers that given shapes make of them."""

    names: frozenset[str]
    numbers: dict[str, int]


def external(imported: Imported, shapes: Mapping[str, tuple[int, ...]]) -> Symbols:
    """The symbols of a model's inputs. Raises UsageError for shapes of inputs that there are not, or that do not fit."""
    names: set[str] = set()
    numbers: dict[str, int] = {}
    inputs = {v.name or "": v for v in imported.model.graph.inputs}
    dims.check_inputs(shapes, inputs)
    for name, value in inputs.items():
        declared = [d if isinstance(d, int) else d.value for d in value.shape or ()]
        given = shapes.get(name)
        if given is not None:
            dims.check_rank(name, ["?" if d is None else d for d in declared], given)
        for k, d in enumerate(declared):
            size = sizes.named(f"{name}.{k}") if d is None else sizes.parse(d) if isinstance(d, str) else d
            symbols = sizes.names(size)
            names.update(symbols)
            if given is not None:
                numbers.update(_solved(name, size, symbols, given[k]))
    return Symbols(frozenset(names), numbers)


def reading(options: VerifyOptions, shapes: Sequence[str], numbers: Mapping[str, int]) -> frontends.Options:
    """Options to read an original with, from --shape and numbers of dimensions. Raises UsageError."""
    given, types = dims.parse_shapes(shapes), dims.parse_types(shapes)
    return frontends.Options(given, numbers, types, options.timeout, options.max_memory)


def told_sizes(report: Mapping[str, Any]) -> dict[str, int]:
    """Sizes for symbols of the inputs as the model was optimized for."""
    return dims.typical(dims.parse((report.get("options") or {}).get("dim", ())))


def asked_sizes(imported: Imported, options: VerifyOptions) -> dict[str, int]:
    """Sizes for symbols of the inputs as asked for now. Raises UsageError."""
    asked = dims.parse(options.dim)
    symbols = external(imported, dims.parse_shapes(options.shape))
    dims.check_known(asked, symbols.names)
    return symbols.numbers | dims.typical(asked)


def _solved(name: str, size: sizes.Size, symbols: list[str], number: int) -> dict[str, int]:
    """The symbol of a dimension that is a sum or multiple of one symbol."""
    if not symbols and size != number:
        raise UsageError(f"--shape {name}: the model says {size}, which cannot be {number}")
    if len(symbols) != 1:
        return {}
    base, more = (sizes.substitute(size, {symbols[0]: n}) for n in (0, 1))
    if not isinstance(base, int) or not isinstance(more, int) or more == base or (number - base) % (more - base):
        raise UsageError(f"--shape {name}: the model says {size}, which cannot be {number}")
    return {symbols[0]: (number - base) // (more - base)}
