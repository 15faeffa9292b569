"""The parts of a run that touch the model: fragments as regions of nodes, operator descriptions, checks, the output."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import platformdirs
from numpy.typing import NDArray

from mirage_cli import __version__, coverage, devices, patch, runtime
from mirage_cli import check as float_check
from mirage_cli.backends import cpu, cuda
from mirage_cli.backends import toolchain as tools_module
from mirage_cli.backends.library import BuildResult
from mirage_cli.backends.spec import KernelSource, OperatorSpec, TensorSpec
from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.errors import InvalidGraph, MirageError, ToolMissing, UsageError
from mirage_cli.frontends.imported import Imported
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import from_numpy
from mirage_cli.lax.fragment import LaxFragment, Partition
from mirage_cli.lax.program import Program
from mirage_cli.options import Options
from mirage_cli.output import write_text
from mirage_cli.plan import FragmentPlan, TargetPlan
from mirage_cli.report import FragmentReport, Report

MODEL, MUGRAPHS = "model.onnx", "mugraphs"
CUDA_ARCHS = cuda.ARCHS


# --- tensors and regions ------------------------------------------------------------------------------------------------
def tensor_names(imported: Imported) -> dict[int, str]:
    """For each graph value the first tensor of the model that holds it."""
    names: dict[int, str] = {}
    for name, value in imported.values.items():
        names.setdefault(value, name)
    return names


def region_of(imported: Imported, fragment: LaxFragment) -> patch.Region:
    """The original nodes of a fragment."""
    return patch.region(
        imported.model, [s.name for s in fragment.program.sources], [o.name for o in fragment.program.outputs]
    )


def spec_of(value: ir.Value, imported: Imported) -> TensorSpec:
    """The description of a tensor of the model. Raises InvalidGraph when its type or dimensions are unknown."""
    name = value.name or ""
    if name in imported.values:
        tensor = imported.graph.tensors[imported.values[name]]
        return TensorSpec(name, tensor.dtype, tensor.dims)
    if value.dtype is None or value.shape is None or not all(isinstance(d, int) for d in value.shape):
        raise InvalidGraph(f"tensor {name!r} has no known type and dimensions")
    dtype = from_numpy(np.dtype(value.dtype.numpy()))
    if dtype is None:
        raise InvalidGraph(f"tensor {name!r} has type {value.dtype}")
    return TensorSpec(name, dtype, tuple(int(d) for d in value.shape))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One place of a fragment in the model."""

    fragment: LaxFragment
    region: patch.Region


@dataclass(slots=True)
class Work:
    """A distinct fragment on its way: its occurrences, plan, and whether it is replaced or why not."""

    id: str
    name: str
    program: Program
    occurrences: list[Occurrence]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    plan: FragmentPlan | None = None
    replace: bool = False
    reason: str = ""
    failed: bool = False
    float_check: float_check.FloatCheck | None = None
    kinds: tuple[str, ...] = field(default_factory=tuple)

    @property
    def operators(self) -> int:
        """How many nodes of the model one occurrence replaces."""
        return len(self.occurrences[0].region.nodes)

    @property
    def op_type(self) -> str:
        """The operator's name in the patched model."""
        return f"{self.name}_{self.id}"

    # --- decisions ------------------------------------------------------------------------------------------------------
    def decide(self, force: bool) -> None:
        """Replace a fragment that is planned for every target and predicted to be faster on each (or with `force`)."""
        assert self.plan is not None
        if self.plan.reasons or not self.plan.plans:
            kind, reason = next(iter(self.plan.reasons.items()), ("", "no target"))
            self.fail(f"{kind}: {reason}" if kind else reason)
            return
        slow = [k for k, p in self.plan.plans.items() if not p.faster]
        if slow and not force:
            p = self.plan.plans[slow[0]]
            self.reason = (
                f"not predicted to be faster on {p.target}: {p.predicted_us:.1f} us against {p.original_us:.1f} us "
                "(--force replaces it all the same)"
            )
            return
        self.replace = True

    def fail(self, reason: str) -> None:
        """Leave the fragment as it was."""
        self.replace, self.failed, self.reason = False, True, reason

    def headline(self) -> str:
        """What to say of it in one line."""
        if not self.replace:
            return self.reason
        assert self.plan is not None
        return ", ".join(f"{p.target} {p.predicted_us:.1f} us" for p in self.plan.plans.values())

    # --- building and checking --------------------------------------------------------------------------------------------
    def source(self) -> KernelSource:
        """The rendered sources."""
        assert self.plan is not None
        text = {kind: p.text for kind, p in self.plan.plans.items()}
        return KernelSource(self.id, text.get("cpu"), text.get("cuda"))

    def spec(self) -> OperatorSpec:
        """The operator's description for the library."""
        assert self.plan is not None
        symbols = self.program.symbols
        return OperatorSpec(self.id, self.op_type, self.inputs, self.outputs, symbols, "cuda" in self.plan.plans)

    def check(self, imported: Imported, library: Path, seed: int) -> None:
        """Run the CPU kernel against float64; fail the fragment when it is less accurate than the rule allows."""
        first = self.occurrences[0]
        model = patch.model_of(imported.model, first.region, self.op_type)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kernel = runtime.Kernel(library, self.spec())
            if not kernel.has("cpu"):
                return
            session = runtime.session(ir.to_proto(model).SerializeToString(), provider="cpu", optimize=False)
            names = [v.name or "" for v in first.region.inputs]
            extra = self.extra_arrays(imported, names[len(self.program.sources) :])

            def original(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
                found = runtime.run(session, dict(zip(names, [*arrays, *extra], strict=True)))
                return [found[o.name] for o in self.program.outputs]

            self.float_check = float_check.check(
                self.program,
                lambda arrays: kernel(*arrays, *extra),
                original,
                self.constants(imported),
                seed,
            )
        except MirageError as e:
            self.fail(f"the check could not run: {e}")
            return
        if not self.float_check.passed:
            self.fail(f"less accurate than the original ({self.float_check.case} inputs): {self.float_check.worst}")

    def constants(self, imported: Imported) -> dict[int, NDArray[Any]]:
        """The model's own weights among the sources of the first occurrence."""
        program = self.occurrences[0].fragment.program
        return {k: imported.constant(s.name) for k, s in enumerate(program.sources) if s.constant}

    def extra_arrays(self, imported: Imported, names: Sequence[str]) -> list[NDArray[Any]]:
        """Values for tensors that only the original nodes read."""
        symbols = float_check.symbol_values(self.program)
        arrays = []
        for name, t in zip(names, self.inputs[len(self.program.sources) :], strict=True):
            if name in imported.model.graph.initializers:
                arrays.append(imported.constant(name))
            else:
                shape = [ex.value(d, symbols) for d in t.dims]
                arrays.append(np.zeros(shape, dtype=float_check.numpy_type(t.dtype)))
        return arrays


def group(fragments: Sequence[LaxFragment], imported: Imported) -> list[Work]:
    """Distinct fragments in order of their first occurrence."""
    found: dict[str, Work] = {}
    for f in fragments:
        region = region_of(imported, f)
        if f.key in found:
            found[f.key].occurrences.append(Occurrence(f, region))
            continue
        inputs = tuple(spec_of(v, imported) for v in region.inputs)
        outputs = tuple(spec_of(v, imported) for v in region.outputs)
        found[f.key] = Work(f.key, f.name, f.program, [Occurrence(f, region)], inputs, outputs)
    return list(found.values())


# --- tools ----------------------------------------------------------------------------------------------------------------
def toolchain(options: Options) -> Toolchain:
    """The compilers that a run needs. Raises ToolMissing."""
    unknown = [t for t in options.target if t not in ("cpu", "cuda")]
    if unknown:
        raise UsageError(f"--target {unknown[0]}: expected cpu or cuda")
    wants_cuda = not options.target or "cuda" in options.target
    found = tools_module.find(cuda=wants_cuda)
    if "cuda" in options.target and found.nvcc is None:
        raise ToolMissing("no nvcc was found", "pip install 'mirage-cli[nvcc]', or set CUDA_HOME; or use --target cpu")
    return found


def targets(options: Options, tools: Toolchain) -> dict[str, tuple[str, ...]]:
    """The targets of a run by kind. Raises UsageError for an unknown architecture."""
    kinds = options.target or (("cpu", "cuda") if tools.nvcc is not None else ("cpu",))
    found: dict[str, tuple[str, ...]] = {}
    for kind in ("cpu", "cuda"):
        if kind in kinds:
            found[kind] = ("cpu",) if kind == "cpu" else _archs(options)
    return found


def _archs(options: Options) -> tuple[str, ...]:
    names = [devices.architecture(options.gpu or 0) if a == "native" else a for a in options.arch]
    unknown = [a for a in names if a not in CUDA_ARCHS]
    if unknown:
        raise UsageError(f"--arch {unknown[0]}: expected {', '.join(CUDA_ARCHS)} or native")
    return tuple(sorted(set(names))) or CUDA_ARCHS


def archs(options: Options) -> tuple[str, ...]:
    """The CUDA architectures to build for."""
    return _archs(options)


def compilations(work: Work, tools: Toolchain) -> int:
    """How many compilations a fragment takes."""
    assert work.plan is not None
    return len(cpu.isas()) * ("cpu" in work.plan.plans) + ("cuda" in work.plan.plans and tools.nvcc is not None)


def cache_folder(options: Options) -> Path | None:
    """Where results of earlier runs live; None with --no-cache."""
    if options.cache == "":
        return None
    return Path(options.cache) if options.cache else Path(platformdirs.user_cache_dir("mirage"))


def object_cache(options: Options) -> Path | None:
    """The folder of compiled objects."""
    folder = cache_folder(options)
    return None if folder is None else folder / "objects"


def clear(draft: Path) -> None:
    """Empty a draft before it is built again."""
    for item in draft.iterdir():
        shutil.rmtree(item) if item.is_dir() else item.unlink()


# --- the output -----------------------------------------------------------------------------------------------------------
def write(
    model: str,
    imported: Imported,
    parts: Partition,
    work: Sequence[Work],
    options: Options,
    seconds: dict[str, float],
    built: BuildResult | None,
    draft: Path,
) -> Report:
    """Patch the model and write everything but the reports into the draft."""
    chosen = [w for w in work if w.replace]
    summary = report(model, imported, parts, work, options, seconds, built)
    if chosen:
        folder = draft / MUGRAPHS
        folder.mkdir()
        for w in chosen:
            assert w.plan is not None
            text = json.dumps(w.plan.to_json() | {"operator": operator_json(w)}, indent=1, ensure_ascii=False)
            write_text(folder / f"{w.id}.json", text + "\n")
    replacements = [
        patch.Replacement(
            w.op_type,
            tuple(s.name for s in o.fragment.program.sources),
            tuple(x.name for x in o.fragment.program.outputs),
        )
        for w in chosen
        for o in w.occurrences
    ]
    if replacements:
        patch.patch(imported.model, replacements, metadata(chosen))
    patch.save(imported.model, draft / MODEL, bool(imported.external))
    return summary


def operator_json(w: Work) -> dict[str, Any]:
    """The operator's description, as verification reads it back."""

    def tensor(t: TensorSpec) -> dict[str, Any]:
        return {"name": t.name, "dtype": t.dtype.name, "dims": [ex.to_json(d) for d in t.dims]}

    spec = w.spec()
    return {
        "op_type": spec.op_type,
        "inputs": [tensor(t) for t in spec.inputs],
        "outputs": [tensor(t) for t in spec.outputs],
        "symbols": list(spec.symbols),
    }


def metadata(work: Sequence[Work]) -> dict[str, str]:
    """What the patched model says of itself."""
    found = {"mirage.version": __version__}
    for w in work:
        assert w.plan is not None
        for kind, p in sorted(w.plan.plans.items()):
            found[f"mirage.{w.op_type}.{kind}"] = json.dumps(
                {
                    "schedules": [s.to_json() for s in p.schedules],
                    "log2_error_bound": round(p.verdict.log2_bound, 2),
                },
                sort_keys=True,
            )
    return found


def write_report(summary: Report, draft: Path) -> None:
    """report.json."""
    write_text(draft / "report.json", summary.text())


def report(
    model: str,
    imported: Imported,
    parts: Partition,
    work: Sequence[Work],
    options: Options,
    seconds: dict[str, float],
    built: BuildResult | None,
) -> Report:
    """The report of what was found and chosen."""
    del built
    chosen = [w for w in work if w.replace]
    covered = coverage.measure(imported, [o for w in chosen for o in w.occurrences])
    return Report(
        {
            "path": model,
            "sha256": imported.sha256,
            "external_data": imported.external,
            "format": imported.format,
            "opset": imported.opset,
            "nodes": imported.node_count,
        },
        options.to_json(),
        dict(seconds),
        [fragment_report(w) for w in work],
        coverage.unchanged(imported, parts, work),
        covered,
        list(imported.notes),
    )


def fragment_report(w: Work) -> FragmentReport:
    """A distinct fragment's part of the report."""
    status = "replaced" if w.replace else "failed" if w.failed else "kept"
    p = w.program
    program = {
        "inputs": [f"{s.dtype}[{', '.join(map(str, s.dims))}]" for s in p.sources],
        "outputs": [f"{o.dtype}[{', '.join(map(str, o.dims))}]" for o in p.outputs],
        "ops": len([n for n in p.nodes if n.op != "const"]),
        "axes": {a.name: ex.to_json(a.extent) for a in p.axes},
        "text": str(p).splitlines(),
    }
    nodes = [o.region.node_names for o in w.occurrences]
    r = FragmentReport(w.id, w.name, status, len(w.occurrences), nodes, program, reason=w.reason)
    if w.plan is not None:
        r.search = w.plan.statistics.to_json()
        main = _main_plan(w.plan)
        if main is not None:
            _fill(r, w, main)
    return r


def _main_plan(plan: FragmentPlan) -> TargetPlan | None:
    return plan.plans.get("cuda") or plan.plans.get("cpu")


def _fill(r: FragmentReport, w: Work, main: TargetPlan) -> None:
    assert w.plan is not None
    block = main.graph.kernels[-1].block
    r.mugraph = {
        "file": f"{MUGRAPHS}/{w.id}.json",
        "kernels": len(main.graph.kernels),
        "grid": list(block.grid),
        "loop": block.loop,
        "text": main.graph.text().splitlines(),
    }
    r.verification = main.verdict.to_json() | {
        "targets": {k: p.verdict.to_json() for k, p in sorted(w.plan.plans.items())}
    }
    if w.float_check is not None:
        r.verification["float"] = w.float_check.to_json()
    r.schedule = {k: [s.to_json() for s in p.schedules] for k, p in sorted(w.plan.plans.items())}
    r.predicted_us, r.original_us, r.floor_us = main.predicted_us, main.original_us, main.floor_us
