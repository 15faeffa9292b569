"""Texts for people: nothing in a name can end a line, steer a terminal or break a document; widths hold."""

import unicodedata

import pytest

from mirage_cli.exporters.drawing import labels
from tests.exporters.graphs import HOSTILE


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_visible_names_hold_no_character_without_a_glyph(name: str) -> None:
    shown = labels.escaped(name)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")]
    assert shown.encode("utf-8")
    for width in (8, 20, 33):
        assert labels.cells(labels.short(name, width)) <= width


def test_visible_escapes() -> None:
    assert labels.escaped("a\nb\0c\x1b\u202e") == "a\\nb\\0c\\u{1b}\\u{202e}"
    assert labels.escaped("/model/layer.0/MatMul é 名") == "/model/layer.0/MatMul é 名"


def test_short_keeps_both_ends() -> None:
    assert labels.short("model.layers.0.input_layernorm.weight", 21) == "model.laye…orm.weight"
    assert labels.short("short", 5) == "short"


def test_numbers() -> None:
    assert [labels.microseconds(x) for x in (0.0, 0.00342, 2.472, 27.906, 312.3, 1240.0, 3.1e6)] == [
        "0.00 us",
        "0.0034 us",
        "2.47 us",
        "27.9 us",
        "312 us",
        "1.24 ms",
        "3.10 s",
    ]
    assert labels.percent(0.99999) == "99.9 %"
    assert labels.percent(1.0) == "100.0 %"
    assert labels.power_of_two(-79.77) == "2^-79"
    assert labels.number(float("inf")) == "inf"
    assert [labels.counted(n, "node") for n in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]


def test_table_aligns_wide_characters() -> None:
    lines = labels.table([("名", "1"), ("abc", "22")], right=(1,))
    assert lines == ["名    1", "abc  22"]


def test_paragraph_fits() -> None:
    lines = labels.paragraph("word " * 60 + "x" * 200, 60)
    assert len(lines) > 5
    assert max(map(len, lines)) <= 60
    assert all(line.startswith("  ") for line in lines)


def test_bytes() -> None:
    assert [labels.byte_count(n) for n in (0, 512, 8192, 4.26e12)] == ["0 B", "512 B", "8.19 kB", "4.26 TB"]
