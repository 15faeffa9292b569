"""What an engine knows of a block graph: whether it suits, which schedules are worth a prediction, and what each costs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.schedules.schedule import Prediction, Ranked, Schedule
from mirage_cli.search.schedules.target import Target


class Model(ABC):
    """A block graph on a target, for one engine, where symbols have certain sizes; `stores` says whether its kernels store
    sources in parts while they read them."""

    stores = False

    def at(self, sizes: Mapping[str, int]) -> Model | None:
        """The same for other sizes of symbols, with what does not depend on them; None where it is to be made anew."""
        return None

    @abstractmethod
    def schedules(self) -> Iterable[Schedule]:
        """The schedules that are worth a prediction."""

    @abstractmethod
    def predict(self, schedule: Schedule) -> Prediction:
        """The prediction for one of them. Raises Refused where the engine does not suit it."""

    def predictions(self, schedule: Schedule, at: Sequence[Mapping[str, int]]) -> list[Prediction] | None:
        """The predictions for a schedule at several sizes of symbols; None where they are to be asked for one by one."""
        return None

    def ranked(self, count: int, small: Model | None) -> list[Ranked]:
        """The `count` best schedules; with `small`, the same graph at small sizes, by the geometric mean of both times."""
        candidates = []
        for s in self.schedules():
            prediction = self.predict(s)
            score = prediction.us if small is None else math.sqrt(prediction.us * small.predict(s).us)
            candidates.append(Ranked(s, prediction, score))
        return sorted(candidates, key=lambda r: r.order)[:count]


class ModelMaker(Protocol):
    """An engine's model of a block graph."""

    def __call__(self, program: Program, graph: BlockGraph, target: Target, sizes: Mapping[str, int], /) -> Model:
        """The model at these sizes of symbols. Raises Refused where the engine does not suit the graph or the target."""
