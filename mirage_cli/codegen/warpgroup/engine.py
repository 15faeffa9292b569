"""The engine `warpgroup`: kernels for many rows on sm_90a, with matrix products of warpgroups.

The first warp brings tiles through the copy engine, the warpgroups behind the first one multiply. Blocks walk units of work
(a tile of rows and one of columns, or as many beside one another as make a cluster). Numbers of its own in a schedule:

    cluster   blocks along the rows that share what they bring of the right operands; blocks that reduce together (a split
              of the loop axis) are a cluster of their own
    band      units along the rows that are walked together before the next columns are taken (0: all of them)
    turns     whether consumers take turns at issuing products
    resident  blocks on a multiprocessor
    ahead     whether scores of the next iteration are multiplied while those of one are worked on
    kept      whether left operands that are loaded once are kept in registers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirage_cli.codegen.read_back import read_back
from mirage_cli.codegen.requests.request import Kernel, Request
from mirage_cli.codegen.warpgroup.boxes import tensor_map
from mirage_cli.codegen.warpgroup.plan import EARLY, GROUP_ROWS, HELD, LATE, PANEL, Plan, Product, Tile, plan
from mirage_cli.codegen.warpgroup.statements import Statements, statements
from mirage_cli.codegen.warpgroup.text import Text, ctype, indented
from mirage_cli.errors import Refused
from mirage_cli.lax.extents import Symbolic
from mirage_cli.search.schedules.warpgroup import (
    AHEAD_REGISTERS,
    MOST_REGISTERS,
    PRODUCER_REGISTERS,
    REGISTERS,
    SPARE_REGISTERS,
    suits,
)

ALIGNMENT = 1024


def warpgroup_kernel(r: Request) -> Kernel:
    """A kernel of the engine `warpgroup`. Raises Refused."""
    if not suits(r.target):
        raise Refused(f"{r.target.name} has no products of warpgroups, or no copy engine")
    kernel_plan = plan(r.program, r.block, r.schedule)
    text = Text(kernel_plan, r.symbols, r.hollow)
    printer = _Printer(kernel_plan, text, statements(kernel_plan, text))
    context = printer.context(r.number)
    if context["shared_bytes"] > r.target.shared_bytes:
        raise Refused(f"{context['shared_bytes']} bytes of shared memory, {r.target.name} has {r.target.shared_bytes}")
    return read_back(r, kernel_plan, context, setup=lambda _: printer.setup())


class _Printer:
    def __init__(self, kernel_plan: Plan, text: Text, lines: Statements) -> None:
        self.plan, self.text, self.lines = kernel_plan, text, lines
        self.p, self.g, self.numbers = kernel_plan.program, kernel_plan.graph, dict(kernel_plan.schedule.numbers)
        self.products = (*kernel_plan.early, *kernel_plan.late)
        rights = {p.right for p in self.products} - {p.left for p in self.products}
        self.maps = {t.name: tensor_map(kernel_plan, t, t.name in rights and t.ring != HELD) for t in kernel_plan.tiles}
        self.rights = rights

    # --- memory and registers -----------------------------------------------------------------------------------------
    def rings(self) -> list[dict[str, Any]]:
        """The rings of tiles: their places in shared memory, and what brings them."""
        rings: list[dict[str, Any]] = []
        at = 0
        for ring in (HELD, EARLY, LATE):
            tiles = self.plan.ring(ring)
            if not tiles:
                continue
            offset, places, loads = 0, [], list[str]()
            for t in tiles:
                places.append({"name": t.name, "offset": offset})
                loads += self.maps[t.name].loads(self.plan, self.text, self.shared(t))
                offset += t.bytes
            stages = 1 if ring == HELD else self.plan.schedule.stages
            rings.append({"name": ring, "tiles": places, "at": at, "bytes": offset, "stages": stages, "loads": loads})
            at += offset * stages
        return rings

    def shared(self, t: Tile) -> bool:
        """True if blocks of a cluster bring a tile together."""
        return self.plan.cluster > 1 and t.name in self.rights and t.ring != HELD

    def registers(self) -> int:
        """Registers of a consumer's thread; 0 to leave them as they are."""
        groups, resident = self.plan.consumers, self.numbers.get("resident", 1)
        if groups == 1 and resident == 1:
            return 0
        return (REGISTERS // resident - PRODUCER_REGISTERS) // groups // 8 * 8

    def ahead(self) -> bool:
        """True if scores of the next iteration are multiplied while those of one are worked on."""
        ahead = bool(self.numbers.get("ahead", 0))
        if ahead and (
            not self.plan.late or any(self.needs_late(p) for p in self.plan.early) or self.lines.side_ring == EARLY
        ):
            raise Refused("products run ahead where scores have tiles of their own")
        return ahead

    def check_registers(self) -> None:
        rows = self.plan.row_tiles
        held = sum(rows * p.cols // 2 for p in self.products)
        if self.ahead():
            held += AHEAD_REGISTERS + sum(rows * p.cols // 2 for p in self.plan.early)
        held += sum(rows * p.depth // 4 for p in self.products if self.plan.in_words(p))
        if held + SPARE_REGISTERS > (self.registers() or MOST_REGISTERS):
            raise Refused(f"{held} registers of fragments for each thread")

    # --- products -----------------------------------------------------------------------------------------------------
    def instruction(self, p: Product, kernel: int) -> dict[str, Any]:
        """The matrix instruction of a product."""
        words = self.plan.in_words(p)
        name = f"multiply{kernel}_{p.cols}_{p.dtype.name}_{'words' if words else 'tiles'}"
        return {"name": name, "columns": p.cols, "words": words, "type": p.dtype.name}

    def product(self, p: Product, kernel: int, more: str) -> list[str]:
        """Statements that issue a product; `more`: whether it adds to what is there."""
        left, right = self.plan.tile(p.left), self.plan.tile(p.right)
        assert right is not None
        right_turned = right.inner != p.over
        panel = right.rows * PANEL * 2 if right_turned else 16
        starts = [f"const uint64_t right = tile_descriptor({p.right}, {panel});"]
        b = "k * 2048" if right_turned else _along(right)
        if left is None or self.plan.in_words(p):
            a, turned = f"{p.left}_words[m][k]", [right_turned]
        else:
            across = left.inner != p.over
            height = left.rows * 128 if across else GROUP_ROWS * 128
            starts.append(f"const uint64_t left = tile_descriptor({p.left} + base / {GROUP_ROWS} * {height}, 16);")
            a = f"left + (m * {height} + {'k * 2048' if across else _along(left)}) / 16"
            turned = [across, right_turned]
        name = self.instruction(p, kernel)["name"]
        kinds = ", ".join(str(t).lower() for t in turned)
        call = f"{name}<{kinds}>({p.out}[m], {a}, right + ({b}) / 16, {more});"
        return [
            "{",
            *indented(starts),
            "#pragma unroll",
            f"    for (int m = 0; m < {self.plan.row_tiles}; ++m)",
            "#pragma unroll",
            f"        for (int k = 0; k < {p.depth // 16}; ++k) {call}",
            "}",
        ]

    def issue(self, products: Sequence[Product], kernel: int, first: str) -> list[str]:
        """Statements that issue products; an accumulator begins at 0 where `first` holds."""
        lines = []
        for p in products:
            lines += self.product(p, kernel, f"k > 0 || !({first})" if p.accumulated else "k > 0")
        return lines

    # --- the walk over units --------------------------------------------------------------------------------------------
    def blocks(self, axis: str) -> str:
        """Blocks along a grid axis, as a C expression."""
        extent, tile = self.p.extent(axis), self.plan.schedule.tile(axis) or 1
        tile *= self.plan.cluster if axis == self.plan.rows else 1
        if isinstance(extent, Symbolic):
            return f"(({self.text.extent(extent)} + {tile - 1}) / {tile})"
        return str(-(-extent // tile))

    def walk(self) -> list[str]:
        """Statements that turn the number of a unit into first positions."""
        rows = self.plan.rows
        others = [a for a in self.g.grid if a != rows and a not in self.g.split]
        wide = [a for a in others if a in self.plan.sizes]
        batch = [a for a in others if a not in self.plan.sizes]
        lines = [f"const int rows_ = static_cast<int>({self.blocks(rows)});"]
        lines.append(f"const int wide_ = static_cast<int>({' * '.join(['1', *(self.blocks(a) for a in wide)])});")
        band, cluster = self.numbers.get("band", 0), self.plan.cluster
        place = f" * {cluster} + rank" if cluster > 1 else ""
        lines += [
            f"const int band_ = {f'min({band}, rows_)' if band else 'rows_'};",
            "int part = unit % (rows_ * wide_);",
            "const int first_ = part / (band_ * wide_) * band_, height_ = min(band_, rows_ - first_);",
            "part = part % (band_ * wide_);",
            f"const int row_block_ = (first_ + part % height_){place};",
            self.first_position(rows, "row_block_"),
            *(self.first_position(a, "rank") for a in self.g.split),
        ]
        for names, source, start in ((wide, "across_", "part / height_"), (batch, "rest_", "unit / (rows_ * wide_)")):
            before = [f"int {source} = {start};"] if names else []
            lines += before
            for k, a in enumerate(reversed(names)):
                last = k == len(names) - 1
                lines.append(self.first_position(a, source if last else f"({source} % {self.blocks(a)})"))
                lines += [] if last else [f"{source} /= {self.blocks(a)};"]
        return lines

    def first_position(self, axis: str, block: str) -> str:
        tile = self.plan.schedule.tile(axis) or 1
        return f"[[maybe_unused]] const offset_t {axis}_at = static_cast<offset_t>({block}) * {tile};"

    def steps(self) -> str:
        assert self.g.loop is not None
        extent, step = self.p.extent(self.g.loop), self.plan.schedule.loop
        if self.g.split:
            return str((self.plan.schedule.tile(self.g.loop) or step) // step)
        if isinstance(extent, Symbolic):
            return f"static_cast<int>(({self.text.extent(extent)} + {step - 1}) / {step})"
        return str(-(-extent // step))

    # --- everything -----------------------------------------------------------------------------------------------------
    def setup(self) -> list[str]:
        """Statements of the host that make the tensor maps."""
        return [line for m in self.maps.values() for line in m.setup(self.text)]

    def context(self, kernel: int) -> dict[str, Any]:
        """Variables of `warpgroup.j2`."""
        self.check_registers()
        ahead = self.ahead()
        rings = self.rings()
        schedule = self.plan.schedule
        loop = self.g.loop
        units = " * ".join(["int64_t{1}", *(self.blocks(a) for a in self.g.grid if a not in self.g.split)])
        resident = self.numbers.get("resident", 1)
        tiles = sum(r["bytes"] * r["stages"] for r in rings)
        exchange = self.lines.published * self.plan.consumers * 512
        barriers = (sum(2 * r["stages"] for r in rings) + 2 + schedule.stages) * 8
        sides = len(self.lines.side_names) * self.plan.schedule.loop * 4 * schedule.stages
        cluster = self.plan.cluster * self.plan.parts
        late = bool(self.plan.late)
        held, words = {t.name for t in self.plan.ring(HELD)}, self.plan.in_words
        instructions = {i["name"]: i for p in self.products if (i := self.instruction(p, kernel))}
        return {
            "kernel": kernel,
            "template": "warpgroup.j2",
            "headers": ["warpgroup.cuh"],
            "offset_type": "int64_t" if self.text.wide else "int",
            "symbols": [self.text.symbols.index(s) for s in self.p.symbols],
            "inputs": [
                {"name": i.name, "type": ctype(self.p.sources[i.source].dtype), "source": i.source}
                for i in self.p.inputs
            ],
            "outputs": [{"name": f"y{k}", "type": ctype(o.dtype)} for k, o in enumerate(self.p.outputs)],
            "members": [line for m in self.maps.values() for line in m.members()],
            "maps": list(self.maps),
            "grid": [{"blocks": f"walking_blocks({units}, {cluster}, {resident})"}],
            "units": units,
            "walk": self.walk(),
            "cluster": cluster,
            "sharing": self.plan.cluster,
            "parts": self.plan.parts,
            "dependent": True,
            "threads": 32 * self.plan.schedule.warps,
            "consumers": self.plan.consumers,
            "resident": resident,
            "registers": self.registers(),
            "producer_registers": PRODUCER_REGISTERS,
            "shared_bytes": ALIGNMENT + tiles + exchange + sides + barriers,
            "exchange_at": tiles,
            "sides_at": tiles + exchange,
            "barriers_at": tiles + exchange + sides,
            "stages": schedule.stages,
            "rings": rings,
            "group_rows": self.plan.row_tiles * 64,
            "steps": self.steps(),
            "loop": loop,
            "loop_tile": self.plan.schedule.loop,
            "turns": bool(self.numbers.get("turns", 0)) and self.plan.consumers > 1,
            "instructions": list(instructions.values()),
            "late": late,
            "held": bool(self.plan.ring(HELD)),
            "held_words": all(p.right not in held and (p.left not in held or words(p)) for p in self.products),
            "computed": any(self.plan.tile(p.left) is None for p in self.plan.early),
            "issue_early": self.issue(self.plan.early, kernel, "step == 0"),
            "issue_late": self.issue(self.plan.late, kernel, "step == 1"),
            "ahead": ahead,
            "next_fragments": [
                f"float {p.out}_next[{self.plan.row_tiles}][{p.cols // 8}][4];" for p in self.plan.early if ahead
            ],
            "fragments": list(dict.fromkeys(p.out for p in self.plan.early)),
            "late_fragments": list(dict.fromkeys(p.out for p in self.plan.late)),
            "early_needs_late": any(self.needs_late(p) for p in self.plan.early),
            "lines": self.lines,
        }

    def needs_late(self, p: Product) -> bool:
        """True if an early product reads a tile that late ones read as well."""
        return any((t := self.plan.tile(i)) is not None and t.ring == LATE for i in (p.left, p.right))


def _along(t: Tile) -> str:
    """The place of 16 summed positions `k` along the columns of a tile."""
    return f"k / 4 * {t.rows * PANEL * 2} + k % 4 * 32"
