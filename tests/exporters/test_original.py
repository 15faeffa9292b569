"""The drawing of a fragment's nodes as the model has them."""

from __future__ import annotations

import pytest

from mirage_cli.exporters import original
from tests.exporters import reports
from tests.exporters.graphs import HOSTILE
from tests.exporters.test_svg import SVG, check, texts


def test_operators_and_tensors_are_there() -> None:
    root = check(original.drawing(reports.replaced().original))
    shown = texts(root)
    for wanted in (
        "Pow",
        "pow_0",
        "MatMul",
        "matmul_5",
        "input  f32[5, 48]",
        "weight  f32[48, 40]",
        "output  f32[5, 40]",
    ):
        assert wanted in shown, wanted
    assert "two" not in shown  # a constant
    lines = [p for p in root.iter(SVG + "path") if p.attrib["class"] == "line"]
    assert len(lines) == 4


def test_an_operand_that_is_read_twice_is_one_line() -> None:
    graph = reports.replaced().original
    graph["nodes"][0]["inputs"] = ["norm_linear", "norm_linear"]
    lines = [p for p in check(original.drawing(graph)).iter(SVG + "path") if p.attrib["class"] == "line"]
    assert len(lines) == 4


def test_nothing_is_drawn_of_nothing_and_of_too_much() -> None:
    assert original.drawing({}) == ""
    graph = reports.replaced().original
    graph["nodes"] *= original.MOST
    assert original.drawing(graph) == ""


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names(name: str) -> None:
    graph = reports.replaced(name, (name, name)).original
    for n in graph["nodes"]:
        n["op"] = name
    root = check(original.drawing(graph))
    assert max(map(len, texts(root))) < 80
    assert float(root.attrib["width"]) < 1200
