"""The roofline plot: what is drawn where."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from mirage_cli.exporters.plots import axes, roofline
from tests.exporters import reports
from tests.exporters.graphs import HOSTILE
from tests.exporters.test_svg import SVG, check, texts


def fragments(**changed: Any) -> list[dict[str, Any]]:
    cuda = {**reports.PREDICTION, "target": "sm_90a", **changed}
    f = replace(reports.replaced(), predictions={"cpu": reports.PREDICTION, "cuda": cuda})
    return [f.to_json(), reports.failed().to_json()]


def marks(root: ET.Element) -> dict[str, list[float]]:
    """The heights of the marks by their titles, without the fragment's name."""
    found: dict[str, list[float]] = {}
    for g in root.iter(SVG + "g"):
        title = g.findtext(SVG + "title") or ""
        for c in g:
            y = c.attrib.get("cy") or c.attrib.get("y") or re.findall(r"[\d.]+", c.attrib.get("d", ""))[1:2]
            if y:
                found.setdefault(title.split(": ")[1].split()[0].strip(","), []).append(
                    float(y if isinstance(y, str) else y[0])
                )
    return found


def test_faster_is_higher_and_the_floor_is_the_roof() -> None:
    cuda, cpu = roofline.plots(fragments())
    assert (cuda.target, cpu.target) == ("sm_90a", "cpu")
    document = roofline.drawing(cpu)
    found = marks(check(document))
    assert found["floor"][0] < found["mirage"][0] < found["original"][0]
    scale = roofline._Scale(cpu)
    line = cpu.lines[0]
    assert line.intensity == pytest.approx(19200 / 9440)
    roof = scale.y.at(min(cpu.rates[0], line.intensity * cpu.bandwidth))
    assert found["floor"][0] == pytest.approx(roof, abs=0.2)


def test_measurements_are_on_the_gpu_s_plot() -> None:
    cuda, cpu = (roofline.drawing(p) for p in roofline.plots(fragments()))
    for wanted in ("mirage, measured on NVIDIA H200 13.6 us", "torch.compile, measured on NVIDIA H200 18.4 us"):
        assert wanted in cuda and wanted not in cpu


def test_recorded_times_are_on_their_kind_s_plot_where_the_sizes_are_the_same() -> None:
    f = reports.replaced()
    f.predictions["cuda"] = reports.PREDICTION
    row = {
        "original_us": 21.9,
        "mirage_us": 13.6,
        "peers": {"kernel": 9.1, "kernel isolated": 9.2, "failed one": None},
        "inputs": ["f32[5, 48]"],
    }
    times = [{"device": "a CPU", "target": "cpu", **row}, {"device": "a GPU", "target": "cuda", **row}]
    f = replace(f, program={**f.program, "axes": {"a": 5, "b": 40, "c": 48}}, measured=times)
    cuda, cpu = (roofline.drawing(p) for p in roofline.plots([f.to_json()]))
    assert "mirage, measured on a CPU 13.6 us" in cpu and "a GPU" not in cpu
    assert "kernel, measured on a GPU 9.10 us" in cuda and "a CPU" not in cuda
    assert "failed one" not in cuda
    assert 'class="peer"' not in cuda, "the kernel alone is ours"
    assert "kernel isolated" not in cuda, "it would hide the kernel"
    f = replace(f, program={**f.program, "axes": {"a": "batch", "b": 40, "c": 48}})
    assert "measured" not in "".join(roofline.drawing(p) for p in roofline.plots([f.to_json()]))


def test_fragments_without_operations_or_predictions_are_no_lines() -> None:
    assert roofline.plots([reports.failed().to_json()]) == []
    (cpu,) = roofline.plots(fragments(flops=0))
    assert [line.number for line in cpu.lines] == [1]


def test_many_equal_fragments_stand_side_by_side() -> None:
    places = roofline._spread([300.0] * 40)
    gaps = [b - a for a, b in pairwise(sorted(places))]
    assert min(gaps) > 5
    assert min(places) >= axes.LEFT and max(places) <= axes.WIDTH - axes.RIGHT


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names(name: str) -> None:
    predictions = {"cpu": {**reports.PREDICTION, "target": name}, "cuda": reports.PREDICTION}
    times = [{"device": name, "original_us": 2.0, "mirage_us": 1.0, "peers": {name: 3.0}}]
    f = replace(reports.replaced(name), predictions=predictions, measured=times)
    for plot in roofline.plots([f.to_json()]):
        root = check(roofline.drawing(plot))
        assert not [t for t in texts(root) if len(t) > 60]
