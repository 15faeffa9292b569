"""Drawings of muGraphs. `MIRAGE_GOLDEN=1` writes the golden file anew."""

import json
import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from mirage_cli import frontends
from mirage_cli.exporters.drawing.canvas import CELL
from mirage_cli.exporters.svg import drawing
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.optimization import task as works
from mirage_cli.planning.plan import newest
from mirage_cli.report.stored_plan import plan_from_json
from mirage_cli.search.search import Searcher, SearchOptions
from tests.exporters.graphs import HOSTILE, looped, norm_linear
from tests.optimized import Optimized, sample

GOLDEN = Path(__file__).parent / "golden"
SVG = "{http://www.w3.org/2000/svg}"
ALLOWED = {SVG + tag for tag in ("svg", "title", "style", "g", "rect", "text", "path", "circle")}
SEARCHED = ("rmsnorm_linear_fp32", "norm_gated_mlp_fp32", "lora_fp32", "gqa_fp32", "attention_masked_fp32")


def check(document: str) -> ET.Element:
    """The root of a drawing that is well-formed, needs nothing from outside and cuts no text."""
    root = ET.fromstring(document)
    assert {e.tag for e in root.iter()} <= ALLOWED
    assert not [a for e in root.iter() for a in e.attrib if "href" in a or a.startswith("on")]
    assert "url(" not in document and "@import" not in document
    assert re.findall(r"https?://", document) == ["http://"]  # the namespace
    width, height = (float(root.attrib[k]) for k in ("width", "height"))
    inside(root, 0.0, 0.0, width, height)
    return root


def inside(e: ET.Element, x: float, y: float, width: float, height: float) -> None:
    """Every rectangle and text lies within the picture."""
    if e.tag == SVG + "g" and "transform" in e.attrib:
        dx, dy = map(float, re.findall(r"-?[\d.]+", e.attrib["transform"]))
        x, y = x + dx, y + dy
    if e.tag == SVG + "rect":
        left, top, w, h = (float(e.attrib[k]) for k in ("x", "y", "width", "height"))
        assert x + left >= -0.2 and y + top >= -0.2
        assert x + left + w <= width + 0.2 and y + top + h <= height + 0.2
    if e.tag == SVG + "text":
        left, length = x + float(e.attrib["x"]), len(e.text or "") * CELL
        left -= length * {"middle": 0.5, "end": 1.0}.get(e.attrib.get("text-anchor", ""), 0.0)
        assert left >= 0 and left + length <= width + 0.2
    for child in e:
        inside(child, x, y, width, height)


def texts(root: ET.Element) -> list[str]:
    return [e.text or "" for e in root.iter(SVG + "text")]


def test_golden() -> None:
    program = norm_linear()
    found = drawing(looped(program), program)
    path = GOLDEN / "norm_linear.svg"
    if os.environ.get("MIRAGE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8"), "MIRAGE_GOLDEN=1 writes the file anew"
    assert drawing(looped(norm_linear()), norm_linear()) == found


def test_the_three_levels_are_there() -> None:
    program = norm_linear()
    root = check(drawing(looped(program), program))
    shown = texts(root)
    for wanted in (
        "kernel graph",
        "kernel 0",
        "block graph",
        "grid  a × b",
        "loop  over c",
        "body",
        "for c",
        "epilogue",
        "stores",
        "thread",
        "t0 [a c] = load x",
        "imap {a↔a  b↔φ}",
        "fmap {c↔c}",
        "t4 [a b] = contract",
        "over c  in f32",
        "t6 [a b] = accum",
        "sqrt",
        "0.0208333",
        "store t7 in y",
        "omap {a, b}",
        "weight  f32[48, 40]",
    ):
        assert wanted in shown, wanted
    assert "prologue" not in shown
    assert "prefers-color-scheme:dark" in (root.find(SVG + "style").text or "")  # type: ignore[union-attr]
    kernel, block, thread = (
        next(g for g in root.iter(SVG + "rect") if g.attrib["class"] == c) for c in ("kernel", "block", "thread")
    )
    sizes = [float(r.attrib["width"]) for r in (kernel, block, thread)]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names(name: str) -> None:
    program = norm_linear(x=name, w=name, y=name)
    root = check(drawing(looped(program), program))
    assert max(map(len, texts(root))) < 80
    assert float(root.attrib["width"]) < 1200


@pytest.mark.parametrize("name", SEARCHED)
def test_searched_graphs(name: str) -> None:
    imported = frontends.load(str(sample(name)))
    kinds = set()
    for fragment in partition(imported.graph, works.tensor_names(imported)).fragments:
        candidates = Searcher(SearchOptions()).search(fragment.program, newest(("sm_80",))).candidates
        for c in candidates:
            block = c.graph.kernels[-1].block
            kind = (len(c.graph.kernels), block.loop is None, not block.split)
            if kind not in kinds:
                kinds.add(kind)
                shown = " ".join(texts(check(drawing(c.graph, fragment.program))))
                assert ("loop  none" in shown) == (block.loop is None)
                assert ("summed over blocks" in shown) == bool(block.split)
                assert all(f"{o.name} [" in shown for k in c.graph.kernels for o in k.block.ops)
    assert len(kinds) >= 3


def test_output_folder(optimized: Optimized) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    files = sorted((folder / "mugraphs").glob("*.json"))
    assert files
    for path in files:
        plan = plan_from_json(json.loads(path.read_text(encoding="utf-8")))
        found = path.with_suffix(".svg").read_text(encoding="utf-8")
        check(found)
        assert found == drawing(plan.targets["cpu"][1], plan.program)
