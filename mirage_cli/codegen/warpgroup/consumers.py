"""What consumers do with a unit of work: wait for tiles, issue products, compute between them, free the tiles.

Without late products those of an iteration run while the next tiles are waited for. With late ones, scores of an iteration
run beside the late products of the one before (`turns`: of one warpgroup at a time); with `ahead` those of the next
iteration run beside what is computed of this one's as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_cli.codegen.warpgroup.memory import Memory, following, placed, slot, wait
from mirage_cli.codegen.warpgroup.places import Statements
from mirage_cli.codegen.warpgroup.plan import EARLY, HELD, LATE, SPLIT, Plan, Product
from mirage_cli.codegen.warpgroup.products import issue
from mirage_cli.codegen.warpgroup.units import Units
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.ir import Value

AUTO = k.of_type("auto", reference=True)
STEP, STEPS = k.name("step"), k.name("steps")
TURN = 256  #: threads that meet where two warpgroups take turns


def names(products: Sequence[Product]) -> list[str]:
    """The fragments that products write."""
    return list(dict.fromkeys(p.out for p in products))


def pinned(fragments: Sequence[str]) -> list[ir.Statement]:
    """From here on fragments are what products have made of them."""
    return [ir.ForEach(AUTO, "part", k.name(f), (k.run("pin", "part"),)) for f in fragments]


def begun(*issued: ir.Statement) -> list[ir.Statement]:
    """Products as a group."""
    return [k.run("products_begin"), *issued, k.run("products_commit")]


def awaited(groups: int) -> ir.Do:
    """Wait until at most so many groups are on their way."""
    return k.run("products_wait", static=[groups])


@dataclass(frozen=True, slots=True)
class Consumers:
    """The walk of consumers over a unit; its variants share their parts."""

    plan: Plan
    memory: Memory
    units: Units
    computed: Statements

    # --- decisions ----------------------------------------------------------------------------------------------------
    @property
    def held_in_words(self) -> bool:
        """True if tiles that are loaded once are in registers before the loop."""
        held = {t.name for t in self.plan.ring(HELD)}
        return all(p.right not in held and (p.left not in held or self.plan.in_words(p)) for p in self.plan.products)

    @property
    def keeps_early(self) -> bool:
        """True if what is computed reads numbers that helpers make of early tiles, which stay until then."""
        return self.memory.side.name == EARLY

    @property
    def early_waits(self) -> bool:
        """True if the next early tiles are waited for before exponentials: the compiler moves no wait for a product across
        that one, so maxima are made beside the late product."""
        early = self.memory.early
        return bool(early.tiles) and early.stages > 1 and not self.keeps_early

    # --- parts --------------------------------------------------------------------------------------------------------
    def early_products(self) -> ir.Scope:
        """Scores as a group of products, of early tiles that are there, and of late ones where they read some."""
        late = self.memory.late.read("ahead") if self.plan.early_needs_late else []
        return k.scope(*late, *self.memory.early.addresses(), *begun(*issue(self.plan, self.plan.early, 0)))

    def late_products(self) -> ir.Scope:
        """Late products of the iteration before as a group, when their tiles are there."""
        cleared = [wait("known", LATE)] if self.computed.cleared else []
        return k.scope(*self.memory.late.read(), *cleared, *begun(*issue(self.plan, self.plan.late, 1)))

    def early_there(self, fragments: Sequence[str]) -> list[ir.Statement]:
        """Scores are there, and their tiles are free."""
        return [*pinned(fragments), *([] if self.keeps_early else self.memory.early.release())]

    def free_held(self, step: Value = STEP) -> list[ir.Statement]:
        """Free what was loaded once with the scores of the last iteration."""
        held, last = self.memory.held.release(), k.binary("==", step, STEPS - 1)
        return [k.when(last, *held)] if held and not self.held_in_words else []

    def late_there(self) -> list[ir.Statement]:
        """What late products add up is there, and their tiles are free."""
        return [*pinned(names(self.plan.late)), *self.memory.late.release()]

    def last_products(self) -> ir.Scope:
        """The late products behind the last iteration."""
        return k.scope(k.let("int", "step", STEPS), self.late_products(), awaited(0), *self.late_there())

    def turn(self, function: str, group: Value) -> list[ir.Statement]:
        """Wait for one's turn to issue products, or let others have theirs."""
        return [k.run(function, 1 + ir.lift(group), TURN)] if self.plan.turns else []

    # --- a unit -------------------------------------------------------------------------------------------------------
    def unit(self) -> list[ir.Statement]:
        """Everything that consumers do with a unit."""
        c, held, in_words = self.computed, self.memory.held, self.held_in_words
        accumulated = self.divided if self.plan.split else self.accumulated
        loop = self.ahead() if self.plan.ahead else self.late() if self.plan.late else accumulated()
        loop = [*held.release(), *loop] if in_words else loop if self.plan.late else [*loop, *held.release()]
        exchanged = self.exchanged() if self.plan.parts > 1 else []
        return [*c.start, *held.read(), *c.prologue, *loop, *c.epilogue, *exchanged]

    def exchanged(self) -> list[ir.Statement]:
        """What blocks that reduce together do with one another's numbers."""
        full, empty, parity = k.name("exchange_full"), k.name("exchange_empty"), k.name("exchange").member("parity")

        def told(barrier: ir.Name) -> list[ir.Statement]:
            each = k.when(k.name("lane") < self.plan.parts, k.run(barrier.member("publish_at", arrow=True), "lane"))
            return [k.run("__syncwarp"), each]

        return [
            k.run(empty.member("wait_cluster", arrow=True), k.binary("^", parity, 1)),
            *self.computed.publish,
            *told(full),
            k.run(full.member("wait_cluster", arrow=True), parity),
            *self.computed.grid,
            *told(empty),
            following("exchange"),
        ]

    def accumulated(self) -> list[ir.Statement]:
        """Products of loaded tiles, which are free one iteration after products of them are issued, or of computed operands,
        whose tiles are free at once."""
        early, before = self.memory.early, k.name("before")
        issued = begun(*issue(self.plan, self.plan.early, 0))
        step = [*early.read(), *self.computed.operands, *issued, *self.computed.body]
        there = [awaited(0), *pinned(names(self.plan.early))]
        if any(self.plan.tile(p.left) is None for p in self.plan.early):
            return [self.units.each_step(*step, awaited(0), *early.release()), *there]
        free = k.run("release", k.name(early.empty)[before])
        kept = k.assign(before, k.name(EARLY).member("slot"))
        loop = self.units.each_step(*step, awaited(1), k.when(STEP > 0, free), kept, following(EARLY))
        return [k.declare("int", "before", 0), loop, *there, free]

    def divided(self) -> list[ir.Statement]:
        """Products of loaded tiles of float32, by products of their parts, or by multiply-adds where these are not enough."""
        m, c, sums = self.memory, self.computed, [p.sums for p in self.plan.early]
        reach = k.declare("Reach", "reach")
        whole = k.name("reach").member("whole")(m.told_at())
        issued = begun(*issue(self.plan, self.plan.early, 0))
        read = k.when(k.binary("==", k.name("lane"), 0), k.run(slot(m.split.empty, SPLIT).member("arrive")))
        return [
            self.units.each_step(
                *m.early.read(),
                reach,
                *c.operands,
                *m.split.read(),
                *self.turn("wait_named", "group"),
                *issued,
                *self.turn("arrive_named", (k.name("group") + 1) % self.plan.consumers),
                *c.body,
                awaited(0),
                *pinned(sums),
                k.when(k.negated(whole), *c.whole),
                k.run("__syncwarp"),
                read,
                following(SPLIT),
                *m.early.release(),
                *c.added,
            )
        ]

    # --- products of computed values --------------------------------------------------------------------------------------
    def computes(self, function: str) -> ir.Do:
        """The call of a function of the iteration's values."""
        return k.run(function, STEP, *([EARLY if self.keeps_early else "ahead"] if self.memory.vectors else []))

    def early_next(self, test: ir.Expression) -> list[ir.Statement]:
        """Wait for the next early tiles, where there are some."""
        return [k.when(test, *self.memory.early.wait())] if self.early_waits else []

    def words(self) -> list[ir.Statement]:
        """Left operands of late products are computed, which is all of an iteration."""
        return [self.computes("words"), following("ahead"), *(self.memory.early.release() if self.keeps_early else [])]

    def late(self) -> list[ir.Statement]:
        """Scores, what is computed of them, and late products of the iteration before."""
        m, c, position = self.memory, self.computed, self.units.step_position()
        parameters: list[tuple[k.TypeLike, str]] = [("int", "step")]
        parameters += [(k.of_type("Place", m.side.stages, const=True, reference=True), "place")] if m.vectors else []
        known, vectors = [wait("known", "place")] if m.vectors else [], m.named_vectors("place", const=True)
        own = names(self.plan.early)
        begin = [*m.early.wait(), self.early_products(), awaited(0), *self.free_held(), *self.early_there(own)]
        first = [*begin, self.computes("scores"), *self.words(), *self.early_next(STEPS > 1)]
        further = [
            *([] if self.early_waits else m.early.wait()),
            *self.turn("wait_named", "group"),
            self.early_products(),
            self.late_products(),
            *self.turn("arrive_named", (k.name("group") + 1) % self.plan.consumers),
            awaited(1),
            *self.free_held(),
            *self.early_there(own),
            self.computes("scores"),
            *self.early_next(STEP + 1 < STEPS),
            awaited(0),
            *self.late_there(),
            *c.rescale,
            *self.words(),
        ]
        return [
            k.define("scores", parameters, *known, *vectors, position, *c.body),
            k.define("words", parameters, *vectors, position, *c.weights, *c.words),
            placed(m.late.stages, "ahead", LATE),
            k.scope(k.let("int", "step", 0), *first),
            k.loop("step", STEPS, *further, start=1),
            self.last_products(),
        ]

    def ahead(self) -> list[ir.Statement]:
        """Scores of the next iteration and late products of the one before run beside what is computed of this one's. What
        holds scores changes places with what will hold the next ones."""
        early, own = self.memory.early, names(self.plan.early)
        now, then = ([n for f in own for n in (f, f"{f}_next")[::way]] for way in (1, -1))
        shape = {p.out: (self.plan.row_tiles, p.cols // 8, 4) for p in self.plan.early}
        further = (
            k.run("iterate", k.call("No"), *then, STEP),
            k.when(k.binary("==", STEP + 1, STEPS), ir.Break()),
            k.run("iterate", k.call("No"), *now, STEP + 1),
        )
        return [
            *(k.declare("float", f"{f}_next", dims=shape[f]) for f in own),
            placed(self.memory.late.stages, "ahead", LATE),
            k.define("issue_scores", [(AUTO, f) for f in own], *early.wait(), self.early_products()),
            k.define("iterate", [("auto", "opening"), *((AUTO, f) for f in now), ("int", "step")], *self.iteration()),
            k.run("issue_scores", *own),
            awaited(0),
            *self.early_there(own),
            *self.free_held(0),
            k.run("iterate", k.call("Yes"), *now, 0),
            k.loop("step", STEPS, *further, start=1, step=2),
            self.last_products(),
        ]

    def iteration(self) -> list[ir.Statement]:
        """An iteration whose scores are there; `opening` says at compile time whether there is none before."""
        m, c, more = self.memory, self.computed, STEP + 1 < STEPS
        further = k.negated(k.name("value", owner=ir.Type("decltype", (k.name("opening"),))))
        coming = [f"{f}_next" for f in names(self.plan.early)]
        return [
            self.units.step_position(),
            ir.If(further, (self.late_products(),), static=True),
            k.when(more, k.run("issue_scores", *coming)),
            *([wait("known", "ahead")] if m.vectors else []),
            *m.named_vectors("ahead", const=True),
            *c.body,
            *c.weights,
            awaited(0),
            k.when(more, *self.early_there(coming), *self.free_held(STEP + 1)),
            ir.If(further, tuple(self.late_there()), static=True),
            *c.rescale,
            *c.words,
            following("ahead"),
        ]
