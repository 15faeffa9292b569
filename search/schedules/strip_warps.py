"""The warps of a group, as a schedule of the engine `strip` puts them together."""

from __future__ import annotations

from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target


def across_of(s: Schedule) -> int:
    """The warps of a group that share the columns of its strips."""
    return dict(s.numbers).get("across", 1)


def multiply_together(s: Schedule, target: Target) -> bool:
    """True if the four warps of 64 rows multiply together, as matrix instructions of a warpgroup: where columns are shared,
    since operands lie in shared memory then."""
    return target.features.warpgroup_products and across_of(s) > 1 and s.number("members") % 4 == 0
