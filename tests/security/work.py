"""How much work a call is, counted rather than timed: calls of Python functions, and lines run where loops are.

The same work gives the same number on any machine under any load.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

#: files whose lines are counted: their loops may grow with a square without calling anything
LOOPS = ("facts.py", "fragment.py", "spelling.py", "inlining.py", "inliner.py")


def counted(action: Callable[[], object]) -> int:
    """Calls and lines of an action in this thread."""
    count = 0

    def line(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += 1
        return line

    def call(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += 1
        return line if frame.f_code.co_filename.endswith(LOOPS) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        action()
    finally:
        sys.settrace(before)
    return count
