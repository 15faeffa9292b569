"""Small tools for edits of models: new nodes beside old ones, and what is known of a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray


@dataclass
class Editor:
    """A model that is being edited, and the choices that edits make."""

    model: ir.Model
    random: Random
    made: int = 0  #: names given so far

    @property
    def graph(self) -> ir.Graph:
        """The main graph."""
        return self.model.graph

    def nodes(self, *kinds: str, share: float = 1.0) -> list[ir.Node]:
        """Nodes of some kinds (all without), each with a chance of `share`."""
        chosen = [n for n in self.graph if (not kinds or n.op_type in kinds) and n.domain in ("", "ai.onnx")]
        return [n for n in chosen if share >= 1 or self.random.random() < share]

    def name(self, what: str) -> str:
        """A name that is not used yet."""
        self.made += 1
        return f"edit_{what}_{self.made}_{self.random.randrange(10**9)}"

    def constant(self, array: Any, dtype: Any = np.float32) -> ir.Value:
        """A new weight."""
        name = self.name("constant")
        tensor = ir.tensor(np.asarray(array, dtype), name=name)
        value = ir.Value(
            name=name, shape=ir.Shape(list(tensor.shape)), type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        self.graph.register_initializer(value)
        return value

    def like(self, x: ir.Value, number: float) -> ir.Value:
        """A number of the type of `x` (float32 where that is not known: the samples that are edited hold it)."""
        return self.constant(number, np.float32 if x.dtype is None else x.dtype.numpy())

    def call(
        self, at: ir.Node, op: str, *inputs: ir.Value | None, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> Any:
        """A new node in front of `at`; its output or outputs."""
        name = self.name(op)
        made = [ir.Value(name=f"{name}_{k}") for k in range(outputs)]
        node = ir.node(op, list(inputs), attributes, domain=domain, outputs=made, name=name)
        self.graph.insert_before(at, node)
        return made[0] if outputs == 1 else made

    def replace(self, node: ir.Node, *results: ir.Value) -> None:
        """Let what reads a node's results read others, which take their names; the node is removed."""
        for old, new in zip(node.outputs, results, strict=False):
            name, new.shape, new.type = old.name, old.shape, old.type
            for i, out in enumerate(self.graph.outputs):
                if out is old:
                    self.graph.outputs[i] = new
            ir.convenience.replace_all_uses_with(old, new)
            old.name, new.name = self.name("gone"), name
        self.graph.remove(node, safe=True)


def array(v: ir.Value | None) -> NDArray[Any] | None:
    """The elements of a constant, else None."""
    if v is None or v.is_graph_input() or v.const_value is None:
        producer = v.producer() if v is not None else None
        if producer is None or producer.op_type != "Constant" or "value" not in producer.attributes:
            return None
        return producer.attributes["value"].as_tensor().numpy()
    return v.const_value.numpy()


def number(v: ir.Value | None) -> float | None:
    """The one element of a constant, else None."""
    found = array(v)
    return float(found.reshape(-1)[0]) if found is not None and found.size == 1 else None


def dims(v: ir.Value | None) -> list[int] | None:
    """Static dimensions, else None."""
    if v is None or v.shape is None or not all(isinstance(d, int) for d in v.shape):
        return None
    return [int(d) for d in v.shape]  # type: ignore[arg-type]


def is_float(v: ir.Value | None) -> bool:
    """Whether a value is known to hold floats."""
    return v is not None and v.dtype is not None and v.dtype.is_floating_point()


Edit = Callable[[Editor], int]
EDITS: dict[str, Edit] = {}


def edit(function: Edit) -> Edit:
    """Register an edit: it changes the model and says at how many places."""
    EDITS[function.__name__] = function
    return function


def ints(editor: Editor, numbers: Sequence[int]) -> ir.Value:
    """A vector of integers."""
    return editor.constant(list(numbers), np.int64)
