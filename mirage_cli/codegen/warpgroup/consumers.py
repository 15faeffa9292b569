"""What consumers do with a unit of work: wait for tiles, issue products, compute between them, free the tiles.

Without late products those of an iteration run while the next tiles are waited for. With late ones, scores of an iteration
run beside the late products of the one before (`turns`: of one warpgroup at a time); with `ahead` those of the next
iteration run beside what is computed of this one's as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_cli.codegen.warpgroup.memory import Memory, following, placed, wait
from mirage_cli.codegen.warpgroup.plan import EARLY, HELD, LATE, Plan, Product
from mirage_cli.codegen.warpgroup.products import issue
from mirage_cli.codegen.warpgroup.statements import Statements
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
    pin = k.run("pin", "part")
    return [ir.ForEach(AUTO, "part", k.name(f), (pin,)) for f in fragments]


def begun(*issued: ir.Statement) -> list[ir.Statement]:
    """Products as a group."""
    return [k.run("products_begin"), *issued, k.run("products_commit")]


def awaited(groups: int) -> ir.Do:
    """Wait until at most so many groups are on their way."""
    return k.run("products_wait", static=[groups])


def k.define(name: str, parameters: Sequence[tuple[ir.Type | str, str]], *body: ir.Statement) -> ir.Declare:
    """A function of the kernel."""
    return k.declare("auto", name, k.function(parameters, *body))


@dataclass(frozen=True, slots=True)
class Consumers:
    """The parts that variants of the walk share."""

    plan: Plan
    memory: Memory
    units: Units
    computed: Statements

    # --- decisions ----------------------------------------------------------------------------------------------------
    @property
    def computes_operands(self) -> bool:
        """True if left operands are computed of tiles of the iteration."""
        return any(self.plan.tile(p.left) is None for p in self.plan.early)

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
    def issue_early(self) -> list[ir.Statement]:
        """Early products; accumulators begin in the first iteration."""
        return issue(self.plan, self.plan.early, 0)

    def issue_late(self) -> list[ir.Statement]:
        """Late products, which are one iteration behind."""
        return issue(self.plan, self.plan.late, 1)

    def free_held(self) -> list[ir.Statement]:
        """Free what is loaded once behind the last iteration that reads it."""
        if self.held_in_words or not self.memory.held.tiles:
            return []
        return [k.when(k.binary("==", STEP, STEPS - 1), *self.memory.held.release())]

    def turn(self, function: str, group: Value) -> list[ir.Statement]:
        """Let others issue products first, or say that they may."""
        return [k.run(function, 1 + ir.lift(group), TURN)] if self.plan.turns else []

    def scores_there(self, running: int) -> list[ir.Statement]:
        """Scores are there, and their tiles are free."""
        freed = [] if self.keeps_early else self.memory.early.release()
        return [awaited(running), *pinned(names(self.plan.early)), *self.free_held(), *freed]

    def late_there(self) -> list[ir.Statement]:
        """What late products add up is there, and their tiles are free."""
        return [*pinned(names(self.plan.late)), *self.memory.late.release()]

    def late_alone(self) -> list[ir.Statement]:
        """Late products of the iteration before, from their tiles on."""
        return [*self.memory.late.read(), *begun(*self.issue_late())]

    def unit(self) -> list[ir.Statement]:
        """Everything that consumers do with a unit."""
        c, held = self.computed, self.memory.held
        kept = held.release() if self.plan.late and self.held_in_words else []
        loop = self.ahead() if self.plan.ahead else self.late() if self.plan.late else self.accumulated()
        return [*c.start, *held.read(), *c.prologue, *kept, *loop, *c.epilogue, *self.exchange()]

    def exchange(self) -> list[ir.Statement]:
        """What blocks that reduce together do with one another's numbers."""
        if self.plan.parts == 1:
            return []
        full, empty, parity = k.name("exchange_full"), k.name("exchange_empty"), k.name("exchange").member("parity")

        def published(barrier: ir.Name) -> list[ir.Statement]:
            arrive = k.do(barrier.member("publish_at", arrow=True)("lane"))
            return [k.run("__syncwarp"), k.when(k.name("lane") < self.plan.parts, arrive)]

        return [
            k.do(empty.member("wait_cluster", arrow=True)(k.binary("^", parity, 1))),
            *self.computed.publish,
            *published(full),
            k.do(full.member("wait_cluster", arrow=True)(parity)),
            *self.computed.grid,
            *published(empty),
            following("exchange"),
        ]

    # --- products of loaded tiles that are only accumulated ---------------------------------------------------------------
    def accumulated(self) -> list[ir.Statement]:
        """Tiles are free one iteration after their products are issued, computed operands at once."""
        early, held, before = self.memory.early, self.memory.held, k.name("before")
        free = k.run("release", k.name(early.empty)[before])
        if self.computes_operands:
            first, last = [], list[ir.Statement]()
            behind = [awaited(0), *early.release()]
        else:
            first, last = [k.declare("int", "before", 0)], [free]
            keep = k.assign(before, k.name(EARLY).member("slot"))
            behind = [awaited(1), k.when(STEP > 0, free), keep, following(EARLY)]
        issued = begun(*self.issue_early())
        step = [*early.read(), *self.computed.operands, *issued, *self.computed.body, *behind]
        there = [awaited(0), *pinned(names(self.plan.early))]
        return [*first, self.units.each_step(*step), *there, *last, *held.release()]

    # --- products of computed values --------------------------------------------------------------------------------------
    def place(self) -> list[tuple[ir.Type | str, str]]:
        """The parameter that says where numbers of columns are, where there are some."""
        kind = k.of_type("Place", self.memory.side.stages, const=True, reference=True)
        return [(kind, "place")] if self.memory.vectors else []

    def computes(self, function: str) -> ir.Do:
        """The call of a function of the iteration's values."""
        at = [EARLY if self.keeps_early else "ahead"] if self.memory.vectors else []
        return k.run(function, STEP, *at)

    def early_next(self, test: ir.Expression) -> list[ir.Statement]:
        """Wait for the next early tiles, where there are some."""
        return [k.when(test, *self.memory.early.wait())] if self.early_waits else []

    def computed_all(self) -> list[ir.Statement]:
        """Everything of an iteration is computed."""
        return [following("ahead"), *(self.memory.early.release() if self.keeps_early else [])]

    def late(self) -> list[ir.Statement]:
        """Scores, what is computed of them, and late products of the iteration before."""
        m, c = self.memory, self.computed
        known = [wait("known", "place")] if m.vectors else []
        vectors, position = m.named_vectors("place", const=True), self.units.step_position()
        parameters = [("int", "step"), *self.place()]
        last = [*self.late_alone(), awaited(0), *self.late_there()]
        return [
            k.define("scores", parameters, *known, *vectors, position, *c.body),
            k.define("words", parameters, *vectors, position, *c.weights, *c.words),
            placed(m.late.stages, "ahead", LATE),
            k.scope(k.let("int", "step", 0), *self.first_step()),
            k.loop("step", STEPS, *self.further_step(), start=1),
            k.scope(k.let("int", "step", STEPS), *last),
        ]

    def first_step(self) -> list[ir.Statement]:
        """The first iteration has no late products of another one."""
        return [
            *self.memory.early.read(),
            *(self.memory.late.read() if self.plan.early_needs_late else []),
            *begun(*self.issue_early()),
            *self.scores_there(0),
            self.computes("scores"),
            self.computes("words"),
            *self.computed_all(),
            *self.early_next(STEPS > 1),
        ]

    def further_step(self) -> list[ir.Statement]:
        """An iteration beside the late products of the one before."""
        early, late = self.memory.early, self.memory.late
        tiles = [*early.addresses(), *(late.read("ahead") if self.plan.early_needs_late else [])]
        return [
            *([] if self.early_waits else early.wait()),
            *self.turn("wait_named", "group"),
            *begun(k.scope(*tiles, *self.issue_early())),
            *late.wait(),
            *begun(k.scope(*late.addresses(), *self.issue_late())),
            *self.turn("arrive_named", (k.name("group") + 1) % self.plan.consumers),
            *self.scores_there(1),
            self.computes("scores"),
            *self.early_next(STEP + 1 < STEPS),
            awaited(0),
            *self.late_there(),
            *self.computed.rescale,
            self.computes("words"),
            *self.computed_all(),
        ]

    # --- scores of the next iteration -------------------------------------------------------------------------------------
    def ahead(self) -> list[ir.Statement]:
        """Scores of the next iteration and late products of the one before run beside what is computed of this one's. What
        holds scores changes places with what will hold the next ones."""
        early, own = self.memory.early, names(self.plan.early)
        both = [(f, f"{f}_next") for f in own]
        now, then = [f for pair in both for f in pair], [f for pair in both for f in pair[::-1]]

        def call(function: str, *args: Value) -> ir.Do:
            return k.run(function, *args)

        return [
            *(k.declare("float", f"{p.out}_next", dims=(self.plan.row_tiles, p.cols // 8, 4)) for p in self.plan.early),
            placed(self.memory.late.stages, "ahead", LATE),
            k.define("issue_scores", [(AUTO, f) for f in own], *early.read(), *begun(*self.issue_early())),
            k.define("free_scores", [("int", "step")], *early.release(), *self.free_held()),
            k.define("issue_late", [("int", "step")], *self.late_alone()),
            k.define("free_late", [], *self.late_there()),
            k.define("iterate", [("auto", "first"), *((AUTO, f) for f in now), ("int", "step")], *self.iteration()),
            call("issue_scores", *own),
            awaited(0),
            *pinned(own),
            call("free_scores", 0),
            call("iterate", k.call("Yes"), *now, 0),
            k.loop(
                "step",
                STEPS,
                call("iterate", k.call("No"), *then, STEP),
                k.when(k.binary("==", STEP + 1, STEPS), ir.Break()),
                call("iterate", k.call("No"), *now, STEP + 1),
                start=1,
                step=2,
            ),
            call("issue_late", STEPS),
            awaited(0),
            call("free_late"),
        ]

    def iteration(self) -> list[ir.Statement]:
        """An iteration whose scores are there; `first` says at compile time whether there is one before."""
        m, c, more = self.memory, self.computed, STEP + 1 < STEPS
        later = k.negated(k.name("value", owner=k.of_type("decltype", "first")))
        coming = [f"{f}_next" for f in names(self.plan.early)]
        return [
            self.units.step_position(),
            ir.If(later, (k.run("issue_late", STEP),), static=True),
            k.when(more, k.run("issue_scores", *coming)),
            *([wait("known", "ahead")] if m.vectors else []),
            *m.named_vectors("ahead", const=True),
            *c.body,
            *c.weights,
            awaited(0),
            k.when(more, *pinned(coming), k.run("free_scores", STEP + 1)),
            ir.If(later, (k.run("free_late"),), static=True),
            *c.rescale,
            *c.words,
            following("ahead"),
        ]
