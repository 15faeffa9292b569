"""Write the table of packages into docs/architecture.md: sentences from the packages' docstrings, rows from the layers of
pyproject.toml. `make reference` does it; a test fails when the table is stale."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/architecture.md"
BEGIN, END = "<!-- packages: begin -->\n", "<!-- packages: end -->\n"
AT_TOP = ("lax", "search", "templates")  #: folders that lie at the top of the repository


def layers() -> list[tuple[str, ...]]:
    """The packages of mirage_cli from the top to the bottom, those of one layer together."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [c["layers"] for c in contracts if c.get("containers") == ["mirage_cli"]]
    rows = [tuple(name.strip() for name in layer.split("|")) for layer in contract]
    return [row for row in rows if all((ROOT / "mirage_cli" / name).is_dir() for name in row)]


def sentence(folder: Path) -> str:
    """The sentences of a package about itself."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return " ".join(text.split())


def inner(folder: Path) -> Iterator[Path]:
    """The packages in a package, at any depth."""
    for place in sorted(p.parent for p in folder.glob("*/__init__.py")):
        yield place
        yield from inner(place)


def table() -> str:
    """A row for each package, the highest layer first, with the packages that lie in it below."""
    lines, rows = ["| layer | package | what it is for | modules |", "|---|---|---|---|"], layers()
    for k, layer in enumerate(rows):
        for name in layer:
            folder = ROOT / name if name in AT_TOP else ROOT / "mirage_cli" / name
            for place in (folder, *inner(folder)):
                number = len(rows) - k if place == folder else ""
                shown = place.relative_to(ROOT).as_posix().removeprefix("mirage_cli/")
                modules = sorted(p.stem for p in place.glob("*.py") if p.name != "__init__.py")
                lines.append(f"| {number} | `{shown}/` | {sentence(place)} | {' '.join(f'`{m}`' for m in modules)} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with the table as it is today."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
