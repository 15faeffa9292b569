"""The guide's fragments are those that its commands find today."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tests.optimized import Optimized

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide.md"
SHOWN = 4  #: digits of an identifier that `mirage show` is given
ROW = 6  #: digits of it in the table of `mirage optimize`
BEGUN = re.compile(rf"^(\w+ +)([0-9a-f]{{{ROW}}})(?= +\d)", flags=re.MULTILINE)
IDENTIFIER = re.compile(r"_([0-9a-f]{16}(?:v\d+)?) cpu, wrong with probability")


def renewed(text: str, found: list[str]) -> str:
    """The guide with the identifiers of its section on `verify`, which has them all, in place of the old ones."""
    old = IDENTIFIER.findall(text)
    names = dict(zip(old, found, strict=True))
    text = re.sub("|".join(sorted(old, reverse=True)), lambda m: names[m[0]], text)  # the longer of two first
    rows = {before[:ROW]: after[:ROW] for before, after in names.items()}
    text = BEGUN.sub(lambda m: m[1] + rows.get(m[2], m[2]), text)
    begun = {before[:SHOWN]: after[:SHOWN] for before, after in names.items()}
    return re.sub(r"(?<=mirage show out )\w+", lambda m: begun.get(m[0], m[0]), text)


def test_the_identifiers_are_those_of_today(optimized: Optimized) -> None:
    report = json.loads((optimized("llama_fp32") / "report.json").read_text())
    text = GUIDE.read_text()
    if os.environ.get("MIRAGE_GOLDEN"):
        text = renewed(text, [f["id"] for f in report["fragments"]])
        GUIDE.write_text(text)
    assert IDENTIFIER.findall(text) == [f["id"] for f in report["fragments"]], "make golden renews them"
    named = set(re.findall(r"^\w+ +([0-9a-f]{16}) ", text, flags=re.MULTILINE))  # rows of `compare` and `bench`
    assert named <= {f["id"] for f in report["fragments"]}
    begun = {m[2] for m in BEGUN.finditer(text)}
    assert len(begun) > 3 and begun <= {f["id"][:ROW] for f in report["fragments"]}
    (shown,) = re.findall(r"^\$ mirage show out (\w+)$", text, flags=re.MULTILINE)
    assert sum(f["id"].startswith(shown) for f in report["fragments"]) == 1


def test_renewing() -> None:
    old, new = "0123456789abcdef", "fedcba9876543210"
    line = (
        "norm_{0} cpu, wrong with probability\nnorm_{0}v1 cpu, wrong with probability\n$ mirage show out {1}\nmlp {0}v1\n"
        "norm  {2}  2  replaced\n"
    )
    found = renewed(line.format(old, old[:SHOWN], old[:ROW]), [new, f"{new}v1"])
    assert found == line.format(new, new[:SHOWN], new[:ROW])
