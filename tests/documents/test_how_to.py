"""docs/how-to: every page is carried out on a copy of the sources."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.documents import pages

PAGES = sorted((pages.ROOT / "docs/how-to").glob("*.md"))
COPIED = ("mirage_cli", "lax", "search", "templates", "tests/__init__.py", "tests/lax", "tests/conftest.py")
#: what blocks need beside programs
PACKAGES = {"dask": "distributed", "dask-jobqueue": "dask_jobqueue", "dask-kubernetes": "dask_kubernetes"}
COPIED += ("tests/forked.py", "tests/optimized.py", "samples/operators/mlp_fp16.onnx")


def copy_of_the_sources(place: Path) -> Path:
    """What the pages change and use, with its bytecode, which holds as long as a file has its time of change."""
    for name in (*COPIED, *(f"samples/{p.name}" for p in (pages.ROOT / "samples").glob("*.py"))):
        source, target = pages.ROOT / name, place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy(source, target)
    return place


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page(page: Path, tmp_path: Path, cache: Path) -> None:
    place = copy_of_the_sources(tmp_path / "copy")
    found = [b for b in pages.blocks(page) if b.mark in pages.ACTIONS]
    packages = {w for w in PACKAGES if importlib.util.find_spec(PACKAGES[w]) is not None}
    kept = [b for b in found if b.mark != "run" or not pages.absent(set(b.words), packages)]
    home = pages.cache_home(tmp_path, cache)
    path = os.pathsep.join([str(place), *filter(None, sys.path)])  # of what is installed beside the environment
    pages.carry_out(kept, place, pages.programs(tmp_path / "bin"), place, XDG_CACHE_HOME=home, PYTHONPATH=path)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_everything_is_marked(page: Path) -> None:
    assert [b.text for b in pages.blocks(page) if not b.mark] == []


def test_there_are_five_pages() -> None:
    assert [p.stem for p in PAGES] == ["engine", "farm", "front-end", "operator", "target"]
