"""The one registry of operators. Importing this package defines them all."""

from mirage_cli.lax.ops import elementwise as _elementwise  # noqa: F401  (fills the registry)
from mirage_cli.lax.ops.registry import OPS, Op, lookup

__all__ = ["OPS", "Op", "lookup"]
