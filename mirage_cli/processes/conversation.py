"""A program that answers, line by line, what it is asked on its input, for as long as it is needed."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from mirage_cli.errors import CheckFailed
from mirage_cli.processes import programs, termination


class Conversation:
    """The two ends of a program that runs; each answer has `timeout` seconds."""

    def __init__(self, process: subprocess.Popen[bytes], timeout: float) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._to, self._from, self._timeout = process.stdin, process.stdout, timeout

    def ask(self, question: str) -> str:
        """The line that it answers. Raises CheckFailed where it gives none."""
        with contextlib.suppress(BrokenPipeError):  # it has ended: there is no answer
            self._to.write(question.encode())
            self._to.flush()
        ready, _, _ = select.select([self._from], [], [], self._timeout)
        answer = self._from.readline().decode(errors="replace").strip() if ready else ""
        if not answer:
            raise CheckFailed("it ended" if ready else f"there was no answer in {self._timeout:g} seconds")
        return answer


@contextlib.contextmanager
def conversation(command: Sequence[str], folder: Path, timeout: float) -> Iterator[Conversation]:
    """Run `command` in `folder` until the block ends; it writes a line for each question, at once. Raises CheckFailed."""
    environment = os.environ | {"LC_ALL": "C", "PATH": programs.search_path()}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    try:
        process = subprocess.Popen(list(command), cwd=folder, env=environment, **pipes)  # type: ignore[call-overload]
    except OSError as error:
        raise CheckFailed(f"{command[0]} cannot be run: {error.strerror or error}") from error
    try:
        yield Conversation(process, timeout)
    finally:
        process.kill()
        termination.awaited(process)
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
