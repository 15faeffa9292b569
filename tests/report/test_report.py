"""report.json has every key of the contract for every fragment, and is valid JSON whatever is in it."""

import json
import math
from typing import Any

import pytest

from mirage_cli.report.report import FragmentReport, Report, finite
from tests.exporters import reports
from tests.optimized import Optimized

#: the contract: key -> type, or a nested schema, a list for "a list of", a tuple for alternatives
NUMBER = (int, float)
FLOAT = {"target": (str, None), "error": (*NUMBER, None), "original_error": (*NUMBER, None)}
VERIFICATION = {
    "mode": (str, None),
    "primes": [int],
    "degree": (int, None),
    "applications": (int, None),
    "rounds": int,
    "error_bound": (*NUMBER, None),
    "seconds": NUMBER,
    "float": FLOAT,
}
FRAGMENT = {
    "id": str,
    "name": str,
    "occurrences": int,
    "nodes": [[str]],
    "program": {"inputs": [str], "outputs": [str], "ops": int, "axes": dict},
    "search": {"mappings": int, "values": int, "muGraphs": int, "seconds": NUMBER},
    "mugraph": {"file": (str, None), "kernels": int, "grid": [str], "loop": (str, None), "text": [str]},
    "verification": VERIFICATION,
    "schedule": dict,
    "predicted_us": NUMBER,
    "floor_us": NUMBER,
    "measured": [{"device": str, "original_us": NUMBER, "mirage_us": NUMBER, "peers": dict}],
}
REPORT = {
    "mirage": str,
    "schema_version": int,
    "model": {"path": str, "sha256": str, "external_data": dict, "format": str, "opset": int, "nodes": int},
    "options": dict,
    "seconds": dict.fromkeys(("read", "search", "verify", "tune", "render", "compile", "total"), NUMBER),
    "fragments": [FRAGMENT],
    "unchanged": [{"nodes": [str], "reason": str}],
    "coverage": {"flops": NUMBER, "weight_bytes": NUMBER, "nodes": NUMBER},
}


def conform(data: Any, schema: Any, path: str = "report") -> None:
    """Fail with the path of the first place where `data` is not as the contract says."""
    if isinstance(schema, dict):
        assert isinstance(data, dict), path
        assert schema.keys() <= data.keys(), f"{path}: {schema.keys() - data.keys()} missing"
        for k, inner in schema.items():
            conform(data[k], inner, f"{path}.{k}")
    elif isinstance(schema, list):
        assert isinstance(data, list), path
        for k, item in enumerate(data):
            conform(item, schema[0], f"{path}[{k}]")
    elif isinstance(schema, tuple):
        assert (data is None and None in schema) or isinstance(data, tuple(t for t in schema if t)), f"{path}: {data!r}"
    else:
        assert isinstance(data, schema) and not (schema is int and isinstance(data, bool)), f"{path}: {data!r}"


def strict(text: str) -> Any:
    """The document, refusing what JSON does not have."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_every_status_conforms() -> None:
    r = reports.report(reports.replaced(), reports.kept(), reports.failed())
    conform(strict(r.text()), REPORT)
    assert [f["status"] for f in r.to_json()["fragments"]] == ["replaced", "kept", "failed"]
    assert len(r.replaced) == 1


def test_the_schema_checker_notices() -> None:
    good = strict(reports.report(reports.replaced()).text())
    for path in ("verification", "search", "mugraph", "schedule", "floor_us"):
        bad = json.loads(json.dumps(good))
        del bad["fragments"][0][path]
        with pytest.raises(AssertionError, match=path):
            conform(bad, REPORT)


def test_a_mugraph_file_is_named_only_where_it_is_written() -> None:
    files = [f["mugraph"]["file"] for f in reports.report(reports.replaced(), reports.kept()).to_json()["fragments"]]
    assert files == ["mugraphs/a6660ab85df12c2a.json", None]
    dry = reports.report(reports.replaced())
    dry.options["dry_run"] = True
    assert dry.to_json()["fragments"][0]["mugraph"]["file"] is None


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_lacks_are_null(value: float) -> None:
    f = reports.replaced()
    f.verification = {**f.verification, "float": {**f.verification["float"], "error": value, "max_error": value}}
    data = strict(reports.report(f).text())
    assert data["fragments"][0]["verification"]["float"]["error"] is None
    conform(data, REPORT)


def test_finite_keeps_the_rest() -> None:
    assert finite({"a": [1, 2.5, (math.nan, "nan")], "b": True}) == {"a": [1, 2.5, [None, "nan"]], "b": True}


def test_names_that_are_not_unicode() -> None:
    text = reports.report(path="caf\udce9.onnx").text()
    assert text.encode("utf-8")
    assert strict(text)["model"]["path"] == "caf\udce9.onnx"


def test_rounding_and_reasons() -> None:
    r = Report(
        {},
        {},
        {"total": 1.23456},
        [FragmentReport("i", "n", "failed", 1, [], {}, reason="why")],
        coverage={"nodes": 1 / 3},
    )
    data = r.to_json()
    assert data["seconds"] == {"total": 1.235}
    assert data["coverage"] == {"nodes": 0.3333}
    assert data["fragments"][0]["reason"] == "why"
    assert "reason" not in reports.replaced().to_json()


def test_an_output_folder_conforms(optimized: Optimized) -> None:
    folder = optimized("rmsnorm_linear_fp32")
    data = strict((folder / "report.json").read_text(encoding="utf-8"))
    conform(data, REPORT)
    (f,) = data["fragments"]
    assert f["status"] == "replaced"
    assert (folder / f["mugraph"]["file"]).exists()
    assert (folder / f["mugraph"]["file"]).with_suffix(".svg").exists()
    assert 0 < f["verification"]["error_bound"] < 2**-40
    assert 0 < f["verification"]["float"]["error"] < 1e-4
