"""Containment of a muGraph in the space that the search covers: `contains(searcher, program, graph)`.

Within its bounds the search represents every muGraph whose intermediate values are abstract subexpressions of the fragment's,
up to equality of values (docs/search.md, section 3). So a muGraph is contained when

1. its kernels compute the parts of the program that a cut leaves, a pair of kernels that does one reduction over blocks in
   two counted as the one that it was (search/finish/unsplit.py);
2. each is represented in the closure of its part under the kernel's own mapping (search/closure/lookup.py), with the maxima
   that the search would give it (search/finish/unstabilised.py).

That the muGraph computes the program is for the proof to say, not for this.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.lax.ir.program import Program
from mirage_cli.search.closure.closure import closure_of
from mirage_cli.search.closure.form import search_form
from mirage_cli.search.closure.lookup import check_represented
from mirage_cli.search.closure.mapping import Mapping, mappings
from mirage_cli.search.cuts import partitions, stored_sets
from mirage_cli.search.finish.fuse import fuse
from mirage_cli.search.finish.kernels import Cuts, cut_values, grouped, operators
from mirage_cli.search.finish.unsplit import folded, is_first, spelled
from mirage_cli.search.finish.unstabilised import bare
from mirage_cli.search.mugraph.mugraph import BlockGraph, CustomKernel, KernelGraph
from mirage_cli.search.reassociation import variants

if TYPE_CHECKING:
    from mirage_cli.search.search import Searcher

Unit: TypeAlias = tuple[CustomKernel, ...]  #: a kernel, or a pair that does one reduction over blocks


@dataclass(frozen=True, slots=True)
class Containment:
    """The answer whether a muGraph lies in the space, with the reason if not."""

    contained: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.contained


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a program, with the tensors of the kernel graph that it reads and makes."""

    program: Program
    reads: tuple[int, ...]
    makes: tuple[int, ...]


def contains(searcher: Searcher, program: Program, graph: KernelGraph) -> Containment:
    """Containment of `graph`, a muGraph for `program`, among those that a search with the searcher's options
    represents."""
    try:
        _check_bounds(searcher, graph.validate())
        units = _units(program, graph.kernels)
    except (InvalidGraph, Refused) as e:
        return Containment(False, str(e))
    reasons = []
    for form in variants(program):
        try:
            parts = _parts(form, graph, units)
            for unit in units:
                _check_unit(unit, parts)
        except (InvalidGraph, Refused) as e:
            reasons.append(str(e))
        else:
            return Containment(True)
    return Containment(False, reasons[0])


def _check_bounds(searcher: Searcher, graph: KernelGraph) -> None:
    options = searcher.options
    if len(graph.kernels) > options.max_kernels:
        raise Refused(f"{len(graph.kernels)} kernels, more than the {options.max_kernels} that are searched")
    for n, k in enumerate(graph.kernels):
        if (count := operators(fuse(k.block, k.program))) > options.max_ops:
            raise Refused(f"kernel {n} has {count} operators, more than the {options.max_ops} that are searched")


# --- kernels and parts of the program -------------------------------------------------------------------------------------
def _units(program: Program, kernels: Sequence[CustomKernel]) -> list[Unit]:
    """The kernels, those together that take an axis in parts and combine these. Raises Refused."""
    units: list[Unit] = []
    rest = list(kernels)
    while rest:
        kernel = rest.pop(0)
        if not is_first(kernel, program):
            units.append((kernel,))
            continue
        second = next((k for k in rest if set(k.inputs) & set(kernel.outputs)), None)
        if second is None:
            raise Refused("a kernel takes an axis in parts, which no other one combines")
        rest.remove(second)
        units.append((kernel, second))
    return units


def _stored_tensors(unit: Unit) -> dict[int, str]:
    """The tensors that a unit stores for others, with the names of what they hold."""
    shares = {t for k in unit[1:] for t in k.inputs} & set(unit[0].outputs)
    tensors = {t: o.name for k in unit for t, o in zip(k.outputs, k.program.outputs, strict=True)}
    return {t: name for t, name in tensors.items() if t not in shares}


def _parts(program: Program, graph: KernelGraph, units: Sequence[Unit]) -> list[_Part]:
    """The parts of the program that the units' cut leaves. Raises Refused for a cut that is not searched."""
    known, first, given = cut_values(program), graph.sources, graph.sources + graph.outputs
    stored: dict[str, int] = {}
    groups: list[tuple[str, ...]] = []
    shares: list[list[int]] = []
    for unit in units:
        makes = _stored_tensors(unit)
        between = {name: t for t, name in makes.items() if t >= given}
        results = sorted(t - first for t in makes if t < given)
        if between and results:
            raise Refused(f"a kernel makes output {results[0]} and stores {', '.join(between)}")
        if results:
            shares.append(results)
        for v in between:
            if v not in known:
                raise Refused(
                    f"stores {v}, which is no result of a reduction or operand of a contraction of the program"
                )
        groups += [tuple(v for v in known if v in between)] if between else []
        stored |= between
    values = tuple(v for v in known if v in stored)
    if values not in stored_sets(known):
        raise Refused(f"stores {', '.join(values)}: too many values")
    if tuple(groups) not in (tuple((v,) for v in stored), grouped(program, values)):
        raise Refused(f"its kernels store {' / '.join(' '.join(g) for g in groups)}, which are not searched together")
    if sorted(shares) not in map(sorted, partitions(len(program.outputs), len(graph.kernels))):
        raise Refused(f"its kernels share the outputs out as {shares}, which is not searched")
    number = {f"source {k}": k for k in range(first)} | stored
    written = [*([stored[v] for v in g] for g in groups), *([first + k for k in s] for s in shares)]
    cut = Cuts(program).parts(groups, shares)
    return [_Part(p, tuple(number[x] for x in labels), tuple(m)) for (p, labels), m in zip(cut, written, strict=True)]


def _check_unit(unit: Unit, parts: Sequence[_Part]) -> None:
    """Check that a unit computes a part of the program in a way that is searched. Raises Refused."""
    makes = set(_stored_tensors(unit))
    part = next((p for p in parts if set(p.makes) == makes), None)
    if part is None:
        raise Refused(f"a kernel makes tensors {sorted(makes)}, which the search does not make in one")
    if len(unit) > 1:
        _check_pair(part, *unit)
        return
    (kernel,) = unit
    if _reading(kernel.program, kernel.inputs, kernel.outputs) != _reading(part.program, part.reads, part.makes):
        raise Refused("a kernel computes another part of the program than the stored values leave")
    check_block(kernel.program, kernel.block)


def _check_pair(part: _Part, first: CustomKernel, second: CustomKernel) -> None:
    """Check that a pair of kernels does what one block graph would: the second as the grid phase of that, or in any way
    that is searched for what it computes. Raises Refused."""
    try:
        check_block(part.program, folded(part.program, part.reads, part.makes, first, second))
    except Refused as e:
        plain = replace(second, block=spelled(second.program))
        check_block(part.program, folded(part.program, part.reads, part.makes, first, plain))
        try:
            check_block(second.program, second.block)
        except Refused:
            raise e from None


def _reading(program: Program, reads: Sequence[int], makes: Sequence[int]) -> tuple[object, ...]:
    """An identity of what a kernel computes of which tensors, in whatever order it is written down."""
    sources = {(t, s.dims, s.dtype) for t, s in zip(reads, program.sources, strict=True)}
    inputs = {(i.name, reads[i.source], i.access) for i in program.inputs}
    outputs = {(t, o.value, o.access, o.dims, o.dtype) for t, o in zip(makes, program.outputs, strict=True)}
    return set(program.axes), sources, inputs, set(program.nodes), outputs


# --- one kernel -------------------------------------------------------------------------------------------------------------
cached_closure = functools.lru_cache(maxsize=32)(closure_of)


def check_block(program: Program, block: BlockGraph) -> None:
    """Check that a block graph for a whole program is represented in the closure of its mapping. Raises Refused, saying
    what is missing."""
    if len(block.split) > 1:
        raise Refused(f"the grid splits several reduced axes: {', '.join(block.split)}")
    mapping = Mapping(block.loop, *block.split)
    if mapping not in mappings(search_form(program)):
        raise Refused(f"the mapping {mapping} is not searched")
    check_represented(cached_closure(program, mapping), bare(block, program))
