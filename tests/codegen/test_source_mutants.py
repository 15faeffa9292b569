"""Changed sources in short: every kind of change is made, and the float check sees through it without comparing bytes."""

from __future__ import annotations

import re
from pathlib import Path

from mirage_cli.lax.dtypes import F32

from . import kernels
from .mutant_verdicts import COMMANDS, OUTCOMES, base, object_of, outcome
from .programs import NAMED, program
from .source_mutants import KINDS, line_of, mutants_of


def test_changes_are_seen_by_the_float_check_alone(tmp_path: Path) -> None:
    """Also one that leaves memory as it was found: it holds no zeros there, nor in a process that checks."""
    (case,) = kernels.cases("rmslinear", program(NAMED["rms_linear"], F32), "cpu", 1, seed=3)
    kernel = base(case, tmp_path)
    found = mutants_of(kernel.text)
    assert set(found) >= {"number", "index", "bound", "extent", "exchange"} and set(found) <= set(KINDS)
    assert all(m.text != kernel.text for kind in found.values() for m in kind)
    start = re.compile(r"for \(int i = 0; i < \d+; \+\+i\) t\d+\[i\] = 0x0p\+0f;")
    bare = next(m for m in found["statement"] if start.search(kernel.text.split("\n")[line_of(m) - 1]))
    number = found["number"][len(found["number"]) // 2]
    assert outcome(kernel, number, tmp_path / "number") == OUTCOMES[2]
    assert outcome(kernel, bare, tmp_path / "bare") == OUTCOMES[2]


def test_what_compilers_make_the_same_of_is_no_change() -> None:
    text = "int add(int a, int b) { return a + b; }\n"
    first = COMMANDS[0]
    made = object_of(text, first)
    assert made is not None and made == object_of(text.replace("a + b", "1 * (a + b)"), first)
    assert made != object_of(text.replace("a + b", "a - b"), first)
    assert object_of("no C++", first) is None
