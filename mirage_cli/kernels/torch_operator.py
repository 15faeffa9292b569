"""Kernels as operators of PyTorch: `torch.ops`, `torch.compile`, fake tensors, CUDA graphs. Imports torch when it is used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from mirage_cli.backends.spec import OperatorSpec
from mirage_cli.errors import UsageError
from mirage_cli.lax import extents
from mirage_cli.machine.packages import imported
from mirage_cli.runtime.sessions import element_name

_NAME = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)")
_HELD = "_mirage_library"  #: attribute of an operator that keeps its registration alive


class Runs(Protocol):
    """A kernel: `spec` says what it takes and gives, `run` computes it."""

    spec: OperatorSpec

    def run(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """All outputs for tensors."""


def register(kernel: Runs, name: str) -> Any:
    """Register a kernel as the operator `name` ("namespace::operator") and return it, a function on tensors.

    It runs on the CPU and on CUDA devices, on the current stream; inputs that are not row-major are copied. For fake
    tensors it tells types and shapes, so that `torch.compile(fullgraph=True)` and `torch.export` take it as one operator.
    It has no gradient. Raises UsageError for a name that is malformed or taken, ToolMissing without torch.
    """
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise UsageError(f"expected the name of an operator such as 'mirage::norm', found {name!r}")
    torch = imported("torch", "its operators", "pip install 'mirage-cli[torch]'")
    namespace, operator = parts[1], parts[2]
    if hasattr(getattr(torch.ops, namespace), operator):
        raise UsageError(f"torch has an operator {name!r} already", "choose another name")
    spec, single = kernel.spec, len(kernel.spec.outputs) == 1
    dtypes = [getattr(torch, element_name(t.dtype)) for t in spec.outputs]

    def run(*inputs: Any) -> Any:
        results = kernel.run([t if t.is_contiguous() else t.contiguous() for t in inputs])
        return results[0] if single else results

    def fake(*inputs: Any) -> Any:
        symbols = spec.solve([tuple(t.shape) for t in inputs])
        shapes = [[extents.value(d, symbols) for d in t.dims] for t in spec.outputs]
        outputs = tuple(inputs[0].new_empty(s, dtype=d) for s, d in zip(shapes, dtypes, strict=True))
        return outputs[0] if single else outputs

    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(operator + schema(spec))
    library.impl(operator, run, "CPU")
    library.impl(operator, run, "CUDA")
    torch.library.register_fake(name, fake, lib=library)
    registered = getattr(getattr(torch.ops, namespace), operator).default
    setattr(
        registered, _HELD, library
    )  # an operator lives as long as torch; without its library it would lose its kernels
    return registered


def schema(spec: OperatorSpec) -> str:
    """The declaration of an operator as torch takes it, without its name; tensors keep names that it can have."""
    names = [t.name if re.fullmatch(r"[A-Za-z]\w*", t.name) else f"input_{k}" for k, t in enumerate(spec.inputs)]
    if len(set(names)) != len(names):
        names = [f"input_{k}" for k in range(len(names))]
    outputs = "Tensor" if len(spec.outputs) == 1 else f"({', '.join(['Tensor'] * len(spec.outputs))})"
    return f"({', '.join(f'Tensor {n}' for n in names)}) -> {outputs}"
