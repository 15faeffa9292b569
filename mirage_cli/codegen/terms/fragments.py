"""Matrix fragments in CUDA kernels: how warps share them, and loops over their elements."""

from __future__ import annotations

from mirage_cli.codegen.terms.expressions import THREAD
from mirage_cli.codegen.terms.positions import Positions
from mirage_cli.codegen.tiles.shapes import fragment_shape
from mirage_cli.codegen.tiles.tile import FRAGMENT, Buffer, Expr, Sizes, count, refs
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.ir import Value

TOGETHER = 16  #: rounds of a loop whose reads are waited for together


def decode(sizes: Sizes, linear: Value) -> list[ir.Statement]:
    """Index variables of axes from a row-major number."""
    statements, inner = list[ir.Statement](), 1
    for n in range(len(sizes) - 1, -1, -1):
        axis, size = sizes[n]
        place = ir.lift(linear) if inner == 1 else ir.lift(linear) / inner
        statements.insert(0, k.let("int", f"i_{axis}", place % size if n else place, unused=True))
        inner *= size
    return statements


class FragmentPositions(Positions):
    """Loops in which all threads of a block share positions or visit their own registers."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.t.schedule.warps

    # --- fragments ----------------------------------------------------------------------------------------------------
    def fragment_shape(self, b: Buffer) -> tuple[int, int, int, int]:
        """(M, N, warps along M, warps along N) of a fragment."""
        return fragment_shape(b, self.t.schedule.warps)

    def registers(self, f: Buffer) -> int:
        """Accumulator registers of a thread for a fragment."""
        m, n, wm, wn = self.fragment_shape(f)
        return m * n // (wm * wn * 32)

    def fragment_floats(self) -> int:
        """Accumulator registers of a thread, all fragments together."""
        return sum(self.registers(b) for b in self.t.buffers.values() if b.place == FRAGMENT)

    def fragment_type(self, b: Buffer) -> ir.Type:
        """The type of a fragment."""
        return k.of_type("Fragment", *self.fragment_shape(b))

    # --- loops --------------------------------------------------------------------------------------------------------
    def loop(self, domain: Sizes, *body: ir.Statement) -> ir.For:
        """All threads share the positions of `domain`."""
        return k.loop("i", count(domain), *decode(domain, "i"), *body, start=THREAD, step="THREADS")

    def rounds(self, domain: Sizes, *body: ir.Statement) -> ir.For:
        """The same in rounds, a position of each thread in a round: what rounds read from memory they wait for together."""
        size = count(domain)
        own = k.let("int", "i", k.name("round") * k.name("THREADS") + k.cast("int", THREAD))
        inside = k.name("i") < size if size % self.threads else None
        inner = (*decode(domain, "i"), *body)
        several = -(-size // self.threads)
        unroll = k.UNROLL if several <= TOGETHER else f"{k.UNROLL} {TOGETHER}"
        return k.loop("round", several, own, *(inner if inside is None else [k.when(inside, *inner)]), unroll=unroll)

    def each(self, f: Buffer, *body: ir.Statement) -> ir.Each:
        """Every thread visits its own elements of a fragment."""
        return k.each("MIRAGE_EACH", f"F_{f.name}", *self.fragment_index(f), *body)

    def everywhere(self, b: Buffer, *body: ir.Statement) -> ir.Statement:
        """Every element of a buffer is visited by the thread that has it, or by one of all."""
        return self.each(b, *body) if b.place == FRAGMENT else self.loop(b.axes, *body)

    def fragment_index(self, f: Buffer, row: Value = "", col: Value = "") -> list[ir.Statement]:
        """Index variables from the place in a fragment; padding counts as the last row or column."""
        m, n, _, _ = self.fragment_shape(f)
        row, col = row or k.call(f"F_{f.name}::row", "m_", "i_"), col or k.call(f"F_{f.name}::col", "n_", "i_")
        row = row if m == f.n_rows else k.call("min", row, f.n_rows - 1)
        col = col if n == f.n_cols else k.call("min", col, f.n_cols - 1)
        lines: list[ir.Statement] = [k.let("int", "r_", row, unused=True)] if f.rows else []
        lines += [k.let("int", "c_", col, unused=True)] if f.cols else []
        return [*lines, *decode(f.rows, "r_"), *decode(f.cols, "c_")]

    def fragment_inside(self, f: Buffer) -> ir.Expression | None:
        """The condition that a place in a fragment is no padding."""
        m, n, _, _ = self.fragment_shape(f)
        row = None if m == f.n_rows else k.call(f"F_{f.name}::row", "m_", "i_") < f.n_rows
        return k.both(row, None if n == f.n_cols else k.call(f"F_{f.name}::col", "n_", "i_") < f.n_cols)

    def main_fragment(self, e: Expr, domain: Sizes) -> Buffer | None:
        """The fragment that an expression over `domain` is made of."""
        for name in refs(e):
            b = self.t.buffers[name]
            if b.place == FRAGMENT and b.axes == domain:
                return b
        return None
