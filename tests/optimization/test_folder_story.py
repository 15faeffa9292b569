"""Folders of models: every model optimized, all else as it was, the configuration with the libraries; or nothing at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mirage_cli as mi
from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.errors import ModelError, UsageError
from mirage_cli.files.output import LIBRARY, MARK, MODEL
from mirage_cli.frontends.folders import CONFIG
from mirage_cli.optimization import environment, folder_story, story
from mirage_cli.options.options import Options
from mirage_cli.runtime import sessions
from tests.frontends.models import parsed

pytestmark = pytest.mark.usefixtures("one_isa")
OPTIONS: dict[str, Any] = {"target": "cpu", "force": True, "jobs": 1}
#: a model that is replaced, and one of which nothing is
NORM = "g (float[rows,32] x) => (float[rows,16] y) { n = LayerNormalization(x, gain) y = MatMul(n, w) }"
PLAIN = "g (float[other,4] x) => (float[other,4] y) { y = Neg(x) }"
VISION: dict[str, Any] = {"vision": {"filename": "vision.onnx"}}


def saved(path: Path, text: str = NORM) -> None:
    """A model; weights lie in a file beside it."""
    random = np.random.default_rng(0)
    weights = {"gain": random.random(32).astype(np.float32), "w": random.random((32, 16)).astype(np.float32)}
    path.parent.mkdir(parents=True, exist_ok=True)
    model = parsed(text, **(weights if "gain" in text else {}))
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)


def genai(place: Path, **parts: Any) -> Path:
    """A folder of onnxruntime-genai with a decoder in text.onnx and other `parts`."""
    saved(place / "text.onnx")
    usual = {"log_id": "x", "provider_options": []}
    config = {
        "model": {"decoder": {"session_options": usual, "filename": "text.onnx"}, **parts},
        "search": {"top_p": 1.0},
    }
    (place / CONFIG).write_text(json.dumps(config))
    (place / "tokenizer").mkdir()
    (place / "tokenizer" / "report.svg").write_bytes(b"words")
    return place


def configured(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / CONFIG).read_text())["model"])


def same_answers(patched: Path, original: Path) -> bool:
    """Whether a patched model with its library answers as the original does."""
    x = {"x": np.random.default_rng(1).standard_normal((3, 32)).astype(np.float32)}
    both = sessions.session(str(patched), library=patched.parent / LIBRARY), sessions.session(str(original))
    ours, theirs = (sessions.run(s, x)["y"] for s in both)
    return bool(np.allclose(ours, theirs, atol=1e-5))


def test_a_model_alone_lies_in_the_folder_itself(tmp_path: Path, cache: Path) -> None:
    source, out = genai(tmp_path / "in"), tmp_path / "out"
    (source / ".git").mkdir()
    (source / ".git" / "objects").write_bytes(b"hidden")
    for _ in range(2):  # the second run replaces the first one's folder, and is answered by it
        report = mi.optimize_folder(source, out, cache=str(cache), **OPTIONS)
        assert [len(r.replaced) for r in report.models.values()] == [1]
        assert report.to_json() == json.loads((out / MARK).read_text())
    assert configured(out)["decoder"] == {
        "session_options": {"log_id": "x", "provider_options": [], "custom_ops_library": LIBRARY},
        "filename": MODEL,
    }
    assert same_answers(out / MODEL, source / "text.onnx")
    assert (out / "tokenizer" / "report.svg").read_bytes() == b"words"
    assert not (out / "text.onnx").exists() and not (out / "text.onnx.data").exists() and not (out / ".git").exists()
    assert mi.verify(out).passed
    (out / "tokenizer" / "report.svg").write_bytes(b"others")
    (out / LIBRARY).rename(out / "elsewhere.so")
    assert mi.verify(out).culprits[:2] == [LIBRARY, "tokenizer/report.svg"]


@pytest.mark.parametrize(
    ("named", "asked", "kinds", "besides"),
    [
        ([], {}, {"cpu"}, ()),
        ([{"cuda": {}}], {}, {"cpu", "cuda"}, ("cpu",)),
        ([{"cuda": {}}], {"measure": True}, {"cpu", "cuda"}, ()),
        ([{"dml": {}}], {}, {"cpu", "cuda"}, ()),
        ([], {"target": ("cuda",)}, {"cpu", "cuda"}, ("cpu",)),
        ([{"cuda": {}}], {"target": ("cpu", "cuda")}, {"cpu", "cuda"}, ()),
    ],
)
def test_kernels_are_for_what_the_folder_runs_on(
    named: list[Any],
    asked: dict[str, Any],
    kinds: set[str],
    besides: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing is asked for; a compiler for CUDA is there."""
    source, found = genai(tmp_path / "in"), list[set[str]]()
    monkeypatch.setattr(environment, "compiles_for_gpus", lambda _: True)
    config = json.loads((source / CONFIG).read_text())
    config["model"]["decoder"]["session_options"]["provider_options"] = named
    (source / CONFIG).write_text(json.dumps(config))

    def made(_: str, __: Path, ___: Any, options: Options, ____: Any) -> Any:
        found.append(set(environment.targets(options, Toolchain(Path("c++"), Path("nvcc")))))
        assert environment.made_besides(options) == besides

    monkeypatch.setattr(story, "made", made)
    folder_story.optimize(source, tmp_path / "out", Options(dry_run=True, **asked))
    assert found == [kinds]


def test_several_models_have_folders_of_their_own(tmp_path: Path, cache: Path) -> None:
    source, out = genai(tmp_path / "in", **VISION, embedding={"filename": "plain.onnx"}), tmp_path / "out"
    saved(source / "vision.onnx")
    saved(source / "plain.onnx", PLAIN)
    for _ in range(2):
        report = mi.optimize_folder(source, out, cache=str(cache), dim=("rows=1:2:8", "other=3"), **OPTIONS)
    assert {name: len(r.replaced) for name, r in report.models.items()} == {
        "text.onnx": 1,
        "vision.onnx": 1,
        "plain.onnx": 0,
    }
    found = configured(out)
    assert found["vision"] == {
        "filename": f"vision/{MODEL}",
        "session_options": {"log_id": "x", "provider_options": [], "custom_ops_library": f"vision/{LIBRARY}"},
    }
    assert found["embedding"] == {"filename": f"plain/{MODEL}"}
    assert same_answers(out / "vision" / MODEL, source / "vision.onnx")
    assert (out / "plain" / MODEL).read_bytes() == (source / "plain.onnx").read_bytes()
    verified = mi.verify(out)
    assert verified.passed and {f.where.partition(":")[0] for f in verified.of("outputs")} == {
        "text",
        "vision",
        "plain",
    }
    (out / "vision" / MODEL).unlink()
    assert f"vision: {MODEL}" in mi.verify(out).culprits
    (out / "vision" / "mine.txt").write_text("not mirage's")
    with pytest.raises(UsageError, match=r"vision/mine\.txt"):
        mi.optimize_folder(source, out, cache=str(cache), **OPTIONS)
    with pytest.raises(ModelError, match="the outputs of 3 models"):
        mi.bench(out)


def test_a_folder_of_transformers_js(tmp_path: Path, cache: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    saved(source / "onnx" / "model_q4.onnx")
    (source / "config.json").write_text("{}")
    mi.optimize_folder(source, out, cache=str(cache), **OPTIONS)
    assert same_answers(out / "onnx" / "model_q4" / MODEL, source / "onnx" / "model_q4.onnx")
    assert (out / "config.json").read_text() == "{}" and not (out / "onnx" / "model_q4.onnx").exists()
    assert mi.verify(out).passed


def test_what_brings_a_library_of_its_own_stays(tmp_path: Path, cache: Path) -> None:
    own = {"vision": {"filename": "vision.onnx", "session_options": {"custom_ops_library": "own.so"}}}
    source, out = genai(tmp_path / "in", **own), tmp_path / "out"
    saved(source / "vision.onnx")
    (source / "own.so").write_bytes(b"code")
    report = mi.optimize_folder(source, out, cache=str(cache), **OPTIONS)
    assert report.notes == ("vision.onnx stays as it is: its session loads own.so",)
    assert configured(out)["vision"] == own["vision"]
    for name in ("vision.onnx", "vision.onnx.data", "own.so"):
        assert (out / name).read_bytes() == (source / name).read_bytes()


def test_nothing_is_written_where_anything_fails(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = genai(tmp_path / "in", **VISION), tmp_path / "out"
    saved(source / "vision.onnx")
    out.mkdir()

    def run(target: Path = out, **more: Any) -> None:
        mi.optimize_folder(source, target, cache=str(cache), **OPTIONS, **more)

    def interrupted(model: str, *given: Any, **named: Any) -> Any:
        if "vision" in model:
            raise KeyboardInterrupt
        return made(model, *given, **named)

    made = story.made
    with monkeypatch.context() as patch:
        patch.setattr(story, "made", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run()
    with pytest.raises(UsageError, match="no such symbol; they have rows"):
        run(dim=("columns=3",))
    with pytest.raises(UsageError, match="lies in"):
        run(source / "out")
    (source / "text").write_text("in the way")
    with pytest.raises(UsageError, match="the output has a file of this name"):
        run()
    (source / "vision.onnx").unlink()
    with pytest.raises(ModelError, match=r"names vision\.onnx, which is no file of its folder"):
        run()
    (source / CONFIG).write_text("[]")
    with pytest.raises(ModelError, match="expected an object `model`"):
        run()
    (source / CONFIG).unlink()
    with pytest.raises(ModelError, match="found neither"):
        run()
    assert list(out.iterdir()) == [] and {p.name for p in tmp_path.iterdir()} == {"in", "out"}


def test_a_dry_run_reports(tmp_path: Path, cache: Path) -> None:
    source = genai(tmp_path / "in", **VISION)
    shutil.copy(source / "text.onnx", source / "vision.onnx")
    report = mi.optimize_folder(source, cache=str(cache), dry_run=True, **OPTIONS)
    assert list(report.to_json()["models"]) == ["text.onnx", "vision.onnx"]
    assert {p.name for p in tmp_path.iterdir()} == {"in"}


def test_every_model_of_a_folder_is_inspected(tmp_path: Path) -> None:
    folder = genai(tmp_path / "alone")
    alone = mi.inspect(folder).to_json()
    assert alone == mi.inspect(folder / "text.onnx").to_json()
    folder = genai(tmp_path / "several", **VISION)
    saved(folder / "vision.onnx", PLAIN)
    found = mi.inspect(folder, dim=["rows=2"])
    document = found.to_json()
    assert {k: document[k] for k in ("kind", "folder", "notes")} == {
        "kind": "models",
        "folder": str(folder),
        "notes": [],
    }
    assert [*document["models"]] == ["text.onnx", "vision.onnx"]
    assert document["models"]["text.onnx"] == mi.inspect(folder / "text.onnx", dim=["rows=2"]).to_json()
    assert "text.onnx" in found.text() and "vision.onnx" in found.text() and "vision.onnx" in repr(found)
    saved(tmp_path / "js" / "onnx" / "model.onnx")
    (fragment,) = mi.inspect(tmp_path / "js").to_json()["fragments"]
    assert fragment["name"] == "norm_linear"
    foreign = genai(
        tmp_path / "foreign", vision={**VISION["vision"], "session_options": {"custom_ops_library": "own.so"}}
    )
    saved(foreign / "vision.onnx", PLAIN)
    assert mi.inspect(foreign).to_json()["notes"][-1].startswith("vision.onnx stays as it is")
