"""`mirage show`: one fragment of an output folder, or the list of them, as a document and as text for a terminal."""

from __future__ import annotations

import bisect
import io
import itertools
import os
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from mirage_cli.errors import ModelError, UsageError
from mirage_cli.exporters import tree, wording
from mirage_cli.exporters.cards import PROOF_HEAD, SCHEDULE_HEAD, schedules, verdicts
from mirage_cli.exporters.drawing.labels import cells, clean, escaped, microseconds, short
from mirage_cli.exporters.pictures import distinct, pictures
from mirage_cli.files.output import MUGRAPHS, PAGE
from mirage_cli.files.rawfile import content
from mirage_cli.report import mugraph_file, naming, reader
from mirage_cli.report.stored_plan import StoredPlan, plan_from_json

WIDTH, LEAST = 110, 20  #: columns where there is no terminal and no $COLUMNS; columns at least
GAP = 2  #: columns between two of a table
ERRORS = "error (original's)"  #: the heading of errors against float64
NAME = 40  #: columns of a fragment's name
SUFFIXES = {"cuda": "cu", "cpp": "cpp"}  #: what --source takes, and the file's suffix
_STYLES = {
    tree.KERNEL: "bold",
    tree.BLOCK: "bold blue",
    tree.PHASE: "cyan",
    tree.TILE: "",
    tree.THREAD: "yellow",
    tree.TENSOR: "green",
}
_STATUS = {"replaced": "green", "kept": "yellow", "failed": "red"}


@dataclass(frozen=True, slots=True)
class Shown:
    """A document for programs, and what a terminal shows: something that rich lays out, or a text as it is."""

    document: dict[str, Any]
    content: RenderableType

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return self.document

    def text(self) -> str:
        """The text that a terminal shows, without colours."""
        if isinstance(self.content, str):
            return self.content
        columns = os.environ.get("COLUMNS", "")
        width = max(int(columns), LEAST) if columns.isdecimal() else WIDTH
        console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
        console.print(self.content, soft_wrap=False)
        with_spaces: str = console.file.getvalue()  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in with_spaces.splitlines()) + "\n"


def to_terminal(shown: Shown) -> None:
    """Print to standard output as it is: in colours on a terminal that has them (`NO_COLOR` is obeyed)."""
    Console(highlight=False, markup=False, emoji=False).print(shown.content)


def show(folder: Path, wanted: str | None) -> Shown:
    """The fragment of an output folder whose identifier (or name) begins so; all of them in a list without `wanted`.

    Raises ModelError where there is no report of mirage, UsageError where none or several fragments fit.
    """
    report = reader.read(folder)
    return _list(report) if wanted is None else _fragment(report, folder, find(report, folder, wanted))


def in_browser(folder: Path) -> Shown:
    """The page of an output folder, which a browser opens now. Raises ModelError for a folder that is none, UsageError where
    no browser can be started."""
    reader.read(folder)
    page = (folder / PAGE).resolve()
    if not webbrowser.open(page.as_uri()):
        raise UsageError("no browser can be started here", f"open {page}")
    return Shown({"path": str(page)}, f"{page}\n")


def find(report: Mapping[str, Any], folder: Path, wanted: str) -> dict[str, Any]:
    """The one fragment that is meant by `wanted` (`report/naming.py`). Raises UsageError."""
    known: list[dict[str, Any]] = report["fragments"]
    fitting = naming.fitting(known, wanted)
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        hint = f"{naming.near(known, wanted)} (`{wording.command(['mirage', 'show', str(folder)])}` lists them)"
        raise UsageError(f"no fragment of {folder} is called {short(wanted, NAME)!r}", hint)
    ids = ", ".join(f["id"] for f in fitting)
    raise UsageError(f"{short(wanted, NAME)!r} fits {len(fitting)} fragments: {ids}", "give more of the identifier")


def source(folder: Path, identifier: str, kind: str) -> Shown:
    """The source of a fragment's kernels ("cuda" or "cpp"). Raises UsageError where the folder has none."""
    path = folder / "src" / f"{identifier}.{SUFFIXES[kind]}"
    return _file(path, folder, {"id": identifier, "source": kind})


def drawing(folder: Path, identifier: str) -> Shown:
    """The SVG document of a fragment's muGraph, drawn anew: browsers run what is in a file that somebody else made. Raises
    UsageError where the folder has none."""
    path = folder / MUGRAPHS / f"{identifier}.svg"
    if not path.is_file():
        raise _missing(path, folder)
    text = pictures(mugraph_file.read(path.with_suffix(".json")))[0].svg
    return Shown({"id": identifier, "path": str(path), "text": text}, text)


def _missing(path: Path, folder: Path) -> UsageError:
    return UsageError(
        f"{folder} has no {path.relative_to(folder)}",
        "only fragments that were replaced have sources and drawings, for the targets of that run",
    )


def _file(path: Path, folder: Path, document: dict[str, Any]) -> Shown:
    try:
        text = content(path).decode()
    except FileNotFoundError:
        raise _missing(path, folder) from None
    except (OSError, ValueError) as e:
        raise ModelError(f"{path}: cannot be read: {e}") from None
    return Shown(document | {"path": str(path), "text": text}, text)


# --- the list -----------------------------------------------------------------------------------------------------------
def _list(report: Mapping[str, Any]) -> Shown:
    targets = list(dict.fromkeys(t for f in report["fragments"] for t in wording.predictions(f)))
    head = ("id", "fragment", "places", "status", *(f"predicted, {t}".strip(", ") for t in targets), "proof", ERRORS)
    rows = [
        (
            escaped(f["id"]),
            short(f["name"], NAME),
            str(f["occurrences"]),
            f["status"],
            *(wording.gain(f, t) or "-" for t in targets),
            wording.bound(f["verification"]) or "-",
            wording.accuracy(f["verification"]["float"]) or "-",
        )
        for f in report["fragments"]
    ]
    told: list[RenderableType] = [Text(escaped(s)) for s in wording.outcomes(report)]
    tail: list[RenderableType] = [Text(), _Listed(head, tuple(rows))] if rows else []
    document = {"model": report["model"], "fragments": [_brief(fragment) for fragment in report["fragments"]]}
    return Shown(document, Group(*told, *tail))


@dataclass(frozen=True, slots=True)
class _Listed:
    """The fragments in a table of as many columns, from the left, as there is room for: each cell is whole."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max(map(cells, column)) for column in zip(self.head, *self.rows, strict=True)]
        ends = list(itertools.accumulate(w + GAP for w in widths))
        shown = max(2, bisect.bisect_right(ends, options.max_width + GAP))
        drawn = Table(box=None, pad_edge=False, show_edge=False)
        for column in self.head[:shown]:
            drawn.add_column(column, justify="right" if column == "places" else "left", no_wrap=column != "fragment")
        for row in self.rows:
            drawn.add_row(*(Text(cell, _STATUS.get(cell, "")) for cell in row[:shown]))
        yield drawn


def _brief(f: Mapping[str, Any]) -> dict[str, Any]:
    return {k: f[k] for k in ("id", "name", "status", "occurrences", "predicted_us", "original_us", "floor_us")}


# --- one fragment -------------------------------------------------------------------------------------------------------
def _fragment(report: Mapping[str, Any], folder: Path, fragment: dict[str, Any]) -> Shown:
    plan = _plan(folder, fragment)
    shown = clean(fragment)
    parts: list[RenderableType] = [
        _head(shown),
        Text(),
        Text("Program", "bold"),
        _indented(shown["program"].get("text", [])),
    ]
    parts += [Text(), *_trees(shown, plan)]
    for title, head, rows in (
        ("Time", (), _times(shown)),
        ("Schedule", SCHEDULE_HEAD, schedules(shown["schedule"])),
        ("Proof", PROOF_HEAD, verdicts(shown["verification"])),
    ):
        parts += [Text(), Text(title, "bold"), _table(head, rows)] if rows else []
    parts += [Text(), Text(wording.proved(shown["verification"]) or wording.proof(shown["verification"])[0])]
    parts.append(Text(wording.rounding(shown["verification"]["float"])))
    files = [
        name
        for name in report.get("files", {})
        if name.startswith((f"src/{fragment['id']}.", f"{MUGRAPHS}/{fragment['id']}."))
    ]
    parts += (
        [Text(), Text("Files", "bold"), _indented([escaped(str(folder / name)) for name in files])] if files else []
    )
    return Shown(fragment | {"files": files, "mugraphs": _stored(plan)}, Group(*parts))


def _plan(folder: Path, f: Mapping[str, Any]) -> StoredPlan | None:
    """The muGraph file of a fragment that has one. Raises ModelError or InvalidGraph for one that cannot be read."""
    name = f["mugraph"]["file"]
    if name is None:
        return None
    return plan_from_json(mugraph_file.read(folder / MUGRAPHS / Path(name).name))


def _head(f: Mapping[str, Any]) -> RenderableType:
    head = Text.assemble((f["name"], "bold"), "  ", (f["status"], _STATUS.get(f["status"], "")), "  ", (f["id"], "dim"))
    lines = [head, Text(wording.lead(f))]
    lines += [Text(f["reason"], "yellow")] if f.get("reason") else []
    p, s = f["program"], f["search"]
    lines.append(Text(f"{', '.join(p['inputs'])} -> {', '.join(p['outputs'])}"))
    lines.append(Text(f"axes {', '.join(f'{a} = {e}' for a, e in p['axes'].items())}"))
    lines += [Text(line) for line in (wording.searched(s), wording.tuned(f.get("tuning", {}))) if line]
    return Group(*lines)


def _indented(lines: Sequence[str]) -> RenderableType:
    return Group(*(Text(f"  {line}", overflow="fold") for line in lines))


def _trees(f: Mapping[str, Any], plan: StoredPlan | None) -> list[RenderableType]:
    if plan is None:
        text = f["mugraph"]["text"]
        return [Text("muGraph", "bold"), _indented(text)] if text else []
    trees: list[RenderableType] = []
    for title, graph in distinct(plan):
        trees.append(_drawn_tree(tree.mugraph(graph, plan.program, f"kernel graph for {escaped(title)}")))
    return trees


def _drawn_tree(branch: tree.Branch) -> Tree:
    """The tree as rich draws it."""
    tree_of_branch = Tree(Text(branch.text, _STYLES[branch.kind]), guide_style="dim")
    for b in branch.below:
        tree_of_branch.children.append(_drawn_tree(b))
    return tree_of_branch


def _stored(plan: StoredPlan | None) -> list[dict[str, Any]]:
    if plan is None:
        return []
    return [
        {"for": title, "lines": [[depth, line] for depth, line in tree.mugraph(graph, plan.program).lines()]}
        for title, graph in distinct(plan)
    ]


def _time(us: float | None) -> str:
    """A measured time, a dash where there is none."""
    return "-" if us is None else microseconds(us)


def _times(f: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Predicted and measured times beside the floor."""
    rows: list[tuple[str, ...]] = []
    for p in f.get("predictions", {}).values():
        cells = (microseconds(p["original_us"]), microseconds(p["predicted_us"]), microseconds(p["floor_us"]))
        rows.append(
            (
                f"predicted for {p['target']}",
                *(f"{k} {v}" for k, v in zip(("original", "mirage", "floor"), cells, strict=True)),
            )
        )
    for m in f["measured"]:
        peers = ", ".join(f"{name} {_time(us)}" for name, us in m.get("peers", {}).items())
        rows.append(
            (
                f"measured on {m['device']}",
                f"original {_time(m['original_us'])}",
                f"mirage {_time(m['mirage_us'])}",
                peers,
            )
        )
    return rows


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    drawn = Table(box=None, pad_edge=False, show_header=bool(head), header_style="dim", padding=(0, 2, 0, 0))
    for k in range(len(rows[0])):
        drawn.add_column(head[k] if head else "", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn
