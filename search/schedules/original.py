"""What the original operators of a fragment cost in the libraries that run them, in microseconds.

On a CPU that is onnxruntime, as it runs what stays when a session is made (`runtime/fusions.py` counts its operators):

1. products with weights, read from memory and then multiplied; sums over many positions are slower, products of integers of
   8 bits faster; those of other quantised weights unpack them first, or multiply bytes;
2. products of activations, as in attention, which are small and many;
3. everything elementwise between products, which is joined: it reads and writes once;
4. the operators that are left over, which copy: transposes, slices, concatenations; caches that grow come from memory.

What is one operator for libraries (attention with a cache, on CPUs any that holds several products) reads and writes once too.

Constants are fitted by `python -m samples.cpu_fit`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from mirage_cli.lax.ir.parts import stored_elements
from mirage_cli.lax.ir.program import Node, Program
from mirage_cli.lax.ops import OPS
from mirage_cli.search.mugraph.visible import seen
from mirage_cli.search.schedules.alternatives import rows_behind_caches
from mirage_cli.search.schedules.cost import bytes_in_parts, bytes_once, number
from mirage_cli.search.schedules.fitted import Block, Cpu
from mirage_cli.search.schedules.products import besides
from mirage_cli.search.schedules.target import Target

FUSED = -1  #: in the place of a number of operators: all are parts of one, which a library has
KERNELS = 3  #: that it launches on a GPU: new rows of caches, attention over parts of the keys, the parts together
UNPACKED_ROWS = 8  #: beyond which libraries on GPUs unpack quantised weights into memory before they multiply
ROW_US = 6.5e-4  #: microseconds in which onnxruntime 1.31 turns and stores a new row of a head, on an H100
DEEP = 1024  #: positions of a sum from where on products are slower
_FREE = ("iota", "extent", "const")


def original_us(
    program: Program, operators: int, target: Target, sizes: Mapping[str, int] = MappingProxyType({})
) -> float:
    """Microseconds of the original operators one after the other, so many of which are launched. What is computed of weights
    alone is no operator: runtimes join it with the product that reads it."""
    original = _Original(program, target, sizes)
    if operators == FUSED:
        fused, launches = (original.fused(), KERNELS) if target.threaded else (original.on_cpu(1, cached=True), 1)
        return fused + launches * target.kernel_us
    return (original.on_cpu(operators) if not target.threaded else original.on_gpu()) + operators * target.kernel_us


@dataclass(frozen=True)
class _Original:
    """A program on a target, where symbols have certain sizes."""

    program: Program
    target: Target
    sizes: Mapping[str, int]

    @cached_property
    def extents(self) -> dict[str, int]:
        """Extents of axes."""
        return {a.name: number(a.extent, self.sizes) for a in self.program.axes}

    @cached_property
    def reads(self) -> dict[str, tuple[float, bool]]:
        """For each read of a source the bytes of an element, and whether it is a weight."""
        sources = ((i.name, self.program.sources[i.source]) for i in self.program.inputs)
        return {name: (s.dtype.size, s.constant) for name, s in sources}

    @cached_property
    def whole(self) -> dict[str, bool]:
        """For each read of a source whether its elements are integers of 8 bits."""
        types = ((i.name, self.program.sources[i.source].dtype) for i in self.program.inputs)
        return {name: t.kind == "int" and t.bits == 8 for name, t in types}

    @cached_property
    def makers(self) -> dict[str, Node]:
        """For each value that is computed the node that does."""
        return {n.name: n for n in self.program.nodes}

    @cached_property
    def weights(self) -> dict[str, frozenset[str]]:
        """For each value that is computed of weights of the model alone, or of nothing, the reads of them behind it."""
        behind: dict[str, frozenset[str]] = {}
        known = {name: frozenset([name]) for name, (_, constant) in self.reads.items() if constant}
        for n in self.program.nodes:
            if n.op not in ("contract", "iota", "extent") and all(i in known for i in n.inputs):
                known[n.name] = behind[n.name] = frozenset[str]().union(*(known[i] for i in n.inputs))
        return behind

    @cached_property
    def nodes(self) -> list[Node]:
        """The nodes that compute something when a model runs."""
        return [n for n in self.program.nodes if n.name not in self.weights and n.op not in _FREE]

    def size(self, value: str) -> int:
        """Elements of a value."""
        return math.prod(self.extents[a] for a in self.program.axes_of(value))

    def bytes(self, value: str) -> float:
        """Bytes of a value; of what is computed of weights, those of the weights."""
        if parts := self.weights.get(value, frozenset()):
            return sum(self.size(i) * self.reads[i][0] for i in parts)
        return self.size(value) * self.reads.get(value, (4.0, False))[0]

    def is_weight(self, value: str) -> bool:
        """True for a weight, and for what is computed of weights alone."""
        return value in self.weights or self.reads.get(value, (0.0, False))[1]

    def is_quantised(self, value: str) -> bool:
        """True for what is computed of weights, some of which are numbers of at most 8 bits."""
        return any(self.reads[i][0] <= 1.0 for i in self.weights.get(value, frozenset()))

    def once(self, value: str) -> float:
        """The share of a weight's elements that there are in memory: of chosen rows there may be fewer than places."""
        behind, shares = self.weights.get(value, frozenset((value,))), [1.0]
        for s in (self.program.sources[i.source] for i in self.program.inputs if i.name in behind):
            places = math.prod(number(e, self.sizes) for e in s.dims)
            shares.append(stored_elements(s, lambda e: number(e, self.sizes)) / max(1, places))
        return min(shares)

    def rounds(self, value: str) -> bool:
        """True for what is computed of weights, products with which round activations to 8 bits."""
        behind = self.weights.get(value, frozenset())
        return any(i.name in behind and self.program.sources[i.source].rounds for i in self.program.inputs)

    def holds_bytes(self, value: str) -> bool:
        """True for integers of 8 bits, made of others or alone or with what is smaller than they (scales, zero points)."""
        if (maker := self.makers.get(value)) is not None and maker.op in OPS and OPS[maker.op].whole:
            return True
        behind, todo = set[str](), [value]
        while todo:
            v = todo.pop()
            behind.add(v)
            todo += self.makers[v].inputs if v in self.makers else ()
        if any(self.makers[v].op == "contract" for v in behind & self.makers.keys()):
            return False
        return {self.whole[v] for v in behind & self.whole.keys() if self.size(v) == self.size(value)} == {True}

    def flops(self, product: Node) -> float:
        """Multiply-adds of a product, times two."""
        axes = frozenset(product.over).union(*(self.program.axes_of(i) for i in product.inputs))
        return 2.0 * math.prod(self.extents[a] for a in axes)

    # --- CPU ----------------------------------------------------------------------------------------------------------
    def on_cpu(self, operators: int, cached: bool = False) -> float:
        """Microseconds on a CPU, but for what every operator costs; `cached`: all is attention behind caches."""
        products = [n for n in self.nodes if n.op == "contract"]
        joined = list(self.joined())
        if operators < len(products) and not cached:
            return 1e6 * self.held(products, joined)
        grown = sum(bool(s.parts) for s in self.program.sources)  # caches, which are joined from memory to memory
        left = max(0, operators - len(products) - len(joined) - grown)
        copied = max([self.activations(n) for n in products] + [moved for _, moved in joined], default=0.0)
        seconds = sum(map(self.started, products)) + sum(self.elementwise(*part) for part in joined)
        t, c = self.target, self.target.fitted(Cpu)
        seconds += 0.0 if cached else 2 * bytes_in_parts(self.program, self.sizes) / t.bandwidth
        return 1e6 * (seconds + left * copied / (t.bandwidth * c.library_copies))

    def held(self, products: Sequence[Node], joined: Sequence[tuple[float, float]]) -> float:
        """Seconds of an operator that holds several products (Attention): what is between them stays in caches, and products
        of blocks are as fast as large ones."""
        t, c = self.target, self.target.fitted(Cpu)
        multiplied = sum(self.flops(n) / (t.library_rate(n.dtype) * t.units * c.library_rate) for n in products)
        moved = bytes_once(self.program, self.sizes)
        return multiplied + self.elementwise(sum(operations for operations, _ in joined), moved)

    def activations(self, product: Node) -> float:
        """Bytes that a product reads and writes beside weights."""
        return self.bytes(product.name) + sum(self.bytes(i) for i in product.inputs if not self.is_weight(i))

    def started(self, n: Node) -> float:
        """Seconds of a product with what starting it takes, as for kernels of ours: it finds nothing in the caches, and hands
        columns to other threads where that pays."""
        t, seconds = self.target, self.product(n)
        forks = t.units > 1 and seconds > 2e-6 * t.fork_us
        return seconds + 1e-6 * (t.launch_us + forks * t.fork_us)

    def product(self, n: Node) -> float:
        """Seconds of a product (cases 1 and 2)."""
        t, c = self.target, self.target.fitted(Cpu)
        seconds = self.flops(n) / (t.library_rate(n.dtype) * t.units)
        weights = sum(self.bytes(i) * self.once(i) for i in n.inputs if self.is_weight(i))
        depth = math.prod(self.extents[a] for a in n.over)
        if not weights:
            batch = frozenset.intersection(*(frozenset(self.program.axes_of(i)) for i in n.inputs)) - frozenset(n.over)
            side = math.sqrt(self.size(n.name) / math.prod(self.extents[a] for a in batch))
            slower = 1 + c.library_small / max(side, 1.0)
            return seconds * slower / c.library_rate + self.activations(n) / (t.bandwidth * c.library_copies)
        integers = all(map(self.holds_bytes, n.inputs))
        if not integers and (numbers := sum(self.size(i) * self.once(i) for i in n.inputs if self.is_quantised(i))) > 0:
            rows = self.flops(n) / (2 * numbers)
            in_bytes = any(map(self.rounds, n.inputs))
            unpacked = c.library_bytes if in_bytes else c.library_step if rows == 1 else c.library_packed
            read = (weights + self.activations(n)) / (t.bandwidth * c.library_bandwidth)
            rate = 1.0 if in_bytes else c.library_rate
            return seconds / rate + max(numbers * unpacked / (t.special * t.units), read)
        slower = 1 + c.library_deep * max(0.0, math.log2(max(depth, 1) / DEEP))
        read = (weights + self.activations(n)) / (t.bandwidth * c.library_bandwidth)
        faster = c.library_integers if integers else 1.0
        rows = self.flops(n) / (2 * sum(self.size(i) * self.once(i) for i in n.inputs if self.is_weight(i)))
        multiplied = seconds * slower * (1 + float(besides(rows, c.library_half)) / rows) / (c.library_rate * faster)
        return multiplied + read - c.library_overlap * min(multiplied, read)

    def elementwise(self, operations: float, moved: float) -> float:
        """Seconds of elementwise nodes that are joined (case 3)."""
        t, c = self.target, self.target.fitted(Cpu)
        return operations / (t.special * t.units * c.library_special) + moved / (t.bandwidth * c.library_bandwidth)

    def joined(self) -> Iterator[tuple[float, float]]:
        """(operations, bytes read and written) of each group of elementwise nodes and sums that use one another."""
        own = {n.name: n for n in self.nodes if n.op != "contract"}
        groups: dict[str, dict[str, Node]] = {}
        for n in own.values():
            merged = {n.name: n}
            for i in n.inputs:
                merged |= groups.get(i, {})
            groups |= dict.fromkeys(merged, merged)
        outputs = {o.value for o in self.program.outputs}
        for group in {id(g): g for g in groups.values()}.values():
            outside = {i for n in group.values() for i in n.inputs} - group.keys()
            wanted = outputs.union(*(n.inputs for n in self.program.nodes if n.name not in group)) & group.keys()
            operations = sum(
                self.size(n.name) * OPS[n.op].flops if n.op in OPS else self.size(n.inputs[0]) for n in group.values()
            )
            yield operations, sum(map(self.bytes, outside | wanted))

    # --- GPUs ---------------------------------------------------------------------------------------------------------
    def on_gpu(self) -> float:
        """Microseconds on a GPU, where each node reads and writes its tensors and parts are joined, but for launches."""
        joined = 2 * bytes_in_parts(self.program, self.sizes) / self.target.bandwidth
        return 1e6 * (sum(map(self.node, self.nodes)) + joined)

    def fused(self) -> float:
        """Microseconds on a GPU of a kernel that a library has for all nodes, but for launches: each source is read once, what
        a mask hides is left out, exponentials take their time beside products (cuDNN's on an H100: 0.9 to 1.1 of it)."""
        t, parts = self.target, seen(self.program, self.extents)
        rate, seconds = t.fitted(Block).library_rate, 0.0
        read = math.prod(any_ for _, any_ in parts.values()) * bytes_once(self.program, self.sizes)
        for n in self.nodes:
            axes = frozenset(n.over).union(*(self.program.axes_of(i) for i in n.inputs))
            share = math.prod(mean for a, (mean, _) in parts.items() if a in axes)
            if n.op == "contract":
                seconds += share * self.flops(n) / (t.library_rate(n.dtype) * rate)
            elif n.op == "stable_exp":
                seconds += share * self.size(n.name) / t.special
        return 1e6 * max(read / (t.bandwidth * rate), seconds) + self.new_rows(parts)

    def new_rows(self, loops: Collection[str]) -> float:
        """Microseconds that a library takes longer than they take to be moved to turn new rows of heads and to put them into
        caches, whose positions lie along `loops`: beside attention, a kernel of ours does that too."""
        behind = rows_behind_caches(self.program)
        new, count, moved = math.prod(number(e, self.sizes) for e in behind), 0, 0.0
        for i in self.program.inputs if behind else ():
            *axes, inner = (s.axis for s in i.access if s.axis is not None)
            if self.program.sources[i.source].dtype.is_float and axes:
                rows = math.prod(self.extents[a] for a in axes if a not in loops)
                rows *= new if any(a in loops for a in axes) else 1
                count, moved = count + rows, moved + 2.0 * rows * self.extents[inner] * self.reads[i.name][0]
        return max(0.0, ROW_US * count - 1e6 * moved / self.target.bandwidth)

    def node(self, n: Node) -> float:
        """Seconds of a node."""
        t = self.target
        moved = (4.0 * self.size(n.name) + sum(map(self.apart, n.inputs))) / t.bandwidth
        if n.op == "contract":
            quantised = [i for i in n.inputs if self.is_quantised(i)]
            c, packed, numbers = t.fitted(Block), sum(map(self.bytes, quantised)), sum(map(self.size, quantised))
            multiplied = self.flops(n) / (t.library_rate(n.dtype) * c.library_rate)
            if self.flops(n) > 2 * UNPACKED_ROWS * numbers > 0:
                unpacked = 2.0 * numbers / t.bandwidth
                return packed / t.bandwidth + unpacked + max(moved + unpacked, multiplied)
            return max(moved, packed / (t.bandwidth * c.library_packed), multiplied)
        return max(moved, self.size(n.name) * OPS[n.op].flops / t.special) if n.op in OPS else moved

    def apart(self, value: str) -> float:
        """Bytes of a value where operators are not joined: results of others are float32."""
        return self.bytes(value) if value in self.weights else 4.0 * self.size(value)
