"""report.html: complete, self-contained, and nothing in a name becomes markup."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from mirage_cli.exporters import cards, html, svg
from mirage_cli.exporters.drawing.labels import escaped
from mirage_cli.exporters.pictures import Picture
from mirage_cli.report.report import Report
from tests.exporters import reports
from tests.exporters.graphs import HOSTILE, looped, norm_linear
from tests.optimized import Optimized

VOID = {"meta", "rect", "path", "circle", "input"}
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "href", "id", "viewbox", "width", "height", "role",
    "transform", "x", "y", "rx", "text-anchor", "d", "cx", "cy", "r", "aria-label", "title", "tabindex", "style", "scope",
    "type", "checked", "for",
}  # fmt: skip
STYLES = re.compile(r"--h:\d+|width:\d+%|flex:1 1 \d+px|min-width:\d+px")
OWN_FILES = re.compile(r"(src|mugraphs)/[0-9a-f]{16}(v\d+)?\.(cpp|cu|json|svg)|src/build\.sh")


class Reader(HTMLParser):
    """Tags, attributes and texts of a page; fails where tags do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(k, v or "") for k, v in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(k, v or "") for k, v in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Reader:
    """The page, if it is well-formed, runs nothing and asks nothing of the network."""
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    assert not reader.tags & {"script", "img", "iframe", "link", "object", "embed", "form", "base", "button"}
    assert {k for k, _ in reader.attributes} <= ATTRIBUTES
    assert all(STYLES.fullmatch(v) for k, v in reader.attributes if k == "style")
    links = [v for k, v in reader.attributes if k == "href"]
    assert all(v.startswith("#") or OWN_FILES.fullmatch(v) for v in links)
    ids = [v for k, v in reader.attributes if k == "id"]
    assert len(ids) == len(set(ids))
    assert {v[1:] for v in links if v.startswith("#")} <= set(ids)
    assert not re.search(r"url\(|@import|https?:", page)
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    return reader


def page_of(r: Report, name: str = "x") -> str:
    program = norm_linear(name, name, name)
    graph = looped(program)
    stored = {"targets": {"cpu": {"target": "cpu", "text": graph.text().splitlines()}}}
    pictures = [
        Picture("muGraph for cpu", svg.drawing(graph, program)),
        Picture("for n <= 8", svg.drawing(graph, program)),
    ]
    return html.page(r.to_json(), {"a6660ab85df12c2a": stored}, {"a6660ab85df12c2a": pictures}, "my out")


def test_everything_is_on_the_page() -> None:
    page = page_of(reports.report(reports.replaced(), reports.kept(), reports.failed()))
    reader = read(page)
    said = " ".join(" ".join(reader.text).split())
    for wanted in (
        "models/decoder.onnx (onnx, opset 20, 137 nodes)",
        "Predicted for these places: on cpu 4.94 us in place of 31.5 us, 6.4 times as fast.",
        "6.4 ×",
        "chance of a wrong proof below 2^-79",
        "2 places · 2 nodes each · 1 kernel · predicted 15.8 us -> 2.47 us, 6.4 times as fast",
        "3 prime fields (1 round)",
        "left as it was",
        "Roofline for cpu",
        "The model's operators at the first of 2 places",
        "measured on NVIDIA H200",
        "8.19 kB",
        "src/a6660ab85df12c2a.cpp",
        "1 of 3 distinct fragments replaced, at 2 places of the model.",
        "97.1 %",
        "8.2 s",
        "15.8 us -> 2.47 us",
        "2147483647, 2147483629, 2147483587",
        "probability of at most 2^-79",
        "degree at most 3",
        "root mean square error of 7.27e-07 where the original operators have 8.34e-07",
        "a 5, b 40",
        "NVIDIA H200",
        "torch.compile",
        "18.4 us",
        "not predicted to be faster on cpu",
        "no muGraph was found",
        "There is no proof",
        "Not compared with float64: too large",
        "Nodes of the model (4 nodes in 2 places)",
        "x0 = read f32 #0 [a, c]",
        "muGraph for cpu as text",
        "Gather of rows that are chosen at run time",
        "node_Reshape_29",
        "converted from opset 11 to opset 13",
        "mirage optimize models/decoder.onnx -o 'my out' --dim batch=1 --dim seq=1:128:4096 --target cpu --seed 0 --force",
        "mirage verify .",
        "0123",
        "block graph",
    ):
        assert wanted in said, wanted
    assert page.count("<svg") == 4  # the original, two muGraphs, a roofline
    assert page.count("prefers-color-scheme") == 1
    for identifier in ("a6660ab85df12c2a", "b6660ab85df12c2b", "c6660ab85df12c2c"):
        assert f'id="fragment-{identifier}"' in page


def test_muGraphs_of_other_architectures_are_told_apart() -> None:
    f = reports.replaced()
    (step,) = f.schedule["cpu"]
    other = {"when": {}, "target": "sm_80"}
    proofs = reports.PROOF | {"targets": {"cuda": reports.PROOF | {"others": [reports.PROOF | other]}}}
    f = replace(f, schedule={"cuda": [step, step | other, step | other]}, verification=proofs)
    assert [row[:2] for row in cards.schedules(f.schedule)] == [
        ("cuda", "0"),
        ("cuda on sm_80", "0"),
        ("cuda on sm_80", "1"),
    ]
    assert [row[0] for row in cards.verdicts(f.verification)] == ["cuda", "cuda on sm_80"]


def test_nothing_found() -> None:
    page = page_of(reports.report(unchanged=[]))
    assert "There is no fragment to improve" in page
    assert "No part of the model is a fragment" in page
    assert "Nothing: every node" in page
    read(page)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names(name: str) -> None:
    r = reports.report(
        reports.replaced(name, (name,)),
        reports.failed(name),
        path=name,
        unchanged=[{"nodes": [name], "reason": name}],
        notes=[name],
    )
    r.options["only"] = [name]
    page = page_of(r, name)
    reader = read(page)
    assert page.encode("utf-8")
    assert escaped(name) in "".join(reader.text)
    assert not [c for c in page if not c.isprintable() and c != "\n"]


def test_the_page_of_an_output_folder(optimized: Optimized) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    page = (folder / "report.html").read_text(encoding="utf-8")
    read(page)
    r = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert page.count('class="card"') == len(r["fragments"])
    assert page.count("<svg") == 3  # original, muGraph, roofline
    assert len(list((folder / "mugraphs").glob("*.svg"))) == 1
    assert f"mirage optimize {r['model']['path']} -o {folder} " in page.replace("&#39;", "'")
    for path in re.findall(r'href="([^"#]+)"', page):
        assert (folder / path).exists()
    for f in r["fragments"]:
        assert f"fragment-{f['id']}" in page
