"""Check that the same model, options and seed give the same bytes wherever `mirage optimize` runs.

Each model is optimized in surroundings that differ in everything that must not matter (`SURROUNDINGS`), and the folders are
compared file by file, reports apart from their times. `--digests FILE` writes the digests, `--against FILE` compares them with
those of another machine, such as one with another Python:

    python -m samples.reproducible rmsnorm_linear_fp32 llama_fp32 --target cpu
    python -m samples.reproducible --all --jobs 8 --digests here.json

Two machines have to agree on `model.onnx`, `mugraphs/` and `src/`; the library is the same with the same compilers only.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).resolve().parent
REPORT = "report.json"
MOST = 8  #: places of a report that are named
#: What is the same whatever the compilers are, but for the commands that name them.
PROMISED = ("model.onnx", "mugraphs/", "src/")
COMMANDS = "src/build.sh"
#: What differs from run to run in report.json: times, what came from the cache, the two options that change no result, and the
#: points of proofs.
LEFT_OUT = ("seconds", "cached", "jobs", "cache", "entropy", "primes")
#: numpy's choice of instructions, as it is on processors that have less.
OLD_PROCESSOR = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR X86_V4"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of a run: variables, options, the mask of new files, the name of its folder, one processor or
    all."""

    variables: Mapping[str, str]
    options: Sequence[str] = ()
    umask: int = 0o022
    out: str = "out"
    one_processor: bool = False
    cached: bool = True


SURROUNDINGS = {
    "plain": Surroundings({"PYTHONHASHSEED": "0"}, ("--jobs", "1"), cached=False),
    "elsewhere": Surroundings(
        {
            "PYTHONHASHSEED": "4242",
            "TZ": "Pacific/Kiritimati",
            "LC_ALL": "tr_TR.UTF-8",
            "LANG": "de_DE.ISO-8859-1",
            "PYTHONUTF8": "0",
            "USER": "somebody",
            "LOGNAME": "somebody",
            "HOSTNAME": "elsewhere",
            "COLUMNS": "33",
            "NO_COLOR": "1",
            "SOURCE_DATE_EPOCH": "1",
            "OPENBLAS_NUM_THREADS": "2",
            "NPY_DISABLE_CPU_FEATURES": OLD_PROCESSOR,
        },
        ("--jobs", "3"),
        umask=0o077,
        out="une autre é",
    ),
    "again": Surroundings({"PYTHONHASHSEED": "7", "PYTHONOPTIMIZE": "1"}, one_processor=True),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The digests of the files of one output folder and its report, or what went wrong."""

    files: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    report: Any = None


def optimize(
    model: Path, options: Sequence[str], around: Surroundings, place: Path, cache: Path, turn: int = 0
) -> Outcome:
    """Run `mirage optimize` on a model in a folder `place` of its own, in a process of its own.

    Where that has one processor, it is the one whose `turn` it is, so that models that run at once do not share one.
    """
    place.mkdir(parents=True)
    kept = ["--cache", str(cache)] if around.cached else ["--no-cache"]
    command = [
        sys.executable,
        "-m",
        "mirage_cli",
        "optimize",
        os.path.relpath(model, place),
        "-o",
        around.out,
        "--force",
    ]
    state = {"XDG_STATE_HOME": str(cache / "state"), "PYTHONPATH": _search_path(), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*command, *kept, *options, *around.options, "--quiet"],
        cwd=place,
        env={**os.environ, **state, **around.variables},
        preexec_fn=functools.partial(_one_processor, turn) if around.one_processor else None,
        umask=around.umask,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return Outcome(problem=done.stderr.strip() or f"it ended with {done.returncode}")
    out = place / around.out
    return Outcome(digests(out), report=timeless(json.loads((out / REPORT).read_text(encoding="utf-8"))))


def _one_processor(turn: int) -> None:
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [processors[turn % len(processors)]])


def _search_path() -> str:
    folders = [str(SAMPLES.parent), *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)]
    return os.pathsep.join(str(Path(p).absolute()) for p in folders)


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of every file in an output folder but the page; that of the report is of what does not depend on time."""
    by_path = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "report.html"):
        content = path.read_bytes()
        if path.name == REPORT:
            report = json.loads(content)
            report["model"].pop("path")
            content = json.dumps(timeless(report)).encode()
        by_path[path.relative_to(folder).as_posix()] = hashlib.sha256(content).hexdigest()
    return by_path


def timeless(value: Any) -> Any:
    """A JSON document without what differs from run to run."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in LEFT_OUT}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def differing(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """The files that two folders do not have alike."""
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def leaves(first: Any, second: Any, path: str = "") -> list[str]:
    """The places at which two JSON documents differ, such as `fragments.0.status`."""
    if isinstance(first, dict) and isinstance(second, dict):
        keys: Sequence[Any] = sorted(first.keys() | second.keys())
        return [w for k in keys for w in leaves(first.get(k), second.get(k), f"{path}.{k}")]
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return [w for k, pair in enumerate(zip(first, second, strict=True)) for w in leaves(*pair, f"{path}.{k}")]
    return [] if first == second else [path.removeprefix(".")]


def check(model: Path, options: Sequence[str], places: Path, turn: int = 0) -> tuple[dict[str, str], list[str]]:
    """(digests of the files of the first surroundings, a line for each difference of the others)."""
    cache = places / "cache"
    cache.mkdir(mode=0o700, parents=True)
    first = Outcome()
    problems = []
    for name, around in SURROUNDINGS.items():
        outcome = optimize(model, options, around, places / name, cache, turn)
        first = first if first.files else outcome
        if outcome.problem:
            problems.append(f"{model.stem}, {name}: {outcome.problem}")
        else:
            where = {REPORT: f" at {', '.join(leaves(first.report, outcome.report)[:MOST])}"}
            told = (f"{file} differs{where.get(file, '')}" for file in differing(first.files, outcome.files))
            problems += [f"{model.stem}, {name}: {line}" for line in told]
    return dict(first.files), problems


def against(here: Mapping[str, Mapping[str, str]], there: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A line for each promised file that another machine has made otherwise, of the models that both have."""
    return [
        f"{model}: {file} differs"
        for model in sorted(here.keys() & there.keys())
        for file in differing(here[model], there[model])
        if file.startswith(PROMISED) and file != COMMANDS
    ]


def models(names: Sequence[str]) -> list[Path]:
    """The files of samples, of all of them without names."""
    files = [*sorted((SAMPLES / "operators").glob("*.onnx")), *sorted((SAMPLES / "models").glob("*.onnx"))]
    return [path for path in files if not names or path.stem in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 1 where anything differs."""
    parser = argparse.ArgumentParser(prog="python -m samples.reproducible", description=__doc__)
    parser.add_argument("names", nargs="*", help="samples, such as llama_fp32")
    parser.add_argument("--all", action="store_true", help="all samples")
    parser.add_argument("--target", action="append", choices=["cpu", "cuda"], default=[])
    parser.add_argument("--arch", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1, help="models at once")
    parser.add_argument("--digests", type=Path, help="write the digests of all files here")
    parser.add_argument("--against", type=Path, help="compare with the digests that another machine wrote")
    given = parser.parse_args(arguments)
    if not given.names and not given.all:
        parser.error("name samples, or give --all")
    options = [w for t in given.target for w in ("--target", t)] + [w for a in given.arch for w in ("--arch", a)]
    digests_of: dict[str, dict[str, str]] = {}
    problems: list[str] = []
    there = json.loads(given.against.read_text(encoding="utf-8")) if given.against else {}
    with tempfile.TemporaryDirectory(prefix="mirage-") as folder, ThreadPoolExecutor(given.jobs) as pool:
        runs = {
            pool.submit(check, path, options, Path(folder) / path.stem, turn): path.stem
            for turn, path in enumerate(models(given.names))
        }
        for run in as_completed(runs):
            name = runs[run]
            digests_of[name], told = run.result()
            told += against({name: digests_of[name]}, there)
            problems += told
            print("\n".join([f"{name}: {len(digests_of[name])} files, {len(told)} differences", *told]), flush=True)
            shutil.rmtree(Path(folder) / name, ignore_errors=True)
            if given.digests:
                _write(given.digests, digests_of)
    count = sum(map(len, digests_of.values()))
    print(
        f"{len(digests_of)} models in {len(SURROUNDINGS)} surroundings, {count} files each time: {len(problems)} differences"
    )
    return 1 if problems else 0


def _write(path: Path, by_model: Mapping[str, Mapping[str, str]]) -> None:
    path.write_text(json.dumps(by_model, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
