"""A model all of whose names mean harm goes the whole way: optimized, run, read back, and told of by every command."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import helper

from mirage_cli.commands import common
from mirage_cli.errors import ModelError
from mirage_cli.files.output import LIBRARY, MODEL, MUGRAPHS, PAGE
from mirage_cli.main import cli
from mirage_cli.options.options import Options
from mirage_cli.report import mugraph_file, reader
from mirage_cli.runtime import sessions
from mirage_cli.verification import bisection
from tests.exporters.test_html import read as read_page
from tests.optimized import anew, sample
from tests.security import models as m

pytestmark = pytest.mark.usefixtures("one_isa")

NAMES = (
    *('"', "'", "\n", "\r\n#include <harm>", "*/", "//", "\\", "\\u000a", "??/", "\0", 'R"(', "class", "int main(){"),
    *("{{ 7*7 }}", "{% raw %}", "%s%n", "${PATH}", "$(touch harm)", "`touch harm`", "; touch harm", "../../harm", "-o"),
    *("<script>alert(1)</script>", "</style><img src=x onerror=alert(1)>", "&lt;", "]]>", "javascript:alert(1)"),
    *("\x1b]0;owned\x07\x1b[2J", "\x9b31m", "\u202e\u2066", "\u2028", "\ufeff", "[bold red]", "e\u0301", "a" * 100_000),
)


def hostile() -> onnx.ModelProto:
    """A sample with such names for everything that has one, and beside it a copy of an input, made by a function with such
    names too, for every one that is left."""
    model = onnx.load(sample("rmsnorm_linear_fp32"))
    graph = model.graph
    numbers = itertools.count()
    renamed: dict[str, str] = {}

    def named(name: str = "") -> str:
        if not name or name not in renamed:
            number = next(numbers)
            renamed[name or f"new {number}"] = found = f"{NAMES[number % len(NAMES)]}{number}"
            return found
        return renamed[name]

    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = named(value.name)
    for node in graph.node:
        node.input[:] = [named(n) if n else "" for n in node.input]
        node.output[:] = [named(n) if n else "" for n in node.output]
        node.name, node.doc_string = named(), named()
    function = onnx.helper.make_function(
        named(), named(), ["a"], ["b"], [m.node("Identity", ["a"], ["b"], name=named())], m.IMPORTS[:1]
    )
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid(function.domain, 1))
    while next(numbers) < len(NAMES) * 2:
        given, made = m.info(named(), [named(), 2]), m.info(named(), [None, 2])
        graph.input.append(given)
        graph.output.append(made)
        graph.node.append(m.node(function.name, [given.name], [made.name], domain=function.domain, name=named()))
    graph.name = graph.doc_string = model.producer_name = named()
    model.metadata_props.add(key=named(), value=named())
    return model


def ran(model: Path, library: Path | None = None) -> list[np.ndarray]:
    session = sessions.session(model, library)
    rng = np.random.default_rng(0)
    feeds = {
        i.name: rng.random([d if isinstance(d, int) else 3 for d in i.shape], np.float32) for i in session.get_inputs()
    }
    return list(sessions.run(session, feeds).values())


def test_names_do_no_harm(cache: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "model.onnx", tmp_path / "out"
    onnx.save(hostile(), path)
    options = Options(target=("cpu",), force=True, jobs=1, cache=str(cache))
    report = anew(str(path), out, options)
    assert [f["status"] for f in report.to_json()["fragments"]] == ["replaced"]
    for found, wanted in zip(ran(out / MODEL, out / LIBRARY), ran(path), strict=True):
        assert np.allclose(found, wanted, rtol=1e-5)
    assert reader.read(out)["fragments"]
    for file in (out / MUGRAPHS).glob("*.json"):
        mugraph_file.read(file)
    page = (out / PAGE).read_text(encoding="utf-8")
    assert read_page(page).text
    assert plain(page.replace("\n", ""))

    def run(*args: object) -> Result:
        return CliRunner().invoke(cli, [str(a) for a in args])

    told = ""
    for command in (
        ("inspect", path),
        ("inspect", out),
        ("show", out),
        ("compare", out, out),
        ("verify", out),
        ("bench", out, "--cpu", "--runs", "1", "--seconds", "0.001"),
    ):
        result = run(*command)
        assert result.exit_code == 0, (command, result.output[-2000:])
        assert plain(result.output.replace("\n", "")), command
        told += result.output
    assert r"\x1b]0;owned\x07" in told and r"\u202e" in told and "<script>" in told, "names are shown"
    assert not list(tmp_path.rglob("harm"))


def test_names_of_arrays_that_are_saved(tmp_path: Path) -> None:
    """Names of tensors are names of files in an archive, and arguments of numpy's function."""
    names = (*NAMES, "file", "allow_pickle", "x/y", "a" * 70_000)
    np.savez(tmp_path / "saved.npz", allow_pickle=False, **{bisection.entry(n): np.zeros(1) for n in names})
    with np.load(tmp_path / "saved.npz") as found:
        assert len(found.files) == len(names) and "x|y" in found.files
        assert all(f"{n}.npy" in found.zip.namelist() for n in found.files)


def test_messages_have_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    common.show_error(ModelError("a" * 5_000_000).to_json(), as_json=False)
    assert len(capsys.readouterr().err) < 2 * common.LONGEST


def plain(text: str) -> bool:
    """Whether a text holds nothing that moves a cursor, changes colours or runs backwards."""
    return all(c.isprintable() for c in text)
