"""Optional packages that are absent or broken."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mirage_cli.errors import ToolMissing
from mirage_cli.machine import devices, packages
from mirage_cli.measurement import gpu_backends

BROKEN = {
    "raise OSError('libcudart.so.9: cannot open\\nmore')": "OSError: libcudart.so.9: cannot open",
    "import nowhere_to_be_found": "ModuleNotFoundError: No module named 'nowhere_to_be_found'",
    "raise ValueError": "ValueError: ",
}


def forget(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let modules be imported anew, and as they were after the test."""
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]


@pytest.mark.parametrize(("source", "said"), BROKEN.items())
def test_a_package_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, said: str
) -> None:
    (tmp_path / "broken_package.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ToolMissing) as told:
        packages.imported("broken_package", "this test", "pip install it")
    assert str(told.value) == f"broken_package is needed for this test; importing it fails: {said}"
    assert (told.value.hint, packages.problem("broken_package")) == ("pip install it", f"importing it fails: {said}")


def test_a_package_that_is_absent_or_fine() -> None:
    with pytest.raises(ToolMissing, match="nowhere_to_be_found is needed for this test and is not installed"):
        packages.imported("nowhere_to_be_found", "this test", "")
    assert packages.problem("nowhere_to_be_found") == "not installed"
    assert packages.problem("json") == ""


def test_a_broken_torch_gives_way_to_cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.9: cannot open')")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget(monkeypatch, "torch")
    monkeypatch.setattr(devices, "device", lambda number: None)

    class Cupy(gpu_backends.CupyBackend):
        def __init__(self, number: int) -> None:
            self.number = number

    monkeypatch.setattr(gpu_backends, "CupyBackend", Cupy)
    assert isinstance(gpu_backends.opened(3), Cupy)


def test_a_torch_of_another_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = "class cuda: is_available = staticmethod(lambda: False)\nclass version: cuda = '13.0'\n"
    (tmp_path / "torch.py").write_text(code)
    (tmp_path / "cupy.py").write_text("raise ImportError('libcuda.so.1: no such file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget(monkeypatch, "torch", "cupy")
    monkeypatch.setattr(devices, "device", lambda number: None)
    monkeypatch.setattr(devices, "driver_cuda", lambda: (12, 2))
    with pytest.raises(ToolMissing) as told:
        gpu_backends.opened(0)
    assert str(told.value) == (
        "timing on a GPU needs torch or cupy: torch cannot use CUDA here (it is built for CUDA 13.0, the NVIDIA driver is"
        " for CUDA 12.2); cupy is needed for timing on a GPU; importing it fails: ImportError: libcuda.so.1: no such file"
    )
