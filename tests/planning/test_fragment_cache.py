"""A second run: plans and checks of the first one are taken as they are, and the output is the same byte by byte."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.backends import compile as compiling
from mirage_cli.backends import toolchain
from mirage_cli.checks.kernel_check import FloatCheck
from mirage_cli.files.result_store import Kept
from mirage_cli.numerics.accuracy import Accuracy
from mirage_cli.optimization import environment, pipeline
from mirage_cli.optimization.pipeline import Run
from mirage_cli.options.options import Options
from mirage_cli.planning import batch, fragment_cache, plan
from mirage_cli.processes.isolation import Lost
from mirage_cli.processes.jobs import Here
from tests.optimized import anew, sample

pytestmark = pytest.mark.usefixtures("one_isa")

NAME = "rmsnorm_linear_fp32"


@pytest.fixture(autouse=True)
def _own_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def optimize(out: Path, cache: Path | str, **changes: Any) -> dict[str, Any]:
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(cache), **changes)
    return anew(str(sample(NAME)), out, options).to_json()


def files(folder: Path) -> dict[str, bytes]:
    """What has to be the same: everything but the reports, which hold times."""
    found = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.stem != "report")
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


def planned(name: str, **changes: Any) -> Run:
    options = Options(jobs=1, cache="", **changes)
    run = Run(str(sample(name)), options, environment.toolchain(options))
    run.read()
    run.plan()
    return run


def test_a_second_run_does_nothing_again(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = optimize(tmp_path / "first", own_cache)
    assert "cached" not in first["fragments"][0]["search"]

    def never(*arguments: Any, **named: Any) -> Any:
        raise AssertionError(f"done again: {arguments}")

    monkeypatch.setattr(batch, "PLAN", replace(batch.PLAN, function=never))
    monkeypatch.setattr(pipeline, "CHECK", replace(pipeline.CHECK, function=never))
    monkeypatch.setattr(compiling, "run_command", never)
    monkeypatch.setattr(toolchain, "_build", never)
    second = optimize(tmp_path / "second", own_cache)
    assert files(tmp_path / "first") == files(tmp_path / "second")
    (old,), (new,) = first["fragments"], second["fragments"]
    assert new["search"].pop("cached") is True
    said = [f["verification"].pop("statement") for f in (old, new)]  # found out anew, at points of its own
    assert said[0]["passed"] and said[1]["passed"] and said[0]["primes"] != said[1]["primes"]
    assert old == new
    assert second["seconds"]["search"] == 0


def test_a_run_without_the_cache_gives_the_same(own_cache: Path, tmp_path: Path) -> None:
    for k in range(2):
        optimize(tmp_path / f"out{k}", own_cache)
    optimize(tmp_path / "fresh", "")
    assert files(tmp_path / "out1") == files(tmp_path / "fresh")
    modes = [(tmp_path / out / "libmirage.so").stat().st_mode & 0o777 for out in ("out0", "out1", "fresh")]
    assert modes == [0o755] * 3


def test_a_changed_result_is_found_out_again(own_cache: Path, tmp_path: Path) -> None:
    optimize(tmp_path / "first", own_cache)
    for path in (own_cache / "results").iterdir():
        path.write_bytes(path.read_bytes()[::-1])
    second = optimize(tmp_path / "second", own_cache)
    assert "cached" not in second["fragments"][0]["search"]
    assert files(tmp_path / "first") == files(tmp_path / "second")


@pytest.mark.parametrize("changes", [{"seed": 1}, {"candidates": 2}, {"confidence": 50}, {"without": ("fusion",)}])
def test_other_options_are_other_plans(tmp_path: Path, changes: dict[str, Any]) -> None:
    run = planned(NAME, target=("cpu",))
    other = replace(run.options, **changes)
    keys = {_key(run, run.options), _key(run, other)}
    assert len(keys) == 2
    assert _key(run, replace(run.options, jobs=7, cache="/elsewhere", max_memory=1 << 40)) in keys


def _key(run: Run, options: Options) -> str:
    (w,) = run.work
    made = pipeline.plan_options(options, run.tools, w.program.symbols, {})
    made = batch.shared_out(made, 1, options.jobs)
    return fragment_cache.plan_key(w.id, w.name, w.program, w.operators, made)


def test_a_limit_of_time_is_not_kept(own_cache: Path, tmp_path: Path) -> None:
    for _ in range(2):
        found = optimize(tmp_path / "out", own_cache, budget=100.0)
        assert "cached" not in found["fragments"][0]["search"]


def test_plans_are_read_back_as_they_were() -> None:
    for w in planned("gqa_fp32", target=("cpu",)).work:
        assert w.plan is not None
        document = json.loads(json.dumps(fragment_cache.plan_to_json(w.plan)))
        assert fragment_cache.plan_from_json(document, w.program) == w.plan


def test_what_tuning_chooses_from_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    run = planned(NAME, target=("cpu",))
    (w,) = run.work
    options = replace(run.plans, targets={"cuda": ("sm_90a",)}, pool=40)
    made = plan.plan_fragment(w.id, w.name, w.program, w.operators, options)
    assert len(made.pool) > 10
    document = json.loads(json.dumps(fragment_cache.plan_to_json(made)))
    assert len(document["graphs"]) < len(document["pool"])
    assert fragment_cache.plan_from_json(document, w.program) == made


def test_known_plans_come_first_and_lost_ones_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = planned(NAME, target=("cpu",))
    (w,) = run.work
    store = Kept(tmp_path / "results")
    job: batch.Job = (w.id, w.name, w.program, w.operators, (), 0.0)
    monkeypatch.setattr(batch, "PLAN", replace(batch.PLAN, function=lambda *_: 1 / 0))
    for _ in range(2):
        ((_, lost),) = batch.each([job], run.plans, Here(1), store)
        assert isinstance(lost, Lost)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    list(batch.each([job], run.plans, Here(1), store))
    other: batch.Job = (w.id, "other", w.program, w.operators, (), 0.0)
    found = list(batch.each([other, job], run.plans, Here(1), store))
    assert [k for k, _ in found] == [1, 0]
    assert [p.kept for _, p in found if not isinstance(p, Lost)] == [True, False]


def test_checks_belong_to_a_library_and_a_model(tmp_path: Path) -> None:
    store, library = Kept(tmp_path / "results"), tmp_path / "lib.so"
    library.write_bytes(b"one")
    passed = FloatCheck(True, Accuracy(True, 1e-7, 2e-7, 1e-6, 2e-6), "random")
    checks = fragment_cache.Checks(store, library, ["model", 0], {"s": (1, None)})
    for failed in (replace(passed, passed=False), FloatCheck(True, None, skipped="large"), Lost("died"), None):
        checks.put("f", failed)
        assert checks.get("f") is None
    checks.put("f", passed)
    assert fragment_cache.Checks(store, library, ["model", 0], {"s": (1, None)}).get("f") == passed
    assert checks.get("g") is None
    assert fragment_cache.Checks(store, library, ["model", 1], {"s": (1, None)}).get("f") is None
    assert fragment_cache.Checks(store, library, ["model", 0], {"s": (1, 9)}).get("f") is None
    library.write_bytes(b"two")
    assert fragment_cache.Checks(store, library, ["model", 0], {"s": (1, None)}).get("f") is None
    assert fragment_cache.Checks(None, library, [], {}).get("f") is None
