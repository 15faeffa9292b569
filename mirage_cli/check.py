"""The float check of a fragment: the built kernel against float64, beside what the original operators make of it.

Inputs are random and adversarial: larger and smaller numbers, other sizes, and the edges that a program's operators call for
(`edges`); weights are the model's own. On random inputs the accuracy rule holds as it is; on adversarial ones, where the
order of a sum decides the error of the original and of ours alike, its factor is `ILL_CONDITIONED`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from mirage_cli import isolation, runtime, windows
from mirage_cli.accuracy import DRAWS, ILL_CONDITIONED, Accuracy, Sample, judged, kept, told
from mirage_cli.backends.spec import OperatorSpec, TensorSpec
from mirage_cli.edges import ENDS, HUGE, NOT_FINITE, SPIKES, TINY, draw, edges
from mirage_cli.errors import MirageError, Refused
from mirage_cli.frontends import sizes
from mirage_cli.kernel import Kernel
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domain import Float64
from mirage_cli.lax.program import Program, evaluate_program

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
SHORTEST, LONGEST, EMPTY = "shortest", "longest", "empty"  #: cases of sizes at their limits
LONG = 4099  #: what one symbol after the other is in "longest", as far as its upper limit and this allow:
LONG_WORK = 2e6  #: multiply-adds of the largest operator
EDGES = 20  #: cases at the edges of numbers, at most
LEAST_EDGES = 6  #: how many of them there are whatever they cost
EDGE_WORK = 4e8  #: multiply-adds of all of them together
#: operators at which onnxruntime (1.31) ends the process if an axis has no elements
FATAL_IF_EMPTY = frozenset({"Einsum"})
_WINDOW = 2e7  #: multiply-adds above which a part of a result is compared


@dataclass(frozen=True, slots=True)
class Edges:
    """What a check found at the edges of numbers: the kinds of inputs, the one that used most of the error that is allowed
    with its accuracy, and the kinds on which the original overflows and the kernel does not."""

    kinds: tuple[str, ...]
    worst: str
    accuracy: Accuracy
    better: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The report's `verification.float.edges`."""
        return {
            "kinds": list(self.kinds),
            "worst": self.worst,
            "error": told(self.accuracy.rmse),
            "original_error": told(self.accuracy.original_rmse),
            "better": list(self.better),
        }


@dataclass(frozen=True, slots=True)
class FloatCheck:
    """The verdict over all cases: the worst accuracy on random inputs and what was found at the edges; or the case that failed
    and its `number`; or why there was no check."""

    passed: bool
    worst: Accuracy | None
    case: str = ""
    skipped: str = ""
    edges: Edges | None = None
    number: int = 0

    def to_json(self) -> dict[str, Any]:
        """The report's `verification.float`."""
        if self.worst is None:
            return {"target": "cpu", "skipped": self.skipped}
        return {
            "target": "cpu",
            "passed": self.passed,
            "case": self.case,
            "error": told(self.worst.rmse),
            "original_error": told(self.worst.original_rmse),
            "max_error": told(self.worst.max_error),
            "original_max_error": told(self.worst.original_max_error),
            "note": self.worst.note,
        } | ({"edges": self.edges.to_json()} if self.edges is not None else {})


def too_large(program: Program, symbols: Mapping[str, int], most: float | None = None) -> str:
    """Why a program is not evaluated in float64, or nothing; `most` (by default `MAX_WORK`) bounds the multiply-adds of an
    operator."""
    for work, held in _works(program, symbols):
        if work > (most or MAX_WORK) or held > MAX_ELEMENTS:
            return f"a value of {held:.1e} elements ({work:.1e} multiply-adds) is too large for a float64 run"
    return ""


def _works(program: Program, symbols: Mapping[str, int]) -> Iterator[tuple[float, float]]:
    """The multiply-adds of each operator, and the elements of its value."""
    size = {a.name: ex.value(a.extent, symbols) for a in program.axes}
    for n in program.nodes:
        axes = frozenset(n.over).union(*(program.axes_of(i) for i in n.inputs))
        held = float(np.prod([float(size[a]) for a in program.axes_of(n.name)]))
        yield float(np.prod([float(size[a]) for a in axes])), held


def symbol_values(symbols: Sequence[str], case: str = "random", limits: Limits | None = None) -> dict[str, int]:
    """Numbers for symbols that fit each other (`past` and `(past+1)`), within `limits` (least and greatest by symbol)."""
    values = LONGER_VALUES if case == "longer" else SYMBOL_VALUES
    found: dict[str, int] = {}
    for k, s in enumerate(_roots(symbols)):
        low, high = (limits or {}).get(s, (1, None))
        found[s] = max(low, values[k % len(values)] + k // len(values))
        found[s] = found[s] if high is None else min(high, found[s])
    return _solved(symbols, found)


def _roots(symbols: Sequence[str]) -> list[str]:
    """The names that symbols are made of, such as `past` of `(past+1)`."""
    return sorted({n for s in symbols for n in sizes.names(sizes.from_extent(ex.symbol(s)))})


def _solved(symbols: Sequence[str], found: Mapping[str, int]) -> dict[str, int]:
    """The numbers of symbols and of what they are made of, given those of the latter."""
    numbers = {s: sizes.substitute(sizes.from_extent(ex.symbol(s)), found) for s in symbols}
    return {**found} | {s: n for s, n in numbers.items() if isinstance(n, int)}


def inputs(
    program: Program, case: str, seed: int, constants: Mapping[int, NDArray[Any]], symbols: Mapping[str, int]
) -> Arrays:
    """Arrays for the sources of a program; `constants` are taken as they are."""
    random = np.random.default_rng(seed)
    return {
        k: constants[k] if k in constants else draw(s, [ex.value(e, symbols) for e in s.dims], case, random)
        for k, s in enumerate(program.sources)
    }


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

    def called(arrays: Sequence[NDArray[Any]], symbols: Mapping[str, int]) -> list[NDArray[Any]]:
        isolation.doing("the kernel ran")
        with runtime.unclean_memory():
            return list(kernel.run([*arrays, *extra_arrays(job, symbols)]))

    return check(
        job.program,
        called,
        original_runner(job),
        job.constants,
        job.seed,
        job.limits,
        job.spec.symbols,
    )


def failing_inputs(job: CheckJob, found: FloatCheck) -> Arrays:
    """The inputs on which a check found a kernel wrong, by source."""
    cases = draws(job.program, job.constants, job.seed, job.limits, job.spec.symbols)
    return dict(enumerate(next(islice(cases, found.number, None)).arrays))


def extra_arrays(job: CheckJob, symbols: Mapping[str, int]) -> list[NDArray[Any]]:
    """Arrays for the inputs that only the original nodes read."""
    return [
        e
        if isinstance(e, np.ndarray)
        else np.zeros([ex.value(d, symbols) for d in e.dims], runtime.numpy_type(e.dtype))
        for e in job.extra
    ]


def original_runner(job: CheckJob, provider: str = "cpu", device: int = 0) -> Runner:
    """The original nodes in onnxruntime, as they stand in the model. The runner raises Refused for arrays that would end the
    process."""
    isolation.doing("onnxruntime loaded the original nodes")
    session = runtime.session(job.model, provider=provider, optimize=False, device=device, exact=True)
    fatal = FATAL_IF_EMPTY & {n.op_type for n in onnx.load_model_from_string(job.model).graph.node}

    def original(arrays: Sequence[NDArray[Any]], symbols: Mapping[str, int]) -> list[NDArray[Any]]:
        if fatal and any(a.size == 0 for a in arrays):
            raise Refused(f"onnxruntime divides by zero in {min(fatal)} where a tensor is empty")
        isolation.doing("onnxruntime ran the original nodes")
        found = runtime.run(session, dict(zip(job.names, [*arrays, *extra_arrays(job, symbols)], strict=True)))
        return [found[o.name] for o in job.program.outputs]

    return original


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs of a program in the order of its sources, what its symbols are, and for each output what the original made
    of them and the float64 result: of the whole program, or of its `windows` one after the other. `number` is the place among
    the draws of a check; `again` makes more draws of the same case."""

    name: str
    arrays: tuple[NDArray[Any], ...]
    symbols: Mapping[str, int]
    original: tuple[NDArray[Any], ...]
    wanted: tuple[NDArray[np.float64], ...]
    windows: tuple[Program, ...] = ()
    number: int = 0
    again: Callable[[], Iterable[Case]] | None = None

    def compared(self, program: Program, results: Sequence[Any], kernel: Runner | None = None) -> Accuracy:
        """The first accuracy that does not pass, else the one with the largest error beside the original's. With the kernel
        that made the results, outputs that do not pass are judged over more draws."""
        own = [self.sample(program, results, k) for k in range(len(self.wanted))]
        factor = None if self.name in PLAIN else ILL_CONDITIONED
        again = () if kernel is None or self.again is None else self.again()
        drawn = kept((c, list(kernel(c.arrays, c.symbols))) for c in again if kernel is not None)
        found = [
            judged(
                sample,
                program.outputs[k % len(program.outputs)].dtype,
                lambda k=k: (c.sample(program, made, k) for c, made in drawn()),  # type: ignore[misc]
                factor,
                self.name in (HUGE, SPIKES, TINY, ENDS),
                self.name == NOT_FINITE,
            )
            for k, sample in enumerate(own)
        ]
        return max(found, key=lambda a: (not a.passed, a.rmse / (a.original_rmse + 1e-30)))

    def sample(self, program: Program, results: Sequence[Any], k: int) -> Sample:
        """What is compared of `wanted` number k."""
        result, own = np.asarray(results[k % len(results)]), self.original[k % len(results)]
        if self.windows:
            part = self.windows[k // len(results)]
            view = part.outputs[k % len(results)]
            result, own = (windows.seen(part, view, a, self.symbols) for a in (result, own))
        return result, own, self.wanted[k]


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
    parts: bool = False,
) -> Iterator[Case | str]:
    """The cases of a check; a text in their place says why a program is not evaluated in float64. With `parts` a program that
    is too large is compared in parts, where it has independent ones."""
    names = program.symbols if symbols is None else symbols
    wide: dict[int, NDArray[np.float64]] = {}

    def made(drawn: Drawn) -> Case:
        if not wide:
            wide.update({k: np.asarray(a).astype(np.float64) for k, a in constants.items()})
        return case_of(program, drawn.name, drawn.arrays, drawn.symbols, original, drawn.most, wide)

    for number, drawn in enumerate(draws(program, constants, seed, limits, names)):
        reason = too_large(program, drawn.symbols) if drawn.name in CASES else ""
        if reason and not (parts and windows.free_axes(program, drawn.symbols)):
            yield reason
            return
        try:
            case = made(drawn)
        except MirageError:
            if drawn.name != EMPTY:
                raise
            continue  # the original has no answer

        def again(number: int = number) -> Iterator[Case]:
            for k in range(1, DRAWS):
                yield from map(made, islice(draws(program, constants, seed + k, limits, names), number, number + 1))

        yield replace(case, number=number, again=again)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Inputs of a case, what its symbols are, and the multiply-adds of an operator above which parts are compared."""

    name: str
    arrays: tuple[NDArray[Any], ...]
    symbols: Mapping[str, int]
    most: float | None = None


def draws(
    program: Program,
    constants: Mapping[int, NDArray[Any]],
    seed: int,
    limits: Limits | None = None,
    symbols: Sequence[str] | None = None,
) -> Iterator[Drawn]:
    """The inputs of all cases of a check; how many there are, and of what kinds, does not depend on the seed."""
    names = program.symbols if symbols is None else symbols

    def drawn(name: str, case: str, extents: Mapping[str, int], most: float | None = None) -> Drawn:
        arrays = inputs(program, case, seed, constants, extents)
        return Drawn(name, tuple(arrays[k] for k in range(len(program.sources))), extents, most)

    for case in CASES if names else [c for c in CASES if c != "longer"]:
        yield drawn(case, case, symbol_values(names, case, limits))
    for name, extents in _limits_of_sizes(program, names, limits):
        yield drawn(name, "random", extents, _WINDOW)
    usual = drawn("random", "random", symbol_values(names, "random", limits))
    work = sum(w for w, _ in _works(program, usual.symbols))
    count = max(LEAST_EDGES, min(EDGES, int(EDGE_WORK // max(work, 1.0))))
    for edge in islice(edges(program, usual.arrays, usual.symbols, seed), count):
        yield Drawn(edge.kind, edge.arrays, usual.symbols, _WINDOW)


def _limits_of_sizes(
    program: Program, names: Sequence[str], limits: Limits | None
) -> Iterator[tuple[str, dict[str, int]]]:
    """Symbols at the ends of what they may be: all at their least, each as large as is affordable, each without limits 0."""
    if not names:
        return
    roots = _roots(names)
    known = limits or {}
    least = {s: known.get(s, (1, None))[0] for s in roots}
    yield SHORTEST, _solved(names, least)
    for s in roots:
        most = known.get(s, (1, None))[1] or LONG
        tried = (_solved(names, least | {s: max(least[s], min(LONG, most) >> k)}) for k in range(12))
        found = next((x for x in tried if not too_large(program, x, LONG_WORK)), None)
        if found is not None:
            yield LONGEST, found
    usual = {s: n for s, n in symbol_values(names, "random", limits).items() if s in roots}
    for s in roots:
        if s not in known:
            yield EMPTY, _solved(names, usual | {s: 0})


def case_of(
    program: Program,
    name: str,
    arrays: Sequence[NDArray[Any]],
    symbols: Mapping[str, int],
    original: Runner,
    most: float | None = None,
    known: Mapping[int, NDArray[np.float64]] | None = None,
) -> Case:
    """The case with these inputs. Of a program with operators of more than `most` multiply-adds the ends of its free axes are
    looked at, as far as that makes it small enough; raises Refused where it is too large all the same. `known` are arrays that
    are float64 already."""
    parts = [program]
    for axis in windows.free_axes(program, symbols):
        if not too_large(parts[0], symbols, most):
            break
        parts = [w for p in parts for w in windows.both_ends(p, symbols, axis)]
    reason = too_large(parts[0], symbols)
    if reason:
        raise Refused(reason)
    wide = dict(known or {})
    wide |= {k: np.asarray(a).astype(np.float64) for k, a in enumerate(arrays) if k not in wide}
    domain = Float64([a.name for a in program.axes])
    whole = parts[0] is program
    shown = parts if whole else [windows.compact(p) for p in parts]
    wanted = [w for p in shown for w in evaluate_program(p, domain, wide, symbols)]
    own = tuple(np.asarray(o) for o in original(arrays, symbols))
    return Case(name, tuple(arrays), symbols, own, tuple(wanted), () if whole else tuple(parts))


def judge(program: Program, kernel: Runner, found: Iterable[Case | str]) -> FloatCheck:
    """Compare what `kernel` makes of each case with float64; the first case that fails ends it."""
    worst: tuple[float, Accuracy, str] | None = None
    seen: dict[str, list[Accuracy]] = {}
    for case in found:
        if isinstance(case, str):
            return FloatCheck(True, None, skipped=case)
        accuracy = case.compared(program, list(kernel(case.arrays, case.symbols)), kernel)
        if not accuracy.passed:
            return FloatCheck(False, accuracy, case.name, number=case.number)
        ratio = accuracy.rmse / (accuracy.original_rmse + 1e-30)
        if worst is None or (case.name in PLAIN and ratio > worst[0]):
            worst = (ratio, accuracy, case.name)
        if case.name not in PLAIN:
            seen.setdefault(case.name, []).append(accuracy)
    if worst is None:
        return FloatCheck(True, None, skipped="no outputs")
    return FloatCheck(True, worst[1], worst[2], edges=_edges(seen))


def _edges(seen: Mapping[str, Sequence[Accuracy]]) -> Edges | None:
    """What is to be told of the cases that are not plain ones."""
    if not seen:
        return None
    top = {kind: max(found, key=lambda a: a.used) for kind, found in seen.items()}
    worst = max(top, key=lambda kind: top[kind].used)
    better = tuple(kind for kind, found in seen.items() if any(a.note for a in found))
    return Edges(tuple(seen), worst, top[worst], better)
