"""The engine `strip`: warps that walk the loop on their own, with values in registers and rings of tiles of their own.

A block's warps are groups of `members`; a group shares its rows out to its members and takes every so manieth iteration.
Products are matrix instructions whose results stay in registers (a *strip* of each warp), a strip can be the operand of the
next product, sums and maxima along rows stay within four lanes. Behind the loop groups merge what they have accumulated
(weighted where a running maximum goes with it), then the blocks of a cluster that share a split reduction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mirage_cli.codegen.read_back import read_back
from mirage_cli.codegen.requests.request import Kernel, Request
from mirage_cli.codegen.strip.merge import StripMerge
from mirage_cli.codegen.strip.values import SWIZZLED, OperandTile
from mirage_cli.errors import Refused
from mirage_cli.search.schedules.strip import resident

MOST_FLOATS = 200  #: registers of a thread for results of products, beyond which kernels spill


@dataclass(frozen=True, slots=True)
class StripProgram:
    """A strip kernel with every decision made, as readable lines."""

    lines: tuple[str, ...]

    def text(self) -> str:
        """The lines."""
        return "\n".join(self.lines)


def strip_kernel(r: Request) -> Kernel:
    """A kernel of the engine `strip`. Raises Refused where the block graph or the schedule does not suit it."""
    return _Kernel(r).made_kernel()


class _Kernel(StripMerge):
    def made_kernel(self) -> Kernel:
        """The whole kernel."""
        self.walk()
        self.finish()
        floats = sum(4 * m.mt * m.nt for m in self.matrices.values() if m.name in self.produced)
        if floats > MOST_FLOATS:
            raise Refused(f"{floats} registers of strips for each thread")
        ring = [t for t in self.tiles.values() if t.ring]
        offsets, stage = {}, 0
        for t in ring:
            offsets[t.name] = stage
            stage += t.bytes
        if not ring:
            raise Refused("the loop loads no tiles")
        stages = self.s.stages
        declared, shared = self.memory.layout(stage * stages * self.groups)
        if shared > self.r.target.shared_bytes:
            raise Refused(f"{shared} bytes of shared memory, {self.r.target.name} has {self.r.target.shared_bytes}")
        threads = 32 * self.s.warps
        held_blocks = resident(self.r.target, shared, threads, floats)
        held = [t for t in self.tiles.values() if not t.ring and not t.computed]
        ring_place = f"unsigned char* const ring = shared + group * {stage * stages};"
        context: dict[str, Any] = self.context() | {
            "headers": ["strip.cuh", *(["strip_group.cuh"] if self.memory.unit == SWIZZLED else []), "tile.cuh"],
            "template": "strip.j2",
            "members": [],
            "cluster": self.splits,
            "dependent": self.r.target.features.dependent_launch,
            "threads": threads,
            "resident": held_blocks,
            "shared_bytes": shared,
            "group": self.group_threads,
            "row_warps": self.members,
            "across": self.across,
            "groups": self.groups,
            "unit": self.memory.unit,
            "stages": stages,
            "stage_bytes": stage,
            "declare": [*self.declare, *declared, ring_place, *self.before_loop],
            "ring_constants": self.loads([t for t in ring if t.constant]),
            "ring_others": self.loads([t for t in ring if not t.constant]),
            "held_constants": self.loads([t for t in held if t.constant]),
            "held_others": self.loads([t for t in held if not t.constant]),
            "awaits_held": self.awaits_held(),
            "prologue": [*self.prologue, *self.before] if self.prologue or self.awaits_held() else [],
            "body": self.body,
            "epilogue": self.epilogue,
        }
        if not context["prologue"]:
            context["declare"] += self.before
        context["grid"] = sorted(context["grid"], key=lambda g: g["axis"] in self.g.split)
        for key in ("declare", "ring_constants", "ring_others", "prologue", "body", "epilogue"):
            context[key] = [_placed(line, offsets) for line in context[key]]
        return read_back(self.r, StripProgram(tuple(self.summary(shared, held_blocks))), context)

    def loads(self, tiles: list[OperandTile]) -> list[str]:
        """Start copying tiles."""
        return [line for t in tiles for line in self.load_lines(t)]

    def awaits_held(self) -> bool:
        """True if something before or in the loop reads a tile that is loaded once."""
        names = [f"{t.name}_tile" for t in self.tiles.values() if not t.ring and not t.computed]
        lines = [*self.prologue, *self.before, *self.body]
        return any(n in line for line in lines for n in names)

    def summary(self, shared: int, blocks: int) -> list[str]:
        """A summary of the kernel's parts for golden files, a line each."""
        lines = [f"strip {self.s.to_json()} shared {shared} resident {blocks} cluster {self.splits}"]
        for t in self.tiles.values():
            place = "ring" if t.ring else "held"
            lines.append(
                f"tile {t.name}: {t.dtype} {place} {dict(t.outer)} x {dict(t.inner)} as {t.n_outer} x {t.n_inner}"
            )
        for m in self.matrices.values():
            beside = f" by {m.across}" if m.across > 1 else ""
            lines.append(f"strip {m.name}: {dict(m.rows)} x {dict(m.cols)} as {m.mt} x {m.nt}{beside}")
        lines += [f"rows {v.name}: {dict(v.rows)}" for v in self.row_vectors.values()]
        lines += [f"vector {v.name}: {dict(v.axes)}" for v in self.vectors.values()]
        lines += [f"sum {s.name}: {dict(s.axes)} over the {s.along} side of {s.tile.name}" for s in self.sums.values()]
        for phase in ("prologue", "before", "body", "epilogue"):
            lines += [f"{phase}: {line}" for line in getattr(self, phase)]
        return lines


def _placed(line: str, offsets: dict[str, int]) -> str:
    return re.sub(r"OFFSET_(\w+)", lambda m: str(offsets[m[1]]), line)
