"""The population of rows of published models: which rows there are, their parts, samples of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from mirage_cli.errors import UsageError
from mirage_cli.suite import population, suites
from mirage_cli.suite.cases import DTYPES
from mirage_cli.suite.suite import type_of

_ROWS = "from mirage_cli.suite.population import models; print([(c.name, c.shapes, c.part) for c in models()])"


def test_the_population_is_large_and_of_many_models() -> None:
    rows = population.models()
    assert len(rows) == len({c.name for c in rows}) >= 400
    assert len({c.model_name for c in rows}) == len(population.configurations()) >= 40
    assert {c.kind for c in rows} == set(population.KINDS)
    assert {c.dtype for c in rows} == set(DTYPES)
    assert min(Counter(population.range_of(c.rows) for c in rows).values()) >= 100
    assert min(Counter(c.part for c in rows).values()) >= 200
    assert all(c["source"] for _, c in population.configurations())


def test_rows_are_drawn_alike_in_every_process() -> None:
    found = [
        subprocess.run(
            [sys.executable, "-c", _ROWS],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1] != ""


def test_the_part_of_a_row_is_its_names() -> None:
    assert population.part_of("qwen2.5-0.5b_qkv_r1_bf16") == "fit"
    assert population.part_of("qwen2.5-0.5b_norm_mlp_r16_bf16") == "judge"
    assert all(c.part == population.part_of(c.name) for c in population.models())


def test_a_configuration_alone_decides_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = population.models()
    family, config = population.configurations()[3]
    monkeypatch.setattr(population, "configurations", lambda table="models": ((family, config),))
    alone = population.models.__wrapped__()
    assert [c.name for c in alone] == [c.name for c in everything if c.model_name == config["name"]]


def test_extents_are_those_of_the_configuration() -> None:
    rows = {c.name: c for c in population.models()}
    heads = next(c for c in rows.values() if c.model_name == "llama-3.1-8b" and c.kind == "decode")
    assert heads.tensors[0].shape[1:] == (8, 4, 128) and heads.tensors[1].shape[3] == 128
    qkv = next(c for c in rows.values() if c.model_name == "qwen2.5-7b" and c.kind == "qkv")
    assert {t.name: t.shape for t in qkv.tensors} == {
        "x": (qkv.rows, 3584),
        "gain": (3584,),
        "up": (3584, 4608),
        "up_bias": (4608,),
    }
    assert qkv.flops == 2 * qkv.rows * 3584 * 4608


def test_some_rows_have_int4_weights() -> None:
    rows = [c for c in population.models() if c.kind.startswith("int4-")]
    assert len(rows) >= 40
    assert min(Counter(c.part for c in rows).values()) >= 10
    assert {c.kind for c in rows} == {"int4-qkv", "int4-projection", "int4-mlp", "int4-head"}
    assert {2 * t.shape[2] for c in rows for t in c.tensors if t.packed} == {32, 128}
    for c in rows:
        q, s = (next(t for t in c.tensors if t.name == f"up_{n}") for n in "qs")
        assert c.tensors[0].shape[1] == 2 * q.shape[1] * q.shape[2] and s.shape == q.shape[:2]
        assert [p.column for p in c.further] == ["torch int4", "torch dequantised"]


def test_long_windows_hide_most() -> None:
    rows = [c for c in population.models() if c.kind == "window_long"]
    windows = {c["name"]: c["window"] for _, c in population.configurations() if "window" in c and c["norm"] == "rms"}
    assert {c.model_name for c in rows} == set(windows)
    assert all(2 * windows[c.model_name] <= c.rows for c in rows)
    assert {c.part for c in rows} == set(population.PARTS)


def test_a_sample_is_drawn_by_its_seed_from_what_was_asked_for() -> None:
    whole = suites.chosen("models", ["*_qkv_*"], "judge")
    assert {(c.kind, c.part) for c in whole} == {("qkv", "judge")}
    one, other = (suites.chosen("models", ["*_qkv_*"], "judge", 7, seed) for seed in (1, 2))
    assert len(one) == len(other) == 7 and {c.name for c in one} != {c.name for c in other}
    assert suites.chosen("models", ["*_qkv_*"], "judge", 12, 1)[:7] == one
    with pytest.raises(UsageError, match="no row of paper is of it"):
        suites.chosen("paper", (), "judge")


def test_rows_have_element_types_of_their_own() -> None:
    rows = population.models()
    assert type_of(None, rows) is None and type_of(None, suites.chosen("paper")) == "fp16"
    with pytest.raises(UsageError, match="element types of their own"):
        type_of("fp16", rows)


def test_rows_kept_apart_are_of_other_models() -> None:
    rows = population.apart()
    assert len(rows) == len({c.model_name for c in rows}) == len(population.configurations("apart")) == 30
    assert not {c.model_name for c in rows} & {c.model_name for c in population.models()}
    assert not {(c.kind, c.dtype, c.shapes) for c in rows} & {(c.kind, c.dtype, c.shapes) for c in population.models()}
    assert min(Counter(population.range_of(c.rows) for c in rows).values()) >= 5
