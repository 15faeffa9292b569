"""Several models: folders, equal fragments once, and one that fails beside the others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mirage_cli.commands import schemas
from mirage_cli.errors import ConfigError, ModelError, UsageError
from mirage_cli.files import codec
from mirage_cli.optimization import several
from mirage_cli.options import orders
from mirage_cli.options.options import Options
from tests.optimized import sample

OPTIONS = Options(target=("cpu",), force=True, seed=7, jobs=1)


def test_folders_are_named_like_the_models() -> None:
    found = [str(o.out) for o in orders.of(["a/x.onnx", "a/y.pt"], Path("out"), OPTIONS)]
    assert found == ["out/x", "out/y"]
    found = [str(o.out) for o in orders.of(["a/b/model.onnx", "a/c/model.onnx"], Path("out"), OPTIONS)]
    assert found == ["out/b/model", "out/c/model"]
    with pytest.raises(UsageError, match=r"a/x\.(onnx|pt): its folder .*/out/x is that of a/x\."):
        orders.of(["a/x.onnx", "a/x.pt"], Path("out"), OPTIONS)


LIST = """\
output: out
options: {target: cpu, force: true}
models:
  - a.onnx
  - {model: sub/b.onnx, seed: 3}
  - {model: sub/c.onnx, output: elsewhere, target: [cuda]}
"""


def test_a_list_gives_each_model_its_folder_and_options(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(LIST)
    first, second, third = orders.read(path, {"jobs": 5})
    assert [os.path.relpath(o.out, tmp_path) for o in (first, second, third)] == ["out/a", "out/sub/b", "elsewhere"]
    assert (first.model, first.options.target, first.options.jobs) == (str(tmp_path / "a.onnx"), ("cpu",), 5)
    assert (second.options.seed, second.options.force, third.options.target) == (3, True, ("cuda",))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected `models`"),
        ("models: []", "expected `models`"),
        ("models: [a.onnx]", r"models\[0\]: there is no `output`"),
        ("output: o\nmodels: [3]", r"models\[0\]: expected the path of a model"),
        ("output: o\nmodel: [a]\nmodels: [a.onnx]", "unknown entry 'model'"),
        ("output: o\nmodels: [{model: a.onnx, sed: 1}]", r"models\[0\]: unknown option 'sed'"),
        ("output: o\noptions: {seed: x}\nmodels: [a.onnx]", "options: seed: expected an integer"),
        ("output: o\nmodels: [a.onnx, {model: b.onnx, output: o/a/b}]", "its folder .* or in it"),
    ],
)
def test_lists_that_are_wrong_say_where(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(text)
    with pytest.raises((ConfigError, UsageError), match=problem):
        orders.read(path, {})


def test_equal_fragments_are_searched_once_and_a_failure_stops_nobody(tmp_path: Path, one_isa: None) -> None:
    paths = [tmp_path / f"{name}.onnx" for name in ("a", "broken", "b")]
    for path in paths:
        shutil.copy(sample("rmsnorm_linear_fp32"), path)
    paths[1].write_bytes(b"no model")
    asked = orders.of([str(p) for p in paths], tmp_path / "out", Options(**fields(OPTIONS) | {"cache": ""}))
    a, broken, b = several.optimize(asked)
    assert isinstance(broken.error, ModelError) and not broken.order.out.exists()
    assert a.report is not None and b.report is not None
    assert "cached" not in a.report.fragments[0].search
    assert b.report.fragments[0].search["cached"]
    assert (b.order.out / "model.onnx").read_bytes() == (a.order.out / "model.onnx").read_bytes()
    codec.checked(several.document([a, broken, b]), schemas.Several)
    rows = several.document([a, broken, b])["models"]
    assert [set(row) for row in rows] == [{"model", "output", k} for k in ("report", "error", "report")]
    assert several.text([a, broken]).splitlines()[0].endswith("1 of 1 fragments replaced, in " + str(a.order.out))


def fields(options: Options) -> dict[str, object]:
    return {name: getattr(options, name) for name in Options.__slots__}
