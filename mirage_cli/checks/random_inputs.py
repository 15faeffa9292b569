"""The inputs of a float check: random ones of several sizes, sizes at their limits, and the edges of numbers that a program's
operators and its original nodes call for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_cli.checks.threshold_inputs import Turning
from mirage_cli.frontends import sizes
from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir.program import Program
from mirage_cli.numerics.edges import draw, edges

Arrays = dict[int, NDArray[Any]]
Limits = Mapping[str, tuple[int, int | None]]  #: least and greatest value by symbol
SYMBOL_VALUES = (5, 17, 3, 9)  #: what symbols are in the check
LONGER_VALUES = (70, 33, 129, 40)  #: what they are in the case "longer": more than one tile
CASES = ("random", "longer", "large", "tiny", "zero")
TYPICAL = "typical"  #: the name of a case of random inputs at sizes that a caller gives
GIVEN = "given"  #: of inputs that a user gives
PLAIN = ("random", "longer", TYPICAL, GIVEN)  #: the cases for which the accuracy rule holds as it is
SHORTEST, LONGEST, EMPTY = "shortest", "longest", "empty"  #: cases of sizes at their limits
LONG = 4099  #: what one symbol after the other is in "longest", as far as its upper limit and this allow:
LONG_WORK = 2e6  #: multiply-adds of the largest operator
EDGES = 20  #: cases at the edges of numbers, at most
LEAST_EDGES = 6  #: how many of them there are whatever they cost
EDGE_WORK = 4e8  #: multiply-adds of all of them together
CHOSEN = 1 << 25  #: elements that original nodes may copy where they choose parts of a tensor for every row
WINDOW = 2e7  #: multiply-adds above which a part of a result is compared, where the program stands for the nodes


@dataclass(frozen=True, slots=True)
class DrawnInputs:
    """Inputs of a case, what its symbols are, and the multiply-adds of an operator above which parts of the program's results
    are compared."""

    name: str
    arrays: tuple[NDArray[Any], ...]
    symbols: Mapping[str, int]
    most: float | None = None


def work_of_operators(program: Program, symbols: Mapping[str, int]) -> Iterator[tuple[float, float]]:
    """The multiply-adds of each operator, and the elements of its value."""
    size = {a.name: ex.value(a.extent, symbols) for a in program.axes}
    for n in program.nodes:
        axes = frozenset(n.over).union(*(program.axes_of(i) for i in n.inputs))
        held = float(np.prod([float(size[a]) for a in program.axes_of(n.name)]))
        yield float(np.prod([float(size[a]) for a in axes])), held


def case_sizes(program: Program, names: Sequence[str], case: str, limits: Limits | None) -> dict[str, int]:
    """The numbers for symbols in a case, halved while the original nodes would copy more than `CHOSEN` elements of a tensor
    of which they choose parts, such as experts for every row."""
    whole = symbol_values(names, case, limits)
    roots = {s: (limits or {}).get(s, (1, None))[0] for s in _roots(names)}
    fewer = ({s: (low, max(low, whole[s] >> k)) for s, low in roots.items()} for k in range(1, 8))
    tried = [whole, *(symbol_values(names, case, few) for few in fewer)]
    return next((extents for extents in tried if _copied(program, extents) <= CHOSEN), tried[-1])


def _copied(program: Program, symbols: Mapping[str, int]) -> float:
    """The elements of the largest of the parts that are chosen of tensors."""
    size = {a.name: float(ex.value(a.extent, symbols)) for a in program.axes}
    chosen = (i.name for i in program.inputs if program.sources[i.source].chosen)
    return max((float(np.prod([size[a] for a in program.axes_of(name)])) for name in chosen), default=0.0)


def edge_count(program: Program, symbols: Mapping[str, int]) -> int:
    """Number of cases at the edges of numbers, by what they cost."""
    work = sum(w for w, _ in work_of_operators(program, symbols))
    return max(LEAST_EDGES, min(EDGES, int(EDGE_WORK // max(work, 1.0))))


def symbol_values(symbols: Sequence[str], case: str = "random", limits: Limits | None = None) -> dict[str, int]:
    """Numbers for symbols that fit each other (`past` and `(past+1)`), within `limits` (least and greatest by symbol)."""
    values = LONGER_VALUES if case == "longer" else SYMBOL_VALUES
    numbers: dict[str, int] = {}
    for k, s in enumerate(_roots(symbols)):
        low, high = (limits or {}).get(s, (1, None))
        numbers[s] = max(low, values[k % len(values)] + k // len(values))
        numbers[s] = numbers[s] if high is None else min(high, numbers[s])
    return _solved(symbols, numbers)


def _roots(symbols: Sequence[str]) -> list[str]:
    """The names that symbols are made of, such as `past` of `(past+1)`."""
    return sorted({n for s in symbols for n in sizes.names(sizes.from_extent(ex.symbol(s)))})


def _solved(symbols: Sequence[str], roots: Mapping[str, int]) -> dict[str, int]:
    """The numbers of symbols and of what they are made of, given those of the latter."""
    numbers = {s: sizes.substitute(sizes.from_extent(ex.symbol(s)), roots) for s in symbols}
    return {**roots} | {s: n for s, n in numbers.items() if isinstance(n, int)}


def inputs(
    program: Program, case: str, seed: int, constants: Mapping[int, NDArray[Any]], symbols: Mapping[str, int]
) -> Arrays:
    """Arrays for the sources of a program; `constants` are taken as they are."""
    random = np.random.default_rng(seed)
    return {
        k: constants[k] if k in constants else draw(s, [ex.value(e, symbols) for e in s.tensor_dims], case, random)
        for k, s in enumerate(program.sources)
    }


def usual_case(
    program: Program, constants: Mapping[int, NDArray[Any]], seed: int, limits: Limits | None, names: Sequence[str]
) -> DrawnInputs:
    """The case of random inputs at usual sizes."""
    return _case(program, constants, seed, "random", "random", case_sizes(program, names, "random", limits))


def _case(
    program: Program,
    constants: Mapping[int, NDArray[Any]],
    seed: int,
    name: str,
    case: str,
    extents: Mapping[str, int],
    most: float | None = None,
) -> DrawnInputs:
    arrays = inputs(program, case, seed, constants, extents)
    return DrawnInputs(name, tuple(arrays[k] for k in range(len(program.sources))), extents, most)


def draws(
    program: Program,
    constants: Mapping[int, NDArray[Any]],
    seed: int,
    limits: Limits | None = None,
    symbols: Sequence[str] | None = None,
    turning: Callable[[], Turning | None] | None = None,
) -> Iterator[DrawnInputs]:
    """The inputs of all cases of a check; how many there are, and of what kinds, does not depend on the seed. `turning` says
    what the edges of the original nodes call for, when it is needed."""
    names = program.symbols if symbols is None else symbols
    for case in CASES if names else [c for c in CASES if c != "longer"]:
        yield _case(program, constants, seed, case, case, case_sizes(program, names, case, limits))
    for name, extents in _limits_of_sizes(program, names, limits):
        yield _case(program, constants, seed, name, "random", extents, WINDOW)
    plain = usual_case(program, constants, seed, limits, names)
    for edge in islice(_edges(program, plain, seed), edge_count(program, plain.symbols)):
        yield DrawnInputs(edge.kind, edge.arrays, plain.symbols, WINDOW)
    turns = turning() if turning is not None else None
    for edge in turns.edges(plain.arrays, seed) if turns is not None else ():
        yield DrawnInputs(edge.kind, edge.arrays, plain.symbols, WINDOW)


def _edges(program: Program, plain: DrawnInputs, seed: int) -> Iterator[Any]:
    """The cases that the operators of a program call for, as far as the program reads its inputs at these sizes."""
    try:
        yield from edges(program, plain.arrays, plain.symbols, seed)
    except IndexError:  # a position that these sizes do not have
        return


def _limits_of_sizes(
    program: Program, names: Sequence[str], limits: Limits | None
) -> Iterator[tuple[str, dict[str, int]]]:
    """Symbols at the ends of what they may be: all at their least, each as large as is affordable, each that may be 0."""
    if not names:
        return
    roots = _roots(names)
    known = limits or {}
    least = {root: known.get(root, (1, None))[0] for root in roots}
    yield SHORTEST, _solved(names, least)
    for root in roots:
        most = known.get(root, (1, None))[1] or LONG
        tried = (_solved(names, least | {root: max(least[root], min(LONG, most) >> k)}) for k in range(12))
        longest = next((x for x in tried if not _beyond(program, x)), None)
        if longest is not None:
            yield LONGEST, longest
    middle = {root: n for root, n in case_sizes(program, names, "random", limits).items() if root in roots}
    for root in roots:
        if root not in known or not least[root]:
            yield EMPTY, _solved(names, middle | {root: 0})


def _beyond(program: Program, symbols: Mapping[str, int]) -> bool:
    return any(work > LONG_WORK for work, _ in work_of_operators(program, symbols))
