"""From a block graph and a schedule to a TileProgram: where every value lives and in which form it is computed.

Rules, in order of the operators:
1. A load becomes a buffer where a contraction reads it or where it is read more than once (on the CPU: where its type
   needs converting, which is done once); otherwise expressions read it where it is stored.
2. A contraction's result is a fragment; one that is only accumulated is the accumulator itself.
3. An elementwise value is part of its only reader's expression when both range over the same axes in the same phase;
   otherwise it gets a buffer: a fragment when it is made of fragments, a shared tile when not. What a contraction reads
   gets a buffer of the contraction's type in a layout that separates summed and free axes.
4. A sum or maximum gets a shared buffer; one that is only accumulated is the accumulator itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_cli.codegen.tiles.buffers import Tiles
from mirage_cli.codegen.tiles.stored import MATRIX_TYPES, StoredReads, matrix_type, pitch, storage_order
from mirage_cli.codegen.tiles.tile import (
    FRAGMENT,
    RING,
    SHARED,
    Apply,
    Buffer,
    Compute,
    Contract,
    Count,
    Exchange,
    Expr,
    Global,
    GridSum,
    GridTop,
    Init,
    Load,
    Position,
    Reduce,
    Ref,
    Running,
    Scale,
    Sizes,
    Store,
    TileNode,
    TileProgram,
    count,
    from_thread,
    substitute,
)
from mirage_cli.errors import Refused
from mirage_cli.lax.dtypes import BF16, F16, F32, F64, DType
from mirage_cli.lax.ir.program import Input, Program
from mirage_cli.search.mugraph.mugraph import BODY, EPILOGUE, EXTREMES, GRID, PROLOGUE, BlockGraph, BlockOp
from mirage_cli.search.mugraph.subtracted_sums import wide_sums
from mirage_cli.search.schedules.packed import weights
from mirage_cli.search.schedules.schedule import Schedule
from mirage_cli.search.schedules.target import Target

CHEAP_FLOPS = 1  #: an elementwise value of at most this price is computed again rather than kept


def lower(program: Program, graph: BlockGraph, schedule: Schedule, target: Target, fusion: bool = True) -> TileProgram:
    """The tile program, with plain layouts, without memory plan and barriers. Without `fusion` every elementwise value
    that another operator reads becomes a shared tile. Raises Refused where the target cannot run the graph."""
    if graph.split and not target.joins_blocks:
        raise Refused("blocks of this target do not reduce together")
    schedule.validate(graph)
    return _Lowering(program, graph, schedule, target, fusion).run()


class _Lowering(Tiles):
    def __init__(self, program: Program, graph: BlockGraph, schedule: Schedule, target: Target, fusion: bool) -> None:
        super().__init__(program, graph, schedule, target)
        self.fusion = fusion
        self.stored = StoredReads(program, self.shapes)
        self.axes = graph.axes_of(program)
        self.ops = {o.name: o for o in graph.ops}
        self.wide = wide_sums(program, graph)
        self.weights = {} if target.threaded else weights(program, graph)
        self.readers: dict[str, list[BlockOp]] = {o.name: [] for o in graph.ops}
        for o in graph.ops:
            for i in o.inputs:
                self.readers[i].append(o)
        self.nodes: dict[str, list[TileNode]] = {PROLOGUE: [], BODY: [], EPILOGUE: [], GRID: []}
        self.value: dict[str, Expr] = {}
        self.operands: dict[tuple[str, DType, frozenset[str]], str] = {}
        self.published: list[str] = []
        self.depth: dict[frozenset[str], list[str]] = {}

    def run(self) -> TileProgram:
        for o in self.g.ops:
            getattr(self, f"do_{o.op}", self.unknown)(o)
        for k, name in enumerate(self.g.outputs):
            final = GRID if self.ops[name].phase == GRID else EPILOGUE  # every block stores what is its own
            stored = frozenset(s.axis for s in self.p.outputs[k].access if s.axis is not None)
            domain = self.domain_of(self.value[name], self.axes[name] | stored, EPILOGUE)
            value = self.readable(self.value[name], final, domain)
            # Behind the reduction over blocks only one of those that share it is left.
            own = stored | (frozenset(self.g.split) if final == GRID else frozenset())
            self.emit(final, Store(k, value, domain, self.shapes.several_blocks(own)))
        epilogue = list(self.nodes[EPILOGUE])
        if self.g.split:
            epilogue += [Exchange(tuple(dict.fromkeys(self.published))), *self.nodes[GRID]]
        return TileProgram(
            self.p,
            self.g,
            self.s,
            self.t,
            self.buffers,
            tuple(self.nodes[PROLOGUE]),
            tuple(self.nodes[BODY]),
            tuple(epilogue),
            weights=self.weights,
        )

    def unknown(self, o: BlockOp) -> None:
        raise Refused(f"block operator {o.op} is not rendered")

    # --- helpers ------------------------------------------------------------------------------------------------------
    def emit(self, phase: str, node: TileNode) -> None:
        self.nodes[phase].append(node)

    def readable(self, e: Expr, phase: str, domain: Sizes) -> Expr:
        """The expression with fragments of another shape than `domain` put into shared memory first."""
        keep = self.main_fragment(e, domain)
        for f in self.fragments(e):
            if keep is None or (f.rows, f.cols) != (keep.rows, keep.cols):
                name = f"{f.name}_spill"
                if name not in self.buffers:
                    here = PROLOGUE if f.phase == PROLOGUE else phase
                    self.buffer(replace(f, name=name, place=SHARED, pitch=0, pad_rows=0, phase=here))
                    self.emit(here, Compute(name, Ref(f.name)))
                e = substitute(e, f.name, Ref(name))
        return e

    # --- rule 1: loads ------------------------------------------------------------------------------------------------
    def do_load(self, o: BlockOp) -> None:
        source = self.reads[o.source_value or ""]
        dtype = self.p.sources[source.source].dtype
        if o.name in self.weights or all(r.name in self.weights for r in self.readers[o.name]):
            self.value[o.name] = Global(source.name)
            return
        if dtype.name in ("f64", "u64"):
            raise Refused(f"tensors of type {dtype} are not rendered")
        contractions = [r for r in self.readers[o.name] if r.op == "contract"]
        small = count(self.sizes(self.ordered(self.axes[o.name]), o.phase)) == 1
        keep = bool(contractions) and not small
        if self.on_gpu:
            keep = keep or (len(self.readers[o.name]) > 1 and len(self.axes[o.name]) > 1 and not small)
        elif dtype in (F16, BF16):
            spread = any(self.axes[r.name] - self.axes[o.name] for r in self.readers[o.name])
            keep = keep or ((spread or len(self.readers[o.name]) > 1) and not small)
        if dtype.per_byte > 1:  # CPUs unpack whole rows, copies on a GPU move whole elements
            keep = not self.on_gpu and not small
        if not self.on_gpu and contractions and self.read_where_stored(o, source, dtype, contractions):
            keep = False
        self.value[o.name] = self.kept_load(o, source, dtype, contractions) if keep else Global(source.name)

    def kept_load(self, o: BlockOp, source: Input, dtype: DType, contractions: list[BlockOp]) -> Expr:
        stored = storage_order(source)
        groups = [frozenset(c.over) & self.axes[o.name] for c in contractions]
        rows, cols = self.layout(stored, groups, o.phase)
        if not self.on_gpu:
            dtype = F32  # converted while it is copied
        place = RING if o.phase == BODY and self.on_gpu and self.s.stages > 1 else SHARED
        b = self.operand_buffer(o.name, dtype, rows, cols, place, o.phase)
        self.emit(o.phase, Load(b.name, source.name))
        for c in contractions:
            if c.dtype == dtype or not self.on_gpu:
                self.operands[(o.name, matrix_type(c, self.t), frozenset(c.over))] = b.name
        return Ref(b.name)

    def read_where_stored(self, o: BlockOp, source: Input, dtype: DType, contractions: list[BlockOp]) -> bool:
        """True if contractions on the CPU read the stored tensor itself. They convert columns of another type than
        float32 while they read them; rows, and what is read again in every iteration, are converted once."""
        if dtype not in MATRIX_TYPES or not all(self.stored.direct(source, c.over, o.phase) for c in contractions):
            return False
        columns = all(
            self.shapes.sides(c)[1] == o.name and c.phase == o.phase and self.weights.keys().isdisjoint(c.inputs)
            for c in contractions
        )
        return dtype == F32 or (columns and len(contractions) == len(self.readers[o.name]))

    def layout(self, stored: Sequence[str], groups: Sequence[frozenset[str]], phase: str) -> tuple[Sizes, Sizes]:
        """Rows and columns of an operand: summed and free axes apart, the innermost stored axis innermost."""
        sizes = dict(self.sizes(stored, phase))
        order = [a for a in stored if a in sizes]
        if not order:
            return (), ()
        inner = next((g for g in groups if order[-1] in g), None)
        if inner is None:
            inner = frozenset(order) - groups[0] if groups else frozenset(order[-1:])
        rows = self.group([a for a in order if a not in inner], groups)
        cols = self.group([a for a in order if a in inner], groups)
        return tuple((a, sizes[a]) for a in rows), tuple((a, sizes[a]) for a in cols)

    def group(self, axes: list[str], summed: Sequence[frozenset[str]]) -> list[str]:
        """A group of axes in the order that it has everywhere: both operands of a contraction sum in one order, a loop
        axis outermost (its partial last tile is then the end of the group)."""
        for over in summed:
            if set(axes) & over:
                axes = [*(a for a in axes if a == self.g.loop), *(a for a in axes if a != self.g.loop)]
                return self.depth.setdefault(frozenset(axes), axes)
        return axes

    def operand_buffer(self, name: str, dtype: DType, rows: Sizes, cols: Sizes, place: str, phase: str) -> Buffer:
        """A tile that a contraction reads; for matrix instructions, rows and columns are padded to whole matrices (what is
        read there reaches only the padding of results)."""
        b = Buffer(name, dtype, rows, cols, place, phase, pitch(count(cols), self.t), count(rows))
        return self.buffer(b.whole_matrices() if self.on_gpu else b)

    def do_iota(self, o: BlockOp) -> None:
        self.value[o.name] = Position(o.axis or "")

    def do_extent(self, o: BlockOp) -> None:
        self.value[o.name] = Count(o.axis or "")

    # --- rule 2: contractions -------------------------------------------------------------------------------------------
    def do_contract(self, o: BlockOp) -> None:
        dtype = matrix_type(o, self.t)
        over = frozenset(o.over)
        self.shapes.check_batch(o, self.axes[o.inputs[0]] & self.axes[o.inputs[1]])
        sides = self.shapes.sides(o)
        a, b = (self.operand(i, dtype, over, o.phase, self.deep(i, sides)) for i in sides)
        if self.summed_group(a, over, o) != self.summed_group(b, over, o) and not self.weights.keys().isdisjoint(sides):
            a, b = (self.unpacked(i, dtype, over, o.phase) for i in sides)
        rows = self.free_group(a, over, o)
        cols = self.free_group(b, over, o)
        summed = self.summed_group(a, over, o)
        target, add = self.accumulator(o)
        place = FRAGMENT if self.on_gpu else SHARED
        phase = EPILOGUE if add else o.phase
        self.buffer(Buffer(target, F32, rows, cols, place, phase, 0, count(rows)))
        if add:
            self.start_accumulator(self.ops[target])
        self.emit(o.phase, Contract(target, a, b, summed, add))
        self.value[o.name] = Ref(target)

    def deep(self, v: str, sides: tuple[str, str]) -> bool:
        """True for an operand that CPUs read along the sum: rows, and columns beside a stored weight."""
        left = self.value.get(sides[0])
        stored = isinstance(left, Global) and self.p.sources[self.reads[left.value].source].constant
        return not self.on_gpu and (v == sides[0] or stored)

    def operand(self, v: str, dtype: DType, over: frozenset[str], phase: str, deep: bool = False) -> str:
        """The buffer (or, on the CPU, the stored input) that holds `v` as an operand of type `dtype`. With `deep` summed
        positions lie side by side in what is computed for it."""
        key = (v, dtype, over)
        if key in self.operands:
            return self.operands[key]
        if v in self.weights:
            return v
        e = self.value[v]
        if isinstance(e, Global) and not self.on_gpu:
            stored = self.p.sources[self.reads[e.value].source].dtype
            if stored in MATRIX_TYPES and count(self.sizes(self.ordered(self.axes[v]), phase)) > 1:
                return e.value
        if isinstance(e, Ref):
            b = self.buffers[e.buffer]
            separate = all({a for a, _ in g} <= over or not {a for a, _ in g} & over for g in (b.rows, b.cols))
            if b.place == SHARED and b.dtype == dtype and separate and not self.on_gpu:
                return b.name
        return self.computed_operand(v, e, dtype, over, phase, deep)

    def unpacked(self, v: str, dtype: DType, over: frozenset[str], phase: str) -> str:
        """The same with floats in the place of quantised weights: the other operand sums in another order."""
        return (
            self.operand(v, dtype, over, phase)
            if self.weights.pop(v, None) is None
            else self.computed_operand(v, self.value[v], dtype, over, phase)
        )

    def computed_operand(
        self, v: str, e: Expr, dtype: DType, over: frozenset[str], phase: str, deep: bool = False
    ) -> str:
        own = self.axes[v]
        here = self.ops[v].phase if self.ops[v].phase != BODY or phase == BODY else phase
        here = phase if self.carried(v) else here
        domain = self.domain_of(e, own, here)
        order = [a for a, _ in domain]
        free = [a for a in order if a not in over]
        summed = self.group([a for a in order if a in over], [over])
        inner_summed = bool(order) and (order[-1] in over or (deep and bool(summed)))
        sizes = dict(domain)
        rows, cols = (free, summed) if inner_summed else (summed, free)
        by_rows, by_cols = (tuple((a, sizes[a]) for a in names) for names in (rows, cols))
        b = self.operand_buffer(f"{v}_as_{dtype}", dtype, by_rows, by_cols, SHARED, here)
        zero = self.inexact(summed, here)
        self.emit(here, Compute(b.name, self.readable(e, here, domain), zero))
        self.operands[(v, dtype, over)] = b.name
        return b.name

    def carried(self, v: str) -> bool:
        """True if a value is an accumulator: it exists after the loop."""
        return self.ops[v].op in ("accum", "running")

    def group_of(self, operand: str) -> tuple[Sizes, Sizes]:
        if operand in self.buffers:
            b = self.buffers[operand]
            return b.rows, b.cols
        if operand in self.weights:
            w, own = self.weights[operand], self.ops[operand].phase
            return self.sizes(w.free, own), self.sizes(w.summed, own)
        stored = storage_order(self.reads[operand])
        phase = BODY if self.g.loop in stored else PROLOGUE
        sizes = self.sizes(stored, phase)
        return sizes[:-1], sizes[-1:]

    def free_group(self, operand: str, over: frozenset[str], o: BlockOp) -> Sizes:
        sizes = dict(self.sizes(self.ordered(self.axes[o.name] | over), o.phase))
        return tuple((a, sizes[a]) for g in self.group_of(operand) for a, _ in g if a not in over and a in sizes)

    def summed_group(self, operand: str, over: frozenset[str], o: BlockOp) -> Sizes:
        return tuple((a, self.shapes.size(a, o.phase)) for g in self.group_of(operand) for a, _ in g if a in over)

    # --- accumulators -----------------------------------------------------------------------------------------------------
    def accumulator(self, o: BlockOp) -> tuple[str, bool]:
        """(buffer for the result, whether it is the accumulator that is the only reader)."""
        readers = self.readers[o.name]
        if len(readers) == 1 and readers[0].op == "accum" and readers[0].inputs[0] == o.name:
            return readers[0].name, True
        return o.name, False

    def start_accumulator(self, accum: BlockOp) -> None:
        """Zero before the loop, shrink at the start of an iteration's contribution."""
        self.emit(PROLOGUE, Init(accum.name, 0.0))
        if len(accum.inputs) > 1:
            self.emit(BODY, Scale(accum.name, self.value[accum.inputs[1]]))

    def do_accum(self, o: BlockOp) -> None:
        if o.name not in self.buffers:
            e = self.value[o.inputs[0]]
            domain = self.domain_of(e, self.axes[o.name], BODY)
            f = self.main_fragment(e, domain)
            if f is not None:
                self.buffer(replace(f, name=o.name, phase=EPILOGUE))
            else:
                self.shared(o.name, domain, EPILOGUE)
            self.start_accumulator(o)
            self.emit(BODY, Compute(o.name, self.readable(e, BODY, domain), add=True))
        self.value[o.name] = Ref(o.name)

    # --- rule 3: elementwise ------------------------------------------------------------------------------------------------
    def do_thread(self, o: BlockOp) -> None:
        assert o.thread is not None
        e = from_thread(o.thread, [self.value[i] for i in o.inputs])
        self.value[o.name] = e
        if o.name in self.weights:
            return
        readers = [r for r in self.readers[o.name] if r.op != "contract"]
        contracted = len(readers) < len(self.readers[o.name])
        stored = o.name in self.g.outputs
        if not readers and not stored:
            return  # only contractions read it: computed into their operands
        if o.inputs and not self.fusion and (readers or contracted):
            self.value[o.name] = Ref(self.keep(o, e))
            return
        alone = len(readers) + stored == 1 and (stored or self.same_place(o, readers[0]))
        if not contracted and (alone or not o.inputs):
            return
        if o.thread.flops() <= CHEAP_FLOPS and not contracted and len(self.axes[o.name]) == 0:
            return
        self.value[o.name] = Ref(self.keep(o, e))

    def same_place(self, o: BlockOp, reader: BlockOp) -> bool:
        """True if the only reader visits the value's positions once each, where the value is computed."""
        if reader.op in ("sum", "top", *EXTREMES):
            return reader.phase == o.phase or (o.phase == BODY and reader.op in EXTREMES)
        if reader.op == "accum":
            return True
        return reader.op == "thread" and reader.phase == o.phase and self.axes[reader.name] == self.axes[o.name]

    def keep(self, o: BlockOp, e: Expr) -> str:
        domain = self.domain_of(e, self.axes[o.name], o.phase)
        f = self.main_fragment(e, domain)
        if f is not None and self.fusion:
            self.buffer(replace(f, name=o.name, phase=o.phase))
        else:
            self.shared(o.name, domain, o.phase)
        self.emit(o.phase, Compute(o.name, self.readable(e, o.phase, domain)))
        return o.name

    # --- rule 4: reductions ---------------------------------------------------------------------------------------------
    def do_sum(self, o: BlockOp) -> None:
        self.reduction(o, "sum")

    def do_top(self, o: BlockOp) -> None:
        self.reduction(o, "max")

    do_max = do_top

    def do_min(self, o: BlockOp) -> None:
        """Minus the greatest of the negative numbers."""
        self.value[o.inputs[0]], e = Apply("neg", (self.value[o.inputs[0]],)), self.value[o.inputs[0]]
        self.reduction(o, "max")
        self.value[o.inputs[0]], self.value[o.name] = e, Apply("neg", (self.value[o.name],))

    def reduction(self, o: BlockOp, kind: str) -> None:
        e, over = self.value[o.inputs[0]], set(o.over)
        carried = o.phase == EPILOGUE and self.ops[o.inputs[0]].phase == BODY
        phase = BODY if carried else o.phase
        source = self.axes[o.inputs[0]] | over
        domain = self.domain_of(e, source, phase)
        target, add = (o.name, True) if carried else self.accumulator(o)
        f = self.main_fragment(e, domain)
        alone = self.on_gpu or self.stored.product(e, o.over, self.buffers, phase) is None
        exact = o.name in self.wide and f is None and alone
        self.vector(target, self.axes[o.name], EPILOGUE if add else phase, F64 if exact else F32)
        if carried:
            self.emit(PROLOGUE, Init(target, float("-inf")))
        elif add:
            self.start_accumulator(self.ops[target])
        if kind == "sum" and not self.on_gpu and self.matrix_vector(o, e, target, add):
            return
        wide, scratch = tuple(a for a, _ in domain if a in over), ""
        if f is not None and wide in (tuple(a for a, _ in f.cols), tuple(a for a, _ in f.rows)) and wide:
            scratch = self.scratch(o, f, phase, wide == tuple(a for a, _ in f.cols))
        elif f is not None:
            spilled = replace(f, name=f"{o.name}_spill", place=SHARED, pitch=0, pad_rows=0, phase=phase)
            self.buffer(spilled)
            self.emit(phase, Compute(spilled.name, self.readable(e, phase, domain)))
            e = Ref(spilled.name)
        mask = self.inexact([a for a in self.ordered(source) if a in over], phase)
        node = Reduce(target, kind, self.readable(e, phase, domain), domain, tuple(o.over), mask, add, scratch)
        self.emit(phase, node)
        self.value[o.name] = Ref(target)

    def matrix_vector(self, o: BlockOp, e: Expr, target: str, add: bool) -> bool:
        """Emit a sum of products as a contraction of one row where a stored matrix meets a vector along the sum."""
        product = self.stored.product(e, o.over, self.buffers, o.phase)
        if product is None:
            return False
        vector = product.vector
        if not isinstance(vector, Ref) or self.buffers[vector.buffer].dtype != F32:
            b = self.shared(f"{o.name}_row", product.over, o.phase)
            self.emit(o.phase, Compute(b.name, self.readable(vector, o.phase, product.over)))
            vector = Ref(b.name)
        self.emit(o.phase, Contract(target, vector.buffer, product.matrix.value, product.over, add))
        self.value[o.name] = Ref(target)
        return True

    def scratch(self, o: BlockOp, f: Buffer, phase: str, along_cols: bool) -> str:
        kept = f.n_rows if along_cols else f.n_cols
        padded = -(-kept // 16) * 16
        sizes: Sizes = (("warp", self.s.warps), ("kept", padded))
        b = Buffer(f"{o.name}_scratch", F32, sizes[:1], sizes[1:], SHARED, phase, padded, self.s.warps)
        return self.buffer(b).name

    def do_running(self, o: BlockOp) -> None:
        b = self.vector(o.name, self.axes[o.name], EPILOGUE)
        shrink = next(r for r in self.readers[o.name] if r.op == "shrink")
        self.buffer(replace(b, name=shrink.name, phase=BODY))
        self.emit(PROLOGUE, Init(o.name, float("-inf")))
        top = self.value[o.inputs[0]]
        assert isinstance(top, Ref)
        self.emit(BODY, Running(o.name, top.buffer, shrink.name))
        self.value[o.name] = Ref(o.name)
        self.value[shrink.name] = Ref(shrink.name)

    # --- over blocks --------------------------------------------------------------------------------------------------
    def do_grid_top(self, o: BlockOp) -> None:
        source = self.publish(o.inputs[0])
        b = self.buffer(replace(self.buffers[source], name=o.name, phase=GRID))
        self.emit(GRID, GridTop(b.name, source))
        self.value[o.name] = Ref(b.name)

    def do_grid_sum(self, o: BlockOp) -> None:
        source = self.publish(o.inputs[0])
        b = self.buffer(replace(self.buffers[source], name=o.name, phase=GRID))
        weights = (self.publish(o.inputs[1]), o.inputs[2]) if len(o.inputs) > 1 else ("", "")
        self.emit(GRID, GridSum(b.name, source, *weights))
        self.value[o.name] = Ref(b.name)

    def publish(self, v: str) -> str:
        """The buffer in which other blocks find this block's share of a value."""
        e = self.value[v]
        if not isinstance(e, Ref) or self.buffers[e.buffer].dtype != F32:
            domain = self.domain_of(e, self.axes[v], EPILOGUE)
            f = self.main_fragment(e, domain)
            name = f"{v}_share"
            self.buffer(replace(f, name=name, phase=EPILOGUE)) if f else self.shared(name, domain, EPILOGUE)
            self.emit(EPILOGUE, Compute(name, self.readable(e, EPILOGUE, domain)))
            e = Ref(name)
        self.published.append(e.buffer)
        return e.buffer

    def do_shrink(self, o: BlockOp) -> None:
        """Made together with its running maximum."""
