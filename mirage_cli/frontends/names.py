"""Names of tensors: those that differ from each other, and those of what branches read."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """Names that differ from each other and from those that are taken: a name itself, or with a number."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}  # where to go on: a model may have one name for everything

    def new(self, name: str) -> str:
        """A name like `name` that is free, and from now on taken."""
        free, count = name, self._last.get(name, 0)
        while free in self._taken:
            count += 1
            free = f"{name}_{count}"
        self._last[name] = count
        self._taken.add(free)
        return free


def entered(branch: str, name: str) -> str:
    """What a tensor from around a branch is called where the branch reads it."""
    return f"{name}@{branch}"
