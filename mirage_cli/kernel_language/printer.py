"""Kernels as text, by a rule for each form of the grammar; what is read of the text is what was printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.tokens import PRECEDENCE

MOST_BEHIND = 60  #: characters of a statement that stands in the line of its loop or choice
ANY, UNARY, OPERAND = 0, 20, 21  #: how strongly expressions bind; binary operators lie between the first two


Simple = (
    ir.Declare | ir.Alias | ir.Assign | ir.Do | ir.Step | ir.Return | ir.Break
)  #: statements without others in them


def indented(lines: str) -> str:
    """Lines, deeper by a step."""
    return "    " + lines.replace("\n", "\n    ")


def braces(lines: Iterable[str]) -> str:
    """Lines in braces, each deeper than what is in front of them."""
    return "{\n" + "".join(indented(line) + "\n" for line in lines) + "}"


class Printer:
    """The rules of C++ and CUDA; other languages have other rules for some forms."""

    # --- expressions ----------------------------------------------------------------------------------------------------
    def expression(self, e: ir.Expression, least: int = ANY) -> str:
        """An expression, in parentheses where something binds stronger."""
        text, level = self.bound(e)
        return text if level >= least else f"({text})"

    def bound(self, e: ir.Expression) -> tuple[str, int]:
        """An expression without parentheses around it, and how strongly it binds."""
        match e:
            case ir.Binary(op, left, right):
                level = PRECEDENCE[op]
                return f"{self.expression(left, level)} {op} {self.expression(right, level + 1)}", level
            case ir.Select(condition, yes, no):
                return f"{self.expression(condition, ANY + 1)} ? {self.expression(yes)} : {self.expression(no)}", ANY
            case ir.Unary(op, ir.Unary(inner) as value) if op == inner:  # two of one sign would be a third
                return f"{op}({self.expression(value)})", UNARY
            case ir.Unary(op, value):
                return op + self.expression(value, UNARY), UNARY
        return self.operand(e), OPERAND

    def operand(self, e: ir.Expression) -> str:
        """An expression that binds stronger than any operator."""
        match e:
            case ir.Literal(spelled):
                return spelled
            case ir.Name(path, args, owner):
                return (f"{self.type(owner)}::" if owner else "") + "::".join(path) + self.statics(args)
            case ir.Cast("of", type_, value):
                return f"{self.type(type_)}({self.expression(value)})"
            case ir.Cast(kind, type_, value):
                return f"{kind}_cast<{self.type(type_)}>({self.expression(value)})"
            case ir.Index(of, at):
                return f"{self.expression(of, OPERAND)}[{self.expression(at)}]"
            case ir.Member(of, name, args, arrow):
                return f"{self.expression(of, OPERAND)}{'->' if arrow else '.'}{name}{self.statics(args)}"
            case ir.Call(function, args):
                return f"{self.expression(function, OPERAND)}({self.several(args)})"
            case ir.Construct(type_, args):
                return f"{self.type(type_)}{{{self.several(args)}}}"
            case ir.List(items):
                return f"{{{self.several(items)}}}"
            case ir.Lambda(parameters, body):
                names = ", ".join(f"{self.type(p.type)} {p.name}" for p in parameters)
                return f"[&]{f'({names})' if names else ''} {braces(map(self.statement, body))}"
        raise TypeError(f"{e!r} is no expression")

    def several(self, values: Sequence[ir.Expression]) -> str:
        """Expressions with commas between them."""
        return ", ".join(map(self.expression, values))

    def type(self, t: ir.Type) -> str:
        """A type."""
        const, behind = "const " if t.const else "", "*" * t.pointers + ("&" if t.reference else "")
        if t.name == "decltype":
            return f"decltype({', '.join(map(self.static, t.args))})"
        return const + t.name + self.statics(t.args) + behind

    def statics(self, args: Sequence[ir.Static]) -> str:
        """Static arguments in their brackets."""
        return f"<{', '.join(map(self.static, args))}>" if args else ""

    def static(self, arg: ir.Static) -> str:
        """A static argument; operators stand in parentheses, lest one of them be its bracket."""
        return self.type(arg) if isinstance(arg, ir.Type) else self.expression(arg, UNARY)

    # --- statements -----------------------------------------------------------------------------------------------------
    def statement(self, s: ir.Statement) -> str:
        """A statement, of one or several lines."""
        match s:
            case ir.For(start, condition, step, body, unroll):
                head = f"for ({self.simple(start)}; {self.expression(condition)}; {self.simple(step)})"
                return (f"{unroll}\n" if unroll else "") + head + self.body(body)
            case ir.ForEach(type_, name, over, body):
                return f"for ({self.type(type_)} {name} : {self.expression(over)})" + self.body(body)
            case ir.Each(macro, type_, body):
                return f"{macro}({self.type(type_)})" + self.body(body)
            case ir.If(condition, then, otherwise, static):
                head = f"if {'constexpr ' if static else ''}({self.expression(condition)})"
                if not otherwise:
                    return head + self.body(then)
                return f"{head} {braces(map(self.statement, then))} else {braces(map(self.statement, otherwise))}"
            case ir.Scope(body):
                return braces(map(self.statement, body))
        return self.simple(s) + ";"

    def body(self, body: Sequence[ir.Statement]) -> str:
        """The body of a loop or a choice, as it stands behind the head: a short one without others in it in the same line."""
        lines = [self.statement(s) for s in body]
        if len(lines) == 1 and isinstance(body[0], Simple) and "\n" not in lines[0] and len(lines[0]) <= MOST_BEHIND:
            return " " + lines[0]
        return " " + braces(lines)

    def simple(self, s: ir.Statement) -> str:
        """A statement without its semicolon."""
        match s:
            case ir.Declare(type_, variables, storage, unused):
                names = ", ".join(map(self.variable, variables))
                stars = len(names) - len(names.lstrip("*&"))  # those of the first one stand at the type
                marks = ("[[maybe_unused]]" if unused else "", storage, self.type(type_) + names[:stars], names[stars:])
                return " ".join(filter(None, marks))
            case ir.Alias(name, type_, unused):
                return f"using {name}{' [[maybe_unused]]' if unused else ''} = {self.type(type_)}"
            case ir.Assign(place, op, value):
                return f"{self.expression(place)} {op} {self.expression(value)}"
            case ir.Do(calls):
                return self.several(calls)
            case ir.Step(op, place):
                return op + self.expression(place, OPERAND)
            case ir.Return(value):
                return f"return {self.expression(value)}" if value else "return"
            case ir.Break():
                return "break"
        raise TypeError(f"{s!r} is no simple statement")

    def variable(self, v: ir.Variable) -> str:
        """A variable as it stands behind the type in its declaration."""
        marks = ("const " if v.const else "", "__restrict__ " if v.restrict else "")
        front = "*" * v.pointers + ("&" if v.reference else "") + "".join(marks) + v.name + self.dims(v.dims)
        match v.value:
            case None:
                return front
            case ir.Construct(_, args) if v.braces:
                return f"{front}{{{self.several(args)}}}"
        return f"{front} = {self.expression(v.value)}"

    def dims(self, dims: Sequence[ir.Expression]) -> str:
        """The sizes of an array."""
        return "".join(f"[{self.expression(d)}]" for d in dims)

    # --- kernels --------------------------------------------------------------------------------------------------------
    def parameters(self, k: ir.Kernel) -> str:
        """The struct of a kernel's parameters."""
        fields = braces(f"{self.type(f.type)} {f.name}{self.dims(f.dims)};" for f in k.fields)
        return f"struct Parameters{k.name.removeprefix('kernel')} {fields};\n"

    def function(self, k: ir.Kernel) -> str:
        """A kernel without the struct of its parameters."""
        head = f"void {k.name}(void* {k.parameters}, size_t block)"
        if k.bounds:
            constant = "__grid_constant__ " if k.grid_constant else ""
            bounds = ", ".join(map(str, k.bounds))
            struct = f"Parameters{k.name.removeprefix('kernel')}"
            head = f"__global__ void __launch_bounds__({bounds}) {k.name}(const {constant}{struct} {k.parameters})"
        return f"{head} {braces(map(self.statement, k.body))}\n"


CPP = Printer()


def text(of: ir.Kernel | Sequence[ir.Statement] | ir.Statement | ir.Expression) -> str:
    """The C++ of a kernel with the struct of its parameters, of statements, or of an expression."""
    if isinstance(of, ir.Kernel):
        return f"{CPP.parameters(of)}\n{CPP.function(of)}"
    if isinstance(of, ir.Statement):
        return CPP.statement(of) + "\n"
    if isinstance(of, ir.Expression):
        return CPP.expression(of)
    return "".join(CPP.statement(s) + "\n" for s in of)
