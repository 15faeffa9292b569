"""Readers of ONNX operators, by family. Importing this package registers them all."""

from mirage_cli.frontends.onnx.ops import attention as _attention  # noqa: F401  (fills the registry)
from mirage_cli.frontends.onnx.ops import data as _data  # noqa: F401
from mirage_cli.frontends.onnx.ops import elementwise as _elementwise  # noqa: F401
from mirage_cli.frontends.onnx.ops import indexing as _indexing  # noqa: F401
from mirage_cli.frontends.onnx.ops import linear as _linear  # noqa: F401
from mirage_cli.frontends.onnx.ops import microsoft_attention as _microsoft_attention  # noqa: F401
from mirage_cli.frontends.onnx.ops import normalization as _normalization  # noqa: F401
from mirage_cli.frontends.onnx.ops import quantized as _quantized  # noqa: F401
from mirage_cli.frontends.onnx.ops import reductions as _reductions  # noqa: F401
from mirage_cli.frontends.onnx.ops import rotary as _rotary  # noqa: F401
from mirage_cli.frontends.onnx.ops import views as _views  # noqa: F401
from mirage_cli.frontends.onnx.ops.registry import READERS, Reader

__all__ = ["READERS", "Reader"]
