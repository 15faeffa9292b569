"""Registers of the roles of a block of warpgroups: one brings tiles, the others multiply."""

from __future__ import annotations

REGISTERS = 512  #: of a multiprocessor, for each of the 128 threads of a warpgroup
PRODUCER_REGISTERS = 40  #: of a thread of the warpgroup that brings tiles
MOST_REGISTERS = 255


def first_registers(consumers: int, resident: int) -> int:
    """Registers that each thread of a block begins with, where so many blocks share a multiprocessor: the compiler's bound."""
    return REGISTERS // (resident * (consumers + 1)) // 8 * 8


def consumer_registers(consumers: int, resident: int) -> int:
    """Registers that a consumer's thread can take once the producer has given its own. A block has no others than those
    which its threads begin with: whoever asks for more waits for ever."""
    block = first_registers(consumers, resident) * (consumers + 1)
    return (block - PRODUCER_REGISTERS) // consumers // 8 * 8
