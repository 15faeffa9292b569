"""The one registry of operators. Importing this package defines them all."""

from mirage_cli.lax.ops.elementwise import QUOTIENTS
from mirage_cli.lax.ops.registry import OPS, Op, lookup

__all__ = ["OPS", "QUOTIENTS", "Op", "lookup"]
