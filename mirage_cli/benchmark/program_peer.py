"""A fragment's program as PyTorch operators: the peer of a user's model, and its float64 result on a GPU.

One torch function for each operator of the registry; a contraction is an einsum over named axes, a stabilised exponential
over its own sum a softmax. A value is a tensor whose dimensions are its axes, in the order of the program's. Numbers of the
program are made beforehand, so that the function only launches kernels and can be captured.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_cli.errors import Refused
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.ir.program import STRUCTURAL, Input, Node, Output, Program, Slot
from mirage_cli.runtime.sessions import element_name

_LOGICAL = {"and": "logical_and", "or": "logical_or", "xor": "logical_xor", "not": "logical_not"}
_SAME = (
    "add", "sub", "mul", "div", "neg", "exp", "rsqrt", "sigmoid", "sqrt", "log", "erf", "tanh", "abs", "sign", "relu",
    "sin", "cos", "floor", "ceil", "round", "trunc", "pow", "isnan", "isinf", "eq", "lt", "le",
)  # fmt: skip
_REDUCTIONS = {"max": "amax", "min": "amin"}
_SOFTMAX = "softmax"  #: a node that only this module makes


def functions(torch: Any) -> dict[str, Callable[..., Any]]:
    """The torch function of every operator of the registry; of truth values they take and make booleans."""
    functional = torch.nn.functional

    def guarded(x: Any, y: Any) -> Any:
        quotient = x / y
        spurious = torch.isnan(quotient) & (torch.isnan(y) | ~torch.isnan(x))
        return torch.where(spurious, torch.zeros_like(quotient), quotient)

    def whole(bits: int, low: float) -> Callable[..., Any]:
        """Conversion to integers of so many bits, from `low` on."""

        def convert(x: Any) -> Any:
            wide = 64 if bits == 64 else 32
            fits = (x >= -(2.0 ** (wide - 1))) & (x < 2.0 ** (wide - 1))
            number = torch.where(fits, torch.trunc(x), torch.full_like(x, -(2.0 ** (wide - 1)))) + 0.0
            return number if bits == wide else torch.remainder(number.double() - low, 2.0**bits).to(x.dtype) + low

        return convert

    own: dict[str, Callable[..., Any]] = {
        "below": torch.sub,
        "centred": torch.sub,
        "div0": guarded,
        "share": lambda x, y: torch.where((y == 0) & ~torch.isnan(x), torch.zeros_like(x), x / y),
        "recip": torch.reciprocal,
        "where": lambda c, x, y: torch.where(c if c.dtype == torch.bool else c != 0, x, y),
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "softsign": functional.softsign,
        "softplus": functional.softplus,
        "log1p_exp": functional.softplus,
        "max": torch.maximum,
        "min": torch.minimum,
        "nonzero": lambda x: x != 0,
        "rounded": lambda x: x,
        "levels": lambda x, scale, zero: torch.nan_to_num(torch.round(x / scale) + zero, nan=0.0).clamp(0, 255) - zero,
        "to_i64": whole(64, -(2.0**63)),
        "to_i32": whole(32, -(2.0**31)),
        "to_i16": whole(16, -(2.0**15)),
        "to_i8": whole(8, -(2.0**7)),
        "to_u16": whole(16, 0.0),
        "to_u8": whole(8, 0.0),
        "round_f16": lambda x: x.to(torch.float16).to(x.dtype),
        "round_bf16": lambda x: x.to(torch.bfloat16).to(x.dtype),
    }
    return {name: getattr(torch, name) for name in _SAME} | {n: getattr(torch, t) for n, t in _LOGICAL.items()} | own


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor and the axes that its dimensions are."""

    tensor: Any
    axes: tuple[str, ...]


class TorchProgram:
    """A program as a function of its sources (torch tensors, in their order) to its outputs.

    `symbols` says what symbols are; with `wide` everything is computed in float64, whatever the model says.
    """

    def __init__(
        self,
        torch: Any,
        program: Program,
        device: Any = "cpu",
        symbols: Mapping[str, int] | None = None,
        wide: bool = False,
    ) -> None:
        """Raises Refused for an operator that torch has no function for."""
        self.torch, self.program, self.wide = torch, program, wide
        self._symbols = dict(symbols or {})
        self._order = {a.name: k for k, a in enumerate(program.axes)}
        self._functions = functions(torch)
        self.steps = _with_softmax(program)
        self._last = _last_uses(program, self.steps)
        floats = [s.dtype for s in program.sources if s.dtype.is_float]
        self._float = torch.float64 if wide else self._type(floats[0]) if floats else torch.float32
        self._fixed = {n.name: self._number(n, device) for n in program.nodes if n.op in ("const", "iota", "extent")}
        for n in program.nodes:
            structural = n.op in STRUCTURAL or n.over
            if not structural and n.op not in self._functions:
                raise Refused(f"operator {n.op} has no function of torch")

    def __call__(self, *sources: Any) -> tuple[Any, ...]:
        """The outputs."""
        values = dict(self._fixed)
        for i in self.program.inputs:
            values[i.name] = self._read(i, sources[i.source])
        for n in self.steps:
            if n.name not in values:
                values[n.name] = self._apply(n, [values[x] for x in n.inputs])
            for x in self._last[n.name]:
                del values[x]
        return tuple(self._write(o, values[o.value]) for o in self.program.outputs)

    # --- leaves -------------------------------------------------------------------------------------------------------
    def _type(self, dtype: DType) -> Any:
        return self.torch.float64 if self.wide and dtype.is_float else getattr(self.torch, element_name(dtype))

    def _extent(self, e: ex.Extent) -> int:
        return ex.value(e, self._symbols)

    def _number(self, n: Node, device: Any) -> _Value:
        wide = self.torch.float64 if self.wide else self.torch.float32
        if n.op == "iota":
            count = self._extent(self.program.extent(n.axis or ""))
            return _Value(self.torch.arange(count, dtype=wide, device=device), (n.axis or "",))
        number = float(n.value or 0) if n.op == "const" else self._extent(self.program.extent(n.axis or ""))
        return _Value(self.torch.tensor(number, dtype=wide, device=device), ())

    def _read(self, i: Input, source: Any) -> _Value:
        dtype = self.program.sources[i.source].dtype
        tensor = source.reshape([self._extent(s.extent) for s in i.access])[self._index(i.access)]
        if dtype.kind == "int":
            tensor = tensor.to(self.torch.float64 if self.wide else self.torch.float32)
        elif dtype.is_float:
            tensor = tensor.to(self._type(dtype))
        return self._sorted(tensor, [s.axis for s in i.access if s.axis is not None])

    def _index(self, access: Sequence[Slot]) -> tuple[Any, ...]:
        return tuple(
            s.offset if s.axis is None else slice(s.offset, s.offset + self._extent(self.program.extent(s.axis)))
            for s in access
        )

    def _sorted(self, tensor: Any, axes: Sequence[str]) -> _Value:
        order = sorted(range(len(axes)), key=lambda k: self._order[axes[k]])
        return _Value(tensor.permute(order), tuple(axes[k] for k in order))

    def _write(self, o: Output, value: _Value) -> Any:
        names = [s.axis for s in o.access if s.axis is not None]
        sizes = [self._extent(self.program.extent(a)) for a in self._all(names)]
        tensor = self._aligned(value, self._all(names)).expand(sizes)
        tensor = tensor.permute([self._all(names).index(a) for a in names])
        return tensor.to(self._type(o.dtype)).reshape([self._extent(e) for e in o.dims])

    def _all(self, axes: Sequence[str]) -> list[str]:
        return sorted(set(axes), key=self._order.__getitem__)

    def _aligned(self, value: _Value, axes: Sequence[str]) -> Any:
        """The tensor with one dimension for each of `axes`, of extent 1 where the value lacks it."""
        sizes = dict(zip(value.axes, value.tensor.shape, strict=True))
        return value.tensor.reshape([sizes.get(a, 1) for a in axes])

    # --- operators ----------------------------------------------------------------------------------------------------
    def _apply(self, n: Node, values: list[_Value]) -> _Value:
        if n.op == "contract":
            return self._contract(n, *values)
        if n.op in ("stable_exp", _SOFTMAX):
            x, dims = self._plain(values[0]), [values[0].axes.index(a) for a in n.over]
            if n.op == _SOFTMAX:
                return _Value(self.torch.softmax(x, dims[0]), values[0].axes)
            return _Value(self.torch.exp(x - x.amax(dims, keepdim=True)), values[0].axes)
        if n.over:
            return self._reduce(n, values[0])
        axes = self._all([a for v in values for a in v.axes])
        logical = n.op in _LOGICAL
        tensors = [
            self._aligned(v if logical else _Value(self._plain(v, n, k), v.axes), axes) for k, v in enumerate(values)
        ]
        return _Value(self._functions[n.op](*tensors), tuple(axes))

    def _plain(self, value: _Value, n: Node | None = None, operand: int = 0) -> Any:
        """The tensor as numbers; a condition may stay what it is."""
        if value.tensor.dtype != self.torch.bool or (n is not None and n.op == "where" and operand == 0):
            return value.tensor
        return value.tensor.to(self._float)

    def _reduce(self, n: Node, value: _Value) -> _Value:
        tensor = self._plain(value)
        dims = [k for k, a in enumerate(value.axes) if a in n.over]
        kept = tuple(a for a in value.axes if a not in n.over)
        if n.op == "prod":
            for d in reversed(dims):
                tensor = tensor.prod(d)
        elif dims:
            narrow = n.op == "sum" and tensor.dtype in (self.torch.float16, self.torch.bfloat16)
            more = {"dtype": self.torch.float32} if narrow else {}  # a sum that a mean divides may exceed float16
            tensor = getattr(tensor, _REDUCTIONS.get(n.op, n.op))(dims, **more)
        if n.op == "sum":  # of a broadcast: every position counts
            for a in set(n.over) - set(value.axes):
                tensor = tensor * self._extent(self.program.extent(a))
        return _Value(tensor, kept)

    def _contract(self, n: Node, x: _Value, y: _Value) -> _Value:
        dtype = self._type(n.dtype) if n.dtype else self.torch.result_type(x.tensor, y.tensor)
        letter = dict(zip(self._order, string.ascii_letters, strict=False))
        kept = [a for a in self._all([*x.axes, *y.axes]) if a not in n.over]
        terms = ["".join(letter[a] for a in axes) for axes in (x.axes, y.axes, kept)]
        operands = [v.tensor.to(dtype) for v in (x, y)]
        return _Value(self.torch.einsum(f"{terms[0]},{terms[1]}->{terms[2]}", *operands), tuple(kept))


def _with_softmax(program: Program) -> list[Node]:
    """The nodes, a stabilised exponential over its own sum along one axis as one node, where nothing else reads the two."""
    nodes = {n.name: n for n in program.nodes}
    readers: dict[str, int] = {}
    for name in [*(i for n in program.nodes for i in n.inputs), *(o.value for o in program.outputs)]:
        readers[name] = readers.get(name, 0) + 1
    dropped: set[str] = set()
    merged: dict[str, Node] = {}
    for n in program.nodes:
        e, s = (nodes.get(i) for i in n.inputs) if n.op == "div" else (None, None)
        if e is None or s is None or e.op != "stable_exp" or s.op != "sum" or len(e.over) != 1:
            continue
        if s.inputs == (e.name,) and s.over == e.over and (readers[e.name], readers[s.name]) == (2, 1):
            merged[n.name] = Node(n.name, _SOFTMAX, e.inputs, e.over)
            dropped |= {e.name, s.name}
    return [merged.get(n.name, n) for n in program.nodes if n.name not in dropped]


def _last_uses(program: Program, steps: Sequence[Node]) -> dict[str, list[str]]:
    """For each node the values that nothing after it needs."""
    last: dict[str, list[str]] = {}
    needed = {o.value for o in program.outputs}
    for n in reversed(steps):
        last[n.name] = [x for x in dict.fromkeys((*n.inputs, n.name)) if x not in needed]
        needed.update(last[n.name])
    return last
