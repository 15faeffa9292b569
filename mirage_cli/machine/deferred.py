"""onnx_ir without sympy: a second of every start is sympy's import, and onnx_ir needs it for arithmetic with symbolic
dimensions only. `install` is called before anything imports onnx_ir."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

USER, DEFERRED = "onnx_ir", "sympy"


def install() -> None:
    """From now on onnx_ir is imported without sympy; in a process that has imported one of them, nothing changes."""
    if USER not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _StandIn(ModuleType):
    """What onnx_ir has for sympy. While it is imported, a name is a function that calls the one of sympy; afterwards a name
    is sympy's own."""

    ready = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(DEFERRED), name) if self.ready else _later(name)


def _later(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(DEFERRED), name)(*args, **kwargs)

    return call


class _Finder(MetaPathFinder):
    """Finds onnx_ir where it is."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The place of onnx_ir, with a loader of ours; nothing for any other module."""
        if fullname != USER or DEFERRED in sys.modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Loads onnx_ir beside a stand-in of sympy, which no other module sees afterwards."""

    def __init__(self, own: Loader) -> None:
        self.own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Import it with all that it imports."""
        module.__loader__ = self.own
        if module.__spec__ is not None:
            module.__spec__.loader = self.own
        stand_in = _StandIn(DEFERRED)
        if sys.modules.setdefault(DEFERRED, stand_in) is not stand_in:
            return self.own.exec_module(module)
        try:
            self.own.exec_module(module)
        finally:
            if sys.modules.get(DEFERRED) is stand_in:
                del sys.modules[DEFERRED]
            stand_in.ready = True
        return None
