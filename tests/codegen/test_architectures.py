"""One source for several architectures: which kernels each device runs, and which are compiled for it."""

from __future__ import annotations

import itertools
import re

import pytest

from mirage_cli.codegen import source
from mirage_cli.kernel_language.printer import text
from mirage_cli.lax.dtypes import F32
from mirage_cli.planning.plan import PlanOptions, plan_fragment
from mirage_cli.search.schedules.architectures import alone, architectures, number

from .programs import NAMED, program

DEVICES = (800, 860, 870, 890, 900, 1000, 1030, 1200, 1210)
SOME = [some for n in (2, 3, 4) for some in itertools.permutations(architectures(), n)]


def _loaded(built: tuple[str, ...], device: int) -> str | None:
    """Whose code CUDA loads on a device: that made for its number, else the newest that is older and not for its own
    number alone."""
    runs = [n for n in built if (number(n) == device if alone(n) else number(n) <= device)]
    return max(runs, key=number, default=None)


def _holds(condition: str, device: int) -> bool:
    """Whether a C condition holds on a device."""
    text = re.sub(r"mirage::capability\(\)|__CUDA_ARCH__", str(device), condition).replace("&&", "and")
    assert re.fullmatch(r"[\d<>=! and]+", text)
    return bool(eval(text))


@pytest.mark.parametrize("built", SOME, ids="-".join)
def test_a_device_runs_the_kernels_whose_code_is_loaded(built: tuple[str, ...]) -> None:
    for device in DEVICES:
        tests = {n: source._device_tests(n, built, source.ARCHITECTURE) for n in built}
        chosen = [n for n, own in tests.items() if _holds(" && ".join(map(text, own)), device)]
        loaded = _loaded(built, device)
        assert chosen == [loaded] or (loaded is None and len(chosen) <= 1)


def test_one_architecture_needs_no_test() -> None:
    assert source._device_tests("sm_90a", ["sm_90a"], source.ARCHITECTURE) == []


@pytest.mark.parametrize("built", [("sm_120", "sm_80", "sm_90a"), architectures()], ids="-".join)
def test_the_source_of_a_plan(built: tuple[str, ...]) -> None:
    """Kernels are launched, and their workspace is asked for, on the devices that they are compiled for."""
    plan = plan_fragment("abc", "n", program(NAMED["rms_linear"], F32), 6, PlanOptions({"cuda": built})).plans["cuda"]
    ways = [o.alternative.target for o in plan.others] + [plan.target]
    assert plan.target == "sm_120" and sorted(ways) == sorted(built)
    entry = re.findall(r"^    (?:if \((.*)\) )?return run(\d)\(", plan.text, re.MULTILINE)
    assert [int(k) for _, k in entry] == list(range(len(built))) and not entry[-1][0]
    sizes = re.findall(r"^    if \((mirage::capability.*)\) return ", plan.text, re.MULTILINE)
    assert sizes[: len(built) - 1] == [condition for condition, _ in entry[:-1]]
    guards = iter(re.findall(r"^#if defined\(__CUDA_ARCH__\) && !\((.*)\)$", plan.text, re.MULTILINE))
    kernels = [len(o.alternative.schedules) for o in plan.others] + [len(plan.schedules)]
    compiled = [{next(guards) for _ in range(n)} for n in kernels]
    assert next(guards, None) is None
    for device in DEVICES:
        launched = next(w for w, (c, _) in zip(ways, entry, strict=True) if not c or _holds(c, device))
        if loaded := _loaded(built, device):
            assert [w for w, (c,) in zip(ways, compiled, strict=True) if _holds(c, device)] == [launched] == [loaded]
