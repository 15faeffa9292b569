"""Models whose weights are many gigabytes, run in onnxruntime a piece at a time.

onnxruntime converts float16 weights to float32 on the CPU, folds them and packs them for its products, all at once when
a session is made: several times the model's size. A piece is a run of nodes with a bounded number of bytes of weights,
as a model of its own; its session ends before the next begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from numpy.typing import NDArray
from onnx import helper

from mirage_cli.runtime import sessions

Arrays: TypeAlias = dict[str, NDArray[Any]]
LARGE = 1 << 30  #: bytes of weights from which on a model is run in pieces
PIECE = 1 << 28  #: bytes of weights of a piece, but for a single node that reads more
_NO_TENSORS = ("Sequence", "Optional")  #: parts of the names of operators whose values are no tensors


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive nodes, the weights that they read, and the other tensors that go in and come out."""

    nodes: tuple[onnx.NodeProto, ...]
    weights: tuple[onnx.TensorProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def is_large(model: onnx.ModelProto) -> bool:
    """True if a model has so many bytes of weights that it is better run in pieces, and can be."""
    if any(part in n.op_type for n in model.graph.node for part in _NO_TENSORS):
        return False
    return sum(map(size_of, model.graph.initializer)) > LARGE


def size_of(tensor: onnx.TensorProto) -> int:
    """Bytes of a stored tensor, at least one for each element."""
    size: int = math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return size


def split_model(model: onnx.ModelProto, limit: int = PIECE) -> list[Piece]:
    """The pieces of a model, in order."""
    graph = model.graph
    weights = {t.name: t for t in graph.initializer}
    groups: list[list[onnx.NodeProto]] = []
    held: set[str] = set()
    for node in graph.node:
        mine = {n for n in _read(node) if n in weights}
        if not groups or sum(size_of(weights[n]) for n in held | mine) > limit:
            groups.append([])
            held = set()
        groups[-1].append(node)
        held |= mine
    wanted = {o.name for o in graph.output}
    reversed_pieces: list[Piece] = []
    for group in reversed(groups):
        written = [o for n in group for o in n.output if o]
        read = list(dict.fromkeys(r for n in group for r in _read(n)))
        outside = [r for r in read if r not in weights and r not in set(written)]
        tensors = tuple(weights[r] for r in read if r in weights)
        reversed_pieces.append(Piece(tuple(group), tensors, tuple(outside), tuple(o for o in written if o in wanted)))
        wanted |= set(outside)
    return reversed_pieces[::-1]


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """The tensors that a node reads, those that its sub-graphs read from around them included."""
    yield from (i for i in node.input if i)
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            own |= {o for n in graph.node for o in n.output}
            for inner in graph.node:
                yield from (r for r in _read(inner) if r not in own)
            yield from (o.name for o in graph.output if o.name not in own)


def run(
    model: onnx.ModelProto,
    folder: Path,
    inputs: Mapping[str, NDArray[Any]],
    library: Path | None,
    limit: int = PIECE,
    seconds: float = 0,
    optimize: bool = True,
) -> Arrays:
    """The outputs of a model, whose external data lie in `folder`, on the CPU, `seconds` for each piece at most (0: no
    limit), with onnxruntime's optimizations or without. Raises ModelError, MirageError."""
    outputs = [o.name for o in model.graph.output]
    parts = split_model(model, limit)
    last = {name: k for k, part in enumerate(parts) for name in part.inputs}
    values: Arrays = dict(inputs)
    for k, part in enumerate(parts):
        feeds = {name: values[name] for name in part.inputs}
        values |= _run(_model(model, part, feeds), folder, feeds, library, seconds, optimize)
        for name in [n for n in values if last.get(n, -1) <= k and n not in outputs]:
            del values[name]
    return {name: values[name] for name in outputs}


def _run(model: bytes, folder: Path, feeds: Arrays, library: Path | None, seconds: float, optimize: bool) -> Arrays:
    """The outputs of a piece; its session ends here."""
    return sessions.run(sessions.session(model, library, data=folder, optimize=optimize), feeds, seconds)


def _model(model: onnx.ModelProto, part: Piece, feeds: Mapping[str, NDArray[Any]]) -> bytes:
    """A piece as a model; the types of its inputs are those of what it is fed."""
    graph = helper.make_graph(
        part.nodes,
        model.graph.name or "graph",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()],
        _typed(model, part.outputs),
        part.weights,
        value_info=model.graph.value_info,
    )
    message = helper.make_model(
        graph, opset_imports=model.opset_import, functions=model.functions, ir_version=model.ir_version
    )
    data: bytes = message.SerializeToString()
    return data


def _typed(model: onnx.ModelProto, names: Sequence[str]) -> list[onnx.ValueInfoProto]:
    """Descriptions of tensors: the model's own where it has them."""
    known = {v.name: v for v in (*model.graph.value_info, *model.graph.output)}
    return [known[n] if n in known else helper.make_empty_tensor_value_info(n) for n in names]
