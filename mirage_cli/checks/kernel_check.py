"""The float check of a fragment: the built kernel against float64, beside what the original operators make of it.

What is right is what the original nodes mean, in float64, as they stand in the model (`reference`). Inputs are random and
adversarial: larger and smaller numbers, other sizes, and the edges that a program's operators and its original nodes call for
(`edges`, `threshold_inputs`); weights are the model's own. On random inputs the accuracy rule holds as it is; on adversarial
ones, where the order of a sum decides the error of the original and of ours alike, its factor is `ILL_CONDITIONED`. An
original that computes something else than its nodes mean fails too, with the node at which the two part.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from mirage_cli.backends.spec import OperatorSpec, TensorSpec
from mirage_cli.checks import divergence, threshold_inputs
from mirage_cli.checks.case import MIXED, Case, Runner
from mirage_cli.checks.random_inputs import (
    CASES,
    EMPTY,
    GIVEN,
    PLAIN,
    TYPICAL,
    Arrays,
    DrawnInputs,
    Limits,
    case_sizes,
    draws,
    inputs,
    symbol_values,
    usual_case,
    work_of_operators,
)
from mirage_cli.checks.reference import Nodes, Reference, Unknown, of_program
from mirage_cli.checks.threshold_inputs import Turning
from mirage_cli.errors import Crashed, MirageError, OutOfResources, OutOfTime, Refused, ToolMissing
from mirage_cli.files import codec
from mirage_cli.files.output import LIBRARY
from mirage_cli.files.staging import Scratch
from mirage_cli.kernels.kernel import Kernel
from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir.parts import apart
from mirage_cli.lax.ir.program import Program
from mirage_cli.numerics import windows
from mirage_cli.numerics.accuracy import DRAWS, Accuracy, rounded_figure
from mirage_cli.numerics.edges import draw
from mirage_cli.processes import isolation
from mirage_cli.processes.jobs import Kind
from mirage_cli.runtime import sessions

Extra = NDArray[Any] | TensorSpec  #: a value, or the description of a tensor for which any will do
MAX_WORK = 4e10  #: multiply-adds of the largest operator up to which float64 is affordable
MAX_ELEMENTS = 1 << 28  #: elements of the largest value
DEAR = 2e7  #: multiply-adds of a program from which on fewer of its original nodes' edges are looked at
NODE_EDGES = 24  #: cases at the edges of the original nodes, at most,
DEAR_NODE_EDGES = 4  #: and where they are dear
#: operators at which onnxruntime (1.31) ends the process if an axis has no elements
FATAL_IF_EMPTY = frozenset({"Einsum"})
#: errors that say nothing of what an original computes
_NO_ANSWER = (OutOfResources, OutOfTime, ToolMissing, Crashed)
__all__ = [
    "CASES",
    "EMPTY",
    "PLAIN",
    "TYPICAL",
    "Arrays",
    "Case",
    "CheckJob",
    "DrawnInputs",
    "Limits",
    "Nodes",
    "Runner",
    "case_sizes",
    "check",
    "draw",
    "draws",
    "inputs",
    "symbol_values",
    "too_large",
]


@dataclass(frozen=True, slots=True)
class Edges:
    """Findings of a check at the edges of numbers: the kinds of inputs, the one that used most of the error that is
    allowed with its accuracy, and the kinds on which the original overflows and the kernel does not."""

    kinds: tuple[str, ...]
    worst: str
    accuracy: Accuracy
    better: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The report's `verification.float.edges`."""
        return {
            "kinds": list(self.kinds),
            "worst": self.worst,
            "error": rounded_figure(self.accuracy.rmse),
            "original_error": rounded_figure(self.accuracy.original_rmse),
            "better": list(self.better),
        }


@dataclass(frozen=True, slots=True)
class FloatCheck:
    """The verdict over all cases: the worst accuracy on random inputs and what was found at the edges; or the case that failed
    and its `number`; or why there was no check. `parted` names the node at which the original parts from what it means."""

    passed: bool
    worst: Accuracy | None
    case: str = ""
    skipped: str = ""
    edges: Edges | None = None
    number: int = 0
    parted: str = ""

    @property
    def reason(self) -> str:
        """Why it did not pass."""
        if self.parted:
            return f"the original computes something else than its nodes mean ({self.case} inputs): {self.parted}"
        return f"less accurate than the original ({self.case} inputs): {self.worst}"

    def to_json(self) -> dict[str, Any]:
        """The report's `verification.float`."""
        if self.worst is None:
            return {"target": "cpu", "skipped": self.skipped}
        return {
            "target": "cpu",
            "passed": self.passed,
            "case": self.case,
            "error": rounded_figure(self.worst.rmse),
            "original_error": rounded_figure(self.worst.original_rmse),
            "max_error": rounded_figure(self.worst.max_error),
            "original_max_error": rounded_figure(self.worst.original_max_error),
            "note": self.worst.note,
        } | ({"edges": self.edges.to_json()} if self.edges is not None else {})


def too_large(program: Program, symbols: Mapping[str, int], most: float | None = None) -> str:
    """Why a program is not evaluated in float64, or nothing; `most` (by default `MAX_WORK`) bounds the multiply-adds of an
    operator."""
    for work, held in work_of_operators(program, symbols):
        if work > (most or MAX_WORK) or held > MAX_ELEMENTS:
            return f"a value of {held:.1e} elements ({work:.1e} multiply-adds) is too large for a float64 run"
    return ""


@dataclass(frozen=True, slots=True)
class CheckJob:
    """Everything that a check needs, in a form that another process can take: the kernel's library and description,
    the original nodes as a model, its input names, weights by source number, values for tensors that only the
    model reads. `given` are further inputs to check with, for all of the model's inputs in order. The model takes sources in
    parts whole, and the kernel both parts."""

    program: Program
    spec: OperatorSpec
    library: Path
    model: bytes
    names: tuple[str, ...]
    constants: dict[int, NDArray[Any]]
    extra: tuple[Extra, ...]
    seed: int
    limits: Limits
    given: tuple[tuple[NDArray[Any], ...], ...] = ()


def run_job(job: CheckJob) -> FloatCheck | None:
    """Compare a built CPU kernel with float64. When the library has no CPU kernel the program is compared alone: then None
    says that it is right. Raises MirageError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = Kernel(job.library, job.spec)
    if not kernel.has("cpu"):
        alone = judge(job.program, exact_runner(job.program), cases_of(job))
        return None if alone.passed else alone

    def called(arrays: Sequence[NDArray[Any]], symbols: Mapping[str, int]) -> list[NDArray[Any]]:
        isolation.doing("the kernel ran")
        with sessions.unclean_memory():
            return list(kernel.run(kernel_inputs(job, arrays, symbols)))

    return judge(job.program, called, cases_of(job))


def kernel_inputs(job: CheckJob, arrays: Sequence[NDArray[Any]], symbols: Mapping[str, int]) -> list[NDArray[Any]]:
    """What the kernel takes where the program's sources are `arrays`."""
    return [*apart(job.program, arrays), *extra_arrays(job, symbols)]


def _elsewhere(job: CheckJob, library: bytes) -> Any:
    """A check on another machine, of a library that came with it."""
    with Scratch("mirage-check-") as folder:
        (folder / LIBRARY).write_bytes(library)
        return msgspec.to_builtins(run_job(replace(job, library=folder / LIBRARY)))


CHECK = Kind(
    f"{__name__}:CHECK",
    run_job,
    _elsewhere,
    lambda document, _: None if document is None else codec.checked(document, FloatCheck),
    packed=lambda job: (replace(job, library=Path()), job.library.read_bytes()),
)


def cases_of(job: CheckJob, original: Runner | None = None, parts: bool = False) -> Iterator[Case | str]:
    """The cases of a job, whoever runs the `original` nodes (by default onnxruntime on the CPU): a kernel sees the same
    inputs wherever it is checked. `parts` is as in `cases`."""
    given = [_given_inputs(job, arrays) for arrays in job.given]
    return cases(
        job.program,
        original or original_runner(job),
        job.constants,
        job.seed,
        job.limits,
        job.spec.symbols,
        parts,
        nodes_of(job),
        given,
    )


def _given_inputs(job: CheckJob, arrays: Sequence[NDArray[Any]]) -> DrawnInputs:
    """The case of inputs that somebody gives."""
    own = arrays[: len(job.program.sources)]
    symbols = job.spec.solve([a.shape for a in (*apart(job.program, own), *arrays[len(own) :])])
    return DrawnInputs(GIVEN, tuple(own), symbols)


def exact_runner(program: Program) -> Runner:
    """The most accurate kernel of a program: its own values, rounded to the types of its outputs."""

    def run(arrays: Sequence[NDArray[Any]], symbols: Mapping[str, int]) -> list[NDArray[Any]]:
        exact = of_program(program, arrays, symbols)
        with np.errstate(all="ignore"):
            return [a.astype(sessions.numpy_type(o.dtype)) for a, o in zip(exact, program.outputs, strict=True)]

    return run


def nodes_of(job: CheckJob) -> Nodes | None:
    """The original nodes of a job, where it has them."""
    if not job.model:
        return None
    model = divergence.inlined(onnx.load_model_from_string(job.model))
    outputs = tuple(o.name for o in job.program.outputs)
    return Nodes(model, job.names, outputs, lambda symbols: extra_arrays(job, symbols))


def failing_inputs(job: CheckJob, failed: FloatCheck) -> Arrays:
    """The inputs on which a check found a kernel wrong, by source."""
    names, nodes = job.spec.symbols, nodes_of(job)
    drawn = draws(
        job.program,
        job.constants,
        job.seed,
        job.limits,
        names,
        _turning(job.program, nodes, job.constants, job.seed, job.limits, names),
    )
    given = (_given_inputs(job, arrays) for arrays in job.given)
    return dict(enumerate(next(islice(chain(given, drawn), failed.number, None)).arrays))


def extra_arrays(job: CheckJob, symbols: Mapping[str, int]) -> list[NDArray[Any]]:
    """Arrays for the inputs that only the original nodes read."""
    return [
        e
        if isinstance(e, np.ndarray)
        else np.zeros([ex.value(d, symbols) for d in e.dims], sessions.numpy_type(e.dtype))
        for e in job.extra
    ]


def original_runner(job: CheckJob, provider: str = "cpu", device: int = 0) -> Runner:
    """The original nodes in onnxruntime, as they stand in the model. The runner raises Refused for arrays that would end the
    process."""
    nodes = onnx.load_model_from_string(job.model)
    fatal = FATAL_IF_EMPTY & {n.op_type for n in nodes.graph.node}
    #: onnxruntime unpacks rows of tables with zero points where it knows when it loads them how many there are
    sized = any(s.chosen for s in job.program.sources)

    @cache
    def loaded(dims: tuple[tuple[int, ...], ...]) -> Any:
        isolation.doing("onnxruntime loaded the original nodes")
        for value, own in zip(nodes.graph.input, dims, strict=False):
            shape = helper.make_tensor_type_proto(value.type.tensor_type.elem_type, own)
            value.type.CopyFrom(shape)
        model = nodes.SerializeToString() if dims else job.model
        return sessions.session(model, provider=provider, optimize=False, device=device, exact=True)

    if not sized:
        loaded(())

    def original(arrays: Sequence[NDArray[Any]], symbols: Mapping[str, int]) -> list[NDArray[Any]]:
        if fatal and any(a.size == 0 for a in arrays):
            raise Refused(f"onnxruntime divides by zero in {min(fatal)} where a tensor is empty")
        given = dict(zip(job.names, [*arrays, *extra_arrays(job, symbols)], strict=True))
        session = loaded(tuple(a.shape for a in given.values()) if sized else ())
        isolation.doing("onnxruntime ran the original nodes")
        results = sessions.run(session, given)
        return [results[o.name] for o in job.program.outputs]

    return original


def check(
    program: Program,
    kernel: Runner,
    original: Runner,
    constants: Mapping[int, NDArray[Any]],
    seed: int,
    limits: Limits | None = None,
    symbols: Sequence[str] | None = None,
    nodes: Nodes | None = None,
) -> FloatCheck:
    """Compare `kernel` and `original` (both take the sources in order, and what the `symbols` are: by default those of
    the program) with float64 on every case: with what the `nodes` mean, without them with what the program does. The verdict's
    figures are those of the worst plain case."""
    return judge(program, kernel, cases(program, original, constants, seed, limits, symbols, nodes=nodes))


def cases(
    program: Program,
    original: Runner,
    constants: Mapping[int, NDArray[Any]],
    seed: int,
    limits: Limits | None = None,
    symbols: Sequence[str] | None = None,
    parts: bool = False,
    nodes: Nodes | None = None,
    given: Sequence[DrawnInputs] = (),
) -> Iterator[Case | str]:
    """The cases of a check; a text in their place says why there is no float64 value. With `parts` a program that
    is too large is compared in parts, where it has independent ones. Sizes that the original refuses have no answer: raises
    its error where it refuses them all."""
    names = program.symbols if symbols is None else symbols
    wide: dict[int, NDArray[np.float64]] = {}
    reference = None if nodes is None else Reference(program, replace(nodes, wide=wide))
    turning = _turning(program, nodes, constants, seed, limits, names)
    none, refusal, unknown = True, MirageError("no inputs were drawn"), ""

    def drawn(start: int) -> Iterator[DrawnInputs]:
        return chain(given, draws(program, constants, start, limits, names, turning))

    def made(d: DrawnInputs) -> Case:
        if not wide:
            wide.update({k: _as_float64(a) for k, a in constants.items()})
        return case_of(program, d.name, d.arrays, d.symbols, original, d.most, wide, reference)

    for number, case_inputs in enumerate(drawn(seed)):
        reason = too_large(program, case_inputs.symbols) if case_inputs.name in CASES else ""
        if reason and not (parts and windows.free_axes(program, case_inputs.symbols)):
            yield reason
            return
        try:
            case = made(case_inputs)
        except Unknown as error:
            unknown = str(error)
            continue
        except _NO_ANSWER:
            raise
        except MirageError as error:
            refusal = error
            continue

        def again(number: int = number) -> Iterator[Case]:
            for k in range(1, DRAWS):
                yield from map(made, islice(drawn(seed + k), number, number + 1))

        none = False
        parted = ""
        if reference is not None and case_inputs.name in PLAIN and not case.windows:
            parted = reference.parts(case_inputs.arrays, case_inputs.symbols, case.original, case.wanted)
        yield replace(case, number=number, again=again, parted=parted)
    if none and unknown:
        yield unknown
    elif none:
        raise refusal


def _as_float64(a: NDArray[Any]) -> NDArray[Any]:
    """Numbers in float64; integers and truth values as they are."""
    array = np.asarray(a)
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


def _turning(
    program: Program,
    nodes: Nodes | None,
    constants: Mapping[int, NDArray[Any]],
    seed: int,
    limits: Limits | None,
    names: Sequence[str],
) -> Callable[[], Turning | None]:
    """The requests of the original nodes' edges, measured when they are first asked for."""

    @cache
    def found() -> Turning | None:
        if nodes is None:
            return None
        plain = usual_case(program, constants, seed, limits, names)
        dear = sum(w for w, _ in work_of_operators(program, plain.symbols)) > DEAR
        count = DEAR_NODE_EDGES if dear else NODE_EDGES
        return threshold_inputs.turning(nodes, program, plain.arrays, plain.symbols, count, dear)

    return found


def case_of(
    program: Program,
    name: str,
    arrays: Sequence[NDArray[Any]],
    symbols: Mapping[str, int],
    original: Runner,
    most: float | None = None,
    known: Mapping[int, NDArray[np.float64]] | None = None,
    reference: Reference | None = None,
) -> Case:
    """The case with these inputs, against the values of a `reference`; or of the program where there is no reference, or no
    value for these inputs but for others, on which the two agree. Of a program with operators of more than `most`
    multiply-adds the ends of its free axes are looked at, as far as that makes it small enough; raises Refused where it is too
    large all the same. `known` are arrays that are float64 already."""
    own = tuple(np.asarray(o) for o in original(arrays, symbols))
    if reference is not None:
        try:
            exact = reference.values(arrays, symbols)
            others = reference.others(arrays, symbols, exact, name in MIXED)
            return Case(name, tuple(arrays), symbols, own, exact, others=others)
        except Unknown:
            if not reference.agrees():
                raise
    parts = [program]
    for axis in windows.free_axes(program, symbols):
        if not too_large(parts[0], symbols, most):
            break
        parts = [w for p in parts for w in windows.both_ends(p, symbols, axis)]
    reason = too_large(parts[0], symbols)
    if reason:
        raise Unknown(reason)
    whole = parts[0] is program
    shown = parts if whole else [windows.compact(p) for p in parts]
    wanted = [w for p in shown for w in of_program(p, arrays, symbols, known)]
    return Case(name, tuple(arrays), symbols, own, tuple(wanted), () if whole else tuple(parts))


def judge(program: Program, kernel: Runner, checked: Iterable[Case | str]) -> FloatCheck:
    """Compare what `kernel` makes of each case with float64; the first case that fails ends it."""
    worst: tuple[float, Accuracy, str] | None = None
    seen: dict[str, list[Accuracy]] = {}
    for case in checked:
        if isinstance(case, str):
            return FloatCheck(True, None, skipped=case)
        accuracy = case.compared(program, list(kernel(case.arrays, case.symbols)), kernel)
        if not accuracy.passed or case.parted:
            return FloatCheck(False, accuracy, case.name, number=case.number, parted=case.parted)
        ratio = accuracy.rmse / (accuracy.original_rmse + 1e-30)
        if worst is None or (case.name in PLAIN and ratio > worst[0]):
            worst = (ratio, accuracy, case.name)
        if case.name not in PLAIN:
            seen.setdefault(case.name, []).append(accuracy)
    if worst is None:
        return FloatCheck(True, None, skipped="no outputs")
    return FloatCheck(True, worst[1], worst[2], edges=_edges(seen))


def _edges(seen: Mapping[str, Sequence[Accuracy]]) -> Edges | None:
    """Findings in the cases that are not plain ones."""
    if not seen:
        return None
    top = {kind: max(accuracies, key=lambda a: a.used) for kind, accuracies in seen.items()}
    worst = max(top, key=lambda kind: top[kind].used)
    better = tuple(kind for kind, accuracies in seen.items() if any(a.note for a in accuracies))
    return Edges(tuple(seen), worst, top[worst], better)
