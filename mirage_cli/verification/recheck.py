"""The stages of `mirage verify` (story.py) that read models, prove, render and run."""

from __future__ import annotations

import importlib.util
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from mirage_cli import frontends
from mirage_cli.backends import cache_rows, torch_library
from mirage_cli.backends.library import HEADER, TABLES, source_digests, tables
from mirage_cli.backends.others import KINDS
from mirage_cli.backends.spec import OperatorSpec
from mirage_cli.checks import derivation, kernel_check, stated_program
from mirage_cli.checks.kernel_check import CheckJob, FloatCheck
from mirage_cli.checks.model_runs import Arrays, Job, Place, ScriptJob, Task
from mirage_cli.codegen.cache_rows import CacheRows
from mirage_cli.codegen.render import include_dir
from mirage_cli.errors import MirageError, ModelError
from mirage_cli.files.output import LIBRARY, MODEL, MUGRAPHS, SCRIPT, SOURCES
from mirage_cli.files.rawfile import held
from mirage_cli.frontends import Imported
from mirage_cli.frontends.onnx.traversal import all_nodes
from mirage_cli.frontends.torchscript import modules
from mirage_cli.kernel_proof.prove import prove
from mirage_cli.kernels import trust
from mirage_cli.lax.ir.program import Program
from mirage_cli.options import dims
from mirage_cli.patching import patch
from mirage_cli.planning.plan import rendered as rendered_again
from mirage_cli.processes import isolation
from mirage_cli.report.stages import Progress
from mirage_cli.runtime import given
from mirage_cli.search.proof.verify import Verdict
from mirage_cli.verification import bisection, model_case, output_folder
from mirage_cli.verification.bisection import Case
from mirage_cli.verification.findings import Verification, VerifyOptions
from mirage_cli.verification.model_case import Models, Refusal, judge, not_compared
from mirage_cli.verification.output_folder import (
    Fragment,
    against_original,
    asked_sizes,
    check_job,
    check_pair,
    fragments,
    operators_beside,
    told_sizes,
)

OTHER_SEED = 1_000_000  #: added to the seed, so that the points of proofs are not those of the run that is checked
_SUFFIX = {"cpu": ".cpp", "cuda": ".cu"} | {kind: f".{kind}" for kind in KINDS}


@dataclass(slots=True)
class Recheck:
    """One verification, of an output folder or of two models (story.py)."""

    folder: Path
    library: Path
    options: VerifyOptions
    progress: Progress
    originals: Place
    kernels: Place
    name: str = MODEL
    result: Verification = field(default_factory=Verification)
    report: dict[str, Any] = field(default_factory=dict)  #: of the folder, once its files were looked at
    fragments: list[Fragment] = field(default_factory=list)
    beside: list[CacheRows] = field(default_factory=list)  #: operators that no program stands for
    programs: dict[str, Program] = field(default_factory=dict)  #: that the model states, by fragment
    shown: dict[str, kernel_check.Arrays] = field(default_factory=dict)  #: inputs that a kernel failed on, by fragment
    odd: list[onnx.NodeProto] = field(default_factory=list)  #: operators that bisection found
    rendered: dict[str, bytes] = field(default_factory=dict)  #: sources by their names in src/
    other: Case | None = None  #: the inputs by which other branches of the model run
    rebuilt: str = ""  #: why the library is not loaded, but one that was built anew from these sources
    entropy: str = field(default_factory=lambda: secrets.token_hex(16))  #: that proofs' random points come from
    start: float = field(default_factory=time.perf_counter)

    @property
    def seed(self) -> int:
        """Where the random points of proofs start."""
        return OTHER_SEED + self.options.seed

    # --- the two stories ------------------------------------------------------------------------------------------------
    def folder_run(self) -> Verification:
        """Steps 2 to 6 for an output folder."""
        try:
            model, imported = self.read()
        except ModelError as error:
            self.result.add("model", self.name, str(error))
            return self.done()
        self.progress.step(str(self.folder / self.name))
        self.fragments = list(fragments(self.folder, model, self.report, self.result))
        self.beside = operators_beside(model, self.result)
        original = self.original()
        self.functions(imported, original)
        self.proofs()
        self.sources()
        with tempfile.TemporaryDirectory(prefix="mirage-verify-") as place:
            self.choose_library(Path(place))
            self.run_all(model, imported, original, self.kernel_jobs(model, imported))
        return self.done()

    def pair_run(self, path: Path) -> Verification:
        """Steps 3 and 4 for the muGraphs beside a patched model, and 6. Raises ModelError and UsageError."""
        self.progress.stage("read", 2)
        shapes = self.options.shape if modules.is_script(path) else ()
        original = frontends.load(str(path), output_folder.reading(self.options, shapes, {}))
        self.progress.step(str(path))
        model, imported = self.read()
        self.progress.step(str(self.folder / self.name))
        check_pair(path, original, self.folder / self.name, imported)
        told = self.kernels.do(self.library)
        if isinstance(told, isolation.Lost):
            raise ModelError(told.reason)
        if (self.folder / MUGRAPHS).is_dir():
            self.fragments = list(fragments(self.folder, model, {}, self.result))
            self.functions(imported, original)
            self.proofs()
        self.run_all(model, imported, original, [])
        return self.done()

    def done(self) -> Verification:
        """The findings, with the seconds they took."""
        self.result.seconds = time.perf_counter() - self.start
        return self.result

    def read(self) -> tuple[onnx.ModelProto, Imported]:
        """The patched model as it is stored, and as the front end reads it (with functions inlined)."""
        model = output_folder.read_model(self.folder / self.name)
        return model, frontends.load(str(self.folder / self.name))

    # --- 2. models ------------------------------------------------------------------------------------------------------
    def original(self) -> Imported | None:
        """The original model, if the file that report.json names is still the same."""
        if not self.report:
            return None
        told, options = self.report["model"], self.report["options"]
        path, digest = told["path"], told["sha256"]
        instead = "its place is taken by the functions"
        trusted = self.options.trust_library or trust.is_own(self.folder, self.report)
        missing, script = not Path(path).is_file(), modules.is_script(path)
        if missing or (script and not trusted):
            why = "not there" if missing else "a program, which this folder alone names"
            self.result.notes.append(f"the original model {path} is {why}: {instead}")
            return None
        changed = f"the original model {path} has changed since: {instead}"
        if script and trust.hashed(Path(path)) != digest:  # before it runs
            self.result.notes.append(changed)
            return None
        try:
            numbers, shapes = dims.numbers(dims.parse(options["dim"])), options["shape"]
            imported = frontends.load(path, output_folder.reading(self.options, shapes, numbers))
        except MirageError as error:
            self.result.notes.append(f"the original model cannot be read: {error}")
            return None
        if imported.sha256 != digest or imported.external != told["external_data"]:
            self.result.notes.append(changed)
            return None
        return imported

    # --- 3. functions ---------------------------------------------------------------------------------------------------
    def functions(self, imported: Imported, original: Imported | None) -> None:
        """The programs that the model states at every place of every fragment, against the muGraph files' programs. What these
        take for inputs that no kernel writes are inputs of the model (`check_constants`): that nobody writes them is
        the promise of whoever calls it."""
        promised = {n.input[k] for f in self.fragments for n in f.nodes for k in f.unwritten}
        for model in (imported, original):
            if model is not None:
                model.graph.declare_unwritten(promised)
        for f in self.fragments:
            try:
                programs = [f.program(imported, n) for n in f.nodes]
            except MirageError as error:
                self.result.add("function", f.op_type, f"the function states no such program: {error}")
                continue
            own = [derivation.named_as(p, f.stored.program) for p in programs]
            other = [n for n, p in zip(f.nodes, own, strict=True) if p.key() != f.stored.program.key()]
            problem = f"the function states another program than {f.file}, at node {other[0].name}" if other else ""
            said = stated_program.statement(
                imported, programs[0], f"{self.entropy}, seed {self.seed}", self.options.confidence
            )
            problem = problem or f"its nodes are not proved to mean this program: {said.reason}" * (not said.passed)
            self.programs[f.id] = own[0]
            if self.result.add("function", f.op_type, problem) and original is not None:
                self.result.add("original", f.op_type, against_original(f, original))

    # --- 4. proofs ------------------------------------------------------------------------------------------------------
    def proofs(self) -> None:
        """Prove every muGraph again, against the program that the model states where there is one."""
        jobs, places = [], []
        for f in self.fragments:
            for way in f.stored.ways:
                try:
                    for kernel, schedule in zip(way.graph.kernels, way.schedules, strict=True):
                        schedule.validate(kernel.block)
                    target = f.stored.target_of(way)
                except (MirageError, ValueError) as error:
                    self.result.add("proof", f.file, f"{way.kind}{way.where}: the schedule does not fit: {error}")
                    continue
                program = self.programs.get(f.id, f.stored.program)
                how = (f.stored.passes, self.seed, self.options.confidence, self.entropy)
                jobs.append((program, way.graph, way.schedules, target, *how))
                places.append((f, way.kind, way.where))
        self.progress.stage("prove", len(jobs))
        verdicts: dict[int, Verdict | isolation.Lost] = dict(isolation.each(prove, jobs, self.options.jobs))
        for k, (f, kind, where) in enumerate(places):
            self._proved(f, kind, where, verdicts[k])
            self.progress.step(f"{f.op_type} {kind}{where}")

    def _proved(self, f: Fragment, kind: str, where: str, verdict: Verdict | isolation.Lost) -> None:
        if isinstance(verdict, isolation.Lost):
            self.result.add("proof", f.file, f"{kind}{where}: {verdict.reason}", target=kind)
            return
        problem, kernels = "", verdict.kernels
        if not verdict.passed:
            problem = f"{kind}{where}: the muGraph is not equal to the function: {verdict.reason}"
        elif kernels is not None and kernels.refuted:
            problem = f"{kind}{where}: the kernels do not compute the muGraph: {kernels.reason}"
        text = f"{f.op_type} {kind}{where}, wrong with probability below 2^{verdict.log2_bound:.1f}"
        self.result.add("proof", f.file, problem, text, target=kind, verdict=verdict.to_json())

    # --- 5. sources, library, kernels -----------------------------------------------------------------------------------
    def sources(self) -> None:
        """Render everything again and compare it with src/ byte by byte."""
        for f in self.fragments:
            for kind, (_, graph, schedules) in f.stored.targets.items():
                try:
                    rest = (f.stored.target(kind), f.stored.passes, f.stored.others[kind])
                    text = rendered_again(f.id, f.stored.program, graph, schedules, *rest).text
                    self.rendered[f"{f.id}{_SUFFIX.get(kind, '.txt')}"] = text.encode()
                except (MirageError, KeyError, ValueError, IndexError) as error:
                    self.result.add("source", f.file, f"{kind}: the muGraph cannot be rendered: {error}")
        kinds = {kind for f in self.fragments for kind in f.stored.targets}
        for rows in self.beside:
            texts = zip(("cpu", "cuda"), rows.texts(), strict=True)
            self.rendered |= {f"{rows.id}{_SUFFIX[k]}": t.encode() for k, t in texts if k == "cpu" or k in kinds}
        for name, content in sorted(self.rendered.items()):
            self.same(f"{SOURCES}/{name}", content)
        if self.fragments and all(f.passed for f in self.result.of("model")):
            self.tables(self.rendered)
            for path in sorted(p for p in include_dir().rglob("*") if p.is_file()):
                self.same(f"{SOURCES}/include/{path.relative_to(include_dir()).as_posix()}", path.read_bytes())

    def tables(self, rendered: Mapping[str, bytes]) -> None:
        """Compare library.cpp and mirage.h; of sources that are not those rendered, library.cpp may have either's hash."""
        with_cpu, with_cuda = ({Path(n).stem for n in rendered if n.endswith(s)} for s in (".cpp", ".cu"))
        order = {name: k for k, name in enumerate(self.report_order())}
        own = sorted((f.spec for f in self.fragments), key=lambda s: order.get(s.id, len(order)))
        specs = [*own, *self.specs_beside()]
        there = {n: held(self.folder / SOURCES / n) or c for n, c in rendered.items()}
        texts = [tables(specs, with_cpu, with_cuda, source_digests(r)) for r in (rendered, there)]
        self.same(f"{SOURCES}/{TABLES}", *(text.encode() for text, _ in texts))
        self.same(HEADER, texts[0][1].encode())
        if (self.folder / torch_library.LIBRARY).is_file():
            text = torch_library.source(specs, with_cpu, with_cuda)
            self.same(f"{SOURCES}/{torch_library.SOURCE}", text.encode())

    def specs_beside(self) -> list[OperatorSpec]:
        """The operators that no program stands for, as the library has them."""
        cuda = any(f.spec.has_cuda for f in self.fragments)
        return [cache_rows.spec(rows, cuda) for rows in self.beside]

    def report_order(self) -> list[str]:
        """The fragments in the order in which the library has them."""
        return [f["id"] for f in self.report.get("fragments", ())]

    def same(self, name: str, *wanted: bytes) -> None:
        """Take down whether a file is one of those wanted."""
        held_hash = held(self.folder / name)
        problem = "" if held_hash in wanted else "the file is not what its muGraph gives"
        self.result.add("source", name, "the file is missing" if held_hash is None else problem)

    def choose_library(self, place: Path) -> None:
        """Take a library that is built anew in the place of one that this user's mirage did not build."""
        if self.library.exists() and not self.options.trust_library and not trust.is_own(self.folder, self.report):
            self.rebuilt, self.library = trust.UNKNOWN, place / LIBRARY
            specs = [*(f.spec for f in self.fragments), *self.specs_beside()]
            self.result.notes.append(trust.rebuilt(specs, self.rendered, place, self.options.jobs))

    def kernel_jobs(self, model: onnx.ModelProto, imported: Imported) -> list[tuple[Fragment, CheckJob]]:
        """The float checks of the CPU kernels of fragments whose functions are understood, on the inputs that `optimize` made
        if the seed is 0: what it let pass passes again."""
        ready, told = [], self.report.get("options") or {}
        limits = imported.limits({name: (r.low, r.high) for name, r in dims.parse(told.get("dim", ())).items()})
        seed = max(0, told.get("seed", 0)) + self.options.seed
        for f in self.fragments:
            if f.id not in self.programs or "cpu" not in f.stored.targets:
                continue
            try:
                program = self.programs[f.id]
                ready.append((f, check_job(f, program, model, self.folder, self.library, imported, seed, limits)))
            except MirageError as error:
                self.result.add("kernel", f.op_type, f"the kernel cannot be run: {error}")
        return ready

    def built_from(self, told: str | isolation.Lost, operators: Sequence[str]) -> None:
        """Compare the hashes that are part of the library with the sources in the folder and the model's operators."""
        if isinstance(told, isolation.Lost):
            self.result.add("library", self.library.name, told.reason)
            return
        sources = dict(line.split() for line in told.splitlines())
        kernels = {Path(name).stem for name in sources}
        problems = [f"it has no kernel of {o}" for o in operators if o.rpartition("_")[2] not in kernels]
        src = self.folder / SOURCES
        if self.library.absolute().parent == self.folder.absolute() and src.is_dir():
            others = (TABLES, torch_library.SOURCE)
            paths = [p for p in src.iterdir() if p.suffix in _SUFFIX.values() and p.name not in others]
            wanted = dict(line.split() for line in source_digests({p.name: held(p) or b"" for p in paths}))
            problems += [
                f"it was not built from {SOURCES}/{name} as it is there"
                for name in sorted(wanted.keys() | sources.keys())
                if wanted.get(name) != sources.get(name)
            ]
        for problem in problems or [""]:
            self.result.add("library", self.library.name, problem)

    def _agrees(self, f: Fragment, outcome: FloatCheck | isolation.Lost | None) -> None:
        if isinstance(outcome, isolation.Lost):
            self.result.add("kernel", f.op_type, outcome.reason)
        elif outcome is None:
            self.result.add("kernel", f.op_type, f"{LIBRARY} has no CPU kernel of it")
        elif outcome.passed:
            text = f"{outcome.case}: {outcome.worst}" if outcome.worst else f"not run: {outcome.skipped}"
            self.result.add("kernel", f.op_type, "", text, float=outcome.to_json())
        else:
            problem = outcome.reason if outcome.parted else f"the kernel is {outcome.reason}"
            self.result.add("kernel", f.op_type, problem, float=outcome.to_json())

    # --- 6. outputs, and everything that runs ---------------------------------------------------------------------------
    def run_all(
        self,
        model: onnx.ModelProto,
        imported: Imported,
        original: Imported | None,
        kernels: list[tuple[Fragment, CheckJob]],
    ) -> None:
        """Everything for which the library is loaded, in one process, and what it is compared with."""
        comparison = self.case(model, imported, original)
        case = comparison if isinstance(comparison, Case) else None
        operators = sorted({n.op_type for n in all_nodes(model.graph.node) if n.domain == patch.DOMAIN})
        uses = (bool(operators) or self.library.exists()) and (not self.rebuilt or self.library.exists())
        if self.rebuilt:
            self.result.add("library", LIBRARY, self.rebuilt)
            kernels = kernels if uses else []
        jobs: list[Task] = [self.library, *(job for _, job in kernels)] if uses else []
        if comparison is not None and uses:
            jobs.append(
                Job(str(self.folder / self.name), comparison.inputs, self.library, seconds=self.options.timeout)
            )
        self.progress.stage("check", len(jobs))
        done = [self.done_apart(task) for task in jobs]
        if uses and not self.rebuilt:
            self.built_from(done[0], operators)
        for (f, job), outcome in zip(kernels, done[1:], strict=False):
            self._agrees(f, outcome)
            if isinstance(outcome, FloatCheck) and not outcome.passed and not job.program.symbols:
                self.shown[f.id] = kernel_check.failing_inputs(job, outcome)
        if case is not None and uses:
            self.with_library(case, done[-1])
            if self.other is not None:
                turned = Job(
                    str(self.folder / self.name), self.other.inputs, self.library, seconds=self.options.timeout
                )
                self.with_library(self.other, self.kernels.do(turned), f", {model_case.TURNED}")
        elif isinstance(comparison, Refusal):
            not_compared(comparison, done[-1] if uses else None, self.name, self.result)
        if case is not None and (self.folder / SCRIPT).is_file():
            self.script(case, bisection.output_names(imported), bool(operators))
        if self.options.save_failing is not None and not self.result.passed and case is not None:
            self.save(case)

    def case(self, model: onnx.ModelProto, imported: Imported, original: Imported | None) -> Case | Refusal | None:
        """Inputs, what the original makes of them, and a float64 run; the model without the library is judged here."""
        # what does not fit the model is an error and no finding
        asked = asked_sizes(imported, self.options)
        path = self.folder / self.name
        inputs = None if self.options.inputs is None else given.read(self.options.inputs, model)
        models = Models(model, imported, path, self.library, original, self.originals, self.options.timeout)
        found = model_case.chosen(models, told_sizes(self.report), asked, self.seed, inputs, self.result)
        if isinstance(found, Case) and inputs is None:
            self.other = model_case.turned(models, found, self.result)
        return found

    def with_library(self, case: Case, found: Arrays | isolation.Lost, how: str = "") -> None:
        """Judge the outputs of the patched model with its library; find the operator that differs when asked to. `how` says
        what is particular about the inputs."""
        differs = True
        if isinstance(found, isolation.Lost):
            self.result.add("outputs", self.name, f"it does not run with the library{how}: {found.reason}")
        else:
            compared = case.compared(found, lambda x: self.run(Job(str(case.path), x, self.library)))
            judge(f"with the library{how}", compared, self.result)
            self.result.outputs += [replace(c, output=f"{c.output}{how}") for c in compared]
            differs = not all(c.accuracy.passed for c in compared)
        if self.options.bisect and differs:
            self.odd = bisection.bisect(case, self.run)
            for n in self.odd:
                self.result.add("outputs", n.op_type, f"the kernel makes the outputs differ, at node {n.name}")

    def script(self, case: Case, outputs: tuple[str, ...], uses: bool) -> None:
        """Judge the outputs of the patched TorchScript module."""
        name = SCRIPT
        if not self.options.trust_library and not trust.is_own(self.folder, self.report):
            self.result.notes.append(f"{name} is not run: it is a program that this user's mirage did not write")
            return
        if importlib.util.find_spec("torch") is None:
            self.result.notes.append(f"{name} is not run: torch is not installed ({modules.INSTALL})")
            return
        library = self.folder / torch_library.LIBRARY if uses else None

        def run(inputs: Arrays) -> Arrays:
            return self.kernels.arrays(ScriptJob(str(self.folder / name), inputs, outputs, library))

        try:
            compared = case.compared(run(case.inputs), run)
        except MirageError as error:
            self.result.add("torchscript", name, f"it does not run: {error}")
            return
        for c in compared:
            self.result.add("torchscript", name, "" if c.accuracy.passed else str(c), str(c))

    def save(self, case: Case) -> None:
        """Keep what failed."""
        assert self.options.save_failing is not None
        node = self.odd[0] if self.odd else self.suspect(case)
        shown: Arrays = {}
        if node is not None:
            failed = self.shown.get(node.op_type.rpartition("_")[2], {})
            shown = {node.input[k]: a for k, a in failed.items()}
        bisection.save(case, node, shown, Path(self.options.save_failing), self.run)
        self.result.saved = self.options.save_failing

    def suspect(self, case: Case) -> onnx.NodeProto | None:
        """An operator of the first fragment that a finding names."""
        for f in self.fragments:
            names = {f.op_type, f.file, *(f"{SOURCES}/{f.id}{s}" for s in _SUFFIX.values())}
            if names & set(self.result.culprits):
                return f.nodes[0]
        nodes = case.operators()
        return nodes[0] if len(nodes) == 1 else None

    # --- processes ------------------------------------------------------------------------------------------------------
    def done_apart(self, task: Task) -> Any:
        """The result (or Lost) of what runs code of the library."""
        result = self.kernels.do(task)
        self.progress.step(task.name if isinstance(task, Path) else "compare")
        return result

    def run(self, job: Job) -> Arrays:
        """The outputs of a model, with the library or without. Raises MirageError."""
        place = self.originals if job.library is None else self.kernels
        return place.arrays(replace(job, seconds=self.options.timeout))
