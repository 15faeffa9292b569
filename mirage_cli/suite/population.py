"""The cases of `mirage bench --suite models`: layers of published models at rows, contexts and element types drawn for each.

The table of configurations is models.yaml; apart.yaml has those of `--suite apart`, of which nothing else is made. What is
drawn for a model and a kind of layer depends on their names alone: a model that is added changes no row of another. The name
of a row decides for good whether it may be fitted to or only judges.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import yaml

from mirage_cli.suite.cases import DTYPES, Case, latent_attention
from mirage_cli.suite.layers import Attention, Dense, adapted

PARTS = ("fit", "judge")
RANGES = {"1-16": (1, 16), "17-256": (17, 256), "257-4096": (257, 4096)}  #: of rows, by name
ROWS = ((1, 2, 3, 4, 8, 12, 16), (24, 32, 64, 100, 128, 256), (512, 1024, 2048, 4096))
SEQUENCES = (1, 1, 2, 4, 8, 16, 32)
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
PROMPTS = (256, 512, 1024, 2048, 4096)
SPEAKERS = (1, 1, 4, 8, 64)  #: tokens of a decoder that attends to an encoder
MOST_ROWS = 4096  #: of several items
RANKS = (8, 16, 32, 64)
BLOCKS = (32, 128)  #: positions that share a scale
PACKED_SHARE = 0.45  #: decoders that have rows with int4 weights, of each kind
FP32_SHARE, OTHER_SHARE = 0.08, 0.3  #: rows in float32; in the half type that is not the model's
MOST_BYTES, MOST_WEIGHTS, MOST_FLOPS, MOST_SCORES = 5 << 30, 15 << 27, 6e12, 1 << 30
ATTEMPTS = 40
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is drawn for a row: its rows (tokens, or sequences of a step), its context (0: it has none), a rank, the
    positions of a block of int4 weights (0: they are none)."""

    rows: int
    context: int = 0
    rank: int = 0
    block: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of layer: how many rows each model has of it, what is drawn, and the layer as a case; the `share` of the models
    that have any, whether its weights are int4, and the most scores that a row may have, hidden ones among them."""

    count: int
    draw: Callable[[random.Random, int, Config], Drawn]
    make: Callable[[str, Config, Drawn], Case]
    share: float = 1.0
    packed: bool = False
    most_scores: int = MOST_SCORES


# ---- what is drawn ---------------------------------------------------------------------------------------------------
def _tokens(r: random.Random, k: int, c: Config) -> Drawn:
    """Those that the model knows, for one or several items, or one of all sizes: the ranges take turns."""
    if "tokens" in c:
        tokens, items = r.choice(c["tokens"]), r.choice((1, 1, 2, 4))
        return Drawn(tokens * items if tokens * items <= MOST_ROWS else tokens)
    return Drawn(r.choice(ROWS[k % len(ROWS)]))


def _few(r: random.Random, k: int, c: Config) -> Drawn:
    return Drawn(r.choice(ROWS[k % 2]))


def _step(r: random.Random, k: int, c: Config) -> Drawn:
    context = r.choice(CONTEXTS)
    return Drawn(r.choice(SEQUENCES), min(context, c["window"]) if "window" in c and r.random() < 0.5 else context)


def _prompt(r: random.Random, k: int, c: Config) -> Drawn:
    n = r.choice(PROMPTS)
    return Drawn(n, n)


def _window(r: random.Random, k: int, c: Config) -> Drawn:
    n = r.choice([p for p in (2048, 4096) if p > c["window"]] or [4096])
    return Drawn(n, n)


def _long(r: random.Random, k: int, c: Config) -> Drawn:
    n = r.choice([n for n in CONTEXTS if 2 * c["window"] <= n <= 8 * c["window"]])
    return Drawn(n, n)


def _whole(r: random.Random, k: int, c: Config) -> Drawn:
    n = r.choice(c["tokens"])
    return Drawn(n, n)


def _crossing(r: random.Random, k: int, c: Config) -> Drawn:
    return Drawn(r.choice(c.get("tokens", SPEAKERS)), c["context"])


def _ranked(r: random.Random, k: int, c: Config) -> Drawn:
    return Drawn(r.choice(ROWS[k % len(ROWS)]), rank=r.choice(RANKS))


def _packed(r: random.Random, k: int, c: Config) -> Drawn:
    """Few rows or some, as where int4 weights are used."""
    blocks = [b for b in BLOCKS if not c["hidden"] % b and not c["heads"] * c["depth"] % b]
    return replace(_few(r, k, c), block=r.choice(blocks))


# ---- what is made of it ----------------------------------------------------------------------------------------------
def _heads(c: Config) -> tuple[int, int]:
    return c["heads"], c.get("kv", c["heads"])


def _qkv(name: str, c: Config, d: Drawn) -> Case:
    heads, kv = _heads(c)
    out = (heads + 2 * kv) * c["depth"]
    return Dense(d.rows, c["hidden"], out, norm=c["norm"], bias=c["bias"] != "none", block=d.block).case(name)


def _up(name: str, c: Config, d: Drawn, norm: bool = True, down: bool = False, residual: bool = False) -> Case:
    """An MLP, from its normalisation to the product that widens, or to its end."""
    made = Dense(d.rows, c["hidden"], c["inner"], c["norm"] if norm else "", c["act"], c["gated"], c["bias"] == "all")
    return replace(made, down=c["hidden"] if down else 0, residual=residual, block=d.block).case(name)


def _projection(name: str, c: Config, d: Drawn) -> Case:
    made = Dense(d.rows, c["heads"] * c["depth"], c["hidden"], bias=c["bias"] == "all", residual=True)
    return replace(made, block=d.block).case(name)


def _head(name: str, c: Config, d: Drawn) -> Case:
    return Dense(d.rows, c["hidden"], c["vocab"], norm=c["norm"], block=d.block).case(name)


def _adapter(name: str, c: Config, d: Drawn) -> Case:
    return adapted(name, d.rows, c["hidden"], d.rank, c["heads"] * c["depth"], 2.0)


def _decode(name: str, c: Config, d: Drawn) -> Case:
    return Attention(d.rows, *_heads(c), 1, d.context, c["depth"]).case(name)


def _attention(name: str, c: Config, d: Drawn, mask: str = "") -> Case:
    return Attention(1, *_heads(c), d.rows, d.context, c["depth"], mask, c.get("window", 0)).case(name)


def _latent(name: str, c: Config, d: Drawn) -> Case:
    return latent_attention(name, d.rows, c["heads"], c["latent"], c["rope"], d.context)


_part = functools.partial
KINDS: dict[str, Kind] = {
    "qkv": Kind(2, _tokens, _qkv),
    "gated_mlp": Kind(1, _tokens, _part(_up, norm=False)),
    "norm_mlp": Kind(2, _tokens, _up),
    "mlp_down": Kind(1, _tokens, _part(_up, down=True, residual=True)),
    "projection": Kind(1, _tokens, _projection),
    "decode": Kind(2, _step, _decode),
    "causal": Kind(1, _prompt, _part(_attention, mask="causal")),
    "window": Kind(1, _window, _part(_attention, mask="window")),
    "window_long": Kind(1, _long, _part(_attention, mask="window"), most_scores=2 * MOST_SCORES),
    "full": Kind(1, _whole, _attention),
    "cross": Kind(1, _crossing, _attention),
    "latent": Kind(3, _step, _latent),
    "lora": Kind(1, _ranked, _adapter),
    "head": Kind(1, _few, _head),
    "expert": Kind(3, _tokens, _part(_up, norm=False, down=True)),
}

_INT4 = {"int4-qkv": _qkv, "int4-projection": _projection, "int4-mlp": _up, "int4-head": _head}
KINDS |= {name: Kind(1, _packed, make, PACKED_SHARE, packed=True) for name, make in _INT4.items()}

_ENCODER = ("qkv", "norm_mlp", "mlp_down", "projection", "full")
FAMILIES: dict[str, tuple[str, ...]] = {
    "decoders": (*_ENCODER[:4], "gated_mlp", "decode", "causal", "window", "window_long", "lora", "head", *_INT4),
    "experts": ("expert", "latent"),
    "encoders": _ENCODER,
    "diffusion": (*_ENCODER, "cross"),
    "listeners": (*_ENCODER[:4], "decode", "cross", "head"),
}
_NEEDED = {
    "window": "window",
    "window_long": "window",
    "cross": "context",
    "latent": "latent",
}  #: kinds that only some configurations have


# ---- the rows --------------------------------------------------------------------------------------------------------
@functools.cache
def configurations(table: str = "models") -> tuple[tuple[str, Config], ...]:
    """The family and the configuration of every model of a table, in its order."""
    data = yaml.safe_load(files("mirage_cli.suite").joinpath(f"{table}.yaml").read_text(encoding="utf-8"))
    return tuple((family, data["defaults"] | c) for family in FAMILIES for c in data[family])


@functools.cache
def models() -> tuple[Case, ...]:
    """All rows: of each model, of each kind that it has."""
    return tuple(case for family, c in configurations() for kind in FAMILIES[family] for case in _rows(kind, c))


@functools.cache
def apart() -> tuple[Case, ...]:
    """One row of each model that is kept apart: the ranges of rows take turns, in them its name decides."""
    chosen = []
    for turn, (family, c) in enumerate(configurations("apart")):
        rows = [case for kind in FAMILIES[family] for case in _rows(kind, c)]
        wanted = list(RANGES)[turn % len(RANGES)]
        ranged = [r for r in rows if range_of(r.rows) == wanted] or rows
        first = min(ranged, key=lambda r: hashlib.sha256(r.name.encode()).digest())
        chosen.append(replace(first, part="judge"))
    return tuple(chosen)


def part_of(name: str) -> str:
    """Whether constants may be fitted to a row, or it only judges."""
    return PARTS[hashlib.sha256(name.encode()).digest()[0] % 2]


def range_of(rows: int) -> str:
    """The name of the range in which a number of rows lies; of more rows, the last one."""
    return next((n for n, (_, high) in RANGES.items() if rows <= high), list(RANGES)[-1])


def _rows(kind: str, c: Config) -> Iterator[Case]:
    """The rows of a kind and a model that differ and are not too large."""
    if _NEEDED.get(kind, "name") not in c or (kind == "gated_mlp" and not c["gated"]):
        return
    chance, taken = random.Random(f"{c['name']} {kind}"), set[str]()
    if KINDS[kind].share < 1 and chance.random() >= KINDS[kind].share:
        return
    turn = chance.randrange(len(ROWS))
    for _ in range(ATTEMPTS):
        if len(taken) == KINDS[kind].count:
            return
        d = KINDS[kind].draw(chance, turn, c)
        dtype = "fp16" if KINDS[kind].packed else _dtype(chance, c["dtype"])
        parts = [f"c{d.context}"] * bool(d.context) + [f"b{d.block}"] * bool(d.block)
        name = "_".join([c["name"], kind, f"r{d.rows}", *parts, dtype])
        case = KINDS[kind].make(name, c, d)
        if name in taken or not _fits(case, dtype, c, d, KINDS[kind].most_scores):
            continue
        taken.add(name)
        turn += 1
        yield replace(
            case, model_name=c["name"], kind=kind, rows=d.rows, dtype=dtype, part=part_of(name), decode=d.rows <= 16
        )


def _dtype(chance: random.Random, own: str) -> str:
    at = chance.random()
    if at < FP32_SHARE:
        return "fp32"
    return own if at > FP32_SHARE + OTHER_SHARE else "fp16" if own == "bf16" else "bf16"


def _fits(case: Case, dtype: str, c: Config, d: Drawn, most_scores: int) -> bool:
    scores = d.rows * d.context * c.get("heads", 1)
    weights = sum(t.bytes(DTYPES[dtype]) for t in case.tensors if t.weight)
    return (
        weights <= MOST_WEIGHTS
        and case.bytes(DTYPES[dtype]) <= MOST_BYTES
        and case.flops <= MOST_FLOPS
        and scores <= most_scores
    )
