"""What killed and failing runs leave: found, removed or waited for, without a run being made."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.backends import shared_object
from mirage_cli.commands import failure
from mirage_cli.errors import Busy, UsageError
from mirage_cli.files import output, result_store, staging
from mirage_cli.files.output import MARK, claimed, replaced, steady
from mirage_cli.machine import user_folders
from mirage_cli.processes import isolation, programs
from mirage_cli.processes.isolation import Lost, Resident


def report(which: str) -> str:
    return json.dumps({"mirage": which, "files": {"more": ""}})


def written(folder: Path, which: str) -> Path:
    """An output folder of ours."""
    folder.mkdir()
    (folder / MARK).write_text(report(which))
    return folder


def found(folder: Path) -> str:
    """Which output folder it is."""
    return str(json.loads((folder / MARK).read_text())["mirage"])


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# --- the output folder ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:
        monkeypatch.setattr(output, "_exchanged", lambda *_: False)
    out = written(tmp_path / "out", "old")
    (out / "more").write_text("")
    with claimed(out), replaced(out) as draft:
        (draft / MARK).write_text(report("new"))
        assert found(out) == "old"
    assert (names(tmp_path), names(out), found(out)) == (["out"], [MARK], "new")


def test_a_folder_that_cannot_be_moved_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = written(tmp_path / "out", "old")
    rename = os.rename

    def fail(source: Any, target: Any) -> None:
        if Path(source).suffix == ".part":
            raise OSError(errno.EIO, "no")
        rename(source, target)

    monkeypatch.setattr(output, "_exchanged", lambda *_: False)
    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="no"), claimed(out), replaced(out) as draft:
        (draft / MARK).write_text(report("new"))
    assert (names(tmp_path), found(out)) == (["out"], "old")


def test_a_second_run_is_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with claimed(out):
        with pytest.raises(Busy, match="another run of mirage writes"), claimed(out):
            pass
        with claimed(tmp_path / "other"):
            pass
    with claimed(out):
        assert names(tmp_path) == [".out.lock"]
    assert names(tmp_path) == []


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / ".out.lock").write_text("")
    for name in (".out.abcdefgh.part", ".out.2.abcdefgh.part", ".out.part"):
        (tmp_path / name / "src").mkdir(parents=True)
    with claimed(out):
        pass
    assert names(tmp_path) == [".out.2.abcdefgh.part", ".out.part"], "those of another folder, and of nobody"


def test_a_run_that_was_killed_between_two_renames(tmp_path: Path) -> None:
    old = tmp_path / ".out.abcdefgh.old"
    old.mkdir()
    written(old / "previous", "old")
    with claimed(tmp_path / "out"):
        assert found(tmp_path / "out") == "old"
    assert names(tmp_path) == ["out"]


def test_without_locks_drafts_of_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", fail)
    (tmp_path / ".out.abcdefgh.part").mkdir()
    out = tmp_path / "out"
    with claimed(out), replaced(out) as draft:
        (draft / MARK).write_text(report("new"))
    assert names(tmp_path) == [".out.abcdefgh.part", "out"]


def test_a_place_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(UsageError, match=r"cannot be written to: Read-only file system"), claimed(tmp_path / "out"):
        pass


def test_folders_above_it_are_made_and_stay_where_something_was_written(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "out"
    with pytest.raises(ValueError, match="a run that fails"), claimed(out):
        raise ValueError("a run that fails")
    assert names(tmp_path) == []
    with claimed(out), replaced(out) as draft:
        (draft / MARK).write_text(report("new"))
    assert (names(out.parent), found(out)) == (["out"], "new")


def test_a_mount_point_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "out")
    with pytest.raises(UsageError, match="is a mount point") as told, claimed(tmp_path / "out"):
        pass
    assert told.value.hint.endswith("out/out")


def test_a_reader_notices_that_its_folder_was_replaced(tmp_path: Path) -> None:
    out = written(tmp_path / "out", "old")
    with steady(out):
        pass
    with pytest.raises(Busy, match="was replaced by another run"), steady(out):
        with claimed(out), replaced(out) as draft:
            (draft / MARK).write_text(report("new"))
        raise FileNotFoundError("what happens to readers then")
    with pytest.raises(ValueError, match="its own"), steady(out):
        raise ValueError("its own")


# --- files of the cache -----------------------------------------------------------------------------------------------
def test_files_appear_complete_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging.put(tmp_path / "a", b"1", b"2")
    staging.put(tmp_path / "a", b"3", keep=True)
    assert (tmp_path / "a").read_bytes() == b"12"

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="full"):
        staging.put(tmp_path / "a", b"4")
    assert (names(tmp_path), (tmp_path / "a").read_bytes()) == (["a"], b"12")


def test_files_on_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", fail)
    for content in (b"1", b"2"):
        staging.put(tmp_path / "a", content, keep=True)
    assert (names(tmp_path), (tmp_path / "a").read_bytes()) == (["a"], b"1")


def test_parts_that_nobody_works_on_are_swept(tmp_path: Path) -> None:
    (tmp_path / "dead.part").write_text("")
    (tmp_path / "mirage-dead.part" / "x").mkdir(parents=True)
    (tmp_path / "mine").write_text("")
    living = (tmp_path / "living.part").open("w")
    with living, staging.Scratch("mirage-", tmp_path) as scratch:
        fcntl.flock(living, fcntl.LOCK_EX)
        staging.sweep(tmp_path)
        assert names(tmp_path) == sorted(["living.part", "mine", scratch.name])
    staging.sweep(tmp_path)
    assert names(tmp_path) == ["mine"]


def test_a_place_for_temporary_files_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", none)
    monkeypatch.setattr(user_folders, "logs", lambda: None)
    with pytest.raises(UsageError, match="no folder for temporary files"):
        staging.Scratch("mirage-")
    assert failure.write_log(ValueError(), []) is None


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(*_: Any, **__: Any) -> str:
        raise RuntimeError("could not determine the home directory")

    for name in ("cache", "state", "log"):
        monkeypatch.setattr(f"platformdirs.user_{name}_dir", unknown)
    assert (user_folders.cache(), user_folders.state(), user_folders.logs(), result_store.secret()) == (None,) * 4
    for name in ("cache", "state", "log"):
        monkeypatch.setattr(f"platformdirs.user_{name}_dir", lambda *_, **__: "~/.cache/mirage")
    assert (user_folders.cache(), user_folders.state(), user_folders.logs()) == (None,) * 3, "a folder called ~"


# --- compilers --------------------------------------------------------------------------------------------------------
def shell(text: str, folder: Path, seconds: float = 60.0) -> programs.Outcome:
    return programs.run(["/bin/sh", "-c", text], folder, seconds)


def test_what_a_compiler_prints_is_kept_in_part(tmp_path: Path) -> None:
    found = shell("echo begin; head -c 9000000 /dev/zero | tr '\\0' x; echo; echo error: last; exit 3", tmp_path)
    assert found.problem == "/bin/sh ended with 3"
    assert found.output.startswith("begin\nxxx") and found.output.endswith("x\nerror: last\n")
    assert len(found.output) < 4 << 20
    assert "bytes left out" in found.output
    assert max(map(len, programs.error_lines(found.output))) < 400


def test_what_a_compiler_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    start = time.monotonic()
    found = shell("sleep 300 & echo $!; exit 0", tmp_path)
    assert (found.problem, time.monotonic() - start < 100) == (None, True)
    os.kill(int(found.output), 9)


def test_a_compiler_that_hangs_ends_with_its_children(tmp_path: Path) -> None:
    found = shell("sleep 300 & echo $!; exec sleep 300", tmp_path, 0.5)
    assert found.problem == "/bin/sh was stopped: it took more than 0.5 seconds"
    for _ in range(600):  # the child of a process that was killed is taken over, and ends
        try:
            state = Path(f"/proc/{int(found.output)}/stat").read_text().rpartition(") ")[2][0]
        except FileNotFoundError:
            break
        if state == "Z":
            break
        time.sleep(0.05)
    else:
        raise AssertionError("it goes on")


@pytest.mark.skipif(sys.platform != "linux", reason="knows ELF")
def test_libraries_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    assert "wrote no x.so" in str(shared_object.problem(path))
    path.write_bytes(b"garbage")
    assert "is no shared library (7 bytes)" in str(shared_object.problem(path))
    whole = Path(sys.modules["_ctypes"].__file__ or "").read_bytes()
    path.write_bytes(whole)
    assert shared_object.problem(path) is None
    path.write_bytes(whole[:-1])
    assert "is cut short" in str(shared_object.problem(path))


# --- processes --------------------------------------------------------------------------------------------------------
def full_disk(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "/somewhere")


def test_a_system_error_of_a_job_is_no_defect() -> None:
    ((_, found),) = isolation.each(full_disk, [(1,)], 1)
    assert found == Lost("/somewhere: No space left on device")


def sleeping() -> None:
    """Starts one more process, and does not end."""
    resident = Resident(time.sleep, (1000,), 9.0)
    resident.begin()
    assert resident._worker is not None
    isolation.doing(f"{os.getpid()} {resident._worker.process.pid}")
    time.sleep(1000)


PARENT = """
import time
from mirage_cli.processes import isolation
from tests.faults.test_leftovers import sleeping
busy = isolation._Worker(0)
busy.call(sleeping, (), 0)
isolation._answers([busy])
idle = isolation.Pool(2)
idle.map(pow, [(1, 1), (2, 2)])
print(busy._doing, *(w.process.pid for w in idle._idle), flush=True)
time.sleep(1000)
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    yield child
    child.kill()
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def test_workers_end_with_their_parent(parent: subprocess.Popen[str]) -> None:
    """Also in the middle of a call that takes long, and with those that they have started."""
    assert parent.stdout is not None
    workers = [int(n) for n in parent.stdout.readline().split()]
    assert len(set(workers)) == 4
    parent.kill()
    deadline = time.monotonic() + 100
    while left := [n for n in workers if alive(n)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False
