"""Which candidates are tried and which is chosen: with made-up candidates, a fake GPU and a clock that follows a script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from mirage_cli.search.mugraph.mugraph import KernelGraph
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.search import Candidate
from mirage_cli.tuning import candidates as tuning
from mirage_cli.tuning.cache import Measurement
from mirage_cli.tuning.candidates import (
    FINALISTS,
    FIRST,
    LOST,
    QUICK,
    REFUSED,
    THOROUGH,
    Built,
    Limits,
    Trial,
    corrections,
    select,
    tune,
)


def candidate(family: str, us: float, tile: int = 16, engine: str = "block") -> Candidate:
    """A candidate of a family; the graph is only ever compared and hashed here."""
    schedule = Schedule((("a", tile),), engine=engine)
    return Candidate(cast(KernelGraph, family), (schedule,), us, 1.0, (us, 0.0))


def named(*candidates: Candidate) -> dict[str, Candidate]:
    return {f"k{n}": c for n, c in enumerate(candidates)}


def time(us: float, samples: int = QUICK) -> Measurement:
    return Measurement(us, us * 0.99, us * 1.01, samples)


@dataclass
class Machine:
    """Builder, bench and clock: a build takes 10 s, a look at answers 1 s, a check 5 s, a time 2 s; `us` says what
    candidates take, `behind` what they take in a step, `wrong` which of them give wrong answers, `rarely` which do so
    in some case of the check, `broken` which do not build, `refused` which are not rendered, `trapping` which cost the bench
    its process, `lost` which do so when they are timed again, `deadly` which end it for good."""

    us: Mapping[str, float]
    pool: Mapping[str, Candidate]
    wrong: Sequence[str] = ()
    rarely: Sequence[str] = ()
    broken: Sequence[str] = ()
    refused: Sequence[str] = ()
    trapping: Sequence[str] = ()
    lost: Sequence[str] = ()
    deadly: Sequence[str] = ()
    behind: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""
    seconds: float = 0.0
    built: list[list[str]] = field(default_factory=list)
    log: list[tuple[Any, ...]] = field(default_factory=list)

    def now(self) -> float:
        return self.seconds

    def name(self, c: Candidate) -> str:
        return next(k for k, own in self.pool.items() if own is c)

    def build(self, candidates: Sequence[Candidate]) -> list[Built]:
        self.seconds += 10
        names = [self.name(c) for c in candidates]
        self.built.append(names)
        return [
            f"{REFUSED}no" if n in self.refused else "it does not compile: no" if n in self.broken else Path(n)
            for n in names
        ]

    def start(self) -> str:
        self.log.append(("start",))
        return self.problem

    def check(self, library: Path) -> str:
        self.seconds += 5
        self.log.append(("check", library.name))
        return "wrong: huge" if library.name in self.rarely else ""

    def answers(self, library: Path) -> str:
        self.seconds += 1
        self.log.append(("answers", library.name))
        if library.name in (*self.trapping, *self.deadly):
            self.problem = "the GPU is lost" * (library.name in self.deadly)
            return f"{LOST} checked: it trapped"
        return "wrong: rmse" if library.name in self.wrong else ""

    def time(self, libraries: Sequence[Path], samples: int, step: bool = False) -> list[Measurement]:
        self.seconds += 2
        self.log.append(("time", *(p.name for p in libraries), samples))
        assert step == (samples == THOROUGH)
        lost = Measurement(None, problem=f"{LOST} timed: it trapped")
        again = samples == THOROUGH
        us = self.us | (self.behind if step else {})
        return [lost if again and p.name in self.lost else time(us[p.name], samples) for p in libraries]


def run(
    machine: Machine, limits: Limits, known: Mapping[str, Measurement] | None = None, error: float = 100.0
) -> tuning.Tuned:
    """By a model that is taken to know next to nothing, unless an `error` is said."""
    return tune(machine.pool, known or {}, machine, machine, replace(limits, error=error), machine)


# --- what is tried ----------------------------------------------------------------------------------------------------
def test_picks_are_spread_over_families() -> None:
    pool = [candidate("a", 10.0 + 0.01 * k, tile=2**k) for k in range(6)]
    pool += [candidate("b", 10.5, 64), candidate("c", 11.0, 128)]
    assert [cast(str, c.graph) for c in select(pool, 4)] == ["a", "b", "a", "c"]


def test_a_family_far_behind_is_not_tried() -> None:
    pool = [candidate("a", 10.0, tile=2**k) for k in range(4)] + [candidate("b", 30.0)]
    assert [cast(str, c.graph) for c in select(pool, 4)] == ["a"] * 4


def test_engines_are_families_too() -> None:
    pool = [candidate("a", 10.0, 16), candidate("a", 10.1, 32), candidate("a", 10.2, engine="strip")]
    assert [c.schedules[0].engine for c in select(pool, 2)] == ["block", "strip"]


def test_other_tiles_come_before_the_same_ones() -> None:
    first, same, other = candidate("a", 10.0, 16), candidate("a", 10.1, 16), candidate("a", 10.2, 32)
    assert select([first, same, other], 3) == [first, other, same]


def test_a_pick_depends_on_what_was_tried_before() -> None:
    a, b, c = candidate("a", 10.0, 16), candidate("a", 10.0, 32), candidate("b", 10.5, 64)
    assert select([a, b, c], 1) == [a]
    assert select([b, c], 1, tried=[a]) == [c]


def test_a_family_that_took_longer_than_predicted_waits() -> None:
    slow = [Trial(candidate("a", 10.0), "k", time(20.0)), Trial(candidate("a", 10.0), "l", time(20.0))]
    assert corrections([*slow, Trial(candidate("b", 10.0), "m", Measurement(None, problem="no"))]) == pytest.approx(
        {("a", "block"): 2.0}
    )
    left = [candidate("a", 10.0, 32), candidate("b", 14.0)]
    fine = Trial(candidate("b", 10.0), "m", time(10.0))
    assert select(left, 1, [], corrections([*slow, fine])) == [left[1]]
    assert select(left, 1, [], {}) == [left[0]]


def test_an_engine_that_was_not_tried_is_taken_at_its_word() -> None:
    slow = [Trial(candidate("a", 10.0, engine="strip"), "k", time(13.0))]
    left = [candidate("b", 10.5, engine="strip"), candidate("a", 12.0)]
    assert select(left, 1, [], corrections(slow)) == [left[1]]
    assert select(left, 1, [], {}) == [left[0]]


def test_the_same_tiles_in_another_graph_are_not_much_new() -> None:
    pool = [candidate("a", 10.0, 16), candidate("b", 10.0, 16), candidate("c", 10.2, 32)]
    assert select(pool, 3) == [pool[0], pool[2], pool[1]]


def test_the_order_is_the_same_every_time() -> None:
    pool = [candidate("abc"[k % 3], 10.0 + k % 5, tile=2 ** (k % 4)) for k in range(60)]
    assert select(pool, 20) == select(pool, 20)
    assert len({id(c) for c in select(pool, 60)}) == 60
    assert len(select(pool, 100)) == 60


# --- rounds -----------------------------------------------------------------------------------------------------------
def pool_of(count: int) -> dict[str, Candidate]:
    return named(*(candidate("abc"[k % 3], 10.0 + k, tile=k) for k in range(count)))


def test_the_fastest_is_first_and_the_own_choice_is_tried() -> None:
    pool = pool_of(9)
    machine = Machine({k: 30.0 - n for n, k in enumerate(pool)}, pool)
    found = run(machine, Limits(9, 0.0, 4))
    assert [t.key for t in found.ranking][:2] == ["k8", "k7"]
    assert found.trials[0].key == "k0"
    assert machine.built[0][0] == "k0"
    assert [len(b) for b in machine.built] == [4, 4, 1]
    assert found.complete


def test_a_candidate_is_checked_before_it_is_timed_and_a_wrong_one_never_is() -> None:
    pool = pool_of(4)
    machine = Machine(dict.fromkeys(pool, 5.0), pool, wrong=("k1",), broken=("k2",))
    found = run(machine, Limits(4, 0.0, 4))
    timed = {name for kind, *names in machine.log if kind == "time" for name in names[:-1]}
    assert timed == {"k0", "k3"}
    for name in timed:
        assert machine.log.index(("answers", name)) < machine.log.index(("time", name, QUICK))
    assert {t.key: t.result.problem for t in found.trials if t.result.us is None} == {
        "k1": "wrong: rmse",
        "k2": "it does not compile: no",
    }
    assert {t.key for t in found.ranking} == {"k0", "k3"}


def test_the_best_few_are_timed_again_in_turns() -> None:
    pool = pool_of(12)
    machine = Machine({k: 20.0 + n for n, k in enumerate(pool)}, pool)
    found = run(machine, Limits(12, 0.0, 12))
    assert machine.log[-2:] == [("time", *(f"k{n}" for n in range(FINALISTS)), THOROUGH), ("check", "k0")]
    assert [t.result.samples for t in found.ranking] == [THOROUGH] * FINALISTS + [QUICK] * (12 - FINALISTS)


def test_those_that_cannot_be_rendered_are_none_of_those_tried() -> None:
    pool = pool_of(12)
    machine = Machine(dict.fromkeys(pool, 9.0), pool, refused=("k0", "k1", "k2"))
    found = run(machine, Limits(4, 0.0, 4))
    assert found.tried == 4
    assert len(found.trials) == 7


def test_a_family_that_cannot_be_rendered_is_left() -> None:
    pool = named(
        *(candidate("none", 10.0, tile=n) for n in range(12)), *(candidate("some", 20.0, tile=n) for n in range(6))
    )
    refused = tuple(k for k, c in pool.items() if cast(str, c.graph) == "none")
    found = run(Machine(dict.fromkeys(pool, 9.0), pool, refused=refused), Limits(3, 0.0, 4))
    assert (found.tried, len(found.trials)) == (3, 9)


def test_everything_refused_ends() -> None:
    pool = pool_of(5)
    found = run(Machine({}, pool, refused=tuple(pool)), Limits(4, 0.0, 2))
    assert (found.tried, len(found.trials), found.ranking) == (0, 5, [])


def test_time_that_is_up_ends_the_trying() -> None:
    pool = pool_of(40)
    machine = Machine(dict.fromkeys(pool, 9.0), pool)
    found = run(machine, Limits(40, 60.0, 8))
    assert not found.complete
    assert [len(b) for b in machine.built] == [6, 8]  # 28 s after the first batch, and none begins after 45 s
    assert 8 < len(found.trials) < 40
    assert machine.seconds < 60 + 4 + 2 + 5  # the second round and the check all the same


def test_a_bench_that_does_not_start_ends_it() -> None:
    pool = pool_of(40)
    machine = Machine(dict.fromkeys(pool, 9.0), pool, problem="there is no torch")
    found = run(machine, Limits(40, 0.0, 8))
    assert (found.problem, found.trials, len(machine.built)) == ("there is no torch", [], 1)


def test_a_kernel_that_traps_costs_its_own_result_only() -> None:
    pool = pool_of(4)
    found = run(Machine(dict.fromkeys(pool, 9.0), pool, trapping=["k1"]), Limits(4, 0.0, 8))
    assert found.problem == ""
    assert {t.key: t.result.problem for t in found.trials if t.result.us is None} == {
        "k1": f"{LOST} checked: it trapped"
    }
    assert found.lost


def test_a_gpu_that_is_lost_leaves_what_was_measured() -> None:
    pool = pool_of(40)
    machine = Machine(dict.fromkeys(pool, 9.0), pool, deadly=["k5"])
    given: list[str] = []
    found = tune(pool, {}, machine, machine, Limits(40, 0.0, 8), machine, lambda ts: given.extend(t.key for t in ts))
    assert found.problem == "the GPU is lost"
    tried = [t.key for t in found.trials]
    assert "k5" not in tried and len(tried) == len(found.ranking) > 0
    assert given == tried


def test_what_is_lost_when_it_is_timed_again_keeps_its_first_time() -> None:
    pool = pool_of(4)
    found = run(Machine(dict.fromkeys(pool, 9.0), pool, lost=["k1", "k2"]), Limits(4, 0.0, 8))
    assert {t.key: (t.us, t.result.samples) for t in found.trials} == {
        k: (9.0, QUICK if k in ("k1", "k2") else THOROUGH) for k in pool
    }
    assert not found.lost


def test_trials_are_handed_on_one_by_one() -> None:
    pool = pool_of(20)
    machine = Machine(dict.fromkeys(pool, 9.0), pool)
    given: list[int] = []
    tune(pool, {}, machine, machine, Limits(20, 0.0, 8, 100.0), machine, lambda trials: given.append(len(trials)))
    assert given == [1] * 20


def test_what_is_known_is_not_tried_again() -> None:
    pool = pool_of(6)
    machine = Machine(dict.fromkeys(pool, 9.0), pool)
    known = {"k0": time(8.0), "k1": time(7.0, THOROUGH), "k2": Measurement(None, problem="wrong: rmse")}
    found = run(machine, Limits(5, 0.0, 8), known)
    assert [len(b) for b in machine.built] == [2, 1, 1]
    assert (machine.built[1], machine.log[-2]) == (
        ["k0"],
        ("time", "k0", "k4", "k5", THOROUGH),
    )  # the own choice is beside
    assert (machine.built[-1], machine.log[-1]) == (["k1"], ("check", "k1"))  # the best one is, whoever has timed it
    assert not {*machine.built[0]} & {*known}
    assert [t.key for t in found.ranking[:2]] == ["k1", "k0"]
    assert {t.key for t in found.trials if t.known} == {"k1", "k2"}
    assert not machine.seconds > 10 + 2 * 3 + 10 + 2 + 10 + 5


def test_trying_ends_where_the_model_has_nothing_better_left() -> None:
    """Predictions from 10 us on, a microsecond apart, and twice what is measured: of a model that is off by 1.3 those up to
    12.7 us may be better than the first one."""
    pool = pool_of(40)
    machine = Machine({k: 20.0 + 2 * n for n, k in enumerate(pool)}, pool)
    run(machine, Limits(40, 0.0, 8), error=1.3)
    assert sorted(machine.built[0]) == [f"k{n}" for n in range(FIRST)]
    assert len(machine.built) == 1
    less = Machine(machine.us, pool)
    run(less, Limits(40, 0.0, 8), error=2.0)
    tried = {k for batch in less.built for k in batch}
    assert tried == {f"k{n}" for n in range(10)}  # 19 us, twice as much as measured, may be 19.6


def test_the_best_is_checked_in_every_case_and_the_next_one_where_it_fails() -> None:
    pool = pool_of(5)
    machine = Machine({k: 10.0 + n for n, k in enumerate(pool)}, pool, rarely=("k0", "k1"))
    found = run(machine, Limits(5, 0.0, 5))
    assert [name for kind, *names in machine.log if kind == "check" for name in names] == ["k0", "k1", "k2"]
    assert found.ranking[0].key == "k2"
    assert [t.result.problem for t in found.trials[:2]] == ["wrong: huge"] * 2


def test_a_family_that_is_as_predicted_ends_sooner() -> None:
    """The model is off by 3 at worst, but among six of the only family by less than 1 %: no seventh can be better."""
    pool = named(*(candidate("a", 10.0 + n / 10, tile=n) for n in range(40)))
    us = {k: c.predicted_us * (1.5 + 0.001 * (n % 3)) for n, (k, c) in enumerate(pool.items())}
    machine = Machine(us, pool)
    run(machine, Limits(40, 0.0, 8), error=3.0)
    assert [len(b) for b in machine.built] == [FIRST]


def test_nothing_is_tried_that_cannot_be_better_than_what_is_there() -> None:
    pool = pool_of(40)
    machine = Machine(dict.fromkeys(pool, 1.01), pool)
    run(machine, Limits(40, 0.0, 8, least_us=1.0))
    assert [len(b) for b in machine.built] == [FIRST]
    at_floor = {k: replace(c, floor_us=9.0) for k, c in pool.items()}
    machine = Machine(dict.fromkeys(pool, 9.1), at_floor)
    run(machine, Limits(40, 0.0, 8))
    assert [len(b) for b in machine.built] == [FIRST]
    machine = Machine(dict.fromkeys(pool, 4.0), at_floor)  # what is twice as fast as a floor may be thrice
    run(machine, Limits(40, 0.0, 8))
    assert sum(len(b) for b in machine.built) == 40


# --- the second round -------------------------------------------------------------------------------------------------
def test_times_of_a_step_decide() -> None:
    pool = pool_of(6)
    machine = Machine({k: 10.0 - n for n, k in enumerate(pool)}, pool, behind=dict.fromkeys(pool, 12.0) | {"k2": 11.0})
    found = run(machine, Limits(6, 0.0, 6))
    assert [t.key for t in found.ranking[:2]] == ["k2", "k0"]


def test_what_does_not_beat_the_own_choice_by_more_than_the_noise_is_behind_it() -> None:
    pool = pool_of(4)
    machine = Machine({"k0": 10.0, "k1": 9.95, "k2": 9.91, "k3": 12.0}, pool)
    found = run(machine, Limits(4, 0.0, 4))  # quartiles are 1 % off
    assert [t.key for t in found.ranking] == ["k0", "k2", "k1", "k3"]
    machine = Machine({"k0": 10.0, "k1": 9.95, "k2": 9.89, "k3": 12.0}, pool)
    assert [t.key for t in run(machine, Limits(4, 0.0, 4)).ranking] == ["k2", "k0", "k1", "k3"]


def test_the_best_of_each_size_of_clusters_and_the_own_choice_are_timed_again() -> None:
    shared = Schedule((("a", 16),), engine="strip", numbers=(("cluster", 2),))
    pool = pool_of(12) | {"c": Candidate(cast(KernelGraph, "c"), (shared,), 21.0, 1.0, (21.0, 0.0))}
    us = {k: 20.0 + 0.1 * n for n, k in enumerate(pool)} | {"k0": 30.0}
    machine = Machine(us, pool)
    run(machine, Limits(13, 0.0, 13))
    (_, *again, samples) = machine.log[-2]
    assert samples == THOROUGH
    assert again == ["k1", "k2", "k3", "k4", "k5", "k6", "c", "k0"]


def test_those_of_the_second_round_come_before_the_others() -> None:
    pool = pool_of(12)
    us = {k: 20.0 + 0.1 * n for n, k in enumerate(pool)}
    machine = Machine(us, pool, behind={k: 30.0 + 0.5 * n for n, k in enumerate(pool)})
    found = run(machine, Limits(12, 0.0, 12))
    assert [t.key for t in found.ranking] == [f"k{n}" for n in range(12)]
    assert [t.final for t in found.ranking] == [True] * FINALISTS + [False] * (12 - FINALISTS)


def test_families_of_the_first_batch_decide_the_second() -> None:
    pool = named(
        *(candidate("slow", 10.0 + n / 100, tile=n) for n in range(6)),
        *(candidate("quick", 13.0 + n / 100, tile=n, engine="strip") for n in range(6)),
    )
    us = {k: 40.0 if cast(str, c.graph) == "slow" else 13.0 for k, c in pool.items()}
    machine = Machine(us, pool)
    run(machine, Limits(8, 0.0, 4))
    kinds = [[cast(str, pool[k].graph) for k in batch] for batch in machine.built]
    assert kinds[0].count("quick") < 3
    assert kinds[1] == ["quick"] * 4


# --- telling ----------------------------------------------------------------------------------------------------------
def test_a_trial_in_the_report() -> None:
    found = Trial(candidate("a", 10.0), "k", time(12.5), known=True).to_json()
    assert (found["predicted_us"], found["measured_us"], found["engines"], found["cached"]) == (
        10.0,
        12.5,
        ["block"],
        True,
    )
    lost = Trial(candidate("a", 10.0), "k", Measurement(None, problem="wrong")).to_json()
    assert (lost["measured_us"], lost["problem"]) == (None, "wrong")


def test_the_model_error_is_a_geometric_mean() -> None:
    assert tuning.model_error([10.0, 40.0], [10.0, 10.0]) == pytest.approx(2.0)
    assert tuning.model_error([], []) == 1.0


def test_one_without_a_time_takes_for_ever() -> None:
    assert math.isinf(Trial(candidate("a", 1.0), "k", Measurement(None, problem="no")).us)
