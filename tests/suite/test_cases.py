"""The cases of the suite: the ONNX nodes and the PyTorch function of a case compute the same."""

from __future__ import annotations

import math
import re

import numpy as np
import onnx
import pytest

from mirage_cli.errors import UsageError
from mirage_cli.lax.dtypes import F16, F32, DType
from mirage_cli.runtime import sessions
from mirage_cli.suite import cases as suite_cases
from mirage_cli.suite import suites
from mirage_cli.suite.cases import Case
from mirage_cli.suite.layers import Attention, Dense, adapted

#: each operator of the suite at a small size
SMALL = (
    suite_cases.rmsnorm_linear("rmsnorm_linear", 3, 32, 24),
    suite_cases.gated_mlp("gated_mlp", 3, 32, 24),
    suite_cases.lora("lora", 3, 32, 4, 24),
    suite_cases.norm_mlp_down("norm_mlp_down", 3, 32, 40),
    suite_cases.ntrans("ntrans", 4, 48),
    suite_cases.attention("attention", 2, 5, 8, 33),
    suite_cases.attention("qknorm", 2, 5, 8, 33, norms=True),
    suite_cases.latent_attention("mla", 2, 4, 16, 8, 20),
    Dense(3, 32, 24, norm="rms", bias=True).case("qkv"),
    Dense(3, 32, 24, norm="layer", act="gelu", bias=True).case("layer_norm_mlp"),
    Dense(3, 32, 24, act="gelu_tanh", gated=True).case("geglu"),
    Dense(3, 32, 24, norm="rms", act="silu", gated=True, down=32, residual=True).case("mlp_down"),
    Dense(3, 32, 24, norm="ada", act="gelu_tanh", bias=True, down=32, residual=True).case("modulated"),
    Dense(3, 32, 24, residual=True).case("projection"),
    Dense(3, 32, 24, norm="rms", act="silu", gated=True, bias=True, block=16).case("int4_mlp"),
    Dense(3, 64, 32, residual=True, block=32).case("int4_projection"),
    adapted("adapted", 3, 32, 4, 24, 2.0),
    Attention(2, 6, 2, 1, 33, 8).case("decode"),
    Attention(1, 4, 4, 5, 33, 8).case("cross"),
    Attention(1, 6, 2, 12, 12, 8, "causal").case("causal"),
    Attention(1, 6, 2, 12, 12, 8, "window", 5).case("window"),
)


def names(case: Case) -> str:
    return case.name


def arrays(case: Case, dtype: DType) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    kind = sessions.numpy_type(dtype)
    return {
        t.name: random.integers(0, 120, t.shape, np.uint8)
        if t.packed
        else (random.standard_normal(t.shape) * t.std + t.mean).astype(kind)
        for t in case.tensors
    }


def test_the_suite_has_every_row_of_the_paper() -> None:
    cases = suite_cases.paper()
    kinds = {re.sub(r"_b\d+$", "", c.name) for c in cases}
    assert len(cases) == len({c.name for c in cases}) == 28
    assert {"rmsnorm_linear", "gated_mlp", "lora", "lora_paper", "gqa", "mha", "mqa", "qknorm_gqa", "ntrans"} <= kinds
    assert {c.name for c in cases if not c.decode} == {
        f"prefill_{n}" for n in ("rmsnorm_linear", "gated_mlp", "attention")
    }


def test_floors_count_what_is_read_and_written_once() -> None:
    by_name = {c.name: c for c in suite_cases.paper()}
    assert by_name["rmsnorm_linear_b1"].bytes(F16) == 2 * (4096 + 4096 * 6144 + 6144)
    assert by_name["rmsnorm_linear_b1"].flops == 2 * 4096 * 6144
    assert by_name["mla_b1"].bytes(F16) == 2 * (128 * 576 + 4096 * 576 + 128 * 512)
    int4 = Dense(2, 256, 64, block=32).case("int4")
    assert int4.bytes(F16) == 256 * 64 // 2 + 2 * (256 * 64 // 32 + 2 * 256 + 2 * 64)
    assert by_name["prefill_attention"].flops == 4 * 32 * 4096 * 4096 * 128


@pytest.mark.parametrize("case", SMALL, ids=names)
def test_the_model_is_valid_and_its_matrices_are_weights(case: Case) -> None:
    model = case.model(F16, 1)
    onnx.checker.check_model(model, full_check=True)
    held = {t.name: tuple(t.dims) for t in model.graph.initializer}
    for t in case.tensors:
        assert (t.name in held) is t.weight
    assert {i.name for i in model.graph.input} == {t.name for t in case.tensors if not t.weight}
    again = case.model(F16, 1)
    assert again.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


@pytest.mark.parametrize("case", SMALL, ids=names)
def test_copies_of_a_model_compute_the_same_on_tensors_of_their_own(case: Case) -> None:
    values = arrays(case, F32)
    model = case.repeated(F32, 2)
    feeds = {f"{n}_{k}": a * (k + 1) for n, a in values.items() for k in range(2)}
    both = sessions.run(sessions.session(model.SerializeToString()), feeds)
    one = case.repeated(F32, 1).SerializeToString()
    second = sessions.run(sessions.session(one), {f"{n}_0": 2 * a for n, a in values.items()})
    assert both["output_0"].shape == case.output
    assert np.allclose(both["output_1"], second["output_0"], rtol=1e-5, atol=1e-6)
    assert not np.allclose(both["output_0"], both["output_1"])


def test_numbers_of_4_bits_lie_in_bytes_lower_half_first() -> None:
    case = next(c for c in SMALL if c.name == "int4_projection")
    given = arrays(case, F32)
    found = sessions.run(
        sessions.session(case.repeated(F32, 1).SerializeToString()), {f"{n}_0": a for n, a in given.items()}
    )["output_0"]
    q, s = given["up_q"], given["up_s"]
    numbers = np.stack([q & 15, q >> 4], -1).reshape(32, 2, 32).astype(np.float32) - 8
    weight = (numbers * s[:, :, None]).reshape(32, 64).T
    assert np.allclose(found, given["x"] @ weight + given["residual"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", SMALL, ids=names)
@pytest.mark.torch
def test_torch_computes_what_the_nodes_compute(case: Case) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    values = arrays(case, F32)
    found = sessions.run(
        sessions.session(case.repeated(F32, 1).SerializeToString()), {f"{n}_0": a for n, a in values.items()}
    )["output_0"]
    tensors = {n: torch.from_numpy(a) for n, a in values.items()}
    functional = torch.nn.functional
    ours = case.torch(torch, functional, *tensors.values()).numpy()
    assert np.allclose(ours, found, rtol=1e-4, atol=1e-5)
    if case.sdpa is not None and case.own is not None:
        fused = case.sdpa(torch, functional, *case.own(torch, *tensors.values())).numpy()
        assert np.allclose(fused, found, rtol=1e-4, atol=1e-5)
    for peer in case.further[1:]:  # torch's own product of int4 weights is one of bfloat16, on a GPU
        beside = peer.function(torch, functional, *peer.own(torch, *tensors.values())).numpy()
        assert np.allclose(beside, found, rtol=1e-4, atol=1e-5)


def test_rows_are_chosen_by_patterns() -> None:
    assert [c.name for c in suites.chosen("paper", ["gqa_*", "lora_paper"])] == ["lora_paper", "gqa_b1", "gqa_b8"]
    assert math.prod(suites.chosen("paper", ["seed*"])[0].output) == 64 * 128
    with pytest.raises(UsageError, match="no row of paper"):
        suites.chosen("paper", ["nothing"])
