"""mirage: a superoptimizer for exported models.

The public Python interface is imported when it is first used, so that `mirage --help` starts fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirage_cli.api import bench, inspect, optimize, verify
    from mirage_cli.errors import (
        CheckFailed,
        CompileError,
        ConfigError,
        InternalError,
        Interrupted,
        InvalidGraph,
        MirageError,
        ModelError,
        OutOfResources,
        Refused,
        ToolMissing,
        UnsupportedFormat,
        UsageError,
    )
    from mirage_cli.kernel import Kernel, load_kernel

__version__ = "0.1.0"
__all__ = [
    "CheckFailed",
    "CompileError",
    "ConfigError",
    "InternalError",
    "Interrupted",
    "InvalidGraph",
    "Kernel",
    "MirageError",
    "ModelError",
    "OutOfResources",
    "Refused",
    "ToolMissing",
    "UnsupportedFormat",
    "UsageError",
    "bench",
    "inspect",
    "load_kernel",
    "optimize",
    "verify",
]
#: the modules of the public names that are not errors
_MODULES = {"Kernel": "kernel", "load_kernel": "kernel"} | dict.fromkeys(
    ("bench", "inspect", "optimize", "verify"), "api"
)


def __getattr__(name: str) -> Any:
    """The public names, from the modules that define them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
