"""Results that come from elsewhere: the same as those of this machine, and not taken where they are not right."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.codegen.requests.passes import ALL
from mirage_cli.errors import CheckFailed, MirageError, UsageError
from mirage_cli.farm import address, offers
from mirage_cli.files.output import digests
from mirage_cli.inspection import workers
from mirage_cli.machine.devices import Device
from mirage_cli.optimization import environment, pipeline, story
from mirage_cli.options.options import Options
from mirage_cli.planning import batch
from mirage_cli.planning.fragment_cache import plan_from_json
from mirage_cli.planning.plan import printed
from mirage_cli.search.progress import Standing
from mirage_cli.search.schedules.target import load_target
from tests.farm.away import Away
from tests.optimized import sample

SAMPLE = "rmsnorm_linear_fp32"


def options(cache: Path | str) -> Options:
    return Options(target=("cpu",), force=True, seed=7, cache=str(cache))


def test_a_run_whose_jobs_are_documents_writes_the_same(
    tmp_path: Path, one_isa: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.optimize(str(sample(SAMPLE)), tmp_path / "here", options(""))
    crew = Away()
    monkeypatch.setattr(environment, "crew", lambda _: crew)
    story.optimize(str(sample(SAMPLE)), tmp_path / "there", options(""))
    assert digests(tmp_path / "here") == digests(tmp_path / "there")
    objects = ["compile"] * 3  # its kernel, its tables, the runtime
    assert sorted(crew.made) == ["check", *objects, "plan"]


@pytest.fixture
def run(tmp_path: Path, cxx: Toolchain) -> pipeline.Run:
    made = pipeline.Run(str(sample(SAMPLE)), options(""), cxx)
    made.read()
    return made


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d["told"]["cpu"].update(text="int main() {}"), "its source is another one here"),
        (lambda d: d["told"].clear(), "plans for  in place of cpu"),
        (lambda d: d["told"]["cpu"].update(predicted_us="fast"), "predicted_us"),
        (lambda d: d["file"].clear(), "missing or wrong field"),
    ],
)
def test_a_wrong_plan_is_not_taken(run: pipeline.Run, change: Any, problem: str) -> None:
    def changed(name: str, document: Any) -> Any:
        change(document)
        return document

    run.crew = Away(changed=changed)
    with pytest.raises((MirageError, ValueError), match=problem):
        run.plan()


def test_a_plan_is_proved_here_whatever_its_worker_says(run: pipeline.Run) -> None:
    def lying(name: str, document: Any) -> Any:
        (work,) = run.work
        target = document["file"]["targets"]["cpu"]
        target["graph"] = json.loads(json.dumps(target["graph"]).replace('"1/48"', '"1/47"'))
        told = plan_from_json(document, work.program).plans["cpu"]
        own = printed(told, work.id, work.program, load_target("cpu"), ALL)
        document["told"]["cpu"]["text"] = own.text
        return document

    run.crew = Away(changed=lying)
    with pytest.raises(CheckFailed, match="the proof failed"):
        run.plan()


def test_a_search_is_heard_of(run: pipeline.Run) -> None:
    run.crew = Away()
    (work,) = run.work
    plans = pipeline.plan_options(run.options, run.tools, (), {})
    heard: list[Standing] = []
    job = (work.id, work.name, work.program, work.operators, (), 1.0)
    ((_, plan),) = batch.each([job], plans, run.crew, None, lambda _, standing: heard.append(standing))
    assert heard[-1].closed == heard[-1].mappings > 0
    assert plan.plans["cpu"].verdict.passed


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh"])
def test_what_is_no_object_is_not_taken(run: pipeline.Run, content: bytes, tmp_path: Path) -> None:
    run.plan()
    wrong = {"object": base64.b64encode(content).decode()}
    run.crew = Away(changed=lambda name, document: wrong if name == "compile" else document)
    with pytest.raises(ValueError, match="is no object file"):
        run.build(tmp_path)


# --- addresses and offers ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ["tls://host:8786", "tcp://127.0.0.1:1", "tcp://localhost:8786", "tcp://[::1]:8786"])
def test_addresses_that_are_spoken_to(text: str) -> None:
    assert address.checked(text) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tcp://10.0.0.1:8786", "plain tcp is for this machine only"),
        ("tcp://localhost.example.org:8786", "plain tcp is for this machine only"),
        ("ucx://127.0.0.1:8786", "expected tls://HOST:PORT"),
        ("inproc://127.0.0.1:8786", "expected tls://HOST:PORT"),
        ("127.0.0.1:8786", "expected tls://HOST:PORT"),
        ("tls://host", "expected tls://HOST:PORT"),
    ],
)
def test_addresses_that_are_not(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        address.checked(text)


def test_a_device_is_told_from_others_of_its_architecture() -> None:
    h100, h200 = (Device(0, "GPU-1", name, "580.1", "9.0", "") for name in ("NVIDIA H100", "NVIDIA H200"))
    offered = offers.resources(1, [offers.device_offer(h200)], gpu=True)
    serving = {"status": "running", "resources": offered}
    assert offers.serves(serving, offers.needed(True, [offers.device_offer(h200)]))
    assert not offers.serves(serving, offers.needed(True, [offers.device_offer(h100)]))
    assert not offers.serves(serving, offers.needed(False, []))  # it does nothing else
    assert not offers.serves(serving | {"status": "paused"}, offers.needed(True, []))
    assert offers.device_of(offers.device_offer(h200), 3) == Device(3, "", "NVIDIA H200", "580.1", "9.0", "")
    assert offers.device_of("cxx g++ (Debian) 12, gpu", 0) is None


def test_the_difference_of_versions_names_packages() -> None:
    own = offers.versions()
    assert offers.difference(own) == ""
    assert offers.difference(own | {"numpy": "1.0"}) == f"numpy 1.0 in place of {own['numpy']}"


def test_the_kind_of_gpu_is_chosen_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(0, "", "NVIDIA H200", "580.1", "9.0", "")

    class Offering(Away):
        def devices(self) -> list[Device]:
            return [device]

    asked = Options(gpu=0, scheduler="tcp://127.0.0.1:1")
    assert environment.device(asked, Offering()) == device
    assert environment.settled(asked, Offering()).arch == ("sm_90a",)
    with pytest.raises(MirageError, match=r"--gpu 1: workers of .* offer 1 kinds of GPU: NVIDIA H200"):
        environment.device(Options(gpu=1, scheduler="tcp://127.0.0.1:1"), Offering())


def test_nothing_listens_beyond_this_machine_without_certificates(tmp_path: Path) -> None:
    asked = Options(certificates=str(tmp_path))
    for host in ("0.0.0.0", "10.0.0.1"):
        with pytest.raises(UsageError, match=r"farm\.key: No such file or directory"):
            workers.local(asked, 0, None, host, 0, print)
    with pytest.raises(UsageError, match="there is no scheduler to work for"):
        workers.serve(Options(), None)
    with pytest.raises(UsageError, match="--gpus 7: expected all, or numbers below"):
        workers.local(Options(), 0, "7", "127.0.0.1", 0, print)
