"""One row of the suite on a GPU: ours and its peers on the same tensors, judged against float64, timed in turns.

Runs in a process of its own, whose GPU and torch are opened once. Everything here needs torch with CUDA.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.errors import CheckFailed, MirageError, ToolMissing
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import DType
from mirage_cli.measurement import peers
from mirage_cli.measurement.gpu import GpuTimer, Prepared, Timed, honest, sets_for
from mirage_cli.measurement.gpu_backends import GpuBackend, TorchBackend
from mirage_cli.measurement.gpu_entry import Entry, Judged, Sets
from mirage_cli.measurement.timing import Distribution, Effort
from mirage_cli.runtime.sessions import element_name, numpy_type, version
from mirage_cli.suite import suites
from mirage_cli.suite.build import Built, Row, read
from mirage_cli.suite.cases import DTYPES, Case, Peer, Tensor

MATRIX = 8192  #: rows and columns of the products that measure the matrix rate
READ_BYTES = 1 << 32
COMPARED = 1 << 22  #: elements of an output that are compared, at random positions where it has more
BROKEN = 86  #: exit code of a process whose GPU does not work any more


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """Options of a measurement: the GPU, the groups of peers, whether float32 products may be TF32, how long, the
    seed."""

    gpu: int
    peers: tuple[str, ...]
    tf32: bool = False
    seconds: float = 0.5
    seed: int = 0

    @property
    def effort(self) -> Effort:
        """For all contestants of a row together."""
        return Effort(seconds=self.seconds, warm_seconds=0.01, sample_seconds=1e-3, least=15, most=200)


@functools.lru_cache(maxsize=1)
def _timer(gpu: int, tf32: bool) -> GpuTimer:
    """The GPU of this process. Raises ToolMissing without torch."""
    backend = TorchBackend(gpu)
    backend.torch.set_grad_enabled(False)
    backend.torch.set_float32_matmul_precision("high" if tf32 else "highest")
    return GpuTimer(gpu, backend)


def opened(asked: MeasureOptions) -> tuple[GpuTimer, TorchBackend]:
    """The timer and its torch. Raises ToolMissing with the command that installs torch."""
    try:
        timer = _timer(asked.gpu, asked.tf32)
    except ImportError as e:
        raise ToolMissing(f"the suite needs torch with CUDA: {e}", "pip install torch") from None
    assert isinstance(timer.backend, TorchBackend)
    return timer, timer.backend


def perform(kind: str, *arguments: Any) -> dict[str, Any]:
    """A job of this process: "ceilings" or "row"."""
    jobs: dict[str, Callable[..., dict[str, Any]]] = {"ceilings": _ceilings, "row": _row}
    return jobs[kind](*arguments)


# ---- limits of the device --------------------------------------------------------------------------------------------


def _ceilings(asked: MeasureOptions, dtypes: Sequence[str]) -> dict[str, Any]:
    """The best that the device can do, measured now: read bandwidth in bytes a second, matrix rate of each type in
    operations a second, microseconds of an empty kernel in a graph; and its state."""
    timer, backend = opened(asked)
    torch = backend.torch
    state = timer.state() | ({"onnxruntime": version()} if "ort" in asked.peers else {})
    big = torch.empty(READ_BYTES // 2, dtype=torch.float16, device=backend.device).normal_()
    read = timer.times({"read": peers.cycling_call(torch.sum, [[big]])}, 1, asked.effort)["read"].samples
    del big
    launch = timer.times({"launch": lambda k, stream: backend.spacer(stream)}, 1, asked.effort)["launch"].median
    return {
        "bandwidth": READ_BYTES / min(read) * 1e6,
        "flops": {d: _matrix_rate(timer, backend, asked, d) for d in dtypes},
        "launch_us": round(launch, 3),
        "cache_bytes": backend.cache,
        "gpu_state": state,
    }


def _matrix_rate(timer: GpuTimer, backend: TorchBackend, asked: MeasureOptions, dtype: str) -> float:
    torch, kind = backend.torch, getattr(backend.torch, element_name(DTYPES[dtype]))
    pairs = [torch.empty(2, MATRIX, MATRIX, dtype=kind, device=backend.device).normal_() for _ in range(2)]
    product = timer.times({"product": peers.cycling_call(torch.matmul, pairs)}, 2, asked.effort)["product"].samples
    return 2.0 * MATRIX**3 / min(product) * 1e6


# ---- a row -----------------------------------------------------------------------------------------------------------


def _row(asked: MeasureOptions, suite: str, row: Row) -> dict[str, Any]:
    """Everything measured of a row, as JSON. A GPU that a kernel has broken ends this process."""
    case = suites.case_of(suite, row.case)
    timer, backend = opened(asked)
    try:
        return Measurement(case, DTYPES[row.dtype], timer, backend, asked).run(row)
    finally:
        try:
            backend.run(backend.spacer)
        except MirageError:
            os._exit(BROKEN)
        backend.torch.cuda.empty_cache()


def stored_sets(built: Built, backend: GpuBackend, number: int) -> dict[str, Sets]:
    """The constants that operators read, by name, the same in each of a number of sets."""
    found: dict[str, Sets] = {}
    for operator in built.operators:
        for name, spec in zip(operator.inputs, operator.spec.inputs, strict=True):
            if name in built.stored and name not in found:
                found[name] = Sets(backend, spec.dtype, built.stored[name].shape, number)
                for k in range(number):
                    found[name].put(k, built.stored[name])
    return found


class Measurement:
    """The tensors of a case, and what is to be compared."""

    def __init__(self, case: Case, dtype: DType, timer: GpuTimer, backend: TorchBackend, asked: MeasureOptions) -> None:
        self.case, self.dtype, self.timer, self.backend, self.asked = case, dtype, timer, backend, asked
        self.torch = backend.torch
        self.sets = sets_for(case.bytes(dtype), backend.cache)
        self.inputs = {t.name: self._drawn(t, k) for k, t in enumerate(case.tensors)}
        self.arguments = [[backend.tensor(self.inputs[t.name], k) for t in case.tensors] for k in range(self.sets)]
        elements = math.prod(case.output)
        self.positions: NDArray[np.int64] | None = None
        if elements > COMPARED:
            self.positions = np.random.default_rng(asked.seed).integers(0, elements, COMPARED)
        self._wanted: dict[int, tuple[NDArray[Any], NDArray[np.float64]]] = {}

    def _drawn(self, t: Tensor, number: int) -> Sets:
        sets = Sets(self.backend, t.type(self.dtype), t.shape, self.sets)
        if not t.packed:
            sets.draw(self.asked.seed + number, t.std, t.mean)
            return sets
        random = np.random.default_rng(self.asked.seed + number)
        for k in range(self.sets):
            sets.put(k, random.integers(0, 256, t.shape, np.uint8))
        return sets

    def reference(self, number: int) -> Any:
        """The float64 result of a set."""
        wide = [t.double() if t.is_floating_point() else t for t in self.arguments[number]]
        return self.case.torch(self.torch, self.torch.nn.functional, *wide)

    def wanted(self, number: int) -> list[tuple[NDArray[Any], NDArray[np.float64]]]:
        """The results of torch's operators for a set, one after the other, and in float64."""
        if number not in self._wanted:
            original = self.case.torch(self.torch, self.torch.nn.functional, *self.arguments[number])
            self._wanted[number] = (self._host(original), self._host(self.reference(number)))
        return [self._wanted[number]]

    def _host(self, t: Any) -> NDArray[Any]:
        flat = t.reshape(-1)
        if self.positions is not None:
            flat = flat[self.torch.from_numpy(self.positions).to(flat.device)]
        return self.backend.host(flat, numpy_type(self.dtype))

    # --- ours -------------------------------------------------------------------------------------------------------
    def ours(self, built: Built) -> Judged:
        """The kernels of a row in their order, on the sets."""
        given = self.inputs | stored_sets(built, self.backend, self.sets)
        tensors = dict(given)
        entries = []
        for operator in built.operators:
            for name, spec in zip(operator.outputs, operator.spec.outputs, strict=True):
                tensors[name] = Sets(self.backend, spec.dtype, [ex.value(d, {}) for d in spec.dims], self.sets)
            missing = [n for n in operator.inputs if n not in tensors]
            if missing:
                raise MirageError(f"{operator.spec.op_type} reads {missing[0]!r}, which is no tensor of the case")
            entries.append(
                Entry(
                    self.backend,
                    built.library,
                    operator.spec,
                    [tensors[n] for n in operator.inputs],
                    [tensors[n] for n in operator.outputs],
                )
            )

        def call(number: int, stream: int) -> None:
            for entry in entries:
                entry.call(number, stream)

        outputs = [tensors["output"]]
        compared = sorted({0, self.sets // 2, self.sets - 1}) if self.positions is None else [self.sets - 1]

        def wanted(number: int) -> Sequence[tuple[NDArray[Any], NDArray[np.float64]]]:
            return [(o.reshape(-1), r.reshape(-1)) for o, r in self.wanted(number)]

        every = np.arange(math.prod(self.case.output)) if self.positions is None else self.positions
        return Judged(call, list(given.values()), outputs, wanted, compared, [every])

    # --- peers ------------------------------------------------------------------------------------------------------
    def peers(self) -> tuple[dict[str, Prepared], dict[str, str]]:
        """The peers that can run this case, prepared, and why others cannot."""
        torch, functional, case = self.torch, self.torch.nn.functional, self.case
        effort, right = self.asked.effort, self.reference(0)
        plain = functools.partial(case.torch, torch, functional)
        makers: dict[str, Callable[[], Prepared]] = {}
        if "eager" in self.asked.peers:
            makers["torch eager"] = peers.torch_maker(self.timer, lambda: plain, self.arguments, right, effort)
            makers |= {p.column: functools.partial(self._further, p, right) for p in case.further}
        if "compile" in self.asked.peers:
            makers["torch.compile"] = peers.torch_maker(
                self.timer,
                lambda: peers.compiled(torch, lambda *a: case.torch(torch, functional, *a)),
                self.arguments,
                right,
                effort,
            )
        if "sdpa" in self.asked.peers and case.sdpa is not None and case.own is not None:
            own = [case.own(torch, *tensors) for tensors in self.arguments]
            function = functools.partial(case.sdpa, torch, functional)
            for column in peers.GROUPS["sdpa"]:
                make = functools.partial(peers.fused, torch, column, function)
                makers[column] = peers.torch_maker(self.timer, make, own, right, effort)
        if "ort" in self.asked.peers:
            makers["onnxruntime"] = self.onnxruntime
        return peers.prepare(self.timer, makers)

    def _further(self, peer: Peer, right: Any) -> Prepared:
        """A peer of the case's own."""
        with self.backend.failures():
            own = [peer.own(self.torch, *tensors) for tensors in self.arguments]
        function = functools.partial(peer.function, self.torch, self.torch.nn.functional)
        return peers.torch_maker(self.timer, lambda: function, own, right, self.asked.effort)()

    def onnxruntime(self) -> Prepared:
        """Copies of the original model in onnxruntime, each on a set of its own."""
        copies = min(self.sets, peers.MAX_COPIES)
        tensors = {
            f"{t.name}_{k}": self.arguments[k][i] for i, t in enumerate(self.case.tensors) for k in range(copies)
        }
        sets = Sets(self.backend, self.dtype, self.case.output, copies)
        sets.poison()
        outputs = {f"output_{k}": self.backend.tensor(sets, k) for k in range(copies)}
        model = self.case.repeated(self.dtype, copies).SerializeToString()
        graph = peers.OrtGraph(self.backend, model, tensors, outputs, exact=not self.asked.tf32)
        prepared = peers.prepared_ort(self.timer, graph, copies)
        peers.check_close(outputs["output_0"], self.reference(0))
        return prepared

    # --- all of it ----------------------------------------------------------------------------------------------------
    def run(self, row: Row) -> dict[str, Any]:
        """The row as JSON."""
        ready, problems = self.peers()
        data: dict[str, Any] = {"sets": self.sets, "accuracy": None}
        times: dict[str, Distribution] | None = None
        problem = ""
        try:
            built = read(row)
            data |= {"kernels": built.kernels, "predicted_us": built.predicted_us, "tuning": built.tuning}
            timed: Timed = honest(self.timer, self.ours(built), self.sets, ready, self.asked.effort)
            data["accuracy"] = timed.accuracy.to_json()
            data["mirage"] = {"us": timed.chained.to_json(), "isolated_us": timed.isolated.to_json()}
            times = dict(timed.others)
        except CheckFailed as e:
            problem = f"WRONG: {e}"
        except MirageError as e:
            problem = f"failed: {e}"
        if problem:
            data["mirage"] = {"problem": problem}
        if times is None:
            times = self.timer.measure(ready, self.asked.effort) if ready else {}
        data["peers"] = {n: {"us": us.to_json()} for n, us in times.items()}
        data["peers"] |= {n: {"problem": text} for n, text in problems.items()}
        return data
