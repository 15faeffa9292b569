"""Commands, options, streams and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tests.contract.conftest import Done, Mirage

#: every option of optimize that can be in a file, and a value that is not its default
OPTIONS = {
    "shape": ["x=5x48"],
    "dim": ["batch=4", "seq=1:128:4096"],
    "target": ["cpu", "cuda"],
    "arch": ["sm_80", "sm_90a"],
    "gpu": 0,
    "only": ["*attn*"],
    "skip": ["*head*", "*embed*"],
    "max-kernels": 2,
    "max-ops": 12,
    "candidates": 3,
    "budget": 30.0,
    "jobs": 1,
    "seed": 7,
    "confidence": 60,
    "cache": "kept",
    "max-memory": 4 * 2**30,
    "scheduler": "tls://host:8786",
    "require-coverage": ["flops=0.9"],
    "dry-run": True,
    "force": True,
    "strict": True,
}
#: (arguments, exit code, code, a part of the message, a part of the hint); none needs more than parsing
WRONG: list[tuple[str, int, str, str, str]] = [
    (
        "optimize model.onnx -o out --scheduler tcp://10.0.0.1:8786",
        2,
        "usage",
        "plain tcp is for this machine only",
        "",
    ),
    ("", 2, "usage", "", ""),
    ("optimze model.onnx", 2, "usage", "Did you mean optimize?", "--help"),
    ("optimize model.onnx -o out --forse", 2, "usage", "--force", "mirage optimize --help"),
    ("optimize model.onnx", 2, "usage", "-o", ""),
    ("optimize model.onnx -o out --target gpu", 2, "usage", "expected cuda or cpu or hip or opencl, found 'gpu'", ""),
    ("optimize model.onnx -o out --dim seq=4:2:1", 2, "usage", "MIN <= TYPICAL <= MAX", ""),
    ("optimize model.onnx -o out --shape x=ax3", 2, "usage", "expected NAME=1x128x...", ""),
    ("optimize model.onnx -o out --config none.yaml", 2, "config", "none.yaml: the configuration file", ""),
    ("optimize model.onnx -o out --config bad.yaml", 2, "config", "bad.yaml:3:1: unknown option 'forc'", "force"),
    ("verify", 2, "usage", "Missing argument", ""),
    ("verify model.onnx out/model.onnx", 2, "usage", "--library", ""),
    ("bench out --cpu --gpu 0", 2, "usage", "exclude each other", ""),
    ("inspect", 2, "usage", "Missing argument", ""),
    ("show", 2, "usage", "Missing argument", ""),
    ("compare out", 2, "usage", "NEW_DIR", ""),
    ("compare out none", 3, "model-unreadable", "none: expected an output folder", ""),
    ("doctor now", 2, "usage", "unexpected extra argument", ""),
    ("cache lst", 2, "usage", "Did you mean list?", ""),
    ("cache import none.json", 3, "model-unreadable", "none.json: cannot be read: No such file", ""),
]


@pytest.fixture(scope="module", autouse=True)
def _files(place: Path) -> None:
    (place / "bad.yaml").write_text("# options\nseed: 1\nforc: true\n")


@pytest.mark.parametrize(("line", "exit_code", "code", "message", "hint"), WRONG, ids=[w[0] or "none" for w in WRONG])
def test_an_error_is_one_document(
    mirage: Mirage, made: Done, line: str, exit_code: int, code: str, message: str, hint: str
) -> None:
    done = mirage(*line.split(), *(["--json"] if line else []))
    if not line:  # the help, which is no data here
        assert (done.code, done.output) == (2, "")
        return
    error = done.error()
    assert (done.code, error["code"]) == (exit_code, code)
    assert message in error["message"]
    assert hint in error["hint"]


def test_an_error_as_text(mirage: Mirage) -> None:
    done = mirage("optimize", "--forse")
    assert (done.code, done.output) == (2, "")
    assert done.told.startswith("Error: ")
    assert "\x1b" not in done.told


def test_options_come_from_the_command_line_and_from_a_file(mirage: Mirage, place: Path) -> None:
    line: list[str] = []
    for name, value in OPTIONS.items():
        for one in value if isinstance(value, list) else [value]:
            line += [f"--{name}"] if one is True else [f"--{name}", str(one)]
    given = mirage("optimize", *line, "--print-config", "--json")
    assert (given.code, given.told) == (0, "")
    shown = given.document()
    assert {name: shown[name] for name in OPTIONS} == OPTIONS
    (place / "mirage.yaml").write_text(mirage("optimize", *line, "--print-config").output)
    assert mirage("optimize", "--config", "mirage.yaml", "--print-config", "--json").document() == shown
    (place / "written.yaml").write_text(
        "\n".join(f"{name}: {json.dumps(value)}" for name, value in OPTIONS.items() if name not in ("cache", "strict"))
        + "\nno-cache: true\nkeep-going: true\n"
    )
    changed = mirage("optimize", "--config", "written.yaml", "--seed", "8", "--print-config", "--json").document()
    assert changed == shown | {"cache": False, "strict": False, "seed": 8}


def test_standard_input_and_its_report(mirage: Mirage, made: Done, place: Path) -> None:
    done = mirage("inspect", "-", "--json", data=(place / "model.onnx").read_bytes())
    assert (done.code, done.told) == (0, "")
    found = done.document()
    assert [(f["id"], f["name"]) for f in found["fragments"]] == [
        (f["id"], f["name"]) for f in made.document()["fragments"]
    ]


@pytest.mark.parametrize(
    "line",
    ["compare out out", "show out", "cache dir", "cache list", "cache export", "cache clean"],
)
def test_a_result_is_one_document_and_nothing_else(mirage: Mirage, made: Done, place: Path, line: str) -> None:
    away = ["--cache", str(place / "another")] if line.startswith("cache") else []
    done = mirage(*line.split(), *away, "--json")
    assert (done.code, done.told) == (0, "")
    assert isinstance(done.document(), dict)
    if line.startswith(("compare", "cache dir")):  # light ones: as text, and quietly
        text = mirage(*line.split(), *away)
        assert (text.code, text.told) == (0, "")
        assert text.output
        assert mirage(*line.split(), *away, "-q").output == ""


def test_verify_names_what_differs_and_keeps_it(mirage: Mirage, made: Done, place: Path) -> None:
    other = onnx.load(place / "model.onnx")
    (epsilon,) = (t for t in other.graph.initializer if numpy_helper.to_array(t).size == 1 and "1e-05" in t.name)
    epsilon.CopyFrom(numpy_helper.from_array(np.array(0.5, np.float32), epsilon.name))
    onnx.save(other, place / "other.onnx")
    paths = ["other.onnx", "out/model.onnx", "--library", "out/libmirage.so"]
    done = mirage("verify", *paths, "--bisect", "--save-failing", "failing", "--json")
    found = done.document()
    assert (done.code, done.told, found["passed"]) == (1, "", False)
    (fragment,) = made.document()["fragments"]
    assert any(fragment["id"] in name for name in found["culprits"])
    kept = {p.name for p in (place / "failing").iterdir()}
    assert {"inputs.npz", "original.npz", "patched.npz", "operator.onnx"} <= kept
    inputs = np.load(place / "failing" / "operator_inputs.npz")
    session = ort.InferenceSession(place / "failing" / "operator.onnx", providers=["CPUExecutionProvider"])
    assert {i.name for i in session.get_inputs()} == set(inputs.files)


def test_a_missing_tool(mirage: Mirage) -> None:
    done = mirage("optimize", "model.onnx", "-o", "none", "--target", "cpu", "--json", CXX="/nowhere/c++")
    error = done.error()
    assert (done.code, error["code"]) == (4, "tool-missing")
    assert "/nowhere/c++" in error["message"]
    assert error["hint"]
