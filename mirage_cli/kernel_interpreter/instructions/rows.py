"""Instructions of `rows.cuh`: chunks in registers, reductions over lanes and warps, quotients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.instructions.common import cells_of, over_lanes, put_vector, stacked, vector
from mirage_cli.kernel_interpreter.instructions.sync import in_block
from mirage_cli.kernel_interpreter.memory import Cells, Fault, Pointer
from mirage_cli.kernel_interpreter.numbers import Number
from mirage_cli.kernel_interpreter.registry import instruction, type_of

registry.ARRAYS["Chunk"] = lambda args: (args[1],)


@instruction("load_chunk")
def _load_chunk(s: Any, static: Sequence[Any], p: Pointer) -> Cells:
    return cells_of(vector(s, p, static[1]), static[0].name)


@instruction("store_chunk")
def _store_chunk(s: Any, static: Sequence[Any], p: Pointer, x: Cells) -> None:
    put_vector(s, p, stacked(s, x))


registry.ARRAYS["Numbers"] = lambda args: (args[1],)


@instruction("load_numbers")
def _load_numbers(s: Any, static: Sequence[Any], tensor: Pointer, at: Any) -> Cells:
    """Neighbours of numbers that share bytes: stored tensors have an element for each."""
    if tensor.memory.packed not in ("", static[0].name):
        raise Fault(f"numbers of type {tensor.memory.packed} are read as {static[0].name}")
    return cells_of(vector(s, replace(tensor, at=tensor.at + at, type=static[0].name), static[1]))


@instruction("number_in")
def _number_in(s: Any, static: Sequence[Any], x: Cells, at: int) -> Any:
    return s.arithmetic.number(x.values[x.place(at)])


@instruction("rounded")
def _rounded(s: Any, static: Sequence[Any], x: Cells) -> Cells:
    name = static[0].name
    return Cells(x.dims, [v if v is None else s.arithmetic.cast(v, name) for v in x.all()], type_=name)


@instruction("join_parts")
def _join_parts(s: Any, static: Sequence[Any], x: Cells) -> Number:
    if not 0 < static[1] <= x.size:
        raise Fault(f"{static[1]} of {x.size} registers are joined")
    return Number(type_of(static[0]).all(s.arithmetic, stacked(s, x)[:, : static[1]], 1))


@instruction("join_lanes")
def _join_lanes(s: Any, static: Sequence[Any], x: Any) -> Number:
    """Over neighbouring lanes."""
    return over_lanes(s, static[0], x, static[1])


@instruction("show")
def _show(s: Any, static: Sequence[Any], scratch: Pointer, x: Any) -> None:
    s.store(scratch, s.thread // 32, x, s.active & (s.thread % 32 == 0))


@instruction("show_all")
def _show_all(s: Any, static: Sequence[Any], scratch: Pointer, x: Any) -> None:
    cluster, warps = static[:2]
    there = in_block(s, (), scratch, s.thread % 32 % cluster)
    at = s.blocks_of_grid % cluster * warps + s.thread // 32
    s.store(there, at, x, s.active & (s.thread % 32 < cluster))


@instruction("join_shown")
def _join_shown(s: Any, static: Sequence[Any], at: Pointer) -> Number:
    kind, count, stride = static[:3]
    values = s.load(at, np.arange(count)[:, None] * stride + np.zeros(s.count, dtype=np.int64))
    return Number(type_of(kind).all(s.arithmetic, values, 1))


@instruction("join_warps")
def _join_warps(s: Any, static: Sequence[Any], at: Pointer) -> Number:
    kind, count = static[:2]
    if count < 32:
        return _join_shown(s, [kind, count, 1], at)  # type: ignore[no-any-return]
    own = _join_shown(s, [kind, count // 32, 32], at.plus(s.thread % 32))
    return _join_lanes(s, [kind, 32], own)  # type: ignore[no-any-return]


@instruction("divisor")
def _divisor(s: Any, static: Sequence[Any], x: Any) -> Number:
    return s.arithmetic.number(x)  # type: ignore[no-any-return]


@instruction("divide")
def _divide(s: Any, static: Sequence[Any], x: Any, by: Any) -> Number:
    return s.arithmetic.apply("div", x, by)  # type: ignore[no-any-return]


registry.CONVERSIONS["Divisor"] = lambda s, x: s.arithmetic.number(x)
