"""The table of all operators that have a meaning of their own here."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType, ModuleType

import onnx

from mirage_cli.errors import Refused
from mirage_cli.truth.calls.call import Meaning
from mirage_cli.truth.layers import attention, experts, losses, microsoft, normalization, pooling, quantized, recurrent
from mirage_cli.truth.operators import (
    casts,
    control,
    elementwise,
    gathering,
    linear,
    reductions,
    reference,
    resize,
    sampling,
    shapes,
    signals,
)

FAMILIES: tuple[ModuleType, ...] = (
    attention,
    casts,
    control,
    elementwise,
    experts,
    gathering,
    linear,
    losses,
    microsoft,
    normalization,
    pooling,
    quantized,
    recurrent,
    reductions,
    reference,
    resize,
    sampling,
    shapes,
    signals,
)

#: the oldest version of ONNX's own opset that is evaluated
OLDEST = 7


def _collected() -> dict[tuple[str, str], tuple[Meaning, int]]:
    """Every function of the families that is marked as a meaning, by domain and operator."""
    meanings: dict[tuple[str, str], tuple[Meaning, int]] = {}
    for family in FAMILIES:
        for _, function in inspect.getmembers(family, inspect.isfunction):
            if function.__module__ == family.__name__:
                for domain, name, since in getattr(function, "means", ()):
                    meanings[domain, name] = (function, since)
    return meanings


MEANINGS: Mapping[tuple[str, str], tuple[Meaning, int]] = MappingProxyType(_collected())


def meaning_of(domain: str, name: str, version: int) -> Meaning | None:
    """The meaning of an operator in a version of its domain's opset, None where the table has none.

    Refused for a version that is too old or too new, and an operator that the version does not have.
    """
    if not domain and not OLDEST <= version <= onnx.defs.onnx_opset_version():
        raise Refused(f"version {version} of the opset; {OLDEST} to {onnx.defs.onnx_opset_version()} are known")
    function, since = MEANINGS.get((domain, name), (None, 0))
    if function is None or domain or (since and version >= since):
        return function
    try:
        onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        raise Refused(f"no such operator in version {version} of ONNX") from None
    return function
