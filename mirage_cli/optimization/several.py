"""Several models, each as by `optimize` alone. What equal fragments of them need is found out once.

Without a scheduler one model follows the other, and finds what those before it have kept. With one, models are read,
checked and written in some processes of this machine at a time, while workers make their jobs: a job that another model is
waiting for is made once, by its name, and one that is done is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from mirage_cli.errors import FarmLost, MirageError
from mirage_cli.files.staging import Scratch
from mirage_cli.optimization import story
from mirage_cli.options.orders import Order
from mirage_cli.processes import isolation
from mirage_cli.processes.isolation import Lost
from mirage_cli.report.report import Report
from mirage_cli.report.stages import Progress, Silent


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an order: its report, or an error."""

    order: Order
    report: Report | None = None
    error: MirageError | None = None

    @property
    def headline(self) -> str:
        """The same in a line."""
        if self.report is None:
            return f"{self.order.model}: {self.error}"
        count, all_of_them = len(self.report.replaced), len(self.report.fragments)
        return f"{self.order.model}: {count} of {all_of_them} fragments replaced, in {self.order.out}"


def optimize(orders: Sequence[Order], progress: Progress | None = None) -> list[Outcome]:
    """Optimize models. One that fails does not stop the others, but a scheduler that is gone stops all."""
    progress = progress or Silent()
    progress.stage("models", len(orders))
    outcomes: dict[int, Outcome] = {}
    with ExitStack() as stack:
        if any(o.options.cache == "" for o in orders):  # nothing is kept, but for each other
            shared = str(stack.enter_context(Scratch("mirage-models-")))
            orders = [replace(o, options=replace(o.options, cache=o.options.cache or shared)) for o in orders]
        for k, outcome in _each(orders, progress):
            outcomes[k] = outcome
            progress.step(outcome.headline)
            if isinstance(outcome.error, FarmLost):
                raise outcome.error
    return [outcomes[k] for k in range(len(orders))]


def _each(orders: Sequence[Order], progress: Progress) -> Iterator[tuple[int, Outcome]]:
    jobs = [(o,) for o in orders]
    away = orders[0].options.scheduler is not None
    at_a_time = min(len(orders), orders[0].options.jobs) if away else 1
    for k, made in isolation.each(
        _optimized, jobs, at_a_time, apart=away, told=lambda k, stage: progress.note(f"{orders[k].model}: {stage}")
    ):
        yield k, Outcome(orders[k], error=made.raised()) if isinstance(made, Lost) else Outcome(orders[k], made)


def _optimized(order: Order, tell: Callable[[str], None]) -> Report:
    isolation.limit_memory(order.options.max_memory)
    return story.optimize(order.model, order.out, order.options, _Stages(tell))


class _Stages(Silent):
    """The stages of a model."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def stage(self, name: str, total: int) -> None:
        """A stage begins."""
        self._tell(name)


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The JSON document of several models."""
    rows = []
    for o in outcomes:
        told = {"error": o.error.to_json()["error"]} if o.report is None and o.error else {}
        report = {} if o.report is None else {"report": o.report.to_json()}
        rows.append({"model": o.order.model, "output": str(o.order.out), **told, **report})
    return {"models": rows}


def text(outcomes: Sequence[Outcome]) -> str:
    """A line for each model."""
    return "\n".join(o.headline for o in outcomes)
