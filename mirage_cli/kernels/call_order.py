"""The order in which the kernels of an output folder compute a whole graph: `steps.json` beside the library.

Only folders of graphs that consist of kernels alone (`mirage_cli/graphs`) have it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_cli.backends.spec import OperatorSpec, TensorSpec, operator_spec
from mirage_cli.errors import InvalidGraph, ModelError
from mirage_cli.files import rawfile
from mirage_cli.lax import extents as ex

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
            "op_type": self.spec.op_type,
            "inputs": [_tensor(t) for t in self.spec.inputs],
            "outputs": [_tensor(t) for t in self.spec.outputs],
            "symbols": list(self.spec.symbols),
            "cuda": self.spec.has_cuda,
            "calls": [{"id": c.id, "inputs": list(c.inputs), "outputs": list(c.outputs)} for c in self.calls],
            "results": list(self.results),
            "weights": list(self.weights),
        }
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _tensor(t: TensorSpec) -> dict[str, Any]:
    return {"name": t.name, "dtype": t.dtype.name, "dims": [ex.to_json(d) for d in t.dims]}


def read(folder: Path) -> Steps:
    """The steps of an output folder. Raises ModelError where the file is missing or not well-formed."""
    path = folder / FILE
    try:
        return _from_json(json.loads(rawfile.content(path)))
    except FileNotFoundError:
        raise ModelError(f"{folder}: expected the folder of a graph, found no {FILE}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidGraph) as error:
        raise ModelError(f"{path}: it cannot be read: {type(error).__name__} {error}") from None


def _from_json(data: Mapping[str, Any]) -> Steps:
    calls = tuple(Step(c["id"], tuple(c["inputs"]), tuple(c["outputs"])) for c in data["calls"])
    spec = operator_spec(data["id"], data, bool(data["cuda"]))
    steps = Steps(spec, calls, tuple(data["results"]), tuple(data["weights"]))
    known = {t.name for t in spec.inputs} | set(steps.weights)
    for call in calls:
        missing = [name for name in call.inputs if name not in known]
        if missing:
            raise InvalidGraph(f"nothing computes {missing[0]!r} before {call.id} reads it")
        known.update(call.outputs)
    if missing := [name for name in steps.results if name not in known]:
        raise InvalidGraph(f"nothing computes the result {missing[0]!r}")
    return steps
