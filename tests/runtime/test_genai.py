"""Folders of onnxruntime-genai's own builder, optimized and run: in onnxruntime beside float64, and in onnxruntime-genai. What
needs the extra `genai` is skipped where it is not installed."""

from __future__ import annotations

import fcntl
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mirage_cli as mi
from mirage_cli import frontends
from mirage_cli.backends import cpu
from mirage_cli.benchmark import generation
from mirage_cli.benchmark.options import BenchOptions
from mirage_cli.checks import whole_model
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.runtime import sessions
from tests.runtime.genai_builds import CELLS, WINDOWED, WORDS

pytestmark = pytest.mark.usefixtures("one_isa", "_compiled_quickly")
#: the greatest difference of logits beside their size where the original computes with activations of 8 bits, and elsewhere
ROUNDED, EXACT = 0.05, 1e-4
PLACES = "position_ids"  #: an input of some models
Arrays = dict[str, NDArray[Any]]


@pytest.fixture
def _compiled_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers optimize less, in a third of the time: what else they make is seen in tests/optimization/test_quantized.py."""
    monkeypatch.setattr(cpu, "FLAGS", tuple("-Og" if flag == "-O3" else flag for flag in cpu.FLAGS))


@pytest.fixture(scope="session")
def built(shared_folder: Path) -> Path:
    """The folders of the builder, which the first worker that asks for them makes."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("onnxruntime_genai", reason="onnxruntime-genai is not installed")
    place = shared_folder / "genai"
    with place.with_name("genai.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            command = [sys.executable, "-m", "tests.runtime.genai_builds", str(place)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
    return place


@pytest.mark.parametrize("name", [name for name in CELLS if name not in WINDOWED])
def test_a_patched_folder_says_the_same(name: str, built: Path, cache: Path, tmp_path: Path) -> None:
    source, out = built / name, tmp_path / "out"
    (report,) = mi.optimize_folder(source, out, target="cpu", force=True, jobs=1, cache=str(cache)).models.values()
    joined = "use_qdq=true" in CELLS[name][1]  # onnxruntime makes products of these, which stay where they are faster
    kinds = [f.name for f in report.replaced]
    attention = (
        "qknorm_attention" if name == "hunyuan_v1_dense" else "attention"
    )  # its queries have norms behind positions
    assert attention in kinds and (joined or len(kinds) >= 4)
    assert not joined or all(f.predicted_us < f.original_us for f in report.replaced if f.name != attention)
    for ours, theirs, exact in runs(out, source):
        error, original = (float(np.sqrt(np.mean((x - exact) ** 2))) for x in (ours, theirs))
        assert error <= 2 * original + 1e-6 * float(np.abs(exact).max())
    for own, right in zip(said(out), said(source), strict=True):
        assert np.abs(own - right).max() <= (EXACT if CELLS[name][0] == "fp32" else ROUNDED) * np.abs(right).max()


@pytest.mark.parametrize("name", ["phi3", "ernie4_5"])
def test_a_folder_is_verified(name: str, built: Path, cache: Path, tmp_path: Path) -> None:
    """Int4 decoders with attention replaced: at drawn inputs, and in a step of sequences of unequal lengths."""
    out = tmp_path / "out"
    mi.optimize_folder(built / name, out, target="cpu", force=True, jobs=1, cache=str(cache))
    result = mi.verify(out)
    assert result.passed, result
    imported = frontends.load(str(built / name / MODEL))
    lengths = np.array([6, 4])
    feeds = prompt(imported, lengths)
    theirs = sessions.run(sessions.session(str(built / name / MODEL)), feeds)
    np.savez(tmp_path / "step.npz", **following(feeds, theirs, lengths + 1))
    result = mi.verify(out, inputs=str(tmp_path / "step.npz"))
    assert result.passed, result


@pytest.mark.parametrize("name", WINDOWED)
def test_caches_of_the_window_s_size(name: str, built: Path, cache: Path, tmp_path: Path) -> None:
    source, out = built / name, tmp_path / "out"
    (report,) = mi.optimize_folder(source, out, target="cpu", force=True, jobs=1, cache=str(cache)).models.values()
    assert (
        sum(f.occurrences for f in report.replaced if f.name == "attention") == 2
    )  # one with such a cache, one without
    result = mi.verify(out)
    assert result.passed and not any("not compared" in note for note in result.notes), result
    for own, right in zip(beyond(out), beyond(source), strict=True):
        assert np.abs(own - right).max() <= (EXACT if CELLS[name][0] == "fp32" else ROUNDED) * np.abs(right).max()


def beyond(folder: Path) -> Iterator[NDArray[Any]]:
    """Logits in onnxruntime-genai of prompts and steps beyond a window, after going back, and of two sequences at once."""
    genai = pytest.importorskip("onnxruntime_genai")
    model = genai.Model(str(folder))
    words = np.random.default_rng(1).integers(3, WORDS, (2, 40)).astype(np.int32)
    generators = []
    for count in (1, 2):
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(max_length=48, batch_size=count)
        generators.append(genai.Generator(model, parameters))
    one, two = generators
    for back, row, places in ((None, 0, (0, 5, 6, 9, 10, 12, 20, 21)), (19, 1, (19, 20)), (0, 1, (0, 3, 4, 17, 18))):
        if back is not None:
            one.rewind_to(back)
        for first, last in itertools.pairwise(places):
            one.append_tokens(words[row : row + 1, first:last])
            yield np.array(one.get_logits())
    two.append_tokens(words[:, :12])
    yield np.array(two.get_logits())
    for _ in range(3):
        two.generate_next_token()
        yield np.array(two.get_logits())


def runs(out: Path, source: Path) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Logits of the patched model, the original and a float64 run of it: of a prompt of sequences of two lengths, and of two
    steps behind it. Each goes on with the original's caches."""
    original, patched = source / MODEL, out / MODEL
    library = out / LIBRARY if (out / LIBRARY).exists() else None
    both = sessions.session(str(patched), library=library), sessions.session(str(original))
    imported = frontends.load(str(original))
    feeds, lengths = prompt(imported, np.array([6, 4])), np.array([6, 4])
    for _ in range(3):
        ours, theirs = (sessions.run(s, feeds) for s in both)
        exact = whole_model.float64_run(imported, feeds)
        few = exact["logits"].shape[1] == 1  # of a step, or of the last token alone, which padding may be
        whole = [k for k, n in enumerate(lengths) if not few or feeds["input_ids"].shape[1] in (1, n)]
        rows = [(k, slice(None, 1 if few else lengths[k])) for k in whole]
        yield tuple(np.concatenate([x["logits"][row] for row in rows]) for x in (ours, theirs, exact))  # type: ignore[misc]
        lengths = lengths + 1
        feeds = following(feeds, theirs, lengths)


def prompt(imported: frontends.Imported, lengths: NDArray[Any]) -> Arrays:
    """The inputs of prompts, padded on the right, with caches that are empty."""
    caches = {}
    for v in imported.model.graph.inputs:
        if (v.name or "").startswith("past") and v.shape is not None:
            caches[v.name or ""] = np.zeros((len(lengths), int(v.shape[1]), 0, int(v.shape[3])), np.float32)  # type: ignore[arg-type]
    ids = np.random.default_rng(0).integers(3, WORDS, (len(lengths), max(lengths)))
    mask = np.arange(max(lengths)) < lengths[:, None]
    listed = any(v.name == PLACES for v in imported.model.graph.inputs)
    places = {PLACES: np.arange(ids.shape[1]) + np.zeros_like(ids)} if listed else {}
    return {"input_ids": ids, "attention_mask": mask.astype(np.int64), **places, **caches}


def following(feeds: Arrays, results: Arrays, lengths: NDArray[Any]) -> Arrays:
    """The inputs of the step behind a run, whose sequences have these lengths then."""
    caches = {name: results[name.replace("past_key_values", "present")] for name in feeds if name.startswith("past")}
    ids = np.random.default_rng(int(lengths[0])).integers(3, WORDS, (len(lengths), 1))
    mask = np.arange(max(lengths)) < lengths[:, None]
    places = {PLACES: lengths[:, None] - 1} if PLACES in feeds else {}
    return {"input_ids": ids, "attention_mask": mask.astype(np.int64), **places, **caches}


def said(folder: Path) -> Iterator[NDArray[Any]]:
    """Logits in onnxruntime-genai, whose caches lie in place: of a prompt, of tokens behind it, after going back too; then of
    two sequences at once."""
    genai = pytest.importorskip("onnxruntime_genai")
    model = genai.Model(str(folder))
    words = np.random.default_rng(1).integers(3, WORDS, (2, 12)).astype(np.int32)

    def generator(count: int) -> Any:
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(max_length=32, batch_size=count)
        return genai.Generator(model, parameters)

    one = generator(1)
    for first, last in ((0, 5), (5, 6), (6, 9)):
        one.append_tokens(words[:1, first:last])
        yield np.array(one.get_logits())
    one.rewind_to(4)
    for first, last in ((7, 8), (8, 10)):
        one.append_tokens(words[1:, first:last])
        yield np.array(one.get_logits())
    two = generator(2)
    two.append_tokens(words)
    yield np.array(two.get_logits())
    two.generate_next_token()
    two.generate_next_token()


def test_tokens_a_second(built: Path, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    mi.optimize_folder(built / "olmo", out, target="cpu", force=True, jobs=1, cache=str(cache))
    report = generation.generate(out, 8, BenchOptions(cpu=True, runs=1))
    assert [s.name for s in report.contestants] == ["original", "mirage"] and not report.wrong
    assert report.same == 8 and all(len(s.tokens) == 8 and s.steps is not None for s in report.contestants)
    config = json.loads((out / "genai_config.json").read_text())
    config["model"]["decoder"]["session_options"]["custom_ops_library"] = "missing.so"
    (out / "genai_config.json").write_text(json.dumps(config))
    broken = generation.generate(out, 8, BenchOptions(cpu=True, runs=1))
    assert broken.wrong and broken.contestants[1].problem.startswith("failed: ")
