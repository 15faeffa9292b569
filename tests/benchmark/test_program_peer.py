"""Programs as PyTorch operators, against the registry's own evaluation."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from mirage_cli import frontends
from mirage_cli.benchmark.program_peer import TorchProgram, functions
from mirage_cli.checks import kernel_check
from mirage_cli.errors import Refused
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.dtypes import BOOL, F16, F32
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.ir.program import Axis, Input, Node, Output, Program, Slot, Source, evaluate_program
from mirage_cli.lax.ops import OPS
from mirage_cli.optimization import task as works
from tests.optimized import sample

#: operators, masks, rotary embedding, symbolic extents, gathers, truth values
MODELS = (
    "gqa_fp16", "attention_boolean_fp32", "attention_softcap_fp32", "qknorm_gqa_fp32", "mla_absorbed_fp32", "ntrans_fp32",
    "layer_norm_linear_gelu_fp32", "group_norm_linear_fp32", "batch_norm_linear_fp32", "moe_gated_fp32", "lora_adapters_fp32",
    "llama_fp32", "llama_decode_dynamic_fp32", "bert_masked_fp32", "gemma2_fp32", "qwen3_moe_fp32",
)  # fmt: skip


def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


def test_every_operator_of_the_registry_has_a_torch_function() -> None:
    assert set(functions(MagicMock())) == set(OPS)


@pytest.mark.parametrize("name", sorted(OPS))
@pytest.mark.torch
def test_an_operator_computes_what_the_registry_says(name: str) -> None:
    t = torch()
    op = OPS[name]
    random = np.random.default_rng(3)
    values = [np.concatenate([random.normal(0.0, 1.5, 40), [0.0, 1.0, -1.0, 2.5]]) for _ in range(op.arity)]
    if name in ("log", "sqrt", "rsqrt", "pow"):
        values = [np.abs(v) + 0.1 for v in values]
    if name in ("and", "or", "xor", "not"):
        values = [(v > 0).astype(np.float64) for v in values]
    if name in ("isnan", "isinf", "div0"):
        values[0][:3] = np.nan, np.inf, 0.0
        values[-1][2] = 0.0 if name == "div0" else values[-1][2]
    with np.errstate(all="ignore"):
        wanted = op.apply(Float64(["a"]), *values)
    tensors = [t.from_numpy(v) for v in values]
    if name in ("and", "or", "xor", "not"):
        tensors = [v != 0 for v in tensors]
    found = functions(t)[name](*tensors).double().numpy()
    assert np.allclose(found, wanted, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.torch
def test_fragments_of_samples_compute_what_the_registry_says(name: str) -> None:
    t = torch()
    imported = frontends.load(str(sample(name)), frontends.Options({}, {}))
    found = partition(imported.graph, works.tensor_names(imported)).fragments
    distinct = {f.key: f.program for f in found}
    assert distinct
    for program in distinct.values():
        symbols = kernel_check.symbol_values(program.symbols)
        arrays = kernel_check.inputs(program, "random", 2, {}, symbols)
        wide = {k: a.astype(np.float64) if a.dtype.kind != "b" else a for k, a in arrays.items()}
        wanted = evaluate_program(
            program,
            Float64([a.name for a in program.axes]),
            {k: a.astype(np.float64) for k, a in wide.items()},
            symbols,
        )
        sources = [t.from_numpy(np.ascontiguousarray(arrays[k])) for k in range(len(program.sources))]
        exact = TorchProgram(t, program, "cpu", symbols, wide=True)(*sources)
        own = TorchProgram(t, program, "cpu", symbols)(*sources)
        for o, w, e, f in zip(program.outputs, wanted, exact, own, strict=True):
            assert np.allclose(e.double().numpy(), w, rtol=1e-8, atol=1e-9, equal_nan=True)
            assert str(f.dtype) == {"f16": "torch.float16", "f32": "torch.float32", "bool": "torch.bool"}.get(
                o.dtype.name, str(f.dtype)
            )
            size = np.sqrt(np.mean(w[np.isfinite(w)] ** 2)) if np.isfinite(w).any() else 1.0
            error = np.abs(f.double().numpy() - w)[np.isfinite(w)]
            assert error.max(initial=0.0) <= (0.05 if o.dtype == F16 else 1e-3) * (size + 1e-3)


def softmax(extra_reader: bool) -> Program:
    """softmax(x) along b; with `extra_reader` the sum is an output too."""
    slots = (Slot("a", 3), Slot("b", 5))
    nodes = (
        Node("e", "stable_exp", ("x",), ("b",)),
        Node("s", "sum", ("e",), ("b",)),
        Node("y", "div", ("e", "s")),
    )
    outputs = [Output("y", slots, (3, 5), F32)]
    if extra_reader:
        outputs.append(Output("s", (Slot("a", 3),), (3,), F32))
    axes = (Axis("a", 3), Axis("b", 5))
    source = Source("x", (3, 5), F32)
    return Program(axes, (source,), (Input("x", 0, slots),), nodes, tuple(outputs)).validate()


@pytest.mark.parametrize("extra_reader", [False, True])
@pytest.mark.torch
def test_a_softmax_is_one_operator_where_nothing_reads_its_parts(extra_reader: bool) -> None:
    t = torch()
    program = softmax(extra_reader)
    made = TorchProgram(t, program)
    assert [n.op for n in made.steps] == (["stable_exp", "sum", "div"] if extra_reader else ["softmax"])
    x = t.randn(3, 5)
    assert t.allclose(made(x)[0], t.softmax(x, -1))


@pytest.mark.torch
def test_truth_values_are_numbers_in_arithmetic_and_a_sum_counts_broadcast_positions() -> None:
    t = torch()
    slots = (Slot("a", 4),)
    nodes = (
        Node("n", "add", ("m", "x")),
        Node("s", "sum", ("n",), ("a", "b")),
        Node("w", "where", ("m", "n", "x")),
    )
    program = Program(
        (Axis("a", 4), Axis("b", 7)),
        (Source("m", (4,), BOOL), Source("x", (4,), F32)),
        (Input("m", 0, slots), Input("x", 1, slots)),
        nodes,
        (Output("s", (), (), F32), Output("w", slots, (4,), F32)),
    ).validate()
    m, x = t.tensor([True, False, True, False]), t.tensor([1.0, 2.0, 3.0, 4.0])
    total, chosen = TorchProgram(t, program)(m, x)
    assert float(total) == 7 * (10 + 2)
    assert chosen.tolist() == [2.0, 2.0, 4.0, 4.0]


def test_an_operator_without_a_function_is_refused() -> None:
    slots = (Slot("a", 4),)
    program = Program(
        (Axis("a", 4),),
        (Source("x", (4,), F32),),
        (Input("x", 0, slots),),
        (Node("y", "mystery", ("x",)),),
        (Output("y", slots, (4,), F32),),
    )
    with pytest.raises(Refused, match="mystery"):
        TorchProgram(MagicMock(), program)
