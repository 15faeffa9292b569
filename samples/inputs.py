"""Valid random inputs for any sample, found from the file alone: `example_inputs("samples/models/llama_fp32.onnx")`.

What an input means is read off the graph and its name: an integer that indexes an embedding table is a token id below
the table's length, `*mask*` is a padding mask, `*position*` counts up, anything else is normal noise. `operators.py`
writes the mean and standard deviation that suit an input into the file, as metadata of the graph's input.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Tensor = NDArray[Any]
MEAN, STD = "samples.mean", "samples.std"
DEFAULT_DIMS = {"batch": 2, "sequence": 12, "past": 9}
OTHER_DIM = 4
MOVES = frozenset({"Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


def example_inputs(model_path: str | Path, seed: int = 0, dims: Mapping[str, int] | None = None) -> dict[str, Tensor]:
    """Random inputs for the model at `model_path`; `dims` gives symbolic dimensions other than the default sizes."""
    return random_inputs(onnx.load(model_path, load_external_data=False), seed, dims)


def random_inputs(model: onnx.ModelProto, seed: int = 0, dims: Mapping[str, int] | None = None) -> dict[str, Tensor]:
    """Random inputs for `model`, by graph input; each depends on the seed and its own name only.

    The fp16 and fp32 exports of one model get the same numbers, rounded.
    """
    graph = model.graph
    stored = {tensor.name for tensor in graph.initializer}
    given = [value for value in graph.input if value.name not in stored]
    cached = any("past" in value.name for value in given)
    return {value.name: _tensor(value, graph, seed, {**DEFAULT_DIMS, **(dims or {})}, cached) for value in given}


def _tensor(
    value: onnx.ValueInfoProto, graph: onnx.GraphProto, seed: int, dims: Mapping[str, int], cached: bool
) -> Tensor:
    rng = np.random.default_rng([seed, zlib.crc32(value.name.encode())])
    kind = value.type.tensor_type
    shape = tuple(_extent(dim, dims) for dim in kind.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if "mask" in value.name:
        if dtype.kind == "i":
            return padding_mask(shape, at_start=cached).astype(dtype)
        seen = score_mask(shape, rng)
        return seen if dtype.kind == "b" else np.where(seen, 0.5 * rng.standard_normal(shape), -np.inf).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind == "i":
        if "position" in value.name:
            return np.broadcast_to(np.arange(shape[-1], dtype=dtype), shape).copy()
        return rng.integers(0, table_length(graph, value.name), shape, dtype=dtype)
    notes = {entry.key: float(entry.value) for entry in value.metadata_props}
    noise = rng.standard_normal(shape, np.float32)
    noise *= np.float32(notes.get(STD, 1.0))
    noise += np.float32(notes.get(MEAN, 0.0))
    return noise.astype(dtype, copy=False)


def _extent(dim: onnx.TensorShapeProto.Dimension, dims: Mapping[str, int]) -> int:
    """A dimension's size; exporters also write sums of symbols, such as `past + 1`."""
    if dim.HasField("dim_value"):
        return dim.dim_value
    terms = [term.strip() for term in dim.dim_param.split("+")]
    return sum(int(term) if term.isdigit() else dims.get(term, OTHER_DIM) for term in terms)


def padding_mask(shape: tuple[int, ...], at_start: bool = False) -> NDArray[np.bool_]:
    """[batch, length], False where row i is padded: a quarter of the length more with each row, up to three quarters.

    Padding is at the end, or at the start for a model that reads a cache, whose last token is the one computed.
    """
    batch, length = shape
    padded = (np.arange(batch) % 4 * length // 4)[:, None]
    position = np.arange(length)[None, :]
    return position >= padded if at_start else position < length - padded


def score_mask(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.bool_]:
    """[..., queries, keys], False where hidden: at random, and for every third query the whole first half.

    A running maximum over blocks of keys then meets blocks that are hidden entirely. The last key is always seen.
    """
    *_, queries, keys = shape
    seen = rng.random(shape) < 0.75
    seen &= (np.arange(queries)[:, None] % 3 != 1) | (np.arange(keys)[None, :] >= keys // 2)
    seen[..., -1] = True
    return seen


def table_length(graph: onnx.GraphProto, name: str) -> int:
    """The length of the shortest stored table that the integer input `name` indexes; 2 when it indexes none."""
    rows = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    reached, lengths = {name}, set[int]()
    for node in graph.node:  # in topological order
        if node.op_type == "Gather" and node.input[1] in reached and node.input[0] in rows:
            lengths.add(rows[node.input[0]])
        elif node.op_type in MOVES and node.input[0] in reached:
            reached.update(node.output)
    return min(lengths, default=2)
