"""What no module of this program may do, whatever it is given: run a shell, run text as code, read pickles of others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("mirage_cli", "lax", "search", "samples")
#: calls that are never made, by the last two names of what is called
NEVER = {
    *(
        "os.system",
        "os.popen",
        "os.execl",
        "os.execlp",
        "os.execv",
        "os.execvp",
        "os.spawnl",
        "os.spawnv",
        "os.spawnlp",
    ),
    *("pty.spawn", "subprocess.getoutput", "subprocess.getstatusoutput", "commands.getoutput", "tempfile.mktemp"),
    *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "marshal.loads", "shelve.open"),
    *(
        "torch.load",
        "joblib.load",
        "numpy.load",
        "np.load",
        "onnx.hub",
        "hub.load",
        "urllib.request",
        "request.urlopen",
    ),
    *("eval", "exec", "compile", "__import__"),
}
#: where pickles are read: what the own processes of a run send each other through their pipes
PICKLES = {"mirage_cli/processes/messages.py", "samples/cpu_fit.py"}  #: the second reads what it has timed
#: builtins of these names that are something else: a regular expression, a PyTorch module, a contestant of the suite
HARMLESS = {"re.compile", "torch.compile", "module.eval", "model.eval"}


def sources() -> list[Path]:
    found = [p for f in FOLDERS for p in sorted((ROOT / f).rglob("*.py"))]
    assert len(found) > 200
    return found


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Every call with the name of what is called, at most its last two parts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            parts = ast.unparse(node.func).split(".")
            yield node, ".".join(parts[-2:])


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.AST]:
    return {p.relative_to(ROOT).as_posix(): ast.parse(p.read_text(encoding="utf-8")) for p in sources()}


def test_no_shell_and_no_text_that_runs(trees: dict[str, ast.AST]) -> None:
    found = []
    for name, tree in trees.items():
        for call, called in calls(tree):
            shell = any(k.arg == "shell" for k in call.keywords)
            plain = any(k.arg == "allow_pickle" and ast.unparse(k.value) == "False" for k in call.keywords)
            if shell or called in NEVER - HARMLESS - ({"np.load"} if plain else set()):
                found.append(f"{name}:{call.lineno}: {called}")
    assert not found


def test_programs_are_called_with_lists(trees: dict[str, ast.AST]) -> None:
    """What is called is a list, or a name that holds one; a text would be a command line."""
    count = 0
    for name, tree in trees.items():
        for call, called in calls(tree):
            if called in ("subprocess.run", "subprocess.Popen", "subprocess.check_output", "subprocess.call"):
                count += 1
                assert not isinstance(call.args[0], ast.Constant | ast.JoinedStr | ast.BinOp), f"{name}:{call.lineno}"
    assert count >= 4


def test_pickles_are_those_of_own_processes(trees: dict[str, ast.AST]) -> None:
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    found = set()
    for name, tree in trees.items():
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if modules & {n.partition(".")[0] for n in names}:
                found.add(name)
    assert found == PICKLES


def test_templates_are_made_in_one_place(trees: dict[str, ast.AST]) -> None:
    """jinja2 is used by `render.py` alone, which escapes HTML and lets no variable be absent."""
    users = {n for n, tree in trees.items() if any(called.startswith("jinja2.") for _, called in calls(tree))}
    assert users == {"mirage_cli/codegen/render.py"}
    (made,) = [c for c, called in calls(trees[users.pop()]) if called == "jinja2.Environment"]
    given = {k.arg: ast.unparse(k.value) for k in made.keywords}
    assert ".html" in given["autoescape"] and given["undefined"] == "jinja2.StrictUndefined"
    texts = [p.read_text().replace(" ", "") for p in (ROOT / "templates").rglob("*.j2")]
    assert sum(text.count("|safe") for text in texts) == 1  # the style sheet of drawings, a constant of ours


def test_temporary_files_have_names_that_nobody_can_guess(trees: dict[str, ast.AST]) -> None:
    """Nothing in a folder that others share has a fixed name: names come from `tempfile`, which makes files and folders for
    their owner alone and opens none that is there."""
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not node.value.startswith(("/tmp", "/var/tmp", "/dev/shm")), f"{name}:{node.lineno}"
