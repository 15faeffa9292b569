"""The `mirage` program: its commands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import contextlib
import difflib
import gc
import importlib
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from mirage_cli import __version__
from mirage_cli.commands import common
from mirage_cli.errors import InternalError, UsageError
from mirage_cli.options import debug
from mirage_cli.processes import COLLECTED

#: name -> module, imported when the command is asked for
COMMANDS = {
    name: f"mirage_cli.commands.{name}"
    for name in ("optimize", "verify", "bench", "inspect", "show", "compare", "doctor", "cache", "farm")
}
CLOSED_PIPE = 128 + 13
_COMPLETION = "_MIRAGE_COMPLETE"


class Program(click.Group):
    """The group of commands. Whatever ends a command becomes an exit code of the contract here."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which they are used."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name == "help":
            return _help
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments begin with; one that does not exist suggests the near one."""
        if args[0] in (*COMMANDS, "help") or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        close = difflib.get_close_matches(args[0], COMMANDS, 1)
        suggestion = f"Did you mean {close[0]}?" if close else f"Commands are {', '.join(COMMANDS)}."
        raise click.UsageError(f"No such command {args[0]!r}. {suggestion}", ctx)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run and exit; click's own handling knows other exit codes than ours."""
        arguments = list(sys.argv[1:] if args is None else args)
        if _COMPLETION in os.environ:
            from click.shell_completion import shell_complete

            sys.exit(shell_complete(self, extra, "mirage", _COMPLETION, os.environ[_COMPLETION]))
        sys.exit(self.run(arguments, **extra))

    def run(self, arguments: list[str], **extra: Any) -> int:
        """The exit code of a run with these arguments; never raises."""
        as_json = "--json" in arguments[: arguments.index("--") if "--" in arguments else None]
        try:
            try:
                code = self._invoke(arguments, **extra)
                _flush()
            except BrokenPipeError:
                if not _stdout_lost():
                    raise  # another pipe than our output
                code = CLOSED_PIPE
            return code
        except (Exception, KeyboardInterrupt) as raised:
            return _failed(raised, arguments, as_json)
        finally:
            _forget_lost_output()

    def _invoke(self, arguments: list[str], **extra: Any) -> int:
        with warnings.catch_warnings():
            if {"-q", "--quiet"}.isdisjoint(arguments):
                warnings.showwarning = _show_warning
            else:
                warnings.simplefilter("ignore")
            try:
                with self.make_context("mirage", list(arguments), **extra) as ctx:
                    if not arguments:
                        common.tell(ctx.get_help())
                        return UsageError.exit_code
                    return int(self.invoke(ctx) or 0)
            except click.exceptions.Exit as e:
                return e.exit_code


def _failed(raised: BaseException, arguments: list[str], as_json: bool) -> int:
    from mirage_cli.commands import failure

    error = failure.as_error(raised, arguments)
    try:
        if error.exit_code == InternalError.exit_code and not {"-v", "--verbose"}.isdisjoint(arguments):
            common.tell("".join(traceback.format_exception(raised)))
        common.show_error(error.to_json(), as_json)
        _flush()
    except BrokenPipeError:
        return CLOSED_PIPE
    except OSError:
        pass  # standard output takes nothing, which is what the error said already
    return error.exit_code


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    common.tell(str(message), "Warning: ", "yellow")


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _stdout_lost() -> bool:
    """True if nobody reads standard output, or what is left for it cannot be written."""
    try:
        _flush()
        watch = select.poll()
        watch.register(sys.stdout, select.POLLERR)
        return bool(watch.poll(0))
    except (AttributeError, TypeError, ValueError):
        return False  # closed from the start, or no file of the system
    except OSError:
        return True


def _forget_lost_output() -> None:
    """Keep the interpreter from failing on its way out with output that nobody takes."""
    if _stdout_lost():
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


@click.group(
    cls=Program,
    name="mirage",
    no_args_is_help=False,
    context_settings=common.HELP,
    epilog="\b\nExamples:\n"
    "  mirage inspect model.onnx          which parts can be improved\n"
    "  mirage optimize model.onnx -o out  write the improved model and its library\n"
    "  mirage verify out                  prove and compare again\n"
    "\n"
    "\b\nCompletion: add the line for your shell to its start file\n"
    '  bash  eval "$(_MIRAGE_COMPLETE=bash_source mirage)"     in ~/.bashrc\n'
    '  zsh   eval "$(_MIRAGE_COMPLETE=zsh_source mirage)"      in ~/.zshrc\n'
    "  fish  _MIRAGE_COMPLETE=fish_source mirage | source      in ~/.config/fish/completions/mirage.fish\n"
    "\n"
    "\b\nExit codes: 0 done, 1 a check failed, 2 wrong usage, 3 unreadable model, 4 a tool is missing,\n"
    "5 internal error (a log is written), 130 interrupted.",
)
@click.version_option(__version__, prog_name="mirage", message="%(prog)s %(version)s")
def cli() -> None:
    """Superoptimizer for exported models: finds the parts of an ONNX model that can be computed better, searches and
    proves GPU and CPU kernels for them, and writes the model patched to use them in ONNX Runtime."""
    debug.requested_stages()


@click.command(name="help", hidden=True, add_help_option=False)
@click.argument("words", nargs=-1)
@click.pass_context
def _help(context: click.Context, words: tuple[str, ...]) -> int:
    """The help of a command, as `mirage COMMAND --help` prints it, or of the program."""
    return cli.run([*words, "--help"])


def main() -> NoReturn:
    """The program's entry point."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # processes share the cores; threads of two wait for each other
    gc.set_threshold(*COLLECTED)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup has the loss of the terminal ignored
            signal.signal(number, _interrupt)
    try:
        cli.main()
    finally:  # what was asked for is done, or has failed
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Leave by the way that cleans up half-written folders, as the user's interrupt does."""
    raise KeyboardInterrupt
