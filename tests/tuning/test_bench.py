"""Candidates are checked, then timed, and what a process loses is told; the device follows a script."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mirage_cli.backends.spec import OperatorSpec, TensorSpec
from mirage_cli.checks import kernel_check
from mirage_cli.checks.kernel_check import CheckJob
from mirage_cli.errors import MirageError
from mirage_cli.lax.dtypes import F32
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.measurement import gpu_backends
from mirage_cli.processes.isolation import Lost
from mirage_cli.runtime import sessions
from mirage_cli.tuning import bench as tuning_bench
from mirage_cli.tuning.bench import BenchJob, IsolatedBench, Measured, Neighbour
from mirage_cli.tuning.cache import Measurement
from tests.codegen.programs import program
from tests.gpu_fake import FakeBackend

CODE = """
#include <stdint.h>
static int calls;
int64_t mirage_ab_workspace(const int64_t* extents) { return 0; }
int mirage_ab(void** in, void** out, void* workspace, const int64_t* extents, void* stream) {
    float *x = in[0], *y = out[0];
    int64_t n = extents[0] * 8 - SHORT;
    float factor = ++calls > AFTER ? 3.0f : 2.0f;
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;
    if (CHANGES) x[3] = 0.0f;
    return CODE;
}
"""
KINDS = {
    "right": {},
    "unwritten": {"SHORT": 1},
    "changes": {"CHANGES": 1},
    "fails": {"CODE": 9},
    "wrong": {"AFTER": 0},
    "later": {"AFTER": 60},
}
Libraries = dict[str, Path]


class Device(FakeBackend):
    """Every replay takes 500 us; the cache is small, so that there are few sets."""

    cache = 1 << 14

    def sample(self, graph: Any) -> float:
        super().sample(graph)
        return 500.0


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("candidates")
    (folder / "k.c").write_text(CODE)
    for name, given in KINDS.items():
        values = {"SHORT": 0, "CHANGES": 0, "CODE": 0, "AFTER": 1 << 30} | given
        defines = [f"-D{k}={v}" for k, v in values.items()]
        subprocess.run([compiler, "-shared", "-fPIC", *defines, "-o", f"{name}.so", "k.c"], cwd=folder, check=True)
    return {name: folder / f"{name}.so" for name in KINDS}


def job() -> BenchJob:
    """Twice the input, for any number of rows."""

    def build(g: Graph, t: Any) -> Sequence[int]:
        return [g.map("add", x := g.input("x", (symbol("n"), 8), t), x)]

    p = program(build, F32)
    x = helper.make_tensor_value_info(p.sources[0].name, TensorProto.FLOAT, ["n", 8])
    y = helper.make_tensor_value_info(p.outputs[0].name, TensorProto.FLOAT, ["n", 8])
    node = helper.make_node("Add", [x.name, x.name], [y.name])
    graph = helper.make_graph([node], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    tensors = tuple((TensorSpec(v.name, F32, (symbol("n"), 8)),) for v in (x, y))
    spec = OperatorSpec("ab", "Double_ab", *tensors, ("n",), True)
    checked = CheckJob(p, spec, Path(), model.SerializeToString(), (x.name,), {}, (), 1, {})
    return BenchJob(checked, {"n": 64}, provider="cpu")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    monkeypatch.setattr(gpu_backends, "opened", lambda _: Device())
    return Measured(job())


def test_a_right_candidate_has_a_time(measured: Measured, libraries: Libraries) -> None:
    assert measured.ready() == "fake 1"
    assert measured.answers(libraries["right"]) == ""
    (found,) = measured.time([libraries["right"]], 7)
    assert found.us is not None
    assert found.samples == 7
    assert 0 < found.low <= found.us <= found.high


def test_inputs_exceed_the_cache_and_differ(measured: Measured) -> None:
    assert measured.sets * 2 * 64 * 8 * 4 > 4 * measured.backend.cache
    (tensor,) = measured.inputs
    assert not np.array_equal(tensor.get(0), tensor.get(1))


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("wrong", "wrong (typical inputs): rmse"),
        ("unwritten", "wrong: it leaves "),
        ("changes", "wrong: it changes input 0"),
    ],
)
def test_wrong_answers_are_found(measured: Measured, libraries: Libraries, kind: str, problem: str) -> None:
    assert measured.answers(libraries[kind]).startswith(problem)


def test_the_ends_of_axes_stand_for_answers_that_are_dear(
    libraries: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_backends, "opened", lambda _: Device())
    monkeypatch.setattr(tuning_bench, "QUICK_WORK", 1e-9)
    measured = Measured(job())
    assert measured.reference.windows
    assert measured.answers(libraries["right"]) == ""
    assert measured.answers(libraries["wrong"]).startswith("wrong (typical inputs): rmse")


def test_the_cases_of_the_check_wait_until_one_is_checked(measured: Measured, libraries: Libraries) -> None:
    measured.time([libraries["right"]], 3)
    assert measured._cases is None
    assert measured.check(libraries["right"]) == ""
    assert measured._cases
    assert measured.check(libraries["wrong"]).startswith("wrong (random inputs): rmse")


def test_a_candidate_that_fails_says_how(measured: Measured, libraries: Libraries) -> None:
    with pytest.raises(MirageError, match="CUDA error 9"):
        measured.check(libraries["fails"])


def test_a_candidate_that_turns_wrong_while_it_is_timed_has_no_time(measured: Measured, libraries: Libraries) -> None:
    found = measured.time([libraries["later"], libraries["right"]], 5)
    assert found[0].us is None
    assert found[0].problem.startswith("wrong (typical inputs)")
    assert found[1].us is not None


class Counting(Device):
    """A call takes 100 us, behind another kind of call 130; each is known by the memory that it writes."""

    def sample(self, graph: Any) -> float:
        FakeBackend.sample(self, graph)
        kinds = [name for name in self.log if name]
        self.log.clear()
        return sum(100.0 + 30.0 * (before != own) for before, own in zip([*kinds[:1], *kinds], kinds, strict=False))


def test_in_a_step_calls_stand_behind_those_of_another_kernel(
    libraries: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Counting()
    monkeypatch.setattr(gpu_backends, "opened", lambda _: device)
    real = tuning_bench.Entry.call

    def noted(entry: tuning_bench.Entry, number: int, stream: int) -> None:
        real(entry, number, stream)
        device.spend(0.0, "own" if entry.outputs[0] in measured.outputs else "other")

    monkeypatch.setattr(tuning_bench.Entry, "call", noted)
    measured = Measured(replace(job(), beside=Neighbour(job().check.spec, {"n": 8})))
    # who asks for times has the device for itself: to wait for it there would never end
    monkeypatch.setattr(tuning_bench, "turn", lambda *_, **__: pytest.fail("it waits for its turn"))
    (alone,) = measured.time([libraries["right"]], 5)
    assert alone.us == pytest.approx(100.0)
    found, wrong = measured.time([libraries["right"], libraries["later"]], 5, libraries["wrong"])
    assert found.us == pytest.approx(160.0, rel=0.02)  # both wait for one another, but for the first call of a graph
    assert found.samples == 5
    assert wrong.problem.startswith("wrong (typical inputs)")


# --- in a process of its own ------------------------------------------------------------------------------------------
class Process:
    """Stands in for `Resident`: a library called `bad` ends it, also among others."""

    calls: list[tuple[Any, ...]]

    def __init__(self, *_: Any) -> None:
        self.calls = []

    def call(self, method: str, args: Sequence[Any], seconds: float) -> Any:
        self.calls.append((method, *args))
        names = [p.name for p in (args[0] if method == "time" else args[:1])]
        if "bad" in names:
            return Lost("its process ended with SIGSEGV")
        return {"check": "", "answers": "", "ready": "fake", "time": [Measurement(5.0, 5.0, 5.0, 3) for _ in names]}[
            method
        ]

    def close(self) -> None:
        self.calls.append(("close",))


class Told:
    """Stands in for `Measured`: answers with the size of its job and the process in which it is."""

    def __init__(self, job: BenchJob) -> None:
        self.job = job

    def ready(self) -> str:
        return "told"

    def check(self, library: Path) -> str:
        return f"{self.job.symbols['n']} {os.getpid()}"


def test_what_ends_the_process_costs_its_own_result_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_bench, "Resident", Process)
    bench = IsolatedBench(job())
    assert bench.start() == ""
    assert bench.check(Path("good")) == ""
    assert bench.check(Path("bad")) == "it could not be checked: its process ended with SIGSEGV"
    found = bench.time([Path("good"), Path("bad"), Path("other")], 3)
    assert [m.us for m in found] == [5.0, None, 5.0]
    assert found[1].problem == "it could not be timed: its process ended with SIGSEGV"


def test_what_cannot_be_timed_in_a_step_is_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()
    bench = IsolatedBench(job(), process)  # type: ignore[arg-type]
    bench.beside = lambda: Path("front")
    real = process.call
    process.call = lambda method, args, seconds: (  # type: ignore[method-assign]
        Lost("it trapped") if Path("front") in args else real(method, args, seconds)
    )
    assert [m.us for m in bench.time([Path("good")], 3, step=True)] == [5.0]
    assert process.calls == [("time", [Path("good")], 3, None)]
    process.call = real  # type: ignore[method-assign]
    bench.time([Path("good")], 3, step=True)
    assert process.calls[-1] == ("time", [Path("good")], 3, Path("front"))


def test_a_process_measures_one_job_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_bench, "Measured", Told)
    process = tuning_bench.new_process()
    try:
        for n in (64, 32):
            bench = IsolatedBench(replace(job(), symbols={"n": n}), process)
            bench.begin()
            assert bench.start() == ""
            sizes, owner = bench.check(Path("k")).split()
            assert sizes == str(n)
        first = IsolatedBench(job(), process)
        first.begin()
        assert first.check(Path("k")) == f"64 {owner}"  # the same process
    finally:
        process.close()


def test_a_process_without_a_gpu_says_so() -> None:
    bench = IsolatedBench(BenchJob(job().check, {"n": 64}, 99, "cpu"))
    try:
        assert "GPU" in bench.start()
    finally:
        bench.close()


class Sticky(Process):
    """A library called `traps` leaves the device of its process in an error until another process takes over."""

    failed = False
    gone = False  #: no process finds a device any more

    def call(self, method: str, args: Sequence[Any], seconds: float) -> Any:
        if self.failed or self.gone:
            return Lost("an illegal instruction was encountered" if self.failed else "there is no GPU")
        self.failed = method == "check" and args[0].name == "traps"
        return Lost("an illegal instruction was encountered") if self.failed else super().call(method, args, seconds)

    def close(self) -> None:
        self.failed = False


def test_a_device_that_a_kernel_has_spoiled_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_bench, "Resident", Sticky)
    bench = IsolatedBench(job())
    assert bench.check(Path("traps")) == "it could not be checked: an illegal instruction was encountered"
    assert "illegal" in bench.check(Path("good"))  # as long as nobody looks
    assert bench.start() == ""
    assert bench.check(Path("good")) == ""
    monkeypatch.setattr(Sticky, "gone", True)
    assert bench.start() == "there is no GPU"


def test_a_device_in_an_error_is_not_ready(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("unspecified launch failure")

    monkeypatch.setattr(Device, "synchronize", fail)
    with pytest.raises(MirageError, match="unspecified launch failure"):
        measured.ready()


def test_a_candidate_sees_the_inputs_that_a_kernel_sees_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_backends, "opened", lambda _: Device())
    given = (np.arange(24, dtype=np.float32).reshape(3, 8),)
    asked = replace(job().check, given=(given,))
    found = [c for c in Measured(replace(job(), check=asked)).cases if not isinstance(c, str)]
    wanted = [c for c in kernel_check.cases_of(asked) if not isinstance(c, str)]
    assert [c.name for c in found] == [c.name for c in wanted]
    assert all(
        np.array_equal(a, b, equal_nan=True)
        for c, d in zip(found, wanted, strict=True)
        for a, b in zip(c.arrays, d.arrays, strict=True)
    )
    assert np.array_equal(found[0].arrays[0], given[0])


def test_without_a_provider_for_the_gpu_the_original_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_backends, "opened", lambda _: Device())
    monkeypatch.setattr(sessions, "providers", lambda: ("cpu",))
    assert Measured(replace(job(), provider="cuda")).cases
