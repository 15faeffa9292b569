"""Calls in processes of their own: what one of them does costs its own result only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.errors import Refused
from mirage_cli.processes.isolation import Lost, Pool, Resident, each


def work(x: int) -> int:
    match x:
        case 1:
            raise Refused("not this one")
        case 2:
            raise ValueError("no")
        case 3:
            os.kill(os.getpid(), signal.SIGKILL)
        case 4:
            sys.exit(7)
        case 5:
            bytearray(1 << 40)
    return x * x


def results(numbers: list[int], workers: int, memory: int = 0) -> dict[int, Any]:
    return {numbers[k]: r for k, r in each(work, [(x,) for x in numbers], workers, memory)}


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_are_results(workers: int) -> None:
    assert results([0, 1, 2, 6], workers) == {
        0: 0,
        1: Lost("not this one"),
        2: Lost("internal error ValueError: no"),
        6: 36,
    }


def test_a_process_that_dies_loses_its_own_result_only() -> None:
    assert results([3, 0, 4, 6, 7], 2) == {
        3: Lost("its process ended with SIGKILL (out of memory?)"),
        0: 0,
        4: Lost("its process ended with exit code 7"),
        6: 36,
        7: 49,
    }


def test_memory_is_limited_in_a_process_of_its_own() -> None:
    found = results([5, 6], 1, 8 << 30)
    assert found == {5: Lost("it needs more memory than --max-memory allows"), 6: 36}


def test_no_jobs() -> None:
    assert results([], 2) == {}


class Counter:
    """What lives in a process of its own."""

    def __init__(self, start: int) -> None:
        if start < 0:
            raise Refused("a counter starts at 0")
        self.count = start

    def add(self, n: int) -> int:
        self.count += n
        return self.count

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def wait(self) -> None:
        time.sleep(600)

    def fail(self) -> None:
        raise Refused("not this one")


def test_a_resident_keeps_its_state_until_its_process_ends() -> None:
    resident = Resident(Counter, (3,), 60.0)
    resident.begin()
    try:
        assert [resident.call("add", (1,), 60.0), resident.call("add", (1,), 60.0)] == [4, 5]
        assert resident.call("fail", (), 60.0) == Lost("not this one")
        assert resident.call("add", (1,), 60.0) == 6
        assert resident.call("end", (), 60.0) == Lost("its process ended with SIGKILL (out of memory?)")
        assert resident.call("add", (1,), 60.0) == 4
        assert resident.call("wait", (), 0.2) == Lost("it took longer than 0.2 s")
        assert resident.call("add", (2,), 60.0) == 5
    finally:
        resident.close()
    assert resident.call("add", (1,), 60.0) == 4
    resident.close()
    resident.close()


def test_a_resident_that_cannot_be_made() -> None:
    resident = Resident(Counter, (-1,), 60.0)
    assert resident.call("add", (1,), 60.0) == Lost("a counter starts at 0")
    assert resident.call("add", (1,), 60.0) == Lost("a counter starts at 0")


SCRIPT = """
import math
from mirage_cli.processes.isolation import each
print("begins")
print(sorted(each(math.factorial, [(3,), (4,)], 2)))
"""
GUARDED = """
from mirage_cli.processes.isolation import each
def twice(x):
    return 2 * x
if __name__ == "__main__":
    print(sorted(each(twice, [(3,), (4,)], 2)))
"""


@pytest.mark.parametrize(
    ("script", "printed"), [(SCRIPT, ["begins", "[(0, 6), (1, 24)]"]), (GUARDED, ["[(0, 6), (1, 8)]"])]
)
def test_scripts_run_once(tmp_path: Path, script: str, printed: list[str]) -> None:
    """Also those that do not ask for `__name__ == "__main__"`, unless the function lives in them."""
    file = tmp_path / "script.py"
    file.write_text(script)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.splitlines() == printed, done.stderr


def counting(n: int, tell: Any) -> int:
    """A call that sends messages before its result."""
    for k in range(n):
        tell(k)
    if n == 3:
        raise Refused("three")
    return n


@pytest.mark.parametrize("workers", [1, 2])
def test_calls_send_messages(workers: int) -> None:
    heard: dict[int, list[int]] = {}
    jobs = [(2,), (0,), (3,)]
    results = dict(each(counting, jobs, workers, told=lambda k, message: heard.setdefault(k, []).append(message)))
    assert heard == {0: [0, 1], 2: [0, 1, 2]}
    assert results == {0: 2, 1: 0, 2: Lost("three")}


# --- pools ------------------------------------------------------------------------------------------------------------
def test_results_in_the_order_of_the_calls() -> None:
    pool, jobs = Pool(2), [(n, 2) for n in range(9)]
    assert pool.map(pow, jobs) == Pool(1).map(pow, jobs) == [n * n for n in range(9)]
    first = {w.process.pid for w in pool._idle}
    assert pool.map(divmod, [(7, 2), (9, 4)]) == [(3, 1), (2, 1)]
    assert {w.process.pid for w in pool._idle} == first and len(first) == 2


def test_errors_are_those_of_the_call() -> None:
    with pytest.raises(ZeroDivisionError):
        Pool(2).map(divmod, [(1, 1), (1, 0)])


def in_children_only(parent: int, n: int) -> int:
    if os.getpid() != parent and n == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


def test_what_a_dead_process_does_not_deliver_is_computed_here() -> None:
    pool, heard = Pool(2), list[int]()
    assert pool.map(in_children_only, [(os.getpid(), n) for n in range(5)], heard.append) == [0, 1, 2, 3, 4]
    assert sorted(heard) == [0, 1, 2, 3, 4] and heard[-1] == 3
    for w in pool._idle:
        os.kill(w.process.pid, signal.SIGKILL)
        w.process.wait()
    assert dict(pool.each(pow, [(n, 2) for n in range(5)])) == {n: n * n for n in range(5)}


def test_processes_end_with_their_owner() -> None:
    pool = Pool(2)
    pool.map(pow, [(1, 1), (2, 2)])
    processes = [w.process for w in pool._idle]
    del pool
    assert [p.returncode for p in processes] == [-signal.SIGKILL] * 2


# --- what a process has -----------------------------------------------------------------------------------------------
def given() -> tuple[str, list[str]]:
    """What there is to read, and the kinds of open files."""
    print("of Python", flush=True)
    os.write(1, b"of C\n")
    files = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the folder's own
            files.add(os.readlink(f"/proc/self/fd/{number}").partition(":")[0])
    return sys.stdin.read(), sorted(files)


def given_below() -> Any:
    """The same of a process that a process starts."""
    return dict(each(given, [()], 1, apart=True))[0]


STREAMS = """
import json, sys
from mirage_cli.processes.isolation import each
from tests.processes.test_isolation import given, given_below
with open(sys.argv[1]) as own, open(sys.argv[2], "w") as out:
    json.dump([dict(each(f, [()], 1, apart=True))[0] for f in (given, given_below)], out)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("closed", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_of_its_parents_files_a_process_has_standard_error_only(tmp_path: Path, closed: tuple[int, ...]) -> None:
    """Which all that it prints goes to; also where its parent's streams are closed."""
    out = tmp_path / "found.json"
    redirected = " ".join(f"{n}>&-" for n in closed)
    command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-c", STREAMS, __file__, str(out)]
    done = subprocess.run(command, input=b"private", capture_output=True, check=False, timeout=300)
    shown = b"" if 2 in closed else b"of Python\nof C\n" * 2
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", shown)
    assert json.loads(out.read_text()) == [["", ["/dev/null", *(() if 2 in closed else ("pipe",)), "socket"]]] * 2
