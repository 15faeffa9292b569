"""Time and memory of proofs at the real extents: the table of docs/reference/measurements.md.

    python samples/real_extents.py [CASE ...]

For each case the muGraph that is found for an H100; proofs in a process of their own, at as many positions of
independent axes as `verify` takes and at all of them.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.evaluate import Tiles
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.proof import stand_in
from mirage_cli.search.proof.verify import Verdict, verify
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher
from samples.cases import CASES, program, search_options

HEADER = (
    "case",
    "million inputs",
    "fields",
    "s",
    "processor s",
    "peak MB",
    "all positions: s",
    "processor s",
    "peak MB",
)
CHOSEN = (
    "rmsnorm_gain_linear",
    "osdi_rmsnorm",
    "osdi_gqa",
    "seed_attention",
    "mha_prefill",
    "mqa_prefill",
    "osdi_gated_mlp",
    "norm_gated_mlp",
    "gated_mlp_down",
    "moe",
    "mla_absorbed",
)


def measured(sender: Connection, p: Program, graph: KernelGraph, tiles: Sequence[Tiles], patient: float) -> None:
    """Send the verdict, its seconds on the wall and of processors, and the peak of memory in MB."""
    stand_in.PATIENT = patient
    start, used = time.perf_counter(), time.process_time()
    verdict = verify(p, graph, tiles, extents="real")
    seconds, used = time.perf_counter() - start, time.process_time() - used
    sender.send((verdict, seconds, used, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def alone(
    p: Program, graph: KernelGraph, tiles: Sequence[Tiles], patient: float
) -> tuple[Verdict, float, float, float]:
    """`measured` in a process of its own."""
    receiver, sender = multiprocessing.Pipe(False)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=measured, args=(sender, p, graph, tiles, patient))
    child.start()
    sender.close()
    outcome: tuple[Verdict, float, float, float] = receiver.recv()
    child.join()
    return outcome


def row(name: str) -> str:
    """The table's row of a case."""
    p = program(CASES[name])
    result = Searcher(search_options(CASES[name], p)).search(p, load_target("sm_90a"))
    best = result.candidates[0]
    tiles = [s.as_tiles() for s in best.schedules]
    inputs = sum(math.prod(ex.value(e, {}) for e in s.dims) for s in p.sources)
    cells = [f"`{name}`", f"{inputs / 1e6:.1f}"]
    for patient in (stand_in.PATIENT, math.inf):
        verdict, seconds, used, peak = alone(result.program, best.graph, tiles, patient)
        if not verdict.passed:
            cells.append(verdict.reason)
            continue
        cells += [] if patient == math.inf else [str(len(verdict.primes))]
        cells += [f"{seconds:.1f}", f"{used:.1f}", f"{peak:.0f}"]
    return f"| {' | '.join(cells)} |"


def main(names: list[str]) -> None:
    """Print the table."""
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}")
    for name in names or CHOSEN:
        print(row(name), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
