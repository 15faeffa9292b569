"""The inverse of `fuse`: elementwise operators one by one, for the ablation of thread fusion.

A value that `hoist` computes once for a row is still computed once; what thread graphs kept in registers is a value of the
block again. The graph computes the same and stays valid.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_cli.search.finish.unstabilised import unfolded
from mirage_cli.search.mugraph.mugraph import BlockGraph, KernelGraph


def unfused(graph: KernelGraph) -> KernelGraph:
    """The kernel graph with thread graphs of one operator each."""
    kernels = tuple(replace(k, block=unfused_block(k.block)) for k in graph.kernels)
    return replace(graph, kernels=kernels).validate()


def unfused_block(graph: BlockGraph) -> BlockGraph:
    """The block graph with thread graphs of one operator each; their names are letters, digits and underscores."""
    single = unfolded(graph)
    names = {o.name: o.name.replace(".", "_part") for o in single.ops}
    ops = tuple(replace(o, name=names[o.name], inputs=tuple(names[i] for i in o.inputs)) for o in single.ops)
    return replace(single, ops=ops, outputs=tuple(names[v] for v in single.outputs))
