"""Costs of the layouts of shared tiles: a model of one block on a GPU.

The unit is a *wavefront*: what shared memory serves at a time, one word of each of its 32 banks. A warp's access takes as
many as some bank has different words to give (all threads, or the few whose chunks are served together). Copies from
global memory cost the sectors of 32 bytes that they touch, and an element-wise copy, which no other work hides, more. All
warps of an access are taken to be like the first one, and an iteration of the loop to be like the first.

Memory counts too: `WAVEFRONT` bytes are worth as much as one wavefront.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mirage_cli.codegen.tiles.access import chunk_bytes, is_shared
from mirage_cli.codegen.tiles.shapes import fragment_shape
from mirage_cli.codegen.tiles.tile import (
    FRAGMENT,
    MATRIX,
    RING,
    Buffer,
    Compute,
    Contract,
    Expr,
    Init,
    Load,
    Reduce,
    Scale,
    Sizes,
    Store,
    TileNode,
    TileProgram,
    count,
    globals_of,
    refs,
)
from mirage_cli.lax.ir.program import Slot

WARP, BANKS, WORD, SECTOR = 32, 32, 4, 32
WAVEFRONT = 512  #: bytes of shared memory that are worth a wavefront
PLAIN = 20  #: wavefronts for every access of a copy that is not asynchronous: all threads wait for memory
ITERATIONS = 8  #: what a loop over a symbolic extent is taken to run
FAR = 1 << 20  #: bytes between neighbours along an axis behind a symbolic one

Place = dict[str, int]  #: a position: axis -> index


@dataclass(frozen=True, slots=True)
class Term:
    """A part of the cost, as a function of the layouts of the tiles `scope`."""

    scope: tuple[str, ...]
    cost: Callable[[Sequence[Buffer]], int]


def layout_cost(t: TileProgram) -> int:
    """The cost of a program's layouts, in bytes of shared memory."""
    return sum(term.cost([t.buffers[b] for b in term.scope]) for term in terms(t))


def terms(t: TileProgram) -> list[Term]:
    """The parts of the cost of a program."""
    parts = [_memory(t, b) for b in t.buffers if is_shared(t, b)]
    for nodes, times in ((t.prologue, 1), (t.body, _iterations(t)), (t.epilogue, 1)):
        for n in nodes:
            parts += [_times(term, times * WAVEFRONT) for term in _node(t, n)]
    return parts


def _times(term: Term, factor: int) -> Term:
    return Term(term.scope, lambda layouts: factor * term.cost(layouts))


def _memory(t: TileProgram, name: str) -> Term:
    stages = t.schedule.stages if t.buffers[name].place == RING else 1
    return Term((name,), lambda layouts: layouts[0].elements * layouts[0].dtype.bytes * stages)


def _iterations(t: TileProgram) -> int:
    loop = t.graph.loop
    extent = t.program.extent(loop) if loop is not None else 0
    if loop in t.graph.split:
        extent = t.schedule.tile(loop or "") or extent
    return -(-extent // t.schedule.loop) if isinstance(extent, int) and loop is not None else ITERATIONS


def _node(t: TileProgram, n: TileNode) -> Iterator[Term]:
    match n:
        case Load(name, value):
            yield _of(name, lambda x: _copy(t, x, value))
        case Init(name, _) if is_shared(t, name):
            yield _of(name, lambda x: _by_loop(x, x.axes))
        case Contract(out, a, b, over, _):
            yield _of(a, lambda x: _operand(t, x, t.buffers[out], count(over), {s for s, _ in over}, True))
            yield _of(b, lambda x: _operand(t, x, t.buffers[out], count(over), {s for s, _ in over}, False))
        case Compute(name, e, _, add):
            yield from _compute(t, t.buffers[name], e, 1 + add)
        case Scale(name, e):
            yield from _compute(t, t.buffers[name], e, 2)
        case Reduce(_, _, e, domain, summed, _, _, scratch):
            f = _fragment(t, e, domain) if scratch else None
            kept, over = (tuple((a, s) for a, s in domain if (a in summed) == inner) for inner in (False, True))
            yield from _reads(t, e, f, lambda x: _by_groups(x, kept, over))
        case Store(_, e, domain, _):
            yield from _reads(t, e, _fragment(t, e, domain), lambda x: _by_loop(x, domain))


def _of(name: str, cost: Callable[[Buffer], int]) -> Term:
    return Term((name,), lambda layouts: cost(layouts[0]))


def _reads(t: TileProgram, e: Expr, f: Buffer | None, otherwise: Callable[[Buffer], int]) -> Iterator[Term]:
    """Terms for the shared tiles that an expression reads, at the positions of a fragment if there is one."""
    for name in _tiles(t, e):
        yield _of(name, otherwise if f is None else lambda x: _by_fragment(t, f, x))


def _compute(t: TileProgram, b: Buffer, e: Expr, touches: int) -> Iterator[Term]:
    """Filling a buffer: its own accesses, and those of what the expression reads, in the order in which positions are
    visited (a fragment's, or that of the buffer's axes)."""
    f = b if b.place == FRAGMENT else _fragment(t, e, b.axes)
    if f is not None:
        yield from _reads(t, e, f, lambda x: 0)
        if b.place != FRAGMENT:
            fragment = f
            yield _of(b.name, lambda x: touches * _by_fragment(t, fragment, x))
        return
    yield _of(b.name, lambda x: touches * _by_loop(x, x.axes))
    for name in _tiles(t, e):
        if name == b.name:
            yield _of(name, lambda x: _by_loop(x, x.axes))
        else:
            yield Term((b.name, name), lambda layouts: _by_loop(layouts[1], layouts[0].axes))
    for value in globals_of(e):
        yield _of(b.name, _stored_reads(t, value))


def _stored_reads(t: TileProgram, value: str) -> Callable[[Buffer], int]:
    """The cost of reading a stored tensor at the positions of a buffer."""
    access = t.program.input(value).access
    size = _element(t, value)
    return lambda x: _sectors_by_loop(access, size, x.axes)


def _tiles(t: TileProgram, e: Expr) -> list[str]:
    return [name for name in refs(e) if is_shared(t, name)]


def _fragment(t: TileProgram, e: Expr, domain: Sizes) -> Buffer | None:
    """The fragment of these axes that an expression is made of."""
    buffers, axes = (t.buffers[name] for name in refs(e)), {a for a, _ in domain}
    return next((f for f in buffers if f.place == FRAGMENT and {a for a, _ in f.axes} == axes), None)


def _element(t: TileProgram, value: str) -> int:
    source = t.program.input(value).source
    return t.program.sources[source].dtype.bytes


# --- accesses -------------------------------------------------------------------------------------------------------------
def wavefronts(addresses: Sequence[int], bytes_: int) -> int:
    """Number of wavefronts that serve threads that touch `bytes_` bytes each, at these byte addresses."""
    words = {w for at in addresses for w in range(at // WORD, (at + bytes_ - 1) // WORD + 1)}
    return max(Counter(w % BANKS for w in words).values(), default=0)


def _address(b: Buffer, at: Place) -> int:
    return b.dtype.bytes * sum(b.stride(a) * at.get(a, 0) for a, _ in b.axes)


def _decode(sizes: Sizes, linear: int) -> Place:
    at = {}
    for a, n in reversed(sizes):
        at[a] = linear % n
        linear //= n
    return at


def _by_loop(b: Buffer, domain: Sizes) -> int:
    """Wavefronts of an access by threads that share the positions of a domain, row-major."""
    total = count(domain)
    lanes = [_address(b, _decode(domain, i)) for i in range(min(WARP, total))]
    return -(-total // WARP) * wavefronts(lanes, b.dtype.bytes)


def _by_groups(b: Buffer, kept: Sizes, summed: Sizes) -> int:
    """Of an access by groups of threads, each of which goes along the summed positions of one result."""
    over = count(summed)
    width = next((w for w in (32, 16, 8, 4, 2) if over >= w), 1)
    lanes = []
    for i in range(min(WARP, width * count(kept))):
        lanes.append(_address(b, _decode(kept, i // width) | _decode(summed, i % width)))
    times = -(-over // width) * -(-count(kept) * width // WARP)
    return times * wavefronts(lanes, b.dtype.bytes)


def _by_fragment(t: TileProgram, f: Buffer, b: Buffer) -> int:
    """Of an access at the positions of a fragment's elements."""
    m, n, _, _ = fragment_shape(f, t.schedule.warps)
    lanes = []
    for lane in range(WARP):
        row, col = min(lane >> 2, f.n_rows - 1), min((lane & 3) * 2, f.n_cols - 1)
        lanes.append(_address(b, _decode(f.rows, row) | _decode(f.cols, col)))
    return m * n // WARP * wavefronts(lanes, b.dtype.bytes)


def _operand(t: TileProgram, b: Buffer, out: Buffer, depth: int, summed: set[str], left: bool) -> int:
    """Of all reads of a contraction's operand: 8 x 8 matrices of 16-bit numbers, or floats one by one."""
    m, n, wm, wn = fragment_shape(out, t.schedule.warps)
    if b.dtype.bytes == 2:
        rows = wavefronts([b.pitch * b.dtype.bytes * r for r in range(8)], 16)
        return rows * -(-depth // MATRIX) * MATRIX * (m * wn if left else n * wm) // 64
    free, along = (1, b.pitch) if {a for a, _ in b.rows} & summed else (b.pitch, 1)
    lanes = [b.dtype.bytes * (free * (lane >> 2) + along * (lane & 3)) for lane in range(WARP)]
    return wavefronts(lanes, b.dtype.bytes) * -(-depth // MATRIX) * MATRIX * (m * wn if left else n * wm) // WARP


# --- copies from global memory ----------------------------------------------------------------------------------------------
def _copy(t: TileProgram, b: Buffer, value: str) -> int:
    """Of a load: chunks of rows asynchronously, or element by element."""
    access = t.program.input(value).access
    size = _element(t, value)
    bytes_ = chunk_bytes(t.program, b, value)
    if not bytes_:
        total = -(-count(b.axes) // WARP)
        return _by_loop(b, b.axes) + _sectors_by_loop(access, size, b.axes) + PLAIN * total
    width = bytes_ // size
    chunks = count(b.axes) // width
    places = [_decode(b.axes, i * width) for i in range(min(WARP, chunks))]
    group = WARP * WORD // bytes_  # threads whose chunks are served together
    lanes = [_address(b, at) for at in places]
    served = sum(wavefronts(lanes[i : i + group], bytes_) for i in range(0, len(lanes), group))
    return -(-chunks // WARP) * (served + _sectors(access, size, places, bytes_))


def _sectors_by_loop(access: Sequence[Slot], size: int, domain: Sizes) -> int:
    total = count(domain)
    places = [_decode(domain, i) for i in range(min(WARP, total))]
    return -(-total // WARP) * _sectors(access, size, places, size)


def _sectors(access: Sequence[Slot], size: int, places: Sequence[Place], bytes_: int) -> int:
    """The sectors of global memory that accesses at these positions touch."""
    strides: dict[str, int] = {}
    stride = size
    for s in reversed(access):
        if s.axis is not None:
            strides[s.axis] = strides.get(s.axis, 0) + stride
        stride = stride * s.extent if isinstance(s.extent, int) else max(stride, FAR)
    sectors = set()
    for at in places:
        address = sum(strides[a] * i for a, i in at.items() if a in strides)
        sectors |= set(range(address // SECTOR, (address + bytes_ - 1) // SECTOR + 1))
    return len(sectors)
