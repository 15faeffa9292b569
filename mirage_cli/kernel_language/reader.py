"""Kernels as data from the text that code generation prints.

The text of C++ does not say by itself whether `a < b` opens static arguments. Ours does: a comparison has spaces around it,
static arguments have none in front of their brackets. Names of types are known by where they stand: a statement that begins
with a name behind which another name or a pointer follows declares something.
"""

from __future__ import annotations

import re

from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.tokens import (
    ASSIGNMENTS,
    BEHIND,
    CLOSE,
    EACH,
    LITERALS,
    OPEN,
    PRECEDENCE,
    PREFIXES,
    STORAGE,
    TYPES,
    UNROLL,
    VECTOR_LOOP,
    WORDS,
    Tokens,
    marked,
)

_KERNELS = re.compile(r"__global__|^void (?=kernel\d)", re.MULTILINE)


def read_kernels(source: str) -> dict[str, ir.Kernel]:
    """The kernels of a CUDA or CPU source by name, in its order. Raises ValueError where the text is not of the language, and
    where it has no kernel, or two of a name."""
    text, kernels = marked(source), dict[str, ir.Kernel]()
    for start in _KERNELS.finditer(text):
        kernel = _Reader(text, start.start(), _end(text, start.start())).kernel()
        if kernel is None:
            continue
        if kernel.name in kernels:
            raise ValueError(f"{kernel.name} is there twice")
        kernels[kernel.name] = kernel
    if not kernels:
        raise ValueError("no kernel")
    return kernels


def read_statements(text: str) -> tuple[ir.Statement, ...]:
    """The statements of a text. Raises ValueError where it is not of the language."""
    return (reader := _Reader(marked(text))).whole(lambda: reader.statements(""))


def read_expression(text: str) -> ir.Expression:
    """The expression of a text. Raises ValueError where it is not of the language."""
    return (reader := _Reader(marked(text))).whole(reader.expression)


def _end(text: str, start: int) -> int:
    """Where what begins at `start` ends: behind the next brace at the beginning of a line, or of its only line."""
    line = text.find("\n", start)
    if text[start:line].endswith("}"):
        return line
    end = text.find("\n}", start)
    return len(text) if end < 0 else end + 2


class _Reader(Tokens):
    """Reads what the grammar has, by the names that it has there."""

    __slots__ = ()

    # --- types ------------------------------------------------------------------------------------------------------------
    def base(self) -> ir.Type:
        """A type without pointers."""
        const = self.takes("const")
        name = "auto" if self.takes("auto") else self.name()
        if name in WORDS:
            while self.tokens[self.at] in WORDS:
                name += " " + self.name()
        while self.tokens[self.at] == "::":
            self.at += 1
            name += "::" + self.name()
        return ir.Type(name, self.statics(), 0, const)

    def type(self) -> ir.Type:
        """A type."""
        base = self.base()
        pointers = self.pointers()
        reference = self.takes("&")
        return ir.Type(base.name, base.args, pointers, base.const, reference) if pointers or reference else base

    def pointers(self) -> int:
        """Number of pointers (`*`) that follow."""
        start = self.at
        while self.tokens[self.at] == "*":
            self.at += 1
        return self.at - start

    def statics(self) -> tuple[ir.Static, ...]:
        """Static arguments, if there are any."""
        return self.several(self.static, CLOSE) if self.takes(OPEN) else ()

    def static(self) -> ir.Static:
        """A static argument: a type, if all of it is one."""
        start = self.at
        if self.names(start) or self.tokens[start] == "const":
            type_ = self.type()
            if self.tokens[self.at] in (",", CLOSE):
                return type_
            self.at = start
        return self.expression()

    # --- expressions ------------------------------------------------------------------------------------------------------
    def expression(self) -> ir.Expression:
        """Any expression."""
        condition = self.binary(1)
        if not self.takes("?"):
            return condition
        yes = self.expression()
        self.take(":")
        return ir.Select(condition, yes, self.expression())

    def binary(self, least: int) -> ir.Expression:
        """Operands of operators that bind at least so strongly."""
        left = self.unary()
        while (op := self.tokens[self.at]) in PRECEDENCE and (level := PRECEDENCE[op]) >= least:
            self.at += 1
            left = ir.Binary(op, left, self.binary(level + 1))
        return left

    def unary(self) -> ir.Expression:
        """An operand with what stands in front of it."""
        token = self.tokens[self.at]
        if token in self.known:
            return self.postfix(self.named())
        if token in PREFIXES:
            self.at += 1
            return ir.Unary(token, self.unary())
        if token == "(" and self.tokens[self.at + 1 : self.at + 3] == ["void", ")"]:
            self.at += 3
            return ir.Unary("(void)", self.unary())
        return self.postfix(self.primary(token))

    def primary(self, token: str) -> ir.Expression:
        """An operand without what stands before and behind it."""
        self.at += 1
        if token[:1].isdigit() or token in LITERALS:
            return ir.Literal(token)
        match token:
            case "(":
                inner = self.expression()
                self.take(")")
                return inner
            case "{":
                return ir.List(self.several(self.expression, "}"))
            case "[":
                return self.function()
            case "static_cast" | "reinterpret_cast":
                self.take(OPEN)
                type_ = self.type()
                self.take(CLOSE)
                return ir.Cast(token.removesuffix("_cast"), type_, self.parenthesised())
        self.at -= 1
        raise self.refused("an expression")

    def parenthesised(self) -> ir.Expression:
        """An expression in parentheses."""
        self.take("(")
        inner = self.expression()
        self.take(")")
        return inner

    def named(self) -> ir.Expression:
        """A name, or a value of a type that is named."""
        if self.tokens[self.at + 1] not in BEHIND:
            self.at += 1
            return ir.Name((self.tokens[self.at - 1],))
        if self.tokens[self.at] == "decltype":
            self.at += 1
            owner = ir.Type("decltype", (self.parenthesised(),))
            self.take("::")
            return ir.Name(self.path(), (), owner)
        path, args = self.path(), self.statics()
        match self.tokens[self.at]:
            case "::" if args:
                self.at += 1
                return ir.Name(self.path(), self.statics(), ir.Type("::".join(path), args))
            case "{":
                self.at += 1
                return ir.Construct(ir.Type("::".join(path), args), self.several(self.expression, "}"))
            case "(" if not args and (path[-1] in TYPES or path[-1] == "Wide"):
                return ir.Cast("of", ir.Type("::".join(path)), self.parenthesised())
        return ir.Name(path, args)

    def path(self) -> tuple[str, ...]:
        """Names with `::` between them."""
        parts = [self.name()]
        while self.tokens[self.at] == "::":
            self.at += 1
            parts.append(self.name())
        return tuple(parts)

    def postfix(self, value: ir.Expression) -> ir.Expression:
        """A value with indices, members and calls behind it."""
        while True:
            match self.tokens[self.at]:
                case "[":
                    self.at += 1
                    value = ir.Index(value, self.expression())
                    self.take("]")
                case "(":
                    self.at += 1
                    value = ir.Call(value, self.several(self.expression, ")"))
                case "." | "->" as dot:
                    self.at += 1
                    value = ir.Member(value, self.name(), self.statics(), dot == "->")
                case _:
                    return value

    def function(self) -> ir.Lambda:
        """A lambda, behind its first bracket."""
        self.take("&")
        self.take("]")
        parameters = self.several(self.parameter, ")") if self.takes("(") else ()
        self.take("{")
        return ir.Lambda(parameters, self.statements("}"))

    def parameter(self) -> ir.Parameter:
        """A parameter of a lambda."""
        return ir.Parameter(self.type(), self.name())

    # --- statements -------------------------------------------------------------------------------------------------------
    def statements(self, close: str) -> tuple[ir.Statement, ...]:
        """Statements, and what closes them."""
        statements = []
        while self.tokens[self.at] != close:
            statements.append(self.statement())
        if close:
            self.at += 1
        return tuple(statements)

    def statement(self) -> ir.Statement:
        """A statement."""
        token = self.tokens[self.at]
        match token:
            case "{":
                self.at += 1
                return ir.Scope(self.statements("}"))
            case "for":
                return self.loop("")
            case "if":
                return self.choice()
        if token == VECTOR_LOOP or UNROLL.fullmatch(token):
            self.at += 1
            return self.loop(token)
        if token in EACH:
            return self.each()
        simple = self.simple()
        self.take(";")
        return simple

    def simple(self) -> ir.Statement:
        """A statement, up to its semicolon."""
        token = self.tokens[self.at]
        match token:
            case "return":
                self.at += 1
                return ir.Return(None if self.tokens[self.at] == ";" else self.expression())
            case "break":
                self.at += 1
                return ir.Break()
            case "using":
                return self.using()
            case "typedef":
                self.at += 1
                type_ = self.type()
                return ir.Alias(self.name(), type_)
            case "++" | "--":
                self.at += 1
                return ir.Step(token, self.unary())
        return self.declaration() if self.declares() else self.action()

    def using(self) -> ir.Alias:
        """Another name of a type."""
        self.take("using")
        name, unused = self.name(), self.takes("[[maybe_unused]]")
        self.take("=")
        return ir.Alias(name, self.type(), unused)

    def action(self) -> ir.Assign | ir.Do:
        """An assignment, or an expression that is run."""
        first = self.expression()
        op = self.tokens[self.at]
        if op in ASSIGNMENTS:
            self.at += 1
            return ir.Assign(first, op, self.expression())
        calls = [self.call(first)]
        while self.takes(","):
            calls.append(self.call(self.expression()))
        return ir.Do(tuple(calls))

    def call(self, done: ir.Expression) -> ir.Expression:
        """The same expression, which does something, or says that a name is not used."""
        match done:
            case ir.Call() | ir.Unary("(void)"):
                return done
        raise self.refused("a call or an assignment in front of this")

    def declares(self) -> bool:
        """True if a declaration begins here."""
        token = self.tokens[self.at]
        if token in ("const", "auto", "[[maybe_unused]]") or token in STORAGE:
            return True
        at = self.at
        while self.names(at) and self.tokens[at + 1] == "::":
            at += 2
        if not self.names(at):
            return False
        at += 1
        if self.tokens[at] == OPEN:
            at = self.behind(at)
        return self.names(at) or self.tokens[at] in ("*", "&", "const")

    def behind(self, at: int) -> int:
        """The place behind the static arguments that begin at one."""
        depth = 0
        for k in range(at, len(self.tokens)):
            depth += (self.tokens[k] == OPEN) - (self.tokens[k] == CLOSE)
            if not depth:
                return k + 1
        return len(self.tokens) - 1

    def declaration(self) -> ir.Declare:
        """Variables of a type."""
        unused, storage = self.takes("[[maybe_unused]]"), self.storage()
        type_ = self.base()
        variables = [self.variable(type_)]
        while self.takes(","):
            variables.append(self.variable(type_))
        return ir.Declare(type_, tuple(variables), storage, unused)

    def storage(self) -> str:
        """Words in front of the type of variables that tell where they lie."""
        words = []
        while (token := self.tokens[self.at]) in STORAGE or token == "__align__":
            self.at += 1
            words.append(f"{token}({self.number()})" if token == "__align__" else token)
        return " ".join(words)

    def number(self) -> int:
        """A whole number in parentheses."""
        match self.parenthesised():
            case ir.Literal(text) if text.isdecimal():
                return int(text)
        raise self.refused("a whole number in front of this")

    def variable(self, type_: ir.Type) -> ir.Variable:
        """A name that is declared with a type."""
        pointers, reference = self.pointers(), self.takes("&")
        const, restrict = self.takes("const"), self.takes("__restrict__")
        name, dims, braces = self.name(), self.dims(), self.takes("{")
        value: ir.Expression | None = None
        if braces:
            value = ir.Construct(type_, self.several(self.expression, "}"))
        elif self.takes("="):
            value = self.expression()
        return ir.Variable(name, pointers, dims, value, const, restrict, reference, braces)

    def dims(self) -> tuple[ir.Expression, ...]:
        """The extents of an array."""
        extents: list[ir.Expression] = []
        while self.takes("["):
            if self.takes("]"):
                extents.append(ir.Literal(""))
                continue
            extents.append(self.expression())
            self.take("]")
        return tuple(extents)

    def body(self) -> tuple[ir.Statement, ...]:
        """The body of a loop or a choice."""
        return self.statements("}") if self.takes("{") else (self.statement(),)

    def loop(self, unroll: str) -> ir.For | ir.ForEach:
        """A loop."""
        self.take("for")
        self.take("(")
        if not unroll and self.declares() and (for_each := self.range()) is not None:
            return for_each
        start = self.simple()
        self.take(";")
        condition = self.expression()
        self.take(";")
        step = self.simple()
        self.take(")")
        return ir.For(start, condition, step, self.body(), unroll)

    def range(self) -> ir.ForEach | None:
        """A loop over elements, behind its parenthesis, if it is one."""
        start = self.at
        type_ = self.type() if self.tokens[start] not in STORAGE else None
        if type_ is None or self.tokens[self.at + 1 : self.at + 2] != [":"]:
            self.at = start
            return None
        name = self.name()
        self.take(":")
        over = self.expression()
        self.take(")")
        return ir.ForEach(type_, name, over, self.body())

    def each(self) -> ir.Each:
        """A loop over what a thread has of a value."""
        macro = self.tokens[self.at]
        self.at += 1
        self.take("(")
        type_ = self.type()
        self.take(")")
        return ir.Each(macro, type_, self.body())

    def choice(self) -> ir.If:
        """A choice."""
        self.take("if")
        static = self.takes("constexpr")
        condition = self.parenthesised()
        then = self.body()
        return ir.If(condition, then, self.body() if self.takes("else") else (), static)

    # --- kernels ----------------------------------------------------------------------------------------------------------
    def kernel(self) -> ir.Kernel | None:
        """The kernel that begins here; none for one that only says that it was compiled for another machine."""
        return self.whole(self.cuda_kernel if self.takes("__global__") else self.cpu_kernel)

    def cpu_kernel(self) -> ir.Kernel:
        """A kernel for the CPU."""
        self.take("void")
        name = self.kernel_name()
        for token in ("(", "void", "*", "data", ",", "size_t", "block", ")", "{"):
            self.take(token)
        return ir.Kernel(name, "data", self.fields(name), (), self.statements("}"))

    def cuda_kernel(self) -> ir.Kernel | None:
        """A kernel for CUDA."""
        self.take("void")
        bounds = self.bounds() if self.takes("__launch_bounds__") else ()
        name = self.kernel_name()
        self.take("(")
        self.take("const")
        constant = self.takes("__grid_constant__")
        self.take(f"Parameters{name.removeprefix('kernel')}")
        if not bounds:
            for token in (")", "{", "__trap", "(", ")", ";", "}"):
                self.take(token)
            return None
        parameters = self.name()
        self.take(")")
        self.take("{")
        return ir.Kernel(name, parameters, self.fields(name), bounds, self.statements("}"), constant)

    def bounds(self) -> tuple[int, ...]:
        """The numbers of threads and blocks that a kernel declares to the compiler."""
        self.take("(")
        literals = self.several(self.expression, ")")
        numbers = tuple(int(n.text) for n in literals if isinstance(n, ir.Literal) and n.text.isdecimal())
        if not numbers or len(numbers) != len(literals):
            raise self.refused("numbers of threads and blocks in front of this")
        return numbers

    def kernel_name(self) -> str:
        """The name of a kernel."""
        if not re.fullmatch(r"kernel\d+", self.tokens[self.at]):
            raise self.refused("kernel and its number")
        return self.name()

    def fields(self, kernel: str) -> tuple[ir.Field, ...]:
        """The members of the parameters of a kernel."""
        struct = f"struct Parameters{kernel.removeprefix('kernel')} {{"
        start = self.text.find(struct)
        end = self.text.find("};", start)
        if start < 0 or end < 0:
            raise self.refused(f"{struct[:-2]} in front of the statements")
        reader = _Reader(self.text, start + len(struct), end)
        members = []
        while reader.tokens[reader.at]:
            type_, name = reader.type(), reader.name()
            members.append(ir.Field(type_, name, reader.dims()))
            reader.take(";")
        return tuple(members)
