"""The documentation's table of operators is what the readers say."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from mirage_cli.frontends.onnx.coverage import table
from mirage_cli.frontends.onnx.ops import READERS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "operators-onnx.md"
COMMAND = "python -m mirage_cli.frontends.onnx.coverage > docs/reference/operators-onnx.md"


def test_the_page_is_fresh() -> None:
    newest = onnx.defs.onnx_opset_version()
    if f" to {newest}; older models" not in PAGE.read_text():
        pytest.skip(f"the page was made with another onnx than this one, whose newest opset is {newest}")
    assert PAGE.read_text() == table(), COMMAND


def test_every_reader_is_documented() -> None:
    rows = [line.split(" | ")[0].removeprefix("| ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert {name for _, name in READERS} <= set(rows)
    assert all(reader.how for reader in READERS.values())
