"""Kernels as OpenCL C 1.2, by those rules of C++ that hold there and by these, which say what the language lacks otherwise:

templates, functions as arguments   instructions are macros of `templates/include/mirage/opencl/`; those that take
                                    functions are rows of macros with the functions' bodies between them
overloaded functions                the kind of an element is part of the name: `float_of_half`
pointers without a place            `__global` and `__local`, by what a pointer is made of
structs with pointers as arguments  a buffer and the bytes in front of the tensor for each tensor
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mirage_cli.codegen.requests.request import Kernel
from mirage_cli.errors import Refused
from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.printer import OPERAND, UNARY, Printer, braces, indented

GLOBAL, LOCAL = "__global ", "__local "
TYPES = {"__half": "half_bits", "__nv_bfloat16": "bfloat_bits", "unsigned": "uint", "unsigned char": "uchar"}
ELEMENTS = {"float": "float32_t", "double": "float64_t"}  #: numbers in memory
KINDS = {"__half": "half", "__nv_bfloat16": "bfloat", "e4m3": "e4m3", "e5m2": "e5m2"}  #: of elements kept as their bits
NAMES = {"threadIdx": "THREAD", "blockIdx": "(uint)get_group_id(0)"}
NOTHING = ("copy_commit", "copy_wait")  #: copies have ended when their statement has
JOINED = ("reduce", "reduce_rows", "reduce_cols")  #: instructions in which work-items meet in memory


@dataclass(frozen=True, slots=True)
class Known:
    """The type of an expression: the type's name behind so many pointers or sizes, and where what it points to lies."""

    type: str
    pointers: int = 0
    space: str = ""


class OpenCL(Printer):
    """The printer of one kernel: what its names are is known when they are read."""

    def __init__(self, kernel: ir.Kernel, shared_bytes: int) -> None:
        self.kernel, self.shared_bytes, self.meeting_bytes = kernel, shared_bytes, 0
        self.fragments = dict[str, tuple[int, ...]]()
        self.names = {"shared": Known("unsigned char", 1, LOCAL)}
        self.functions = dict[str, ir.Lambda]()
        self.returned: Callable[[ir.Expression], str] | None = None

    # --- what is known ------------------------------------------------------------------------------------------------
    def known(self, e: ir.Expression) -> Known:
        """The type of an expression."""
        match e:
            case ir.Name((name,)) if name in self.names:
                return self.names[name]
            case ir.Member(ir.Name((owner,)), name) if owner == self.kernel.parameters:
                field = next(f for f in self.kernel.fields if f.name == name)
                return Known(field.type.name, field.type.pointers, GLOBAL)
            case ir.Member(_, "v"):
                return Known("float", 3)
            case ir.Index(of, _):
                inside = self.known(of)
                return replace(inside, pointers=inside.pointers - 1)
            case ir.Cast(_, type_, value):
                return Known(type_.name, type_.pointers, self.known(value).space)
            case ir.Unary(_, value):
                return self.known(value)
            case ir.Binary(_, left, right) | ir.Select(_, left, right):
                both = self.known(left), self.known(right)
                return next((n for n in both if n.pointers), next((n for n in both if n.type != "int"), both[0]))
            case ir.Literal(text) if "p" in text or "." in text or text in ("INFINITY", "NAN"):
                return Known("float" if text[-1] == "f" or text.isalpha() else "double")
            case ir.Call():
                return Known("float")
        return Known("int")

    def kind(self, e: ir.Expression) -> str:
        """The kind of an element, as functions for it are called."""
        return KINDS.get(self.known(e).type, "plain")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Names that are declared meanwhile are forgotten afterwards."""
        names, functions = dict(self.names), dict(self.functions)
        yield
        self.names, self.functions = names, functions

    def lines(self, body: Sequence[ir.Statement]) -> list[str]:
        """Statements, of which some leave no text."""
        with self.inside():
            return [line for s in body if (line := self.statement(s))]

    # --- expressions --------------------------------------------------------------------------------------------------
    def bound(self, e: ir.Expression) -> tuple[str, int]:
        """An expression without parentheses around it; a cast binds like a sign."""
        if isinstance(e, ir.Cast):
            if kind := KINDS.get(e.type.name if not e.type.pointers else ""):
                return f"{kind}_of_float({self.expression(e.value)})", OPERAND
            return f"({self.type(e.type, self.known(e).space)}){self.expression(e.value, UNARY)}", UNARY
        return super().bound(e)

    def operand(self, e: ir.Expression) -> str:
        """An expression that binds stronger than any operator."""
        match e:
            case ir.Literal("nullptr"):
                return "0"
            case ir.Literal(text):
                return text.removesuffix("LL") + "L" if text.endswith("LL") else text
            case ir.Member(ir.Name((name,)), "x") if name in NAMES:
                return NAMES[name]
            case ir.Member(ir.Name((owner,)), name) if owner == self.kernel.parameters:
                return f"p_{name}"
            case ir.Call(ir.Name(("to_float",)), (value,)):
                return f"float_of_{self.kind(value)}({self.expression(value)})"
            case ir.Call(ir.Name((kind, place)), args) if kind in self.names:
                return f"{self.names[kind].type}_{place}({kind}, {self.several(args)})"
            case ir.Name(path, (), None):
                return "_".join(path)
            case ir.Name() | ir.Lambda() | ir.Construct() | ir.List():
                raise Refused(f"OpenCL C has nothing for {e}")
        return super().operand(e)

    def type(self, t: ir.Type, space: str = "") -> str:
        """A type; of a pointer with the place of what it points to."""
        if t.args or t.reference or t.name == "decltype":
            raise Refused(f"OpenCL C has no type {super().type(t)}")
        name = (ELEMENTS if t.pointers else TYPES).get(t.name) or TYPES.get(t.name, t.name)
        return (space if t.pointers else "") + ("const " if t.const else "") + name + "*" * t.pointers

    # --- statements ---------------------------------------------------------------------------------------------------
    def statement(self, s: ir.Statement) -> str:
        """A statement, of one or several lines; no text for those that do nothing here."""
        match s:
            case ir.Alias(name, ir.Type("Fragment", args)):
                self.names[name] = Known("FRAGMENT")
                self.fragments[name] = tuple(int(self.static(a)) for a in args)
                return f"FRAGMENT({name}, {', '.join(map(self.static, args))});"
            case ir.Declare(_, (ir.Variable(name, value=ir.Lambda() as function),)):
                self.functions[name] = function
                return ""
            case ir.Declare(type_, variables, "constexpr"):
                names = ", ".join(f"{v.name} = {self.expression(v.value)}" for v in variables if v.value is not None)
                return f"enum {{ {names} }};"
            case ir.Declare(storage=storage) if storage.startswith("extern"):
                return ""
            case ir.Do((ir.Call(function, args),)):
                return self.instruction(function, args)
            case ir.Return(value) if self.returned and value is not None:
                return self.returned(value)
            case ir.For(start, condition, step, body, _):
                with self.inside():
                    head = f"for ({self.simple(start)}; {self.expression(condition)}; {self.simple(step)})"
                    return head + self.body(body)
            case ir.Scope(body):
                return braces(self.lines(body))
            case ir.Each(macro, type_, body):
                return f"{macro}({type_.name}) " + braces(self.lines(body))
            case ir.If(condition, then, otherwise):
                choice = f"if ({self.expression(condition)}) {braces(self.lines(then))}"
                return choice + (f" else {braces(self.lines(otherwise))}" if otherwise else "")
            case ir.ForEach():
                raise Refused("OpenCL C has no loops over the elements of an array")
        return super().statement(s)

    def body(self, body: Sequence[ir.Statement]) -> str:
        """The body of a loop."""
        return " " + braces(self.lines(body))

    def simple(self, s: ir.Statement) -> str:
        """A statement without its semicolon."""
        match s:
            case ir.Declare(type_, variables, ""):
                spaces = [self.known(v.value).space if v.value is not None else "" for v in variables]
                for v, space in zip(variables, spaces, strict=True):
                    self.names[v.name] = Known(type_.name, type_.pointers + v.pointers + len(v.dims), space)
                pointed = bool(type_.pointers or any(v.pointers for v in variables))
                front = spaces[0] if pointed and not type_.pointers else ""
                return f"{front}{self.type(type_, spaces[0])} {', '.join(map(self.variable, variables))}"
            case ir.Alias(name, type_):
                return f"typedef {self.type(type_)} {name}"
        return super().simple(s)

    def variable(self, v: ir.Variable) -> str:
        """A variable as it stands behind the type in its declaration."""
        return super().variable(v).replace("__restrict__", "restrict")

    # --- instructions -------------------------------------------------------------------------------------------------
    def instruction(self, function: ir.Expression, args: Sequence[ir.Expression]) -> str:
        """A statement that calls an instruction or a defined function."""
        match function:
            case ir.Name((name,)) if name in self.functions:
                return self.called(self.functions[name], args)
            case ir.Member(of, "fill"):
                return f"FRAGMENT_fill({self.known(of).type}, {self.expression(of)}, {self.several(args)});"
            case ir.Name(("put",)):
                return f"put_{self.kind(args[0])}({self.several(args)});"
            case ir.Name(("__syncthreads",)):
                return "SYNC;"
            case ir.Name((name,)) if name in NOTHING:
                return ""
            case ir.Name(path, static) if path[-1] == "contract":
                acc, a, b = args
                statics = [self.kind(a), self.known(acc).type]
                return f"contract({', '.join([*statics, *map(self.static, static), self.several((acc, a, b))])});"
            case ir.Name(path, static) if any(isinstance(a, ir.Lambda) for a in args):
                return self.with_functions(path[-1], static, args)
        return self.several((ir.Call(function, tuple(args)),)) + ";"

    def called(self, function: ir.Lambda, args: Sequence[ir.Expression]) -> str:
        """A defined function's body where it is called; its arguments are computed where none of its names is known."""
        given = [
            f"const {self.type(p.type)} {p.name}_ = {self.expression(a)};"
            for p, a in zip(function.parameters, args, strict=True)
        ]
        own = [f"const {self.type(p.type)} {p.name} = {p.name}_;" for p in function.parameters]
        return braces([*given, braces([*own, *self.lines(function.body)])])

    def with_functions(self, name: str, static: Sequence[ir.Static], args: Sequence[ir.Expression]) -> str:
        """An instruction that takes functions: macros with the functions' bodies between them."""
        kinds = [self.static(a) for a in static]
        kinds += ["float"] if name == "reduce" and len(kinds) == 4 else []
        if name in JOINED:
            self.meeting_bytes = max(self.meeting_bytes, self.meets(name, kinds))
        plain = [self.expression(a) for a in args if not isinstance(a, ir.Lambda)]
        text = list[str]()
        for n, function in enumerate(a for a in args if isinstance(a, ir.Lambda)):
            own = plain if n == 0 else []
            text.append(f"{name}_{n}({', '.join([*kinds, *own, *(p.name for p in function.parameters)])})")
            text.append(braces(self.taken(f"{name}_{n}_RETURN", kinds, function)))
        return "\n".join([*text, f"{name}_END"])

    def meets(self, name: str, kinds: Sequence[str]) -> int:
        """Bytes of memory in which the work-items of a reduction meet."""
        if name == "reduce":
            return self.kernel.bounds[0] * (8 if kinds[-1] == "double" else 4)
        m, n, rows, cols = self.fragments[kinds[1]]
        return 4 * (4 * cols * m if name == "reduce_rows" else 8 * rows * n)

    def taken(self, macro: str, kinds: Sequence[str], function: ir.Lambda) -> list[str]:
        """The body of a function whose result a macro takes."""

        def given(value: ir.Expression) -> str:
            parts = value.args if isinstance(value, ir.Construct) else (value,)
            return f"{macro}({', '.join([*kinds, *map(self.expression, parts)])})"

        before, self.returned = self.returned, given
        with self.inside():
            for p in function.parameters:
                self.names[p.name] = Known(p.type.name)
            lines = self.lines(function.body)
        self.returned = before
        return lines

    # --- kernels ------------------------------------------------------------------------------------------------------
    def function(self, kernel: ir.Kernel) -> str:
        """The kernel; a tensor is a buffer with the bytes in front of it."""
        arguments, places = list[str](), list[str]()
        for f in kernel.fields:
            if f.type.pointers:
                pointer = self.type(f.type, GLOBAL)
                arguments += [
                    f"{GLOBAL}{'const ' if f.type.const else ''}uchar* {f.name}_buffer",
                    f"const long {f.name}_from",
                ]
                places.append(f"{pointer} const p_{f.name} = ({pointer})({f.name}_buffer + {f.name}_from);")
            else:
                arguments.append(f"const {self.type(f.type)} p_{f.name}")
        lines = self.lines(kernel.body)
        memory = [f"{LOCAL}uchar shared[{max(1, self.shared_bytes)}] __attribute__((aligned(128)));"]
        memory += (
            [f"{LOCAL}uchar meet[{self.meeting_bytes}] __attribute__((aligned(16)));"] if self.meeting_bytes else []
        )
        size = f"__attribute__((reqd_work_group_size({kernel.bounds[0]}, 1, 1)))"
        listed = indented(",\n".join(arguments))
        head = f"__kernel {size} void {kernel.name}(\n{listed}) "
        return head + braces([*memory, *places, *lines]) + "\n"


def kernel_text(of: Kernel) -> str:
    """A kernel made, as OpenCL C. Raises Refused for forms that the language has not."""
    return OpenCL(of.kernel, of.launch.shared_bytes).function(of.kernel)
