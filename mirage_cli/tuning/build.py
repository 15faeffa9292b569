"""Candidates made into libraries: rendered, compiled at the same time, linked one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from mirage_cli.backends import cuda
from mirage_cli.backends.compile import CompileJob, compile_objects, digest_tree, run_command
from mirage_cli.backends.library import EXPORTS
from mirage_cli.backends.toolchain import Tool
from mirage_cli.codegen import render
from mirage_cli.codegen.requests.passes import Passes
from mirage_cli.files import staging
from mirage_cli.lax.ir.program import Program
from mirage_cli.planning.plan import rendered
from mirage_cli.processes import isolation
from mirage_cli.processes.isolation import Lost
from mirage_cli.search.schedules.target import Target
from mirage_cli.search.search import Candidate
from mirage_cli.tuning.candidates import REFUSED, Built

SECONDS = 60.0  #: for one compilation: a kernel that takes longer is not worth waiting for


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a build: the compiler, architecture, compilations at a time, folder of kept objects."""

    nvcc: Tool
    architecture: str
    workers: int
    cache: Path | None


def version(nvcc: Tool) -> str:
    """The version of all that a kernel depends on beside its candidate: a hash of templates, code generation and the
    compiler's version."""
    folder = render.include_dir().parent
    code = Path(render.__file__).parents[1]
    parts = (digest_tree(folder / "include"), digest_tree(folder, "*.j2"), digest_tree(code, "*.py"), nvcc.version)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


@dataclass(slots=True)
class Workshop:
    """Builds candidates of one fragment in a folder of its own; each library holds one, under the fragment's name."""

    identifier: str
    program: Program
    target: Target
    passes: Passes
    folder: Path
    settings: Settings
    _count: int = field(default=0)
    _seen: set[str] = field(default_factory=set)  #: sources without their comments

    def build(self, candidates: Sequence[Candidate]) -> list[Built]:
        """A library for each candidate, or the reason why there is none."""
        if not self._count:
            staging.copy_tree(render.include_dir(), self.folder / "include")
            (self.folder / "build").mkdir(exist_ok=True)
            (self.folder / "exports.map").write_text(EXPORTS, encoding="utf-8")
        built: list[Built] = []
        jobs: dict[int, CompileJob] = {}
        for k, c in enumerate(candidates):
            request = (self.identifier, self.program, c.graph, c.schedules, self.target, self.passes)
            source = isolation.attempt(rendered, request)
            if isinstance(source, Lost):
                built.append(f"{REFUSED}{source.reason}")
                continue
            text = source.text
            code = "\n".join(line for line in text.splitlines() if not line.startswith("//"))
            if code in self._seen:
                built.append(f"{REFUSED}the same code as an earlier candidate")
                continue
            self._seen.add(code)
            name = f"candidate{self._count + k}"
            (self.folder / f"{name}.cu").write_text(text, encoding="utf-8")
            (jobs[k],) = cuda.jobs(self.settings.nvcc, name, [self.settings.architecture])
            built.append(self.folder / f"{name}.so")
        self._count += len(candidates)
        settings = self.settings
        failed = compile_objects([*jobs.values()], self.folder, settings.workers, SECONDS, settings.cache)
        with ThreadPoolExecutor(settings.workers) as pool:
            linked = pool.map(lambda k: str(failed[jobs[k]]) if jobs[k] in failed else self._link(jobs[k]), jobs)
            for k, problem in zip(jobs, linked, strict=True):
                if problem:
                    built[k] = f"it does not compile: {problem}"
        return built

    def _link(self, job: CompileJob) -> str:
        library = f"{job.fragment}.so"
        command = cuda.link_command(self.settings.nvcc, [job.object], library, [self.settings.architecture])
        error, _ = run_command(command, f"{library} does not link", self.folder, SECONDS)
        return str(error) if error else ""
