"""The stage that lets times decide: from fragments of a model to plans, with a fake compiler and a fake GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from mirage_cli import frontends
from mirage_cli.backends.toolchain import Tool, Toolchain
from mirage_cli.errors import CheckFailed, ModelError, Refused
from mirage_cli.lax.dtypes import I64
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.machine.devices import Device
from mirage_cli.optimization import assembly, pipeline, tuning_stage
from mirage_cli.optimization import task as works
from mirage_cli.optimization.assembly import fragment_report
from mirage_cli.optimization.task import Work
from mirage_cli.optimization.tuning_stage import Stage, choose
from mirage_cli.options.options import Options
from mirage_cli.planning import plan
from mirage_cli.planning.plan import PlanOptions, plan_fragment
from mirage_cli.processes.jobs import Here
from mirage_cli.search.search import Candidate, SearchOptions
from mirage_cli.tuning import build as tuning_build
from mirage_cli.tuning import session
from mirage_cli.tuning.cache import SETTLED, Measurement, TuningCache
from mirage_cli.tuning.candidates import LOST, REFUSED, Built
from tests.farm.away import Away
from tests.optimized import sample

DEVICE = Device(0, "GPU-1", "NVIDIA H200", "580.1", "9.0", "143771 MiB")
TOOL = Tool(("nvcc",), "nvcc 13.0", "a test")


@dataclass
class Gpu:
    """What stands in for the compiler and the GPU: the library of the k-th candidate that can be rendered is called k and
    takes 20 - k us."""

    begun: int = 0
    built: int = 0
    timed: int = 0
    problem: str = ""
    wrong: tuple[int, ...] = ()
    lost_at: int = 1000  #: the library with which the GPU goes
    alone: bool = False  #: whether it comes back
    stuck: str = ""

    about: tuple[Any, ...] = ()

    def workshop(self, identifier: str, program: Any, target: Any, *_: Any) -> Gpu:
        self.about = (identifier, program, target)
        return self

    def build(self, candidates: Sequence[Candidate]) -> list[Built]:
        return [self.made(c) for c in candidates]

    def made(self, c: Candidate) -> Built:
        identifier, program, target = self.about
        try:
            plan.rendered(identifier, program, c.graph, c.schedules, target)
        except Refused as e:
            return f"{REFUSED}{e}"
        self.built += 1
        return Path(str(self.built - 1))

    def begin(self) -> None:
        self.begun += 1

    def start(self) -> str:
        return self.problem

    def check(self, library: Path) -> str:
        return ""

    def answers(self, library: Path) -> str:
        if int(library.name) == self.lost_at:
            self.problem = "" if self.alone else "the GPU is lost"
            return f"{LOST} checked: its process ended with SIGABRT"
        return "wrong: rmse" if int(library.name) in self.wrong else ""

    def time(self, libraries: Sequence[Path], samples: int, step: bool = False) -> list[Measurement]:
        self.timed += len(libraries)
        return [Measurement(20.0 - int(p.name), 20.0 - int(p.name), 20.0 - int(p.name), samples) for p in libraries]

    def close(self) -> None:
        pass


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(session, "Workshop", made.workshop)
    monkeypatch.setattr(session, "IsolatedBench", lambda *_: made)
    return made


@pytest.fixture(scope="module")
def planned() -> tuple[Any, Work, PlanOptions]:
    """A sample's fragment, planned for CUDA with its pool."""
    imported = frontends.load(str(sample("rmsnorm_linear_fp16")), frontends.Options({}, {}))
    parts = partition(imported.graph, works.tensor_names(imported))
    (work,) = works.group_fragments(parts.fragments, imported)
    sizes = tuple((s, 8) for s in work.program.symbols)
    options = PlanOptions({"cuda": ("sm_90a",)}, SearchOptions(sizes=sizes), pool=80)
    work.plan = plan_fragment(work.id, work.name, work.program, work.operators, options)
    return imported, work, options


@pytest.fixture
def work(planned: tuple[Any, Work, PlanOptions]) -> Work:
    made = planned[1]
    assert made.plan is not None
    return replace(made, plan=replace(made.plan, plans=dict(made.plan.plans)), tuning={})


@pytest.fixture
def stage(planned: tuple[Any, Work, PlanOptions], tmp_path: Path) -> Stage:
    imported, _, options = planned
    tools = Toolchain(Tool(("c++",), "c++", "a test"), TOOL)
    settings = Options(gpu=0, jobs=1, tune_candidates=6, tune_budget=0.0, cache=str(tmp_path))
    cache = TuningCache(tmp_path / "tunings")
    return Stage(
        settings, options, tools, imported, {}, lambda symbols: dict.fromkeys(symbols, 8), cache, DEVICE, Here(1)
    )


def silent(text: str) -> None:
    """Nobody listens."""


def test_the_fastest_takes_the_place_of_the_own_choice(work: Work, stage: Stage, gpu: Gpu) -> None:
    assert work.plan is not None
    own = work.plan.plans["cuda"]
    choose([work], stage, silent)
    chosen = work.plan.plans["cuda"]
    assert gpu.built == 6
    assert chosen.schedules != own.schedules or chosen.graph != own.graph
    assert chosen.verdict.passed
    assert (
        chosen.text
        == plan.rendered(work.id, work.program, chosen.graph, chosen.schedules, plan.newest(["sm_90a"])).text
    )
    report = fragment_report(work).to_json()["tuning"]
    assert (report["tried"], report["own_us"], report["chosen_us"], report["complete"]) == (6, 20.0, 15.0, True)
    assert [c["measured_us"] for c in report["candidates"] if c["measured_us"]] == [20.0, 19.0, 18.0, 17.0, 16.0, 15.0]
    assert all(c["predicted_us"] > 0 for c in report["candidates"])
    assert report["candidates"][0]["candidate"] == report["own"] != report["chosen"]


def test_a_second_run_measures_nothing(
    work: Work, stage: Stage, gpu: Gpu, planned: tuple[Any, Work, PlanOptions]
) -> None:
    assert work.plan is not None
    choose([work], stage, silent)
    first, built = work.plan.plans["cuda"], gpu.built
    work.plan.plans["cuda"] = planned[1].plan.plans["cuda"]  # type: ignore[union-attr]
    choose([work], stage, silent)
    assert (gpu.built, work.plan.plans["cuda"].schedules) == (built, first.schedules)
    assert all(c["cached"] for c in work.tuning["candidates"])
    more = replace(stage, options=replace(stage.options, tune_candidates=8))
    choose([work], more, silent)
    assert built < gpu.built <= built + 2  # what is measured may tell that some are not worth it


def test_without_a_gpu_the_cache_decides(
    work: Work, stage: Stage, gpu: Gpu, planned: tuple[Any, Work, PlanOptions]
) -> None:
    assert work.plan is not None
    choose([work], stage, silent)
    first, built = work.plan.plans["cuda"], gpu.built
    work.plan.plans["cuda"] = planned[1].plan.plans["cuda"]  # type: ignore[union-attr]
    choose([work], replace(stage, device=None, options=replace(stage.options, gpu=None, tuned=True)), silent)
    assert (gpu.built, work.plan.plans["cuda"].schedules) == (built, first.schedules)
    assert work.tuning["device"] == "NVIDIA H200"


def test_a_gpu_whose_process_does_not_end(work: Work, stage: Stage, gpu: Gpu) -> None:
    """It is not asked again: fragments behind that one have what the cache knows."""
    other = replace(work, name="other", tuning={})
    gpu.stuck = gpu.problem = "process 1 was killed and did not end"
    choose([work, other], stage, silent)
    assert gpu.begun == 1
    assert [w.tuning["problem"] for w in (work, other)] == [gpu.stuck] * 2


def test_an_empty_cache_leaves_the_own_choice(work: Work, stage: Stage, gpu: Gpu) -> None:
    assert work.plan is not None
    own = work.plan.plans["cuda"]
    choose([work], replace(stage, device=None), silent)
    assert work.plan.plans["cuda"] is own
    assert gpu.built == 0
    assert work.tuning["tried"] == 0


def test_a_wrong_candidate_is_reported_and_never_chosen(work: Work, stage: Stage, gpu: Gpu) -> None:
    gpu.wrong = (5, 4)
    choose([work], stage, silent)
    assert (work.tuning["chosen_us"], work.tuning["tried"]) == (17.0, 6)
    assert [c["problem"] for c in work.tuning["candidates"] if "problem" in c].count("wrong: rmse") == 2


def test_a_candidate_that_fails_the_proof_is_passed_over(
    work: Work, stage: Stage, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = tuning_stage.planned, list[Any]()

    def doubtful(*arguments: Any) -> Any:
        seen.append(arguments)
        if len(seen) <= 2:
            raise CheckFailed("the proof failed: made to fail")
        return real(*arguments)

    monkeypatch.setattr(tuning_stage, "planned", doubtful)
    choose([work], stage, silent)
    assert work.tuning["chosen_us"] == 17.0
    assert list(work.tuning["passed_over"].values()) == ["the proof failed: made to fail"] * 2


def test_no_proof_leaves_the_own_choice(work: Work, stage: Stage, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> Any:
        raise CheckFailed("the proof failed: made to fail")

    assert work.plan is not None
    own = work.plan.plans["cuda"]
    monkeypatch.setattr(tuning_stage, "planned", never)
    choose([work], stage, silent)
    assert work.plan.plans["cuda"] is own
    assert work.tuning["chosen"] == work.tuning["own"]


def test_a_poisoned_row_cannot_make_an_unproved_choice(
    work: Work, stage: Stage, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose([work], stage, silent)
    assert stage.cache is not None
    worst = [c["candidate"] for c in work.tuning["candidates"] if c["measured_us"]][1]
    rows = [r for r in stage.cache.rows() if r.candidate == worst]
    stage.cache.store([replace(rows[0], value=Measurement(0.001, 0.001, 0.001, 10**6))])
    proved = list[Any]()
    real = tuning_stage.planned
    monkeypatch.setattr(tuning_stage, "planned", lambda *a: (proved.append(a), real(*a))[1])
    choose([work], stage, silent)
    assert work.tuning["chosen"] == worst
    assert len(proved) == 1


def test_a_gpu_that_does_not_start_leaves_the_own_choice(work: Work, stage: Stage, gpu: Gpu) -> None:
    assert work.plan is not None and stage.cache is not None
    own, gpu.problem = work.plan.plans["cuda"], "there is no torch"
    said = list[str]()
    choose([work], stage, said.append)
    assert work.plan.plans["cuda"] is own
    assert work.tuning["problem"] == "there is no torch"
    assert said == [f"{work.name}: not tuned: there is no torch"] == assembly._untuned([work])
    assert SETTLED not in {r.candidate for r in stage.cache.rows()}


def test_a_gpu_that_is_lost_leaves_times_for_the_next_run(work: Work, stage: Stage, gpu: Gpu) -> None:
    gpu.lost_at = 4
    choose([work], stage, silent)
    assert (work.tuning["problem"], work.tuning["tried"], work.tuning["chosen_us"]) == ("the GPU is lost", 4, 17.0)
    assert stage.cache is not None
    kept = {r.candidate for r in stage.cache.rows()}
    assert len(kept) >= 4 and SETTLED not in kept
    gpu.lost_at, gpu.problem, gpu.timed = 1000, "", 0
    choose([work], stage, silent)
    assert work.tuning["tried"] == 6
    assert sum(c["cached"] for c in work.tuning["candidates"] if c["measured_us"]) == 3  # the own choice is timed again
    assert SETTLED in {r.candidate for r in stage.cache.rows()}


def test_a_candidate_that_was_lost_is_tried_again(work: Work, stage: Stage, gpu: Gpu) -> None:
    gpu.lost_at, gpu.alone = 5, True
    choose([work], stage, silent)
    assert (work.tuning["tried"], work.tuning.get("problem", "")) == (6, "")
    assert stage.cache is not None
    assert SETTLED not in {r.candidate for r in stage.cache.rows()}
    gpu.lost_at, gpu.timed, gpu.built = 1000, 0, 100
    choose([work], stage, silent)
    fresh = [c for c in work.tuning["candidates"] if not c["cached"]]
    assert (work.tuning["tried"], len(fresh), gpu.timed) == (6, 2, 1 + 2)  # with the own choice beside it
    assert SETTLED in {r.candidate for r in stage.cache.rows()}


def test_trouble_with_one_fragment_is_its_own(
    work: Work, stage: Stage, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ModelError("made to fail")

    assert work.plan is not None
    own = work.plan.plans["cuda"]
    monkeypatch.setattr(Work, "check_job", broken)
    choose([work], stage, silent)
    assert work.plan.plans["cuda"] is own
    assert work.tuning == {"problem": "made to fail"}


def test_without_a_cache_nothing_is_kept(work: Work, stage: Stage, gpu: Gpu) -> None:
    choose([work], replace(stage, cache=None), silent)
    choose([work], replace(stage, cache=None), silent)
    assert gpu.built == 12


def test_the_version_depends_on_templates_and_compiler() -> None:
    assert tuning_build.version(TOOL) == tuning_build.version(TOOL)
    assert tuning_build.version(TOOL) != tuning_build.version(Tool(("nvcc",), "nvcc 14.0", "a test"))


def test_the_own_choice_leads_the_pool(planned: tuple[Any, Work, PlanOptions]) -> None:
    _, work, options = planned
    assert work.plan is not None
    first, own = work.plan.pool[0], work.plan.plans["cuda"]
    assert (first.graph, first.schedules) == (own.graph, own.schedules)
    assert len({(c.graph, c.schedules) for c in work.plan.pool}) == len(work.plan.pool) == options.pool
    plain = plan_fragment(work.id, work.name, work.program, work.operators, replace(options, pool=0))
    assert plain.pool == ()
    assert plain.plans["cuda"].text == own.text


# --- in a step --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def decoder() -> tuple[Any, dict[str, list[Work]]]:
    """The fragments of a decoder's step of two layers, by name; each has a pool, of which nobody looks at the candidate."""
    imported = frontends.load(str(sample("llama_decode_fp16")), frontends.Options({}, {}))
    found: dict[str, list[Work]] = {}
    for w in works.group_fragments(partition(imported.graph, works.tensor_names(imported)).fragments, imported):
        made = plan.FragmentPlan(w.id, w.name, w.program, pool=(cast(Candidate, w.id),))
        w.plan = made
        found.setdefault(w.name, []).append(w)
    return imported, found


def test_what_is_in_front_of_a_fragment(decoder: tuple[Any, dict[str, list[Work]]]) -> None:
    _, named = decoder
    work = [w for several in named.values() for w in several]
    fronts = {work[k].id: f for k, f in tuning_stage.in_front(work).items()}
    (mlp,), (attention,) = named["norm_gated_mlp"], named["attention"]
    down, projection = named["linear"]
    written = [{v for o in w.occurrences for v in o.region.outputs} for w in (down, projection)]
    assert all(written[0] | written[1])
    assert fronts[attention.id].name == "norm_linear"
    assert fronts[mlp.id].name == "linear"
    read = {v for o in mlp.occurrences for v in o.region.inputs}
    assert {v for o in fronts[mlp.id].occurrences for v in o.region.outputs} & read
    assert all(f.id != k for k, f in fronts.items())


def test_what_cannot_be_timed_is_in_front_of_nobody(
    decoder: tuple[Any, dict[str, list[Work]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, named = decoder
    work = [w for several in named.values() for w in several]
    monkeypatch.setattr(tuning_stage, "MAX_FRONT_BYTES", 16)
    assert tuning_stage.in_front(work) == {}
    monkeypatch.undo()
    (attention,) = named["attention"]
    integers = replace(attention, inputs=(replace(attention.inputs[0], dtype=I64), *attention.inputs[1:]))
    others = [integers if w is attention else w for w in work]
    assert integers not in tuning_stage.in_front(others).values()


# --- times from elsewhere ---------------------------------------------------------------------------------------------
def test_times_from_a_worker_decide_alike(
    work: Work, stage: Stage, gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(session, "own_compiler", lambda cuda: TOOL)
    local = replace(work, plan=replace(work.plan, plans=dict(work.plan.plans)))  # type: ignore[type-var]
    choose([local], stage, silent)
    gpu.built = 0
    crew = Away()
    other = TuningCache(tmp_path / "other")
    choose([work], replace(stage, crew=crew, cache=other), silent)
    assert crew.made == ["tune", "prove"]
    assert work.plan is not None and local.plan is not None and stage.cache is not None
    chosen, wanted = work.plan.plans["cuda"], local.plan.plans["cuda"]
    assert (chosen.text, chosen.schedules) == (wanted.text, wanted.schedules)
    assert [(r.candidate, r.value) for r in other.rows()] == [(r.candidate, r.value) for r in stage.cache.rows()]
    assert fragment_report(work).tuning | {"seconds": 0} == fragment_report(local).tuning | {"seconds": 0}


def test_times_of_what_is_no_candidate_are_not_taken(
    work: Work, stage: Stage, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "own_compiler", lambda cuda: TOOL)

    def changed(name: str, document: Any) -> Any:
        document["trials"][0]["key"] = "other"
        return document

    with pytest.raises(ValueError, match="a time of other, which is no candidate"):
        choose([work], replace(stage, crew=Away(changed=changed)), silent)


# --- when times decide ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "tunes"),
    [
        ({}, False),
        ({"tuned": True}, True),
        ({"gpu": 0}, True),
        ({"gpu": 0, "arch": ("sm_80",)}, False),  # times of this GPU say nothing about that one
        ({"gpu": 0, "tune_candidates": 0}, False),
        ({"gpu": 0, "dry_run": True}, False),
        ({"tuned": True, "dry_run": True}, False),
    ],
)
def test_candidates_are_kept_only_where_times_decide(options: dict[str, Any], tunes: bool) -> None:
    tools = Toolchain(Tool(("c++",), "c++", "a test"), TOOL)
    asked = Options(**{"target": ("cuda",), "arch": ("sm_90a",), **options})
    made = pipeline.plan_options(asked, tools, (), {}, DEVICE if "gpu" in options else None)
    assert (made.pool > 0) == tunes
