"""report.html in a real browser: nothing is asked of a network, both colour schemes, no overflow on a narrow screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_cli.exporters import html, svg
from mirage_cli.exporters.pictures import Picture
from mirage_cli.report.report import Report
from tests.exporters import reports
from tests.exporters.browser import Browser, found
from tests.exporters.graphs import HOSTILE, looped, norm_linear

pytestmark = pytest.mark.chromium
BACK = "getComputedStyle(document.body).backgroundColor"
SCROLLS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
LOST = "[...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.getElementById(a.hash.slice(1))).length"
LIGHT, DARK = "rgb(245, 246, 248)", "rgb(15, 18, 22)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = found()
    if program is None:
        pytest.skip("no Chromium here")
    made = Browser(program, tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


def large() -> Report:
    """A model of 5,000 nodes with hostile names, a fragment at 300 places, others kept and failed."""
    operators = {f"{HOSTILE[k % len(HOSTILE)][:200]}{k}": "MatMul" for k in range(5000)}
    names = list(operators)
    places = [names[16 * k : 16 * k + 7] for k in range(300)]
    replaced = replace(reports.replaced(HOSTILE[0], (HOSTILE[1], HOSTILE[2])), nodes=places, occurrences=300)
    kept = replace(reports.kept(HOSTILE[9]), nodes=[names[16 * k + 8 : 16 * k + 10] for k in range(24)])
    inside = {n for f in (replaced, kept) for place in f.nodes for n in place}
    unchanged = [{"nodes": [n for n in names if n not in inside], "reason": HOSTILE[1]}]
    return reports.report(replaced, kept, reports.failed(), path=HOSTILE[9], unchanged=unchanged, operators=operators)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = norm_linear(HOSTILE[0], HOSTILE[1], HOSTILE[9])
    graph = looped(program)
    path = tmp_path_factory.mktemp("page") / "report.html"
    drawn = {"a6660ab85df12c2a": [Picture("muGraph for cpu", svg.drawing(graph, program))]}
    path.write_text(html.page(large().to_json(), {}, drawn), encoding="utf-8")
    return path


def test_a_page_of_5000_hostile_nodes(browser: Browser, page: Path) -> None:
    assert page.stat().st_size < 4_000_000
    browser.look(1280)
    browser.open(page)
    requests = [e["params"]["request"]["url"] for e in browser.events if e.get("method") == "Network.requestWillBeSent"]
    assert requests == [page.absolute().as_uri()]
    told = [
        e
        for e in browser.events
        if e.get("method") in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    ]
    assert told == []
    assert browser.value(LOST) == 0
    assert browser.value("document.querySelectorAll('script, img, iframe').length") == 0
    assert browser.value("document.querySelectorAll('.map i').length") == 5000
    assert browser.value("document.querySelectorAll('.map .run.replaced').length") == 300


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_overflows(browser: Browser, page: Path, width: int) -> None:
    browser.look(width)
    browser.open(page)
    assert browser.value(SCROLLS) is False
    browser.value("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.value(SCROLLS) is False


def test_both_colour_schemes_and_the_switch(browser: Browser, page: Path) -> None:
    browser.look(1280)
    browser.open(page)
    tile = "getComputedStyle(document.querySelector('.mu .tile')).fill"
    assert browser.value(BACK) == LIGHT
    day = browser.value(tile)
    browser.look(1280, dark=True)
    assert browser.value(BACK) == DARK
    assert browser.value(tile) != day
    browser.value("document.querySelector('label[for=scheme-light]').click()")
    assert (browser.value(BACK), browser.value(tile)) == (LIGHT, day)
    browser.look(1280)
    browser.value("document.querySelector('label[for=scheme-dark]').click()")
    assert browser.value(BACK) == DARK
    browser.look(1280, media="print")
    assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.value(tile) == day
