"""Models of old opsets brought to a newer one by onnx's converter, in a process of its own.

The converter is C++ that ends its process at models which the checker lets pass: a model of opset 9 whose sub-graphs read
what is around them is enough.
"""

from __future__ import annotations

from typing import cast

import onnx

from mirage_cli import isolation
from mirage_cli.errors import MirageError, ModelError


def converted(model: onnx.ModelProto, opset: int, path: str) -> onnx.ModelProto:
    """The model in this opset. Raises ModelError."""
    found = apart(model.SerializeToString(), opset)
    if isinstance(found, isolation.Lost):
        old = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
        raise ModelError(f"{path}: opset {old} cannot be converted to {opset}: {found.reason}")
    newer: onnx.ModelProto = onnx.ModelProto.FromString(found)
    return newer


def apart(data: bytes, opset: int) -> bytes | isolation.Lost:
    """The same on bytes, in a process that ends then."""
    ((_, found),) = isolation.each(convert, [(data, opset)], 1, apart=True)
    return cast("bytes | isolation.Lost", found)


def convert(data: bytes, opset: int) -> bytes:
    """The same in this process. Raises MirageError."""
    from onnx import version_converter  # noqa: PLC0415

    try:
        made: bytes = version_converter.convert_version(onnx.ModelProto.FromString(data), opset).SerializeToString()
    except Exception as error:  # the converter raises whatever its adapters do
        raise MirageError(str(error)) from None
    return made
