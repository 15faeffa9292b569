"""Sessions and kernels called by many threads for a long time: is every answer the first one, and does memory grow?

    python -m samples.threads [OUT ...] [--seconds 600] [--threads 8] [--sessions 4] [--provider cuda] [--report FILE.json]

OUT are output folders of `mirage optimize --force`; without them, samples are optimized into out/threads. Every folder gives
onnxruntime sessions (of its model with spoiled functions, so that only kernels can be right, see sessions.py; symbolic
dimensions change from call to call) and, where it has kernels of the right kind, Python kernels on numpy's or torch's tensors;
a graph that is built here with `mi.new_kernel_graph` gives one too. Threads call whatever is there, while another thread keeps
replacing sessions by new ones. Answers have to be equal bit by bit. Prints calls, replacements, answers that differ and
how memory went; exit code 1 where an answer differs or memory grows. SIGTERM ends the run before its time. Memory of the
process is what the system has given it, of which freed blocks that lie scattered are a part, and what is in use on the heap
once garbage has been collected: the latter shows leaks, the former is allowed more.

With CUDA's provider every session leaves something behind, of original models too: cuDNN's handles do (`python -m
samples.growth`). How much is measured while the run warms up, in a process of its own with original models (`--plain`),
and as much for each session that was made is no growth of ours.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

import mirage_cli as mi
from mirage_cli.files.output import MUGRAPHS
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import BY_NAME
from mirage_cli.report import mugraph_file
from mirage_cli.runtime import sessions as runtime
from samples import sessions
from samples.inputs import DEFAULT_DIMS
from samples.memory import in_use, resident

Tensor = NDArray[Any]
Call = Callable[[int], Sequence[Tensor]]
Stop = Callable[[float, int], bool]
ROOT = Path(__file__).resolve().parent
#: samples that are optimized where no folders are given: decoders with fixed and symbolic sizes, another architecture, halves
SAMPLES = ("models/llama_dynamic_fp32", "models/bert_fp32", "models/llama_fp16", "operators/norm_gated_mlp_fp32")
DIMS: tuple[Mapping[str, int], ...] = ({}, {"batch": 1, "sequence": 5}, {"batch": 3, "sequence": 7, "past": 4})
WARM = 0.25  #: share of a run before memory is watched
GROWTH = {1: 0.10, 2: 0.03, 3: 0.03}  #: of a column of memory behind that, which is no growth yet
PROCESS = (1, 3)  #: columns of what a session of the original leaves behind
START = 30.0  #: seconds that a process takes until it calls sessions, about
PAUSE = 0.002  #: seconds, in the place of a kernel's call
MEBI, KIBI = 1 << 20, 1 << 10
_ARCH = {"cpu": (), "cuda": ("native",)}


@dataclass(frozen=True)
class Callee:
    """Something to call: `make` gives it anew, `sets` is how many sets of inputs it takes."""

    name: str
    make: Callable[[], Call]
    sets: int
    session: bool = False


@dataclass
class Result:
    """The findings of a run. `memory` are, over time, (seconds, bytes of this process, of the GPU, in use on the
    heap, sessions made so far); `usual` is what each session of an original model leaves behind, by column, in
    bytes."""

    seconds: float = 0.0
    calls: dict[str, int] = field(default_factory=dict)
    made: int = 0
    different: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    memory: list[tuple[float, int, int, int, int]] = field(default_factory=list)
    usual: dict[int, float] = field(default_factory=dict)

    def _watched(self, column: int) -> tuple[NDArray[np.float64], ...]:
        """(times, bytes of one kind of memory, sessions made) behind the warm-up."""
        rows = [row for row in self.memory if row[0] >= WARM * self.seconds] or self.memory
        times, sizes, sessions_made = (np.array([row[k] for row in rows], np.float64) for k in (0, column, 4))
        return times, sizes, sessions_made

    def left(self, column: int) -> float:
        """Bytes that each session left behind."""
        _, sizes, sessions_made = self._watched(column)
        return float(np.polyfit(sessions_made, sizes, 1)[0]) if len(set(sessions_made)) > 2 else 0.0

    def grown(self, column: int) -> tuple[float, float, float]:
        """Mebibytes of one kind of memory, without what is usual: mean of the first and of the last third behind the warm-up,
        growth a minute."""
        times, sizes, sessions_made = self._watched(column)
        sizes = sizes - self.usual.get(column, 0.0) * (sessions_made - sessions_made[0])
        third = max(1, len(sizes) // 3)
        slope = float(np.polyfit(times, sizes, 1)[0]) * 60 if len(sizes) > 2 else 0.0
        return float(sizes[:third].mean()) / MEBI, float(sizes[-third:].mean()) / MEBI, slope / MEBI

    def failed(self) -> bool:
        """True if an answer differs, a call failed, or memory grows."""
        return bool(self.different or self.problems) or any(map(self.growing, GROWTH))

    def growing(self, column: int) -> bool:
        """True if one kind of memory grows."""
        before, after, _ = self.grown(column)
        return after > before * (1 + GROWTH[column])

    def lines(self) -> list[str]:
        """The findings as lines of text."""
        lines = [f"{sum(self.calls.values()):,} calls in {self.seconds:.0f} s, {self.made} sessions and kernels made"]
        lines += [f"  {name}: {n:,} calls, {self.different.get(name, 0)} different" for name, n in self.calls.items()]
        for column, what in ((1, "process"), (3, "process in use"), (2, "GPU")):
            if any(row[column] for row in self.memory):
                before, after, slope = self.grown(column)
                most = max(row[column] for row in self.memory) / MEBI
                lines.append(
                    f"memory of the {what}: {before:.0f} MiB after the warm-up, {after:.0f} MiB at the end, "
                    f"{most:.0f} MiB at most, {slope:+.2f} MiB a minute{': GROWS' if self.growing(column) else ''}"
                )
                if usual := self.usual.get(column, 0.0):
                    lines.append(
                        f"  without {usual / KIBI:.0f} KiB for each of {self.memory[-1][4]} sessions, which originals "
                        f"leave behind; these left {self.left(column) / KIBI:.0f}"
                    )
        return [*lines, *self.problems]


# ---- what is called --------------------------------------------------------------------------------------------------


def session_callee(original: Path, out: Path, folder: Path, provider: str, plain: bool = False) -> Callee:
    """Sessions of a patched model, or the `plain` original; their first answers are compared with the original's here."""
    folder.mkdir(parents=True, exist_ok=True)
    symbolic = any(
        d.dim_param
        for v in onnx.load(original, load_external_data=False).graph.input
        for d in v.type.tensor_type.shape.dim
    )
    cases = [
        sessions.case_of(original, out, _sub(folder, k), provider, {**DEFAULT_DIMS, **dims})
        for k, dims in enumerate(DIMS if symbolic else DIMS[:1])
    ]
    feeds = [(c, k) for c in cases for k in range(len(c.feeds))]

    def make() -> Call:
        session = replace(cases[0], library=None).session(model=original) if plain else cases[0].session()

        def call(k: int) -> Sequence[Tensor]:
            case, number = feeds[k]
            return list(sessions.answers(session, case.feeds[number]).values())

        return call

    first = make()
    for k, (case, number) in enumerate(feeds):
        answers = dict(zip(case.wanted[number], first(k), strict=True))
        if problem := sessions.difference(answers, case.wanted[number]):
            raise SystemExit(f"{out}: {problem}")
    return Callee(f"session {out.name}", make, len(feeds), session=True)


def _sub(folder: Path, k: int) -> Path:
    subfolder = folder / str(k)
    subfolder.mkdir(exist_ok=True)
    return subfolder


def kernels_callee(out: Path, provider: str) -> Callee:
    """All Python kernels of an output folder, on tensors of random numbers."""
    calls = []
    for path in sorted((out / MUGRAPHS).glob("*.json")):
        data = mugraph_file.read(path)
        if ("cuda" if provider == "cuda" else "cpu") not in data["targets"]:
            continue
        operator = data["operator"]
        feeds = [
            [_random(t, dict.fromkeys(operator["symbols"], n + 3), seed) for seed, t in enumerate(operator["inputs"])]
            for n in (2, 6)
        ]
        calls += [(path.stem, feeds, k) for k in range(len(feeds))]

    def make() -> Call:
        kernels = {i: _kernel(mi.load_kernel(out, i), feeds, provider) for i, feeds, _ in calls}
        return lambda k: kernels[calls[k][0]](calls[k][2])

    return Callee(f"kernels {out.name}", make, len(calls))


def _random(tensor: Mapping[str, Any], symbols: Mapping[str, int], seed: int) -> Tensor:
    shape = [ex.value(ex.from_json(d), symbols) for d in tensor["dims"]]
    dtype = BY_NAME[tensor["dtype"]]
    rng = np.random.default_rng(seed)
    if not dtype.is_float:
        return rng.integers(0, 2, shape).astype({"bool": np.bool_, "i32": np.int32}.get(dtype.name, np.int64))
    return rng.standard_normal(shape).astype({"f16": np.float16, "f64": np.float64}.get(dtype.name, np.float32))


def graph_callee(provider: str) -> Callee:
    """A graph that is built in Python."""
    graph = mi.new_kernel_graph()
    x, w = graph.new_input(dims=(16, 64), dtype=mi.float32), graph.new_input(dims=(64, 48), dtype=mi.float32)
    graph.mark_output(graph.softmax(graph.matmul(graph.rms_norm(x, (64,)), w)))
    target = "cuda" if provider == "cuda" else "cpu"
    kernel = graph.superoptimize(target=[target], arch=_ARCH[target], jobs=1)
    rng = np.random.default_rng(0)
    feeds = [[rng.standard_normal(s).astype(np.float32) for s in ((16, 64), (64, 48))] for _ in range(3)]
    return Callee("graph of Python", lambda: _kernel(kernel, feeds, provider), len(feeds))


def _kernel(kernel: Any, feeds: Sequence[Sequence[Tensor]], provider: str) -> Call:
    """A kernel on host arrays, or on torch's tensors on a stream of the calling thread."""

    def on_host(k: int) -> Sequence[Tensor]:
        result = kernel(inputs=list(feeds[k]))
        return [np.asarray(r) for r in (result if isinstance(result, tuple) else (result,))]

    if provider != "cuda":
        return on_host
    import torch  # noqa: PLC0415 - only with a GPU

    there = [[torch.from_numpy(a).cuda() for a in feed] for feed in feeds]
    own = threading.local()
    torch.cuda.synchronize()

    def on_device(k: int) -> Sequence[Tensor]:
        if not hasattr(own, "stream"):
            own.stream = torch.cuda.Stream()
        with torch.cuda.stream(own.stream):
            result = kernel(inputs=there[k])
            results = [r.cpu().numpy() for r in (result if isinstance(result, tuple) else (result,))]
        own.stream.synchronize()
        return results

    return on_device


def pause_callee() -> Callee:
    """Takes a place and about as long as a kernel."""

    def call(k: int) -> Sequence[Tensor]:
        time.sleep(PAUSE)
        return []

    return Callee("pause", lambda: call, 1)


# ---- calling it ------------------------------------------------------------------------------------------------------


def run(
    callees: Sequence[Callee],
    threads: int,
    copies: int,
    stop: Stop,
    gpu: Callable[[], int] = lambda: 0,
    every: float = 0.5,
) -> Result:
    """Call `copies` of each callee from many threads at once, with a new one in the place of another every now and then, until
    `stop(seconds, calls of a thread)`. Answers are compared with the very first one of each callee."""
    result = Result(calls=dict.fromkeys((c.name for c in callees), 0))
    wanted = []
    for callee in callees:
        first = callee.make()
        wanted.append([[np.array(a) for a in first(k)] for k in range(callee.sets)])
    slots = [(n, callee.make()) for _ in range(copies) for n, callee in enumerate(callees)]
    result.made = len(callees) + len(slots)
    sessions_made = (copies + 1) * sum(c.session for c in callees)
    lock, begin, over = threading.Lock(), time.monotonic(), threading.Event()

    def work(seed: int) -> None:
        rng = Random(seed)
        calls, different = [0] * len(callees), [0] * len(callees)
        for count in itertools.count():
            if over.is_set() or stop(time.monotonic() - begin, count):
                break
            n, call = slots[rng.randrange(len(slots))]
            k = rng.randrange(callees[n].sets)
            try:
                answers = call(k)
            except Exception as error:  # whatever a call raises is the finding
                with lock:
                    result.problems.append(f"{callees[n].name}: {type(error).__name__}: {error}")
                break
            calls[n] += 1
            different[n] += not _same(answers, wanted[n][k])
        with lock:
            for n, callee in enumerate(callees):
                result.calls[callee.name] += calls[n]
                if different[n]:
                    result.different[callee.name] = result.different.get(callee.name, 0) + different[n]

    def replace() -> None:
        nonlocal sessions_made
        rng = Random(-1)
        while not over.wait(every):
            place = rng.randrange(len(slots))
            n = slots[place][0]
            slots[place] = n, callees[n].make()
            result.made += 1
            sessions_made += callees[n].session

    def watch() -> None:
        now = time.monotonic() - begin if result.memory else 0.0
        result.memory.append((now, resident(), gpu(), in_use(), sessions_made))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    maker = threading.Thread(target=replace)
    watch()
    for thread in (*workers, maker):
        thread.start()
    while any(w.is_alive() for w in workers):
        watch()
        time.sleep(0.5)
    over.set()
    for thread in (*workers, maker):
        thread.join()
    result.seconds = time.monotonic() - begin
    return result


def _same(answers: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    """True if answers are equal bit by bit."""
    return len(answers) == len(wanted) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(answers, wanted, strict=True)
    )


def _gpu_used() -> int:
    import torch  # noqa: PLC0415 - only with a GPU

    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def main() -> int:
    """Run; 1 where an answer differs or memory grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "out", type=Path, nargs="*", help="output folders that hold what they were made from in report.json"
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--sessions", type=int, default=4, help="copies of each model [4]")
    parser.add_argument("--provider", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between replacements [0.5]")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="sessions of the original models, pauses for kernels: onnxruntime's own part",
    )
    parser.add_argument("--work", type=Path, default=Path("out/threads"))
    parser.add_argument("--report", type=Path, help="a file for the figures, in JSON")
    given = parser.parse_args()
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    runtime.check_provider(given.provider)
    if given.provider == "cuda" and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    folders = given.out or [_optimized(name, given.work, given.provider) for name in SAMPLES]
    alone = given.plain or given.provider == "cpu"
    none: dict[int, float] = {}
    apart = contextlib.nullcontext(none) if alone else control(given, folders)
    with tempfile.TemporaryDirectory() as folder, apart as usual:
        callees = [pause_callee() if given.plain else graph_callee(given.provider)]
        for k, out in enumerate(folders):
            original = Path(json.loads((out / "report.json").read_text(encoding="utf-8"))["model"]["path"])
            callees.append(session_callee(original, out, Path(folder) / str(k), given.provider, given.plain))
            callees.append(pause_callee() if given.plain else kernels_callee(out, given.provider))
        print(f"{len(callees)} callees, onnxruntime {onnxruntime.__version__}, provider {given.provider}", flush=True)
        result = run(
            callees,
            given.threads,
            given.sessions,
            lambda seconds, _: seconds >= given.seconds or asked_to_end.is_set(),
            _gpu_used if given.provider == "cuda" else lambda: 0,
            given.every,
        )
    result.usual = usual
    print("\n".join(result.lines()))
    if given.report is not None:
        given.report.write_text(json.dumps(asdict(result)), encoding="utf-8")
    return int(result.failed())


@contextlib.contextmanager
def control(given: argparse.Namespace, folders: Sequence[Path]) -> Iterator[dict[int, float]]:
    """Originals in a process of their own, called in the same way while the run warms up; what each of their sessions leaves
    behind, which is there at the end."""
    usual: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        seconds = max(WARM * given.seconds - START, START / 2)
        command = [sys.executable, "-m", "samples.threads", *map(str, folders), "--plain", "--report", str(report)]
        for name in ("threads", "sessions", "provider", "every"):
            command += [f"--{name}", str(getattr(given, name))]
        with subprocess.Popen([*command, "--seconds", str(seconds)], stdout=subprocess.DEVNULL) as child:
            yield usual
            child.wait()
        figures = json.loads(report.read_text(encoding="utf-8"))
        usual.update({column: max(0.0, Result(**figures | {"usual": {}}).left(column)) for column in PROCESS})


def _optimized(name: str, work: Path, provider: str) -> Path:
    """A sample's output folder, made where it is not there."""
    work.mkdir(parents=True, exist_ok=True)
    out = work / Path(name).name
    if not out.exists():
        mi.optimize(
            str(ROOT / f"{name}.onnx"),
            str(out),
            target=["cpu", "cuda"] if provider == "cuda" else ["cpu"],
            arch=_ARCH[provider],
            force=True,
        )
    return out


if __name__ == "__main__":
    sys.exit(main())
