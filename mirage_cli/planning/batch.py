"""Plans of a run's fragments: those that earlier runs have kept, then the others, searched by a crew.

What comes back from another machine is a document: it is read as one that is kept, and proved and printed again here, with
this run's own random points, before it is taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from mirage_cli.errors import CheckFailed
from mirage_cli.files import codec
from mirage_cli.files.result_store import Kept
from mirage_cli.kernel_proof import prove
from mirage_cli.lax.ir.program import Program
from mirage_cli.options import debug
from mirage_cli.planning import fragment_cache
from mirage_cli.planning.plan import UNION_BITS, FragmentPlan, PlanOptions, TargetPlan, plan_fragment, printed
from mirage_cli.processes.isolation import Lost
from mirage_cli.processes.jobs import Crew, Kind
from mirage_cli.processes.jobs import Job as Call
from mirage_cli.search.progress import Standing
from mirage_cli.search.proof.verify import verify
from mirage_cli.search.schedules.target import load_target

#: identifier, name, program, operators that it replaces, `SearchOptions.largest` and `growth`
Job = tuple[str, str, Program, int, tuple[tuple[int, float], ...], float]


def each(
    jobs: Sequence[Job],
    options: PlanOptions,
    crew: Crew,
    kept: Kept | None,
    told: Callable[[int, Standing], None] | None = None,
) -> Iterator[tuple[int, FragmentPlan | Lost]]:
    """(number of the job, its plan or why there is none), known ones first, the others as they end; equal programs are planned
    once. New ones are kept; `told` hears how far searches are, with the job's number."""
    store = kept if fragment_cache.lasting(options) and not debug.requested_stages() else None
    names = [fragment_cache.plan_key(*job[:4], _own(options, job)) if store is not None else "" for job in jobs]
    missing = []
    for k, (name, job) in enumerate(zip(names, jobs, strict=True)):
        stored = None if store is None else fragment_cache.find_plan(store, name, job[2])
        if stored is None:
            missing.append(k)
        else:
            yield k, stored
    alike: dict[Any, list[int]] = {}
    for k in missing:
        alike.setdefault((jobs[k][2].key(), *jobs[k][3:]), []).append(k)
    groups = [*alike.values()]
    options = shared_out(options, len(groups), crew.workers)
    calls = [(*jobs[k][:4], _own(options, jobs[k])) for k, *_ in groups]

    def hear(n: int, standing: Standing) -> None:
        if told is not None:
            told(groups[n][0], standing)

    telling = None if told is None else hear
    for n, found in crew.each(PLAN, calls, telling, names=[names[k] for k, *_ in groups]):
        for k in groups[n]:
            plan = found if isinstance(found, Lost) or k == groups[n][0] else _renamed(found, jobs[k])
            if store is not None and not isinstance(plan, Lost):
                store.put(names[k], fragment_cache.plan_to_json(plan))
            yield k, plan


def _renamed(plan: FragmentPlan, job: Job) -> FragmentPlan:
    """The plan of an equal program for a job: other names of tensors, and sources with its identifier."""
    identifier, name, program = job[:3]
    plans = {
        kind: printed(p, identifier, program, load_target(p.target), plan.passes) for kind, p in plan.plans.items()
    }
    return replace(plan, id=identifier, name=name, program=program, plans=plans)


def _own(options: PlanOptions, job: Job) -> PlanOptions:
    """The options with which a fragment is planned."""
    return replace(options, search=replace(options.search, largest=job[4], growth=job[5]))


def shared_out(options: PlanOptions, fragments: int, workers: int) -> PlanOptions:
    """Options for that many fragments at a time: workers that none of them needs close mappings."""
    spare = workers // max(1, min(fragments, workers))
    return replace(options, search=replace(options.search, jobs=max(1, spare)))


# --- on another machine -----------------------------------------------------------------------------------------------
def _packed(*args: Any) -> Call:
    return *args, os.environ.get(prove.VARIABLE)


def _elsewhere(
    identifier: str,
    name: str,
    program: Program,
    operators: int,
    options: PlanOptions,
    runs: str | None,
    tell: Callable[[Any], None] | None = None,
) -> Any:
    """A plan as a document; with what the other machine's environment says of runs of kernels."""
    os.environ.pop(prove.VARIABLE, None)
    os.environ.update({} if runs is None else {prove.VARIABLE: runs})
    telling = None if tell is None else lambda standing: tell(msgspec.to_builtins(standing))
    alone = replace(options, search=replace(options.search, jobs=1))
    return fragment_cache.plan_to_json(plan_fragment(identifier, name, program, operators, alone, telling))


def _read(document: Any, args: Call) -> FragmentPlan:
    """The plan of a document, which is that of the program that was asked for, proved and printed here. Raises ValueError or
    MirageError."""
    identifier, name, program, _, options = args[:5]
    plan = replace(fragment_cache.plan_from_json(document, program), id=identifier, name=name, passes=options.passes)
    if not plan.plans.keys() | plan.reasons.keys() == options.targets.keys():
        raise ValueError(f"plans for {', '.join(plan.plans)} in place of {', '.join(options.targets)}")
    plan.plans = {kind: proved(identifier, program, p, options) for kind, p in plan.plans.items()}
    return plan


def proved(identifier: str, program: Program, plan: TargetPlan, options: PlanOptions) -> TargetPlan:
    """A plan that another machine made, with verdicts and text of our own. Raises CheckFailed where a muGraph is not
    proved, or where the text would be another one, and Refused or InvalidGraph for what cannot be printed."""
    target = load_target(plan.target)
    own = printed(replace(plan, target=target.name), identifier, program, target, options.passes)
    if (own.text, own.memory, target.shared_bytes) != (plan.text, plan.memory, plan.shared_bytes):
        raise CheckFailed("its source is another one here")
    ways = [(plan.graph, plan.schedules), *((o.alternative.graph, o.alternative.schedules) for o in plan.others)]
    verdicts = []
    for (graph, schedules), theirs in zip(ways, plan.verdicts, strict=True):
        tiles = [s.as_tiles() for s in schedules]
        verdict = verify(program, graph, tiles, options.seed, options.confidence + UNION_BITS, entropy=options.entropy)
        if not verdict.passed:
            raise CheckFailed(f"the proof failed: {verdict.reason}")
        verdicts.append(replace(verdict.among(theirs.candidates), kernels=theirs.kernels))
    others = tuple(replace(o, verdict=v) for o, v in zip(plan.others, verdicts[1:], strict=True))
    return replace(own, verdict=verdicts[0], others=others)


def _standing(content: Any, _: Call) -> Standing:
    return codec.checked(content, Standing)


PLAN = Kind(f"{__name__}:PLAN", plan_fragment, _elsewhere, _read, packed=_packed, heard=_standing)
