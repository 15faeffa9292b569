"""The project's own rules: sizes, imports, packaging, documents that say what is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mirage_cli
from mirage_cli import errors
from mirage_cli.options import config, settings

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 500
#: modules over the limit, each with the reason why it is not two modules
LONG: dict[str, str] = {}
SOURCES = ("lax", "search", "mirage_cli", "samples", "tests")
LINKS = ("lax", "search", "templates")
PACKAGED = ("pyproject.toml", "README.md", "LICENSE", "mirage_cli", *LINKS)
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def modules() -> list[Path]:
    """Every Python file of the project once, not through the links."""
    found = [p for folder in SOURCES for p in (ROOT / folder).rglob("*.py")]
    return sorted(p for p in found if p.resolve() == p)


def run(*command: str, cwd: Path = ROOT, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program outside of any make that runs this."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHONPATH")}
    if path:
        env["PYTHONPATH"] = path
    return subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def python(*arguments: str, cwd: Path = ROOT, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run this interpreter."""
    return run(sys.executable, *arguments, cwd=cwd, path=path)


# ---- sources ---------------------------------------------------------------------------------------------------------


def test_no_module_is_too_long() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in modules()}
    assert len(lengths) > 80
    assert {name for name, n in lengths.items() if n > LIMIT} == set(LONG)


def test_every_module_says_what_it_is() -> None:
    silent = [p for p in modules() if p.parts[-2] != "tests" and not p.name.startswith("test_")]
    silent = [p for p in silent if p.read_text().strip() and not p.read_text().startswith(('"""', "#!", 'r"""'))]
    assert [str(p.relative_to(ROOT)) for p in silent] == []


def test_imports_point_down() -> None:
    done = python(
        "-c", "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c(['--no-cache']))"
    )
    assert done.returncode == 0, done.stdout + done.stderr


ALL_OF = """
import importlib, pkgutil, sys
for name in {packages!r}:
    package = importlib.import_module(name)
    for m in pkgutil.walk_packages(getattr(package, "__path__", []), name + "."):
        importlib.import_module(m.name)
print(" ".join(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""


def imported_by(*packages: str) -> set[str]:
    """Top-level names in `sys.modules` after importing all modules of packages in a fresh interpreter."""
    done = python("-P", "-c", ALL_OF.format(packages=packages), path=str(ROOT))
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_lax_and_search_need_numpy_and_yaml_only() -> None:
    own = {*sys.stdlib_module_names, *imported_by("site"), "mirage_cli"}
    own.add("__mp_main__")  # what Python's `multiprocessing` calls `__main__`
    yaml = imported_by("yaml")  # with the run time of the compiler that its C part was made with
    assert imported_by("mirage_cli.lax") - own == {"numpy"}
    assert imported_by("mirage_cli.lax", "mirage_cli.search") - own - yaml == {"numpy"}


def test_no_module_is_imported_under_a_second_name() -> None:
    assert imported_by("mirage_cli") & set(LINKS) == set()


def test_links_are_relative() -> None:
    for name in LINKS:
        link = ROOT / "mirage_cli" / name
        assert link.is_symlink(), f"{link} should be a link to ../{name}"
        assert os.readlink(link) == f"../{name}"


# ---- packaging -------------------------------------------------------------------------------------------------------


def can_build() -> bool:
    """Whether a wheel can be built without the network."""
    try:
        return int(metadata.version("setuptools").partition(".")[0]) >= 77
    except metadata.PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel of a copy of the sources, so that nothing is written into them."""
    if not can_build():
        pytest.skip("setuptools 77 or newer is not installed")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGED:
        place = ROOT / name
        if place.is_dir():
            shutil.copytree(place, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, source / name)
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    done = python("-m", "pip", "wheel", *options, "--wheel-dir", str(out), str(source), cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        archive.extractall(out / "unpacked")
    return out / "unpacked"


def test_the_wheel_holds_one_package(wheel: Path) -> None:
    assert {p.name for p in wheel.iterdir() if not p.name.endswith(".dist-info")} == {"mirage_cli"}
    for name in LINKS:
        wanted = {p.relative_to(ROOT) for p in (ROOT / name).rglob("*") if p.is_file() and "__pycache__" not in p.parts}
        found = {p.relative_to(wheel / "mirage_cli") for p in (wheel / "mirage_cli" / name).rglob("*") if p.is_file()}
        assert wanted == found


def test_the_wheel_works_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    code = "import mirage_cli.main as m; print(m.__file__); m.cli.main(['--version'])"
    done = python("-P", "-c", code, cwd=tmp_path, path=str(wheel))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(wheel))
    assert mirage_cli.__version__ in done.stdout


# ---- make ------------------------------------------------------------------------------------------------------------

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


@needs_make
def test_make_alone_prints_its_targets() -> None:
    done = run("make")
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"^  make ([a-z-]+)", done.stdout, re.MULTILINE)) == make_targets()


@needs_make
def test_an_old_python_is_refused_by_name(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "requirements-dev.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    done = run("make", "test", "PYTHON=false", cwd=tmp_path)
    assert done.returncode != 0
    assert "false is not Python 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()


# ---- documents -------------------------------------------------------------------------------------------------------


def make_targets() -> set[str]:
    """The targets that `make` prints."""
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_lock_pins_every_dependency_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(r for e in ("dev", "docs") for r in project["optional-dependencies"][e])]
    pinned = [Requirement(line) for line in (ROOT / "requirements-dev.lock").read_text().splitlines()]
    for requirement in map(Requirement, wanted):
        pins = [p for p in pinned if canonicalize_name(p.name) == canonicalize_name(requirement.name)]
        assert pins, f"{requirement.name} is not pinned: make lock"
        for pin in pins:
            (exact,) = pin.specifier
            assert exact.operator == "=="
            assert requirement.specifier.contains(exact.version), f"{pin} is not {requirement}: make lock"


def test_documents_name_real_make_targets() -> None:
    named = {t for d in DOCUMENTS for t in re.findall(r"(?:^|`|\$ |    )make ([a-z-]+)", d.read_text(), re.MULTILINE)}
    assert {"demo", "test"} <= named <= make_targets()


def test_ci_runs_the_documented_test_command() -> None:
    assert re.search(r"^make test\nexec make test-extras HIP_TESTS=$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert re.search(r"^\s*make test\b", (ROOT / "README.md").read_text(), re.MULTILINE)


def test_decisions_are_numbered_and_complete() -> None:
    notes = sorted((ROOT / "docs/decisions").glob("*.md"))
    numbers = [int(n.name[:4]) for n in notes]
    assert numbers == list(range(1, len(numbers) + 1))
    for note in notes:
        text = note.read_text()
        assert re.match(rf"# {int(note.name[:4])}\. ", text), f"{note.name}: the title starts with its number"
        headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert headings == ["Context", "Measurement", "Decision", "What would change it"], note.name
        assert len(text.splitlines()) <= 60, f"{note.name} is longer than a page"


def test_the_changelog_has_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(mirage_cli.__version__)}\b", text, re.MULTILINE)
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= {"Features", "Fixes", "Other"}


def all_errors(base: type[errors.MirageError] = errors.MirageError) -> set[type[errors.MirageError]]:
    """The classes of errors.py."""
    return {base}.union(*(all_errors(c) for c in base.__subclasses__() if c.__module__ == errors.__name__))


def test_the_guide_explains_every_error_code() -> None:
    guide = (ROOT / "docs/guide.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (\d+) \|", guide, re.MULTILINE))
    assert rows == {e.code: str(e.exit_code) for e in all_errors()}


def test_the_guide_explains_every_option() -> None:
    guide = (ROOT / "docs/guide.md").read_text()
    table = guide[guide.index("## Options") : guide.index("## Configuration file")]
    names = settings.keys()
    assert [name for name in names if f"`--{name}" not in table] == []


def test_the_guides_configuration_file_is_read(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/guide.md").read_text(), flags=re.DOTALL)
    file = tmp_path / "mirage.yaml"
    file.write_text(block)
    options = settings.options(config.read(str(file)))
    assert options.dim == ("batch=1", "sequence=1:128:4096")
    assert (options.target, options.confidence) == (("cpu", "cuda"), 60)
