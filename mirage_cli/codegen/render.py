"""Templates to text: the only user of jinja2, and the helpers that bring values of a model safely into source text.

A template is found in the folders of its target, most special first, then in `templates/` itself, so that one
architecture can override a single file. The first lines of a template declare the variables that it needs,
`{# needs: operators, cuda #}`; the declaration is checked against the template when it is loaded, and the caller's
variables against the declaration. Names from a model never reach source text but through `c_identifier`, `c_string`
or `c_comment`.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import jinja2
from jinja2 import meta

from mirage_cli.kernel_language.literals import c_float

_NEEDS = re.compile(r"\{#-?\s*needs:(?P<names>[^#]*?)-?#\}")


class TemplateDefect(Exception):
    """A template or its caller breaks a rule of this module: a defect of ours, not of a model."""


def include_dir() -> Path:
    """The folder of headers that rendered sources include as `mirage/...`."""
    return Path(__file__).resolve().parents[2] / "templates" / "include"


def render(template: str, target: str = "common", **context: object) -> str:
    """The text of `template` for a target (`cpu`, `sm_80`, `sm_90a`, `common`) with exactly its declared variables."""
    needed = _needed(target, template)
    if needed != set(context):
        missing, unknown = sorted(needed - set(context)), sorted(set(context) - needed)
        raise TemplateDefect(f"{template}: missing variables {missing}, variables that it does not need {unknown}")
    return _environment(target).get_template(template).render(context)


def search_path(target: str) -> tuple[str, ...]:
    """The folders in which a target's templates are looked for before `templates/` itself."""
    if target.startswith("sm_"):
        return (target, "cuda", "common")
    return (target,) if target == "common" else (target, "common")


class _TargetLoader(jinja2.BaseLoader):
    """Finds a template in the folders of one target and checks its declaration."""

    def __init__(self, target: str) -> None:
        self.folders = [f"{base}{folder}/" for folder in search_path(target) for base in ("", "nodes/")] + [""]
        self.package = jinja2.PackageLoader("mirage_cli.templates", "")

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str | None, Callable[[], bool] | None]:
        for folder in self.folders:
            try:
                source = self.package.get_source(environment, folder + template)
            except jinja2.TemplateNotFound:
                continue
            _check_declaration(environment, folder + template, source[0])
            return source
        raise jinja2.TemplateNotFound(template)


@functools.lru_cache(maxsize=256)
def _needed(target: str, template: str) -> frozenset[str]:
    source, _, _ = _TargetLoader(target).get_source(_environment(target), template)
    return _declared(source)


def _declared(source: str) -> frozenset[str]:
    header = _NEEDS.search(source)
    return frozenset(name.strip() for name in header["names"].split(",") if name.strip()) if header else frozenset()


@functools.lru_cache(maxsize=256)
def _check_declaration(environment: jinja2.Environment, name: str, source: str) -> None:
    tree = environment.parse(source, name)
    used = meta.find_undeclared_variables(tree) - set(environment.globals)
    declared = _declared(source)
    if used - declared:
        raise TemplateDefect(f"{name}: uses {sorted(used - declared)} without declaring it in '{{# needs: #}}'")
    # A template that includes another may hand variables on that it does not use itself.
    if declared - used and not any(meta.find_referenced_templates(tree)):
        raise TemplateDefect(f"{name}: declares {sorted(declared - used)} but does not use it")


@functools.lru_cache(maxsize=16)
def _environment(target: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=_TargetLoader(target),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=lambda name: name is not None and name.endswith((".html", ".html.j2")),
    )
    for helper in (c_identifier, c_string, c_comment, c_float):
        environment.filters[helper.__name__] = helper
        environment.globals[helper.__name__] = helper
    return environment


def c_identifier(text: str) -> str:
    """A C identifier for any text: its letters, and a hash that tells it from other texts, keywords and macros."""
    letters = "_".join(re.findall(r"[A-Za-z0-9]+", text))[:40].rstrip("_")
    head = letters if letters[:1].isalpha() else f"v{letters}"
    return f"{head}_{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def c_string(text: str) -> str:
    """A C string literal with the UTF-8 bytes of any text."""
    safe = set(range(0x20, 0x7F)) - set(b'"\\?')  # '?' could begin a trigraph
    return '"' + "".join(chr(b) if b in safe else f"\\{b:03o}" for b in text.encode("utf-8", "surrogatepass")) + '"'


def c_comment(text: str) -> str:
    """Any text in a form that ends no comment and continues no line: one line of printable ASCII."""
    line = "".join(c if " " <= c <= "~" and c != "\\" else "?" for c in text)
    return "?".join(re.split(r"\?{2,}", line)).replace("*/", "* /").replace("/*", "/ *")
