"""What a front end hands over: the model that will be patched and the graph that was read from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.errors import UsageError

if TYPE_CHECKING:
    import onnx_ir

    from mirage_cli.lax.domain import Array
    from mirage_cli.lax.graph import Graph
    from mirage_cli.rawfile import DataFile


@dataclass(frozen=True, slots=True)
class Options:
    """What the user says about a model's dimensions: `shapes` fixes inputs, `dims` gives symbols a value,
    `types` names the types of inputs where a format does not tell them."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Script:
    """A TorchScript module behind an imported model.

    `marked` is the marked module; `names` are, for each mark, the tensors of the ONNX model that stand for the marked one,
    `seen` a tensor of its type and shape; `folder` holds the exported weights as long as the model is used.
    """

    marked: Any
    names: Mapping[int, tuple[str, ...]]
    seen: Mapping[int, Any]
    folder: Any


@dataclass(slots=True)
class Imported:
    """A model that has been read.

    `graph.outputs` are the values of the model's outputs, in order. `values` maps tensor names of `model` to graph
    values (small integer tensors that only describe shapes have none until something reads them as data); `shapes`
    holds the elements (extents) of integer tensors where all are known; `reasons` says of each node that is not read
    why. `external` maps each external data file, as the model names it, to its sha256. `node_count` counts the file's
    nodes, before functions are inlined and constants folded. `script` is the TorchScript module that the model was made
    from, `files` hold the external data.
    """

    path: str
    format: str
    sha256: str
    external: dict[str, str]
    opset: int
    node_count: int
    model: onnx_ir.Model
    graph: Graph
    values: dict[str, int]
    shapes: dict[str, NDArray[Any]]
    reasons: dict[str, str]
    notes: list[str]
    script: Script | None = None
    files: tuple[DataFile, ...] = ()

    def forget(self) -> None:
        """Give back the memory that weights in files take; they are read again when they are needed."""
        for file in self.files:
            file.forget()

    def constant(self, name: str) -> Array:
        """The stored elements of a weight, dense and row-major. Raises UsageError for a name that no constant has."""
        nodes = (output for node in self.model.graph if node.op_type == "Constant" for output in node.outputs)
        value = self.model.graph.initializers.get(name) or next((o for o in nodes if o.name == name), None)
        if value is None or value.const_value is None:
            raise UsageError(f"the model has no constant called {name!r}")
        return np.asarray(value.const_value.numpy(), order="C")  # a folded Transpose is a view of its operand
