"""Processors of this machine: NVIDIA GPUs as the driver's own tool reports them (nothing of CUDA is begun), and the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from mirage_cli.errors import ToolMissing, UsageError
from mirage_cli.processes import programs

QUERY = ("uuid", "name", "driver_version", "compute_cap", "memory.total")
STATE = ("clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_throttle_reasons.active")
TIMEOUT = 20
LIBRARY = "libcuda.so.1"  #: the driver's
OLDEST = {
    11: "450",
    12: "525",
    13: "580",
}  #: drivers by the major version of CUDA (CUDA Toolkit Release Notes, table 2)
UPDATE = "update the NVIDIA driver (nvidia-smi shows its version), or use programs that are built with an older CUDA"
_CPU_CACHE = 32 << 20  #: bytes, where the system does not tell
_GPU_CACHE = 64 << 20  #: bytes; the second-level caches of Ampere and Hopper have 40 to 60 MiB


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: its number (as CUDA counts), UUID, name, driver version, compute capability such as "9.0", and memory."""

    number: int
    uuid: str
    name: str
    driver: str
    capability: str
    memory: str


def devices() -> list[Device]:
    """The GPUs of this machine that CUDA programs see, in their order; none where there is no driver."""
    rows = [row for row in _query(QUERY) if len(row) == len(QUERY)]
    return [Device(k, *row) for k, row in enumerate(_visible_to_cuda(rows, os.environ.get("CUDA_VISIBLE_DEVICES")))]


def device(number: int) -> Device:
    """GPU `number`. Raises ToolMissing without a GPU, UsageError for a number that does not exist."""
    present = devices()
    if not present:
        raise ToolMissing(
            "no NVIDIA GPU was found", "nvidia-smi shows what the driver sees; without a GPU leave out --gpu"
        )
    if not 0 <= number < len(present):
        raise UsageError(f"there is no GPU {number}: this machine has {len(present)}, counted from 0")
    return present[number]


def driver_cuda() -> tuple[int, int] | None:
    """The CUDA that the driver is for, as its own library says; None without a driver."""
    version = ctypes.c_int(0)
    try:
        failed = ctypes.CDLL(LIBRARY).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed or not version.value else (version.value // 1000, version.value % 1000 // 10)


def driver() -> str:
    """A sentence about the driver's version."""
    version = driver_cuda()
    return f"the NVIDIA driver is for CUDA {version[0]}.{version[1]}" if version else "there is no NVIDIA driver"


def check_driver(what: str, version: str) -> None:
    """Raise ToolMissing where the driver is too old for `what` (a compiler, a package), which is for CUDA `version`, such as
    "13.0". A driver runs programs of newer minor versions too."""
    needed, supported = re.search(r"(\d+)(\.\d+)?", version), driver_cuda()
    if needed is not None and supported is not None and supported[0] < int(needed[1]):
        oldest = OLDEST.get(int(needed[1]))
        raise ToolMissing(
            f"{driver()}, too old for {what}, which is for CUDA {needed[0]}",
            f"update the NVIDIA driver{f' to {oldest} or newer' if oldest else ''}, or use one for CUDA {supported[0]}",
        )


def state(number: int) -> dict[str, str]:
    """Clock rates, temperature, power and reasons for throttling of a GPU at this moment, as far as it tells."""
    uuid = device(number).uuid
    row = next(iter(_query(STATE, f"--id={uuid}")), [])
    return dict(zip(STATE, row, strict=True)) if len(row) == len(STATE) else {}


def name(provider: str, number: int = 0) -> str:
    """The name of the device on which a provider ("cpu" or "cuda") computes, for reports. Raises ToolMissing and
    UsageError as `device`."""
    return device(number).name if provider == "cuda" else processor()


def processor() -> str:
    """The name of the CPU and the number of cores that this process may use."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{model}, {cores} core{'s' if cores != 1 else ''}"


def identity() -> tuple[str, str]:
    """The CPU's name with the cores that may be used, and its instruction sets as the system tells them."""
    flags = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return processor(), flags


def cache_bytes(provider: str, folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Bytes of the largest cache of the CPU, or of a GPU's second-level cache (at least)."""
    if provider == "cuda":
        return _GPU_CACHE
    sizes = []
    for file in folder.glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):
            text = file.read_text().strip()
            sizes.append(int(text.rstrip("KMG")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1))
    return max(sizes, default=_CPU_CACHE)


def _query(fields: tuple[str, ...], *arguments: str) -> list[list[str]]:
    """The rows of the driver's tool; none where it is absent or fails."""
    tool = programs.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, *arguments, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    result = programs.run(command, Path("/"), TIMEOUT)
    lines = () if result.problem is not None else result.output.splitlines()
    return [[x.strip() for x in line.split(",")] for line in lines if line.strip()]


def _visible_to_cuda(rows: list[list[str]], choice: str | None) -> list[list[str]]:
    """The rows that CUDA_VISIBLE_DEVICES leaves, in its order: numbers or beginnings of UUIDs, up to the first that
    does not exist."""
    if choice is None:
        return rows
    chosen = []
    for item in (part.strip() for part in choice.split(",")):
        number = int(item) if item.isdigit() else -1
        matching = [
            r for k, r in enumerate(rows) if k == number or (not item.isdigit() and item and r[0].startswith(item))
        ]
        if len(matching) != 1:
            break
        chosen += matching
    return chosen
