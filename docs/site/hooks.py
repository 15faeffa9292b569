"""What the site has beyond the pages in docs/: documents of the repository's root, as pages of their own.

The README becomes the first page. Links are those that GitHub shows; where the site has a page at another place, they are
led there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
#: document of the repository -> page of the site
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "samples/README.md": "samples.md",
    "LICENSE": "license.md",
}
#: folder -> the page that stands for it
FOLDERS = {"docs/decisions": "decisions/index.md", "docs/how-to": "how-to/operator.md"}
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File  # noqa: PLC0415  (there only where the site is built)

    made = {page: _led(name, (ROOT / name).read_text()) for name, page in PAGES.items() if name != "LICENSE"}
    made["license.md"] = f"# License\n\n```text\n{(ROOT / 'LICENSE').read_text()}```\n"
    made["decisions/index.md"] = _decisions()
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to the folder of decisions to their list."""
    return markdown.replace("](decisions/)", "](decisions/index.md)")


def _led(name: str, text: str) -> str:
    """The text of a document with links as they are on its page."""
    here = (ROOT / name).parent

    def link(match: re.Match[str]) -> str:
        start, target, anchor = match[1], match[2], match[3] or ""
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = (here / target).resolve().relative_to(ROOT).as_posix()
        if path in PAGES:
            return f"{start}{PAGES[path]}{anchor})"
        if path in FOLDERS:
            return f"{start}{FOLDERS[path]})"
        if path.startswith("docs/"):
            return f"{start}{path.removeprefix('docs/')}{anchor})"
        return match[0]

    return _LINK.sub(link, text)


def _decisions() -> str:
    """The list of decisions."""
    notes = sorted((ROOT / "docs/decisions").glob("*.md"))
    titles = [(n.name, n.read_text().splitlines()[0].removeprefix("# ")) for n in notes]
    lines = [f"- [{title.replace('. ', ': ', 1)}]({name})" for name, title in titles]
    return (
        "# Decisions\n\nWhat was decided, from which measurement, and what would change it.\n\n"
        + "\n".join(lines)
        + "\n"
    )
