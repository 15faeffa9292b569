"""Entries of a fragment's report beside its search and proof: the original nodes, the bounds of its speed, its
memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from mirage_cli.backends.spec import TensorSpec
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.ops import OPS
from mirage_cli.optimization.task import Work
from mirage_cli.planning.plan import TargetPlan
from mirage_cli.report import forms
from mirage_cli.search.schedules.cost import bytes_once, number, products
from mirage_cli.search.schedules.target import Target, load_target


def original(w: Work) -> forms.Original:
    """The nodes of a fragment's first place as the model has them: tensors that go in and out, operators between them.

    What a node reads and neither is an input nor comes from another node is a small constant or a shape.
    """
    region = w.occurrences[0].region
    sources = w.occurrences[0].fragment.program.sources
    constant = [s.constant for s in sources] + [v.is_initializer() for v in region.inputs[len(sources) :]]

    def name(v: ir.Value | None) -> str:
        return "" if v is None else region.same.get(v, v).name or ""

    nodes: list[forms.Node] = [
        {
            "name": n.name or "",
            "op": n.op_type if n.domain in ("", "ai.onnx") else f"{n.domain}.{n.op_type}",
            "inputs": [name(v) for v in n.inputs],
            "outputs": [name(v) for v in n.outputs],
        }
        for n in region.nodes
    ]
    inputs: list[forms.Operand] = [{**_tensor(t), "weight": c} for t, c in zip(w.inputs, constant, strict=True)]
    return {"inputs": inputs, "outputs": [_tensor(t) for t in w.outputs], "nodes": nodes}


def _tensor(t: TensorSpec) -> forms.Tensor:
    return {"name": t.name, "type": f"{t.dtype}[{', '.join(map(str, t.dims))}]"}


def predictions(
    plans: Mapping[str, TargetPlan], program: Program, sizes: Mapping[str, int], own: Sequence[Target] = ()
) -> dict[str, forms.Prediction]:
    """For each kind of target the model's times in microseconds and what bounds them: bytes read and written once,
    operations (those of the matrix products where there are any, else the elementwise ones), the target's bytes and
    operations a second. `sizes` are what symbols count as, `own` as in `report`."""
    by_kind: dict[str, forms.Prediction] = {}
    for kind, p in sorted(plans.items()):
        target = next((t for t in own if t.name == p.target), None) or load_target(p.target)
        cores = target.units if kind == "cpu" else 1  # a CPU's rates are those of one core
        flops = products(program, sizes, target)
        seconds = sum(f / target.flops.get(name, target.flops["f32"]) for name, f in flops.items())
        total = sum(flops.values())
        by_kind[kind] = {
            "target": p.target,
            "predicted_us": round(p.predicted_us, 3),
            "original_us": round(p.original_us, 3),
            "floor_us": round(p.floor_us, 3),
            "bytes": round(bytes_once(program, sizes)),
            "flops": round(total or elementwise(program, sizes)),
            "bandwidth": target.bandwidth,
            "rate": total / seconds * cores if seconds else target.special,
        }
        if p.alone is not None:
            ours, original = (round(us, 3) for us in p.alone)
            by_kind[kind]["one_thread"] = {"predicted_us": ours, "original_us": original}
    return by_kind


def elementwise(program: Program, sizes: Mapping[str, int]) -> float:
    """Elementwise operations and terms of sums of a program, as the cost model counts them."""
    extents = {a.name: number(a.extent, sizes) for a in program.axes}
    total = 0.0
    for n in program.nodes:
        size = 1.0
        for a in set(program.axes_of(n.name)) | set(n.over):
            size *= extents[a]
        total += size * (1 if n.over else OPS[n.op].flops if n.op in OPS else 0)
    return total


def chosen(plan: TargetPlan) -> list[dict[str, Any]]:
    """The schedules of a plan's kernels, then those of its other muGraphs, each with when it is taken."""
    others = [s.to_json() | o.alternative.where_to_json() for o in plan.others for s in o.alternative.schedules]
    return [*(s.to_json() for s in plan.schedules), *others]


def schedules(plan: TargetPlan) -> list[Any]:
    """The schedules of `chosen`, with the threads and the bytes of memory that each kernel asks for a block."""
    choices = chosen(plan)
    return [s | m for s, m in zip(choices, _memory(plan, len(choices)), strict=True)]


def _memory(plan: TargetPlan, count: int) -> list[dict[str, int]]:
    known = [{"threads": m.threads, "shared_bytes": m.shared_bytes} for m in plan.memory]
    return known if len(known) == count else [{}] * count
