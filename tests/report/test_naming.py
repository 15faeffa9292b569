"""Names of fragments: what a user may call one, and the beginnings that tables show."""

from __future__ import annotations

import pytest

from mirage_cli.report import naming

A, B, C, D = (
    {"id": "0123456789abcdef", "name": "attention"},
    {"id": "0123456789abcdefv1", "name": "attention"},
    {"id": "0123457000000000", "name": "linear"},
    {"id": "ffff456789abcdef", "name": "norm_linear"},
)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (A["id"], [A]),
        (B["id"], [B]),
        ("01234567", [A]),
        ("01234567v1", [B]),
        ("012345", [A, C]),
        ("ff", [D]),
        ("linear", [C]),
        ("*linear", [C, D]),
        ("attention", [A, B]),
        ("attention_0123456789abcdef", [A]),
        ("nothing", []),
        ("", []),
    ],
)
def test_what_a_fragment_is_called(wanted: str, found: list[dict[str, str]]) -> None:
    assert naming.fitting([A, B, C, D], wanted) == found


def test_beginnings_mean_one_fragment_each() -> None:
    rows = [A, B, C, D]
    short = naming.beginnings([f["id"] for f in rows])
    assert list(short.values()) == ["0123456", "0123456v1", "0123457", "ffff456"]
    assert all(naming.fitting(rows, short[f["id"]]) == [f] for f in rows)


def test_names_that_are_near() -> None:
    assert naming.near([A, C, D], "attnetion") == "did you mean attention?"
