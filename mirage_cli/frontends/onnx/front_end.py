"""The ONNX front end: a model file in, its graph of primitive operators and the original that will be patched out."""

from __future__ import annotations

from pathlib import Path

import onnx

from mirage_cli.errors import ModelError
from mirage_cli.frontends.imported import Imported, Options
from mirage_cli.frontends.onnx import branches, protobuf, texts
from mirage_cli.frontends.onnx.external import DataFiles, inline_inner
from mirage_cli.frontends.onnx.original import Original, outputs_of
from mirage_cli.frontends.onnx.preparation import OLDEST_OPSET, checked, default_opset, fix_dimensions, simplify, to_ir
from mirage_cli.frontends.onnx.walk import read_graph
from mirage_cli.lax.fragments.spelling import one_spelling

suffixes = (".onnx",)


def load(path: str, options: Options) -> Imported:
    """Read the ONNX model at `path` ("-": standard input).

    Raises ModelError, naming the file, what was expected and what was found, for a file that is missing, damaged or
    invalid, and UsageError for options that do not fit its inputs.
    """
    data = protobuf.read_bytes(path)
    return from_proto(protobuf.parse(data, path), options, path, protobuf.sha256(data), data)


def from_proto(
    proto: onnx.ModelProto, options: Options, path: str = "-", sha256: str = "", data: bytes = b""
) -> Imported:
    """Read a model in memory, which this changes; `data` are the bytes that it was read from. External data is looked for
    beside `path`.

    Raises ModelError or UsageError.
    """
    try:
        return _read(proto, options, path, sha256, data or proto.SerializeToString())
    except UnicodeDecodeError as error:  # the texts of a message are decoded when they are looked at
        raise ModelError(f"{path}: a name in the model is not UTF-8: {error.object[:64]!r}") from None


def _read(proto: onnx.ModelProto, options: Options, path: str, sha256: str, data: bytes) -> Imported:
    notes: list[str] = []
    texts.check(proto, path)
    node_count = len(proto.graph.node)
    files = DataFiles(path if options.data is None else str(Path(options.data) / path))
    original = Original(data, files, outputs_of(proto))
    inline_inner(proto, files)
    branches.name_apart(proto)
    proto = checked(proto, path, notes)
    model = to_ir(proto, files, path)
    fix_dimensions(model, options)
    simplify(model, notes, path)
    reading = read_graph(model)
    told = {n: "kernels refuse none" if n == 1 else "the model fails below that" for n in reading.least.values()}
    notes += [f"{s} is taken to be {n} or more: {told[n]}" for s, n in sorted(reading.least.items())]
    notes += [f"{s} is taken to be {n} or less: the model fails above that" for s, n in sorted(reading.most.items())]
    notes += [f"{s} is taken to be {t}: the model fails where they differ" for s, t in sorted(reading.same.items())]
    graph, new = one_spelling(reading.graph)
    graph.bounds = [new[v] for v in reading.graph.bounds]
    return Imported(
        path=path,
        format="onnx",
        sha256=sha256,
        external=files.sha256,
        opset=default_opset(proto) or OLDEST_OPSET,
        node_count=node_count,
        model=model,
        graph=graph,
        values={name: new[v] for name, v in reading.values.items()},
        shapes=reading.shapes,
        reasons=reading.reasons,
        notes=notes,
        stated=reading.graph,
        stated_values=reading.values,
        least=reading.least,
        most=reading.most,
        same=reading.same,
        branches={v.name or "": b for n in model.graph for v in n.outputs if (b := branches.branch_of(v))},
        around=reading.around,
        files=tuple(files.files.values()),
        original=original,
    )
