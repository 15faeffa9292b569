"""The operator that brings new rows into caches, as a library has it."""

from __future__ import annotations

from mirage_cli.backends.spec import KernelSource, OperatorSpec, Room, TensorSpec
from mirage_cli.codegen.cache_rows import CacheRows
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import BY_NAME, F32, I32, I64, U8

_SYMBOLS = ("batch", "new", "past", "room", "table")


def spec(rows: CacheRows, cuda: bool) -> OperatorSpec:
    """Its tensors: the present caches have room for the whole length, and for what the past ones hold; those of a window's
    size keep it, and what attention reads has room for what they hold and what is new."""
    batch, new, past, room, table = map(ex.symbol, _SYMBOLS)
    kind, integer, index, wide = BY_NAME[rows.dtype], I32, I64, F32
    per_byte = rows.cache.per_byte
    cache, row = (rows.cache, rows.size) if per_byte == 1 else (U8, rows.size // per_byte)
    widths = (rows.heads * rows.size, rows.shared * rows.size)
    apart = (("query", widths[0]), ("key", widths[1]), ("value", widths[1]))
    own = (("packed", widths[0] + 2 * widths[1]),) if rows.packed else apart if rows.writes_queries else apart[1:]
    inputs = [TensorSpec(name, kind, (batch, new, width)) for name, width in own]
    inputs += [TensorSpec(f"past_{n}", cache, (batch, rows.shared, past, row)) for n in ("key", "value")]
    inputs += [TensorSpec("lengths", integer, (batch, *[1] * (rows.lengths - 1)))]
    whole = len(inputs)
    if not rows.window:
        inputs += [TensorSpec("whole", integer, (1,) * rows.whole)]
    if rows.turned:
        inputs += [TensorSpec(n, kind, (table, rows.turned // 2)) for n in ("cos", "sin")]
    if rows.listed:
        inputs += [TensorSpec("positions", index, (batch, new))]
    if rows.scales:
        inputs += [TensorSpec(f"{n}_scale", wide, (rows.scales,)) for n in ("key", "value")]
    outputs = [TensorSpec("turned", kind, (batch, new, widths[0]))] if rows.writes_queries else []
    names = ("key", "value")
    outputs += [
        TensorSpec(f"{'read' if rows.window else 'present'}_{n}", cache, (batch, rows.shared, room, row)) for n in names
    ]
    outputs += [TensorSpec(n, index, (batch,)) for n in ("before", "last")]
    if rows.window:
        outputs += [TensorSpec(f"present_{n}", cache, (batch, rows.shared, past, row)) for n in names]
    symbols = _SYMBOLS if rows.turned else _SYMBOLS[:-1]
    counted = Room("room", "past", more="new") if rows.window else Room("room", "past", whole)
    return OperatorSpec(rows.id, rows.op_type, tuple(inputs), tuple(outputs), symbols, cuda, room=counted)


def source(rows: CacheRows, cuda: bool) -> KernelSource:
    """Its kernels."""
    cpp, cu = rows.texts()
    return KernelSource(rows.id, cpp, cu if cuda else None)
