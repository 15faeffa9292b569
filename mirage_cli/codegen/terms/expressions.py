"""Numbers, extents and operators of programs as expressions of kernels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from mirage_cli.errors import Refused
from mirage_cli.kernel_language import build as k
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.literals import c_float
from mirage_cli.kernel_language.reader import read_expression
from mirage_cli.lax import extents as ex
from mirage_cli.lax.dtypes import DType
from mirage_cli.lax.extents import Extent, Symbolic
from mirage_cli.lax.ir.parts import Joint
from mirage_cli.lax.ir.program import Program
from mirage_cli.lax.ops import lookup

PAIRED = ("exp_minus", "exp_difference")  #: functions of two numbers that are not in the registry
ZERO, ONE = k.number("0.0f"), k.number("1.0f")
THREAD = k.name("threadIdx").member("x")  #: the number of a thread in its block
SYNC = k.run("__syncthreads")  #: all threads of a block wait for one another
SMALL = 1 << 31  #: tensors with fewer elements are addressed with 32-bit integers
CPU_TYPES = {"f16": "half", "bf16": "bfloat"}  #: C types of elements on CPUs, where they are called otherwise
#: C types of elements on devices
CUDA_TYPES = {
    "f64": "double",
    "f32": "float",
    "f16": "__half",
    "bf16": "__nv_bfloat16",
    "e4m3": "e4m3",
    "e5m2": "e5m2",
    "i64": "int64_t",
    "i32": "int32_t",
    "i16": "int16_t",
    "i8": "int8_t",
    "u32": "uint32_t",
    "u16": "uint16_t",
    "u8": "uint8_t",
    "bool": "uint8_t",
}
JOINS = {"sum": "Sum", "max": "Max"}  #: what joins two numbers in the headers


@dataclass(slots=True)
class Lets:
    """Statements of one loop body; equal subexpressions get one variable."""

    statements: list[ir.Statement] = field(default_factory=list)
    known: dict[ir.Expression, ir.Name] = field(default_factory=dict)

    def let(self, value: ir.Expression, kind: str = "float") -> ir.Name:
        """A variable with a value."""
        if value not in self.known:
            variable = k.name(f"e{len(self.known)}")
            self.known[value] = variable
            self.statements.append(k.let(kind, variable.path[0], value))
        return self.known[value]


def ctype(dtype: DType) -> str:
    """The type of a tensor's elements on a GPU. Raises Refused for those that kernels do not have."""
    if dtype.name not in CUDA_TYPES:
        raise Refused(f"tensors of type {dtype} are not rendered")
    return CUDA_TYPES[dtype.name]


def stored_as(dtype: DType) -> str:
    """The type of a tensor's elements on a GPU, or of the bytes that several of them share. Raises Refused."""
    return ctype(dtype) if dtype.per_byte == 1 else "uint8_t"


def wide(program: Program) -> bool:
    """True if some stored tensor is so large, or may be, that its elements are addressed with 64-bit integers."""
    sizes = [ex.product(d) for d in (*(s.dims for s in program.sources), *(o.dims for o in program.outputs))]
    sizes += [ex.product((s.chosen.rows, *s.dims[s.chosen.lead :])) for s in program.sources if s.chosen]
    return any(not isinstance(n, int) or n >= SMALL for n in sizes)


def float_number(value: Fraction | float) -> ir.Expression:
    """The float32 nearest to a value (ties to even)."""
    literal = c_float(value)
    return k.number(literal) if literal[0] != "(" else -k.number(literal[2:-1])


def double_number(value: float) -> ir.Expression:
    """A float64."""
    return k.number(value.hex()) if math.copysign(1, value) > 0 else -k.number((-value).hex())


@functools.lru_cache(maxsize=512)
def _form(op: str) -> tuple[ir.Expression, tuple[ir.Name, ...]]:
    """How an operator of the registry is spelled, and the names that stand for its arguments."""
    o = lookup(op)
    names = tuple(k.name(f"argument{n}") for n in range(o.arity))
    return read_expression(o.c.format(*(n.path[0] for n in names))), names


def applied(op: str, args: Sequence[ir.Expression], prefix: str = "m_") -> ir.Expression:
    """An operator of the registry, or one of `PAIRED`, on float32 values; `prefix` is that of the headers' functions of
    pairs."""
    if op in PAIRED:
        return k.call(prefix + op, *args)
    form, names = _form(op)
    return k.substituted(form, dict(zip(names, args, strict=True)))


def extent(e: Extent, symbols: Sequence[str], wide: bool) -> ir.Expression:
    """An extent; `wide` where it is part of numbers beyond 32 bits. Symbols are called `s_` and their number."""
    if not isinstance(e, Symbolic):
        return k.number(f"{e}LL") if wide else ir.lift(e)
    factor = [k.number(f"{e.factor}LL")] if e.factor != 1 else []
    return k.product([*factor, *(k.name(f"s_{symbols.index(n)}") for n in e.names)])


def hollow(extents: Iterable[ir.Expression]) -> ir.Expression | None:
    """The condition that something is summed over nothing; None where nothing can be.

    Such a sum is 0, and so is what was divided by one in each of its terms: a softmax over nothing has no terms. Programs
    have that division behind the sum, where it is 0 / 0."""
    return k.joined("||", (k.binary("==", e, 0) for e in extents))


def quotient(empty: ir.Expression | None, below: ir.Expression, value: ir.Expression) -> ir.Expression:
    """A quotient that is 0 where the divisor `below` is a sum over nothing, which a constant is not."""
    if empty is None or isinstance(below, ir.Literal):
        return value
    return k.select(k.binary("&&", empty, k.binary("==", below, ZERO)), ZERO, value)


def scaled(wide: ir.Expression, op: str, by: Fraction) -> ir.Expression:
    """A float64 that is multiplied (`mul`) or divided (`div`) by a constant, rounded to float32. A quotient is a product as
    well, which is off by two units of float64 at most."""
    return k.call("to_float", wide * double_number(float(1 / by if op == "div" else by)))


def positions_in_parts(j: Joint, size: Callable[[Extent], ir.Expression]) -> tuple[ir.Value, ir.Value]:
    """The numbers of positions of both parts, given what an extent is called; of fewer than the second has all are there."""
    if isinstance(j.whole, int):
        return j.whole - j.second, j.second
    whole = size(j.whole)
    if j.second <= 1:
        return whole - j.second, j.second
    longer = whole > j.second
    return k.select(longer, whole - j.second, k.ZERO), k.select(longer, j.second, whole)


def times(n: ir.Value, factor: int) -> ir.Value:
    """A product, of numbers one number."""
    return n * factor if isinstance(n, int) else ir.lift(n) * factor
