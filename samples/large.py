"""A decoder of several gigabytes with random weights, and what memory each command takes for it.

    python samples/large.py make FOLDER [--gigabytes 4] [--dtype fp16] [--hidden 4096]   write FOLDER/model.onnx and its data
    python samples/large.py measure FOLDER [--commands inspect,optimize,verify,bench]    run them and print a table

Layers of the shapes of Llama (hidden size h, query and key heads of 128, intermediate size 3.5 h) with embedding and LM
head, which share one stored table, one new token on a cache. The weights are external data and are written in pieces.

Memory is sampled while a command runs, over all its processes at once. Files that are mapped count in `resident` as far
as their pages are in memory, however many processes map them (Linux's proportional set size, so that a shared page counts
once); `own` is what is not a file's: it cannot be dropped and read again.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MODEL, OUT = "model.onnx", "out"
DEPTH = 128  #: of a head
BLOCK = 1 << 22  #: random numbers that are drawn; larger weights repeat them
ALIGNED = 4096  #: what offsets of weights are multiples of
GIGA = 1 << 30
COMMANDS = ("inspect", "optimize", "verify", "bench")
INTERVAL = 0.05  #: seconds between two samples
TYPES: dict[str, tuple[int, np.dtype[Any]]] = {
    "fp16": (TensorProto.FLOAT16, np.dtype(np.float16)),
    "fp32": (TensorProto.FLOAT, np.dtype(np.float32)),
}


@dataclass(frozen=True)
class Sizes:
    """The shapes of a decoder of `bytes` of weights."""

    hidden: int = 4096
    vocabulary: int = 32768
    cached: int = 256
    dtype: str = "fp16"
    layers: int = 9

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.hidden // DEPTH

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return max(1, self.heads // 4)

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every stored tensor."""
        h, inner, kv = self.hidden, self.hidden * 7 // 2, self.key_heads * DEPTH
        shapes: dict[str, tuple[int, ...]] = {"table": (self.vocabulary, h), "norm": (h,)}
        for k in range(self.layers):
            shapes |= {f"{k}.norm": (h,), f"{k}.q": (h, h), f"{k}.k": (h, kv), f"{k}.v": (h, kv), f"{k}.o": (h, h)}
            shapes |= {f"{k}.post": (h,), f"{k}.gate": (h, inner), f"{k}.up": (h, inner), f"{k}.down": (inner, h)}
        return shapes

    @property
    def bytes(self) -> int:
        """Bytes of all weights."""
        return sum(math.prod(s) for s in self.weights.values()) * TYPES[self.dtype][1].itemsize


def sizes_for(gigabytes: float, hidden: int, dtype: str) -> Sizes:
    """A decoder of at least so many bytes."""
    sizes = Sizes(hidden=hidden, vocabulary=8 * hidden, dtype=dtype, layers=1)
    while sizes.bytes < gigabytes * GIGA:
        sizes = Sizes(hidden, 8 * hidden, sizes.cached, dtype, sizes.layers + 1)
    return sizes


# ---- making it -------------------------------------------------------------------------------------------------------


def make(sizes: Sizes, folder: Path) -> Path:
    """Write the model and its data; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / MODEL
    kind, element = TYPES[sizes.dtype]
    tensors, offset = [], 0
    block = np.random.default_rng(0).standard_normal(BLOCK, np.float32)
    with (folder / f"{MODEL}.data").open("wb") as file:
        for name, shape in sizes.weights.items():
            tensor = onnx.TensorProto(name=name, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
            size = math.prod(shape) * element.itemsize
            for key, value in (("location", f"{MODEL}.data"), ("offset", offset), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            random = block / math.sqrt(shape[-1]) if len(shape) > 1 else 1 + block[: shape[0]] / 8
            drawn = np.roll(random, 4099 * len(tensors)).astype(element)
            file.seek(offset)
            left = math.prod(shape)
            while left > 0:
                file.write(drawn[:left].tobytes())
                left -= drawn.size
            offset = -(-(offset + size) // ALIGNED) * ALIGNED
    path.write_bytes(_model(sizes, kind, tensors).SerializeToString(deterministic=True))
    return path


def _model(sizes: Sizes, kind: int, tensors: Sequence[onnx.TensorProto]) -> onnx.ModelProto:
    nodes: list[onnx.NodeProto] = []

    def add(op: str, *inputs: str, outputs: Sequence[str] = (), **attributes: Any) -> str:
        results = list(outputs) or [f"{op.lower()}_{len(nodes)}"]
        nodes.append(helper.make_node(op, inputs, results, name=f"node_{len(nodes)}", **attributes))
        return results[0]

    def heads(x: str, which: str) -> str:
        return add("Transpose", add("Reshape", x, f"{which}_heads"), perm=[0, 2, 1, 3])

    cache = [1, sizes.key_heads, sizes.cached, DEPTH]
    grown = [1, sizes.key_heads, sizes.cached + 1, DEPTH]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 1])]
    outputs = [helper.make_tensor_value_info("logits", kind, [1, 1, sizes.vocabulary])]
    x = add("Gather", "table", "ids")
    for k in range(sizes.layers):
        past, present = [f"past.{k}.{p}" for p in "kv"], [f"present.{k}.{p}" for p in "kv"]
        inputs += [helper.make_tensor_value_info(n, kind, cache) for n in past]
        outputs += [helper.make_tensor_value_info(n, kind, grown) for n in present]
        y = add("RMSNormalization", x, f"{k}.norm", epsilon=1e-5)
        q, keys, values = (heads(add("MatMul", y, f"{k}.{p}"), "q" if p == "q" else "kv") for p in "qkv")
        for one, before, after in zip((keys, values), past, present, strict=True):
            add("Concat", before, one, outputs=[after], axis=2)
        y = add("Attention", q, *present)
        y = add("Reshape", add("Transpose", y, perm=[0, 2, 1, 3]), "flat")
        x = add("Add", x, add("MatMul", y, f"{k}.o"))
        y = add("RMSNormalization", x, f"{k}.post", epsilon=1e-5)
        gate = add("MatMul", y, f"{k}.gate")
        y = add("Mul", add("Mul", gate, add("Sigmoid", gate)), add("MatMul", y, f"{k}.up"))
        x = add("Add", x, add("MatMul", y, f"{k}.down"))
    y = add("RMSNormalization", x, "norm", epsilon=1e-5)
    add("MatMul", y, add("Transpose", "table", perm=[1, 0]), outputs=["logits"])
    shapes = {
        "q_heads": [1, 1, sizes.heads, DEPTH],
        "kv_heads": [1, 1, sizes.key_heads, DEPTH],
        "flat": [1, 1, sizes.hidden],
    }
    small = [numpy_helper.from_array(np.array(dims), name) for name, dims in shapes.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, [*tensors, *small])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


# ---- measuring -------------------------------------------------------------------------------------------------------


@dataclass
class Peak:
    """The costs of a command: seconds, and bytes at the worst moments (see the module's text)."""

    code: int = 0
    seconds: float = 0.0
    resident: int = 0
    own: int = 0
    largest: int = 0  #: resident set of a single process, as the kernel counts it


def watch(command: Sequence[str]) -> Peak:
    """Run a command and sample the memory of it and its children."""
    peak, start = Peak(), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        used = [_memory(pid) for pid in _family(process.pid)]
        peak.resident = max(peak.resident, sum(u["Pss"] for u in used))
        peak.own = max(peak.own, sum(u["Pss_Anon"] for u in used))
        peak.largest = max([peak.largest, *(u["Rss"] for u in used)])
        time.sleep(INTERVAL)
    peak.code, peak.seconds = process.returncode, time.perf_counter() - start
    return peak


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    family, left = [], [pid]
    while left:
        family.append(left.pop())
        try:
            for task in Path(f"/proc/{family[-1]}/task").iterdir():
                left += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return family


def _memory(pid: int) -> dict[str, int]:
    """Bytes of a process by the kernel's names; zeros when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        lines = []
    told = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return {name: told.get(name, 0) for name in ("Rss", "Pss", "Pss_Anon")}


def measure(folder: Path, commands: Sequence[str]) -> dict[str, Peak]:
    """Run commands on a model that `make` wrote."""
    model, out = str(folder / MODEL), str(folder / OUT)
    arguments = {
        "inspect": ["inspect", model],
        "optimize": ["optimize", model, "-o", out, "--target", "cpu", "--force"],
        "verify": ["verify", out],
        "bench": ["bench", out, "--cpu", "--seconds", "0.5"],
    }
    return {name: watch([sys.executable, "-m", "mirage_cli", *arguments[name]]) for name in commands}


def table(peaks: dict[str, Peak], size: int) -> str:
    """The figures as Markdown; memory in GB and as a multiple of the weights."""
    lines = ["| command | seconds | resident, all processes | own, all processes | resident, largest process |"]
    lines.append("|---|---|---|---|---|")
    for name, p in peaks.items():
        parts = [f"{n / 1e9:.2f} GB ({n / size:.2f} x)" for n in (p.resident, p.own, p.largest)]
        status = "" if p.code == 0 else f" (exit code {p.code})"
        lines.append(f"| `{name}`{status} | {p.seconds:.0f} | {' | '.join(parts)} |")
    return "\n".join(lines)


def main() -> None:
    """The two commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("make", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--dtype", choices=sorted(TYPES), default="fp16")
    parser.add_argument("--hidden", type=int, default=4096, help="a multiple of 512")
    parser.add_argument("--commands", default=",".join(COMMANDS), help="which to run")
    given = parser.parse_args()
    if given.command == "make":
        sizes = sizes_for(given.gigabytes, given.hidden, given.dtype)
        print(f"{make(sizes, given.folder)}: {sizes.layers} layers, {sizes.bytes / 1e9:.2f} GB")
    else:
        size = (given.folder / f"{MODEL}.data").stat().st_size
        print(table(measure(given.folder, given.commands.split(",")), size), flush=True)


if __name__ == "__main__":
    main()
