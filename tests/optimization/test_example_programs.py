"""The programs in an output folder: they run as they stand, whatever the model's inputs are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from mirage_cli.backends import toolchain
from mirage_cli.frontends.onnx import protobuf
from mirage_cli.runtime import example
from tests.frontends.models import parsed
from tests.optimized import SAMPLES, Optimized

NAMES = ["rmsnorm_linear_fp32", "llama_fp32", "llama_dynamic_fp32"]


@pytest.mark.parametrize("name", NAMES)
def test_the_model_runs(optimized: Optimized, name: str) -> None:
    done = subprocess.run([sys.executable, optimized(name) / "run.py"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "times as fast" in done.stdout
    differences = [float(d) for d in re.findall("largest difference (.*)", done.stdout)]
    assert differences and max(differences) < 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_the_kernels_are_called_from_cpp(optimized: Optimized, name: str, tmp_path: Path) -> None:
    folder, tool = optimized(name), toolchain.find_cxx()
    (line,) = re.findall(r"//     g\+\+ (.*) run.cpp -o run (.*) && ./run", (folder / "run.cpp").read_text())
    words = [*line[0].replace("-I.", f"-I{folder}").split(), "-Wall", "-Wextra", "-Werror", str(folder / "run.cpp")]
    words += [
        "-o",
        str(tmp_path / "run"),
        *line[1].replace("-L.", f"-L{folder}").replace("'$ORIGIN'", str(folder)).split(),
    ]
    subprocess.run([*tool.command, *words], check=True)
    done = subprocess.run([tmp_path / "run"], capture_output=True, text=True, check=True)
    kernels = list((folder / "mugraphs").glob("*.json"))
    assert len(re.findall(r"^\w+: done$", done.stdout, flags=re.MULTILINE)) == len(kernels) > 0


@pytest.mark.parametrize("path", sorted((SAMPLES / "models").glob("*.onnx")), ids=lambda p: p.stem)
def test_inputs_of_the_samples_are_as_drawn_ones(path: Path) -> None:
    model = protobuf.parse(path.read_bytes(), str(path))
    scope = {"np": __import__("numpy"), "random": __import__("numpy").random.default_rng(0)}
    drawn = {name: eval(text, scope) for name, text in (example.expressions(model, {}) or {}).items()}
    wanted = example.example_inputs(model, {}, 0)
    assert {n: (a.shape, a.dtype) for n, a in drawn.items()} == {n: (a.shape, a.dtype) for n, a in wanted.items()}


def test_types_that_numpy_has_not_have_no_program() -> None:
    model: onnx.ModelProto = parsed("g (bfloat16[4] x) => (bfloat16[4] y) { y = Identity(x) }")
    assert example.expressions(model, {}) is None
