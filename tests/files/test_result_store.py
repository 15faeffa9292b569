"""Kept results: read back as they were written, by this user's mirage alone, whatever happens to the files."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mirage_cli.files import result_store, staging
from mirage_cli.files.result_store import SECRET, SUFFIX, Kept, key, secret

DOCUMENT = {"text": "µGraph", "numbers": [0.1, 1e-300, float("inf"), 2**70], "nothing": None}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this test's secret."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "mirage"


@pytest.fixture
def store(state: Path, tmp_path: Path) -> Kept:
    return Kept(tmp_path / "results")


def test_what_is_kept_is_read_back(store: Kept, tmp_path: Path) -> None:
    assert store.get("a") is None
    store.put("a", DOCUMENT)
    assert store.get("a") == DOCUMENT
    assert Kept(tmp_path / "results").get("a") == DOCUMENT
    assert [p.name for p in store.root.iterdir()] == [f"a{SUFFIX}"]


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    "change", [flipped, lambda d: d[:20], lambda d: d[:-1], lambda d: b"", lambda d: flipped(d[:32]) + d[32:]]
)
def test_a_changed_file_is_not_used(
    store: Kept, change: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    store.put("a", DOCUMENT)
    path = store.root / f"a{SUFFIX}"
    path.write_bytes(change(path.read_bytes()))
    with caplog.at_level(logging.INFO):
        assert store.get("a") is None
    assert "was not written by this user's mirage" in caplog.text
    store.put("a", DOCUMENT)
    assert store.get("a") == DOCUMENT


def test_a_document_under_another_name_is_not_used(store: Kept) -> None:
    store.put("a", DOCUMENT)
    (store.root / f"a{SUFFIX}").rename(store.root / f"b{SUFFIX}")
    assert store.get("b") is None


@pytest.mark.parametrize("whole", [False, True])
def test_links_in_the_place_of_files_are_replaced(store: Kept, tmp_path: Path, whole: bool) -> None:
    """A folder that came with a model may hold links to files of the user, under names that anybody can work out."""
    victim = tmp_path / "thesis.tex"
    if whole:
        victim.write_text("years of work")
    path = store.root / f"a{SUFFIX}"
    path.symlink_to(victim)
    staging.put(path, b"other", keep=True)  # what is there stays, be it a link
    assert path.is_symlink()
    store.put("a", DOCUMENT)
    assert store.get("a") == DOCUMENT and not path.is_symlink()
    assert victim.read_text() == "years of work" if whole else not victim.exists()


def test_files_without_an_end_are_not_read(store: Kept) -> None:
    """Pipes would be waited for, and a sparse file of terabytes would be more than memory."""
    path = store.root / f"a{SUFFIX}"
    with path.open("wb") as file:
        file.truncate(1 << 42)
    assert store.get("a") is None
    path.unlink()
    os.mkfifo(path)
    assert store.get("a") is None
    path.unlink()
    store.put("a", DOCUMENT)
    assert store.get("a") == DOCUMENT


def test_what_another_user_wrote_is_not_used(store: Kept, state: Path) -> None:
    store.put("a", DOCUMENT)
    (state / SECRET).unlink()
    other = Kept(store.root)
    assert other.usable
    assert other.get("a") is None


def test_the_secret_is_the_users_own(store: Kept, state: Path) -> None:
    first = secret()
    assert first is not None
    assert len(first) == 32
    assert (state / SECRET).stat().st_mode & 0o777 == 0o600
    assert secret() == first
    assert [p.name for p in state.iterdir()] == [SECRET]


@pytest.mark.parametrize("broken", ["readable", "short"])
def test_a_secret_that_is_none(store: Kept, state: Path, broken: str) -> None:
    path = state / SECRET
    if broken == "readable":
        path.chmod(0o644)
    else:
        path.write_bytes(b"short")
    spoilt = Kept(store.root)
    assert not spoilt.usable
    spoilt.put("a", DOCUMENT)
    assert spoilt.get("a") is None
    assert list(store.root.iterdir()) == []


def test_without_a_place_for_the_secret_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert not Kept(tmp_path / "results").usable


def test_a_folder_that_others_write_to_is_not_used(store: Kept) -> None:
    store.put("a", DOCUMENT)
    store.root.chmod(0o777)
    assert Kept(store.root).get("a") is None


def test_a_folder_that_is_none(state: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    spoilt = Kept(tmp_path / "file" / "results")
    spoilt.put("a", DOCUMENT)
    assert spoilt.get("a") is None


def keep_many(root: Path, number: int) -> None:
    store = Kept(root)
    for k in range(20):
        store.put(f"k{k}", {"by": number, "long": "x" * 10000})
        found = store.get(f"k{k}")
        assert set(found) == {"by", "long"}


def test_processes_share_a_folder(state: Path, tmp_path: Path) -> None:
    """The secret is made once, and no reader sees half a document."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=keep_many, args=(tmp_path / "results", n)) for n in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert [w.exitcode for w in workers] == [0] * 4
    assert len(list((tmp_path / "results").iterdir())) == 20


def test_keys_tell_everything_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert key("a", [1]) == key("a", [1])
    assert len({key("a", [1]), key("a", [2]), key("b", [1]), key("a", 1), key("a", ["1"])}) == 5
    before = key("a")
    monkeypatch.setattr(result_store, "version", lambda: "another")
    assert key("a") != before
