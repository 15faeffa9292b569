"""Help: one screen for each command, an example that works, fast, and complete."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from mirage_cli.main import COMMANDS, cli
from mirage_cli.options.options import Options
from tests.commands.conftest import Run, environment, process

ROOT = str(Path(__file__).resolve().parents[2])
NOPE = ["optimize", "nope.onnx", "--dry-run"]
HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "rich", "jinja2", "yaml", "platformdirs", "logging")


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def examples(text: str) -> list[str]:
    lines = text[text.index("Examples:") :].splitlines()[1:]
    return [line.strip() for line in lines if "mirage" in line]


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_commands(run: Run, flag: str) -> None:
    result = run(flag)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert [name for name in COMMANDS if f"\n  {name} " in result.stdout] == list(COMMANDS)
    for phrase in ("Exit codes:", "_MIRAGE_COMPLETE=bash_source", "130 interrupted"):
        assert phrase in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) <= 40, "more than a screen"
    assert max(map(len, lines)) <= 80
    assert f"Usage: mirage {name} " in result.stdout
    assert examples(result.stdout)


@pytest.mark.parametrize("name", ["optimize", "bench"])
def test_rare_options_are_on_a_second_page(run: Run, name: str) -> None:
    first, all_of_it = run(name, "--help").stdout, run(name, "--help-all")
    assert all_of_it.exit_code == 0
    assert "--help-all" in first
    flags = {f"--{n.replace('_', '-')} " for n in command(name).rare}  # type: ignore[attr-defined]
    assert len(flags) > 5
    for flag in flags:
        assert f"  {flag}" not in first
        assert f"  {flag}" in all_of_it.stdout.partition("Rare options:")[2]
    assert examples(first) == examples(all_of_it.stdout)
    assert max(map(len, all_of_it.stdout.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    for parameter in command(name).params:
        assert not isinstance(parameter, click.Option) or parameter.help, parameter.name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_parse(run: Run, name: str) -> None:
    for example in examples(run(name, "--help").stdout):
        words = shlex.split(example)
        words = words[words.index("mirage") + 1 :]
        arguments = words[1 : words.index(">") if ">" in words else None]
        assert words[0] == name
        command(name).make_context(name, arguments)


def test_every_option_of_a_run_is_on_the_command_line() -> None:
    names = {parameter.name for parameter in command("optimize").params}
    assert set(Options.__dataclass_fields__) <= names


def test_help_as_a_command(run: Run) -> None:
    for words in ([], ["bench"], ["cache", "list"]):
        asked, given = run("help", *words), run(*words, "--help")
        assert (asked.exit_code, asked.stdout) == (0, given.stdout) and "Usage: mirage" in asked.stdout
    assert run("help", "benhc").exit_code == 2


def test_version(run: Run) -> None:
    assert run("--version").stdout == "mirage 0.1.0\n"


def test_no_command_is_wrong_usage_and_shows_the_help(run: Run) -> None:
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Commands:" in result.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["optimize", "--help"], ["--version"], ["optimize", "--fore"], NOPE])
def test_parsing_imports_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys, json\nfrom mirage_cli.main import cli\n"
        f"try: cli.main({arguments!r})\n"
        f"except SystemExit: print('\\n' + json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    done = process(env=environment(_MIRAGE_COMPLETE=f"{shell}_source"))
    assert done.returncode == 0
    assert "_MIRAGE_COMPLETE" in done.stdout


def completed(line: str, cwd: Path) -> list[str]:
    """What bash is offered behind a line; "" is a word that has not begun."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return process(env=environment(_MIRAGE_COMPLETE="bash_complete", PYTHONPATH=ROOT, **words), cwd=cwd).stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mirage opt", ["plain,optimize"]),
        ("mirage optimize --target c", ["plain,cuda", "plain,cpu"]),
        ("mirage optimize --stri", ["plain,--strict"]),
        ("mirage optimize m", ["plain,m.onnx", "plain,mine.pt"]),
        ("mirage inspect sub/", ["plain,sub/n.onnx"]),
        ("mirage optimize o", ["file,o"]),
        ("mirage optimize m.onnx -o o", ["file,o"]),
        ("mirage show out ", ["plain,abc1", "plain,abd2"]),
        ("mirage show out abd", ["plain,abd2"]),
        ("mirage show sub ", []),
        ("mirage cache e", ["plain,export"]),
    ],
)
def test_completion(line: str, expected: list[str], tmp_path: Path) -> None:
    for name in ("m.onnx", "mine.pt", "more.txt", "sub/n.onnx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "out").mkdir()
    found = {"fragments": [{"id": "abc1", "name": "norm"}, {"id": "abd2", "name": "mlp"}]}
    (tmp_path / "out" / "report.json").write_text(json.dumps(found))
    assert completed(line, tmp_path) == expected


def test_completion_offers_nothing_that_a_shell_would_run(tmp_path: Path) -> None:
    """Shells put what is offered into their line as it is: files and reports of others can have any names."""
    (tmp_path / "x;touch harm;.onnx").touch()
    names = ("x;touch${IFS}harm", "$(touch harm)", "a b", "a\nplain,b", "\x1b[31m", "fine1")
    found = {"fragments": [{"id": name, "name": "\x1b]0;owned\x07\nplain\nrm"} for name in names]}
    (tmp_path / "report.json").write_text(json.dumps(found))
    assert completed("mirage inspect x", tmp_path) == ["file,x"]
    assert completed("mirage show . ", tmp_path) == ["plain,fine1"]
    words = {"COMP_WORDS": "mirage show . fi", "COMP_CWORD": "3"}
    done = process(env=environment(_MIRAGE_COMPLETE="zsh_complete", PYTHONPATH=ROOT, **words), cwd=tmp_path)
    assert done.stdout.splitlines() == ["plain", "fine1", r"\x1b]0;owned\x07 plain rm"]


@pytest.mark.parametrize(("shell", "shown"), [("zsh", "abc1\nnorm"), ("fish", "plain,abc1\tnorm")])
def test_completion_of_other_shells_has_names(shell: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"fragments": [{"id": "abc1", "name": "norm"}]}))
    words = {"COMP_WORDS": "mirage show . ab", "COMP_CWORD": "ab" if shell == "fish" else "3"}
    done = process(env=environment(_MIRAGE_COMPLETE=f"{shell}_complete", PYTHONPATH=ROOT, **words), cwd=tmp_path)
    assert shown in done.stdout
