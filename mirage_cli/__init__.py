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

__version__ = "0.1.0"
__all__ = [
    "CheckFailed",
    "CompileError",
    "ConfigError",
    "InternalError",
    "Interrupted",
    "InvalidGraph",
    "MirageError",
    "ModelError",
    "OutOfResources",
    "Refused",
    "ToolMissing",
    "UnsupportedFormat",
    "UsageError",
    "bench",
    "inspect",
    "optimize",
    "verify",
]
_FUNCTIONS = ("bench", "inspect", "optimize", "verify")


def __getattr__(name: str) -> Any:
    """The public names, from the modules that define them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{'api' if name in _FUNCTIONS else 'errors'}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
