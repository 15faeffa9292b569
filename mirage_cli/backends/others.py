"""The back ends of other devices than CPUs and CUDA's: what compiles a fragment's source for each, and what a
library needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mirage_cli.backends import hip, opencl
from mirage_cli.backends.compile import CompileJob
from mirage_cli.backends.spec import OperatorSpec
from mirage_cli.backends.toolchain import Toolchain


@dataclass(frozen=True, slots=True)
class BackEnd:
    """A back end: the compilations of a fragment's source, and what a library with such kernels is linked with. A source is
    called ID and the back end's kind; it defines mirage_ID_kind and mirage_ID_workspace_kind, with the arguments of CUDA's
    entry points."""

    jobs: Callable[[Toolchain, str], list[CompileJob]]
    link: tuple[str, ...]
    find: Callable[[], object] = lambda: None  #: its own compiler; raises ToolMissing without one


KINDS = {"hip": BackEnd(hip.jobs, hip.LINK, hip.find), "opencl": BackEnd(opencl.jobs, opencl.LINK)}


def used(operators: Iterable[OperatorSpec]) -> tuple[str, ...]:
    """The kinds of kernels that operators have, sorted."""
    return tuple(sorted({kind for op in operators for kind in op.others}))


def link_flags(kinds: Iterable[str]) -> tuple[str, ...]:
    """What a library is linked with for kernels of these kinds."""
    return tuple(dict.fromkeys(flag for kind in kinds for flag in KINDS[kind].link))
