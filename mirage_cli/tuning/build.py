"""Candidates made into libraries: rendered, compiled at the same time, several in a module, linked one by one."""

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
TOGETHER = 4  #: sources of a module at most: reading the headers takes ten times as long as a usual kernel
SHARES = 2  #: fragments among which the processors are shared, about


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
        new: dict[int, _Unit] = {}
        for k, c in enumerate(candidates, self._count):
            own = f"{self.identifier}x{k}x"
            source = isolation.attempt(rendered, (own, self.program, c.graph, c.schedules, self.target, self.passes))
            if isinstance(source, Lost):
                built.append(f"{REFUSED}{source.reason}")
                continue
            code = "\n".join(line for line in source.text.splitlines() if not line.startswith("//"))
            if (nameless := code.replace(own, "")) in self._seen:
                built.append(f"{REFUSED}the same code as an earlier candidate")
                continue
            self._seen.add(nameless)
            new[len(built)] = _Unit(own, f"candidate{k}", source.text)
            built.append(self.folder / f"candidate{k}.so")
        self._count += len(candidates)
        problems = self._made([*new.values()])
        return [problems.get(new[k], b) if k in new else b for k, b in enumerate(built)]

    def _made(self, units: Sequence[_Unit]) -> dict[_Unit, str]:
        """Compile sources, several in a module, for which the headers are read once, and link a library of each; the problems
        of those that fail. Sources of a module that does not compile are compiled alone."""
        size = max(1, min(TOGETHER, -(-len(units) // max(self.settings.workers // SHARES, 1))))
        modules = [units[k : k + size] for k in range(0, len(units), size)]
        failed = self._compiled(modules)
        alone = [[u] for m in modules if len(m) > 1 and m[0] in failed for u in m]
        failed = {u: e for u, e in failed.items() if [u] not in alone} | self._compiled(alone)
        objects = {u: m[0].name for m in (*modules, *alone) for u in m}
        linked = [u for u in units if u not in failed]
        with ThreadPoolExecutor(self.settings.workers) as pool:
            errors = [*pool.map(lambda u: self._link(u, f"build/{objects[u]}.cuda.o"), linked)]
        failed |= {u: e for u, e in zip(linked, errors, strict=True) if e}
        return {u: f"it does not compile: {e}" for u, e in failed.items()}

    def _compiled(self, modules: Sequence[Sequence[_Unit]]) -> dict[_Unit, str]:
        """Compile modules, named after their first sources; the problems of all sources of those that fail."""
        jobs: dict[CompileJob, Sequence[_Unit]] = {}
        for units in modules:
            (self.folder / f"{units[0].name}.cu").write_text(_module(units), encoding="utf-8")
            (job,) = cuda.jobs(self.settings.nvcc, units[0].name, [self.settings.architecture])
            jobs[job] = units
        settings = self.settings
        failed = compile_objects([*jobs], self.folder, settings.workers, SECONDS, settings.cache)
        return {u: str(e) for job, e in failed.items() for u in jobs[job]}

    def _link(self, unit: _Unit, compiled: str) -> str:
        """A library with the functions of one source under the fragment's names."""
        library = f"{unit.name}.so"
        named = (f"mirage_{self.identifier}{end}=mirage_{unit.own}{end}" for end in ("", "_workspace"))
        flags = [part for name in named for part in ("-Xlinker", f"--defsym={name}")]
        command = cuda.link_command(self.settings.nvcc, [compiled], library, [self.settings.architecture])
        error, _ = run_command([*command, *flags], f"{library} does not link", self.folder, SECONDS)
        return str(error) if error else ""


@dataclass(frozen=True, slots=True)
class _Unit:
    """The source of a candidate: the identifier that its names have, that of its files, and the text."""

    own: str
    name: str
    text: str


def _module(units: Sequence[_Unit]) -> str:
    """A source with those of candidates, each in a namespace of its own."""
    if len(units) == 1:
        return units[0].text
    lines = [unit.text.splitlines() for unit in units]
    included = dict.fromkeys(line for text in lines for line in text if line.startswith("#include"))
    bodies = ("\n".join(line for line in text if not line.startswith("#include")) for text in lines)
    spaces = [f"namespace {u.name} {{\n{body}\n}}" for u, body in zip(units, bodies, strict=True)]
    return "\n".join([*included, *spaces, ""])
