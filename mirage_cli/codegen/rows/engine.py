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
from typing import Any

from mirage_cli.codegen.printers.cuda import CudaEmitter
from mirage_cli.codegen.printers.statements import PAIRED
from mirage_cli.codegen.read_back import read_back
from mirage_cli.codegen.requests.request import Kernel, Request, quotient, scaled
from mirage_cli.codegen.rows.positions import Node, RowPositions, RowProgram, lines_node, used
from mirage_cli.kernel_language.literals import c_float
from mirage_cli.lax.ir.program import Output
from mirage_cli.lax.ops import lookup
from mirage_cli.search.mugraph.row_values import LEAVES, REDUCTIONS, Value, rows_of
from mirage_cli.search.schedules.rows import check, shape_of

CHAINS = 4  #: sums of a thread that go on side by side
JOIN = {"sum": "Sum", "top": "Max"}


@dataclass(slots=True)
class Section:
    """Statements in a loop over slots: before, in and after the loop over the elements of a chunk."""

    first: list[str] = field(default_factory=list)
    each: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)

    def add(self, along_chunk: bool, line: str) -> None:
        """A statement for each element, or one for the chunk."""
        (self.each if along_chunk else self.first).append(line)


def rows_kernel(r: Request) -> Kernel:
    """A kernel of the engine `rows`. Raises Refused."""
    r.schedule.validate(r.block)
    program = RowProgram(rows_of(r.program, r.block), shape_of(r.schedule))
    check(program.rows, program.shape, r.target)
    printer = RowEmitter(program, r.number, r.symbols, r.constants, r.hollow)
    return read_back(r, program, printer.context(r.target.features.dependent_launch))


class RowEmitter(RowPositions):
    """Prints a row program as the context of `rows.j2`."""

    # --- values -------------------------------------------------------------------------------------------------------
    def use(self, name: str, level: int) -> str:
        """A value, read in a section of a level."""
        v = self.r.values[name]
        slot, element = self.varies(v.axes)
        index = ("[s]" if slot else "") + ("[j]" if element else "")
        match v.op:
            case "load":
                text = f"{v.read}_in" + ("[s]" if slot else "") + (".v[j]" if element else "")
                dtype = self.p.sources[self.reads[v.read].source].dtype
                return text if dtype.name == "f32" else f"to_float({text})"
            case "const":
                return c_float(v.number if v.number is not None else 0)
            case "iota":
                return f"static_cast<float>({self.position(v.axis, True)})"
            case "extent":
                return f"static_cast<float>({self.extent(self.p.extent(v.axis))})"
        if not slot:
            return f"to_float({name}{index})" if name in self.doubles else name + index
        return name if v.level == level else f"{name}_kept{index}"

    def spell(self, v: Value) -> str:
        """The C expression of an operator."""
        if self.quick(v):
            by = self.r.values[v.args[1]]
            index = "[j]" if self.varies(by.axes)[1] else ""
            text = f"divide<{str(self.exact).lower()}>({self.use(v.args[0], v.level)}, {by.name}_by{index})"
            return quotient(self.hollow, self.use(v.args[1], v.level), text)
        if product := self.scaled_sum(v):
            return product
        args = [self.use(a, v.level) for a in v.args]
        text = f"m_{v.op}({', '.join(args)})" if v.op in PAIRED else lookup(v.op).c.format(*args)
        return quotient(self.hollow, args[1], text) if v.op == "div" else text

    def scaled_sum(self, v: Value) -> str:
        """C++ of a sum in float64 that is multiplied or divided by a constant; nothing for other values."""
        for a, by in (v.args, v.args[::-1]) if v.op == "mul" else (v.args,) if v.op == "div" else ():
            number = self.r.values[by].number
            if a in self.doubles and isinstance(number, Fraction):
                return scaled(a + ("[j]" if self.varies(self.r.values[a].axes)[1] else ""), v.op, number)
        return ""

    def kind(self, v: Value) -> str:
        """The C type in which a reduction is made."""
        return "double" if v.name in self.doubles else "float"

    def computed(self, level: int) -> list[Value]:
        """The elementwise values of a level."""
        return [v for v in self.r.values.values() if v.level == level and v.op not in (*LEAVES, *REDUCTIONS)]

    def reduced(self, level: int) -> list[Value]:
        """The reductions that end a level."""
        return [v for v in self.r.values.values() if v.op in REDUCTIONS and v.level == level + 1]

    # --- loads --------------------------------------------------------------------------------------------------------
    def loads(self, own: Sequence[Value], fixed: bool = False) -> list[Node]:
        """Reads, all at once; of `fixed` ones no row matters."""
        declared, outside, section = list[str](), list[str](), Section()
        for v in own:
            slot, element = self.varies(v.axes)
            access, place = self.reads[v.read].access, f"{v.read}_in" + ("[s]" if slot else "")
            kind = CudaEmitter.types[self.p.sources[self.reads[v.read].source].dtype.name]
            held = f"Chunk<{kind}, WIDTH>" if element else kind
            declared.append(f"{held} {v.read}_in{'[SLOTS]' if slot else ''};")
            if not element:
                line = f"{place} = p.{v.read}[{self.offset(access, False)}];"
            elif self.whole(access):
                line = f"{place} = load_chunk<{kind}, WIDTH>(p.{v.read} + {self.offset(access, False)});"
            else:
                line = f"{place}.v[j] = p.{v.read}[{self.offset(access, True)}];"
            gathered = element and not self.whole(access)
            if slot:
                section.add(gathered, line)
            else:
                line = f"for (int j = 0; j < WIDTH; ++j) {line}" if gathered else line
                guarded = self.ragged() and not fixed and bool(v.axes)
                outside.append(f"if (real) {line}" if guarded else line)
        return [*lines_node([*declared, *outside]), *self.section(section, fixed)]

    def when_read(self) -> tuple[list[Value], list[Value], list[Value]]:
        """Values read before the kernel in front of this one has ended, once for all turns, and in every turn."""
        early, once, rest = list[Value](), list[Value](), list[Value]()
        for v in self.r.values.values():
            if v.op == "load":
                fixed = self.shape.turns == 1 or not v.axes & frozenset(self.r.kept)
                constant = self.reads[v.read].source in self.constants
                (early if constant and fixed else once if fixed and self.shape.turns > 1 else rest).append(v)
        return early, once, rest

    def ahead(self) -> list[Node]:
        """Asks for what is read later, so that it comes while the kernel before this one ends."""
        section = Section()
        for v in self.r.values.values():
            if v.op == "load" and self.reads[v.read].source not in self.constants and all(self.varies(v.axes)):
                access = self.reads[v.read].access
                if self.whole(access):
                    section.first.append(f"fetch_ahead(p.{v.read} + {self.offset(access, False)});")
        return self.section(section)

    def section(self, n: Section, fixed: bool = False) -> list[Node]:
        """A loop over slots (`fixed`: whether there is the row or not); nothing where it has no statements."""
        if not (n.first or n.each or n.last):
            return []
        positions, tests = self.inner()
        tests = [t for t in tests if not (fixed and t == "real")]
        text = "\n".join([*n.first, *n.each, *n.last, *tests])
        return [
            {
                "kind": "slots",
                "positions": used(positions, text),
                "inside": " && ".join(tests),
                "first": n.first,
                "each": n.each,
                "last": n.last,
            }
        ]

    # --- levels -------------------------------------------------------------------------------------------------------
    def level(self, level: int) -> list[Node]:
        """Nodes that compute and store between two rounds of reductions, and the round behind them."""
        nodes = self.few(level)
        section = Section()
        for v in self.computed(level):
            slot, element = self.varies(v.axes)
            if slot:
                section.add(element, f"const float {v.name} = {self.spell(v)};")
                if self.r.later(v.name):
                    section.add(element, f"{v.name}_kept[s]{'[j]' if element else ''} = {v.name};")
        parts = []
        for v in self.reduced(level):
            parts.append(f"{self.kind(v)} {v.name}_part[{self.parts(v)}];")
            parts.append(f"for ({self.kind(v)}& x : {v.name}_part) x = {JOIN[v.op]}::none();")
            self.gather(v, level, section)
        stores = self.stores(level, section)
        return [*nodes, *lines_node(parts), *self.section(section), *lines_node(stores), *self.meet(level)]

    def gather(self, v: Value, level: int, section: Section) -> None:
        """Adds what a thread has of a reduction to its parts. A sum in float64 takes a chunk at a time: the sum of a chunk of
        equal numbers is exact in float32."""
        join, many, value = JOIN[v.op], self.parts(v), self.use(v.args[0], level)
        inside_chunk = self.r.along or self.varies(v.axes)[1]
        to = f"{v.name}_part[{'j % ' + str(many) if inside_chunk and many > 1 else '0'}]"
        if v.name not in self.doubles:
            section.add(inside_chunk, f"{to} = {join}::join({to}, {value});")
        elif not self.r.along:
            section.add(inside_chunk, f"{to} = {join}::join({to}, double({value}));")
        else:
            section.first.append(f"float {v.name}_chunk[WIDTH];")
            section.each.append(f"{v.name}_chunk[j] = {value};")
            section.last.append(f"{to} = {join}::join({to}, double(join_parts<{join}, WIDTH>({v.name}_chunk)));")

    def few(self, level: int) -> list[Node]:
        """The values that are the same in all slots."""
        plain, each, declared = list[str](), list[str](), list[str]()
        for v in self.r.values.values():
            slot, element = self.varies(v.axes)
            if slot or v.level != level or v.op in LEAVES:
                continue
            if v.op not in REDUCTIONS:
                if element:
                    declared.append(f"float {v.name}[WIDTH];")
                    each.append(f"{v.name}[j] = {self.spell(v)};")
                else:
                    plain.append(f"const float {v.name} = {self.spell(v)};")
            if v.name in self.by and element:
                declared.append(f"Divisor {v.name}_by[WIDTH];")
                each.append(f"{v.name}_by[j] = divisor({v.name}[j]);")
            elif v.name in self.by:
                plain.append(f"const Divisor {v.name}_by = divisor({v.name});")
        loop = [{"kind": "each", "lines": each}] if each else []
        return [*lines_node([*plain, *declared]), *loop]

    def parts(self, v: Value) -> int:
        """Numbers in which a thread gathers a reduction."""
        if self.r.along and v.name in self.doubles:
            return 1
        if self.r.along:
            return min(CHAINS, self.shape.width)
        return self.shape.width if self.varies(v.axes)[1] else 1

    def kept(self) -> list[str]:
        """Declarations of what later levels read again."""
        declarations = []
        for v in self.r.values.values():
            slot, element = self.varies(v.axes)
            if slot and v.op not in (*LEAVES, *REDUCTIONS) and self.r.later(v.name):
                declarations.append(f"float {v.name}_kept[SLOTS]{'[WIDTH]' if element else ''};")
        return declarations

    # --- reductions ---------------------------------------------------------------------------------------------------
    def meet(self, level: int) -> list[Node]:
        """The reductions over the lanes of a row."""
        reductions = self.reduced(level)
        if not reductions:
            return []
        return lines_node(self.meet_along(reductions) if self.r.along else self.meet_across(reductions))

    def room(self, v: Value, many: int) -> str:
        """The place of so many numbers that threads show one another."""
        wide = v.name in self.doubles
        at = self.scratch + (self.scratch % 2 if wide else 0)
        self.scratch = at + many * (2 if wide else 1)
        return f"reinterpret_cast<double*>(scratch + {at})" if wide else f"scratch + {at}"

    def meet_along(self, found: Sequence[Value]) -> list[str]:
        """Over neighbouring lanes, then over warps."""
        s, before, after = self.shape, list[str](), list[str]()
        begun = ["cluster_wait();"] if s.cluster > 1 and not self.scratch else []  # all blocks are there
        for v in found:
            join, many = JOIN[v.op], self.parts(v)
            lanes = min(s.lanes, 32)
            before.append(
                f"{self.kind(v)} {v.name} = join_lanes<{join}, {lanes}>(join_parts<{join}, {many}>({v.name}_part));"
            )
            warps = s.lanes * s.cluster // 32
            if s.cluster > 1:
                place = self.room(v, warps)
                before.append(f"show_all<{s.cluster}, {s.threads // 32}>({place}, {v.name});")
                after.append(f"{v.name} = join_warps<{join}, {warps}>({place});")
            elif s.lanes > 32:
                place = self.room(v, s.threads // 32)
                before.append(f"show({place}, {v.name});")
                at = f"{place} + threadIdx.x / LANES * {warps}"
                after.append(f"{v.name} = join_warps<{join}, {warps}>({at});")
        if s.cluster > 1:
            shown = next(k for k, line in enumerate(before) if line.startswith("show"))
            return [*before[:shown], *begun, *before[shown:], "cluster_arrive();", "cluster_wait();", *after]
        return [*before, *(["__syncthreads();"] if after else []), *after]

    def meet_across(self, found: Sequence[Value]) -> list[str]:
        """Over threads that lie apart."""
        s, before, after = self.shape, list[str](), list[str]()
        for v in found:
            join, many = JOIN[v.op], self.parts(v)
            index = "[j]" if self.varies(v.axes)[1] else ""
            loop = f"for (int j = 0; j < {many}; ++j) " if index else ""
            name, part = f"{v.name}{index}", f"{v.name}_part[{'j' if index else '0'}]"
            after.append(f"{self.kind(v)} {v.name}{'[WIDTH]' if index else ''};")
            if s.lanes > 1:
                place = self.room(v, s.threads * many) + (" + j * THREADS" if index else "")
                before.append(f"{loop}({place})[threadIdx.x] = {part};")
                at = f"{place} + threadIdx.x % (THREADS / LANES)"
                after.append(f"{loop}{name} = join_shown<{join}, LANES, THREADS / LANES>({at});")
            else:
                after.append(f"{loop}{name} = {part};")
        return [*before, *(["__syncthreads();"] if before else []), *after]

    # --- stores -------------------------------------------------------------------------------------------------------
    def stores(self, level: int, section: Section) -> list[str]:
        """Adds the outputs that are known at a level to the slots' statements; those stored once are returned."""
        once = []
        for k, (name, out) in enumerate(zip(self.r.outputs, self.p.outputs, strict=True)):
            if self.r.values[name].level != level:
                continue
            stored = frozenset(s.axis for s in out.access if s.axis is not None)
            slot, element = self.varies(stored)
            tests = self.only(stored)
            if slot:
                self.store_slot(k, out, self.use(name, level), tests, element, section)
            else:
                tests = [*(["lane == 0"] if self.r.row else []), *(["real"] if self.ragged() else []), *tests]
                once += self.store_once(k, out, self.use(name, level), tests, element)
        return once

    def only(self, stored: frozenset[str]) -> list[str]:
        """Conditions for the positions along axes that a stored tensor lacks: the first ones store."""
        lacking = [a for a in (*self.r.kept, *self.r.row) if a not in stored and self.p.extent(a) != 1]
        return [f"i_{a} == 0" for a in lacking if self.varies(stored)[0] or a not in self.r.row]

    def store_slot(
        self, k: int, out: Output, value: str, tests: Sequence[str], element: bool, section: Section
    ) -> None:
        """Adds an output that differs from slot to slot."""
        guard = f"if ({' && '.join(tests)}) " if tests else ""
        if element and self.whole(out.access):
            section.first.append(f"float y{k}_out[WIDTH];")
            section.each.append(f"y{k}_out[j] = {value};")
            section.last.append(f"{guard}{self.store_rounded(k, out)}")
        else:
            section.add(element, f"{guard}put(p.y{k}[{self.offset(out.access, element)}], {value});")

    def store_once(self, k: int, out: Output, value: str, tests: Sequence[str], element: bool) -> list[str]:
        """The statements that store an output which is the same in all slots."""
        guard = f"if ({' && '.join(tests)}) " if tests else ""
        if not element:
            return [f"{guard}put(p.y{k}[{self.offset(out.access, False)}], {value});"]
        if not self.whole(out.access):
            loop = "for (int j = 0; j < WIDTH; ++j) "
            return [f"{guard}{loop}put(p.y{k}[{self.offset(out.access, True)}], {value});"]
        return [
            f"float y{k}_out[WIDTH];",
            f"for (int j = 0; j < WIDTH; ++j) y{k}_out[j] = {value};",
            f"{guard}{self.store_rounded(k, out)}",
        ]

    def store_rounded(self, k: int, out: Output) -> str:
        """The statement that stores a whole chunk."""
        kind = CudaEmitter.types[out.dtype.name]
        return f"store_chunk(p.y{k} + {self.offset(out.access, False)}, rounded<{kind}>(y{k}_out));"

    # --- a kernel -----------------------------------------------------------------------------------------------------
    def blocks(self) -> str:
        """The number of blocks as a C expression."""
        own, cluster = self.shape.units(self.r), self.shape.cluster
        if isinstance(self.units, int):
            return str(-(-self.units // own) * cluster)
        return f"(({self.extent(self.units)} + {own - 1}) / {own})" + (f" * {cluster}" if cluster > 1 else "")

    def context(self, dependent: bool) -> dict[str, Any]:
        """Everything that `rows.j2` and `kernel.cu.j2` print."""
        s = self.shape
        early, once, rest = self.when_read()
        before = [*(self.ahead() if s.ahead and s.turns == 1 and dependent else []), *self.loads(early, s.turns > 1)]
        after = [*self.loads(rest), *lines_node(self.kept())]
        for level in range(self.r.levels + 1):
            after += self.level(level)
        floats = self.scratch + (self.scratch % 2 if self.doubles else 0)
        if s.turns > 1:
            scratch = [f"float* const scratch = all_scratch + turn % 2 * {floats};"] if floats else []
            turn = [*lines_node([*used(self.outer(), str(after)), *scratch]), *after]
            after = [*self.loads(once, True), {"kind": "turns", "inner": turn}]
            before = [*lines_node(used(self.lane(), str([before, after]))), *before]
            floats *= 2
        else:
            before = [*lines_node(used([*self.lane(), *self.outer()], str([before, after]))), *before]
        return {
            "kernel": self.number,
            "offset_type": "int64_t" if self.wide else "int",
            "symbols": [self.symbols.index(n) for n in self.p.symbols],
            "inputs": [
                {"name": i.name, "type": CudaEmitter.types[self.p.sources[i.source].dtype.name], "source": i.source}
                for i in self.p.inputs
            ],
            "outputs": [
                {"name": f"y{k}", "type": CudaEmitter.types[o.dtype.name]} for k, o in enumerate(self.p.outputs)
            ],
            "grid": [{"axis": "row", "tile": s.units(self.r), "blocks": self.blocks()}],
            "headers": ["rows.cuh"],
            "template": "rows.j2",
            "members": [],
            "threads": s.threads,
            "shared_bytes": 4 * floats,
            "turns": s.turns,
            "cluster": s.cluster,
            "dependent": dependent,
            "lanes": s.lanes,
            "slots": s.slots,
            "width": s.width,
            "before": before,
            "after": after,
        }
