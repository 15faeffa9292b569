"""The catalogue of errors a user can see: one class for each, with its stable code, exit code and hint.

Commands catch `MirageError` in one place; anything else is a defect of ours and ends as `InternalError`.
"""

from __future__ import annotations

from typing import Any


class MirageError(Exception):
    """Base of every error that is meant for the user.

    `code` is stable and documented, `exit_code` is the command's exit status, `hint` says what to do next.
    """

    code = "error"
    exit_code = 5
    hint = ""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint

    def to_json(self) -> dict[str, Any]:
        """The document that a command with `--json` prints in place of its own."""
        return {"error": {"code": self.code, "message": str(self), "hint": self.hint}}


class UsageError(MirageError):
    """A wrong option or argument."""

    code = "usage"
    exit_code = 2


class ConfigError(UsageError):
    """A configuration file that does not fit its schema."""

    code = "config"


class Busy(UsageError):
    """Another run works in the same place."""

    code = "busy"
    hint = "wait until it has ended, or name another folder"


class CheckFailed(MirageError):
    """A proof or a comparison found a difference."""

    code = "check-failed"
    exit_code = 1


class ModelError(MirageError):
    """The model file cannot be read or is invalid."""

    code = "model-unreadable"
    exit_code = 3


class UnsupportedFormat(ModelError):
    """The file is not in a format that this program reads."""

    code = "model-format"


class ToolMissing(MirageError):
    """A program or package that this command needs is absent."""

    code = "tool-missing"
    exit_code = 4


class CompileError(MirageError):
    """A compiler refused a rendered source: that of a kernel of a `kind` of target, where it is one."""

    code = "compile-failed"
    exit_code = 5
    kind = ""


class InvalidGraph(MirageError):
    """An intermediate form breaks one of its own rules (shape, level, axis)."""

    code = "invalid-graph"
    exit_code = 5


class Refused(MirageError):
    """Something is outside what a stage can do; the reason is data and ends up in the report, not a crash."""

    code = "refused"
    exit_code = 5


class WrongTensor(UsageError, Refused):
    """A tensor that a kernel was given does not fit: its shape, type, place or layout."""


class OutOfResources(MirageError):
    """The machine has no memory or disk space left for the run, or its disk fails."""

    code = "out-of-resources"
    exit_code = 5


class OutOfTime(MirageError):
    """A run of a model took longer than it may."""

    code = "out-of-time"
    exit_code = 5
    hint = "give it more time: --timeout SECONDS"


class Crashed(MirageError):
    """A process that ran a model, or a library, for this one has ended."""

    code = "crashed"
    exit_code = 5
    hint = "what ran there has a defect, or memory was short: try another version of onnxruntime (or torch)"


class FarmLost(MirageError):
    """A farm's scheduler does not answer."""

    code = "farm-lost"
    exit_code = 4
    hint = "what was found until now is kept: the next run goes on from there"


class InternalError(MirageError):
    """A defect of this program; the message says where the log is."""

    code = "internal"
    exit_code = 5


class Interrupted(MirageError):
    """The user stopped the run."""

    code = "interrupted"
    exit_code = 130
