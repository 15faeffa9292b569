"""A fragment's kernel on an OpenCL device by its C entry point, timed by the device's own events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mirage_cli.errors import CheckFailed, MirageError
from mirage_cli.kernels.kernel import Kernel
from mirage_cli.machine import opencl
from mirage_cli.measurement.contestant import OrtContestant, Place, agreement
from mirage_cli.measurement.timing import Distribution
from mirage_cli.optimization.fragment_models import FragmentModel
from mirage_cli.optimization.fragment_times import Entry
from mirage_cli.report.report import KERNEL

LEAST, MOST = 15, 200  #: samples


def entry(device: str, fragment: FragmentModel, library: Path, seconds: float, seed: int) -> Entry:
    """Microseconds of the kernel on the device PLATFORM:DEVICE, with its tensors there, once its answers are right."""
    try:
        return Entry(KERNEL, Distribution(tuple(_samples(device, fragment, library, seconds, seed))))
    except CheckFailed as e:
        return Entry(KERNEL, problem=f"wrong: {e}")
    except MirageError as e:
        return Entry(KERNEL, problem=f"failed: {e}")


def _samples(device: str, fragment: FragmentModel, library: Path, seconds: float, seed: int) -> list[float]:
    cl, given = opencl.package("bench --opencl"), fragment.inputs(1, seed)
    queue = cl.CommandQueue(
        cl.Context([opencl.device(device)]), properties=cl.command_queue_properties.PROFILING_ENABLE
    )
    arrays = [
        np.ascontiguousarray(given[f"in{i}_0"] if f"in{i}_0" in given else fragment.weight(i, 0))
        for i in range(len(fragment.spec.inputs))
    ]
    kernel = Kernel(library, fragment.spec)
    tensors = [cl.array.to_device(queue, a) for a in arrays]
    results = kernel.run(tensors)
    _judge(fragment, given, [r.get() for r in results])
    samples, spent = list[float](), 0.0
    while len(samples) < LEAST or (spent < seconds and len(samples) < MOST):
        samples.append(_timed(cl, queue, lambda: kernel.run(tensors, results)))
        spent += samples[-1] * 1e-6
    return samples


def _timed(cl: Any, queue: Any, call: Any) -> float:
    """Microseconds between the ends of what is in front of a call on the queue and of the call itself."""
    before = cl.enqueue_marker(queue)
    call()
    after = cl.enqueue_marker(queue)
    after.wait()
    return float(after.profile.end - before.profile.end) * 1e-3


def _judge(fragment: FragmentModel, given: dict[str, Any], results: list[Any]) -> None:
    """Raise CheckFailed for answers that are not the original's."""
    wanted = OrtContestant(fragment.model(1), None, [given], Place()).answers()
    own = dict(zip(wanted[0], results, strict=True))
    verdict = agreement([own], wanted, fragment.unit)
    if not verdict.passed:
        raise CheckFailed(verdict.problem)
