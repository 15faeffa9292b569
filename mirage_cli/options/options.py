"""Options of `mirage optimize`, under the same names on the command line, in YAML and in Python."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any


def cores() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Options:
    """All options of `optimize`. Empty tuples and None mean "decide by what is there".

    `shape` and `dim` are as in the contract (`NAME=1x128`, `SYMBOL=N` or `MIN:TYPICAL:MAX`), `target` kinds ("cpu",
    "cuda"), `arch` architectures, `gpu` the number of a GPU to measure on, `measure` keeps what is faster on the
    CPU, `only` and `skip` globs on node names, `budget` seconds for a fragment's search (0: no limit), `tune_candidates` and
    `tune_budget` how many candidates of a fragment `gpu` measures and in how many seconds (0: no limit), `tuned` takes times
    from the cache without a GPU too, `without` optimizer passes that are left out, `unwritten` globs on names of inputs that
    no kernel writes, on the stream in front of the model's either, `confidence` bits of the proof,
    `require_coverage` pairs KIND=SHARE, `cache` a folder ("" for none), `max_memory` bytes (0: no limit), `inputs` a file or
    folder with inputs of the model that kernels are checked with too, `data` the folder of the external data of a model on
    standard input, `target_file` a file with the rates of a CPU or GPU that plans are for, `scheduler` the address of a farm's
    scheduler and `certificates` the folder that it is spoken to with.
    `--keep-going` is `strict` negated.
    """

    shape: tuple[str, ...] = ()
    dim: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    arch: tuple[str, ...] = ()
    gpu: int | None = None
    measure: bool = False
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    max_kernels: int = 4
    max_ops: int = 24
    candidates: int = 6
    budget: float = 0.0
    tune_candidates: int = 68
    tune_budget: float = 12.0
    tuned: bool = False
    without: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    jobs: int = field(default_factory=cores)
    seed: int = 0
    confidence: int = 40
    cache: str | None = None
    max_memory: int = 0
    inputs: str | None = None
    data: str | None = None
    target_file: str | None = None
    scheduler: str | None = None
    certificates: str | None = None
    require_coverage: tuple[str, ...] = ()
    dry_run: bool = False
    force: bool = False
    strict: bool = False

    def to_json(self) -> dict[str, Any]:
        """The options as the report stores them: everything that can change the output."""
        data = asdict(self)
        for name in ("jobs", "cache", "max_memory", "scheduler", "certificates"):
            data.pop(name)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in data.items()}
