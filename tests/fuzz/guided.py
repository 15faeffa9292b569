"""Coverage-guided fuzzing of all readers with atheris: `python -m tests.fuzz.guided --seconds 3600` (`make fuzz`).

Workers, one process each, share the time of the cores: every target gets its share. Inputs that reach new code are kept in
WORK/corpus/TARGET and are where the next run goes on. A fault (anything but a clean error, also too slow and too much memory)
is written to WORK/faults/TARGET; put its file into tests/fuzz/corpus/TARGET, where a test reads it, and mend the reader.
Prints executions, coverage and faults for each target; exit code 1 with a fault.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

INPUT_SECONDS = 10.0  #: of processor time, for one input
INPUT_BYTES = 2 << 30  #: beyond what the process has
BEGUN = time.monotonic()
LATE = 5  #: seconds that a process may take beyond its time, which libFuzzer looks at between inputs only
HANG_SECONDS = 60  #: after which libFuzzer ends a process that hangs outside of Python
LONGEST = 1 << 17  #: bytes of an input
FRAMES = 6  #: of a fault's traceback that are printed


@dataclass
class Count:
    """What a target's workers did."""

    workers: int = 0
    seconds: float = 0.0
    runs: int = 0
    read: int = 0
    before: int = 0
    after: int = 0
    inputs: int = 0
    faults: list[str] = field(default_factory=list)


# ---- a worker --------------------------------------------------------------------------------------------------------


def work(name: str, seconds: int, number: int, folder: Path, out: Path | None) -> None:
    """Fuzz one target in this process, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["mirage_cli"]):
        from tests.fuzz import limits, targets  # the readers come with them
    target = targets.BY_NAME[name]
    place = targets.Place(Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-", dir=folder)), out)
    stock = folder / "corpus" / name
    faults = folder / "faults" / name
    for path in (stock, faults):
        path.mkdir(parents=True, exist_ok=True)
    for data in (*target.seeds(place), *(p.read_bytes() for p in targets.kept(target))):
        (stock / hashlib.sha1(data).hexdigest()).write_bytes(data)
    told = folder / f"{name}-{number}.json"
    counts = {"runs": 0, "read": 0}
    seen: set[str] = set()
    parent, begun = os.getppid(), time.process_time()

    def one(data: bytes) -> None:
        counts["runs"] += 1
        try:
            with limits.time(INPUT_SECONDS), limits.memory(INPUT_BYTES):
                counts["read"] += targets.attempt(target, data, place)
        except (Exception, limits.TooSlow) as error:
            where = _where(error)
            if where not in seen:
                seen.add(where)
                path = faults / hashlib.sha256(data).hexdigest()[:16]
                path.write_bytes(data)
                _put(path.with_suffix(".txt"), where + "\n" + traceback.format_exc())
        if counts["runs"] % 64 == 0:
            _put(told, json.dumps(counts | {"seconds": time.process_time() - begun}))
            if os.getppid() != parent:
                os._exit(1)

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        rng = Random(seed)
        if rng.random() < 0.1:
            return bytes(atheris.Mutate(data, size))
        return target.mutate(rng, data)[:size]

    left = max(1, seconds - int(time.monotonic() - BEGUN))  # what is imported is instrumented, which takes a while
    arguments = [
        *("fuzz", str(stock), f"-max_total_time={left}", f"-seed={number + 1}", f"-timeout={HANG_SECONDS}"),
        *(f"-max_len={LONGEST}", "-rss_limit_mb=8192", "-print_final_stats=1", f"-artifact_prefix={faults}/"),
        *("-reload=10", "-len_control=0", "-mutate_depth=2"),
    ]
    atheris.Setup(arguments, one, custom_mutator=mutate)
    atheris.Fuzz()


def _put(path: Path, text: str) -> None:
    """Write a file, all or nothing: this process may be ended at any time."""
    draft = path.with_suffix(".part")
    draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    draft.replace(path)


def _where(error: BaseException) -> str:
    """The error's type and the innermost lines of its traceback: what tells faults apart."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "mirage_cli" in f.filename or "fuzz" in f.filename]
    inner = ours[-1] if ours else frames[-1]
    return f"{type(error).__name__} at {Path(inner.filename).name}:{inner.lineno}"


@dataclass
class Worker:
    """A process for one target, and what its job has to do afterwards."""

    name: str
    number: int
    allowed: int
    row: list[tuple[str, int]]
    process: subprocess.Popen[str]
    begun: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.begun


# ---- all workers -----------------------------------------------------------------------------------------------------


def shared(names: Sequence[str], shares: Sequence[int], seconds: float, jobs: int) -> list[list[tuple[str, int]]]:
    """(target, seconds) of the processes that each of `jobs` runs one behind another: the targets' parts of `seconds`, laid
    end to end and cut where a job is full, so that all jobs end together (McNaughton's rule)."""
    length, begin = seconds / jobs, 0.0
    rows: list[list[tuple[str, int]]] = [[] for _ in range(jobs)]
    for name, share in zip(names, shares, strict=True):
        end = begin + seconds * share / sum(shares)
        for number, row in enumerate(rows):
            part = min(end, (number + 1) * length) - max(begin, number * length)
            if part > 1e-6:
                row.append((name, math.ceil(part - 1e-6)))
        begin = end
    return rows


def run(
    names: Sequence[str], shares: Sequence[int], seconds: float, jobs: int, folder: Path, out: Path
) -> dict[str, Count]:
    """Run workers, `jobs` at a time; what became of each target."""
    rows = shared(names, shares, seconds, jobs)
    counts = {name: Count() for name in names}
    running: list[Worker] = []
    number = 0
    stopped = threading.Event()
    for signal_ in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_, lambda *_: stopped.set())
    while (any(rows) and not stopped.is_set()) or running:
        for row in rows:
            if row and not stopped.is_set() and all(worker.row is not row for worker in running):
                name, allowed = row.pop(0)
                running.append(Worker(name, number, allowed, row, _started(name, allowed, number, folder, out)))
                number += 1
        stopped.wait(0.2)
        for worker in list(running):
            late = stopped.is_set() or worker.spent > worker.allowed + LATE
            if late:
                worker.process.kill()
                worker.process.wait()
            if worker.process.poll() is not None:
                running.remove(worker)
                left = round(worker.allowed - worker.spent)
                _counted(counts[worker.name], folder, worker, late)
                if worker.process.returncode not in (0, 1) and left > LATE:  # a crash: on with what is left
                    worker.row.insert(0, (worker.name, left))
    for name, count in counts.items():
        count.inputs = len(list((folder / "corpus" / name).glob("*")))
        count.faults += sorted(
            {p.read_text(encoding="utf-8").splitlines()[0] for p in (folder / "faults" / name).glob("*.txt")}
        )
    return counts


def _started(name: str, seconds: int, number: int, folder: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.fuzz.guided", "--worker", name, "--seconds", str(seconds)]
    with (folder / f"{name}-{number}.log").open("w") as log:
        return subprocess.Popen(
            [*command, "--number", str(number), "--work", str(folder), "--out", str(out)],
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
            process_group=0,  # what interrupts this process is not for them
        )


def _counted(count: Count, folder: Path, worker: Worker, stopped: bool = False) -> None:
    """Add what a worker wrote."""
    name, number, status = worker.name, worker.number, 0 if stopped else worker.process.returncode
    text = (folder / f"{name}-{number}.log").read_text(encoding="utf-8", errors="replace")
    covered = [int(n) for n in re.findall(r"\bcov: (\d+)", text)]
    began = re.search(r"INITED cov: (\d+)", text)
    count.workers += 1
    if began is not None:
        count.before = int(began[1]) if not count.before else min(count.before, int(began[1]))
    count.after = max([count.after, *covered])
    told = folder / f"{name}-{number}.json"
    if told.exists():
        found = json.loads(told.read_text(encoding="utf-8"))
        count.runs += found["runs"]
        count.read += found["read"]
        count.seconds += found["seconds"]
    print(f"{name} {number}: {count.runs} inputs, {count.after} branches", flush=True)
    if status:
        count.faults.append(f"process ended with {status}: {_last(text)}")


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if "ERROR" in line or "Error" in line or "SUMMARY" in line]
    return "; ".join(lines[-2:]) or "; ".join(text.splitlines()[-2:])


def table(counts: dict[str, Count]) -> Iterator[str]:
    """A row for each target, in Markdown."""
    yield "| reader | processor minutes | inputs | read without an error | branches before | after | kept inputs | faults |"
    yield "|---|---|---|---|---|---|---|---|"
    total = Count()
    for name, c in counts.items():
        share = f"{100 * c.read / max(1, c.runs):.0f} %"
        cells = [name, f"{c.seconds / 60:.1f}", f"{c.runs:,}", share, str(c.before), str(c.after), str(c.inputs)]
        yield f"| {' | '.join([*cells, str(len(c.faults))])} |"
        total.seconds, total.runs, total.read = total.seconds + c.seconds, total.runs + c.runs, total.read + c.read
        total.inputs, total.faults = total.inputs + c.inputs, total.faults + c.faults
    share = f"{100 * total.read / max(1, total.runs):.0f} %"
    yield f"| all | {total.seconds / 60:.1f} | {total.runs:,} | {share} | | | {total.inputs} | {len(total.faults)} |"


def main() -> int:
    """Fuzz; 1 with a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="of all cores together [600]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time [cores]")
    parser.add_argument("--target", action="append", help="a reader by its name [all]")
    parser.add_argument("--work", type=Path, default=Path("out/fuzz"), help="a folder [out/fuzz]")
    parser.add_argument("--out", type=Path, help="an output folder of mirage optimize [made from a sample]")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.worker:
        work(given.worker, int(given.seconds), given.number, given.work.resolve(), given.out)
        return 0
    from tests.fuzz import targets

    out = given.out or _output(targets, given.work)
    chosen = [t for t in targets.TARGETS if not given.target or t.name in given.target]
    shutil.rmtree(given.work / "faults", ignore_errors=True)
    counts = run([t.name for t in chosen], [t.share for t in chosen], given.seconds, given.jobs, given.work, out)
    print("\n".join(table(counts)))
    faults = [(name, fault) for name, c in counts.items() for fault in c.faults]
    for name, fault in faults:
        print(f"FAULT {name}: {fault}")
    for path in sorted(given.work.glob("faults/*/*.txt")):
        print(f"\n{path}\n" + "\n".join(path.read_text(encoding="utf-8").splitlines()[-2 * FRAMES :]))
    return int(bool(faults))


def _output(targets: Any, folder: Path) -> Path:
    """An output folder of a sample, made once."""
    from mirage_cli.python import api

    made = folder / "output"
    if not made.exists():
        model = targets.models.ROOT / "samples" / "operators" / f"{targets.SAMPLE}.onnx"
        api.optimize(str(model), str(made), target=["cpu"], force=True)
    return made.resolve()


if __name__ == "__main__":
    sys.exit(main())
