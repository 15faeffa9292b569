"""Lookups and placements by indices that are positions: constants, ranges, and what exporters compute from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage_cli.frontends.imported import Imported
from mirage_cli.lax.ir import graph as g
from tests.frontends.models import agrees, noise, parsed, read

X = noise(4, 3, 5)


def grid(*parts: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Indices that broadcast, one after the other in the last dimension."""
    return np.stack(np.broadcast_arrays(*(np.asarray(p, np.int64) for p in parts)), -1)


def behind(imported: Imported) -> set[type]:
    """The kinds of steps that the outputs need."""
    graph = imported.graph
    return {type(graph.steps[v]) for v in graph.cone(graph.outputs)}


def picked(indices: np.ndarray[Any, np.dtype[np.int64]], operator: str = "GatherND (x, i)") -> str:
    rank = indices.ndim - 1 + 3 - indices.shape[-1] if "GatherND" in operator else indices.ndim
    dims = ",".join("abcdefg"[:rank])
    return f"g (float[4,3,5] x) => (float[{dims}] y) {{ y = {operator} }}"


ROWS, COLUMNS = np.arange(4)[:, None, None, None], np.arange(3)


@pytest.mark.parametrize(
    "indices",
    [
        grid(ROWS, COLUMNS),  # a mask [batch, 1, 1, key]
        grid(ROWS[::-1], COLUMNS),  # backwards
        grid(1, COLUMNS),  # one row
        grid(np.arange(1, 4, 2)[:, None], np.arange(3), 4),  # every second one, the last element
        grid(np.arange(3), np.arange(4)[:, None])[..., ::-1],  # the dimensions exchanged
        grid([-2, -1]),
        grid(np.full((2, 2), 3)),  # one element for all
    ],
)
def test_positions_of_several_dimensions_are_a_view(indices: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    imported = agrees(parsed(picked(indices), i=np.ascontiguousarray(indices)), x=X)
    assert behind(imported) <= {g.Input, *g.VIEWS}


def test_positions_from_ranges_of_symbolic_extents_are_a_view() -> None:
    text = """g (bool[batch,keys] m) => (bool[a,b,c,d] y) {
        s = Shape <start = 0, end = 1> (m) t = Shape <start = 1, end = 2> (m)
        n = Squeeze(s) k = Squeeze(t)
        r = Range(zero, n, one) c0 = Range(zero, k, one)
        u = Unsqueeze(r, behind) v = Unsqueeze(c0, before)
        w = Max(u, v) all = Shape(w)
        p = Expand(u, all) q = Expand(v, all)
        p1 = Unsqueeze(p, last) q1 = Unsqueeze(q, last)
        i = Concat <axis = -1> (p1, q1)
        y = GatherND(m, i)
    }"""
    weights: dict[str, Any] = {"zero": np.array(0), "one": np.array(1), "last": np.array([-1])}
    weights |= {"behind": np.array([1, 2, 3]), "before": np.array([0, 1, 2])}
    imported = agrees(parsed(text, **weights), m=noise(3, 7) > 0)
    assert behind(imported) <= {g.Input, *g.VIEWS}


def test_rows_of_a_range() -> None:
    text = """g (float[4,3,5] x) => (float[4,2,3,5] y) {
        r = Range(zero, four, one) u = Unsqueeze(r, k) i = Expand(u, s) y = Gather(x, i)
    }"""
    weights: dict[str, Any] = {"zero": np.array(0), "four": np.array(4), "one": np.array(1), "k": np.array([1])}
    agrees(parsed(text, **weights, s=np.array([4, 2])), x=X)


@pytest.mark.parametrize(
    ("indices", "axis"),
    [
        (np.broadcast_to(np.arange(2)[:, None, None], (2, 3, 5)), 0),
        (np.broadcast_to(np.array([2, 0])[:, None], (4, 2, 5)), 1),
        (np.full((3, 2, 4), 1), 2),
    ],
)
def test_elements_along_an_axis(indices: np.ndarray[Any, np.dtype[np.int64]], axis: int) -> None:
    text = picked(indices, f"GatherElements <axis = {axis}> (x, i)")
    agrees(parsed(text, i=np.ascontiguousarray(indices, np.int64)), x=X)


def test_elements_of_a_tensor_of_one_number_need_no_indices() -> None:
    text = "g (int64[2,3] i) => (float[2,3] y, float[2] z) { y = GatherElements(c, i) z = GatherND(c, i) }"
    text = text.replace("int64[2,3] i", "int64[2,2] i").replace("float[2,3] y", "float[2,2] y")
    agrees(parsed(text, c=np.zeros((2, 2), np.float32)), i=np.array([[0, 1], [1, 1]]))


def test_rows_of_a_fill_whose_shape_is_stated_need_no_indices() -> None:
    """As a function states it: token types that are all 0, at positions that are counted at run time."""
    text = """g (int64[2,3] i, float[4,5] x) => (float[2,3,5] y)
      <int64[2] shape = {1, 400}> {
        n = Shape <start = 0, end = 1> (i)
        width = Constant <value_ints = [400]> ()
        sizes = Concat <axis = 0> (n, width)
        types = ConstantOfShape <value = int64[1] {1}> (shape)
        all = Expand (types, sizes)
        at = GatherElements <axis = 1> (all, i)
        y = Gather (x, at)
      }"""
    agrees(parsed(text), i=np.array([[0, 399, 5], [1, 1, 2]]), x=np.arange(20, dtype=np.float32).reshape(4, 5))


@pytest.mark.parametrize("places", [[0, 1], [2, 3], [1, 2], [3], [1, 3], [3, 2], [0, 1, 2, 3], [-1]])
def test_rows_put_in_place(places: list[int]) -> None:
    text = f"g (float[4,3,5] x, float[{len(places)},3,5] u) => (float[4,3,5] y) {{ y = ScatterND(x, i, u) }}"
    imported = agrees(parsed(text, i=np.array(places)[:, None]), x=X, u=-noise(len(places), 3, 5))
    assert behind(imported) <= {g.Input, g.Slice, g.Concat}


def test_parts_put_into_an_empty_tensor_are_a_concatenation() -> None:
    """Keys of latent attention: room for all of them, filled part by part."""
    text = """g (float[2,5] a, float[3,5] b) => (float[5,5] y) {
        e = ConstantOfShape(s) f = ScatterND(e, i, a) y = ScatterND(f, j, b)
    }"""
    weights = {"s": np.array([5, 5]), "i": np.arange(2)[:, None], "j": np.arange(2, 5)[:, None]}
    imported = agrees(parsed(text, **weights), a=noise(2, 5), b=noise(3, 5))
    (y,) = imported.graph.outputs
    assert imported.graph.steps[y] == g.Concat(0)
    assert [type(imported.graph.steps[v]) for v in imported.graph.inputs[y]] == [g.Input, g.Input]


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("y = GatherND(x, t)", "not known when the model is read"),
        ("y = GatherND <batch_dims = 1> (x, pair)", "for each entry of a batch"),
        ("y = GatherND(x, same)", "along a diagonal"),
        ("y = GatherND(x, odd)", "not known when the model is read"),
        ("y = GatherElements(x, t3)", "not known when the model is read"),
        ("y = ScatterND(x, t, x)", "not known when the model is read"),
        ("y = ScatterND(x, twice, u)", "several updates of one element"),
        ('y = ScatterND <reduction = "add"> (x, first, u)', "reduction 'add'"),
        ("y = ScatterND(x, pair, v)", "updates along several dimensions"),
    ],
)
def test_other_indices_are_left_with_a_reason(node: str, reason: str) -> None:
    text = (
        f"""g (float[4,3,5] x, int64[4,1] t, int64[4,3,5] t3, float[2,3,5] u, float[4,5] v) => (float y) {{ {node} }}"""
    )
    weights: dict[str, Any] = {"pair": np.zeros((4, 2), np.int64), "same": grid(np.arange(3), np.arange(3))}
    weights |= {"odd": np.array([[0], [3], [1]]), "twice": np.array([[1], [1]]), "first": np.array([[0], [1]])}
    assert [reason in found for found in read(parsed(text, **weights)).reasons.values()] == [True]
