"""Operands of strips that stay as they are stored: quantised numbers with the scales and zero points of their blocks."""

from __future__ import annotations

from mirage_cli.codegen.strip.tiles import StripTiles
from mirage_cli.codegen.strip.values import OperandTile
from mirage_cli.codegen.tiles.tile import count
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.search.mugraph.mugraph import BODY, BlockOp
from mirage_cli.search.schedules.packed import Quantised, copied


class StripPacked(StripTiles):
    """Products whose rows are quantised."""

    def packed_contraction(self, o: BlockOp, v: str, col_tile: OperandTile, out: str) -> ir.Do:
        """The product of a quantised operand along rows and a tile, added to a strip."""
        over, rows = frozenset(o.over), self.packed_rows(v, frozenset(o.over))
        if rows.inner != col_tile.inner or rows.n_inner != col_tile.n_inner or count(rows.inner) != rows.n_inner:
            raise Refused(f"{o.name}: its operands lie differently along what it sums over")
        if not {a for a, _ in rows.inner} <= over:
            raise Refused(f"{o.name}: rows of its quantised operand do not walk what it sums over")
        a = self.packed_operand(v, self.packed[v], rows)
        columns = k.of_type("PackedColumns", col_tile.type, count(col_tile.outer))
        return k.run("packed_contract", out, a, k.construct(columns, self.held(col_tile)))

    def packed_rows(self, v: str, over: frozenset[str]) -> OperandTile:
        """The tile of a quantised operand's numbers."""
        return self.tile_of(self.load_of(self.packed[v].numbers, v), over, "rows")

    def packed_operand(self, v: str, q: Quantised, rows: OperandTile) -> ir.Construct:
        """Numbers with what goes with their blocks."""
        scale, zero = self.of_blocks(q.scale, v, rows), f"Zero_{v}"
        kind, value = k.of_type("SameZero", 0 if isinstance(q.zero, str) else q.zero), list[ir.Value]()
        if isinstance(q.zero, str):
            points = self.of_blocks(q.zero, v, rows)
            kind, value = k.of_type("ZeroOf", points.type), [self.held(points)]
        if (alias := k.alias(zero, kind)) not in self.declare:
            self.declare.append(alias)
        first = self.first_row(self.row_matrices(rows.outer))
        parts = (self.held(rows), self.held(scale), k.construct(k.of_type(zero), *value), first)
        return k.construct(k.of_type("PackedRows", rows.type, scale.type, zero), *parts)

    def of_blocks(self, value: str, v: str, rows: OperandTile) -> OperandTile:
        """The tile of an input that has a number for each block of a tile's rows."""
        load, positions = self.load_of(value, v), self.shapes.size(self.loop_axis, BODY)
        if load not in self.tiles:
            source, unit = self.reads[value].source, copied(self.p, value, self.loop_axis, positions)
            self.add_tile(
                OperandTile(
                    load,
                    value,
                    self.p.sources[source].dtype,
                    rows.outer,
                    ((self.loop_axis, positions),),
                    rows.n_outer,
                    positions,
                    BODY,
                    constant=source in self.r.constants,
                    unit=self.memory.unit,
                    at=self.stage_bytes(),
                    kind="BlockTile",
                    copied=unit,
                )
            )
        return self.tiles[load]

    def first_row(self, mt: int) -> ir.Expression:
        """The first row of a warp in its group's tile."""
        return k.name("member") * (16 * mt) if self.members > 1 else k.ZERO
