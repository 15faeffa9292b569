"""How a farm grows: the figures of docs/performance.md.

    python -m samples.farm_scale models --workers 8 --count 50    models optimized by so many CPU workers
    python -m samples.farm_scale tune --gpus 0,1                  the suite tuned on these GPUs
    python -m samples.farm_scale record FILE                      jobs with what they took and gave
    python -m samples.farm_scale simulate FILE --workers 200      the client beside so many workers that only wait

Each prints one line of JSON. The scheduler and the queue are real in all of them. In `simulate` a worker waits as long as
the job took when it was recorded and hands back what came of it then; the client reads, proves and prints that as in a
run. Its share is its processor time over the seconds that workers had jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from mirage_cli.farm import certificates, offers, performing
from mirage_cli.farm.client import Farm
from mirage_cli.farm.worker import configured
from mirage_cli.inspection.workers import compilers
from mirage_cli.optimization import environment, several
from mirage_cli.optimization.pipeline import Run
from mirage_cli.options import orders
from mirage_cli.options.options import Options
from mirage_cli.processes import messages
from mirage_cli.processes.jobs import Here, Kind
from mirage_cli.suite import suites
from mirage_cli.suite.cases import DTYPES

SAMPLES = Path(__file__).parent
RECORDED = ("rmsnorm_linear_fp32", "gated_mlp_fp32", "gqa_fp32", "lora_fp32", "mha_fp16", "ntrans_fp32")
JOBS_OF_A_WORKER = 8  #: that are simulated
IN_A_PROCESS = 50  #: workers that only wait
START_SECONDS = 180.0


@contextlib.contextmanager
def farm(*options: str) -> Iterator[str]:
    """The address of a farm on this machine, in processes of its own."""
    command = [sys.executable, "-m", "mirage_cli", "farm", "local", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(60)


def wait_for(address: str, count: int) -> None:
    """Wait until so many workers have joined."""
    client = certificates.distributed().Client(address, set_as_default=False)
    client.wait_for_workers(count, timeout=START_SECONDS)
    client.close()


def processor_seconds() -> float:
    """Those of this process and of its children that have ended."""
    return sum(
        u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def optimized(asked: Sequence[orders.Order]) -> dict[str, Any]:
    """What it took to optimize models: seconds, the client's processor time, the seconds that workers had jobs."""
    start, own = time.perf_counter(), processor_seconds()
    outcomes = several.optimize(asked)
    seconds, own = time.perf_counter() - start, processor_seconds() - own
    reports = [o.report for o in outcomes if o.report is not None]
    workers = [w for r in reports for w in r.farm["workers"].values()]
    busy = sum(w["seconds"] for w in workers)
    return {
        "models": len(asked),
        "failed": [o.headline for o in outcomes if o.error is not None],
        "seconds": round(seconds, 1),
        "client_seconds": round(own, 1),
        "worker_seconds": round(busy, 1),
        "jobs": sum(w["jobs"] for w in workers),
        "here": sum(r.farm["here"] for r in reports),
        "problems": sorted({p for r in reports for p in r.farm["problems"]}),
        "tuned": sum(bool(f.tuning.get("seconds")) for r in reports for f in r.fragments),
        "tuning_seconds": round(sum(f.tuning.get("seconds", 0.0) for r in reports for f in r.fragments), 1),
    }


def models(arguments: argparse.Namespace) -> dict[str, Any]:
    """Sample models, optimized by CPU workers, with nothing kept from before."""
    paths = sorted((SAMPLES / "models").glob("*.onnx")) + sorted((SAMPLES / "operators").glob("*.onnx"))
    with tempfile.TemporaryDirectory() as folder, farm("--workers", str(arguments.workers)) as address:
        wait_for(address, arguments.workers)
        options = Options(target=("cpu",), force=True, cache=f"{folder}/cache", scheduler=address, jobs=arguments.jobs)
        chosen = [str(p) for p in paths[: arguments.count]]
        return {"workers": arguments.workers} | optimized(orders.of(chosen, Path(folder, "out"), options))


def tune(arguments: argparse.Namespace) -> dict[str, Any]:
    """The suite's models, tuned by GPU workers, with nothing kept from before."""
    cases = suites.chosen("paper", tuple(arguments.only))
    gpus = arguments.gpus.split(",")
    own = ["--workers", str(arguments.workers), "--gpus", arguments.gpus, "--jobs", str(arguments.compilations)]
    with tempfile.TemporaryDirectory() as folder, farm(*own) as address:
        paths = []
        for case in cases:
            paths.append(Path(folder, f"{case.name}.onnx"))
            model = case.model(DTYPES["fp16"], 0)
            onnx.save(model, paths[-1], save_as_external_data=True, location=f"{case.name}.data")
        wait_for(address, arguments.workers + len(gpus))
        options = Options(
            target=("cuda",),
            gpu=0,
            force=True,
            cache=f"{folder}/cache",
            scheduler=address,
            jobs=arguments.jobs,
            tune_candidates=arguments.candidates,
            tune_budget=arguments.budget,
        )
        return {"gpus": len(gpus)} | optimized(orders.of([str(p) for p in paths], Path(folder, "out"), options))


# --- simulated workers ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Recorder(Here):
    """This machine's processes, with what each job took and gave as a document."""

    rows: list[tuple[str, Any, bytes, float]] = field(default_factory=list)

    def each(self, kind: Kind, jobs: Sequence[Any], *rest: Any, **named: Any) -> Iterator[tuple[int, Any]]:
        """As `Here.each`, and each job once more as a worker makes it."""
        for job in jobs:
            message = messages.packed(kind.packed(*job))
            start = time.perf_counter()
            document = performing.perform(kind.address, message)
            self.rows.append((kind.address, job, document, time.perf_counter() - start))
        return Here.each(self, kind, jobs, *rest, **named)


def record(arguments: argparse.Namespace) -> dict[str, Any]:
    """The jobs of some samples, written to a file."""
    recorder = Recorder(1)
    with tempfile.TemporaryDirectory() as folder:
        options = Options(target=("cpu",), force=True, cache=f"{folder}/cache", jobs=1)
        for name in RECORDED:
            run = Run(
                str(SAMPLES / "operators" / f"{name}.onnx"), options, environment.toolchain(options), lent=recorder
            )
            run.read()
            run.plan()
            draft = Path(folder, name)
            draft.mkdir()
            run.build(draft)
            run.check()
        rows = [(address, _kept(job), document, seconds) for address, job, document, seconds in recorder.rows]
        Path(arguments.file).write_bytes(messages.packed(rows))
    return {"jobs": len(rows), "seconds": round(sum(r[3] for r in rows), 1)}


def _kept(job: Sequence[Any]) -> tuple[Any, ...]:
    """A job's arguments, with the files that it reads as their contents."""
    first = job[0]
    if hasattr(first, "library"):
        return (first, first.library.read_bytes())
    return (first, (job[1] / first.source).read_bytes(), job[2]) if hasattr(first, "source") else tuple(job)


def _unpacked(job: Sequence[Any], folder: Path) -> tuple[Any, ...]:
    """The inverse of `_kept`, with files in a folder."""
    first = job[0]
    if hasattr(first, "library"):
        (folder / "library.so").write_bytes(job[1])
        return (replace(first, library=folder / "library.so"),)
    if hasattr(first, "source"):
        (folder / first.source).write_bytes(job[1])
        (folder / first.object).parent.mkdir(exist_ok=True)
        return (first, folder, job[2])
    return tuple(job)


def simulate(arguments: argparse.Namespace) -> dict[str, Any]:
    """Recorded jobs, many times over, by workers that wait as long as the jobs took and hand back what came of them."""
    rows: list[Any] = messages.unpacked(Path(arguments.file).read_bytes())
    count = arguments.workers * JOBS_OF_A_WORKER
    with tempfile.TemporaryDirectory() as folder, farm("--workers", "0") as address:
        command = [sys.executable, "-m", "samples.farm_scale", "_wait", arguments.file, address]
        full, rest = divmod(arguments.workers, IN_A_PROCESS)
        counts = [IN_A_PROCESS] * full + [rest] * bool(rest)
        waiting = [subprocess.Popen([*command, "--workers", str(n)]) for n in counts]
        try:
            wait_for(address, arguments.workers)
            crew = Farm(address, None, Here(1)).open()
            jobs = [rows[k % len(rows)] for k in range(count)]
            ready = [(performing.found(address), _unpacked(job, Path(folder))) for address, job, _, _ in jobs]
            kinds = {kind.address: kind for kind, _ in ready}
            start, own = time.perf_counter(), time.process_time()
            made = 0
            for kind in kinds.values():  # one kind after the other, as in a run
                made += sum(1 for _ in crew.each(kind, [job for k, job in ready if k is kind]))
            seconds, own = time.perf_counter() - start, time.process_time() - own
            told = crew.summary()
            crew.close()
        finally:
            for process in waiting:
                process.kill()
                process.wait(60)
    busy = sum(seconds for _, _, _, seconds in jobs)
    return {
        "workers": arguments.workers,
        "jobs": made,
        "here": told["here"],
        "problems": told["problems"][:3],
        "seconds": round(seconds, 1),
        "ideal_seconds": round(busy / arguments.workers, 1),
        "worker_seconds": round(busy, 1),
        "client_seconds": round(own, 1),
        "client_share": round(own / busy, 4),
    }


def wait(arguments: argparse.Namespace) -> None:
    """The simulated workers of a scheduler, all in this process."""
    rows: list[Any] = messages.unpacked(Path(arguments.file).read_bytes())
    answers = {_name(address, job): (document, seconds) for address, job, document, seconds in rows}

    def waited(address: str, message: bytes, *_: Any) -> bytes:
        args = messages.unpacked(message)
        document, seconds = answers[_name(address, args)]
        time.sleep(seconds)
        return bytes(document)

    performing.made_apart = waited  # type: ignore[assignment]  # of another form where nobody is told
    asyncio.run(_wait(arguments.address, arguments.workers))


def _name(address: str, job: Sequence[Any]) -> str:
    """What tells a recorded job from others."""
    first = job[0]
    told = f"{first.object}" if hasattr(first, "object") else first if isinstance(first, str) else first.spec.op_type
    return f"{address} {told}"


async def _wait(address: str, count: int) -> None:
    dask, found = certificates.distributed(), compilers()
    with configured():
        own = {"nthreads": 1, "memory_limit": 0, "resources": offers.resources(1, found, False)}
        made = [dask.Worker(address, name=f"simulated{os.getpid()}-{k}", **own) for k in range(count)]
        await asyncio.gather(*made)
        await asyncio.gather(*(worker.finished() for worker in made))


def main() -> None:
    """Print the figures that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    adders = {f.__name__.removesuffix("_"): commands.add_parser(f.__name__) for f in (models, tune, record, simulate)}
    for function in (models, tune, record, simulate):
        adders[function.__name__].set_defaults(function=function)
    hidden = commands.add_parser("_wait")
    hidden.set_defaults(function=wait)
    for one in (adders["record"], adders["simulate"], hidden):
        one.add_argument("file")
    hidden.add_argument("address")
    for one in (adders["models"], adders["tune"], adders["simulate"], hidden):
        one.add_argument("--workers", type=int, default=8, help="CPU workers")
    for one in (adders["models"], adders["tune"]):
        one.add_argument("--jobs", type=int, default=8, help="models that the client reads and writes at a time")
    adders["models"].add_argument("--count", type=int, default=50)
    adders["tune"].add_argument("--gpus", default="0")
    adders["tune"].add_argument("--compilations", type=int, default=16, help="at a time, of each GPU's worker")
    adders["tune"].add_argument("--only", action="append", default=[], help="patterns of the suite's rows")
    adders["tune"].add_argument("--candidates", type=int, default=24)
    adders["tune"].add_argument("--budget", type=float, default=60.0)
    arguments = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    result = arguments.function(arguments)
    if result is not None:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
