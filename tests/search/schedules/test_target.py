"""Targets: rates, what is read of their files and refused there, and which device runs code for which of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mirage_cli.errors import UsageError
from mirage_cli.lax.dtypes import F16, F32
from mirage_cli.search.schedules import architectures, target
from mirage_cli.search.schedules.fitted import SECTIONS, Clusters, Cpu, Rows
from mirage_cli.search.schedules.target import load_target

NAMES = architectures.target_names()
FOLDER = Path(__file__).resolve().parents[3] / "search" / "targets"


@pytest.mark.parametrize("name", NAMES)
def test_kernels_split_float32_where_there_are_matrix_instructions(name: str) -> None:
    target = load_target(name)
    assert target.rate(F16) == target.library_rate(F16)
    assert target.rate(None) == target.rate(F32)
    if target.kind == "cuda":  # three products for one
        assert target.library_rate(F32) <= target.rate(F32) < target.rate(F16)
        assert 0 < target.split < target.rate(F16) / 3
    else:
        assert target.library_rate(F32) == target.rate(F32)


@pytest.mark.parametrize("name", NAMES)
def test_every_constant_says_its_unit_where_it_is_given(name: str) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert [x for x in lines if x.startswith("  ") and " # " not in x] == []


def test_sections_are_taken_from_the_file_that_a_target_is_like() -> None:
    own, like = load_target("sm_80"), load_target("sm_90a")
    assert own.sections == like.sections and own.features != like.features
    assert [type(s) for s in own.sections] == list(SECTIONS["cuda"].values())
    with pytest.raises(UsageError, match="sm_80 has no section cpu"):
        own.fitted(Cpu)


def test_clusters_that_fit() -> None:
    clusters = load_target("sm_90a").fitted(Clusters)
    assert [clusters.share(n) for n in (2, 4, 3)] == [1 / 2, 30 / 132, 0.1]


def test_a_machines_rates_change_the_rates_alone() -> None:
    changes = {"name": "cpu", "units": 8, "flops": {"f32": "2e11"}, "cpu": {"library_rate": 0.5}}
    own, file = target.changed_target(changes, ""), load_target("cpu")
    assert own.flops == {**file.flops, "f32": 2e11}
    assert own.fitted(Cpu) == replace(file.fitted(Cpu), library_rate=0.5)
    assert replace(own, units=file.units, flops=file.flops, sections=file.sections) == file


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "sm_81"}, "here: name: expected cpu"),
        ({"units": 2}, "here: name: expected cpu"),
        ({"name": "cpu", "shared_bytes": 1}, "here: shared_bytes: unknown, or a limit"),
        ({"name": "cpu", "bandwidth": "fast"}, "here: bandwidth: 'fast' is not a number of at least 0"),
        ({"name": "cpu", "cpu": {"speed": 1}}, "here: cpu.speed: unknown"),
        ({"name": "cpu", "cpu": 1}, "here: cpu.cache_factor: missing"),
    ],
)
def test_changes_that_do_not_fit_a_target(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        target.changed_target(changes, "here: ")


# --- files ------------------------------------------------------------------------------------------------------------
LINES = (
    *("name: sm_70", "kind: cuda", "by_default: false", "features: [clusters]", "like: sm_90a", "units: 80"),
    *("shared_bytes: 98304", "shared_total: 98304", "registers: 65536", "threads: 2048", "bandwidth: 9.0e11"),
    *("flops: {f16: 1.1e14, bf16: 1.1e14, f32: 1.4e13}", "special: 1.0e12", "launch_us: 3", "kernel_us: 4.5"),
    *("latency_us: 1.5", "clusters: {fit: {1: 80, 2: 40}, otherwise: 0.1}"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of `search/targets/`, with sm_90a and what tests put there."""
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "sm_90a.yaml").write_text((FOLDER / "sm_90a.yaml").read_text(encoding="utf-8"))
    monkeypatch.setattr(architectures, "files", lambda _: tmp_path)
    monkeypatch.setattr(target, "load_target", load_target.__wrapped__)
    return tmp_path / "targets"


def _load(folder: Path, *changes: tuple[str, str]) -> target.Target:
    text = "\n".join(LINES)
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "sm_70.yaml").write_text(text)
    return target.load_target("sm_70")


def test_a_file_of_its_own(folder: Path) -> None:
    made = _load(folder)
    assert (made.capability, made.units, made.launch_us, made.bandwidth) == (700, 80, 3.0, 9e11)
    assert made.features == target.Features(clusters=True)
    assert made.fitted(Clusters) == Clusters({1: 80, 2: 40}, 0.1)
    assert made.fitted(Rows) == load_target("sm_90a").fitted(Rows)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("units: 80", "", "units: missing"),
        ("units: 80", "units: 80.5", "units: 80.5 is not an integer of at least 0"),
        ("units: 80", "units: 80\ncores: 2", "cores: unknown"),
        ("units: 80", "units: 80\nsections: []", "sections: unknown"),
        ("units: 80", "units: 80\ncpu: {}", "cpu: unknown"),
        ("name: sm_70", "name: sm_71", "name: expected sm_70"),
        ("kind: cuda", "kind: cpu", "kind: expected cuda"),
        ("by_default: false", "by_default: 0", "by_default: 0 is not true or false"),
        ("9.0e11", "fast", "bandwidth: 'fast' is not a number"),
        ("9.0e11", "-1", "bandwidth: -1.0 is not a number of at least 0"),
        ("9.0e11", ".nan", "bandwidth: nan is not a number"),
        ("f32: 1.4e13", "f32: no", "flops.f32: False is not a number"),
        ("{f16: 1.1e14, bf16: 1.1e14, f32: 1.4e13}", "3", "flops: 3 is not a table"),
        ("[clusters]", "[clusters, wgmma]", "features: unknown wgmma"),
        ("otherwise: 0.1", "else: 0.1", "clusters.else: unknown"),
        (", otherwise: 0.1", "", "clusters.otherwise: missing"),
        ("{fit: {1: 80, 2: 40}, otherwise: 0.1}", "", "clusters.fit: missing"),
        ("1: 80", "one: 80", "clusters.fit: 'one' is not an integer"),
        ("like: sm_90a", "", "block: missing"),
        ("like: sm_90a", "like: sm_99", "unknown architecture 'sm_99'"),
    ],
)
def test_a_file_that_does_not_fit(folder: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(UsageError) as told:
        _load(folder, (old, new))
    place = "" if said.startswith("unknown arch") else "search/targets/sm_70.yaml: "
    assert str(told.value).startswith(place + said)


def test_a_section_that_neither_file_has(folder: Path) -> None:
    whole = (folder / "sm_90a.yaml").read_text(encoding="utf-8")
    (folder / "sm_90a.yaml").write_text(whole[: whole.index("warpgroup:\n")])
    with pytest.raises(UsageError, match=r"sm_70\.yaml: warpgroup: missing, in sm_90a\.yaml too"):
        _load(folder)


def test_a_file_that_is_no_table(folder: Path) -> None:
    (folder / "sm_70.yaml").write_text("[]")
    with pytest.raises(UsageError, match=r"targets/sm_70\.yaml: expected keys with values"):
        target.load_target("sm_70")


# --- devices ----------------------------------------------------------------------------------------------------------
def test_architectures_from_old_to_new() -> None:
    assert architectures.architectures() == ("sm_80", "sm_89", "sm_90a", "sm_120")
    assert architectures.default_architectures() == ("sm_80", "sm_90a")
    assert "cpu" in NAMES


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        *(("8.0", "sm_80"), ("8.6", "sm_80"), ("8.7", "sm_80"), ("8.9", "sm_89"), ("9.0", "sm_90a")),
        *(("10.0", "sm_89"), ("12.0", "sm_120"), ("12.1", "sm_120")),
    ],
)
def test_the_newest_one_that_a_device_runs(capability: str, name: str) -> None:
    assert architectures.native("x", capability) == name


def test_a_device_that_runs_none() -> None:
    with pytest.raises(
        UsageError, match=r"Tesla T4 has compute capability 7\.5, which runs code for none of sm_80, sm_89"
    ):
        architectures.native("Tesla T4", "7.5")
