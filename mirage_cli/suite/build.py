"""Rows of the suite on their way to a GPU: each case's model goes through `optimize` like any other.

A row's folder holds the model, `out` as `optimize` writes it, and the constants that operators read. A folder that the same
sources made of the same case is not made again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from mirage_cli import __version__
from mirage_cli.backends.spec import OperatorSpec, operator_spec
from mirage_cli.errors import MirageError, ModelError
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.optimization.story import optimize
from mirage_cli.options.options import Options
from mirage_cli.patching import patch as patches
from mirage_cli.processes import isolation
from mirage_cli.report import mugraph_file, reader
from mirage_cli.report.stages import Progress
from mirage_cli.suite import suites
from mirage_cli.suite.cases import DTYPES, Case

_KEY, _OUT, _INPUT, _STORED = "row.json", "out", "case.onnx", "stored.onnx"
PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Row:
    """A case that `optimize` has been at: its folder, or why there is nothing to time."""

    case: str
    dtype: str
    folder: Path
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Operator:
    """A place of a fragment in a patched model: its operator and the names of what it reads and writes."""

    spec: OperatorSpec
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """The content of a row's output folder: the library, its operators in the order in which they run, the report's
    words; and by name the constants that operators read."""

    library: Path
    operators: tuple[Operator, ...]
    fragments: tuple[Mapping[str, Any], ...]
    stored: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def predicted_us(self) -> float:
        """The cost model's prediction for all of them, in microseconds."""
        return sum(float(f["predicted_us"]) for f in self.fragments)

    @property
    def tuning(self) -> dict[str, Any] | None:
        """What measuring candidates found, over all fragments: microseconds of the model's own choices and of those taken,
        how many were tried and refused. None where nothing was measured."""
        found = [t for f in self.fragments if (t := f.get("tuning")) and t.get("chosen_us") and t.get("own_us")]
        if not found or len(found) < len(self.fragments):
            return None
        return {name: sum(t[name] for t in found) for name in ("own_us", "chosen_us", "tried", "refused")}

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """The schedule of every kernel."""
        return [s for f in self.fragments for s in f["schedule"]["cuda"]]


def build(
    suite: str,
    cases: Sequence[Case],
    dtype: str,
    folder: Path,
    options: Options,
    progress: Progress,
    until: float = math.inf,
) -> list[Row]:
    """Optimize the model of every case, several at a time, or one after the other where the options tune on a GPU; a row
    that fails says why. `dtype` is the element type of those that have none of their own. What has not ended at `until`,
    by the monotonic clock, is left out."""
    progress.stage("optimize", len(cases))
    tunes = options.gpu is not None
    each = replace(options, target=("cuda",), force=True, jobs=options.jobs if tunes else 1)
    kinds = [c.dtype or dtype for c in cases]
    jobs = [(suite, c.name, d, folder / f"{c.name}-{d}", each) for c, d in zip(cases, kinds, strict=True)]
    rows: list[Row | None] = [None] * len(cases)
    with closing(isolation.each(build_row, jobs, 1 if tunes else options.jobs)) as outcomes:
        for k, outcome in outcomes:
            lost = outcome.reason if isinstance(outcome, isolation.Lost) else outcome
            rows[k] = Row(cases[k].name, kinds[k], jobs[k][3], lost)
            progress.step(f"{cases[k].name}: {lost or 'optimized'}")
            if time.monotonic() > until:
                break
    return [r for r in rows if r is not None]


def build_row(suite: str, name: str, dtype: str, folder: Path, options: Options) -> str:
    """Make one row's folder unless it is there; why a fragment was left, or nothing."""
    case = suites.case_of(suite, name)
    key = {"case": case.shapes, "dtype": dtype, "options": options.to_json(), "sources": sources_digest()}
    if not _is_made(folder, key):
        make(case, dtype, folder, options)
        (folder / _KEY).write_text(json.dumps(key), encoding="utf-8")
    return reasons_left(folder)


def make(case: Case, dtype: str, folder: Path, options: Options) -> None:
    """Optimize a case's model into a new folder. Its weights, random and large, are not kept (constants that operators
    read are), and its CPU kernels, which nobody times, are not judged."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = folder / _INPUT
    model = case.model(DTYPES[dtype], options.seed)
    onnx.save(model, path, save_as_external_data=True, location=f"{_INPUT}.data", size_threshold=1024)
    names = _constants(case, model)
    del model
    try:
        optimize(str(path), folder / _OUT, options, check=False)
        _keep(names, folder)
    finally:
        for data in folder.rglob("*.data"):
            data.unlink()


def _constants(case: Case, model: onnx.ModelProto) -> set[str]:
    """The tensors of a case's model that no tensor of the case takes part in."""
    names = {t.name for t in model.graph.initializer} - {t.name for t in case.tensors}
    for node in model.graph.node:
        if names.issuperset(node.input):
            names.update(node.output)
    return names


def _keep(names: Collection[str], folder: Path) -> None:
    """Write which of these the optimized model stores for its operators into a file of their own."""
    out = folder / _OUT
    graph = onnx.load(out / MODEL, load_external_data=False).graph
    read = {i for n in graph.node for i in n.input}
    kept = [t for t in graph.initializer if t.name in read and t.name in names]
    tensors = [numpy_helper.from_array(numpy_helper.to_array(t, str(out)), t.name) for t in kept]
    onnx.save(helper.make_model(helper.make_graph([], "stored", [], [], tensors)), folder / _STORED)


def reasons_left(folder: Path) -> str:
    """Why fragments of a row's folder were left, or nothing."""
    report = reader.read(folder / _OUT)
    return "; ".join(f"{f['name']}: {f['reason']}" for f in report["fragments"] if f["status"] != "replaced")


def _is_made(folder: Path, key: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads((folder / _KEY).read_text(encoding="utf-8")) == key)
    except (OSError, ValueError):
        return False


@functools.lru_cache(maxsize=1)
def sources_digest() -> str:
    """A hash of everything in this package that decides what `optimize` makes."""
    digest = hashlib.sha256(__version__.encode())
    files = (Path(folder) / name for folder, _, names in os.walk(PACKAGE, followlinks=True) for name in names)
    for path in sorted(p for p in files if p.suffix != ".pyc"):
        digest.update(path.relative_to(PACKAGE).as_posix().encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def read(row: Row) -> Built:
    """The content of the folder that was built for a row. Raises MirageError where nothing was, ModelError where
    original nodes are left."""
    if row.problem:
        raise MirageError(row.problem)
    out = row.folder / _OUT
    report = reader.read(out)
    fragments = {f["id"]: f for f in report["fragments"]}
    model = onnx.load(out / MODEL, load_external_data=False)
    left = [n.op_type for n in model.graph.node if n.domain != patches.DOMAIN]
    if left:
        raise ModelError(f"operators are left to the runtime: {', '.join(left)}")
    operators = []
    for node in model.graph.node:
        identifier = node.op_type.rpartition("_")[2]
        data = mugraph_file.read(out / fragments[identifier]["mugraph"]["file"])
        spec = operator_spec(identifier, data["operator"], ("cuda",))
        operators.append(Operator(spec, tuple(node.input), tuple(node.output)))
    used = [fragments[o.spec.id] for o in operators]
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(row.folder / _STORED).graph.initializer}
    return Built(out / LIBRARY, tuple(operators), tuple(used), stored)
