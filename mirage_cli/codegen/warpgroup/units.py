"""Units of work of a kernel of warpgroups, and the walk of a block over them."""

from __future__ import annotations

from mirage_cli.codegen.terms.visible import stepped, walked
from mirage_cli.codegen.warpgroup.values import Values
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.ir import Value
from mirage_cli.lax.extents import Symbolic


class Units:
    """The units of a kernel: a tile of rows and one of columns, or as many beside one another as make a cluster."""

    def __init__(self, values: Values) -> None:
        self.values, self.plan, self.p, self.g = values, values.plan, values.p, values.g
        others = [a for a in self.g.grid if a != self.plan.rows and a not in self.g.split]
        self.wide = [a for a in others if a in self.plan.sizes]
        self.batch = [a for a in others if a not in self.plan.sizes]
        self.limits = values.limits

    @property
    def count(self) -> ir.Expression:
        """The number of units."""
        blocks = (self.blocks(a) for a in self.g.grid if a not in self.g.split)
        return k.product([k.construct(ir.Type("int64_t"), 1), *blocks])

    def blocks(self, axis: str) -> ir.Expression:
        """Units along a grid axis."""
        extent, tile = self.p.extent(axis), self.plan.schedule.tile(axis) or 1
        tile *= self.plan.cluster if axis == self.plan.rows else 1
        if isinstance(extent, Symbolic):
            return (self.values.extent(extent) + (tile - 1)) / tile
        return ir.lift(-(-extent // tile))

    def steps(self) -> ir.Expression:
        """The iterations of the loop."""
        loop, step = self.g.loop or "", self.plan.schedule.loop
        extent = self.p.extent(loop)
        if self.g.split:
            return ir.lift((self.plan.schedule.tile(loop) or step) // step)
        if isinstance(extent, Symbolic):
            return k.cast("int", (self.values.extent(extent) + (step - 1)) / step)
        return ir.lift(-(-extent // step))

    def walked(self) -> list[ir.Statement]:
        """How many iterations a mask shows some of: at least one, of which products are put where others add up."""
        loop = self.g.loop or ""
        start = k.name(f"{loop}_at") if self.g.split else None
        return walked(self.limits, loop, self.plan.schedule.loop, self.steps(), self.span, start, 1)

    def span(self, axis: str) -> tuple[list[ir.Expression], Value]:
        """The terms of the first position along an axis, and how many there are, of all blocks that walk in step."""
        tile, cluster = self.plan.schedule.tile(axis), self.plan.cluster
        if tile is None:
            return [], self.values.extent(self.p.extent(axis))
        if axis != self.plan.rows or cluster == 1:
            return [k.name(f"{axis}_at")], tile
        return [k.name(f"{axis}_at") - k.name("rank") * tile], tile * cluster

    # --- the walk -----------------------------------------------------------------------------------------------------
    def walk(self, *body: ir.Statement) -> ir.Statement:
        """The loop over the units of a block, or of a cluster together."""
        start, step = self.beside("blockIdx"), self.beside("gridDim")
        if not self.limits:
            return k.loop("unit", "units", *self.places(), *body, start=start, step=step)
        return self.there_and_back(start, step, [*self.places(), *self.values.held_integers(), *self.walked(), *body])

    def first(self, *body: ir.Statement) -> ir.Statement:
        """The first unit of a block, if it has any."""
        inside = k.when(k.name("unit") < "units", *self.places(), *body)
        return k.scope(k.let("int", "unit", self.beside("blockIdx")), inside)

    def beside(self, variable: str) -> ir.Expression:
        """The number of a block, or of blocks, where those of a cluster count as one."""
        return k.name(variable).member("x") / (self.plan.cluster * self.plan.parts)

    def there_and_back(self, start: ir.Expression, step: ir.Expression, body: list[ir.Statement]) -> ir.Statement:
        """Units of unequal length, long ones first: every other round is walked from its end, so that blocks get equal
        amounts."""
        unit, at, round_, stride = map(k.name, ("unit", "at_", "round_", "stride_"))
        turned = k.select(k.binary("==", round_ % 2, 1), stride - 1 - at, at)
        walk = k.loop(
            "round_",
            (k.name("units") + stride - 1) / stride,
            k.let("int", "unit", round_ * stride + turned),
            k.when(unit < "units", *body),
        )
        return k.scope(k.lets("int", {"at_": k.cast("int", start), "stride_": k.cast("int", step)}), walk)

    def places(self) -> list[ir.Statement]:
        """Statements that turn the number of a unit into first positions."""
        unit, part, rows, wide, band, first, height = map(
            k.name, ("unit", "part", "rows_", "wide_", "band_", "first_", "height_")
        )
        most, cluster = self.plan.number("band"), self.plan.cluster
        block = first + part % height
        alike = k.product(map(self.blocks, self.batch))  #: units with the same rows and columns
        unequal = bool(self.limits)
        return [
            k.let("int", "rows_", k.cast("int", self.blocks(self.plan.rows))),
            k.let("int", "wide_", k.cast("int", k.product([1, *map(self.blocks, self.wide)]))),
            k.let("int", "band_", k.call("min", most, rows) if most else rows),
            k.declare("int", "part", rows * wide - 1 - unit / alike if unequal else unit % (rows * wide)),
            k.lets("int", {"first_": part / (band * wide) * band, "height_": k.call("min", band, rows - first)}),
            k.assign(part, part % (band * wide)),
            k.let("int", "row_block_", block * cluster + "rank" if cluster > 1 else block),
            self.first_position(self.plan.rows, "row_block_"),
            *(self.first_position(a, "rank") for a in self.g.split),
            *self.decoded(self.wide, "across_", part / height),
            *self.decoded(self.batch, "rest_", unit % alike if unequal else unit / (rows * wide)),
        ]

    def decoded(self, axes: list[str], name: str, number: Value) -> list[ir.Statement]:
        """First positions along axes from a row-major number."""
        if not axes:
            return []
        outer, *inner = axes
        found: list[ir.Statement] = [k.declare("int", name, number)]
        for a in reversed(inner):
            found += [self.first_position(a, k.name(name) % self.blocks(a)), k.assign(name, self.blocks(a), "/=")]
        return [*found, self.first_position(outer, name)]

    def first_position(self, axis: str, block: Value) -> ir.Statement:
        """The first position of a unit along an axis."""
        at = k.cast("offset_t", block) * (self.plan.schedule.tile(axis) or 1)
        return k.let("offset_t", f"{axis}_at", at, unused=True)

    # --- the loop -----------------------------------------------------------------------------------------------------
    def step_position(self) -> ir.Statement:
        """The first position of an iteration along the loop axis."""
        at = k.cast("offset_t", stepped(self.limits, self.g.loop or "", k.name("step"))) * self.plan.schedule.loop
        return k.let("offset_t", f"{self.g.loop}_step", at, unused=True)

    def each_step(self, *body: ir.Statement) -> ir.For:
        """The loop."""
        return k.loop("step", "steps", self.step_position(), *body)
