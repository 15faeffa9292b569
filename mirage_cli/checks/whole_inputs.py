"""The nodes of a fragment that reads tensors in parts, or chosen rows of tables, as a model that takes these whole.

Checks go by a program, whose sources are whole; the operator and its original nodes take the parts, or tables and indices. A
table of the rows, one after the other, is made of what is whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mirage_cli.lax.ir.parts import given_otherwise, index_place, input_count
from mirage_cli.lax.ir.program import Program, Source
from mirage_cli.patching.graph_message import unused_name
from mirage_cli.patching.regions import ONNX_DOMAINS, SLICE_BY_INPUTS

_END = np.iinfo(np.int64).max


def with_wholes(model: onnx.ModelProto, program: Program, names: Sequence[str]) -> tuple[str, ...]:
    """Let a model of a fragment's nodes, whose inputs are what the operator takes, take sources in parts whole, under their
    `names`, in place; the names of its inputs. The model returns what the program does, and nothing else."""
    graph, count = model.graph, input_count(program)
    del graph.output[len(program.outputs) :]
    given, seconds = list(graph.input), iter(graph.input[len(program.sources) : count])
    indices = [v.name for v in graph.input[:count]]
    taken = {n for node in graph.node for n in (*node.input, *node.output)} | {v.name for v in graph.input}
    opset = next((o.version for o in model.opset_import if o.domain in ONNX_DOMAINS), 1)
    cuts = list[onnx.NodeProto]()
    done = set[str]()
    for k, name in zip(given_otherwise(program), names, strict=True):
        if name in taken:
            _rename(graph, name, unused_name(f"{name}/joined", taken))
        first, source = given[k], program.sources[k]
        if source.chosen:
            index = indices[index_place(program, k)]
            cuts += _rows(graph, source, name, first.name, "" if index in done else index)
            done.add(index)
        else:
            cuts += _cuts(graph, source, name, (first.name, next(seconds).name), opset)
        given[k] = _whole(source, name, first)
    nodes = [*cuts, *graph.node]
    rest = [*given[: len(program.sources)], *given[count:]]
    del graph.node[:], graph.input[:]
    graph.node.extend(nodes)
    graph.input.extend(rest)
    return tuple(v.name for v in rest)


def _whole(source: Source, name: str, first: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """The description of a whole tensor, like that of its first part."""
    dims = [d if isinstance(d, int) else str(d) for d in source.tensor_dims]
    return helper.make_tensor_value_info(name, first.type.tensor_type.elem_type, dims)


def _rows(graph: onnx.GraphProto, source: Source, name: str, table: str, index: str) -> list[onnx.NodeProto]:
    """The nodes that make a table of all rows, and the `index` (if it has a name) by which each place has its own."""
    assert source.chosen is not None
    lead = source.chosen.lead
    told = {"dims": [-1, *source.tensor_dims[lead:]], "first": [0], "behind": [lead], "none": 0, "one": 1}
    told = {f"{table}/{k}": n for k, n in told.items()}
    graph.initializer.extend(numpy_helper.from_array(np.array(n, np.int64), k) for k, n in told.items())
    dims, first, behind, none, one = told
    nodes = [helper.make_node("Reshape", [name, dims], [table])]
    if index:
        shape, places, count = (f"{index}/{n}" for n in ("shape", "places", "count"))
        nodes += [
            helper.make_node("Shape", [name], [shape]),
            helper.make_node("Slice", [shape, first, behind], [places]),
            helper.make_node("ReduceProd", [places], [count], keepdims=0),
            helper.make_node("Range", [none, count, one], [f"{index}/flat"]),
            helper.make_node("Reshape", [f"{index}/flat", places], [index]),
        ]
    return nodes


def _cuts(graph: onnx.GraphProto, source: Source, name: str, parts: Sequence[str], opset: int) -> list[onnx.NodeProto]:
    """The nodes that cut a whole tensor into its parts."""
    assert source.parts is not None
    dim, second = source.parts.place
    nodes = []
    for part, limits in zip(parts, ((0, -second), (-second, _END)), strict=True):
        bounds = {"starts": limits[0], "ends": limits[1], "axes": dim}
        told = [numpy_helper.from_array(np.array([n], np.int64), f"{part}/{k}") for k, n in bounds.items()]
        nodes.append(helper.make_node("Slice", [name], [part]))
        if opset < SLICE_BY_INPUTS:
            nodes[-1].attribute.extend(helper.make_attribute(k, [n]) for k, n in bounds.items())
        else:
            nodes[-1].input.extend(t.name for t in told)
            graph.initializer.extend(told)
    return nodes


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = new if name == old else name
