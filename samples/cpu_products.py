"""The rate of float32 products on this machine's CPU, ours beside onnxruntime's: `python -m samples.cpu_products`.

Each model has layers of a product with a stored weight and a bias, together larger than the caches: weights are read from
memory. Prints, for one thread and for all, the share of the cores' own rate that both reach, medians of runs in turns.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import mirage_cli as mi
from mirage_cli.backends import toolchain
from mirage_cli.machine import devices
from mirage_cli.measurement import rates
from mirage_cli.optimization.fragment_times import MIRAGE, ORIGINAL
from mirage_cli.options.options import cores

ROWS = (16, 32, 64, 197, 577, 1024, 4096)
MATRICES = ((768, 3072), (3072, 768), (1024, 1024), (2048, 2048))  #: summed positions, columns
LEAST_LAYERS = 2


def model(rows: int, depth: int, columns: int) -> onnx.ModelProto:
    """Products of different rows and weights, side by side."""
    rng = np.random.default_rng(0)
    layers = max(LEAST_LAYERS, 2 * devices.cache_bytes("cpu") // (4 * depth * columns))
    nodes, weights, given, found = [], [], [], []
    for n in range(layers):
        weights.append(numpy_helper.from_array(rng.standard_normal((depth, columns), dtype=np.float32), f"w{n}"))
        weights.append(numpy_helper.from_array(rng.standard_normal(columns, dtype=np.float32), f"b{n}"))
        nodes.append(helper.make_node("Gemm", [f"x{n}", f"w{n}", f"b{n}"], [f"y{n}"]))
        given.append(helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, [rows, depth]))
        found.append(helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, [rows, columns]))
    graph = helper.make_graph(nodes, "products", given, found, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def shares(rows: int, depth: int, columns: int, folder: Path, known: rates.Rates, seconds: float) -> list[str]:
    """onnxruntime's share of the rate and ours, for one thread and for all."""
    path, out = folder / "products.onnx", folder / f"out-{rows}-{depth}-{columns}"
    made = model(rows, depth, columns)
    onnx.save(made, path)
    mi.optimize(path, out, target="cpu", force=True)
    flops, cells = 2.0 * rows * depth * columns * len(made.graph.node), []
    for threads, rate in ((1, known.one_core), (cores(), known.all_cores)):
        bench = mi.bench(out, cpu=True, threads=threads, seconds=seconds).model
        for name in (ORIGINAL, MIRAGE):
            us = bench.entry(name).us
            cells.append("-" if us is None else f"{flops / us.median / rate * 1e6:.0%}")
    return cells


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=int, default=ROWS, help="numbers of rows")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for measuring anything once (default: 1)")
    options = parser.parse_args(arguments)
    known, problem = rates.found(toolchain.find_cxx())
    if known is None:
        raise SystemExit(problem)
    print(f"{devices.name('cpu')}: {known.text()}\n")
    print(f"| rows, matrix | onnxruntime, 1 thread | mirage | onnxruntime, {cores()} | mirage |\n|---|---|---|---|---|")
    for rows in options.rows:
        for depth, columns in MATRICES:
            with tempfile.TemporaryDirectory() as folder:
                cells = shares(rows, depth, columns, Path(folder), known, options.seconds)
            print(f"| {rows}, {depth} -> {columns} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
