"""Statements of a CUDA kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mirage_cli.codegen.printers.matrix_fragments import FragmentEmitter
from mirage_cli.codegen.printers.statements import Lines
from mirage_cli.codegen.tiles.access import chunk_bytes
from mirage_cli.codegen.tiles.tile import (
    FRAGMENT,
    RING,
    Barrier,
    Buffer,
    Compute,
    Contract,
    Exchange,
    Expr,
    Global,
    GridSum,
    GridTop,
    Init,
    Load,
    Reduce,
    Running,
    Scale,
    Sizes,
    Store,
    TileNode,
    count,
    refs,
)
from mirage_cli.errors import Refused
from mirage_cli.kernel_language.literals import c_float
from mirage_cli.lax.dtypes import F64
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, PROLOGUE

MAX_FRAGMENT_FLOATS = 200  #: accumulator registers of a thread beyond which kernels spill


class CudaEmitter(FragmentEmitter):
    """Prints the nodes of one kernel as dictionaries for `kernel.cu.j2`."""

    types = {
        "f64": "double",
        "f32": "float",
        "f16": "__half",
        "bf16": "__nv_bfloat16",
        "i64": "int64_t",
        "i32": "int32_t",
        "i16": "int16_t",
        "i8": "int8_t",
        "u32": "uint32_t",
        "u16": "uint16_t",
        "u8": "uint8_t",
        "bool": "uint8_t",
    }

    # --- nodes --------------------------------------------------------------------------------------------------------
    def nodes(self, nodes: Sequence[TileNode], phase: str) -> list[dict[str, Any]]:
        """The statements of a phase; ring loads are printed by `ring_loads`."""
        statements = []
        for n in nodes:
            if isinstance(n, Load) and self.t.buffers[n.buffer].place == RING:
                continue
            statements.append(self.node(n, phase))
        return statements

    def node(self, n: TileNode, phase: str) -> dict[str, Any]:
        """One statement."""
        match n:
            case Barrier():
                return {"kind": "barrier"}
            case Load():
                return self.load(n, phase, self.t.buffers[n.buffer].name)
            case Init(name, value):
                return self.init(self.t.buffers[name], value, phase)
            case Compute():
                return self.compute(n, phase)
            case Contract():
                return self.contract(n, phase)
            case Reduce():
                return self.reduce(n, phase)
            case Scale(name, e):
                return self.scale(self.t.buffers[name], e, phase)
            case Running(m, top, shrink):
                b = self.t.buffers[m]
                at = f"[{self.index(b, phase)}]"
                lines = [
                    f"const float low = {m}{at}, high = m_max(low, {top}{at});",
                    f"{m}{at} = high;",
                    f"{shrink}{at} = m_exp_difference(low, high);",
                ]
                return self.loop(b.axes, lines)
            case Store():
                return self.store(n, phase)
            case Exchange(buffers):
                return {"kind": "exchange", "shares": [self.share(b) for b in buffers], "splits": self.splits()}
            case GridTop(name, source):
                b = self.t.buffers[name]
                return self.gather(b, source, "float x = -INFINITY;", "x = m_max(x, {});", b)
            case GridSum():
                return self.grid_sum(n)

    # --- over blocks --------------------------------------------------------------------------------------------------
    def shares(self) -> dict[str, int]:
        """The place of each published buffer among the floats of a block's share."""
        places: dict[str, int] = {}
        size = 0
        for n in self.t.epilogue:
            if isinstance(n, Exchange):
                for name in n.buffers:
                    places[name] = size
                    size += self.share_size(self.t.buffers[name])
        return places | {"": size}

    def share_size(self, b: Buffer) -> int:
        """Floats that a published buffer takes."""
        if b.place != FRAGMENT:
            return b.elements
        m, n, wm, wn = self.fragment_shape(b)
        return m * n // (wm * wn * 32) * self.threads

    def splits(self) -> str:
        """The number of blocks that reduce together."""
        parts = [g["blocks"] for g in self.grid() if g["axis"] in self.g.split]
        return " * ".join(parts) or "1"

    def share(self, name: str) -> dict[str, Any]:
        b = self.t.buffers[name]
        return {
            "name": name,
            "fragment": b.place == FRAGMENT,
            "type": f"F_{name}",
            "count": b.elements,
            "offset": self.shares()[name],
        }

    def registers_of(self, b: Buffer) -> str:
        """The number of a fragment's element within a thread, times the threads."""
        f = f"F_{b.name}"
        return f"((m_ * {f}::NT + n_) * 4 + i_) * THREADS + threadIdx.x"

    def gather(self, b: Buffer, source: str, start: str, join: str, like: Buffer, weight: str = "") -> dict[str, Any]:
        """A loop over blocks inside a loop over positions."""
        at = self.registers_of(like) if b.place == FRAGMENT else self.index(b, EPILOGUE)
        value = f"other[{self.shares()[source]} + {at}]"
        lines = [
            start,
            f"for (int s = 0; s < {self.splits()}; ++s) {{",
            "    const float* const other = share_of(s);",
            f"    {join.format(value + weight)}",
            "}",
            f"{self.element(b, EPILOGUE)} = x;",
        ]
        return self.each(b, lines) if b.place == FRAGMENT else self.loop(b.axes, lines)

    def grid_sum(self, n: GridSum) -> dict[str, Any]:
        b, weight = self.t.buffers[n.buffer], ""
        if n.own:
            own, common = self.t.buffers[n.own], self.t.buffers[n.common]
            high = self.element(common, EPILOGUE)
            low = f"other[{self.shares()[n.own]} + {self.index(own, EPILOGUE)}]"
            weight = f" * m_exp_difference({low}, {high})"
        return self.gather(b, n.source, "float x = 0.0f;", "x += {};", b, weight)

    def init(self, b: Buffer, value: float, phase: str) -> dict[str, Any]:
        if b.place == FRAGMENT:
            return {"kind": "lines", "lines": [f"{b.name}.fill({c_float(value)});"]}
        line = f"{b.name}[{self.index(b, phase)}] = {c_float(value)};"
        return self.loop(b.axes, [line])

    def compute(self, n: Compute, phase: str) -> dict[str, Any]:
        b, out = self.t.buffers[n.buffer], Lines()
        f = b if b.place == FRAGMENT else self.main_fragment(n.expr, self.fragment_domain(n.expr, b))
        inside = self.inside([a for a, _ in b.axes], phase)
        if f is not None:
            inside = " && ".join(x for x in (self.fragment_inside(f), inside) if x)
        guard = out.let(inside, "bool") if inside and self.reads_stored(n.expr) else ""
        value = self.expression(n.expr, phase, out, guard)
        zero = self.inside(n.zero, phase)
        if zero:
            value = f"{zero} ? {value} : 0.0f"
        target = self.element(b, phase)
        if n.add:
            line = f"{target} += {value};"
        elif b.dtype.name == "f32":
            line = f"{target} = {value};"
        else:
            line = f"put({target}, {value});"
        if f is None:
            return self.loop(b.axes, [*out.lines, line])
        padding = self.fragment_inside(f) if b.place != FRAGMENT else ""
        return self.each(f, [*out.lines, f"if ({padding}) {line}" if padding else line])

    def reads_stored(self, e: Expr) -> bool:
        """True if an expression reads a stored tensor."""
        return isinstance(e, Global) or any(self.reads_stored(a) for a in getattr(e, "args", ()))

    def fragment_domain(self, e: Expr, b: Buffer) -> Sizes:
        """The axes of a fragment in an expression that fills `b` (the same axes, in the fragment's order)."""
        wanted = {a for a, _ in b.axes}
        for name in refs(e):
            f = self.t.buffers[name]
            if f.place == FRAGMENT and {a for a, _ in f.axes} == wanted:
                return f.axes
        return b.axes

    def scale(self, b: Buffer, e: Expr, phase: str) -> dict[str, Any]:
        out = Lines()
        value = self.expression(e, phase, out)
        line = f"{self.element(b, phase)} *= {value};"
        return self.each(b, [*out.lines, line]) if b.place == FRAGMENT else self.loop(b.axes, [*out.lines, line])

    def store(self, n: Store, phase: str) -> dict[str, Any]:
        out, o = Lines(), self.p.outputs[n.output]
        f = self.main_fragment(n.expr, n.domain)
        tests = [self.first(n.once), self.fragment_inside(f) if f else "", self.inside([a for a, _ in n.domain], phase)]
        inside = " && ".join(x for x in tests if x)
        value = self.expression(n.expr, phase, out)
        lines = [*out.lines, f"put(y{n.output}[{self.offset(o.access, phase)}], {value});"]
        if inside:
            lines = [f"if ({inside}) {{", *("    " + x for x in lines), "}"]
        return self.each(f, lines) if f is not None else self.loop(n.domain, lines)

    def contract(self, n: Contract, phase: str) -> dict[str, Any]:
        a, b = self.t.buffers[n.a], self.t.buffers[n.b]
        over = [x for x, _ in n.over]

        def by_rows(x: Buffer) -> bool:
            return not {s for s, _ in x.rows} & set(over)

        a_rows = by_rows(a) if over and (a.cols or a.rows) else True
        b_rows = not by_rows(b)
        return {
            "kind": "contract",
            "out": n.out,
            "fresh": not n.add,
            "depth": count(n.over),
            "a": self.operand(a, over, phase),
            "a_rows": a_rows,
            "lda": a.pitch,
            "b": self.operand(b, over, phase),
            "b_rows": b_rows,
            "ldb": b.pitch,
        }

    def operand(self, b: Buffer, over: list[str], phase: str) -> str:
        loop = self.g.loop
        if loop in over and loop is not None and self.whole_loop(b, loop, phase):
            return f"{self.pointer(b)} + {loop}_step * {b.stride(loop)}"
        return self.pointer(b)

    def reduce(self, n: Reduce, phase: str) -> dict[str, Any]:
        b, out = self.t.buffers[n.buffer], Lines()
        f = self.main_fragment(n.expr, n.domain) if n.scratch else None
        kept = tuple((a, s) for a, s in n.domain if a not in n.over)
        summed = tuple((a, s) for a, s in n.domain if a in n.over)
        inside = self.inside(n.mask, phase)
        padding = (
            self.fragment_inside(f).replace("row(m_, i_)", "row(m, i)").replace("col(n_, i_)", "col(n, i)") if f else ""
        )
        guard = " && ".join(x for x in (inside, padding) if x)
        known = self.inside([a for a, _ in n.domain], phase)
        stored = out.let(known, "bool") if known and self.reads_stored(n.expr) else ""
        value = self.expression(n.expr, phase, out, stored)
        kind = {"sum": "Sum", "max": "Max"}[n.kind]
        value = f"{guard} ? {value} : {kind}::none()" if guard else value
        target = f"{n.buffer}[{self.index(b, phase)}]"
        put = f"{target} = {f'{kind}::join({target}, x)' if n.add and n.kind == 'max' else 'x'};"
        put = f"{target} += x;" if n.add and n.kind == "sum" else put
        base = {"op": kind, "value_lines": out.lines, "value": value, "put": put}
        if f is not None:
            along = "rows" if {a for a, _ in f.cols} == {a for a, _ in summed} else "cols"
            index = self.fragment_index(f, "row", "col")
            keep, place = (f.rows, "r") if along == "rows" else (f.cols, "c")
            size = count(keep)
            put_lines = self.decode(keep, place)
            padded = self.fragment_shape(f)[0 if along == "rows" else 1] != size
            return base | {
                "kind": f"reduce_{along}",
                "type": f"F_{f.name}",
                "scratch": n.scratch,
                "index": index,
                "value_lines": [_registers(x) for x in out.lines],
                "value": _registers(value),
                "put_lines": [*put_lines, f"if ({place} < {size}) {put}" if padded else put],
            }
        return base | {
            "kind": "reduce",
            "wide": b.dtype == F64,
            "out": count(kept),
            "over": count(summed),
            "index": [*self.decode(kept, "o"), *self.decode(summed, "k")],
            "put_lines": [*self.decode(kept, "o"), put],
        }

    # --- loads --------------------------------------------------------------------------------------------------------
    def load(self, n: Load, phase: str, pointer: str) -> dict[str, Any]:
        """Whole chunks asynchronously where rows are aligned runs; element by element otherwise."""
        b, source = self.t.buffers[n.buffer], self.reads[n.value]
        dtype = self.p.sources[source.source].dtype
        inner = b.axes[-1:] if b.axes else ()
        bytes_ = chunk_bytes(self.p, b, n.value)
        if not bytes_:
            out = Lines()
            inside = self.inside([s.axis for s in source.access if s.axis is not None], phase)
            text = f"{n.value}[{self.offset(source.access, phase)}]"
            value = f"{inside} ? {text} : {self.ctype(dtype)}(0.0f)" if inside else text
            if dtype.kind != "float":
                value = value.replace("(0.0f)", "(0)")
            line = f"{pointer}[{self.index(b, self.fill_phase(b))}] = {value};"
            return self.loop(b.axes, [*out.lines, line])
        axis, size = inner[0]
        outer = b.axes[:-1]
        row_axes = [s.axis for s in source.access if s.axis is not None and s.axis != axis]
        extent = self.p.extent(axis)
        left = " - ".join([self.extent(extent), *self.base(axis, phase)])
        valid = str(size) if self.shapes.exact(axis, phase) else f"static_cast<int>({left})"
        return {
            "kind": "load_rows",
            "type": self.ctype(dtype),
            "rows": count(outer),
            "cols": size,
            "bytes": bytes_,
            "tile": pointer,
            "any": n.value,
            "valid": valid,
            "index": self.decode(outer, "r"),
            "inside": self.inside(row_axes, phase),
            "from": f"{n.value} + {self.offset(source.access, phase, [axis])}",
            "to": self.index(b, self.fill_phase(b), [axis]),
        }

    def fill_phase(self, b: Buffer) -> str:
        """The phase in which a buffer is filled, so that its own indices start at 0."""
        return b.phase

    def ring_loads(self) -> list[dict[str, Any]]:
        """The loads that run ahead of the loop, into stage `slot`."""
        loads = []
        for n in self.t.body:
            if isinstance(n, Load) and self.t.buffers[n.buffer].place == RING:
                b = self.t.buffers[n.buffer]
                loads.append(self.load(n, BODY, f"({b.name} + slot * {self.stage(b)})"))
        return loads

    def split_context(self) -> dict[str, Any] | None:
        """Variables by which blocks of a split axis find one another: numbers of tiles and of blocks, floats of a share."""
        if not self.g.split:
            return None
        plain = [g["blocks"] for g in self.grid() if g["axis"] not in self.g.split]
        return {
            "tiles": " * ".join(plain) or "1",
            "splits": self.splits(),
            "share": self.shares()[""],
            "order": [g for g in self.grid() if g["axis"] not in self.g.split],
            "parts": [g for g in self.grid() if g["axis"] in self.g.split],
        }

    def workspace(self) -> int:
        """Bytes for the counters and the shares of all blocks."""
        if not self.g.split:
            return 0
        blocks = {g["axis"]: int(g["blocks"]) for g in self.grid() if g["blocks"].isdigit()}
        if len(blocks) != len(self.g.grid):
            raise Refused("a split reduction needs known extents")
        tiles = math.prod(n for a, n in blocks.items() if a not in self.g.split)
        return -(-tiles * 4 // 256) * 256 + math.prod(blocks.values()) * self.shares()[""] * 4

    def setup(self, workspace: str) -> list[str]:
        """The host's statements that clear the counters of a split reduction, given the workspace's place."""
        split = self.split_context()
        if split is None:
            return []
        tiles = split["tiles"]
        clear = f"cudaMemsetAsync(p.arrivals, 0, ({tiles}) * sizeof(unsigned), static_cast<cudaStream_t>(stream))"
        return [
            f"p.arrivals = static_cast<unsigned*>({workspace});",
            f"p.shares = reinterpret_cast<float*>(p.arrivals) + ({tiles} + 63) / 64 * 64;",
            f"status = {clear};",
            "if (status != cudaSuccess) return static_cast<int>(status);",
        ]

    def stage(self, b: Buffer) -> int:
        """Elements of one stage of a ring."""
        size = -(-b.elements * b.dtype.bytes // 128) * 128
        return size // b.dtype.bytes

    def kernel_context(self) -> dict[str, Any]:
        """Everything that `kernel.cu.j2` prints for one kernel. Raises Refused when registers would not do."""
        if self.fragment_floats() > MAX_FRAGMENT_FLOATS:
            raise Refused(f"{self.fragment_floats()} accumulator registers for each thread")
        shared = [
            {
                "name": b.name,
                "type": self.ctype(b.dtype),
                "offset": self.t.offsets[b.name],
                "stage": self.stage(b) if b.place == RING else 0,
            }
            for b in self.t.buffers.values()
            if b.name in self.t.offsets
        ]
        fragments = [
            {"name": b.name, "type": self.fragment_type(b), "body": b.phase == BODY}
            for b in self.t.buffers.values()
            if b.place == FRAGMENT
        ]
        loads = [n for n in self.t.prologue if isinstance(n, Load)]
        rest = [n for n in self.t.prologue if not isinstance(n, Load)]
        return self.context() | {
            "headers": ["tile.cuh"],
            "template": "block.j2",
            "members": ["unsigned* arrivals;", "float* shares;"] if self.g.split else [],
            "cluster": 1,
            "dependent": False,
            "threads": self.threads,
            "stages": self.t.schedule.stages,
            "split": self.split_context(),
            "shared": shared,
            "fragments": fragments,
            "loads": self.nodes(loads, PROLOGUE),
            "prologue": self.nodes(rest, PROLOGUE),
            "ring": self.ring_loads(),
            "body": self.nodes(self.t.body, BODY),
            "epilogue": self.nodes(self.t.epilogue, EPILOGUE),
        }


def _registers(text: str) -> str:
    return text.replace("v[m_][n_][i_]", "v[m][n][i]")
