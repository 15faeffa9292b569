"""Outputs that are no tensors: sequences as the tensors that they hold, and what else there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Arrays: TypeAlias = dict[str, NDArray[Any]]


def unboxed(outputs: Mapping[str, Any]) -> tuple[Arrays, dict[str, Any]]:
    """The tensors of outputs, element k of a sequence `y` as `y[k]`, and what holds no tensors: maps, absent optional values
    and empty sequences."""
    arrays, others = dict[str, NDArray[Any]](), dict[str, Any]()
    for name, value in outputs.items():
        held = dict(_tensors_within(name, value))
        if held and all(isinstance(v, np.ndarray) for v in held.values()):
            arrays |= held
        else:
            others[name] = value
    return arrays, others


def _tensors_within(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors that lie in sequences, in sequences of them too."""
    if not isinstance(value, list):
        yield name, value
        return
    for k, element in enumerate(value):
        yield from _tensors_within(f"{name}[{k}]", element)
