"""The environment of a run: compilers, targets, architectures, cache folders."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_cli.backends import toolchain as tools_module
from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.errors import ToolMissing, UsageError
from mirage_cli.farm.client import Farm
from mirage_cli.files.result_store import Kept
from mirage_cli.machine import devices, user_folders
from mirage_cli.measurement import rates
from mirage_cli.options.options import Options
from mirage_cli.processes.jobs import Crew, Here
from mirage_cli.runtime import sessions
from mirage_cli.search.schedules.architectures import architectures, card_changes, default_architectures, kinds, native
from mirage_cli.tuning.cache import TuningCache

if TYPE_CHECKING:
    from mirage_cli.report import forms
    from mirage_cli.search.schedules.target import Target

OBJECTS, TUNINGS, RESULTS, GRAPHS = "objects", "tunings", "results", "graphs"  #: folders of the cache
ANSWERS = "answers"


def toolchain(options: Options) -> Toolchain:
    """The compilers that a run needs. Raises ToolMissing, also for a GPU or a provider that `--gpu` needs."""
    unknown = [t for t in options.target if t not in kinds()]
    if unknown:
        raise UsageError(f"--target {unknown[0]}: expected one of {', '.join(kinds())}")
    tools = tools_module.find(not options.target or wants_cuda(options), store(options))
    if further := {*options.target} - {"cpu", "cuda"}:
        from mirage_cli.backends import others  # noqa: PLC0415 - with all that prints sources

        for kind in further:
            others.KINDS[kind].find()
    if options.gpu is not None and options.scheduler is None:
        devices.device(options.gpu)
        _check_timing(options)
    if wants_cuda(options) and tools.nvcc is None:
        raise ToolMissing("no nvcc was found", "pip install 'mirage-cli[nvcc]', or set CUDA_HOME; or use --target cpu")
    if options.gpu is not None and options.scheduler is None and tools.nvcc is not None:
        devices.check_driver("nvcc", tools.nvcc.version)
    return tools


def compiles_for_gpus(options: Options) -> bool:
    """True if this machine has a compiler for CUDA."""
    try:
        return tools_module.find_nvcc(store(options)) is not None
    except ToolMissing:
        return False


def times_originals(options: Options) -> bool:
    """True if original nodes are timed beside fragments on the GPU, by onnxruntime: with `--force`, which replaces them
    whatever their time is, only where its provider is there. Of a farm's workers that is not known."""
    return options.gpu is not None and (
        not options.force or options.scheduler is not None or "cuda" in sessions.providers()
    )


def _check_timing(options: Options) -> None:
    """Raise ToolMissing where nothing here can time what `--gpu` is to time."""
    if times_originals(options):
        sessions.check_provider("cuda")
    elif not any(importlib.util.find_spec(name) for name in ("torch", "cupy")):
        from mirage_cli.measurement.gpu_backends import HINT  # noqa: PLC0415 - with numpy

        raise ToolMissing("timing on a GPU needs torch or cupy, and neither is installed", HINT)


@dataclass(frozen=True, slots=True)
class Machine:
    """The CPU that plans go by: the keys of its target's file that have other values, and where these come from; the same of
    the GPU (`card`); with a `note` where this machine is not known."""

    origin: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    card: Mapping[str, Any] = field(default_factory=dict)

    def targets(self) -> tuple[Target, ...]:
        """The targets that are not those of the files."""
        if not self.changes and not self.card:
            return ()
        from mirage_cli.search.schedules.target import changed_target  # noqa: PLC0415 - with numpy

        return tuple(changed_target(c, "") for c in (self.changes, self.card) if c)

    def to_json(self) -> forms.Rates:
        """The form in report.json; nothing where plans go by the files of targets."""
        told: forms.Rates = {"origin": self.origin, "changes": dict(self.changes)} if self.changes else {}
        return {**told, "card": dict(self.card)} if self.card else told


def machine(options: Options, tools: Toolchain) -> Machine:
    """The CPU and the GPU that plans go by: what `--target-file` says of one of them, else this machine's: the CPU as it was
    measured once, now if need be, the GPU as its target's file has it by name. Raises UsageError for a file that is wrong."""
    if options.target_file is None:
        return replace(_processor(tools), card=_card(options))
    from mirage_cli.options import config  # noqa: PLC0415 - with yaml
    from mirage_cli.search.schedules.target import CPU, changed_target  # noqa: PLC0415 - with numpy

    changes = config.plain(options.target_file)
    if not isinstance(changes, dict):
        raise UsageError(f"--target-file {options.target_file}: expected keys of a target's file with their values")
    if changed_target(changes, f"{options.target_file}: ").name != CPU:
        return replace(_processor(tools), card=changes)
    return Machine(options.target_file, changes, card=_card(options))


def _processor(tools: Toolchain) -> Machine:
    """This machine's CPU."""
    measured, problem = rates.found(tools.cxx)
    note = f"the CPU's rates are those of search/targets/cpu.yaml: {problem}" if problem else ""
    return Machine(note=note) if measured is None else Machine("this machine", measured.changes())


def _card(options: Options) -> dict[str, Any]:
    """What the file of its architecture says of this machine's GPU, the first one unless `--gpu` says which; nothing where no
    kernels are made for one, or others time them."""
    if options.scheduler is not None or not (wants_cuda(options) or not options.target):
        return {}
    found = devices.devices()[options.gpu or 0 :][:1]
    return next((card_changes(architecture_of(d), d.name) for d in found), {})


def crew(options: Options) -> Crew:
    """Who makes the jobs of a run: the processes of this machine, or a farm. Raises FarmLost where no scheduler answers,
    ToolMissing without Dask, UsageError for an address or certificates that do not fit."""
    here = Here(options.jobs, options.max_memory)
    return here if options.scheduler is None else Farm(options.scheduler, options.certificates, here).open()


def device(options: Options, crew: Crew) -> devices.Device | None:
    """The GPU to measure on: of this machine, or the kind with that number that workers of a farm offer. Raises
    ToolMissing without a GPU, UsageError for a number that does not exist."""
    if options.gpu is None or options.scheduler is None:
        return None if options.gpu is None else devices.device(options.gpu)
    offered = crew.devices()
    if options.gpu >= len(offered):
        names = ", ".join(d.name for d in offered) or "none"
        raise ToolMissing(
            f"--gpu {options.gpu}: workers of {options.scheduler} offer {len(offered)} kinds of GPU: {names}"
        )
    found: devices.Device = offered[options.gpu]
    return found


def settled(options: Options, crew: Crew) -> Options:
    """The options of a run with a farm's GPU, whose architecture is the native one."""
    found = device(options, crew) if options.scheduler is not None else None
    if found is None or (options.arch and "native" not in options.arch):
        return options
    own = architecture_of(found)
    return replace(options, arch=tuple(own if a == "native" else a for a in options.arch) or (own,))


def wants_cuda(options: Options) -> bool:
    """True if CUDA kernels are asked for, not merely welcome."""
    return "cuda" in options.target or options.gpu is not None


def targets(options: Options, tools: Toolchain) -> dict[str, tuple[str, ...]]:
    """The targets of a run by kind: CPU kernels always (a library with none of a provider's kernels is an error there),
    CUDA ones when asked for or when there is a compiler. Raises UsageError for an unknown architecture."""
    chosen: dict[str, tuple[str, ...]] = {"cpu": ("cpu",)}
    if wants_cuda(options) or (not options.target and tools.nvcc is not None):
        chosen["cuda"] = archs(options)
    return chosen | {k: default_architectures(k) or (k,) for k in kinds() if k in {*options.target} - {"cpu", "cuda"}}


def made_besides(options: Options) -> tuple[str, ...]:
    """The kinds whose kernels a run makes though others were asked for."""
    return ("cpu",) if options.target and "cpu" not in options.target and not options.measure else ()


def unasked(options: Options, tools: Toolchain) -> list[str]:
    """A note on CUDA kernels that nobody asked for, where no GPU would run them."""
    if "cuda" not in targets(options, tools) or wants_cuda(options) or devices.devices():
        return []
    built = " and ".join(archs(options))
    return [f"kernels for {built} are made too, since nvcc is here; there is no GPU: --target cpu takes less time"]


def archs(options: Options) -> tuple[str, ...]:
    """The CUDA architectures to build for, oldest first. Raises UsageError for an unknown one."""
    asked = options.arch or (("native",) if options.gpu is not None else ())
    names = [architecture(options.gpu or 0) if a == "native" else a for a in asked]
    if unknown := [a for a in names if a not in architectures()]:
        raise UsageError(f"--arch {unknown[0]}: expected {', '.join(architectures())} or native")
    return tuple(a for a in architectures() if a in names) or default_architectures()


def architecture(gpu: int) -> str:
    """The architecture for GPU number `gpu`. Raises ToolMissing without a GPU, UsageError for a number that does not exist
    and for a GPU that is too old."""
    if not devices.devices():
        raise ToolMissing("no NVIDIA GPU was found", "name the architecture instead, for example --arch sm_90a")
    return architecture_of(devices.device(gpu))


def architecture_of(device: devices.Device) -> str:
    """The architecture for a GPU. Raises UsageError for one that is too old."""
    return native(device.name, device.capability)


def cache_folder(options: Options) -> Path | None:
    """Where results of earlier runs live; None with --no-cache, and for a user without a home."""
    if options.cache == "":
        return None
    return Path(options.cache) if options.cache else user_folders.cache()


def object_cache(options: Options) -> Path | None:
    """The folder of compiled objects."""
    folder = cache_folder(options)
    return None if folder is None else folder / OBJECTS


def store(options: Options) -> Kept | None:
    """The store of what earlier runs have found out; None with --no-cache."""
    folder = cache_folder(options)
    return None if folder is None else Kept(folder / RESULTS)


def answers(options: Options) -> Kept | None:
    """Whole runs of earlier times; None with --no-cache."""
    folder = cache_folder(options)
    return None if folder is None else Kept(folder / ANSWERS)


def tuning_cache(options: Options) -> TuningCache | None:
    """The cache of measured candidates; None with --no-cache."""
    folder = cache_folder(options)
    return None if folder is None else TuningCache(folder / TUNINGS)
