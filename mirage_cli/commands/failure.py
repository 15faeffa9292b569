"""From an exception to what the user sees: one error of the catalogue, with the place of a log where it is our fault."""

from __future__ import annotations

import errno
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from mirage_cli import __version__
from mirage_cli.errors import InternalError, Interrupted, MirageError, OutOfResources, UsageError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_BROKEN = (errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)


def as_error(raised: BaseException, args: Sequence[str]) -> MirageError:
    """The error to show for an exception that ended a command. Those with exit code 5 leave a log."""
    error = _translated(raised)
    if error.exit_code == InternalError.exit_code:
        log = write_log(raised, args)
        place = f"the log is {log}" if log else "no log could be written; run again with --verbose"
        if isinstance(error, InternalError):
            error.hint = f"this is a defect of mirage, please report it with the log; {place}"
        else:
            error.hint = f"{error.hint}; {place}" if error.hint else place
    return error


def _translated(raised: BaseException) -> MirageError:
    if isinstance(raised, MirageError):
        return raised
    if isinstance(raised, click.ClickException):
        return _usage(raised)
    if _interrupted(raised):
        return Interrupted("interrupted")
    if isinstance(raised, MemoryError):
        return OutOfResources("out of memory", "try fewer --jobs, or --only for a part of the model")
    if isinstance(raised, OSError) and raised.errno in (*_FULL, *_BROKEN, *_FORBIDDEN):
        named = f"{raised.filename}: " if raised.filename else ""
        kind = UsageError if raised.errno in _FORBIDDEN else OutOfResources
        return kind(f"{named}{raised.strerror}")
    text = str(raised).strip()
    return InternalError(f"internal error: {type(raised).__name__}{f': {text}' if text else ''}")


def _interrupted(raised: BaseException) -> bool:
    """True if an interrupt is behind it: libraries that are interrupted while they load tell of an import that
    failed."""
    link: BaseException | None = raised
    while link is not None:
        if isinstance(link, KeyboardInterrupt | click.Abort):
            return True
        link = link.__cause__ or link.__context__
    return False


def _usage(raised: click.ClickException) -> UsageError:
    context = raised.ctx if isinstance(raised, click.UsageError) else None
    path = context.command_path if context is not None else "mirage"
    return UsageError(raised.format_message(), f"see {path} --help")


def write_log(raised: BaseException, args: Sequence[str]) -> Path | None:
    """A file with the traceback and what is needed to understand it; None where nothing can be written."""
    from mirage_cli.machine import user_folders

    text = "\n".join(
        [
            f"mirage {__version__}, Python {sys.version.split()[0]}, {platform.platform()}",
            f"arguments: {list(args)!r}",
            "",
            "".join(traceback.format_exception(raised)),
        ]
    )
    name = time.strftime("mirage-%Y%m%d-%H%M%S-")
    for find in (user_folders.logs, tempfile.gettempdir):
        try:
            folder = find()
            if folder is None:
                continue
            Path(folder).mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", prefix=name, suffix=".log", dir=folder, delete=False, encoding="utf-8", errors="backslashreplace"
            ) as log:
                log.write(text)
            return Path(log.name)
        except OSError:
            continue
    return None
