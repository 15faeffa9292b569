"""Batches of random programs in processes of their own; one that fails as a whole is tried again program by program."""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Sequence
from unittest import mock

from mirage_cli.backends import cpu
from mirage_cli.processes import isolation

from . import batch
from .batch import Outcome
from .choices import DTYPES, drawn, replayed
from .sketch import Program

ISAS = ("avx2", "base", "avx512")
SLOW = 60.0  #: seconds after which a batch says where it is
FLAGS = dict(cpu.ISA_FLAGS)


def supported() -> tuple[str, ...]:
    """The instruction sets that kernels can be tried in on this machine."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = file.read().split()
    except OSError:
        return ("base",)
    return tuple(i for i in ISAS if {"avx2": "avx2", "avx512": "avx512dq"}.get(i, "") in {*flags, ""})


def run_batch(
    number: int, size: int, seed: int, kinds: Sequence[str], archs: Sequence[str] = (), verified: bool = False
) -> Outcome:
    """Batch `number`: programs of one element type, for one instruction set."""
    dtype, isas = DTYPES[number % len(DTYPES)], supported()
    names = {f"p{k}": k for k in range(number * size, (number + 1) * size)}
    programs = {name: drawn(k, seed, dtype)[0] for name, k in names.items()}
    return tried(programs, isas[number % len(isas)], seed, kinds, archs, verified)


def tried(
    programs: dict[str, Program],
    isa: str,
    seed: int,
    kinds: Sequence[str],
    archs: Sequence[str] = (),
    verified: bool = False,
) -> Outcome:
    """The outcome for programs together; where that fails as a whole, one by one."""
    flags = {"base": FLAGS[isa]}  # the one set of the library, whatever it is
    with mock.patch.object(cpu, "ISA_FLAGS", flags), mock.patch.object(cpu, "isas", lambda: ("base",)):
        try:
            found = batch.run(programs, kinds, seed, archs, verified)
        except Exception as error:
            found = Outcome()
            if len(programs) == 1:
                name = next(iter(programs))
                found.wrong(name, f"{type(error).__name__}: {error}")
            else:
                for name, p in programs.items():
                    found.add(tried({name: p}, isa, seed, kinds, archs, verified))
    if not any(k.startswith("programs for") for k in found.counts):
        found.counts[f"programs for {' '.join(archs) or isa}"] = len(programs)
    return found


def tried_alone(number: int, size: int, seed: int, kinds: Sequence[str], archs: Sequence[str]) -> Outcome:
    """A program of a batch by itself, with stacks on standard error while it takes long."""
    faulthandler.dump_traceback_later(SLOW / 3, repeat=True)
    at, isas = number // size, supported()
    program = drawn(number, seed, DTYPES[at % len(DTYPES)])[0]
    try:
        return tried({f"p{number}": program}, isas[at % len(isas)], seed, kinds, archs, True)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _alone(number: int, choices: list[int], dtype: str, isa: str, seed: int, kinds: Sequence[str]) -> bool:
    name = f"p{number}"
    return bool(tried({name: replayed(choices, number, dtype)}, isa, seed, kinds).problems)


def fails(number: int, choices: list[int], dtype: str, isa: str, seed: int, kinds: Sequence[str]) -> bool:
    """Whether the program of these choices fails alone, in a process of its own."""
    job = (number, choices, dtype, isa, seed, kinds)
    (outcome,) = (o for _, o in isolation.each(_alone, [job], 1, apart=True))
    return outcome is not False


def timed(
    number: int,
    size: int,
    seed: int,
    kinds: Sequence[str],
    archs: Sequence[str],
    verified: bool,
    until: float,
) -> Outcome:
    """The outcome of a batch, empty where that time has passed; with a stack on standard error where it takes long."""
    faulthandler.dump_traceback_later(SLOW)
    try:
        return run_batch(number, size, seed, kinds, archs, verified) if time.time() < until else Outcome()
    finally:
        faulthandler.cancel_dump_traceback_later()
