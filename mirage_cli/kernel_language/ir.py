"""The grammar of kernels: statements over typed names, arrays and pointers, and calls of instructions.

    Kernel     = name, parameters (pointers, sizes), launch (threads, ...), statements
    Statement  = Declare | Alias | Assign | Do | Step | For | ForEach | Each | If | Scope | Return | Break
    Expression = Literal | Name | Unary | Binary | Select | Cast | Index | Member | Call | Construct | List | Lambda

An *instruction* is a function of the headers in `templates/include/mirage/`: the language knows its name and its static
arguments, `mirage_cli/kernel_interpreter/` what it does. Everything is frozen; two kernels are the same if they are equal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Type:
    """A type: `name` with static arguments, behind so many pointers; `const` where what it names is not written."""

    name: str
    args: tuple[Static, ...] = ()
    pointers: int = 0
    const: bool = False
    reference: bool = False


class Operand:
    """What all expressions have: Python's operators on them make the expression that says so. `==` is that of trees."""

    __slots__ = ()

    def __add__(self, other: Value) -> Binary:
        return Binary("+", lift(self), lift(other))

    def __radd__(self, other: Value) -> Binary:
        return Binary("+", lift(other), lift(self))

    def __sub__(self, other: Value) -> Binary:
        return Binary("-", lift(self), lift(other))

    def __rsub__(self, other: Value) -> Binary:
        return Binary("-", lift(other), lift(self))

    def __mul__(self, other: Value) -> Binary:
        return Binary("*", lift(self), lift(other))

    def __rmul__(self, other: Value) -> Binary:
        return Binary("*", lift(other), lift(self))

    def __truediv__(self, other: Value) -> Binary:
        return Binary("/", lift(self), lift(other))

    def __rtruediv__(self, other: Value) -> Binary:
        return Binary("/", lift(other), lift(self))

    def __mod__(self, other: Value) -> Binary:
        return Binary("%", lift(self), lift(other))

    def __lt__(self, other: Value) -> Binary:
        return Binary("<", lift(self), lift(other))

    def __gt__(self, other: Value) -> Binary:
        return Binary(">", lift(self), lift(other))

    def __le__(self, other: Value) -> Binary:
        return Binary("<=", lift(self), lift(other))

    def __ge__(self, other: Value) -> Binary:
        return Binary(">=", lift(self), lift(other))

    def __neg__(self) -> Unary:
        return Unary("-", lift(self))

    def __getitem__(self, at: Value) -> Index:
        return Index(lift(self), lift(at))

    def __call__(self, *args: Value) -> Call:
        """The expression that calls this one."""
        return Call(lift(self), tuple(map(lift, args)))

    def member(self, name: str, *static: StaticValue, arrow: bool = False) -> Member:
        """`self.name`, or behind a pointer `self->name`."""
        return Member(lift(self), name, tuple(map(lift_static, static)), arrow)


# --- expressions --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Literal(Operand):
    """A number or truth value as it is spelled: `12`, `0x1p-3f`, `true`, `INFINITY`, `nullptr`."""

    text: str


@dataclass(frozen=True, slots=True)
class Name(Operand):
    """A variable, instruction or type member (`Sum::none` has the path Sum, none), with its static arguments.

    Static arguments stand behind the last part, or behind the first one of a path of types (`Words<__half>::pack`), which
    `owner` has then (of the path there is what stands behind it); `decltype(x)::value` has the owner `decltype` of x."""

    path: tuple[str, ...]
    args: tuple[Static, ...] = ()
    owner: Type | None = None


@dataclass(frozen=True, slots=True)
class Unary(Operand):
    """`op` one of - ! ~ & * (void)."""

    op: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Binary(Operand):
    """`op` one of + - * / % << >> & | ^ < <= > >= == != && ||."""

    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Select(Operand):
    """`condition ? yes : no`."""

    condition: Expression
    yes: Expression
    no: Expression


@dataclass(frozen=True, slots=True)
class Cast(Operand):
    """`static_cast` or `reinterpret_cast` (`kind` without `_cast`); `of` for a type called like a function, double(x)."""

    kind: str
    type: Type
    value: Expression


@dataclass(frozen=True, slots=True)
class Index(Operand):
    """`of[at]`."""

    of: Expression
    at: Expression


@dataclass(frozen=True, slots=True)
class Member(Operand):
    """`of.name`, with static arguments where a member function has some; `arrow` for `of->name`."""

    of: Expression
    name: str
    args: tuple[Static, ...] = ()
    arrow: bool = False


@dataclass(frozen=True, slots=True)
class Call(Operand):
    """An instruction, a member function, a defined function or a lambda, called."""

    function: Expression
    args: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Construct(Operand):
    """A value of a type from its parts: `Tile<__half, 32, 16>{pointer}`."""

    type: Type
    args: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class List(Operand):
    """The parts of an array that is declared: `{0.0f, 1.0f}`."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Lambda(Operand):
    """A function that sees the variables around it: `[&](int r) { ... }`."""

    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a lambda."""

    type: Type
    name: str


Expression: TypeAlias = (
    Literal | Name | Unary | Binary | Select | Cast | Index | Member | Call | Construct | List | Lambda
)
Static: TypeAlias = Type | Expression  #: a static argument: a type (also what may be a constant's name), or a number
Value: TypeAlias = Expression | Operand | int | str  #: what becomes an expression; a str is a name
StaticValue: TypeAlias = Type | Value
_NAME = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*")


def lift(value: Value) -> Expression:
    """An expression as it is, a whole number or truth value as a literal, a str as a name. Raises ValueError for others."""
    match value:
        case Operand():
            return value  # type: ignore[return-value]
        case bool():
            return Literal(str(value).lower())
        case int():
            return Literal(str(value)) if value >= 0 else Unary("-", Literal(str(-value)))
        case str() if _NAME.fullmatch(value):
            return Name(tuple(value.split("::")))
    raise ValueError(f"{value!r} is no name, whole number or expression")


def lift_static(value: StaticValue) -> Static:
    """A static argument: a type, which a name that stands alone counts as, or what `lift` takes."""
    if isinstance(value, Type):
        return value
    static = lift(value)
    return Type("::".join(static.path)) if isinstance(static, Name) and not static.args and not static.owner else static


# --- statements ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Variable:
    """A declared name: `pointers` and `dims` are its own (`[]` has the literal of no text), `value` its first value;
    `braces` where that is a value of its type from parts that are written behind the name: `Tile<float, 8, 8> x{pointer}`."""

    name: str
    pointers: int = 0
    dims: tuple[Expression, ...] = ()
    value: Expression | None = None
    const: bool = False  #: the pointer itself is not written: `float* const x`
    restrict: bool = False
    reference: bool = False
    braces: bool = False


@dataclass(frozen=True, slots=True)
class Declare:
    """Variables of a type. `storage` is "", "constexpr", "extern __shared__ ..." or the like; `unused`: [[maybe_unused]]."""

    type: Type
    variables: tuple[Variable, ...]
    storage: str = ""
    unused: bool = False


@dataclass(frozen=True, slots=True)
class Alias:
    """`using name = type;`."""

    name: str
    type: Type
    unused: bool = False


@dataclass(frozen=True, slots=True)
class Assign:
    """`place op value`, `op` one of = += -= *= /= |= ^=."""

    place: Expression
    op: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Do:
    """Expressions for what they do (several: separated by commas)."""

    calls: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """`++name` or `--name` (`op` is "++" or "--")."""

    op: str
    place: Expression


@dataclass(frozen=True, slots=True)
class For:
    """A loop; `unroll` is "", "#pragma unroll", "#pragma unroll 4" or a macro in front of it."""

    start: Statement
    condition: Expression
    step: Statement
    body: tuple[Statement, ...]
    unroll: str = ""


@dataclass(frozen=True, slots=True)
class ForEach:
    """A loop over the elements of an array: `for (float& x : parts)`."""

    type: Type
    name: str
    over: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Each:
    """Every thread visits its elements of a value in registers: MIRAGE_STRIP(S), MIRAGE_STRIP_ROWS(S), MIRAGE_EACH(F)."""

    macro: str
    type: Type
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class If:
    """A choice; `static` where it is made when the kernel is compiled (`if constexpr`)."""

    condition: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()
    static: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """Statements with names of their own."""

    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Return:
    """The end of a lambda or kernel, with a value."""

    value: Expression | None = None


@dataclass(frozen=True, slots=True)
class Break:
    """The end of a loop."""


Statement: TypeAlias = Declare | Alias | Assign | Do | Step | For | ForEach | Each | If | Scope | Return | Break


@dataclass(frozen=True, slots=True)
class Field:
    """A member of the parameters of a kernel, as it is declared."""

    type: Type
    name: str
    dims: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: its number's name (`kernel0`), what it calls its parameters, their members, what is said to the compiler
    (threads of a block, blocks on a multiprocessor; nothing: a kernel for CPUs, of `void* data, size_t block`), and its
    statements."""

    name: str
    parameters: str
    fields: tuple[Field, ...]
    bounds: tuple[int, ...]
    body: tuple[Statement, ...]
    grid_constant: bool = False
