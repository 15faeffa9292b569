"""Matrix fragments in CUDA kernels: how warps share them, and loops over their elements."""

from __future__ import annotations

from typing import Any

from mirage_cli.codegen.printers.statements import Emitter
from mirage_cli.codegen.tiles.shapes import fragment_shape
from mirage_cli.codegen.tiles.tile import FRAGMENT, Buffer, Expr, Sizes, count, refs


class FragmentEmitter(Emitter):
    """Prints loops in which all threads of a block share positions or visit their own registers."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.t.schedule.warps

    # --- fragments ----------------------------------------------------------------------------------------------------
    def fragment_shape(self, b: Buffer) -> tuple[int, int, int, int]:
        """(M, N, warps along M, warps along N) of a fragment."""
        return fragment_shape(b, self.t.schedule.warps)

    def fragment_floats(self) -> int:
        """Accumulator registers of a thread, all fragments together."""
        total = 0
        for b in self.t.buffers.values():
            if b.place == FRAGMENT:
                m, n, wm, wn = self.fragment_shape(b)
                total += m * n // (wm * wn * 32)
        return total

    def fragment_type(self, b: Buffer) -> str:
        """The C++ type of a fragment."""
        return "Fragment<{}, {}, {}, {}>".format(*self.fragment_shape(b))

    # --- loops --------------------------------------------------------------------------------------------------------
    def decode(self, sizes: Sizes, linear: str) -> list[str]:
        """Index variables of axes from a row-major number."""
        lines, inner = [], 1
        for k in range(len(sizes) - 1, -1, -1):
            axis, n = sizes[k]
            text = linear if inner == 1 else f"{linear} / {inner}"
            if k > 0:
                text = f"{text} % {n}" if inner == 1 else f"({text}) % {n}"
            lines.append(f"[[maybe_unused]] const int i_{axis} = {text};")
            inner *= n
        return lines[::-1]

    def loop(self, domain: Sizes, lines: list[str]) -> dict[str, Any]:
        """All threads share the positions of `domain`."""
        return {"kind": "loop", "count": count(domain), "lines": [*self.decode(domain, "i"), *lines]}

    def each(self, f: Buffer, lines: list[str]) -> dict[str, Any]:
        """Every thread visits its own elements of a fragment."""
        return {"kind": "each", "type": f"F_{f.name}", "lines": [*self.fragment_index(f), *lines]}

    def fragment_index(self, f: Buffer, row: str = "", col: str = "") -> list[str]:
        """Index variables from the place in a fragment; padding counts as the last row or column."""
        m, n, _, _ = self.fragment_shape(f)
        row, col = row or f"F_{f.name}::row(m_, i_)", col or f"F_{f.name}::col(n_, i_)"
        row = row if m == f.n_rows else f"min({row}, {f.n_rows - 1})"
        col = col if n == f.n_cols else f"min({col}, {f.n_cols - 1})"
        lines = [f"[[maybe_unused]] const int r_ = {row};"] if f.rows else []
        lines += [f"[[maybe_unused]] const int c_ = {col};"] if f.cols else []
        return [*lines, *self.decode(f.rows, "r_"), *self.decode(f.cols, "c_")]

    def fragment_inside(self, f: Buffer) -> str:
        """The condition that a place in a fragment is no padding."""
        m, n, _, _ = self.fragment_shape(f)
        tests = [] if m == f.n_rows else [f"F_{f.name}::row(m_, i_) < {f.n_rows}"]
        tests += [] if n == f.n_cols else [f"F_{f.name}::col(n_, i_) < {f.n_cols}"]
        return " && ".join(tests)

    def main_fragment(self, e: Expr, domain: Sizes) -> Buffer | None:
        """The fragment that an expression over `domain` is made of."""
        for name in refs(e):
            b = self.t.buffers[name]
            if b.place == FRAGMENT and b.axes == domain:
                return b
        return None
