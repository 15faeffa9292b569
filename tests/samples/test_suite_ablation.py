"""Cases of the suite with a part left out compute the same, from the same numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from mirage_cli.codegen.requests.passes import PASSES
from mirage_cli.lax.dtypes import F32
from mirage_cli.runtime import sessions
from mirage_cli.suite.cases import Case, attention, gated_mlp, latent_attention, lora
from samples.suite_ablation import VARIANTS, WHOLE, table, turned, unstabilised

MLP = gated_mlp("gated", 3, 8, 16)
LORA = lora("lora", 3, 8, 2, 16)
ATTENTION = attention("attention", 2, 3, 8, 16, norms=True)
LATENT = latent_attention("latent", 2, 4, 8, 4, 16)


def _answer(case: Case, like: Case, flipped: bool) -> np.ndarray:
    """The output of a case in float32 on the tensors of another."""
    random = np.random.default_rng(0)
    model = like.repeated(F32, 1)
    inputs = {
        i.name: random.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]) for i in model.graph.input
    }
    weights = {f"{t.name}_0" for t in like.tensors if t.weight}
    given = {n: (a.T if flipped and n in weights else a).astype(np.float32) for n, a in inputs.items()}
    made = case.repeated(F32, 1)
    onnx.checker.check_model(made, full_check=True)
    return sessions.run(sessions.session(made.SerializeToString()), given)["output_0"]


@pytest.mark.parametrize("case", [MLP, LORA], ids=["mlp", "lora"])
def test_turned_weights_give_the_same(case: Case) -> None:
    changed = turned(case)
    assert changed is not None
    assert [t.shape for t in changed.tensors if t.weight] == [t.shape[::-1] for t in case.tensors if t.weight]
    np.testing.assert_allclose(_answer(changed, case, True), _answer(case, case, False), rtol=1e-5, atol=1e-5)
    assert turned(ATTENTION) is None


@pytest.mark.parametrize("case", [ATTENTION, LATENT], ids=["attention", "latent"])
def test_plain_softmax_gives_the_same(case: Case) -> None:
    changed = unstabilised(case)
    assert changed is not None
    operators = [n.op_type for n in changed.repeated(F32, 1).graph.node]
    assert "Exp" in operators and "Softmax" not in operators
    np.testing.assert_allclose(_answer(changed, case, False), _answer(case, case, False), rtol=1e-4, atol=1e-5)
    assert unstabilised(MLP) is None


def test_variants_leave_out_what_there_is() -> None:
    assert {p for v in VARIANTS for p in v.without} == set(PASSES)


def test_the_table_gives_ratios_and_reasons() -> None:
    lines = list(table({"a": {WHOLE: 4.0, "overlap": 5.0, "engines": "no"}, "b": {WHOLE: "lost"}}))
    assert lines[2].startswith("| a | 1.25 | - | - | no | -") and lines[2].endswith("| 4.00 |")
    assert lines[3].endswith("| lost |")
