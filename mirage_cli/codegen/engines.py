"""Engines: the ways to make kernels of a block graph with a schedule.

    block      tiles of a block in shared memory, all warps in step
    strip      groups of warps that walk the loop on their own, values in registers
    rows       rows of graphs without contractions in registers
    warpgroup  many rows on sm_90a: a warp brings tiles, warpgroups multiply them

A kernel is data (`kernel_language/ir.py`); what it is launched with stands beside it (`requests/request.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from mirage_cli.codegen.block.engine import block_kernel
from mirage_cli.codegen.cpu.engine import cpu_kernel
from mirage_cli.codegen.requests.request import Kernel, Request
from mirage_cli.codegen.rows.engine import rows_kernel
from mirage_cli.codegen.strip.engine import strip_kernel
from mirage_cli.codegen.warpgroup.engine import warpgroup_kernel
from mirage_cli.errors import Refused
from mirage_cli.search.schedules.model import ModelMaker
from mirage_cli.search.schedules.ranking import MODELS, unread


class Engine(Protocol):
    """A way to make kernels: `model` says whether a block graph suits, which schedules there are and what they cost, `make`
    makes the kernel of one. Both raise Refused."""

    @property
    def model(self) -> ModelMaker:
        """The engine's model of a block graph on a target."""

    def make(self, request: Request, /) -> Kernel:
        """The kernel of a schedule of this engine's. Raises Refused where it does not fit."""


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """An engine of a model and a maker."""

    model: ModelMaker
    make: Callable[[Request], Kernel]


_MAKERS = {"block": block_kernel, "strip": strip_kernel, "rows": rows_kernel, "warpgroup": warpgroup_kernel}
ENGINES: dict[str, Engine] = {name: OwnEngine(MODELS[name], maker) for name, maker in _MAKERS.items()}


@contextmanager
def added(name: str, engine: Engine) -> Iterator[None]:
    """One more engine for a while: searches that name it consider its schedules (`SearchOptions.engines`)."""
    ENGINES[name], MODELS[name] = engine, engine.model
    try:
        yield
    finally:
        del ENGINES[name], MODELS[name]


def kernel_of(request: Request) -> Kernel:
    """The kernel that the schedule's engine makes. Raises Refused when it cannot."""
    if request.target.kind == "cpu":
        return cpu_kernel(request)
    engine = ENGINES.get(request.schedule.engine)
    if engine is None:
        raise Refused(f"unknown engine {request.schedule.engine!r}: there are {', '.join(ENGINES)}")
    if what := unread(request.program, request.schedule.engine):
        raise Refused(f"the engine {request.schedule.engine} does not read {what}")
    return engine.make(request)
