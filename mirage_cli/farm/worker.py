"""A worker of a farm: Dask's, with the offers of this machine, which makes jobs in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mirage_cli.errors import MirageError, UsageError
from mirage_cli.farm import address, certificates, offers, performing
from mirage_cli.files.staging import Scratch

JOIN_SECONDS = 30.0  #: for a scheduler to answer
METADATA = "mirage-versions"  #: what the first worker of a farm says of its versions


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's place: the scheduler's address, the folder of certificates, jobs at a time, bytes of a job's process (0:
    no limit), what is offered beside versions, the UUID of a GPU (None: a worker of CPUs), and its name."""

    scheduler: str
    certificates: str | None
    jobs: int
    max_memory: int = 0
    offered: Sequence[str] = ()
    gpu: str | None = None
    name: str | None = None


def serve(place: Place) -> None:
    """Work until the scheduler ends or this process is told to. Raises UsageError for a farm of another version,
    MirageError where no scheduler answers."""
    address.checked(place.scheduler)
    environment = {performing.MEMORY: str(place.max_memory)}
    if place.gpu is not None:
        environment |= {"CUDA_VISIBLE_DEVICES": place.gpu, performing.CORES: str(place.jobs)}
    os.environ.update(environment)
    asyncio.run(_serve(place))


async def _serve(place: Place) -> None:
    dask = certificates.distributed()
    security = certificates.security(place.scheduler, place.certificates)
    await _join(place, dask, security)
    with configured(), Scratch("mirage-worker-") as folder:
        worker = dask.Worker(
            place.scheduler,
            nthreads=1 if place.gpu is not None else place.jobs,
            name=place.name or _name(place),
            resources=offers.resources(place.jobs, place.offered, place.gpu is not None),
            startup_information={offers.INFORMATION: offers.told},
            security=security,
            memory_limit=0,
            local_directory=str(folder),
            death_timeout=JOIN_SECONDS,
            host="127.0.0.1" if place.scheduler.startswith("tcp://") else None,
            dashboard=False,
        )
        with contextlib.suppress(asyncio.CancelledError):
            async with worker:
                loop = asyncio.get_running_loop()
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, lambda: asyncio.ensure_future(worker.close_gracefully()))
                await worker.finished()


async def _join(place: Place, dask: Any, security: Any) -> None:
    """Hold this machine's versions against those of the farm, which are those of its first worker."""
    try:
        async with dask.Client(
            place.scheduler, asynchronous=True, security=security, timeout=JOIN_SECONDS, set_as_default=False
        ) as client:
            known = await client.get_metadata([METADATA], default=None)
            if not isinstance(known, dict):
                await client.set_metadata([METADATA], offers.versions())
                return
    except (OSError, TimeoutError) as error:
        raise MirageError(f"{place.scheduler} does not answer: {error}", "is a scheduler running there?") from None
    if problem := offers.difference({str(k): str(v) for k, v in known.items()}):
        raise UsageError(
            f"{place.scheduler} is a farm of other versions: {problem}", "install the same on all machines"
        )


def _name(place: Place) -> str:
    kind = "cpu" if place.gpu is None else place.gpu[:12]
    return f"{os.uname().nodename}-{kind}-{os.getpid()}"


@contextlib.contextmanager
def configured() -> Any:
    """Dask as a farm needs it: workers that do not answer are given up, files go to a folder of this process."""
    import dask.config  # noqa: PLC0415 - of the extra

    settings = {
        "distributed.worker.profile.enabled": False,
        "distributed.admin.large-graph-warning-threshold": "1GB",
        "distributed.comm.timeouts.connect": "10s",
        "distributed.comm.timeouts.tcp": "30s",
        "distributed.scheduler.worker-ttl": "60s",
        "distributed.scheduler.allowed-failures": 3,
        "distributed.scheduler.worker-saturation": 1.0,
    }
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a scheduler holds several for each worker
    with dask.config.set(settings):
        yield
