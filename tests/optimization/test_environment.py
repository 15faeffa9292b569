"""The targets of a run: by default all that can be built, of which a note tells what nobody asked for."""

from __future__ import annotations

import pytest

from mirage_cli.backends.toolchain import Tool, Toolchain
from mirage_cli.machine import devices
from mirage_cli.optimization import environment
from mirage_cli.options.options import Options

BOTH = Toolchain(Tool(("g++",), "12", "PATH"), Tool(("nvcc",), "13.0", "PATH"))


@pytest.mark.parametrize(
    ("options", "tools", "gpus", "noted"),
    [
        (Options(), BOTH, [], True),
        (Options(arch=("sm_89",)), BOTH, [], True),
        (Options(), BOTH, ["a GPU"], False),
        (Options(target=("cuda",)), BOTH, [], False),
        (Options(target=("cpu",)), BOTH, [], False),
        (Options(), Toolchain(BOTH.cxx), [], False),
    ],
)
def test_kernels_for_no_gpu_are_noted(
    monkeypatch: pytest.MonkeyPatch, options: Options, tools: Toolchain, gpus: list[str], noted: bool
) -> None:
    monkeypatch.setattr(devices, "devices", lambda: gpus)
    told = environment.unasked(options, tools)
    assert bool(told) == noted
    assert all("--target cpu takes less time" in note and "sm_" in note for note in told)
