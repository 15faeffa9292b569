"""Tensor programs on named axes: the form in which fragments are searched, proved and named.

An input reads a stored tensor (a *source*) through an access map: row-major *slots*, each a run of stored positions that
an axis walks, or one fixed position. Reshape, transpose, slices and broadcasts live in these maps and nowhere else. A
value's axes follow from its operands; a broadcast is an axis that a value lacks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from mirage_cli.errors import InvalidGraph
from mirage_cli.lax import extents as ex
from mirage_cli.lax.domains.domain import Array
from mirage_cli.lax.dtypes import BY_NAME, DType, unpacked
from mirage_cli.lax.extents import Extent
from mirage_cli.lax.ir.evaluate import ArrayValues, broadcast_to, fit
from mirage_cli.lax.ir.joints import Chosen, Parts, chosen_from_json, parts_from_json
from mirage_cli.lax.ir.numbers import number_from_json, number_to_json
from mirage_cli.lax.ops import lookup

REDUCTIONS = ("sum", "max", "min", "prod", "top")
MAX_TENSORS = 64  #: inputs, and outputs, of a program's operator (templates/include/mirage/ort_shapes.hpp)
STRUCTURAL = {"const": 0, "iota": 0, "extent": 0, "stable_exp": 1, "exp_minus": 2, "contract": 2}  #: arities


@dataclass(frozen=True, slots=True)
class Axis:
    """A named iteration range."""

    name: str
    extent: Extent


@dataclass(frozen=True, slots=True)
class Slot:
    """`extent` stored positions of which `axis` walks those from `offset` on; a fixed position when `axis` is None."""

    axis: str | None
    extent: Extent
    offset: int = 0

    def __str__(self) -> str:
        if self.axis is None:
            return f"{self.offset}:{self.extent}"
        return self.axis if self.offset == 0 else f"{self.axis}+{self.offset}:{self.extent}"


MARKS = ("packed", "unwritten", "rounds", "levels")  #: what a source may be beside constant, in this order


@dataclass(frozen=True, slots=True)
class Source:
    """A stored tensor that the program reads; `name` is the model's and no part of the program's identity.

    `constant`: known when a session is made, as weights are. `unwritten`: callers promise of an input that no kernel in front
    of the program's own writes it; its values are those of the call. `packed`: the model's tensor has bytes that hold several
    elements. `rounds`: the model says that products with this weight may round what they multiply it with to 8 bits, by the
    positions that share a scale. `levels`: whole numbers within 255 of one another and 0. `parts`, `chosen`: `parts.py`."""

    name: str
    dims: tuple[Extent, ...]
    dtype: DType
    constant: bool = False
    packed: bool = False
    unwritten: bool = False
    rounds: bool = False
    parts: Parts | None = None
    levels: bool = False
    chosen: Chosen | None = None

    @property
    def tensor_dims(self) -> tuple[Extent, ...]:
        """The dimensions of the model's tensor."""
        if not self.packed:
            return self.dims
        return (*self.dims[:-1], ex.quotient(self.dims[-1], self.dtype.per_byte) or 0)

    def numbers(self, a: Array, lead: int) -> Array:
        """The elements of the model's tensor, or an array that holds them already; behind `lead` other dimensions."""
        if not self.packed or (a.ndim == lead + len(self.dims) and a.shape[-1] == self.dims[-1]):
            return a
        return unpacked(a.astype(np.uint8), self.dtype).astype(a.dtype)


@dataclass(frozen=True, slots=True)
class Input:
    """A value read from source number `source` through an access map."""

    name: str
    source: int
    access: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """An operator: one of the registry, or structural.

    `over` names the axes that a reduction, a contraction or a stabilised exponential takes; `value` is a constant's;
    `axis` an iota's, or the one whose number of positions an `extent` is; `dtype` is the element type in which the model
    multiplies (contractions).
    """

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    value: Fraction | float | None = None
    axis: str | None = None
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """A result stored row-major by `access` as a tensor of `dims`."""

    value: str
    access: tuple[Slot, ...]
    dims: tuple[Extent, ...]
    dtype: DType
    name: str = ""  #: the model's name, no part of the program's identity


@dataclass(frozen=True, slots=True)
class Program:
    """A DAG of operators on named axes; nodes are in topological order."""

    axes: tuple[Axis, ...]
    sources: tuple[Source, ...]
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    _axes_of: dict[str, frozenset[str]] = field(default_factory=dict, repr=False, compare=False)

    # --- asking -------------------------------------------------------------------------------------------------------
    def extent(self, axis: str) -> Extent:
        """The extent of an axis."""
        return next(a.extent for a in self.axes if a.name == axis)

    def input(self, name: str | None) -> Input:
        """The read of a source that is called so. Raises StopIteration where there is none."""
        return next(i for i in self.inputs if i.name == name)

    def axes_of(self, value: str) -> frozenset[str]:
        """The axes that a value has."""
        if not self._axes_of:
            self._axes_of.update(self._infer())
        return self._axes_of[value]

    def node(self, value: str) -> Node | Input:
        """The node or the input that defines a value."""
        definitions: list[Node | Input] = [x for x in self.inputs if x.name == value]
        definitions += [x for x in self.nodes if x.name == value]
        if definitions:
            return definitions[0]
        raise InvalidGraph(f"no value {value!r} in the program")

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols in extents, sorted."""
        symbols: set[str] = set()
        for a in self.axes:
            symbols.update(ex.names(a.extent))
        for s in self.sources:
            for e in s.dims:
                symbols.update(ex.names(e))
        return tuple(sorted(symbols))

    @property
    def unknown_symbols(self) -> list[str]:
        """Symbols whose values do not follow from the shapes of what the program reads: each has to be the only one that
        is not known yet in some dimension."""
        given = [ex.names(e) for s in self.sources for e in s.dims]
        known: set[str] = set()
        while new := {left[0] for n in given if len(left := [x for x in n if x not in known]) == 1}:
            known |= new
        return [s for s in self.symbols if s not in known]

    @property
    def constants(self) -> frozenset[int]:
        """The numbers of the sources that are weights of the model, or rows of such: these are known before it runs."""
        return frozenset(k for k, s in enumerate(self.sources) if s.constant)

    @property
    def early(self) -> frozenset[int]:
        """The numbers of the sources that no kernel writes: they may be read while earlier kernels still run."""
        return frozenset(k for k, s in enumerate(self.sources) if s.unwritten or (s.constant and not s.chosen))

    @property
    def rounds(self) -> frozenset[int]:
        """The numbers of the sources with which products may round what they multiply."""
        return frozenset(k for k, s in enumerate(self.sources) if s.rounds)

    @property
    def packed(self) -> DType | None:
        """The element type of a source in which several elements share a byte, or None."""
        return next((s.dtype for s in self.sources if s.dtype.per_byte > 1), None)

    def _infer(self) -> dict[str, frozenset[str]]:
        axes = {i.name: frozenset(s.axis for s in i.access if s.axis is not None) for i in self.inputs}
        for n in self.nodes:
            joined = frozenset[str]().union(*(axes[i] for i in n.inputs)) if n.inputs else frozenset()
            if n.op == "iota":
                joined = frozenset([n.axis or ""])
            axes[n.name] = joined - frozenset(n.over) if n.op in ("contract", *REDUCTIONS) else joined
        return axes

    # --- checking -----------------------------------------------------------------------------------------------------
    def validate(self) -> Program:
        """The program itself. Raises InvalidGraph naming the node or slot that breaks a rule."""
        known = {a.name for a in self.axes}
        if len(known) != len(self.axes):
            raise InvalidGraph("two axes of the program have one name")
        seen: set[str] = set()
        for i in self.inputs:
            if not 0 <= i.source < len(self.sources):
                raise InvalidGraph(f"{i.name} reads source {i.source} of {len(self.sources)}")
            self._check_access(i.name, i.access, self.sources[i.source].dims, known)
            seen.add(i.name)
        for n in self.nodes:
            if n.name in seen:
                raise InvalidGraph(f"two values of the program have the name {n.name}")
            self._check_node(n, seen, known)
            seen.add(n.name)
        for o in self.outputs:
            if o.value not in seen:
                raise InvalidGraph(f"output reads {o.value!r}, which nothing defines")
            self._check_access(o.value, o.access, o.dims, known)
            missing = self.axes_of(o.value) - {s.axis for s in o.access}
            if missing:
                raise InvalidGraph(f"output {o.value} does not store its axes {sorted(missing)}")
        return self

    def _check_access(self, name: str, access: tuple[Slot, ...], dims: tuple[Extent, ...], known: set[str]) -> None:
        if ex.product(slot.extent for slot in access) != ex.product(dims):
            raise InvalidGraph(f"{name}: slots [{', '.join(map(str, access))}] do not cover dimensions {dims}")
        for slot in access:
            if slot.axis is not None and slot.axis not in known:
                raise InvalidGraph(f"{name}: unknown axis {slot.axis!r}")
            walked = 1 if slot.axis is None else self.extent(slot.axis)
            inside = (
                not isinstance(walked, int) or not isinstance(slot.extent, int) or slot.offset + walked <= slot.extent
            )
            if slot.offset < 0 or not inside:
                raise InvalidGraph(
                    f"{name}: {walked} positions from {slot.offset} on, of {slot.extent} that are stored"
                )

    def _check_node(self, n: Node, seen: set[str], known: set[str]) -> None:
        for i in n.inputs:
            if i not in seen:
                raise InvalidGraph(f"{n.name} = {n.op}: operand {i!r} is not defined before it")
        arity = 1 if n.op in REDUCTIONS and n.over else STRUCTURAL.get(n.op)
        arity = lookup(n.op).arity if arity is None else arity
        if len(n.inputs) != arity:
            raise InvalidGraph(f"{n.name} = {n.op}: takes {arity} operands, got {len(n.inputs)}")
        if n.op in ("iota", "extent") and n.axis not in known:
            raise InvalidGraph(f"{n.name} = {n.op}: unknown axis {n.axis!r}")
        available = frozenset[str]().union(*(self.axes_of(i) for i in n.inputs)) if n.inputs else frozenset()
        if not set(n.over) <= known or (n.op in ("contract", "stable_exp") and not set(n.over) <= available):
            raise InvalidGraph(f"{n.name} = {n.op}: reduces axes {n.over} that its operands lack")

    # --- text and JSON --------------------------------------------------------------------------------------------------
    def __str__(self) -> str:
        lines = ["axes " + " ".join(f"{a.name}={a.extent}" for a in self.axes)]
        for i in self.inputs:
            s = self.sources[i.source]
            lines.append(
                f"{i.name} = read {s.dtype} #{i.source}{s.parts or ''}{s.chosen or ''} [{', '.join(map(str, i.access))}]"
            )
        lines += [str_node(n) for n in self.nodes]
        lines += [f"output {o.value} {o.dtype} [{', '.join(map(str, o.access))}]" for o in self.outputs]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """A JSON document that `program_from_json` reads back."""
        return {
            "axes": {a.name: ex.to_json(a.extent) for a in self.axes},
            "sources": [
                {"name": s.name, "dims": _dims(s.dims), "dtype": s.dtype.name, "constant": s.constant}
                | {mark: True for mark in MARKS if getattr(s, mark)}
                | {of: own.to_json() for of, own in (("parts", s.parts), ("chosen", s.chosen)) if own}
                for s in self.sources
            ],
            "inputs": [{"name": i.name, "source": i.source, "access": _access(i.access)} for i in self.inputs],
            "nodes": [node_to_json(n) for n in self.nodes],
            "outputs": [
                {"value": o.value, "access": _access(o.access), "dims": _dims(o.dims)}
                | {"dtype": o.dtype.name, "name": o.name}
                for o in self.outputs
            ],
        }

    def key(self) -> str:
        """A hash of all that matters: not of the model's tensor names."""
        data = self.to_json()
        for item in (*data["sources"], *data["outputs"]):
            item.pop("name")
            item.get("parts", {}).pop("names", None)
            item.get("chosen", {}).pop("names", None)
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def str_node(n: Node) -> str:
    """One line of text for a node."""
    extra = [*n.inputs]
    if n.value is not None:
        extra.append(str(n.value))
    if n.axis is not None:
        extra.append(n.axis)
    over = f"; {', '.join(n.over)}" if n.over else ""
    return f"{n.name} = {n.op}({', '.join(extra)}{over})" + (f" in {n.dtype}" if n.dtype else "")


def node_to_json(n: Node) -> dict[str, Any]:
    """A node's fields that are set."""
    data: dict[str, Any] = {"name": n.name, "op": n.op}
    if n.inputs:
        data["inputs"] = list(n.inputs)
    if n.over:
        data["over"] = list(n.over)
    if n.value is not None:
        data["value"] = number_to_json(n.value)
    if n.axis is not None:
        data["axis"] = n.axis
    if n.dtype is not None:
        data["dtype"] = n.dtype.name
    return data


def node_from_json(d: Mapping[str, Any]) -> Node:
    """The inverse of `node_to_json`."""
    return Node(
        d["name"],
        d["op"],
        tuple(d.get("inputs", ())),
        tuple(d.get("over", ())),
        number_from_json(d["value"]) if "value" in d else None,
        d.get("axis"),
        BY_NAME[d["dtype"]] if "dtype" in d else None,
    )


def _dims(dims: Iterable[Extent]) -> list[int | str]:
    return [ex.to_json(e) for e in dims]


def _access(access: Iterable[Slot]) -> list[list[Any]]:
    return [[s.axis, ex.to_json(s.extent), s.offset] for s in access]


def _slots(data: Iterable[Sequence[Any]]) -> tuple[Slot, ...]:
    return tuple(Slot(axis, ex.from_json(extent), offset) for axis, extent, offset in data)


def program_from_json(data: Mapping[str, Any]) -> Program:
    """Read a program back and validate it. Raises InvalidGraph."""
    try:
        return _program(data).validate()
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidGraph(f"the program has a missing or wrong field: {type(error).__name__} {error}") from None


def _program(data: Mapping[str, Any]) -> Program:
    return Program(
        tuple(Axis(n, ex.from_json(e)) for n, e in data["axes"].items()),
        tuple(
            Source(
                s["name"],
                tuple(map(ex.from_json, s["dims"])),
                BY_NAME[s["dtype"]],
                s["constant"],
                **{mark: s.get(mark, False) for mark in MARKS},
                parts=parts_from_json(s.get("parts")),
                chosen=chosen_from_json(s.get("chosen")),
            )
            for s in data["sources"]
        ),
        tuple(Input(i["name"], i["source"], _slots(i["access"])) for i in data["inputs"]),
        tuple(node_from_json(n) for n in data["nodes"]),
        tuple(
            Output(o["value"], _slots(o["access"]), tuple(map(ex.from_json, o["dims"])), BY_NAME[o["dtype"]], o["name"])
            for o in data["outputs"]
        ),
    )


# --- interpretation -----------------------------------------------------------------------------------------------------
def evaluate_program(
    program: Program,
    domain: ArrayValues,
    arrays: Mapping[int, Array],
    symbols: Mapping[str, int] | None = None,
) -> list[Array]:
    """The outputs of a program in an array domain that was made for the program's axes (in their order).

    `arrays` gives each source number its stored tensor. Results have the outputs' dimensions.
    """
    symbols = symbols or {}
    values: dict[str, Array] = {}
    with np.errstate(all="ignore"):
        for i in program.inputs:
            stored = program.sources[i.source].numbers(arrays[i.source], domain.lead)
            values[i.name] = read(program, i.access, stored, domain.lead, symbols)
        last = last_uses(program)
        for n in program.nodes:
            values[n.name] = _apply(program, n, domain, [values[x] for x in n.inputs], symbols)
            for x in last[n.name]:
                del values[x]
        return [write(program, o, values[o.value], domain.lead, symbols) for o in program.outputs]


def last_uses(program: Program) -> dict[str, list[str]]:
    """For each node the values that nothing after it needs."""
    last: dict[str, list[str]] = {}
    needed = {o.value for o in program.outputs}
    for n in reversed(program.nodes):
        last[n.name] = [x for x in dict.fromkeys((*n.inputs, n.name)) if x not in needed]
        needed.update(last[n.name])
    return last


def _apply(p: Program, n: Node, d: ArrayValues, args: list[Array], symbols: Mapping[str, int]) -> Array:
    extents = {} if n.axis is None else {n.axis: ex.value(p.extent(n.axis), symbols)}
    given = [spread(p, args[0], n.over, d, symbols)] if n.op == "sum" else args
    result: Array = node_value(n, d, given, extents)
    return fit(np.asarray(result), len(p.axes), d.lead) if n.op in ("const", "iota", "extent") else result


def node_value(n: Node, d: Any, args: Sequence[Any], extents: Mapping[Any, int]) -> Any:
    """The value of a node in a domain; `extents` gives the axis that it names its number of positions. Where values are
    arrays, the operand of a sum has all axes that are summed (`spread`)."""
    match n.op:
        case "const":
            return d.const(0 if n.value is None else n.value)
        case "iota":
            return d.iota(n.axis, extents[n.axis])
        case "extent":
            return d.const(extents[n.axis])
        case "stable_exp" | "sum":
            return getattr(d, n.op)(args[0], n.over)
        case "contract":
            return d.contract(args[0], args[1], n.over)
        case "max" | "min" | "prod" if n.over:
            return d.extreme(n.op, args[0], n.over)
        case "top":
            return d.running_max(None, args[0], n.over)
        case "exp_minus":
            return d.exp_minus(*args)
        case _:
            return lookup(n.op).apply(d, *args)


def spread(p: Program, a: Array, over: tuple[str, ...], d: ArrayValues, symbols: Mapping[str, int]) -> Array:
    """`a` repeated along those of `over` that it lacks: the sum of a broadcast counts every position."""
    order = [x.name for x in p.axes]
    shape = list(a.shape)
    for name in over:
        shape[d.lead + order.index(name)] = ex.value(p.extent(name), symbols)
    return np.broadcast_to(a, shape)


def read(p: Program, access: tuple[Slot, ...], a: Array, lead: int, symbols: Mapping[str, int]) -> Array:
    """A stored tensor as a value on the program's axes (extent 1 where it lacks one)."""
    order = [x.name for x in p.axes]
    a = a.reshape(a.shape[:lead] + tuple(ex.value(s.extent, symbols) for s in access))
    index: list[Any] = [slice(None)] * lead
    kept: list[str] = []
    for s in access:
        if s.axis is None:
            index.append(s.offset)
        else:
            index.append(slice(s.offset, s.offset + ex.value(p.extent(s.axis), symbols)))
            kept.append(s.axis)
    a = a[tuple(index)]
    perm = sorted(range(len(kept)), key=lambda i: order.index(kept[i]))
    a = a.transpose([*range(lead), *[i + lead for i in perm]])
    sizes = dict(zip([kept[i] for i in perm], a.shape[lead:], strict=True))
    return a.reshape(a.shape[:lead] + tuple(sizes.get(n, 1) for n in order))


def write(p: Program, output: Output, a: Array, lead: int, symbols: Mapping[str, int]) -> Array:
    """A value as the stored tensor of an output."""
    order = [x.name for x in p.axes]
    names = [s.axis for s in output.access if s.axis is not None]
    a = a.reshape(a.shape[:lead] + (1,) * (len(order) - (a.ndim - lead)) + a.shape[lead:])
    target = [ex.value(p.extent(n), symbols) if n in names else 1 for n in order]
    a = broadcast_to(a, target, lead)
    rest = [i for i, n in enumerate(order) if n not in names]
    perm = [order.index(n) for n in names] + rest
    a = a.transpose([*range(lead), *[i + lead for i in perm]])
    stored: Array = a.reshape(a.shape[:lead] + tuple(ex.value(e, symbols) for e in output.dims))
    return stored
