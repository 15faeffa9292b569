"""Code blocks of documents, taken out and run. A comment before a block says what it is:

<!-- file: NAME -->      the block is this file
<!-- run: NEEDS -->      the block is run by bash; what it needs are programs, or names that the test knows
<!-- not run: REASON --> neither
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ACTIONS = ("file", "append", "change", "run")
_HEADING = re.compile(r"^## +(.*)$")
_MARK = re.compile(r"^<!-- (file|append|change|run|not run):? ?(.*?) ?-->$")
_FENCE = re.compile(r'^(`{3,})(\w*)(?: title="(.*)")?$')


@dataclass(frozen=True, slots=True)
class Block:
    """A code block: its section's heading, the mark before it ("" when there is none), the mark's words, the language."""

    section: str
    mark: str
    words: tuple[str, ...]
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """All code blocks of a page, in its order."""
    found: list[Block] = []
    section, mark, words = "", "", ""
    lines = iter(page.read_text().splitlines())
    for line in lines:
        if m := _HEADING.match(line):
            section = m[1]
        elif m := _MARK.match(line):
            mark, words = m[1], m[2] or ""
        elif m := _FENCE.match(line):
            if m[3] and m[3] != words:
                raise ValueError(f"{page.name}: a block is called {m[3]} and marked {words!r}")
            text = []
            for inside in lines:
                if inside == m[1]:
                    break
                text.append(inside + "\n")
            found.append(Block(section, mark, tuple(words.split()), m[2], "".join(text)))
            mark, words = "", ""
        elif line and mark:
            raise ValueError(f"{page.name}: the mark {mark!r} in {section!r} is not before a code block")
    return found


def sections(page: Path) -> list[str]:
    """The sections that have something to run."""
    return list(dict.fromkeys(b.section for b in blocks(page) if b.mark == "run"))


def of_section(page: Path, section: str) -> list[Block]:
    """The marked blocks of a section."""
    return [b for b in blocks(page) if b.section == section and b.mark in ACTIONS]


def programs(folder: Path) -> Path:
    """A folder with `mirage` and `python` as they are called in documents."""
    folder.mkdir()
    for name, command in (("python", ""), ("mirage", " -m mirage_cli")):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}"{command} "$@"\n')
        path.chmod(0o755)
    return folder


def cache_home(folder: Path, cache: Path) -> str:
    """What XDG_CACHE_HOME is to be for `cache` to be the cache folder."""
    home = folder / "cache-home"
    home.mkdir()
    cache.mkdir(parents=True, exist_ok=True)
    (home / "mirage").symlink_to(cache)
    return str(home)


def carry_out(found: list[Block], place: Path, bin_folder: Path, sources: Path = ROOT, **more: str) -> str:
    """Write the files and run the blocks in a folder; what they printed. Raises AssertionError when one fails.

    `sources` is the repository, or the copy of it, whose package is imported.
    """
    printed = ""
    env = dict(os.environ) | {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(sources),
        "OPENBLAS_NUM_THREADS": "1",
        **more,
    }
    for block in found:
        if block.mark != "run":
            _write(block, place / block.words[0])
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=place,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"{block.section}: {block.text}\n{done.stdout}\n{done.stderr}"
        printed += done.stdout
    return printed


def _write(block: Block, path: Path) -> None:
    """Write, extend or change a file. Raises AssertionError when what is to be changed is not there once."""
    if block.mark == "file":
        path.write_text(block.text)
    elif block.mark == "append":
        path.write_text(path.read_text() + "\n" + block.text)
    else:
        lines = block.text.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        assert path.read_text().count(old) == 1, f"{path} does not hold once:\n{old}"
        path.write_text(path.read_text().replace(old, new))


def absent(needs: set[str], known: set[str]) -> str:
    """The first program of these that is not installed, or nothing."""
    return next((n for n in sorted(needs - known) if shutil.which(n) is None), "")
