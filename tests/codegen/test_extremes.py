"""Greatest and least numbers of rows, in a block and one iteration after the other, on the CPU and for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mirage_cli.lax.dtypes import F16, F32, DType
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph

from . import kernels
from .kernels import Case
from .programs import program

Build = Callable[[Graph, DType], Sequence[int]]


def _scaled(g: Graph, t: DType) -> Sequence[int]:
    y = g.map("mul", g.input("x", (5, 150), t), g.input("gain", (150,), t))
    return [g.reduce("max", y, [1]), g.map("abs", g.reduce("min", y, [1]))]


def _across(g: Graph, t: DType) -> Sequence[int]:
    x = g.input("x", (77, 19), t)
    return [g.map("sub", x, g.reduce("max", x, [0]))]


def _of_products(g: Graph, t: DType) -> Sequence[int]:
    return [g.reduce("max", compose.matmul(g, g.input("x", (19, 24), t), g.input("w", (24, 33), t)), [1])]


def _logs(g: Graph, t: DType) -> Sequence[int]:
    return [compose.log_softmax(g, g.input("x", (5, 150), t), [1])]


BUILDS: dict[str, Build] = {"scaled": _scaled, "across": _across, "products": _of_products, "logs": _logs}


def cases(target: str) -> list[Case]:
    """Kernels of every program: some that walk the row, some that hold it."""
    found: list[Case] = []
    for k, (name, build) in enumerate(BUILDS.items()):
        for walks in (True, False):
            label = f"{name}{'loop' if walks else 'whole'}"
            p = program(build, (F32, F16)[k % 2])
            made = kernels.cases(
                label,
                p,
                target,
                2,
                seed=k,
                kind=lambda b, w=walks: any(_walked(b, o) == w for o in b.ops if o.op in ("max", "min")),
            )
            found += made
    return found


def _walked(b: object, o: object) -> bool:
    return b.loop is not None and b.loop in o.over  # type: ignore[attr-defined]


def test_on_the_cpu(tmp_path: Path) -> None:
    found = cases("cpu")
    assert {c.name.rpartition("x")[0] for c in found} >= {"scaledloop", "scaledwhole", "logswhole", "productswhole"}
    texts = {c.name: c.render().text for c in found}
    assert kernels.run(kernels.build(texts, tmp_path, [*kernels.CPU_FLAGS, *kernels.SANITIZERS]), found) == []


def test_on_the_gpu() -> None:
    found = cases("sm_80")
    assert {c.name.rpartition("x")[0] for c in found} >= {"scaledloop", "scaledwhole", "productswhole"}
    assert kernels.problems(found) == []
