"""The inputs on which `mirage verify` compares whole models, and what the original makes of them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx

from mirage_cli.checks import whole_model
from mirage_cli.checks.model_runs import Arrays, Job, Place
from mirage_cli.errors import Crashed, MirageError, ModelError, Refused, UsageError
from mirage_cli.frontends import Imported
from mirage_cli.processes.isolation import Lost
from mirage_cli.runtime import example, running_sizes, sessions
from mirage_cli.runtime.example import example_inputs, with_caches
from mirage_cli.verification import bisection
from mirage_cli.verification.bisection import Case
from mirage_cli.verification.findings import Verification
from mirage_cli.verification.output_folder import external

BARE = "it does not run without the library"
STAND_IN = "onnxruntime's CPU lacks an operator of the original: its float64 run and our functions stand in for it"
TURNED = "truth values turned"
NO_MEMORY = ("bad_alloc", "allocate")  #: parts of what onnxruntime says where memory is short, which no inputs mend
MORE_INPUTS = "give it inputs that it takes: --inputs FILE.npz|FOLDER"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Inputs that the original refuses, with its reason."""

    inputs: Arrays
    reason: str


@dataclass(frozen=True, slots=True)
class Models:
    """Models to compare: the patched one (`model` as it is stored, its external data not loaded; `imported` as it was read),
    at `path`, with its `library`, and the `original`, in whose place the patched model's functions stand where it is None."""

    model: onnx.ModelProto
    imported: Imported
    path: Path
    library: Path
    original: Imported | None
    originals: Place
    seconds: float = 0

    def bare(self, inputs: Arrays, optimize: bool = True) -> Arrays:
        """The outputs of the patched model without the library. Raises MirageError."""
        return self.originals.arrays(Job(str(self.path), inputs, seconds=self.seconds, optimize=optimize))

    def own(self, inputs: Arrays) -> Arrays:
        """The outputs of the original, without onnxruntime's optimizations where it loads without them. Raises MirageError."""
        if self.original is None:
            return self.bare(inputs, optimize=False)
        try:
            return self.originals.arrays(bisection.original_job(self.original, inputs, self.seconds))
        except ModelError:
            return self.usual(inputs)

    def usual(self, inputs: Arrays) -> Arrays:
        """The outputs of the original as onnxruntime optimizes it. Raises MirageError."""
        if self.original is None:
            return self.bare(inputs)
        job = bisection.original_job(self.original, inputs, self.seconds)
        return self.originals.arrays(replace(job, optimize=True) if isinstance(job, Job) else job)

    def stated(self) -> whole_model.Stated:
        """Statements of the original's nodes: of the file that was given, else of the patched one."""
        if self.original is None:
            return whole_model.stated_by(self.model, str(self.path))
        return whole_model.stated(self.original)

    def parted(self, case: Case) -> str:
        """Where the original parts from what its nodes mean; nothing for one that onnxruntime does not run."""
        if (
            case.exact is None
            or case.stated is None
            or (self.original is not None and self.original.script is not None)
        ):
            return ""
        source = self.path if self.original is None else Path(self.original.path)

        def shown(data: bytes) -> Arrays:
            return self.originals.arrays(Job(data, case.inputs, None, source.parent, self.seconds, optimize=False))

        return case.stated.parted(case.inputs, case.original, case.exact, shown)


def chosen(
    models: Models,
    told: Mapping[str, int],
    asked: Mapping[str, int],
    seed: int,
    given: Arrays | None,
    result: Verification,
) -> Case | Refusal | None:
    """What `made` makes of sizes that are `told`, and those `asked` for; where nobody gave inputs and the original refuses
    those that were drawn, of other sizes than were asked for at which it runs."""
    sizes = {**within(models.original, told), **asked}
    sizes = sizes if models.original is None else models.original.of_original(sizes)
    first = made(models, sizes, seed, given, result)
    if given is not None or not isinstance(first, Refusal):
        return first
    other = other_sizes(models, sizes, asked, seed)
    if other is None:
        return first
    text = ", ".join(f"{n}={size}" for n, size in sorted(other.items()))
    result.notes.append(f"outputs are compared at {text}: the original refuses the sizes drawn first ({first.reason})")
    return made(models, other, seed, given, result)


def within(original: Imported | None, told: Mapping[str, int]) -> dict[str, int]:
    """The sizes that were `told`, and those of symbols that the model bounds, within the bounds."""
    if original is None:
        return dict(told)
    sizes = with_caches(original.model, told)
    for name, (low, high) in original.limits({}).items():
        size = max(sizes.get(name, example.usual(name)), low)
        sizes[name] = size if high is None else min(size, high)
    for name in original.same.values():
        sizes.setdefault(name, example.usual(name))
    return original.of_original(sizes)


def other_sizes(models: Models, sizes: Mapping[str, int], fixed: Mapping[str, int], seed: int) -> dict[str, int] | None:
    """Sizes of all symbols of the inputs at which the original runs, those `fixed` as they are; None where none are found."""
    if models.original is None:
        return None
    model, names = models.original.model, external(models.imported, {}).names
    known = with_caches(model, sizes)
    base = {n: known.get(n, example.usual(n)) for n in sorted(names)}
    free = {n: size for n, size in base.items() if n not in fixed and n not in models.original.same}
    until = perf_counter() + running_sizes.SECONDS
    for other in running_sizes.others(free):
        if perf_counter() > until:
            return None
        tried = models.original.of_original({**base, **other})
        if running_sizes.elements(model, tried) > running_sizes.MOST:
            continue
        try:
            models.own(example_inputs(models.imported.model, tried, seed))
        except MirageError:
            continue
        return tried
    return None


def made(
    models: Models, sizes: Mapping[str, int], seed: int, given: Arrays | None, result: Verification
) -> Case | Refusal | None:
    """The inputs (those that are `given`, else drawn ones), what the original makes of them, and a float64 run. What the
    original and the patched model without its library make of them is judged; None where a model does not run."""
    stated = models.stated()
    if models.original is not None:  # its nodes tell what caches are, the patched one's are taken apart
        sizes = with_caches(models.original.model, sizes)

    def drawn(k: int) -> tuple[Arrays, Arrays, Arrays | None]:
        inputs = given if given is not None else example_inputs(models.imported.model, sizes, seed + k)
        try:
            own = models.own(inputs)
        except ModelError as error:
            if models.original is None or not sessions.lacks_kernel(error):
                raise
            exact = stated.run(inputs, models.seconds)
            result.notes += [STAND_IN] if STAND_IN not in result.notes else []
            return inputs, models.bare(inputs, optimize=False), exact
        try:
            return inputs, own, stated.run(inputs, models.seconds)
        except MirageError as error:
            note = f"outputs are compared with the original's only: {error}"
            result.notes += [note] if note not in result.notes else []
            return inputs, own, None

    original = models.original
    where, who = (models.path.name, BARE) if original is None else (original.path, "the original does not run")
    try:
        first = drawn(0)
        again = drawn if given is None else None
        case = Case(models.model, models.path, models.library, *first, again, models.seconds, stated, models.usual)
        if parted := models.parted(case):
            result.add("reference", where, f"it computes something else than its nodes mean: {parted}")
        if original is not None:
            where, who = models.path.name, BARE
            judge("without the library", case.compared(models.bare(case.inputs), models.bare), result)
        return case
    except MirageError as error:
        if where != models.path.name or original is None:
            refusal = refused(models, sizes, seed, given, error, isinstance(error, Refused))
            if refusal is not None:
                return refusal
        result.add("outputs", where, f"{who}: {error}")
        result.notes += [error.hint] if isinstance(error, Crashed) else []
        return None


def turned(models: Models, case: Case, result: Verification) -> Case | None:
    """A case with the opposite truth values, so that other branches of `If` run, where the original runs on them; what the
    patched model makes of them without its library is judged. None for models without such inputs, or without branches."""
    inputs = {name: ~a if a.dtype == np.bool_ else a for name, a in case.inputs.items()}
    if not models.imported.branches or not any(a.dtype == np.bool_ for a in inputs.values()):
        return None
    try:
        original, exact = models.own(inputs), None
        with contextlib.suppress(MirageError):
            exact = models.stated().run(inputs, models.seconds)
        other = replace(case, inputs=inputs, original=original, exact=exact, redraw=None)
    except MirageError:
        return None
    try:
        judge(f"without the library, {TURNED}", other.compared(models.bare(inputs), models.bare), result)
    except MirageError as error:
        result.add("outputs", models.path.name, f"{BARE}, {TURNED}: {error}")
        return None
    return other


def refused(
    models: Models, sizes: Mapping[str, int], seed: int, given: Arrays | None, error: MirageError, stated: bool = False
) -> Refusal | None:
    """Inputs that the original refused, where its error says so, or where it is `stated`, the one of its float64 run. Raises
    UsageError for inputs that somebody gave."""
    if not (stated or str(error).startswith(sessions.FAILED)) or any(text in str(error).lower() for text in NO_MEMORY):
        return None
    if given is not None:
        raise UsageError(f"--inputs: the original refuses them: {error}")
    return Refusal(example_inputs(models.imported.model, sizes, seed), str(error))


def not_compared(refusal: Refusal, found: Arrays | Lost | None, name: str, result: Verification) -> None:
    """Take down that outputs were not compared, given what the patched model makes of the inputs that the original refuses."""
    if isinstance(found, Lost) and isinstance(found.error, Crashed):
        result.add("outputs", name, f"it ends the process on inputs that the original refuses: {found.reason}")
        return
    alike = "and so does the patched model" if isinstance(found, Lost) else "the patched model was not held against it"
    result.uncompared = f"the original refuses the inputs that were drawn, {alike} ({refusal.reason})"
    text = f"not compared: {result.uncompared}"
    result.add("outputs", name, "", text)
    result.notes.append(f"outputs were not compared: {MORE_INPUTS}")


def judge(which: str, compared: Sequence[whole_model.Compared], result: Verification) -> None:
    """Take down how outputs compare."""
    for c in compared:
        text = f"{which}: {c.text}"
        result.add("outputs", c.output, "" if c.accuracy.passed else text, text)
