"""Contractions of kernels for CPUs: their operands, the packed forms of weights, and what kernels of a library share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_cli.codegen.cpu.positions import CpuPositions
from mirage_cli.codegen.requests.request import Parameter
from mirage_cli.codegen.terms.expressions import extent, float_number
from mirage_cli.codegen.tiles.tile import Buffer, Contract, Sizes, TileProgram, count
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.extents import Extent
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, PROLOGUE
from mirage_cli.search.schedules.packed import Weights
from mirage_cli.search.schedules.products import splits

DEPTH = 128  #: positions that are rounded together at most (`rounded.hpp`)
LINE = 16  #: positions, and rows of levels, of which there is room for multiples
CHUNK = 64  #: the same of positions of levels
SHARED_ROWS = 16  #: as in `quantised.hpp`
TYPES = {  #: of operands of products with quantised weights, by the functions that make them
    "operand": ("Operand", "float"),
    "to_bytes": ("Rounded",),
    "in_levels": ("Levels",),
    "quantised": ("Quantised",),
    "stored": ("Stored",),
    "same": ("Same",),
    "same_whole": ("SameWhole",),
}


def panels(at: CpuPositions) -> tuple[Parameter, ...]:
    """The packed forms of weights that a kernel's products read."""
    found = (p for n, phase in _contractions(at) for o in _operands(at, n, phase) for p in o.panels)
    return tuple(dict.fromkeys(found))


def shared(at: CpuPositions) -> tuple[tuple[ir.Type, ...], ...]:
    """The operands of products that the kernels of a library share (`shared_products` in `quantised.hpp`)."""
    most = ((n, phase, count(_walked(at, n, phase)[0][1])) for n, phase in _contractions(at))
    chosen = ((n, phase) for n, phase, rows in most if n.b in at.t.weights and rows >= SHARED_ROWS)
    operands = ([_rounded(at, n, o).place for o in _operands(at, n, phase)] for n, phase in chosen)
    return tuple(dict.fromkeys((_kind(a), replace(_kind(b), const=True, reference=True)) for a, b in operands))


def _contractions(at: CpuPositions) -> list[tuple[Contract, str]]:
    """The kernel's products, each with its phase."""
    phases = ((PROLOGUE, at.t.prologue), (BODY, at.t.body), (EPILOGUE, at.t.epilogue))
    return [(n, phase) for phase, nodes in phases for n in nodes if isinstance(n, Contract)]


def contraction(at: CpuPositions, n: Contract, phase: str) -> ir.Statement:
    """A product added to its buffer, or put there. Raises Refused."""
    c = at.t.buffers[n.out]
    groups = _walked(at, n, phase)
    outer, own = [axis for group, _ in groups for axis, _ in group], [group for _, group in groups]
    a, b = (_rounded(at, n, o) for o in _operands(at, n, phase))
    rows, cols = (count(g) if _whole(at, g, phase) else 0 for g in own)
    known = k.of_type("mirage::Known", rows, count(own[0]), cols, count(n.over), a.depth, b.row, b.depth, n.add)
    sizes = (*(_positions(at, g, phase) for g in own), _summed(at, n.over, phase))
    out = k.total([n.out, *_places(c, outer)])
    product = k.run("mirage::contract", out, c.pitch, *sizes, a.place, b.place, n.add, static=[known])
    return k.nested(at.loops(outer, phase), product)[0]


def _walked(at: CpuPositions, n: Contract, phase: str) -> tuple[tuple[Sizes, Sizes], ...]:
    """For rows and for columns the axes whose positions have a product each, and those of one product: of a partial axis that
    is not the outermost one all positions would be taken, also those outside of the tensor. Products of few are not worth it,
    and weights that stay packed begin where they do."""
    c, found = at.t.buffers[n.out], []
    for group, operand in ((c.rows, n.a), (c.cols, n.b)):
        partial = _partial(at, group, phase)
        last = [axis for axis, _ in group].index(partial[-1]) if partial else 0
        apart = count(group[last:]) >= LINE and operand not in at.t.weights
        found.append((group[:last], group[last:]) if apart else (group[:0], group))
    return tuple(found)


def _places(b: Buffer, axes: Sequence[str]) -> list[ir.Expression]:
    """How far positions along axes lie behind a buffer's first element."""
    return [k.name(f"i_{axis}") * b.stride(axis) for axis in axes if axis in dict(b.axes)]


def _partial(at: CpuPositions, sizes: Sizes, phase: str) -> list[str]:
    """The axes of a row-major group that may be partial, but for the outermost one."""
    return [a for a, _ in sizes[1:] if not at.shapes.exact(a, phase)]


def _whole(at: CpuPositions, sizes: Sizes, phase: str) -> bool:
    """True if all positions of a group are always taken."""
    return not sizes or bool(_partial(at, sizes, phase)) or at.shapes.exact(sizes[0][0], phase)


def _positions(at: CpuPositions, sizes: Sizes, phase: str) -> ir.Expression:
    """The number of positions of a group that are taken: all where an axis is partial that is not the outermost one."""
    parts = [ir.lift(n) for _, n in sizes]
    if not _whole(at, sizes, phase):
        parts[0] = at.valid(sizes[0][0], phase)
    return k.product(p for p in parts if p != k.ONE)


def _summed(at: CpuPositions, sizes: Sizes, phase: str) -> ir.Expression:
    """The number of positions of a group that are summed over. Raises Refused where these do not lie side by side."""
    for axis in _partial(at, sizes, phase):
        raise Refused(f"axis {axis} of a summed group is partial and not outermost")
    return _positions(at, sizes, phase)


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand of a contraction: what the kernel calls it, its strides between free positions and between summed ones as far
    as they are known (else 0), the packed forms that it may have, and whether it is of quantised weights."""

    place: ir.Expression
    row: int
    depth: int
    panels: tuple[Parameter, ...] = ()
    weights: bool = False


def _operands(at: CpuPositions, n: Contract, phase: str) -> tuple[_Operand, _Operand]:
    """Rows and columns of a contraction. One of them may be packed; the other one is of float32."""
    (apart, rows), (beside, cols) = _walked(at, n, phase)
    a, own = _operand(at, n.a, rows, n.over, phase, apart), _operand(at, n.b, cols, n.over, phase, beside)
    b = _packed(at, n, n.b, own)
    if not at.t.weights.keys().isdisjoint((n.a, n.b)):
        return a, b if n.b in at.t.weights else own
    if not b.panels and (n.b in at.t.buffers or at.p.sources[at.reads[n.b].source].dtype == F32):
        return _packed(at, n, n.a, a), b
    return a, b


def _rounded(at: CpuPositions, n: Contract, o: _Operand) -> _Operand:
    """An operand with room for its bytes, behind all tiles, if the other one is of weights that are multiplied with such."""
    if o.weights or rounded_bytes(at.t, n) == 0:
        return o
    levels = next(w.levels for v in (n.a, n.b) if (w := at.t.weights.get(v)) is not None)
    return replace(o, place=k.call("in_levels" if levels else "to_bytes", o.place, k.name("memory") + room(at.t)))


def room(t: TileProgram) -> int:
    """Bytes of scratch memory in front of that for rounded operands."""
    return -(-t.shared_bytes // LINE) * LINE


def rounded_bytes(t: TileProgram, n: Contract) -> int:
    """Bytes of an operand of a contraction that is multiplied in bytes, 0 where none is: as `lines` of `rounded.hpp` takes
    them, numbers, and for each part that has a scale two floats; or as `level_rows` of `levels.hpp` does."""
    c, depth = t.buffers[n.out], count(n.over)
    w, rows = (t.weights.get(n.b), c.rows) if n.b in t.weights else (t.weights.get(n.a), c.cols)
    if w is None or not w.in_bytes:
        return 0
    if w.levels:
        high, pitch = (count(rows) // LINE + 1) * LINE + 1, -(-depth // CHUNK) * CHUNK + CHUNK
        return 4 * high + (high + 4) * pitch
    return count(rows) * (-(-depth // LINE) * LINE + 16 * -(-depth // min(w.block, DEPTH)))


def _operand(at: CpuPositions, name: str, free: Sizes, over: Sizes, phase: str, apart: Sizes = ()) -> _Operand:
    """One side of a contraction, at the position along axes that are walked `apart`."""
    if name in at.t.weights:
        return _quantised(at, at.t.weights[name], phase)
    inner = [g[-1][0] if g else None for g in (free, over)]
    if name in at.t.buffers:
        b = at.t.buffers[name]
        place = k.total([at.operand(b, dict(over), phase), *_places(b, [axis for axis, _ in apart])])
        strides = [b.stride(a) if a else ex.ONE for a in inner]
    else:
        fixed = [s.axis for s in at.reads[name].access if s.axis is not None and s.axis not in dict(apart)]
        place = k.total([name, at.offset(at.reads[name], phase, fixed)])
        strides = [_stride(at, name, a) if a else ex.ONE for a in inner]
    f, o = (s if isinstance(s, int) else 0 for s in strides)
    return _Operand(k.call("operand", place, *(extent(s, at.symbols, wide=False) for s in strides)), f, o)


def _packed(at: CpuPositions, n: Contract, name: str, o: _Operand) -> _Operand:
    """An operand of a contraction with its packed form, if it may have one."""
    packing = None if name in (at.t.buffers.keys() | at.t.weights) else at.packing(name, o.row, o.depth)
    if packing is None:
        return o
    c, dtype = at.t.buffers[n.out], at.p.sources[packing.source].dtype
    way = "split" if splits(dtype, count(c.rows if name == n.b else c.cols), count(n.over), packing.deep) else "packed"
    own = f"{name}_{'split' if way == 'split' else 'panels'}{'_turned' if o.depth == 1 else ''}{max(o.row, o.depth)}"
    panels = Parameter(own, at.ctype(dtype), packing.source, replace(packing, split=int(way == "split")))
    return replace(o, place=k.call(way, o.place, name, own, packing.deep), panels=(panels,))


def _quantised(at: CpuPositions, w: Weights, phase: str) -> _Operand:
    """Weights that stay packed: numbers, zero points and scales as they are stored, each with its panels. Raises Refused."""
    own = {v: _matrix(at, w, v, phase) for v in w.matrices}
    zero, scale = (own[v].place if v in own else _single(at, v, phase) for v in (w.of.zero, w.of.scale or 1))
    place = k.call("quantised", own[w.of.numbers].place, zero, scale, w.block)
    return _Operand(place, 0, 0, tuple(p for o in own.values() for p in o.panels), weights=True)


def _single(at: CpuPositions, value: str | int, phase: str) -> ir.Expression:
    """One number for all, or that of an input of one element."""
    if isinstance(value, int):
        return k.call("same_whole", float_number(value))
    whole = not at.p.sources[at.reads[value].source].dtype.is_float
    return k.call("same_whole" if whole else "same", at.read(value, at.offset(at.reads[value], phase)))


def _matrix(at: CpuPositions, w: Weights, value: str, phase: str) -> _Operand:
    """What weights are made of as a matrix that begins with a tile's first element."""
    m, access = w.matrices[value], at.reads[value].access
    dtype, packing = at.p.sources[at.reads[value].source].dtype, at.packing(value, m.row, m.depth)
    if packing is None:
        raise Refused(f"input {value} is no matrix that sessions pack")
    kind = k.of_type("Real", at.ctype(dtype)) if dtype.is_float else k.of_type(dtype.name.upper())
    if not dtype.is_float:
        turned = 0 if dtype.name.startswith("u") else 1 << (dtype.bits - 1)
        packing = replace(packing, bytes=4 if value == w.of.numbers else 1, bits=dtype.bits, turned=turned)
    panels = Parameter(f"{value}_panels{m.row}_{m.depth}", at.ctype(dtype), packing.source, packing)
    first = at.offset(at.reads[value], phase, [s.axis for s in access if s.axis is not None])
    place = k.call("stored", value, first, m.row, m.depth, panels.name, m.deep, static=[kind])
    return _Operand(place, m.row, m.depth, (panels,))


def _kind(operand: ir.Expression) -> ir.Type:
    """The type of what a call makes an operand, or a part of one."""
    assert isinstance(operand, ir.Call) and isinstance(operand.function, ir.Name)
    name, static = operand.function.path[-1], operand.function.args
    if name == "quantised":
        static = (*_kind(operand.args[0]).args, *map(_kind, operand.args[1:3]))
    return k.of_type(*TYPES[name], *static)


def _stride(at: CpuPositions, name: str, axis: str) -> Extent:
    """The elements between neighbours along an axis of a stored tensor."""
    stride = ex.ONE
    for s in reversed(at.reads[name].access):
        if s.axis == axis:
            return stride
        stride = ex.product([stride, s.extent])
    raise Refused(f"input {name} has no axis {axis}")
