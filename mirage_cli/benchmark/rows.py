"""Rows that `mirage bench` measures, in a process of its own: the fragments of an output folder, and its whole model.

The original may be anybody's model, at which onnxruntime may end its process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx
from numpy.typing import NDArray

from mirage_cli.backends.spec import operator_spec
from mirage_cli.benchmark import gpu_fragment, opencl_fragment
from mirage_cli.benchmark.options import BenchOptions, replaced_fragments
from mirage_cli.benchmark.report import FragmentRow
from mirage_cli.errors import ToolMissing, UsageError
from mirage_cli.files.output import LIBRARY, MODEL, digest
from mirage_cli.frontends.onnx import protobuf
from mirage_cli.frontends.torchscript import modules
from mirage_cli.lax.ir.program import Program
from mirage_cli.machine import devices, opencl, packages
from mirage_cli.measurement.contestant import Contestant, OrtContestant, Place, ScriptContestant
from mirage_cli.measurement.gpu import GpuTimer
from mirage_cli.measurement.timing import Effort
from mirage_cli.optimization import fragment_models
from mirage_cli.optimization.fragment_times import COLD, MIRAGE, ORIGINAL, Comparison, compare, measure_fragment
from mirage_cli.options import dims
from mirage_cli.planning import ranges
from mirage_cli.report import mugraph_file, reader
from mirage_cli.report.stored_plan import StoredPlan, plan_from_json
from mirage_cli.runtime import example, given, sessions
from mirage_cli.runtime.bfloat16 import holds_bfloat16
from mirage_cli.search.schedules.cost import floor_us
from mirage_cli.search.schedules.target import changed_target

Arrays = dict[str, NDArray[Any]]
MAX_SETS = 8  #: sets of inputs of the whole model
NO_TORCH = "not compared: PyTorch is a peer on a GPU only"
IN_BRANCHES = "it stands in branches of an If alone, and is measured with the whole model"
WIDENED = (
    "onnxruntime has no bfloat16 kernels on the CPU: the original's operators compute in float32 between conversions"
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that is known before anything is measured: the shapes of the whole model's inputs, how many sets of
    them there are, the file of the original side and what to say of it, the peers that are absent and why."""

    inputs: dict[str, list[int]]
    sets: int
    note: str
    absent: dict[str, str]


class Rows:
    """The rows of a folder, which are measured one by one. Lives in a process of its own."""

    def __init__(self, folder: Path, options: BenchOptions, place: Place) -> None:
        """Raises ModelError for parts that do not belong together, UsageError for sizes that do not fit."""
        self.folder, self.options, self.place = folder, options, place
        self.effort = Effort(options.seconds, options.runs)
        report = reader.read(folder)
        self.model = read_model(folder / MODEL)
        known: dict[str, int] = report.get("sizes", {})
        self.sizes = known | example.sizes_of(self.model, options.dim, dims.parse_shapes(options.shape))
        self.sets = input_sets(self.model, options, devices.cache_bytes(place.provider), known)
        replaced = replaced_fragments(report, options.only)
        same = options.inputs is None and known == self.sizes
        changes = report.get("rates", {}).get("changes", {}) if place.target == "cpu" else {}
        self.fragments = fragment_rows(folder, self.model, replaced, self.sets[0], place, same, changes)
        self.original, self.note = original_model(folder, report, place)
        self.gpu, self.absent = opened(place, options)
        if place.opencl:  # operators of this process's sessions take it
            opencl.device(place.opencl)
            os.environ[opencl.DEVICE] = place.opencl

    def prepared(self) -> Prepared:
        """The same for this folder."""
        inputs = {name: list(a.shape) for name, a in self.sets[0].items()}
        return Prepared(inputs, len(self.sets), self.note, self.absent)

    def fragment(self, number: int) -> FragmentRow:
        """Measure a replaced fragment, if it stands in the main graph."""
        fragment, options, library = self.fragments[number], self.options, self.folder / LIBRARY
        if isinstance(fragment, Mapping):
            told = fragment["id"], fragment["name"], fragment["occurrences"]
            return FragmentRow(*told, (), Comparison((), notes=(IN_BRANCHES,)))
        comparison = measure_fragment(fragment.models, library, self.place, self.effort, options.seed)
        if self.gpu is not None:
            more = gpu_fragment.entries(
                self.gpu, fragment.models, fragment.program, library, options.peers, options.seconds, options.seed
            )
            comparison = replace(comparison, entries=(*comparison.entries, *more))
        if self.place.opencl:
            own = opencl_fragment.entry(self.place.opencl, fragment.models, library, options.seconds, options.seed)
            comparison = replace(comparison, entries=(*comparison.entries, own))
        return fragment.row(comparison)

    def whole(self) -> Comparison:
        """Measure the original model against the patched one with its library."""
        library = self.folder / LIBRARY if self.fragments else None
        graph = self.model.graph
        tensors = [v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)]
        tensors += [t.data_type for t in graph.initializer]
        makers: dict[str, Callable[[], Contestant]] = {
            ORIGINAL: self._original,
            MIRAGE: lambda: OrtContestant(self.folder / MODEL, library, self.sets, self.place),
        }
        comparison = compare(
            makers, self.effort, unit=sessions.coarsest_unit(tensors, sessions.original_nodes(self.model))
        )
        widened = self.place.provider == "cpu" and holds_bfloat16(self.model)
        return replace(comparison, notes=(*comparison.notes, WIDENED)) if widened else comparison

    def _original(self) -> Contestant:
        """The original side: a TorchScript module in PyTorch, any other model in onnxruntime."""
        if modules.is_script(self.original):
            names = [o.name for o in self.model.graph.output]
            return ScriptContestant(self.original, self.sets, names, self.place)
        return OrtContestant(self.original, None, self.sets, self.place)


class Alone:
    """A model that is timed alone, in onnxruntime. Lives in a process of its own."""

    def __init__(self, path: Path, options: BenchOptions, place: Place) -> None:
        """Raises ModelError for a file that is no model, UsageError for sizes that do not fit."""
        self.path, self.place, self.effort = path, place, Effort(options.seconds, options.runs)
        self.sets = input_sets(read_model(path), options, devices.cache_bytes(place.provider))

    def prepared(self) -> Prepared:
        """The same for this model."""
        inputs = {name: list(a.shape) for name, a in self.sets[0].items()}
        return Prepared(inputs, len(self.sets), str(self.path), {})

    def whole(self) -> Comparison:
        """Measure the model."""
        return compare({ORIGINAL: lambda: OrtContestant(self.path, None, self.sets, self.place)}, self.effort)


def opened(place: Place, options: BenchOptions) -> tuple[GpuTimer | None, dict[str, str]]:
    """The timer of kernels and torch on a GPU, or the reason why torch is absent."""
    if place.provider != "cuda":
        return None, {"torch": NO_TORCH}
    try:
        return gpu_fragment.opened(place.device), {}
    except ToolMissing as e:
        return None, {"torch": f"not compared: {e} ({e.hint})"}


def read_model(path: Path) -> onnx.ModelProto:
    """The patched model, its external data not loaded. Raises ModelError."""
    return protobuf.parse(protobuf.read_bytes(str(path)), str(path))


def original_model(folder: Path, report: Mapping[str, Any], place: Place) -> tuple[Path, str]:
    """The file that is the original side, and what to say of it: the model that was optimized, when it is still there
    and the same (a TorchScript module: on the CPU, with PyTorch), else the patched one without its library, whose functions
    hold the original nodes."""
    model = report["model"]
    path, script = Path(model["path"]), model["format"] != "onnx"
    try:
        sha256 = digest(path)
        external = {n: digest(path.parent / n) for n in model["external_data"]}
        if sha256 == model["sha256"] and external == model["external_data"]:
            problem = _not_in_torch(place) if script else ""
            if not problem:
                return path, f"{path} in PyTorch" if script else str(path)
        else:
            problem = "has changed"
    except OSError:
        problem = "is not there"
    return folder / MODEL, f"{folder / MODEL} without its library ({model['path']} {problem})"


def _not_in_torch(place: Place) -> str:
    """Why a TorchScript module is not timed in PyTorch; nothing where it can be."""
    if place.provider != "cpu":
        return "is timed in PyTorch on the CPU only"
    return f"is not timed: {problem}" if (problem := packages.problem("torch")) else ""


def input_sets(
    model: onnx.ModelProto, options: BenchOptions, cache: int, known: Mapping[str, int] = MappingProxyType({})
) -> list[Arrays]:
    """Sets of inputs for the whole model, with different values: two, or more as long as they do not exceed four times
    the cache; those of --inputs in their place. Symbols of which nothing is asked have the sizes that are `known`, else usual
    ones. Raises UsageError when options do not fit the inputs."""
    if options.inputs is not None:
        chosen = given.read(options.inputs, model)
        return [{name: a.copy() for name, a in chosen.items()} for _ in range(_count(chosen, cache))]
    asked = dims.parse_shapes(options.shape)
    numbers = {**known, **example.sizes_of(model, options.dim, asked)}
    first = example.example_inputs(model, numbers, options.seed)
    dims.check_inputs(asked, first)
    for name, shape in asked.items():
        if first[name].shape != shape:
            declared = "x".join(map(str, first[name].shape))
            raise UsageError(f"--shape {name}={'x'.join(map(str, shape))}: the model's input is {declared}")
    return [first, *(example.example_inputs(model, numbers, options.seed + k) for k in range(1, _count(first, cache)))]


def _count(inputs: Arrays, cache: int) -> int:
    """Number of sets of inputs."""
    size = max(1, sum(a.nbytes for a in inputs.values()))
    return max(2, min(MAX_SETS, COLD * cache // size))


@dataclass(frozen=True, slots=True)
class BenchFragment:
    """A fragment to measure: its models, its part of the report of `optimize`, its program, and its times as predicted for
    these sizes on this kind of device, None where nobody knows: ours, and the least possible."""

    models: fragment_models.FragmentModel
    data: Mapping[str, Any]
    predicted: tuple[float | None, float | None]
    program: Program

    def row(self, comparison: Comparison) -> FragmentRow:
        """Its row in the report."""
        data = self.data
        inputs = tuple(
            f"{t.dtype}[{', '.join(map(str, s))}]"
            for t, s in zip(self.models.spec.inputs, self.models.shapes, strict=True)
        )
        return FragmentRow(data["id"], data["name"], data["occurrences"], inputs, comparison, *self.predicted)


def fragment_rows(
    folder: Path,
    model: onnx.ModelProto,
    replaced: Sequence[Mapping[str, Any]],
    feeds: Arrays,
    place: Place,
    same: bool,
    changes: Mapping[str, Any],
) -> list[BenchFragment | Mapping[str, Any]]:
    """The replaced fragments of a folder with their models, without for those that stand in branches alone; `same` tells
    whether their sizes are those of the report, `changes` are those of the target that plans went by. Raises ModelError when
    its parts do not belong together."""
    specs, plans = [], {}
    for f in replaced:
        stored = mugraph_file.read(folder / f["mugraph"]["file"])
        plans[f["id"]] = plan_from_json(stored)
        specs.append(operator_spec(f["id"], stored["operator"]))
    models = fragment_models.from_folder(model, folder, specs, feeds)
    rows: list[BenchFragment | Mapping[str, Any]] = []
    for f in replaced:
        own, plan = models.get(f["id"]), plans[f["id"]]
        if own is None:
            rows.append(f)
            continue
        said = f["predictions"].get(place.target, {}) if same or not own.spec.symbols else {}
        told = said and place.threads != 1  # the report's times are those of all cores
        known = (said["predicted_us"], said["floor_us"]) if told else predicted(plan, place, own, changes)
        rows.append(BenchFragment(own, f, known, plan.program))
    return rows


def predicted(
    plan: StoredPlan, place: Place, fragment: fragment_models.FragmentModel, changes: Mapping[str, Any]
) -> tuple[float | None, float | None]:
    """What the cost model says of a plan at a place at the sizes of a fragment's models: its time, and the least possible;
    None without a plan for that kind of target, and where something is empty."""
    sizes, kind = fragment.spec.solve(fragment.shapes), place.target
    if kind not in plan.targets or not all(sizes.get(s) for s in plan.program.symbols):
        return None, None
    target = changed_target(changes, "report.json: ") if changes else plan.target(kind)
    target = target.alone if place.threads == 1 and not target.threaded else target
    return ranges.stored_time(plan, kind, target, sizes), floor_us(plan.program, target, sizes)
