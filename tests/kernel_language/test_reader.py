"""Kernels read from text: the goldens, the grammar form by form, how operators bind, and what is refused."""

from __future__ import annotations

import operator
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mirage_cli.kernel_language import ir
from mirage_cli.kernel_language.reader import read_expression, read_kernels, read_statements
from mirage_cli.kernel_language.tokens import PRECEDENCE
from tests.kernel_language.texts import GOLDENS

HALF, FLOAT, INT = ir.Type("__half"), ir.Type("float"), ir.Type("int")
BARRIER = ir.Type("Barrier")
TILE = ir.Type("Tile", (HALF, ir.Literal("32"), ir.Type("WIDTH")))


def name(*path: str) -> ir.Name:
    return ir.Name(path)


def number(text: str) -> ir.Literal:
    return ir.Literal(text)


def call(function: str, *args: ir.Expression) -> ir.Call:
    return ir.Call(name(function), args)


def declared(type_: ir.Type, variable: str, value: str) -> ir.Declare:
    return ir.Declare(type_, (ir.Variable(variable, value=number(value)),))


# --- kernels ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("golden", "parameters", "bounds", "constant", "fields"),
    [
        ("kernel.cpp", "data", (), False, ["x0", "x1", "x2", "y0", "failed"]),
        ("kernel.cu", "parameters", (256,), False, ["x0", "x1", "x2", "y0"]),
        ("rows.cu", "p", (128,), False, ["x0", "x1", "x2", "x3", "y0", "y1"]),
        ("strip.cu", "parameters", (128, 3), False, ["x0", "x1", "x2", "y0"]),
        ("warpgroup.cu", "parameters", (384, 1), True, ["x0", "x1", "x2", "y0", "map_t1", "map_t2", "map_t0"]),
    ],
)
def test_head(golden: str, parameters: str, bounds: tuple[int, ...], constant: bool, fields: list[str]) -> None:
    kernels = read_kernels(GOLDENS[golden])
    assert list(kernels) == ["kernel0"]
    kernel = kernels["kernel0"]
    assert (kernel.name, kernel.parameters, kernel.bounds) == ("kernel0", parameters, bounds)
    assert (kernel.grid_constant, [f.name for f in kernel.fields]) == (constant, fields)
    half = "half" if golden == "kernel.cpp" else "__half"
    assert kernel.fields[0] == ir.Field(ir.Type(half, pointers=1, const=True), "x0")


def test_wrapped_instructions_and_hosts_are_no_statements() -> None:
    """Only what the kernel does is read: its first statement, and its last."""
    kernel = read_kernels(GOLDENS["warpgroup.cu"])["kernel0"]
    assert kernel.body[0] == ir.Alias("offset_t", INT)
    assert isinstance(kernel.body[-1], ir.If) and kernel.body[-1].otherwise


SEVERAL = """
struct Parameters0 { float* y0; };
__global__ void __launch_bounds__(32) kernel0(const Parameters0 p) {
    return;
}
struct Parameters1 {
    int sizes[4];
};
#if defined(__CUDA_ARCH__) && !(__CUDA_ARCH__ == 900)
__global__ void kernel1(const __grid_constant__ Parameters1) { __trap(); }
#else
__global__ void __launch_bounds__(64, 2)
    kernel1(const __grid_constant__ Parameters1 parameters) {
}
#endif
"""


def test_several_kernels_and_one_for_other_machines() -> None:
    first, second = read_kernels(SEVERAL).values()
    assert first == ir.Kernel("kernel0", "p", (ir.Field(ir.Type("float", pointers=1), "y0"),), (32,), (ir.Return(),))
    sizes = ir.Field(INT, "sizes", (number("4"),))
    assert second == ir.Kernel("kernel1", "parameters", (sizes,), (64, 2), (), True)


# --- expressions --------------------------------------------------------------------------------------------------------
A, B, C = name("a"), name("b"), name("c")
EXPRESSIONS: dict[str, ir.Expression] = {
    "a - b - c": ir.Binary("-", ir.Binary("-", A, B), C),
    "a - (b - c)": ir.Binary("-", A, ir.Binary("-", B, C)),
    "a + b % c": ir.Binary("+", A, ir.Binary("%", B, C)),
    "-a * !b": ir.Binary("*", ir.Unary("-", A), ir.Unary("!", B)),
    "a & b == c": ir.Binary("&", A, ir.Binary("==", B, C)),
    "a < b || a >= c && b": ir.Binary("||", ir.Binary("<", A, B), ir.Binary("&&", ir.Binary(">=", A, C), B)),
    "a >> b > c": ir.Binary(">", ir.Binary(">>", A, B), C),
    "a ? b : c ? a : b": ir.Select(A, B, ir.Select(C, A, B)),
    "a < b ? b : -INFINITY": ir.Select(ir.Binary("<", A, B), B, ir.Unary("-", number("INFINITY"))),
    "*a.b[c]->c": ir.Unary("*", ir.Member(ir.Index(ir.Member(A, "b"), C), "c", arrow=True)),
    "&a[0xffu]": ir.Unary("&", ir.Index(A, number("0xffu"))),
    "0x1.f07p-9f": number("0x1.f07p-9f"),
    "(void)a": ir.Unary("(void)", A),
    "S::none()": ir.Call(name("S", "none"), ()),
    "copy<1, a::N, Known<2>>(b)": ir.Call(
        ir.Name(("copy",), (number("1"), ir.Type("a::N"), ir.Type("Known", (number("2"),)))), (B,)
    ),
    "copy<4 * a, (b > c), const __half*>()": ir.Call(
        ir.Name(
            ("copy",),
            (ir.Binary("*", number("4"), A), ir.Binary(">", B, C), ir.Type("__half", pointers=1, const=True)),
        ),
        (),
    ),
    "Words<__half>::pack(a)": ir.Call(ir.Name(("pack",), (), ir.Type("Words", (HALF,))), (A,)),
    "decltype(a)::value": ir.Name(("value",), (), ir.Type("decltype", (A,))),
    "a.get<3>(b)": ir.Call(ir.Member(A, "get", (number("3"),)), (B,)),
    "static_cast<unsigned char*>(a)": ir.Cast("static", ir.Type("unsigned char", pointers=1), A),
    "reinterpret_cast<Max::Wide*>(a)": ir.Cast("reinterpret", ir.Type("Max::Wide", pointers=1), A),
    "offset_t(72)": ir.Cast("of", ir.Type("offset_t"), number("72")),
    "Sum::Wide(a)": ir.Cast("of", ir.Type("Sum::Wide"), A),
    "smaller(72)": call("smaller", number("72")),
    "int64_t{1}": ir.Construct(ir.Type("int64_t"), (number("1"),)),
    "Tile<__half, 32, WIDTH>{a}": ir.Construct(TILE, (A,)),
    "{{a, b}, {}}": ir.List((ir.List((A, B)), ir.List(()))),
    "[&] { return; }": ir.Lambda((), (ir.Return(),)),
    "[&](auto& a, const Place<2>& b, int c) { return c; }": ir.Lambda(
        (
            ir.Parameter(ir.Type("auto", reference=True), "a"),
            ir.Parameter(ir.Type("Place", (number("2"),), 0, True, True), "b"),
            ir.Parameter(INT, "c"),
        ),
        (ir.Return(C),),
    ),
}


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expression(text: str) -> None:
    assert read_expression(text) == EXPRESSIONS[text]


OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "/": lambda a, b: int(a / b),
    "%": lambda a, b: a - int(a / b) * b,
    "&&": lambda a, b: a and b and 1,
    "||": lambda a, b: int(bool(a or b)),
}


def value(e: ir.Expression) -> int:
    """What an expression of whole numbers is. Raises ValueError where C++ does not say."""
    match e:
        case ir.Literal(text):
            return int(text)
        case ir.Unary("-", inner):
            return -value(inner)
        case ir.Select(condition, yes, no):
            return value(yes) if value(condition) else value(no)
        case ir.Binary(op, left, right):
            a, b = value(left), value(right)
            if op in ("<<", ">>") and not (0 <= a < 1 << 12 and 0 <= b < 12):
                raise ValueError(op)
            return int(OPERATORS[op](a, b))
    raise AssertionError(e)


def test_operators_bind_as_a_compiler_says(tmp_path: Path) -> None:
    """Random texts without parentheses, whose value a compiler computes."""
    assert set(OPERATORS) == set(PRECEDENCE)
    chosen, claims, seen = random.Random(1), [], set[str]()
    while len(claims) < 400:
        parts = [chosen.choice(("", "-")) + str(chosen.randrange(1, 9))]
        for _ in range(chosen.randrange(1, 6)):
            op = chosen.choice([*OPERATORS, "? 5 :"])
            parts += [op, str(chosen.randrange(1, 9))]
        text = " ".join(parts)
        try:
            claims.append(f"static_assert(({text}) == {value(read_expression(text))});")
            seen |= set(parts)
        except ValueError:
            continue
    assert set(OPERATORS) <= seen
    source = tmp_path / "claims.cpp"
    source.write_text("\n".join(claims))
    command = ["g++", "-std=c++17", "-fsyntax-only", "-w", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]


# --- statements ---------------------------------------------------------------------------------------------------------
I_LOOP = (declared(INT, "i", "0"), ir.Binary("<", name("i"), number("4")), ir.Step("++", name("i")))
GO = ir.Do((call("go"),))
STATEMENTS: dict[str, ir.Statement] = {
    "const float* const __restrict__ x = a;": ir.Declare(
        ir.Type("float", const=True), (ir.Variable("x", 1, (), A, True, True),)
    ),
    "Barrier *const x = a, *const y = b;": ir.Declare(
        BARRIER, (ir.Variable("x", 1, (), A, True), ir.Variable("y", 1, (), B, True))
    ),
    "Barrier& full = a[b];": ir.Declare(BARRIER, (ir.Variable("full", value=ir.Index(A, B), reference=True),)),
    "Max::Wide part[32], x;": ir.Declare(
        ir.Type("Max::Wide"), (ir.Variable("part", dims=(number("32"),)), ir.Variable("x"))
    ),
    "const Tile<__half, 32, WIDTH> x{a};": ir.Declare(
        ir.Type("Tile", TILE.args, const=True),
        (ir.Variable("x", value=ir.Construct(ir.Type("Tile", TILE.args, const=True), (A,)), braces=True),),
    ),
    "const int at[] = {a, b};": ir.Declare(
        ir.Type("int", const=True), (ir.Variable("at", dims=(number(""),), value=ir.List((A, B))),)
    ),
    "extern __shared__ __align__(1024) unsigned char shared[];": ir.Declare(
        ir.Type("unsigned char"), (ir.Variable("shared", dims=(number(""),)),), "extern __shared__ __align__(1024)"
    ),
    "[[maybe_unused]] constexpr int N = 4;": ir.Declare(INT, (ir.Variable("N", value=number("4")),), "constexpr", True),
    "auto f = [&] { go(); };": ir.Declare(ir.Type("auto"), (ir.Variable("f", value=ir.Lambda((), (GO,))),)),
    "using T [[maybe_unused]] = int;": ir.Alias("T", INT, True),
    "typedef Tile<__half, 32, WIDTH> T;": ir.Alias("T", TILE),
    "a[b] *= c;": ir.Assign(ir.Index(A, B), "*=", C),
    "(void)a, (void)b; // said": ir.Do((ir.Unary("(void)", A), ir.Unary("(void)", B))),
    "--a;": ir.Step("--", A),
    "for (int i = 0; i < 4; ++i) go();": ir.For(*I_LOOP, (GO,), ""),
    "#pragma unroll 4\nfor (int i = 0; i < 4; ++i) { go(); }": ir.For(*I_LOOP, (GO,), "#pragma unroll 4"),
    "MIRAGE_VECTOR_LOOP for (int i = 0; i < 4; ++i) { go(); }": ir.For(*I_LOOP, (GO,), "MIRAGE_VECTOR_LOOP"),
    "for (unsigned to = 0; to < a; to += b) { go(); }": ir.For(
        declared(ir.Type("unsigned"), "to", "0"),
        ir.Binary("<", name("to"), A),
        ir.Assign(name("to"), "+=", B),
        (GO,),
    ),
    "for (float& x : a) go();": ir.ForEach(ir.Type("float", reference=True), "x", A, (GO,)),
    "MIRAGE_STRIP(S_t1) go();": ir.Each("MIRAGE_STRIP", ir.Type("S_t1"), (GO,)),
    "MIRAGE_STRIP_ROWS(StripRows<1>) { go(); }": ir.Each(
        "MIRAGE_STRIP_ROWS", ir.Type("StripRows", (number("1"),)), (GO,)
    ),
    "if (a) { go(); } else { break; }": ir.If(A, (GO,), (ir.Break(),)),
    "if constexpr (!a) go();": ir.If(ir.Unary("!", A), (GO,), (), True),
    "if (a) if (b) go(); else break;": ir.If(A, (ir.If(B, (GO,), (ir.Break(),)),), ()),
    "{ go(); }": ir.Scope((GO,)),
    "return a ? b : c;": ir.Return(ir.Select(A, B, C)),
}


@pytest.mark.parametrize("text", STATEMENTS)
def test_statement(text: str) -> None:
    assert read_statements(text) == (STATEMENTS[text],)


def test_statements_one_after_the_other() -> None:
    assert read_statements("// nothing\n") == ()
    assert read_statements("go();\n\ngo();") == (GO, GO)


# --- refusals -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("go();\nint x = ;", "line 2: expected an expression, found ;"),
        ("go()", "line 1: expected ;, found the end"),
        ("a + b;", "line 1: expected a call or an assignment in front of this, found ;"),
        ("while (a) { go(); }", "line 1: expected an expression, found while"),
        ("do { go(); }", "line 1: expected an expression, found do"),
        ("goto end;", "line 1: expected an expression, found goto"),
        ("asm volatile(a);", "line 1: expected an expression, found asm"),
        ('go("text");', 'line 1: expected an expression, found "'),
        ("a = b = c;", "line 1: expected ;, found ="),
        ("a <<= b;", "line 1: expected an expression, found ="),
        ("go(a b);", "line 1: expected , or ), found b"),
        ("x = a<b;", "line 1: expected , or >, found ;"),
        ("x = a <b> (c);", "line 1: expected ;, found >"),
        ("#pragma omp for\nfor (;;) {}", "line 1: expected an expression, found #pragma omp for"),
        ("#pragma unroll\ngo();", "line 2: expected for, found go"),
        ("for (int", "line 1: expected a call or an assignment in front of this, found the end"),
        ("extern __align__(a) int x;", "line 1: expected a whole number in front of this, found int"),
        ("go();\n}", "line 2: expected an expression, found }"),
        ("{\ngo();\n", "line 3: expected an expression, found the end"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as refused:
        read_statements(text)
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("struct Parameters0 {", "struct Other {", "expected struct Parameters0 in front of the statements"),
        ("__launch_bounds__(32)", "__launch_bounds__(N)", "line 3: expected numbers of threads"),
        ("__launch_bounds__(32)", "__cluster_dims__(2)", "line 3: expected kernel and its number"),
        ("kernel0(const Parameters0", "kernel0(const Parameters1", "line 3: expected Parameters0, found Parameters1"),
        ("    return;", "    return", "line 5: expected an expression, found }"),
        ("float* y0;", "float* y0", "line 2: expected ;, found the end"),
        ("kernel1(const __grid_constant__ Parameters1 p", "kernel0(const Parameters0 p", "kernel0 is there twice"),
        ("{ __trap(); }", "{ }", "line 10: expected __trap, found }"),
    ],
)
def test_refused_kernels(old: str, new: str, reason: str) -> None:
    assert old in SEVERAL
    with pytest.raises(ValueError) as refused:
        read_kernels(SEVERAL.replace(old, new))
    assert reason in str(refused.value)


def test_a_source_without_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match="no kernel"):
        read_kernels("int main() {\n}\n")


@pytest.mark.parametrize("golden", GOLDENS)
def test_spoiled_kernels_are_refused_with_a_line(golden: str) -> None:
    """Whatever is cut out, the text is read or refused: there is no other end."""
    source, chosen = GOLDENS[golden], random.Random(golden)
    start, refused = source.index("struct Parameters0"), 0
    for _ in range(25):
        at = chosen.randrange(start, len(source) - 20)
        spoiled = source[:at] + source[at + chosen.randrange(1, 12) :]
        try:
            read_kernels(spoiled)
        except ValueError as error:
            assert str(error).startswith("line ") or str(error) in ("no kernel", "kernel0 is there twice")
            refused += 1
    assert refused > 2
