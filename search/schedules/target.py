"""Targets: the limits and rates of an architecture, read from `targets/*.yaml`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

import yaml

from mirage_cli.errors import UsageError
from mirage_cli.lax.dtypes import DType


@dataclass(frozen=True, slots=True)
class Target:
    """What a kernel is made for. Sizes in bytes, rates per second, times in microseconds."""

    name: str
    kind: str  #: "cuda" or "cpu"
    units: int
    shared_bytes: int
    shared_total: int
    registers: int
    threads: int
    bandwidth: float
    flops: dict[str, float]
    special: float
    launch_us: float
    kernel_us: float
    latency_us: float
    fork_us: float = 0.0
    split: float = 0.0  #: of float32 products whose numbers are split for matrix instructions; 0: there are none

    @property
    def capability(self) -> int:
        """The architecture's number as `__CUDA_ARCH__` has it, such as 900 for sm_90a; 0 of a target that is no GPU."""
        found = re.match(r"sm_(\d+)", self.name)
        return 10 * int(found[1]) if found else 0

    @property
    def clusters(self) -> bool:
        """Whether blocks can form clusters that share their memory."""
        return self.name.startswith("sm_9")

    def rate(self, dtype: DType | None) -> float:
        """Multiply-adds of a matrix product in this type, times two, a second, as kernels can do them."""
        return max(self.library_rate(dtype), self.split if dtype is None or dtype.name == "f32" else 0.0)

    def library_rate(self, dtype: DType | None) -> float:
        """The same of libraries, which multiply float32 by ordinary multiply-adds."""
        return self.flops.get(dtype.name if dtype else "f32", self.flops["f32"])


def target_names() -> list[str]:
    """The targets that there are files for."""
    folder = files("mirage_cli.search").joinpath("targets")
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


def load_target(name: str) -> Target:
    """The target called `name`. Raises UsageError for an unknown one."""
    if name not in target_names():
        raise UsageError(f"unknown architecture {name!r}", f"known: {', '.join(target_names())}")
    data = yaml.safe_load(files("mirage_cli.search").joinpath("targets", f"{name}.yaml").read_text())
    for key in ("bandwidth", "special"):
        data[key] = float(data[key])
    data["split"] = float(data.get("split", 0.0))
    data["flops"] = {k: float(v) for k, v in data["flops"].items()}
    return Target(**data)
