"""Random changes of proved muGraphs: none that makes a difference is accepted, none that makes no difference is refused.

The classifier is independent of the verifier: float64, and decimals of 90 digits where float64 sees no difference. The tests
take a few hundred changes; `python -m tests.search.proof.test_mutations --count 10000` (`make mutations`) takes as many as one
likes and prints a table.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_cli import frontends
from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.normal.canonical import canonical
from mirage_cli.optimization.task import tensor_names
from mirage_cli.search.finish.kernels import assemble, cuts, split
from mirage_cli.search.finish.split_reduction import two_kernels
from mirage_cli.search.mugraph.evaluate import Tiles
from mirage_cli.search.mugraph.mugraph import PROLOGUE, BlockGraph, BlockOp, KernelGraph, ThreadGraph, ThreadNode
from mirage_cli.search.proof.verify import check_tensors, verify
from mirage_cli.search.search import Searcher, SearchOptions
from samples import operators
from tests.lax.programs import graphs, recorded
from tests.search import exact
from tests.search.mutants import KINDS, Change, changes
from tests.search.programs import one_kernel, tilings

ROWS = {"n": 2, "h": 4, "d": 3}
HEADS = {"h": 2, "q": 2, "k": 6, "d": 3}
#: programs: an operator of the samples and its extents
BASES: dict[str, dict[str, int]] = {
    "rmsnorm_linear": ROWS,
    "rmsnorm_gain_linear": ROWS,
    "residual_norm_qkv": {"n": 2, "h": 4, "q": 3, "kv": 2},
    "layer_norm_linear_gelu": ROWS,
    "gated_mlp": ROWS,
    "norm_gated_mlp": ROWS,
    "gated_mlp_down": ROWS,
    "gated_down": ROWS,
    "mlp": ROWS,
    "lora": {"n": 2, "h": 4, "r": 2, "d": 3},
    "lora_scaled": {"n": 2, "h": 4, "r": 2, "d": 3},
    "gqa": HEADS,
    "gqa_exp": HEADS,
    "attention_scaled": HEADS,
    "attention_masked": HEADS,
    "attention_boolean": HEADS,
    "attention_softcap": HEADS,
    "qknorm_gqa": HEADS,
    "ntrans": {"n": 2, "h": 4},
    "ntrans_artifact": {"n": 2, "h": 4},
    "moe_gated": {"e": 2, "n": 2, "h": 3, "d": 2},
}


def _causal(g: Graph) -> list[int]:
    """Attention with a causal mask: positions are compared."""
    scores = compose.causal(g, compose.matmul(g, g.input("q", (3, 2), F32), g.input("k", (2, 4), F32)), 1)
    return [compose.matmul(g, compose.softmax(g, scores, [-1]), g.input("v", (4, 3), F32))]


def _powers(g: Graph) -> list[int]:
    """Exponentials of exponentials."""
    inner = compose.matmul(g, g.map("exp", g.input("x", (2, 4), F32)), g.input("w", (4, 3), F32))
    return [compose.matmul(g, g.map("exp", compose.scale(g, inner, 0.125)), g.input("u", (3, 2), F32))]


def _symbols(g: Graph) -> list[int]:
    """A norm over an axis of unknown extent."""
    n = symbol("n")
    return [compose.rms_norm(g, g.input("x", (3, n), F32), [-1], 0.5)]


def _functions(g: Graph) -> list[int]:
    """Functions that the algebra does not look into, with two results."""
    x = compose.matmul(g, g.input("x", (2, 4), F32), g.input("w", (4, 3), F32))
    y = g.map("max", g.map("tanh", x), g.map("abs", g.input("y", (2, 3), F32)))
    chosen = g.map("where", g.map("lt", x, y), g.map("relu", x), g.map("min", x, y))
    return [chosen, g.reduce("sum", g.map("mul", chosen, y), [-1])]


BUILT: dict[str, Callable[[Graph], list[int]]] = {
    "causal attention": _causal,
    "exp of exp": _powers,
    "unknown extent": _symbols,
    "functions": _functions,
}
NAMES = (*BASES, *BUILT)
WRONG = {"differing accepted", "invalid accepted"}  #: outcomes that must not be
FLOATS_DIFFER = 1e-6  #: relative differences above this are no rounding


@dataclass(frozen=True)
class Base:
    """A proved muGraph with its program."""

    name: str
    program: Program
    graph: KernelGraph
    tiles: list[Tiles]

    @functools.cached_property
    def changes(self) -> dict[str, list[Change]]:
        """Its single changes by kind."""
        return by_kind(changes(self.graph, self.tiles))


def by_kind(found: Iterator[Change]) -> dict[str, list[Change]]:
    """Changes by their kind."""
    kinds: dict[str, list[Change]] = {}
    for c in found:
        kinds.setdefault(c.kind, []).append(c)
    return kinds


# --- proved muGraphs ------------------------------------------------------------------------------------------------------
def programs(model: onnx.ModelProto) -> list[Program]:
    """The programs of a model's fragments."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        imported = frontends.load(str(path), frontends.Options({}, {}))
    return [f.program for f in partition(imported.graph, tensor_names(imported)).fragments]


def programs_of(name: str) -> list[Program]:
    """The programs of a base."""
    if name in BASES:
        return programs(operators.model(name, BASES[name], "fp32"))
    g = Graph()
    return [canonical(recorded(g, BUILT[name](g)))]


@functools.cache
def bases(name: str) -> tuple[Base, ...]:
    """Proved muGraphs of an operator: unlike block graphs, the same with the shares of blocks combined by a second kernel,
    and programs cut in two; most with partial tiles."""
    found = []

    def add(p: Program, graph: KernelGraph, partial: bool = True) -> None:
        tiles = [tilings(k.program, k.block, dict.fromkeys(p.symbols, 3))[partial] for k in graph.kernels]
        found.append(Base(name, p, graph, tiles))

    searcher = Searcher(SearchOptions(candidates=1))
    for p in programs_of(name):
        blocks = unlike(searcher.blocks(p)[0])
        for k, block in enumerate(blocks):
            add(p, one_kernel(p, block), bool(k % 3))
            for count in (2, 3):
                with suppress(Refused):
                    add(p, two_kernels(p, block, count))
        for stored in [c for c in cuts(p, 2) if c][:2]:
            parts = split(p, stored)
            options = [searcher.blocks(part)[0] for part, _ in parts]
            if all(options):
                add(p, assemble(p, parts, [o[-1] for o in options]))
    return tuple(found)


def unlike(blocks: Sequence[BlockGraph]) -> list[BlockGraph]:
    """One block graph of each mapping."""
    kinds: dict[object, list[BlockGraph]] = {}
    for b in blocks:
        kinds.setdefault((b.loop, b.split), []).append(b)
    return [group[0] for group in kinds.values()]


# --- classification -------------------------------------------------------------------------------------------------------
def valid(p: Program, graph: KernelGraph, tiles: Sequence[Tiles]) -> str:
    """Why a kernel graph is none for a program; empty if it is one."""
    try:
        check_tensors(p, graph.validate(), tiles)
    except InvalidGraph as e:
        return str(e)
    return ""


def floats_differ(p: Program, graph: KernelGraph, tiles: Sequence[Tiles], seed: int) -> bool:
    """Whether float64 tells a muGraph from its program at a random point."""
    arrays = exact.inputs(p, seed, "normal")

    def domain(q: Program) -> Float64:
        return Float64([a.name for a in q.axes])

    wanted = exact.evaluate(p, None, tiles, domain, arrays)
    found = exact.evaluate(p, graph, tiles, domain, arrays)
    return any(
        w.shape != f.shape or not np.allclose(w, f, rtol=FLOATS_DIFFER, atol=1e-12, equal_nan=True)
        for w, f in zip(wanted, found, strict=True)
    )


def classify(p: Program, graph: KernelGraph, tiles: Sequence[Tiles]) -> str:
    """`invalid`, `differing` or `equal`, without the verifier."""
    if valid(p, graph, tiles):
        return "invalid"
    try:
        if floats_differ(p, graph, tiles, 11) or floats_differ(p, graph, tiles, 12):
            return "differing"
        return "equal" if exact.equal(p, graph, tiles) else "differing"
    except (ValueError, IndexError, KeyError, InvalidGraph):
        return "invalid"


def outcome(base: Base, change: Change, seed: int) -> tuple[str, str]:
    """What became of a change, and more about it: `equal accepted`, `equal refused` (with the facts that the equality
    needs), `differing accepted`, `differing refused` or `invalid`."""
    kind = classify(base.program, change.graph, change.tiles)
    try:
        verdict = verify(base.program, change.graph, change.tiles, seed)
    except InvalidGraph as e:
        return ("invalid", str(e)) if kind == "invalid" else (f"{kind} refused", f"rejected: {e}")
    if kind == "invalid":
        return ("invalid accepted" if verdict.passed else "invalid", verdict.reason)
    if verdict.passed:
        return f"{kind} accepted", ""
    if kind == "equal":
        return "equal refused", ", ".join(exact.needed(base.program, change.graph, change.tiles))
    return "differing refused", verdict.reason


def stream(chosen: Sequence[str], seed: int) -> Iterator[tuple[Base, Change]]:
    """Random changes of random muGraphs, a third of them two changes. Of those that break a rule one in four is kept."""
    rng = random.Random(seed)
    while True:
        base = rng.choice(bases(rng.choice(chosen)))
        change = rng.choice(base.changes[rng.choice(sorted(base.changes))])
        if rng.random() < 1 / 3:
            more = by_kind(changes(change.graph, change.tiles))
            second = rng.choice(more[rng.choice(sorted(more))])
            kind = change.kind if second.kind == "same" else second.kind
            change = second._replace(kind=kind, what=f"{change.what}; {second.what}")
        if rng.random() < 1 / 4 or not valid(base.program, change.graph, change.tiles):
            yield base, change


# --- tests ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_changes(name: str) -> None:
    """Random changes of the muGraphs of one program: each is seen through."""
    for base in bases(name):
        assert verify(base.program, base.graph, base.tiles).passed
    counts: Counter[str] = Counter()
    for seed, (base, change) in zip(range(12), stream([name], len(name)), strict=False):
        found, more = outcome(base, change, seed)
        counts[found] += 1
        assert found != "equal refused" or more, f"{change.what} was refused:\n{change.graph.text()}"
        assert not WRONG & {found}, f"{change.what}: {found}:\n{change.graph.text()}"
    assert counts["differing refused"] > 1
    assert counts["equal accepted"] > 0


@settings(max_examples=6, derandomize=True, deadline=None, database=None)
@given(graphs(contractions=1), st.randoms(use_true_random=False))
def test_changes_of_random_programs(made: tuple[Graph, int], rng: random.Random) -> None:
    g, out = made
    p = canonical(recorded(g, [out]))
    for block in Searcher(SearchOptions(candidates=1)).blocks(p)[0][:1]:
        tiles = tilings(p, block, {})[1]
        base = Base("random", p, one_kernel(p, block), [tiles])
        every = [c for kind in base.changes.values() for c in kind]
        for change in rng.sample(every, min(8, len(every))):
            found, more = outcome(base, change, 5)
            assert not WRONG & {found}, f"{change.what}: {found}:\n{p}\n{change.graph.text()}"
            assert found != "equal refused" or more, f"{change.what} was refused:\n{p}\n{change.graph.text()}"


def test_changes_are_of_every_kind() -> None:
    kinds = {
        c.kind for name in ("gqa", "residual_norm_qkv") for base in bases(name) for c in changes(base.graph, base.tiles)
    }
    assert kinds == set(KINDS)


def test_the_classifier_sees_what_floats_do_not() -> None:
    """A constant that is off by 2**-40, and a comparison that is off at ties only."""
    (base, *_) = bases("rmsnorm_linear")
    almost = [c for c in base.changes["scale"] if "is 1e-05" in c.what or "is 9.99" in c.what]
    assert almost
    for change in almost:
        assert not floats_differ(base.program, change.graph, change.tiles, 11)
        assert classify(base.program, change.graph, change.tiles) == "differing"
    for base in bases("causal attention"):
        for change in base.changes.get("operator", []):
            if change.what.endswith(("lt", "le")):
                assert classify(base.program, change.graph, change.tiles) == "differing"


def test_equalities_that_need_a_fact_are_told_by_it() -> None:
    """|exp x| is exp x since exp is positive; exp x is exp x without any fact."""
    p = recorded(g := Graph(), [g.map("exp", g.input("x", (2, 3), F32))])
    load = BlockOp("x", "load", (), PROLOGUE, source_value=p.inputs[0].name)
    for nodes, found in (
        ((ThreadNode("exp", (0,)),), ("equal accepted", "")),
        ((ThreadNode("exp", (0,)), ThreadNode("abs", (1,))), ("equal refused", "exp, abs")),
        ((ThreadNode("exp", (0,)), ThreadNode("relu", (1,))), ("equal refused", "exp, relu")),
        ((ThreadNode("exp", (0,)), ThreadNode("max", (0, 1))), ("equal refused", "exp, max")),
        ((ThreadNode("exp", (0,)), ThreadNode("sqrt", (1,))), ("differing refused", "")),
    ):
        power = BlockOp("y", "thread", ("x",), PROLOGUE, thread=ThreadGraph(1, nodes))
        graph = one_kernel(p, BlockGraph((), (), None, (load, power), ("y",)))
        outcome_, more = outcome(Base("exp", p, graph, [{}]), Change("operator", "by hand", graph, [{}]), 1)
        assert outcome_ == found[0]
        assert more == found[1] or outcome_ == "differing refused"


# --- the command ----------------------------------------------------------------------------------------------------------
OUTCOMES = ("equal accepted", "equal refused", "differing refused", "differing accepted", "invalid", "invalid accepted")


def table(counts: Counter[tuple[str, str]]) -> str:
    """The outcomes by kind of change."""
    rows = ["| change | " + " | ".join(OUTCOMES) + " |", "|---|" + "---|" * len(OUTCOMES)]
    for kind in (*KINDS, "all"):
        row = [sum(n for (k, o), n in counts.items() if kind in (k, "all") and o == outcome) for outcome in OUTCOMES]
        rows.append(f"| {kind} | " + " | ".join(map(str, row)) + " |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None, write: Callable[[str], object] = print) -> int:
    """Classify and verify many changes; 1 if one that differs was accepted, or an equal one refused for no fact's sake."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=NAMES, metavar="NAME", help=", ".join(NAMES))
    given_ = parser.parse_args(arguments)
    counts: Counter[tuple[str, str]] = Counter()
    classes: Counter[str] = Counter()
    wrong, start = 0, time.perf_counter()
    for k, (base, change) in zip(range(given_.count), stream(given_.only, given_.seed), strict=False):
        found, more = outcome(base, change, given_.seed + k)
        counts[change.kind, found] += 1
        if found == "equal refused":
            classes[more] += 1
        if found in WRONG or (found == "equal refused" and not more):
            wrong += 1
            write(f"\n{found}: {base.name}: {change.what}\n{change.graph.text()}")
        if sys.stderr.isatty() or (k + 1) % 500 == 0:
            print(f"\r{k + 1} of {given_.count}, {time.perf_counter() - start:.0f} s", end="", file=sys.stderr)
    write("\n" + table(counts))
    write("\nEqual and refused, by the facts that the equality needs:")
    for name, n in sorted(classes.items()):
        write(f"- {name}: {n}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
