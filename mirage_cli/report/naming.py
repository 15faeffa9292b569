"""What a user calls a fragment of an output folder: the same for every command and function that takes one."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from mirage_cli.options import patterns

F = TypeVar("F", bound=Mapping[str, Any])


def fitting(fragments: Sequence[F], wanted: str) -> list[F]:
    """The fragments (of a report, or their `id` and `name`) that are meant: by their identifier or operator, else by the
    beginning of an identifier, else by their name, which may be a pattern such as '*attention*'."""
    for fits in (
        lambda f: f["id"] == wanted.rpartition("_")[2],
        lambda f: f["id"].startswith(wanted),
        lambda f: fnmatch.fnmatchcase(f["name"], wanted),
    ):
        if wanted and (found := [f for f in fragments if fits(f)]):
            return found
    return []


def near(fragments: Sequence[F], wanted: str) -> str:
    """A hint for a name that no fragment has: those that it may mean, or their identifiers."""
    return patterns.near(wanted, [key for f in fragments for key in (f["name"], f["id"])])


def beginnings(identifiers: Sequence[str], least: int = 6) -> dict[str, str]:
    """For each identifier its shortest beginning of at least so many characters that no other one has."""
    length = least
    while len({i[:length] for i in identifiers}) < len(set(identifiers)):
        length += 1
    return {i: i[:length] for i in identifiers}
