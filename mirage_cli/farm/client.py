"""The crew of a run that has a scheduler: jobs go to the farm's workers, and what comes back is read as a stranger's document.

What no worker can make, is too large to send, was lost, or does not pass its reader is made here, as without a farm: so the
result is the local run's. Only a scheduler that is gone ends a run; what came back before is kept.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirage_cli.errors import FarmLost, MirageError, ToolMissing
from mirage_cli.farm import address, certificates, offers, performing
from mirage_cli.farm.worker import configured
from mirage_cli.files import codec
from mirage_cli.machine.devices import Device
from mirage_cli.processes import messages
from mirage_cli.processes.isolation import Lost
from mirage_cli.processes.jobs import Done, Here, Job, Kind, Summary

LARGEST, LARGEST_GPU = 1 << 26, 1 << 30  #: bytes of a job's message; what is larger is made here, if it can be
ANSWER = 1 << 28  #: bytes of an answer that is read
TICK = 1.0  #: seconds after which a farm that says nothing is looked at
PATIENCE = 20.0  #: seconds for which a job waits for a worker that can make it, and for a scheduler to answer
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Farm:
    """The workers of the scheduler at an address; `here` makes what they do not."""

    address: str
    certificates: str | None
    here: Here
    _client: Any = None
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _done: dict[str, list[float]] = field(default_factory=dict)  #: jobs and seconds of each worker
    _left: int = 0  #: jobs that were made here
    _problems: dict[str, None] = field(default_factory=dict)  #: what went wrong, in order

    # --- the farm -------------------------------------------------------------------------------------------------------
    def open(self) -> Farm:
        """Connect. Raises FarmLost where no scheduler answers, ToolMissing where no worker has these versions."""
        dask = certificates.distributed()
        security = certificates.security(address.checked(self.address), self.certificates)
        self._stack.enter_context(configured())
        try:
            self._client = dask.Client(self.address, security=security, timeout=PATIENCE, set_as_default=False)
        except (OSError, TimeoutError) as error:
            self._stack.close()
            raise FarmLost(f"the scheduler {self.address} does not answer: {str(error).splitlines()[0]}") from None
        self._stack.callback(self._client.close, timeout=2)
        self._client.subscribe_topic(performing.QUARANTINE, self._quarantined)
        self._refuse_others()
        return self

    def close(self) -> None:
        """Leave the scheduler."""
        with contextlib.suppress(OSError, TimeoutError, RuntimeError):
            self._stack.close()

    @property
    def workers(self) -> int:
        """The jobs that the farm's CPU workers make at a time; at least one."""
        return max(1, int(sum(w["resources"].get(offers.CPU, 0) for w in self._serving(offers.needed(False, ())))))

    def devices(self) -> list[Device]:
        """The kinds of GPU that workers offer, by name, numbered."""
        offered = {o for w in self._serving(offers.needed(True, ())) for o in w["resources"] if o.startswith("gpu ")}
        found = [offers.device_of(o, k) for k, o in enumerate(sorted(offered))]
        return [d for d in found if d is not None]

    def greeting(self) -> str:
        """The number of workers, and the address of Dask's own page on what goes on."""
        page = f"; see {self._client.dashboard_link}" if self._identity().get("services") else ""
        return f"farm {self.address}: {len(self._workers())} workers{page}"

    def summary(self) -> Summary:
        """The report's `farm`."""
        done: dict[str, Done] = {
            w: {"jobs": int(n), "seconds": round(s, 3)} for w, (n, s) in sorted(self._done.items())
        }
        return {"scheduler": self.address, "workers": done, "here": self._left, "problems": list(self._problems)}

    def _identity(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._client.sync(self._client.scheduler.identity, callback_timeout=PATIENCE)
        except Exception as error:  # whatever a connection that is gone raises
            raise self._gone() from error
        return found

    def _workers(self) -> list[dict[str, Any]]:
        return list(self._identity()["workers"].values())

    def _serving(self, needs: dict[str, float]) -> list[dict[str, Any]]:
        """The workers that have what jobs need."""
        return [w for w in self._workers() if offers.serves(w, needs)]

    def _refuse_others(self) -> None:
        """Wait for the first worker, and say which ones have other versions. Raises ToolMissing where all have."""
        until, own = time.monotonic() + PATIENCE, offers.version_offer()
        while not (workers := self._workers()) and time.monotonic() < until:
            time.sleep(TICK)
        for w in workers:
            told = w.get(offers.INFORMATION)
            known = told.get("versions") if isinstance(told, dict) else None
            if own not in w["resources"]:
                why = offers.difference(known) if isinstance(known, dict) else "it is no worker of mirage's"
                self._problem(f"worker {w['name']} is not used: {why}")
        if workers and not any(own in w["resources"] for w in workers):
            raise ToolMissing(next(iter(self._problems)), "install the same versions on all machines of the farm")

    def _quarantined(self, event: Any) -> None:
        with contextlib.suppress(Exception):
            self._problem(f"the GPU of worker {event[1]['worker']} is not used any more: {event[1]['reason']}")

    def _problem(self, text: str) -> None:
        self._problems.setdefault(text[:1000])
        _log.warning("%s", text[:1000])

    def _gone(self) -> FarmLost:
        return FarmLost(f"the scheduler {self.address} does not answer any more")

    # --- jobs -----------------------------------------------------------------------------------------------------------
    def each(
        self,
        kind: Kind,
        jobs: Sequence[Job],
        told: Callable[[int, Any], None] | None = None,
        apart: bool = False,
        names: Sequence[str] = (),
    ) -> Iterator[tuple[int, Any]]:
        """As `Crew.each`."""
        batch = _Batch(self, kind, jobs, told)
        try:
            left = batch.send(names)
            while batch.waiting:
                for k, result in batch.take():
                    if result is _NOTHING:
                        left.append(k)
                    else:
                        yield k, result
        finally:
            batch.forget()
        self._left += len(left)
        if kind.gpu:
            yield from (
                (k, Lost(f"no worker of the farm with {' and '.join(kind.needs(*jobs[k]))} made it")) for k in left
            )
        elif left:
            hear = None if told is None else lambda n, message: told(left[n], message)
            for n, result in self.here.each(kind, [jobs[k] for k in left], hear, apart):
                yield left[n], result


_NOTHING = object()  #: in place of a result that did not come back


@dataclass(slots=True)
class _Batch:
    """Jobs of one kind that are on their way."""

    farm: Farm
    kind: Kind
    jobs: Sequence[Job]
    told: Callable[[int, Any], None] | None
    waiting: dict[str, list[int]] = field(default_factory=dict)  #: numbers of jobs by Dask's key
    _futures: dict[str, Any] = field(default_factory=dict)
    _ended: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    _needs: dict[str, dict[str, float]] = field(default_factory=dict)
    _heard: float = field(default_factory=time.monotonic)

    def send(self, names: Sequence[str]) -> list[int]:
        """Hand the jobs to the scheduler; those that no worker can make, or that are too large to be sent."""
        left, workers = [], self.farm._workers()
        for k, job in enumerate(self.jobs):
            needs = offers.needed(self.kind.gpu, self.kind.needs(*job))
            if not any(offers.serves(w, needs) for w in workers):
                left.append(k)
                continue
            message = messages.packed(self.kind.packed(*job))
            if len(message) > (LARGEST_GPU if self.kind.gpu else LARGEST):
                left.append(k)
                continue
            name = names[k] if names and names[k] else uuid.uuid4().hex
            key = f"{self.kind.name}-{name}"
            self.waiting.setdefault(key, []).append(k)
            if key not in self._futures:
                self._needs[key] = needs
                self._submit(key, message)
        return left

    def _submit(self, key: str, message: bytes) -> None:
        client, topic = self.farm._client, ""
        if self.told is not None and self.kind.heard is not None:
            topic = f"mirage-{key}"
            client.subscribe_topic(topic, lambda event, key=key: self._ended.put((key, event)))
        future = client.submit(
            performing.carry_out,
            self.kind.address,
            message,
            self.kind.seconds,
            self.kind.gpu,
            topic,
            key=key,
            resources=self._needs[key],
            pure=False,
        )
        self._futures[key] = future
        future.add_done_callback(lambda f: self._ended.put((f.key, None)))

    def take(self) -> Iterator[tuple[int, Any]]:
        """What has come back next: (number, result or _NOTHING)."""
        try:
            key, event = self._ended.get(timeout=TICK)
        except queue.Empty:
            yield from self._look()
            return
        self._heard = time.monotonic()
        if event is not None:
            self._hear(key, event)
        elif key in self.waiting:
            yield from self._result(key)

    def forget(self) -> None:
        """Take back what has not come."""
        for key in self._futures:
            if self.told is not None and self.kind.heard is not None:
                with contextlib.suppress(Exception):
                    self.farm._client.unsubscribe_topic(f"mirage-{key}")
        with contextlib.suppress(Exception):
            self.farm._client.cancel([self._futures[key] for key in self.waiting])
        self._futures.clear()

    def _look(self) -> Iterator[tuple[int, Any]]:
        """Give up what no worker can make any more."""
        if self.farm._client.status != "running":
            raise self.farm._gone()
        if time.monotonic() - self._heard < PATIENCE:
            return
        self._heard = time.monotonic()
        workers = self.farm._workers()
        for key in [k for k in self.waiting if not any(offers.serves(w, self._needs[k]) for w in workers)]:
            for k in self.waiting.pop(key):
                yield k, _NOTHING
            self._futures[key].cancel()

    def _hear(self, key: str, event: Any) -> None:
        assert self.told is not None and self.kind.heard is not None
        for k in self.waiting.get(key, ()):
            with contextlib.suppress(ValueError, MirageError, TypeError, IndexError):
                self.told(k, self.kind.heard(event[1], self.jobs[k]))

    def _result(self, key: str) -> Iterator[tuple[int, Any]]:
        """The results of a job that has ended, as its reader accepts them."""
        future = self._futures[key]
        if future.status == "cancelled":
            raise self.farm._gone()
        numbers = self.waiting.pop(key)
        answer: performing.Answer | None = None
        who = "a worker"
        try:
            answer = performing.Answer(*future.result(timeout=PATIENCE))
            who = str(answer.worker)[:200]
        except Exception as error:  # that Dask raises for what workers did
            self.farm._problem(f"{self.kind.name}: nothing came back ({type(error).__name__}: {str(error)[:200]})")
        for k in numbers:
            yield k, _NOTHING if answer is None else self._read(k, who, answer.body)
        if answer is not None:
            done = self.farm._done.setdefault(who, [0, 0.0])
            done[0] += len(numbers)
            done[1] += float(answer.seconds)

    def _read(self, k: int, who: str, body: bytes) -> Any:
        try:
            if len(body) > ANSWER:
                raise ValueError(f"{len(body)} bytes")
            made, document = codec.checked(codec.decoded(body), tuple[bool, Any])
            if made:
                return self.kind.read(document, self.jobs[k])
            self.farm._problem(f"{self.kind.name}: worker {who} made none: {json.dumps(document)[:300]}")
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, MirageError) as error:
            self.farm._problem(f"{self.kind.name}: the answer of worker {who} is not taken: {error}")
        return _NOTHING
