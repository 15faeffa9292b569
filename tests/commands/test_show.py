"""`mirage show` as a command: data on standard output, options that exclude each other, errors as documents."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from tests.commands.conftest import Run, error_of
from tests.optimized import Optimized


def test_list_and_fragment(run: Run, optimized: Optimized) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    listed = run("show", folder)
    assert (listed.exit_code, listed.stderr) == (0, "")
    assert "norm_linear" in listed.stdout
    document = json.loads(run("show", folder, "--json").stdout)
    (f,) = document["fragments"]
    shown = run("show", folder, f["id"][:5])
    assert "kernel graph for cpu" in shown.stdout and "\x1b" not in shown.stdout
    assert json.loads(run("show", folder, f["id"], "--json").stdout)["verification"]["passed"]
    assert run("show", folder, "-q").stdout == ""


def test_sources_and_drawings(run: Run, optimized: Optimized) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    identifier = json.loads(run("show", folder, "--json").stdout)["fragments"][0]["id"]
    printed = run("show", folder, "norm_linear", "--source", "cpp").stdout
    assert printed.strip() == (folder / "src" / f"{identifier}.cpp").read_text().strip()
    assert ET.fromstring(run("show", folder, "norm_linear", "--svg").stdout).tag.endswith("svg")
    document = json.loads(run("show", folder, "norm_linear", "--source", "cpp", "--json").stdout)
    assert (document["id"], document["source"]) == (identifier, "cpp")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["norm_linear", "--svg", "--source", "cpp"], "exclude each other"),
        (["--svg"], "Missing argument 'ID'"),
        (["norm_linear", "--open"], "--open shows the report"),
        (["nothing"], "no fragment of"),
        (["norm_linear", "--source", "cuda"], "has no src/"),
    ],
)
def test_wrong_usage(run: Run, optimized: Optimized, arguments: list[str], message: str) -> None:
    result = run("show", optimized("rmsnorm_linear_fp32"), *arguments, "--json")
    assert result.exit_code == 2
    assert message in error_of(result)["message"]
