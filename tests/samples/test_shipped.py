"""The table that comes with the program is filled: with a fake compiler and a fake GPU, on which the last candidate wins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.backends.toolchain import Tool
from mirage_cli.machine.devices import Device
from mirage_cli.planning import tuned
from mirage_cli.planning.plan import PlanOptions, plan_fragment
from mirage_cli.processes import isolation
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Candidate
from mirage_cli.tuning.cache import Measurement
from mirage_cli.tuning.candidates import Built
from samples import shipped
from samples.shipped import Layer, layers, planned, rows_of

LAYER = Layer("qwen2.5-0.5b", "projection", 8, 0, "fp16")


class Gpu:
    """Each candidate that is built later is faster."""

    def __init__(self, *_: Any) -> None:
        self.count = 0

    def begin(self) -> None:
        pass

    def start(self) -> str:
        return ""

    def build(self, candidates: Sequence[Candidate]) -> list[Built]:
        self.count += len(candidates)
        return [Path(str(k)) for k in range(self.count - len(candidates), self.count)]

    def answers(self, library: Path) -> str:
        return ""

    check = answers

    def time(self, libraries: Sequence[Path], samples: int, step: bool = False) -> list[Measurement]:
        return [Measurement(us := 30.0 - int(p.name), us, us, samples) for p in libraries]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "device", lambda n: Device(n, "GPU-1", "NVIDIA H200", "580.1", "9.0", "143771 MiB"))
    monkeypatch.setattr(shipped, "own_compiler", lambda cuda: Tool(("nvcc",), "nvcc 13.0", "a test"))
    monkeypatch.setattr(shipped, "_process", lambda: None)
    monkeypatch.setattr(shipped, "Unchecked", Gpu)
    monkeypatch.setattr(shipped, "Workshop", Gpu)


def test_layers_are_those_of_decoders_and_differ() -> None:
    found = list(layers())
    assert len({layer.name for layer in found}) == len(found) > 500
    assert {layer.kind for layer in found} == {*shipped.LAYERS, "decode"}
    assert {layer.rows for layer in found if layer.kind == "qkv"} == {1, 4, 8, 16, 32, 64}
    assert {layer.dtype for layer in found} == {"bf16", "fp16"}


def test_what_was_measured_is_taken_by_plans(machine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "each", lambda f, jobs, *_, **__: ((k, f(*j)) for k, j in enumerate(jobs)))
    monkeypatch.setattr(shipped, "layers", lambda: iter([LAYER, Layer("qwen2.5-0.5b", "qkv", 1, 0, "fp16")]))
    monkeypatch.setattr(shipped, "TABLES", tmp_path)
    file = tmp_path / "rows.jsonl"
    shipped.measure(file, 0, 0.0, 1)
    with file.open("a") as out:
        out.write('{"layer": "qwen2.5-0.5b_qkv_r1_fp16", "probl')  # the machine was taken away
    shipped.merge([file])
    (row,) = tuned.read((tmp_path / "sm_90a.json").read_text())
    assert (row.name, row.device) == (LAYER.name, "NVIDIA H200")
    ((work, pool, _),) = planned(LAYER, load_target("sm_90a"))
    monkeypatch.setattr(tuned, "shipped", lambda target: {row.key: row})
    options = PlanOptions({"cuda": ("sm_90a",)})
    plan = plan_fragment(work.id, work.name, work.program, work.operators, options).plans["cuda"]
    assert plan.predicted_us == row.us < 30.0
    assert [s.to_json() for s in plan.schedules] == row.schedules
    assert plan.schedules != next(iter(pool.values())).schedules
    assert len(shipped._lines(file)) == 1


def test_a_line_says_what_was_tried(machine: None) -> None:
    (told,) = rows_of(LAYER, 0, 2)
    assert told["own_us"] == 30.0
    assert told["row"]["us"] == min(t["measured_us"] for t in told["trials"])
    assert told["tried"] == len(told["trials"]) > 1
    json.dumps(told)
