"""GPUs as a driver's tool reports them: a script on PATH plays nvidia-smi."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirage_cli import devices
from mirage_cli.errors import ToolMissing, UsageError

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
        devices.architecture(0)
    assert "--arch" in caught.value.hint


def test_devices_in_order(smi: Path) -> None:
    install(smi, H200, A100)
    first, second = devices.devices()
    assert first == devices.Device(0, "GPU-aaaa1111", "NVIDIA H200", "580.65.06", "9.0", "143771 MiB")
    assert (second.number, second.name) == (1, "NVIDIA A100-SXM4-80GB")
    assert [devices.architecture(k) for k in (0, 1)] == ["sm_90a", "sm_80"]
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
    with pytest.raises(UsageError, match=r"Tesla T4 has compute capability 7\.5, at least 8\.0"):
        devices.architecture(0)


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
