"""Kill runs of `optimize` at random moments and look at what they leave.

    python -m tests.faults.kills [--count 100] [--seed 0] [--workers 2] [--model FILE] [--verify] [--gpu N]

A run is stopped at a moment that is drawn evenly from the phases of a run and then from its time, over an existing output
folder and over none: its whole process group by SIGKILL, its first process only, one of its workers only, or its process
group by SIGTERM or SIGINT. Afterwards the folder is absent, the old one or the new one; a run that was asked to stop ends
with 130 and leaves nothing beside the folder; one that lost a worker goes on to the end. No process stays. The next run
completes, writes the bytes of an undisturbed run, takes every plan that the stopped one had made from the cache, and leaves
nothing behind.

With --gpu runs measure candidates there, and are killed while they do: two of three when some candidates have a time and
others have none. What such a run writes depends on times: a folder is judged by its report, and the next run has to take
every time that the killed one had kept.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mirage_cli.optimization.environment import OBJECTS, RESULTS, TUNINGS
from mirage_cli.tuning.cache import FILE, SETTLED, Measurement, TuningCache
from tests.faults.state import complete, files, litter, standing

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "samples" / "operators" / "mlp_fp32.onnx"
GPU_MODEL = ROOT / "samples" / "operators" / "rmsnorm_linear_fp16.onnx"
TUNING = ("tune", "measure")  #: stages of a run that measures on a GPU
TRIED = 8  #: candidates
KINDS = ("group", "parent", "worker", "SIGTERM", "SIGINT")
MARK = "MIRAGE_KILLS"  #: a variable that all processes of a run have
PLANNED = re.compile(r"search and prove: \S+ x\d+: ")  #: a fragment is planned
COMPILE_FAILED = 5  #: the exit code
STOPPED_SECONDS = 60.0  #: in which all processes of a stopped run have to end
Line = tuple[float, str]


@dataclasses.dataclass(frozen=True)
class Moment:
    """When to stop a run: some seconds after so many of its lines, and after so many candidates were measured."""

    phase: str
    lines: int
    seconds: float
    timed: int = 0


@dataclasses.dataclass
class Outcome:
    """How one kill went."""

    kind: str
    phase: str  #: what it was doing when it was stopped, by its last line
    before: str
    found: str = ""
    planned: int = 0  #: fragments that were planned before the kill
    cached: int = 0  #: of these, taken from the cache by the next run
    timed: int = 0  #: candidates of which the cache held a time, or a fault, after the kill
    taken: int = 0  #: of these, taken by the next run
    lasted: float = 0.0  #: seconds until the last process had ended
    problems: list[str] = dataclasses.field(default_factory=list)


class Place:
    """The folder of one kill: cache, output, temporary files."""

    def __init__(self, root: Path, model: Path, jobs: int, options: Sequence[str] = ("--target", "cpu")) -> None:
        self.root, self.out, self.cache = root, root / "place" / "out", root / "cache"
        self.model, self.jobs, self.options = model, jobs, options
        for name in ("place", "state", "tmp", "cache"):
            (root / name).mkdir(parents=True, mode=0o700)

    def start(self, mark: str, *more: str, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """A run of optimize that tells what it does."""
        arguments = ["optimize", str(self.model), "-o", str(self.out), "--cache", str(self.cache), "-v"]
        arguments += [*self.options, "--force", "--jobs", str(self.jobs), *more]
        changes = {"XDG_STATE_HOME": str(self.root / "state"), "TMPDIR": str(self.root / "tmp"), MARK: mark}
        return subprocess.Popen(
            [sys.executable, "-m", "mirage_cli", *arguments],
            env=os.environ | changes | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_usual_signals,  # noqa: PLW1509 - what a background process may have ignored
        )

    def complete(self, *more: str) -> list[Line]:
        """A run to its end; its lines. Raises RuntimeError when it fails."""
        start = time.monotonic()
        with self.start("", *more) as child:
            assert child.stderr is not None
            lines = [(time.monotonic() - start, line) for line in child.stderr]
        lines.append((time.monotonic() - start, "end"))
        if child.returncode:
            raise RuntimeError(f"exit code {child.returncode}: {lines}")
        return lines

    def report(self) -> Any:
        """The report of what is there."""
        return json.loads((self.out / "report.json").read_text(encoding="utf-8"))

    def measured(self) -> set[str]:
        """The candidates of which the cache holds a measurement."""
        look = self.root / "look"  # looking at it may repair it
        shutil.rmtree(look, ignore_errors=True)
        if not (self.cache / TUNINGS).is_dir():
            return set()
        shutil.copytree(self.cache / TUNINGS, look)
        return {r.candidate for r in TuningCache(look).rows() if isinstance(r.value, Measurement)}

    def kept(self) -> int:
        """How many measurements the cache holds, asked while a run writes to it."""
        file = self.cache / TUNINGS / FILE
        try:
            with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as db:
                count: int = db.execute("SELECT count(*) FROM tunings WHERE candidate != ?", (SETTLED,)).fetchone()[0]
        except sqlite3.Error:
            return 0
        return count


def _usual_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


# --- moments ----------------------------------------------------------------------------------------------------------
def phase_of(line: str) -> str:
    """The stage that a line of -v tells of."""
    return line.partition("] ")[2].partition(":")[0].partition(" (")[0].strip() or "end"


def moments(lines: Sequence[Line], random: random.Random, only: Sequence[str] = ()) -> Iterator[Moment]:
    """Moments without end, spread over the phases of a run with these lines, or over some `only`."""
    gaps: dict[str, list[Moment]] = {}
    begun, phase = 0.0, "start"
    for count, (seconds, line) in enumerate(lines):
        gaps.setdefault(phase, []).append(Moment(phase, count, seconds - begun))
        begun, phase = seconds, phase_of(line)
    phases = [p for p in gaps if not only or p in only]
    while True:
        random.shuffle(phases)
        for name in phases:
            (gap,) = random.choices(gaps[name], [m.seconds + 1e-3 for m in gaps[name]])
            yield dataclasses.replace(gap, seconds=random.uniform(0.0, gap.seconds))


# --- processes --------------------------------------------------------------------------------------------------------
def processes(mark: str) -> dict[int, int]:
    """The living processes of a run, with their parents."""
    found = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            number = int(folder.name)
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                state, parent = (folder / "stat").read_text().rpartition(") ")[2].split()[:2]
                if state != "Z":
                    found[number] = int(parent)
    return found


def stop(child: subprocess.Popen[str], kind: str, mark: str, random: random.Random) -> None:
    """Stop a run, or a part of it."""
    with contextlib.suppress(ProcessLookupError):
        if kind == "parent":
            os.kill(child.pid, signal.SIGKILL)
        elif kind == "worker":
            workers = [p for p in sorted(processes(mark)) if p != child.pid]
            if workers:
                os.kill(random.choice(workers), signal.SIGKILL)
        else:
            os.killpg(child.pid, signal.SIGKILL if kind == "group" else getattr(signal, kind))


# --- one kill ---------------------------------------------------------------------------------------------------------
class Program:
    """What all kills share: an undisturbed run's lines and output, an older output."""

    def __init__(self, folder: Path, model: Path, jobs: int, gpu: int | None = None) -> None:
        self.folder, self.model, self.jobs, self.gpu = folder, model, jobs, gpu
        self.options = ("--target", "cpu") if gpu is None else ("--gpu", str(gpu), "--tune-candidates", str(TRIED))
        place = Place(folder / "first", model, jobs, self.options)
        place.complete("--skip", "*")
        self.old = files(place.out)
        shutil.copytree(place.out, folder / "old")
        self.lines = place.complete()
        self.new = files(place.out)
        self.cache, self.state = place.cache, place.root / "state"
        assert self.new != self.old
        self.prepared = [self.lines]  #: of undisturbed runs that begin with what the killed ones begin with, in turns
        if gpu is not None:
            self.prepared = [self._prepared(k).complete() for k in range(2)]

    def _prepared(self, number: int, name: str = "like") -> Place:
        """A place; with a GPU plans are known there, and in every other one the compiled candidates."""
        place = Place(self.folder / f"{name}{number}", self.model, self.jobs, self.options)
        if self.gpu is not None:
            shutil.copytree(self.state, place.root / "state", dirs_exist_ok=True)
            for kind in (RESULTS, OBJECTS)[: 1 + number % 2]:
                shutil.copytree(self.cache / kind, place.cache / kind)
        return place

    def kill(self, number: int, kind: str, moment: Moment, over: bool, verify: bool, seed: int) -> Outcome:
        """Stop a run at a moment, run again, and tell."""
        place = self._prepared(number, "kill")
        if over:
            shutil.copytree(self.folder / "old", place.out)
        outcome = Outcome(kind, moment.phase, "old" if over else "absent")
        code, lines = self._stopped(place, moment, outcome, random.Random(f"{seed} {number}"))
        outcome.planned = sum(bool(PLANNED.search(line)) for line in lines)
        # the compiler of what all fragments share: the run ends and says so, with -v at length
        needed = kind == "worker" and code == COMPILE_FAILED and "was ended by signal 9" in "".join(lines)
        if any("Traceback" in line for line in lines) and not needed:
            outcome.problems.append("".join(lines))
        outcome.found = self._standing(place)
        if not (needed and outcome.found == outcome.before):
            self._judge(place, outcome, code)
        measured = place.measured()
        place.complete()
        report = place.report()
        candidates = [c for f in report["fragments"] for c in f.get("tuning", {}).get("candidates", ())]
        outcome.timed = len(measured)
        outcome.taken = len(measured & {c["candidate"] for c in candidates if c["cached"]})
        if outcome.taken < outcome.timed:
            outcome.problems.append(f"{outcome.timed} candidates were measured, {outcome.taken} were cached")
        cached = sum(bool(f["search"].get("cached")) for f in report["fragments"])
        outcome.cached = min(cached, outcome.planned)
        if outcome.cached < outcome.planned and kind != "worker":
            outcome.problems.append(f"{outcome.planned} fragments were planned, {cached} were cached")
        if self._standing(place) != "new":
            outcome.problems.append(f"the next run: {self._standing(place)}")
        left = litter(place.root / "place", place.cache, place.root / "state")
        left += [p.name for p in (place.root / "tmp").iterdir() if p.name.startswith("mirage-")]
        if left:
            outcome.problems.append(f"the next run leaves {left}")
        if verify:
            command = [sys.executable, "-m", "mirage_cli", "verify", str(place.out), "-q"]
            if subprocess.run(command, check=False, cwd=ROOT, stdin=subprocess.DEVNULL).returncode:
                outcome.problems.append("verify fails")
        shutil.rmtree(place.root)
        return outcome

    def _standing(self, place: Place) -> str:
        """What the output folder of a place is."""
        found = standing(place.out, {"old": self.old, "new": self.new})
        return "new" if self.gpu is not None and found.startswith("half-written") and complete(place.out) else found

    def _stopped(self, place: Place, moment: Moment, outcome: Outcome, random: random.Random) -> tuple[int, list[str]]:
        """(exit code, lines) of a run that is stopped."""
        mark, lines, reached = uuid.uuid4().hex, list[str](), threading.Event()
        child = place.start(mark)

        def read() -> None:
            assert child.stderr is not None
            for line in child.stderr:
                lines.append(line)
                if len(lines) >= moment.lines:
                    reached.set()
            reached.set()

        reader = threading.Thread(target=read)
        reader.start()
        if moment.lines:
            reached.wait()
        while moment.timed and child.poll() is None and place.kept() < moment.timed:
            time.sleep(0.01)
        time.sleep(moment.seconds)
        outcome.phase = "ended" if child.poll() is not None else phase_of(lines[-1]) if lines else "start"
        stop(child, outcome.kind, mark, random)
        stopped = time.monotonic()
        code = child.wait()
        reader.join()
        if child.stderr is not None:
            child.stderr.close()
        while left := processes(mark):
            if outcome.kind != "worker" and time.monotonic() - stopped > STOPPED_SECONDS:
                outcome.problems.append(f"{len(left)} processes stay")
                break
            time.sleep(0.02)
        outcome.lasted = time.monotonic() - stopped
        return code, lines

    def _judge(self, place: Place, outcome: Outcome, code: int) -> None:
        """What is wrong after a run was stopped."""
        if outcome.kind == "worker":
            whole = outcome.found == "new" or _without_the_lost(place)
            if code or not whole:
                outcome.problems.append(f"exit code {code}, the folder is {outcome.found}")
        elif outcome.found not in (outcome.before, "new"):
            outcome.problems.append(f"the folder is {outcome.found}")
        if outcome.kind.startswith("SIG"):
            # Python's own start and end know signals as every program does
            if code not in (130, 0, -signal.SIGINT, -signal.SIGTERM) or (code < 0 and outcome.phase not in EDGES):
                outcome.problems.append(f"exit code {code}")
            if code in (0, 130) and (left := litter(place.root / "place")):
                outcome.problems.append(f"left beside the folder: {left}")


EDGES = ("start", "end", "ended")


def _without_the_lost(place: Place) -> bool:
    """Whether the folder is whole, and says of what it lacks that a process was killed. Where that was a compiler that was
    being tried, the next one was taken, and the commands are others."""
    found = files(place.out)
    report = place.report()
    failed = [f for f in report["fragments"] if f["status"] == "failed"]
    whole: bool = report["files"] == {k: v for k, v in found.items() if not k.endswith(".svg")}
    return whole and all("SIGKILL" in f["reason"] or "signal 9" in f["reason"] for f in failed)


def run(
    program: Program, count: int, seed: int, workers: int, verify: bool = False, until: float = math.inf
) -> list[Outcome]:
    """Kills at seeded moments; none begins after `until`, a moment of the monotonic clock."""
    only = () if program.gpu is None else TUNING
    drawn = [moments(lines, random.Random(seed + n), only) for n, lines in enumerate(program.prepared)]
    asked = [(k, KINDS[k % len(KINDS)], next(drawn[k % len(drawn)]), k // len(KINDS) % 2 == 0) for k in range(count)]
    if program.gpu is not None:
        within = random.Random(seed)
        between = [Moment("tune", 1, within.uniform(0, 0.3), within.randint(1, TRIED - 1)) for _ in range(count)]
        asked = [(k, kind, between[k] if k % 3 else moment, over) for k, kind, moment, over in asked]

    def one(k: int, kind: str, moment: Moment, over: bool) -> Outcome | None:
        if time.monotonic() > until:
            return None
        outcome = program.kill(k, kind, moment, over, verify, seed)
        for said in outcome.problems or [f"{outcome.found}, {outcome.timed} times kept"]:
            print(f"kill {k} ({kind}, {moment}, in {outcome.phase}): {said}", file=sys.stderr, flush=True)
        return outcome

    with ThreadPoolExecutor(workers) as pool:
        return [o for o in pool.map(lambda a: one(*a), asked) if o is not None]


def table(outcomes: Sequence[Outcome]) -> str:
    """How the kills went."""
    lines = []
    for kind in KINDS:
        own = [o for o in outcomes if o.kind == kind]
        if own:
            found = Counter("the one of before" if o.found == o.before else "complete" for o in own)
            said = ", ".join(f"{n} {what}" for what, n in sorted(found.items()))
            planned, cached = sum(o.planned for o in own), sum(o.cached for o in own)
            lasted = max(o.lasted for o in own)
            lines.append(
                f"{kind:8} {len(own):3} runs: folder {said}; {planned} plans made before, {cached} of them from the cache"
                f" afterwards; the last process ended after {lasted:.1f} s; {sum(len(o.problems) for o in own)} problems"
            )
            timed, taken = sum(o.timed for o in own), sum(o.taken for o in own)
            if timed:
                lines.append(f"{'':8} {timed} candidates measured before, {taken} of them from the cache afterwards")
    timed_then = Counter(o.timed for o in outcomes)
    if any(timed_then):
        lines.append("candidates with a time when it was stopped: " + said_of(timed_then))
    phases = Counter(o.phase for o in outcomes)
    lines.append("stopped in: " + said_of(phases))
    return "\n".join(lines)


def said_of(counts: Mapping[Any, int]) -> str:
    """Counts as text."""
    return ", ".join(f"{what} ({n} runs)" for what, n in sorted(counts.items()))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--jobs", type=int, default=2, help="of each run")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no kill begins")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--verify", action="store_true", help="run mirage verify after each")
    parser.add_argument("--gpu", type=int, help="measure on this GPU, and kill runs while they do")
    asked = parser.parse_args()
    model = asked.model or (MODEL if asked.gpu is None else GPU_MODEL)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        program = Program(Path(name), model, asked.jobs, asked.gpu)
        outcomes = run(program, asked.count, asked.seed, asked.workers, asked.verify, start + asked.seconds)
    print(table(outcomes))
    problems = sum(len(o.problems) for o in outcomes)
    print(f"{len(outcomes)} kills of {model.name} in {time.monotonic() - start:.0f} s, {problems} problems")
    return int(problems > 0)


if __name__ == "__main__":
    sys.exit(main())
