"""Products of int4 weights (MatMulNBits) over the matrices of published models: built with nvcc, timed cold on a GPU.

    python -m samples.int4_suite build FOLDER --rows 1 8 16 --block 32 128 --schedules 4   # needs nvcc
    python -m samples.int4_suite time FOLDER                                               # needs torch and a GPU

Weights are rotated through more than the second-level cache. A line is a schedule: microseconds, the share of the bandwidth
at which packed weights, scales and activations are moved, and the error beside float64; torch's `_weight_int4pack_mm` (bf16)
stands beside.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirage_cli.codegen import render
from mirage_cli.codegen.source import source
from mirage_cli.errors import Refused
from mirage_cli.frontends.imported import Options
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.lax.fragments.fragment import whole_program
from mirage_cli.lax.ir.program import Program
from mirage_cli.measurement.gpu import GpuTimer, sets_for
from mirage_cli.measurement.timing import Effort
from mirage_cli.optimization.task import tensor_names
from mirage_cli.search.schedules.ranking import engine_ranked
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target, load_target
from mirage_cli.search.search import Searcher, SearchOptions

BANDWIDTH = 4.8e12  #: bytes a second of an H200
MATRICES = {
    "8b qkv": (6144, 4096),
    "8b o": (4096, 4096),
    "8b gate up": (28672, 4096),
    "8b down": (4096, 14336),
    "1b qkv": (3072, 2048),
    "1b gate up": (16384, 2048),
    "1b down": (2048, 8192),
    "7b qkv": (4608, 3584),
    "7b gate up": (37888, 3584),
    "7b down": (3584, 18944),
    "marlin": (8192, 8192),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A matrix of N columns and K summed positions, in blocks; x has so many rows."""

    matrix: str
    rows: int
    block: int
    zeros: bool

    @property
    def name(self) -> str:
        """As a file."""
        return f"{self.matrix} {self.rows} {self.block}{' zeros' if self.zeros else ''}".replace(" ", "_")

    @property
    def n(self) -> int:
        """Columns of the weight."""
        return MATRICES[self.matrix][0]

    @property
    def k(self) -> int:
        """Summed positions."""
        return MATRICES[self.matrix][1]

    @property
    def bytes(self) -> float:
        """Bytes that are read and written."""
        blocks = self.n * self.k / self.block
        return self.n * self.k / 2 + blocks * (2.5 if self.zeros else 2) + 2 * self.rows * (self.n + self.k)


def model(case: Case) -> onnx.ModelProto:
    """The product as a model; its weights are any that do not make it a simpler one."""
    n, k, blocks = case.n, case.k, case.k // case.block

    def drawn(*shape: int) -> Any:
        return np.resize(np.arange(251, dtype=np.uint8), shape)

    weights: dict[str, Any] = {"q": drawn(n, blocks, case.block // 2), "s": drawn(n, blocks).astype(np.float16)}
    if case.zeros:
        weights["z"] = drawn(n, -(-blocks // 2))
    names = ["x", *weights]
    size: dict[str, Any] = {"K": k, "N": n, "bits": 4, "block_size": case.block}
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **size)
    x, y = (helper.make_tensor_value_info(v, TensorProto.FLOAT16, [case.rows, e]) for v, e in (("x", k), ("y", n)))
    tensors = [numpy_helper.from_array(a, name) for name, a in weights.items()]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "int4", [x], [y], tensors), opset_imports=opsets, ir_version=10)


def program(case: Case) -> Program:
    """The product as a program."""
    imported = from_proto(model(case), Options(), case.name)
    return whole_program(imported.graph, tensor_names(imported))


# --- build ------------------------------------------------------------------------------------------------------------
Chosen = list[tuple[Any, tuple[Schedule, ...]]]  #: muGraphs with schedules


def choices(p: Program, target: Target, count: int, spread: bool) -> Chosen:
    """The best schedules of the engine `strip`, or good ones of many kinds (`spread`)."""
    found = Searcher(SearchOptions()).search(p, target).candidates
    own = [(c.graph, c.schedules) for c in found if c.schedules[-1].engine == "strip"]
    if not spread:
        return own[:count]
    kinds: dict[Any, list[Any]] = {}
    for graph in dict.fromkeys(graph for graph, _ in own):
        for r in engine_ranked("strip", p, graph.kernels[0].block, target, 4000):
            kinds.setdefault(r.schedule.tiles, []).append((r.score, graph, r.schedule))
    some = [ranks[n] for ranks in kinds.values() for n in (0, 3, 7) if n < len(ranks)]
    return [(graph, (s,)) for _, graph, s in sorted(some, key=lambda x: x[0])[:count]]


def build(case: Case, folder: Path, arch: str, nvcc: str, choose: Callable[[Program, Target], Chosen]) -> None:
    """A library with the kernels of schedules, and a file that says what they are."""
    p, target = program(case), load_target(arch)
    sources, kept = [], []
    for n, (graph, schedules) in enumerate(choose(p, target)):
        try:
            text = source(f"m{n}", p, graph, schedules, target, f"m{n}").text
        except Refused as e:
            print(f"{case.name} {[s.to_json() for s in schedules]}: {e}", flush=True)
            continue
        path = folder / f"{case.name}_{n}.cu"
        path.write_text(text, encoding="utf-8")
        sources.append(path)
        kept.append({"name": f"m{n}", "schedules": [s.to_json() for s in schedules]})
    objects = [p.with_suffix(".o") for p in sources]
    flags = ["-std=c++17", "-O3", f"-arch={arch}", "-Xcompiler", "-fPIC", f"-I{render.include_dir()}"]
    for path, made in zip(sources, objects, strict=True):
        subprocess.run([nvcc, *flags, "-c", str(path), "-o", str(made)], check=True)
    library = folder / f"{case.name}.so"
    subprocess.run([nvcc, "-shared", "-Xlinker", "-s", *map(str, objects), "-o", str(library)], check=True)
    for made in objects:
        made.unlink()
    told = {"case": asdict(case), "sources": [s.name for s in p.sources], "kernels": kept}
    library.with_suffix(".json").write_text(json.dumps(told), encoding="utf-8")


# --- time -------------------------------------------------------------------------------------------------------------
class Timed:
    """A case on a GPU: several sets of tensors, drawn there."""

    def __init__(self, case: Case, timer: GpuTimer) -> None:
        self.case, self.timer = case, timer
        self.torch = torch = timer.backend.torch  # type: ignore[attr-defined]
        self.sets = sets_for(int(case.bytes), timer.backend.cache)
        n, k, blocks = case.n, case.k, case.k // case.block
        torch.manual_seed(0)

        def bytes_(*shape: int) -> Any:
            return torch.randint(0, 256, (self.sets, *shape), dtype=torch.uint8, device="cuda")

        def reals(*shape: int) -> Any:
            return torch.randn((self.sets, *shape), dtype=torch.float16, device="cuda")

        self.tensors = {"q": bytes_(n, k // 2), "s": reals(n, blocks) * 0.01, "x": reals(case.rows, k)}
        if case.zeros:
            self.tensors["z"] = bytes_(n, -(-blocks // 2))
        self.out = torch.zeros((self.sets, case.rows, n), dtype=torch.float16, device="cuda")

    def numbers(self, packed: Any) -> Any:
        """Unpacked numbers of 4 bits."""
        return self.torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)

    def wanted(self) -> Any:
        """The first set in float64."""
        t, case, blocks = self.tensors, self.case, self.case.k // self.case.block
        zero = (
            self.numbers(t["z"][0])[:, :blocks].double()
            if case.zeros
            else 8.0 * self.torch.ones_like(t["s"][0]).double()
        )
        q = self.numbers(t["q"][0]).double().view(case.n, blocks, case.block) - zero[:, :, None]
        return t["x"][0].double() @ (q * t["s"][0].double()[:, :, None]).view(case.n, case.k).T

    def call(self, library: ctypes.CDLL, name: str, sources: list[str]) -> Any:
        """A kernel as a call for a set."""
        function = getattr(library, f"mirage_{name}")
        function.restype, function.argtypes = ctypes.c_int, [ctypes.c_void_p] * 5
        tensors = [self.tensors[s] for s in sources]
        given = [(ctypes.c_void_p * len(tensors))(*(t[k].data_ptr() for t in tensors)) for k in range(self.sets)]
        made = [(ctypes.c_void_p * 1)(self.out[k].data_ptr()) for k in range(self.sets)]

        def run(k: int, stream: int) -> None:
            if status := function(given[k], made[k], None, None, stream):
                raise RuntimeError(f"CUDA error {status}")

        return run

    def torch_call(self) -> Any:
        """torch's operator, on tensors of its own."""
        torch, case = self.torch, self.case
        packed = [torch._convert_weight_to_int4pack(q, 8) for q in self.tensors["q"]]
        scales = torch.randn((case.k // case.block, case.n, 2), dtype=torch.bfloat16, device="cuda")
        xs = self.tensors["x"].bfloat16()
        return lambda k, stream: torch._weight_int4pack_mm(xs[k], packed[k], case.block, scales)


def time(path: Path, timer: GpuTimer, seconds: float) -> None:
    """Print the lines of a case."""
    told = json.loads(path.read_text(encoding="utf-8"))
    case = Case(**told["case"])
    timed, library = Timed(case, timer), ctypes.CDLL(str(path.with_suffix(".so")))
    wanted, calls, errors = timed.wanted(), dict[str, Any](), dict[str, float]()
    for kernel in told["kernels"]:
        run = timed.call(library, kernel["name"], told["sources"])
        timed.out.fill_(float("nan"))
        try:
            timer.run(run, timed.sets)
        except Exception as e:
            print(f"{case.name} {kernel['name']} {kernel['schedules']}: {e}", flush=True)
            continue
        error = float(((timed.out[0].double() - wanted).square().mean() / wanted.square().mean()).sqrt())
        errors[kernel["name"]] = error
        if error < 2e-3 and not bool(timed.out.isnan().any()):
            calls[kernel["name"]] = run
        else:
            print(f"{case.name} {kernel['name']} {kernel['schedules']}: WRONG, error {error:.1e}", flush=True)
    try:
        calls["torch"] = timed.torch_call()
    except Exception as e:
        print(f"{case.name}: torch: {e}", flush=True)
    effort = Effort(seconds=seconds * len(calls), warm_seconds=0.01, sample_seconds=1e-3, least=7, most=50)
    schedules = {kernel["name"]: kernel["schedules"] for kernel in told["kernels"]}
    times = {name: d.median for name, d in timer.times(calls, timed.sets, effort).items()}
    for name, us in sorted(times.items(), key=lambda found: found[1]):
        share = case.bytes / us * 1e6 / BANDWIDTH
        exact = f"error {errors[name]:.1e}" if name in errors else ""
        print(f"{case.name:18} {us:7.2f} us  {share:5.1%}  {name:5} {exact} {schedules.get(name, '')}", flush=True)


def main() -> None:
    """Parse the command line, and build or time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("build", "time"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--matrix", nargs="*", default=[*MATRICES])
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 8, 16])
    parser.add_argument("--block", nargs="*", type=int, default=[32, 128])
    parser.add_argument("--zeros", action="store_true", help="with packed zero points")
    parser.add_argument("--schedules", type=int, default=1, help="kernels of a case")
    parser.add_argument(
        "--spread", action="store_true", help="schedules of many kinds instead of the best by the model"
    )
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each kernel")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.what == "time":
        timer = GpuTimer()
        for path in sorted(asked.folder.glob("*.json")):
            time(path, timer, asked.seconds)
        return
    cases = [Case(m, r, b, asked.zeros) for m in asked.matrix for r in asked.rows for b in asked.block]
    with ThreadPoolExecutor(asked.jobs) as pool:
        choose = functools.partial(choices, count=asked.schedules, spread=asked.spread)
        list(pool.map(lambda case: build(case, asked.folder, asked.arch, asked.nvcc, choose), cases))


if __name__ == "__main__":
    main()
