"""Instructions of all CUDA kernels: numbers (`math.cuh`), barriers of blocks and copies (`ptx.cuh`), what runs when
(`launch.cuh`), and the chunks that memory moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.instructions.barriers import meet, rejoin
from mirage_cli.kernel_interpreter.memory import PARTS, SIZES, Cells, Fault, Pointer, Unknown, size_of
from mirage_cli.kernel_interpreter.numbers import Array, Number
from mirage_cli.kernel_interpreter.registry import instruction
from mirage_cli.lax.dtypes import SHARING

CHUNK = 16  #: bytes that are moved at a time, at most
SLACK = np.float32(np.log(2.0**8))  #: by how much a running maximum may be too low


# --- types --------------------------------------------------------------------------------------------------------------
def as_type(name: str) -> Callable[[Any, Any], Number]:
    """What a value is as a number of a type."""
    return lambda s, x: s.arithmetic.cast(x, name)


def _integer(s: Any, x: Any) -> Any:
    if isinstance(x, Number):
        raise Fault("a number is cast to an integer")
    return int(x) if isinstance(x, bool) else x.astype(np.int64) if isinstance(x, np.ndarray) else x


for _name in ("int", "unsigned", "offset_t", "int64_t", "uint64_t", "int32_t", "uint32_t", "size_t", "bool"):
    registry.CONVERSIONS[_name] = _integer
for _name in ("float", "double", "__half", "__nv_bfloat16", "half", "bfloat", "e4m3", "e5m2"):
    registry.CONVERSIONS[_name] = as_type(_name)
registry.CONVERSIONS["auto"] = lambda s, x: x
registry.CONSTANTS["INFINITY"] = "INFINITY"
registry.CONSTANTS["NAN"] = "NAN"


class Sum:
    """Sums: 0, and x + y."""

    @staticmethod
    def none(s: Any, static: Sequence[Any]) -> Number:
        """Of nothing."""
        return s.arithmetic.const(0)  # type: ignore[no-any-return]

    @staticmethod
    def join(s: Any, static: Sequence[Any], x: Any, y: Any) -> Number:
        """Of two."""
        return s.arithmetic.apply("add", x, y)  # type: ignore[no-any-return]

    @staticmethod
    def take(s: Any, static: Sequence[Any], x: Any, y: Any) -> None:
        """One more, for a place."""
        x.set(s.arithmetic.apply("add", x.get(), y))

    @staticmethod
    def all(arithmetic: Any, values: Array, axis: int) -> Array:
        """Over an axis of [fields, ...]."""
        return arithmetic.total(values, axis)  # type: ignore[no-any-return]


class Max:
    """Maxima: -infinity, and the larger one."""

    @staticmethod
    def none(s: Any, static: Sequence[Any]) -> Number:
        """Of nothing."""
        return s.arithmetic.const(float("-inf"))  # type: ignore[no-any-return]

    @staticmethod
    def join(s: Any, static: Sequence[Any], x: Any, y: Any) -> Number:
        """Of two."""
        return s.arithmetic.maximum(x, y)  # type: ignore[no-any-return]

    @staticmethod
    def take(s: Any, static: Sequence[Any], x: Any, y: Any) -> None:
        """One more, for a place."""
        x.set(s.arithmetic.maximum(x.get(), y))

    @staticmethod
    def all(arithmetic: Any, values: Array, axis: int) -> Array:
        """Over an axis of [fields, ...]."""
        return arithmetic.greatest(values, axis)  # type: ignore[no-any-return]


class StripMax(Max):
    """Maxima in which what is no number is lost: exponentials keep it."""

    @staticmethod
    def join(s: Any, static: Sequence[Any], x: Any, y: Any) -> Number:
        """Of two."""
        return s.arithmetic.maximum(x, y, True)  # type: ignore[no-any-return]

    @staticmethod
    def take(s: Any, static: Sequence[Any], x: Any, y: Any) -> None:
        """One more, for a place."""
        x.set(s.arithmetic.maximum(x.get(), y, True))

    @staticmethod
    def all(arithmetic: Any, values: Array, axis: int) -> Array:
        """Over an axis of [fields, ...]."""
        return arithmetic.greatest(values, axis, True)  # type: ignore[no-any-return]


registry.TYPES |= {"Sum": Sum, "Max": Max, "StripSum": Sum, "StripMax": StripMax}


# --- numbers ------------------------------------------------------------------------------------------------------------
@instruction("to_float")
def _to_float(s: Any, static: Sequence[Any], x: Any) -> Number:
    return s.arithmetic.cast(x, "float")  # type: ignore[no-any-return]


@instruction("whole_number")
def _whole_number(s: Any, static: Sequence[Any], x: Any) -> Any:
    """A number of positions: over residues one that all fields have."""
    a = np.where(s.active, s.wide(x), 0)
    if s.arithmetic.residues:
        a = np.where(2 * a > s.arithmetic.modulus, a - s.arithmetic.modulus, a)
    if not (a == a[:1]).all() or (a != np.rint(a)).any():
        raise Fault("a number of positions is no whole number")
    return np.broadcast_to(a[0], (s.count,)).astype(np.int64)


def _packed_number(s: Any, static: Sequence[Any], of: Pointer, at: Any) -> Number:
    """Number `at` of those that share bytes: stored tensors have an element for each."""
    return Number(s.load(of, at))


for _dtype in SHARING:
    instruction(f"number_{_dtype}")(_packed_number)


@instruction("put", places=(0,))
def _put(s: Any, static: Sequence[Any], to: Any, x: Any) -> None:
    to.set(s.arithmetic.number(x))


@instruction("min")
def _min(s: Any, static: Sequence[Any], x: Any, y: Any) -> Any:
    return min(x, y) if isinstance(x, int) and isinstance(y, int) else np.minimum(x, y)


@instruction("max")
def _max(s: Any, static: Sequence[Any], x: Any, y: Any) -> Any:
    return max(x, y) if isinstance(x, int) and isinstance(y, int) else np.maximum(x, y)


instruction("fmaxf")(lambda s, static, x, y: s.arithmetic.maximum(x, y, True))
instruction("m_exp_minus")(lambda s, static, x, y: s.arithmetic.exp_minus(x, y))
for _name in ("strip_exp_minus", "exp_below"):
    instruction(_name)(lambda s, static, x, y: s.arithmetic.exp_below(x, y))
for _name in ("m_exp_difference", "strip_exp_difference", "exp_between"):
    instruction(_name)(lambda s, static, x, y: s.arithmetic.exp_difference(x, y))
instruction("level_of")(lambda s, static, x: s.arithmetic.level_of(x))
for _name in ("silu", "sigmoid", "gelu", "gelu_tanh"):
    instruction(f"quick_{_name}")(lambda s, static, x, op=_name: s.arithmetic.apply(op, x))


@instruction("raised")
def _raised(s: Any, static: Sequence[Any], before: Any, maximum: Any) -> Number:
    """The larger one, or the one before where that is little less; over residues it makes no difference which."""
    before, maximum = s.arithmetic.number(before), s.arithmetic.number(maximum)
    higher: Number = s.arithmetic.maximum(before, maximum, True)
    if s.arithmetic.residues:
        return higher
    with np.errstate(all="ignore"):
        return Number(np.where(maximum.a - before.a <= SLACK, before.a, higher.a))


@instruction("guarded_share")
def _guarded_share(s: Any, static: Sequence[Any], q: Any, x: Any, y: Any) -> Number:
    """x / y (q), 0 where y is 0."""
    if not s.arithmetic.residues:
        q, x, y = (s.arithmetic.number(v).a for v in (q, x, y))
        return Number(np.where((y == 0) & ~np.isnan(x), np.zeros_like(q), q))
    return s.arithmetic.apply("share", x, y)  # type: ignore[no-any-return]


@instruction("guarded_div0")
def _guarded_div0(s: Any, static: Sequence[Any], q: Any, x: Any, inverse: Any) -> Number:
    """x / y (q) by the inverse of y, 0 where that is no number."""
    if not s.arithmetic.residues:
        q, x, y = (s.arithmetic.number(v).a for v in (q, x, inverse))
        return Number(np.where(np.isnan(q) & (np.isnan(y) | ~np.isnan(x)), np.zeros_like(q), q))
    return s.arithmetic.apply("div0", x, s.arithmetic.apply("recip", inverse))  # type: ignore[no-any-return]


def unknown(s: Any) -> Number:
    """A number of each lane that nobody knows."""
    return Number(s.arithmetic.arbitrary((s.count,)))


# --- lanes and barriers -------------------------------------------------------------------------------------------------
@instruction("lane_of")
def _lane_of(s: Any, static: Sequence[Any]) -> Array:
    return s.thread % 32  # type: ignore[no-any-return]


@instruction("__shfl_xor_sync")
def _shuffle(s: Any, static: Sequence[Any], mask: int, x: Any, distance: int) -> Number:
    return s.shuffle(x, s.thread % 32 ^ distance)  # type: ignore[no-any-return]


def over_lanes(s: Any, kind: Any, x: Any, lanes: int) -> Number:
    """A reduction over so many neighbouring lanes, each of which gets it."""
    a, of = s.wide(x), registry.type_of(kind)
    parts = a.reshape(a.shape[0], -1, lanes)
    while s.arithmetic.rounds and parts.shape[2] > 1:  # half of the lanes with the other half
        parts = np.stack(np.split(parts, 2, axis=2), 2)
        parts = of.all(s.arithmetic, parts, 2)
    return Number(np.repeat(of.all(s.arithmetic, parts, 2), lanes, axis=1))


@instruction("__any_sync")
def _any(s: Any, static: Sequence[Any], mask: int, test: Any) -> Any:
    if isinstance(test, bool | np.bool_):
        return test
    warp = np.arange(s.count) // 32
    some = np.zeros(warp.max() + 1, dtype=bool)
    np.logical_or.at(some, warp[s.active & test], True)
    return some[warp]


@instruction("__syncthreads")
def _syncthreads(s: Any, static: Sequence[Any]) -> None:
    meet(s, "__syncthreads", s.block, s.world.launch.threads)


@instruction("__syncwarp")
def _syncwarp(s: Any, static: Sequence[Any]) -> None:
    warps = np.unique(s.warps[s.active])
    s.world.clocks.tick(warps)
    for w in warps:
        rejoin(s, int(w))


for _name in ("launch_dependents", "fetch_ahead"):
    instruction(_name)(lambda s, static, *args: None)


@instruction("wait_for_earlier")
def _wait_for_earlier(s: Any, static: Sequence[Any]) -> None:
    s.waited = s.waited | s.active


# --- asynchronous copies ------------------------------------------------------------------------------------------------
@instruction("copy_commit")
def _copy_commit(s: Any, static: Sequence[Any]) -> None:
    s.commit()


@instruction("copy_wait")
def _copy_wait(s: Any, static: Sequence[Any]) -> None:
    s.wait_copies(static[0])


# --- chunks of memory ---------------------------------------------------------------------------------------------------
def vector(s: Any, p: Pointer, count: int) -> Array:
    """`count` neighbours from a pointer, moved as a vector: [fields, count, lanes]."""
    s.aligned(p, min(count * p.bytes, CHUNK))
    return s.load(p, np.arange(count)[:, None] + np.zeros(s.count, dtype=np.int64))  # type: ignore[no-any-return]


def put_vector(s: Any, p: Pointer, values: Array) -> None:
    """Put [fields, count, lanes] at neighbouring places, moved as a vector."""
    count = values.shape[1]
    s.aligned(p, min(count * p.bytes, CHUNK))
    s.store(p, np.arange(count)[:, None] + np.zeros(s.count, dtype=np.int64), values)


def cells_of(values: Array, type_: str = "float") -> Cells:
    """[fields, count, lanes] as registers."""
    return Cells((values.shape[1],), [Number(values[:, k]) for k in range(values.shape[1])], type_=type_)


def stacked(s: Any, cells: Cells) -> Array:
    """Registers as [fields, count, lanes]."""
    return np.stack([s.wide(v if v is not None else unknown(s)) for v in cells.all()], 1)


def fill(s: Any, cells: Cells, value: Any) -> None:
    """Give all registers one value."""
    x = s.arithmetic.number(value)
    cells.set_all([s.merge(old, x) for old in cells.all()])


registry.METHODS["fill"] = fill


def bytes_of(name: str) -> float:
    """Of an element of a type: a fraction where several share a byte."""
    if name not in SIZES and name not in PARTS:
        raise Unknown(f"nothing is known of elements of {name}")
    return size_of(name)


def _joined(s: Any, to: Pointer, parts: Sequence[Pointer], sizes: Sequence[Any], element: Array, active: Array) -> None:
    """Store elements of a tensor in two parts whole: `sizes` are the elements of a row of each."""
    whole = sizes[0] + sizes[1]
    row, at = element // whole, element % whole
    for part, size, start in zip(parts, sizes, (0, sizes[0]), strict=True):
        own = active & (at >= start) & (at < start + size)
        if own.any():
            s.store(to, element, s.load(part, row * size + at - start, own), own)


def _counts(rows: Any, first: Any, next_: Any, at: Any, count: Any) -> tuple[int, int, int, Array, int]:
    """Rows, elements of a row of both parts, the lanes' numbers among those that share the work, and how many these are."""
    rows, first, next_, count = (int(np.max(x)) for x in (rows, first, next_, count))
    return rows, first, next_, np.asarray(at), count


@instruction("join_chunks")
def _join_chunks(s: Any, static: Sequence[Any], to: Pointer, a: Pointer, b: Pointer, *counts: Any) -> None:
    """Store a tensor of rows from two parts: threads take chunks, or elements where there are none."""
    rows, first, next_, at, count = _counts(*counts)
    each = int(CHUNK / bytes_of(to.type))
    each = 1 if first % each or next_ % each else each
    total = rows * (first + next_) // each
    number = np.arange(-(-total // count))[:, None] * count + at
    if each > 1:
        for p in (to, a, b):
            s.aligned(p, CHUNK)
    for k in range(each):
        _joined(s, to, (a, b), (first, next_), number * each + k, s.active & (number < total))


@instruction("join_rows")
def _join_rows(s: Any, static: Sequence[Any], to: Pointer, a: Pointer, b: Pointer, *counts: Any) -> None:
    """Store a tensor of rows from two parts: tasks take whole rows."""
    rows, first, next_, at, count = _counts(*counts)
    row = np.arange(-(-rows // count))[:, None, None] * count + at
    element = row * (first + next_) + np.arange(first + next_)[:, None]
    _joined(s, to, (a, b), (first, next_), element, np.broadcast_to(s.active & (row < rows), element.shape))
