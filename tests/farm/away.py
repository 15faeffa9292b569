"""A crew whose jobs are made as on a farm's workers, in this process: everything goes through messages and documents."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirage_cli.farm import performing
from mirage_cli.files import codec
from mirage_cli.processes.jobs import Here, Job, Kind


@dataclass(frozen=True)
class Away(Here):
    """`changed` makes of a kind's name and a document what comes back."""

    changed: Callable[[str, Any], Any] = lambda name, document: document
    made: list[str] = field(default_factory=list)

    def each(
        self,
        kind: Kind,
        jobs: Sequence[Job],
        told: Callable[[int, Any], None] | None = None,
        apart: bool = False,
        names: Sequence[str] = (),
    ) -> Iterator[tuple[int, Any]]:
        assert performing.found(kind.address).address == kind.address
        for k, job in enumerate(jobs):

            def tell(content: Any, k: int = k, job: Job = job) -> None:
                if told is not None and kind.heard is not None:
                    told(k, kind.heard(json.loads(json.dumps(content)), job))

            self.made.append(kind.name)
            message = pickle.dumps(kind.packed(*job), 5)
            listened = told is not None and kind.heard is not None
            body = performing.perform(kind.address, message, tell if listened else None)
            yield k, kind.read(self.changed(kind.name, codec.decoded(body)), job)
