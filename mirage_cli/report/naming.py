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
        lambda f: _begins(f["id"], wanted),
        lambda f: fnmatch.fnmatchcase(f["name"], wanted),
    ):
        if wanted and (found := [f for f in fragments if fits(f)]):
            return found
    return []


def near(fragments: Sequence[F], wanted: str) -> str:
    """A hint for a name that no fragment has: those that it may mean, or their identifiers."""
    return patterns.near(wanted, [key for f in fragments for key in (f["name"], f["id"])])


def beginnings(identifiers: Sequence[str], least: int = 6) -> dict[str, str]:
    """For each identifier a beginning of at least so many digits that means no other one; `0123abv1` for a variant of
    `0123ab`."""
    length = least
    while len(short := {i: _hash(i)[:length] + i[len(_hash(i)) :] for i in identifiers}) > len(set(short.values())):
        length += 1
    return short


def _begins(identifier: str, wanted: str) -> bool:
    own, asked = _hash(identifier), _hash(wanted)
    return own.startswith(asked) and identifier[len(own) :] == wanted[len(asked) :]


def _hash(identifier: str) -> str:
    """An identifier without the number of its variant, such as v1."""
    return identifier.partition("v")[0]
