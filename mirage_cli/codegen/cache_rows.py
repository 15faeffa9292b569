"""The operator that brings new rows of attention into their caches: the one kernel that is not searched, since it moves data
where numbers in memory say. Its sources are `templates/include/mirage/cache_rows.h`, for sizes that its name tells."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from mirage_cli.codegen import render
from mirage_cli.lax.dtypes import BY_NAME, DType

DOMAIN = "mirage"  #: of operators that a library of ours has
UNIT = 8  #: heads have multiples of so many numbers
CHUNK = 16  #: and of caches with scales multiples of so many bytes
#: element types of caches (u4: of a number + 8) whose numbers are multiples of scales, and what templates call them
SCALED = {"i8": "int8_t", "e4m3": "e4m3", "u4": "Nibbles"}
_NAME = "cache_rows_"
_TYPES = {"f16": ("half", "__half"), "bf16": ("bfloat", "__nv_bfloat16"), "f32": ("float", "float")}
_LETTERS = "hkdtipln"


@dataclass(frozen=True, slots=True)
class CacheRows:
    """Queries [batch, new, heads * size], keys and values [batch, new, shared * size] of a `dtype`, or all in one (`packed`),
    of which the first `turned` numbers of a head are turned (0: none), as neighbours (`interleaved`) or halves, by angles of
    positions that are `listed` or follow what is filled. Queries that are apart and not turned are no operand.

    Its results are the queries, where they are packed or turned, both caches, and for each sequence how many positions were
    filled before and which is the last one. Caches of a window's size are further results: those that attention reads hold
    what they kept and all that is new, and rows of these are counted."""

    dtype: str
    heads: int
    shared: int
    size: int
    turned: int = 0
    interleaved: bool = False
    packed: bool = False
    listed: bool = False
    lengths: int = 1  #: dimensions, the others than the first have one position
    whole: int = 0  #: likewise, of one position each
    window: int = 0  #: positions that a query sees where caches keep little more; 0: they keep all
    scales: int = 0  #: that a cache has: 1, or one for each of its `shared * size` channels; 0: it has the `dtype`
    stored: str = ""  #: the element type of a cache with scales

    @property
    def launches(self) -> int:
        """Of its kernels: what a cache of the window's size keeps is copied by one of its own."""
        return 2 if self.window else 1

    @property
    def copied(self) -> float:
        """Bytes of a sequence's keys and values that a step reads and writes besides, with caches of a window's size."""
        return 4 * self.window * self.shared * self.size * self.cache.bits / 8

    @property
    def problem(self) -> str:
        """Why there is no such kernel, or nothing."""
        if self.dtype not in _TYPES:
            return f"caches of {self.dtype}"
        if self.scales not in (0, 1, self.shared * self.size) or (self.stored in SCALED) != bool(self.scales):
            return f"{self.scales} scales of {self.shared * self.size} channels of {self.stored or self.dtype}"
        unit = 8 * CHUNK // self.cache.bits if self.scales else UNIT
        if self.size % unit or self.turned % (2 * self.cache.per_byte) or not 0 <= self.turned <= self.size:
            return f"heads of {self.size} numbers, of which {self.turned} are turned"
        return ""

    @property
    def cache(self) -> DType:
        """The element type of its caches."""
        return BY_NAME[self.stored or self.dtype]

    @property
    def writes_queries(self) -> bool:
        """True if queries are among the results."""
        return self.packed or self.turned > 0

    @property
    def id(self) -> str:
        """The identifier of its kernels: its fields."""
        own = (self.heads, self.shared, self.size, self.turned, self.interleaved, self.packed, self.listed)
        told = "".join(f"{c}{int(n)}" for c, n in zip(_LETTERS, own, strict=False))
        return "".join(
            [
                f"{self.dtype}{told}n{self.lengths}w{self.whole}",
                f"s{self.window}" if self.window else "",
                f"q{self.scales}{self.stored}" if self.scales else "",
            ]
        )

    @property
    def op_type(self) -> str:
        """The operator's name in the patched model."""
        return f"{_NAME}{self.id}"

    def texts(self) -> tuple[str, str]:
        """The sources for CPUs and for CUDA."""
        numbers = [self.heads, self.shared, self.size, self.turned]
        told = [*map(str, numbers), *(str(x).lower() for x in (self.interleaved, self.packed, self.listed))]
        return tuple(  # type: ignore[return-value]
            render.render(
                f"cache_rows.{suffix}.j2",
                id=self.id,
                types=(type_, SCALED.get(self.stored, type_)),
                numbers=[*told, str(self.scales > 1).lower(), str(self.window)],
            )
            for suffix, type_ in zip(("cpp", "cu"), _TYPES[self.dtype], strict=True)
        )


def named(op_type: str) -> CacheRows | None:
    """The operator with a name; None for names of others."""
    numbers = "".join(rf"{c}(\d+)" for c in "hkdtiplnw")
    found = re.fullmatch(rf"{_NAME}(b?f\d+){numbers}(?:s(\d+))?(?:q(\d+)({'|'.join(SCALED)}))?", op_type)
    if found is None:
        return None
    kinds: dict[str, Any] = {"str": str, "int": int, "bool": lambda n: bool(int(n))}
    told = (found[1], *found.groups("0")[1:-1], found[found.re.groups] or "")
    rows = CacheRows(**{f.name: kinds[str(f.type)](n) for f, n in zip(fields(CacheRows), told, strict=True)})
    return rows if not rows.problem and rows.op_type == op_type else None
