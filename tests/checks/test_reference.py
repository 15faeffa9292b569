"""What is right is what the original nodes mean: programs that say something else are found out, on inputs that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from mirage_cli.checks import divergence, random_inputs, reference, threshold_inputs
from mirage_cli.checks import kernel_check as checks
from mirage_cli.checks.kernel_check import FloatCheck, Runner, check
from mirage_cli.checks.reference import FEW, Nodes, Reference, Unknown, nearly_equal
from mirage_cli.errors import MirageError, Refused
from mirage_cli.lax.dtypes import F16, F32, I64, DType
from mirage_cli.lax.extents import symbol
from mirage_cli.lax.ir.graph import Graph
from mirage_cli.lax.ir.program import Program
from mirage_cli.numerics.thresholds import constants, turns
from mirage_cli.runtime import sessions
from tests.codegen.programs import program

Array = NDArray[Any]
Arrays = Sequence[Array]
ROWS = (40, 45)


def nodes_of(text: str, types: str = "float[40,45] u", output: str = "float[40,45] y", opset: int = 20) -> Nodes:
    """Nodes that compute y, as a model."""
    head = f'<ir_version: 10, opset_import: ["" : {opset}]> g ({types}) => ({output}) '
    model = onnx.parser.parse_model(head + "{" + text + "}")
    onnx.checker.check_model(model)
    return Nodes(model, tuple(v.name for v in model.graph.input), tuple(v.name for v in model.graph.output))


def in_float32(nodes: Nodes) -> Runner:
    """The nodes as onnxruntime computes them."""
    session = sessions.session(nodes.model.SerializeToString(), optimize=False)

    def run(arrays: Arrays, symbols: Mapping[str, int]) -> list[Array]:
        found = sessions.run(session, dict(zip(nodes.names, arrays, strict=True)))
        return [found[o] for o in nodes.outputs]

    return run


def one_map(op: str, dtype: DType = F32) -> Program:
    """A program of one function."""
    return program(lambda g, t: [g.map(op, g.input("u", ROWS, t))], dtype)


def judged(nodes: Nodes, p: Program, kernel: Runner | None = None) -> FloatCheck:
    """The check of a kernel, by default of what the program says, against nodes."""
    return check(p, kernel or checks.exact_runner(p), in_float32(nodes), {}, 1, nodes=nodes)


_ERF = (
    "r = Constant <value_float = 1.4142135> () one = Constant <value_float = 1.0> () half = Constant <value_float = 0.5> ()"
    " q = Div (c, r) e = Erf (q) s = Add (e, one) m = Mul (c, s) y = Mul (m, half)"
)
WRONG = {
    "a clip at 50 before gelu": (
        "lo = Constant <value_float = -50.0> () hi = Constant <value_float = 50.0> () c = Clip (u, lo, hi)" + _ERF,
        "gelu",
    ),
    "a clip at 1000 before silu": (
        "lo = Constant <value_float = -1000.0> () hi = Constant <value_float = 1000.0> () c = Clip (u, lo, hi)"
        " s = Sigmoid (c) y = Mul (c, s)",
        "silu",
    ),
    "a sigmoid that does not end at 0": (
        "d = Constant <value_float = 2e-8> () s = Sigmoid (u) t = Add (s, d) y = Mul (u, t)",
        "silu",
    ),
    "an exponential that is bounded": (
        "b = Constant <value_float = 20.0> () one = Constant <value_float = 1.0> () n = Neg (u) m = Min (n, b)"
        " e = Exp (m) s = Add (one, e) y = Div (u, s)",
        "silu",
    ),
    "another value on a stretch": (
        "lo = Constant <value_float = 0.95> () hi = Constant <value_float = 0.96> () f = Constant <value_float = 50.0> ()"
        " c = Identity (u)"
        + _ERF.replace("y = Mul (m, half)", "p = Mul (m, half)")
        + " a = Greater (u, lo) b = Less (u, hi)"
        " w = And (a, b) q50 = Mul (p, f) y = Where (w, q50, p)",
        "gelu",
    ),
    "another value on a far stretch": (
        "lo = Constant <value_float = 3000.0> () hi = Constant <value_float = 3010.0> () s = Sigmoid (u) p = Mul (u, s)"
        " a = Greater (u, lo) b = Less (u, hi) w = And (a, b) n = Neg (p) y = Where (w, n, p)",
        "silu",
    ),
    "a bound of 1e-4": (
        "lo = Constant <value_float = -0.0001> () hi = Constant <value_float = 0.0001> () y = Clip (u, lo, hi)",
        "tanh",
    ),
    "a cast that wraps": ("i = Cast <to = 3> (u) y = Cast <to = 1> (i)", "neg"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_program_that_is_another_function_is_found(name: str) -> None:
    text, op = WRONG[name]
    found = judged(nodes_of(text), one_map(op))
    assert not found.passed
    assert not found.parted
    assert found.worst is not None


@pytest.mark.parametrize(
    ("text", "op"),
    [("s = Sigmoid (u) y = Mul (u, s)", "silu"), ("c = Identity (u)" + _ERF, "gelu"), ("y = Tanh (u)", "tanh")],
)
def test_a_program_that_is_the_same_passes(text: str, op: str) -> None:
    found = judged(nodes_of(text), one_map(op))
    assert found.passed, found.worst
    assert found.edges is not None
    assert threshold_inputs.ONE_SIGN in found.edges.kinds


def test_turns_behind_products_are_reached() -> None:
    """A bound that random numbers never come to, behind a product with weights."""
    bounds = "lo = Constant <value_float = -500.0> () hi = Constant <value_float = 500.0> () "
    nodes = nodes_of(bounds + "v = MatMul (u, w) y = Clip (v, lo, hi)", "float[45,45] w, float[40,45] u")

    def build(g: Graph, t: DType) -> Sequence[int]:
        u, w = g.input("u", ROWS, t), g.input("w", (45, 45), t)
        return [g.contract(u, w, (0, 1), (1, 2), (0, 2))]

    p = program(build, F32)
    assert [s.dims for s in p.sources] == [(45, 45), (40, 45)]
    found = judged(nodes, p)
    assert not found.passed
    assert found.case in (*threshold_inputs.KINDS, "large", "huge", "one huge value")


def test_casts_that_round_count_where_rounding_is_the_result() -> None:
    """x - float32(float16(x)) is no 0; where a cast is passed on the way, numbers may be kept."""
    residue = nodes_of("h = Cast <to = 10> (u) f = Cast <to = 1> (h) y = Sub (u, f)")
    zero = program(lambda g, t: [g.map("sub", u := g.input("u", ROWS, t), u)], F32)

    def zeros(arrays: Arrays, symbols: Mapping[str, int]) -> list[Array]:
        return [np.zeros_like(arrays[0])]

    assert not judged(residue, zero, zeros).passed
    passed = nodes_of("h = Cast <to = 10> (u) f = Cast <to = 1> (h) y = Tanh (f)")
    assert judged(passed, one_map("tanh")).passed


def test_casts_may_decide_a_few_elements() -> None:
    """Which of two scores is the larger, where they are nearly equal; not one in a hundred."""
    exact = np.linspace(-1, 1, 2000)
    for changed, same in ((2, True), (20, False)):
        other = exact.copy()
        other[:changed] = 50.0
        assert nearly_equal(exact, other, 1e-3, FEW) is same
        assert not nearly_equal(exact, other, 1e-3)


def test_what_overflows_in_a_cast_and_is_hidden_may_be_finite() -> None:
    """|u| / (|u| + 1) by float16, 0 where it is no number: 1 for a number that float16 does not hold is as good. Numbers that
    it holds are no excuse."""
    hides = "n = IsNaN (t) zero = Constant <value_float = 0.0> () y = Where (n, zero, t)"
    share = "a = Abs (u) h = Cast <to = 10> (a) f = Cast <to = 1> (h) one = Constant <value_float = 1.0> () "
    nodes = nodes_of(f"{share} s = Add (f, one) t = Div (f, s) {hides}")

    def build(g: Graph, t: DType) -> Sequence[int]:
        a = g.map("abs", g.input("u", ROWS, t))
        return [g.map("div", a, g.map("add", a, g.fill(1, t)))]

    def without(most: float) -> Runner:
        """The share, 0 where it is no number or the number is larger than this."""

        def run(arrays: Arrays, symbols: Mapping[str, int]) -> list[Array]:
            a = np.abs(arrays[0])
            with np.errstate(invalid="ignore"):
                return [np.where((a > most) | np.isnan(a / (a + 1)), np.float32(0), a / (a + 1))]

        return run

    p = program(build, F32)
    assert judged(nodes, p, without(np.inf)).passed
    assert not judged(nodes, p, without(4000)).passed


def test_where_casts_overflow_roundings_of_scores_decide_nothing() -> None:
    """Attention of queries in float16, where rows that are no number are 0: most queries beyond float16 have such a row, and
    rounding chooses among nearly equal scores of others. Only of queries that it holds does that count."""
    hidden = "n = IsNaN (s) zero = Constant <value_float = 0.0> () w = Where (n, zero, s) y = MatMul (w, v)"
    body = f"h = Cast <to = 10> (u) f = Cast <to = 1> (h) t = MatMul (f, k) s = Softmax (t) {hidden}"
    nodes = nodes_of(body, "float[100,16] u, float[16,200] k, float[200,8] v", "float[100,8] y")
    random = np.random.default_rng(33)  # of nearly equal scores in both
    u, k, v = (random.standard_normal(shape, np.float32) for shape in ((100, 16), (16, 200), (200, 8)))
    own, unit = Reference(program(lambda g, t: [g.input("u", ROWS, t)], F32), nodes), divergence.unit(nodes.model)
    for scale, right in ((6.5e4, True), (1e4, False)):
        arrays = [u * np.float32(scale), k, v]
        exact, held, unrounded = (nodes.exact(arrays, {}, **o) for o in ({}, {"overflows": False}, {"casts": False}))
        assert not nearly_equal(held[0], unrounded[0], unit, FEW)
        found = own.loose(arrays, {}, exact, large=True)
        assert found is None if not right else found is not None and np.array_equal(found[0], unrounded[0])


# --- the original's own word ----------------------------------------------------------------------------------------------
def test_an_original_that_computes_something_else_fails_with_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = nodes_of("[first] s = Sigmoid (u) [second] t = Tanh (s) [third] y = Mul (u, t)")
    p = program(lambda g, t: [g.map("mul", u := g.input("u", ROWS, t), g.map("tanh", g.map("sigmoid", u)))], F32)
    assert judged(nodes, p).passed
    real = sessions.run

    def wrong(session: Any, inputs: Mapping[str, Array], seconds: float = 0) -> dict[str, Array]:
        found = real(session, inputs, seconds)
        if "t" in found:
            found["t"] = found["t"] * np.float32(1.01)
        return found | {"y": inputs["u"] * np.tanh(1 / (1 + np.exp(-inputs["u"]))) * np.float32(1.01)}

    monkeypatch.setattr(sessions, "run", wrong)
    found = judged(nodes, p)
    assert not found.passed
    assert "Tanh 'second'" in found.parted
    assert found.reason.startswith("the original computes something else than its nodes mean")


def test_rounding_parts_nowhere() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float16):
        exact = rng.standard_normal((64, 64))
        own = exact.astype(dtype)
        unit = float(np.finfo(dtype).eps)
        assert divergence.within_rounding(own, exact, unit, 64)
        assert not divergence.within_rounding((exact * 1.5).astype(dtype), exact, unit, 64)
    flags = rng.random(1000) < 0.5
    assert divergence.within_rounding(flags, flags, 1e-7, 1)
    assert not divergence.within_rounding(~flags, flags, 1e-7, 1)
    assert not divergence.within_rounding(own[:3], exact, unit, 64)
    words = np.array(["one", "two"], dtype=object)
    assert divergence.within_rounding(words, words.astype(str), 1e-7, 1)
    assert not divergence.within_rounding(words, words[::-1], 1e-7, 1)


def test_sums_that_cancel_part_nowhere() -> None:
    """The mean of a row from which its mean was taken is nothing but rounding."""
    text = "[a] m = ReduceMean <axes = [1]> (u) [b] d = Sub (u, m) [c] y = ReduceMean <axes = [1]> (d)"
    nodes = nodes_of(text, output="float[40,1] y", opset=17)
    u = np.random.default_rng(0).standard_normal(ROWS).astype(np.float32)
    values = sessions.run(
        sessions.session(divergence.showing_all(nodes.model).SerializeToString(), optimize=False), {"u": u}
    )
    assert not divergence.within_rounding(values["y"], nodes.exact([u], {})[0], F32.epsilon, 45)
    assert divergence.first_divergence(nodes.model, {"u": u} | values) == ""


# --- without a value ------------------------------------------------------------------------------------------------------
def test_the_program_stands_in_where_it_was_seen_to_be_right(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, p = nodes_of("y = Tanh (u)"), one_map("tanh")
    seen = Reference(p, nodes)
    u = np.ones(ROWS, np.float32)
    assert not seen.agrees()
    seen.values([u], {})
    assert seen.agrees()
    other = Reference(one_map("sigmoid"), nodes)
    other.values([u], {})
    assert not other.agrees()
    calls: list[int] = []
    real = Nodes.exact

    def some(self: Nodes, *args: Any, **kwargs: Any) -> tuple[Array, ...]:
        calls.append(1)
        if len(calls) == 2:
            raise Unknown("too large")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Nodes, "exact", some)
    names = [c if isinstance(c, str) else c.name for c in checks.cases(p, in_float32(nodes), {}, 1, nodes=nodes)]
    assert names[:3] == ["random", "large", "tiny"]


def test_without_any_value_the_check_is_skipped_with_the_reason() -> None:
    nodes = nodes_of("y = Tanh (u)")
    nodes.model.graph.node[0].op_type = "Unheard"
    found = check(
        one_map("tanh"), checks.exact_runner(one_map("tanh")), lambda a, s: [np.tanh(a[0])], {}, 1, nodes=nodes
    )
    assert found.passed
    assert found.worst is None
    assert "Unheard" in found.skipped


def test_sizes_that_the_original_refuses_have_no_answer() -> None:
    p, nodes = one_map("tanh"), nodes_of("y = Tanh (u)")
    right = in_float32(nodes)

    def picky(arrays: Arrays, symbols: Mapping[str, int]) -> Sequence[Array]:
        if np.abs(arrays[0]).max() < 10:
            raise MirageError("refused")
        return right(arrays, symbols)

    assert check(p, right, picky, {}, 1, nodes=nodes).passed

    def never(arrays: Arrays, symbols: Mapping[str, int]) -> Sequence[Array]:
        raise MirageError("refused")

    with pytest.raises(MirageError, match="refused"):
        check(p, right, never, {}, 1, nodes=nodes)


def test_a_program_that_reads_beyond_a_size_has_no_value_there() -> None:
    p = program(lambda g, t: [g.slice(g.input("u", (symbol("n"), 3), t), 0, 1, 1)], F32)
    with pytest.raises(Refused):
        reference.of_program(p, [np.ones((1, 3), np.float32)], {"n": 1})


def test_positions_that_the_shortest_size_does_not_have() -> None:
    """The second of n rows: with one row the original has no answer, and nothing is checked there."""
    p = program(lambda g, t: [g.map("tanh", g.slice(g.input("u", (symbol("n"), 3), t), 0, 1, 1))], F32)
    text = "i = Constant <value_ints = [1]> () r = Gather <axis = 0> (u, i) y = Tanh (r)"
    nodes = nodes_of(text, "float[n,3] u", "float[1,3] y")
    found = check(p, lambda a, s: [np.tanh(a[0][1:2])], in_float32(nodes), {}, 1, nodes=nodes)
    assert found.passed, found.worst
    names = [c.name for c in checks.cases(p, in_float32(nodes), {}, 1, nodes=nodes) if not isinstance(c, str)]
    assert random_inputs.LONGEST in names
    assert not {random_inputs.SHORTEST, random_inputs.EMPTY} & set(names)
    one = {"n": (1, 1)}
    with pytest.raises(MirageError, match=r"onnxruntime failed"):
        check(p, lambda a, s: [np.tanh(a[0][1:2])], in_float32(nodes), {}, 1, one, nodes=nodes)


# --- turns ----------------------------------------------------------------------------------------------------------------
TURNS: dict[str, tuple[str, dict[str, set[float]]]] = {
    "clip": (
        "lo = Constant <value_float = -2.0> () hi = Constant <value_float = 6.0> () y = Clip (u, lo, hi)",
        {"u": {2.0, 6.0}},
    ),
    "minimum": ("b = Constant <value_float = 7.0> () y = Min (u, b)", {"u": {7.0}}),
    "threshold": (
        "b = Constant <value_float = 3.0> () c = Greater (b, u) y = Where (c, u, b)",
        {"u": {3.0}},
    ),
    "constants that nodes make": (
        "b = Constant <value_float = 3.0> () d = Mul (b, b) y = Max (u, d)",
        {"u": {9.0}},
    ),
    "hard sigmoid": ("y = HardSigmoid <alpha = 0.5, beta = 1.0> (u)", {"u": {2.0, 0.0}}),
    "shrink": ("y = Shrink <lambd = 1.5> (u)", {"u": {1.5}}),
    "cast": ("i = Cast <to = 3> (u) y = Cast <to = 1> (i)", {"u": {127.0}}),
    "behind a root": ("n = Neg (u) y = Sqrt (n)", {"n": {0.0}}),
}


@pytest.mark.parametrize("name", TURNS)
def test_turns_are_found_in_nodes(name: str) -> None:
    text, wanted = TURNS[name]
    nodes = nodes_of(text)
    fixed = constants(nodes.model, frozenset())
    known: dict[str, Array] = {}
    for _, made in nodes.trace([np.ones(ROWS, np.float32)], {}):
        known |= {n: a for n, a in made.items() if n in fixed}
    found: dict[str, set[float]] = {}
    for node in nodes.model.graph.node:
        for t in turns(node, known.get):
            found.setdefault(t.operand, set()).add(round(t.at, 6))
    assert found == wanted


def test_what_turns_ask_for_does_not_depend_on_the_seed() -> None:
    nodes, p = nodes_of(WRONG["a clip at 50 before gelu"][0]), one_map("gelu")
    usual = random_inputs.usual_case(p, {}, 1, None, ())
    asked = threshold_inputs.turning(nodes, p, usual.arrays, {}, 50)
    kinds = [[e.kind for e in asked.edges(usual.arrays, seed)] for seed in (1, 2)]
    assert kinds[0] == kinds[1]
    assert set(kinds[0]) == set(threshold_inputs.KINDS)
    first = next(e for e in asked.edges(usual.arrays, 1) if e.kind == threshold_inputs.TURNS)
    assert 100 < np.sqrt(np.mean(np.square(first.arrays[0]))) < 400 or len(asked.requests) > 4
    for e in asked.edges(usual.arrays, 1):
        if e.kind == threshold_inputs.ONE_SIGN:
            assert len(np.unique(np.sign(e.arrays[0]))) == 1


@pytest.mark.parametrize("dtype", [F16, I64])
def test_inputs_without_float_numbers_have_no_turns(dtype: DType) -> None:
    p = program(lambda g, t: [g.cast(g.input("u", ROWS, t), F32)], dtype)
    kind = {F16: "float16[40,45] u", I64: "int64[40,45] u"}[dtype]
    nodes = nodes_of("y = Cast <to = 1> (u)", kind)
    arrays = [np.ones(ROWS, sessions.numpy_type(dtype))]
    assert threshold_inputs.turning(nodes, p, arrays, {}, 10).requests == ()
