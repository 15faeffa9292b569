"""The one reader of report.json: what it admits does no harm to whatever reads on, what it refuses is told in one wording."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mirage_cli.errors import MirageError, ModelError
from mirage_cli.files import codec, rawfile
from mirage_cli.inspection import comparison, fragment_details, summary
from mirage_cli.options.options import Options
from mirage_cli.report import reader, report
from tests.exporters import reports

Report = dict[str, Any]
CPU_PROOF = ("fragments", 0, "verification", "targets", "cpu")
GONE = object()  #: what an entry is replaced with to take it away
#: what takes the place of an entry, of the right type or not
VALUES = [
    None,
    True,
    -1,
    0.5,
    10**400,
    float("inf"),
    "",
    "../../x",
    "\udce9\x1b[2J",
    [],
    {},
    [[]],
    {"a": []},
    "a",
    3,
    "cpu",
    GONE,
]


@pytest.fixture
def good() -> Report:
    """A report with every kind of fragment and every optional entry."""
    found = json.loads(reports.report(reports.replaced(), reports.kept(), reports.failed()).text())
    proof = {k: v for k, v in reports.PROOF.items() if k != "float"}
    found["fragments"][0]["verification"]["targets"] = {
        "cpu": {**proof, "others": [{**proof, "when": {"a": [1, None]}}]}
    }
    found["fragments"][0]["tuning"] = {"device": "GPU", "tried": 3, "own_us": 2.0, "chosen_us": 1.0, "chosen": "a"}
    return found


def written(folder: Path, data: Any) -> Path:
    folder.mkdir(exist_ok=True)
    text = data if isinstance(data, str) else json.dumps(data).replace("Infinity", "1e999")
    (folder / "report.json").write_text(text)
    return folder


def large(path: Path) -> None:
    path.touch()
    os.truncate(path, rawfile.LARGEST + 1)


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as raised:
        reader.read(folder)
    assert raised.value.hint
    assert str(raised.value).startswith(str(folder))
    return str(raised.value).removeprefix(f"{folder}/report.json: ")


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every entry of a document."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(data: Report, path: tuple[Any, ...], value: Any) -> Report:
    made = copy.deepcopy(data)
    inner: Any = made
    for key in path[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return made


# --- what is admitted -------------------------------------------------------------------------------------------------
def test_a_report_is_read_back(tmp_path: Path, good: Report) -> None:
    assert reader.read(written(tmp_path, good)) == good
    assert codec.checked(reader.read(tmp_path), report.Report).to_json() == good


def test_entries_of_later_versions_do_not_matter(tmp_path: Path, good: Report) -> None:
    good["later"] = good["fragments"][0]["later"] = good["options"]["later"] = {"x": 1}
    assert reader.read(written(tmp_path, good)) == good
    assert codec.checked(good, report.Report).fragments[0].id == good["fragments"][0]["id"]


def test_whatever_is_admitted_can_be_shown(tmp_path: Path, good: Report) -> None:
    """Reports with one or two changed entries are refused, or every command that reads reports only takes them."""
    draw = random.Random(5)
    everywhere = list(places(good))
    folder, other = written(tmp_path / "a", good), written(tmp_path / "b", good)
    admitted = 0
    for _ in range(150):
        data = good
        for _ in range(draw.randint(1, 2)):
            try:
                data = changed(data, draw.choice(everywhere), draw.choice(VALUES))
            except (LookupError, TypeError):
                continue  # an earlier change took the place away
        written(folder, data)
        try:
            found = reader.read(folder)
        except ModelError:
            continue
        admitted += 1
        assert summary.inspect(str(folder), Options()).text()
        assert fragment_details.show(folder, None).text()
        assert comparison.compare(folder, other).text() and comparison.compare(other, folder).text()
        for f in found["fragments"]:
            if f["mugraph"]["file"] is None:
                assert fragment_details.show(folder, f["id"]).text()
            else:
                with pytest.raises(MirageError):
                    fragment_details.show(folder, f["id"])  # there is no such file here
    assert 10 < admitted < 140


def test_the_schema_says_the_same_as_jsonschema(good: Report) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    draw = random.Random(6)
    everywhere = list(places(good))
    validator = jsonschema.Draft202012Validator(report.schema())
    for _ in range(40):
        data = changed(good, draw.choice(everywhere), draw.choice([v for v in VALUES if v != 10**400]))
        refused = [e for e in validator.iter_errors(data) if e.validator != "additionalProperties"]
        try:
            codec.checked(data, report.Report)
            assert not refused
        except ValueError as error:
            assert refused, error


# --- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema_version",), 2, "Expected schema version 1, found 2"),
        (("schema_version",), GONE, "Expected schema version 1, found one without schema_version"),
        (("model",), [], "Expected `object`, got `array` - at `$.model`"),
        (("model", "path"), GONE, "Object missing required field `path` - at `$.model`"),
        (("fragments",), GONE, "Object missing required field `fragments`"),
        (("fragments",), 3, "Expected `array`, got `int` - at `$.fragments`"),
        (("fragments", 1), {}, "Object missing required field `id` - at `$.fragments[1]`"),
        (("fragments", 0, "status"), "done", "Expected `str` matching regex '^(replaced|kept|failed)$"),
        (("fragments", 0, "nodes", 1, 0), None, "Expected `str`, got `null` - at `$.fragments[0].nodes[1][0]`"),
        (("fragments", 0, "predicted_us"), -1, ">= 0.0 - at `$.fragments[0].predicted_us`, found -1"),
        (("fragments", 0, "predicted_us"), 10**400, "of 64 bits"),
        (("fragments", 0, "floor_us"), float("inf"), "Expected finite numbers"),
        (("later",), {"a": [0, float("inf")]}, "at `$.later.a[1]`"),
        (("fragments", 0, "occurrences"), True, "Expected `int`, got `bool` - at `$.fragments[0].occurrences`"),
        (("fragments", 0, "id"), "../x", 'at `$.fragments[0].id`, found "../x"'),
        (("fragments", 0, "id"), "x\n", 'at `$.fragments[0].id`, found "x\\n"'),
        (("fragments", 1, "id"), "a6660ab85df12c2a", "found a6660ab85df12c2a once more"),
        (
            ("fragments", 0, "mugraph", "file"),
            "/etc/passwd",
            "Expected `mugraphs/a6660ab85df12c2a.json` or `null` - at",
        ),
        (("model", "external_data"), {"../../key": "00"}, "at `key` in `$.model.external_data`"),
        (("files"), {"/dev/zero": "00"}, "at `key` in `$.files`"),
        (("files"), {"src/..": "00"}, "at `key` in `$.files`"),
        (("files"), {"x\n\0": "00"}, "at `key` in `$.files`"),
        (("options", "dim"), "batch=1", "Expected `array`, got `str` - at `$.options.dim`"),
        (("coverage", "flops"), 1.5, "<= 1.0 - at `$.coverage[...]`"),
        ((*CPU_PROOF, "mode"), None, "Expected `str`, got `null` - at `$.fragments[0].verification.targets[...].mode`"),
        ((*CPU_PROOF, "others", 0, "degree"), None, "at `$.fragments[0].verification.targets[...].others[0].degree`"),
        ((*CPU_PROOF, "error_bound"), -1, ">= 0.0 - at `$.fragments[0].verification.targets[...].error_bound`"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, good: Report, path: Any, value: Any, message: str) -> None:
    path = (path,) if isinstance(path, str) else path
    assert message in refusal(written(tmp_path, changed(good, path, value)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a report of mirage, found what cannot be read: Expecting value"),
        ('{"a', "expected a report of mirage, found what cannot be read: Unterminated string"),
        ('{"a": NaN}', "NaN is no JSON"),
        ("[1]", "expected a report of mirage, found what cannot be read: Expected `object`, got `array`"),
        ("[" * 100_000, "lists in lists without an end"),
        ("1" * 5000, "expected a report of mirage, found what cannot be read: Exceeds the limit"),
    ],
)
def test_what_is_no_report(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(written(tmp_path, text))


def test_nesting_that_nobody_needs(tmp_path: Path, good: Report) -> None:
    deep: Any = 1
    for _ in range(codec.MAX_DEPTH):
        deep = [deep]
    good["options"]["later"] = deep
    assert "lists and objects at most 32 deep" in refusal(written(tmp_path, good))


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path, tmp_path / "none", tmp_path / "file"):
        assert refusal(folder) == f"{folder}: expected an output folder of mirage optimize, found no report.json in it"
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ModelError) as raised:
        reader.read(tmp_path)
    assert str(raised.value.hint).endswith(f"a model of this folder is {tmp_path / 'model.onnx'}")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b"\xff\xfe"),
        large,
    ],
    ids=["folder", "pipe", "device", "binary", "large"],
)
def test_files_that_are_no_text(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "report.json")
    assert "expected a report of mirage, found what cannot be read: " in refusal(tmp_path)
