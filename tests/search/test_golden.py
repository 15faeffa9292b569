"""The paper's best muGraphs are found; the sizes of closures are recorded (MIRAGE_GOLDEN=1 writes them anew)."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mirage_cli.lax.ir.program import Program
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, GRID, BlockGraph, BlockOp
from mirage_cli.search.search import Searcher, SearchOptions
from tests.search.programs import fragments, program_of

COUNTS = Path(__file__).with_name("counts.json")
SAMPLES = (
    "rmsnorm_linear_fp32",
    "rmsnorm_gain_linear_fp32",
    "layer_norm_linear_gelu_fp32",
    "gated_mlp_fp32",
    "norm_gated_mlp_fp32",
    "lora_fp32",
    "lora_scaled_fp32",
    "gqa_fp32",
    "qknorm_gqa_fp32",
    "attention_boolean_fp32",
    "ntrans_fp32",
    "ntrans_artifact_fp32",
    "llama_fp32",
)


def ops(g: BlockGraph, op: str, phase: str | None = None) -> list[BlockOp]:
    """The operators of a kind, in a phase."""
    return [o for o in g.ops if o.op == op and phase in (None, o.phase)]


def holds(o: BlockOp, *names: str) -> bool:
    """Whether a thread graph computes each of these operators."""
    have = Counter(n.op for n in o.thread.nodes) if o.thread is not None else Counter[str]()
    return not Counter(names) - have


def last(g: BlockGraph) -> BlockOp:
    """The operator that makes the output."""
    return g.op(g.outputs[0])


def reduced(p: Program) -> set[str]:
    """The axes of contractions."""
    return {a for n in p.nodes if n.op == "contract" for a in n.over}


def accumulated(g: BlockGraph) -> Counter[str]:
    """What the accumulators sum over the loop."""
    return Counter(g.op(o.inputs[0]).op for o in ops(g, "accum"))


def norm_linear(p: Program, g: BlockGraph) -> bool:
    """OSDI'25, figure 3: one loop over the hidden axis, two accumulators, division after the loop."""
    return (
        {g.loop} == reduced(p)
        and not g.split
        and accumulated(g) == {"contract": 1, "sum": 1}
        and all(g.op(i).op == "load" for o in ops(g, "contract", BODY) for i in o.inputs)
        and last(g).phase == EPILOGUE
        and holds(last(g), "div")
    )


def norm_linear_split(p: Program, g: BlockGraph) -> bool:
    """The same with the hidden axis split over blocks: two sums over blocks, division after these."""
    return (
        set(g.split) == {g.loop} == reduced(p)
        and accumulated(g) == {"contract": 1, "sum": 1}
        and len(ops(g, "grid_sum")) == 2
        and last(g).phase == GRID
        and holds(last(g), "div")
    )


def keys(p: Program) -> str:
    """The axis of the softmax."""
    return next(n.over[0] for n in p.nodes if n.op == "stable_exp")


def flash_attention(p: Program, g: BlockGraph) -> bool:
    """One loop over the keys, a running maximum, two rescaled accumulators, division after the loop."""
    return (
        g.loop == keys(p)
        and not g.split
        and len(ops(g, "running")) == 1
        and accumulated(g) == {"contract": 1, "sum": 1}
        and all(len(o.inputs) == 2 and g.op(o.inputs[1]).op == "shrink" for o in ops(g, "accum"))
        and len(ops(g, "contract", BODY)) == 2
        and last(g).phase == EPILOGUE
        and (holds(last(g), "div") or holds(last(g), "div0"))
    )


def flash_decoding(p: Program, g: BlockGraph) -> bool:
    """FlashAttention's loop, the keys split over blocks, partial results weighted with their maxima."""
    return (
        g.loop == keys(p)
        and g.split == (keys(p),)
        and accumulated(g) == {"contract": 1, "sum": 1}
        and len(ops(g, "grid_top")) == 1
        and [len(o.inputs) for o in ops(g, "grid_sum")] == [3, 3]
        and last(g).phase == GRID
    )


def gated_mlp(p: Program, g: BlockGraph) -> bool:
    """One loop, both products from one read of the activations, gate and product after the loop."""
    inner = [o.inputs for o in ops(g, "contract", BODY)]
    return (
        {g.loop} == reduced(p)
        and accumulated(g)["contract"] == 2
        and len(inner) == 2
        and len(set(inner[0]) & set(inner[1])) == 1
        and holds(last(g), "silu", "mul")
        and last(g).phase == EPILOGUE
    )


def norm_gated_mlp(p: Program, g: BlockGraph) -> bool:
    """The same with the norm's statistics in the loop and its division behind it."""
    return gated_mlp(p, g) and accumulated(g) == {"contract": 2, "sum": 1} and holds(last(g), "div", "div")


def lora(p: Program, g: BlockGraph) -> bool:
    """Both paths in one kernel: the low-rank product is accumulated beside the full one and multiplied after the loop."""
    rank = reduced(p) - {g.loop}
    return (
        len(ops(g, "contract", BODY)) == 2
        and [set(o.over) for o in ops(g, "contract", EPILOGUE)] == [rank]
        and accumulated(g) == {"contract": 2}
    )


def unit_residual(p: Program, g: BlockGraph) -> bool:
    """A whole row stays in the block: both norms and the residual in one kernel, nothing stored between them."""
    return (
        g.loop is None
        and len(ops(g, "sum")) == 2
        and len(ops(g, "load")) == len({o.source_value for o in ops(g, "load")}) == len(p.inputs)
    )


SHAPES: list[tuple[str, Callable[[Program, BlockGraph], bool]]] = [
    ("rmsnorm_linear_fp32", norm_linear),
    ("rmsnorm_linear_fp32", norm_linear_split),
    ("gqa_fp32", flash_attention),
    ("gqa_fp32", flash_decoding),
    ("mha_fp32", flash_attention),
    ("mqa_fp32", flash_decoding),
    ("attention_masked_fp32", flash_attention),
    ("attention_boolean_fp32", flash_decoding),
    ("gated_mlp_fp32", gated_mlp),
    ("norm_gated_mlp_fp32", norm_gated_mlp),
    ("lora_fp32", lora),
    ("lora_scaled_fp32", lora),
    ("ntrans_fp32", unit_residual),
    ("ntrans_artifact_fp32", unit_residual),
]


@pytest.mark.parametrize(("name", "shape"), SHAPES, ids=[f"{n}-{s.__name__}" for n, s in SHAPES])
def test_the_paper_s_graphs_are_found(name: str, shape: Callable[[Program, BlockGraph], bool]) -> None:
    p = program_of(name)
    found = Searcher(SearchOptions()).blocks(p)[0]
    assert any(shape(p, g) for g in found), "\n".join(g.text(p) for g in found)


def test_query_key_norms_join_the_loop() -> None:
    """Both norms are divisions of the scores or of the queries in the attention's own loop."""
    p = program_of("qknorm_gqa_fp32")
    flash = [g for g in Searcher(SearchOptions()).blocks(p)[0] if flash_attention(p, g)]
    assert flash
    assert any(len(ops(g, "sum")) == 3 for g in flash)


def counts(name: str) -> dict[str, dict[str, int]]:
    """What the search of each distinct fragment of a sample goes through."""
    found = {}
    for f in fragments(name):
        _, statistics = Searcher(SearchOptions()).blocks(f.program)
        entry = {"mappings": statistics.mappings, "values": statistics.values, "muGraphs": statistics.mugraphs}
        found[f"{f.name} {len(f.program.nodes)} nodes {len(f.program.axes)} axes"] = entry
    return found


@pytest.mark.parametrize("name", SAMPLES)
def test_sizes_of_searches(name: str) -> None:
    """A change of the algebra shows itself here, before it shows in seconds."""
    recorded = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    found = counts(name)
    if os.environ.get("MIRAGE_GOLDEN") == "1":
        recorded[name] = found
        COUNTS.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    assert recorded.get(name) == found, f"{name}: set MIRAGE_GOLDEN=1 to record the new sizes"
