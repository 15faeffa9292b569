"""Programs for the engine `strip`: rows are stored in multiples of 16 bytes, other extents divide nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import BF16, BOOL, F16, F32, DType
from mirage_cli.lax.extents import Extent, symbol
from mirage_cli.lax.ir import compose
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.finish.split_reduction import two_kernels
from mirage_cli.search.mugraph.mugraph import BlockGraph
from mirage_cli.search.schedules import strip
from mirage_cli.search.schedules.ranking import ranked
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.schedules.tiling import batch_axes
from mirage_cli.search.search import Searcher, SearchOptions

from .kernels import Case, single
from .programs import ROWS, Build

HOPPER = load_target("sm_90a")
TILES = (8, 16, 24, 32, 64)
LOOPS = (16, 32)
SPLITS = (2, 3, 4)
TRIES = 60  #: schedules that are drawn for a case at most


def _linear(g: Graph, t: DType, rows: Extent = 5, transposed: bool = False) -> Sequence[int]:
    w = g.input("w", (56, 136) if transposed else (136, 56), t, constant=True)
    return [compose.linear(g, g.input("x", (rows, 136), t), w, transposed)]


def _norm(g: Graph, t: DType, rows: Extent = 3, gain: bool = False, k: int = 136) -> Sequence[int]:
    x = compose.rms_norm(g, g.input("x", (rows, k), t), [1], 1e-5)
    if gain:
        x = g.map("mul", x, g.input("gain", (k,), t, constant=True))
    return [compose.linear(g, x, g.input("w", (k, 40), t, constant=True))]


def _layer_norm(g: Graph, t: DType) -> Sequence[int]:
    x = compose.layer_norm(g, g.input("x", (5, 136), t), [1], 1e-3)
    x = compose.affine(g, x, *(g.input(n, (136,), t, constant=True) for n in ("gain", "bias")))
    y = compose.linear(g, x, g.input("w", (136, 56), t, constant=True))
    return [g.map("gelu", g.map("add", y, g.input("c", (56,), t, constant=True)))]


def _gated(g: Graph, t: DType, norm: bool = False) -> Sequence[int]:
    x = g.input("x", (5, 136), t)
    if norm:
        x = compose.rms_norm(g, x, [1], 1e-5)
    gate, up = (compose.linear(g, x, g.input(n, (136, 40), t, constant=True)) for n in ("gate", "up"))
    return [g.map("mul", g.map("silu", gate), up)]


def _lora(g: Graph, t: DType, rank: int = 8) -> Sequence[int]:
    w, a, b = (g.input(n, e, t, constant=True) for n, e in (("w", (136, 56)), ("a", (136, rank)), ("b", (rank, 56))))
    x = g.input("x", (5, 136), t)
    return [g.map("add", compose.linear(g, x, w), compose.linear(g, compose.linear(g, x, a), b))]


def _residual(g: Graph, t: DType) -> Sequence[int]:
    y = compose.linear(g, g.input("x", (7, 72), t), g.input("w", (72, 56), t, constant=True))
    return [g.map("add", g.map("add", y, g.input("c", (56,), t, constant=True)), g.input("r", (7, 56), t))]


def _two_outputs(g: Graph, t: DType) -> Sequence[int]:
    x = g.input("x", (6, 136), t)
    total = g.reduce("sum", compose.square(g, x), [1])
    return [g.map("add", total, g.input("c", (6, 1), t)), compose.linear(g, x, g.input("w", (136, 24), t))]


def _attention(
    g: Graph,
    t: DType,
    keys: Extent = 72,
    masked: str = "",
    transposed: bool = False,
    normal: bool = False,
    queries: Extent = 5,
) -> Sequence[int]:
    """Queries of two heads; keys are stored in rows of a key, or of all keys (`transposed`)."""
    d, width = 16, 24
    q, v = g.input("q", (2, queries, d), t), g.input("v", (2, keys, width), t)
    k = g.input("k", (2, d, keys) if transposed else (2, keys, d), t)
    k = k if transposed else g.transpose(k, (0, 2, 1))
    if normal:
        q, k = compose.rms_norm(g, q, [2], 1e-3), compose.rms_norm(g, k, [1], 1e-3)
    scores = compose.scale(g, compose.matmul(g, q, k), 0.25)
    if masked == "causal":
        scores = compose.causal(g, scores, 40)
    elif masked == "cap":
        scores = compose.soft_cap(g, scores, 3.0)
    elif masked:
        shape = {"row": (1, keys), "heads": (2, 1, keys)}.get(masked, (queries, keys))
        scores = compose.attention_mask(g, scores, g.input("mask", shape, BOOL if masked == "boolean" else t))
    return [compose.matmul(g, compose.softmax(g, scores, [2]), v)]


def _grouped(g: Graph, t: DType, normal: bool = False, queries: int = 3) -> Sequence[int]:
    """Three query heads for each of two key heads: rows of a product are (head, query)."""
    q, k, v = (g.input(n, e, t) for n, e in (("q", (2, 3, queries, 16)), ("k", (2, 1, 72, 16)), ("v", (2, 1, 72, 16))))
    k = g.transpose(k, (0, 1, 3, 2))
    if normal:
        q, k = compose.rms_norm(g, q, [3], 1e-3), compose.rms_norm(g, k, [2], 1e-3)
    scores = compose.scale(g, compose.matmul(g, q, k), 0.25)
    return [compose.matmul(g, compose.softmax(g, scores, [3]), v)]


def _mla(g: Graph, t: DType, keys: int = 72, queries: int = 5, width: int = 32, scale: float = 0.2) -> Sequence[int]:
    """Keys of two parts, the first of which are the values as well."""
    q, r = g.input("q", (queries, width), t), g.input("r", (queries, 16), t)
    c, e = g.input("c", (keys, width), t), g.input("e", (keys, 16), t)
    scores = g.map("add", *(compose.matmul(g, x, g.transpose(y, (1, 0))) for x, y in ((q, c), (r, e))))
    scores = compose.scale(g, scores, scale) if scale != 1.0 else scores
    return [compose.matmul(g, compose.softmax(g, scores, [1]), c)]


def _plain(g: Graph, t: DType) -> Sequence[int]:
    """Products of products, without a maximum."""
    q, k, v = (g.input(n, e, t) for n, e in (("q", (5, 32)), ("k", (72, 32)), ("v", (72, 24))))
    return [compose.matmul(g, g.map("relu", compose.matmul(g, q, g.transpose(k, (1, 0)))), v)]


def _sigmoid(g: Graph, t: DType) -> Sequence[int]:
    """An operand that is computed from what is loaded."""
    x = g.map("sigmoid", g.input("x", (5, 136), t))
    return [compose.linear(g, x, g.input("w", (136, 56), t, constant=True))]


def _mixed(g: Graph, t: DType) -> Sequence[int]:
    """Normalised in float32 in front of a product of 16 bits."""
    x = compose.rms_norm(g, g.input("x", (5, 136), F32), [1], 1e-5)
    x = g.cast(g.map("mul", x, g.input("gain", (136,), F32, constant=True)), t)
    return [compose.linear(g, x, g.input("w", (136, 56), t, constant=True))]


def _converted(g: Graph, t: DType) -> Sequence[int]:
    """Stored in float32, multiplied in 16 bits."""
    x = g.cast(g.input("x", (5, 136), F32), t)
    return [compose.linear(g, x, g.input("w", (136, 56), t, constant=True))]


def _chosen(g: Graph, t: DType) -> Sequence[int]:
    """A stored truth value for each element of an operand."""
    keep, x = g.input("keep", (7, 112), BOOL), g.input("x", (7, 112), t)
    return [compose.linear(g, g.map("where", keep, x, g.fill(0.5, t)), g.input("w", (112, 24), t, constant=True))]


NAMED: dict[str, Build] = {
    "linear": _linear,
    "transposed": lambda g, t: _linear(g, t, transposed=True),
    "symbolic": lambda g, t: _linear(g, t, ROWS),
    "rms": _norm,
    "rms_gain": lambda g, t: _norm(g, t, gain=True),
    "rms_symbolic": lambda g, t: _norm(g, t, ROWS),
    "layer_norm": _layer_norm,
    "gated": _gated,
    "norm_gated": lambda g, t: _gated(g, t, True),
    "lora": _lora,
    "lora_wide": lambda g, t: _lora(g, t, 24),
    "residual": _residual,
    "two_outputs": _two_outputs,
    "sigmoid": _sigmoid,
    "mixed": _mixed,
    "converted": _converted,
    "chosen": _chosen,
    "plain": _plain,
    "attention": _attention,
    "long_attention": lambda g, t: _attention(g, t, keys=264),
    "transposed_keys": lambda g, t: _attention(g, t, transposed=True),
    "causal": lambda g, t: _attention(g, t, masked="causal"),
    "boolean": lambda g, t: _attention(g, t, masked="boolean"),
    "additive": lambda g, t: _attention(g, t, masked="additive"),
    "mask_row": lambda g, t: _attention(g, t, masked="row"),
    "soft_cap": lambda g, t: _attention(g, t, masked="cap"),
    "one_query": lambda g, t: _attention(g, t, queries=1),
    "many_queries": lambda g, t: _attention(g, t, queries=35),
    "symbolic_keys": lambda g, t: _attention(g, t, keys=symbol("keys")),
    "symbolic_queries": lambda g, t: _attention(g, t, queries=ROWS, masked="causal"),
    "qknorm": lambda g, t: _attention(g, t, normal=True),
    "grouped": _grouped,
    "grouped_qknorm": lambda g, t: _grouped(g, t, normal=True),
    "mla": _mla,
    "mla_wide": lambda g, t: _mla(g, t, width=256),
    "biased": lambda g, t: _attention(g, t, keys=75, queries=1, masked="heads"),
}


def _wide(g: Graph, t: DType, kind: str) -> Sequence[int]:
    """Cases of the paper at full size."""
    if kind == "attention":
        q, k, v = (g.input(n, e, t) for n, e in (("q", (2, 256, 64)), ("k", (2, 64, 4096)), ("v", (2, 4096, 64))))
        return [compose.matmul(g, compose.softmax(g, compose.matmul(g, q, k), [2]), v)]
    x = g.input("x", (16, 4096), t)
    x = compose.rms_norm(g, x, [1], 1e-5) if kind == "norm" else x
    names = ("gate", "up") if kind == "gated" else ("w",)
    y = [compose.linear(g, x, g.input(n, (4096, 4096), t, constant=True)) for n in names]
    return [g.map("mul", g.map("silu", y[0]), y[1]) if kind == "gated" else y[0]]


FULL_SIZE: dict[str, Build] = {
    "attention": lambda g, t: _wide(g, t, "attention"),
    "norm": lambda g, t: _wide(g, t, "norm"),
    "gated": lambda g, t: _wide(g, t, "gated"),
}
#: Programs whose every wait is left out in turn: a computed tile; several rows; vectors that groups make of their tiles;
#: warps that share columns.
WATCHED: dict[str, Build] = {
    "gain": lambda g, t: _norm(g, t, 19, gain=True),
    "rows": lambda g, t: _attention(g, t, keys=264, queries=19, masked="causal"),
    "qknorm": lambda g, t: _attention(g, t, keys=264, queries=9, normal=True),
    "across": lambda g, t: _mla(g, t, keys=264, queries=19, scale=1.0),
}


def random_strip(seed: int) -> tuple[Build, DType]:
    """A random program: attention, or products of an operand that may be normalised."""
    random = np.random.default_rng(seed)
    build = (_random_attention if random.integers(2) else _random_products)(random)
    return build, (F16, BF16, F32)[int(random.integers(3))]


def _random_attention(random: np.random.Generator) -> Build:
    choices: dict[str, Any] = {
        "keys": int(random.choice((8, 24, 56, 72, 104))),
        "queries": int(random.choice((1, 2, 9, 17, 33))),
        "masked": str(random.choice(["", "causal", "boolean", "additive", "row", "cap"])),
        "transposed": bool(random.integers(2)),
        "normal": bool(random.integers(4) == 0),
    }
    return lambda g, t: _attention(g, t, **choices)


def _random_products(random: np.random.Generator) -> Build:
    m, k, n = int(random.choice((1, 3, 8, 17))), int(random.choice((16, 40, 72, 200))), int(random.choice((8, 40, 72)))
    kind, end = str(random.choice(["", "rms", "gain", "layer", "unary"])), str(random.choice(["", "gate", "add"]))
    unary = [str(u) for u in random.choice(["relu", "silu", "tanh", "sigmoid", "abs"], 2)]
    turned = bool(random.integers(2))

    def product(g: Graph, t: DType, x: int, name: str) -> int:
        w = g.input(name, (n, k) if turned else (k, n), t, constant=True)
        return compose.linear(g, x, w, turned)

    def build(g: Graph, t: DType) -> Sequence[int]:
        x = g.input("x", (m, k), t)
        if kind in ("rms", "gain"):
            x = compose.rms_norm(g, x, [1], 1e-5)
        elif kind == "layer":
            x = compose.layer_norm(g, x, [1], 1e-3)
        elif kind == "unary":
            x = g.map(unary[0], x)
        if kind == "gain":
            x = g.map("mul", x, g.input("gain", (k,), t, constant=True))
        y = g.map(unary[1], product(g, t, x, "w"))
        if end == "gate":
            return [g.map("mul", y, product(g, t, x, "up"))]
        return [g.map("add", y, g.input("r", (m, n), t))] if end == "add" else [y]

    return build


# --- schedules ------------------------------------------------------------------------------------------------------------
def block_graphs(p: Program) -> list[BlockGraph]:
    """The block graphs of a program that the search gives to the engine; all that have a loop where there are none."""
    found = [b for b in Searcher(SearchOptions(max_ops=24, candidates=12)).blocks(p)[0] if b.loop is not None]
    return [b for b in found if _suits(p, b)] or found


def _suits(p: Program, b: BlockGraph) -> bool:
    try:
        strip.roles(p, b)
    except Refused:
        return False
    return True


def drawn(p: Program, b: BlockGraph, random: np.random.Generator) -> Schedule:
    """A schedule for the engine `strip`."""
    loop, together = int(random.choice(LOOPS)), batch_axes(p, b)
    tiles = []
    for a in b.grid:
        extent = p.extent(a)
        size = 1 if a in together else int(random.choice(TILES))
        if a in b.split and isinstance(extent, int):
            share = -(-extent // int(random.choice(SPLITS)))
            size = -(-share // loop) * loop if a == b.loop else -(-share // 8) * 8
        tiles.append((a, size))
    warps = int(random.choice((1, 2, 4, 8)))
    members = int(random.choice([n for n in (1, 2, 4) if n <= warps]))
    across = int(random.choice([n for n in (1, 2, 4) if n * members <= warps]))
    numbers = (("members", members), *((("across", across),) if across > 1 else ()))
    return Schedule(tuple(tiles), loop, warps, int(random.integers(2, 5)), "strip", numbers)


def strip_cases(
    name: str, p: Program, target: str, count: int, seed: int, graphs: Sequence[BlockGraph]
) -> Iterator[Case]:
    """Up to `count` random pairs of a block graph and a schedule that the engine takes, by turns with a split reduction and
    without where both kinds are taken."""
    random, machine, made = np.random.default_rng(seed), load_target(target), 0
    for k in range(TRIES if graphs else 0):
        if made == count:
            return
        kind = [b for b in graphs if bool(b.split) == bool((seed + made) % 2)]
        own = kind if kind and k < TRIES // 2 else graphs
        block = own[int(random.integers(len(own)))]
        case = Case(f"{name}x{made}", p, single(p, block), (drawn(p, block, random),), machine)
        if case.renders():
            made += 1
            yield case


def shared_case(name: str, p: Program, parts: int, seed: int) -> Case:
    """A case whose first kernel, of the engine `strip`, stores the shares of `parts` parts that a second one combines."""
    random = np.random.default_rng(seed)
    graphs = [b for b in block_graphs(p) if b.split]
    graphs = [b for b in graphs if p.extent(b.split[0]) % parts == 0]
    for _ in range(TRIES):
        graph = two_kernels(p, graphs[int(random.integers(len(graphs)))], parts)
        first, second = graph.kernels
        rest = ranked(second.program, second.block, HOPPER, 1)[0].schedule
        case = Case(name, p, graph, (drawn(first.program, first.block, random), rest), HOPPER)
        if case.renders():
            return case
    raise AssertionError(f"no strips for {name}")
