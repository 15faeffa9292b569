"""Planning a fragment: search, ranking, proof, and printing once at the end, for every target. Pure: no files, no compiler, no
model.

A candidate whose kernels do not fit or that is not proved is passed over with its reason; the next one is tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mirage_cli import __version__
from mirage_cli.codegen.requests.passes import ALL, Passes
from mirage_cli.codegen.source import Memory, Rendered, lowered, source
from mirage_cli.errors import CheckFailed, InvalidGraph, Refused
from mirage_cli.kernel_proof.prove import kernel_run
from mirage_cli.lax.ir.program import Program
from mirage_cli.numerics import infinities, quotient_overflow, rounding
from mirage_cli.options import debug
from mirage_cli.options.dims import Range
from mirage_cli.planning import ranges, refusals, tuned
from mirage_cli.search.finish.unfuse import unfused
from mirage_cli.search.mugraph.documents import graph_to_json
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.progress import SearchStatistics, Tell
from mirage_cli.search.proof.verify import DEFAULT_CONFIDENCE, Verdict, verify
from mirage_cli.search.schedules.alternatives import Alternative, Sizes
from mirage_cli.search.schedules.original import FUSED, original_us
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target, load_target
from mirage_cli.search.search import Candidate, Searcher, SearchOptions, SearchResult

SCHEMA_VERSION = 1
SHOWN = 20  #: candidates that MIRAGE_DEBUG=search lists
MAX_TRIES = 40  #: candidates that are proved before a target is given up, and of which the best block graphs take turns
MAX_FITTED = 400  #: candidates that are fitted
MORE_GRAPHS = (
    4  #: times as many block graphs are looked at where the candidates' muGraphs are wrong, whatever their tiles
)
UNION_BITS = 6  #: more than are asked for, so that the bound over all tries is as asked
NEAR = 1.02  #: what is predicted to take up to so many times the best time may be as fast: the model is off by more
TUNED_SCHEDULES = 16  #: schedules of each block graph and engine that tuning chooses from


class AnyTiles(CheckFailed):
    """A fault of a muGraph that it has whatever its schedules are."""


@dataclass(frozen=True, slots=True)
class Other:
    """A muGraph that takes the place of a plan's own for some sizes or on an older architecture, proved."""

    alternative: Alternative
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Slower:
    """Where no gain over the original operators is predicted, by architecture and in words; times in microseconds."""

    target: str
    predicted_us: float
    original_us: float
    where: str = ""


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """The chosen muGraph of a fragment for one target (within `shared_bytes` of it), proved; of a program with symbols the one
    for typical sizes, with `others` for other ranges, and for older architectures. `text` is its source once it is printed,
    `memory` what its kernels ask for, then those of `others`; `slower` where the older ones are not predicted to gain
    anything."""

    target: str
    shared_bytes: int
    graph: KernelGraph
    schedules: tuple[Schedule, ...]
    text: str
    verdict: Verdict
    predicted_us: float
    floor_us: float
    original_us: float
    others: tuple[Other, ...] = ()
    memory: tuple[Memory, ...] = ()
    slower: tuple[Slower, ...] = ()
    margin: float = 1.0  #: how many times faster than the original operators it has to be predicted
    gain: float = 0.0  #: how many times as fast as these in the mean over the sizes asked for; 0: at typical ones
    alone: tuple[float, float] | None = (
        None  #: both times on one thread of a CPU that has several: ours, the originals'
    )

    @property
    def losses(self) -> tuple[Slower, ...]:
        """The architectures where the model predicts no gain over the original operators that is worth its error."""
        own = Slower(self.target, self.predicted_us, self.original_us)
        if self.gain:
            own = replace(own, predicted_us=self.original_us / self.gain, where=" in the mean over its sizes")
        return (*(() if own.predicted_us * self.margin < own.original_us else (own,)), *self.slower)

    @property
    def faster(self) -> bool:
        """True if the model predicts a gain over the original operators on every architecture."""
        return not self.losses

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts of all its muGraphs."""
        return (self.verdict, *(o.verdict for o in self.others))


@dataclass(slots=True)
class FragmentPlan:
    """A fragment with its plans by kind of target ("cpu", "cuda") and the reasons where there is none; `pool` holds what
    measuring may choose from in the place of the CUDA plan, best first by the model."""

    id: str
    name: str
    program: Program
    statistics: SearchStatistics = field(default_factory=SearchStatistics)
    plans: dict[str, TargetPlan] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    passes: Passes = ALL
    pool: tuple[Candidate, ...] = ()
    kept: bool = False  #: whether an earlier run found it

    def to_json(self) -> dict[str, Any]:
        """The form of `mugraphs/ID.json`."""
        targets = {
            kind: {
                "target": p.target,
                "shared_bytes": p.shared_bytes,
                "graph": graph_to_json(p.graph),
                "schedules": [s.to_json() for s in p.schedules],
                "text": p.graph.text().splitlines(),
            }
            | ({"others": [o.alternative.to_json() for o in p.others]} if p.others else {})
            for kind, p in sorted(self.plans.items())
        }
        return {
            "mirage": __version__,
            "schema_version": SCHEMA_VERSION,
            "id": self.id,
            "name": self.name,
            "program": self.program.to_json(),
            "without": list(self.passes.off),
            "targets": targets,
        }


Shaped = tuple[KernelGraph, tuple[tuple[str, int, int, tuple[tuple[str, int], ...]], ...]]


def shaped(graph: KernelGraph, schedules: Sequence[Schedule]) -> Shaped:
    """Kernels that differ in no more than their copies: a muGraph, and each kernel's engine, warps and tiles."""
    return graph, tuple((s.engine, s.warps, s.loop, s.tiles) for s in schedules)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options that planning depends on: targets by kind, bounds of the search, the proof's seed and confidence in bits, the
    optimizer passes, how many candidates are kept for measuring, what is said of the symbols of the model's inputs, what
    random points of proofs come from, beside the seed, muGraphs whose kernels were found to give wrong answers, and kernels
    that a compiler refused (`refused`), whatever their stages are."""

    targets: dict[str, tuple[str, ...]]
    search: SearchOptions = field(default_factory=SearchOptions)
    seed: int = 0
    confidence: int = DEFAULT_CONFIDENCE
    passes: Passes = ALL
    pool: int = 0
    ranges: tuple[tuple[str, Range], ...] = ()
    entropy: str = ""
    wrong: tuple[KernelGraph, ...] = ()
    refused: tuple[Shaped, ...] = ()
    own: tuple[Target, ...] = ()  #: in the place of those of files; rates alone differ
    #: kinds that nobody asked for: one muGraph serves all sizes, the best one at typical ones
    once: tuple[str, ...] = ()

    def passes_over(self, graph: KernelGraph, schedules: Sequence[Schedule]) -> bool:
        """True for a way that was found to be wrong, or that does not compile."""
        return graph in self.wrong or shaped(graph, schedules) in self.refused

    def target(self, name: str) -> Target:
        """The target called so, as plans go by it. Sources are made for that of the file."""
        return next((t for t in self.own if t.name == name), None) or load_target(name)


def newest(names: Sequence[str]) -> Target:
    """The target that a plan is for: the newest architecture of those named. The others are its `others`."""
    return max(map(load_target, names), key=lambda t: t.capability)


def plan_fragment(
    identifier: str, name: str, program: Program, operators: int, options: PlanOptions, tell: Tell | None = None
) -> FragmentPlan:
    """Plan one fragment for every target; kernels of several architectures each get the muGraph that is best there.
    `operators` is how many nodes of the model it replaces; `tell` hears how far the search is."""
    debug.show("program", f"{name} {identifier}", lambda: str(program))
    searcher = Searcher(options.search, tell)
    result = FragmentPlan(identifier, name, program, passes=options.passes)
    reason = refusals.not_planned(program)
    if reason:
        result.reasons = dict.fromkeys(options.targets, reason)
        return result

    def planned_for(target: Target, once: bool) -> tuple[TargetPlan | None, str]:
        searched = searcher.search(program, target)
        result.statistics = searched.statistics
        debug.show("search", f"{name} {identifier}, {target.name}", partial(_shown, searched))
        wrong = set(options.wrong)
        best = _measured(searcher, searched, target, options)
        plan, reason = _choose(identifier, program, best, target, operators, options, wrong)
        fastest = plan
        if plan is None:
            plan, reason = _choose(identifier, program, searched.candidates, target, operators, options, wrong)
        if plan is None and (wrong or options.refused):
            more = searcher.with_graphs(MORE_GRAPHS).search(program, target).candidates
            plan, reason = _choose(identifier, program, more, target, operators, options, wrong)
        if plan is not None and program.symbols and not once:
            plan = _ranged(plan, searcher, identifier, program, target, operators, options)
            plan = plan if fastest is None else replace(fastest, others=plan.others)
        if plan is not None and program.symbols and not once:
            plan = _everywhere(plan, program, target, operators, options)
            plan = _at_steps(plan, program, target, options) if operators == FUSED and target.threaded else plan
        if plan is not None and not target.threaded and target.units > 1:
            plan = _on_one_thread(plan, program, target.alone, operators, options)
        return plan, reason or _no_candidate(result.statistics)

    for kind, names in options.targets.items():
        target = newest(names)
        outcomes = {
            t: planned_for(options.target(t), kind in options.once) for t in dict.fromkeys((*names, target.name))
        }
        plan, reason = outcomes.pop(target.name)
        for older, (its, why) in outcomes.items():
            if its is None:
                plan, reason = None, f"{older}: {why}"
            elif plan is not None:
                plan = _also(plan, its)
        if plan is not None:
            plan = result.plans[kind] = printed(plan, identifier, program, target, options.passes)
        else:
            result.reasons[kind] = reason
        if kind == "cuda" and plan is not None and options.pool:
            result.pool = tuple(_pool(plan, searcher, program, options.target(target.name), options))
    return result


def _measured(searcher: Searcher, found: SearchResult, target: Target, options: PlanOptions) -> list[Candidate]:
    """The candidate of which it is known that it is the fastest; nothing where parts are left out."""
    if options.passes.off or not tuned.shipped(target.name):
        return []
    sizes = dict(options.search.sizes)
    if tuned.row(found.program, target, sizes) is None:
        return []
    pool = [*found.candidates, *searcher.with_schedules(TUNED_SCHEDULES).search(found.program, target).candidates]
    best = tuned.measured(found.program, pool, target, sizes)
    return [] if best is None else [best]


def _also(plan: TargetPlan, older: TargetPlan) -> TargetPlan:
    """A plan that does on an older architecture what `older` says."""
    own = Alternative((), older.graph, older.schedules)
    ways = [*older.others, Other(own, older.verdict)]
    theirs = tuple(Other(replace(o.alternative, target=older.target), o.verdict) for o in ways)
    return replace(plan, others=(*theirs, *plan.others), slower=(*plan.slower, *older.losses))


def _ranged(
    own: TargetPlan,
    searcher: Searcher,
    identifier: str,
    program: Program,
    target: Target,
    operators: int,
    options: PlanOptions,
) -> TargetPlan:
    """The plan of a program with symbols: several muGraphs where one does not serve all sizes as well, else its `own`."""
    given = dict(options.ranges)
    first = Candidate(own.graph, own.schedules, own.predicted_us, own.floor_us, (0.0, 0.0))

    def fits(c: Candidate) -> bool:
        if options.passes_over(fused(c.graph, options), c.schedules):
            return False
        try:
            lowered(program, fused(c.graph, options), c.schedules, target, options.passes)
        except (Refused, InvalidGraph):
            return False
        return True

    candidates, times = ranges.pool(program, target, searcher, given, first, fits)
    at = ranges.points(program.symbols, given)
    plans: dict[int, TargetPlan] = {0: own}
    while True:
        leaves = ranges.leaves(program, times, target, at, given)
        new = [leaf.candidate for leaf in leaves if leaf.candidate not in plans]
        if not new:
            break
        try:
            plans[new[0]] = planned(identifier, program, candidates[new[0]], target, operators, options)
        except (Refused, InvalidGraph, CheckFailed):
            del candidates[new[0]], times[new[0]]
            plans = {k - (k > new[0]): p for k, p in plans.items()}
    *rest, usual = leaves
    main = plans[usual.candidate]
    if main is not own:
        # it was found at other sizes, and its time is to be compared with the original's at typical ones
        main = replace(main, predicted_us=times[usual.candidate][0], floor_us=own.floor_us)
    others = [(leaf.when, plans[leaf.candidate]) for leaf in rest if leaf.candidate != usual.candidate]
    return replace(main, others=tuple(Other(Alternative(when, p.graph, p.schedules), p.verdict) for when, p in others))


def _everywhere(plan: TargetPlan, program: Program, target: Target, operators: int, options: PlanOptions) -> TargetPlan:
    """A plan that tells too what it gains in the mean over sizes that were asked for, on a CPU (`coverage.leave_losers` sums
    up where fragments lose), or where it gains nothing: with quantised weights at any such size, which runtimes multiply in
    their own way at steps (the least sizes) and unpack for prompts, and so a part of what a library has as one operator."""
    given = dict(options.ranges)
    times = partial(ranges.compared, plan, [o.alternative for o in plan.others], program, target, operators)
    asked = ranges.asked(program.symbols, given)
    if not target.threaded and not ranges.quantised(program) and operators != FUSED:
        ratios = [theirs / us for us, theirs in times(asked)]
        return replace(plan, gain=math.prod(ratios) ** (1 / len(ratios))) if len(asked) > 1 else plan
    at = [ranges.least(program.symbols, given)] if program.packed is not None else list[Sizes]()
    fused = operators == FUSED and ranges.is_said(program.symbols, given)
    if program.packed is not None or not target.threaded or fused:
        at += asked
    losses = [(us / theirs, us, sizes) for (us, theirs), sizes in zip(times(at), at, strict=True)]
    quotient, us, sizes = max(losses, key=lambda loss: loss[0], default=(0.0, 0.0, {}))
    if quotient * target.margin < 1:
        return plan
    where = ", ".join(f"{name} {size}" for name, size in sizes.items())
    return replace(plan, slower=(*plan.slower, Slower(f"{target.name} at {where}", us, us / quotient)))


def _on_one_thread(plan: TargetPlan, program: Program, one: Target, operators: int, options: PlanOptions) -> TargetPlan:
    """A plan that tells what it takes on a target of `one` core, or where it loses there: a session may have one thread."""
    others, given = [o.alternative for o in plan.others], dict(options.ranges) if plan.gain else None
    us, theirs, gain = ranges.gained(plan, others, program, one, operators, dict(options.search.sizes), given)
    where = " on one thread" + (" in the mean over its sizes" if plan.gain else "")
    lost = (Slower(one.name, theirs / gain, theirs, where),) if gain < 1 else ()
    return replace(plan, alone=(us, theirs), slower=(*plan.slower, *lost))


def _at_steps(plan: TargetPlan, program: Program, target: Target, options: PlanOptions) -> TargetPlan:
    """A plan of what a library has as one operator with a cache, with the times of a decoder's steps, of which there are more
    than prompts."""
    sizes, others = ranges.step(program.symbols, dict(options.ranges)), [o.alternative for o in plan.others]
    ((us, original),) = ranges.compared(plan, others, program, target, FUSED, [sizes])
    return replace(plan, predicted_us=us, original_us=original)


def printed(plan: TargetPlan, identifier: str, program: Program, target: Target, passes: Passes) -> TargetPlan:
    """A plan with its source: that of its own muGraph and of its others. Raises Refused."""
    ways = [o.alternative for o in plan.others]
    source = rendered(identifier, program, plan.graph, plan.schedules, target, passes, ways)
    debug.show("source", f"{identifier}, {target.name}", lambda: source.text)
    own = len(source.memory) - len(plan.schedules)  # in the source, the other muGraphs come first
    return replace(plan, text=source.text, memory=(*source.memory[own:], *source.memory[:own]))


def _pool(
    own: TargetPlan, searcher: Searcher, program: Program, target: Target, options: PlanOptions
) -> list[Candidate]:
    """The candidates that measuring may choose from: the model's `own` choice, then more schedules of all block graphs."""
    found = searcher.with_schedules(TUNED_SCHEDULES).search(program, target).candidates
    first = Candidate(own.graph, own.schedules, own.predicted_us, own.floor_us, (0.0, 0.0))
    # where it was measured, what the model says of it tells how far the model is off
    same = (c for c in found if (c.graph, c.schedules) == (own.graph, own.schedules))
    candidates = [next(same, first), *found]
    if not options.passes.fusion:
        candidates = [replace(c, graph=unfused(c.graph)) for c in candidates]
    unique: dict[tuple[object, ...], Candidate] = {}
    for c in candidates:
        unique.setdefault((c.graph, c.schedules), c)
    return list(unique.values())[: options.pool]


def _shown(found: SearchResult) -> str:
    """A search's candidates, a line each, and the muGraph of the best."""
    s = found.statistics
    lines = [f"{s.mappings} mappings, {s.values} values, {s.mugraphs} muGraphs, {len(found.candidates)} candidates"]
    for c in found.candidates[:SHOWN]:
        kernels = "; ".join(str(s) for s in c.schedules)
        lines.append(f"{c.predicted_us:9.2f} us  {kernels}")
    lines += [c.graph.text() for c in found.candidates[:1]]
    return "\n".join([*lines, *dict.fromkeys(f"refused: {r}" for r in s.refused)])


def _no_candidate(statistics: SearchStatistics) -> str:
    reasons = list(dict.fromkeys(statistics.refused))
    return "no muGraph was found" + (f": {reasons[0]}" if reasons else "")


def _choose(
    identifier: str,
    program: Program,
    candidates: Sequence[Candidate],
    target: Target,
    operators: int,
    options: PlanOptions,
    wrong: set[KernelGraph],
) -> tuple[TargetPlan | None, str]:
    """The first candidate that renders and is proved, or the reason why none does. MuGraphs that are `wrong`, to which it
    adds, are passed over."""
    reason, tries = "", 0
    for candidate in (*_in_turn(candidates[:MAX_TRIES]), *candidates[MAX_TRIES:MAX_FITTED]):
        if tries == MAX_TRIES:
            break
        graph = fused(candidate.graph, options)
        if graph in wrong or options.passes_over(graph, candidate.schedules):
            continue
        try:
            plan = planned(identifier, program, candidate, target, operators, options)
            return replace(plan, verdict=plan.verdict.among(tries + 1)), ""
        except (Refused, InvalidGraph) as e:
            reason = reason or str(e)
        except CheckFailed as e:
            reason, tries = str(e), tries + 1
            if isinstance(e, AnyTiles):
                wrong.add(graph)
    return None, reason


def _in_turn(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates, best first; of those that are near to the best one, fewer kernels come first, since what lies between
    kernels, launches and intermediate results, is what the model knows least of."""
    near = NEAR * min((c.predicted_us for c in candidates), default=0.0)
    return sorted(candidates, key=lambda c: len(c.graph.kernels) if c.predicted_us <= near else math.inf)


def planned(
    identifier: str, program: Program, candidate: Candidate, target: Target, operators: int, options: PlanOptions
) -> TargetPlan:
    """A candidate that fits and is proved. Raises Refused or InvalidGraph when it does not fit, CheckFailed when the
    proof or the run of its kernels fails, NaN and infinities are not where the original's are, or numbers may overflow where
    the original's do not: products float32 before they are divided, or operands of CUDA's products their type."""
    graph, printed_for = fused(candidate.graph, options), load_target(target.name)
    tiles = [s.as_tiles() for s in candidate.schedules]
    tile_programs = lowered(program, graph, candidate.schedules, printed_for, options.passes)
    problem = quotient_overflow.overflow(program, graph, tiles, options.search.growth, options.seed)
    if problem:
        raise CheckFailed(problem)
    debug.show("tile", f"{identifier}, {target.name}", lambda: "\n".join(tile.text() for tile in tile_programs))
    bits = options.confidence + UNION_BITS
    verdict = verify(program, graph, tiles, options.seed, bits, entropy=options.entropy)
    if not verdict.passed:
        raise CheckFailed(f"the proof failed: {verdict.reason}")
    problem = infinities.changed_finiteness(program, graph, tiles, options.seed)
    if problem:
        raise AnyTiles(problem)
    if target.threaded:
        problem = rounding.overflow(program, graph, tiles, dict(options.search.largest), options.seed)
        if problem:
            raise CheckFailed(problem)
    kernels = kernel_run(
        program, graph, candidate.schedules, printed_for, options.passes, options.seed, options.entropy
    )
    if kernels.refuted:
        raise CheckFailed(f"its kernels do not compute it: {kernels.reason}")
    return TargetPlan(
        target.name,
        target.shared_bytes,
        graph,
        candidate.schedules,
        "",
        replace(verdict, kernels=kernels),
        candidate.predicted_us,
        candidate.floor_us,
        original_us(program, operators, target, dict(options.search.sizes)),
        margin=target.margin,
    )


def fused(graph: KernelGraph, options: PlanOptions) -> KernelGraph:
    """The kernel graph as it is planned, with these passes."""
    return graph if options.passes.fusion else unfused(graph)


def rendered(
    identifier: str,
    program: Program,
    graph: KernelGraph,
    schedules: Sequence[Schedule],
    target: Target,
    passes: Passes = ALL,
    others: Sequence[Alternative] = (),
) -> Rendered:
    """The source of a muGraph, and of `others` for other sizes: the same text whenever it is rendered; with what its
    kernels ask for."""
    comment = f"fragment {identifier}, target {target.name}, mirage {__version__}\n\n{program}\n\n{graph.text()}"
    for o in others:
        comment += f"\n\nwhere {o.condition}:\n{o.graph.text()}"
    return source(identifier, program, graph, schedules, target, comment, passes, others)
