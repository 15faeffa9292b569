"""One shared library of all fragments: sources written out, compiled, linked, and described in a C header.

The source folder is complete: `src/build.sh` rebuilds the library from it by hand, with the same commands.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mirage_cli.backends import cpu, cuda, others, shared_object
from mirage_cli.backends.compile import TIMEOUT, CompileJob, ObjectCache, compile_objects, run_command
from mirage_cli.backends.spec import KernelSource, OperatorSpec
from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.codegen import render
from mirage_cli.errors import CompileError, InvalidGraph
from mirage_cli.files import staging
from mirage_cli.files.output import LIBRARY
from mirage_cli.lax.extents import Extent
from mirage_cli.processes.jobs import Crew
from mirage_cli.search.schedules.architectures import default_architectures

HEADER = "mirage.h"
TABLES = "library.cpp"
EXPORT_MAP = "exports.map"
EXPORTS = "{ global: RegisterCustomOps; mirage_*; local: *; };\n"
_SCRIPT = """#!/bin/sh
# Builds ../libmirage.so from this folder, with the commands that were used.
set -eu
cd "$(dirname "$0")"
mkdir -p build
"""
_ELEMENTS = {"bool": "boolean"}  # names of ort::Element that are not those of lax.dtypes


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a build: architectures, parallel compilations, seconds for each, a folder of kept objects, who compiles
    (None: this machine)."""

    archs: tuple[str, ...] = field(default_factory=default_architectures)
    workers: int | None = None
    timeout: float = TIMEOUT
    cache: Path | None = None
    progress: Callable[[CompileJob], None] = lambda job: None
    crew: Crew | None = None


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The result of a build: `library` is None when no fragment was left; `failed` says why fragments were left out."""

    library: Path | None
    header: Path | None
    built: tuple[OperatorSpec, ...]
    failed: Mapping[str, CompileError]
    commands: tuple[tuple[str, ...], ...]


def build_library(
    operators: Sequence[OperatorSpec],
    sources: Mapping[str, KernelSource],
    folder: Path,
    toolchain: Toolchain,
    options: Options | None = None,
) -> BuildResult:
    """Build `folder`/libmirage.so, mirage.h and src/ from the kernels of `operators` (sources by fragment identifier).

    A fragment whose kernel does not compile or link is left out and reported; the caller must then leave its nodes
    as they were. Without nvcc in the toolchain the library holds CPU kernels only.
    """
    options = options or Options()
    _validate(operators, sources)
    jobs = {op.id: _jobs(op, sources[op.id], toolchain, options) for op in operators}
    shared = {op.id: cpu.shared_jobs(toolchain.cxx, sources[op.id].cpp or "") for op in operators}
    build = _Build(folder, toolchain, options, jobs, shared)
    build.write_sources(sources)
    failed = build.compile_kernels(operators)
    left = tuple(op for op in operators if op.id not in failed)
    commands: tuple[tuple[str, ...], ...] = ()
    while left:
        commands = build.write_tables(left)
        failed |= build.link(left, commands[-1])
        if all(op.id not in failed for op in left):
            break
        left = tuple(op for op in left if op.id not in failed)
    shutil.rmtree(build.src / "build")
    for fragment in failed:
        for suffix in (".cpp", ".cu", *(f".{kind}" for kind in others.KINDS)):
            (build.src / f"{fragment}{suffix}").unlink(missing_ok=True)
    if not left:
        return BuildResult(None, None, (), failed, ())
    return BuildResult(folder / LIBRARY, folder / HEADER, left, failed, commands)


@dataclass(frozen=True, slots=True)
class _Build:
    """The steps of one build."""

    folder: Path
    toolchain: Toolchain
    options: Options
    jobs: Mapping[str, list[CompileJob]]
    shared: Mapping[str, list[CompileJob]]  #: what kernels share with others

    @property
    def src(self) -> Path:
        return self.folder / "src"

    def has_cuda(self, op: OperatorSpec) -> bool:
        """True if the operator's CUDA kernel is part of this build."""
        return op.has_cuda and self.toolchain.nvcc is not None

    def write_sources(self, sources: Mapping[str, KernelSource]) -> None:
        """Write what is compiled: the kernels of this build and all headers."""
        staging.copy_tree(render.include_dir(), self.src / "include")
        (self.src / "build").mkdir(exist_ok=True)
        (self.src / EXPORT_MAP).write_text(EXPORTS)
        for job in (job for several in self.jobs.values() for job in several):
            source = sources[job.fragment]
            kind = job.source.rpartition(".")[2]
            text = source.others.get(kind) or (source.cu if kind == "cu" else source.cpp)
            (self.src / job.source).write_text(text or "", encoding="utf-8")

    def compile_kernels(self, operators: Sequence[OperatorSpec]) -> dict[str, CompileError]:
        """Compile the kernels of all operators; the failures by fragment."""
        missing = [op for op in operators if not self.jobs[op.id]]
        failed = {op.id: CompileError(f"{op.op_type} has a CUDA kernel only, and there is no nvcc") for op in missing}
        shared = self._shared(operators)
        jobs = [*shared, *(job for op in operators for job in self.jobs[op.id])]
        jobs.sort(key=lambda job: not job.source.endswith(".cu"))  # the longest first
        for job, error in self._compile(jobs).items():
            suffix = job.source.rpartition(".")[2]
            error.kind = {"cpp": "cpu", "cu": "cuda"}.get(suffix, suffix)
            for fragment in shared.get(job, [job.fragment]):
                failed.setdefault(fragment, error)
        return failed

    def _shared(self, operators: Sequence[OperatorSpec]) -> dict[CompileJob, list[str]]:
        """The compilations of what kernels share, with the fragments that need it."""
        readers: dict[CompileJob, list[str]] = {}
        for op in operators:
            for job in self.shared[op.id]:
                readers.setdefault(job, []).append(op.id)
        return readers

    def write_tables(self, operators: Sequence[OperatorSpec]) -> tuple[tuple[str, ...], ...]:
        """Write library.cpp and compile it and runtime.cpp, write mirage.h and build.sh; the commands of the whole build."""
        with_cpu = {op.id for op in operators if self._has_cpu(op)}
        with_cuda = {op.id for op in operators if self.has_cuda(op)}
        names = [*(f"{i}.cpp" for i in with_cpu), *(f"{i}.cu" for i in with_cuda)]
        names += [f"{op.id}.{kind}" for op in operators for kind in op.others]
        digests = source_digests({name: (self.src / name).read_bytes() for name in names})
        text, header = tables(operators, with_cpu, with_cuda, digests)
        (self.src / TABLES).write_text(text, encoding="utf-8")
        (self.folder / HEADER).write_text(header, encoding="utf-8")
        cuda_used = any(map(self.has_cuda, operators))
        own = cpu.library_jobs(self.toolchain.cxx, self.options.archs if cuda_used else (), others.used(operators))
        kernels = [*(job for op in operators for job in self.jobs[op.id]), *self._shared(operators)]
        # Of objects with the same inline function the first counts: lowest instruction set first (see cpu.py).
        order = {f".{isa}.o": rank for rank, isa in enumerate(cpu.isas())}
        objects = sorted(
            (job.object for job in kernels), key=lambda name: order.get(name[name.index(".") :], len(order))
        )
        link = self._link_command([*(job.object for job in own), *objects], cuda_used)
        link += others.link_flags(others.used(operators))
        commands = (*(job.command for job in (*kernels, *own)), link)
        script = self.src / "build.sh"
        script.write_text(_SCRIPT + "".join(f"{shlex.join(command)}\n" for command in commands), encoding="utf-8")
        script.chmod(0o755)
        for error in self._compile(own).values():
            raise error
        return commands

    def link(self, operators: Sequence[OperatorSpec], command: Sequence[str]) -> dict[str, CompileError]:
        """Link the library; the failure, if any, by the fragments that the linker names."""
        store, name, library = self._store(), "", self.folder / LIBRARY
        if store is not None:
            objects = [word for word in command if word.endswith(".o")]
            name = store.link_key(command, self._linker(command), [*objects, EXPORT_MAP])
            if store.fetch(name, library):
                library.chmod(0o755)
                return {}
        what = f"{LIBRARY} does not link"
        error, output = run_command(command, what, self.src, self.options.timeout)
        if error is None:
            broken = shared_object.problem(library)
            if broken is not None:
                raise CompileError(f"{what}: {command[0]}: {broken}")
            library.chmod(0o755)
            if store is not None:
                store.put(name, library)
            return {}
        named = [op.id for op in operators if re.search(rf"(mirage_|build/){op.id}(?![0-9A-Za-z])", output)]
        if not named:
            raise error
        return dict.fromkeys(named, error)

    def _store(self) -> ObjectCache | None:
        return ObjectCache(self.options.cache, self.src) if self.options.cache is not None else None

    def _linker(self, command: Sequence[str]) -> str:
        """The version of the compiler that links."""
        nvcc = self.toolchain.nvcc
        own = nvcc is not None and tuple(command[: len(nvcc.command)]) == nvcc.command
        return (
            f"{nvcc.version} {self.toolchain.cxx.version}" if nvcc is not None and own else self.toolchain.cxx.version
        )

    def _has_cpu(self, op: OperatorSpec) -> bool:
        return any(job.source.endswith(".cpp") for job in self.jobs[op.id])

    def _compile(self, jobs: Sequence[CompileJob]) -> dict[CompileJob, CompileError]:
        options = self.options
        return compile_objects(
            jobs, self.src, options.workers, options.timeout, options.cache, options.progress, options.crew
        )

    def _link_command(self, objects: Sequence[str], with_cuda: bool) -> tuple[str, ...]:
        library = f"../{LIBRARY}"
        if with_cuda and self.toolchain.nvcc is not None:
            return cuda.link_command(self.toolchain.nvcc, objects, library, self.options.archs)
        return cpu.link_command(self.toolchain.cxx, objects, library)


def tables(
    operators: Sequence[OperatorSpec], with_cpu: Collection[str], with_cuda: Collection[str], digests: Sequence[str]
) -> tuple[str, str]:
    """library.cpp and mirage.h for operators of which some have CPU and some CUDA kernels, by identifier.

    `digests` (see `source_digests`) become part of the library: they tell from what it was built.
    """
    described = [describe(op, op.id in with_cpu, op.id in with_cuda) for op in operators]
    registered = [(op.id, False) for op in operators if op.id in with_cpu]
    registered += [(op.id, True) for op in operators if op.id in with_cuda]
    text = render.render(f"{TABLES}.j2", operators=described, registrations=registered, sources=list(digests))
    return text, render.render(f"{HEADER}.j2", operators=described)


def source_digests(sources: Mapping[str, bytes]) -> list[str]:
    """A line `NAME SHA256` for each source file, sorted."""
    return [f"{name} {hashlib.sha256(content).hexdigest()}" for name, content in sorted(sources.items())]


def _validate(operators: Sequence[OperatorSpec], sources: Mapping[str, KernelSource]) -> None:
    for what, names in (("identifier", [op.id for op in operators]), ("name", [op.op_type for op in operators])):
        if len(set(names)) != len(names):
            raise InvalidGraph(f"two operators of a library have the same {what}")
    for op in operators:
        op.validate()
        source = sources.get(op.id)
        if source is None or (source.cpp is None and source.cu is None) or (op.has_cuda and source.cu is None):
            raise InvalidGraph(f"{op.op_type}: there is no source for one of its kernels")
        if any(kind not in source.others for kind in op.others):
            raise InvalidGraph(f"{op.op_type}: there is no source for one of its kernels")


def _jobs(op: OperatorSpec, source: KernelSource, toolchain: Toolchain, options: Options) -> list[CompileJob]:
    jobs = cpu.jobs(toolchain.cxx, op.id) if source.cpp is not None else []
    if op.has_cuda and toolchain.nvcc is not None:
        jobs += cuda.jobs(toolchain.nvcc, op.id, options.archs)
    return jobs + [job for kind in op.others for job in others.KINDS[kind].jobs(toolchain, op.id)]


def _factors(extent: Extent, index: Mapping[str, int]) -> tuple[int, list[int]]:
    """An extent as its factor and the numbers of its symbols."""
    return (extent, []) if isinstance(extent, int) else (extent.factor, [index[name] for name in extent.names])


def describe(op: OperatorSpec, has_cpu: bool, has_cuda: bool) -> dict[str, object]:
    """The operator as the templates print it: extents as (factor, symbol indices), one list for all tensors."""
    index = {name: i for i, name in enumerate(op.symbols)}
    room: list[tuple[int, ...]] = []
    if (r := op.room) is not None:
        room = [(index[r.symbol], 0, 0, 0), (index[r.symbol], index[r.least], r.input, index.get(r.more, -1))]
    tensors: list[dict[str, object]] = []
    dims: list[tuple[int, list[int]]] = []
    roles = [f"in[{i}]" for i in range(len(op.inputs))] + [f"out[{i}]" for i in range(len(op.outputs))]
    for tensor, role in zip(op.inputs + op.outputs, roles, strict=True):
        tensors.append(
            {
                "name": tensor.name,
                "element": _ELEMENTS.get(tensor.dtype.name, tensor.dtype.name),
                "rank": len(tensor.dims),
                "first": len(dims),
                "text": str(tensor),
                "role": role,
            }
        )
        dims += [_factors(d, index) for d in tensor.dims]
    return {
        "id": op.id,
        "name": op.op_type,
        "inputs": len(op.inputs),
        "tensors": tensors,
        "dims": dims,
        "symbols": op.symbols,
        "recoveries": [(index[step.symbol], step.input, step.dim, step.more) for step in op.recoveries()] + room[:1],
        "room": room[1] if room else (-1, -1, -1, -1),
        "least": [(*_factors(extent, index), least) for extent, least in op.least],
        "variants": [f"mirage_{op.id}_cpu_{isa}" for isa in cpu.isas()],
        "workspace_variants": [f"mirage_{op.id}_workspace_cpu_{isa}" for isa in cpu.isas()],
        "packings": f"mirage_{op.id}_packings_cpu_{cpu.isas()[0]}",
        "cpu": has_cpu,
        "cuda": has_cuda,
        "others": op.others,
    }
