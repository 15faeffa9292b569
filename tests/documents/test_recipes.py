"""docs/recipes.md: every block is run as it stands, in a folder with a model and its output folder."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path

import onnx
import onnxruntime
import pytest

from samples import sessions
from tests.documents import pages
from tests.optimized import Optimized, sample

PAGE = pages.ROOT / "docs/recipes.md"
NAME = "rmsnorm_linear_fp32"
KNOWN = {"onnxruntime", "spoiled", "torch", "clock"}


def needs(section: str) -> set[str]:
    """What the blocks of a section need."""
    return {word for b in pages.of_section(PAGE, section) if b.mark == "run" for word in b.words}


def no_package(node: str) -> bool:
    """Whether Node does not find onnxruntime-node."""
    return subprocess.run([node, "-e", "require('onnxruntime-node')"], capture_output=True, check=False).returncode != 0


@pytest.fixture
def place(copied: Optimized, tmp_path: Path) -> Path:
    """A folder with `model.onnx`, `models/`, `out/` and `out-old/`."""
    place = tmp_path / "place"
    (place / "models").mkdir(parents=True)
    for name in ("model.onnx", "models/left.onnx", "models/right.onnx"):
        shutil.copy(sample(NAME), place / name)
    shutil.move(copied(NAME), place / "out")
    shutil.copytree(place / "out", place / "out-old")
    return place


def with_runtime(place: Path) -> None:
    """The folder of a release of ONNX Runtime, as far as C programs need it."""
    libraries = list((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not libraries:
        pytest.skip("onnxruntime's package has no shared library for C")
    (place / "onnxruntime/lib").mkdir(parents=True)
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (place / "onnxruntime/lib" / name).symlink_to(libraries[0])
    shutil.copytree(Path(__file__).parent / "include", place / "onnxruntime/include")


def spoil(path: Path) -> None:
    """Let the original nodes inside of a patched model answer with NaN, so that only kernels can be right."""
    model = onnx.load(path)
    sessions.spoil(model)
    onnx.save(model, path)


@pytest.mark.parametrize("section", pages.sections(PAGE))
def test_a_recipe(section: str, place: Path, tmp_path: Path, cache: Path) -> None:
    wanted = needs(section)
    if missing := pages.absent(wanted, KNOWN):
        pytest.skip(f"{missing} is not installed")
    if "torch" in wanted and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    if "node" in wanted and no_package("node"):
        pytest.skip("Node has no onnxruntime-node (npm install onnxruntime-node, NODE_PATH)")
    if "onnxruntime" in wanted:
        with_runtime(place)
    if "spoiled" in wanted:
        spoil(place / "out/model.onnx")
    found = [b for b in pages.of_section(PAGE, section) if "clock" not in b.words]
    pages.carry_out(found, place, pages.programs(tmp_path / "bin"), XDG_CACHE_HOME=pages.cache_home(tmp_path, cache))


def test_everything_is_marked() -> None:
    silent = [b for b in pages.blocks(PAGE) if not b.mark]
    assert [f"{b.section}: {b.text}" for b in silent] == []
    assert len(pages.sections(PAGE)) >= 7


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_a_regression_fails_the_job(tmp_path: Path) -> None:
    def times(name: str, fragment: float, model: float) -> Path:
        def speedup(x: float) -> dict[str, float]:
            return {"median": x, "q1": 0.9 * x, "q3": 1.1 * x}

        data = {
            "fragments": [{"name": "linear", "id": "7f", "speedup": speedup(fragment)}],
            "model": {"speedup": speedup(model)},
        }
        (tmp_path / name).write_text(json.dumps(data))
        return tmp_path / name

    (script,) = (b for b in pages.blocks(PAGE) if b.words == ("no-regression.sh",))
    (tmp_path / "check.sh").write_text(script.text)
    before = times("before.json", 2.0, 1.5)
    for fragment, model, lost in ((2.0, 1.5, ""), (1.9, 1.6, ""), (1.0, 1.5, "linear 7f"), (2.5, 1.0, "whole model")):
        now = times("now.json", fragment, model)
        command = ["sh", str(tmp_path / "check.sh"), str(before), str(now)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
        assert (done.returncode, done.stdout) == ((1, "") if lost else (0, "no regression\n"))
        assert done.stderr.partition(":")[0] == lost
