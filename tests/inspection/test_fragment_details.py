"""`mirage show`: what is shown of an output folder's fragments, and what cannot be."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mirage_cli.errors import ModelError, UsageError
from mirage_cli.exporters.drawing.labels import escaped
from mirage_cli.inspection import fragment_details
from mirage_cli.inspection.fragment_details import Shown, drawing, show, source
from mirage_cli.report.report import Report
from tests.exporters import reports
from tests.exporters.graphs import HOSTILE
from tests.optimized import Optimized


def written(folder: Path, report: Report) -> Path:
    (folder / "report.json").write_text(report.text(), encoding="utf-8")
    return folder


def checked(found: Shown) -> str:
    """The text, if it and the document are well-formed."""
    assert json.loads(json.dumps(found.to_json(), allow_nan=False)) == found.to_json()
    text = found.text()
    assert max(map(len, text.splitlines())) <= fragment_details.WIDTH
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    return text


def test_the_list(tmp_path: Path) -> None:
    found = show(written(tmp_path, reports.report(reports.replaced(), reports.kept(), reports.failed())), None)
    text = checked(found)
    for wanted in ("1 of 3 distinct fragments", "a6660ab85df12c2a", "15.8 us -> 2.47 us", "2^-79", "kept", "failed"):
        assert wanted in text, wanted
    assert [f["id"][0] for f in found.document["fragments"]] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("columns", "last"),
    [(40, "places"), (80, "proof"), (120, "error (original's)"), (0, "error (original's)")],
)
def test_a_narrow_list_has_fewer_columns_and_whole_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int, last: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns or ""))
    text = show(written(tmp_path, reports.report(reports.replaced(), reports.kept())), None).text()
    head, *rows = text.splitlines()[-3:]
    assert head.endswith(last) and "…" not in text
    assert [row.split()[:2] for row in rows] == [["a6660ab85df12c2a", "norm_linear"], ["b6660ab85df12c2b", "attention"]]
    assert max(map(len, text.splitlines())) <= (columns or fragment_details.WIDTH)


def test_a_fragment_of_an_output_folder(optimized: Optimized) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    (f,) = json.loads((folder / "report.json").read_text())["fragments"]
    for wanted in (f["id"], f["id"][:4], f["name"], f"{f['name']}_{f['id']}", "norm_*"):
        assert show(folder, wanted).document["id"] == f["id"]
    found = show(folder, f["id"])
    text = checked(found)
    for wanted in (
        f"{f['name']}  replaced  {f['id']}",
        "1 place · ",
        "output v",
        "kernel graph for cpu",
        "block graph  grid ",
        "thread graph(",
        "imap {",
        "predicted for cpu",
        "memory of a block",
        "uninterpreted",
        "two different functions would have",
        "Against a float64 run",
        f"src/{f['id']}.cpp",
    ):
        assert wanted in text or "".join(wanted.split()) in "".join(text.split()), wanted  # as wide as the place
    (stored,) = found.document["mugraphs"]
    assert [depth for depth, _ in stored["lines"]][:2] == [0, 1]
    assert found.document["files"] == [f"mugraphs/{f['id']}.json", f"src/{f['id']}.cpp"]


def test_the_page_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, opened = written(tmp_path, reports.report()), list[str]()
    monkeypatch.setattr(fragment_details.webbrowser, "open", lambda url: opened.append(url) or len(opened) == 1)
    assert fragment_details.in_browser(folder).text() == f"{folder}/report.html\n"
    assert opened == [f"file://{folder}/report.html"]
    with pytest.raises(UsageError, match="no browser") as told:
        fragment_details.in_browser(folder)
    assert told.value.hint == f"open {folder}/report.html"


def test_sources_and_drawings(optimized: Optimized) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    identifier = show(folder, "norm_linear").document["id"]
    found = source(folder, identifier, "cpp")
    assert found.document["text"] == (folder / "src" / f"{identifier}.cpp").read_text()
    made = (folder / "mugraphs" / f"{identifier}.svg").read_text()
    assert drawing(folder, identifier).document["text"] == made and made.startswith("<svg ")
    with pytest.raises(UsageError, match=rf"has no src/{identifier}\.cu"):
        source(folder, identifier, "cuda")


def test_what_was_not_replaced_has_no_tree_but_all_else(tmp_path: Path) -> None:
    folder = written(tmp_path, reports.report(reports.kept(), reports.failed()))
    kept = checked(show(folder, "attention"))
    assert "not predicted to be faster" in kept and "grid a" in kept
    failed = checked(show(folder, "c6"))
    assert "no muGraph was found" in failed and "There is no proof" in failed


def test_fragments_that_are_not_there(tmp_path: Path) -> None:
    mugraph = {**reports.replaced().mugraph, "file": "mugraphs/a7.json"}
    other = replace(reports.replaced(), id="a7", mugraph=mugraph)
    folder = written(tmp_path, reports.report(reports.replaced(), other, reports.kept()))
    with pytest.raises(UsageError, match=r"no fragment of .* is called 'zzz'"):
        show(folder, "zzz")
    with pytest.raises(UsageError, match="no fragment"):
        show(folder, "")
    for several in ("a", "norm_linear"):
        with pytest.raises(UsageError, match="fits 2 fragments: a6660ab85df12c2a, a7"):
            show(folder, several)
    assert fragment_details.find(json.loads((folder / "report.json").read_text()), folder, "a7") == other.to_json()


def test_folders_that_are_no_output(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"found no report\.json"):
        show(tmp_path, None)
    data = reports.report(reports.replaced()).to_json()
    for broken in ([], {**data, "fragments": [{}]}, {**data, "fragments": 3}):
        (tmp_path / "report.json").write_text(json.dumps(broken))
        with pytest.raises(ModelError):
            show(tmp_path, None)
    (tmp_path / "report.json").write_text(json.dumps(data))
    with pytest.raises(ModelError, match="the file is missing"):
        show(tmp_path, "a6")  # its muGraph file is missing


def test_a_time_that_could_not_be_measured_is_a_dash(tmp_path: Path) -> None:
    row = {"device": "a GPU", "original_us": 3.0, "mirage_us": None, "peers": {"torch.compile": None}}
    kept = replace(reports.kept(), measured=[row])
    text = checked(show(written(tmp_path, reports.report(kept)), "b6"))
    assert "measured on a GPU  original 3.00 us  mirage -" in text
    assert "torch.compile -" in text


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names(tmp_path: Path, name: str) -> None:
    times = [{"device": name, "original_us": 1.0, "mirage_us": 2.0, "peers": {name: 3.0}}]
    kept = replace(reports.kept(name), name=name, nodes=[[name]], measured=times)
    folder = written(tmp_path, reports.report(kept, path=name))
    checked(show(folder, None))
    text = "".join(checked(show(folder, "b6")).split())
    assert "".join(escaped(name).split()) in text


def test_colours_on_a_terminal_that_has_them(optimized: Optimized) -> None:
    found: Any = show(optimized("rmsnorm_linear_fp32"), "norm_linear")
    file = io.StringIO()
    Console(width=100, force_terminal=True, color_system="standard", file=file).print(found.content)
    assert "\x1b[1mkernel graph for cpu\x1b[0m" in file.getvalue()
