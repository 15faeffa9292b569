"""What `make fuzz` does for long, in short and without atheris: inputs that once showed a fault, and some mutations."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from mirage_cli.errors import ModelError
from tests.fuzz import guided, limits, targets, torchscript
from tests.optimized import Optimized

#: mutations of a target; what takes long gets fewer
COUNTS = {
    "onnx": 40,
    "archive": 250,
    "report": 10,
    "mugraph": 30,
    "steps": 250,
    "tunings": 25,
    "database": 30,
    "peers": 500,
    "config": 60,
    "words": 80,
    "text": 1500,
}
KEPT = [(t.name, path) for t in targets.TARGETS for path in targets.kept(t)]


@pytest.fixture(scope="module")
def place(optimized: Optimized, tmp_path_factory: pytest.TempPathFactory) -> targets.Place:
    return targets.Place(tmp_path_factory.mktemp("fuzz"), optimized(targets.SAMPLE))


@pytest.mark.parametrize(("name", "path"), KEPT, ids=[f"{name}-{path.name}" for name, path in KEPT])
def test_what_once_showed_a_fault(place: targets.Place, name: str, path: Path) -> None:
    with limits.time(guided.INPUT_SECONDS), limits.memory(guided.INPUT_BYTES):
        targets.attempt(targets.BY_NAME[name], path.read_bytes(), place)


@pytest.mark.parametrize("name", targets.BY_NAME)
def test_changed_inputs_are_read_or_refused(place: targets.Place, name: str) -> None:
    target = targets.BY_NAME[name]
    seeds = target.seeds(place)
    assert any(targets.attempt(target, data, place) for data in seeds)
    rng, read = Random(name), 0
    with limits.memory(guided.INPUT_BYTES):
        for number in range(COUNTS[name]):
            data = target.mutate(rng, seeds[number % len(seeds)])
            try:
                with limits.time(guided.INPUT_SECONDS):
                    read += targets.attempt(target, data, place)
            except (Exception, limits.TooSlow) as error:
                error.add_note(f"input {number} of {name}: {data[:2000]!r}")
                raise
    assert read, "no mutation gets past the first check"


def test_torchscript_programs_are_read_or_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    rng, became = Random(0), set()
    for _ in range(8):
        became.add(torchscript.attempt(torch, torchscript.program(rng), ("3x4", "4x3"), tmp_path))
    assert became == {"no program", "model-unreadable", "read"}


def test_mutations_depend_on_their_generator_alone(place: targets.Place) -> None:
    for target in targets.TARGETS:
        data = target.seeds(place)[0]
        assert target.mutate(Random(3), data) == target.mutate(Random(3), data)


@pytest.mark.parametrize("error", [KeyError("x"), RecursionError(), MemoryError(), AssertionError()])
def test_anything_but_a_clean_error_is_a_fault(place: targets.Place, error: Exception) -> None:
    def read(data: bytes, _: targets.Place) -> None:
        raise error if data else ModelError("expected something, found nothing")

    target = replace(targets.TARGETS[0], read=read)
    assert targets.attempt(target, b"", place) is False
    with pytest.raises(type(error)):
        targets.attempt(target, b"1", place)


def test_limits() -> None:
    with pytest.raises(MemoryError), limits.memory(64 << 20):
        bytearray(1 << 30)
    assert len(bytearray(128 << 20)) == 128 << 20, "the limit is gone"
    with pytest.raises(limits.TooSlow), limits.time(0.05), contextlib.suppress(Exception):
        while True:
            pass


def test_every_target_gets_its_share() -> None:
    found = guided.shared(["a", "b", "c"], [6, 1, 1], 800.0, 4)
    assert found == [[("a", 200)], [("a", 200)], [("a", 200)], [("b", 100), ("c", 100)]]
    assert guided.shared(["a"], [1], 10.0, 1) == [[("a", 10)]]
    found = guided.shared(["a", "b"], [1, 2], 10.0, 3)
    assert found == [[("a", 4)], [("b", 4)], [("b", 4)]]


def test_the_table_of_a_run() -> None:
    counts = {"onnx": guided.Count(2, 120.0, 1000, 250, 10, 20, 5, ["KeyError at x.py:1"])}
    head, _, row, total = guided.table(counts)
    assert head.count("|") == row.count("|") == total.count("|")
    assert row == "| onnx | 2.0 | 1,000 | 25 % | 10 | 20 | 5 | 1 |"


def test_faults_are_told_apart_by_their_place() -> None:
    with pytest.raises(KeyError) as caught:
        targets.attempt(replace(targets.TARGETS[0], read=lambda *_: {}["x"]), b"", targets.Place(Path()))
    assert guided._where(caught.value).startswith("KeyError at test_fuzz.py:")


def test_faults_are_written_whatever_they_say(tmp_path: Path) -> None:
    guided._put(tmp_path / "fault.txt", "AssertionError\n\udcff")
    assert [p.name for p in tmp_path.iterdir()] == ["fault.txt"]
    assert (tmp_path / "fault.txt").read_text(encoding="utf-8").splitlines() == ["AssertionError", r"\udcff"]
