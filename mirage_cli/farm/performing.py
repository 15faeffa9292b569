"""A job on a worker: made in a process of its own, as on the client's machine, beside Dask's process.

That process is kept for later jobs of the same thread. It ends with a job that crashes it, takes too long or too much
memory; the worker goes on. What goes back is who did it, the seconds that it took, and a JSON document; Lost is none, and
the client makes such a job itself.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from mirage_cli.errors import OutOfTime
from mirage_cli.farm import offers
from mirage_cli.processes import messages
from mirage_cli.processes.isolation import Lost, Pool
from mirage_cli.processes.jobs import Kind

#: of a worker's environment: bytes that a job's process may have, processes and threads that a job may have at a time
MEMORY, CORES = "MIRAGE_FARM_MEMORY", "MIRAGE_FARM_CORES"
QUARANTINE = "mirage-quarantine"  #: the topic under which workers say that their GPU does not answer
_OWN = threading.local()


class Answer(NamedTuple):
    """What goes back: who made the job, seconds, and JSON: [true, document] or [false, why there is none]."""

    worker: str
    seconds: float
    body: bytes


def found(address: str) -> Kind:
    """The kind of job at an address ("module:NAME")."""
    module, _, name = address.partition(":")
    kind: Kind = getattr(importlib.import_module(module), name)
    return kind


def perform(address: str, message: bytes, tell: Callable[[Any], None] | None = None) -> bytes:
    """The result of a job as JSON; in a process of its own."""
    kind = found(address)
    args = messages.unpacked(message)
    document = kind.elsewhere(*args) if tell is None else kind.elsewhere(*args, tell)
    return json.dumps(document, separators=(",", ":")).encode()


def made_apart(address: str, message: bytes, seconds: float, told: Callable[[int, Any], None] | None) -> bytes | Lost:
    """`perform`, in this thread's process."""
    _OWN.pool = getattr(_OWN, "pool", None) or Pool(1, int(os.environ.get(MEMORY, "0")))
    ((_, outcome),) = _OWN.pool.each(perform, [(address, message)], told, seconds=seconds)
    made: bytes | Lost = outcome
    return made


def carry_out(address: str, message: bytes, seconds: float, gpu: bool, topic: str = "") -> Answer:
    """Make a job: the function that Dask calls on a worker. A GPU that does not answer in time is not used again: the
    worker takes it back, and the job goes to another one."""
    from distributed import Reschedule, get_worker  # noqa: PLC0415 - here is Dask

    worker = get_worker()
    start = time.perf_counter()
    outcome = made_apart(address, message, seconds, (lambda _, x: worker.log_event(topic, x)) if topic else None)
    if gpu and isinstance(outcome, Lost) and isinstance(outcome.error, OutOfTime):
        worker.loop.add_callback(worker.set_resources, **{offers.GPU: 0})
        worker.log_event(QUARANTINE, {"worker": worker.name, "reason": outcome.reason})
        raise Reschedule
    body = json.dumps([False, outcome.reason]).encode() if isinstance(outcome, Lost) else b"[true," + outcome + b"]"
    return Answer(str(worker.name), time.perf_counter() - start, body)


def cores() -> int:
    """How many processes or threads a job on this worker may have at a time."""
    return int(os.environ.get(CORES, "1"))
