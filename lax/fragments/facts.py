"""Facts about the values of a graph, from what they are computed from and by what is stored between fragments.

Answers are remembered, and nothing recurses: a hostile or only long model asks for each value again and again, through
chains of any length.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from mirage_cli.lax import extents as ex
from mirage_cli.lax.ir import graph as g
from mirage_cli.lax.ops import OPS

COSTLY_FLOPS = 8  #: a shared light value of this price for each element is stored rather than computed again


def costs(step: g.Map) -> bool:
    """True if an operator has that price."""
    return OPS[step.op].flops >= COSTLY_FLOPS


class Facts:
    """A graph, the names of those of its values that are tensors of a model, and the set of values that are stored.

    `live` values are needed for the results, `users` are the live steps that read a value, `depth` is the longest way over
    contractions to a value, and a value is `heavy` when there is one (not looking behind what is not read). `bases` holds
    the value behind views, `of_weights` whether a value is a weight, or computed of weights and numbers without a product,
    `of_positions` whether it is computed of positions and numbers alone, by cheap steps (a mask).
    """

    def __init__(self, graph: g.Graph, names: Mapping[int, str]) -> None:
        self.graph, self.names = graph, names
        self.live = set(graph.cone(graph.outputs))
        self.users = [[u for u in users if u in self.live] for users in graph.consumers()]
        self.results = set(graph.outputs)
        self.depth = self._depth()
        self.heavy = self._heavy()
        self.of_weights: list[bool] = []
        self.of_positions: list[bool] = []
        for v, step in enumerate(graph.steps):
            stored = isinstance(step, g.Input) and step.constant
            weights = [i for i in graph.inputs[v] if not isinstance(graph.steps[i], g.Fill)]
            computed = bool(weights) and not self.heavy[v] and all(self.of_weights[i] for i in weights)
            self.of_weights.append(stored or computed)
            costly = isinstance(step, g.Input | g.Choose | g.Opaque) or (isinstance(step, g.Map) and costs(step))
            self.of_positions.append(not costly and all(self.of_positions[i] for i in graph.inputs[v]))
        self.bases: list[int] = []
        for v in range(len(graph.steps)):
            self.bases.append(self.bases[graph.inputs[v][0]] if self.is_view(v) else v)
        self.stored: set[int] = set()
        self._light: dict[int, bool] = {}
        self._reduced: dict[int, bool] = {}
        self._apart: dict[int, bool] = {}
        self._single: dict[int, bool] = {}
        self._ways: tuple[dict[int, int], list[int], list[int]] | None = None
        self._readers: dict[int, list[int]] = {}

    def store(self, values: Iterable[int]) -> None:
        """Store values too."""
        new = set(values) - self.stored
        if new:
            self.stored |= new
            self._light = {v: True for v, light in self._light.items() if light}  # that stays so
            self._reduced.clear()
            self._single.clear()
            self._ways = None

    # --- what a value is ----------------------------------------------------------------------------------------------
    def step(self, v: int) -> g.Step:
        """The step that computes a value."""
        return self.graph.steps[v]

    def is_view(self, v: int) -> bool:
        """True if a value is another one, seen differently."""
        return isinstance(self.step(v), (*g.VIEWS, g.Cast))

    def base(self, v: int) -> int:
        """The value behind views."""
        return self.bases[v]

    def is_contraction(self, v: int) -> bool:
        """True if a value is a product of matrices."""
        return isinstance(self.step(v), g.Contract)

    def is_source(self, v: int) -> bool:
        """True if a value comes from outside of what is read."""
        return isinstance(self.step(v), g.Input | g.Choose | g.Opaque)

    def is_constant(self, v: int) -> bool:
        """True if a value is stored in the model."""
        step = self.step(self.base(v))
        return isinstance(step, g.Fill) or (isinstance(step, g.Input) and step.constant)

    def computed(self, v: int) -> bool:
        """True if `v` is a tensor of the model and more than a view of what is there."""
        return v in self.names and not self.is_source(self.base(v)) and not self.is_constant(v)

    def elements(self, v: int) -> ex.Extent:
        """Number of elements of a value."""
        return ex.product(self.graph.dims(v))

    def _depth(self) -> list[int]:
        depth: list[int] = []
        for v, step in enumerate(self.graph.steps):
            inherited = max((depth[i] for i in self.graph.inputs[v]), default=0)
            depth.append(inherited + isinstance(step, g.Contract))
        return depth

    def _heavy(self) -> list[bool]:
        heavy: list[bool] = []
        for v, step in enumerate(self.graph.steps):
            behind = any(heavy[i] for i in self.graph.inputs[v])
            heavy.append((behind or isinstance(step, g.Contract)) and not isinstance(step, g.Choose | g.Opaque))
        return heavy

    def readers(self, v: int) -> list[int]:
        """The steps that read a value, itself or a view of it."""
        if v not in self._readers:
            readers, todo = list[int](), [v]
            while todo:
                for u in self.users[todo.pop()]:
                    (todo if self.is_view(u) else readers).append(u)
            self._readers[v] = readers
        return self._readers[v]

    def reaches(self, values: Iterable[int], ends: set[int]) -> bool:
        """True if some value depends on one of `ends`; numbers of values go up along the way."""
        todo, seen, least = list(values), set[int](), min(ends)
        while todo:
            v = todo.pop()
            if v in ends:
                return True
            if v > least and v not in seen:
                seen.add(v)
                todo.extend(self.graph.inputs[v])
        return False

    # --- concatenations -------------------------------------------------------------------------------------------------
    def unequal(self, v: int) -> bool:
        """True if a value is a concatenation of unequal parts that no program reads as one: no index tells them apart
        (`Graph.unit`), or they are normalised here, which would be done once for each."""
        step = self.step(v)
        if not isinstance(step, g.Concat) or len({self.graph.dims(i)[step.dim] for i in self.graph.inputs[v]}) == 1:
            return False
        if v not in self._apart:
            self._apart[v] = self.graph.unit(v) is None or self._reduced_here(v)
        return self._apart[v]

    def _reduced_here(self, v: int) -> bool:
        """True if something is summed between products and a value."""
        products = filter(self.is_contraction, range(len(self.graph.steps)))
        return any(isinstance(self.step(x), g.Reduce) for x in self.graph.cone([v], products))

    def kept(self, v: int) -> bool:
        """True if a value is stored whatever fragments there are: a result, or a part of a concatenation of unequal ones."""
        return v in self.results or any(self.unequal(u) for u in self.readers(v))

    def joined(self, values: Iterable[int]) -> set[int]:
        """The concatenations of unequal parts that such ones among `values` are made of: nothing is computed across them."""
        begun = {b for v in values if self.unequal(b := self.base(v))}
        concatenations, todo = set(begun), list(begun)
        while todo:
            parts = {b for i in self.graph.inputs[todo.pop()] if self.unequal(b := self.base(i))} - concatenations
            concatenations |= parts
            todo += parts
        return {v for v in concatenations - begun if v in self.names}

    # --- by what is stored --------------------------------------------------------------------------------------------
    def light_from_stored(self, v: int) -> bool:
        """True if no contraction lies between the stored values and `v`."""

        def own(x: int) -> bool | None:
            if x in self.stored or not self.heavy[x]:
                return True
            return False if self.is_contraction(x) else None

        return self._found(self._light, v, own, all)

    def behind(self, v: int, stops: Container[int], most: int) -> int:
        """Number of steps, but for views, that compute `v` from stored values or `stops`; no more than `most` are
        looked for."""
        seen: set[int] = set()
        count, todo = 0, [v]
        while todo and count < most:
            x = todo.pop()
            if not (x in seen or x in self.stored or x in stops or self.is_source(x) or self.is_constant(x)):
                seen.add(x)
                count += not self.is_view(x)
                todo.extend(self.graph.inputs[x])
        return count

    def has_reduction(self, v: int) -> bool:
        """True if a normalisation lies between the stored values and `v`, which is none of them."""

        def own(x: int) -> bool | None:
            if x in self.stored:
                return False
            return True if isinstance(self.step(x), g.Reduce) else None

        return self._found(self._reduced, v, own, any)

    def normalised_again(self, v: int) -> bool:
        """True if several read a tensor of the model that a normalisation is behind, and one of them to normalise it once
        more."""
        readers, seen = self.readers(v), set[int]()
        stands = v in self.names and not self.is_view(v) and self.light_from_stored(v)
        if not stands or len(readers) < 2 or not self.has_reduction(v):
            return False
        cone, todo = self.graph.cone([v], self.stored), list(readers)
        roots = (x for x in cone if isinstance(s := self.step(x), g.Map) and s.op in ("sqrt", "rsqrt"))
        if not any(self.has_reduction(x) for x in roots):
            return False
        while todo:
            x = todo.pop()
            if isinstance(self.step(x), g.Reduce):
                return True
            if x not in seen and isinstance(self.step(x), g.Map):
                seen.add(x)
                todo += self.readers(x)
        return False

    def of_single(self, v: int) -> bool:
        """True if all that `v` takes of what is not constant are reductions to one element."""

        def own(x: int) -> bool | None:
            if isinstance(self.step(x), g.Reduce):
                return self.elements(x) == 1
            if self.is_constant(x) or isinstance(self.step(x), g.Fill):
                return True
            return False if x in self.stored or self.is_source(x) or not self.graph.inputs[x] else None

        return self._found(self._single, v, own, all)

    def _found(
        self,
        known: dict[int, bool],
        v: int,
        own: Callable[[int], bool | None],
        join: Callable[[Iterable[bool]], bool],
    ) -> bool:
        """The answer of `own` for `v`, or else that of `join` for the answers of what it is computed from."""
        todo = [v]
        while todo:
            x = todo[-1]
            if x not in known:
                said = own(x)
                if said is None:
                    missing = [i for i in self.graph.inputs[x] if i not in known]
                    if missing:
                        todo += missing
                        continue
                    said = join(known[i] for i in self.graph.inputs[x])
                known[x] = said
            todo.pop()
        return known[v]

    def crosses(self, v: int) -> bool:
        """True if `v` is still needed after a stored value that was computed from it (a residual stream): it has to
        be kept all the while, so it is stored rather than computed again."""
        if self._ways is None:
            self._ways = self._stored_around()
        bit, before, after = self._ways
        others = after[v] & ~bit.get(v, 0)
        return bool(others) and any(before[t] & others & ~bit.get(t, 0) for t in self.readers(v))

    def _stored_around(self) -> tuple[dict[int, int], list[int], list[int]]:
        """A bit for each stored value, and for every value the bits of those that it is computed from and of those that are
        computed from it, itself included."""
        bit = {e: 1 << k for k, e in enumerate(sorted(self.stored))}

        def joined(v: int, parts: Iterable[int], known: Mapping[int, int] | list[int]) -> int:
            bits = bit.get(v, 0)
            for p in parts:
                bits = bits | known[p] if bits else known[p]  # equal numbers are one object
            return bits

        count = len(self.graph.steps)
        before: list[int] = []
        for v in range(count):
            before.append(joined(v, self.graph.inputs[v], before))
        after = [0] * count
        for v in reversed(range(count)):
            after[v] = joined(v, self.users[v], after)
        return bit, before, after
