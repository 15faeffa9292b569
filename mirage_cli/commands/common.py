"""Shared parts of the commands: how they speak, their common options, the form of their help."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mirage_cli.commands import progress
from mirage_cli.errors import ModelError, UsageError
from mirage_cli.files.rawfile import content
from mirage_cli.options import settings
from mirage_cli.options.options import Options
from mirage_cli.options.settings import Setting

if TYPE_CHECKING:
    from mirage_cli.report.stages import Progress

F = TypeVar("F", bound=Callable[..., Any])
#: controls of terminals, marks that turn the direction of text, line ends of Unicode, surrogates
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: names that a shell puts into its line as they are: of others it has to make words itself
_PLAIN = re.compile(r"[\w./+=@%-]*", re.ASCII)
LONGEST = 4000  #: characters of an error's message that are shown
MODELS = (".onnx", ".pt", ".ts")  #: how the names of models end
HELP = {"max_content_width": 110, "help_option_names": ["-h", "--help"]}  #: click's settings of all commands


# --- speaking ---------------------------------------------------------------------------------------------------------
def printable(text: str) -> str:
    """The text without characters that steer a terminal, or hide what is there: names in a model can hold any."""
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text)


def tell(text: str, label: str = "", color: str | None = None) -> None:
    """Write to standard error, after a coloured label; silent when nobody can read it."""
    plain = False if os.environ.get("NO_COLOR") else None
    with contextlib.suppress(OSError):
        click.echo((click.style(label, fg=color, bold=True) if label else "") + printable(text), err=True, color=plain)


def show_error(error: dict[str, Any], as_json: bool) -> None:
    """The one place where errors are printed: `error` is `MirageError.to_json()`."""
    if as_json:
        click.echo(json.dumps(error))
        return
    tell(_clipped(error["error"]["message"]), "Error: ", "red")
    if error["error"]["hint"]:
        tell(_clipped(error["error"]["hint"]), "Hint: ", "cyan")


def _clipped(text: str) -> str:
    """The text, of a very long one its ends: a name in a model can have megabytes."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


@dataclass(frozen=True, slots=True)
class Voice:
    """The voice of a command: data on standard output, everything else on standard error."""

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False

    def result(self, document: Callable[[], Any], text: Callable[[], str]) -> None:
        """Print a command's data: the JSON document where that is asked for, else the text."""
        if self.as_json:
            click.echo(json.dumps(document(), indent=2))
        elif not self.quiet:
            click.echo(printable(text().rstrip("\n")))

    @contextlib.contextmanager
    def progress(self) -> Iterator[Progress | None]:
        """Show progress while the block runs: lines with --verbose, bars on a terminal, elsewhere a line for each stage
        (but for programs, which read --json)."""
        if self.verbose:
            yield progress.Lines(tell)
        elif not self.quiet and progress.on_terminal():
            with progress.bars() as bars:
                yield bars
        else:
            yield None if self.quiet or self.as_json else progress.Stages(tell)


# --- options ----------------------------------------------------------------------------------------------------------
def speaking(function: F) -> F:
    """The options -q, -v and --json, handed on as `voice`."""

    def wrapped(quiet: bool, verbose: bool, as_json: bool, **given: Any) -> Any:
        if quiet and verbose:
            raise UsageError("-q and -v exclude each other")
        return function(voice=Voice(quiet, verbose, as_json), **given)

    wrapped.__name__, wrapped.__doc__ = function.__name__, function.__doc__
    options = (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document, errors too."),
        click.option("-q", "--quiet", is_flag=True, help="Print errors only (and what --json asks for)."),
        click.option("-v", "--verbose", is_flag=True, help="Say on standard error what is being done."),
    )
    decorated: Any = wrapped
    for option in reversed(options):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


class _Value(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A setting's value on the command line."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.name = setting, setting.key

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value. Fails with what was expected and found."""
        try:
            converted = settings.value_of(self.setting, (value,) if self.setting.many else value)
        except ValueError as e:
            self.fail(str(e), param, ctx)
        return converted[0] if self.setting.many else converted

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """The names that may be given, and files where none are known."""
        from click.shell_completion import CompletionItem

        if self.setting.kind.metavar == "DIR":
            return [CompletionItem(incomplete, type="dir")]
        return [CompletionItem(c) for c in self.setting.kind.choices if c.startswith(incomplete)]


class Model(click.Path):
    """The path of a model, or of an output folder."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """The models that the text begins; where there are none, whatever files and folders the shell knows."""
        from click.shell_completion import CompletionItem

        folder, beginning = os.path.split(incomplete)
        with contextlib.suppress(OSError):
            names = sorted(n for n in os.listdir(folder or ".") if n.startswith(beginning) and n.endswith(MODELS))
            if names and all(_PLAIN.fullmatch(n) for n in (folder, *names)):
                return [CompletionItem(os.path.join(folder, n)) for n in names]
        return [CompletionItem(incomplete, type="file")]


def fragments(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """The ids of the fragments of the output folder on the command line, with their names."""
    from click.shell_completion import CompletionItem

    try:
        data = json.loads(content(os.path.join(ctx.params.get("folder") or "", "report.json")))
        named_ids = [(str(f["id"]), " ".join(_clipped(printable(str(f["name"]))).split())) for f in data["fragments"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [
        CompletionItem(key, help=name)
        for key, name in named_ids
        if key.startswith(incomplete) and _PLAIN.fullmatch(key)
    ]


def settings_options(*names: str, **helps: str) -> Callable[[F], F]:
    """Options for these fields of `Options`; those that are not given are None or empty. `helps` gives the help of
    options that mean something else, or have another default, in this command."""

    def decorate(function: F) -> F:
        decorated: Any = function
        for name in reversed((*names, *helps)):
            for option in reversed(_declared(settings.BY_NAME[name], helps.get(name))):
                decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def _declared(setting: Setting, text: str | None) -> list[Callable[[Any], Any]]:
    flag, default = f"--{setting.key}", getattr(Options(), setting.name)
    if text is None:
        text = setting.help if setting.help.endswith(".") else f"{setting.help} [{default}]."
    if setting.name == "strict":
        return [
            click.option(flag, "strict", flag_value=True, type=bool, default=None, help=text),
            click.option(
                "--keep-going", "strict", flag_value=False, type=bool, help="Leave what fails as it was [yes]."
            ),
        ]
    if setting.kind.read is settings.BY_NAME["force"].kind.read:
        return [click.option(flag, setting.name, is_flag=True, default=None, help=text)]
    plain = click.option(
        flag,
        setting.name,
        type=_Value(setting),
        multiple=setting.many,
        metavar=setting.kind.metavar,
        help=text,
    )
    if setting.name == "cache":
        return [plain, click.option("--no-cache", is_flag=True, help="Use and keep no earlier results.")]
    return [plain]


def given_values(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Options` that the command line sets. Raises UsageError where options exclude each other."""
    values = {k: v for k, v in given.items() if k != "no_cache" and v is not None and v != ()}
    if given.get("no_cache"):
        if "cache" in values:
            raise UsageError("--cache and --no-cache exclude each other")
        values["cache"] = ""
    return values


def check_input(model: str) -> str:
    """The model's path. Raises ModelError where there is no such file, and ModelError or UsageError where `-` is meant and
    nothing can be read from there."""
    from mirage_cli import frontends

    frontends.check_there(model)
    if model == "-" and sys.stdin is None:
        raise ModelError("-: standard input is closed")
    if model == "-" and sys.stdin.isatty():
        raise UsageError("-: standard input is a terminal", "give a file, or a model on standard input: - < model.onnx")
    return model


# --- help -------------------------------------------------------------------------------------------------------------
class Command(click.Command):
    """A command whose help fits a screen and ends with examples, printed as they stand. Options named in `rare` are on a
    second page, `--help-all`."""

    def __init__(self, *args: Any, examples: tuple[str, ...] = (), rare: tuple[str, ...] = (), **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", HELP)
        super().__init__(*args, **kwargs)
        self.examples, self.rare = examples, frozenset(rare)
        if rare:
            self.params.append(_help_all())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, the rare ones in a section of their own where they are asked for."""
        usual: list[tuple[str, str]] = []
        more: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                (more if parameter.name in self.rare else usual).append(record)
        with formatter.section("Options"):
            formatter.write_dl(usual)
        if ctx.meta.get(_ALL):
            with formatter.section("Rare options"):
                formatter.write_dl(more)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, and the epilog."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"  {line}\n")
        super().format_epilog(ctx, formatter)


class Group(Command, click.Group):
    """A command of commands."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options and the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


_ALL = "mirage_cli.help_all"


def _help_all() -> click.Option:
    """The option that prints the help with the rare options."""

    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show the rare options too, and exit.",
    )
