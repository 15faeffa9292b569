"""What a worker offers: this version of mirage and of the packages that decide results, compilers, a GPU.

Each offer is a resource of Dask's by a name that says it in full. A job asks for all that it needs, so that none is given to a
worker of another version, or to another device than the one that times are for.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mirage_cli import __version__
from mirage_cli.files import result_store
from mirage_cli.machine.devices import Device

CPU, GPU = "CPU", "GPU"  #: resources that jobs use up; of the others there is always enough
PLENTY = 1_000_000
INFORMATION = "mirage"  #: what workers tell the scheduler of themselves, by this name
_PACKAGES = ("numpy", "onnx", "onnxruntime", "onnxruntime-gpu")
_SHORT = 12  #: digits of a digest that are shown


@functools.cache
def versions() -> dict[str, str]:
    """The versions of all that results depend on beside compilers."""
    found = {"mirage": f"{__version__} ({result_store.version()[:_SHORT]})", "Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def told(_: Any) -> dict[str, Any]:
    """What a worker tells of itself beside its resources."""
    return {"versions": versions()}


def version_offer(known: Mapping[str, str] | None = None) -> str:
    """The versions as one offer."""
    return "; ".join(f"{name} {version}" for name, version in sorted((known or versions()).items()))


def difference(theirs: Mapping[str, str]) -> str:
    """The versions in which another machine is different, with ours; nothing where it is not."""
    ours = versions()
    names = [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]
    return ", ".join(f"{n} {theirs.get(n, 'not installed')} in place of {ours.get(n, 'none')}" for n in names)


def device_offer(device: Device) -> str:
    """A GPU: its name, driver and capability, on all of which times depend."""
    return f"gpu {device.name}, driver {device.driver}, capability {device.capability}"


def device_of(offer: str, number: int) -> Device | None:
    """The inverse of `device_offer`; None for an offer that is no GPU."""
    kind, _, rest = offer.partition(" ")
    name, driver, capability = [*rest.rsplit(", ", 2), "", ""][:3]
    if kind != "gpu" or not driver.startswith("driver ") or not capability.startswith("capability "):
        return None
    return Device(number, "", name, driver.removeprefix("driver "), capability.removeprefix("capability "), "")


def resources(jobs: int, offered: Iterable[str], gpu: bool) -> dict[str, float]:
    """The resources of a worker that makes so many jobs at a time."""
    own = {GPU: 1.0} if gpu else {CPU: float(jobs)}
    return own | dict.fromkeys((version_offer(), *offered), float(PLENTY))


def needed(gpu: bool, needs: Sequence[str]) -> dict[str, float]:
    """The resources that a job asks for."""
    return {GPU if gpu else CPU: 1.0} | dict.fromkeys((version_offer(), *needs), 1.0)


def serves(worker: Mapping[str, Any], needs: Mapping[str, float]) -> bool:
    """True if a worker, as the scheduler describes it, has what a job asks for."""
    offered = worker.get("resources", {})
    return worker.get("status") == "running" and all(offered.get(name, 0) >= n for name, n in needs.items())
