"""report.json has every key of the contract for every fragment, and is valid JSON whatever is in it."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mirage_cli.files import codec
from mirage_cli.report.report import Report, finite
from tests.exporters import reports
from tests.optimized import Optimized

#: the keys of the contract
CONTRACT = """mirage schema_version options unchanged
coverage.flops coverage.weight_bytes coverage.nodes
model.path model.sha256 model.external_data model.format model.opset model.nodes
seconds.read seconds.search seconds.verify seconds.tune seconds.render seconds.compile seconds.total"""
#: those of every fragment
FRAGMENT = """id name occurrences nodes schedule predicted_us floor_us measured
program.inputs program.outputs program.ops program.axes search.mappings search.values search.muGraphs search.seconds
mugraph.file mugraph.kernels mugraph.grid mugraph.loop mugraph.text
verification.mode verification.primes verification.degree verification.applications verification.rounds
verification.error_bound verification.seconds
verification.float.target verification.float.error verification.float.original_error"""


def keys(data: Any, path: str = "") -> Iterator[str]:
    """The paths of all entries of a document."""
    for k, value in data.items() if isinstance(data, dict) else [("[]", v) for v in data]:
        inner = f"{path}{k}" if k == "[]" or not path else f"{path}.{k}"
        yield inner
        if isinstance(value, dict | list):
            yield from keys(value, inner)


def conform(data: Any) -> None:
    """Fail where a report lacks keys of the contract, or is not as its form says."""
    codec.checked(data, Report)
    assert set(CONTRACT.split()) <= set(keys(data))
    for f in data["fragments"]:
        assert set(FRAGMENT.split()) <= set(keys(f)), f["id"]


def strict(text: str) -> Any:
    """The document, refusing what JSON does not have."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_every_status_conforms() -> None:
    r = reports.report(reports.replaced(), reports.kept(), reports.failed())
    conform(strict(r.text()))
    assert [f["status"] for f in r.to_json()["fragments"]] == ["replaced", "kept", "failed"]
    assert len(r.replaced) == 1


def test_a_mugraph_file_is_named_only_where_it_is_written() -> None:
    files = [f["mugraph"]["file"] for f in reports.report(reports.replaced(), reports.kept()).to_json()["fragments"]]
    assert files == ["mugraphs/a6660ab85df12c2a.json", None]
    dry = reports.report(reports.replaced())
    dry.options["dry_run"] = True
    assert dry.to_json()["fragments"][0]["mugraph"]["file"] is None


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_lacks_are_null(value: float) -> None:
    f = reports.replaced()
    proof = {**f.verification, "float": {**f.verification["float"], "error": value, "max_error": value}}
    f = replace(f, verification=proof)
    data = strict(reports.report(f).text())
    assert data["fragments"][0]["verification"]["float"]["error"] is None
    conform(data)


def test_finite_keeps_the_rest() -> None:
    assert finite({"a": [1, 2.5, (math.nan, "nan")], "b": True}) == {"a": [1, 2.5, [None, "nan"]], "b": True}


def test_names_that_are_not_unicode() -> None:
    text = reports.report(path="caf\udce9.onnx").text()
    assert text.encode("utf-8")
    assert strict(text)["model"]["path"] == "caf\udce9.onnx"


def test_rounding_and_reasons() -> None:
    r = reports.report(reports.failed("why"), seconds={"total": 1.23456}, coverage={"nodes": 1 / 3})
    data = r.to_json()
    assert data["seconds"] == {"total": 1.235}
    assert data["coverage"] == {"nodes": 0.3333}
    assert data["fragments"][0]["reason"] == "why"
    assert "reason" not in reports.replaced().to_json()


def test_an_output_folder_conforms(optimized: Optimized) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    data = strict((folder / "report.json").read_text(encoding="utf-8"))
    conform(data)
    (f,) = data["fragments"]
    assert f["status"] == "replaced"
    assert (folder / f["mugraph"]["file"]).exists()
    assert (folder / f["mugraph"]["file"]).with_suffix(".svg").exists()
    assert 0 < f["verification"]["error_bound"] < 2**-40
    assert 0 < f["verification"]["float"]["error"] < 1e-4
