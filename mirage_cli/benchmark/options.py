"""Options of `mirage bench` for an output folder, and what they choose of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_cli.errors import UsageError
from mirage_cli.report import naming
from mirage_cli.report.report import REPLACED


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of a measurement. `gpu` is a number, `cpu` asks for the CPU; without both the first GPU is taken where
    onnxruntime and the folder can use it, else the CPU; `opencl` is an OpenCL device as PLATFORM:DEVICE. `dim` and
    `shape` are as in `optimize`, `runs` samples of
    each contestant (None: as many as fit into `seconds`, for each fragment and for the whole model), `threads`
    those of one operator on the CPU (None: onnxruntime's choice), `seed` that of the inputs, `peers` further
    contestants on a GPU (`peers.GROUPS`); `record` puts the fragments' times into the folder's report.json and
    report.html. `timeout` is the limit of one measurement, in seconds, `max_memory` that of the process that
    measures, in bytes (0: no limit). `only` are names or identifiers of fragments, which are timed without the whole model
    then. `inputs` is a file or folder with the inputs of the whole model, in place of
    drawn ones."""

    gpu: int | None = None
    cpu: bool = False
    opencl: str = ""
    dim: tuple[str, ...] = ()
    shape: tuple[str, ...] = ()
    runs: int | None = None
    seconds: float = 2.0
    threads: int | None = None
    seed: int = 0
    peers: tuple[str, ...] = ("eager", "compile")
    record: bool = False
    timeout: float = 3600.0
    max_memory: int = 0
    inputs: str | None = None
    only: tuple[str, ...] = ()


def replaced_fragments(report: Mapping[str, Any], only: Sequence[str]) -> list[Any]:
    """The replaced fragments of a report that are to be timed: all of them, or those that are called so. Raises UsageError
    for a name that none of them has."""
    replaced = [f for f in report["fragments"] if f["status"] == REPLACED]
    wanted: set[str] = set()
    for name in only:
        found = naming.fitting(replaced, name)
        if not found:
            raise UsageError(f"--only {name!r}: no replaced fragment is called so", naming.near(replaced, name))
        wanted.update(f["id"] for f in found)
    return [f for f in replaced if not only or f["id"] in wanted]
