"""Languages that kernels are printed in, by the kind of target: the skeleton of a source, the texts of a kernel in it, and
what the host does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mirage_cli.codegen.hip.host import HIP
from mirage_cli.codegen.opencl.host import OPENCL
from mirage_cli.codegen.opencl.printer import kernel_text
from mirage_cli.codegen.requests import host
from mirage_cli.codegen.requests.request import Kernel
from mirage_cli.kernel_language.printer import CPP


def _parameters(of: Kernel) -> str:
    return CPP.parameters(of.kernel)


def _function(of: Kernel) -> str:
    return CPP.function(of.kernel)


@dataclass(frozen=True, slots=True)
class Language:
    """A language: the template of its sources, its host, and the struct of a kernel's parameters and the kernel as texts."""

    template: str
    host: host.Host
    parameters: Callable[[Kernel], str] = _parameters
    function: Callable[[Kernel], str] = _function


LANGUAGES = {
    "cpu": Language("kernel.cpp.j2", host.THREADS),
    "cuda": Language("kernel.cu.j2", host.CUDA),
    "hip": Language("kernel.hip.j2", HIP),
    "opencl": Language("kernel.opencl.j2", OPENCL, lambda _: "", kernel_text),
}
