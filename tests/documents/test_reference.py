"""docs/reference is what the code says, and real reports are what the schema in it says."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mirage_cli as mi
from mirage_cli.commands import schemas
from mirage_cli.inspection import comparison
from mirage_cli.main import cli
from mirage_cli.options.settings import SETTINGS
from mirage_cli.report import report as reports
from samples import pictures, reference
from tests.optimized import Optimized, sample


def validator(schema: dict[str, Any] | None = None) -> Any:
    """What checks a document against a schema, by default that of report.json."""
    schema = schema or reports.schema()
    kind = pytest.importorskip("jsonschema", reason="jsonschema is not installed").Draft202012Validator
    kind.check_schema(schema)
    return kind(schema)


@pytest.mark.parametrize("name", ["commands.md", "json.md", "python.md", "report.md", "report.schema.json"])
def test_pages_are_up_to_date(name: str) -> None:
    if os.environ.get("MIRAGE_GOLDEN"):
        reference.main()
    written = (reference.FOLDER / name).read_text()
    assert written == reference.pages()[name], f"docs/reference/{name} is stale: make reference"


@pytest.mark.parametrize("name", list(pictures.PICTURES))
def test_pictures_are_up_to_date(name: str) -> None:
    if os.environ.get("MIRAGE_GOLDEN"):
        pictures.draw()
    drawn = pictures.pictures()[f"{name}.svg"]
    assert (pictures.FOLDER / f"{name}.svg").read_text() == drawn, f"docs/pictures/{name}.svg is stale: make reference"


def test_pages_name_everything() -> None:
    pages = reference.pages()
    assert [s.key for s in SETTINGS if f"--{s.key}" not in pages["commands.md"]] == []
    assert [
        n for n in mi.__all__ if f"mi.{n}" not in pages["python.md"] and f"### {n}\n" not in pages["python.md"]
    ] == []


def test_a_real_report_keeps_the_schema(optimized: Optimized) -> None:
    report = json.loads((optimized("rmsnorm_linear_fp32") / "report.json").read_text())
    assert [e.message for e in validator().iter_errors(report)] == []
    assert validator().is_valid(json.loads((optimized("llama_fp32") / "report.json").read_text()))


def test_a_dry_run_keeps_the_schema() -> None:
    check = validator()
    report = mi.optimize(sample("mlp_fp32"), dry_run=True, target="cpu", jobs=1, no_cache=True)
    assert [e.message for e in check.iter_errors(json.loads(report.text()))] == []


def test_the_schema_refuses_other_documents(optimized: Optimized) -> None:
    report = json.loads((optimized("rmsnorm_linear_fp32") / "report.json").read_text())
    for change in (
        lambda r: r.pop("coverage"),
        lambda r: r.update(schema_version=99),
        lambda r: r["fragments"][0].update(status="better"),
        lambda r: r["fragments"][0]["verification"]["float"].update(error="small"),
        lambda r: r["fragments"][0].update(unheard_of=1),
        lambda r: r["coverage"].update(flops=1.5),
    ):
        other = copy.deepcopy(report)
        change(other)
        assert not validator().is_valid(other)


def documents(folder: Path) -> Iterator[tuple[str, Any]]:
    """Real documents of the other commands, each with its command."""
    yield "mirage verify", mi.verify(folder).to_json()
    yield "mirage bench", mi.bench(folder, cpu=True, runs=3).to_json()
    yield "mirage inspect", mi.inspect(folder).to_json()
    yield "mirage inspect", mi.inspect(sample("rmsnorm_linear_fp32")).to_json()
    yield "mirage compare", comparison.compare(folder, folder).to_json()
    yield "errors", mi.UsageError("a message", "a hint").to_json()


def test_real_documents_keep_their_schemas(optimized: Optimized) -> None:
    for command, document in documents(optimized("rmsnorm_linear_fp32")):
        check = validator(schemas.SCHEMAS[command])
        assert [
            f"{command}: {e.json_path}: {e.message}" for e in check.iter_errors(json.loads(json.dumps(document)))
        ] == []
        assert not check.is_valid({**document, "unheard_of": 1})


def test_doctors_document_keeps_its_schema() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--json"])
    assert validator(schemas.SCHEMAS["mirage doctor"]).is_valid(json.loads(result.stdout))
