"""Kinds of jobs for the tests of farms: what a worker may do to its client."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from mirage_cli.processes.jobs import Job, Kind


def here(x: int, *_: Any) -> str:
    return f"{x * x} here"


def square(x: int) -> int:
    return x * x


def ended(x: int) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return x


def held(x: int, folder: str) -> int:
    """Wait in the first process that comes; say which worker's it is."""
    try:
        with open(Path(folder, f"held{x}"), "x") as file:
            file.write(str(os.getppid()))
    except FileExistsError:
        return x * x
    time.sleep(60)
    return x * x


def counted(x: int, folder: str) -> int:
    time.sleep(0.5)
    with open(Path(folder, "count"), "a") as file:
        file.write("made\n")
    return x * x


def number(document: Any, args: Job) -> str:
    if document != args[0] ** 2:
        raise ValueError(f"{document} is no square of {args[0]}")
    return f"{document} there"


def kind(name: str, function: Any, **more: Any) -> Kind:
    return Kind(f"{__name__}:{name}", here, function, number, **more)


SQUARE = kind("SQUARE", square)
ENDED = kind("ENDED", ended)
WRONG = kind("WRONG", lambda x: x)
HELD = kind("HELD", held)
COUNTED = kind("COUNTED", counted)
NOBODY = kind("NOBODY", square, needs=lambda x: ("a compiler of nobody",))
HANGING = kind("HANGING", held, gpu=True, seconds=1.0, needs=lambda x, _: ("gpu Test, driver 1, capability 9.0",))
