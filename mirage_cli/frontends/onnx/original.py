"""A model as it was given: its very bytes, before anything was inlined, folded or named anew for reading.

What is patched is this, and what is not replaced stays as it is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from mirage_cli.frontends.onnx import branches
from mirage_cli.frontends.onnx.external import DataFiles


@dataclass(frozen=True, slots=True)
class Original:
    """The bytes of a model, and its data files, as they were opened for reading.

    `outputs` has, by the first result of each node of the main graph with several, its operator and how many results it has:
    reading removes those that nothing reads, which runtimes may insist on.
    """

    data: bytes
    files: DataFiles
    outputs: Mapping[str, tuple[str, int]]

    def proto(self) -> onnx.ModelProto:
        """The model as a message of its own, which may be changed."""
        message: onnx.ModelProto = onnx.ModelProto.FromString(self.data)
        branches.name_apart(message)
        return message


def outputs_of(proto: onnx.ModelProto) -> dict[str, tuple[str, int]]:
    """The main graph's nodes with several results, by the first one: their operators, and how many results."""
    return {
        next(filter(None, node.output)): (node.op_type, len(node.output))
        for node in proto.graph.node
        if len(node.output) > 1 and any(node.output)
    }
