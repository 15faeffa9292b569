"""Statements of a C++ kernel for the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirage_cli.codegen.printers.statements import Emitter, Lines
from mirage_cli.codegen.tiles.tile import (
    Barrier,
    Buffer,
    Compute,
    Contract,
    Expr,
    Init,
    Load,
    Reduce,
    Ref,
    Running,
    Scale,
    Sizes,
    Store,
    TileNode,
    count,
)
from mirage_cli.errors import Refused
from mirage_cli.kernel_language.literals import c_float
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import F64
from mirage_cli.lax.extents import Extent
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, PROLOGUE
from mirage_cli.search.schedules.cost import CostModel

PARTS = 16  #: interleaved parts of a sum (`reduce` in tile.hpp)
ABREAST = 256  #: sums that are made side by side


class CpuEmitter(Emitter):
    """Prints the nodes of one kernel as dictionaries for `kernel.cpp.j2`.

    Loops run over the positions that lie inside the tensors, so nothing is masked; a contraction sums over them too.
    """

    types = {
        "f32": "float",
        "f16": "half",
        "bf16": "bfloat",
        "i64": "int64_t",
        "i32": "int32_t",
        "i16": "int16_t",
        "i8": "int8_t",
        "u32": "uint32_t",
        "u16": "uint16_t",
        "u8": "uint8_t",
        "bool": "uint8_t",
    }

    # --- counts -------------------------------------------------------------------------------------------------------
    def valid(self, axis: str, phase: str) -> str:
        """The number of positions of a tile that lie inside an axis."""
        if self.shapes.exact(axis, phase):
            return str(self.shapes.size(axis, phase))
        return f"n_{axis}_step" if axis == self.g.loop else f"n_{axis}"

    def group(self, sizes: Sizes, phase: str, what: str = "") -> str:
        """The number of positions of a row-major group; only its outermost axis may be partial (else all are taken, or
        the group is refused when it is summed)."""
        inner = [a for a, _ in sizes[1:] if not self.shapes.exact(a, phase)]
        if inner and what:
            raise Refused(f"axis {inner[0]} of a summed group is partial and not outermost")
        if not sizes:
            return "1"
        parts = [self.valid(sizes[0][0], phase) if not inner else str(sizes[0][1]), *(str(n) for _, n in sizes[1:])]
        return " * ".join(x for x in parts if x != "1") or "1"

    def nest(self, domain: Sizes, lines: list[str], phase: str, guard: str = "") -> dict[str, Any]:
        """Loops over the valid positions of `domain`, where `guard` holds."""
        loops = [{"axis": a, "count": self.valid(a, phase)} for a, _ in domain]
        return {"kind": "nest", "loops": loops, "lines": lines, "guard": guard}

    # --- nodes --------------------------------------------------------------------------------------------------------
    def nodes(self, nodes: Sequence[TileNode], phase: str) -> list[dict[str, Any]]:
        """The statements of a phase."""
        return [self.node(n, phase) for n in nodes if not isinstance(n, Barrier)]

    def node(self, n: TileNode, phase: str) -> dict[str, Any]:
        """One statement."""
        match n:
            case Load():
                return self.load(n, phase)
            case Init(name, value):
                b = self.t.buffers[name]
                return {"kind": "fill", "buffer": name, "count": b.elements, "value": c_float(value)}
            case Compute():
                return self.compute(n, phase)
            case Contract():
                return self.contract(n, phase)
            case Reduce():
                return self.reduce(n, phase)
            case Scale(name, e):
                b, out = self.t.buffers[name], Lines()
                factor = self.expression(e, phase, out)
                return self.nest(b.axes, [*out.lines, f"{self.element(b, phase)} *= {factor};"], phase)
            case Running(m, top, shrink):
                b = self.t.buffers[m]
                at = f"[{self.index(b, phase)}]"
                lines = [
                    f"const float low = {m}{at}, high = m_max(low, {top}{at});",
                    f"{m}{at} = high;",
                    f"{shrink}{at} = m_exp_difference(low, high);",
                ]
                return self.nest(b.axes, lines, phase)
            case Store():
                return self.store(n, phase)
        raise Refused(f"{n} is not rendered on the CPU")

    def compute(self, n: Compute, phase: str) -> dict[str, Any]:
        b, out = self.t.buffers[n.buffer], Lines()
        value = self.expression(n.expr, phase, out)
        line = f"{self.element(b, phase)} {'+' if n.add else ''}= {value};"
        return self.nest(b.axes, [*out.lines, line], phase)

    def contract(self, n: Contract, phase: str) -> dict[str, Any]:
        c = self.t.buffers[n.out]
        a, a_strides = self.operand(n.a, c.rows, n.over, phase)
        b, b_strides = self.operand(n.b, c.cols, n.over, phase)
        rows, cols = (count(g) if self.is_whole(g, phase) else 0 for g in (c.rows, c.cols))
        strides = [int(x) if x.isdigit() else 0 for x in (a_strides[1], *b_strides)]
        known = [rows, count(c.rows), cols, count(n.over), *strides, str(n.add).lower()]
        return {
            "kind": "contract",
            "known": ", ".join(map(str, known)),
            "out": n.out,
            "ldc": c.pitch,
            "rows": self.group(c.rows, phase),
            "cols": self.group(c.cols, phase),
            "depth": self.group(n.over, phase, "summed"),
            "a": a,
            "b": b,
            "add": n.add,
        }

    def is_whole(self, sizes: Sizes, phase: str) -> bool:
        """True if all positions of a group are always taken."""
        return (
            not sizes
            or bool([a for a, _ in sizes[1:] if not self.shapes.exact(a, phase)])
            or self.shapes.exact(sizes[0][0], phase)
        )

    def operand(self, name: str, free: Sizes, over: Sizes, phase: str) -> tuple[str, list[str]]:
        """operand(pointer, stride between free positions, stride between summed ones), and these strides."""
        if name in self.t.buffers:
            b = self.t.buffers[name]
            loop, pointer = self.g.loop, self.pointer(b)
            if loop is not None and loop in dict(over) and self.whole_loop(b, loop, phase):
                pointer += f" + {loop}_step * {b.stride(loop)}"
            strides = [b.stride(g[-1][0]) if g else 1 for g in (free, over)]
            return f"operand({pointer}, {strides[0]}, {strides[1]})", [str(x) for x in strides]
        access = self.reads[name].access
        fixed = [s.axis for s in access if s.axis is not None]
        texts = [self.stride_of(name, g[-1][0]) if g else "1" for g in (free, over)]
        return f"operand({name} + {self.offset(access, phase, fixed)}, {texts[0]}, {texts[1]})", texts

    def stride_of(self, name: str, axis: str) -> str:
        """The elements between neighbours along an axis of a stored tensor."""
        stride: Extent = 1
        for s in reversed(self.reads[name].access):
            if s.axis == axis:
                return self.extent(stride)
            stride = ex.product([stride, s.extent])
        raise Refused(f"input {name} has no axis {axis}")

    def reduce(self, n: Reduce, phase: str) -> dict[str, Any]:
        b, out = self.t.buffers[n.buffer], Lines()
        kept = [a for a, _ in n.domain if a not in n.over]
        summed = [a for a, _ in n.domain if a in n.over]
        value = self.expression(n.expr, phase, out)
        kind = {"sum": "Sum", "max": "Max"}[n.kind]
        target = f"{n.buffer}[{self.index(b, phase)}]"

        def count(a: str) -> dict[str, str]:
            return {"axis": a, "count": self.valid(a, phase)}

        inner, sizes = bool(n.domain) and n.domain[-1][0] in n.over, dict(n.domain)
        if summed and sizes[n.domain[-1][0]] < PARTS:  # short runs would be added to a total one after the other
            summed.append(summed.pop(summed.index(max(summed, key=sizes.__getitem__))))
            inner = inner or sizes[summed[-1]] >= PARTS
        row = self.contiguous(n.expr, summed[-1]) if inner and not out.lines else None
        return {
            "kind": "reduce_inner" if inner or not kept else "reduce_outer",
            "op": kind,
            "type": "double" if b.dtype == F64 else "float",
            "kept": [count(a) for a in kept],
            "summed": [count(a) for a in summed],
            "lines": out.lines,
            "value": value,
            "row": f"{self.pointer(row)} + {self.index(row, phase, [summed[-1]])}" if row is not None else "",
            "target": target,
            "width": min(sizes[kept[-1]], ABREAST) if kept else 1,
            "add": n.add,
        }

    def load(self, n: Load, phase: str) -> dict[str, Any]:
        """Row by row with conversion where the innermost stored axis is the innermost of the tile."""
        b, source = self.t.buffers[n.buffer], self.reads[n.value]
        slots = [s for s in source.access if s.extent != 1]
        if b.axes and slots and slots[-1].axis == b.axes[-1][0]:
            axis = b.axes[-1][0]
            line = (
                f"load_row({b.name} + {self.index(b, b.phase, [axis])}, "
                f"{n.value} + {self.offset(source.access, phase, [axis])}, {self.valid(axis, phase)});"
            )
            return self.nest(b.axes[:-1], [line], phase)
        line = f"{b.name}[{self.index(b, b.phase)}] = to_float({n.value}[{self.offset(source.access, phase)}]);"
        return self.nest(b.axes, [line], phase)

    def store(self, n: Store, phase: str) -> dict[str, Any]:
        o, out = self.p.outputs[n.output], Lines()
        order = [s.axis for s in o.access if s.axis is not None and self.sized(s.axis, phase)]
        sizes = dict(n.domain)
        domain = tuple((a, sizes[a]) if a in sizes else (a, self.shapes.size(a, phase)) for a in order)
        name, guard = f"y{n.output}", self.first(n.once)
        innermost = next((s.axis for s in reversed(o.access) if s.extent != 1), None)
        if o.dtype.name == "f32" or not domain or domain[-1][0] != innermost:
            value = self.expression(n.expr, phase, out)
            line = f"put({name}[{self.offset(o.access, phase)}], {value});"
            return self.nest(domain, [*out.lines, line], phase, guard)
        axis, size = domain[-1]
        valid = self.valid(axis, phase)
        to = f"{name} + {self.offset(o.access, phase, [axis])}"
        row = self.contiguous(n.expr, axis)
        if row is not None:
            line = f"store_row({to}, {row.name} + {self.index(row, phase, [axis])}, {valid});"
            return self.nest(domain[:-1], [line], phase, guard)
        value = self.expression(n.expr, phase, out)
        lines = [
            f"float row[{size}] = {{}};",
            "MIRAGE_VECTOR_LOOP",
            f"for (int i_{axis} = 0; i_{axis} < {valid}; ++i_{axis}) {{",
            *("    " + x for x in [*out.lines, f"row[i_{axis}] = {value};"]),
            "}",
            f"store_row({to}, row, {valid});",
        ]
        return self.nest(domain[:-1], lines, phase, guard)

    def contiguous(self, e: Expr, axis: str) -> Buffer | None:
        """The buffer that an expression just reads, with neighbours along `axis` side by side."""
        if isinstance(e, Ref):
            b = self.t.buffers[e.buffer]
            if b.dtype != F64 and axis in dict(b.axes) and b.stride(axis) == 1:
                return b
        return None

    # --- the kernel ---------------------------------------------------------------------------------------------------
    def partial(self) -> list[dict[str, Any]]:
        """Axes whose last tile is partial, with the count of their valid positions."""
        axes = []
        for g in self.grid():
            if not self.shapes.exact(g["axis"], EPILOGUE) and g["tile"] > 1:
                extent = self.extent(self.p.extent(g["axis"]))
                axes.append({"axis": g["axis"], "tile": g["tile"], "extent": extent})
        return axes

    def kernel_context(self) -> dict[str, Any]:
        """Everything that `kernel.cpp.j2` prints for one kernel."""
        buffers = [
            {
                "name": b.name,
                "type": "double" if b.dtype == F64 else "float",
                "offset": self.t.offsets[b.name],
            }
            for b in self.t.buffers.values()
            if b.name in self.t.offsets
        ]
        loop = self.g.loop
        return self.context() | {
            "buffers": buffers,
            "parallel": CostModel(self.p, self.g, self.t.target).parallel(self.t.schedule),
            "partial": self.partial(),
            "loop_partial": bool(loop) and not self.shapes.exact(loop or "", BODY),
            "loop_extent": self.extent(self.p.extent(loop)) if loop else "0",
            "prologue": self.nodes(self.t.prologue, PROLOGUE),
            "body": self.nodes(self.t.body, BODY),
            "epilogue": self.nodes(self.t.epilogue, EPILOGUE),
        }
