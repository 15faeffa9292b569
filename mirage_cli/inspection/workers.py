"""Workers of a farm: what this machine has to offer, and a whole farm on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from mirage_cli.backends import toolchain
from mirage_cli.backends.compile import offered
from mirage_cli.errors import ToolMissing, UsageError
from mirage_cli.farm import address, certificates, offers
from mirage_cli.farm import worker as farm_worker
from mirage_cli.farm.worker import Place
from mirage_cli.machine import devices
from mirage_cli.options.options import Options, cores


def serve(options: Options, gpu: int | None) -> None:
    """Work for the options' scheduler, on a GPU or on CPUs. Raises UsageError without an address, ToolMissing without that
    GPU."""
    if options.scheduler is None:
        raise UsageError("there is no scheduler to work for", "name its address, or set MIRAGE_SCHEDULER")
    address.checked(options.scheduler)
    certificates.distributed()
    found = compilers()
    device = None if gpu is None else devices.device(gpu)
    found += () if device is None else (offers.device_offer(device),)
    own = None if device is None else device.uuid
    place = Place(options.scheduler, options.certificates, options.jobs, options.max_memory, found, own)
    farm_worker.serve(place)


def dask_setup(worker: Any) -> None:
    """Make a worker that Dask's own programs start one of the farm's: `dask worker --preload
    mirage_cli.inspection.workers`. With MIRAGE_FARM_GPU=1 it is one of the GPU that CUDA_VISIBLE_DEVICES leaves. Dask
    calls this before the worker joins."""
    gpu = os.environ.get("MIRAGE_FARM_GPU") == "1"
    found = compilers()
    if gpu:
        found += (offers.device_offer(devices.device(0)),)
    resources = offers.resources(worker.state.nthreads, found, gpu)
    worker.state.total_resources.update(resources)
    worker.state.available_resources.update(resources)
    worker.startup_information[offers.INFORMATION] = offers.told


def compilers() -> tuple[str, ...]:
    """The compilers of this machine, as workers offer them."""
    found = []
    for kind, find in (("cxx", toolchain.find_cxx), ("nvcc", toolchain.find_nvcc)):
        with contextlib.suppress(ToolMissing):
            found.append(offered(kind, find().version))
    return tuple(found)


def local(
    options: Options, workers: int | None, gpus: str | None, host: str, port: int, say: Callable[[str], None]
) -> None:
    """A scheduler, and workers in processes of their own, until this one is told to end; plainly where no certificates are
    named and nobody else reaches it. Raises UsageError for a host
    beyond this machine without certificates, and for GPUs that do not exist."""
    numbers = _gpus(gpus)
    scheme = "tcp" if address.is_local(host) and options.certificates is None else "tls"
    security = certificates.security(f"{scheme}://{host}:{port}", options.certificates)
    count = cores() if workers is None else workers
    share = options.jobs if options.jobs != cores() or not numbers else max(1, cores() // len(numbers))
    kinds = [["--jobs", "1"]] * count + [["--gpu", str(n), "--jobs", str(share)] for n in numbers]
    if options.max_memory:
        kinds = [[*k, "--max-memory", str(options.max_memory)] for k in kinds]
    if options.certificates is not None:
        kinds = [[*k, "--certificates", options.certificates] for k in kinds]
    asyncio.run(_local(kinds, f"{scheme}://", host, port, security, say))


def _gpus(text: str | None) -> list[int]:
    present = [] if text is None else devices.devices()
    if text is None or text == "all":
        return [d.number for d in present]
    if not all(part.isdigit() and int(part) < len(present) for part in text.split(",")):
        raise UsageError(f"--gpus {text}: expected all, or numbers below {len(present)} with commas between")
    return [int(part) for part in text.split(",")]


async def _local(
    kinds: Sequence[Sequence[str]], scheme: str, host: str, port: int, security: Any, say: Callable[[str], None]
) -> None:
    dask = certificates.distributed()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with farm_worker.configured():
        try:
            scheduler = await dask.Scheduler(
                protocol=scheme, host=host, port=port, security=security, dashboard_address="127.0.0.1:0"
            )
        except OSError as error:
            raise UsageError(
                f"--port {port}: {error.strerror or error}", "another one listens there: name --port"
            ) from None
        address = str(scheduler.address)
        own = f"{scheme}127.0.0.1:{scheduler.port}" if host == "0.0.0.0" else address
        say(address)
        if importlib.util.find_spec("bokeh") is not None:
            say(f"http://127.0.0.1:{scheduler.http_server.port}/status")
        command = (sys.executable, "-P", "-m", "mirage_cli", "farm", "worker", own)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        processes = [await asyncio.create_subprocess_exec(*command, *kind, env=environment) for kind in kinds]
        try:
            await stop.wait()
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
            await asyncio.gather(*(process.wait() for process in processes))
            await scheduler.close()
