"""The float check of a fragment: the built kernel against float64, beside what the original operators make of it.

Inputs are random and adversarial (large, tiny and constant values, masked rows); weights are the model's own. On random
inputs the accuracy rule holds as it is; on adversarial ones, where the order of a sum decides the error of the original
and of ours alike, its factor is `ILL_CONDITIONED`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli import runtime, windows
from mirage_cli.accuracy import ILL_CONDITIONED, Accuracy, compare
from mirage_cli.backends.spec import OperatorSpec, TensorSpec
from mirage_cli.errors import Refused
from mirage_cli.frontends import sizes
from mirage_cli.kernel import Kernel
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domain import Float64
from mirage_cli.lax.program import Program, Source, evaluate_program

Arrays = dict[int, NDArray[Any]]
Limits = Mapping[str, tuple[int, int | None]]  #: least and greatest value by symbol
Extra = NDArray[Any] | TensorSpec  #: a value, or the description of a tensor for which any will do
Runner = Callable[[Sequence[NDArray[Any]], Mapping[str, int]], Sequence[NDArray[Any]]]
MAX_WORK = 4e10  #: multiply-adds of the largest operator up to which float64 is affordable
MAX_ELEMENTS = 1 << 28  #: elements of the largest value
SYMBOL_VALUES = (5, 17, 3, 9)  #: what symbols are in the check
LONGER_VALUES = (70, 33, 129, 40)  #: what they are in the case "longer": more than one tile
CASES = ("random", "longer", "large", "tiny", "zero")
TYPICAL = "typical"  #: the name of a case of random inputs at sizes that a caller gives
PLAIN = ("random", "longer", TYPICAL)  #: the cases for which the accuracy rule holds as it is
_SCALES = {"random": 1.0, "longer": 1.0, "large": 30.0, "tiny": 1e-4, "zero": 0.0}


@dataclass(frozen=True, slots=True)
class FloatCheck:
    """The verdict over all cases: the worst accuracy, or why there was no check."""

    passed: bool
    worst: Accuracy | None
    case: str = ""
    skipped: str = ""

    def to_json(self) -> dict[str, Any]:
        """The report's `verification.float`."""
        if self.worst is None:
            return {"target": "cpu", "skipped": self.skipped}
        return {
            "target": "cpu",
            "passed": self.passed,
            "case": self.case,
            "error": self.worst.rmse,
            "original_error": self.worst.original_rmse,
            "max_error": self.worst.max_error,
            "original_max_error": self.worst.original_max_error,
            "note": self.worst.note,
        }


def too_large(program: Program, symbols: Mapping[str, int]) -> str:
    """Why a program is not evaluated in float64, or nothing."""
    size = {a.name: ex.value(a.extent, symbols) for a in program.axes}
    for n in program.nodes:
        axes = frozenset(n.over).union(*(program.axes_of(i) for i in n.inputs))
        work = float(np.prod([float(size[a]) for a in axes]))
        held = float(np.prod([float(size[a]) for a in program.axes_of(n.name)]))
        if work > MAX_WORK or held > MAX_ELEMENTS:
            return f"a value of {held:.1e} elements ({work:.1e} multiply-adds) is too large for a float64 run"
    return ""


def symbol_values(symbols: Sequence[str], case: str = "random", limits: Limits | None = None) -> dict[str, int]:
    """Numbers for symbols that fit each other (`past` and `(past+1)`), within `limits` (least and greatest by symbol)."""
    values = LONGER_VALUES if case == "longer" else SYMBOL_VALUES
    meant = {s: sizes.from_extent(ex.symbol(s)) for s in symbols}
    found: dict[str, int] = {}
    for k, s in enumerate(sorted({n for size in meant.values() for n in sizes.names(size)})):
        low, high = (limits or {}).get(s, (1, None))
        found[s] = max(low, values[k % len(values)] + k // len(values))
        found[s] = found[s] if high is None else min(high, found[s])
    numbers = {s: sizes.substitute(size, found) for s, size in meant.items()}
    return found | {s: n for s, n in numbers.items() if isinstance(n, int)}


def inputs(
    program: Program, case: str, seed: int, constants: Mapping[int, NDArray[Any]], symbols: Mapping[str, int]
) -> Arrays:
    """Arrays for the sources of a program; `constants` are taken as they are."""
    random = np.random.default_rng(seed)
    return {
        k: constants[k] if k in constants else draw(s, [ex.value(e, symbols) for e in s.dims], case, random)
        for k, s in enumerate(program.sources)
    }


def draw(source: Source, dims: Sequence[int], case: str, random: np.random.Generator) -> NDArray[Any]:
    """A random array for one source: normal numbers (scaled by the case), small integers, or truth values that leave no
    row without a true one."""
    shape = tuple(dims)
    if source.dtype.kind == "bool":
        truth = random.random(shape) < 0.7
        if truth.ndim:
            truth[..., 0] = True
        return np.asarray(truth)
    if source.dtype.kind == "int":
        return random.integers(0, 4, shape).astype(runtime.numpy_type(source.dtype))
    values = random.standard_normal(shape) * (_SCALES[case] if not source.constant else 1.0)
    return np.asarray(values).astype(runtime.numpy_type(source.dtype))


@dataclass(frozen=True, slots=True)
class CheckJob:
    """What a check needs, in a form that another process can take: the kernel's library and description, the original
    nodes as a model, its input names, weights by source number, values for tensors that only the model reads."""

    program: Program
    spec: OperatorSpec
    library: Path
    model: bytes
    names: tuple[str, ...]
    constants: dict[int, NDArray[Any]]
    extra: tuple[Extra, ...]
    seed: int
    limits: Limits


def run_job(job: CheckJob) -> FloatCheck | None:
    """Compare a built CPU kernel with float64; None when the library has no CPU kernel. Raises MirageError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = Kernel(job.library, job.spec)
    if not kernel.has("cpu"):
        return None
    return check(
        job.program,
        lambda arrays, symbols: kernel.run([*arrays, *extra_arrays(job, symbols)]),
        original_runner(job),
        job.constants,
        job.seed,
        job.limits,
        job.spec.symbols,
    )


def extra_arrays(job: CheckJob, symbols: Mapping[str, int]) -> list[NDArray[Any]]:
    """Arrays for the inputs that only the original nodes read."""
    return [
        e
        if isinstance(e, np.ndarray)
        else np.zeros([ex.value(d, symbols) for d in e.dims], runtime.numpy_type(e.dtype))
        for e in job.extra
    ]


def original_runner(job: CheckJob, provider: str = "cpu", device: int = 0) -> Runner:
    """The original nodes in onnxruntime, as they stand in the model."""
    session = runtime.session(job.model, provider=provider, optimize=False, device=device, exact=True)

    def original(arrays: Sequence[NDArray[Any]], symbols: Mapping[str, int]) -> list[NDArray[Any]]:
        found = runtime.run(session, dict(zip(job.names, [*arrays, *extra_arrays(job, symbols)], strict=True)))
        return [found[o.name] for o in job.program.outputs]

    return original


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs of a program in the order of its sources, what its symbols are, and for each output what the original made
    of them and the float64 result: of the whole program, or of its `windows` one after the other."""

    name: str
    arrays: tuple[NDArray[Any], ...]
    symbols: Mapping[str, int]
    original: tuple[NDArray[Any], ...]
    wanted: tuple[NDArray[np.float64], ...]
    windows: tuple[Program, ...] = ()

    def compared(self, program: Program, results: Sequence[Any]) -> Accuracy:
        """The first accuracy that does not pass, else the one with the largest error beside the original's."""
        found: list[Accuracy] = []
        factor = None if self.name in PLAIN else ILL_CONDITIONED
        for k, wanted in enumerate(self.wanted):
            o = program.outputs[k % len(program.outputs)]
            result, own = np.asarray(results[k % len(results)]), self.original[k % len(results)]
            if self.windows:
                part = self.windows[k // len(results)]
                view = part.outputs[k % len(results)]
                result, own = (windows.seen(part, view, a, self.symbols) for a in (result, own))
            found.append(compare(result, own, wanted, o.dtype, factor))
        return max(found, key=lambda a: (not a.passed, a.rmse / (a.original_rmse + 1e-30)))


def check(
    program: Program,
    kernel: Runner,
    original: Runner,
    constants: Mapping[int, NDArray[Any]],
    seed: int,
    limits: Limits | None = None,
    symbols: Sequence[str] | None = None,
) -> FloatCheck:
    """Compare `kernel` and `original` (both take the sources in order, and what the `symbols` are: by default those of
    the program) with float64 on every case. The verdict's figures are those of the worst plain case."""
    return judge(program, kernel, cases(program, original, constants, seed, limits, symbols))


def cases(
    program: Program,
    original: Runner,
    constants: Mapping[int, NDArray[Any]],
    seed: int,
    limits: Limits | None = None,
    symbols: Sequence[str] | None = None,
) -> Iterator[Case | str]:
    """The cases of a check; a text in their place says why a program is not evaluated in float64."""
    names = program.symbols if symbols is None else symbols
    for case in CASES if names else [c for c in CASES if c != "longer"]:
        extents = symbol_values(names, case, limits)
        reason = too_large(program, extents)
        if reason:
            yield reason
            return
        arrays = inputs(program, case, seed, constants, extents)
        yield case_of(program, case, [arrays[k] for k in range(len(program.sources))], extents, original)


def case_of(
    program: Program, name: str, arrays: Sequence[NDArray[Any]], symbols: Mapping[str, int], original: Runner
) -> Case:
    """The case with these inputs. Of a program that is too large the ends of its free axes are looked at, as far as that
    makes it small enough; raises Refused where it does not."""
    parts = [program]
    for axis in windows.free_axes(program, symbols):
        if not too_large(parts[0], symbols):
            break
        parts = [w for p in parts for w in windows.both_ends(p, symbols, axis)]
    reason = too_large(parts[0], symbols)
    if reason:
        raise Refused(reason)
    wide = {k: np.asarray(a).astype(np.float64) for k, a in enumerate(arrays)}
    domain = Float64([a.name for a in program.axes])
    whole = parts[0] is program
    shown = parts if whole else [windows.compact(p) for p in parts]
    wanted = [w for p in shown for w in evaluate_program(p, domain, wide, symbols)]
    own = tuple(np.asarray(o) for o in original(arrays, symbols))
    return Case(name, tuple(arrays), symbols, own, tuple(wanted), () if whole else tuple(parts))


def judge(program: Program, kernel: Runner, found: Iterable[Case | str]) -> FloatCheck:
    """Compare what `kernel` makes of each case with float64; the first case that fails ends it."""
    worst: tuple[float, Accuracy, str] | None = None
    for case in found:
        if isinstance(case, str):
            return FloatCheck(True, None, skipped=case)
        accuracy = case.compared(program, list(kernel(case.arrays, case.symbols)))
        if not accuracy.passed:
            return FloatCheck(False, accuracy, case.name)
        ratio = accuracy.rmse / (accuracy.original_rmse + 1e-30)
        if worst is None or (case.name in PLAIN and ratio > worst[0]):
            worst = (ratio, accuracy, case.name)
    return FloatCheck(True, worst[1] if worst else None, worst[2] if worst else "", "" if worst else "no outputs")
