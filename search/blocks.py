"""The block graphs of a program under one mapping: closure, extraction, stabilisers, thread graphs. One unit of work."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.closure.closure import TooManyValues, closure_of
from mirage_cli.search.closure.extract import block_graphs
from mirage_cli.search.closure.mapping import Mapping
from mirage_cli.search.finish.fuse import thread_graphs
from mirage_cli.search.finish.kernels import operators
from mirage_cli.search.finish.stabilise import stabilise
from mirage_cli.search.mugraph.mugraph import BlockGraph


@dataclass(slots=True)
class MappingOutcome:
    """The outcome of one mapping: values of its closure, block graphs, and why others were refused; `spent` where its
    time was over before it had begun, or before all was found."""

    values: int = 0
    graphs: list[BlockGraph] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    spent: bool = False


def mapping_graphs(
    program: Program, mapping: Mapping, candidates: int, max_ops: int, until: float = math.inf
) -> MappingOutcome:
    """Up to `candidates` block graphs for each way to the outputs, with at most `max_ops` operators, as far as they are found
    `until` a moment of the clock `time.monotonic`, which all processes share."""
    outcome = MappingOutcome()
    if time.monotonic() > until:
        outcome.spent = True
        return outcome
    try:
        closure = closure_of(program, mapping, until)
        outcome.values = len(closure.values)
        graphs = block_graphs(closure, candidates, until=until)
    except Refused as e:
        outcome.values = e.values if isinstance(e, TooManyValues) else outcome.values
        outcome.refused.append(f"{mapping}: {e}")
        return outcome
    outcome.spent = time.monotonic() > until
    for graph in graphs:
        try:
            finished = thread_graphs(stabilise(graph, program), program)
        except (Refused, InvalidGraph) as e:
            outcome.refused.append(f"{mapping}: {e}")
            continue
        if operators(finished) <= max_ops:
            outcome.graphs.append(finished)
        else:
            outcome.refused.append(f"{mapping}: {operators(finished)} operators in a block")
    return outcome
