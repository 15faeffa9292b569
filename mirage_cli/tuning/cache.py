"""The tuning cache: what candidates took on which GPU, in an SQLite file that several processes may use at a time.

A row belongs to one candidate (a kernel graph with its schedules) of one program at one size on one device, driver and
version of this program's kernels. Everything that is read is validated, and whatever it says, a candidate is proved and
compared with float64 again before it is used: a wrong row can cost speed, never correctness. Rollback journals and a
busy timeout make the file safe for several processes, also on file systems that WAL does not work on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated as A
from typing import Any, TypeAlias, TypeVar

from msgspec import Meta

from mirage_cli import __version__
from mirage_cli.errors import ModelError, OutOfResources
from mirage_cli.files import codec, staging

FILE = "tunings.sqlite3"
SCHEMA_VERSION = 1
BUSY_SECONDS = 30.0  #: how long to wait for another process
SETTLED = "*"  #: in place of a candidate: the row that says how thoroughly a program has been tuned
COLUMNS = ("program", "extents", "dtype", "architecture", "device", "driver", "version", "candidate")
LONGEST = 4000  #: characters of a text that is taken from a file
_TABLE = f"""CREATE TABLE IF NOT EXISTS tunings (
  {", ".join(f"{c} TEXT NOT NULL" for c in COLUMNS)}, description TEXT NOT NULL, value TEXT NOT NULL,
  PRIMARY KEY ({", ".join(COLUMNS)})) WITHOUT ROWID"""
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA)
_TAKEN = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
)
_OVER = (sqlite3.SQLITE_IOERR_RDLOCK, sqlite3.SQLITE_IOERR_UNLOCK)  #: a lock is not given back, what it was for is done
#: JSON may hold halves of characters, which no file can
Text = A[str, Meta(max_length=LONGEST, pattern="^[^\ud800-\udfff]*$")]
Whole = A[int, Meta(ge=0, lt=1 << 62)]
Number = A[float, Meta(ge=0, lt=1e12)]
T = TypeVar("T")
Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Where:
    """The place that a measurement holds for: a program (by its hash) with what its symbols were, its element types, the GPU's
    architecture, name and driver, and the version of the kernels' templates."""

    program: str
    extents: tuple[tuple[str, int], ...]
    dtype: str
    architecture: str
    device: str
    driver: str
    version: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The values of `COLUMNS`, but for the candidate."""
        sizes = json.dumps(dict(self.extents), sort_keys=True)
        return (self.program, sizes, self.dtype, self.architecture, self.device, self.driver, self.version)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The outcome for a candidate: its median in microseconds with the quartiles and the number of samples, or the
    problem for which there is none."""

    us: Number | None
    low: Number = 0.0
    high: Number = 0.0
    samples: Whole = 0
    problem: str = ""

    def to_json(self) -> Json:
        """The column `value`."""
        if self.us is None:
            return {"us": None, "problem": self.problem}
        return {"us": self.us, "low": self.low, "high": self.high, "samples": self.samples}


@dataclass(frozen=True, slots=True)
class Settled:
    """The extent of a program's tuning: candidates that were asked for, seconds that were allowed (0: no limit)."""

    candidates: Whole
    seconds: Number

    def to_json(self) -> Json:
        """The column `value`."""
        return asdict(self)

    def covers(self, other: Settled) -> bool:
        """True if tuning as thorough as `other` has been done."""
        patient = not self.seconds or (0 < other.seconds <= self.seconds)
        return self.candidates >= other.candidates and patient


@dataclass(frozen=True, slots=True)
class Row:
    """One row: what it holds for, the candidate's hash, what is said of the candidate to people, and the value."""

    columns: tuple[str, ...]
    candidate: str
    description: Json
    value: Measurement | Settled

    def to_json(self) -> Json:
        """The form of `mirage cache list --json` and of an exported file."""
        key = dict(zip(COLUMNS, (*self.columns, self.candidate), strict=True))
        value = self.value.to_json()
        return key | {"extents": json.loads(self.columns[1]), "description": self.description, "value": value}


# ---- reading what may be anything ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """A row as `Row.to_json` writes it."""

    program: Text
    extents: dict[Text, Whole]
    dtype: Text
    architecture: Text
    device: Text
    driver: Text
    version: Text
    candidate: Text
    description: Json


@dataclass(frozen=True, slots=True)
class _Timed(_Row):
    value: Measurement


@dataclass(frozen=True, slots=True)
class _Settled(_Row):
    value: Settled


def row_from_json(data: Any) -> Row:
    """The inverse of `Row.to_json`. Raises ValueError, naming the field, for what is not well-formed."""
    settled = isinstance(data, dict) and data.get("candidate") == SETTLED
    row: _Settled | _Timed = codec.checked(data, _Settled) if settled else codec.checked(data, _Timed)
    sizes = json.dumps(row.extents, sort_keys=True)
    if max(len(sizes), len(json.dumps(row.description))) > LONGEST:
        raise ValueError(f"Expected at most {LONGEST} characters - at `$.extents` and at `$.description`")
    columns = (row.program, sizes, row.dtype, row.architecture, row.device, row.driver, row.version)
    value = row.value if isinstance(row, _Settled) else consistent(row.value)
    return Row(columns, row.candidate, row.description, value)


def consistent(m: Measurement) -> Measurement:
    """The measurement as it was read, but only a problem where there is no time. Raises ValueError where there is neither."""
    if m.us is None and m.problem:
        return Measurement(None, problem=m.problem[:LONGEST])
    if m.us is None or not 0 < m.low <= m.us <= m.high:
        raise ValueError(
            f"Expected a problem, or 0 < low <= us <= high - at `$.value`, found {m.low}, {m.us}, {m.high}"
        )
    return replace(m, problem="")


# ---- the file --------------------------------------------------------------------------------------------------------


class TuningCache:
    """The tunings in a folder, which is made with access for its owner alone. A folder that belongs to or is writable by
    others is not used, nor is one on a file system without locks. Trouble with the file is a warning: a cache that cannot be
    read holds nothing. `problem` says why it is not used, if so."""

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, root / FILE
        self._patience = BUSY_SECONDS
        self.problem = _problem(root)
        if self.problem:
            _warn(f"tuning cache {root}: {self.problem}: not used")

    @property
    def usable(self) -> bool:
        """True if anything is read or kept here."""
        return not self.problem

    def fetch(self, where: Where) -> dict[str, Measurement | Settled]:
        """The valid rows for a program by candidate, `SETTLED` among them."""
        condition = " AND ".join(f"{c} = ?" for c in COLUMNS[:-1])
        return {r.candidate: r.value for r in self._read(f"WHERE {condition}", where.columns)}

    def devices(self, where: Where) -> list[tuple[str, str]]:
        """(device, driver) pairs that have rows for a program, whatever device and driver `where` names; those with the
        most rows first."""
        asked = {c: v for c, v in zip(COLUMNS, where.columns, strict=False) if c not in ("device", "driver")}
        rows = self._read(f"WHERE {' AND '.join(f'{c} = ?' for c in asked)}", tuple(asked.values()))
        counts: dict[tuple[str, str], int] = {}
        for row in rows:
            pair = (row.columns[COLUMNS.index("device")], row.columns[COLUMNS.index("driver")])
            counts[pair] = counts.get(pair, 0) + 1
        return sorted(counts, key=lambda pair: (-counts[pair], pair))

    def rows(self) -> list[Row]:
        """All valid rows, in the order of their keys."""
        return self._read("", ())

    def store(self, rows: Iterable[Row]) -> bool:
        """Add rows, all or none; they replace those with the same key. Whether they are kept now."""
        values = [_stored(r) for r in rows]

        def write(db: sqlite3.Connection) -> bool:
            _insert(db, values)
            return True

        return self._with(write, False)

    def merge(self, rows: Iterable[Row]) -> tuple[int, int]:
        """Add rows from elsewhere: (how many were taken, how many left). A row that is there is replaced only by one that
        knows more: a time where there was none, or a time of more samples. Raises OutOfResources where they cannot be kept."""
        brought = list(rows)

        def write(db: sqlite3.Connection) -> tuple[int, int]:
            db.execute("BEGIN IMMEDIATE")  # nobody adds rows between the two
            known = {(r.columns, r.candidate): r.value for r in _selected(db)}
            taken = {}
            for row in brought:
                key = (row.columns, row.candidate)
                if _better(row.value, known.get(key)):
                    known[key], taken[key] = row.value, row
            _insert(db, map(_stored, taken.values()))
            return len(taken), len(brought) - len(taken)

        counts = self._with(write, None)
        if counts is None:
            raise OutOfResources(f"{self.path} cannot be written to", "make room there, or name a folder with --cache")
        return counts

    def clear(self) -> int:
        """Remove everything; how many rows there were. The file stays: another process may have it open."""
        if not self.usable:
            return 0
        for path in self.root.glob(f"{FILE}.broken*"):
            path.unlink(missing_ok=True)
        if not self.path.exists():
            return 0
        try:
            with contextlib.closing(self._open()) as db:
                with db:
                    count = db.execute("DELETE FROM tunings").rowcount
                db.execute("VACUUM")
                return count
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if _code(error) in _TAKEN:
                _warn(f"tuning cache {self.path}: {error}; not removed")
                return 0
            for path in (self.path, *self.root.glob(f"{FILE}-*")):
                path.unlink(missing_ok=True)
            return 0

    def _read(self, condition: str, values: Sequence[str]) -> list[Row]:
        return self._with(lambda db: _selected(db, condition, values), []) if self.path.exists() else []

    def _with(self, action: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """The result of an action on the file; a corrupt one is moved aside and begun anew."""
        if not self.usable:
            return otherwise
        for last in (False, True):
            results: list[T] = []
            try:
                with contextlib.closing(self._open()) as db, db:
                    results.append(action(db))
                self._patience = BUSY_SECONDS
                return results[0]
            except (sqlite3.Error, UnicodeDecodeError) as error:
                if results and getattr(error, "sqlite_errorcode", None) in _OVER:
                    return results[0]
                if last or _code(error) not in _CORRUPT:
                    if _code(error) == sqlite3.SQLITE_BUSY:
                        self._patience = 0.0  # not as long for each row, while that process goes on
                    _warn(f"tuning cache {self.path}: {error}; not used")
                    return otherwise
                self._move_aside(str(error))
        return otherwise

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=self._patience)
        db.text_factory = lambda data: data.decode("utf-8", "replace")
        try:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA_VERSION):
                raise sqlite3.OperationalError(
                    f"made by another version of mirage ({version}, ours is {SCHEMA_VERSION})"
                )
            if version == 0:
                db.execute(_TABLE)
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        except BaseException:
            db.close()
            raise
        return db

    def _move_aside(self, reason: str) -> None:
        """Rename a corrupt file, unless another process has done so meanwhile."""
        with contextlib.suppress(OSError), (self.root / f"{FILE}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _corrupt(self.path):
                return
            aside = next(p for k in range(1 << 20) if not (p := self.root / f"{FILE}.broken{k}").exists())
            os.replace(self.path, aside)
            for extra in self.root.glob(f"{FILE}-*"):
                extra.unlink(missing_ok=True)
            _warn(f"tuning cache {self.path} is damaged ({reason}): moved to {aside.name}, begun anew")


def _selected(db: sqlite3.Connection, condition: str = "", values: Sequence[str] = ()) -> list[Row]:
    """The valid rows that fulfil a condition, in the order of their keys."""
    names = ", ".join((*COLUMNS, "description", "value"))
    rows = db.execute(f"SELECT {names} FROM tunings {condition} ORDER BY {', '.join(COLUMNS)}", tuple(values))
    return [row for fields in rows if (row := _row(fields)) is not None]


def _insert(db: sqlite3.Connection, rows: Iterable[tuple[str, ...]]) -> None:
    db.executemany(f"INSERT OR REPLACE INTO tunings VALUES ({', '.join('?' * (len(COLUMNS) + 2))})", rows)


def _problem(root: Path) -> str:
    """Why a folder, made where it is missing, cannot be used; nothing where it can."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = root.stat()
    except OSError as error:
        return str(error.strerror or error)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        return "it belongs to or is writable by others"
    return "" if staging.locks(root) else "its file system has no locks, which keep processes apart"


def _row(fields: Sequence[Any]) -> Row | None:
    """A row of the file; None for one that is not well-formed."""
    try:
        data = dict(zip((*COLUMNS, "description", "value"), fields, strict=True))
        for name in ("extents", "description", "value"):
            data[name] = codec.decoded(data[name])
        return row_from_json(data)
    except (ValueError, TypeError):
        return None


def _stored(row: Row) -> tuple[str, ...]:
    value = json.dumps(row.value.to_json(), sort_keys=True)
    return (*row.columns, row.candidate, json.dumps(row.description, sort_keys=True), value)


def _better(new: Measurement | Settled, old: Measurement | Settled | None) -> bool:
    if isinstance(new, Settled):
        return not isinstance(old, Settled) or not old.covers(new)
    if not isinstance(old, Measurement):
        return True
    return new.us is not None and (old.us is None or new.samples > old.samples)


def _code(error: Exception) -> int:
    """The primary code of an error of SQLite's; names in a damaged file need not be UTF-8."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)) & 0xFF


def _corrupt(path: Path) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as db:
            db.execute(f"SELECT {', '.join(COLUMNS)}, description, value FROM tunings LIMIT 1").fetchall()
            return bool(db.execute("PRAGMA quick_check").fetchone()[0] != "ok")
    except (sqlite3.Error, UnicodeDecodeError):
        return path.exists()


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)


# ---- files to share --------------------------------------------------------------------------------------------------


def exported(rows: Sequence[Row]) -> Json:
    """The document of `mirage cache export`."""
    return {"mirage": __version__, "schema_version": SCHEMA_VERSION, "tunings": [r.to_json() for r in rows]}


@dataclass(frozen=True, slots=True)
class _Exported:
    schema_version: A[int, Meta(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]
    tunings: list[Any]


def imported(text: str, name: str) -> list[Row]:
    """The rows of an exported document called `name`. Raises ModelError, naming what is wrong."""
    where, rows = "", list[Row]()
    try:
        for k, row in enumerate(codec.checked(codec.decoded(text), _Exported).tunings):
            where = f"tuning {k}: "
            rows.append(row_from_json(row))
    except ValueError as error:
        raise ModelError(f"{name}: expected tunings that mirage cache export wrote: {where}{error}") from None
    return rows
