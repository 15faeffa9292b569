"""GPUs as a driver's tool reports them: a script on PATH plays nvidia-smi."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.errors import ToolMissing, UsageError
from mirage_cli.machine import devices
from mirage_cli.optimization import environment

H200 = "GPU-aaaa1111, NVIDIA H200, 580.65.06, 9.0, 143771 MiB"
A100 = "GPU-bbbb2222, NVIDIA A100-SXM4-80GB, 580.65.06, 8.0, 81920 MiB"
T4 = "GPU-cccc3333, Tesla T4, 580.65.06, 7.5, 15360 MiB"
STATE = "1980 MHz, 1980 MHz, 3201 MHz, 31, 120.50 W, 0x0000000000000000"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH; `install` puts a driver's tool there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def install(folder: Path, *rows: str, code: int = 0) -> None:
    tool = folder / "nvidia-smi"
    lines = "\n".join(f"echo '{row}'" for row in rows) or ":"
    tool.write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/arguments\n'
        f"case \"$*\" in *clocks.sm*) echo '{STATE}';; *)\n{lines}\n;; esac\nexit {code}\n"
    )
    tool.chmod(0o755)


def test_no_driver(smi: Path) -> None:
    assert devices.devices() == []
    with pytest.raises(ToolMissing, match="no NVIDIA GPU"):
        devices.device(0)
    with pytest.raises(ToolMissing, match="no NVIDIA GPU") as caught:
        environment.architecture(0)
    assert "--arch" in caught.value.hint


def test_devices_in_order(smi: Path) -> None:
    install(smi, H200, A100)
    first, second = devices.devices()
    assert first == devices.Device(0, "GPU-aaaa1111", "NVIDIA H200", "580.65.06", "9.0", "143771 MiB")
    assert (second.number, second.name) == (1, "NVIDIA A100-SXM4-80GB")
    assert [environment.architecture(k) for k in (0, 1)] == ["sm_90a", "sm_80"]
    assert devices.name("cuda", 1) == "NVIDIA A100-SXM4-80GB"
    arguments = (smi / "arguments").read_text()
    assert "--query-gpu=uuid,name,driver_version,compute_cap,memory.total --format=csv,noheader" in arguments


@pytest.mark.parametrize("number", [2, -1])
def test_a_number_that_does_not_exist(smi: Path, number: int) -> None:
    install(smi, H200, A100)
    with pytest.raises(UsageError, match=f"no GPU {number}: this machine has 2"):
        devices.device(number)


def test_an_architecture_that_is_too_old(smi: Path) -> None:
    install(smi, T4)
    with pytest.raises(UsageError, match=r"T4 has compute capability 7\.5, which runs code for none of sm_80"):
        environment.architecture(0)


def test_a_tool_that_fails_or_talks(smi: Path) -> None:
    install(smi, "NVIDIA-SMI has failed because it could not communicate with the driver", code=9)
    assert devices.devices() == []
    install(smi, "No devices were found")
    assert devices.devices() == []


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("1,0", ["NVIDIA A100-SXM4-80GB", "NVIDIA H200"]),
        ("GPU-bbbb", ["NVIDIA A100-SXM4-80GB"]),
        ("GPU-", []),  # fits both
        ("0,-1,1", ["NVIDIA H200"]),
        ("0,7,1", ["NVIDIA H200"]),
        ("", []),
    ],
)
def test_visible_devices_are_counted_as_cuda_does(
    smi: Path, monkeypatch: pytest.MonkeyPatch, choice: str, names: list[str]
) -> None:
    install(smi, H200, A100)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", choice)
    assert [d.name for d in devices.devices()] == names
    assert [d.number for d in devices.devices()] == list(range(len(names)))


def test_state_names_what_it_tells(smi: Path) -> None:
    install(smi, H200, A100)
    found = devices.state(1)
    assert found["clocks.sm"] == "1980 MHz"
    assert found["clocks_throttle_reasons.active"] == "0x0000000000000000"
    assert "--id=GPU-bbbb2222" in (smi / "arguments").read_text()


def test_processor_counts_the_cores_of_this_process() -> None:
    cores = len(os.sched_getaffinity(0))
    assert devices.processor().endswith(f", {cores} core" + ("s" if cores > 1 else ""))
    assert devices.name("cpu") == devices.processor()


def test_the_largest_cache(tmp_path: Path) -> None:
    for k, size in enumerate(("32K", "1M", "24576K", "", "x")):
        (tmp_path / f"index{k}").mkdir()
        (tmp_path / f"index{k}" / "size").write_text(size + "\n")
    assert devices.cache_bytes("cpu", tmp_path) == 24 << 20
    assert devices.cache_bytes("cpu", tmp_path / "absent") == 32 << 20
    assert devices.cache_bytes("cuda") >= 50 << 20


# ---- the driver's version --------------------------------------------------------------------------------------------


class Driver:
    """In the place of the driver's library."""

    def __init__(self, version: int, failed: int = 0) -> None:
        self.version, self.failed = version, failed

    def cuDriverGetVersion(self, found: Any) -> int:
        ctypes.cast(found, ctypes.POINTER(ctypes.c_int))[0] = self.version
        return self.failed


@pytest.mark.parametrize(
    ("library", "version", "said"),
    [
        (Driver(12080), (12, 8), "the NVIDIA driver is for CUDA 12.8"),
        (Driver(0), None, "there is no NVIDIA driver"),
        (Driver(12080, 999), None, "there is no NVIDIA driver"),
        (object(), None, "there is no NVIDIA driver"),
    ],
)
def test_what_cuda_the_driver_is_for(
    monkeypatch: pytest.MonkeyPatch, library: Any, version: tuple[int, int] | None, said: str
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert (devices.driver_cuda(), devices.driver()) == (version, said)


def test_no_library_of_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "LIBRARY", "libcuda-that-is-nowhere.so")
    assert devices.driver_cuda() is None
    devices.check_driver("nvcc", "nvcc 13.0.88")


def test_a_driver_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "driver_cuda", lambda: (12, 4))
    for version in ("nvcc 12.0.1", "12.9", "nvcc 11.8.89", "of unknown version"):
        devices.check_driver("nvcc", version)
    with pytest.raises(ToolMissing, match=r"for CUDA 12\.4, too old for nvcc, which is for CUDA 13\.0") as told:
        devices.check_driver("nvcc", "nvcc 13.0.88")
    assert told.value.hint == "update the NVIDIA driver to 580 or newer, or use one for CUDA 12"
