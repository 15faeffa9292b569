"""Attention behind a cache whose lengths lie in memory (GroupQueryAttention), of steps and of prompts, timed cold on a GPU.

    python -m samples.cached_suite build FOLDER [--schedules 4]   # needs nvcc
    python -m samples.cached_suite time FOLDER                    # needs torch and a GPU

Kernels are those that the model finds best for some case, and some beside them; each is timed at all cases of its kind, in
caches with twice the room. torch's fused attentions get the caches cut to their length. A line has the microseconds, the share
of the bandwidth at which keys and values are read (of prompts TFLOP/s of what the mask shows), and the error beside float64.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirage_cli.codegen import render
from mirage_cli.codegen.source import source
from mirage_cli.errors import MirageError, Refused
from mirage_cli.frontends.imported import Options
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.ir.program import Program
from mirage_cli.measurement.gpu import GpuTimer, sets_for
from mirage_cli.measurement.timing import Effort
from mirage_cli.optimization.task import tensor_names
from mirage_cli.planning import ranges
from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.schedules.ranking import total_us
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from samples.int4_suite import BANDWIDTH

SHAPES = {"1b": (32, 8, 64), "8b": (32, 8, 128)}  #: heads, those of keys, numbers of one
BATCHES, LENGTHS = (1, 4, 16), (1024, 8192, 32768)
PROMPTS = ((1, 512), (1, 768), (1, 1024), (1, 2048), (1, 4096), (4, 512), (4, 1024), (4, 4096))
BOTH = ((1, 1024), (1, 8192), (4, 1024), (16, 8192))  #: batches and lengths of steps by the kernels for prompts
STEP, PROMPT = "step", "prompt"
NEAR = 2.5  #: times the best prediction of a case beyond which a kernel is not timed
MOST_BYTES = 9 << 30  #: of the caches of a row


@dataclass(frozen=True, slots=True)
class Case:
    """So many sequences that all have this length, the last rows of which are new."""

    shape: str
    batch: int
    length: int
    rows: int = 1
    kind: str = STEP  #: of the model: of steps, or of any number of rows

    @property
    def flops(self) -> float:
        """Operations of products, of what the mask shows."""
        heads, _, size = SHAPES[self.shape]
        return 4.0 * self.batch * heads * size * self.rows * (self.length - (self.rows - 1) / 2)

    @property
    def bytes(self) -> float:
        """Bytes of keys and values that are read."""
        _, shared, size = SHAPES[self.shape]
        return 4 * self.batch * shared * size * self.length

    @property
    def room(self) -> int:
        """Positions that the caches have room for."""
        return 2 * self.length

    def sizes(self, p: Program) -> dict[str, int]:
        """The values of a program's symbols."""
        return ranges.resolved(p.symbols, {"batch": self.batch, "past": self.room - self.rows, "new": self.rows})

    def full(self, p: Program) -> dict[str, int]:
        """The same where the caches have no more room: predictions take them to be full."""
        return ranges.resolved(p.symbols, {"batch": self.batch, "past": self.length - self.rows, "new": self.rows})


CASES = [Case(*own) for own in itertools.product(SHAPES, BATCHES, LENGTHS)]
CASES += [Case(shape, batch, length, length, PROMPT) for shape in SHAPES for batch, length in PROMPTS]
CASES += [Case(shape, batch, length, 1, PROMPT) for shape in SHAPES for batch, length in BOTH]


def model(shape: str, kind: str) -> onnx.ModelProto:
    """The operator in a buffer that past and present share."""
    heads, shared, size = SHAPES[shape]
    new = 1 if kind == STEP else "new"

    def info(name: str, kind: int, *dims: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, dims)

    half, whole = TensorProto.FLOAT16, TensorProto.INT32
    caches = [info(n, half, "batch", shared, "past", size) for n in ("past_k", "past_v")]
    tables = [info(n, half, 1 << 17, size // 2) for n in ("cos", "sin")]
    inputs = [info("qkv", half, "batch", new, (heads + 2 * shared) * size), *caches]
    inputs += [info("lengths", whole, "batch"), info("whole", whole), *tables]
    outputs = [info("y", half, "batch", new, heads * size)]
    outputs += [info(n, half, "batch", shared, "total", size) for n in ("k", "v")]
    given = ["qkv", "", "", "past_k", "past_v", "lengths", "whole", "cos", "sin"]
    told: dict[str, Any] = {"num_heads": heads, "kv_num_heads": shared, "do_rotary": 1}
    node = helper.make_node("GroupQueryAttention", given, ["y", "k", "v"], domain="com.microsoft", **told)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], kind, inputs, outputs), opset_imports=opsets, ir_version=10)


def program(shape: str, kind: str) -> Program:
    """Attention behind the new rows as a program."""
    imported = from_proto(model(shape, kind), Options(), shape)
    (fragment,) = partition(imported.graph, tensor_names(imported)).fragments
    return fragment.program


# --- build ------------------------------------------------------------------------------------------------------------
def choices(cases: list[Case], p: Program, arch: str, count: int) -> list[tuple[KernelGraph, tuple[Schedule, ...]]]:
    """The best kernels for each case, and some beside them."""
    target = load_target(arch)
    kept: dict[Any, None] = {}
    searcher = Searcher(SearchOptions(schedules=24))
    for case in cases:
        kinds: dict[Any, Any] = {}
        for c in searcher.at(case.full(p)).search(p, target).candidates:
            s = c.schedules[0]
            kinds.setdefault((s.engine, s.tiles, s.warps, s.loop, s.numbers), (c.graph, c.schedules))
        kept |= dict.fromkeys(list(kinds.values())[:count])
    return list(kept)


def build(shape: str, kind: str, folder: Path, arch: str, nvcc: str, count: int) -> Iterator[list[str]]:
    """Write sources and a file that says what they are; the commands that compile them."""
    p, kept = program(shape, kind), list[dict[str, Any]]()
    target, cases = load_target(arch), [c for c in CASES if (c.shape, c.kind) == (shape, kind)]
    for graph, schedules in choices(cases, p, arch, count):
        name = f"m{len(kept)}"
        path = folder / f"{shape}_{kind}_{name}.cu"
        try:
            path.write_text(source(name, p, graph, schedules, target, name).text, encoding="utf-8")
        except Refused as e:
            print(f"{shape} {[s.to_json() for s in schedules]}: {e}", flush=True)
            continue
        times = {
            f"{c.batch} {c.rows} {c.length}": round(total_us(graph, schedules, target, c.full(p)), 2) for c in cases
        }
        kept.append({"name": name, "schedules": [s.to_json() for s in schedules], "predicted": times})
        flags = [
            "-std=c++17",
            "-O3",
            f"-gencode=arch={arch.replace('sm', 'compute')},code={arch}",
            "-Xcompiler",
            "-fPIC",
            f"-I{render.include_dir()}",
        ]
        yield [nvcc, *flags, "-shared", "-Xlinker", "-s", str(path), "-o", str(path.with_suffix(".so"))]
    told = {"sources": [s.name for s in p.sources], "symbols": p.symbols, "kernels": kept}
    (folder / f"{shape}_{kind}.json").write_text(json.dumps(told), encoding="utf-8")


# --- time -------------------------------------------------------------------------------------------------------------
class Timed:
    """A case on a GPU: several sets of tensors, drawn there."""

    def __init__(self, case: Case, timer: GpuTimer) -> None:
        self.case = case
        self.torch = torch = timer.backend.torch  # type: ignore[attr-defined]
        heads, shared, size = SHAPES[case.shape]
        self.sets = sets_for(int(case.bytes), timer.backend.cache)
        torch.manual_seed(0)
        half = {"dtype": torch.float16, "device": "cuda"}
        cache = (self.sets, case.batch, shared, case.room, size)
        whole = torch.full((self.sets, case.batch), case.length - 1, dtype=torch.int64, device="cuda")
        self.q = torch.randn((self.sets, case.batch, case.rows, heads * size), **half)
        self.before, self.last = whole - (case.rows - 1), whole
        self.k, self.v = torch.randn(cache, **half), torch.randn(cache, **half)
        self.k[:, :, :, case.length :], self.v[:, :, :, case.length :] = float("nan"), float("nan")
        self.out = torch.zeros_like(self.q)

    def tensor(self, name: str) -> Any:
        """The tensors of a source."""
        end = name.rsplit("/", maxsplit=1)[-1]
        return {"turned": self.q, "before": self.before, "last": self.last, "k": self.k, "v": self.v}[end]

    def apart(self, n: int) -> tuple[Any, Any, Any]:
        """Queries, keys and values of a set as torch takes them."""
        heads, _, size = SHAPES[self.case.shape]
        q = self.q[n].view(self.case.batch, self.case.rows, heads, size).transpose(1, 2)
        return q, self.k[n, :, :, : self.case.length], self.v[n, :, :, : self.case.length]

    def wanted(self) -> Any:
        """The first sequence of the first set in float64."""
        q, k, v = (x[:1].double() for x in self.apart(0))
        y = self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=True)
        return y.transpose(1, 2).reshape(1, -1)

    @property
    def causal(self) -> bool:
        """True if rows see different keys; they all are new then."""
        return self.case.rows > 1

    def call(self, library: ctypes.CDLL, name: str, sources: list[str], extents: list[int]) -> Any:
        """A kernel as a call for a set."""
        function = getattr(library, f"mirage_{name}")
        function.restype, function.argtypes = ctypes.c_int, [ctypes.c_void_p] * 5
        tensors, symbols = [self.tensor(s) for s in sources], (ctypes.c_int64 * len(extents))(*extents)
        wanted = getattr(library, f"mirage_{name}_workspace")
        wanted.restype, wanted.argtypes = ctypes.c_int64, [ctypes.c_void_p]
        work = self.torch.zeros(max(1, wanted(symbols)), dtype=self.torch.uint8, device="cuda")
        given = [(ctypes.c_void_p * len(tensors))(*(t[n].data_ptr() for t in tensors)) for n in range(self.sets)]
        made = [(ctypes.c_void_p * 1)(self.out[n].data_ptr()) for n in range(self.sets)]

        def run(n: int, stream: int) -> None:
            if status := function(given[n], made[n], work.data_ptr(), symbols, stream):
                raise RuntimeError(f"CUDA error {status}")

        return run

    def torch_call(self, name: str) -> Any:
        """One of torch's fused attentions."""
        from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415

        own = getattr(SDPBackend, name)

        def run(n: int, _: int) -> Any:
            with sdpa_kernel(own):
                return self.torch.nn.functional.scaled_dot_product_attention(
                    *self.apart(n), is_causal=self.causal, enable_gqa=True
                )

        return run


def time(path: Path, case: Case, timer: GpuTimer, seconds: float) -> None:
    """Print the lines of a case."""
    told = json.loads(path.read_text(encoding="utf-8"))
    timed = Timed(case, timer)
    wanted, calls, notes = timed.wanted(), dict[str, Any](), dict[str, str]()
    numbers = {"batch": case.batch, "past": case.room - case.rows, "new": case.rows}
    sizes = ranges.resolved(told["symbols"], numbers)
    key = f"{case.batch} {case.rows} {case.length}"
    near = NEAR * min(kernel["predicted"][key] for kernel in told["kernels"])
    for kernel in (x for x in told["kernels"] if x["predicted"][key] <= near):
        name = kernel["name"]
        library = ctypes.CDLL(str(path.parent / f"{case.shape}_{case.kind}_{name}.so"))
        run = timed.call(library, name, told["sources"], [sizes[s] for s in told["symbols"]])
        timed.out.fill_(float("nan"))
        try:
            timer.run(run, timed.sets)
        except (RuntimeError, MirageError) as e:
            print(f"{case} {name} {kernel['schedules']}: {e}", flush=True)
            continue
        error = (
            float(((timed.out[0, :1].double().flatten() - wanted.flatten()) ** 2).mean() / (wanted**2).mean()) ** 0.5
        )
        if error < 3e-3 and not bool(timed.out.isnan().any()):
            calls[name] = run
            notes[name] = f"{kernel['predicted'][key]} predicted, {error:.1e} {kernel['schedules']}"
        else:
            print(f"{case} {name} {kernel['schedules']}: WRONG, error {error:.1e}", flush=True)
    for kind in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
        run = timed.torch_call(kind)
        try:
            timer.run(run, 1)
            calls[kind.split("_")[0].lower()] = run
        except Exception as e:
            print(f"{case}: {kind}: {str(e)[:100]}", flush=True)
    effort = Effort(seconds=seconds * len(calls), warm_seconds=0.005, sample_seconds=1e-3, least=7, most=30)
    times = {name: d.median for name, d in timer.times(calls, timed.sets, effort).items()}
    for name, us in sorted(times.items(), key=lambda found: found[1]):
        reached = f"{case.flops / us / 1e6:4.0f}T" if timed.causal else f"{case.bytes / us * 1e6 / BANDWIDTH:6.1%}"
        named = f"{case.shape} {case.kind} {case.batch:2} {case.rows:4} {case.length:5}"
        print(f"{named} {us:7.2f} us {reached} {name} {notes.get(name, '')}", flush=True)


def main() -> None:
    """Parse the command line, and build or time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("build", "time"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shapes", nargs="*", default=[*SHAPES])
    parser.add_argument("--kinds", nargs="*", default=[STEP, PROMPT])
    parser.add_argument("--schedules", type=int, default=1, help="kernels of each batch and length")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.05, help="for each kernel")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.what == "time":
        timer = GpuTimer()
        print(timer.state(), flush=True)
        for case in CASES:
            if case.shape in asked.shapes and case.kind in asked.kinds and case.bytes < MOST_BYTES:
                time(asked.folder / f"{case.shape}_{case.kind}.json", case, timer, asked.seconds)
        return
    with ThreadPoolExecutor(asked.jobs) as pool:
        for shape, kind in itertools.product(asked.shapes, asked.kinds):
            commands = list(build(shape, kind, asked.folder, asked.arch, asked.nvcc, asked.schedules))
            list(pool.map(lambda command: subprocess.run(command, check=True), commands))


if __name__ == "__main__":
    main()
