"""The options of a run, one declaration each: how it is written, what it takes, what it does.

The command line, the configuration file and the Python interface are made of this table; the values end in `Options`.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from mirage_cli.codegen.requests.passes import PASSES
from mirage_cli.errors import UsageError
from mirage_cli.farm import address
from mirage_cli.options import dims
from mirage_cli.options.options import Options
from mirage_cli.search.schedules.architectures import architectures, default_architectures, kinds

COVERAGE_KINDS = ("flops", "weight_bytes", "nodes")
SCHEDULER = "MIRAGE_SCHEDULER"  #: the variable that stands for `--scheduler` where it is not given
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of values that an option takes: `read` makes its value of what was written, or raises ValueError;
    `expected` says it in words. `pair` is what joins the parts of a mapping's values ("x" for shapes), None where
    no mapping is allowed."""

    expected: str
    metavar: str
    read: Callable[[Any], Any]
    choices: tuple[str, ...] = ()
    pair: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """An option of a run. `name` is the field of `Options`; `many` may be given several times."""

    name: str
    kind: Kind
    help: str
    many: bool = False

    @property
    def key(self) -> str:
        """The name on the command line, without dashes, and in configuration files."""
        return self.name.replace("_", "-")


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        raise ValueError
    return value


def _integer(low: int, high: int | None = None) -> Kind:
    def read(value: Any) -> int:
        number = int(_no_bool(value))
        if number != float(value) or number < low or (high is not None and number > high):
            raise ValueError
        return number

    return Kind(f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}", "N", read)


def _number(low: float, metavar: str) -> Kind:
    def read(value: Any) -> float:
        number = float(_no_bool(value))
        if not math.isfinite(number) or number < low:
            raise ValueError
        return number

    return Kind(f"a number of at least {low:g}", metavar, read)


def size(value: Any) -> int:
    """The bytes of `4G`, `512 MiB`, `1000`. Raises ValueError."""
    match = _SIZE.fullmatch(str(_no_bool(value)).strip())
    if match is None:
        raise ValueError
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _choice(metavar: str, *names: str) -> Kind:
    def read(value: Any) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return Kind(" or ".join(names), metavar, read, choices=names)


def _text(expected: str, metavar: str) -> Kind:
    def read(value: Any) -> str:
        if not isinstance(value, str | PathLike) or not fspath(value):
            raise ValueError
        return str(fspath(value))

    return Kind(expected, metavar, read)


def _shape(value: Any) -> str:
    dims.parse_shapes([str(_no_bool(value))])
    return str(value)


def _dim(value: Any) -> str:
    dims.parse([str(_no_bool(value))])
    return str(value)


def _scheduler(value: Any) -> str:
    return address.checked(_text("an address", "ADDRESS").read(value))


def _coverage(value: Any) -> str:
    kind, _, share = str(_no_bool(value)).partition("=")
    if kind not in COVERAGE_KINDS or not 0 <= float(share) <= 1:
        raise ValueError
    return str(value)


_FLAG = Kind("true or false", "", _flag)
_GLOB = _text("a pattern such as '*attn*'", "GLOB")

#: in the order of the help
SETTINGS: tuple[Setting, ...] = (
    Setting("shape", Kind(dims.SHAPE_FORM, "NAME=1x128", _shape, pair="x"), "Fix an input's shape.", many=True),
    Setting(
        "dim",
        Kind(dims.DIM_FORM, "SYM=N|LO:TYP:HI", _dim, pair=":"),
        "Give a symbolic dimension a value or a range.",
        many=True,
    ),
    Setting(
        "target",
        _choice("KIND", *kinds()),
        f"{', '.join(kinds())} [cpu; cuda with nvcc].",
        many=True,
    ),
    Setting(
        "arch",
        _choice("ARCH", *architectures(), "native"),
        f"CUDA: {', '.join(architectures())} or native [{' and '.join(default_architectures())}].",
        many=True,
    ),
    Setting("gpu", _integer(0), "Measure candidates on this GPU [none]."),
    Setting("measure", _FLAG, "Keep what is measured faster here."),
    Setting("only", _GLOB, "Consider only fragments with such a node.", many=True),
    Setting("skip", _GLOB, "Leave fragments with such a node.", many=True),
    Setting("max_kernels", _integer(1), "Kernels of a fragment, at most"),
    Setting("max_ops", _integer(1), "Operators of a kernel, at most"),
    Setting("candidates", _integer(1), "muGraphs that are looked at more closely"),
    Setting("budget", _number(0, "SECONDS"), "Search time of a fragment [no limit]."),
    Setting("tune_candidates", _integer(0), "Candidates of a fragment that --gpu measures"),
    Setting("tune_budget", _number(0, "SECONDS"), "Time for a fragment's candidates, 0: no limit"),
    Setting("tuned", _FLAG, "Choose by times in the cache without --gpu too."),
    Setting("without", _choice("PASS", *PASSES), "Leave out an optimizer pass, to measure it [none].", many=True),
    Setting("unwritten", _GLOB, "Model inputs that no kernel writes: they are fetched early.", many=True),
    Setting("jobs", _integer(1), "Processes at a time [number of cores]."),
    Setting("seed", _integer(0), "Where random numbers start"),
    Setting("confidence", _integer(1, 1024), "Bits of confidence in the proof"),
    Setting("cache", _text("a folder, or false for none", "DIR"), "Folder of earlier results [user's cache]."),
    Setting("max_memory", Kind("a size such as 4G or 512M", "SIZE", size), "Memory of a process, as 4G [no limit]."),
    Setting(
        "inputs", _text("a file .npz or a folder", "PATH"), "Check with these inputs too: a .npz file or test data."
    ),
    Setting("data", _text("a folder", "DIR"), "External data of a model on standard input."),
    Setting("target_file", _text("a file", "FILE"), "Rates of a CPU or a GPU to plan for [this machine's]."),
    Setting(
        "scheduler",
        Kind("an address such as tls://host:8786", "ADDRESS", _scheduler),
        "Work on a farm: its Dask scheduler [none].",
    ),
    Setting("certificates", _text("a folder", "DIR"), "The farm's certificates [user's]."),
    Setting(
        "require_coverage",
        Kind(
            f"KIND=SHARE with KIND one of {', '.join(COVERAGE_KINDS)} and SHARE from 0 to 1",
            "KIND=SHARE",
            _coverage,
            pair="",
        ),
        "Fail with less, as flops=0.95.",
        many=True,
    ),
    Setting("dry_run", _FLAG, "Search and report, write no model."),
    Setting("force", _FLAG, "Replace every proved fragment, faster or not."),
    Setting("strict", _FLAG, "Any failed fragment is an error."),
)
BY_NAME = {s.name: s for s in SETTINGS}
#: other ways to write an option: key -> (option, what true means, what false means); None leaves the default
OPPOSITES: dict[str, tuple[str, Any, Any]] = {"keep_going": ("strict", False, True), "no_cache": ("cache", "", None)}


def unknown(key: str, known: Sequence[str]) -> tuple[str, str]:
    """(message, hint) for a name that is none of the known ones."""
    close = difflib.get_close_matches(key, known, 1)
    return f"unknown option {key!r}", f"did you mean {close[0]}?" if close else f"options are {', '.join(known)}"


def value_of(setting: Setting, given: Any) -> Any:
    """The value of an option as text or as data: numbers, lists, mappings (`{batch: 4}` for `batch=4`).

    None is the default, `False` no cache. Raises ValueError with what was expected and found.
    """
    if given is None:
        return getattr(Options(), setting.name)
    if setting.name == "cache" and given in (False, ""):
        return ""
    if setting.many:
        return tuple(_one(setting, item) for item in _items(setting, given))
    return _one(setting, given)


def _items(setting: Setting, given: Any) -> list[Any]:
    if isinstance(given, Mapping) and setting.kind.pair is not None:
        return [f"{name}={_joined(value, setting.kind.pair)}" for name, value in given.items()]
    if isinstance(given, list | tuple | set | frozenset):
        return sorted(given) if isinstance(given, set | frozenset) else list(given)
    return [given]


def _joined(value: Any, by: str) -> str:
    return by.join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _one(setting: Setting, given: Any) -> Any:
    try:
        return setting.kind.read(given)
    except UsageError as e:
        raise ValueError(str(e).removeprefix(f"--{setting.key} ")) from None
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"expected {setting.kind.expected}, found {shown(given)}") from None


def shown(value: Any) -> str:
    """A value as a message shows it."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def normalised(key: str, given: Any) -> tuple[str, Any] | None:
    """(field of `Options`, value) for an option written `key`; None when there is no such option.

    Raises ValueError with what was expected and found.
    """
    name = key.replace("-", "_")
    if name in OPPOSITES:
        field, yes, no = OPPOSITES[name]
        if not isinstance(given, bool):
            raise ValueError(f"expected true or false, found {shown(given)}")
        return field, yes if given else no
    setting = BY_NAME.get(name)
    return None if setting is None else (setting.name, value_of(setting, given))


def keys() -> list[str]:
    """All ways to write an option."""
    return [s.key for s in SETTINGS] + [o.replace("_", "-") for o in OPPOSITES]


def options(values: Mapping[str, Any]) -> Options:
    """The options with these values of fields. Raises UsageError when they do not fit each other."""
    usual = os.environ.get(SCHEDULER)
    chosen = Options(**{"scheduler": address.checked(usual) if usual else None, **values})
    dims.parse(chosen.dim)
    dims.parse_shapes(chosen.shape)
    return chosen


def from_keywords(keywords: Mapping[str, Any]) -> Options:
    """The options of a Python call. Raises UsageError for unknown names and values that do not fit."""
    values: dict[str, Any] = {}
    for key, given in keywords.items():
        try:
            entry = normalised(key, given)
        except ValueError as e:
            raise UsageError(f"{key}: {e}") from None
        if entry is None:
            raise UsageError(*unknown(key, [k.replace("-", "_") for k in keys()]))
        if contradicts(values, *entry):
            raise UsageError(f"{key}: contradicts the other options")
        values.setdefault(*entry)
    return options(values)


def contradicts(values: dict[str, Any], field: str, value: Any) -> bool:
    """True if a field has another value already. One that would only be the default again is taken out."""
    if values.get(field) is None:
        values.pop(field, None)
    return field in values and value is not None and values[field] != value
