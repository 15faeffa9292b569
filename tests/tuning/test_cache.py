"""The tuning cache: several processes, poisoned rows, damaged files, folders of others, documents that travel."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import sqlite3
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.errors import ModelError
from mirage_cli.tuning import cache as tuning_cache
from mirage_cli.tuning.cache import (
    FILE,
    SETTLED,
    Measurement,
    Row,
    Settled,
    TuningCache,
    Where,
    exported,
    imported,
    row_from_json,
)

WHERE = Where("p1", (("n", 4),), "f16", "sm_90a", "NVIDIA H200", "580.1", "v1")
TIME = Measurement(12.5, 12.0, 13.0, 60)


def row(candidate: str = "c1", value: Any = TIME, where: Where = WHERE) -> Row:
    return Row(where.columns, candidate, {"name": "norm"}, value)


@pytest.fixture
def cache(tmp_path: Path) -> TuningCache:
    return TuningCache(tmp_path / "tunings")


def sql(cache: TuningCache, statement: str, *values: Any) -> None:
    with sqlite3.connect(cache.path) as db:
        db.execute(statement, values)
    db.close()


# --- storing and finding ----------------------------------------------------------------------------------------------
def test_what_is_stored_is_found(cache: TuningCache) -> None:
    assert cache.fetch(WHERE) == {}
    cache.store([row(), row("c2", Measurement(None, problem="wrong: rmse")), row(SETTLED, Settled(48, 90.0))])
    again = TuningCache(cache.root)
    assert again.fetch(WHERE) == {
        "c1": TIME,
        "c2": Measurement(None, problem="wrong: rmse"),
        SETTLED: Settled(48, 90.0),
    }
    assert [r.candidate for r in again.rows()] == [SETTLED, "c1", "c2"]


@pytest.mark.parametrize(
    "other",
    [
        Where("p2", (("n", 4),), "f16", "sm_90a", "NVIDIA H200", "580.1", "v1"),
        Where("p1", (("n", 8),), "f16", "sm_90a", "NVIDIA H200", "580.1", "v1"),
        Where("p1", (("n", 4),), "bf16", "sm_90a", "NVIDIA H200", "580.1", "v1"),
        Where("p1", (("n", 4),), "f16", "sm_80", "NVIDIA H200", "580.1", "v1"),
        Where("p1", (("n", 4),), "f16", "sm_90a", "NVIDIA H100", "580.1", "v1"),
        Where("p1", (("n", 4),), "f16", "sm_90a", "NVIDIA H200", "575.0", "v1"),
        Where("p1", (("n", 4),), "f16", "sm_90a", "NVIDIA H200", "580.1", "v2"),
    ],
)
def test_times_hold_for_one_place_only(cache: TuningCache, other: Where) -> None:
    cache.store([row()])
    assert cache.fetch(other) == {}


def test_devices_with_rows_most_first(cache: TuningCache) -> None:
    h100 = Where("p1", (("n", 4),), "f16", "sm_90a", "NVIDIA H100", "580.1", "v1")
    older = Where("p1", (("n", 4),), "f16", "sm_80", "NVIDIA A100", "580.1", "v1")
    cache.store([row(), row(where=h100), row("c2", where=h100), row(where=older)])
    assert cache.devices(WHERE) == [("NVIDIA H100", "580.1"), ("NVIDIA H200", "580.1")]


def test_the_folder_is_for_its_owner(cache: TuningCache) -> None:
    assert cache.root.stat().st_mode & 0o777 == 0o700


def test_settled_says_how_thorough() -> None:
    assert Settled(48, 90.0).covers(Settled(48, 90.0))
    assert Settled(48, 0.0).covers(Settled(20, 900.0))
    assert not Settled(20, 90.0).covers(Settled(48, 90.0))
    assert not Settled(48, 10.0).covers(Settled(48, 90.0))
    assert not Settled(48, 10.0).covers(Settled(48, 0.0))


# --- several processes ------------------------------------------------------------------------------------------------
def add(root: Path, first: int) -> None:
    cache = TuningCache(root)
    for k in range(first, first + 15):
        cache.store([row(f"c{k}")])


def test_several_processes_write_at_a_time(cache: TuningCache) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=add, args=(cache.root, 15 * k)) for k in range(4)]
    for p in processes:
        p.start()
    for p in processes:
        p.join()
    assert [p.exitcode for p in processes] == [0] * 4
    assert len(cache.fetch(WHERE)) == 60


# --- what cannot be trusted -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "value",
    [
        "not json",
        "[1]",
        "{}",
        '{"us": -1.0, "low": -1.0, "high": 1.0, "samples": 3}',
        '{"us": 0, "low": 0, "high": 0, "samples": 3}',
        '{"us": NaN, "low": 1.0, "high": 2.0, "samples": 3}',
        '{"us": Infinity, "low": 1.0, "high": Infinity, "samples": 3}',
        '{"us": "1.0", "low": 1.0, "high": 2.0, "samples": 3}',
        '{"us": 5.0, "low": 6.0, "high": 7.0, "samples": 3}',
        '{"us": 5.0, "low": 4.0, "high": 7.0, "samples": -3}',
        '{"us": true, "low": true, "high": true, "samples": 3}',
        '{"us": null, "problem": 7}',
        '{"us": null}',
        "[" * 100000,
    ],
)
def test_a_poisoned_row_is_no_row(cache: TuningCache, value: str) -> None:
    cache.store([row(), row("c2")])
    sql(cache, "UPDATE tunings SET value = ? WHERE candidate = 'c1'", value)
    assert cache.fetch(WHERE) == {"c2": TIME}


def test_bytes_that_are_no_text_are_no_row(cache: TuningCache) -> None:
    cache.store([row(), row("c2")])
    sql(cache, "UPDATE tunings SET value = CAST(x'ff00fe' AS TEXT) WHERE candidate = 'c1'")
    sql(cache, "UPDATE tunings SET description = x'ff00fe' WHERE candidate = 'c2'")
    assert cache.fetch(WHERE) == {}


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\x55" * 5000])
def test_a_damaged_file_is_moved_aside(cache: TuningCache, content: bytes) -> None:
    cache.store([row()])
    cache.path.write_bytes(content)
    with pytest.warns(UserWarning, match="is damaged.*moved to"):
        assert cache.fetch(WHERE) == {}
    assert (cache.root / f"{FILE}.broken0").read_bytes() == content
    cache.store([row("c3")])
    assert cache.fetch(WHERE) == {"c3": TIME}


def test_a_file_with_another_table_is_moved_aside(cache: TuningCache) -> None:
    with sqlite3.connect(cache.path) as db:
        db.execute("CREATE TABLE tunings (x TEXT)")
    db.close()
    with pytest.warns(UserWarning, match="moved to"):
        cache.store([row()])
    assert cache.fetch(WHERE) == {"c1": TIME}


def test_a_file_of_a_later_version_is_left_alone(cache: TuningCache) -> None:
    cache.store([row()])
    sql(cache, "PRAGMA user_version = 99")
    before = cache.path.read_bytes()
    with pytest.warns(UserWarning, match="another version of mirage"):
        assert cache.fetch(WHERE) == {}
    assert cache.path.read_bytes() == before


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="writable by others"):
        cache = TuningCache(folder)
    cache.store([row()])
    assert list(folder.iterdir()) == []
    assert cache.fetch(WHERE) == {}


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="tuning cache"):
        cache = TuningCache(tmp_path / "file" / "tunings")
    assert cache.fetch(WHERE) == {}


def test_a_file_that_cannot_be_written_is_a_warning(cache: TuningCache) -> None:
    cache.path.mkdir()
    with pytest.warns(UserWarning, match="not used"):
        cache.store([row()])
    assert cache.path.is_dir()


@pytest.mark.parametrize(("code", "kept"), [(sqlite3.SQLITE_IOERR_RDLOCK, True), (sqlite3.SQLITE_IOERR_WRITE, False)])
def test_a_lock_that_is_not_given_back(
    cache: TuningCache, monkeypatch: pytest.MonkeyPatch, code: int, kept: bool
) -> None:
    """The transaction is over when SQLite gives its lock back: rows are kept, whatever becomes of the lock."""

    class Connection(sqlite3.Connection):
        def __exit__(self, *_: Any) -> Any:
            self.commit() if kept else self.rollback()
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = code
            raise error

    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
        assert cache.store([row()]) is kept
    assert len(cache.rows()) == kept


def test_another_process_that_holds_the_file_is_waited_for(cache: TuningCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store([row()])
    monkeypatch.setattr("mirage_cli.tuning.cache.BUSY_SECONDS", 0.05)
    cache = TuningCache(cache.root)
    holder = sqlite3.connect(cache.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    waits = list[float]()
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda path, timeout: (waits.append(timeout), connect(path, timeout=timeout))[1]
    )
    for _ in range(2):
        with pytest.warns(UserWarning, match="locked"):
            assert cache.fetch(WHERE) == {}
    holder.execute("COMMIT")
    holder.close()
    assert cache.fetch(WHERE) == {"c1": TIME}  # and it was not taken for damaged
    cache.fetch(WHERE)
    assert waits == [0.05, 0.0, 0.0, 0.05], "once, as long as it is held"


def test_a_file_system_without_locks_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "lockf", fail)
    with pytest.warns(UserWarning, match="its file system has no locks"):
        cache = TuningCache(tmp_path)
    assert (cache.store([row()]), cache.fetch(WHERE), list(tmp_path.iterdir())) == (False, {}, [])


# --- documents --------------------------------------------------------------------------------------------------------
def test_a_document_carries_everything(cache: TuningCache, tmp_path: Path) -> None:
    rows = [row(), row("c2", Measurement(None, problem="no")), row(SETTLED, Settled(48, 90.0))]
    cache.store(rows)
    other = TuningCache(tmp_path / "other")
    text = json.dumps(exported(cache.rows()))
    assert other.merge(imported(text, "f")) == (3, 0)
    assert other.rows() == cache.rows()
    assert other.merge(imported(text, "f")) == (0, 3)


@pytest.mark.parametrize(
    ("here", "there", "taken"),
    [
        (Measurement(9.0, 9.0, 9.0, 9), Measurement(5.0, 5.0, 5.0, 60), True),
        (Measurement(9.0, 9.0, 9.0, 60), Measurement(5.0, 5.0, 5.0, 9), False),
        (Measurement(None, problem="no"), Measurement(5.0, 5.0, 5.0, 9), True),
        (Measurement(9.0, 9.0, 9.0, 9), Measurement(None, problem="no"), False),
    ],
)
def test_merging_keeps_what_knows_more(cache: TuningCache, here: Measurement, there: Measurement, taken: bool) -> None:
    cache.store([row(value=here)])
    assert cache.merge([row(value=there)]) == ((1, 0) if taken else (0, 1))
    assert cache.fetch(WHERE) == {"c1": there if taken else here}


def test_nobody_else_writes_while_rows_are_compared(cache: TuningCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process brought in between would be replaced by what knows less."""
    cache.store([row(value=Measurement(9.0, 9.0, 9.0, 9))])
    known, better = tuning_cache._better, Measurement(5.0, 5.0, 5.0, 60)
    monkeypatch.setattr(tuning_cache, "BUSY_SECONDS", 0.0)

    def meanwhile(*given: Any) -> bool:
        with pytest.warns(UserWarning, match="database is locked"):
            assert not TuningCache(cache.root).store([row(value=better)])
        return known(*given)

    monkeypatch.setattr(tuning_cache, "_better", meanwhile)
    assert cache.merge([row()]) == (1, 0)
    assert cache.fetch(WHERE) == {"c1": TIME}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no", "expected tunings that .*: Expecting value"),
        ("[]", "Expected `object`, got `array`"),
        ('{"tunings": [], "schema_version": 9}', r"<= 1 - at `\$\.schema_version`, found 9"),
        ('{"tunings": [{}], "schema_version": 1}', "tuning 0: Object missing required field `program`"),
        ("[" * 100000, "lists in lists without an end"),
    ],
)
def test_documents_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        imported(text, "f")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("extents", {"n": "4"}),
        ("extents", {"n": -1}),
        ("extents", {"n" * 3999: 1}),
        ("program", 3),
        ("program", "x" * 5000),
        ("description", []),
        ("description", {"name": "x" * 4000}),
        ("device", "caf\udce9"),
        ("value", 3),
        ("value", {"us": 1.0}),
        ("value", {"us": None}),
        ("value", {"us": 1.0, "low": 2.0, "high": 3.0, "samples": 1}),
        ("value", {"us": 1.0, "low": 1.0, "high": 1e12, "samples": 1}),
        ("value", {"us": 1.0, "low": 1.0, "high": float("nan"), "samples": 1}),
    ],
)
def test_rows_that_are_none(field: str, value: Any) -> None:
    data = row().to_json()
    assert row_from_json(data) == row()
    with pytest.raises(ValueError, match=field):
        row_from_json(data | {field: value})


def test_clearing_removes_everything(cache: TuningCache) -> None:
    cache.store([row(), row("c2")])
    (cache.root / "of the user").write_text("")
    assert cache.clear() == 2
    assert sorted(os.listdir(cache.root)) == ["of the user", cache.path.name]
    assert cache.rows() == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.clear() == 0
