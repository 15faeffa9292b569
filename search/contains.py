"""Whether a muGraph lies in the space that the search covers: `contains(searcher, program, graph)`.

Within its bounds the search represents every muGraph whose intermediate values are abstract subexpressions of the fragment's,
up to equality of values (docs/search.md, section 3). So a muGraph is contained when each of its kernels is one that the
search looks at, and is represented in the closure under the kernel's own mapping (search/represented.py). That the muGraph
computes the program is for the proof to say, not for this.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.lax.program import Program
from mirage_cli.search.closure import Closure
from mirage_cli.search.form import search_form
from mirage_cli.search.fuse import fuse
from mirage_cli.search.kernels import operators
from mirage_cli.search.mapping import Mapping, mappings
from mirage_cli.search.mugraph import BlockGraph, KernelGraph
from mirage_cli.search.represented import represented

if TYPE_CHECKING:
    from mirage_cli.search.search import Searcher


@dataclass(frozen=True, slots=True)
class Containment:
    """Whether a muGraph lies in the space, and if not, why."""

    found: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.found


def contains(searcher: Searcher, program: Program, graph: KernelGraph) -> Containment:
    """Whether `graph`, a muGraph for `program`, is among those that a search with the searcher's options represents."""
    try:
        _bounds(searcher, graph.validate())
        for kernel in graph.kernels:
            block_contained(kernel.program, kernel.block)
    except (InvalidGraph, Refused) as e:
        return Containment(False, str(e))
    return Containment(True)


def _bounds(searcher: Searcher, graph: KernelGraph) -> None:
    options = searcher.options
    if len(graph.kernels) > options.max_kernels:
        raise Refused(f"{len(graph.kernels)} kernels, more than the {options.max_kernels} that are searched")
    for n, k in enumerate(graph.kernels):
        if (count := operators(fuse(k.block, k.program))) > options.max_ops:
            raise Refused(f"kernel {n} has {count} operators, more than the {options.max_ops} that are searched")


@functools.lru_cache(maxsize=32)
def closure_of(program: Program, mapping: Mapping) -> Closure:
    """The closure of a program under a mapping. Raises Refused."""
    return Closure(search_form(program), mapping).run()


def block_contained(program: Program, block: BlockGraph) -> None:
    """Check that a block graph for a whole program is represented in the closure of its mapping. Raises Refused, saying
    what is missing."""
    if len(block.split) > 1:
        raise Refused(f"the grid splits several reduced axes: {', '.join(block.split)}")
    mapping = Mapping(block.loop, *block.split)
    if mapping not in mappings(search_form(program)):
        raise Refused(f"the mapping {mapping} is not searched")
    represented(closure_of(program, mapping), block)
