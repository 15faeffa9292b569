"""Matrix products of warpgroups, which run beside what follows them: `wgmma` of tiles in shared memory and of words in
registers.

A product reads its tiles at some time between its issue and the wait for its group: what it reads has to be there before, and
to stay until then. What it adds to is arbitrary until it is waited for and pinned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mirage_cli.kernel_interpreter.instructions.barriers import BASE
from mirage_cli.kernel_interpreter.instructions.boxes import ROW, swizzled
from mirage_cli.kernel_interpreter.instructions.common import stacked
from mirage_cli.kernel_interpreter.memory import Cells, Fault
from mirage_cli.kernel_interpreter.numbers import Array, Number
from mirage_cli.kernel_interpreter.registry import instruction
from mirage_cli.kernel_interpreter.shared import Shared

THREADS, ROWS, DEPTH, PANEL = 128, 64, 16, 64
WHOLE = 128  #: the kind of swizzle that a descriptor asks for: over 128 bytes


# --- fragments ----------------------------------------------------------------------------------------------------------
def matrix_of(values: Array) -> Array:
    """Registers [fields, n, 4, lanes] of warpgroups as [fields, groups, 64, 8 n]."""
    fields, n, _, lanes = values.shape
    parts = values.reshape(fields, n, 2, 2, lanes // THREADS, 4, 8, 4)
    return parts.transpose(0, 4, 5, 2, 6, 1, 7, 3).reshape(fields, lanes // THREADS, ROWS, 8 * n)


def registers_of(matrix: Array) -> Array:
    """The other way round."""
    fields, groups, _, columns = matrix.shape
    parts = matrix.reshape(fields, groups, 4, 2, 8, columns // 8, 4, 2)
    return parts.transpose(0, 5, 3, 7, 1, 2, 4, 6).reshape(fields, columns // 8, 4, groups * THREADS)


def words_of(s: Any, words: Cells) -> Array:
    """Words as [fields, words, 2, lanes]: their lower and upper elements."""
    fields = s.arithmetic.fields
    values = [w.a if w is not None else s.arithmetic.arbitrary((2, s.count)).swapaxes(0, 1) for w in words.all()]
    wide = [np.broadcast_to(v.reshape(2, fields, -1), (2, fields, s.count)) for v in values]
    return np.stack(wide).transpose(2, 0, 1, 3)


# --- products in flight -------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Accumulator:
    """Registers that products add to: [fields, groups, 64, columns], and what stands in them meanwhile."""

    cells: Cells
    values: Array
    stand_ins: list[Any]
    waiting: int = 0


@dataclass(slots=True)
class Read:
    """Cells that a product reads, each by one of some agents: [n], [n]; and who wrote them when."""

    shared: Shared
    cells: Array
    agents: Array
    writer: Array
    stamp: Array

    def finish(self) -> None:
        """The product is done: it may have read until now. Raises Fault where something was written since."""
        if not self.shared.watched:
            return
        if not (
            np.array_equal(self.shared.writer[self.cells], self.writer)
            and np.array_equal(self.shared.stamp[self.cells], self.stamp)
        ):
            raise Fault("a tile is written while a product reads it")
        self.shared.reads[self.shared.read_by(self.agents, self.cells)] = self.shared.clocks.now(self.agents)


@dataclass(slots=True)
class Product:
    """c = a b, or c += a b in groups where `more` holds; `words` are registers that it reads."""

    accumulator: Accumulator
    groups: Array
    left: Array
    right: Array
    more: Array
    reads: list[Read]
    words: tuple[Cells, list[Any]] | None


@dataclass(slots=True)
class Flight:
    """The products of a strand: groups that are on their way, the open one last."""

    groups: list[list[Product]] = field(default_factory=lambda: [[]])
    held: dict[tuple[int, int], Accumulator] = field(default_factory=dict)
    begun: bool = False


def flight(s: Any) -> Flight:
    """The products of a strand."""
    key = ("products", s.number)
    if key not in s.world.barriers:
        empty = s.world.barriers[key] = Flight()
        s.world.endings.append(lambda: _landed(empty))
    products: Flight = s.world.barriers[key]
    return products


def _landed(f: Flight) -> None:
    if f.groups != [[]]:
        raise Fault("a kernel ends before its products")


def groups_of(s: Any) -> Array:
    """The numbers in the strand of the warpgroups that take part. Raises Fault where only some of their threads do."""
    if s.count % THREADS or s.thread[0] % THREADS:
        raise Fault("a product of less than a warpgroup")
    active = s.active.reshape(-1, THREADS)
    if (active.any(axis=1) & ~active.all(axis=1)).any():
        raise Fault("a product lacks threads of its warpgroup")
    return np.flatnonzero(active[:, 0])


@instruction("products_begin")
def _products_begin(s: Any, static: Sequence[Any]) -> None:
    flight(s).begun = True


@instruction("products_commit")
def _products_commit(s: Any, static: Sequence[Any]) -> None:
    f = flight(s)
    f.groups.append([])
    f.begun = False


@instruction("products_wait")
def _products_wait(s: Any, static: Sequence[Any]) -> None:
    """Until at most so many groups are on their way; where none may be, warpgroups that have issued nothing wait as well."""
    f, here = flight(s), groups_of(s)
    while len(f.groups) - 1 > static[0]:
        done = f.groups.pop(0)
        for p in done:
            if not (np.isin(p.groups, here).all() if static[0] == 0 else np.array_equal(p.groups, here)):
                raise Fault("other warpgroups wait for products than have issued them")
            for r in p.reads:
                r.finish()
            if p.words is not None and any(a is not b for a, b in zip(p.words[0].all(), p.words[1], strict=True)):
                raise Fault("registers are written while a product reads them")
        for run in _runs(done):
            _add(s, run)


def _runs(products: Sequence[Product]) -> list[list[Product]]:
    """Neighbours that add to the same registers."""
    runs: list[list[Product]] = []
    for p in products:
        before = runs[-1][0] if runs else None
        same = before is not None and before.accumulator is p.accumulator and np.array_equal(before.groups, p.groups)
        if same and p.more.all():
            runs[-1].append(p)
        else:
            runs.append([p])
    return runs


def _add(s: Any, run: Sequence[Product]) -> None:
    """Products of the same registers, as one."""
    first = run[0]
    left, right = np.concatenate([p.left for p in run], axis=3), np.concatenate([p.right for p in run], axis=2)
    fields, groups, rows, depth = left.shape
    flat = s.arithmetic.product(left.reshape(-1, rows, depth), right.reshape(fields * groups, depth, -1))
    c, at = first.accumulator, first.groups
    both = np.stack([flat.reshape(fields, groups, rows, -1), np.where(first.more[:, None, None], c.values[:, at], 0)])
    c.values[:, at] = s.arithmetic.total(both.swapaxes(0, 1), 1)
    c.waiting -= len(run)


@instruction("pin")
def _pin(s: Any, static: Sequence[Any], registers: Cells) -> None:
    """From here on registers are what products have made of them."""
    held = flight(s).held
    c = held.get((id(registers.values), registers.first))
    if c is None:
        return
    if c.waiting:
        raise Fault("registers are used before their products are waited for")
    _untouched(c)
    values = registers_of(c.values)
    c.cells.set_all([Number(values[:, n, i]) for n in range(values.shape[1]) for i in range(4)])
    del held[id(registers.values), registers.first]


def _untouched(c: Accumulator) -> None:
    """Raises Fault where registers were written while products had them."""
    if any(a is not b for a, b in zip(c.cells.all(), c.stand_ins, strict=True)):
        raise Fault("registers are written while a product adds to them")


def accumulator(s: Any, c: Cells, columns: int, read: bool) -> Accumulator:
    """The registers that a product adds to; `read`: whether what is in them counts."""
    if c.size != columns // 2:
        raise Fault(f"{c.size} registers for {columns} columns")
    held, key = flight(s).held, (id(c.values), c.first)
    if key not in held:
        shape = (s.arithmetic.fields, columns // 8, 4, s.count)
        values = stacked(s, c).reshape(shape) if read or not s.active.all() else np.zeros(shape, s.arithmetic.dtype)
        garbage = Number(s.arithmetic.arbitrary((s.count,)))
        c.set_all([garbage] * c.size)
        held[key] = Accumulator(c, np.array(matrix_of(values)), [garbage] * c.size)
    _untouched(held[key])
    return held[key]


# --- operands -----------------------------------------------------------------------------------------------------------
def _addresses(s: Any, descriptor: Any, groups: Array, count: int, turned: bool) -> Array:
    """Where the operand of a descriptor has `count` rows (or columns) and 16 summed positions: [groups, count, 16]."""
    d = np.broadcast_to(descriptor, (s.count,)).reshape(-1, THREADS)[groups]
    if (d != d[:, :1]).any():
        raise Fault("threads of a warpgroup have different operands")
    d = d[:, 0, None, None]
    if (d >> 62 != 1).any():
        raise Fault("the descriptor of a tile without swizzle")
    start, panel, eight = ((d >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    n, k = np.arange(count)[:, None], np.arange(DEPTH)
    if turned:
        at = n // PANEL * panel + k // 8 * eight + k % 8 * ROW + n % PANEL * 2
    else:
        at = n // 8 * eight + n % 8 * ROW + k * 2
    return swizzled(start + at) - BASE


def _operand(s: Any, descriptor: Any, groups: Array, count: int, turned: bool, own: bool) -> tuple[Array, Read]:
    """An operand in shared memory: [fields, groups, count, 16]; `own`: each warp reads its 16 rows only."""
    shared: Shared = s.world.shared
    at = _addresses(s, descriptor, groups, count, turned)
    if at.min() < 0 or at.max() + 2 > shared.size:
        raise Fault(f"a product reads byte {int(at.max())} of {shared.size} bytes of shared memory")
    first = groups * THREADS
    cells = shared.granules(s.block[first][:, None, None] * shared.size + at)
    warps = s.warps[first][:, None] + np.arange(4)
    lanes = s.lanes[first][:, None, None]
    if not shared.watched:
        none = cells[:0].reshape(-1)
        values = shared.load(cells, 2, lanes, lanes, np.ones(cells.shape, bool))
        return _seen(s, shared, cells, values), Read(shared, none, none, none, none)
    if own:
        agents = np.repeat(warps, count // 4, axis=1)[:, :, None] + np.zeros_like(cells)
        values = shared.load(cells, 2, lanes, agents, np.ones(cells.shape, bool))
        read = cells.reshape(-1), agents.reshape(-1)
    else:
        spread = np.broadcast_to(cells[:, None], (len(groups), 4, *cells.shape[1:]))
        agents = np.broadcast_to(warps[:, :, None, None], spread.shape)
        weakest = np.broadcast_to(_weakest(s, warps, cells)[:, None, None], cells.shape)
        values = shared.load(cells, 2, lanes, weakest, np.ones(cells.shape, bool))
        read = spread.reshape(-1), agents.reshape(-1)
        shared.reads[shared.read_by(read[1], read[0])] = shared.clocks.now(read[1])
    values = _seen(s, shared, cells, values)
    return values, Read(shared, *read, shared.writer[read[0]], shared.stamp[read[0]])


def _seen(s: Any, shared: Shared, cells: Array, values: Array) -> Array:
    """What products see of cells: what threads have written is arbitrary until they have shown it."""
    hidden = (shared.writer[cells] >= 0) & ~shared.shown[cells]
    return np.where(hidden, s.arithmetic.arbitrary(hidden.shape), values) if hidden.any() else values


def _weakest(s: Any, warps: Array, cells: Array) -> Array:
    """Of each group the warp that knows least of who wrote cells (all of them, if several know less than others)."""
    shared: Shared = s.world.shared
    weakest = warps[:, 0].copy()
    for g, own in enumerate(warps):
        writers = np.unique(shared.writer[cells[g]])
        by = np.where(writers >= 0, writers // 32, -2 - writers)[writers != -1]
        if len(by):
            known = shared.clocks.known[own[:, None], by]
            if (known != known[0]).any():
                late = known < known.max(axis=0)
                weakest[g] = own[int(np.argmax(late.any(axis=1)))]
    return weakest


@instruction("wgmma")
def _wgmma(s: Any, static: Sequence[Any], c: Cells, a: Any, b: Any, more: Any) -> None:
    """Issue a product of so many columns of a type; `a` is a descriptor, or registers of words."""
    columns, _, *turned = static
    f, groups = flight(s), groups_of(s)
    if not f.begun:
        raise Fault("products are not begun")
    more = np.broadcast_to(more, (s.count,)).reshape(-1, THREADS)[groups, 0].astype(bool)
    right, read = _operand(s, b, groups, columns, bool(turned[-1]), False)
    reads, kept = [read], None
    if isinstance(a, Cells):
        w = words_of(s, a)  # word 2 j + h: columns 8 j on, rows 8 h on
        left = matrix_of(w.reshape(w.shape[0], 2, 4, s.count))[:, groups]
        kept = a, list(a.all())
    else:
        left, read = _operand(s, a, groups, ROWS, bool(turned[0]), True)
        reads.append(read)
    target = accumulator(s, c, columns, bool(more.any()))
    target.waiting += 1
    f.groups[-1].append(Product(target, groups, left, right.swapaxes(2, 3), more, reads, kept))


@instruction("tile_descriptor")
def _tile_descriptor(s: Any, static: Sequence[Any], address: Any, panel: Any) -> Any:
    return (address & 0x3FFFF) >> 4 | (panel >> 4) << 16 | (1024 >> 4) << 32 | 1 << 62
