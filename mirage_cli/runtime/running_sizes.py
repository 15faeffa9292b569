"""The sizes of symbolic dimensions that a model runs at: a table of positions ends somewhere, which only a run tells.

The model is anybody's: it runs in a process of its own, for a bounded time.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import onnx
import onnx_ir as ir

from mirage_cli.errors import MirageError, OutOfTime
from mirage_cli.frontends.imported import with_equal
from mirage_cli.processes import isolation
from mirage_cli.runtime import example, sessions

RUN_SECONDS = 5.0  #: of a run, which is ended then: it has not failed
SECONDS = 120.0  #: of all of them
LARGEST_SHIFT = 6  #: sizes that a model refuses are made up to 2**6 times as large
MASK_SHIFT = 3  #: a length that follows from others is made up to 2**3 times as large
MOST = 1 << 26  #: elements of all inputs: with more nothing is tried


@dataclass(frozen=True, slots=True)
class Running:
    """Sizes at which a model runs. Where it does not at those that were asked, `names` are those that are smaller in `sizes`,
    one as large as runs or, where that does not help, all, and `problem` is what onnxruntime says of those asked."""

    sizes: dict[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    problem: str = ""


def running(
    model: bytes,
    data: str,
    asked: Mapping[str, int],
    max_memory: int = 0,
    same: Mapping[str, str] = MappingProxyType({}),
    fixed: Collection[str] = (),
) -> Running:
    """The sizes of symbols, those `asked` or smaller ones, at which a model (with external data in the folder `data`)
    runs. Where it does not at those, lengths of masks that fit those of caches come first, and one that is larger, which
    limit nothing. Those asked, where that cannot be told: the model does not run at all, takes too long, or has huge inputs.
    `same` are symbols that are equal to others, `fixed` those that stay."""
    jobs = [(model, data, dict(asked), dict(same), tuple(fixed))]
    for _, outcome in isolation.each(_tried, jobs, 1, max_memory, apart=True, seconds=SECONDS):
        if isinstance(outcome, Running):
            return outcome
    return Running(dict(asked))


def _tried(model: bytes, data: str, asked: dict[str, int], same: dict[str, str], fixed: Collection[str]) -> Running:
    """The same, in this process. Raises MirageError."""
    isolation.doing("onnxruntime ran the model")
    proto = onnx.ModelProto.FromString(model)
    declared = ir.from_proto(proto)
    if elements(declared, asked) > MOST:
        return Running(asked)
    session = sessions.session(model, None, optimize=False, data=Path(data))

    def problem(sizes: Mapping[str, int]) -> str:
        try:
            with contextlib.suppress(OutOfTime):
                sessions.run(session, example.example_inputs(proto, with_equal(sizes, same), 0), RUN_SECONDS)
        except MirageError as error:
            return str(error)
        return ""

    why = problem(asked)
    fitting = _fitting(declared, asked, fixed) if why else asked
    if fitting != asked and not problem(fitting):
        return Running(fitting)
    # a mask over lengths that add up
    for sizes in longer(asked, asked.keys() - set(fixed), MASK_SHIFT) if why else ():
        if elements(declared, sizes) <= MOST and not problem(sizes):
            return Running(sizes)
    for name in sorted(asked, key=lambda n: (-asked[n], n)) if why else ():
        runs, fails = asked[name] // 2, asked[name]
        while runs and problem(asked | {name: runs}):
            runs, fails = runs // 2, runs
        while runs and fails - runs > 1:
            middle = (runs + fails) // 2
            runs, fails = (runs, middle) if problem(asked | {name: middle}) else (middle, fails)
        if runs:
            return Running(asked | {name: runs}, (name,), why)
    # lengths that belong together, such as of a cache and of a mask over it
    for sizes in smaller(asked) if why else ():
        if not problem(sizes):
            return Running(sizes, tuple(n for n in asked if sizes[n] < asked[n]), why)
    return Running(asked)


def _fitting(model: ir.Model, asked: Mapping[str, int], fixed: Collection[str]) -> dict[str, int]:
    """Sizes in which those that follow from the length of caches do so, but for those that are `fixed`."""
    following = example.with_caches(model, {}).keys() - set(fixed)
    known = example.with_caches(model, {n: size for n, size in asked.items() if n not in following})
    return {n: known.get(n, size) for n, size in asked.items()}


def smaller(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """All sizes halved, and again, down to 1."""
    times = max(sizes.values(), default=0).bit_length()
    return [{n: max(1, size >> k) for n, size in sizes.items()} for k in range(1, times)]


def longer(sizes: Mapping[str, int], names: Iterable[str], shift: int) -> Iterator[dict[str, int]]:
    """One of those named doubled, the largest first, and again, up to 2**shift times as large."""
    order = sorted(names, key=lambda n: (-sizes[n], n))
    return ({**sizes, n: max(sizes[n], 1) << k} for k in range(1, shift + 1) for n in order)


def others(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes to try where a model refuses these: one of them larger, the largest first, then all of them, then smaller ones,
    and at last the same size for all."""
    names = sorted(sizes, key=lambda n: (-sizes[n], n))
    yield from longer(sizes, names, LARGEST_SHIFT)
    yield from ({n: max(sizes[n], 1) << k for n in names} for k in range(1, LARGEST_SHIFT + 1))
    for k, halved in enumerate(smaller(sizes), 1):
        yield from ({**sizes, n: halved[n]} for n in names if sizes[n] >> k)
        yield halved
    yield from (dict.fromkeys(names, size) for size in dict.fromkeys(sizes.values()))


def elements(model: ir.Model, sizes: Mapping[str, int]) -> int:
    """Elements of all inputs of a model at sizes of its symbols."""
    given = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    return sum(math.prod(example.dimensions(v, sizes)) for v in given)
