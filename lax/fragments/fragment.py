"""Fragments: which parts of a graph become programs of their own.

Found by algebra, not by patterns of an exporter. A value is *heavy* when a contraction is computed for it, *light* when
not. What is stored between fragments (the *ends*) follows from cost:

1. A contraction whose operand comes from another contraction is one fragment with it when storing the intermediate
   would be wasteful: the intermediate is normalised along the axis that is summed next (attention), or both contractions
   have stored weights and the intermediate is of low rank (LoRA).
2. From a contraction the end moves forward through elementwise operators and views as long as everything that is
   computed from it comes together again, of few rows joined halves too (a rotary embedding) where their join is stored in any
   case; contractions of the same operand that meet there (gate and up projections) are one fragment. It does not move to where
   the result is repeated along another dimension (a modulation of all tokens by one conditioning vector). Where few rows are
   read in parts alone, and one of them is kept (queries, keys and values of one product), each has an end of its own.
3. Light values (normalisations, rotary embeddings, masks) are computed again inside every fragment whose contractions
   read them; where only elementwise operators or another normalisation read a normalised value, where one of more than
   positions is needed again after the fragments that it feeds (a residual stream), and where several read a costly one or a
   long chain, it is stored. Of a concatenation of unequal parts (new keys behind a cache) the parts are stored; joining is
   left to others, or to the first fragment that reads it (`joins.py`).
4. Stored light values (results of the model among them) that are normalisations, or chains of several elementwise
   operators, are fragments themselves.
5. Fragments that multiply the same few rows by weights (queries, keys and values) are one, with several results.

Whatever is left alone has a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

from mirage_cli.errors import InvalidGraph, Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.bounds.growth import growth
from mirage_cli.lax.fragments.facts import Facts, costs
from mirage_cli.lax.fragments.instantiate import instantiate
from mirage_cli.lax.fragments.joins import joins
from mirage_cli.lax.fragments.key import key
from mirage_cli.lax.fragments.kinds import kind
from mirage_cli.lax.fragments.lax_fragment import LaxFragment, LeftAlone, Partition
from mirage_cli.lax.fragments.siblings import dealt, few_rows, kept_apart, siblings
from mirage_cli.lax.ir import graph as g
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.normal.canonical import canonical

LOW_RANK = 64  #: a product of two constant weights through at most this many positions is one fragment
CHAIN = 3  #: this many elementwise operators in a row are worth a kernel of their own
LONG = 32  #: a shared light value of this many steps is stored rather than computed again
MAX_STEPS = 400  #: a fragment of more steps is left alone


def partition(graph: g.Graph, names: Mapping[int, str], complete: bool = False, joining: bool = True) -> Partition:
    """The fragments of a graph. `names` gives the values that exist as tensors of the model: only these can be stored.

    With `complete` every result is computed by fragments alone, as far as that is possible. Without `joining` there are no
    kernels that join what they read.
    """
    partitioner = _Partitioner(graph, names, complete)
    result = partitioner.run()
    return store_joined(partitioner, result) if joining and not complete else result


def whole_program(graph: g.Graph, names: Mapping[int, str]) -> Program:
    """The program in normal form of everything that a graph computes, not cut into fragments: from its inputs to its
    outputs. Raises Refused when some operator or view is not expressible."""
    inputs = [v for v, step in enumerate(graph.steps) if isinstance(step, g.Input)]
    return canonical(instantiate(graph, graph.outputs, inputs, dict(names)))


def store_joined(facts: Facts, result: Partition) -> Partition:
    """The fragments that store concatenations of two tensors while they read them, each the first one that can."""
    computed, fragments = {v for f in result.fragments for v in f.outputs}, list[LaxFragment]()
    for f in result.fragments:
        found = joins(facts, f.program, f.inputs, f.steps, computed)
        fragments.append(f.storing(found) if found else f)
        computed.update(fragments[-1].outputs)
    return Partition(fragments, result.left)


class _Partitioner(Facts):
    def __init__(self, graph: g.Graph, names: Mapping[int, str], complete: bool = False) -> None:
        super().__init__(graph, names)
        self.complete = complete
        self._chained: dict[int, list[int]] = {}
        self._begins: dict[tuple[int, bool], bool] = {}
        self._boundaries: dict[int, list[int]] = {}
        self.long: set[int] = set()
        #: what others compute, of whatever
        self.unread = {v for v, step in enumerate(graph.steps) if isinstance(step, g.Choose | g.Opaque)}

    def store(self, values: Iterable[int]) -> None:
        """Store values too; where fragments begin is then found out again."""
        super().store(values)
        self._begins.clear()
        self._boundaries.clear()

    # --- the whole ----------------------------------------------------------------------------------------------------
    def run(self) -> Partition:
        contractions = sorted((v for v in self.live if self.is_contraction(v)), key=lambda v: (self.depth[v], v))
        absorbed = {c for v in contractions for c in self.chained(v)}
        self.store(v for v in self.graph.bounds if v in self.live and self.computed(v))
        ends: dict[int, list[int]] = {}
        for c in contractions:
            for end in self.ends_of(c) if c not in absorbed else ():
                ends.setdefault(end, []).append(c)
                self.store([end])
        if self.complete:
            self.store(v for v in self.results if v in self.names and not self.is_source(v) and not self.is_constant(v))
        self.store([v for v in self.results if not self.stored & {v, self.base(v)} and self.computed(v)])
        self.store([p for p in self.parts(self.stored) if not self.stored & {p, self.base(p)}])
        self.store(self.joined(self.stored))
        self.settle(ends)
        self.find_long()
        self.settle(ends)
        result, done = Partition(), set[int]()
        for end in sorted(ends):
            self.add(result, end, done)
        for v in sorted(self.stored - set(ends)):
            if self.complete or self.worth_storing(v):
                self.add(result, v, done)
        result.fragments.sort(key=lambda f: f.outputs)
        if not self.complete:  # fragments that are run one after the other stay in order
            self.join_siblings(result)
        return result

    def join_siblings(self, result: Partition) -> None:
        """Make siblings one fragment, where that can be expressed."""
        fragments = result.fragments
        joined: dict[int, LaxFragment | None] = {}
        for group in siblings(self, [(f.outputs[0], f.inputs, f.steps) for f in fragments]):
            own = [fragments[n] for n in group]
            try:
                whole = self.make([f.outputs[0] for f in own], sorted({v for f in own for v in f.inputs}))
            except (Refused, InvalidGraph):
                continue
            joined |= dict.fromkeys(group) | {group[0]: whole}
        result.fragments = [f for n, old in enumerate(fragments) if (f := joined.get(n, old)) is not None]

    def settle(self, ends: Mapping[int, object]) -> None:
        """Store light values until every fragment agrees on what is stored."""
        while True:
            boundary: set[int] = set()
            for end in [*ends, *(v for v in self.stored if v not in ends)]:
                boundary |= {v for v in self.boundary(end) if not self.is_source(v)}
            boundary |= self.parts(boundary) | self.joined(boundary)
            if boundary <= self.stored:
                return
            self.store(boundary)

    def add(self, result: Partition, end: int, done: set[int]) -> None:
        """Make the fragment that ends at `end`, simpler if the whole cannot be expressed; else say why not."""
        reasons: list[str] = []
        for attempt in (self.whole, self.sizes_stored, self.operands_stored):
            try:
                fragment = attempt(end)
                if lost := fragment.program.unknown_symbols:
                    raise Refused(f"the value of {', '.join(lost)} cannot be computed from the shapes of what it reads")
            except (Refused, InvalidGraph) as e:
                reasons.append(str(e))
                continue
            if end not in done:
                done.add(end)
                result.fragments.append(fragment)
            return
        result.left.append(LeftAlone(end, reasons[0]))

    # --- rule 1: contractions of contractions ------------------------------------------------------------------------------
    def chained(self, c: int) -> list[int]:
        """The contractions that `c` computes with itself."""
        if c not in self._chained:
            self._chained[c] = self.find_chained(c)
        return self._chained[c]

    def find_chained(self, c: int) -> list[int]:
        """The same, for the first time."""
        step = self.step(c)
        assert isinstance(step, g.Contract)
        chained: list[int] = []
        for side, labels in zip(self.graph.inputs[c], (step.lhs, step.rhs), strict=True):
            if not self.heavy[side]:
                continue
            summed = [i for i, label in enumerate(labels) if label not in step.out]
            inner = self.contractions_behind(side)
            if self.normalised(side, summed, set(inner)) or self.low_rank(c, side, summed, inner):
                chained += inner
        return chained

    def contractions_behind(self, v: int) -> list[int]:
        """The nearest contractions behind a value."""
        contractions, seen, todo = [], set(), [v]
        while todo:
            x = todo.pop()
            if x in seen or not self.heavy[x]:
                continue
            seen.add(x)
            if self.is_contraction(x):
                contractions.append(x)
            else:
                todo.extend(self.graph.inputs[x])
        return sorted(contractions)

    def normalised(self, v: int, summed: Iterable[int], stops: set[int]) -> bool:
        """True if a softmax along the summed dimensions, with or without a maximum that is subtracted, lies between
        the contractions and `v`."""
        wanted = {self.graph.dims(v)[i] for i in summed}
        stops = stops | self.unread
        for x in self.graph.cone([v], stops):
            dims = self.weighed(x)
            if dims is not None and self.heavy[x]:
                over = {self.graph.dims(x)[i] for i in dims}
                return over == wanted and not self.shared(x, v, stops)
        return False

    def weighed(self, x: int) -> tuple[int, ...] | None:
        """The dimensions along which `x` holds the exponentials of a softmax: what a stable exponential says, or where
        exponentials are summed."""
        step = self.step(x)
        if isinstance(step, g.StableExp):
            return step.dims
        if not (isinstance(step, g.Map) and step.op == "exp"):
            return None
        sums = [s for u in self.users[x] if isinstance(s := self.step(u), g.Reduce) and s.kind == "sum"]
        return sums[0].dims if sums else None

    def shared(self, x: int, v: int, stops: set[int]) -> bool:
        """True if something outside the way from the contractions to `v` needs the scores or their exponentials."""
        inside = set(self.graph.cone([v], stops))
        return (
            any(
                (u not in inside and y != v) or y in self.results
                for y in inside
                if self.heavy[y] and y not in stops
                for u in self.users[y]
            )
            and x in inside
        )

    def low_rank(self, c: int, side: int, summed: Iterable[int], inner: list[int]) -> bool:
        """True if `c` and the contraction behind its operand are products with stored weights of low rank."""
        rank = ex.product(self.graph.dims(side)[i] for i in summed)
        if not isinstance(rank, int) or rank > LOW_RANK or len(inner) != 1 or not self.linear_path(side, inner[0]):
            return False
        for x in (c, inner[0]):
            if not any(self.is_source(self.base(i)) or self.of_weights[i] for i in self.graph.inputs[x]):
                return False
        sizes = [e for v in (*self.graph.inputs[inner[0]], c) for e in self.graph.dims(v)[-1:]]
        return all(not isinstance(n, int) or n == rank or n >= 4 * rank for n in sizes)

    def linear_path(self, v: int, c: int) -> bool:
        """True if only views and constant factors lie between contraction `c` and `v`, and nothing else reads it."""
        while v != c:
            if len(self.users[v]) != 1 or v in self.results:
                return False
            if self.is_view(v):
                v = self.graph.inputs[v][0]
                continue
            step = self.step(v)
            heavy = [i for i in self.graph.inputs[v] if self.heavy[i]]
            if not isinstance(step, g.Map) or step.op not in ("mul", "div") or len(heavy) != 1:
                return False
            v = heavy[0]
        return len(self.users[c]) == 1

    # --- rule 2: the end of a fragment ---------------------------------------------------------------------------------------
    def ends_of(self, c: int) -> list[int]:
        """Where the result of a contraction is stored: once, or each of its parts where one has to be stored by itself."""
        end = self.end_of(c, c)
        parts = [self.end_of(p, c) for p in dealt(self, end)] if few_rows(self, c) else []
        return parts if self.names.keys() >= {*parts} and any(kept_apart(self, p, end) for p in parts) else [end]

    def end_of(self, start: int, c: int) -> int:
        """Where what begins with `start`, the result of a contraction or a part of it, is stored."""
        current = named = start
        while (following := self.next_end(current, c)) is not None:
            current = following
            named = current if current in self.names and not self.widens(current) else named
        current = named
        while (following := self.trailing_view(current)) is not None:
            current = following
            named = current if current in self.names else named
        return named

    def widens(self, v: int) -> bool:
        """True for a cast to a larger type, which its readers make as well."""
        return (
            isinstance(self.step(v), g.Cast)
            and self.graph.dtype(v).size > self.graph.dtype(self.graph.inputs[v][0]).size
        )

    def trailing_view(self, v: int) -> int | None:
        """The only reader of `v`, when it is a view that can be part of the store."""
        if v in self.results or len(self.users[v]) != 1:
            return None
        (u,) = self.users[v]
        return u if isinstance(self.step(u), g.Reshape | g.Transpose) else None

    def next_end(self, current: int, c: int) -> int | None:
        """The nearest value through which everything computed from `current` passes, over elementwise steps only."""
        region = {current}
        #: values whose readers are not all in the region, and how many are not
        left = {current: len(self.users[current])}
        pending = list(self.users[current])  # a heap: sorted as it is
        # what joins its halves again (a rotary embedding) is computed here where it is stored in any case
        joins = False
        while pending:
            step = heappop(pending)
            if step in region:
                continue
            if not self.absorbable(step, region, c):
                return None
            region.add(step)
            for i in set(self.graph.inputs[step]) & left.keys():
                left[i] -= 1
                if not left[i] and i not in self.results:
                    del left[i]
            left[step] = len(self.users[step])
            for u in self.users[step]:
                heappush(pending, u)
            joins = joins or isinstance(self.step(step), g.Concat)
            if left.keys() == {step} and (not joins or self.kept(step)):
                return step
            if len(region) > MAX_STEPS:
                return None
        return None

    def absorbable(self, value: int, region: set[int], c: int) -> bool:
        """True if a step can be computed where the contraction's result is."""
        step = self.step(value)
        if isinstance(step, g.Cast | g.Reshape | g.Transpose | g.Slice):
            return True
        if isinstance(step, g.Concat) and not self.unequal(value):
            once = not any(isinstance(self.step(s), g.Concat) for s in region)  # a turned part is multiplied again
            return once and region.issuperset(self.graph.inputs[value]) and few_rows(self, c)
        if not isinstance(step, g.Map):
            return False
        if all(self.elements(i) != self.elements(value) for i in self.graph.inputs[value] if i in region):
            return False  # it repeats the result: computing that once costs less than once for each copy
        for i in self.graph.inputs[value]:
            if i in region or self.light_from_stored(i):
                continue
            behind = self.contractions_behind(i)
            if self.elements(i) != self.elements(value) or not self.same_operand([c], behind):
                return False
        return True

    def same_operand(self, a: Iterable[int], b: Iterable[int]) -> bool:
        """True if contractions read one common operand (chained ones: at their start)."""
        return bool(self.roots(a) & self.roots(b))

    def roots(self, contractions: Iterable[int]) -> set[int]:
        roots: set[int] = set()
        seen: set[int] = set()
        todo = list(contractions)
        while todo:
            c = todo.pop()
            if c in seen:
                continue
            seen.add(c)
            inner = self.chained(c)
            for i in self.graph.inputs[c]:
                if self.is_constant(i):
                    continue
                if inner and self.heavy[i] and i not in self.stored:
                    todo += inner
                else:
                    roots.add(self.base(i))
        return roots

    # --- rule 3: what a fragment reads ---------------------------------------------------------------------------------------
    def boundary(self, end: int) -> list[int]:
        """The values at which the fragment of `end` begins."""
        if end not in self._boundaries:
            self._boundaries[end] = self.find_boundary(end)
        return self._boundaries[end]

    def find_boundary(self, end: int) -> list[int]:
        """The same, for the first time since something was stored."""
        boundary, seen = dict[int, None](), set[tuple[int, bool]]()
        light = all(self.light_from_stored(i) for i in self.graph.inputs[end]) and not self.is_contraction(end)
        todo = [(end, light)]  # a light fragment may hold normalisations that only elementwise operators read
        while todo:
            v, contracted = todo.pop()
            if (v, contracted) in seen:
                continue
            seen.add((v, contracted))
            again = contracted and not light and self.normalised_again(v)
            if v != end and (again or self.begins(v, contracted)):
                boundary[v] = None
                continue
            inner = contracted or self.is_contraction(v)
            todo.extend((i, inner) for i in self.graph.inputs[v])
        return sorted(boundary)

    def begins(self, v: int, contracted: bool) -> bool:
        """True if a fragment reads `v` from memory rather than compute it."""
        if (v, contracted) not in self._begins:
            self._begins[v, contracted] = self.find_begins(v, contracted)
        return self._begins[v, contracted]

    def find_begins(self, v: int, contracted: bool) -> bool:
        """The same, for the first time since something was stored."""
        step = self.step(v)
        if v in self.stored or self.is_source(v):
            return True
        if isinstance(step, g.Fill) or v not in self.names or self.is_view(v):
            return False
        if self.unequal(v):
            return True
        if self.heavy[v] and not self.light_from_stored(v):
            return False
        if not contracted and self.has_reduction(v) and not self.of_single(v):
            return True
        if isinstance(step, g.Map) and not self.of_positions[v] and self.crosses(v):
            return True
        if isinstance(step, g.Map) and costs(step) and len(self.readers(v)) > 1:
            return step.op not in ("sigmoid", "silu", "gelu", "gelu_tanh")
        return v in self.long

    def find_long(self) -> None:
        """Find the light values that several steps read and `LONG` steps compute, from what is stored or such values: what
        fragments compute again then grows with how many they are, and not with the model as well."""
        for v in sorted(self.live & self.names.keys()):
            shared = not self.is_view(v) and len(self.readers(v)) > 1 and self.light_from_stored(v)
            if shared and self.behind(v, self.long, LONG) == LONG:
                self.long.add(v)
        self._begins.clear()
        self._boundaries.clear()

    def parts(self, values: Iterable[int]) -> set[int]:
        """The values that are computed to store `values`: the parts of concatenations that no program reads across
        their joints (new keys behind a cache), else a value itself."""
        parts: set[int] = set()
        seen: set[int] = set()
        todo = list(values)
        while todo:
            v = todo.pop()
            base = self.base(v)
            if not self.unequal(base):
                parts.add(v)
            elif base not in seen:
                seen.add(base)
                todo += [i for i in self.graph.inputs[base] if self.computed(i)]
        return parts

    # --- rule 4 and making fragments -----------------------------------------------------------------------------------------
    def worth_storing(self, v: int, boundary: Iterable[int] | None = None) -> bool:
        """True if a stored light value is a fragment: a normalisation, or several operators that are elementwise or join."""
        steps = [self.step(x) for x in self.graph.cone([v], self.boundary(v) if boundary is None else boundary)]
        operators = sum(isinstance(s, g.Map | g.Concat) for s in steps)
        return any(isinstance(s, g.Reduce) for s in steps) or operators >= CHAIN

    def whole(self, end: int) -> LaxFragment:
        return self.make([end], self.boundary(end))

    def sizes_stored(self, end: int) -> LaxFragment:
        """The fragment that reads what would be computed for it from symbols that no shape of what it reads has."""
        begin = set(self.boundary(end))
        given = {n for v in begin for e in self.graph.dims(v) for n in ex.names(e)}
        tainted: set[int] = set()
        for v in self.graph.cone([end], begin):
            own = {n for e in self.graph.dims(v) for n in ex.names(e)}
            if v not in begin and (own - given or tainted.intersection(self.graph.inputs[v])):
                tainted.add(v)
        extra = {v for v in tainted if v in self.names and not self.heavy[v] and v != end}
        boundary = extra.union(begin)
        if not extra or not (self.heavy[end] or self.worth_storing(end, boundary)):
            raise Refused("nothing that it computes depends on sizes alone")
        return self.make([end], [v for v in self.graph.cone([end], boundary) if v in boundary])

    def operands_stored(self, end: int) -> LaxFragment:
        """The fragment without what it would compute again for its contractions."""
        extra = {
            i
            for v in self.graph.cone([end], self.boundary(end))
            if self.is_contraction(v)
            for i in self.graph.inputs[v]
            if i in self.names and self.light_from_stored(i)
        }
        boundary = set(self.boundary(end)) | extra
        return self.make([end], [v for v in self.graph.cone([end], boundary) if v in boundary])

    def make(self, ends: Sequence[int], boundary: list[int]) -> LaxFragment:
        if any(end not in self.names for end in ends):
            raise Refused("its result is no tensor of the model")
        if any(v not in self.names for v in boundary):
            raise Refused("it reads a value that is no tensor of the model")
        steps = self.graph.cone(ends, boundary)
        begin = set(boundary)
        if len(steps) > MAX_STEPS:
            raise Refused(f"it would have {len(steps)} steps, more than {MAX_STEPS}")
        tables = (i for v in boundary if isinstance(self.step(v), g.Choose) for i in self.graph.inputs[v])
        stated = instantiate(
            self.graph, ends, boundary, {v: self.names[v] for v in (*steps, *tables) if v in self.names}
        )
        program = canonical(stated)
        if not self.complete and (not program.nodes or not program.outputs[0].access):
            raise Refused("there is nothing to compute")
        by_name = {self.names[v]: v for v in boundary}
        inputs = tuple(by_name[s.name] for s in program.sources)
        inner = tuple(v for v in steps if v not in begin)
        return LaxFragment(kind(program), program, inputs, tuple(ends), inner, key(program), growth(stated))
