"""The result of a front end: the reader's copy of a model, the graph that was read from it, and the model as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mirage_cli.errors import UsageError
from mirage_cli.frontends.names import entered

if TYPE_CHECKING:
    import onnx_ir
    from numpy.typing import NDArray

    from mirage_cli.files.rawfile import DataFile
    from mirage_cli.frontends.onnx.original import Original
    from mirage_cli.lax.domains.domain import Array
    from mirage_cli.lax.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Options:
    """A user's choices for a model's dimensions: `shapes` fixes inputs, `dims` gives symbols a value, `types` names
    the types of inputs where a format does not tell them. Formats that are programs run in a process of their own,
    which has `seconds` and `max_memory` bytes (0: no limit). `data` is the folder of the external data of a model on standard
    input."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 3600.0
    max_memory: int = 0
    data: str | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """A TorchScript module behind an imported model, in the process that holds it.

    `marked` is the marked module; `names` are, for each mark, the tensors of the ONNX model that stand for the marked one,
    `seen` a tensor of its type and shape.
    """

    marked: Any
    names: Mapping[int, tuple[str, ...]]
    seen: Mapping[int, Any]


class ScriptPlace(Protocol):
    """Where the TorchScript module of an imported model is held: a process of its own."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of a function there, of the model as it is imported there, with its `Script`, and `args`. Raises
        MirageError."""


@dataclass(slots=True)
class Imported:
    """A model that has been read.

    `graph.outputs` are the values of the model's outputs, in order. `values` maps tensor names of `model` to graph
    values (small integer tensors that only describe shapes have none until something reads them as data); `shapes`
    holds the elements (extents) of integer tensors where all are known; `reasons` says of each node that is not read
    why. `external` maps each external data file, as the model names it, to its sha256. `node_count` counts the file's
    nodes, before functions are inlined and constants folded. `script` is where the TorchScript module is that the model was
    made from (in the process that runs it: the module itself), `files` hold the external data. `model` is the reader's copy,
    with functions inlined and constants folded; what is patched is the `original`. `stated` is the graph as the
    nodes state it, before `one_spelling`, with its own values by name: what proofs begin at. `least` and `most` are
    sizes that symbols are not below, and not above, in any run of the model; `same` are symbols of the original that are equal
    to others in every run, which stand for them here. `branches` tells of tensors of branches in which one they are, `around`
    of what these read from around them which tensors of the model that is.
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
    script: Script | ScriptPlace | None = None
    stated: Graph | None = None
    stated_values: Mapping[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)
    branches: Mapping[str, str] = field(default_factory=dict)
    around: Mapping[str, str] = field(default_factory=dict)
    files: tuple[DataFile, ...] = ()
    original: Original | None = None

    def limits(self, given: Mapping[str, tuple[int, int | None]]) -> dict[str, tuple[int, int | None]]:
        """The least and greatest values of symbols: those `given`, narrowed to what the model asks for."""
        limits = dict(given)
        for name, least in self.least.items():
            low, high = limits.get(name, (1, None))
            limits[name] = (max(low, least), high)
        for name, most in self.most.items():
            low, high = limits.get(name, (1, None))
            limits[name] = (low, most if high is None else min(high, most))
        return limits

    def entered(self, branch: str, names: Sequence[str]) -> list[str]:
        """The names of tensors where a branch reads them, which for those from around it are others."""
        return [own if (own := entered(branch, name)) in self.around else name for name in names]

    def outside(self, names: Sequence[str]) -> list[str]:
        """The reverse: what the model calls such tensors."""
        return [self.around.get(name, name) for name in names]

    def of_original(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Sizes of symbols with those of the original that are equal to them."""
        return with_equal(sizes, self.same)

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
        array: NDArray[Any] = value.const_value.numpy()
        return array if array.flags.c_contiguous else array.copy()  # a folded Transpose is a view of its operand


def with_equal(numbers: Mapping[str, int], same: Mapping[str, str]) -> dict[str, int]:
    """Numbers of symbols with those of symbols that are the `same` as others."""
    return {**numbers, **{name: numbers[other] for name, other in same.items() if other in numbers}}
