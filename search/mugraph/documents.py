"""muGraphs as JSON documents, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirage_cli.lax.dtypes import BY_NAME
from mirage_cli.lax.ir.numbers import number_from_json, number_to_json
from mirage_cli.lax.ir.program import program_from_json
from mirage_cli.search.mugraph.mugraph import BlockGraph, BlockOp, CustomKernel, KernelGraph, ThreadGraph, ThreadNode


def block_to_json(b: BlockGraph) -> dict[str, Any]:
    """A JSON document that `block_from_json` reads back."""
    ops = []
    for operator in b.ops:
        data: dict[str, Any] = {"name": operator.name, "op": operator.op, "phase": operator.phase}
        if operator.inputs:
            data["inputs"] = list(operator.inputs)
        if operator.over:
            data["over"] = list(operator.over)
        if operator.thread is not None:
            data["thread"] = [
                {"op": n.op, "inputs": list(n.inputs)}
                | ({"value": number_to_json(n.value)} if n.value is not None else {})
                for n in operator.thread.nodes
            ]
        if operator.source_value is not None:
            data["value"] = operator.source_value
        if operator.axis is not None:
            data["axis"] = operator.axis
        if operator.dtype is not None:
            data["dtype"] = operator.dtype.name
        ops.append(data)
    return {"grid": list(b.grid), "split": list(b.split), "loop": b.loop, "ops": ops, "outputs": list(b.outputs)}


def _op_from_json(d: Mapping[str, Any]) -> BlockOp:
    thread = None
    if "thread" in d:
        nodes = tuple(
            ThreadNode(n["op"], tuple(n["inputs"]), number_from_json(n["value"]) if "value" in n else None)
            for n in d["thread"]
        )
        thread = ThreadGraph(len(d.get("inputs", ())), nodes)
    return BlockOp(
        d["name"],
        d["op"],
        tuple(d.get("inputs", ())),
        d["phase"],
        tuple(d.get("over", ())),
        thread,
        d.get("value"),
        d.get("axis"),
        BY_NAME[d["dtype"]] if "dtype" in d else None,
    )


def block_from_json(d: Mapping[str, Any]) -> BlockGraph:
    """The inverse of `block_to_json`."""
    ops = tuple(_op_from_json(o) for o in d["ops"])
    return BlockGraph(tuple(d["grid"]), tuple(d["split"]), d["loop"], ops, tuple(d["outputs"]))


def graph_to_json(g: KernelGraph) -> dict[str, Any]:
    """A JSON document that `graph_from_json` reads back."""
    kernels = [
        {
            "program": k.program.to_json(),
            "block": block_to_json(k.block),
            "inputs": list(k.inputs),
            "outputs": list(k.outputs),
        }
        for k in g.kernels
    ]
    return {"sources": g.sources, "outputs": g.outputs, "tensors": g.tensors, "kernels": kernels}


def graph_from_json(d: Mapping[str, Any]) -> KernelGraph:
    """Read a kernel graph back and validate it. Raises InvalidGraph (or KeyError for missing fields)."""
    kernels = tuple(
        CustomKernel(
            program_from_json(k["program"]), block_from_json(k["block"]), tuple(k["inputs"]), tuple(k["outputs"])
        )
        for k in d["kernels"]
    )
    return KernelGraph(d["sources"], d["outputs"], d["tensors"], kernels).validate()
