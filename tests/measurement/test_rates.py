"""The CPU's rates: measured once, kept for the machine that they are of, and put in the place of the target file's."""

from __future__ import annotations

import math
import random
import subprocess
from dataclasses import astuple, fields, replace
from pathlib import Path

import pytest

from mirage_cli.backends.toolchain import Tool, Toolchain
from mirage_cli.errors import CheckFailed
from mirage_cli.machine import devices, load
from mirage_cli.measurement import rates
from mirage_cli.measurement.rates import Rates, Reading
from mirage_cli.search.schedules.fitted import Cpu
from mirage_cli.search.schedules.target import changed_target, load_target

TOOL = Tool(("g++",), "g++ 12", "PATH")
SOME = Rates(
    4,
    6e10,
    2e11,
    4e10,
    6e10,
    1.5e11,
    1e11,
    1.3e11,
    1.2e11,
    3e10,
    1.5e10,
    1.6e10,
    1.2e10,
    0.4,
    5.0,
    1.6e11,
    1.4e11,
    1.1e11,
    1.3e11,
    4e11,
)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Tool]:
    """A machine of its own, where nothing is known yet; the compilers with which it was measured."""
    calls: list[Tool] = []
    monkeypatch.delenv(rates.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(load, "busy", lambda _: 0.0)
    monkeypatch.setattr(load, "others", lambda: lambda: 0.0)
    monkeypatch.setattr(rates, "measure", lambda tool: calls.append(tool) or read(1e10 * len(calls)))
    return calls


def read(small: float) -> Reading:
    """A reading of two cores where all else is done once a second."""
    return Reading(2, small, small, (dict.fromkeys((*rates.PAIRED, *rates.REST), 1.0),) * 2)


def test_this_machine_has_rates(cxx: Toolchain) -> None:
    found = rates.of([rates.measure(cxx.cxx)])
    assert all(0 < x < math.inf for x in astuple(replace(found, split=found.split or 1.0)))
    assert found.bandwidth >= found.library_bandwidth
    changed_target(found.changes(), "")


def test_many_cores_with_small_caches_read_what_there_is(cxx: Toolchain, tmp_path: Path) -> None:
    """A matrix of the products is larger than a thread's share of the array."""
    templates = Path(rates.__file__).parents[1] / "templates"
    flags = ("-std=c++17", "-O1", "-march=native", "-pthread", "-fsanitize=address", "-I", str(templates / "include"))
    command = (*cxx.cxx.command, *flags, str(templates / "rates.cpp"), "-o", "rates")
    subprocess.run(command, cwd=tmp_path, check=True)
    run = (str(tmp_path / "rates"), "96", str(16 << 20))
    done = subprocess.run(run, input="oaxriqpfcms", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split()) == 11


def test_products_add_up_all_their_numbers(cxx: Toolchain, tmp_path: Path) -> None:
    """What is timed is the whole product, of threads that do not share its columns evenly too: 768 times the first row's."""
    templates = Path(rates.__file__).parents[1] / "templates"
    text = "#include <algorithm>\n" + (templates / "rates.cpp").read_text().replace("int main(", "int measured(")
    text += """
int main() {
  for (threads = 1; threads < 8; threads++) {
    share = (64 << 20) / threads / 4096 * 4096;
    array(MADV_HUGEPAGE);
    std::fill_n(given, MANY * SIDE, 1.0f);
    std::fill_n(reinterpret_cast<float*>(memory), SIDE * SIDE, 2.0f);
    std::fill_n(results, MANY * SIDE, 0.0f);
    kept = FROM_CACHES;
    seconds<multiply_rows<MANY, false>>(threads);
    for (float x : results) if (x != 2.0f * SIDE) return threads;
  }
  return 0;
}
"""
    (tmp_path / "products.cpp").write_text(text)
    flags = ("-std=c++17", "-O1", "-march=native", "-pthread", "-I", str(templates / "include"))
    subprocess.run((*cxx.cxx.command, *flags, "products.cpp", "-o", "products"), cwd=tmp_path, check=True)
    assert subprocess.run((str(tmp_path / "products"),), check=False).returncode == 0


def test_whatever_was_read_is_a_target() -> None:
    """Readings that contradict one another, as those of a machine that others disturb do: none ends a run of optimize."""
    rng = random.Random(0)
    kinds = (*rates.PAIRED, *rates.REST)
    for _ in range(100):
        read = {k: 10 ** rng.uniform(-2, 2) for k in kinds}
        library = rates._of_library(read, 10 ** rng.uniform(-7, -4))
        panels = rates._of_panels({k: 1e9 * x for k, x in read.items()})
        assert all(0 < x < math.inf for x in (*library.values(), *panels.values()))
        drawn = replace(SOME, **{f.name: getattr(SOME, f.name) * 10 ** rng.uniform(-1, 1) for f in fields(SOME)[1:]})
        changed_target(drawn.changes(), "")


def test_what_disturbs_a_round_changes_no_ratio() -> None:
    """A machine that is twice as slow for a while, and one kind that is slow once."""
    usual = dict.fromkeys(rates.PAIRED, 8.0) | {"many": 4.0, "a": 2.0}
    slow = {k: x / 2 for k, x in usual.items()}
    found = rates._typical([usual, slow, usual | {"m": 1.0}, slow, usual])
    assert found == pytest.approx(usual)


def test_rounds_that_others_took_do_not_count() -> None:
    """Threads that wait for one another lose more than others where a core is taken."""
    usual = dict.fromkeys((*rates.PAIRED, "p", "one"), 8.0)
    taken = {k: x / 3 for k, x in usual.items()} | {"p": 8.0}
    assert rates._typical([taken, usual, taken, usual]) == pytest.approx(usual)


def test_a_peak_is_the_highest_that_was_read() -> None:
    """Cores that others take for most of the time make none slower, and their products no faster."""
    usual = dict.fromkeys((*rates.PAIRED, "s"), 8.0) | {"a": 2.0}
    taken = usual | {"a": 1.0}
    assert rates._typical([taken, taken, usual, taken]) == pytest.approx(usual)


def test_they_are_measured_once(measured: list[Tool]) -> None:
    assert rates.kept() is None
    assert rates.found(TOOL) == rates.found(TOOL) == (rates.of([read(1e10)]), "")
    assert rates.kept() == rates.of([read(1e10)])
    assert measured == [TOOL]


def test_what_is_measured_again_stands_beside_what_was_read(measured: list[Tool]) -> None:
    """A last reading, whatever it is of, is one of some."""
    for n in range(rates.READINGS + 1):
        assert rates.found(TOOL, anew=True) == (rates.kept(), "")
        assert rates.kept() == rates.of([read(1e10 * (k + 1)) for k in range(max(0, n + 1 - rates.READINGS), n + 1)])


def test_readings_of_a_machine_that_others_took_are_not_kept(
    measured: list[Tool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "others", lambda: lambda: 0.3)
    assert rates.found(TOOL) == (None, "this machine is loaded: others take 30% of its processors")
    assert (measured, rates.kept()) == ([TOOL], None)


def test_another_machine_is_measured_by_itself(measured: list[Tool], monkeypatch: pytest.MonkeyPatch) -> None:
    rates.found(TOOL)
    monkeypatch.setattr(devices, "identity", lambda: ("another", "flags"))
    assert rates.kept() is None


def test_a_loaded_machine_is_not_measured(measured: list[Tool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "busy", lambda _: 0.4)
    assert rates.found(TOOL) == (None, "this machine is loaded: others take 40% of its processors")
    assert (measured, rates.kept()) == ([], None)


def test_what_cannot_be_measured_has_a_reason(measured: list[Tool], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Tool) -> Reading:
        raise CheckFailed("no such processor")

    monkeypatch.setattr(rates, "measure", fails)
    assert rates.found(TOOL) == (None, "no such processor")
    monkeypatch.setenv(rates.VARIABLE, "file")
    assert rates.found(TOOL) == (None, "MIRAGE_RATES is file")


def test_the_targets_file_has_their_place() -> None:
    """The machine of the file itself has no changes."""
    file = load_target("cpu")
    flops = file.flops["f32"] * file.units
    c = file.sections[0]
    assert isinstance(c, Cpu)
    library, small, large, read = (
        flops * c.library_rate,
        *(file.bandwidth * x for x in (1.0, c.large_pages, c.library_bandwidth)),
    )

    def cold(rows: int, hot: float, moved: float, bandwidth: float, overlap: float) -> float:
        """The rate of products that would reach `hot` without what they move."""
        work = 2.0 * rows * rates.WEIGHTS / 4
        times = work / hot, moved / bandwidth
        return work / (max(times) + (1 - overlap) * min(times))

    def held(rows: int) -> float:
        return library * rows / (rows + c.library_half)

    def theirs(rows: int) -> float:
        moved = rates.WEIGHTS + 2 * rows * rates.WEIGHTS / rates.WIDTH
        return cold(rows, held(rows), moved, read, c.library_overlap)

    def panels(rows: int) -> float:
        return flops * c.panel_rate * rows / (rows + c.panel_half)

    def ours(rows: int) -> float:
        return cold(rows, panels(rows), rates.WEIGHTS, large, c.overlap)

    many = theirs(rates.ROWS)
    libraries = (many, theirs(rates.FEW_ROWS), held(rates.FEW_ROWS), many / (1 + 2 * c.library_deep), read)
    own = (ours(rates.ROWS), panels(rates.FEW_ROWS), ours(rates.FEW_ROWS))
    stored = flops * c.packed_rate * rates.ROWS / (rates.ROWS + c.packed_half)
    one = file.single * small
    alone = (one, one * c.single_pages, one * c.single_library)
    known = Rates(file.units, flops, flops, small, large, *libraries, *alone, c.operator_us, file.fork_us, *own, stored)
    assert changed_target(known.changes(), "") == replace(file, margin=rates.MARGIN)


def test_constants_of_products_come_from_their_times() -> None:
    """Constants give the times of which they were made: weights in memory take as long as they and the products, less what
    overlaps."""
    constants = SOME.changes()["cpu"]
    flops, read = rates.WEIGHTS / 2, rates.WEIGHTS / SOME.large_pages

    def taken(work: float, moved: float, overlap: float) -> float:
        return max(work, moved) + (1 - overlap) * min(work, moved)

    def panels(rows: int) -> float:
        return flops * (rows + constants["panel_half"]) / (constants["panel_rate"] * SOME.all_cores)

    def library(rows: int) -> float:
        moved = (rates.WEIGHTS + 2 * rows * rates.WEIGHTS / rates.WIDTH) / SOME.library_bandwidth
        work = (rows + constants["library_half"]) * flops / (constants["library_rate"] * SOME.all_cores)
        return taken(work, moved, constants["library_overlap"])

    few, many = rates.FEW_ROWS, rates.ROWS
    held = (few + constants["library_half"]) * flops / (constants["library_rate"] * SOME.all_cores)
    assert held == pytest.approx(few * flops / SOME.library_held, rel=0.02)
    assert panels(few) == pytest.approx(few * flops / SOME.panels_few, rel=0.02)
    for rows, rate in ((few, SOME.panels_cold), (many, SOME.panels)):
        assert taken(panels(rows), read, constants["overlap"]) == pytest.approx(rows * flops / rate, rel=0.02)
    for rows, rate in ((few, SOME.library_few), (many, SOME.library)):
        assert library(rows) == pytest.approx(rows * flops / rate, rel=0.02)
    assert constants["library_deep"] == pytest.approx((1.5 / 1.2 - 1) / 2, rel=0.01)


def test_what_is_read_is_told_from_what_starts_and_multiplies() -> None:
    """A machine that reads 20 GB/s, starts a product in 10 us, takes 150 us for a row, 400 us for panels, 300 for weights of
    onnxruntime, and does two fifths of the shorter of reading and multiplying beside the other."""
    read, start, row, panel, weight = rates.WEIGHTS / 2e10, 1e-5, 1.5e-4, 4e-4, 3e-4

    def taken(work: float, moved: float) -> float:
        return max(work, moved) + 0.6 * min(work, moved)

    def theirs(rows: int, products: int) -> float:
        moved = read * (1 + 2 * rows / rates.WIDTH)
        return 1 / (taken(rows * row + weight, moved) + products * start)

    deep, usual = rates.LAYERS // rates.DEEP, rates.LAYERS
    rate = {"many": theirs(rates.ROWS, usual), "few": theirs(rates.FEW_ROWS, usual), "long": theirs(rates.ROWS, deep)}
    rate["one"] = 1 / (taken(row, read) + deep * start)
    rate["single"] = 1 / (taken(rates.cores() * row, 2 * read) + deep * start)
    rate["held"] = 1 / (rates.HELD / usual * (rates.FEW_ROWS * row + weight) + rates.HELD * start)
    library, few_work = rates._of_library(rate, start), rates.FEW_ROWS * rates.WEIGHTS / 2
    assert library["library_bandwidth"] == pytest.approx(2e10, rel=0.02)
    assert library["one_library"] == pytest.approx(1e10, rel=0.02)
    assert library["library_deep"] == pytest.approx(library["library"], rel=0.01)
    assert library["library_held"] == pytest.approx(few_work / (rates.FEW_ROWS * row + weight), rel=0.01)
    assert rates._of_library(rate, 0.0)["library_bandwidth"] != pytest.approx(2e10, rel=0.02)  # what starts was there

    work = {1: row} | {n: n * row + panel for n in (rates.FEW_ROWS, rates.ROWS)}
    flops = {n: n * rates.WEIGHTS / 2 for n in work}
    few, many = rates.FEW_ROWS, rates.ROWS
    own = {"p": flops[1] / taken(work[1], read), "c": flops[few] / taken(work[few], read)}
    own |= {"f": flops[few] / work[few], "m": flops[many] / taken(work[many], read)}
    own["q"] = flops[1] / taken(rates.cores() * work[1], 2 * read)
    assert rates._of_panels(own)["large_pages"] == pytest.approx(2e10, rel=0.02)
    assert rates._of_panels(own)["one_large_pages"] == pytest.approx(1e10, rel=0.02)
    assert rates.WEIGHTS * own["p"] / flops[1] < 1.95e10  # beside what a row takes


def test_a_fork_is_told_by_the_fastest_runs() -> None:
    rounds = [{"alone": 1e3, "split": 1.8e3}, {"alone": 1e2, "split": 1.8e3}, {"alone": 1e3, "split": 2e2}]
    assert [rates._least(rounds, k) for k in ("alone", "split")] == pytest.approx([1000.0, 555.6], rel=1e-3)


def test_what_was_not_measured_follows_what_was() -> None:
    file, target = load_target("cpu"), changed_target(SOME.changes(), "")
    assert (target.units, target.bandwidth, target.flops["f32"], target.fork_us) == (4, 4e10, 5e10, 5.0)
    slower = pytest.approx(5e10 / file.flops["f32"], rel=0.01)  # of numbers with three digits
    c = target.sections[0]
    assert isinstance(c, Cpu) and c.large_pages == 1.5
    assert target.split == 1e11 and target.rate(None) == 1e11 > target.library_rate(None) == 5e10
    assert target.special / file.special == slower and target.flops["f64"] / file.flops["f64"] == slower
    assert target.kernel_us / file.kernel_us == pytest.approx(target.launch_us / file.launch_us) == pytest.approx(2.0)
    assert (target.shared_bytes, target.name) == (file.shared_bytes, "cpu")
