"""The examples of every help text, run in their order on a small model, as a shell would run them."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from mirage_cli.backends import toolchain
from mirage_cli.errors import ToolMissing
from mirage_cli.main import COMMANDS, cli
from tests.commands.test_help import command
from tests.optimized import for_one_isa, share_objects

#: examples with these words need a GPU, minutes, a browser, onnxruntime-genai, or a farm (tests/farm)
ELSEWHERE = ("--gpu", "--suite", "--source cuda", "--open", "--generate", "mirage farm")
EXAMPLES = {name: command(name).examples for name in COMMANDS}  # type: ignore[attr-defined]
WORKING = [(n, e) for n, several in EXAMPLES.items() for e in several if not any(w in e for w in ELSEWHERE)]


def model() -> onnx.ModelProto:
    """A linear layer of rows of a batch of sequences of any size."""
    weight = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"], name="up"), helper.make_node("Relu", ["h"], ["y"], name="act")],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "seq", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "seq", 8])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Path]:
    """A folder with what examples read: a model, output folders, tunings."""
    place = tmp_path_factory.mktemp("examples")
    onnx.save(model(), place / "model.onnx")
    with pytest.MonkeyPatch.context() as patch, for_one_isa():

        def absent(kept: object = None) -> toolchain.Tool:
            raise ToolMissing("no nvcc: examples are to work without")

        patch.setattr(toolchain, "find_nvcc", absent)
        patch.setenv("XDG_CACHE_HOME", str(cache))
        patch.delenv("NVCC", raising=False)
        patch.chdir(place)
        assert cli.run(["optimize", "model.onnx", "-o", "out", "--force", "-q"]) == 0
        assert cli.run(["optimize", "model.onnx", "-o", "out-new", "--force", "--candidates", "1", "-q"]) == 0
        shutil.copytree("out", "out-old")
        yield place


def shell(line: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of `[cat FILE |] mirage ... [> FILE]`."""
    given, _, rest = line.rpartition(" | ")
    words, target = shlex.split(rest), ""
    if ">" in words:
        words, target = words[: words.index(">")], words[-1]
    assert words[0] == "mirage"
    data = Path(given.removeprefix("cat ")).read_bytes() if given else b""
    done = CliRunner().invoke(cli, words[1:], input=data)
    if target:
        Path(target).write_text(done.stdout)
    return done.exit_code, done.stdout, done.stderr


def test_most_examples_are_run() -> None:
    assert len(WORKING) > 15
    assert {name for name, _ in WORKING} == set(COMMANDS) - {"farm"}


@pytest.mark.parametrize(("name", "line"), WORKING, ids=[e for _, e in WORKING])
def test_an_example(
    name: str, line: str, prepared: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_objects(cache)
    monkeypatch.chdir(shutil.copytree(prepared, tmp_path / "here"))
    (fragment,) = json.loads(Path("out/report.json").read_text())["fragments"]
    Path("tunings.json").write_text(shell("mirage cache export")[1])
    line = line.replace(" a666", f" {fragment['id'][:4]}").replace("/tmp/mirage", str(tmp_path / "mirage"))
    code, output, told = shell(line)
    assert code == 0, told
    assert output
    if "--json" in line:
        json.loads(output)
