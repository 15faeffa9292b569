"""The layered layout on random graphs: boxes do not overlap, lines go down and meet no box but their own."""

import random
from itertools import combinations, pairwise

import pytest

from mirage_cli.exporters.layout import Box, Gaps, Layout, layered

Case = tuple[list[Box], list[tuple[int, int]]]


def graph(seed: int) -> Case:
    """A random acyclic graph in three bands."""
    r = random.Random(seed)
    count = r.randint(1, 22)
    bands = sorted(r.choice((0, 0, 1, 3)) for _ in range(count))
    edges = []
    for k in range(1, count):
        for source in r.sample(range(k), min(k, r.choice((0, 1, 1, 2, 3)))):
            edges.append((source, k))
    boxes = []
    for k in range(count):
        width = r.choice((24.0, 60.0, 140.0))
        arriving = sum(t == k for _, t in edges)
        ports = tuple(width * (i + 1) / (arriving + 1) for i in range(arriving)) if r.random() < 0.5 else None
        boxes.append(Box(width, r.choice((15.0, 40.0, 90.0)), bands[k], ports))
    return boxes, edges


def box_of(layout: Layout, boxes: list[Box], k: int) -> tuple[float, float, float, float]:
    (x, y), b = layout.corners[k], boxes[k]
    return x, y, x + b.width, y + b.height


@pytest.mark.parametrize("seed", range(60))
def test_boxes_and_lines_keep_clear_of_each_other(seed: int) -> None:
    boxes, edges = graph(seed)
    layout = layered(boxes, edges, Gaps())
    places = [box_of(layout, boxes, k) for k in range(len(boxes))]
    for a, b in combinations(places, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    for left, top, right, bottom in places:
        assert left >= -1e-6 and top >= 0 and right <= layout.width + 1e-6 and bottom <= layout.height
    for (source, target), line in zip(edges, layout.lines, strict=True):
        assert line[0][1] == pytest.approx(places[source][3])
        assert line[-1][1] == pytest.approx(places[target][1])
        assert places[target][0] <= line[-1][0] <= places[target][2]
        for (x1, y1), (x2, y2) in pairwise(line):
            assert y2 >= y1 - 1e-6
            for k, (left, top, right, bottom) in enumerate(places):
                if (
                    k not in (source, target) and min(y2, bottom) - max(y1, top) > 1e-6
                ):  # beside a box: vertical and clear
                    assert x1 == pytest.approx(x2)
                    assert x1 <= left or x1 >= right


@pytest.mark.parametrize("seed", range(10))
def test_bands_hold_their_boxes(seed: int) -> None:
    boxes, edges = graph(seed)
    layout = layered(boxes, edges, Gaps())
    numbers = sorted({b.band for b in boxes})
    assert len(layout.bands) == len(numbers)
    for k, b in enumerate(boxes):
        top, bottom = layout.bands[numbers.index(b.band)]
        assert top <= layout.corners[k][1]
        assert layout.corners[k][1] + b.height <= bottom
    for (_, upper), (lower, _) in pairwise(layout.bands):
        assert upper < lower


def test_a_chain_is_straight_and_nothing_is_empty() -> None:
    layout = layered([Box(10, 10), Box(30, 10), Box(20, 10)], [(0, 1), (1, 2)])
    assert {x for line in layout.lines for x, _ in line} == {15.0}
    assert layered([], []).corners == ()


def test_rows_of_inputs_are_broken() -> None:
    boxes = [Box(50, 10) for _ in range(11)]
    layout = layered(boxes, [(k, 10) for k in range(10)])
    assert layout.width < 8 * 60  # ten in a row would take 10 * 50 + 9 * 18
    assert len({y for _, y in layout.corners[:10]}) == 3
