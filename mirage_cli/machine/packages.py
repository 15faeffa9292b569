"""Optional packages: imported when they are needed, with an error to show where one is absent or broken."""

from __future__ import annotations

import importlib
from typing import Any

from mirage_cli.errors import ToolMissing


def imported(name: str, purpose: str, hint: str) -> Any:
    """The package `name`, which is needed for `purpose`. Raises ToolMissing, with what installs it as the hint: a package that
    is installed but does not fit the rest (another CUDA, another numpy, a library that is missing) may raise anything."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise ToolMissing(f"{name} is needed for {purpose} and is not installed", hint) from None
        failure: Exception = error
    except Exception as error:  # what a broken package raises has no common base
        failure = error
    said = (str(failure).strip().splitlines() or [""])[0]
    raise ToolMissing(f"{name} is needed for {purpose}; importing it fails: {type(failure).__name__}: {said}", hint)


def problem(name: str) -> str:
    """Why a package cannot be imported; nothing where it can."""
    try:
        imported(name, "this", "")
    except ToolMissing as error:
        return str(error).partition("; ")[2] or "not installed"
    return ""
