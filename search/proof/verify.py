"""The proof: a muGraph equals its program, by evaluation at random points of several prime fields (design section 10).

Independent of the search: own seeds, own primes, the structure that is rendered (blocks, iterations, partial tiles, running
maxima). `stand_in` chooses the extents, `degrees` computes what the error bound needs; docs/proof.md states the theorem.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from mirage_cli.errors import InvalidGraph, Refused, UsageError
from mirage_cli.lax import extents as ex
from mirage_cli.lax.bounds.exponentials import HomomorphicBound, exponential
from mirage_cli.lax.bounds.homomorphic import Homomorphic, random_pair
from mirage_cli.lax.domains.field import Residues, ZeroDenominator, random_primes
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.lax.ops import OPS
from mirage_cli.search.mugraph.documents import graph_to_json
from mirage_cli.search.mugraph.evaluate import Tiles, evaluate_kernels
from mirage_cli.search.mugraph.mugraph import CustomKernel, KernelGraph
from mirage_cli.search.proof import degrees
from mirage_cli.search.proof.parts import Part
from mirage_cli.search.proof.stand_in import Point, points

Mode = Literal["auto", "uninterpreted", "homomorphic"]
Extents = Literal["auto", "real"]
UNINTERPRETED, HOMOMORPHIC = "uninterpreted", "homomorphic"
DEFAULT_CONFIDENCE = 40  #: bits: the bound is to be below 2 ** -confidence
SYMBOL_LIMIT = 1 << 20  #: what a symbol is taken to be at most when the bound is computed
MAX_DRAWS = 8  #: random points that are tried when denominators vanish
MIN_FIELDS, MAX_FIELDS = 3, 16
MAX_ROUNDS = 64  #: of the homomorphic test
MAX_REDRAWS = 3  #: points of all its rounds that may be drawn again when denominators vanish


@dataclass(frozen=True, slots=True)
class KernelRun:
    """The outcome of running the kernels that are printed for a muGraph, thread by thread, over residues, beside its program:
    `passed`, or why not (or why nothing was run: `compared` is 0 then); at extents that are "real" or a "stand-in", how many
    elements of outputs were compared in how many `fields`."""

    passed: bool
    reason: str = ""
    extents: str = ""
    compared: int = 0
    fields: int = 0
    seconds: float = 0.0

    @property
    def refuted(self) -> bool:
        """True if the kernels were run and do something else."""
        return not self.passed and bool(self.compared)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a proof: `passed`, and with what error bound (2 ** `log2_bound`).

    Of a homomorphic one, `primes` are the pairs of all rounds, `terms` the number of exponentials behind an entry,
    `exponent_degree` the degree of a difference of their exponents, and `paper_log2_bound` what the paper's own theorem says.
    `entropy` is what the random points come from, beside the program, the muGraph and the seed. The bound covers all
    `candidates` that were tried until one was accepted. `kernels` is what came of running what is printed for it.
    """

    passed: bool
    mode: str
    primes: tuple[int, ...]
    degree: int
    argument_degree: int
    coefficient_bits: float
    applications: int
    rounds: int
    log2_bound: float
    extents: str  #: "real" or "stand-in"
    seconds: float
    reason: str = ""
    terms: int | None = None
    exponent_degree: int | None = None
    paper_log2_bound: float | None = None
    entropy: str = ""
    candidates: int = 1
    kernels: KernelRun | None = None

    def to_json(self) -> dict[str, Any]:
        """The report's form."""
        data = {k: v for k, v in asdict(self).items() if v is not None}
        data["primes"] = list(self.primes)
        data["error_bound"] = 2.0**self.log2_bound if self.log2_bound > -1000 else 0.0
        return data

    def among(self, candidates: int) -> Verdict:
        """The verdict on the one that was accepted of so many: any of them might have been, wrongly."""
        return replace(self, log2_bound=min(0.0, self.log2_bound + math.log2(candidates)), candidates=candidates)


def verify(
    program: Program,
    graph: KernelGraph,
    tiles: Sequence[Tiles],
    seed: int = 0,
    confidence: int = DEFAULT_CONFIDENCE,
    mode: Mode = "auto",
    extents: Extents = "auto",
    entropy: str = "",
) -> Verdict:
    """Prove or refute that `graph`, run with `tiles`, computes `program` for every input.

    A refutation is certain for the mode's reading of exp; an acceptance errs with at most the probability stated. `mode`
    "auto" takes exponentials for arbitrary functions, and where that finds a difference, uses exp(a) exp(b) = exp(a + b)
    as well. `extents` "real" compares at the real extents however long that takes. Random points come from the program, the
    muGraph, the seed and `entropy`: nobody who does not know all of them beforehand can aim at them. Raises InvalidGraph for
    a graph that is not well-formed or not one for this program, UsageError for an unknown mode.
    """
    _check_choice("mode", mode, get_args(Mode))
    _check_choice("extents", extents, get_args(Extents))
    check_tensors(program, graph.validate(), tiles)
    job = _Job(program, graph, tiles, seed, confidence, extents, entropy)
    if mode == HOMOMORPHIC:
        return job.homomorphic()
    verdict, refuted = job.uninterpreted()
    if not refuted or mode == UNINTERPRETED or not merges_exponentials(program, graph):
        return verdict
    other = job.homomorphic()
    seconds = verdict.seconds + other.seconds
    if other.passed:
        return replace(other, seconds=seconds)
    reason = f"{verdict.reason}; with exp(a) exp(b) = exp(a + b): {other.reason}"
    return replace(verdict, seconds=seconds, reason=reason)


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name}: expected one of {', '.join(known)}, found {value!r}")


def merges_exponentials(program: Program, graph: KernelGraph) -> bool:
    """True if the program or the muGraph has an exponential that is not a stabilised one."""
    ops = {n.op for n in program.nodes}
    for kernel in graph.kernels:
        ops.update(n.op for o in kernel.block.ops if o.thread is not None for n in o.thread.nodes)
    return any(exponential(op) for op in ops if op in OPS)


@dataclass(frozen=True)
class _Job:
    """One proof."""

    program: Program
    graph: KernelGraph
    tiles: Sequence[Tiles]
    seed: int
    confidence: int
    extents: str
    entropy: str

    @functools.cached_property
    def salt(self) -> str:
        """The text that random points are drawn from."""
        text = json.dumps(graph_to_json(self.graph), sort_keys=True)
        return f"{self.entropy}, seed {self.seed}, {self.program.key()}, {hashlib.sha256(text.encode()).hexdigest()}"

    def uninterpreted(self) -> tuple[Verdict, bool]:
        """The verdict where exp is an arbitrary function, and whether a difference was found."""
        start = time.perf_counter()
        worst, arguments = degrees.figures(self.program, self.graph, self.tiles, self.symbols)
        fields = MIN_FIELDS
        while degrees.bound(worst, arguments, fields, MAX_DRAWS).log2 > -self.confidence and fields < MAX_FIELDS:
            fields += 1
        bound = degrees.bound(worst, arguments, fields, MAX_DRAWS)
        outcome = _Outcome(self.above(bound.log2))
        if not outcome.reason:
            outcome = self.run(lambda point: self.fields(point, fields))
        verdict = Verdict(
            not outcome.reason,
            UNINTERPRETED,
            outcome.primes,
            worst.degree,
            arguments.degree,
            round(max(worst.bits, arguments.bits), 1),
            worst.applications,
            1,
            bound.log2,
            outcome.extents,
            time.perf_counter() - start,
            outcome.reason,
            entropy=self.entropy,
        )
        return verdict, outcome.refuted

    def homomorphic(self) -> Verdict:
        """The verdict where exp(a) exp(b) = exp(a + b)."""
        start = time.perf_counter()
        try:
            gap, arguments = degrees.exponential_figures(self.program, self.graph, self.tiles, self.symbols)
        except Refused as e:
            return Verdict(False, HOMOMORPHIC, (), 0, 0, 0.0, 0, 0, 0.0, "", time.perf_counter() - start, str(e))
        bound = HomomorphicBound(gap, arguments.degree, arguments.bits, 1, MAX_REDRAWS)
        while bound.log2 > -self.confidence and bound.rounds < MAX_ROUNDS:
            bound = replace(bound, rounds=bound.rounds + 1)
        outcome = _Outcome(self.above(bound.log2))
        if outcome.reason:
            outcome = _Outcome(f"{outcome.reason} ({gap.terms} exponentials in an entry, {bound.rounds} rounds)")
        else:
            outcome = self.run(lambda point: self.rounds(point, bound.rounds))
        return Verdict(
            not outcome.reason,
            HOMOMORPHIC,
            outcome.primes,
            gap.sides.degree,
            arguments.degree,
            round(max(gap.sides.bits, gap.exponent_bits, arguments.bits), 1),
            gap.sides.applications,
            bound.rounds,
            bound.log2,
            outcome.extents,
            time.perf_counter() - start,
            outcome.reason,
            gap.terms,
            gap.exponent,
            bound.paper,
            self.entropy,
        )

    @property
    def symbols(self) -> dict[str, int]:
        return dict.fromkeys(self.program.symbols, SYMBOL_LIMIT)

    def above(self, log2_bound: float) -> str:
        """The reason why a bound does not do, or nothing."""
        if log2_bound <= -self.confidence:
            return ""
        return f"the error bound 2^{log2_bound:.1f} is above the 2^-{self.confidence} asked for"

    def run(self, compare: Callable[[Point], _Outcome]) -> _Outcome:
        """The outcome at all extents that are to be compared at."""
        real, outcome = True, _Outcome()
        try:
            for point in points(self.program, self.graph, self.tiles, self.extents == "real"):
                real = real and point.real
                outcome = compare(point)
                if outcome.reason:
                    break
        except Refused as e:
            outcome = _Outcome(str(e))
        return replace(outcome, extents="real" if real else "stand-in")

    def fields(self, point: Point, fields: int) -> _Outcome:
        """Compare in so many prime fields at once, at another point where a denominator is zero."""
        primes: tuple[int, ...] = ()
        for draw in range(MAX_DRAWS):
            key = _key(f"mirage proof, {self.salt}, draw {draw}")
            primes = random_primes(key, fields)
            try:
                reason = self.compare(
                    point, _Shared(functools.partial(Residues, seed=key, primes=primes), fields), draw
                )
            except ZeroDenominator:
                continue
            return _Outcome(reason, primes, bool(reason))
        return _Outcome(f"{MAX_DRAWS} random points met a division by zero", primes)

    def rounds(self, point: Point, rounds: int) -> _Outcome:
        """Compare in so many pairs of prime fields, one after the other."""
        primes: list[int] = []
        for draw in range(rounds + MAX_REDRAWS):
            key = _key(f"mirage homomorphic proof, {self.salt}, draw {draw}")
            pair = random_pair(np.random.default_rng(key))
            try:
                shared = _Shared(functools.partial(Homomorphic, seed=key, pair=pair), 2)
                reason = self.compare(point, shared, draw, 1)
            except ZeroDenominator:
                continue
            primes += [pair.p, pair.q]
            if reason or len(primes) == 2 * rounds:
                return _Outcome(reason, tuple(primes), bool(reason))
        return _Outcome(f"more than {MAX_REDRAWS} random points met a division by zero", tuple(primes))

    def compare(self, point: Point, shared: _Shared, draw: int, rows: int | None = None) -> str:
        """Why the two differ at a random point in the first `rows` fields (all of them), or nothing."""
        for part in point.parts(self.tiles, shared.fields):
            if reason := self.compare_part(part, point.symbols, shared, draw, rows):
                return f"{reason} of {part.where}" if part.where else reason
        return ""

    def compare_part(self, part: Part, symbols: dict[str, int], shared: _Shared, draw: int, rows: int | None) -> str:
        """Why the two differ in a part of their positions, or nothing."""
        program = part.program
        try:
            domain = shared(program)
            arrays = {
                k: domain.stored(name, [ex.value(e, symbols) for e in s.dims])
                for k, (name, s) in enumerate(zip(part.names, program.sources, strict=True))
            }
            wanted = evaluate_program(program, domain, arrays, symbols)
            computed = evaluate_kernels(part.graph, list(self.tiles), shared, arrays, symbols)
        except (ValueError, IndexError, KeyError) as e:
            raise InvalidGraph(f"the muGraph does not fit its program: {e}") from None
        for k, (w, f) in enumerate(zip(wanted, computed, strict=True)):
            if w.shape != f.shape:
                return f"output {k} has shape {f.shape[1:]} instead of {w.shape[1:]}"
            if not np.array_equal(w[:rows], f[:rows]):
                where = np.argwhere((w[:rows] != f[:rows]).any(axis=0))[0]
                place = tuple(int(i) for i in where)
                return f"output {k} differs at {place} (random point {draw}, seed {self.seed})"
        return ""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of comparing: why not (or nothing), in which fields, and whether because of a difference."""

    reason: str = ""
    primes: tuple[int, ...] = ()
    refuted: bool = False
    extents: str = "real"


def _key(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


class _Shared:
    """Domains for a program and the kernels of a graph: the same functions, positions and constants, but arbitrary
    factors of exponentials that are each domain's own."""

    def __init__(self, make: Callable[..., Residues], fields: int) -> None:
        self.make, self.fields = make, fields
        self.count = itertools.count()

    def __call__(self, program: Program) -> Residues:
        return self.make([a.name for a in program.axes], stream=f"domain {next(self.count)}")


def check_tensors(program: Program, graph: KernelGraph, tiles: Sequence[Tiles]) -> None:
    """Check that a kernel graph is one for this program: it has its tensors and its axes, at their real extents, which
    stand-ins could hide, and otherwise axes on which its kernels agree. Raises InvalidGraph."""
    if (graph.sources, graph.outputs, len(graph.kernels)) != (len(program.sources), len(program.outputs), len(tiles)):
        raise InvalidGraph(
            f"the muGraph has {graph.sources} inputs, {graph.outputs} outputs and {len(graph.kernels)} kernels; "
            f"the program has {len(program.sources)} and {len(program.outputs)}, the schedule {len(tiles)}"
        )
    tensors: dict[int, tuple[Extent, DType]] = {k: (ex.product(s.dims), s.dtype) for k, s in enumerate(program.sources)}
    wanted = {graph.sources + k: (ex.product(output.dims), output.dtype) for k, output in enumerate(program.outputs)}
    extents = {a.name: a.extent for a in program.axes}
    for number, kernel in enumerate(graph.kernels):
        for a in kernel.program.axes:
            if isinstance(a.extent, int) or _divides(a.extent, tensors):
                # an axis of the kernels alone: a part of the program's, or several
                extents.setdefault(a.name, a.extent)
            if extents.get(a.name) != a.extent:
                raise InvalidGraph(f"kernel {number}: axis {a.name} = {a.extent}, elsewhere {extents.get(a.name)}")
        _check_kernel(number, kernel, tensors)
        for t, output in zip(kernel.outputs, kernel.program.outputs, strict=True):
            stored = (ex.product(output.dims), output.dtype)
            if t in tensors or wanted.get(t, stored) != stored:
                raise InvalidGraph(f"kernel {number} writes {stored[0]} x {stored[1]} to tensor {t}")
            tensors[t] = stored


def _divides(extent: Extent, tensors: Mapping[int, tuple[Extent, DType]]) -> bool:
    """True if a tensor may have a dimension of so many positions, whatever its symbols are."""
    return any(ex.quotient(size, extent) is not None for size, _ in tensors.values())


def _check_kernel(number: int, kernel: CustomKernel, tensors: dict[int, tuple[Extent, DType]]) -> None:
    counts = len(kernel.program.sources), len(kernel.program.outputs)
    if (len(kernel.inputs), len(kernel.outputs)) != counts:
        raise InvalidGraph(f"kernel {number} has {counts[0]} inputs and {counts[1]} outputs, the muGraph other ones")
    for t, s in zip(kernel.inputs, kernel.program.sources, strict=True):
        if tensors.get(t) != (ex.product(s.dims), s.dtype):
            raise InvalidGraph(f"kernel {number} reads {ex.product(s.dims)} x {s.dtype} from tensor {t}")
