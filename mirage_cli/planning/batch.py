"""Plans of a run's fragments: those that earlier runs have kept, then the others, searched in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from mirage_cli.files.result_store import Kept
from mirage_cli.lax.ir.program import Program
from mirage_cli.options import debug
from mirage_cli.planning import fragment_cache
from mirage_cli.planning.plan import FragmentPlan, PlanOptions, plan_fragment
from mirage_cli.processes import isolation
from mirage_cli.processes.isolation import Lost
from mirage_cli.search.search import Standing

#: identifier, name, program, operators that it replaces, `SearchOptions.largest` and `growth`
Job = tuple[str, str, Program, int, tuple[tuple[int, float], ...], float]


def each(
    jobs: Sequence[Job],
    options: PlanOptions,
    workers: int,
    max_memory: int,
    kept: Kept | None,
    told: Callable[[int, Standing], None] | None = None,
) -> Iterator[tuple[int, FragmentPlan | Lost]]:
    """(number of the job, its plan or why there is none), known ones first, the others as they end. New ones are kept; `told`
    hears how far searches are, with the job's number."""
    store = kept if fragment_cache.lasting(options) and not debug.requested_stages() else None
    names = [fragment_cache.plan_key(*job[:4], _own(options, job)) if store is not None else "" for job in jobs]
    missing = []
    for k, (name, job) in enumerate(zip(names, jobs, strict=True)):
        stored = None if store is None else fragment_cache.find_plan(store, name, job[2])
        if stored is None:
            missing.append(k)
        else:
            yield k, stored
    options = shared_out(options, len(missing), workers)
    calls = [(*jobs[k][:4], _own(options, jobs[k])) for k in missing]

    def hear(n: int, standing: Standing) -> None:
        if told is not None:
            told(missing[n], standing)

    telling = None if told is None else hear
    for n, plan in isolation.each(plan_fragment, calls, workers, max_memory, told=telling):
        k = missing[n]
        if store is not None and not isinstance(plan, Lost):
            store.put(names[k], fragment_cache.plan_to_json(plan))
        yield k, plan


def _own(options: PlanOptions, job: Job) -> PlanOptions:
    """The options with which a fragment is planned."""
    return replace(options, search=replace(options.search, largest=job[4], growth=job[5]))


def shared_out(options: PlanOptions, fragments: int, workers: int) -> PlanOptions:
    """Options for that many fragments at a time: workers that none of them needs close mappings."""
    spare = workers // max(1, min(fragments, workers))
    return replace(options, search=replace(options.search, jobs=max(1, spare)))
