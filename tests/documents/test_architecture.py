"""docs/architecture.md says which packages there are; every package says what it is for."""

from __future__ import annotations

import os

import pytest

from samples import packages


def test_the_table_of_packages_is_up_to_date() -> None:
    if os.environ.get("MIRAGE_GOLDEN"):
        packages.main()
    text = packages.PAGE.read_text()
    assert text == packages.page(text), "docs/architecture.md is stale: make reference"


@pytest.mark.parametrize("top", ["mirage_cli", "lax", "search"])
def test_packages_are_small_and_say_what_they_are_for(top: str) -> None:
    folders = [packages.ROOT / top, *packages.inner(packages.ROOT / top)]
    for folder in folders:
        assert packages.sentence(folder).endswith("."), f"{folder} does not say what it is for"
        limit = 4 if folder.name == "mirage_cli" else 16
        assert len([p for p in folder.glob("*.py") if p.name != "__init__.py"]) <= limit, (
            f"{folder} holds too many modules"
        )
