"""`mirage doctor`: what is on this machine, what that allows, and the commands that install what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated as A
from typing import Any

from mirage_cli import __version__
from mirage_cli.backends import toolchain
from mirage_cli.backends.toolchain import Tool
from mirage_cli.errors import MirageError, ToolMissing, UsageError
from mirage_cli.files.codec import says
from mirage_cli.files.result_store import Kept
from mirage_cli.machine import devices, opencl, packages
from mirage_cli.measurement import rates
from mirage_cli.optimization import environment
from mirage_cli.options.options import Options
from mirage_cli.processes import isolation
from mirage_cli.processes.isolation import Lost
from mirage_cli.runtime import sessions

MODULES = {"cupy": "pip install 'mirage-cli[gpu]'", "torch": "pip install 'mirage-cli[torch]'"}  #: optional packages
NEEDED = ("numpy", "onnx", "onnx-ir", "onnxscript")  #: packages whose versions matter in a report of a defect


@dataclass(frozen=True, slots=True)
class Item:
    """Something that was looked for: what was found, or why it cannot be used and the command that helps."""

    name: A[str, says("What.")]
    ok: A[bool, says("Whether it is there.")]
    found: A[str, says("Its version, or what is wrong.")]
    command: A[str, says("What installs it.")] = ""


@dataclass(frozen=True, slots=True)
class Ability:
    """Something that this program does, whether it can be done here, and the items that are missing for it."""

    name: A[str, says("What.")]
    possible: A[bool, says("Whether it can be done here.")]
    missing: A[tuple[str, ...], says("What is missing for it.")] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The items that were found and what they allow. `ok` is False only where no model can be optimized."""

    items: tuple[Item, ...]
    abilities: tuple[Ability, ...]

    @property
    def ok(self) -> bool:
        """True if `mirage optimize` works at all, for the CPU."""
        return self.abilities[0].possible

    def item(self, name: str) -> Item:
        """The item of one name."""
        return next(i for i in self.items if i.name == name)

    def to_json(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "mirage": __version__,
            "ok": self.ok,
            "found": [asdict(i) for i in self.items],
            "possible": [{**asdict(a), "missing": list(a.missing)} for a in self.abilities],
        }

    def text(self) -> str:
        """The items, what can be done, and what to type for the rest."""
        width = max(len(i.name) for i in self.items)
        lines = [f"{'ok' if i.ok else '--'}  {i.name.ljust(width)}  {i.found}" for i in self.items]
        lines += ["", "What this machine can do:"]
        for a in self.abilities:
            missing = "" if a.possible else f" (missing: {', '.join(a.missing)})"
            lines.append(f"{'yes' if a.possible else 'no '} {a.name}{missing}")
        commands = [(i.name, i.command) for i in self.items if not i.ok and i.command]
        if commands:
            lines += ["", "To get what is missing:"]
            lines += [f"    {name}: {command}" for name, command in commands]
        return "\n".join(lines) + "\n"


def examine(measure: bool = False) -> Diagnosis:
    """Look at this machine. Compilers are tried on small programs, where no earlier run has; optional packages are imported
    in a process of their own; GPUs are asked for through the driver's tool, and the driver for its version. With
    `measure` the rates of the CPU are measured anew."""
    gpus, folder = devices.devices(), environment.cache_folder(Options())
    kept = environment.store(Options()) if folder is not None and folder.is_dir() else None  # none is made here
    with ThreadPoolExecutor() as threads:  # each waits for programs
        cxx = threads.submit(_compiler, "C++ compiler", lambda: toolchain.find_cxx(kept))
        nvcc = threads.submit(_compiler, "CUDA compiler", lambda: toolchain.find_nvcc(kept))
        modules = [threads.submit(_module, name, command) for name, command in MODULES.items()]
        devices_of_opencl = threads.submit(_opencl)
        runtime = _onnxruntime()
    items = (
        Item("mirage", True, f"{__version__} on Python {platform.python_version()}, {platform.platform()}"),
        Item("processor", True, devices.processor()),
        _rates(cxx.result() if measure else None),
        Item("packages", True, ", ".join(f"{name} {_version(name)}" for name in NEEDED)),
        runtime,
        cxx.result(),
        nvcc.result(),
        _gpus(gpus, kept),
        _cuda_provider(),
        devices_of_opencl.result(),
        *(m.result() for m in modules),
        _cache(environment.cache_folder(Options())),
    )
    return Diagnosis(items, abilities(items))


def abilities(items: Sequence[Item]) -> tuple[Ability, ...]:
    """The abilities that the items give; the first is to optimize models for the CPU."""
    ok = {i.name: i.ok for i in items}
    ok["torch or cupy"] = ok["torch"] or ok["cupy"]

    def ability(name: str, *needed: str) -> Ability:
        missing = tuple(n for n in needed if not ok[n])
        return Ability(name, not missing, missing)

    base = ("onnxruntime", "C++ compiler")
    cuda = (*base, "CUDA compiler")
    run = ("GPU", "CUDA provider")
    return (
        ability("optimize models, with CPU kernels", *base),
        ability("run and measure on the CPU", *base),
        ability("optimize models, with CUDA kernels", *cuda),
        ability("run patched models in onnxruntime on a GPU, bench --gpu", *run),
        ability("optimize --gpu: measure candidates on a GPU", *cuda, *run, "torch or cupy"),
        ability("call kernels on cupy arrays", "GPU", "cupy"),
        ability("call kernels on torch tensors", "torch"),
        ability("run OpenCL kernels, bench --opencl", "C++ compiler", "OpenCL"),
        ability("optimize TorchScript models", *base, "torch"),
        ability("keep compiled kernels between runs", "cache folder"),
    )


# ---- items -----------------------------------------------------------------------------------------------------------


def _compiler(name: str, find: Callable[[], Tool]) -> Item:
    try:
        return Item(name, True, str(find()))
    except ToolMissing as error:
        return Item(name, False, str(error), error.hint)


def _onnxruntime() -> Item:
    try:
        return Item("onnxruntime", True, f"{sessions.version()}, providers {', '.join(sessions.providers())}")
    except ImportError as error:  # both packages removed, or one that does not load here
        return Item("onnxruntime", False, f"cannot be imported: {error}", "pip install onnxruntime")


def _cuda_provider() -> Item:
    try:
        sessions.check_provider("cuda")
        return Item("CUDA provider", True, "of onnxruntime")
    except MirageError as error:
        return Item("CUDA provider", False, str(error), error.hint)
    except ImportError:
        return Item("CUDA provider", False, "there is no onnxruntime", "pip install onnxruntime-gpu")


def _opencl() -> Item:
    """The devices, as a process of its own lists them: a driver may do anything."""
    if importlib.util.find_spec("pyopencl") is None:
        return Item("OpenCL", False, "pyopencl is not installed (optional)", opencl.COMMAND)
    ((_, found),) = isolation.each(opencl.described, [()], 1, apart=True)
    if isinstance(found, Lost):
        return Item("OpenCL", False, found.reason, opencl.COMMAND)
    return Item("OpenCL", bool(found), "; ".join(found) or "no device", "" if found else opencl.COMMAND)


def _rates(compiler: Item | None) -> Item:
    """The CPU's rates: those that are kept, or, with a C++ `compiler`, measured now."""
    if compiler is None:
        measured, problem = rates.kept(), "not measured yet: the first run of optimize does"
    elif compiler.ok:
        measured, problem = rates.found(toolchain.find_cxx(), anew=True)
    else:
        measured, problem = None, "not measured: there is no C++ compiler"
    name = "processor's rates"
    return (
        Item(name, False, problem, "mirage doctor --measure") if measured is None else Item(name, True, measured.text())
    )


def _too_old(gpu: devices.Device) -> str:
    """Why a GPU runs no kernels, or nothing."""
    try:
        environment.architecture_of(gpu)
    except UsageError as error:
        return str(error)
    return ""


def _gpus(gpus: Sequence[devices.Device], kept: Kept | None) -> Item:
    if not gpus:
        return Item("GPU", False, "none: the driver's nvidia-smi is absent or shows no device")
    lines = [f"{g.number}: {g.name}, {g.memory}, compute capability {g.capability}, driver {g.driver}" for g in gpus]
    if all(why := [_too_old(g) for g in gpus]):
        return Item("GPU", False, "; ".join([*lines, *why]))
    try:
        nvcc = toolchain.find_nvcc(kept)
    except ToolMissing:
        return Item("GPU", True, "; ".join(lines))
    try:
        devices.check_driver("nvcc", nvcc.version)
    except ToolMissing as error:
        return Item("GPU", False, "; ".join([*lines, str(error)]), error.hint)
    return Item("GPU", True, "; ".join(lines))


def _module(name: str, command: str) -> Item:
    if importlib.util.find_spec(name) is None:
        return Item(name, False, "not installed (optional)", command)
    owners = importlib.metadata.packages_distributions().get(name, [name])
    version = _version(owners[0])
    ((_, outcome),) = isolation.each(packages.problem, [(name,)], 1, apart=True)
    problem = outcome.reason if isinstance(outcome, Lost) else outcome
    return Item(name, not problem, f"{version}, {problem}" if problem else version, command if problem else "")


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _cache(folder: Path | None) -> Item:
    if folder is None:
        return Item("cache folder", False, "none: the user's home is not known", "set HOME, or XDG_CACHE_HOME")
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        problem = f"{folder} cannot be written to ({error.strerror})"
        return Item("cache folder", False, problem, "choose another one: mirage optimize --cache DIR")
    return Item("cache folder", True, str(folder) + ("" if existing == folder else " (is made when it is needed)"))
