"""The targets of a run: by default all that can be built, of which a note tells what nobody asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_cli.backends.toolchain import Tool, Toolchain
from mirage_cli.errors import ToolMissing, UsageError
from mirage_cli.machine import devices
from mirage_cli.measurement import rates
from mirage_cli.optimization import environment, story
from mirage_cli.options.options import Options
from mirage_cli.planning.plan import PlanOptions
from mirage_cli.search.schedules.target import changed_target, load_target
from mirage_cli.verification import story as verify_story
from mirage_cli.verification.findings import VerifyOptions
from tests.measurement.test_rates import SOME
from tests.optimized import sample

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


def test_plans_go_by_this_machine_unless_a_file_says_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert environment.machine(Options(), BOTH).targets() == ()
    monkeypatch.setattr(rates, "found", lambda tool: (SOME, ""))
    own = environment.machine(Options(), BOTH)
    assert (own.origin, own.targets()) == ("this machine", (changed_target(SOME.changes(), ""),))
    there = tmp_path / "there.yaml"
    there.write_text(json.dumps({"name": "cpu", "units": 64}))
    other = environment.machine(Options(target_file=str(there)), BOTH)
    assert other.to_json() == {"origin": str(there), "changes": {"name": "cpu", "units": 64}}
    for wrong, message in (("[1]", "expected keys"), ("{name: cpu, unit: 1}", "unit: unknown")):
        there.write_text(wrong)
        with pytest.raises(UsageError, match=message):
            environment.machine(Options(target_file=str(there)), BOTH)


def test_plans_go_by_the_card_that_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cards = [
        devices.Device(k, "", name, "", "9.0", "") for k, name in enumerate(("NVIDIA H200", "NVIDIA H100 80GB HBM3"))
    ]
    monkeypatch.setattr(devices, "devices", lambda: cards)
    monkeypatch.setattr(devices, "device", lambda number: cards[number])
    file, there = load_target("sm_90a"), tmp_path / "there.yaml"
    there.write_text("{name: sm_90a, bandwidth: 2.0e+12}")
    own = changed_target({"name": "sm_90a", "bandwidth": 3.05e12, "strip": {"stream": 1.03}}, "")
    for options, wanted in (
        (Options(), file),
        (Options(gpu=1), own),
        (Options(gpu=1, target=("cuda",), target_file=str(there)), replace(file, bandwidth=2e12)),
    ):
        told = environment.machine(options, BOTH)
        plans = PlanOptions({"cuda": ("sm_90a",)}, own=told.targets())
        assert plans.target("sm_90a") == wanted
        assert bool(told.to_json()) == (wanted != file)
    assert environment.machine(Options(gpu=1, target=("cpu",), scheduler="tcp://a:1"), BOTH).card == {}


def test_rates_that_are_not_known_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "found", lambda tool: (None, "it is loaded"))
    assert "it is loaded" in environment.machine(Options(), BOTH).note


@pytest.mark.slow
def test_a_file_of_rates_is_in_the_report_and_sources_do_not_depend_on_it(tmp_path: Path, cache: Path) -> None:
    there = tmp_path / "there.yaml"
    there.write_text("name: cpu\nbandwidth: 1.0e+11\nflops: {f32: 4.0e+11}\n")
    options = Options(target=("cpu",), force=True, cache=str(cache), target_file=str(there))
    report = story.optimize(str(sample("rmsnorm_linear_fp32")), tmp_path / "out", options).to_json()
    assert report["rates"]["changes"]["bandwidth"] == 1e11
    assert report["fragments"][0]["predictions"]["cpu"]["bandwidth"] == 1e11
    assert verify_story.verify_folder(tmp_path / "out", VerifyOptions()).passed


@pytest.mark.parametrize(
    ("options", "providers", "packages", "originals", "missing"),
    [
        (Options(gpu=0), ("cpu", "cuda"), (), True, ""),
        (Options(gpu=0), ("cpu",), ("torch",), True, "no provider for 'cuda'"),
        (Options(gpu=0, force=True), ("cpu",), ("cupy",), False, ""),
        (Options(gpu=0, force=True), ("cpu",), (), False, "torch or cupy, and neither"),
        (Options(gpu=0, force=True), ("cpu", "cuda"), (), True, ""),
    ],
)
def test_what_a_gpu_is_timed_with(
    monkeypatch: pytest.MonkeyPatch,
    options: Options,
    providers: tuple[str, ...],
    packages: tuple[str, ...],
    originals: bool,
    missing: str,
) -> None:
    monkeypatch.setattr(devices, "device", lambda number: None)
    monkeypatch.setattr(devices, "check_driver", lambda what, version: None)
    monkeypatch.setattr(environment.tools_module, "find", lambda *asked: BOTH)
    monkeypatch.setattr(environment.sessions, "providers", lambda: providers)
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: name in packages or None)
    assert environment.times_originals(options) == originals
    if missing:
        with pytest.raises(ToolMissing, match=missing):
            environment.toolchain(options)
    else:
        assert environment.toolchain(options) == BOTH
