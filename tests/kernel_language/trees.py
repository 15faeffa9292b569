"""What trees of the grammar have in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from mirage_cli.kernel_language import ir


def calls(tree: Any, instruction: str) -> Iterator[ir.Call]:
    """The calls of an instruction in a tree, or in several."""
    if isinstance(tree, ir.Call) and isinstance(tree.function, ir.Name) and tree.function.path == (instruction,):
        yield tree
    inner = (
        tree if isinstance(tree, tuple) else [getattr(tree, f.name) for f in fields(tree)] if is_dataclass(tree) else ()
    )
    for part in inner:
        yield from calls(part, instruction)
