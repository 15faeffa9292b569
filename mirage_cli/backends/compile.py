"""Compiling many sources at once, with a cache of object files."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shlex
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mirage_cli.errors import CompileError
from mirage_cli.files import rawfile, result_store, staging
from mirage_cli.processes import programs

TIMEOUT = 300.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompileJob:
    """One compilation: `command` runs in the source folder, reads `source` and writes `object` there.

    `fragment` says whose failure it is; `tool` is the compiler's version, a part of the cache key.
    """

    fragment: str
    source: str
    object: str
    command: tuple[str, ...]
    tool: str


def default_workers() -> int:
    """As many compilations at once as this process may use processors."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compile_objects(
    jobs: Sequence[CompileJob],
    folder: Path,
    workers: int | None = None,
    timeout: float = TIMEOUT,
    cache: Path | None = None,
    progress: Callable[[CompileJob], None] | None = None,
) -> dict[CompileJob, CompileError]:
    """Run all jobs in `folder`; returns the failures. One that fails does not stop the others."""
    store = ObjectCache(cache, folder) if cache is not None else None
    cancel = threading.Event()

    def work(job: CompileJob) -> CompileError | None:
        failure = _compile(job, folder, timeout, store, cancel)
        if progress is not None:
            progress(job)
        return failure

    with ThreadPoolExecutor(workers or default_workers()) as pool:
        try:
            futures = [pool.submit(work, job) for job in jobs]
            results = [future.result() for future in futures]
        except BaseException:
            cancel.set()
            pool.shutdown(cancel_futures=True)
            raise
    return {job: failure for job, failure in zip(jobs, results, strict=True) if failure is not None}


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
    job: CompileJob, folder: Path, timeout: float, store: ObjectCache | None, cancel: threading.Event
) -> CompileError | None:
    key = store.key(job) if store is not None else ""
    if store is not None and store.fetch(key, folder / job.object):
        return None
    what = f"src/{job.source} does not compile"
    failure, _ = run_command(job.command, what, folder, timeout, cancel)
    if failure is None and not (folder / job.object).is_file():
        return CompileError(f"{what}: {job.command[0]} told of no error and wrote no {job.object}")
    if failure is None and store is not None:
        store.put(key, folder / job.object)
    return failure


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
