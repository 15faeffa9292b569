"""NVIDIA devices of this machine, as the driver's own tool reports them (no CUDA library is loaded for it)."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from mirage_cli.errors import ToolMissing, UsageError

QUERY = ("name", "driver_version", "compute_cap", "memory.total")
TIMEOUT = 20


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: its number, name, driver version, compute capability such as "9.0", and memory."""

    number: int
    name: str
    driver: str
    capability: str
    memory: str

    @property
    def architecture(self) -> str:
        """The architecture to compile for: the newest one that we render for and the device runs."""
        major = int(self.capability.split(".")[0])
        if major == 9:
            return "sm_90a"
        if major >= 8:
            return "sm_80"
        raise UsageError(f"{self.name} has compute capability {self.capability}, at least 8.0 is needed")


def devices() -> list[Device]:
    """The GPUs of this machine; none where there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        found = subprocess.run(
            [tool, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[x.strip() for x in line.split(",")] for line in found.stdout.splitlines() if line.strip()]
    return [Device(k, *row) for k, row in enumerate(rows) if len(row) == len(QUERY)]


def architecture(number: int) -> str:
    """The architecture of GPU `number`. Raises ToolMissing without a GPU, UsageError for a number that does not exist."""
    found = devices()
    if not found:
        raise ToolMissing("no NVIDIA GPU was found", "name the architecture instead, for example --arch sm_90a")
    if number >= len(found):
        raise UsageError(f"there is no GPU {number}: this machine has {len(found)}")
    return found[number].architecture
