"""`mirage doctor` on machines that lack this or that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirage_cli.backends import toolchain
from mirage_cli.backends.toolchain import Tool
from mirage_cli.errors import ToolMissing
from mirage_cli.inspection import doctor
from mirage_cli.machine import devices
from mirage_cli.measurement import rates
from mirage_cli.optimization import environment
from mirage_cli.options.options import Options
from mirage_cli.runtime import sessions
from tests.measurement.test_rates import SOME

GPU = devices.Device(0, "GPU-1", "NVIDIA H200", "580.65.06", "9.0", "143771 MiB")
OLD = devices.Device(0, "GPU-1", "Tesla T4", "580.65.06", "7.5", "15360 MiB")
MODULE = doctor._module
CPU, CUDA, RUN = "optimize models, with CPU kernels", "optimize models, with CUDA kernels", "bench --gpu"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine with everything; tests take things away."""
    monkeypatch.setattr(toolchain, "find_cxx", lambda _: Tool(("g++",), "g++ 12", "PATH"))
    monkeypatch.setattr(toolchain, "find_nvcc", lambda _: Tool(("nvcc",), "nvcc 13.0", "PATH"))
    monkeypatch.setattr(devices, "devices", lambda: [GPU])
    monkeypatch.setattr(devices, "driver_cuda", lambda: (13, 0))
    monkeypatch.setattr(doctor, "_module", lambda name, command: doctor.Item(name, True, "1.0"))
    monkeypatch.setattr(sessions, "providers", lambda: ("cpu", "cuda"))
    monkeypatch.setattr(environment, "cache_folder", lambda options: tmp_path)
    return monkeypatch


def possible(found: doctor.Diagnosis, text: str) -> bool:
    return next(a.possible for a in found.abilities if text in a.name)


def test_everything_is_there(machine: pytest.MonkeyPatch) -> None:
    found = doctor.examine()
    assert found.ok
    assert all(possible(found, text) for text in (CPU, CUDA, RUN, "optimize --gpu"))
    assert "NVIDIA H200, 143771 MiB, compute capability 9.0, driver 580.65.06" in found.text()


def test_rates_are_shown_where_they_are_known_and_measured_on_request(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(rates, "kept", lambda: None)
    assert "processor's rates: mirage doctor --measure" in doctor.examine().text()
    machine.setattr(toolchain, "find_cxx", lambda *_: Tool(("g++",), "g++ 12", "PATH"))
    machine.setattr(rates, "found", lambda tool, anew: (SOME, "") if anew else (None, ""))
    found = doctor.examine(measure=True).item("processor's rates")
    assert found.ok and "200 of all 4 (products 160, onnxruntime 150, split 400), 40.0 GB/s" in found.found
    machine.setattr(rates, "found", lambda tool, anew: (None, "this machine is loaded"))
    assert doctor.examine(measure=True).item("processor's rates").found == "this machine is loaded"


def test_compilers_that_worked_once_are_asked_for_their_version_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "mirage").mkdir(mode=0o700)
    run, called = toolchain.programs.run, []
    monkeypatch.setattr(toolchain.programs, "run", lambda command, *rest: called.append(command) or run(command, *rest))
    tries = []
    for _ in range(2):
        toolchain._build.cache_clear()
        toolchain._version.cache_clear()
        called.clear()
        doctor.examine()
        tries.append([c for c in called if "--version" not in c])
    assert tries[0] and not tries[1]


def test_without_a_compiler_nothing_can_be_optimized(machine: pytest.MonkeyPatch) -> None:
    def absent(_: object) -> Tool:
        raise ToolMissing("no C++17 compiler was found", "apt install g++")

    machine.setattr(toolchain, "find_cxx", absent)
    found = doctor.examine()
    assert not found.ok
    assert not possible(found, CPU)
    assert not possible(found, CUDA)
    assert possible(found, RUN)
    assert "C++ compiler: apt install g++" in found.text()
    assert found.to_json()["ok"] is False


def test_without_cuda_the_cpu_remains(machine: pytest.MonkeyPatch) -> None:
    def absent(_: object) -> Tool:
        raise ToolMissing("no usable nvcc was found", "pip install 'mirage-cli[nvcc]'")

    machine.setattr(toolchain, "find_nvcc", absent)
    machine.setattr(devices, "devices", list)
    machine.setattr(sessions, "providers", lambda: ("cpu",))
    found = doctor.examine()
    assert found.ok
    assert possible(found, CPU)
    assert not any(possible(found, text) for text in (CUDA, RUN, "optimize --gpu"))
    assert f"CUDA provider: {sessions.CUDA_PROVIDER_COMMAND}" in found.text()
    assert "CUDA compiler: pip install 'mirage-cli[nvcc]'" in found.text()
    missing = next(a for a in found.to_json()["possible"] if RUN in a["name"])["missing"]
    assert missing == ["GPU", "CUDA provider"]


def test_a_gpu_that_is_too_old(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(devices, "devices", lambda: [OLD])
    found = doctor.examine()
    assert not found.item("GPU").ok
    assert "compute capability 7.5, which runs code for none of sm_80" in found.item("GPU").found


def test_a_driver_that_is_too_old(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(devices, "driver_cuda", lambda: (12, 2))
    found = doctor.examine()
    assert "the NVIDIA driver is for CUDA 12.2, too old for nvcc, which is for CUDA 13.0" in found.item("GPU").found
    assert "GPU: update the NVIDIA driver to 580 or newer, or use one for CUDA 12" in found.text()
    assert not possible(found, "optimize --gpu")
    machine.setattr(devices, "driver_cuda", lambda: (13, 0))
    assert possible(doctor.examine(), "optimize --gpu")


def test_a_package_that_is_broken(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise AttributeError('built for another numpy')")
    (tmp_path / "torch.py").write_text("")
    machine.setattr(doctor, "_module", MODULE)
    machine.setattr(doctor, "_version", lambda distribution: "of unknown version")  # whatever is installed
    machine.syspath_prepend(str(tmp_path))
    found = doctor.examine()
    assert found.item("torch").ok
    said = "of unknown version, importing it fails: AttributeError: built for another numpy"
    assert (found.item("cupy").ok, found.item("cupy").found) == (False, said)
    assert not possible(found, "cupy arrays")
    assert possible(found, "optimize --gpu")
    (tmp_path / "torch.py").write_text("raise ImportError('no')")
    found = doctor.examine()
    assert next(a for a in found.abilities if "optimize --gpu" in a.name).missing == ("torch or cupy",)


def test_onnxruntime_that_cannot_be_imported(machine: pytest.MonkeyPatch) -> None:
    def broken() -> tuple[str, ...]:
        raise ImportError("libonnxruntime.so is missing")

    machine.setattr(sessions, "providers", broken)
    found = doctor.examine()
    assert not found.ok
    assert found.item("onnxruntime").command == "pip install onnxruntime"


def test_a_cache_that_cannot_be_written(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    machine.setattr(environment, "cache_folder", lambda options: file / "cache")
    found = doctor.examine()
    assert found.ok
    assert not found.item("cache folder").ok
    assert "--cache DIR" in found.text()
    machine.setattr(environment, "cache_folder", lambda options: tmp_path / "new" / "folder")
    assert doctor.examine().item("cache folder").ok
    assert not (tmp_path / "new").exists()


def test_this_machine() -> None:
    """What is said of this machine is what its parts say."""
    found = doctor.examine()
    assert found.item("C++ compiler").found == str(toolchain.find_cxx())
    assert found.item("CUDA provider").ok == ("cuda" in sessions.providers())
    assert found.item("cache folder").found.startswith(str(environment.cache_folder(Options())))
    assert json.loads(json.dumps(found.to_json()))["found"][0]["name"] == "mirage"
