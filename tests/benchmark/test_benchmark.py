"""`mirage bench` on output folders: what is measured, and that wrong answers are never timed. Speed is not judged here."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mirage_cli.benchmark import benchmark, rows
from mirage_cli.benchmark.benchmark import BenchOptions, bench_folder
from mirage_cli.benchmark.report import BenchReport, FragmentRow
from mirage_cli.errors import ModelError, ToolMissing, UsageError
from mirage_cli.files import output
from mirage_cli.machine import devices
from mirage_cli.measurement.contestant import Place
from mirage_cli.measurement.timing import Distribution, Effort
from mirage_cli.optimization import environment, fragment_models, fragment_times, pipeline
from mirage_cli.optimization.fragment_times import Comparison, Entry
from mirage_cli.options.options import Options
from mirage_cli.report import reader
from mirage_cli.report.stages import Silent
from mirage_cli.runtime import sessions
from tests.optimized import Optimized, anew, sample

SAMPLE = "rmsnorm_linear_fp32"
QUICK = BenchOptions(cpu=True, runs=2, threads=1)
GPU = devices.Device(0, "GPU-1", "NVIDIA H200", "580.65.06", "9.0", "143771 MiB")


def edit_report(folder: Path, **model: Any) -> None:
    path = folder / "report.json"
    data = json.loads(path.read_text())
    data["model"] |= model
    path.write_text(json.dumps(data))


# ---- a whole run -----------------------------------------------------------------------------------------------------


def test_everything_is_compared_and_timed(optimized: Optimized) -> None:
    folder = optimized(SAMPLE)
    report = json.loads((folder / "report.json").read_text())["fragments"][0]
    found = bench_folder(folder, QUICK)
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert not found.wrong
    assert data["device"] == devices.processor()
    (fragment,) = data["fragments"]
    assert (fragment["id"], fragment["name"]) == (report["id"], report["name"])
    one = report["predictions"]["cpu"]["one_thread"]["predicted_us"]
    assert fragment["predicted_us"] == pytest.approx(one, abs=1e-3) and one != report["predicted_us"]
    assert fragment["floor_us"] > report["floor_us"]
    assert sorted(fragment["inputs"]) == ["f32[48, 40]", "f32[5, 48]"]
    for part in (fragment, data["model"]):
        original, ours = part["contestants"]
        assert (original["name"], ours["name"]) == ("original", "mirage")
        assert ours["relative_error"] < 1e-5
        for row in (original, ours):
            assert row["us"]["samples"] == 2
            assert 0 < row["us"]["q1"] <= row["us"]["median"] <= row["us"]["q3"]
        assert part["speedup"]["median"] > 0
    (row,) = fragment["measured"]
    assert row == {
        "device": data["device"],
        "original_us": fragment["contestants"][0]["us"]["median"],
        "mirage_us": fragment["contestants"][1]["us"]["median"],
        "peers": {},
    }
    assert Path(data["model"]["original"]) == sample(SAMPLE)


def test_times_are_put_into_the_report(copied: Optimized) -> None:
    folder = copied(SAMPLE)
    before, files = reader.read(folder), sorted(p.name for p in folder.parent.iterdir())
    notes = [folder / "README", folder / "mugraphs" / "notes.json"]  # the user's own, which stay
    for path in notes:
        path.write_text("mine")
    for _ in range(2):  # what a device measured before is replaced
        found = bench_folder(folder, replace(QUICK, record=True))
    assert found.notes == (f"recorded in {folder}/report.json and {folder}/report.html",)
    after = reader.read(folder)
    (row,) = after["fragments"][0].pop("measured")
    (measured,) = found.to_json()["fragments"][0]["measured"]
    assert row == measured | {"target": "cpu", "inputs": ["f32[5, 48]", "f32[48, 40]"]}
    assert before["fragments"][0].pop("measured") == []
    assert after == before, "nothing else is changed"
    assert sorted(p.name for p in folder.parent.iterdir()) == files, "nothing is left beside the folder"
    assert [path.read_text() for path in notes] == ["mine", "mine"]
    with pytest.raises(UsageError, match="files that mirage did not write"):
        output.check_target(folder)
    page = (folder / "report.html").read_text()
    assert f">measured on {devices.processor()}<" in page, "without sizes: they are those of the report"
    assert "mirage, measured on" in page, "on the roofline too"
    assert f"mirage optimize {sample(SAMPLE)} -o {folder}" in page


def test_the_table_names_fragments_and_times(optimized: Optimized) -> None:
    found = bench_folder(optimized(SAMPLE), QUICK)
    text = found.text()
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("us for one call"))
    assert head.split()[4:] == ["places", "original", "mirage", "speedup", "predicted", "floor"]
    row = next(line for line in lines if line.startswith(f"norm_linear {found.fragments[0].id}"))
    assert f"{found.fragments[0].comparison.speedup.median:.2f}" in row  # type: ignore[union-attr]
    assert any(line.startswith("whole model") for line in lines)
    assert "torch: not compared" in text


def test_steps_are_told(optimized: Optimized) -> None:
    told: list[str] = []

    class Progress(Silent):
        def stage(self, name: str, total: int) -> None:
            told.append(f"{name} {total}")

        def step(self, text: str) -> None:
            told.append(text)

    bench_folder(optimized(SAMPLE), QUICK, Progress())
    assert told == ["measure 2", "norm_linear", "whole model"]


# ---- the original side -----------------------------------------------------------------------------------------------


def test_a_kernel_that_gives_other_answers_is_not_timed(copied: Optimized) -> None:
    """The function beside the operator is changed, so the library's kernel is the one that differs; the whole model is
    compared with the original file, which still agrees."""
    folder = copied(SAMPLE)
    model = onnx.load(folder / "model.onnx")
    (division,) = [n for n in model.functions[0].node if n.op_type == "Div"]
    division.op_type = "Mul"
    onnx.save(model, folder / "model.onnx")
    found = bench_folder(folder, QUICK)
    entry = found.fragments[0].comparison.entry("mirage")
    assert found.wrong
    assert entry.us is None
    assert entry.problem.startswith("wrong: output 'out0_0'")
    assert "mirage: wrong" in found.text()
    assert found.model.entry("mirage").us is not None


@pytest.mark.parametrize(
    ("model", "problem"), [({"path": "/nowhere/model.onnx"}, "is not there"), ({"sha256": "0" * 64}, "has changed")]
)
def test_an_original_that_is_gone(copied: Optimized, model: dict[str, str], problem: str) -> None:
    folder = copied(SAMPLE)
    edit_report(folder, **model)
    found = bench_folder(folder, QUICK)
    assert found.original.startswith(f"{folder / 'model.onnx'} without its library")
    assert problem in found.original
    assert not found.wrong
    assert found.model.speedup is not None


def test_external_data_of_the_original_counts(copied: Optimized) -> None:
    folder = copied(SAMPLE)
    edit_report(folder, external_data={"weights.bin": "0" * 64})
    _, note = rows.original_model(folder, reader.read(folder), Place())
    assert "is not there" in note


def test_nothing_was_replaced(copied: Optimized) -> None:
    """A folder without fragments holds a copy of the model and no library."""
    folder = copied(SAMPLE)
    data = json.loads((folder / "report.json").read_text())
    data["fragments"][0]["status"], data["fragments"][0]["mugraph"]["file"] = "kept", None
    (folder / "report.json").write_text(json.dumps(data))
    (folder / "libmirage.so").unlink()
    shutil.copy(sample(SAMPLE), folder / "model.onnx")
    found = bench_folder(folder, QUICK)
    assert found.fragments == ()
    assert found.model.entry("mirage").error == 0.0


# ---- folders that cannot be read -------------------------------------------------------------------------------------


def test_not_an_output_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"found no report\.json"):
        bench_folder(tmp_path, QUICK)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model": {}, "fragments": []}', '{"model": 3, "fragments": 4}'])
def test_a_damaged_report(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ModelError, match=r"report\.json"):
        bench_folder(tmp_path, QUICK)


def test_damaged_parts(copied: Optimized) -> None:
    folder = copied(SAMPLE)
    (mugraph,) = (folder / "mugraphs").glob("*.json")
    mugraph.write_text("{}")
    with pytest.raises(ModelError, match=f"{mugraph.name}: .*missing required field `id`"):
        bench_folder(folder, QUICK)
    (folder / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"model\.onnx"):
        bench_folder(folder, QUICK)


# ---- options ---------------------------------------------------------------------------------------------------------


def machine(monkeypatch: pytest.MonkeyPatch, providers: tuple[str, ...], gpus: list[devices.Device]) -> None:
    monkeypatch.setattr(sessions, "providers", lambda: providers)
    monkeypatch.setattr(devices, "devices", lambda: gpus)


@pytest.mark.parametrize(
    ("providers", "gpus", "has_cuda", "wanted"),
    [
        (("cpu", "cuda"), [GPU], True, "cuda"),
        (("cpu",), [GPU], True, "cpu"),
        (("cpu", "cuda"), [], True, "cpu"),
        (("cpu", "cuda"), [GPU], False, "cpu"),
    ],
)
def test_the_default_place(
    monkeypatch: pytest.MonkeyPatch, providers: tuple[str, ...], gpus: list[Any], has_cuda: bool, wanted: str
) -> None:
    machine(monkeypatch, providers, gpus)
    assert benchmark.choose_place(BenchOptions(threads=3), {"cuda"} if has_cuda else ()) == Place(wanted, 0, 3)
    assert benchmark.choose_place(BenchOptions(cpu=True), {"cuda"} if has_cuda else ()).provider == "cpu"


def test_a_gpu_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, ("cpu",), [GPU])
    with pytest.raises(ToolMissing) as caught:
        benchmark.choose_place(BenchOptions(gpu=0), {"cuda"})
    assert caught.value.hint == sessions.CUDA_PROVIDER_COMMAND
    machine(monkeypatch, ("cpu", "cuda"), [])
    with pytest.raises(ToolMissing, match="no NVIDIA GPU"):
        benchmark.choose_place(BenchOptions(gpu=0), {"cuda"})
    machine(monkeypatch, ("cpu", "cuda"), [GPU])
    with pytest.raises(UsageError, match="no GPU 1"):
        benchmark.choose_place(BenchOptions(gpu=1), {"cuda"})
    with pytest.raises(UsageError, match="no CUDA kernels"):
        benchmark.choose_place(BenchOptions(gpu=0), ())
    with pytest.raises(UsageError, match="exclude"):
        benchmark.choose_place(BenchOptions(gpu=0, cpu=True), {"cuda"})
    assert benchmark.choose_place(BenchOptions(gpu=0), {"cuda"}) == Place("cuda", 0)


def test_some_fragments_without_the_whole_model(optimized: Optimized) -> None:
    folder = optimized("llama_fp32")
    (attention,) = (f for f in json.loads((folder / output.MARK).read_text())["fragments"] if f["name"] == "attention")
    for wanted in ("*attention*", attention["id"][:8]):
        found = bench_folder(folder, replace(QUICK, only=(wanted,)))
        assert [r.id for r in found.fragments] == [attention["id"]]
        assert found.fragments[0].comparison.entry("mirage").us is not None
        assert found.model.entries == () and "whole model" not in found.text()
    with pytest.raises(UsageError, match="--only 'atention': no replaced fragment is called so") as told:
        bench_folder(folder, replace(QUICK, only=("atention",)))
    assert "did you mean attention?" in told.value.hint


def test_a_model_alone() -> None:
    found = bench_folder(sample(SAMPLE), QUICK)
    assert (found.fragments, [e.name for e in found.model.entries]) == ((), ["original"])
    assert found.model.entry("original").us is not None
    head, row = (line.split() for line in found.text().splitlines()[4:6])
    assert head == ["us", "for", "one", "call", "original"] and row[:2] == ["whole", "model"] and len(row) == 4
    with pytest.raises(UsageError, match="belong to an output folder"):
        bench_folder(sample(SAMPLE), replace(QUICK, only=("a",)))


def test_a_sweep_of_sizes(copied: Optimized) -> None:
    folder = copied("llama_dynamic_fp32")
    before = reader.read(folder)
    found = benchmark.sweep(folder, ("batch=1", "sequence=3,5"), QUICK)
    assert found.sizes == (("batch=1", "sequence=3"), ("batch=1", "sequence=5"))
    assert [r.settings["inputs"]["input_ids"] for r in found.reports] == [[1, 3], [1, 5]]
    text = found.text()
    assert [line.split("  ")[0] for line in text.splitlines()[3:5]] == ["batch=1 sequence=3", "batch=1 sequence=5"]
    assert text.splitlines()[2].split()[-1] == "predicted" and text.splitlines()[3].split()[-1] != "-"
    assert [row["dim"] for row in found.to_json()["sweep"]] == [list(s) for s in found.sizes]
    assert found.notes == (f"plotted in {folder}/report.html",) and text.endswith(f"{found.notes[0]}\n")
    (kept,) = reader.read(folder)["sweeps"]
    assert reader.read(folder) == before | {"sweeps": [kept]} and kept["what"] == "whole model"
    assert [p["sizes"] for p in kept["points"]] == [{"batch": 1, "sequence": 3}, {"batch": 1, "sequence": 5}]
    assert all(p["original_us"] and p["mirage_us"] and p["predicted_us"] for p in kept["points"])
    page = (folder / "report.html").read_text()
    assert f"whole model, batch 1 on {kept['device']}" in page and page.count("mirage, predicted: ") == 2
    again = benchmark.sweep(folder, ("sequence=2,4",), replace(QUICK, only=("attention",)))
    whole, attention = reader.read(folder)["sweeps"]
    assert whole == kept and attention["what"].startswith("attention ") and len(attention["points"]) == 2
    assert [line.split()[0] for line in again.text().splitlines()[3:5]] == ["attention"] * 2
    with pytest.raises(UsageError, match="--dim sequence=x: expected"):
        benchmark.sweep(folder, ("sequence=3,x",), QUICK)


def test_a_sweep_of_a_folder_that_others_write_is_told_without_a_plot(copied: Optimized) -> None:
    folder = copied("llama_dynamic_fp32")
    before = (folder / output.MARK).read_bytes()
    with output.claimed(folder, replacing=False):
        found = benchmark.sweep(folder, ("sequence=3",), replace(QUICK, only=("attention",)))
    assert found.notes == (f"there is no plot in {folder}/report.html: another run of mirage writes {folder}",)
    assert (folder / output.MARK).read_bytes() == before and len(found.reports) == 1


def test_a_model_alone_at_several_sizes() -> None:
    found = benchmark.sweep(sample("llama_dynamic_fp32"), ("batch=1", "sequence=3,5"), QUICK)
    assert found.notes == () and found.reports[0].model.entry("original").us is not None


def test_what_is_predicted_of_a_whole_model() -> None:
    """The original takes 100 us, 40 of them in two places of a fragment, which is to take 5."""

    def timed(original: float) -> Comparison:
        return Comparison((Entry("original", Distribution((original,))), Entry("mirage", Distribution((1.0,)))))

    def predicted(whole: Comparison, part: Comparison, said: float | None) -> float | None:
        row = FragmentRow("a", "norm", 2, (), part, said)
        return BenchReport("a CPU", {}, "m.onnx", (row,), whole).predicted_us

    assert predicted(timed(100), timed(20), 5.0) == 70.0
    assert predicted(timed(100), timed(80), 5.0) == 10.0, "alone, with its weights from memory, it may be slower"
    assert predicted(timed(100), timed(20), None) is None
    assert predicted(timed(100), Comparison(()), 5.0) is None
    assert predicted(Comparison(()), timed(20), 5.0) is None


def test_a_loaded_machine_is_told(optimized: Optimized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark.load, "busy", lambda: 0.5)
    found = benchmark.bench_folder(optimized("rmsnorm_linear_fp32"), QUICK)
    assert "this machine is loaded: others took 50% of its processors" in found.text()


def dynamic() -> onnx.ModelProto:
    return onnx.load(sample("llama_dynamic_fp32"), load_external_data=False)


def shapes(options: BenchOptions) -> list[dict[str, tuple[int, ...]]]:
    return [{n: a.shape for n, a in s.items()} for s in rows.input_sets(dynamic(), options, 1 << 20)]


@pytest.mark.parametrize(
    "options",
    [
        BenchOptions(dim=("batch=3", "sequence=2:7:9")),
        BenchOptions(shape=("input_ids=3x7",)),
        BenchOptions(shape=("input_ids=3x7", "attention_mask=3x7")),
        BenchOptions(dim=("batch=3",), shape=("input_ids=3x7",)),
    ],
)
def test_sizes_of_inputs(options: BenchOptions) -> None:
    found = shapes(options)
    assert len(found) == rows.MAX_SETS
    assert all(s == {"input_ids": (3, 7), "attention_mask": (3, 7)} for s in found)


def test_sets_have_different_values_and_do_not_exceed_the_cache_by_far() -> None:
    model = onnx.load(sample(SAMPLE))
    sets = rows.input_sets(model, BenchOptions(), 1 << 20)
    assert not np.array_equal(sets[0]["x"], sets[1]["x"])
    assert len(rows.input_sets(model, BenchOptions(), 1)) == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (BenchOptions(dim=("length=3",)), "no such symbol"),
        (BenchOptions(shape=("ids=3x7",)), "no such input"),
        (BenchOptions(shape=("input_ids=3x7x2",)), "model's input is"),
        (BenchOptions(shape=("input_ids=3x7", "attention_mask=3x8")), "model's input is"),
        (BenchOptions(dim=("batch=2",), shape=("input_ids=3x7",)), "model's input is 2x7"),
    ],
)
def test_sizes_that_do_not_fit(options: BenchOptions, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        shapes(options)


# ---- for optimize --gpu ----------------------------------------------------------------------------------------------


def planned(cache: Path) -> tuple[str, fragment_models.FragmentModel]:
    """The sample's fragment as it is in a run of `optimize` that has not patched the model yet."""
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(cache))
    run = pipeline.Run(str(sample(SAMPLE)), options, environment.toolchain(options))
    run.read()
    run.plan()
    (work,) = run.chosen
    return work.id, fragment_models.from_work(run.imported, work, {})


def test_fragments_of_a_run_are_measured_before_patching(optimized: Optimized, cache: Path) -> None:
    """The library of an earlier run of the same model holds the same operator."""
    identifier, fragment = planned(cache)
    told: list[str] = []
    found = fragment_times.measure_fragments(
        {identifier: fragment}, optimized(SAMPLE) / "libmirage.so", Place(threads=1), Effort(runs=2), step=told.append
    )
    comparison = found[identifier]
    assert told == [fragment.spec.op_type]
    assert [e.problem for e in comparison.entries] == ["", ""]
    assert comparison.entry("mirage").error is not None
    assert isinstance(comparison.faster, bool)
    assert comparison.measured("cpu")["mirage_us"] > 0


def test_a_fragment_that_cannot_be_measured_is_not_faster(tmp_path: Path, cache: Path) -> None:
    identifier, fragment = planned(cache)
    found = fragment_times.measure_fragments(
        {identifier: fragment}, tmp_path / "missing.so", Place(threads=1), Effort(runs=1)
    )
    assert not found[identifier].faster
    assert found[identifier].entry("mirage").problem.startswith("failed: there is no library")
    assert found[identifier].measured("cpu")["mirage_us"] is None


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.nvcc
@pytest.mark.skipif(
    "cuda" not in sessions.providers() or not devices.devices() or shutil.which("nvcc") is None,
    reason="needs a GPU, onnxruntime with CUDA, and nvcc",
)
@pytest.mark.parametrize("name", [SAMPLE, "gqa_fp16"])
def test_on_a_gpu(name: str, tmp_path: Path, cache: Path) -> None:
    options = Options(force=True, arch=("native",), jobs=2, cache=str(cache))
    anew(str(sample(name)), tmp_path / "out", options)
    found = bench_folder(tmp_path / "out", BenchOptions(gpu=0, runs=3))
    assert not found.wrong
    assert found.device == devices.device(0).name
    for comparison in (*(r.comparison for r in found.fragments), found.model):
        assert [e.problem for e in comparison.entries] == ["", ""]
    assert found.fragments[0].comparison.graph
