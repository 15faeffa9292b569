"""muGraphs: the hierarchical programs that replace fragments. Plain frozen data, validated, printable, JSON both ways.

Levels (OSDI'25, section 2). A `KernelGraph` is a sequence of kernels on stored tensors; a custom kernel holds a
`BlockGraph`, what one thread block does: operators on tiles in four phases (prologue, body of the loop, epilogue, grid
epilogue), the grid splitting axes over blocks and the loop walking one axis; elementwise parts are `ThreadGraph`s whose
values stay in registers. With named axes the maps of the paper are implied: an input is partitioned along the grid axes
that it has (imap) and along the loop axis if it has it (fmap), replicated along the others; an output along its own
(omap). `maps` spells them out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.ops import OPS

PROLOGUE, BODY, EPILOGUE, GRID = "prologue", "body", "epilogue", "grid"
PHASES = (PROLOGUE, BODY, EPILOGUE, GRID)
SPECIAL = {
    "const": 0,
    "exp_minus": 2,
    "exp_difference": 2,
}  #: arities of the thread operators that are not in the registry


@dataclass(frozen=True, slots=True)
class ThreadNode:
    """An elementwise operator; operand k is argument k of the graph while k < arity, else node k - arity."""

    op: str
    inputs: tuple[int, ...] = ()
    value: Fraction | float | None = None


@dataclass(frozen=True, slots=True)
class ThreadGraph:
    """An elementwise function of `arity` operands; its result is the last node's (or the only argument)."""

    arity: int
    nodes: tuple[ThreadNode, ...]

    def validate(self) -> ThreadGraph:
        """The graph itself. Raises InvalidGraph naming the node that breaks a rule."""
        if not self.nodes and self.arity != 1:
            raise InvalidGraph(f"thread graph: no operators for {self.arity} operands")
        for k, n in enumerate(self.nodes):
            if n.op not in OPS and n.op not in SPECIAL:
                raise InvalidGraph(f"thread graph: unknown operator {n.op!r}")
            arity = SPECIAL[n.op] if n.op in SPECIAL else OPS[n.op].arity
            if len(n.inputs) != arity:
                raise InvalidGraph(f"thread graph: {n.op} takes {arity} operands, got {len(n.inputs)}")
            if any(not 0 <= i < self.arity + k for i in n.inputs):
                raise InvalidGraph(f"thread graph: node {k} ({n.op}) reads a value that is not defined before it")
        return self

    def text(self, args: list[str]) -> str:
        """The function as an expression over argument names."""
        values = list(args)
        for n in self.nodes:
            inner = ", ".join(values[i] for i in n.inputs)
            values.append(str(_short(n.value)) if n.op == "const" else f"{n.op}({inner})")
        return values[-1]

    def flops(self) -> int:
        """Price of one element in multiply-adds."""
        return sum(OPS[n.op].flops if n.op in OPS else 8 for n in self.nodes if n.op != "const")


@dataclass(frozen=True, slots=True)
class BlockOp:
    """An operator on tiles.

    `op` is one of
    load        program input `source_value` as a tile
    iota        positions along `axis`
    extent      how many positions `axis` has
    thread      `thread` applied elementwise to `inputs`
    stable_exp  exp up to a factor common along `over`; `stabilise` replaces it before anything is rendered
    contract    sum over the tile parts of `over` of the product of two tiles, multiplied as `dtype`
    sum         sum over the tile parts of `over`
    max, min    the greatest or least number over all positions of `over`; in the epilogue of a value of the body, over the
                iterations as well
    top         a maximum over the tile parts of `over` that only keeps exponentials small
    accum       sum over the iterations of the loop (times `inputs[1]`, a shrink, of what was there before)
    running     such a maximum over the iterations so far
    shrink      exp(old - new) of a running maximum
    grid_top    such a maximum over the blocks that share a split reduction
    grid_sum    sum over these blocks (each weighted with exp(own maximum - common one) when they are given)
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    phase: str
    over: tuple[str, ...] = ()
    thread: ThreadGraph | None = None
    source_value: str | None = None
    axis: str | None = None
    dtype: DType | None = None


EXTREMES = ("max", "min")
REDUCING = ("contract", "sum", "top", *EXTREMES)  #: block operators that consume the tile parts of `over`
MAXIMA = ("top", "running", "grid_top")  #: block operators whose values stand below exp only, see `_validate_maxima`
BLOCK_OPS = (
    "load", "iota", "extent", "thread", "stable_exp", "contract", "sum", "max", "min", "top", "accum", "running", "shrink",
    "grid_top", "grid_sum",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BlockGraph:
    """The operators that one block runs. `grid` are the axes split over blocks (`split` the reduced ones among them),
    `loop` the axis that the body walks, `outputs` the values stored (in the order of the program's outputs)."""

    grid: tuple[str, ...]
    split: tuple[str, ...]
    loop: str | None
    ops: tuple[BlockOp, ...]
    outputs: tuple[str, ...]

    def op(self, name: str) -> BlockOp:
        """The operator called `name`."""
        return next(o for o in self.ops if o.name == name)

    def axes_of(self, p: Program) -> dict[str, frozenset[str]]:
        """For each value the axes that its tile has (a loop axis in the body: the part of one iteration)."""
        axes: dict[str, frozenset[str]] = {}
        for o in self.ops:
            joined = frozenset[str]().union(*(axes[i] for i in o.inputs)) if o.inputs else frozenset[str]()
            if o.op == "load":
                joined = p.axes_of(o.source_value or "")
            elif o.op == "iota":
                joined = frozenset((o.axis or "",))
            axes[o.name] = joined - frozenset(o.over) if o.op in REDUCING else joined
        return axes

    def validate(self, p: Program, maxima: Collection[str] | None = None) -> BlockGraph:
        """The graph itself. Raises InvalidGraph naming the operator that breaks a rule of the muGraph definition.

        `maxima` are the inputs of the program that are maxima of an earlier kernel, where that is known.
        """
        _validate(self, p, maxima)
        return self

    def maps(self, p: Program) -> list[str]:
        """imap, fmap and omap of every input and output, as text."""
        lines = []
        for o in self.ops:
            if o.op == "load":
                own: frozenset[str | None] = frozenset(p.axes_of(o.source_value or ""))
                imap = ", ".join(f"{g}<->{g}" if g in own else f"{g}<->φ" for g in self.grid)
                fmap = "φ" if self.loop not in own or o.phase != BODY else self.loop
                lines.append(f"{o.name}: imap {{{imap}}} fmap {{{fmap}}}")
        for value, out in zip(self.outputs, p.outputs, strict=True):
            own = frozenset(s.axis for s in out.access)
            lines.append(f"{value}: omap {{{', '.join(g for g in self.grid if g in own)}}}")
        return lines

    def text(self, p: Program) -> str:
        """The block graph as readable lines."""
        lines = [f"grid {' '.join(self.grid) or '-'}" + (f" split {' '.join(self.split)}" if self.split else "")]
        lines.append(f"loop {self.loop or '-'}")
        lines += [f"  {line}" for line in self.maps(p)]
        for phase in PHASES:
            for o in self.ops:
                if o.phase == phase:
                    lines.append(f"  {phase:8} {o.name} = {_op_text(o)}")
        return "\n".join([*lines, "  store " + ", ".join(self.outputs)])


def _op_text(operator: BlockOp) -> str:
    if operator.thread is not None:
        return operator.thread.text(list(operator.inputs))
    inner = ", ".join(
        [
            *operator.inputs,
            *([operator.source_value] if operator.source_value else []),
            *([operator.axis] if operator.axis else []),
        ]
    )
    return f"{operator.op}({inner}{'; ' + ' '.join(operator.over) if operator.over else ''})" + (
        f" in {operator.dtype}" if operator.dtype else ""
    )


def _short(v: Fraction | float | None) -> Any:
    return float(v) if isinstance(v, Fraction) and v.denominator != 1 else v


# --- validity ---------------------------------------------------------------------------------------------------------
_BEFORE = {
    PROLOGUE: (PROLOGUE,),
    BODY: (PROLOGUE, BODY),
    EPILOGUE: (PROLOGUE, EPILOGUE),
    GRID: (PROLOGUE, EPILOGUE, GRID),
}
_HOME = {"accum": EPILOGUE, "running": BODY, "shrink": BODY, "grid_sum": GRID, "grid_top": GRID}
_OPERANDS = {
    "load": (0,),
    "iota": (0,),
    "extent": (0,),
    "contract": (2,),
    "accum": (1, 2),
    "grid_sum": (1, 3),
}
_TAKEN_AWAY = {  #: operands that are maxima
    ("exp_minus", 1), ("grid_sum", 1), ("grid_sum", 2), ("exp_difference", 0), ("exp_difference", 1)
}  # fmt: skip


def _validate(b: BlockGraph, p: Program, maxima: Collection[str] | None) -> None:
    """Definition 2.1 on named axes: operands exist and are visible in their phase, every path from a body value to an
    output passes one accumulator, values that depend on a split reduction leave only through a grid reduction, maxima
    stand below exp only. What a valid graph computes does not depend on the sizes of tiles.

    An output may lack a grid axis, since no value of a block depends on which part of an axis it holds unless the value
    has that axis or is partial: only the block at position 0 of that axis stores it. An output that has a split axis is
    stored by each block, its own part.
    """
    known = {a.name for a in p.axes}
    for a in (*b.grid, *([b.loop] if b.loop else [])):
        if a not in known:
            raise InvalidGraph(f"block graph: unknown axis {a!r}")
    if len(set(b.grid)) != len(b.grid) or not set(b.split) <= set(b.grid):
        raise InvalidGraph(f"block graph: grid {b.grid} and its split axes {b.split} do not fit")
    if len(b.outputs) != len(p.outputs):
        raise InvalidGraph(f"block graph: {len(b.outputs)} outputs, its program has {len(p.outputs)}")
    seen: dict[str, BlockOp] = {}
    for operator in b.ops:
        _validate_op(operator, b, seen)
        _validate_reading(operator, p, known)
        _validate_maxima(operator, seen, maxima)
        seen[operator.name] = operator
    axes = b.axes_of(p)
    for operator in b.ops:
        _validate_axes(operator, b, axes)
    if b.loop in set(b.grid) - set(b.split):
        raise InvalidGraph(f"block graph: the loop walks {b.loop}, of which a block holds a part")
    partial = _partial(b, axes)
    _validate_sums(b, axes, partial)
    for value, out in zip(b.outputs, p.outputs, strict=True):
        if value not in seen or (seen[value].phase == BODY and seen[value].op != "running"):
            raise InvalidGraph(f"output {value!r} is not available after the loop")
        if seen[value].op in MAXIMA and not is_maximum(p, out.value):
            raise InvalidGraph(f"output {value} is a maximum, which only keeps exponentials small")
        if not axes[value] <= {s.axis for s in out.access}:
            raise InvalidGraph(f"output {value} has axes {sorted(axes[value])} that its tensor lacks")
        if partial[value]:
            raise InvalidGraph(f"output {value} is a partial result of the split axis {', '.join(b.split)}")


def _validate_reading(operator: BlockOp, p: Program, known: set[str]) -> None:
    """Check that what an operator names of the program exists."""
    if operator.op == "load" and operator.source_value not in {i.name for i in p.inputs}:
        raise InvalidGraph(f"{operator.name}: loads {operator.source_value!r}, which is no input of the program")
    if operator.op in ("iota", "extent") and operator.axis not in known:
        raise InvalidGraph(f"{operator.name}: unknown axis {operator.axis!r}")


def _validate_axes(operator: BlockOp, b: BlockGraph, axes: Mapping[str, frozenset[str]]) -> None:
    """Reductions take axes that their operands have and blocks hold; accumulators take no part of an iteration."""
    own = frozenset[str]().union(*(axes[i] for i in operator.inputs))
    if operator.op in REDUCING and not set(operator.over) <= own:
        raise InvalidGraph(
            f"{operator.name}: {operator.op} over {', '.join(sorted(set(operator.over) - own))}, which its operands lack"
        )
    if operator.op in REDUCING and (parts := set(operator.over) & set(b.grid) - set(b.split)):
        raise InvalidGraph(
            f"{operator.name}: {operator.op} over {', '.join(sorted(parts))}, of which a block holds a part"
        )
    walked = {b.loop} if operator.phase == BODY else set()
    if operator.op in EXTREMES and (parts := set(operator.over) & {*b.split, *walked}):
        raise InvalidGraph(
            f"{operator.name}: {operator.op} over {', '.join(sorted(map(str, parts)))}, of which it sees a part"
        )
    if operator.op in ("accum", "running") and b.loop in own:
        raise InvalidGraph(f"{operator.name}: accumulates a value along the loop axis {b.loop} itself")


def _validate_op(operator: BlockOp, b: BlockGraph, seen: Mapping[str, BlockOp]) -> None:
    if operator.op not in BLOCK_OPS:
        raise InvalidGraph(f"{operator.name}: unknown block operator {operator.op!r}")
    if operator.name in seen:
        raise InvalidGraph(f"{operator.name}: two operators have this name")
    if operator.phase not in _BEFORE or operator.phase != _HOME.get(operator.op, operator.phase):
        raise InvalidGraph(f"{operator.name}: {operator.op} does not stand in the {operator.phase}")
    if operator.op != "thread" and len(operator.inputs) not in (allowed := _OPERANDS.get(operator.op, (1,))):
        raise InvalidGraph(
            f"{operator.name}: {operator.op} takes {' or '.join(map(str, allowed))} operands, got {len(operator.inputs)}"
        )
    if (operator.op == "thread") != (operator.thread is not None):
        raise InvalidGraph(
            f"{operator.name}: {operator.op} {'without a' if operator.thread is None else 'with a'} thread graph"
        )
    if operator.thread is not None:
        operator.thread.validate()
        if len(operator.inputs) != operator.thread.arity:
            raise InvalidGraph(
                f"{operator.name}: thread graph takes {operator.thread.arity} operands, got {len(operator.inputs)}"
            )
    if (operator.phase == BODY) and b.loop is None:
        raise InvalidGraph(f"{operator.name}: is in the body of a loop that there is not")
    for i in operator.inputs:
        if i not in seen:
            raise InvalidGraph(f"{operator.name} = {operator.op}: operand {i!r} is not defined before it")
        phase = seen[i].phase
        if operator.op == "accum" and phase != BODY:
            raise InvalidGraph(f"{operator.name}: accumulates {i}, which is not computed in the body")
        after = seen[i].op == "running" and operator.phase != PROLOGUE  # the loop's last one
        extreme = operator.op in EXTREMES and operator.phase == EPILOGUE and b.loop in operator.over
        carried = phase == BODY and (operator.op == "accum" or extreme)
        if not carried and not after and phase not in _BEFORE[operator.phase]:
            raise InvalidGraph(f"{operator.name} ({operator.phase}) reads {i}, which lives in the {phase}")


def is_maximum(p: Program, value: str) -> bool:
    """True if a value of a program is a maximum that keeps exponentials small."""
    return any(n.name == value and n.op == "top" for n in p.nodes)


def _validate_maxima(operator: BlockOp, seen: Mapping[str, BlockOp], stored: Collection[str] | None) -> None:
    """A maximum stands for any number that keeps exponentials small and is proved as such, so nothing else may depend on
    it: other maxima read it, `shrink`, the weights of `grid_sum`, `exp_minus` as what it takes away, `exp_difference`.
    Nothing else stands in these places. `stored` are the program's inputs that are maxima (None: not known)."""
    if operator.op == "accum" and len(operator.inputs) > 1 and seen[operator.inputs[1]].op != "shrink":
        raise InvalidGraph(f"{operator.name}: accumulates times {operator.inputs[1]}, which is no shrink")
    if operator.op == "shrink" and seen[operator.inputs[0]].op != "running":
        raise InvalidGraph(f"{operator.name}: shrink of {operator.inputs[0]}, which is no running maximum")
    if operator.op in (*MAXIMA, "shrink"):
        return
    places = [(operator.op, k, k) for k in range(len(operator.inputs))]
    if operator.thread is not None and operator.thread.nodes:
        places = [(n.op, k, i) for n in operator.thread.nodes for k, i in enumerate(n.inputs)]
    for op, k, i in places:
        operand = seen[operator.inputs[i]] if i < len(operator.inputs) else None
        loaded = operand is not None and operand.op == "load"
        if loaded and stored is None and (op, k) in _TAKEN_AWAY:
            continue
        maximum = operand is not None and (operand.op in MAXIMA or (loaded and operand.source_value in (stored or ())))
        if maximum and (op, k) not in _TAKEN_AWAY:
            raise InvalidGraph(
                f"{operator.name}: {op} of the maximum {operator.inputs[i]}, which may only keep exponentials small"
            )
        if not maximum and (op, k) in _TAKEN_AWAY:
            raise InvalidGraph(f"{operator.name}: operand {k} of {op} is no maximum")


def _validate_sums(b: BlockGraph, axes: Mapping[str, frozenset[str]], partial: Mapping[str, bool]) -> None:
    """Check that what is summed over iterations and over blocks differs between them; else the number of tiles would
    count."""
    varies: dict[str, bool] = {}
    for operator in b.ops:
        own = axes[operator.name].union(*(axes[i] for i in operator.inputs))
        again = operator.op in ("running", "shrink") or b.loop in own or any(varies[i] for i in operator.inputs)
        varies[operator.name] = operator.phase == BODY and again
        if operator.op == "accum" and not varies[operator.inputs[0]]:
            raise InvalidGraph(
                f"{operator.name}: accumulates {operator.inputs[0]}, which is the same in every iteration"
            )
        if operator.op == "grid_sum" and not partial[operator.inputs[0]]:
            raise InvalidGraph(f"{operator.name}: sums {operator.inputs[0]} over blocks, which is no partial result")
        if operator.op in ("grid_sum", "grid_top") and (
            late := [i for i in operator.inputs[:2] if b.op(i).phase == GRID]
        ):
            raise InvalidGraph(f"{operator.name}: {late[0]} is computed behind the blocks' exchange")
        if operator.op == "grid_sum" and (parts := axes[operator.inputs[0]] & set(b.split)):
            raise InvalidGraph(
                f"{operator.name}: sums along {', '.join(sorted(parts))}, of which every block holds its own part"
            )


def _partial(b: BlockGraph, axes: Mapping[str, frozenset[str]]) -> dict[str, bool]:
    """For each value, True if it misses the contributions of other blocks along a split reduction axis."""
    split = set(b.split)
    partial: dict[str, bool] = {}
    for o in b.ops:
        inherited = any(partial[i] for i in o.inputs)
        reduces = o.op in REDUCING and bool(set(o.over) & split)
        partial[o.name] = (inherited or reduces) and o.op not in ("grid_sum", "grid_top")
        if o.op not in ("grid_sum", "grid_top") and axes[o.name] & split and o.phase == GRID:
            partial[o.name] = True
    return partial


# --- kernels ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CustomKernel:
    """A kernel with a block graph: it computes `program` (a part of the fragment) from tensors of the kernel graph.

    `inputs` and `outputs` are tensor numbers: first the fragment's sources, then its outputs, then intermediates.
    """

    program: Program
    block: BlockGraph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def constants(self, fragment: Program) -> frozenset[int]:
        """The numbers of this kernel's sources that are weights of the model, as the fragment's program says."""
        return frozenset(k for k, t in enumerate(self.inputs) if t in fragment.constants)

    def early(self, fragment: Program) -> frozenset[int]:
        """The numbers of this kernel's sources that no kernel writes, as the fragment's program says."""
        return frozenset(k for k, t in enumerate(self.inputs) if t in fragment.early)


@dataclass(frozen=True, slots=True)
class KernelGraph:
    """Kernels in order; `tensors` counts sources, outputs and intermediates."""

    sources: int
    outputs: int
    tensors: int
    kernels: tuple[CustomKernel, ...]

    def validate(self, part: bool = False) -> KernelGraph:
        """The graph itself; a `part` of another one may read maxima and give them away. Raises InvalidGraph."""
        computed = sum(len(k.outputs) for k in self.kernels)
        ready: set[int] = set()
        maxima: set[int] = set()
        for k in self.kernels:
            if (len(k.inputs), len(k.outputs)) != (len(k.program.sources), len(k.block.outputs)):
                raise InvalidGraph("a kernel's tensors are not those that its program and its block graph have")
            if odd := {t for t in k.outputs if not self.sources <= t < self.tensors}:
                raise InvalidGraph(f"a kernel writes tensors {sorted(odd)}, which are no results")
            if early := {t for t in k.inputs if not 0 <= t < self.sources and t not in ready}:
                raise InvalidGraph(f"a kernel reads tensors {sorted(early)} before they are computed")
            k.program.validate()
            held = {n for n, t in enumerate(k.inputs) if t in maxima}
            k.block.validate(k.program, None if part else {i.name for i in k.program.inputs if i.source in held})
            ready |= set(k.outputs)
            maxima |= {t for t, v in zip(k.outputs, k.block.outputs, strict=False) if k.block.op(v).op in MAXIMA}
        if not part and (lost := {t - self.sources for t in maxima if t < self.sources + self.outputs}):
            raise InvalidGraph(f"output {min(lost)} is a maximum, which only keeps exponentials small")
        wanted = range(self.sources, self.sources + min(self.outputs, computed + 1))  # a count may be any number
        if missing := [t for t in wanted if t not in ready]:
            raise InvalidGraph(f"no kernel computes outputs {missing}")
        if self.tensors > self.sources + computed:
            raise InvalidGraph(f"{self.tensors} tensors, of which kernels compute {computed}")
        return self

    def text(self) -> str:
        """The kernel graph as readable lines."""
        lines = []
        for n, k in enumerate(self.kernels):
            lines.append(f"kernel {n}: tensors {list(k.inputs)} -> {list(k.outputs)}")
            lines += ["  " + line for line in k.block.text(k.program).splitlines()]
        return "\n".join(lines)


def feeds(graph: BlockGraph) -> dict[str, bool]:
    """For every product, whether it multiplies something computed of another one."""
    ops = {o.name: o for o in graph.ops}

    def multiplied(name: str) -> bool:
        o = ops[name]
        return o.op == "contract" or (o.phase == BODY and any(multiplied(i) for i in o.inputs))

    return {o.name: any(multiplied(i) for i in o.inputs) for o in graph.ops if o.op == "contract"}
