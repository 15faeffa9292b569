"""Blocks that differ only along a split axis share a tile of the result: each publishes its part, the last one reads all."""

from __future__ import annotations

import math

from mirage_cli.codegen.requests.request import FAILED
from mirage_cli.codegen.terms.expressions import THREAD, ZERO
from mirage_cli.codegen.terms.fragments import FragmentPositions
from mirage_cli.codegen.tiles.tile import FRAGMENT, Buffer, Exchange, GridSum, GridTop
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.search.mugraph.mugraph import EPILOGUE

MEMBERS = (ir.Field(k.of_type("unsigned*"), "arrivals"), ir.Field(k.of_type("float*"), "shares"))
X = k.name("x")


# --- places -------------------------------------------------------------------------------------------------------------
def declarations(at: FragmentPositions) -> list[ir.Statement]:
    """The numbers of a block's tile and of its part, and its share of the workspace."""
    if not at.g.split:
        return []
    parameters = k.name("parameters")
    numbers: list[ir.Statement] = [
        k.assign(number, k.name(number) * at.blocks(a) + k.name(f"{a}_block"))
        for number, axes in (("tile", _plain(at)), ("part", _split(at)))
        for a in axes
    ]
    first = k.product([k.cast("int64_t", "tile"), *_parts(at)])
    share = parameters.member("shares") + (first + k.name("s")) * _shares(at)[""]
    return [
        ir.Declare(k.of_type("unsigned"), tuple(ir.Variable(n, value=k.ZERO) for n in ("tile", "part"))),
        *numbers,
        k.let("unsigned*", "arrivals", parameters.member("arrivals")),
        k.define("share_of", [("unsigned", "s")], ir.Return(share)),
        k.let("float*", "own_share", k.call("share_of", "part")),
    ]


def _plain(at: FragmentPositions) -> list[str]:
    return [a for a in at.grid() if a not in at.g.split]


def _split(at: FragmentPositions) -> list[str]:
    return [a for a in at.grid() if a in at.g.split]


def _parts(at: FragmentPositions) -> list[ir.Expression]:
    """Factors of the number of blocks that share a tile."""
    return [at.blocks(a) for a in _split(at)]


def _shares(at: FragmentPositions) -> dict[str, int]:
    """The place of each published buffer among the floats of a block's share, and under "" how many there are."""
    places: dict[str, int] = {}
    size = 0
    for name in (name for n in at.t.epilogue if isinstance(n, Exchange) for name in n.buffers):
        b = at.t.buffers[name]
        places[name] = size
        size += at.registers(b) * at.threads if b.place == FRAGMENT else b.elements
    return places | {"": size}


def _register(b: Buffer) -> ir.Expression:
    """The number of a fragment's element within a thread, times the threads."""
    number = (k.name("m_") * k.name(f"F_{b.name}::NT") + k.name("n_")) * 4 + k.name("i_")
    return number * k.name("THREADS") + THREAD


# --- statements ---------------------------------------------------------------------------------------------------------
def exchange(at: FragmentPositions, n: Exchange) -> list[ir.Statement]:
    """The publication of partial results, behind which only the last block goes on."""
    arrived = k.call("last_to_arrive", k.name("arrivals") + k.name("tile"), k.product(_parts(at)))
    return [*(_published(at, at.t.buffers[b]) for b in n.buffers), k.when(k.negated(arrived), ir.Return())]


def _published(at: FragmentPositions, b: Buffer) -> ir.Statement:
    place, own, i = _shares(at)[b.name], k.name("own_share"), k.name("i")
    if b.place == FRAGMENT:
        put = k.assign(own[k.total([place, _register(b)])], at.element(b, EPILOGUE))
        return k.each("MIRAGE_EACH", f"F_{b.name}", put)
    return k.loop("i", b.elements, k.assign(own[place + i], k.name(b.name)[i]), start=THREAD, step="THREADS")


def grid_top(at: FragmentPositions, n: GridTop) -> ir.Statement:
    """The maximum of what the blocks published."""
    b = at.t.buffers[n.buffer]
    taken = k.assign(X, k.call("m_max", X, _other(at, n.source, b)))
    return _gathered(at, b, -k.number("INFINITY"), taken)


def grid_sum(at: FragmentPositions, n: GridSum) -> ir.Statement:
    """The sum of what the blocks published, weighted by how far their maxima lie below the common one."""
    b = at.t.buffers[n.buffer]
    value = _other(at, n.source, b)
    if n.own:
        low = _other(at, n.own, at.t.buffers[n.own])
        value = value * k.call("m_exp_difference", low, at.element(at.t.buffers[n.common], EPILOGUE))
    return _gathered(at, b, ZERO, k.assign(X, value, "+="))


def _other(at: FragmentPositions, source: str, like: Buffer) -> ir.Expression:
    """What a block published as `source`, at the current place of a buffer of that shape."""
    place = _register(like) if like.place == FRAGMENT else at.index(like, EPILOGUE)
    return k.name("other")[k.total([_shares(at)[source], place])]


def _gathered(at: FragmentPositions, b: Buffer, start: ir.Expression, taken: ir.Statement) -> ir.Statement:
    """A loop over blocks inside a loop over positions."""
    other = k.let(k.of_type("float*", const=True), "other", k.call("share_of", "s"))
    return at.everywhere(
        b,
        k.declare("float", "x", start),
        k.loop("s", k.product(_parts(at)), other, taken),
        k.assign(at.element(b, EPILOGUE), X),
    )


# --- the host's part ----------------------------------------------------------------------------------------------------
def workspace(at: FragmentPositions) -> int:
    """Bytes for the counters and the shares of all blocks. Raises Refused."""
    if not at.g.split:
        return 0
    blocks = {a: -(-extent // at.tile(a)) for a in at.grid() if isinstance(extent := at.p.extent(a), int)}
    if len(blocks) != len(at.grid()):
        raise Refused("a split reduction needs known extents")
    tiles = math.prod(blocks[a] for a in _plain(at))
    return -(-tiles * 4 // 256) * 256 + math.prod(blocks.values()) * _shares(at)[""] * 4


def setup(at: FragmentPositions, place: ir.Expression) -> list[ir.Statement]:
    """The host's statements that clear the counters of a split reduction, given the workspace's place."""
    if not at.g.split:
        return []
    tiles = k.product(map(at.blocks, _plain(at)))
    arrivals, shares = (k.name("p").member(m.name) for m in MEMBERS)
    size = tiles * k.call("sizeof", "unsigned")
    return [
        k.assign(arrivals, k.cast("unsigned*", place)),
        k.assign(shares, k.reinterpret("float*", arrivals) + (tiles + 63) / 64 * 64),
        k.assign("status", k.call("cudaMemsetAsync", arrivals, 0, size, k.cast("cudaStream_t", "stream"))),
        FAILED,
    ]
