"""The search as a whole: from a program to kernel graphs with schedules, cheapest first.

The block graphs of a program do not depend on a target and are found once for each distinct program; every target ranks
them, with schedules, by its own cost model. Kernel graphs of several kernels come one level up: a program is one kernel, or
two that share a split reduction (`split_reduction`), or is cut at values that are stored (`kernels`), each part in its turn.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mirage_cli.errors import Refused
from mirage_cli.lax.ir.program import Program
from mirage_cli.processes.isolation import Pool
from mirage_cli.search.blocks import MappingOutcome, mapping_graphs
from mirage_cli.search.closure.form import search_form
from mirage_cli.search.closure.mapping import Mapping, mappings
from mirage_cli.search.contains import Containment, contains
from mirage_cli.search.cuts import HOPEFUL, Branches
from mirage_cli.search.finish.kernels import Part, link, one_kernel, siblings, unpacked
from mirage_cli.search.finish.scaling import with_headroom
from mirage_cli.search.finish.split_reduction import two_kernels
from mirage_cli.search.finish.whole_products import whole_products
from mirage_cli.search.mugraph.mugraph import BlockGraph, CustomKernel, KernelGraph
from mirage_cli.search.progress import SearchStatistics, Standing, Tell
from mirage_cli.search.reassociation import variants
from mirage_cli.search.schedules.alternatives import Sizes
from mirage_cli.search.schedules.architectures import ENGINES
from mirage_cli.search.schedules.cost import SMALL, floor_us
from mirage_cli.search.schedules.ranking import Beside, Models, beside, ranked, total_us
from mirage_cli.search.schedules.schedule import Ranked, Schedule, launches
from mirage_cli.search.schedules.target import Target
from mirage_cli.search.stages import least_us, staged_ways
from mirage_cli.search.ways import MARGIN, Option, alike, best_combinations, by_blocks, fitting_options, in_turn

FAR_FROM_FLOOR = 3  #: launches above the floor from which on values may be worth storing
NEAR_FLOOR = 2  #: the same where the best way has no room for its operands
MAX_CUT_VALUES = 5000  #: values of the closures of parts after which no more are searched once there is a candidate
HOPEFUL_VALUES = 7000  #: the same where a cut that waits may be `HOPEFUL` times as fast as the best so far
HOPELESS = 20_000  #: and after which no more are searched in any case, nor mappings of programs searched together
SHAPES = 8  #: times as many schedules of siblings are looked at, for some whose blocks are alike
COMBINED = 2  #: block graphs with a split reduction that are made two kernels of, for each program
COMBINING = (2, 4, 8, 16, 32, 64)  #: parts of that reduction
STAGED = 3  #: muGraphs that are looked at as stages of one launch
STAGED_NEAR = 1.3  #: times the best prediction up to which that is worth a measurement
SHORTEST = 64  #: positions of a split axis that a part has at least


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Bounds: kernels of a fragment (more where several results have `whole_products`), operators of a block, block graphs
    kept for each mapping, schedules for each block graph, seconds for a fragment (0: no limit). `sizes` says what symbols are
    typically, with `alone` what they always are; `jobs` processes close mappings at a time, which changes nothing but the
    time. `apart` keeps that many schedules of every engine and varies the kernels of a graph one at a time: more to measure,
    the same best. `engines` may make kernels beside the engine `block`. `largest` says of some sources, by number, what no
    magnitude in them exceeds, `growth` how fast the values grow as the model states them (`lax.growth`)."""

    max_kernels: int = 4
    max_ops: int = 24
    candidates: int = 6
    schedules: int = 4
    budget: float = 0.0
    sizes: tuple[tuple[str, int], ...] = ()
    jobs: int = 1
    apart: bool = False
    alone: bool = False
    engines: tuple[str, ...] = ENGINES
    largest: tuple[tuple[int, float], ...] = ()
    growth: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel graph with a schedule for each kernel, and what the model predicts for it."""

    graph: KernelGraph
    schedules: tuple[Schedule, ...]
    predicted_us: float
    floor_us: float
    order: tuple[float, float]  #: what candidates are ranked by: score, bytes moved


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Candidates of the search of a program for a target, cheapest first."""

    program: Program
    candidates: list[Candidate]
    statistics: SearchStatistics
    searcher: Searcher = field(repr=False, compare=False)

    def contains(self, graph: KernelGraph) -> Containment:
        """Containment of a muGraph for the program among those that the search represents."""
        return contains(self.searcher, self.program, graph)


class Searcher:
    """Searches programs; equal parts are searched once. One instance serves one run."""

    def __init__(self, options: SearchOptions, tell: Tell | None = None) -> None:
        self.options = options
        self._tell, self._standing = tell, Standing()
        self._blocks: dict[str, tuple[list[BlockGraph], SearchStatistics]] = {}
        self._options: dict[tuple[str, str], list[Option]] = {}
        self.models = Models()
        self._largest: dict[str, float] = {}
        self._short: set[tuple[str, str]] = set()  #: of those, where the best was left out for lack of room
        self._pool = Pool(options.jobs)
        self._until = time.monotonic() + options.budget if options.budget else math.inf

    def with_schedules(self, count: int) -> Searcher:
        """A searcher that keeps more schedules, apart, for each block graph and knows those that this one found."""
        return self._also(replace(self.options, schedules=count, apart=True))

    def with_graphs(self, times: int) -> Searcher:
        """A searcher that keeps so many times as many block graphs for each mapping, in what is left of the budget."""
        other = Searcher(replace(self.options, candidates=times * self.options.candidates), self._tell)
        other._standing, other._until = self._standing, self._until
        return other

    def at(self, sizes: Sizes) -> Searcher:
        """A searcher for these sizes alone that knows the block graphs that this one found."""
        return self._also(replace(self.options, sizes=tuple(sorted(sizes.items())), alone=True))

    def _also(self, options: SearchOptions) -> Searcher:
        other = Searcher(options, self._tell)
        other._blocks, other._standing, other._until = self._blocks, self._standing, self._until
        other.models = self.models
        return other

    def _note(self, **changes: Any) -> None:
        """Tell how far the search is."""
        if self._tell is not None:
            self._standing = replace(self._standing, **changes)
            self._tell(self._standing)

    def _closed(self, outcome: MappingOutcome) -> None:
        s = self._standing
        self._note(closed=s.closed + 1, values=s.values + outcome.values, mugraphs=s.mugraphs + len(outcome.graphs))

    # --- block graphs -------------------------------------------------------------------------------------------------
    def blocks(self, program: Program) -> tuple[list[BlockGraph], SearchStatistics]:
        """The block graphs that compute a whole program in one kernel."""
        self._find([program], self._until)
        return self._blocks[program.key()]

    def _find(self, programs: Sequence[Program], until: float) -> None:
        """Search those of the programs that are not known yet, all their mappings at a time, `until` a moment."""
        start = time.perf_counter()
        new = {key: p for p in programs if (key := p.key()) not in self._blocks}
        jobs: list[tuple[str, Mapping]] = []
        for key, p in new.items():
            statistics = SearchStatistics()
            try:
                jobs += [(key, m) for m in mappings(search_form(p))]
            except Refused as e:
                statistics.refused.append(str(e))
            self._blocks[key] = ([], statistics)
        for (key, mapping), outcome in zip(jobs, self._mapped(new, jobs, until), strict=True):
            graphs, statistics = self._blocks[key]
            if outcome.spent:
                statistics.refused.append(f"{mapping}: the budget of {self.options.budget:g} s was spent")
            statistics.mappings += not outcome.spent
            statistics.values += outcome.values
            statistics.refused += outcome.refused
            graphs += [g for g in outcome.graphs if g not in graphs]
        for key in new:
            graphs, statistics = self._blocks[key]
            statistics.mugraphs = len(graphs)
            statistics.seconds = (time.perf_counter() - start) / len(new)

    def _mapped(
        self, programs: dict[str, Program], jobs: Sequence[tuple[str, Mapping]], until: float
    ) -> Iterator[MappingOutcome]:
        """The outcome of each mapping `until` a moment. Behind `HOPELESS` values mappings are refused."""
        closures, values = self._closures(programs, jobs, until), 0
        for _, mapping in jobs:
            if values > HOPELESS:
                yield MappingOutcome(refused=[f"{mapping}: others have more than {HOPELESS} values"])
                continue
            outcome = next(closures)
            values += outcome.values
            yield outcome

    def _closures(
        self, programs: dict[str, Program], jobs: Sequence[tuple[str, Mapping]], until: float
    ) -> Iterator[MappingOutcome]:
        """The outcome of each mapping, as far as it is asked for."""
        calls = [(programs[key], m, self.options.candidates, self.options.max_ops, until) for key, m in jobs]
        self._note(mappings=self._standing.mappings + len(calls))
        if self.options.jobs > 1:
            yield from self._pool.map(mapping_graphs, calls, self._closed)
            return
        for call in calls:
            outcome = mapping_graphs(*call)
            self._closed(outcome)
            yield outcome

    # --- kernel graphs ------------------------------------------------------------------------------------------------
    def search(self, program: Program, target: Target) -> SearchResult:
        """Kernel graphs for a program on a target, cheapest first, with the statistics of the search."""
        parts = siblings(program)
        if parts and len(parts) <= self.options.max_kernels:
            return self._siblings(program, target, parts)
        total, counted = SearchStatistics(), set[str]()
        self._largest = {program.sources[k].name: top for k, top in self.options.largest}
        given, forms = program, variants(program)
        program = forms[0]
        floor = min(floor_us(p, target, dict(self.options.sizes)) for p in forms)
        if self.options.budget and self.options.max_kernels > 1:  # the other half is for several kernels
            self._find([program], (time.monotonic() + self._until) / 2)
        ways = self._ways(program, target, self.options.max_kernels)
        self._count(program, total, counted, whole=True)
        roomy = self._roomy(program, target, total)
        candidates = [c for o in ways for c in roomy(self._candidate(o, floor))]
        best = min((c.order[0] for c in candidates), default=math.inf)
        if not target.threaded or best - self._floor(program, target) > FAR_FROM_FLOOR * target.launch_us:
            first = unpacked(program) if target.threaded else []
            first = first if len(first) > 1 else whole_products(program)
            candidates += [r for c in self._behind(program, first, target, floor, total) for r in roomy(c)]
        self._note(best_us=min((c.predicted_us for c in candidates), default=None))
        budget, hopeful, hopeless = (total.values + n for n in (MAX_CUT_VALUES, HOPEFUL_VALUES, HOPELESS))

        def scores(parts: Sequence[Program]) -> list[dict[int, float]]:
            self._find(parts, self._until)
            scores_of_parts: list[dict[int, float]] = [{} for _ in parts]
            for part, best in zip(parts, scores_of_parts, strict=True):
                for o in self._ways(part, target, self.options.max_kernels):
                    best.setdefault(len(o.ranks), o.sum)
                self._count(part, total, counted)
            return scores_of_parts

        def bound(part: Program) -> float:
            return target.least_launch_us + self._floor(part, target)

        def spent(gain: float) -> bool:
            return total.values > (budget if gain < HOPEFUL else hopeful if gain < math.inf else hopeless)

        for form in forms[::-1]:
            best = min((c.order[0] for c in candidates), default=math.inf)
            short = (program.key(), target.name) in self._short
            if best - self._floor(form, target) > (NEAR_FLOOR if short else FAR_FROM_FLOOR) * target.launch_us:
                cuts = Branches(form, self.options.max_kernels, bound, scores, self._until).run(best / MARGIN, spent)
                for parts in cuts:
                    chosen = (self._candidate(o, floor) for o in self._with_parts(form, target, parts))
                    candidates += (c for m in chosen for c in roomy(m))
                    self._note(best_us=min((c.predicted_us for c in candidates), default=None))
        candidates += self._staged(candidates, target)
        candidates.sort(key=lambda c: c.order)
        total.mugraphs = max(total.mugraphs, len({c.graph for c in candidates}))
        return SearchResult(given, candidates, total, self)

    def _behind(
        self, program: Program, parts: Sequence[Part], target: Target, floor: float, total: SearchStatistics
    ) -> Iterator[Candidate]:
        """Candidates that compute all parts but the last one first, each by a kernel of its own."""
        *first, (rest, labels) = parts
        ways = [self._ways(part, target, 1) for part, _ in first]
        if not first or not all(ways) or len(first) >= self.options.max_kernels:
            return
        found = self._also(self._of_part(labels, self.options.max_kernels - len(first))).search(rest, target)
        total.add(found.statistics)
        firsts = (
            [(o,) for o in by_blocks(ways[0])] if len(ways) == 1 and target.kind == "cuda" else [[w[0] for w in ways]]
        )
        for some, c in itertools.product(firsts, found.candidates[: self.options.schedules]):
            whole = self._together(program, target, parts, (*(self._candidate(o, floor) for o in some), c))
            yield replace(whole, order=(MARGIN * whole.order[0], whole.order[1]))

    def _of_part(self, labels: Sequence[str], max_kernels: int) -> SearchOptions:
        """Options for a part whose sources are `labels`."""
        largest = ((labels.index(at), top) for k, top in self.options.largest if (at := f"source {k}") in labels)
        return replace(self.options, largest=tuple(largest), max_kernels=max_kernels)

    def _siblings(self, program: Program, target: Target, parts: Sequence[Part]) -> SearchResult:
        """Kernel graphs for a program with results that have nothing in common but what they read: the best of each, and the
        best of each among those whose kernels can be started together."""
        total, found, options = SearchStatistics(), list[list[Candidate]](), self.options
        whole = [len(whole_products(part)) - 1 for part, _ in parts]
        for (part, labels), extra in zip(parts, whole, strict=True):
            more = self._of_part(labels, options.max_kernels - len(parts) + 1 + extra)
            own = self._also(replace(more, schedules=SHAPES * options.schedules)).search(part, target)
            found.append(own.candidates)
            total.add(own.statistics)
        lengths = [min(SHAPES * options.schedules, len(c)) for c in found]  # some may not fit
        places = best_combinations(lengths, options.apart) if all(lengths) else ()
        chosen = [tuple(c[k] for c, k in zip(found, at, strict=True)) for at in places]

        def seen(c: Candidate) -> list[Beside]:
            kernels, sizes = zip(c.graph.kernels, c.schedules, strict=True), dict(options.sizes)
            return [beside(k, s, target, sizes, self.models) for k, s in kernels]

        most, together = options.max_kernels + sum(whole), (*chosen, *alike(found, seen, target))
        fitting = dict.fromkeys(c for c in together if sum(len(x.schedules) for x in c) <= most)
        candidates = [self._together(program, target, parts, c) for c in fitting]
        candidates += self._staged(candidates, target)
        candidates.sort(key=lambda c: c.order)
        return SearchResult(program, candidates, total, self)

    def _staged(self, candidates: Sequence[Candidate], target: Target) -> list[Candidate]:
        """Candidates whose launches are stages of one, where that is predicted to be faster than any of these, or worth a
        measurement."""
        o, best = self.options, min((c.predicted_us for c in candidates), default=math.inf)
        graphs, found = dict[KernelGraph, Candidate](), list[Candidate]()
        if target.kind != "cuda" or not target.features.dependent_launch:  # of others it is not known what stages cost
            return found
        for c in sorted(candidates, key=lambda c: c.order):
            graphs.setdefault(c.graph, c)
        below = STAGED_NEAR * best if o.apart else best
        several = [c for c in graphs.values() if len(launches(c.graph, c.schedules)) > 1]
        for c in several[:STAGED]:
            if least_us(c.graph, c.schedules, c.predicted_us, target) < below:
                for schedules, us in staged_ways(c.graph, target, dict(o.sizes), o.alone, below, self.models):
                    order = (c.order[0] * us / c.predicted_us, c.order[1])
                    found.append(replace(c, schedules=schedules, predicted_us=us, order=order))
        return found

    def _together(
        self, program: Program, target: Target, parts: Sequence[Part], chosen: Sequence[Candidate]
    ) -> Candidate:
        """Candidates of parts as one of the program."""
        graph = link(program, parts, [c.graph for c in chosen])
        schedules = tuple(s for c in chosen for s in c.schedules)
        sizes = dict(self.options.sizes)
        apart = sum(c.predicted_us for c in chosen)
        us = total_us(graph, schedules, target, sizes, self.models)
        orders = [sum(x) for x in zip(*(c.order for c in chosen), strict=True)]
        return Candidate(graph, schedules, us, floor_us(program, target, sizes), (orders[0] * us / apart, orders[1]))

    def _roomy(
        self, program: Program, target: Target, total: SearchStatistics
    ) -> Callable[[Candidate], Iterator[Candidate]]:
        """A function that gives a candidate for CUDA, so changed that 16-bit operands overflow only where the
        program's do; or none."""
        known: dict[KernelGraph, KernelGraph | None] = {}

        def roomy(c: Candidate) -> Iterator[Candidate]:
            if not target.threaded:
                yield c
                return
            if c.graph not in known:
                known[c.graph] = None
                try:
                    known[c.graph] = with_headroom(program, c.graph, dict(self.options.largest))
                except Refused as e:
                    total.refused.append(str(e))
            graph = known[c.graph]
            if graph is not None:
                yield replace(c, graph=graph)

        return roomy

    def _count(self, program: Program, total: SearchStatistics, counted: set[str], whole: bool = False) -> None:
        key = program.key()
        if key in counted:
            return
        counted.add(key)
        _, own = self._blocks[key]
        total.mappings += own.mappings
        total.values += own.values
        total.seconds += own.seconds
        total.mugraphs += own.mugraphs if whole else 0
        total.refused += own.refused

    def _candidate(self, o: Option, floor: float) -> Candidate:
        predictions = [r.prediction for r in o.ranks]
        return Candidate(
            o.graph,
            tuple(r.schedule for r in o.ranks),
            o.behind_us + sum(p.us for p in predictions),
            floor,
            (o.score, sum(p.moved for p in predictions)),
        )

    # --- one part -----------------------------------------------------------------------------------------------------
    def _ways(self, program: Program, target: Target, max_kernels: int) -> list[Option]:
        """The ways to compute a program in one kernel, or in two that share a split reduction; best first."""
        key = (program.key(), target.name)
        if key not in self._options:
            graphs, _ = self.blocks(program)
            one = [Option(one_kernel(program, g), (r,)) for g in graphs for r in self._ranked(program, g, target)]
            split = sorted((o for o in one if o.graph.kernels[0].block.split), key=lambda o: o.order)
            one = [o for o in one if target.joins_blocks or not o.graph.kernels[0].block.split]
            every = [*one, *self._combined(program, target, one, split)]
            if target.threaded:
                known = {g: self._has_room(program, g) for g in dict.fromkeys(o.graph for o in every)}
                if every and not known[min(every, key=lambda o: o.order).graph]:
                    self._short.add(key)
                every = [o for o in every if known[o.graph]] or every  # what is left of no part is told of the whole
            self._options[key] = sorted(every, key=lambda o: o.order)
        return [o for o in self._options[key] if len(o.ranks) <= max_kernels]

    def _has_room(self, program: Program, graph: KernelGraph) -> bool:
        """True if the operands of a part's products have room in their type, or can be given it."""
        largest = {k: self._largest[s.name] for k, s in enumerate(program.sources) if s.name in self._largest}
        try:
            with_headroom(program, graph, largest)
        except Refused:
            return False
        return True

    def _ranked(self, program: Program, graph: BlockGraph, target: Target) -> list[Ranked]:
        o, sizes = self.options, dict(self.options.sizes)
        return ranked(program, graph, target, o.schedules, sizes, o.apart, o.alone, o.engines, self.models)

    def _combined(
        self, program: Program, target: Target, one: Sequence[Option], split: Sequence[Option]
    ) -> Iterator[Option]:
        """Two kernels for the best block graphs with a split reduction, where they may be better than one kernel."""
        best = min((o.score for o in one), default=math.inf)
        if self.options.max_kernels < 2 or 2 * target.least_launch_us + self._floor(program, target) >= best:
            return
        blocks = list(dict.fromkeys(o.graph.kernels[0].block for o in split))[:COMBINED]
        for block, parts in itertools.product(blocks, COMBINING):
            extent = program.extent(block.split[0])
            if not isinstance(extent, int) or extent < parts * SHORTEST or extent % parts:
                continue
            try:
                graph = two_kernels(program, block, parts)
            except Refused:
                continue
            kernels = [self._ranked(k.program, k.block, target) for k in graph.kernels]
            if not kernels[0]:
                continue
            if not kernels[1] or kernels[1][0].score > 2 * (target.launch_us + kernels[1][0].prediction.floor_us):
                graph, kernels[1] = self._second(graph, target, kernels[1])
            for places in (
                best_combinations([len(ranks) for ranks in kernels], self.options.apart) if all(kernels) else ()
            ):
                yield in_turn(graph, [ranks[k] for k, ranks in zip(places, kernels, strict=True)], target)

    def _second(self, graph: KernelGraph, target: Target, known: list[Ranked]) -> tuple[KernelGraph, list[Ranked]]:
        """The kernel graph with the best block graph for what its second kernel computes."""
        first, second = graph.kernels
        best, block = known, second.block
        for other in self.blocks(second.program)[0]:
            options = self._ranked(second.program, other, target)
            if options and (not best or options[0].order < best[0].order):
                best, block = options, other
        kernel = CustomKernel(second.program, block, second.inputs, second.outputs)
        return KernelGraph(graph.sources, graph.outputs, graph.tensors, (first, kernel)), best

    # --- several parts ------------------------------------------------------------------------------------------------
    def _floor(self, program: Program, target: Target) -> float:
        """The least score of a program: see `ranked`."""
        typical = floor_us(program, target, dict(self.options.sizes))
        if not program.symbols or self.options.alone:
            return typical
        return math.sqrt(typical * floor_us(program, target, dict.fromkeys(program.symbols, SMALL)))

    def _with_parts(self, program: Program, target: Target, parts: Sequence[Part]) -> Iterator[Option]:
        spare = self.options.max_kernels - len(parts)
        ways = [self._ways(p, target, 1 + spare) for p, _ in parts]
        if not all(ways):
            return
        count = self.options.schedules
        for places in best_combinations([min(count, len(w)) for w in ways], self.options.apart, count):
            chosen = fitting_options([w[k:] for k, w in zip(places, ways, strict=True)], self.options.max_kernels)
            if chosen is None:
                return
            graph = link(program, parts, [o.graph for o in chosen])
            yield in_turn(graph, [r for o in chosen for r in o.ranks], target)
