"""Times against a size: what is drawn where."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest

from mirage_cli.exporters import html
from mirage_cli.exporters.plots import axes, sizes
from tests.exporters import reports
from tests.exporters.graphs import HOSTILE
from tests.exporters.test_svg import SVG, check, texts


def point(original: float | None, ours: float | None, predicted: float | None, **symbols: int) -> dict[str, Any]:
    return {"sizes": symbols, "original_us": original, "mirage_us": ours, "predicted_us": predicted}


def sweep(*points: dict[str, Any], what: str = "whole model", device: str = "a CPU") -> dict[str, Any]:
    return {"device": device, "what": what, "points": list(points)}


LENGTHS = (point(900, 400, 500, seq=128), point(100, 50, 25, seq=16), point(300, 160, None, seq=64))


def discs(document: str) -> dict[str, tuple[float, float]]:
    """The places of the marks by their titles."""
    found = {}
    for g in check(document).iter(SVG + "g"):
        (disc,) = g.iter(SVG + "circle")
        found[g.findtext(SVG + "title") or ""] = (float(disc.attrib["cx"]), float(disc.attrib["cy"]))
    return found


def test_marks_lie_on_logarithmic_axes() -> None:
    (plot,) = sizes.plots([sweep(*LENGTHS)])
    assert (plot.title, plot.symbol) == ("whole model on a CPU", "seq")
    assert [size for size, _ in plot.points] == [16, 64, 128]
    found = discs(sizes.drawing(plot))
    assert len(found) == 8, "what is not predicted has no mark"
    measured = [found[f"original, measured: {us} us at seq {size}"] for size, us in ((16, 100), (64, 300), (128, 900))]
    (x0, y0), (x1, y1), (x2, y2) = measured
    assert x1 - x0 == pytest.approx(2 * (x2 - x1), abs=0.2), "powers of two are evenly apart"
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2), "each is three times the one before; up is slower"
    assert found["mirage, measured: 50.0 us at seq 16"][1] > y0
    assert found["mirage, predicted: 25.0 us at seq 16"][0] == x0


def test_lines_join_neighbouring_sizes() -> None:
    (plot,) = sizes.plots([sweep(*LENGTHS)])
    lines = [p.attrib["class"] for p in check(sizes.drawing(plot)).iter(SVG + "path") if p.attrib["class"] != "grid"]
    assert lines == ["was", "was", "ours", "ours", "ours dash"]


def test_one_plot_for_each_choice_of_the_other_symbols() -> None:
    points = [point(k * n, k, 1, batch=k, seq=n) for k in (1, 4) for n in (16, 64, 128)]
    titles = [(p.title, len(p.points)) for p in sizes.plots([sweep(*points, what="attention 35ca58")])]
    assert titles == [("attention 35ca58, batch 1 on a CPU", 3), ("attention 35ca58, batch 4 on a CPU", 3)]


def test_what_has_no_time_or_no_size_is_left_out() -> None:
    assert sizes.plots([sweep(), sweep(point(None, None, None, seq=3)), sweep(point(1, 1, 1))]) == []
    (plot,) = sizes.plots([sweep(point(1, 2, 3, seq=0), point(1, None, None, seq=5))])
    assert list(discs(sizes.drawing(plot))) == ["original, measured: 1.00 us at seq 5"]


def test_an_axis_holds_its_values_with_room() -> None:
    for values in ([1.0], [0.003, 0.004], [99.0, 101.0], [2.0, 20.0, 70000.0]):
        axis = axes.up(values, (1, 2, 5))
        assert axis.low < min(values) and max(values) < axis.high
        assert all(axes.TOP <= axis.at(v) <= axes.HEIGHT - axes.BOTTOM for v in values)
        assert max(values) / min(values) > 10 or len(axis.ticks) <= 5, "no decade more than there has to be"


def test_the_page_has_them_where_there_are_any() -> None:
    f = reports.report()
    assert 'id="sizes"' not in html.page(f.to_json(), {}, {})
    page = html.page(replace(f, sweeps=[sweep(*LENGTHS)]).to_json(), {}, {})
    assert 'id="sizes"' in page and "whole model on a CPU" in page


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names(name: str) -> None:
    points = (point(1, 2, 3, **{name or "n": 3}), point(1, 2, 3, **{name or "n": 5}))
    (plot,) = sizes.plots([sweep(*points, what=name, device=name)])
    root: ET.Element = check(sizes.drawing(plot))
    assert not [t for t in texts(root) if len(t) > 2 * sizes.NAME + 4]
