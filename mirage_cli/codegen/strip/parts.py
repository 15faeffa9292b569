"""Sources in parts that a kernel stores whole while it reads them: copies take a row from the part that has its position, and
what has arrived in shared memory is stored from there, by the first of the blocks that read it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirage_cli.codegen.requests.request import Parameter
from mirage_cli.codegen.strip.merge import StripMerge
from mirage_cli.codegen.strip.values import OperandTile, even_pitch
from mirage_cli.codegen.terms.expressions import positions_in_parts, times
from mirage_cli.codegen.terms.fragments import decode
from mirage_cli.codegen.tiles.tile import count
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.lax.ir.parts import Joint, joint, slot_of
from mirage_cli.lax.ir.program import Input
from mirage_cli.search.mugraph.mugraph import BODY

CHUNK = 16  #: bytes that are copied at once


@dataclass(frozen=True, slots=True)
class Whole:
    """A source that is stored whole: its read, its tile, where it is joined, and the slot that walks this dimension."""

    input: Input
    tile: OperandTile
    joint: Joint
    slot: int

    @property
    def axis(self) -> str:
        """The axis along which it is joined."""
        return self.input.access[self.slot].axis or ""


class StripParts(StripMerge):
    """A strip kernel that may store sources in parts whole."""

    @property
    def whole(self) -> dict[str, Whole]:
        """The sources that it stores, by the names of their reads."""
        if self._whole is None:
            made = (self.stored_whole(t) for t in self.tiles.values() if t.ring)
            self._whole = {w.input.name: w for w in made if w is not None}
        return self._whole

    _whole: dict[str, Whole] | None = None

    def stored_whole(self, t: OperandTile) -> Whole | None:
        """A tile's source as one that is stored: each of its positions is in the tile of one iteration of some block, and read
        from there alone."""
        i = self.reads[t.value]
        source = self.p.sources[i.source]
        at, number = joint(source), slot_of(source, i.access)
        if i.source not in self.r.alone or at is None or number is None or not isinstance(at.inner, int):
            return None
        walked = all(s.axis and s.offset == 0 and self.p.extent(s.axis) == s.extent for s in i.access)
        axis, inner = i.access[number].axis, {a for a, _ in t.inner}
        alone = [o.name for o in self.tiles.values() if o.value == t.value] == [t.name] and not t.computed
        elsewhere = k.names_in((*self.prologue, *self.before, *self.body, *self.epilogue, *self.before_loop))
        elsewhere |= {value for value, _, _ in self.early_reads}
        whole_rows = all(self.shapes.exact(a, BODY) for a in inner) and count(t.inner) == t.n_inner
        aligned = at.inner * t.dtype.bytes % CHUNK == 0 and t.kind == "Tile"
        shown = bool(self.limits) or t.name in self.guards
        if not (walked and axis and alone and whole_rows and aligned) or axis in inner or shown or t.value in elsewhere:
            return None
        return Whole(i, t, at, number)

    def inputs(self) -> tuple[Parameter, ...]:
        """The tensors that it reads: of what it stores both parts."""
        return tuple(
            p
            for i in super().inputs()
            for p in ([replace(i, name=f"{i.name}_{n}", part=n) for n in (1, 2)] if i.name in self.whole else [i])
        )

    def outputs(self) -> tuple[Parameter, ...]:
        """The tensors that it writes, those behind its results whose parts it reads."""
        types = {i.name: i.type for i in super().inputs()}
        more = (Parameter(f"{name}_0", types[name], w.input.source) for name, w in self.whole.items())
        return (*super().outputs(), *more)

    def load(self, t: OperandTile) -> ir.Do:
        """Start copying a tile, of what is stored from its two parts."""
        w = self.whole.get(t.value)
        if w is None or w.tile is not t:
            return super().load(t)
        before = self.position(w.axis, BODY) < self.positions(w)[0]
        inside = self.inside_rows(w)
        rows = [
            self.row(t, k.of_type(f"{self.ctype(t.dtype)}*", const=True), f"{t.value}_{n}", place, test)
            for n, place, test in zip((1, 2), self.places_in_parts(w), (k.both(before, inside), inside), strict=True)
        ]
        threads, thread = self.sharing(True)
        static: list[ir.Value] = [threads, self.pitch(w)]
        return k.run("load_parts", self.held(t), thread, f"{t.value}_2", count(t.inner), *rows, static=static)

    def stores(self) -> list[ir.Statement]:
        """Store the tiles of an iteration that belong to what is stored whole."""
        done = list[ir.Statement]()
        threads, thread = self.sharing(True)
        for name, w in self.whole.items():
            place = self.offset(w.input.access, BODY, self.held_whole(w))
            row = self.row(w.tile, f"{self.ctype(w.tile.dtype)}*", f"{name}_0", place, self.inside_rows(w))
            put = k.run("store_tile", self.held(w.tile), thread, row, static=[threads, self.pitch(w)])
            others = [a for a in self.grid() if a not in {s.axis for s in w.input.access}]
            done.append(k.when(self.first(others), put))
        return done

    def pitch(self, w: Whole) -> int:
        """Elements from row to row of its tiles, in the parts and in the whole; 0 where rows do not walk its axis alone."""
        return even_pitch(w.input, w.tile) if [a for a, _ in w.tile.outer] == [w.axis] else 0

    def inside_rows(self, w: Whole) -> ir.Expression | None:
        """The condition that row `o` of a tile is no padding."""
        outer = [a for a, _ in w.tile.outer]
        rows = {s.axis for s in w.input.access} - {a for a, _ in w.tile.inner}
        axes = [*outer, *sorted(a for a in rows - {*outer} if a)]
        return k.both(self.real(w.tile.outer, w.tile.n_outer, "o"), self.inside(axes, BODY))

    def held_whole(self, w: Whole) -> list[str]:
        """The axes of a row of the tile, which begins where they are 0."""
        return [a for a, _ in w.tile.inner]

    def positions(self, w: Whole) -> tuple[ir.Value, ir.Value]:
        """The numbers of positions of both parts."""
        return positions_in_parts(w.joint, self.extent)

    def places_in_parts(self, w: Whole) -> tuple[ir.Expression, ir.Expression]:
        """The element offsets of row `o` in both parts: what lies in front of the joint walks them whole."""
        access, fixed, inner = w.input.access, self.held_whole(w), w.joint.inner
        assert isinstance(inner, int)
        front, behind = (self.offset(own, BODY, fixed) for own in (access[: w.slot], access[w.slot :]))
        sizes = [times(n, inner) for n in self.positions(w)]
        first, second = (k.total([front * n if front != k.ZERO else None, behind]) for n in sizes)
        return first, second - sizes[0]

    def row(
        self, t: OperandTile, pointer: ir.Type | str, tensor: str, offset: ir.Expression, there: ir.Expression | None
    ) -> ir.Lambda:
        """The function that says where row `o` of a tile lies in a tensor, nullptr where it is not `there`."""
        place: ir.Expression = k.name("at")
        found = place if there is None else k.select(there, place, k.number("nullptr"))
        at = k.let(pointer, "at", k.total([tensor, offset]))
        return k.function([("int", "o")], k.ignore("o"), *decode(t.outer, "o"), at, ir.Return(found))
