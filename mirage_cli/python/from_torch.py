"""A module of PyTorch as a graph: what its own exporter to ONNX makes of the module's forward. Needs torch."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from mirage_cli.errors import ModelError, UsageError
from mirage_cli.frontends.onnx.ops.registry import ELEMENT_TYPES
from mirage_cli.frontends.torchscript.modules import first_lines
from mirage_cli.lax import extents as ex
from mirage_cli.machine.packages import imported
from mirage_cli.python.kernel_graph import KernelGraph
from mirage_cli.python.recording import Operation, Tensor


def from_torch(module: Any, example_inputs: Any, dynamic_shapes: Any = None) -> KernelGraph:
    """The graph of a module's forward, as in inference; its parameters and buffers become weights of the graph.

        graph = mi.from_torch(block, (x, mask))
        kernel = graph.superoptimize()
        y = kernel(x, mask)

    Parameters
    ----------
    module
        A `torch.nn.Module`. What is done to its parameters afterwards does not change the graph.
    example_inputs
        A tensor, or a tuple of them: they tell the types and dimensions of the inputs.
    dynamic_shapes
        Which dimensions may change, as `torch.export` takes it; by default none.

    Returns
    -------
    KernelGraph
        Its inputs and outputs are those of forward, in order. More operators may be added.

    Raises ToolMissing without torch, UsageError for what is no module, ModelError for one that torch cannot export.
    """
    torch = imported("torch", "from_torch", "pip install 'mirage-cli[torch]'")
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"from_torch: expected a torch.nn.Module, found {type(module).__name__}")
    given = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    with _quiet(), _inference(module), torch.no_grad():
        try:
            program = torch.onnx.export(
                module,
                given,
                dynamo=True,
                dynamic_shapes=dynamic_shapes,
                custom_translation_table=_translations(torch),
                verbose=False,
                optimize=True,
            )
        except Exception as error:  # the exporter raises whatever its operators do
            raise ModelError(f"from_torch: torch cannot export the module: {first_lines(error)}") from None
    return _Imported(program.model)


def _translations(torch: Any) -> dict[Any, Any]:
    """ONNX nodes of operators that exporters of some versions of torch know no nodes of."""
    return {torch.ops.aten._fused_rms_norm.default: _rms_norm} if hasattr(torch.ops.aten, "_fused_rms_norm") else {}


def _rms_norm(x: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    """`torch.nn.RMSNorm` and the factor by which it multiplies x, computed in float32 or wider."""
    op, wide = importlib.import_module("onnxscript").opset18, ir.DataType.FLOAT
    if x.dtype == ir.DataType.DOUBLE:
        wide = x.dtype
    if eps is None:
        eps = float(np.finfo(wide.numpy()).eps)
    inner = op.Cast(x, to=wide)
    number = functools.partial(ir.tensor, dtype=wide)
    over = op.Constant(value_ints=[-1 - k for k in range(len(normalized_shape))])
    mean = op.ReduceMean(op.Pow(inner, op.Constant(value=number(2.0))), over)
    factor = op.Reciprocal(op.Sqrt(op.Add(mean, op.Constant(value=number(eps)))))
    normal = op.Mul(inner, factor)
    if weight is not None:
        normal = op.Mul(normal, op.Cast(weight, to=wide))
    return op.Cast(normal, to=x.dtype), factor


class _Imported(KernelGraph):
    """The graph of an ONNX model."""

    def __init__(self, model: ir.Model) -> None:
        super().__init__()
        for item in (model.graph, *model.graph.inputs, *model.graph.initializers.values(), *model.graph):
            item.metadata_props.clear()  # names of files of the exporter's own
        self._graph = model.graph
        self._functions = list(model.functions.values())
        graph = model.graph
        for value in graph.inputs:
            self._known(value, "input")
        for value in graph.initializers.values():
            self._known(value, "weight")
        for node in graph:
            read = ", ".join(v.name or "" if v is not None else "none" for v in node.inputs)
            for value in node.outputs:
                self._known(value, f"{node.op_type}({read})")
            self._used.update(v for v in node.inputs if v is not None)
        known = {t.value: t for line in self._lines for t in line.results}
        results = [known[v] for v in graph.outputs]
        graph.outputs.clear()
        for tensor in results:
            self.mark_output(tensor)

    def _known(self, value: ir.Value, text: str) -> None:
        """Note a tensor that the model has. Raises ModelError for one of no type that kernels know."""
        dtype = ELEMENT_TYPES.get(value.dtype) if value.dtype is not None else None
        if dtype is None or value.shape is None:
            raise ModelError(
                f"from_torch: '{value.name}' is {value.dtype} of shape {value.shape}: no tensor of numbers"
            )
        dims = tuple(d if isinstance(d, int) else ex.symbol(str(d.value)) for d in value.shape)
        name = value.name or ""
        self._names.add(name)
        self._lines.append(Operation((Tensor(name, dims, dtype, self, value),), text))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter prints, and warns of its own parts."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)


@contextlib.contextmanager
def _inference(module: Any) -> Iterator[None]:
    """The module as it is for inference; afterwards every part of it is as it was."""
    before = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in before.items():
            part.training = training
