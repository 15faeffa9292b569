"""The published cases that the search is measured by: programs at the extents of the papers and of known models.

`CASES["gqa_prefill"]` names an operator of `operators.py` with dimensions; weights are inputs, so nothing is stored.
`program(case)` is the whole graph as one program in normal form, in fp16.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirage_cli.frontends.imported import Options
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.lax.fragments.fragment import whole_program
from mirage_cli.lax.ir.program import Program
from mirage_cli.optimization.task import tensor_names
from mirage_cli.search.search import SearchOptions
from samples import operators
from samples.inputs import MEAN


@dataclass(frozen=True, slots=True)
class Case:
    """One operator at published extents; `source` says who published it."""

    name: str
    source: str
    operator: str
    dims: dict[str, int]


def _cases() -> Iterator[Case]:
    def attention(name: str, source: str, h: int, q: int, k: int, d: int = 64, operator: str = "attention") -> Case:
        return Case(name, source, operator, {"h": h, "q": q, "k": k, "d": d})

    def linear(name: str, source: str, operator: str, n: int, h: int, d: int) -> Case:
        return Case(name, source, operator, {"n": n, "h": h, "d": d})

    first, osdi, seed, model = "first paper", "OSDI'25", "the paper's text", "common models"
    yield attention("mha_prefill", first, 32, 256, 1024)
    yield attention("mha_incremental", first, 32, 16, 4096)
    yield attention("mha_speculative", first, 32, 16, 4096)
    yield attention("gqa_prefill", first, 2, 256, 4096)
    yield attention("gqa_incremental", first, 2, 8, 4096)
    yield attention("gqa_speculative", first, 2, 256, 4096)
    yield attention("mqa_prefill", first, 1, 4096, 4096)
    yield attention("mqa_incremental", first, 1, 32, 4096)
    yield attention("mqa_speculative", first, 1, 1024, 4096)
    lora = {"n": 16, "h": 256, "r": 16, "d": 4096}
    yield Case("lora_paper", first, "lora", lora)
    yield linear("mlp", first, "mlp", 16, 8192, 8)
    yield Case("moe", first, "moe", {"e": 8, "n": 8, "h": 4096, "d": 4096})

    yield attention("osdi_gqa", osdi, 2, 256, 4096)
    yield attention("osdi_qknorm", osdi, 2, 256, 4096, operator="qknorm_gqa_artifact")
    yield linear("osdi_rmsnorm", osdi, "rmsnorm_linear", 2, 4096, 6144)
    yield Case("osdi_lora", osdi, "lora", lora)
    yield linear("osdi_gated_mlp", osdi, "gated_mlp", 8, 4096, 4096)
    yield Case("osdi_ntrans", osdi, "ntrans_artifact", {"n": 1, "h": 4096})

    yield attention("seed_attention", seed, 64, 1, 4096, 128)
    yield linear("rmsnorm_linear", seed, "rmsnorm_linear", 16, 1024, 4096)
    yield linear("rmsnorm_gain_linear", model, "rmsnorm_gain_linear", 1, 3584, 4608)
    yield Case("residual_norm_qkv", model, "residual_norm_qkv", {"n": 8, "h": 4096, "q": 4096, "kv": 1024})
    yield linear("norm_gated_mlp", model, "norm_gated_mlp", 8, 4096, 14336)
    yield linear("gated_mlp_down", model, "gated_mlp_down", 8, 4096, 14336)
    yield linear("silu_down", model, "gated_down", 1, 18944, 3584)
    yield linear("rmsnorm_mlp", model, "rmsnorm_mlp", 8, 4096, 4096)
    yield linear("layer_norm_linear_gelu", model, "layer_norm_linear_gelu", 8, 4096, 4096)
    yield Case("lora_adapters", model, "lora_adapters", {**lora, "a": 2})
    yield attention("attention_masked", model, 2, 256, 4096, operator="attention_masked")
    yield attention("attention_scaled", model, 2, 256, 4096, operator="attention_scaled")
    yield attention("attention_softcap", model, 2, 256, 4096, operator="attention_softcap")
    yield attention("qknorm_k_gain", model, 2, 256, 4096, operator="qknorm_k_gain")
    latent = {"h": 128, "q": 1, "k": 4096, "nope": 128, "rope": 64, "c": 512}
    yield Case("mla", model, "mla", latent)
    yield Case("mla_absorbed", model, "mla_absorbed", latent)
    yield Case("ntrans_l2", model, "ntrans", {"n": 1, "h": 4096})
    yield Case("jit_demo", "the reference's demo", "jit_demo", {"n": 12, "h": 251})


CASES: dict[str, Case] = {case.name: case for case in _cases()}


def model(case: Case) -> onnx.ModelProto:
    """The case as a model, in fp16."""
    return operators.model(case.operator, case.dims, "fp16")


def program(case: Case) -> Program:
    """The whole model as one program in normal form. Raises Refused when it cannot be expressed."""
    imported = from_proto(model(case), Options(), case.name)
    return whole_program(imported.graph, tensor_names(imported))


def search_options(case: Case, p: Program) -> SearchOptions:
    """The options with which a case's program is searched: the gains of norms are weights in models, and below 2."""
    gains = {v.name for v in model(case).graph.input if any(e.key == MEAN for e in v.metadata_props)}
    return SearchOptions(largest=tuple((k, 2.0) for k, s in enumerate(p.sources) if s.name in gains))


if __name__ == "__main__":
    from samples.case_table import main

    main()
