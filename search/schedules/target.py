"""Targets: the limits, rates, features and fitted constants of an architecture, read from `targets/*.yaml`."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, TypeVar, get_args, get_type_hints

from mirage_cli.errors import UsageError
from mirage_cli.lax.dtypes import DType
from mirage_cli.search.schedules.architectures import CARDS, at, data, kind_of, number, target_names
from mirage_cli.search.schedules.fitted import SECTIONS, Block, Cpu, Rows, Section, Strip

S = TypeVar("S", bound=Section)
CPU = "cpu"  #: the target whose rates are always those of a machine
#: keys of its file that say how fast a machine is, not what fits
CHANGEABLE = (
    "units",
    "bandwidth",
    "single",
    "flops",
    "split",
    "special",
    "launch_us",
    "kernel_us",
    "latency_us",
    "fork_us",
    "margin",
    "strip",
    CPU,
)
_WORDS = {
    int: "an integer of at least 0",
    float: "a number of at least 0",
    bool: "true or false",
    str: "a text",
}


@dataclass(frozen=True, slots=True)
class Features:
    """Features of a target that kernels may use, where a file's list `features` names them."""

    clusters: bool = False  #: blocks form clusters that share their memory
    copy_engine: bool = False  #: boxes of tensors are copied by an engine of their own (TMA)
    dependent_launch: bool = False  #: a kernel begins before the one in front of it has ended, and waits for it itself
    warpgroup_products: bool = False  #: four warps multiply matrices together, out of shared memory (wgmma)


@dataclass(frozen=True, slots=True)
class Target:
    """The device that a kernel is made for. Sizes in bytes, rates per second, times in microseconds."""

    name: str  #: "cpu", "opencl", or an architecture as its compiler spells it
    kind: str  #: the language of its kernels: "cpu" (C++), "cuda", "opencl" or "hip"
    by_default: bool  #: whether kernels are made for it where nobody says for what
    units: int
    shared_bytes: int
    shared_total: int
    registers: int
    threads: int
    bandwidth: float
    flops: Mapping[str, float]
    special: float
    launch_us: float
    kernel_us: float
    latency_us: float
    sections: tuple[Section, ...]  #: fitted constants; a file that lacks one takes that of the file it is `like`
    features: Features = Features()
    single: float = 1.0  #: share of the bandwidth that one unit reads by itself
    fork_us: float = 0.0
    margin: float = 1.0  #: how many times faster than the original a fragment has to be predicted: predictions are off
    #: how many times less than predicted a kernel may take where others of its kind take what was predicted, but for few, and
    #: the same with packed weights
    error: float = 1.25
    packed_error: float = 1.5
    split: float = 0.0  #: of float32 products whose numbers are split for matrix instructions; 0: there are none

    @property
    def threaded(self) -> bool:
        """True if a block is many threads that share memory and wait for one another, else it is one thread."""
        return self.kind != "cpu"

    @property
    def alone(self) -> Target:
        """One unit of it by itself, which hands nothing to others."""
        sections = tuple(s.alone if isinstance(s, Cpu) else s for s in self.sections)
        bandwidth = self.bandwidth * self.single
        return replace(self, units=1, bandwidth=bandwidth, single=1.0, fork_us=0.0, sections=sections)

    @property
    def joins_blocks(self) -> bool:
        """True if blocks of one kernel may reduce together: what one has written, another can be sure to see."""
        return self.kind in ("cuda", "hip")

    @property
    def capability(self) -> int:
        """The architecture's number, such as 900 for sm_90a; 0 of a target without architectures."""
        return number(self.name)

    def fitted(self, section: type[S]) -> S:
        """The constants of a section. Raises UsageError where its kind has none such."""
        for s in self.sections:
            if isinstance(s, section):
                return s
        raise UsageError(f"{self.name} has no section {section.__name__.lower()}")

    @property
    def least_launch_us(self) -> float:
        """Microseconds of the cheapest launch of any engine."""
        own = (
            x.launch_us if isinstance(x, Strip) else x.ahead_us for x in self.sections if isinstance(x, Strip | Rows)
        )
        return min((self.launch_us, *own))

    def rate(self, dtype: DType | None) -> float:
        """Multiply-adds of a matrix product in this type, times two, a second, as kernels can do them."""
        return max(self.library_rate(dtype), self.split if dtype is None or dtype.name == "f32" else 0.0)

    def library_rate(self, dtype: DType | None) -> float:
        """The same of libraries, which multiply float32 by ordinary multiply-adds."""
        return self.flops.get(dtype.name if dtype else "f32", self.flops["f32"])


@functools.cache
def load_target(name: str) -> Target:
    """The target called `name`. Raises UsageError for an unknown one, and for a file whose keys or values are wrong."""
    return _target(name, data(name), at(name))


def changed_target(changes: Mapping[str, Any], place: str) -> Target:
    """A target with other rates and, of the CPU and of strips, fitted constants: `changes` are keys of its file with their
    values, and its name. Limits stay, which sources are made for. Raises UsageError, beginning with `place`, for others and
    wrong values."""
    name = changes.get("name")
    if name not in target_names():
        raise UsageError(f"{place}name: expected {CPU}, or an architecture")
    written = data(name)
    if unknown := sorted({str(k) for k in changes} - {"name", *CHANGEABLE}):
        raise UsageError(f"{place}{unknown[0]}: unknown, or a limit", f"known: {', '.join(CHANGEABLE)}")
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(written.get(key), dict)
        written[key] = {**written[key], **value} if both else value
    return _target(name, written, place)


def _target(name: str, written: dict[str, Any], place: str) -> Target:
    """The target of the keys and values of a file, which it takes apart."""
    kind = kind_of(name)
    for key, wanted in (("name", name), ("kind", kind)):
        if written.get(key) != wanted:
            raise UsageError(f"{place}{key}: expected {wanted}")
    known = SECTIONS.get(kind, {"block": Block})
    own = {key: written.pop(key) for key in known if key in written}
    features, like, _ = written.pop("features", []), written.pop("like", name), written.pop(CARDS, None)
    borrowed = own if like == name else data(like)
    if unknown := sorted(set(features) - {f.name for f in fields(Features)}):
        raise UsageError(f"{place}features: unknown {', '.join(unknown)}")
    values = _values(Target, written, place, ("sections", "features"))
    sections = []
    for key, section in known.items():
        source, where = (own, place) if key in own else (borrowed, at(like))
        if key not in source:
            raise UsageError(f"{place}{key}: missing" + (f", in {like}.yaml too" if like != name else ""))
        sections.append(section(**_values(section, source[key], f"{where}{key}.")))
    return Target(**values, sections=tuple(sections), features=Features(**dict.fromkeys(features, True)))


def _values(kind: type[Any], written: Any, place: str, made: Collection[str] = ()) -> dict[str, Any]:
    """The values of a dataclass's fields, but those `made` otherwise, by the keys of a part of a file. Raises UsageError for
    unknown and missing keys, and for values of other types."""
    known = {f.name: f for f in fields(kind) if f.name not in made}
    keys = written if isinstance(written, dict) else {}
    for key in sorted({str(k) for k in keys} - set(known)):
        raise UsageError(f"{place}{key}: unknown", f"known: {', '.join(known)}")
    for key, f in known.items():
        if f.default is MISSING and key not in keys:
            raise UsageError(f"{place}{key}: missing")
    hints = get_type_hints(kind)
    return {k: _value(hints[k], v, place + k) for k, v in keys.items()}


def _value(hint: Any, value: Any, place: str) -> Any:
    """A value of a file in the type of its field; numbers are no less than 0."""
    if get_args(hint) and isinstance(value, dict):
        first, second = get_args(hint)
        return {_value(first, k, place): _value(second, v, f"{place}.{k}") for k, v in value.items()}
    if hint is float and type(value) in (int, str):  # YAML takes 7.7e14 for a text
        with contextlib.suppress(ValueError):
            value = float(value)
    if type(value) is not hint or (hint in (int, float) and not 0 <= value < math.inf):
        raise UsageError(f"{place}: {value!r} is not {_WORDS.get(hint, 'a table')}")
    return value
