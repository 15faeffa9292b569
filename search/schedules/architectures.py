"""The folder `targets/`: which targets there are, and which devices run code for them; and the names of the engines. Imports
neither numpy nor yaml at once, so that the command line can name them."""

from __future__ import annotations

import functools
import re
from importlib.resources import files
from typing import Any

from mirage_cli.errors import UsageError

BLOCK = "block"  #: the engine that suits most graphs, and the only one of a CPU
ENGINES = ("rows", "warpgroup", "strip")  #: the engines beside it
CARDS = "cards"  #: the key of a target's file with rates of other cards of its architecture
PREFIXES = {"cuda": "sm_", "hip": "gfx"}  #: how the names of architectures begin
_BY_DEFAULT = re.compile(r"^by_default: *true\b", re.MULTILINE)


def target_names() -> list[str]:
    """The targets that there are files for."""
    folder = files("mirage_cli.search").joinpath("targets")
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


def at(name: str) -> str:
    """The prefix of errors about a target's file."""
    return f"search/targets/{name}.yaml: "


def data(name: str) -> dict[str, Any]:
    """The keys and values of a target's file. Raises UsageError for an unknown target."""
    import yaml  # noqa: PLC0415 - the command line names targets without it

    if name not in target_names():
        raise UsageError(f"unknown architecture {name!r}", f"known: {', '.join(target_names())}")
    content = yaml.safe_load(_text(name))
    if not isinstance(content, dict):
        raise UsageError(f"{at(name)}expected keys with values")
    return content


def _text(name: str) -> str:
    return files("mirage_cli.search").joinpath("targets", f"{name}.yaml").read_text(encoding="utf-8")


def kind_of(name: str) -> str:
    """The kind of the target called so: that of its architecture's prefix, else its own name."""
    return next((kind for kind, prefix in PREFIXES.items() if name.startswith(prefix)), name)


FIRST = ("cuda", "cpu")  #: kinds that are built where nothing is said


def kinds() -> tuple[str, ...]:
    """The kinds of targets that there are files for."""
    return tuple(sorted({kind_of(n) for n in target_names()}, key=lambda kind: (*(kind != k for k in FIRST), kind)))


@functools.cache
def architectures(kind: str = "cuda") -> tuple[str, ...]:
    """The architectures of a kind, oldest first."""
    return tuple(sorted((n for n in target_names() if kind_of(n) == kind), key=lambda n: (number(n), n)))


@functools.cache
def default_architectures(kind: str = "cuda") -> tuple[str, ...]:
    """Those that kernels are made for where nobody says for which."""
    return tuple(n for n in architectures(kind) if _BY_DEFAULT.search(_text(n)))


def number(name: str) -> int:
    """An architecture as `__CUDA_ARCH__` has it, such as 900 for sm_90a, or the digits of an AMD one, such as 0x90a for
    gfx90a; 0 of a target without architectures."""
    if match := re.match(PREFIXES["cuda"] + r"(\d+)", name):
        return 10 * int(match[1])
    return int(name.removeprefix(PREFIXES["hip"]), 16) if name.startswith(PREFIXES["hip"]) else 0


def alone(name: str) -> bool:
    """True if devices of an architecture's own number alone run its code, as that of sm_90a; else newer ones do too."""
    return name[-1].isalpha() or name.startswith(PREFIXES["hip"])


def native(device: str, capability: str) -> str:
    """The architecture for a device with this compute capability, such as "9.0": the newest one whose code it runs. Raises
    UsageError for a device that runs none."""
    major, minor = (int(n) for n in capability.split("."))
    own = 100 * major + 10 * minor
    fitting = [n for n in architectures() if (number(n) == own if alone(n) else number(n) <= own)]
    if not fitting:
        known = ", ".join(architectures())
        raise UsageError(f"{device} has compute capability {capability}, which runs code for none of {known}")
    return fitting[-1]


def card_changes(name: str, device: str) -> dict[str, Any]:
    """The keys of a target's file that have other values for a device, by the driver's name for it, with the target's name;
    none for a card that the file does not know."""
    cards = data(name).get(CARDS, {})
    return next(({"name": name, **changes} for card, changes in cards.items() if card in device), {})
