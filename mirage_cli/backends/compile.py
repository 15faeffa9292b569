"""Compiling many sources at once, with a cache of object files."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import logging
import os
import shlex
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_cli.backends import toolchain
from mirage_cli.codegen import render
from mirage_cli.errors import CompileError
from mirage_cli.files import codec, rawfile, result_store, staging
from mirage_cli.processes import programs
from mirage_cli.processes.jobs import Crew, Here, Job, Kind

TIMEOUT = 300.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompileJob:
    """One compilation: `command` runs in the source folder, reads `source` and writes `object` there.

    `fragment` says whose failure it is; `tool` is the compiler's version, a part of the cache key, and the first `own`
    words of the command are its installation's: on another machine others stand there.
    """

    fragment: str
    source: str
    object: str
    command: tuple[str, ...]
    tool: str
    own: int = 0

    @property
    def compiler(self) -> str:
        """Which compiler it takes, as workers offer it; one that none offers where only this machine's will do."""
        if not self.own:
            return f"{self.tool} of this machine"
        return offered("nvcc" if self.source.endswith(".cu") else "cxx", self.tool)


def default_workers() -> int:
    """As many compilations at once as this process may use processors."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compile_objects(
    jobs: Sequence[CompileJob],
    folder: Path,
    workers: int | None = None,
    timeout: float = TIMEOUT,
    cache: Path | None = None,
    progress: Callable[[CompileJob], None] = lambda job: None,
    crew: Crew | None = None,
) -> dict[CompileJob, CompileError]:
    """Run all jobs in `folder`, as many as there are `workers` at a time or by a crew; returns the failures. One that
    fails does not stop the others."""
    store = ObjectCache(cache, folder) if cache is not None else None
    keys = [store.key(job) if store is not None else "" for job in jobs]
    missing = []
    for k, job in enumerate(jobs):
        if store is not None and store.fetch(keys[k], folder / job.object):
            progress(job)
        else:
            missing.append(k)
    failed: dict[int, CompileError] = {}
    calls = [(jobs[k], folder, timeout) for k in missing]
    for n, failure in (crew or Here(workers or default_workers())).each(
        COMPILE, calls, names=[keys[k] for k in missing]
    ):
        k = missing[n]
        if failure is not None:
            failed[k] = failure
        elif store is not None:
            store.put(keys[k], folder / jobs[k].object)
        progress(jobs[k])
    return {jobs[k]: failed[k] for k in sorted(failed)}


def run_command(
    command: Sequence[str], what: str, folder: Path, timeout: float = TIMEOUT, cancel: threading.Event | None = None
) -> tuple[CompileError | None, str]:
    """Run one compiler command in `folder`: (None or an error that tells what failed, why and how, all output)."""
    with tempfile.TemporaryDirectory(prefix="tmp-", dir=folder) as scratch:
        outcome = programs.run(command, folder, timeout, cancel, Path(scratch))
    if outcome.problem is None:
        return None, outcome.output
    message = "\n  ".join([f"{what}: {outcome.problem}", *programs.error_lines(outcome.output)])
    return CompileError(message, f"the command, run in src/, was: {shlex.join(command)}"), outcome.output


def _compile(
    job: CompileJob, folder: Path, timeout: float, cancel: threading.Event | None = None
) -> CompileError | None:
    what = f"src/{job.source} does not compile"
    failure, _ = run_command(job.command, what, folder, timeout, cancel)
    if failure is None and not (folder / job.object).is_file():
        return CompileError(f"{what}: {job.command[0]} told of no error and wrote no {job.object}")
    return failure


# --- on another machine ---------------------------------------------------------------------------------------------------
def offered(kind: str, version: str) -> str:
    """A compiler as workers offer it and jobs need it."""
    return f"{kind} {version}"


def _packed(job: CompileJob, folder: Path, timeout: float) -> Job:
    return job, (folder / job.source).read_bytes(), timeout


def _elsewhere(job: CompileJob, source: bytes, timeout: float) -> dict[str, str]:
    """The object of a source beside this machine's copy of the headers, by its own compiler of the same version."""
    tool = own_compiler(job.source.endswith(".cu"))
    if not job.own or tool.version != job.tool:
        raise CompileError(f"{job.tool} is not here, but {tool}")
    command = (*tool.command, *tool.compile_flags, *job.command[job.own :])
    with staging.Scratch("mirage-compile-") as folder:
        staging.copy_tree(render.include_dir(), folder / "include")
        (folder / job.object).parent.mkdir(parents=True, exist_ok=True)
        (folder / job.source).write_bytes(source)
        failure = _compile(CompileJob(job.fragment, job.source, job.object, command, job.tool), folder, timeout)
        if failure is not None:
            return {"problem": str(failure)}
        return {"object": base64.b64encode((folder / job.object).read_bytes()).decode()}


@functools.cache
def own_compiler(cuda: bool) -> toolchain.Tool:
    """The compiler of this machine, looked for once. Raises ToolMissing."""
    return toolchain.find_nvcc() if cuda else toolchain.find_cxx()


@dataclass(frozen=True, slots=True)
class _Made:
    """What comes back: an object file in base 64, or why there is none."""

    object: str = ""
    problem: str = ""


def _read(document: Any, args: Job) -> CompileError | None:
    job, folder, timeout = args
    made = codec.checked(document, _Made)
    content = base64.b64decode(made.object, validate=True)
    if made.problem:  # told with the command that was to run here
        return _compile(job, folder, timeout)
    if not content.startswith(b"\x7fELF"):
        raise ValueError(f"{job.object} is no object file")
    (folder / job.object).write_bytes(content)
    return None


COMPILE = Kind(
    f"{__name__}:COMPILE",
    _compile,
    _elsewhere,
    _read,
    packed=_packed,
    needs=lambda job, *_: (job.compiler,),
    program=True,
)


class ObjectCache:
    """Object files, and libraries linked of them, by the hash of all that goes into them: source, headers or objects, command
    and compiler version.

    Who can write an object file can run code in the library: a cache that others may write to is not used, nor is an
    object that this user's mirage did not make (the folder may have come with somebody's model).
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.secret = result_store.secret(result_store.PROGRAMS_SECRET) if result_store.private(root) else None
        if self.secret is not None:
            staging.sweep(root)
        self.headers = digest_tree(folder / "include")

    def key(self, job: CompileJob) -> str:
        """The name under which the job's object is kept."""
        source = hashlib.sha256((self.folder / job.source).read_bytes()).hexdigest()
        text = json.dumps([1, source, self.headers, list(job.command), job.tool])
        return hashlib.sha256(text.encode()).hexdigest()

    def link_key(self, command: Sequence[str], tool: str, inputs: Sequence[str]) -> str:
        """The name under which a library linked from these files of the folder is kept."""
        digests = [hashlib.sha256((self.folder / name).read_bytes()).hexdigest() for name in inputs]
        return hashlib.sha256(json.dumps(["link", list(command), tool, digests]).encode()).hexdigest()

    def fetch(self, key: str, target: Path) -> bool:
        """Copy a kept object to `target`; False where there is none."""
        if self.secret is None:
            return False
        try:
            content = result_store.opened(
                self.secret, key, rawfile.content(self.root / f"{key}.o", result_store.LARGEST)
            )
            if content is not None:
                target.write_bytes(content)
        except OSError:
            return False
        return content is not None

    def put(self, key: str, built: Path) -> None:
        """Keep an object; a cache that cannot be written to is no failure."""
        if self.secret is None:
            return
        try:
            staging.put(self.root / f"{key}.o", result_store.sealed(self.secret, key, built.read_bytes()))
        except OSError as error:
            _log.warning("object cache %s: %s", self.root, error)


def digest_tree(folder: Path, pattern: str = "*") -> str:
    """A hash of the names and contents of all files below a folder, or of those that match a pattern."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob(pattern) if p.is_file()):
        digest.update(json.dumps([path.relative_to(folder).as_posix(), path.stat().st_size]).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
