"""The back ends of other devices than CPUs and CUDA's: what compiles a fragment's source for each, and what a library needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mirage_cli.backends import hip, opencl
from mirage_cli.backends.compile import CompileJob
from mirage_cli.backends.spec import OperatorSpec
from mirage_cli.backends.toolchain import Toolchain


class BackEnd(Protocol):
    """A module of this package. A source is called ID and the back end's kind; it defines mirage_ID_kind and
    mirage_ID_workspace_kind, with the arguments of CUDA's entry points."""

    LINK: tuple[str, ...]  #: what a library with such kernels is linked with

    @staticmethod
    def jobs(toolchain: Toolchain, fragment: str, /) -> list[CompileJob]:
        """The compilations of a fragment's source."""


KINDS: dict[str, BackEnd] = {"hip": hip, "opencl": opencl}


def used(operators: Iterable[OperatorSpec]) -> tuple[str, ...]:
    """The kinds of kernels that operators have, sorted."""
    return tuple(sorted({kind for op in operators for kind in op.others}))


def link_flags(kinds: Iterable[str]) -> tuple[str, ...]:
    """What a library is linked with for kernels of these kinds."""
    return tuple(dict.fromkeys(flag for kind in kinds for flag in KINDS[kind].LINK))
