"""The right answers of a fragment: its original nodes in float64, as they stand in the model.

They come from `truth`, which reads nodes by a path of its own: a program that was rewritten wrongly is no witness of its own
error. Where the nodes' value cannot be had (an operator without a meaning there, or too large a tensor) the program's stands
in for it, if it was seen to be equal to the nodes' on other inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from mirage_cli.checks import divergence
from mirage_cli.errors import MirageError, Refused
from mirage_cli.lax.domains.domain import Float64
from mirage_cli.lax.ir.program import Program, evaluate_program
from mirage_cli.runtime import sessions
from mirage_cli.truth import evaluate

Array: TypeAlias = NDArray[Any]
MAX_WORK = 4e10  #: multiply-adds of the largest operator up to which float64 is affordable
MAX_ELEMENTS = 1 << 28  #: elements of the largest value
SAME = 1e-7  #: relative distance of two evaluations in float64 that are of the same function, at most `ROUNDED` times
ROUNDED = 16.0  #: units that leaving out casts to a narrower type may change
FEW = 2.0**-8  #: of the elements that it may change more: of scores that are nearly equal, rounding chooses one
_NARROW = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT})


class Unknown(Refused):
    """There is no value in float64 to compare with."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The original nodes of a fragment as a model: `names` are its inputs, the program's sources first and then those that
    only the nodes read (`extra` makes values for them); `outputs` are those of the program. `wide` are weights in float64 by
    source, which need not be converted again."""

    model: onnx.ModelProto
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    extra: Callable[[Mapping[str, int]], Sequence[Array]] = lambda symbols: ()
    wide: Mapping[int, Array] = field(default_factory=dict)

    def feeds(self, arrays: Sequence[Array], symbols: Mapping[str, int]) -> dict[str, Array]:
        """Arrays of the sources as the model's inputs."""
        given = [self.wide.get(k, a) for k, a in enumerate(arrays)]
        return dict(zip(self.names, [*given, *self.extra(symbols)], strict=True))

    def exact(
        self,
        arrays: Sequence[Array],
        symbols: Mapping[str, int],
        casts: bool = True,
        rounded: bool = False,
        hidden: bool = True,
        overflows: bool = True,
    ) -> tuple[Array, ...]:
        """The outputs in float64; integers and truth values as they are. Raises Unknown."""
        try:
            tensors = evaluate.run(
                self.model,
                self.feeds(arrays, symbols),
                self.outputs,
                most_work=MAX_WORK,
                most_elements=MAX_ELEMENTS,
                rounded=rounded,
                casts=casts,
                hidden=hidden,
                overflows=overflows,
            )
        except Refused as error:
            raise Unknown(f"its nodes have no float64 value: {error}") from None
        return tuple(tensors[o] for o in self.outputs)

    def trace(
        self, arrays: Sequence[Array], symbols: Mapping[str, int]
    ) -> Iterator[tuple[onnx.NodeProto, dict[str, Array]]]:
        """The nodes in order with their results in float64. Raises Refused on the way."""
        feeds = self.feeds(arrays, symbols)
        yield from evaluate.trace(
            self.model, feeds, self.outputs, most_work=MAX_WORK, most_elements=MAX_ELEMENTS, casts=False
        )


@dataclass(slots=True)
class Reference:
    """The values of one fragment's nodes, and what is known of the program by them."""

    program: Program
    nodes: Nodes
    seen: tuple[tuple[Array, ...], Mapping[str, int], int] | None = None  #: inputs that have a value, and their size
    same: bool | None = None

    def values(self, arrays: Sequence[Array], symbols: Mapping[str, int]) -> tuple[Array, ...]:
        """The nodes' results for arrays, in float64. Raises Unknown."""
        exact = self.nodes.exact(arrays, symbols)
        size = sum(a.size for a in arrays)
        if size and (self.seen is None or size < self.seen[2]):
            self.seen = (tuple(arrays), symbols, size)
        return exact

    def others(
        self, arrays: Sequence[Array], symbols: Mapping[str, int], exact: Sequence[Array], large: bool = False
    ) -> tuple[Callable[[], tuple[Array, ...] | None], ...]:
        """Values that are right as well, each made when it is asked for; `large` are inputs that are meant to overflow."""
        return (
            cache(lambda: self.loose(arrays, symbols, exact, large)),
            cache(lambda: self.hidden(arrays, symbols, exact)),
        )

    def hidden(
        self, arrays: Sequence[Array], symbols: Mapping[str, int], exact: Sequence[Array]
    ) -> tuple[Array, ...] | None:
        """The values where attention does not read the keys and values that it hides, of which runtimes and kernels may do
        either. None where all inputs are finite, and where that changes nothing."""
        if all(a.dtype.kind in "biu" or np.isfinite(a.astype(np.float64)).all() for a in arrays):
            return None
        found = self.nodes.exact(arrays, symbols, hidden=False)
        return None if all(np.array_equal(f, t, equal_nan=True) for f, t in zip(found, exact, strict=True)) else found

    def loose(
        self, arrays: Sequence[Array], symbols: Mapping[str, int], exact: Sequence[Array], large: bool = False
    ) -> tuple[Array, ...] | None:
        """The values without the roundings of casts, where these change no more than that, but for a few elements: what
        computes in wider types than the nodes say is nearer to these. None where there are no such casts, or where a cast's
        rounding is what counts.
        On `large` inputs casts may overflow, even where the nodes hide what comes of it (no number counts as 0, say): it is
        better not to, and where that decides the values, the roundings of others are no matter either."""
        if not has_narrowing_casts(self.nodes.model):
            return None
        try:
            unrounded = self.nodes.exact(arrays, symbols, casts=False)
            held = self.nodes.exact(arrays, symbols, overflows=False) if large else tuple(exact)
        except Unknown:
            return None
        unit = divergence.unit(self.nodes.model)

        def close(one: Sequence[Array], other: Sequence[Array]) -> bool:
            return all(nearly_equal(t, f, unit, FEW) for t, f in zip(one, other, strict=True))

        return unrounded if close(held, unrounded) or not close(exact, held) else None

    def agrees(self) -> bool:
        """True if the program was seen to be equal to its nodes."""
        if self.same is None and self.seen is not None:
            arrays, symbols, _ = self.seen
            try:
                exact = self.nodes.exact(arrays, symbols, casts=False)
                own = of_program(self.program, arrays, symbols)
                self.same = all(nearly_equal(t, p, SAME) for t, p in zip(exact, own, strict=True))
            except Refused:
                self.same = False
        return bool(self.same)

    def parts(
        self, arrays: Sequence[Array], symbols: Mapping[str, int], own: Sequence[Array], exact: Sequence[Array]
    ) -> str:
        """At which node what onnxruntime made of the nodes (`own`) parts from what they mean; nothing where rounding explains
        it."""
        model = self.nodes.model
        unit, terms = divergence.unit(model), divergence.longest_dimension(dict(enumerate(map(np.asarray, arrays))))  # type: ignore[arg-type]
        if all(divergence.within_rounding(o, t, unit, terms) for o, t in zip(own, exact, strict=True)):
            return ""
        try:
            session = sessions.session(divergence.showing_all(model).SerializeToString(), optimize=False)
            feeds = dict(zip(self.nodes.names, [*arrays, *self.nodes.extra(symbols)], strict=True))
            return divergence.first_divergence(model, feeds | sessions.run(session, feeds))
        except MirageError:
            return ""


def of_program(
    program: Program, arrays: Sequence[Array], symbols: Mapping[str, int], wide: Mapping[int, Array] | None = None
) -> tuple[Array, ...]:
    """A program's outputs in float64. Raises Unknown where it has none at these sizes."""
    given = dict(wide or {})
    given |= {k: np.asarray(a).astype(np.float64) for k, a in enumerate(arrays) if k not in given}
    try:
        return tuple(evaluate_program(program, Float64([a.name for a in program.axes]), given, symbols))
    except (IndexError, ValueError) as error:
        raise Unknown(f"the program has no value at these sizes: {error}") from None


def has_narrowing_casts(model: onnx.ModelProto) -> bool:
    """True if some node casts to a floating-point type that may be narrower than what it is given."""
    nodes = (*model.graph.node, *(n for f in model.functions for n in f.node))
    casts = (n for n in nodes if n.op_type in ("Cast", "CastLike"))
    return any(n.op_type == "CastLike" or any(a.i in _NARROW for a in n.attribute) for n in casts)


def nearly_equal(exact: Array, other: Array, unit: float, but: float = 0.0) -> bool:
    """True if numbers are the same but for a few such parts of their size, where both are finite; `but` for a share."""
    if exact.shape != other.shape:
        return False
    t, o = (np.asarray(a, dtype=np.float64) for a in (exact, other))
    both = np.isfinite(t) & np.isfinite(o)
    if not both.any():
        return True
    off = np.abs(t[both] - o[both])
    off = np.partition(off, left - 1)[:left] if (left := off.size - int(but * off.size)) < off.size else off
    return divergence.rms(off) <= ROUNDED * unit * max(divergence.rms(t[both]), divergence.rms(o[both]))
