"""Inputs for any model: those that mirage would draw, and others, until onnxruntime runs the original on some.

The draws are candidates only: which of them the original runs on is found out by running it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TypeProto, helper

from .case import Draw

MOST_ELEMENTS = 1 << 22
MOST_SYMBOLS = 3  #: symbols that are tried with size 0, one after the other
UNKNOWN_RANKS = (2, 3, 4, 1)
WORDS = np.array(["a", "the model", "", "1.5", "Ünïcode", "b c"], dtype=object)


def by_mirage(model: onnx.ModelProto, seeds: int = 2) -> Iterator[Draw]:
    """What mirage draws itself, at its usual sizes, with sizes 1, and 0 where a dimension is symbolic."""
    from mirage_cli.runtime.example import example_inputs

    names = symbols(model)
    tries: list[tuple[str, dict[str, int], int, bool]] = [(f"drawn {k}", {}, k, False) for k in range(seeds)]
    if names:
        tries.append(("drawn at 1", dict.fromkeys(names, 1), seeds, False))
        tries.append(("drawn at 5", dict.fromkeys(names, 5), seeds, False))
        tries += [(f"drawn, {n} = 0", {n: 0}, seeds, True) for n in names[:MOST_SYMBOLS]]
    for name, dims, seed, edge in tries:
        try:
            yield Draw(name, dict(example_inputs(model, dims, seed)), (), edge)
        except Exception:  # whatever it is: there are other ways to draw
            continue


def drawn(model: onnx.ModelProto) -> Iterator[Draw]:
    """Plain draws: every symbolic dimension of one size, integers that are 0, 0 or 1, or small."""
    for size in (4, 2, 1, 8, 3, 16):
        for top in (2, 1, 4):
            yield from _plain(model, size, top)


def _plain(model: onnx.ModelProto, size: int, top: int, rank: int = 2) -> Iterator[Draw]:
    random = np.random.default_rng([size, top])
    try:
        feeds = {v.name: _value(v.type, v.name, size, top, random, rank) for v in inputs(model)}
    except (ValueError, KeyError, TypeError):
        return
    yield Draw(f"plain, size {size}, integers below {top}", feeds)


def inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that must be fed."""
    weights = {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}
    return [v for v in model.graph.input if v.name not in weights]


def symbols(model: onnx.ModelProto) -> list[str]:
    """The names of symbolic dimensions of the inputs, in order."""
    found: dict[str, None] = {}
    for v in inputs(model):
        for k, d in enumerate(v.type.tensor_type.shape.dim):
            if not d.HasField("dim_value"):
                found[d.dim_param or f"{v.name}.{k}"] = None
    return list(found)


def _value(kind: TypeProto, name: str, size: int, top: int, random: np.random.Generator, rank: int) -> Any:
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return [_value(kind.sequence_type.elem_type, name, size, top, random, rank) for _ in range(2)]
    if which == "optional_type":
        return _value(kind.optional_type.elem_type, name, size, top, random, rank)
    if which != "tensor_type":
        raise ValueError(f"{name}: {which}")
    tensor = kind.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else size for d in tensor.shape.dim]
    shape = tuple(dims) if tensor.HasField("shape") else (size,) * rank
    if np.prod(shape, dtype=np.float64) > MOST_ELEMENTS:
        raise ValueError(f"{name}: {shape}")
    return _array(tensor.elem_type, shape, name, top, random)


def _array(element: int, shape: tuple[int, ...], name: str, top: int, random: np.random.Generator) -> NDArray[Any]:
    if element == onnx.TensorProto.STRING:
        return WORDS[random.integers(0, len(WORDS), shape)].reshape(shape)
    dtype = helper.tensor_dtype_to_np_dtype(element)
    if dtype == np.bool_:
        return np.asarray(random.random(shape) < 0.5)
    if dtype.kind in "iu":
        low = 1 if "length" in name.lower() or "shape" in name.lower() else 0
        return np.asarray(random.integers(low, max(top, low + 1), shape)).astype(dtype)
    noise = np.asarray(random.standard_normal(shape))
    if dtype.kind == "c":
        noise = noise + 1j * random.standard_normal(shape)
    return noise.astype(dtype)


def other_ranks(model: onnx.ModelProto) -> Iterator[Draw]:
    """Draws for inputs of unknown rank."""
    if all(v.type.tensor_type.HasField("shape") for v in inputs(model)):
        return
    for rank in UNKNOWN_RANKS:
        for size in (2, 4, 1):
            yield from _plain(model, size, 2, rank)
