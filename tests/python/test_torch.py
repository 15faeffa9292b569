"""Graphs of modules, kernels as operators of PyTorch. What needs torch is skipped where it is not installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import mirage_cli as mi
from mirage_cli.backends.spec import OperatorSpec, TensorSpec
from mirage_cli.kernels import torch_operator
from mirage_cli.lax.dtypes import F32
from mirage_cli.runtime import sessions
from tests.optimized import Optimized

OPTIONS: dict[str, Any] = {"target": "cpu", "jobs": 1}


def spec(*names: str, outputs: int = 1) -> OperatorSpec:
    def tensors(given: tuple[str, ...]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(n, F32, (4,)) for n in given)

    return OperatorSpec("0", "op", tensors(names), tensors(("y",) * outputs))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (spec("x", "w_1"), "(Tensor x, Tensor w_1) -> Tensor"),
        (spec("x", "block.weight", outputs=2), "(Tensor x, Tensor input_1) -> (Tensor, Tensor)"),
        (spec("input_1", "1"), "(Tensor input_0, Tensor input_1) -> Tensor"),
    ],
)
def test_the_declaration_of_an_operator(given: OperatorSpec, wanted: str) -> None:
    assert torch_operator.schema(given) == wanted


class Fixed:
    """A kernel that is not called."""

    spec = spec("x")

    def run(self, inputs: Any, out: Any = None) -> tuple[Any, ...]:
        raise AssertionError


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(mi.ToolMissing, match="torch is needed for from_torch"):
        mi.from_torch(None, None)
    with pytest.raises(mi.ToolMissing, match="torch is needed for its operators"):
        torch_operator.register(Fixed(), "mirage_tests::fixed")
    with pytest.raises(mi.UsageError, match="expected the name of an operator such as 'mirage::norm', found 'norm'"):
        torch_operator.register(Fixed(), "norm")


# --- with torch -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)


@pytest.fixture(scope="module")
def module(torch: Any) -> Any:
    class Block(torch.nn.Module):  # type: ignore[misc]
        """A norm, a gated product, dropout and a residual."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(16)
            self.gate, self.up = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16, bias=False)
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, x: Any) -> Any:
            h = self.norm(x)
            y = x + self.drop(torch.nn.functional.gelu(self.gate(h)) * self.up(h))
            return y, y.softmax(-1)

    torch.manual_seed(0)
    return Block()


@pytest.fixture(scope="module")
def kernel(torch: Any, module: Any, cache: Path) -> Any:
    graph = mi.from_torch(module, torch.zeros(3, 16), dynamic_shapes=({0: torch.export.Dim("rows")},))
    assert module.training
    assert module.drop.training
    return graph.superoptimize(cache=str(cache), **OPTIONS)


def agrees(torch: Any, found: Any, wanted: Any) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-4, atol=1e-5)


def test_a_module(torch: Any, module: Any, kernel: Any) -> None:
    module.eval()
    for rows in (2, 5):
        x = torch.randn(rows, 16)
        agrees(torch, kernel(x), module(x))
        agrees(torch, map(torch.from_numpy, kernel(x.numpy())), module(x))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_root_mean_square_normalisation(torch: Any, kind: str, affine: bool) -> None:
    norm = torch.nn.RMSNorm(16, elementwise_affine=affine, dtype=getattr(torch, kind))
    if affine:
        torch.nn.init.normal_(norm.weight)
    x = torch.randn(3, 16, dtype=norm.weight.dtype if affine else getattr(torch, kind)) * 1e-3
    model = mi.from_torch(norm, x).model()
    assert not model.functions and {n.domain for n in model.graph} == {""}
    (found,) = sessions.run(
        sessions.session(ir.to_proto(model).SerializeToString()), {model.graph.inputs[0].name: x.numpy()}
    ).values()
    assert np.allclose(found, norm(x).detach().numpy(), rtol=2e-3 if kind == "float16" else 1e-5)


def test_an_operator(torch: Any, module: Any, kernel: Any) -> None:
    module.eval()
    operator = kernel.as_torch_op("mirage_tests::block")
    x = torch.randn(16, 4).T
    agrees(torch, operator(x), module(x))
    assert torch.ops.mirage_tests.block.default is operator
    torch.library.opcheck(operator, (torch.randn(4, 16),))
    with pytest.raises(mi.UsageError, match="torch has an operator 'mirage_tests::block' already"):
        kernel.as_torch_op("mirage_tests::block")


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function(torch: Any, module: Any, kernel: Any) -> None:
    module.eval()
    operator = kernel.as_torch_op("mirage_tests::compiled")

    def function(x: Any) -> Any:
        y, s = operator(x * 2)
        return y + 1, s

    x = torch.randn(4, 16)
    y, s = module(2 * x)
    for backend in ("aot_eager", "inductor"):
        torch._dynamo.reset()
        agrees(torch, torch.compile(function, fullgraph=True, backend=backend)(x), (y + 1, s))
    torch._dynamo.reset()
    dynamic = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (4, 7):
        agrees(torch, dynamic(x[:1].expand(rows, 16)), [t[:1].expand(rows, 16) for t in (y + 1, s)])
    exported = torch.export.export(_Module(torch, function), (x,))
    agrees(torch, exported.module()(x), (y + 1, s))


def _Module(torch: Any, function: Any) -> Any:
    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return function(x)

    return Module()


def test_an_operator_of_a_fragment(torch: Any, optimized: Optimized) -> None:
    fragment = mi.load_kernel(optimized("rmsnorm_linear_fp32"))
    operator = fragment.as_torch_op("mirage_tests::fragment")
    inputs = [torch.rand([int(str(d)) for d in t.dims]) for t in fragment.spec.inputs]
    torch.testing.assert_close(operator(*inputs), fragment(*inputs))


def test_weights_of_torch(torch: Any) -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input((2,), torch.bfloat16)
    w = graph.new_weight(torch.tensor([1.5, -2.0], dtype=torch.bfloat16), name="w")
    assert str(x * w) == "mul_1 bf16[2]"
    assert np.array_equal(np.asarray(w.value.const_value.numpy()).astype(np.float32), [1.5, -2.0])


def test_what_is_no_module(torch: Any) -> None:
    with pytest.raises(mi.UsageError, match=r"expected a torch\.nn\.Module, found function"):
        mi.from_torch(lambda x: x, torch.zeros(2))

    class Odd(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(mi.ModelError, match="torch cannot export the module"):
        mi.from_torch(Odd(), torch.zeros(2))
