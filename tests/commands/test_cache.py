"""`mirage cache`: what is printed where, what travels, what is removed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mirage_cli.tuning.cache import FILE, SETTLED, Measurement, Row, Settled, TuningCache, Where
from tests.commands.conftest import Run, error_of

WHERE = Where("abc", (("n", 4),), "f16", "sm_90a", "NVIDIA H200", "580.1", "v1")


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A cache with two compiled objects and the tuning of one program."""
    root = tmp_path / "cache"
    (root / "objects").mkdir(parents=True)
    (root / "objects" / "a.o").write_bytes(b"12345")
    (root / "objects" / "b.o").write_bytes(b"123")
    (root / "results").mkdir()
    (root / "results" / "c.kept").write_bytes(b"12")
    (root / "graphs" / "d").mkdir(parents=True)
    (root / "graphs" / "d" / "original.onnx").write_bytes(b"1234")
    described = {"name": "norm"}
    TuningCache(root / "tunings").store(
        [
            Row(WHERE.columns, "c1", described, Measurement(12.5, 12.0, 13.0, 60)),
            Row(WHERE.columns, "c2", described, Measurement(11.25, 11.0, 12.0, 60)),
            Row(WHERE.columns, "c3", described, Measurement(None, problem="wrong")),
            Row(WHERE.columns, SETTLED, described, Settled(48, 90.0)),
        ]
    )
    return root


def test_dir(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("cache", "dir", "--cache", tmp_path).stdout == f"{tmp_path}\n"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert json.loads(run("cache", "dir", "--json").stdout)["cache"] == str(tmp_path / "xdg" / "mirage")
    assert not (tmp_path / "xdg").exists()  # asking makes nothing


def test_list(run: Run, filled: Path) -> None:
    found = run("cache", "list", "--cache", filled)
    assert found.stdout.splitlines() == [
        f"{filled}: 2 compiled objects (0.0 MiB), 1 result (0.0 MiB), 1 graph, 4 tunings",
        "  norm abc, f16, n=4, sm_90a NVIDIA H200 (driver 580.1), 11.25 us, 3 tried",
    ]
    document = json.loads(run("cache", "list", "--cache", filled, "--json").stdout)
    assert document["objects"] == {"files": 2, "bytes": 8}
    assert document["results"] == {"files": 1, "bytes": 2}
    assert document["graphs"] == {"folders": 1, "bytes": 4}
    assert [t["candidate"] for t in document["tunings"]] == [SETTLED, "c1", "c2", "c3"]
    assert document["tunings"][1]["value"] == {"us": 12.5, "low": 12.0, "high": 13.0, "samples": 60}


def test_list_of_nothing_makes_nothing(run: Run, tmp_path: Path) -> None:
    found = run("cache", "list", "--cache", tmp_path / "none")
    assert (
        found.stdout == f"{tmp_path / 'none'}: 0 compiled objects (0.0 MiB), 0 results (0.0 MiB), 0 graphs, 0 tunings\n"
    )
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("way", ["file", "-"])
def test_tunings_travel(run: Run, filled: Path, tmp_path: Path, way: str) -> None:
    document = run("cache", "export", "--cache", filled)
    assert (document.exit_code, document.stderr) == (0, "")
    other, file = tmp_path / "other", tmp_path / "tunings.json"
    file.write_text(document.stdout)
    source = (file, b"") if way == "file" else ("-", document.stdout.encode())
    brought = run("cache", "import", source[0], "--cache", other, input=source[1])
    assert brought.stdout == "4 tunings taken, 0 left: what is here says as much\n"
    assert TuningCache(other / "tunings").rows() == TuningCache(filled / "tunings").rows()
    again = run("cache", "import", source[0], "--cache", other, "--json", input=source[1])
    assert json.loads(again.stdout) == {"taken": 0, "left": 4}
    assert json.loads(run("cache", "export", "--cache", other, "--json").stdout) == json.loads(document.stdout)


def test_clean_removes_what_we_kept_and_nothing_else(run: Run, filled: Path) -> None:
    (filled / "objects" / "notes.txt").write_text("mine")
    assert run("cache", "clean", "--cache", filled).stdout == (
        "removed 2 compiled objects (0.0 MiB), 1 result (0.0 MiB), 1 graph and 4 tunings\n"
    )
    assert [p.name for p in (filled / "objects").iterdir()] == ["notes.txt"]
    assert [p.name for p in (filled / "tunings").iterdir()] == [FILE]
    assert TuningCache(filled / "tunings").rows() == []
    assert list((filled / "results").iterdir()) == []
    assert list((filled / "graphs").iterdir()) == []
    assert json.loads(run("cache", "clean", "--cache", filled, "--json").stdout) == {
        "objects": 0,
        "results": 0,
        "graphs": 0,
        "bytes": 0,
        "tunings": 0,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["import"], "Missing argument 'FILE'."),
        (["list", "file"], "list takes no FILE."),
        (["dir", "--no-cache"], "--no-cache: there is no cache then"),
        (["shrink"], "No such action 'shrink'. Actions are dir, list, export, import, clean."),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], message: str) -> None:
    found = run("cache", *arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert message in found.stderr


def test_documents_that_are_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe")
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    with (tmp_path / "sparse.json").open("wb") as file:
        file.truncate(1 << 40)
    for file in ("bad.json", "absent.json", "endless.json", "pipe.json", "sparse.json"):
        found = run("cache", "import", tmp_path / file, "--cache", tmp_path / "c", "--json")
        assert found.exit_code == 3
        assert file in error_of(found)["message"]
