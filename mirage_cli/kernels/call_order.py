"""The order in which the kernels of an output folder compute a whole graph: `steps.json` beside the library.

Only folders of graphs that consist of kernels alone (`mirage_cli/graphs`) have it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mirage_cli.backends.spec import OperatorSpec, operator_spec
from mirage_cli.errors import InvalidGraph, ModelError
from mirage_cli.files import codec
from mirage_cli.report import mugraph_file

FILE = "steps.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Step:
    """A call of the kernel of fragment `id`, on values by their names."""

    id: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """A graph as calls of kernels: what it takes and gives (`spec`), the calls in order, the values of its `results` in the
    order of the outputs, and the names of its `weights`, which the model of the folder holds."""

    spec: OperatorSpec
    calls: tuple[Step, ...]
    results: tuple[str, ...]
    weights: tuple[str, ...] = ()

    def text(self) -> str:
        """The file."""
        data = {
            "schema_version": SCHEMA_VERSION,
            "id": self.spec.id,
            **self.spec.to_json(),
            "cuda": self.spec.has_cuda,
            "calls": msgspec.to_builtins(self.calls),
            "results": self.results,
            "weights": self.weights,
        }
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


class _File(mugraph_file.Operator):
    id: str
    cuda: bool
    calls: tuple[Step, ...]
    results: tuple[str, ...]
    weights: tuple[str, ...]


def read(folder: Path) -> Steps:
    """The steps of an output folder. Raises ModelError where the file is missing or not well-formed."""
    path = folder / FILE
    try:
        return _from_data(codec.checked(codec.read(path), _File))
    except FileNotFoundError:
        raise ModelError(f"{folder}: expected the folder of a graph, found no {FILE}") from None
    except (OSError, ValueError, InvalidGraph) as error:
        raise ModelError(f"{path}: expected the steps of a graph, found what cannot be read: {error}") from None


def _from_data(data: _File) -> Steps:
    spec = operator_spec(data["id"], data, ("cuda",) if data["cuda"] else ())
    steps = Steps(spec, data["calls"], data["results"], data["weights"])
    known = {t.name for t in spec.inputs} | set(steps.weights)
    for call in steps.calls:
        missing = [name for name in call.inputs if name not in known]
        if missing:
            raise InvalidGraph(f"nothing computes {missing[0]!r} before {call.id} reads it")
        known.update(call.outputs)
    if missing := [name for name in steps.results if name not in known]:
        raise InvalidGraph(f"nothing computes the result {missing[0]!r}")
    return steps
