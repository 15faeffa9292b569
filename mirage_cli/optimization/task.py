"""A distinct fragment on its way through a run: its places in the model, its plan, its check, what became of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from mirage_cli.backends.spec import KernelSource, OperatorSpec, TensorSpec
from mirage_cli.checks.kernel_check import CheckJob, FloatCheck, Limits
from mirage_cli.checks.whole_inputs import with_wholes
from mirage_cli.codegen import cache_rows
from mirage_cli.codegen.cache_rows import CacheRows
from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.exporters.drawing.labels import microseconds
from mirage_cli.frontends.imported import Imported
from mirage_cli.frontends.onnx.parts import splicing
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import F16, from_numpy
from mirage_cli.lax.fragments.lax_fragment import LaxFragment
from mirage_cli.lax.ir import graph as g
from mirage_cli.lax.ir import parts
from mirage_cli.lax.ir.program import Program, Source
from mirage_cli.lax.ir.room import least_positions
from mirage_cli.patching import patch
from mirage_cli.patching.grown_caches import grown_tensors
from mirage_cli.patching.regions import Facts, Region, Regions
from mirage_cli.planning.plan import FragmentPlan, Slower, TargetPlan
from mirage_cli.processes.isolation import Lost
from mirage_cli.report import forms
from mirage_cli.runtime import fusions, sessions
from mirage_cli.search.proof.statement import Statement
from mirage_cli.search.schedules.original import FUSED
from mirage_cli.search.schedules.target import load_target


def tensor_names(imported: Imported) -> dict[int, str]:
    """For each graph value the first tensor of the model that holds it."""
    names: dict[int, str] = {}
    for name, value in imported.values.items():
        names.setdefault(value, name)
    return names


def regions_of(imported: Imported) -> Regions:
    """The model's regions, looked up once for all fragments."""
    dims = {name: imported.graph.dims(v) for name, v in imported.values.items()}
    grown = grown_tensors(imported.model, imported.graph, imported.values)
    results = {} if imported.original is None else imported.original.outputs
    return Regions(imported.model, Facts(imported.values, dims, imported.shapes, grown, results))


def region_of(regions: Regions, imported: Imported, fragment: LaxFragment) -> Region:
    """The original nodes of a fragment."""
    return regions.of(
        *map(imported.outside, (parts.input_names(fragment.program), parts.output_names(fragment.program)))
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


def against(row: forms.Measured) -> str:
    """What was measured, in words: `46.3 us against 39.6 us`. Rounds side by side decide, which medians may belie."""
    ours, original = row["mirage_us"], row["original_us"]
    text = " against ".join("no time" if us is None else microseconds(us) for us in (ours, original))
    belied = ours is not None and original is not None and ours < original
    return f"{text}, but not in most rounds side by side" if belied else text


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One place of a fragment in the model."""

    fragment: LaxFragment
    region: Region


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
    statement: Statement | None = None
    float_check: FloatCheck | None = None
    measured: list[forms.Measured] = field(default_factory=list)
    tuning: forms.Tuning = field(default_factory=forms.Tuning)  #: what was tried on a GPU, for the report

    @property
    def operators(self) -> int:
        """Number of operators of a run that one occurrence replaces; `FUSED` where they are parts of one."""
        return FUSED if self.inside else fusions.launched(self.occurrences[0].region.nodes)

    @property
    def unpacks(self) -> bool:
        """True if onnxruntime has a product of its own for what its nodes spell as DequantizeLinear and a product."""
        return any(fusions.unpacks(o.region.nodes) for o in self.occurrences)

    @property
    def multiplies_integers(self) -> bool:
        """True if onnxruntime computes a product of its nodes in integers of 8 bits on CPUs."""
        return any(fusions.multiplies_integers(o.region.nodes) for o in self.occurrences)

    @property
    def inside(self) -> str:
        """The operator of the file that its nodes are a part of, or nothing."""
        return fusions.inside(n for o in self.occurrences for n in o.region.nodes)

    @property
    def beside(self) -> dict[str, CacheRows]:
        """The operators that bring new rows into the caches that it reads, by their names."""
        makers = [m for o in self.occurrences for v in o.region.inputs if (m := v.producer()) is not None]
        found = {m.op_type: cache_rows.named(m.op_type) for m in makers if m.domain == patch.DOMAIN}
        return {name: rows for name, rows in found.items() if rows is not None}

    @property
    def growth(self) -> float:
        """The least growth of the values that the model has in its places."""
        return min(o.fragment.growth for o in self.occurrences)

    @property
    def op_type(self) -> str:
        """The operator's name in the patched model."""
        return f"{self.name}_{self.id}"

    # --- decisions ------------------------------------------------------------------------------------------------------
    def decide(self, force: bool, measured: str = "", targets: Sequence[str] = ()) -> None:
        """Replace a fragment that is planned for every target and predicted to be faster on each of those asked for (by
        default on all), or with `force`, unless onnxruntime joins its nodes to a product of packed weights.

        What is faster on the architecture `measured` is found by measuring, later. A part of an operator is replaced for the
        CPU where the whole model is measured too: no prediction is made of that operator there.
        """
        assert self.plan is not None
        if self.plan.reasons or not self.plan.plans:
            kind, reason = next(iter(self.plan.reasons.items()), ("", "no target"))
            self.fail(f"{kind}: {reason}" if kind else reason)
            return
        asked = [p for k, p in self.plan.plans.items() if k in targets or not targets]
        if any(p.target == "cpu" for p in asked) and self.multiplies_integers:
            self.reason = "onnxruntime computes its product in integers of 8 bits on CPUs"
            return
        slow = [p for own in asked for p in self.losses(own) if p.target != measured]
        if slow and (self.unpacks or not force):
            p = slow[0]
            more = "onnxruntime makes one product of it" if self.unpacks else "--force replaces it all the same"
            times = f"{p.predicted_us:.1f} us against {p.original_us:.1f} us"
            self.reason = f"not predicted to be faster on {p.target}{p.where}: {times} ({more})"
            return
        others = self.plan.plans.keys() - {"cpu"}
        if (operator := self.inside) and not (others <= {"cuda"} and (others or force or measured == "cpu")):
            foreign = f"it has no kernels of such parts on {', '.join(sorted(others - {'cuda'}))}"
            rest = foreign if others else "--measure tells if it is faster (--force replaces it all the same)"
            self.reason = f"it is a part of {operator}: {rest}"
            return
        marked = any(splicing.ON_CPUS in n.meta for o in self.occurrences for n in o.region.nodes)
        if marked and others:
            self.reason = f"the weights of {self.inside} may lie in another layout on {', '.join(sorted(others))}"
            return
        self.replace = True

    def losses(self, plan: TargetPlan) -> tuple[Slower, ...]:
        """Where no gain of a plan is predicted: what is beside it takes its time too, and parts of operators are judged on
        GPUs alone where there are such."""
        assert self.plan is not None
        if not self.inside:
            return plan.losses
        if plan.target == "cpu" and len(self.plan.plans) > 1:
            return ()
        target = load_target(plan.target)
        beside = sum(r.launches * target.launch_us + r.copied / target.bandwidth * 1e6 for r in self.beside.values())
        gain = plan.gain and plan.original_us / (plan.original_us / plan.gain + beside)
        return replace(plan, predicted_us=plan.predicted_us + beside, gain=gain).losses

    def timed(self, row: forms.Measured, faster: bool, problem: str, force: bool) -> None:
        """Take what was measured on a GPU (a row of the report's `measured`): a kernel with a `problem`, such as other
        answers, fails; one that is not faster is left unless `force` says otherwise."""
        self.measured.append(row)
        if problem:
            self.fail(f"on {row['device']}: {problem}")
        elif not faster and not force:
            self.replace = False
            self.reason = f"not faster on {row['device']}: {against(row)} (--force replaces it all the same)"

    def fail(self, reason: str) -> None:
        """Leave the fragment as it was."""
        self.replace, self.failed, self.reason = False, True, reason

    def headline(self) -> str:
        """The outcome in one line."""
        if not self.replace:
            return self.reason
        assert self.plan is not None
        return ", ".join(f"{p.target} {p.predicted_us:.1f} us" for p in self.plan.plans.values())

    def stated(self, outcome: Statement) -> None:
        """Take the proof that the program is what the nodes mean: without one the fragment fails."""
        self.statement = outcome
        if not outcome.passed:
            self.fail(f"its program is not proved to be what its nodes mean: {outcome.reason}")

    # --- building and checking --------------------------------------------------------------------------------------------
    def source(self) -> KernelSource:
        """The rendered sources."""
        assert self.plan is not None
        text = {kind: p.text for kind, p in self.plan.plans.items()}
        return KernelSource(self.id, text.pop("cpu", None), text.pop("cuda", None), text)

    def spec(self) -> OperatorSpec:
        """The operator's description for the library: the program's symbols, then those that only the original's have."""
        assert self.plan is not None
        own = self.program.symbols
        shown = {n for t in (*self.inputs, *self.outputs) for d in t.dims for n in ex.names(d)}
        symbols = (*own, *sorted(shown - set(own)))
        kinds = set(self.plan.plans)
        others = tuple(sorted(kinds - {"cpu", "cuda"}))
        least = least_positions(self.program)
        return OperatorSpec(
            self.id, self.op_type, self.inputs, self.outputs, symbols, "cuda" in kinds, others, least=least
        )

    def check_job(self, imported: Imported, library: Path, seed: int, limits: Limits) -> CheckJob:
        """The float check of this fragment's CPU kernel. Raises InvalidGraph for an original that is no model."""
        first = self.occurrences[0]
        proto: onnx.ModelProto = ir.to_proto(patch.model_of(imported.model, first.region, self.op_type))
        own, constants = first.fragment.program, self.constants(imported)
        names = with_wholes(proto, own, [own.sources[k].name for k in parts.given_otherwise(own)])
        count = len(own.sources)
        extra = [
            imported.constant(name) if name in imported.model.graph.initializers else t
            for name, t in zip(names[count:], self.inputs[parts.input_count(own) :], strict=True)
        ]
        sessions.hold(proto, {names[k]: w for k, w in constants.items()})
        model = proto.SerializeToString()
        return CheckJob(self.program, self.spec(), library, model, names, constants, tuple(extra), seed, limits)

    def checked(self, outcome: FloatCheck | Lost | None) -> None:
        """Take the outcome of the float check: a kernel less accurate than the rule allows fails the fragment."""
        if isinstance(outcome, Lost):
            self.fail(f"the check could not run: {outcome.reason}")
            return
        self.float_check = outcome
        if outcome is not None and not outcome.passed:
            self.fail(outcome.reason)

    def check_function(self, imported: Imported) -> None:
        """Leave a fragment whose original nodes no model-local function can hold."""
        try:
            patch.function_of(imported.model, self.occurrences[0].region, self.op_type)
        except Refused as refusal:
            self.fail(str(refusal))

    def constants(self, imported: Imported) -> dict[int, NDArray[Any]]:
        """The model's own weights among the sources of the first occurrence, but for those of which rows are chosen."""
        program = self.occurrences[0].fragment.program
        return {k: imported.constant(s.name) for k, s in enumerate(program.sources) if s.constant and not s.chosen}

    def largest(self, imported: Imported) -> tuple[tuple[int, float], ...]:
        """For sources of products of float16 that elementwise operators read (such as gains): the source's number, and what no
        magnitude in it exceeds at any occurrence. Of weights a power of two, of float16 in a wider type its largest number."""
        p = self.program
        if not any(n.op == "contract" and n.dtype == F16 for n in p.nodes):
            return ()
        read = {x for n in p.nodes if n.op != "contract" for x in n.inputs}
        bounds = []
        for k in sorted({i.source for i in p.inputs if i.name in read and p.sources[i.source].dtype.is_float}):
            tops = [_largest(o.fragment.program.sources[k], imported) for o in self.occurrences]
            known = [t for t in tops if t is not None]
            if len(known) == len(tops):
                bounds.append((k, max(known)))
        return tuple(bounds)


def _largest(source: Source, imported: Imported) -> float | None:
    """A bound of the magnitudes in a source, where that says more than its type."""
    if source.constant:
        top = float(np.abs(imported.constant(parts.table(source).name)).max(initial=0))
        return 2.0 ** math.ceil(math.log2(top)) if 0 < top < np.inf else None
    graph, v = imported.graph, imported.values.get(source.name)
    while v is not None and isinstance(graph.steps[v], (*g.VIEWS, g.Cast)):
        (v,) = graph.inputs[v]
        if graph.dtype(v) == F16:
            return F16.largest
    return None


def group_fragments(
    fragments: Sequence[LaxFragment], imported: Imported, wanted: Callable[[list[str]], bool] = lambda names: True
) -> list[Work]:
    """Distinct fragments in order of their first occurrence; only places whose nodes (by name) are `wanted`.

    Fragments of one key are apart where their constants differ in the last bits, their tensors in dimensions, or their
    original nodes in anything but names. Where one node computes a fragment
    and an input of it the fragment has failed: the operator could not take that node's place.
    """
    distinct: dict[str, Work] = {}
    kinds: dict[str, list[str]] = {}
    regions = regions_of(imported)
    for fragment in fragments:
        region = region_of(regions, imported, fragment)
        if not wanted(region.node_names):
            continue
        own = fragment.program
        dims = {s.name: s.tensor_dims for s in (*own.sources, *parts.input_sources(own))}
        dims |= {o.name: o.dims for o in own.outputs}
        dims |= {around: dims[name] for name, around in imported.around.items() if name in dims}
        # a product of symbols may be one symbol in the program
        specs_of_both = [[spec_of(v, imported) for v in values] for values in (region.inputs, region.outputs)]
        inputs, outputs = (tuple(replace(t, dims=dims.get(t.name, t.dims)) for t in specs) for specs in specs_of_both)
        shapes = [[(t.dtype.name, t.dims) for t in tensors] for tensors in (inputs, outputs)]
        known, signature = kinds.setdefault(fragment.key, []), f"{own.key()} {shapes} {region.signature()}"
        if signature not in known:
            known.append(signature)
        number = known.index(signature)
        identifier = f"{fragment.key}v{number}" if number else fragment.key
        if identifier in distinct:
            distinct[identifier].occurrences.append(Occurrence(fragment, region))
            continue
        distinct[identifier] = Work(
            identifier, fragment.name, fragment.program, [Occurrence(fragment, region)], inputs, outputs
        )
        distinct[identifier].check_function(imported)
        if region.torn:
            distinct[identifier].fail("its nodes, or what they read, stand in several branches")
        if region.recomputed is not None:
            distinct[identifier].fail(f"it reads {region.recomputed.name}, which its original nodes compute themselves")
        torn = next(filter(None, map(fusions.torn, region.inputs)), None)
        if torn is not None:
            distinct[identifier].fail(
                f"it takes a product from {torn.name}, with which onnxruntime makes one of packed weights"
            )
        if region.entangled is not None:
            distinct[identifier].fail(
                f"{region.entangled.op_type} computes the fragment and tensors that it reads, such as grown caches, at once"
            )
    return list(distinct.values())
