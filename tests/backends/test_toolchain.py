"""Finding compilers, with paths and variables that lead nowhere."""

import importlib.util
import sys
from pathlib import Path

import pytest

from mirage_cli.backends import toolchain
from mirage_cli.errors import ToolMissing
from mirage_cli.files.result_store import Kept


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without compilers; the path is an empty folder."""
    for name in ("CXX", "NVCC", "CUDA_HOME", "CUDA_PATH", "NVCC_CCBIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain, "USUAL_CUDA", str(tmp_path / "nothing"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    return tmp_path


WRITES = 'case "$*" in *probe.so*) printf "\\177ELF%060d" 0 > probe.so;; esac'


def script(path: Path, text: str, writes: str = WRITES) -> Path:
    """A compiler that says or does this, and writes the library that it is asked for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{writes}\n{text}\n")
    path.chmod(0o755)
    return path


def forget() -> None:
    """What this process knows of compilers."""
    toolchain._version.cache_clear()
    toolchain._build.cache_clear()


NVCC = 'case "$1" in --version) echo "Cuda compilation tools, release {v}, V{v}.88";; *) exit {code};; esac'


def test_nothing_there(bare: Path) -> None:
    with pytest.raises(ToolMissing, match=r"no C\+\+17 compiler was found") as missing:
        toolchain.find_cxx()
    assert "apt install g++" in missing.value.hint
    assert "mirage-cli[cc]" in missing.value.hint
    with pytest.raises(ToolMissing, match="no usable nvcc was found") as missing:
        toolchain.find_nvcc()
    assert "mirage-cli[nvcc]" in missing.value.hint


def test_order_on_the_path(bare: Path) -> None:
    script(bare / "c++", "echo c++ 1")
    script(bare / "clang++", "echo clang 2")
    found = toolchain.find_cxx()
    assert (found.command, found.version, found.origin) == (("clang++",), "clang 2", "PATH")
    script(bare / "g++", "echo gcc 3; exit 1")  # present but broken: the next one is taken
    assert toolchain.find_cxx().command == ("clang++",)


def test_a_variable_is_obeyed(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(bare / "g++", "echo gcc 3")
    mine = script(bare / "my tools" / "cc", "echo mine")
    monkeypatch.setenv("CXX", f"'{mine}' -m64")
    assert toolchain.find_cxx().command == (str(mine), "-m64")
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(ToolMissing, match=r"/no/such/compiler \(from \$CXX\): .*No such file"):
        toolchain.find_cxx()
    old = script(bare / "old", "case $1 in --version) echo old;; *) echo 'error: no C++17' >&2; exit 1;; esac")
    monkeypatch.setenv("CXX", str(old))
    with pytest.raises(ToolMissing, match="ended with 1: error: no C"):
        toolchain.find_cxx()


def test_what_worked_is_not_built_with_again(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(bare / "state"))
    kept = Kept(bare / "results")
    log = bare / "log"
    compiler = script(bare / "g++", f'echo "$1" >> {log}; echo gcc 3')
    calls = []
    for change in (lambda: None, lambda: None, lambda: script(compiler, f'echo "$1" >> {log}; echo gcc 3 ')):
        change()
        forget()
        log.write_text("")
        assert toolchain.find(cuda=False, kept=kept).cxx.version == "gcc 3"
        calls.append(log.read_text().split())
    assert calls == [["--version", "-std=c++17"], ["--version"], ["--version", "-std=c++17"]]
    forget()
    monkeypatch.setenv("CPATH", "/elsewhere")
    log.write_text("")
    toolchain.find(cuda=False, kept=kept)
    assert "-std=c++17" in log.read_text()


def test_what_failed_is_tried_again(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(bare / "state"))
    script(bare / "g++", f"case $1 in --version) echo gcc 3;; *) test -e {bare / 'fixed'};; esac")
    kept = Kept(bare / "results")
    with pytest.raises(ToolMissing):
        toolchain.find_cxx(kept)
    (bare / "fixed").touch()
    forget()
    assert toolchain.find_cxx(kept).version == "gcc 3"


def test_zig(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = script(bare / "python", "echo zig 9")
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "ziglang" else None)
    found = toolchain.find_cxx()
    assert found.command == (str(python), "-m", "ziglang", "c++")
    # Without this zig compiles the base variant for the processor that it runs on.
    assert found.compile_flags == (("-mcpu=x86_64",) if toolchain.is_x86_64() else ())


def test_nvcc_places(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(bare / "usual" / "bin" / "nvcc", NVCC.format(v="12.0", code=0))
    monkeypatch.setattr(toolchain, "USUAL_CUDA", str(bare / "usual"))
    assert toolchain.find_nvcc().command == (str(bare / "usual" / "bin" / "nvcc"),)
    script(bare / "home" / "bin" / "nvcc", NVCC.format(v="12.4", code=0))
    monkeypatch.setenv("CUDA_HOME", str(bare / "home"))
    assert toolchain.find_nvcc().version == "nvcc 12.4.88"
    script(bare / "nvcc", NVCC.format(v="13.0", code=0))
    assert toolchain.find_nvcc().command == ("nvcc",)
    script(bare / "nvcc", NVCC.format(v="11.8", code=0))
    forget()
    assert toolchain.find_nvcc().origin == "$CUDA_HOME"
    monkeypatch.setenv("NVCC", "nvcc")
    with pytest.raises(ToolMissing, match=r"11\.8 is too old, 12\.0 or newer is needed"):
        toolchain.find_nvcc()


def test_nvcc_without_a_host_compiler(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(bare / "nvcc", NVCC.format(v="13.0", code=1))
    forget()
    with pytest.raises(ToolMissing, match="nvcc ended with 1"):
        toolchain.find_nvcc()
    script(bare / "g++", "echo gcc 3")
    assert toolchain.find().nvcc is None
    monkeypatch.setenv("NVCC", "nvcc")  # asked for by name: its absence is an error
    with pytest.raises(ToolMissing):
        toolchain.find()
    assert toolchain.find(cuda=False).nvcc is None


def test_nvcc_from_wheels(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = bare / "site" / "nvidia"
    nvcc = script(site / "cu13" / "bin" / "nvcc", NVCC.format(v="13.0", code=0))
    (site / "cu12" / "lib").mkdir(parents=True)
    spec = importlib.machinery.ModuleSpec("nvidia", None, is_package=True)
    spec.submodule_search_locations = [str(site)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "nvidia" else None)
    found = toolchain.find_nvcc()
    assert found.command == (str(nvcc),)
    assert found.compile_flags[:2] == ("-isystem", str(site / "cu13" / "include"))
    assert found.link_flags == (f"-L{site / 'cu13' / 'lib'}",)


def test_a_chosen_host_compiler_is_handed_to_nvcc(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(bare / "nvcc", NVCC.format(v="13.0", code=0))
    forget()
    monkeypatch.setenv("CXX", "clang++-19")
    assert toolchain.find_nvcc().compile_flags == ("-ccbin", "clang++-19")
    monkeypatch.setenv("NVCC_CCBIN", "g++-14")
    assert toolchain.find_nvcc().compile_flags == ()


def test_the_compilers_of_this_machine(cxx: toolchain.Toolchain) -> None:
    assert cxx.cxx.version
    assert str(cxx.cxx).count("from") == 1
