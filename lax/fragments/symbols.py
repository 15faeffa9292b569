"""Symbols of a program: which can be known from the shapes of what it reads, products of them that are one, their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from mirage_cli.lax import extents as ex
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.lax.ir.program import Program, Slot

_TIMES = "·"  #: between the symbols in the name of their product, as in the names of sums


def with_merged_symbols(program: Program) -> Program:
    """The program with one symbol, such as `(batch·sequence)`, for symbols that no shape of a source tells apart and that
    the program only has as this product."""
    lost = program.unknown_symbols
    groups: dict[tuple[int, ...], list[str]] = {}
    counted = [Counter(ex.names(e)) for e in _extents(program)]
    for name in lost:
        groups.setdefault(tuple(c[name] for c in counted), []).append(name)
    for group in groups.values():
        if len(group) > 1:
            program = _renamed(program, tuple(group))
    return program


def _extents(program: Program) -> Iterator[Extent]:
    yield from (a.extent for a in program.axes)
    yield from (e for s in program.sources for e in s.dims)
    yield from (s.extent for i in program.inputs for s in i.access)
    yield from (e for o in program.outputs for e in (*o.dims, *(s.extent for s in o.access)))


def _renamed(program: Program, group: tuple[str, ...]) -> Program:
    name = f"({_TIMES.join(group)})"

    def joined(e: Extent) -> Extent:
        if not isinstance(e, Symbolic) or group[0] not in e.names:
            return e
        rest = [n for n in e.names if n not in group]
        return ex.product([e.factor, *map(ex.symbol, [*rest, *[name] * e.names.count(group[0])])])

    return _with_extents(program, joined)


def named_as(program: Program, other: Program) -> Program:
    """The program with the symbols of another one, where its sources have the other's dimensions but for their names: unnamed
    dimensions of a model are numbered by whatever else it holds. Elsewhere as it is."""
    new: dict[str, str] = {}
    pairs = [p for a, b in zip(program.sources, other.sources, strict=False) for p in zip(a.dims, b.dims, strict=False)]
    for a, b in sorted(pairs, key=lambda p: len(ex.names(p[0]))):
        own, its = [n for n in ex.names(a) if n not in new], [n for n in ex.names(b) if n not in new.values()]
        if len(own) == len(its) == 1:
            new[own[0]] = its[0]

    def renamed(e: Extent) -> Extent:
        return ex.product([e.factor, *(ex.symbol(new.get(n, n)) for n in e.names)]) if isinstance(e, Symbolic) else e

    apart = len({new.get(s, s) for s in program.symbols}) == len(program.symbols)
    return _with_extents(program, renamed) if apart and any(k != v for k, v in new.items()) else program


def _with_extents(program: Program, changed: Callable[[Extent], Extent]) -> Program:
    def dims(extents: Iterable[Extent]) -> tuple[Extent, ...]:
        return tuple(map(changed, extents))

    def slots(access: Iterable[Slot]) -> tuple[Slot, ...]:
        return tuple(replace(s, extent=changed(s.extent)) for s in access)

    return replace(
        program,
        axes=tuple(replace(a, extent=changed(a.extent)) for a in program.axes),
        sources=tuple(replace(s, dims=dims(s.dims)) for s in program.sources),
        inputs=tuple(replace(i, access=slots(i.access)) for i in program.inputs),
        outputs=tuple(replace(o, access=slots(o.access), dims=dims(o.dims)) for o in program.outputs),
        _axes_of={},
    )
