"""Rotary embeddings at positions that are known at run time only, taken apart: rows of the tables of cosines and sines, which
all layers share, and the rotation of pairs by these.

A position outside of the tables fails in the lookup, as it does in the operator: kernels read rows, not positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from mirage_cli.frontends.onnx.ops.registry import MICROSOFT, ONNX
from mirage_cli.frontends.onnx.parts.cut_points import take_place
from mirage_cli.frontends.onnx.parts.splicing import OLDEST, spliced

#: where an operator has x, positions, and the tables of cosines and of sines
_INPUTS = {MICROSOFT: (0, 1, 2, 3), ONNX: (0, 3, 1, 2)}
#: positions from a number on, as many as x has in a dimension
COUNTED = """(x, first) => (places) {
    let zero = 0, unit = 1, front = [0], start = [%(sequence)d], end = [%(behind)d], flat = [-1]
    dims = Shape (x)
    counted = Slice (dims, start, end)
    count = Squeeze (counted)
    steps = Range (zero, count, unit)
    begin = Reshape (first, flat)
    listed = Add (begin, steps)
    places = Unsqueeze (listed, front)
}"""
ROWS = """(table, places) => (rows) {
    rows = Gather <axis = 0> (table, places)
}"""
TURNED = """(x, cos_rows, sin_rows) => (y) {
    let dims = [0, 0, %(heads)d, %(size)d], joined_dims = [0, 0, %(width)d], heads = [%(heads_at)d], last = [3]
    let a_start = [0], a_end = [%(a_end)d], b_start = [%(b_start)d], end = [%(turned)d], by = [%(by)d], one = [1]
    %(apart)s
    cos = Unsqueeze (cos_rows, heads)
    sin = Unsqueeze (sin_rows, heads)
    a = Slice (apart, a_start, a_end, last, by)
    b = Slice (apart, b_start, end, last, by)
    a_cos = Mul (a, cos)
    b_sin = Mul (b, sin)
    first = Sub (a_cos, b_sin)
    a_sin = Mul (a, sin)
    b_cos = Mul (b, cos)
    second = Add (a_sin, b_cos)
    %(joined)s
    %(whole)s
    %(back)s
}"""
HALVES = "front = Concat <axis = 3> (first, second)"
PAIRS = """let pair = [4], front_dims = [0, 0, 0, %(turned)d]
    evens = Unsqueeze (first, pair)
    odds = Unsqueeze (second, pair)
    pairs = Concat <axis = 4> (evens, odds)
    front = Reshape (pairs, front_dims)"""
REST = """let rest_end = [%(size)d]
    rest = Slice (apart, end, rest_end, last, one)
    whole = Concat <axis = 3> (front, rest)"""
Rows: TypeAlias = dict[tuple[ir.Value | int, ...], ir.Value]  #: by a table, positions, and whose dimension is counted


def take_apart(model: ir.Model, opset: int) -> None:
    """Take all such nodes apart, in place, where the opset has the operators."""
    rows: Rows = {}
    for node in list(model.graph):
        if node.op_type == "RotaryEmbedding" and node.domain in _INPUTS and opset >= OLDEST:
            turn = _turn(node)
            if turn is not None:
                turn.take_place(rows)


def _turn(node: ir.Node) -> _Turn | None:
    """A node that can be taken apart; None for one of known positions, and for one that stays: of packed batches, or where
    numbers of it are not known."""
    given: list[ir.Value | None] = [*node.inputs, *[None] * 4]
    x, places, cos, sin = (given[i] for i in _INPUTS[node.domain])
    if x is None or places is None or cos is None or sin is None or x.shape is None or places.shape is None:
        return None
    half, width, rank = _dims(cos)[-1:], _dims(x)[-1], len(x.shape)
    turned = 2 * half[0] if half and isinstance(half[0], int) else 0
    told, part = (node.attributes.get_int(name, 0) for name in ("num_heads", "rotary_embedding_dim"))
    tables = len(_dims(cos)) == len(_dims(sin)) == 2 and x.dtype is not None and x.dtype == cos.dtype == sin.dtype
    known = (
        rank in (3, 4) and turned > 0 and part in (0, turned) and len(places.shape) <= 2 and places.const_value is None
    )
    if not tables or not known or not isinstance(width, int):
        return None
    count = told or (width // turned if node.domain == MICROSOFT else 0)
    size = width if rank == 4 else width // max(count, 1)
    fits = size >= turned and (rank == 4 or (count > 0 and width == count * size))
    fits = fits and not node.attributes.get_int("is_packed_batching", 0)
    return _Turn(node, x, places, (cos, sin), rank, count, size, turned) if fits else None


def _dims(v: ir.Value) -> list[int | str | None]:
    """The dimensions of a tensor, none where nothing is known of it."""
    return [d if isinstance(d, int) else d.value for d in v.shape or ()]


@dataclass(frozen=True, slots=True)
class _Turn:
    """A node with its operands, and numbers of it: of dimensions of x, its heads, their size, how much of it is turned."""

    node: ir.Node
    x: ir.Value
    places: ir.Value
    tables: tuple[ir.Value, ir.Value]
    rank: int
    heads: int
    size: int
    turned: int

    def take_place(self, shared: Rows) -> None:
        """Put rows and rotation in front of the node, which goes; rows are `shared` by nodes."""
        pairs, flat = bool(self.node.attributes.get_int("interleaved", 0)), self.rank == 3
        numbers = {"heads": self.heads, "size": self.size, "turned": self.turned, "width": self.heads * self.size}
        half = self.turned // 2
        text = TURNED % {
            **numbers,
            "heads_at": 2 if flat else 1,
            **({"a_end": self.turned, "b_start": 1, "by": 2} if pairs else {"a_end": half, "b_start": half, "by": 1}),
            "apart": "apart = Reshape (x, dims)" if flat else "apart = Identity (x)",
            "joined": PAIRS % numbers if pairs else HALVES,
            "whole": REST % numbers if self.turned < self.size else "whole = Identity (front)",
            "back": "y = Reshape (whole, joined_dims)" if flat else "y = Identity (whole)",
        }
        rows = [self.rows(k, shared) for k in range(2)]
        assert self.x.dtype is not None
        y = spliced(self.node, "turned", text, [self.x, *rows], [(self.x.dtype, _dims(self.x))])
        take_place(self.node, [(self.node.outputs[0], y[0])])

    def rows(self, k: int, shared: Rows) -> ir.Value:
        """The rows of table `k` at the positions: [batch or 1, sequence, half]."""
        table, places = self.tables[k], self.places
        counted = places.shape is None or len(places.shape) < 2
        key = (table, places, *((self.x, self.rank) if counted else ()))
        if key not in shared:
            at, what = (1 if self.rank == 3 else 2), ("cos", "sin")[k]
            if counted:
                text, dims = COUNTED % {"sequence": at, "behind": at + 1}, (1, _dims(self.x)[at])
                places = spliced(self.node, f"{what}_places", text, [self.x, places], [(ir.DataType.INT64, dims)])[0]
            assert table.dtype is not None
            tensor = (table.dtype, (*_dims(places), self.turned // 2))
            shared[key] = spliced(self.node, what, ROWS, [table, places], [tensor])[0]
        return shared[key]
