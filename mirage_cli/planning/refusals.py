"""Programs for which no target has kernels."""

from __future__ import annotations

from mirage_cli.lax.dtypes import F64
from mirage_cli.lax.ir.program import Program


def not_planned(program: Program) -> str:
    """Why no target has kernels for a program, or nothing."""
    empty = [a.name for a in program.axes if a.extent == 0]
    if empty:
        return f"axis {empty[0]} has extent 0: there is nothing to compute"
    if given := [s for s in program.sources if s.dtype.per_byte > 1 and not s.constant and not s.packed]:
        return (
            f"{given[0].name} has numbers of {given[0].dtype.bits} bits that the model does not hold: only weights do"
        )
    types = (
        *(s.dtype for s in program.sources),
        *(o.dtype for o in program.outputs),
        *(n.dtype for n in program.nodes),
    )
    return f"tensors of type {F64} are not rendered" if F64 in types else ""
