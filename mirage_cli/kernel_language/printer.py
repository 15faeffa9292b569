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


def text(of: ir.Kernel | Sequence[ir.Statement] | ir.Statement | ir.Expression) -> str:
    """The text of a kernel with the struct of its parameters, of statements, or of an expression."""
    if isinstance(of, ir.Kernel):
        return f"{parameters(of)}\n{function(of)}"
    if isinstance(of, ir.Statement):
        return _statement(of) + "\n"
    if isinstance(of, ir.Expression):
        return _expression(of)
    return "".join(_statement(s) + "\n" for s in of)


def _indented(lines: str) -> str:
    return "    " + lines.replace("\n", "\n    ")


def _braces(lines: Iterable[str]) -> str:
    """Lines in braces, each deeper than what is in front of them."""
    return "{\n" + "".join(_indented(line) + "\n" for line in lines) + "}"


# --- expressions --------------------------------------------------------------------------------------------------------
def _expression(e: ir.Expression, least: int = ANY) -> str:
    """An expression, in parentheses where something binds stronger."""
    text, level = _bound(e)
    return text if level >= least else f"({text})"


def _bound(e: ir.Expression) -> tuple[str, int]:
    """An expression without parentheses around it, and how strongly it binds."""
    match e:
        case ir.Binary(op, left, right):
            level = PRECEDENCE[op]
            return f"{_expression(left, level)} {op} {_expression(right, level + 1)}", level
        case ir.Select(condition, yes, no):
            return f"{_expression(condition, ANY + 1)} ? {_expression(yes)} : {_expression(no)}", ANY
        case ir.Unary(op, ir.Unary(inner) as value) if op == inner:  # two of one sign would be a third
            return f"{op}({_expression(value)})", UNARY
        case ir.Unary(op, value):
            return op + _expression(value, UNARY), UNARY
    return _operand(e), OPERAND


def _operand(e: ir.Expression) -> str:
    """An expression that binds stronger than any operator."""
    match e:
        case ir.Literal(spelled):
            return spelled
        case ir.Name(path, args, owner):
            return (f"{_type(owner)}::" if owner else "") + "::".join(path) + _statics(args)
        case ir.Cast("of", type_, value):
            return f"{_type(type_)}({_expression(value)})"
        case ir.Cast(kind, type_, value):
            return f"{kind}_cast<{_type(type_)}>({_expression(value)})"
        case ir.Index(of, at):
            return f"{_expression(of, OPERAND)}[{_expression(at)}]"
        case ir.Member(of, name, args, arrow):
            return f"{_expression(of, OPERAND)}{'->' if arrow else '.'}{name}{_statics(args)}"
        case ir.Call(function, args):
            return f"{_expression(function, OPERAND)}({_several(args)})"
        case ir.Construct(type_, args):
            return f"{_type(type_)}{{{_several(args)}}}"
        case ir.List(items):
            return f"{{{_several(items)}}}"
        case ir.Lambda(parameters, body):
            names = ", ".join(f"{_type(p.type)} {p.name}" for p in parameters)
            return f"[&]{f'({names})' if names else ''} {_braces(map(_statement, body))}"
    raise TypeError(f"{e!r} is no expression")


def _several(values: Sequence[ir.Expression]) -> str:
    return ", ".join(map(_expression, values))


def _type(t: ir.Type) -> str:
    const, behind = "const " if t.const else "", "*" * t.pointers + ("&" if t.reference else "")
    if t.name == "decltype":
        return f"decltype({', '.join(map(_static, t.args))})"
    return const + t.name + _statics(t.args) + behind


def _statics(args: Sequence[ir.Static]) -> str:
    return f"<{', '.join(map(_static, args))}>" if args else ""


def _static(arg: ir.Static) -> str:
    """A static argument; operators stand in parentheses, lest one of them be its bracket."""
    return _type(arg) if isinstance(arg, ir.Type) else _expression(arg, UNARY)


# --- statements ---------------------------------------------------------------------------------------------------------
def _statement(s: ir.Statement) -> str:
    match s:
        case ir.For(start, condition, step, body, unroll):
            head = f"for ({_simple(start)}; {_expression(condition)}; {_simple(step)})"
            return (f"{unroll}\n" if unroll else "") + head + _body(body)
        case ir.ForEach(type_, name, over, body):
            return f"for ({_type(type_)} {name} : {_expression(over)})" + _body(body)
        case ir.Each(macro, type_, body):
            return f"{macro}({_type(type_)})" + _body(body)
        case ir.If(condition, then, otherwise, static):
            head = f"if {'constexpr ' if static else ''}({_expression(condition)})"
            if not otherwise:
                return head + _body(then)
            return f"{head} {_braces(map(_statement, then))} else {_braces(map(_statement, otherwise))}"
        case ir.Scope(body):
            return _braces(map(_statement, body))
    return _simple(s) + ";"


def _body(body: Sequence[ir.Statement]) -> str:
    """The body of a loop or a choice, as it stands behind the head: a short one without others in it in the same line."""
    lines = [_statement(s) for s in body]
    if len(lines) == 1 and isinstance(body[0], Simple) and "\n" not in lines[0] and len(lines[0]) <= MOST_BEHIND:
        return " " + lines[0]
    return " " + _braces(lines)


def _simple(s: ir.Statement) -> str:
    """A statement without its semicolon."""
    match s:
        case ir.Declare(type_, variables, storage, unused):
            names = ", ".join(map(_variable, variables))
            stars = len(names) - len(names.lstrip("*&"))  # those of the first one stand at the type
            marks = ("[[maybe_unused]]" if unused else "", storage, _type(type_) + names[:stars], names[stars:])
            return " ".join(filter(None, marks))
        case ir.Alias(name, type_, unused):
            return f"using {name}{' [[maybe_unused]]' if unused else ''} = {_type(type_)}"
        case ir.Assign(place, op, value):
            return f"{_expression(place)} {op} {_expression(value)}"
        case ir.Do(calls):
            return _several(calls)
        case ir.Step(op, place):
            return op + _expression(place, OPERAND)
        case ir.Return(value):
            return f"return {_expression(value)}" if value else "return"
        case ir.Break():
            return "break"
    raise TypeError(f"{s!r} is no simple statement")


def _variable(v: ir.Variable) -> str:
    marks = ("const " if v.const else "", "__restrict__ " if v.restrict else "")
    front = "*" * v.pointers + ("&" if v.reference else "") + "".join(marks) + v.name + _dims(v.dims)
    match v.value:
        case None:
            return front
        case ir.Construct(_, args) if v.braces:
            return f"{front}{{{_several(args)}}}"
    return f"{front} = {_expression(v.value)}"


def _dims(dims: Sequence[ir.Expression]) -> str:
    return "".join(f"[{_expression(d)}]" for d in dims)


# --- kernels ------------------------------------------------------------------------------------------------------------
def parameters(k: ir.Kernel) -> str:
    """The struct of a kernel's parameters."""
    fields = _braces(f"{_type(f.type)} {f.name}{_dims(f.dims)};" for f in k.fields)
    return f"struct Parameters{k.name.removeprefix('kernel')} {fields};\n"


def function(k: ir.Kernel) -> str:
    """A kernel without the struct of its parameters."""
    head = f"void {k.name}(void* {k.parameters}, size_t block)"
    if k.bounds:
        constant = "__grid_constant__ " if k.grid_constant else ""
        bounds = ", ".join(map(str, k.bounds))
        struct = f"Parameters{k.name.removeprefix('kernel')}"
        head = f"__global__ void __launch_bounds__({bounds}) {k.name}(const {constant}{struct} {k.parameters})"
    return f"{head} {_braces(map(_statement, k.body))}\n"
