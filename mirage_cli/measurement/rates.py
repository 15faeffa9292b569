"""The rates of this machine's CPU: what its cores compute and read, what onnxruntime's products reach, what an operator costs.

They are measured once, in some seconds, and kept with what they are of: the processor, the cores that may be used,
onnxruntime, and how it is measured. On a machine that others use they would be wrong for good, so they are not measured there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import math
import os
import time
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated as A
from typing import Any

from mirage_cli.backends.toolchain import Tool
from mirage_cli.errors import CheckFailed
from mirage_cli.files import codec
from mirage_cli.files.codec import says
from mirage_cli.files.result_store import Kept
from mirage_cli.files.staging import Scratch
from mirage_cli.machine import devices, load, user_folders
from mirage_cli.options.options import cores
from mirage_cli.processes import programs
from mirage_cli.search.schedules import architectures

VARIABLE = "MIRAGE_RATES"  #: `file` for the numbers of the target's file, whatever the machine
FOLDER = "rates"  #: in the user's cache
SECONDS = 60.0  #: for the program to be compiled, and to run
LARGEST = 1 << 28  #: bytes of the array that is read, at most
WIDTH, LAYERS = 768, 24  #: of a chain of products with 54 MiB of weights; strides of whole pages are slower
WEIGHTS = 4.0 * LAYERS * WIDTH * WIDTH  #: bytes of them
FEW_ROWS, ROWS = 16, 128  #: of these, and of packed products in rates.cpp
DEEP = 4  #: times as many summed positions of long sums, as in feed-forward layers
ROUNDS = 7  #: of a chain, of which the fastest counts
TIMES = 2  #: of each kind, of which the best counts
FEW, MANY, ELEMENTS = 8, 72, 1 << 16  #: operators of two chains, and elements of one that is worth several threads


@dataclass(frozen=True, slots=True)
class Rates:
    """What was measured of a CPU."""

    cores: A[int, says("Cores that a process may use.")]
    one_core: A[float, says("Multiply-adds of float32 a second, times two, of one core alone.")]
    all_cores: A[float, says("The same of all cores at once.")]
    bandwidth: A[float, says("Bytes a second that all cores read of memory.")]
    large_pages: A[float, says("The same of memory in large pages, in which sessions pack weights.")]
    library: A[float, says("Multiply-adds a second, times two, of products of 128 rows in onnxruntime.")]
    library_few: A[float, says("The same of 16 rows.")]
    library_deep: A[float, says("The same of 128 rows, over four times as many summed positions.")]
    library_bandwidth: A[float, says("Bytes of weights a second that its products of one row read.")]
    operator_us: A[float, says("Microseconds of an operator of onnxruntime with next to nothing to do.")]
    fork_us: A[float, says("Microseconds more that an operator takes for handing parts of itself to other threads.")]
    panels: A[float, says("Multiply-adds a second, times two, of 128 rows with packed weights that caches hold.")]
    panels_few: A[float, says("The same of 16 rows.")]
    panels_cold: A[float, says("The same of 16 rows with packed weights that are read from memory.")]
    stored: A[float, says("The same of 128 rows with weights as models store them.")]
    split: A[
        float, says("Multiply-adds a second of all cores, times two, split for matrix instructions; 0: there are none.")
    ] = 0.0

    def text(self) -> str:
        """The rates in a line."""
        giga = [f"{x / 1e9:.0f}" for x in (self.one_core, self.all_cores, self.panels, self.library, self.split)]
        split = f", split {giga[4]}" if self.split else ""
        read = [f"{x / 1e9:.1f}" for x in (self.bandwidth, self.large_pages, self.library_bandwidth)]
        return (
            f"{giga[0]} GFLOP/s of a core, {giga[1]} of all {self.cores} (products {giga[2]}, onnxruntime {giga[3]}{split}), "
            f"{read[0]} GB/s ({read[1]} in large pages, onnxruntime {read[2]}), {self.operator_us:.2f} us an operator, "
            f"{self.fork_us:.1f} us a fork"
        )

    def changes(self) -> dict[str, Any]:
        """The same as keys of the CPU's target file. What was not measured keeps its relation to what was: vector operations
        and other types to float32, kernels and operators in a model to the smallest operator."""
        usual = architectures.data("cpu")
        core = self.all_cores / self.cores
        faster = core / float(usual["flops"]["f32"])
        slower = self.operator_us / float(usual["cpu"]["operator_us"])
        changes = {
            "name": "cpu",
            "units": self.cores,
            "bandwidth": self.bandwidth,
            "flops": {name: float(rate) * faster for name, rate in usual["flops"].items()},
            "split": self.split / self.cores,
            "special": float(usual["special"]) * faster,
            "launch_us": float(usual["launch_us"]) * slower,
            "kernel_us": float(usual["kernel_us"]) * slower,
            "fork_us": self.fork_us,
            "cpu": {
                "operator_us": self.operator_us,
                "large_pages": self.large_pages / self.bandwidth,
                "library_rate": self.library / self.all_cores,
                "library_bandwidth": self.library_bandwidth / self.bandwidth,
                "library_overlap": _overlap(self.library, self.library_few, self.library_bandwidth),
                "library_deep": max(0.0, self.library / self.library_deep - 1) / math.log2(DEEP),
                "packed_rate": min(1.0, self.stored / self.all_cores * (1 + float(usual["cpu"]["packed_half"]) / ROWS)),
                **self.panel_constants(),
            },
        }
        return {k: _rounded(v) for k, v in changes.items()}

    def panel_constants(self) -> dict[str, float]:
        """What packed products reach, which take a time for each row and one for each panel (`products.in_panels`)."""
        beside = max(1 / self.panels_few - 1 / self.panels, 0.0) / (1 / FEW_ROWS - 1 / ROWS)
        rate = 1 / (1 / self.panels - beside / ROWS)
        return {
            "panel_rate": min(1.0, rate / self.all_cores),
            "panel_half": beside * rate,
            "overlap": _overlap(self.panels_few, self.panels_cold, self.large_pages),
        }


def kept() -> Rates | None:
    """What was measured of this machine earlier, if anything."""
    folder = _folder()
    store = Kept(folder) if folder is not None and folder.is_dir() else None  # none is made for a look
    data = None if store is None else store.get(_name())
    return None if data is None else codec.checked(data, Rates)


def found(compiler: Tool, anew: bool = False) -> tuple[Rates | None, str]:
    """(what is known of this machine, measured now where it was not, or `anew`; why nothing is)."""
    if os.environ.get(VARIABLE) == "file":
        return None, f"{VARIABLE} is file"
    if not anew and (known := kept()) is not None:
        return known, ""
    folder = _folder()
    store = None if folder is None else Kept(folder)
    if store is None or not store.usable:
        return None, "there is no folder of the user's own to keep them in"
    taken = load.busy()
    if taken > load.LOADED:
        return None, f"this machine is loaded: others take {taken:.0%} of its processors"
    try:
        rates = measure(compiler)
    except CheckFailed as error:
        return None, str(error)
    store.put(_name(), dataclasses.asdict(rates))
    return rates, ""


def measure(compiler: Tool) -> Rates:
    """The rates of this machine now. Raises CheckFailed where the program that measures does not run.

    Each is the best of some times a while apart: the threads of a session may share a core for as long as it lives, and
    others may slow the machine. Matrix instructions have the slower of two: others may use a core's unit too.
    """
    from mirage_cli.backends.cpu import FLAGS  # noqa: PLC0415 - what was measured earlier is read without it

    cpu, products, operators, chains = [], [], [], _Chains()
    with Scratch("mirage-rates-") as folder:
        (folder / "rates.cpp").write_text(_source())
        flags = (*FLAGS, "-march=native", "-pthread", *compiler.compile_flags)
        with as_file(files("mirage_cli.templates").joinpath("include")) as headers:
            own = (*compiler.command, *flags, "-I", str(headers), "rates.cpp", *compiler.link_flags, "-o", "rates")
            _run(own, folder)
        size = min(LARGEST, 4 * devices.cache_bytes("cpu"))
        for _ in range(TIMES):
            cpu.append(tuple(map(float, _run((str(folder / "rates"), str(cores()), str(size)), folder).split())))
            products.append(chains.rates())
            operators.append(_operators())
    one, all_cores, _, bandwidth, large, few, many, cold, stored = map(max, zip(*cpu, strict=True))
    split = min(values[2] for values in cpu)
    library, library_few, deep, read = map(max, zip(*products, strict=True))
    operator, fork = map(min, zip(*operators, strict=True))
    bandwidth = max(bandwidth, read)
    found = {
        "one_core": one,
        "all_cores": all_cores,
        "bandwidth": bandwidth,
        "large_pages": max(bandwidth, large),
        "library": library,
        "library_few": library_few,
        "library_deep": deep,
        "library_bandwidth": read,
        "operator_us": operator,
        "fork_us": fork,
        "panels": many,
        "panels_few": few,
        "panels_cold": cold,
        "stored": min(stored, many),
        "split": split,
    }
    return Rates(cores(), **_rounded(found))


def _overlap(many: float, few: float, bandwidth: float) -> float:
    """The share of the shorter of memory and work that products of few rows do at the time of the other. They reach the rate
    `few` with weights that come from memory at so many bytes a second, and would reach `many` with others."""
    flops = 2.0 * FEW_ROWS * WEIGHTS / 4
    multiplied, read = flops / many, WEIGHTS / bandwidth
    return min(1.0, max(0.0, (multiplied + read - flops / few) / min(multiplied, read)))


# ---- measuring -------------------------------------------------------------------------------------------------------
def _run(command: tuple[str, ...], folder: Path) -> str:
    """What a command of ours prints. Raises CheckFailed."""
    outcome = programs.run(command, folder, SECONDS)
    if outcome.problem is not None:
        raise CheckFailed(f"the machine's rates were not measured: {outcome.problem}")
    return outcome.output


class _Chains:
    """Products of onnxruntime one behind the other: of the usual length, and half of them with long sums."""

    def __init__(self) -> None:
        wide = DEEP * WIDTH
        self.usual = self.chain(LAYERS, (WIDTH, WIDTH))
        self.long = self.chain(LAYERS // DEEP, (WIDTH, wide), (wide, WIDTH))

    def chain(self, count: int, *shapes: tuple[int, int]) -> Any:
        """A session. No two weights are alike: equal ones would be stored once."""
        import numpy as np  # noqa: PLC0415 - as above

        rng = np.random.default_rng(0)
        rows = [rng.standard_normal((d // LAYERS, w), dtype=np.float32) / np.float32(d**0.5) for d, w in shapes]
        own = [np.tile(rows[k % len(shapes)] * np.float32(1 + k / LAYERS), (LAYERS, 1)) for k in range(count)]
        return _chain("MatMul", count, ("rows", WIDTH), {f"w{k}": w for k, w in enumerate(own)})

    def rates(self) -> tuple[float, float, float, float]:
        """Multiply-adds a second, times two, of many and of few rows, and of many with long sums; bytes of weights of one."""
        many, few, one = (self.seconds(self.usual, rows) for rows in (ROWS, FEW_ROWS, 1))
        long = max(self.seconds(self.long, ROWS) - many / 2, many / 8)  # half of its work are usual sums
        flops = WEIGHTS / 2  # of a row
        return ROWS * flops / many, FEW_ROWS * flops / few, ROWS * flops / 2 / long, WEIGHTS / one

    def seconds(self, session: Any, rows: int) -> float:
        """The least time of a run."""
        import numpy as np  # noqa: PLC0415 - as above

        return _seconds(session, np.ones((rows, WIDTH), np.float32), ROUNDS)


def _operators() -> tuple[float, float]:
    """(microseconds of the smallest operator, and of a fork)."""
    import numpy as np  # noqa: PLC0415 - as above

    def each(elements: int, threads: int, rounds: int = 20) -> float:
        x = np.ones(elements, np.float32)
        few, many = (_seconds(_chain("Sigmoid", n, (elements,), {}, threads), x, rounds) for n in (FEW, MANY))
        return max(many - few, 0.0) / (MANY - FEW) * 1e6

    threads = cores()
    fork = each(ELEMENTS, threads) - each(ELEMENTS, 1) / threads if threads > 1 else 0.0
    return max(each(16, 1, 300), 0.05), max(fork, 0.2)


def _chain(kind: str, length: int, shape: tuple[int | str, ...], weights: Any, threads: int | None = None) -> Any:
    """A session of operators one behind the other, each with its weight if there are any, on as many threads as asked for."""
    from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415 - as above

    from mirage_cli.runtime import sessions  # noqa: PLC0415

    own = list(weights)
    nodes = [helper.make_node(kind, [f"h{k}", *own[k : k + 1]], [f"h{k + 1}"]) for k in range(length)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("h0", f"h{length}")]
    stored = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    graph = helper.make_graph(nodes, "rates", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return sessions.session(model.SerializeToString(), threads=threads or cores())


def _seconds(session: Any, x: Any, rounds: int) -> float:
    """The least time of a run: what disturbs one only adds to it."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        session.run(None, {"h0": x})
        times.append(time.perf_counter() - start)
    return min(times)


# ---- keeping ---------------------------------------------------------------------------------------------------------
def _folder() -> Path | None:
    cache = user_folders.cache()
    return None if cache is None else cache / FOLDER


def _name() -> str:
    """The name of what is measured here, by this measure; another version of mirage with the same one takes it too."""
    runtimes = [
        f"{d.metadata['Name']} {d.version}"
        for n in ("onnxruntime", "onnxruntime-gpu")
        for d in importlib.metadata.distributions(name=n)
    ]
    told = [*devices.identity(), runtimes, _source(), *_headers(), Path(__file__).read_text()]
    return hashlib.sha256("\0".join(map(str, told)).encode()).hexdigest()


def _headers() -> list[str]:
    """The headers of packed products, whose rates are measured."""
    folder = files("mirage_cli.templates").joinpath("include", "mirage", "cpu")
    return [folder.joinpath(name).read_text(encoding="utf-8") for name in ("packed.hpp", "contract.hpp", "math.hpp")]


def _source() -> str:
    return files("mirage_cli.templates").joinpath("rates.cpp").read_text(encoding="utf-8")


def _rounded(value: Any) -> Any:
    """Numbers to three digits: more would not be the same twice."""
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return float(f"{value:.3g}") if isinstance(value, float) else value
