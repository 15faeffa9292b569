"""The rates of this machine's CPU: what its cores compute and read, what onnxruntime's products reach, what an operator costs.

They are measured once, in some seconds, and kept with what they are of: the processor, the cores that may be used,
onnxruntime, and how it is measured. On a machine that others use they would be wrong for good, so they are not measured there.
What is measured again stands beside what was read before: rates are those of all readings that are kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from mirage_cli.processes.conversation import Conversation, conversation
from mirage_cli.search.schedules import architectures
from mirage_cli.search.schedules.products import FEW

VARIABLE = "MIRAGE_RATES"  #: `file` for the numbers of the target's file, whatever the machine
FOLDER = "rates"  #: in the user's cache
LOADED = "this machine is loaded: others take {:.0%} of its processors"
WAITED = 0.1  #: seconds in which nothing is done, to see whether others do
SECONDS = 60.0  #: for the program to be compiled, and to run
MARGIN = 1.03  #: how much faster than the original a fragment has to be predicted by rates that were measured
LARGEST = 1 << 28  #: bytes of the array that is read, at most
WIDTH, LAYERS = 768, 24  #: of a chain of products with 54 MiB of weights; strides of whole pages are slower
WEIGHTS = 4.0 * LAYERS * WIDTH * WIDTH  #: bytes of them
FEW_ROWS, ROWS = FEW, 128  #: of these, and of packed products in rates.cpp
HELD = 4  #: such products whose weights caches hold
DEEP = 4  #: times as many summed positions of long sums, as in feed-forward layers
ROUNDS = 3  #: of what is done in turns
READINGS = 6  #: how many are kept: each of so many rounds
SMALL = 2  #: readings of small pages by all cores and by one, of which the fastest counts
PAIRED = ("c", "few", "f", "m", "many")  #: products that tell how fast a round is: letters of rates.cpp, and words
REST = (*"oaxpq", "one", "single", "s", "long", "held", "least", "alone", "split")  #: what else there is in each
PEAKS = ("o", "a", "x")  #: what nothing makes faster than a machine is: the fastest reading counts
TURNS = 3  #: of what is found by going on
OPERATORS, SOME = 128, 32  #: of a chain of the smallest ones, and of those that are worth several threads
LEAST, ELEMENTS = 16, 1 << 16  #: elements of these
AGAIN = {"least": 40, "alone": 8, "split": 8, "held": 6}  #: runs of short chains, of which the fastest counts
#: what is done so many times more, of which the median counts: a first run finds threads asleep and pages forgotten
WARM = {"one": 4, "single": 2, "few": 3, "long": 1, "p": 3, "q": 2, "c": 2}
FASTEST = ("one", "single")  #: of these the fastest counts: between short runs threads of sessions fall asleep again
#: chains that are so many times shorter: with many rows it matters little what caches hold
SHORTER = {"many": 2, "long": 3}


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read at one time: bytes a second of small pages by all cores and by one, and in each round how often a second
    each kind of work is done, or how much of it."""

    cores: int
    small: float
    one: float
    rounds: tuple[dict[str, float], ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """What was measured of a CPU."""

    cores: A[int, says("Cores that a process may use.")]
    one_core: A[float, says("Multiply-adds of float32 a second, times two, of one core alone.")]
    all_cores: A[float, says("The same of all cores at once.")]
    bandwidth: A[float, says("Bytes a second that all cores read of memory.")]
    large_pages: A[float, says("Bytes a second that packed products of one row read of memory, in large pages.")]
    library: A[float, says("Multiply-adds a second, times two, of products of 128 rows in onnxruntime.")]
    library_few: A[float, says("The same of 16 rows.")]
    library_held: A[float, says("The same of 16 rows with weights that caches hold.")]
    library_deep: A[float, says("The same of 128 rows, over four times as many summed positions.")]
    library_bandwidth: A[float, says("Bytes a second that its products of one row read.")]
    one_reads: A[float, says("Bytes a second that one core alone reads of memory.")]
    one_large_pages: A[float, says("The same by packed products of one row, in large pages.")]
    one_library: A[float, says("The same by products of one row in onnxruntime.")]
    operator_us: A[float, says("Microseconds of an operator of onnxruntime with next to nothing to do.")]
    fork_us: A[float, says("Microseconds more that an operator takes for handing parts of itself to other threads.")]
    panels: A[
        float, says("Multiply-adds a second, times two, of 128 rows with packed weights that are read from memory.")
    ]
    panels_few: A[float, says("The same of 16 rows with packed weights that caches hold.")]
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
            "single": min(1.0, self.one_reads / self.bandwidth),
            "flops": {name: float(rate) * faster for name, rate in usual["flops"].items()},
            "split": self.split / self.cores,
            "special": float(usual["special"]) * faster,
            "launch_us": float(usual["launch_us"]) * slower,
            "kernel_us": float(usual["kernel_us"]) * slower,
            "fork_us": self.fork_us,
            "margin": MARGIN,
            "cpu": {
                "operator_us": self.operator_us,
                "large_pages": self.large_pages / self.bandwidth,
                "single_pages": self.one_large_pages / self.one_reads,
                "single_library": self.one_library / self.one_reads,
                **self.library_constants(),
                "packed_rate": min(1.0, self.stored / self.all_cores * (1 + float(usual["cpu"]["packed_half"]) / ROWS)),
                **self.panel_constants(),
            },
        }
        return {k: _rounded(v) for k, v in changes.items()}

    def library_constants(self) -> dict[str, float]:
        """What products of onnxruntime reach, which take a time for each row and, from FEW_ROWS on, one for each weight; with
        weights in memory, beside which they read and write their rows, also that of reading."""
        flops, read = WEIGHTS / 2, self.library_bandwidth  # of a row
        held, few, many = (
            FEW_ROWS * flops / self.library_held,
            FEW_ROWS * flops / self.library_few,
            ROWS * flops / self.library,
        )
        overlap, row, weight = _of_products((_moved(FEW_ROWS) / read, _moved(ROWS) / read), held, few, many)
        return {
            "library_rate": min(1.0, flops / row / self.all_cores),
            "library_half": weight / row,
            "library_bandwidth": self.library_bandwidth / self.bandwidth,
            "library_overlap": overlap,
            "library_deep": max(0.0, self.library / self.library_deep - 1) / math.log2(DEEP),
        }

    def panel_constants(self) -> dict[str, float]:
        """What packed products reach, which take a time for each row and, from FEW_ROWS on, one for each panel
        (`products.in_panels`)."""
        flops, read = WEIGHTS / 2, WEIGHTS / self.large_pages
        few, cold, many = (
            FEW_ROWS * flops / self.panels_few,
            FEW_ROWS * flops / self.panels_cold,
            ROWS * flops / self.panels,
        )
        overlap, row, panel = _of_products((read, read), few, cold, many)
        return {
            "panel_rate": min(1.0, flops / row / self.all_cores),
            "panel_half": panel / row,
            "overlap": overlap,
        }


def kept() -> Rates | None:
    """What was measured of this machine earlier, if anything."""
    folder = _folder()
    readings = _readings(Kept(folder)) if folder is not None and folder.is_dir() else ()  # none is made for a look
    return of(readings) if readings else None


def found(compiler: Tool, anew: bool = False) -> tuple[Rates | None, str]:
    """(what is known of this machine, measured now where nothing is, and once more if `anew`; why nothing is)."""
    if os.environ.get(VARIABLE) == "file":
        return None, f"{VARIABLE} is file"
    if not anew and (known := kept()) is not None:
        return known, ""
    folder = _folder()
    store = None if folder is None else Kept(folder)
    if store is None or not store.usable:
        return None, "there is no folder of the user's own to keep them in"
    if (taken := load.busy(WAITED)) > load.LOADED:
        return None, LOADED.format(taken)
    others = load.others()
    try:
        readings = (*_readings(store), measure(compiler))[-READINGS:]
    except CheckFailed as error:
        return None, str(error)
    if (taken := others()) > load.LOADED:
        return None, LOADED.format(taken)
    store.put(_name(), [dataclasses.asdict(r) for r in readings])
    return of(readings), ""


def _readings(store: Kept) -> tuple[Reading, ...]:
    data = store.get(_name())
    return () if data is None else codec.checked(data, tuple[Reading, ...])


def measure(compiler: Tool) -> Reading:
    """Read this machine's rates now. Raises CheckFailed where the program that measures does not run.

    Everything is done once a round, ours and onnxruntime's in turns: a machine's speed changes between rounds, what a kind of
    work takes beside the others hardly does (`_typical`).
    """
    with Scratch("mirage-rates-") as folder, ThreadPoolExecutor(1) as beside:
        compiled = beside.submit(_compile, compiler, folder)
        chains = _Chains()
        compiled.result()
        size = min(LARGEST, 4 * devices.cache_bytes("cpu"))
        with conversation((str(folder / "rates"), str(cores()), str(size)), folder, SECONDS) as own:
            small, one = (max(float(own.ask(kind)) for _ in range(SMALL)) for kind in "ri")
            rounds = [_round(own, chains, (*PAIRED, *REST)) for _ in range(ROUNDS)]
    return Reading(cores(), small, one, tuple(rounds))


def of(readings: Sequence[Reading]) -> Rates:
    """The rates that a machine has by all its readings, at least one."""
    rounds = [own for r in readings for own in r.rounds]
    rate = _typical(rounds)
    operator = max(_least(rounds, "least") / OPERATORS, 0.05)
    fork = max((_least(rounds, "split") - _least(rounds, "alone") / cores()) / SOME, 0.2)
    found = {
        "one_core": rate["o"],
        "all_cores": rate["a"],
        "operator_us": operator,
        "fork_us": fork,
        **_of_library(rate, 1e-6 * (fork + _starting(operator))),
        "panels": rate["m"],
        "panels_few": rate["f"],
        "panels_cold": rate["c"],
        **_of_panels(rate),
        "stored": rate["s"],
        "split": rate["x"],
    }
    found["bandwidth"] = max(*(r.small for r in readings), found["library_bandwidth"])
    found["one_reads"] = max(min(max(r.one for r in readings), found["bandwidth"]), found["one_library"])
    return Rates(readings[0].cores, **_rounded(found))


def _round(own: Conversation, chains: _Chains, kinds: Sequence[str]) -> dict[str, float]:
    """How often a second each kind of work is done, or how much of it: one after the other."""

    def read(kind: str) -> float:
        return float(own.ask(kind)) if len(kind) == 1 else 1 / chains.seconds(kind)

    readings = {kind: [read(kind) for _ in range(1 + WARM.get(kind, 0))] for kind in kinds}
    return {k: (max if k in FASTEST else statistics.median)(all_[1:] or all_) for k, all_ in readings.items()}


def _typical(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The rates of the fastest round, where each has its median relation to the products of its round among the faster half:
    what disturbs the others disturbs threads that wait for one another most. Peaks are the highest that were read."""
    means = [statistics.geometric_mean(own[k] for k in PAIRED) for own in rounds]
    faster = sorted(range(len(rounds)), key=lambda k: -means[k])[: (len(rounds) + 1) // 2]
    typical = {k: statistics.median(rounds[n][k] / means[n] for n in faster) for k in rounds[0]}
    highest = {k: max(own[k] for own in rounds) for k in rounds[0] if k in PEAKS}
    return {k: x * max(means) for k, x in typical.items()} | highest


def _least(rounds: Sequence[Mapping[str, float]], kind: str) -> float:
    """Microseconds of the fastest run of a short chain: what disturbs it only adds to its time."""
    return 1e6 / max(own[kind] for own in rounds)


# ---- constants -------------------------------------------------------------------------------------------------------
def _starting(operator_us: float) -> float:
    """Microseconds of a product of onnxruntime beside its work, on one thread, as `original.py` has them."""
    usual = architectures.data("cpu")
    return operator_us * (float(usual["launch_us"]) + float(usual["kernel_us"])) / float(usual["cpu"]["operator_us"])


def _of_library(rate: Mapping[str, float], start: float) -> dict[str, float]:
    """What products of onnxruntime reach, beside the seconds in which each starts."""
    starts = {"many": LAYERS, "few": LAYERS} | dict.fromkeys(("one", "long", "single"), LAYERS // DEEP)
    many, few, one, long, single = (max(1 / rate[k] - n * start, 0.5 / rate[k]) for k, n in starts.items())
    held = min(few, LAYERS / HELD * max(1 / rate["held"] - HELD * start, 0.5 / rate["held"]))
    read = one
    for _ in range(TURNS):
        moved = read * _moved(FEW_ROWS) / WEIGHTS, read * _moved(ROWS) / WEIGHTS
        overlap, row, _ = _of_products(moved, held, few, many)
        read = _read(one, row, overlap)
    flops = WEIGHTS / 2  # of a row
    return {
        "library": ROWS * flops / many,
        "library_few": FEW_ROWS * flops / few,
        "library_held": FEW_ROWS * flops / held,
        "library_deep": ROWS * flops / 2 / max(long - many / 2, many / 8),  # half of its sums are long
        "library_bandwidth": WEIGHTS / read,
        "one_library": WEIGHTS / _read(single, cores() * row, overlap),
    }


def _moved(rows: int) -> float:
    """Bytes of all weights, and of rows that are read and written beside them."""
    return WEIGHTS * (1 + 2 * rows / WIDTH)


def _of_panels(rate: Mapping[str, float]) -> dict[str, float]:
    """Bytes a second that packed products of one row read, beside what they multiply."""
    flops = WEIGHTS / 2  # of a row
    one, few, cold, many = (n * flops / rate[k] for k, n in (("p", 1), ("f", FEW_ROWS), ("c", FEW_ROWS), ("m", ROWS)))
    read = one
    for _ in range(TURNS):
        overlap, row, _ = _of_products((read, read), few, cold, many)
        read = _read(one, row, overlap)
    alone = _read(flops / rate["q"], cores() * row, overlap)
    return {"large_pages": WEIGHTS / read, "one_large_pages": WEIGHTS / alone}


def _of_products(read: tuple[float, float], held: float, few: float, many: float) -> tuple[float, float, float]:
    """(share of `_overlap`, seconds of a row, of what rows do not add to) of products that take `held` for FEW_ROWS rows with
    weights from caches, and `few` and `many` for as many and for ROWS rows where `read` is the time of reading from memory."""
    overlap = _overlap(held, read[0], few)
    work = _work(read[1], many, overlap)
    row = max(work - held, work / 2) / (ROWS - FEW_ROWS)
    return overlap, row, max(held - FEW_ROWS * row, 0.0)


def _read(both: float, work: float, overlap: float) -> float:
    """The time of reading where it takes `both` with a little work."""
    return max(both - (1 - overlap) * work, both / 2)


def _overlap(work: float, read: float, both: float) -> float:
    """The share of the shorter one of work and reading that is done at the time of the other, where they take `both`."""
    return min(1.0, max(0.0, (work + read - both) / min(work, read)))


def _work(read: float, both: float, overlap: float) -> float:
    """The time of work that takes `both` with what is read, at least half of that: a reading that was disturbed may say that
    reading alone takes longer than both."""
    work = both - (1 - overlap) * read
    return max(work if work >= read else (both - read) / max(1 - overlap, 0.01), both / 2)


# ---- measuring -------------------------------------------------------------------------------------------------------
def _compile(compiler: Tool, folder: Path) -> None:
    """Make the program that measures. Raises CheckFailed."""
    from mirage_cli.backends.cpu import FLAGS  # noqa: PLC0415 - what was measured earlier is read without it

    (folder / "rates.cpp").write_text(_source())
    flags = (*FLAGS, "-march=native", "-pthread", *compiler.compile_flags)
    with as_file(files("mirage_cli.templates").joinpath("include")) as headers:
        own = (*compiler.command, *flags, "-I", str(headers), "rates.cpp", *compiler.link_flags, "-o", "rates")
        outcome = programs.run(own, folder, SECONDS)
    if outcome.problem is not None:
        raise CheckFailed(f"the machine's rates were not measured: {outcome.problem}")


class _Chains:
    """Products of onnxruntime one behind the other: of the usual length, and half of them with long sums."""

    def __init__(self) -> None:
        import numpy as np  # noqa: PLC0415 - as above

        wide = DEEP * WIDTH
        usual, long = self.chain(LAYERS, (WIDTH, WIDTH)), self.chain(LAYERS // DEEP, (WIDTH, wide), (wide, WIDTH))
        many = self.chain(LAYERS // SHORTER["many"], (WIDTH, WIDTH))
        deep = self.chain(LAYERS // DEEP // SHORTER["long"], (WIDTH, wide), (wide, WIDTH))
        x, y = np.ones((ROWS, WIDTH), np.float32), np.ones(ELEMENTS, np.float32)
        least, alone, split = (
            _chain("Sigmoid", n, ("n",), {}, threads) for n, threads in ((OPERATORS, 1), (SOME, 1), (SOME, cores()))
        )
        self.runs = {"many": (many, x), "few": (usual, x[:FEW_ROWS]), "one": (long, x[:1]), "long": (deep, x)}
        held = self.chain(HELD, (WIDTH, WIDTH))
        self.runs["held"] = held, x[:FEW_ROWS]
        single = self.chain(LAYERS // DEEP, (WIDTH, wide), (wide, WIDTH), threads=1)
        self.runs |= {"single": (single, x[:1]), "least": (least, y[:LEAST]), "alone": (alone, y), "split": (split, y)}
        for kind in self.runs:
            self.seconds(kind)  # a first run takes memory

    def chain(self, count: int, *shapes: tuple[int, int], threads: int | None = None) -> Any:
        """A session. No two weights are alike: equal ones would be stored once."""
        import numpy as np  # noqa: PLC0415 - as above

        rng = np.random.default_rng(0)
        rows = [rng.standard_normal((d // LAYERS, w), dtype=np.float32) / np.float32(d**0.5) for d, w in shapes]
        own = [rows[k % len(shapes)] * np.float32(1 + k / LAYERS) for k in range(count)]
        return _chain("MatMul", count, ("rows", WIDTH), {f"w{k}": w for k, w in enumerate(own)}, threads)

    def seconds(self, kind: str) -> float:
        """The time of a run; the least of some where it is short. Of a chain that is shorter than others, that of as many."""
        return SHORTER.get(kind, 1) * _seconds(*self.runs[kind], AGAIN.get(kind, 1))


def _chain(kind: str, length: int, shape: tuple[int | str, ...], rows: Any, threads: int | None = None) -> Any:
    """A session of operators one behind the other, on as many threads as asked for; each with its weight if there are any,
    which is its `rows` LAYERS times: sessions repeat them when they are made, and models stay small."""
    from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415 - as above

    from mirage_cli.runtime import sessions  # noqa: PLC0415

    own = list(rows)
    times = helper.make_tensor("times", TensorProto.INT64, (2,), (LAYERS, 1))
    nodes = [helper.make_node("Tile", [name, "times"], [f"{name}_repeated"]) for name in own]
    nodes += [
        helper.make_node(kind, [f"h{k}", *(f"{name}_repeated" for name in own[k : k + 1])], [f"h{k + 1}"])
        for k in range(length)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("h0", f"h{length}")]
    stored = [times, *(numpy_helper.from_array(w, name) for name, w in rows.items())]
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
