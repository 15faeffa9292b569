"""Time what calling an operator takes: chains of tiny products in onnxruntime, our operators beside onnxruntime's own.

python -m samples.overhead   prints nanoseconds a layer: medians of calls in turns, on one thread and on eight
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import mirage_cli as mi

SIZE, LAYERS = 4, 32
TURNS, CALLS = 30, 100
MODELS = {"Gemm, 3 inputs": 0, "Gemm + Sum, 16 inputs": 13}  #: tensors that each layer adds to its product


def model(added: int) -> onnx.ModelProto:
    """A chain of products of rows of `SIZE` numbers, to each of which inputs of the model are added."""
    rng = np.random.default_rng(0)
    names, nodes, weights, row = [f"r{k}" for k in range(added)], [], [], "x"
    for n in range(LAYERS):
        for name, shape in ((f"w{n}", (SIZE, SIZE)), (f"b{n}", (SIZE,))):
            weights.append(numpy_helper.from_array(0.3 * rng.standard_normal(shape).astype(np.float32), name))
        nodes.append(helper.make_node("Gemm", [row, f"w{n}", f"b{n}"], [f"p{n}"]))
        nodes += [helper.make_node("Sum", [f"p{n}", *names], [f"s{n}"])] if added else []
        row = nodes[-1].output[0]
    nodes.append(helper.make_node("Relu", [row], ["y"]))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, SIZE]) for n in ("x", *names, "y")]
    graph = helper.make_graph(nodes, "chain", values[:-1], values[-1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def call(path: Path, library: Path | None, threads: int) -> Callable[[], None]:
    """A session's run on bound tensors."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    if library is not None:
        options.register_custom_ops_library(str(library))
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for value in (*session.get_inputs(), *session.get_outputs()):
        tensor = ort.OrtValue.ortvalue_from_numpy(np.full((1, SIZE), 0.1, np.float32))
        bind = binding.bind_ortvalue_output if value.name == "y" else binding.bind_ortvalue_input
        bind(value.name, tensor)
    return lambda: session.run_with_iobinding(binding)


def both(added: int, threads: int, folder: Path) -> tuple[float, float]:
    """Nanoseconds a layer of the original and of the patched model."""
    path, out = folder / f"{added}.onnx", folder / f"{added}"
    if not out.exists():
        onnx.save(model(added), path)
        mi.optimize(path, out, target="cpu", force=True)
    calls = (call(path, None, threads), call(out / "model.onnx", out / "libmirage.so", threads))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for run, found in zip(calls, times, strict=True):
            begun = time.perf_counter()
            for _ in range(CALLS):
                run()
            found.append((time.perf_counter() - begun) / CALLS / LAYERS * 1e9)
    original, ours = map(statistics.median, times)
    return original, ours


def main() -> None:
    """Print the table."""
    print("| a layer, ns | threads | onnxruntime's | ours |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, added in MODELS.items():
            for threads in (1, 8):
                print(f"| {name} | {threads} |", *(f"{us:.0f} |" for us in both(added, threads, Path(folder))))


if __name__ == "__main__":
    main()
