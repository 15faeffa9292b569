"""The engine `rows`: block graphs without contractions as CUDA kernels whose threads hold rows in registers.

Threads have *slots* of `width` neighbours along the axis that most of memory is walked along. Three forms:
1. That axis belongs to a row (`along`): `lanes` neighbouring threads, or all of several blocks of a cluster, share a row;
   slot s of lane l holds the row's chunk s * lanes + l.
2. It does not, and rows are reduced: a thread holds `width` rows, `lanes` threads share them, `threads / lanes`
   neighbouring threads have neighbouring rows; slot s of lane l holds position s * lanes + l of each.
3. Nothing is reduced: a thread has `slots` chunks.

Level by level (see `search/mugraph/row_values.py`) values of fewer axes are computed first, then slot by slot the others, then
reductions meet over lanes. What a later level reads again is kept; what was loaded is kept as it was stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from mirage_cli.codegen.requests.request import Kernel, Launch, Parameter, Request
from mirage_cli.codegen.rows.positions import ACROSS, LANE, REAL, SCRATCH, RowPositions, RowProgram, used
from mirage_cli.codegen.terms import expressions
from mirage_cli.codegen.terms.expressions import SYNC, THREAD, ctype, stored_as
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.search.mugraph.row_values import LEAVES, REDUCTIONS, Value, rows_of
from mirage_cli.search.schedules.rows import check, shape_of

CHAINS = 4  #: sums of a thread that go on side by side
JOIN = {"sum": "Sum", "top": "Max"}
CLUSTER_ARRIVE, CLUSTER_WAIT = k.run("cluster_arrive"), k.run("cluster_wait")


@dataclass(slots=True)
class Section:
    """Statements in a loop over slots: before, in and after the loop over the elements of a chunk."""

    first: list[ir.Statement] = field(default_factory=list)
    each: list[ir.Statement] = field(default_factory=list)
    last: list[ir.Statement] = field(default_factory=list)

    def add(self, along_chunk: bool, statement: ir.Statement) -> None:
        """A statement for each element, or one for the chunk."""
        (self.each if along_chunk else self.first).append(statement)

    def chunk(self, variable: str, value: ir.Expression, last: ir.Statement) -> None:
        """A variable for the numbers of a chunk, and what is done with it."""
        self.first.append(k.declare("float", variable, dims=["WIDTH"]))
        self.each.append(k.assign(k.name(variable)["j"], value))
        self.last.append(last)

    def statements(self, unroll: str = "") -> tuple[ir.Statement, ...]:
        """All of them, for one slot."""
        return (*self.first, *(each(*self.each, unroll=unroll) if self.each else ()), *self.last)


def rows_kernel(r: Request) -> Kernel:
    """A kernel of the engine `rows`. Raises Refused."""
    r.schedule.validate(r.block)
    program = RowProgram(rows_of(r.program, r.block), shape_of(r.schedule))
    check(program.rows, program.shape, r.target)
    return RowEmitter(program, r).kernel()


def each(*body: ir.Statement, unroll: str = k.UNROLL) -> tuple[ir.Statement, ...]:
    """A loop over the elements of a chunk."""
    return (k.loop("j", "WIDTH", *body, unroll=unroll),)


def held(variable: str, slot: bool, element: bool = False) -> ir.Expression:
    """What a thread holds of a value, of the current slot and element where it differs there."""
    of: ir.Expression = k.name(variable)
    of = of["s"] if slot else of
    return of["j"] if element else of


class RowEmitter(RowPositions):
    """Makes the statements of a row program."""

    # --- values -------------------------------------------------------------------------------------------------------
    def read_type(self, read: str) -> str:
        """The C type of what is read; numbers that share bytes are floats from then on."""
        dtype = self.dtype_of(read)
        return ctype(dtype) if dtype.per_byte == 1 else "float"

    def is_packed(self, read: str, element: bool) -> bool:
        """True if a chunk is read as it is stored, numbers that share bytes."""
        return element and self.dtype_of(read).per_byte > 1 and self.whole(self.reads[read].access)

    def use(self, name: str, level: int) -> ir.Expression:
        """A value, read in a section of a level."""
        v = self.r.values[name]
        slot, element = self.varies(v.axes)
        match v.op:
            case "load":
                read = held(f"{v.read}_in", slot)
                if self.is_packed(v.read, element):
                    return k.call("number_in", read, "j")
                read = read.member("v")["j"] if element else read
                return read if self.read_type(v.read) == "float" else k.call("to_float", read)
            case "const":
                return expressions.float_number(v.number if v.number is not None else 0)
            case "iota":
                return k.cast("float", k.total(self.position(v.axis, True)))
            case "extent":
                return k.cast("float", self.extent(self.p.extent(v.axis)))
        if slot and v.level != level:
            return held(f"{name}_kept", slot, element)
        value = held(name, False, element and not slot)
        return k.call("to_float", value) if name in self.doubles else value

    def spell(self, v: Value) -> ir.Expression:
        """The value of an operator."""
        if scaled := self.scaled_sum(v):
            return scaled
        args = [self.use(a, v.level) for a in v.args]
        if self.quick(v):
            by = held(f"{v.args[1]}_by", False, self.varies(self.r.values[v.args[1]].axes)[1])
            value: ir.Expression = k.call("divide", args[0], by, static=[self.exact])
        else:
            value = expressions.applied(v.op, args)
        return expressions.quotient(self.hollow, args[1], value) if v.op == "div" else value

    def scaled_sum(self, v: Value) -> ir.Expression | None:
        """A sum in float64 that is multiplied or divided by a constant; None for other values."""
        for a, by in (v.args, v.args[::-1]) if v.op == "mul" else (v.args,) if v.op == "div" else ():
            number = self.r.values[by].number
            if a in self.doubles and isinstance(number, Fraction):
                return expressions.scaled(held(a, False, self.varies(self.r.values[a].axes)[1]), v.op, number)
        return None

    def kind(self, v: Value) -> str:
        """The C type in which a reduction is made."""
        return "double" if v.name in self.doubles else "float"

    def slotwise(self) -> list[tuple[Value, bool]]:
        """The elementwise values that differ from slot to slot, and whether they do within a chunk."""
        found = [(v, *self.varies(v.axes)) for v in self.r.values.values() if v.op not in (*LEAVES, *REDUCTIONS)]
        return [(v, element) for v, slot, element in found if slot]

    def reduced(self, level: int) -> list[Value]:
        """The reductions that end a level."""
        return [v for v in self.r.values.values() if v.op in REDUCTIONS and v.level == level + 1]

    # --- loads --------------------------------------------------------------------------------------------------------
    def loads(self, own: Sequence[Value], fixed: bool = False) -> list[ir.Statement]:
        """Reads, all at once; of `fixed` ones no row matters."""
        declared, outside, section = list[ir.Statement](), list[ir.Statement](), Section()
        for v in own:
            slot, element = self.varies(v.axes)
            gathered = element and not self.whole(self.reads[v.read].access)
            type_ = k.of_type("Chunk", self.read_type(v.read), "WIDTH") if element else self.read_type(v.read)
            if self.is_packed(v.read, element):
                type_ = k.of_type("Numbers", self.dtype_of(v.read).name, "WIDTH")
            declared.append(k.declare(type_, f"{v.read}_in", dims=["SLOTS"] if slot else []))
            load = self.load(v.read, slot, element)
            if slot:
                section.add(gathered, load)
            else:
                guarded = self.ragged() and not fixed and bool(v.axes)
                outside.append(k.when(REAL if guarded else None, *(each(load, unroll="") if gathered else [load])))
        return [*declared, *outside, *self.section(section, fixed)]

    def load(self, read: str, slot: bool, element: bool) -> ir.Statement:
        """Reads an element, or a chunk where that is one access."""
        place, access = held(f"{read}_in", slot), self.reads[read].access
        if not element:
            return k.assign(place, self.stored(read, access, False))
        if not self.whole(access):
            return k.assign(place.member("v")["j"], self.stored(read, access, True))
        if self.is_packed(read, element):
            found = k.total(self.offset(access, False))
            of = [self.dtype_of(read).name, "WIDTH"]
            return k.assign(place, k.call("load_numbers", k.name("p").member(read), found, static=of))
        return k.assign(place, k.call("load_chunk", self.place(read, access), static=[self.read_type(read), "WIDTH"]))

    def when_read(self) -> tuple[list[Value], list[Value], list[Value]]:
        """Values read before the kernel in front of this one has ended, once for all turns, and in every turn."""
        early, once, rest = list[Value](), list[Value](), list[Value]()
        for v in self.r.values.values():
            if v.op == "load":
                fixed = self.shape.turns == 1 or not v.axes & frozenset(self.r.kept)
                constant = self.reads[v.read].source in self.request.constants
                (early if constant and fixed else once if fixed and self.shape.turns > 1 else rest).append(v)
        return early, once, rest

    def ahead(self) -> list[ir.Statement]:
        """Asks for what is read later, so that it comes while the kernel before this one ends."""
        section, constants = Section(), self.request.constants
        for v in self.r.values.values():
            if v.op == "load" and self.reads[v.read].source not in constants and all(self.varies(v.axes)):
                access = self.reads[v.read].access
                if self.whole(access) and self.dtype_of(v.read).per_byte == 1:
                    section.first.append(k.do(k.call("fetch_ahead", self.place(v.read, access))))
        return self.section(section)

    def section(self, n: Section, fixed: bool = False) -> list[ir.Statement]:
        """A loop over slots (`fixed`: whether there is the row or not); nothing where it has no statements."""
        body = n.statements(k.UNROLL)
        if not body:
            return []
        positions, tests = self.inner(fixed)
        here = used(positions, body, tests)
        return [k.loop("s", "SLOTS", *here, k.when(k.both(*tests), *body), unroll=k.UNROLL)]

    # --- levels -------------------------------------------------------------------------------------------------------
    def level(self, level: int) -> list[ir.Statement]:
        """Statements that compute and store between two rounds of reductions, and the round behind them."""
        nodes, section = self.few(level), Section()
        for v, element in self.slotwise():
            if v.level == level:
                section.add(element, k.let("float", v.name, self.spell(v)))
                if self.r.later(v.name):
                    section.add(element, k.assign(held(f"{v.name}_kept", True, element), v.name))
        for v in self.reduced(level):
            part, x = f"{v.name}_part", k.of_type(self.kind(v), reference=True)
            nodes.append(k.declare(self.kind(v), part, dims=[self.parts(v)]))
            nodes.append(ir.ForEach(x, "x", k.name(part), (k.assign("x", k.call(f"{JOIN[v.op]}::none")),)))
            self.gather(v, level, section)
        stores = self.stores(level, section)
        return [*nodes, *self.section(section), *stores, *self.meet(level)]

    def gather(self, v: Value, level: int, section: Section) -> None:
        """Adds what a thread has of a reduction to its parts. A sum in float64 takes a chunk at a time: the sum of a chunk of
        equal numbers is exact in float32."""
        join, many, value = JOIN[v.op], self.parts(v), self.use(v.args[0], level)
        inside_chunk, wide, chunk = self.r.along or self.varies(v.axes)[1], v.name in self.doubles, f"{v.name}_chunk"
        at_once = wide and self.r.along
        to = k.name(f"{v.name}_part")[k.name("j") % many if inside_chunk and many > 1 else 0]
        own = k.call("join_parts", chunk, static=[join, "WIDTH"]) if at_once else value
        joined = k.assign(to, k.call(f"{join}::join", to, k.converted("double", own) if wide else own))
        if at_once:
            section.chunk(chunk, value, joined)
        else:
            section.add(inside_chunk, joined)

    def few(self, level: int) -> list[ir.Statement]:
        """The values that are the same in all slots."""
        plain, inside, declared = list[ir.Statement](), list[ir.Statement](), list[ir.Statement]()
        for v in self.r.values.values():
            slot, element = self.varies(v.axes)
            if slot or v.level != level or v.op in LEAVES:
                continue
            made = [("float", v.name, self.spell(v))] if v.op not in REDUCTIONS else []
            if v.name in self.by:
                made.append(("Divisor", f"{v.name}_by", k.call("divisor", held(v.name, False, element))))
            for type_, variable, value in made:
                if element:
                    declared.append(k.declare(type_, variable, dims=["WIDTH"]))
                    inside.append(k.assign(k.name(variable)["j"], value))
                else:
                    plain.append(k.let(type_, variable, value))
        return [*plain, *declared, *(each(*inside) if inside else ())]

    def parts(self, v: Value) -> int:
        """Numbers in which a thread gathers a reduction."""
        if self.r.along:
            return 1 if v.name in self.doubles else min(CHAINS, self.shape.width)
        return self.shape.width if self.varies(v.axes)[1] else 1

    def kept(self) -> list[ir.Statement]:
        """Declarations of what later levels read again."""
        found = [(v.name, element) for v, element in self.slotwise() if self.r.later(v.name)]
        return [k.declare("float", f"{n}_kept", dims=["SLOTS", "WIDTH"][: 1 + element]) for n, element in found]

    # --- reductions ---------------------------------------------------------------------------------------------------
    def meet(self, level: int) -> list[ir.Statement]:
        """The reductions over the lanes of a row."""
        reductions = self.reduced(level)
        return self.meet_along(reductions) if self.r.along else self.meet_across(reductions)

    def room(self, v: Value, many: int) -> ir.Expression:
        """The place of so many numbers that threads show one another."""
        wide = v.name in self.doubles
        at = self.scratch + (self.scratch % 2 if wide else 0)
        self.scratch = at + many * (2 if wide else 1)
        return k.reinterpret("double*", SCRATCH + at) if wide else SCRATCH + at

    def meet_along(self, found: Sequence[Value]) -> list[ir.Statement]:
        """Over neighbouring lanes, then over warps."""
        s, before, after = self.shape, list[ir.Statement](), list[ir.Statement]()
        warps, own = s.lanes * s.cluster // 32, s.threads // 32
        for v in found:
            join, parts = JOIN[v.op], k.call("join_parts", f"{v.name}_part", static=[JOIN[v.op], self.parts(v)])
            value = k.call("join_lanes", parts, static=[join, min(s.lanes, 32)])
            before.append(k.declare(self.kind(v), v.name, value))
            if s.cluster > 1:
                # The first time, all blocks are there before any of them writes into another one's memory.
                before += [] if self.scratch else [CLUSTER_WAIT]
                place = self.room(v, warps)
                before.append(k.do(k.call("show_all", place, v.name, static=[s.cluster, own])))
            elif s.lanes > 32:
                place = self.room(v, own)
                before.append(k.do(k.call("show", place, v.name)))
                place = place + THREAD / "LANES" * warps
            else:
                continue
            after.append(k.assign(v.name, k.call("join_warps", place, static=[join, warps])))
        meeting = [CLUSTER_ARRIVE, CLUSTER_WAIT] if s.cluster > 1 else [SYNC]
        return [*before, *(meeting if after else []), *after]

    def meet_across(self, found: Sequence[Value]) -> list[ir.Statement]:
        """Over threads that lie apart."""
        s, before, after = self.shape, list[ir.Statement](), list[ir.Statement]()
        for v in found:
            many, element = self.parts(v), self.varies(v.axes)[1]
            loops = [("j", many)] if element else []
            value: ir.Expression = k.name(f"{v.name}_part")["j" if element else 0]
            if s.lanes > 1:
                place = self.room(v, s.threads * many)
                place = place + k.name("j") * "THREADS" if element else place
                before += k.nested(loops, k.assign(place[THREAD], value))
                value = k.call("join_shown", place + THREAD % ACROSS, static=[JOIN[v.op], "LANES", ACROSS])
            after.append(k.declare(self.kind(v), v.name, dims=["WIDTH"] if element else []))
            after += k.nested(loops, k.assign(held(v.name, False, element), value))
        return [*before, *([SYNC] if before else []), *after]

    # --- stores -------------------------------------------------------------------------------------------------------
    def stores(self, level: int, section: Section) -> list[ir.Statement]:
        """Adds the outputs that are known at a level to the slots' statements; those stored once are returned."""
        once = list[ir.Statement]()
        for n, (name, out) in enumerate(zip(self.r.outputs, self.p.outputs, strict=True)):
            if self.r.values[name].level != level:
                continue
            axes, y, value = frozenset(s.axis for s in out.access if s.axis is not None), f"y{n}", self.use(name, level)
            slot, element = self.varies(axes)
            guard = k.both(*([] if slot else self.alone()), *self.only(axes))
            own = section if slot else Section()
            if element and self.whole(out.access):
                rounded = k.call("rounded", f"{y}_out", static=[ctype(out.dtype)])
                store = k.do(k.call("store_chunk", self.place(y, out.access), rounded))
                own.chunk(f"{y}_out", value, k.when(guard, store))
                once += () if slot else own.statements()
                continue
            put: ir.Statement = k.do(k.call("put", self.stored(y, out.access, element), value))
            if slot:
                section.add(element, k.when(guard, put))
            else:
                once.append(k.when(guard, *(each(put, unroll="") if element else [put])))
        return once

    def alone(self) -> list[ir.Expression]:
        """Conditions that a thread stores what is the same in all slots: it is the first one of a row that there is."""
        first = [k.binary("==", LANE, 0)] if self.r.row else []
        return [*first, *([REAL] if self.ragged() else [])]

    def only(self, stored: frozenset[str]) -> list[ir.Expression]:
        """Conditions for the positions along axes that a stored tensor lacks: the first ones store."""
        lacking = [a for a in (*self.r.kept, *self.r.row) if a not in stored and self.p.extent(a) != 1]
        slot, _ = self.varies(stored)
        return [k.binary("==", f"i_{a}", 0) for a in lacking if slot or a not in self.r.row]

    # --- a kernel -----------------------------------------------------------------------------------------------------
    def blocks(self) -> ir.Expression:
        """The number of blocks."""
        own, cluster = self.shape.units(self.r), self.shape.cluster
        if isinstance(self.units, int):
            return ir.lift(-(-self.units // own) * cluster)
        groups = (self.extent(self.units) + (own - 1)) / own
        return groups * cluster if cluster > 1 else groups

    def body(self) -> tuple[list[ir.Statement], list[ir.Statement], int]:
        """Statements before and after the kernel in front of this one has ended, and floats that threads show one another."""
        s, dependent = self.shape, self.request.target.features.dependent_launch
        early, once, rest = self.when_read()
        before = [*(self.ahead() if s.ahead and s.turns == 1 and dependent else []), *self.loads(early, s.turns > 1)]
        after = [*self.loads(rest), *self.kept()]
        for level in range(self.r.levels + 1):
            after += self.level(level)
        floats = self.scratch + (self.scratch % 2 if self.doubles else 0)
        if s.turns == 1:
            return [*used([*self.lane(), *self.outer()], before, after), *before], after, floats
        shown = k.name("all_scratch") + k.name("turn") % 2 * floats
        scratch = [k.let("float*", "scratch", shown)] if floats else []
        turn = k.loop("turn", "TURNS", *used(self.outer(), after), *scratch, *after, unroll="#pragma unroll 1")
        after = [*self.loads(once, True), turn]
        return [*used(self.lane(), before, after), *before], after, 2 * floats

    def constants(self) -> list[ir.Statement]:
        """Types and numbers that are known when the kernel is compiled."""
        s = self.shape
        numbers = {"THREADS": s.threads, "LANES": s.lanes, "SLOTS": s.slots, "WIDTH": s.width}
        turns = [k.constants("int", {"TURNS": s.turns})] if s.turns > 1 else []
        offset = k.alias("offset_t", "int64_t" if self.wide else "int", unused=True)
        return [offset, k.constants("int", numbers, unused=True), *turns]

    def shared(self) -> list[ir.Statement]:
        """The shared memory in which threads show one another numbers."""
        memory = k.declare("unsigned char", "shared", dims=[k.number("")], storage="extern __shared__ __align__(1024)")
        own = "all_scratch" if self.shape.turns > 1 else "scratch"
        return [memory, k.let("float*", own, k.reinterpret("float*", "shared"))]

    def kernel(self) -> Kernel:
        """The kernel and its launch."""
        s, r = self.shape, self.request
        before, after, floats = self.body()
        launch = Launch(
            tuple(Parameter(i.name, stored_as(self.dtype_of(i.name)), i.source) for i in self.p.inputs),
            tuple(Parameter(f"y{n}", ctype(o.dtype)) for n, o in enumerate(self.p.outputs)),
            r.numbers,
            (self.blocks(),),
            s.threads,
            4 * floats,
            s.cluster,
            r.target.features.dependent_launch,
        )
        body = (
            k.do(k.call("launch_dependents")),
            *([k.do(k.call("cluster_arrive_relaxed"))] if s.cluster > 1 else []),
            *self.constants(),
            *(self.shared() if floats else []),
            *(
                k.let("offset_t", f"s_{n}", k.cast("offset_t", k.name("p").member(f"s_{n}")), unused=True)
                for n in r.numbers
            ),
            *before,
            k.do(k.call("wait_for_earlier")),
            *after,
        )
        kernel = ir.Kernel(f"kernel{r.number}", "p", launch.fields(), (s.threads,), body)
        return Kernel(self.program, kernel, launch, ("rows.cuh",))
