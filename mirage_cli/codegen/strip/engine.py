"""The engine `strip`: warps that walk the loop on their own, with values in registers and rings of tiles of their own.

A block's warps are groups of `members`; a group shares its rows out to its members and takes every so manieth iteration.
Products are matrix instructions whose results stay in registers (a *strip* of each warp), a strip can be the operand of the
next product, sums and maxima along rows stay within four lanes. Behind the loop groups merge what they have accumulated
(weighted where a running maximum goes with it), then the blocks of a cluster that share a split reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_cli.codegen.requests.request import Kernel, Launch, Request
from mirage_cli.codegen.strip.base import EACH_GROUP, SHOWN
from mirage_cli.codegen.strip.merge import SENT
from mirage_cli.codegen.strip.parts import StripParts
from mirage_cli.codegen.strip.values import SWIZZLED, OperandTile
from mirage_cli.codegen.terms.expressions import SYNC, THREAD
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.printer import text
from mirage_cli.search.schedules.strip import iterations, resident

ALONE = 0.75  #: of the multiprocessors of a target: some of its cards have fewer
FEW = 0.25  #: the same for larger clusters than those of a `PAIR` of multiprocessors, which are always near each other
PAIR = 2
MOST_FLOATS = 200  #: registers of a thread for results of products, beyond which kernels spill
COMMITTED = k.run("copy_commit")
TURN, SLOT = k.name("turn"), k.name("slot")


@dataclass(frozen=True, slots=True)
class StripProgram:
    """A strip kernel with every decision made: lines about its parts, and the statements of each phase."""

    parts: tuple[str, ...]
    phases: tuple[tuple[str, tuple[ir.Statement, ...]], ...]

    def text(self) -> str:
        """The lines, and the statements with the names of their phases."""
        return "\n".join([*self.parts, *(f"{p}: {x}" for p, body in self.phases for x in text(body).splitlines())])


def strip_kernel(r: Request) -> Kernel:
    """A kernel of the engine `strip`. Raises Refused where the block graph or the schedule does not suit it."""
    return _Kernel(r).made_kernel()


class _Kernel(StripParts):
    def made_kernel(self) -> Kernel:
        """The whole kernel."""
        self.walk()
        self.finish()
        floats = sum(4 * m.mt * m.nt for m in self.matrices.values() if m.name in self.produced)
        if floats > MOST_FLOATS:
            raise Refused(f"{floats} registers of strips for each thread")
        ring, others = ([t for t in self.tiles.values() if t.ring == kind] for kind in (True, False))
        if not ring:
            raise Refused("the loop loads no tiles")
        places, shared = self.memory.places(self.stage_bytes() * self.slots * self.groups)
        if shared > self.r.target.shared_bytes:
            raise Refused(f"{shared} bytes of shared memory, {self.r.target.name} has {self.r.target.shared_bytes}")
        threads = 32 * self.s.warps
        blocks = resident(self.r.target, shared, threads, floats)
        launch = Launch(
            self.inputs(),
            self.outputs(),
            self.r.numbers,
            tuple(map(self.blocks, self.grid())),
            threads,
            shared,
            self.splits,
            self.r.target.features.dependent_launch,
            alone=self.alone(),
        )
        body = (
            *self.declare,
            *(k.let(f"{t}*", n, k.reinterpret(f"{t}*", k.name("shared") + at), unused=True) for n, t, at in places),
            k.let("unsigned char*", "ring", k.name("shared") + k.name("group") * (self.stage_bytes() * self.slots)),
            *self.before_loop,
            *self.up_to_loop(ring, [t for t in others if not t.computed]),
            *self.loop(),
            k.run("copy_wait", static=[0]),
            SYNC,
            *self.epilogue,
        )
        self.unread = frozenset(i.name for i in self.inputs()) - k.names_in(body)
        body = (*self.declarations(threads), *body)
        kernel = ir.Kernel(f"kernel{self.r.number}", "parameters", launch.fields(), (threads, blocks), body)
        more = [
            *(["strip_group.cuh"] if self.memory.unit == SWIZZLED else []),
            *(["strip_packed.cuh"] if self.packed else []),
            *(["strip_columns.cuh"] if self.in_columns else []),
        ]
        headers = ("strip.cuh", *more, "tile.cuh")
        phases = tuple((p, tuple(getattr(self, p))) for p in ("prologue", "before", "body", "epilogue"))
        return Kernel(StripProgram(tuple(self.summary(shared, blocks)), phases), kernel, launch, headers)

    def alone(self) -> tuple[int, int]:
        """Up to how many blocks each has a multiprocessor of its own, and the bytes that see to it: kernels behind this one,
        which begin before it has ended, would delay it there by what they ask for. Clusters of more than two begin where as
        many multiprocessors lie near each other: many of them would wait until the kernels in front have left these."""
        t, late = self.r.target, bool(dict(self.s.numbers).get("late", 0))
        share = ALONE if self.splits <= PAIR else FEW
        return (int(share * t.units), t.shared_total // 2) if t.features.dependent_launch and not late else (0, 0)

    def declarations(self, threads: int) -> list[ir.Statement]:
        """The kernel's parameters, the place of the block, and the group and number of a warp."""
        thread, rows, per = k.cast("int", THREAD), k.name("in_group") / 32, k.name("GROUP")
        place = {"member": rows}
        if self.across > 1:
            place = {"member": rows % self.members, "share": k.name("in_group") / (32 * self.members)}
        return [
            *self.beginning({"THREADS": threads, "GROUP": self.group_threads, "GROUPS": self.groups}),
            k.lets("int", {"group": thread / per, "in_group": thread % per}),
            k.lets("int", place, unused=True),
        ]

    def up_to_loop(self, ring: Sequence[OperandTile], held: Sequence[OperandTile]) -> list[ir.Statement]:
        """From the number of iterations to the loop: the first copies, and what is in front of the loop. Constants of the
        model may be read before the kernel in front of this one has ended. The next kernel, which asks for its constants
        at once, begins when this one has asked for its own; a `late` one lets it wait for its other copies too."""
        steps, group, groups = k.name("steps"), k.name("group"), k.name("GROUPS")
        turns = (steps - group + groups - 1) / groups
        constants, others = ([t for t in ring if t.constant == kind] for kind in (True, False))
        lines = [*self.prologue, *self.before]
        along, held = ([t for t in held if t.along(self.loop_axis) == kind] for kind in (True, False))
        awaits = not {f"{t.name}_tile" for t in held}.isdisjoint(k.names_in((*lines, *self.body)))
        declared, lines = ([], lines) if self.prologue or awaits else (self.before, [])
        ahead, wait, begin = self.s.stages - 1, k.run("wait_for_earlier"), k.run("launch_dependents")
        late, first = bool(dict(self.s.numbers).get("late", 0)), self.by_integers or bool(self.chosen)
        return [
            *declared,
            *([wait] if first else []),
            *self.moves(),
            *self.walked(),
            k.let("int", "mine", k.select(steps > group, turns, 0)),
            *self.arrives(),
            self.loader("load_constants", k.when(TURN >= "mine", ir.Return()), *self.stage(*self.loads(constants))),
            self.loader("load_others", k.when(TURN < "mine", *self.stage(*self.loads(others))), COMMITTED),
            k.loop("turn", ahead, k.run("load_constants", TURN, TURN)),
            *self.loads([t for t in held if t.constant]),
            *self.early_statements(constant=True),
            *([] if late else [begin]),
            *([] if first else [wait]),
            *self.loads([t for t in held if not t.constant]),
            COMMITTED,
            k.loop("turn", ahead, k.run("load_others", TURN, TURN)),
            *self.loads(along),
            *self.early_statements(constant=False),
            *([begin] if late else []),
            *([k.run("copy_wait", static=[ahead])] if awaits else []),
            *([SYNC] if awaits or along else []),
            *lines,
        ]

    def arrives(self) -> list[ir.Statement]:
        """A block of a cluster is ready for what others will send it."""
        if self.splits == 1:
            return []
        start = k.run("expect_sent", SENT, k.total(self.sent))
        return [k.when(k.binary("==", THREAD, 0), start), k.run("cluster_arrive_relaxed")]

    def loader(self, name: str, *body: ir.Statement) -> ir.Declare:
        """A function that starts the copies of an iteration to a stage of the ring."""
        return k.define(name, [("int", "turn"), ("int", "slot")], k.ignore("slot"), *body)

    def stage(self, *body: ir.Statement) -> list[ir.Statement]:
        """Statements for iteration `turn` of a group, with the stage `slot` of its ring."""
        place = k.name("ring") + SLOT * self.stage_bytes()
        return [
            self.step_position(TURN * "GROUPS" + "group"),
            k.let("unsigned char*", "stage", place, unused=True),
            *body,
        ]

    def loop(self) -> list[ir.Statement]:
        """The iterations of a group, with copies ahead to the stage that is free."""
        last, free, at_once = self.s.stages - 1, k.name("free"), self.slots < self.s.stages
        at_start, at_end = (k.binary("==", SLOT, n) for n in (0, last))
        more = [k.run(f, TURN + last, free) for f in ("load_constants", "load_others")]
        ahead = k.scope(k.let("int", "free", k.select(at_start, last, SLOT - 1)), *more)
        walk = k.loop(
            "turn",
            "mine",
            k.run("copy_wait", static=[last - 1]),
            *([SHOWN] if self.memory.unit == SWIZZLED else []),
            EACH_GROUP,
            COMMITTED if at_once else ahead,
            *self.stage(*self.stores(), *self.counts(), *self.body),
            k.assign(SLOT, SLOT + 1 if at_once else k.select(at_end, 0, SLOT + 1)),
        )
        return [k.declare("int", "slot", 0), walk]

    @property
    def slots(self) -> int:
        """Tiles of a group's ring: one for each iteration where all of them are asked for in front of the loop, else one for
        each stage."""
        turns = iterations(self.s, self.s.tile(self.loop_axis) or self.p.extent(self.loop_axis), self.groups)
        return int(turns) if turns < self.s.stages else self.s.stages

    def summary(self, shared: int, blocks: int) -> list[str]:
        """A summary of the kernel's parts for golden files, a line each."""
        lines = [f"strip {self.s.to_json()} shared {shared} resident {blocks} cluster {self.splits}"]
        for t in self.tiles.values():
            place = "ring" if t.ring else "held"
            lines.append(
                f"tile {t.name}: {t.dtype} {place} {dict(t.outer)} x {dict(t.inner)} as {t.n_outer} x {t.n_inner}"
            )
        for m in self.matrices.values():
            beside = f" by {m.across}" if m.across > 1 else ""
            lines.append(f"strip {m.name}: {dict(m.rows)} x {dict(m.cols)} as {m.mt} x {m.nt}{beside}")
        lines += [f"rows {v.name}: {dict(v.rows)}" for v in self.row_vectors.values()]
        lines += [f"vector {v.name}: {dict(v.axes)}" for v in self.vectors.values()]
        lines += [f"sum {s.name}: {dict(s.axes)} over the {s.along} side of {s.tile.name}" for s in self.sums.values()]
        return lines
