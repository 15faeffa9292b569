"""Instructions of kernels for CPUs (`tile.hpp`, `contract.hpp`). A lane is the one thread of a block, or an iteration of loops
that it runs; scratch memory and arrays are each lane's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter import registry
from mirage_cli.kernel_interpreter.instructions.common import as_type
from mirage_cli.kernel_interpreter.memory import SIZES, Beside, Fault, Memory, Pointer
from mirage_cli.kernel_interpreter.numbers import Array, Number
from mirage_cli.kernel_interpreter.registry import instruction, type_of
from mirage_cli.kernel_interpreter.strand import Strand
from mirage_cli.lax.dtypes import SHARING
from mirage_cli.lax.ops import OPS

WHOLE = {
    "U2": (2, 0),
    "I2": (2, 2),
    "U4": (4, 0),
    "I4": (4, 8),
    "U8": (8, 0),
    "I8": (8, 128),
}  #: bits, those turned in panels
DEPTH = 128  #: positions that are rounded together at most (`rounded.hpp`)
LINE, CHUNK = 16, 64  #: positions of which there is room for multiples, and of levels (`levels.hpp`)
MOST_AT_ONCE = 1 << 13  #: lanes that run side by side, where they are not as many already
WIDE = {"Sum::Wide": "double", "Max::Wide": "float"}
for _name, _type in WIDE.items():
    registry.CONVERSIONS[_name] = as_type(_type)
registry.PLACES["take"] = frozenset({0})
registry.CONSTANTS |= {"MIRAGE_OK": "0", "MIRAGE_OUT_OF_MEMORY": "1"}


def array(s: Any, type_: str, size: int, values: Sequence[Any] | None) -> Pointer:
    """An array that a kernel declares, with the first of its values and zeros behind them, or (None) with nothing in it."""
    type_ = WIDE.get(type_, type_)
    p = _place(s, size * SIZES[type_], type_)
    if values is not None:
        k, there = _positions(s, size)
        s.store(p, k, np.zeros((s.arithmetic.fields, *k.shape), dtype=s.arithmetic.dtype), there)
        for n, x in enumerate(values):
            s.store(p, n, s.arithmetic.number(x))
    return p


@instruction("scratch")
def _scratch(s: Any, static: Sequence[Any], size: int) -> Pointer:
    return _place(s, -(-size // 16) * 16, "char")


def _place(s: Any, size: int, type_: str) -> Pointer:
    """So many bytes for each lane."""
    return Pointer(Memory(s.arithmetic, s.count, size, s.world.shared.granule), 0, type_, np.arange(s.count))


@instruction("smaller")
def _smaller(s: Any, static: Sequence[Any], x: Any, y: Any) -> Any:
    return min(x, y) if isinstance(x, int) and isinstance(y, int) else np.minimum(x, y)


# --- iterations as lanes ------------------------------------------------------------------------------------------------
def spread(s: Any, count: int, names: Sequence[int] | None = None) -> tuple[Any, Array]:
    """A strand with `count` lanes for each lane, and the number of each among those of one. Variables (those in `names`, or
    all) are what they were."""
    wide = Strand(s.world, s.number, np.repeat(s.block, count), np.repeat(s.thread, count))
    wide.active, wide.exited = np.repeat(s.active, count), np.repeat(s.exited, count)
    wide.calls, wide.env = s.calls, list(s.env)
    for n in range(len(s.env)) if names is None else names:
        wide.env[n] = _repeated(s.env[n], s.count, count)
    first = s.world.iterations + 1
    s.world.iterations += wide.count + 1
    own, key = np.arange(first, s.world.iterations), (s.world.key, len(s.beside))
    around = (replace(loop, own=np.repeat(loop.own, count)) for loop in s.beside)
    wide.beside = [*around, Beside(key, first, s.world.iterations, own)]
    return wide, np.tile(np.arange(count), s.count)


def _repeated(x: Any, lanes: int, count: int) -> Any:
    """A variable's value, `count` times for each lane."""
    if isinstance(x, Number) and x.a.shape[1] == lanes:
        return Number(np.repeat(x.a, count, axis=1))
    if isinstance(x, Pointer):
        return replace(x, **{name: _repeated(getattr(x, name), lanes, count) for name in ("at", "null", "block")})
    if isinstance(x, np.ndarray) and x.shape == (lanes,):
        return np.repeat(x, count)
    return x


@dataclass(frozen=True, slots=True)
class SideBySide:
    """for (int variable = ...; variable < bound; ++variable) body with a lane for each iteration, where variables number
    `outer` (of those around it) are read. Raises Fault where one needs what another one does."""

    start: Callable[[Any], Any]
    bound: Callable[[Any], Any]
    variable: int
    outer: Sequence[int]
    body: Callable[[Any], Any]

    def __call__(self, s: Any) -> None:
        """All iterations, as many at once as are affordable."""
        self.start(s)
        first, bound = np.broadcast_to(s.env[self.variable], s.count), np.broadcast_to(self.bound(s), s.count)
        count = int((bound - first)[s.active].max(initial=0))
        step = max(1, MOST_AT_ONCE // s.count)
        for begin in range(0, count, step):
            self._run(s, first + begin, bound, min(step, count - begin))

    def _run(self, s: Any, first: Array, bound: Array, count: int) -> None:
        wide, k = spread(s, count, self.outer)
        wide.env[self.variable] = place = np.repeat(first, count) + k
        wide.active &= place < np.repeat(bound, count)
        kept = {n: wide.env[n] for n in (*self.outer, self.variable)}
        self.body(wide)
        if any(wide.env[n] is not x for n, x in kept.items()):
            raise Fault("iterations of a loop need one another: they give one variable values")


registry.LOOPS["MIRAGE_VECTOR_LOOP"] = SideBySide


# --- rows ---------------------------------------------------------------------------------------------------------------
def _positions(s: Any, n: Any) -> tuple[Array, Array]:
    """The numbers up to n, a lane's own one, and which of them are below it: [numbers, lanes]."""
    own = np.broadcast_to(n, s.count)
    k = np.arange(max(0, int(own[s.active].max(initial=0))))[:, None] + np.zeros(s.count, dtype=np.int64)
    return k, (k < own) & s.active


@instruction("load_row")
@instruction("store_row")
def _copy_row(s: Any, static: Sequence[Any], to: Pointer, source: Pointer, n: Any) -> None:
    """n neighbours, converted."""
    k, there = _positions(s, n)
    if there.any():
        s.store(to, k, s.load(source, k, there), there)


def _load_packed(s: Any, static: Sequence[Any], to: Pointer, source: Pointer, at: Any, n: Any) -> None:
    """n neighbours from number `at` on, of those that share bytes."""
    _copy_row(s, static, to, replace(source, at=source.at + at), n)


for _dtype in SHARING:
    instruction(f"load_{_dtype}")(_load_packed)


def _reduced(s: Any, kind: Any, values: Array, there: Array) -> Number:
    """A reduction of [fields, numbers, lanes] over the numbers that are there."""
    of = type_of(kind)
    none = of.none(s, ()).a[:, :, None]
    values = np.concatenate([np.where(there, values, none), np.broadcast_to(none, (*values.shape[:1], 1, s.count))], 1)
    return Number(of.all(s.arithmetic, values, 1))


@instruction("reduce_row")
def _reduce_row(s: Any, static: Sequence[Any], p: Pointer, n: Any) -> Number:
    """Over n neighbours."""
    k, there = _positions(s, n)
    return _reduced(s, static[0], s.load(p, k, there), there)


@instruction("reduce", statics=(1,))
def _reduce(s: Any, static: Sequence[Any], n: Any, value: Callable[..., Any]) -> Number:
    """Over value(0) ... value(n - 1)."""
    k, there = _positions(s, n)
    joined: Number = type_of(static[0]).none(s, ())
    step = max(1, MOST_AT_ONCE // s.count)
    for first in range(0, len(k), step):
        part = there[first : first + step]
        wide, number = spread(s, len(part))
        wide.active = wide.active & part.T.reshape(-1)
        terms = wide.wide(value(wide, first + number)).reshape(s.arithmetic.fields, s.count, len(part))
        joined = type_of(static[0]).join(s, (), joined, _reduced(s, static[0], np.swapaxes(terms, 1, 2), part))
    return joined


# --- matrix products ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Operand:
    """Element (i, k) lies at data[i * row + k * depth]."""

    data: Pointer
    row: Any
    depth: Any

    def read(self, s: Any, i: Array, k: Array, there: Array) -> Array:
        """Elements of lanes, the last dimension: [fields * lanes, rows, depth]; 0 where they are not there."""
        values = np.where(there, s.load(self.data, i * self.row + k * self.depth, there), 0)
        return np.moveaxis(values, 3, 1).reshape(-1, *values.shape[1:3])


@instruction("operand")
def _operand(s: Any, static: Sequence[Any], data: Pointer, row: Any, depth: Any) -> Operand:
    return Operand(data, row, depth)


@dataclass(frozen=True, slots=True)
class Rounded(Operand):
    """An operand that is rounded to 8 bits by the blocks of the other one, and room for that. In exact arithmetic it stays."""

    room: Pointer

    @staticmethod
    def bytes(rows: int, depth: int, block: int) -> int:
        """Bytes of room for so many rows, as `lines` of `rounded.hpp` takes them."""
        return rows * (-(-depth // LINE) * LINE + 16 * -(-depth // min(block, DEPTH)))

    def rounded(self, s: Any, x: Array, block: int) -> Array:
        """What is multiplied in place of [fields * lanes, rows, depth]."""
        if not s.arithmetic.rounds:
            return x
        ends = {
            min(k + n, x.shape[-1]) for k in range(0, x.shape[-1], block) for n in (*range(DEPTH, block, DEPTH), block)
        }
        return np.concatenate([in_bytes(part) for part in np.split(x, sorted(ends), -1)], -1)


def in_bytes(x: Array) -> Array:
    """Numbers along the last dimension as whole multiples, 127 at most, of their largest one's 127th part."""
    scale = np.maximum(np.abs(x).max(-1, initial=0, keepdims=True) / np.float32(127), np.finfo(np.float32).tiny)
    with np.errstate(all="ignore"):
        return np.asarray(np.rint(x * (1 / scale)) * scale, x.dtype)


@instruction("to_bytes")
def _to_bytes(s: Any, static: Sequence[Any], plain: Operand, room: Pointer) -> Rounded:
    return Rounded(plain.data, plain.row, plain.depth, room)


@dataclass(frozen=True, slots=True)
class Levels(Rounded):
    """An operand of whole numbers that bytes hold, but for one number for each row, and room for these."""

    def rounded(self, s: Any, x: Array, block: int) -> Array:
        """As they are. Raises Fault for others, where numbers are what they will be."""
        if s.arithmetic.rounds and np.isfinite(x).all():
            high, low = x.max(initial=0), x.min(initial=0)
            if np.any(x != np.rint(x)) or high - low > OPS["levels"].whole:
                raise Fault("an operand of levels is none")
        return x

    @staticmethod
    def bytes(rows: int, depth: int, block: int) -> int:
        """As `levels_rows` of `levels.hpp` takes them."""
        high = (rows // LINE + 1) * LINE + 1
        return 4 * high + (high + 4) * (-(-depth // CHUNK) + 1) * CHUNK


@instruction("in_levels")
def _in_levels(s: Any, static: Sequence[Any], plain: Operand, room: Pointer) -> Levels:
    return Levels(plain.data, plain.row, plain.depth, room)


@instruction("packed")
def _packed(s: Any, static: Sequence[Any], plain: Operand, first: Pointer, panels: Any, deep: Any) -> Operand:
    """An operand that may lie packed: it is part of the matrix that begins at `first`, has `deep` summed positions, and whose
    packed form is `panels`, if there is one."""
    return _in_panels(plain, first, panels, deep, 0)


@instruction("split")
def _split(s: Any, static: Sequence[Any], plain: Operand, first: Pointer, panels: Any, deep: Any) -> Operand:
    """The same, where what is packed may be split for matrix instructions."""
    return _in_panels(plain, first, panels, deep, 1)


def _in_panels(plain: Operand, first: Pointer, panels: Any, deep: Any, split: int) -> Operand:
    if panels is None:
        return plain
    if panels.split != split:
        raise Fault("numbers are split where they are taken to be whole, or the other way round")
    if {id(first.memory), id(plain.data.memory)} != {id(panels.memory)} or np.any(first.at != 0) or any(panels.whole):
        raise Fault("the packed form of an operand is that of something else")
    if any(np.any(x != known) for x, known in zip((plain.row, plain.depth, deep), panels.numbers, strict=True)):
        raise Fault("an operand is not packed as it is said to be")
    return plain


@dataclass(frozen=True, slots=True)
class Stored:
    """A constant matrix: number (i, k) is at data[first + i * row + k * depth]."""

    data: Pointer
    first: Any
    row: int
    depth: int
    bytes: int = 0  #: of words of panels, where these hold whole numbers

    def number(self, s: Any, i: Array, k: Array, there: Array) -> Number:
        """Elements of lanes: [fields, rows, depth, lanes]; 0 where they are not there."""
        return Number(np.where(there, s.load(self.data, self.first + i * self.row + k * self.depth, there), 0))


@dataclass(frozen=True, slots=True)
class Same:
    """One number for all."""

    value: Number
    whole: bool = False  #: said to be no fraction

    def number(self, s: Any, i: Array, k: Array, there: Array) -> Number:
        """The number."""
        return Number(np.where(there, self.value.a[:, None, None], 0))


@dataclass(frozen=True, slots=True)
class Quantised:
    """(numbers - zero) scale, where so many positions along the sum share the latter two."""

    numbers: Stored
    zero: Stored | Same
    scale: Stored | Same
    block: int
    row: int = 0  #: not known of columns, nor of summed positions
    depth: int = 0

    @property
    def is_whole(self) -> bool:
        """True where numbers less their zero points, which are whole, are multiplied as they are."""
        zero, scale = self.zero, self.scale
        whole = zero.whole if isinstance(zero, Same) else zero.bytes == 1 or self.numbers.bytes == 0
        return whole and isinstance(scale, Same) and bool(np.all(scale.value.a == 1))

    def read(self, s: Any, i: Array, k: Array, there: Array) -> Array:
        """As that of `Operand`."""
        q = self.numbers.number(s, i, k, there)
        zero, scale = (x.number(s, i, k // self.block, there) for x in (self.zero, self.scale))
        values = s.arithmetic.apply("mul", s.arithmetic.apply("sub", q, zero), scale).a
        return np.moveaxis(np.where(there, values, 0), 3, 1).reshape(-1, *values.shape[1:3])


@instruction("stored")
def _stored(
    s: Any, static: Sequence[Any], data: Pointer, first: Any, row: int, depth: int, panels: Any, deep: int
) -> Stored:
    """A matrix with its packed form, if there is one, which is that of all of the tensor."""
    if panels is None:
        return Stored(data, first, row, depth)
    if id(data.memory) != id(panels.memory) or np.any(data.at != 0):
        raise Fault("the packed form of an operand is that of something else")
    size, *whole = panels.whole
    if (row, depth, deep) != panels.numbers or tuple(whole) != WHOLE.get(static[0].name, (0, 0)):
        raise Fault("an operand is not packed as it is said to be")
    return Stored(data, first, row, depth, size)


@instruction("same")
def _same(s: Any, static: Sequence[Any], value: Any) -> Same:
    return Same(Number(s.wide(value)))


@instruction("same_whole")
def _same_whole(s: Any, static: Sequence[Any], value: Any) -> Same:
    return Same(Number(s.wide(value)), whole=True)


@instruction("quantised")
def _quantised(s: Any, static: Sequence[Any], numbers: Stored, zero: Any, scale: Any, block: int) -> Quantised:
    sizes = [x.bytes for x in (numbers, zero, scale) if isinstance(x, Stored)]
    if numbers.bytes not in (0, 4) or not {*sizes[1:]} <= {0, 1}:
        raise Fault("an operand is not packed as it is said to be")
    return Quantised(numbers, zero, scale, block)


@instruction("contract", statics=(1,))
def _contract(
    s: Any,
    static: Sequence[Any],
    out: Pointer,
    stride: Any,
    rows: Any,
    cols: Any,
    depth: Any,
    a: Operand,
    b: Operand,
    add: bool,
) -> None:
    """out[i * stride + j] += (or = without `add`) the sum over k of a(i, k) * b(j, k)."""
    _check(s, static[0].args, rows, cols, depth, a, b, add)
    (i, own), (j, other), (k, deep) = (_positions(s, n) for n in (rows, cols, depth))
    if not len(i) or not len(j):
        return
    x = a.read(s, i[:, None], k[None], own[:, None] & deep[None])
    y = b.read(s, j[:, None], k[None], other[:, None] & deep[None])
    if isinstance(a, Rounded) or isinstance(b, Rounded):
        x, y = _both_rounded(s, a, b, x, y)
    product = s.arithmetic.product(x, np.swapaxes(y, 1, 2))
    values = np.moveaxis(product.reshape(s.arithmetic.fields, s.count, len(i), len(j)), 1, 3)
    place, there = i[:, None] * stride + j[None], own[:, None] & other[None]
    if add:
        shape = values.shape
        before = Number(s.load(out, place, there).reshape(shape[0], -1))
        values = s.arithmetic.apply("add", before, Number(values.reshape(shape[0], -1))).a.reshape(shape)
    s.store(out, place, values, there)


def _both_rounded(s: Any, a: Any, b: Any, x: Array, y: Array) -> tuple[Array, Array]:
    """The operands of a product, one of which is rounded. Raises Fault without room, and where the model does not say so."""
    own, other, values = (a, b, x) if isinstance(a, Rounded) else (b, a, y)
    if not isinstance(other, Quantised) or not (isinstance(own, Levels) or other.numbers.data.memory.rounds):
        raise Fault("an operand is rounded beside one of which the model does not say so")
    _, rows, depth = values.shape
    if isinstance(own, Levels) and not other.is_whole:
        raise Fault("an operand of levels is multiplied with what is no whole number")
    if np.any(own.room.at + own.bytes(rows, depth, other.block) > own.room.memory.size):
        raise Fault("an operand is rounded beyond the room that it has")
    values = own.rounded(s, values, other.block)
    return (values, y) if own is a else (x, values)


def _check(s: Any, known: Sequence[Any], rows: Any, cols: Any, depth: Any, a: Operand, b: Operand, add: bool) -> None:
    """Raises Fault where a contraction is not what is known of it."""
    least, most, columns, terms, a_depth, b_row, b_depth, adds = known
    same = ((columns, cols), (a_depth, a.depth), (b_row, b.row), (b_depth, b.depth))
    holds = [adds or not add, rows >= least, *(not k or x == k for k, x in same)]
    holds += [not k or x <= k for k, x in ((most, rows), (terms, depth))]
    if not all(np.broadcast_to(h, s.count)[s.active].all() for h in holds):
        raise Fault("a contraction is not what it is said to be")
