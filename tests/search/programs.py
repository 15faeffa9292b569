"""Programs of samples, small ones by hand, and muGraphs compared with their programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from mirage_cli import frontends
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.domains.field import Residues
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.fragments.lax_fragment import LaxFragment
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.optimization.task import tensor_names
from mirage_cli.search.finish import kernels
from mirage_cli.search.mugraph.evaluate import Tiles, evaluate_kernels
from mirage_cli.search.mugraph.mugraph import BlockGraph, KernelGraph
from tests.lax.programs import recorded
from tests.optimized import sample


@functools.cache
def fragments(name: str) -> tuple[LaxFragment, ...]:
    """The fragments of a sample."""
    imported = frontends.load(str(sample(name)), frontends.Options({}, {}))
    return tuple(partition(imported.graph, tensor_names(imported)).fragments)


def program_of(name: str, kind: str = "") -> Program:
    """The program of a sample with one fragment, or of its first fragment of a kind."""
    found = [f for f in fragments(name) if not kind or f.name == kind]
    assert found, f"{name} has no fragment {kind}"
    assert kind or len(found) == 1, f"{name} has {len(found)} fragments"
    return found[0].program


def built(build: Callable[[Graph], int]) -> Program:
    """The normal form of what `build` records."""
    g = Graph()
    return canonical(recorded(g, [build(g)]))


def attention(rows: int = 3, keys: int = 7) -> Program:
    """softmax(q k + m) v with odd extents."""

    def build(g: Graph) -> int:
        scores = compose.matmul(g, g.input("q", (rows, 4), F32), g.input("k", (4, keys), F32))
        scores = g.map("add", scores, g.input("m", (rows, keys), F32))
        return compose.matmul(g, compose.softmax(g, scores, [-1]), g.input("v", (keys, 5), F32))

    return built(build)


def normed(inner: int = 7) -> Program:
    """rms(x) w with odd extents."""

    def build(g: Graph) -> int:
        return compose.matmul(g, compose.rms_norm(g, g.input("x", (3, inner), F32), [-1], 0.5), _weight(g, inner))

    return built(build)


def _weight(g: Graph, inner: int) -> int:
    return g.input("w", (inner, 5), F32, True)


def one_kernel(p: Program, block: BlockGraph) -> KernelGraph:
    """The kernel graph of a single block graph."""
    return kernels.one_kernel(p, block).validate()


def tilings(p: Program, block: BlockGraph, symbols: dict[str, int]) -> list[Tiles]:
    """Whole tiles, and tiles of which the last is partial (all extents but 2 leave a remainder or a single position)."""
    size = {a.name: ex.value(a.extent, symbols) for a in p.axes}
    partial = {a: max(1, -(-2 * size[a] // 3)) for a in block.grid}
    whole = {a: size[a] for a in block.grid}
    if block.loop is not None:
        whole["loop"] = size[block.loop]
        partial["loop"] = max(1, -(-2 * partial.get(block.loop, size[block.loop]) // 3))
    return [whole, partial]


def same_in_field(p: Program, graph: KernelGraph, tiles: Sequence[Tiles], seed: int = 7) -> bool:
    """Whether a muGraph and its program agree at a random point of the prime fields."""
    symbols = {s: 5 + 2 * k for k, s in enumerate(p.symbols)}

    def domain(q: Program) -> Residues:
        return Residues([a.name for a in q.axes], seed)

    d = domain(p)
    arrays = {k: d.random(f"s{k}", [ex.value(e, symbols) for e in s.dims]) for k, s in enumerate(p.sources)}
    wanted = evaluate_program(p, d, arrays, symbols)
    found = evaluate_kernels(graph, list(tiles), domain, arrays, symbols)
    return all(np.array_equal(w, f) for w, f in zip(wanted, found, strict=True))


def same_in_floats(p: Program, graph: KernelGraph, tiles: Sequence[Tiles], seed: int = 7) -> bool:
    """Whether a muGraph and its program agree in float64 up to rounding."""
    symbols = {s: 5 + 2 * k for k, s in enumerate(p.symbols)}
    rng = np.random.default_rng(seed)
    arrays = {
        k: rng.normal(size=[ex.value(e, symbols) for e in s.dims])
        if s.dtype.is_float
        else (rng.uniform(size=[ex.value(e, symbols) for e in s.dims]) < 0.7).astype(float)
        for k, s in enumerate(p.sources)
    }
    wanted = evaluate_program(p, Float64([a.name for a in p.axes]), arrays, symbols)
    found = evaluate_kernels(graph, list(tiles), lambda q: Float64([a.name for a in q.axes]), arrays, symbols)
    return all(np.allclose(w, f, rtol=1e-9, atol=1e-12, equal_nan=True) for w, f in zip(wanted, found, strict=True))
