"""The `onnx` package's node tests. Those of pools take eight of ten seconds to make: they are left out where nothing asks for
them."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator

from onnx.backend.test.case.test_case import TestCase

#: operators whose tests take seconds to make, in modules of these names in small letters
POOLS = ("AveragePool", "LpPool", "MaxPool")


def collect(pools: bool = False) -> list[TestCase]:
    """All node tests, sorted by name; those of POOLS where they are asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import node

        for name in _modules(node.__path__, node.__name__):
            if pools or name.rpartition(".")[2] not in [p.lower() for p in POOLS]:
                importlib.import_module(name)
        found = [c for c in node._NodeTestCases if pools or c.model.graph.node[0].op_type not in POOLS]
    return sorted(found, key=lambda c: str(c.name))


def _modules(path: list[str], package: str) -> Iterator[str]:
    for module in pkgutil.iter_modules(path):
        name = f"{package}.{module.name}"
        yield name
        if module.ispkg:
            yield from _modules(list(importlib.import_module(name).__path__), name)
