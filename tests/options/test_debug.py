"""`MIRAGE_DEBUG`: each stage is shown where it is asked for, unknown words are errors, nothing is shown otherwise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirage_cli.errors import UsageError
from mirage_cli.main import cli
from mirage_cli.options import debug
from mirage_cli.options.options import Options
from tests.optimized import anew, sample

NAME = "rmsnorm_linear_fp32"
MARK = re.compile(r"^--- (\w+): .* ---$", re.MULTILINE)


def stages(text: str) -> list[str]:
    """The stages that a text shows, in order, once each."""
    return list(dict.fromkeys(MARK.findall(text)))


def plan(cache: Path | str) -> None:
    anew(str(sample(NAME)), Path(), Options(dry_run=True, target=("cpu",), force=True, jobs=1, cache=str(cache)))


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("", []),
        ("source", ["source"]),
        (" program , tile,", ["program", "tile"]),
        ("source,tile,search,program", ["program", "search", "tile", "source"]),
    ],
)
def test_stages(
    words: str, shown: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(debug.VARIABLE, words)
    plan("")
    output, told = capsys.readouterr()
    assert output == ""
    assert stages(told) == shown
    for stage, part in {
        "program": "contract",
        "search": "candidates",
        "tile": "epilogue:",
        "source": 'extern "C"',
    }.items():
        assert (stage in shown) <= (part.split()[-1] in told)


def test_the_search_lists_candidates(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(debug.VARIABLE, "search")
    plan("")
    told = capsys.readouterr().err
    assert re.search(r"^\d+ mappings, \d+ values, \d+ muGraphs, \d+ candidates$", told, re.MULTILINE)
    times = [float(t) for t in re.findall(r"^ *([\d.]+) us  ", told, re.MULTILINE)]
    assert len(times) > 2
    assert "kernel 0: tensors" in told


def test_kept_plans_are_not_taken(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(own_cache)
    monkeypatch.setenv(debug.VARIABLE, "program")
    plan(own_cache)
    assert stages(capsys.readouterr().err) == ["program"]


def test_unknown_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(debug.VARIABLE, "program,sorce")
    with pytest.raises(UsageError, match="MIRAGE_DEBUG: unknown stage 'sorce'") as error:
        debug.requested_stages()
    assert error.value.hint == "did you mean source? stages are program, search, tile, source"
    assert cli.run(["cache", "dir", "-q"]) == 2
    assert cli.run(["--version"]) == 0
