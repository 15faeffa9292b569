"""The template environment and the helpers that keep a model's strings out of source text."""

import math
import struct
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import jinja2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirage_cli.backends.toolchain import Toolchain
from mirage_cli.codegen import render as module
from mirage_cli.codegen.render import (
    TemplateDefect,
    c_comment,
    c_float,
    c_identifier,
    c_string,
    include_dir,
    render,
)
from tests.backends.kernels import NASTY


def parse(literal: str) -> float:
    sign, body = (-1.0, literal[2:-1]) if literal.startswith("(-") else (1.0, literal)
    named = {"INFINITY": math.inf, "NAN": math.nan}
    return sign * (named[body] if body in named else float.fromhex(body.removesuffix("f")))


@given(st.floats())
@example(-0.0)
@example(3.4028235677973366e38)  # halfway between the largest float32 and the next power of two
@example(3.4028235677973362e38)
@example(2.0**-150)
@example(1.4e-45)
def test_c_float_rounds_like_float32(value: float) -> None:
    with np.errstate(all="ignore"):
        expected = np.float32(value)
    found = parse(c_float(value))
    assert struct.pack("f", found) == struct.pack("f", expected) or math.isnan(value)


@given(st.floats(width=32, allow_nan=False))
def test_c_float_is_exact_on_float32(value: float) -> None:
    found = parse(c_float(value))
    assert found == value
    assert math.copysign(1, found) == math.copysign(1, value)


@given(st.fractions())
@example(Fraction(2**24 + 1))
@example(Fraction(2**53 + 1, 2**29) + Fraction(1, 2**200))  # rounding twice, by way of float64, goes wrong here
def test_c_float_rounds_fractions_once(value: Fraction) -> None:
    found = np.float32(parse(c_float(value)))
    step = max(Fraction(float(np.nextafter(abs(found), np.float32(np.inf)))) - Fraction(float(abs(found))), Fraction(0))
    assert abs(Fraction(float(found)) - value) <= step / 2


def test_c_float_is_short() -> None:
    assert [c_float(x) for x in (1.0, Fraction(1, 2), -3.0, 0.0)] == ["0x1p+0f", "0x1p-1f", "(-0x1.8p+1f)", "0x0p+0f"]
    assert [c_float(x) for x in (math.inf, -math.inf, math.nan, 1e39)] == ["INFINITY", "(-INFINITY)", "NAN", "INFINITY"]


@example("0" * 39 + ":0")
@given(st.text())
def test_c_identifier(text: str) -> None:
    name = c_identifier(text)
    assert name.isascii()
    assert name.isidentifier()
    assert "__" not in name
    assert len(name) < 64


def test_c_identifiers_differ() -> None:
    names = {c_identifier(text) for text in ("a.b", "a_b", "a b", "", "1", "int", "x" * 100, "x" * 101)}
    assert len(names) == 8
    assert c_identifier("layer.0/norm").startswith("layer_0_norm_")


@given(st.text())
@example('*/ int x; /* \\ \n ??/ "')
def test_c_comment(text: str) -> None:
    line = c_comment(text)
    assert line.isascii()
    assert (line + "x").isprintable()
    assert not any(bad in line for bad in ("*/", "/*", "\\", "??"))


def test_a_compiler_reads_back_strings_and_floats(cxx: Toolchain, tmp_path: Path) -> None:
    texts = [NASTY, "", "a\0b1", "\x7f\x80\xff", '"', "??=", "123"]
    floats = [0.1, -1e-42, 3.4028234663852886e38, 1 / 3, 2.0**-149]
    lines = [
        "#include <cmath>",
        "#include <cstdint>",
        "template <class T> constexpr bool same(T a, T b) { return a == b; }",
    ]
    for i, text in enumerate(texts):
        data = text.encode()
        lines.append(f"constexpr char s{i}[] = {c_string(text)};")
        lines += [f"static_assert(s{i}[{j}] == char({b}));" for j, b in enumerate(data)]
        lines.append(f"static_assert(sizeof s{i} == {len(data) + 1});")
    lines += [f"static_assert(same<double>({c_float(x)}, {float(np.float32(x))!r}));" for x in floats]
    lines += [
        f"static_assert(2.0f-{c_float(-1.0)} == 3.0f && {c_float(math.inf)} > 1 && std::isnan({c_float(math.nan)}));"
    ]
    lines += [f"/* {c_comment(NASTY)} */ // {c_comment(NASTY)}", "static_assert(true);"]
    (tmp_path / "probe.cpp").write_text("\n".join(lines) + "\n")
    command = [*cxx.cxx.command, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "probe.cpp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def templates(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Templates held in a dictionary in place of the package's."""
    found: dict[str, str] = {}
    monkeypatch.setattr(jinja2, "PackageLoader", lambda *_: jinja2.DictLoader(found))
    for cached in (module._environment, module._needed):
        cached.cache_clear()
    yield found
    for cached in (module._environment, module._needed):
        cached.cache_clear()


def test_a_target_overrides_single_templates(templates: dict[str, str]) -> None:
    templates |= {"cuda/tile.j2": "cuda", "nodes/sm_90a/tile.j2": "hopper", "cpu/tile.j2": "cpu", "tile.j2": "any"}
    templates["main.j2"] = "{# needs: n #}\n{% include 'tile.j2' %} {{ n }}\n"
    targets = ("sm_90a", "sm_80", "cpu", "common")
    assert [render("main.j2", target, n=1) for target in targets] == ["hopper 1\n", "cuda 1\n", "cpu 1\n", "any 1\n"]


def test_declarations_are_checked(templates: dict[str, str]) -> None:
    templates |= {"undeclared.j2": "{{ x }}", "unused.j2": "{# needs: x #}", "good.j2": "{# needs: x #}{{ x }}"}
    with pytest.raises(TemplateDefect, match=r"uses \['x'\] without declaring"):
        render("undeclared.j2", x=1)
    with pytest.raises(TemplateDefect, match=r"declares \['x'\]"):
        render("unused.j2", x=1)
    with pytest.raises(TemplateDefect, match=r"missing variables \['x'\].*not need \['y'\]"):
        render("good.j2", y=1)
    with pytest.raises(jinja2.TemplateNotFound):
        render("absent.j2")


def test_only_html_is_escaped(templates: dict[str, str]) -> None:
    templates |= {"a.html.j2": "{# needs: x #}{{ x }}", "a.cpp.j2": "{# needs: x #}{{ x }}"}
    assert render("a.html.j2", x="<b>") == "&lt;b&gt;"
    assert render("a.cpp.j2", x="<b>") == "<b>"


def test_headers_are_where_we_say() -> None:
    assert (include_dir() / "mirage" / "entry.h").is_file()
