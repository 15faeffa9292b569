"""Choices of a random program as numbers: recorded, played again, made fewer and smaller while a program fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from .drawn import program
from .sketch import Program

DTYPES = ("float32", "float16", "float32", "bfloat16", "float16", "float32", "float64")
LONGEST = 6  #: operators that are drawn, each of which may be several nodes


def drawn(number: int, seed: int, dtype: str) -> tuple[Program, list[int]]:
    """The program of this number and seed, and the choices that it is made of."""
    random, made = Random(f"{seed} {number}"), list[int]()

    def pick(n: int) -> int:
        made.append(random.randrange(n))
        return made[-1]

    return program(pick, dtype, number, LONGEST), made


def replayed(choices: Sequence[int], number: int, dtype: str) -> Program:
    """The program of these choices; where they end, the simplest are taken."""
    left = list(choices)[::-1]
    return program(lambda n: left.pop() % n if left else 0, dtype, number, LONGEST)


def reduced(choices: Sequence[int], fails: Callable[[list[int]], bool], tries: int = 200) -> list[int]:
    """Fewer and smaller choices for which a program still fails."""
    best, left = list(choices), tries
    progress = True
    while progress and left > 0:
        progress = False
        for candidate in _simpler(best):
            left -= 1
            if left <= 0:
                break
            if fails(candidate):
                best, progress = candidate, True
                break
    return best


def _simpler(choices: list[int]) -> Iterator[list[int]]:
    """Simpler lists: parts left out, the largest first, then numbers made smaller."""
    size = len(choices) // 2
    while size:
        for at in range(0, len(choices), size):
            yield choices[:at] + choices[at + size :]
        size //= 2
    for k, n in enumerate(choices):
        for smaller in sorted({0, n // 2, n - 1} - {n}):
            if 0 <= smaller < n:
                yield [*choices[:k], smaller, *choices[k + 1 :]]
