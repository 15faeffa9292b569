"""Size of a model whose calls of functions are written out, counted before any is.

A file of some kilobytes may hold functions that each call the next one twice: sixty of them are 2^60 nodes.
"""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import onnx

from mirage_cli.errors import ModelError
from mirage_cli.frontends.onnx.traversal import all_nodes

MOST_NODES = 1 << 17  #: of a model whose functions are written out; those of large language models have 2^14
Key: TypeAlias = tuple[str, str, str]  # domain, name, overload


def check(model: onnx.ModelProto, path: str) -> None:
    """Raise ModelError for functions that call themselves, and for those that would make more than `MOST_NODES` nodes."""
    bodies = {(f.domain, f.name, f.overload): f.node for f in model.functions}
    if not bodies:
        return
    if len(bodies) != len(model.functions):
        raise ModelError(f"{path}: two functions of the model have the same domain and name")
    calls = {key: _calls(nodes, bodies) for key, nodes in bodies.items()}
    try:
        order = list(
            graphlib.TopologicalSorter({key: set(called) for key, (_, called) in calls.items()}).static_order()
        )
    except graphlib.CycleError as error:
        ring = " calls ".join(f"{domain}::{name}" for domain, name, _ in error.args[1][:4])
        raise ModelError(f"{path}: functions of the model call each other without an end: {ring}") from None
    sizes: dict[Key, int] = {}
    for key in order:
        own, called = calls[key]
        sizes[key] = min(own + sum(sizes[k] * n for k, n in called.items()), MOST_NODES + 1)
    own, called = _calls(model.graph.node, bodies)
    total = own + sum(sizes[k] * n for k, n in called.items())
    if total > MOST_NODES:
        raise ModelError(f"{path}: with its functions written out the model has more than {MOST_NODES} nodes")


def _calls(nodes: Iterable[onnx.NodeProto], bodies: Mapping[Key, object]) -> tuple[int, Counter[Key]]:
    """(nodes that are no calls, how often each function is called), those of sub-graphs among them."""
    own, called = 0, Counter[Key]()
    for node in all_nodes(nodes):
        key = (node.domain, node.op_type, node.overload)
        if key in bodies:
            called[key] += 1
        else:
            own += 1
    return own, called
