"""The proof: a muGraph equals its program, by evaluation at random points of several prime fields (design section 10).

Independent of the search: own seeds, own primes, the structure that is rendered (blocks, iterations, partial tiles, running
maxima). `stand_in` chooses the extents, `degrees` computes what the error bound needs; docs/proof.md states the theorem.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.field import Residues, ZeroDenominator, random_primes
from mirage_cli.lax.program import Program, evaluate_program
from mirage_cli.search import degrees
from mirage_cli.search.evaluate import Tiles, evaluate_kernels
from mirage_cli.search.mugraph import CustomKernel, KernelGraph
from mirage_cli.search.stand_in import Point, points

DEFAULT_CONFIDENCE = 40  #: bits: the bound is to be below 2 ** -confidence
SYMBOL_LIMIT = 1 << 20  #: what a symbol is taken to be at most when the bound is computed
MAX_DRAWS = 8  #: random points that are tried when denominators vanish
MIN_FIELDS, MAX_FIELDS = 3, 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a proof: `passed`, and with what error bound (2 ** `log2_bound`)."""

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

    def to_json(self) -> dict[str, Any]:
        """The report's form."""
        data = asdict(self)
        data["primes"] = list(self.primes)
        data["error_bound"] = 2.0**self.log2_bound if self.log2_bound > -1000 else 0.0
        return data


def verify(
    program: Program,
    graph: KernelGraph,
    tiles: Sequence[Tiles],
    seed: int = 0,
    confidence: int = DEFAULT_CONFIDENCE,
) -> Verdict:
    """Prove or refute that `graph`, run with `tiles`, computes `program` for every input.

    A refutation is certain; an acceptance errs with at most the probability stated. Raises InvalidGraph for a graph that
    is not well-formed or not one for this program.
    """
    start = time.perf_counter()
    check_tensors(program, graph.validate(), tiles)
    worst, arguments = degrees.figures(program, graph, tiles, dict.fromkeys(program.symbols, SYMBOL_LIMIT))
    fields = MIN_FIELDS
    while degrees.bound(worst, arguments, fields, MAX_DRAWS).log2 > -confidence and fields < MAX_FIELDS:
        fields += 1
    bound = degrees.bound(worst, arguments, fields, MAX_DRAWS)
    primes: tuple[int, ...] = ()
    reason, real = "", True
    if bound.log2 > -confidence:
        reason = f"the error bound 2^{bound.log2:.1f} is above the 2^-{confidence} asked for"
    try:
        for point in () if reason else points(program, graph, tiles):
            real = real and point.real
            reason, primes = _compare(point, tiles, seed, fields)
            if reason:
                break
    except Refused as e:
        reason = str(e)
    return Verdict(
        not reason,
        "uninterpreted",
        primes,
        worst.degree,
        arguments.degree,
        round(max(worst.bits, arguments.bits), 1),
        worst.applications,
        1,
        bound.log2,
        "real" if real else "stand-in",
        time.perf_counter() - start,
        reason,
    )


def _compare(point: Point, tiles: Sequence[Tiles], seed: int, fields: int) -> tuple[str, tuple[int, ...]]:
    """Why the two differ at a random point (or nothing), and the primes."""
    primes: tuple[int, ...] = ()
    for draw in range(MAX_DRAWS):
        key = int.from_bytes(hashlib.sha256(f"mirage proof, seed {seed}, draw {draw}".encode()).digest()[:16], "little")
        primes = random_primes(key, fields)
        shared = _Shared(key, primes)
        program, symbols = point.program, point.symbols
        try:
            domain = shared(program)
            arrays = {
                k: domain.random(f"source {k}", [ex.value(e, symbols) for e in s.dims])
                for k, s in enumerate(program.sources)
            }
            wanted = evaluate_program(program, domain, arrays, symbols)
            found = evaluate_kernels(point.graph, list(tiles), shared, arrays, symbols)
        except ZeroDenominator:
            continue
        except (ValueError, IndexError, KeyError) as e:
            raise InvalidGraph(f"the muGraph does not fit its program: {e}") from None
        for k, (w, f) in enumerate(zip(wanted, found, strict=True)):
            if w.shape != f.shape:
                return f"output {k} has shape {f.shape[1:]} instead of {w.shape[1:]}", primes
            if not np.array_equal(w, f):
                where = np.argwhere((w != f).any(axis=0))[0]
                return (
                    f"output {k} differs at {tuple(int(i) for i in where)} (random point {draw}, seed {seed})",
                    primes,
                )
        return "", primes
    return f"{MAX_DRAWS} random points met a division by zero", primes


class _Shared:
    """Domains for a program and the kernels of a graph: the same functions, positions and constants, but arbitrary
    factors of exponentials that are each domain's own."""

    def __init__(self, seed: int, primes: tuple[int, ...]) -> None:
        self.seed, self.primes = seed, primes
        self.count = itertools.count()

    def __call__(self, program: Program) -> Residues:
        return Residues([a.name for a in program.axes], self.seed, self.primes, f"domain {next(self.count)}")


def check_tensors(program: Program, graph: KernelGraph, tiles: Sequence[Tiles]) -> None:
    """Check that a kernel graph is one for this program: it has its tensors and its axes, at their real extents, which
    stand-ins could hide. Raises InvalidGraph."""
    if (graph.sources, graph.outputs, len(graph.kernels)) != (len(program.sources), len(program.outputs), len(tiles)):
        raise InvalidGraph(
            f"the muGraph has {graph.sources} inputs, {graph.outputs} outputs and {len(graph.kernels)} kernels; "
            f"the program has {len(program.sources)} and {len(program.outputs)}, the schedule {len(tiles)}"
        )
    tensors: dict[int, tuple[Extent, DType]] = {k: (ex.product(s.dims), s.dtype) for k, s in enumerate(program.sources)}
    wanted = {graph.sources + k: (ex.product(o.dims), o.dtype) for k, o in enumerate(program.outputs)}
    extents = {a.name: a.extent for a in program.axes}
    for number, kernel in enumerate(graph.kernels):
        for a in kernel.program.axes:
            if extents.get(a.name) != a.extent:
                raise InvalidGraph(f"kernel {number}: axis {a.name} = {a.extent}, in the program {extents.get(a.name)}")
        _check_kernel(number, kernel, tensors)
        for t, o in zip(kernel.outputs, kernel.program.outputs, strict=True):
            found = (ex.product(o.dims), o.dtype)
            if t in tensors or wanted.get(t, found) != found:
                raise InvalidGraph(f"kernel {number} writes {found[0]} x {found[1]} to tensor {t}")
            tensors[t] = found


def _check_kernel(number: int, kernel: CustomKernel, tensors: dict[int, tuple[Extent, DType]]) -> None:
    counts = len(kernel.program.sources), len(kernel.program.outputs)
    if (len(kernel.inputs), len(kernel.outputs)) != counts:
        raise InvalidGraph(f"kernel {number} has {counts[0]} inputs and {counts[1]} outputs, the muGraph other ones")
    for t, s in zip(kernel.inputs, kernel.program.sources, strict=True):
        if tensors.get(t) != (ex.product(s.dims), s.dtype):
            raise InvalidGraph(f"kernel {number} reads {ex.product(s.dims)} x {s.dtype} from tensor {t}")
