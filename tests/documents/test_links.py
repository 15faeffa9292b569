"""Links in documents lead somewhere: to files, to headings in them, and on the site to its pages. Nothing is fetched."""

from __future__ import annotations

import importlib.util
import re
from functools import cache as once
from pathlib import Path

import pytest

from tests.documents.pages import ROOT

FOLDERS = ("docs", "samples")
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))]
NAVIGATION = re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
#: pages of the site that are made of documents elsewhere (docs/site/hooks.py)
MADE = {"index.md", "contributing.md", "changelog.md", "samples.md", "decisions/index.md"}


def prose(document: Path) -> str:
    """The text without code blocks and code spans."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def slug(heading: str) -> str:
    """The anchor of a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")


@once
def anchors(document: Path) -> frozenset[str]:
    """The anchors of a document."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    return frozenset(slug(h) for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE))


def links(document: Path) -> list[str]:
    """The targets of all links and pictures."""
    text = prose(document)
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)


def problem(document: Path, link: str) -> str:
    """What is wrong with a link, or nothing."""
    if re.match(r"[a-z]+:", link):
        return (
            ""
            if re.fullmatch(r"https://[\w.-]+\.[a-z]+(/\S*)?", link)
            else "not an address that a browser opens safely"
        )
    path, _, anchor = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    if not target.exists():
        return "there is no such file"
    if anchor and (target.suffix != ".md" or anchor not in anchors(target)):
        return "there is no such heading"
    return ""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    assert {link: p for link in links(document) if (p := problem(document, link))} == {}


def test_what_a_broken_link_is() -> None:
    guide = ROOT / "docs/guide.md"
    assert (
        problem(guide, "search.md#the-guarantee") == problem(guide, "#options") == problem(guide, "../README.md") == ""
    )
    assert problem(guide, "https://arxiv.org/abs/2405.05751") == ""
    assert problem(guide, "search.md#no-such-thing") == problem(guide, "#no-such-thing") == "there is no such heading"
    assert problem(guide, "none.md") == "there is no such file"
    assert problem(guide, "http://example.org") != ""


def test_the_navigation_has_all_pages() -> None:
    found = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    decisions = {p for p in found if p.startswith("decisions/")}
    assert set(NAVIGATION) == (found - decisions) | MADE
    assert len(NAVIGATION) == len(set(NAVIGATION))


def test_documents_of_the_root_are_pages_with_working_links() -> None:
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/site/hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    there = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*") if p.is_file()} | MADE
    assert {p for n, p in hooks.PAGES.items() if n != "LICENSE"} | {"decisions/index.md"} == MADE
    for name in hooks.PAGES:
        text = hooks._led(name, prose(ROOT / name))
        local = [t.partition("#")[0] for t in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", t)]
        assert [t for t in local if t and t not in there and t != "license.md"] == [], name
