"""Sensible random inputs for any model, from the model alone.

What an input means is read off the graph and its name: an integer that indexes a table is below the table's length,
strings are those that the model's nodes list,
`*mask*` is a padding or score mask, `*position*` counts up, a matrix that a product takes on its right is a weight,
anything else is normal noise. Each input depends on the seed and its own name only.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from mirage_cli.codegen import cache_rows
from mirage_cli.errors import UsageError
from mirage_cli.frontends import sizes
from mirage_cli.frontends.onnx.preparation import told_sizes
from mirage_cli.options import dims as options

Arrays: TypeAlias = dict[str, NDArray[Any]]
#: sizes of symbolic dimensions by what their name contains, first match first
USUAL = (("batch", 2), ("past", 9), ("seq", 12), ("length", 12), ("height", 16), ("width", 16))
OTHER = 4  #: any other symbolic dimension
PADDING = 4  #: row i of a padding mask hides (i mod 4) quarters of the sequence
_VIEWS = frozenset({"Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_PRODUCTS = frozenset({"MatMul", "Gemm"})
_ADDING = frozenset({"Add", "Attention"})


def example_inputs(model: ir.Model | onnx.ModelProto, dims: Mapping[str, int], seed: int) -> Arrays:
    """Random arrays for the inputs of a model, by name; `dims` are sizes of symbolic dimensions, others get usual ones.

    Strings are those that the model's nodes list, and one other.
    Raises UsageError for an input that is no tensor of known rank.
    """
    if isinstance(model, onnx.ModelProto):
        model = ir.from_proto(model)
    graph, dims = _Graph(model), with_caches(model, dims)
    cached = any("past" in (v.name or "") for v in graph.given)
    return {v.name or "": _array(v, graph, dims, seed, cached) for v in graph.given}


def expressions(model: onnx.ModelProto, dims: Mapping[str, int]) -> dict[str, str] | None:
    """Texts in Python that draw the inputs of a model, by name, of numpy as `np` and a generator called `random`; None
    where an input is of a type that numpy has not. Raises UsageError as `example_inputs`."""
    parsed = ir.from_proto(model)
    graph, dims, drawn = _Graph(parsed), with_caches(parsed, dims), {}
    for value in graph.given:
        name, shape = value.name or "", dimensions(value, dims)
        if value.dtype is None or value.dtype == ir.DataType.STRING or value.dtype.numpy().isbuiltin != 1:
            return None
        dtype, integer = f"np.{value.dtype.numpy().name}", value.dtype.is_integer()
        text = f"random.standard_normal({shape})"
        if "mask" in name.lower():
            text = f"np.{'zeros' if name in graph.added and not integer else 'ones'}({shape})"
        elif integer and "position" in name.lower() and shape:
            text = f"np.broadcast_to(np.arange({shape[-1]}), {shape})"
        elif integer or value.dtype == ir.DataType.BOOL:
            text = f"random.integers(0, {graph.tables.get(name, 2)}, {shape})"
        elif name in graph.weights:
            text += f" / {max(graph.weights[name], 1)} ** 0.5"
        elif name in graph.positive:
            text = f"np.abs({text}) + 0.1"
        drawn[name] = f"np.asarray({text}).astype({dtype})"
    return drawn


def dimensions(value: ir.Value, dims: Mapping[str, int]) -> tuple[int, ...]:
    """Numbers for the dimensions of an input. Raises UsageError for one of unknown rank."""
    if value.shape is None:
        raise UsageError(
            f"input {value.name!r} has no known number of dimensions", "fix it with --shape NAME=1x128x..."
        )
    return tuple(
        _size(d if isinstance(d, int) else d.value, f"{value.name}.{i}", dims) for i, d in enumerate(value.shape)
    )


def with_caches(model: ir.Model, dims: Mapping[str, int]) -> dict[str, int]:
    """`dims` with the size of a head in caches and, where a padding mask over caches and new tokens has a length of its own,
    with that: one new token, as onnxruntime's batches take no more behind a past, and the past ones. Caches of a window's size
    have the window's."""
    windows = _windows(model)
    found = told_sizes(model) | windows | dict(dims)
    shapes = {v.name or "": _dims(v) for v in model.graph.inputs if v.shape is not None}
    pasts = {d[2] for name, d in shapes.items() if "past" in name and len(d) == 4}
    pasts = pasts - windows.keys() or pasts
    flat = {name: d[1] for name, d in shapes.items() if len(d) == 2}
    fresh = [d for d in dict.fromkeys(d for n, d in flat.items() if "mask" not in n) if isinstance(d, str)]
    for name, total in flat.items():
        own = isinstance(total, str) and total.isidentifier() and total not in (*fresh, *pasts)
        if own and "mask" in name and len(pasts) == len(fresh) == 1:
            found.setdefault(fresh[0], 1)
            found.setdefault(str(total), sum(_size(d, "", found) for d in (*pasts, *fresh)))
    return found


def _windows(model: ir.Model) -> dict[str, int]:
    """The positions of caches that have a window's size, by the symbols of their dimension."""
    found: dict[str, int] = {}
    for node in model.graph:
        own = cache_rows.named(node.op_type) if node.domain == cache_rows.DOMAIN else None
        windowed, size = (node.attributes.get_int(n, 0) for n in ("sliding_window_cache", "local_window_size"))
        size = own.window if own is not None else size if windowed else 0
        pasts = [v for v in node.inputs if size and v is not None and v.is_graph_input() and len(_dims(v)) == 4]
        for name in (_dims(past)[2] for past in pasts):
            if isinstance(name, str) and name.isidentifier():
                found[name] = max(size, found.get(name, 0))
    return found


def _dims(v: ir.Value) -> list[int | str | None]:
    """The dimensions of an input: numbers, or names as far as they have some."""
    return [d if isinstance(d, int) else d.value for d in v.shape or ()]


def _size(dim: int | str | None, unnamed: str, dims: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    size = sizes.parse(dim) if dim is not None else sizes.named(unnamed)
    count = sizes.substitute(size, {name: dims[name] if name in dims else usual(name) for name in sizes.names(size)})
    assert isinstance(count, int)
    return max(count, 0)


def sizes_of(model: onnx.ModelProto, dim: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Numbers for the symbolic dimensions of a model's inputs, as far as --dim (typical values) and --shape tell.

    Raises UsageError for a symbol that the model lacks.
    """
    weights = {t.name for t in model.graph.initializer}
    texts = {
        f"{i.name}.{k}": d.dim_param
        for i in model.graph.input
        if i.name not in weights
        for k, d in enumerate(i.type.tensor_type.shape.dim)
    }
    ranges = options.parse(dim)
    options.check_known(ranges, [n for text in texts.values() if text for n in sizes.names(sizes.parse(text))])
    numbers = {
        texts.get(f"{name}.{k}") or f"{name}.{k}": number
        for name, shape in shapes.items()
        for k, number in enumerate(shape)
    }
    return numbers | options.typical(ranges)


def usual(name: str) -> int:
    """The size of a symbolic dimension of which nothing is known but its name."""
    return next((size for part, size in USUAL if part in name.lower()), OTHER)


class _Graph:
    """The uses that the nodes of a model make of its inputs."""

    def __init__(self, model: ir.Model) -> None:
        self.given = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
        self.tables: dict[str, int] = {}
        self.weights: dict[str, int] = {}
        self.added: set[str] = set()  #: what is added to something, as score masks are
        self.positive: set[str] = set()
        self.words = _words(model)
        origin = {v: v.name or "" for v in self.given}
        for node in _nodes(model, origin):
            reads = [v for v in node.inputs if v is not None]
            if node.op_type in ("Gather", "Embedding", "EmbedLayerNormalization") and len(reads) > 1:
                self._table(reads, origin)
            elif node.op_type in _VIEWS and reads[0] in origin:
                origin.update(dict.fromkeys(node.outputs, origin[reads[0]]))
            elif node.op_type in _PRODUCTS and reads[1] in origin and reads[1].shape is not None:
                rows = reads[1].shape[-2] if len(reads[1].shape) > 1 else None
                if isinstance(rows, int):
                    self.weights[origin[reads[1]]] = rows
            elif node.op_type in _ADDING:
                self.added.update(origin[v] for v in reads if v in origin)
            elif node.op_type == "BatchNormalization" and reads[-1] in origin:
                self.positive.add(origin[reads[-1]])

    def _table(self, reads: list[ir.Value], origin: Mapping[ir.Value, str]) -> None:
        rows = reads[0].shape[0] if reads[0].shape is not None and len(reads[0].shape) else None
        if reads[1] in origin and isinstance(rows, int):
            name = origin[reads[1]]
            self.tables[name] = min(rows, self.tables.get(name, rows))


def _words(model: ir.Model) -> list[str]:
    """The strings that attributes of nodes list (vocabularies, labels), and one that none of them is."""
    lists = (
        a.value for n in model.graph.all_nodes() for a in n.attributes.values() if a.type == ir.AttributeType.STRINGS
    )
    listed = sorted({w for words in lists for w in words})
    return [*listed, next(w for k in itertools.count() if (w := "word" * (k + 1)) not in listed)]


def _nodes(model: ir.Model, origin: dict[ir.Value, str]) -> Iterator[ir.Node]:
    """All nodes in order, those of model-local functions where these are called; `origin` follows into them."""
    for node in model.graph:
        function = model.functions.get(node.op_identifier())
        if function is None:
            yield node
            continue
        for inner, outer in zip(function.inputs, node.inputs, strict=False):
            if outer is not None and outer in origin:
                origin[inner] = origin[outer]
                inner.shape = inner.shape or outer.shape
        yield from function


def _array(value: ir.Value, graph: _Graph, dims: Mapping[str, int], seed: int, cached: bool) -> NDArray[Any]:
    name = value.name or ""
    try:
        assert value.dtype is not None
        dtype = value.dtype.numpy()
    except (AssertionError, TypeError, KeyError, NotImplementedError):
        raise UsageError(f"input {name!r} is no tensor: {value.type}") from None
    shape = dimensions(value, dims)
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if value.dtype == ir.DataType.STRING:
        return random.choice(np.array(graph.words, object), shape)
    if "mask" in name.lower() and shape:
        return _mask(shape, dtype, random, cached, name in graph.added)
    if value.dtype == ir.DataType.BOOL:
        return np.asarray(random.random(shape) < 0.5)
    if value.dtype.is_integer():
        top = graph.tables.get(name)
        if "position" in name.lower() and shape:
            counted = np.arange(shape[-1]) % (top or 1 << 30)
            return np.array(np.broadcast_to(counted, shape).astype(dtype))
        return random.integers(0, top or 2, shape).astype(dtype)
    noise = random.standard_normal(shape)
    if name in graph.weights:
        noise = noise / np.sqrt(max(graph.weights[name], 1))
    return np.asarray(np.abs(noise) + 0.1 if name in graph.positive else noise).astype(dtype)


def _mask(
    shape: tuple[int, ...], dtype: np.dtype[Any], random: np.random.Generator, cached: bool, added: bool
) -> NDArray[Any]:
    """A padding mask, or a score mask when it has queries and keys; one that is added hides with minus infinity."""
    square = len(shape) == 2 and added and dtype.kind == "f"
    seen = _scores(shape, random) if len(shape) > 2 or square else _padding(shape, cached)
    if added and dtype.kind not in "bui":
        return np.where(seen, 0.5 * random.standard_normal(shape), -np.inf).astype(dtype)
    return seen.astype(dtype)


def _padding(shape: tuple[int, ...], cached: bool) -> NDArray[np.bool_]:
    """[batch, length], False where a row is padded: at the end, or at the start for a model that reads a cache, whose last
    token is the one that is computed."""
    *rows, length = shape
    hidden = (np.arange(int(np.prod(rows))) % PADDING * length // PADDING).reshape(*rows, 1)
    position = np.arange(length)
    return np.asarray(position >= hidden if cached else position < length - hidden)


def _scores(shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.bool_]:
    """[..., queries, keys], False where hidden: at random, and for every third query the whole first half but its first
    key, which every query sees."""
    *_, queries, keys = shape
    seen = random.random(shape) < 0.75
    seen &= (np.arange(queries)[:, None] % 3 != 1) | (np.arange(keys)[None, :] >= keys // 2)
    seen[..., :1] = True
    seen[..., -1:] = True
    return np.asarray(seen)
