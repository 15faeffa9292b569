"""mirage: a superoptimizer for exported models.

The public Python interface is imported when it is first used, so that `mirage --help` starts fast.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from mirage_cli.machine import deferred

if TYPE_CHECKING:
    from mirage_cli.errors import (
        Busy,
        CheckFailed,
        CompileError,
        ConfigError,
        Crashed,
        FarmLost,
        InternalError,
        Interrupted,
        InvalidGraph,
        MirageError,
        ModelError,
        OutOfResources,
        OutOfTime,
        Refused,
        ToolMissing,
        UnsupportedFormat,
        UsageError,
        WrongTensor,
    )
    from mirage_cli.kernels.graph_kernel import GraphKernel, load_kernel
    from mirage_cli.kernels.kernel import Kernel
    from mirage_cli.python.api import bench, compare, inspect, optimize, optimize_folder, verify
    from mirage_cli.python.from_torch import from_torch
    from mirage_cli.python.kernel_graph import KernelGraph, new_kernel_graph
    from mirage_cli.python.recording import Tensor
    from mirage_cli.python.types import bfloat16, bool_, float16, float32

__version__ = "0.1.0"
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime tells nobody of models, and leaves no files
deferred.install()
__all__ = [
    "Busy",
    "CheckFailed",
    "CompileError",
    "ConfigError",
    "Crashed",
    "FarmLost",
    "GraphKernel",
    "InternalError",
    "Interrupted",
    "InvalidGraph",
    "Kernel",
    "KernelGraph",
    "MirageError",
    "ModelError",
    "OutOfResources",
    "OutOfTime",
    "Refused",
    "Tensor",
    "ToolMissing",
    "UnsupportedFormat",
    "UsageError",
    "WrongTensor",
    "bench",
    "bfloat16",
    "bool_",
    "compare",
    "float16",
    "float32",
    "from_torch",
    "inspect",
    "load_kernel",
    "new_kernel_graph",
    "optimize",
    "optimize_folder",
    "verify",
]
#: the modules of the public names that are not errors
_MODULES = {
    name: module
    for module, names in {
        "python.api": ("bench", "compare", "inspect", "optimize", "optimize_folder", "verify"),
        "kernels.graph_kernel": ("GraphKernel", "load_kernel"),
        "python.from_torch": ("from_torch",),
        "python.kernel_graph": ("KernelGraph", "new_kernel_graph"),
        "python.recording": ("Tensor",),
        "python.types": ("bfloat16", "bool_", "float16", "float32"),
        "kernels.kernel": ("Kernel",),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    """The public names, from the modules that define them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
