"""Model files that mean harm end with a clean error or are read safely, in a time and memory that the file's size explains."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from mirage_cli import frontends
from mirage_cli.commands.common import printable
from mirage_cli.errors import ModelError
from mirage_cli.frontends.onnx import protobuf
from mirage_cli.inspection import summary
from mirage_cli.lax.fragments import fragment
from mirage_cli.options.options import Options
from mirage_cli.processes import isolation, programs
from tests.fuzz import limits
from tests.security import models as m
from tests.security.work import counted

HUGE = 1 << 40
LIMIT = 1 << 30  #: bytes that a process of these tests may allocate


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert path.stat().st_size < 2 << 20
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: m.doubling(60), "more than 131072 nodes"),
        (lambda: m.calling(["f0"]), "f::f0 calls f::f0"),
        (lambda: m.calling(["f0", "f1", "f2"]), "without an end"),
        (lambda: m.chained(3000), "refuses the model"),
        (m.two_of_a_name, "the same domain and name"),
        (m.cyclic, "topologically sorted"),
        (m.twice, "single static assignment"),
        (lambda: m.weight([HUGE]), "the file has 0"),
        (lambda: m.weight([-1]), "negative dimension"),
        (lambda: m.weight([1 << 62, 4]), "no tensor can have"),
        (lambda: m.weight([0, 1 << 62]), "no tensor can have"),
        (lambda: m.weight([1] * 33, b"1234"), "no tensor can have"),
        (lambda: m.weight([2], b"123"), "needs 8 bytes, the file has 3"),
        (lambda: m.weight([2], bytes(8000)), "needs 8 bytes, the file has 8000"),
        (lambda: m.weight([2], bytes(8), 9999), "unknown element type: 9999"),
        (lambda: m.constant([HUGE]), "the file has 0"),
        (lambda: m.constant([-1]), "negative dimension"),
        (lambda: m.constant([0, 1 << 62]), "no tensor can have"),
        (lambda: m.constant([2], b"123"), "needs 8 bytes, the file has 3"),
        (lambda: m.constant([2], bytes(8000)), "needs 8 bytes, the file has 8000"),
        (lambda: m.constant([2], bytes(8), 9999), "unknown element type: 9999"),
        (lambda: m.sparse("constant", [HUGE]), "parse"),
        (lambda: m.sparse("initializer", [HUGE]), "sparse"),
        (lambda: m.sparse("branch", [HUGE]), "sparse"),
        (lambda: m.sparse("initializer", []), "sparse"),
    ],
)
def test_refused(make: Callable[[], onnx.ModelProto], words: str, tmp_path: Path) -> None:
    path = saved(make(), tmp_path)
    with pytest.raises(ModelError) as caught:
        frontends.load(str(path))
    assert words in str(caught.value) and str(caught.value).startswith(str(path))


def test_names_that_functions_would_take(tmp_path: Path) -> None:
    """What the model itself names keeps its name, by which users and reports know it, and no name stands for two."""
    proto = m.taken_names()
    read = frontends.load(str(saved(proto, tmp_path))).model
    nodes = list(ir.traversal.RecursiveGraphIterator(read.graph))
    loop = next(n.attributes["body"].as_graph() for n in nodes if n.op_type == "Loop")
    values = [v.name for n in nodes for v in n.outputs] + [v.name for v in loop.inputs] + [*read.graph.initializers]
    names = [n.name for n in nodes]
    assert len(set(values)) == len(values) and len(set(names)) == len(names)
    own = {"n": "If", "k": "Loop", "k_2": "Add", "n_1": "Relu", "k_1": "Abs", "k_3": "Mul"}
    assert own.items() <= {n.name: n.op_type for n in nodes}.items()
    made = {"u": "Exp", "v": "Exp", "w": "If", "t": "Relu", "t_1": "Abs", "t_3": "Loop", "s": "Mul", "y": "Add"}
    assert made.items() <= {v.name: n.op_type for n in nodes for v in n.outputs}.items()
    assert [v.name for v in loop.inputs] == ["t_2_1", "d", "t_4"] and {"t_2", "three"} <= read.graph.initializers.keys()
    assert sum(n.op_type == "Neg" for n in nodes) == 2
    for condition in (True, False):
        feeds = {"x": np.array([1, -2], np.float32), "c": np.array(condition)}
        written = [ReferenceEvaluator(p).run(None, feeds)[0] for p in (proto, ir.serde.serialize_model(read))]
        assert np.array_equal(*written)


def test_operators_that_are_only_called_like_functions(tmp_path: Path) -> None:
    """They stay, under their names; only the calls of the two functions are written out."""
    read = frontends.load(str(saved(m.alike(), tmp_path))).model
    found = [(n.domain, n.op_type, n.overload) for n in read.graph]
    alike = [("f", "g", ""), ("f", "g", "One"), ("F", "g", "one")]
    alike += [("function0", "f", ""), ("function1", "f", ""), ("function_0", "f", "")]
    assert found == [("", "Neg", ""), ("", "Exp", ""), *alike, ("", "Relu", "")]


@pytest.mark.parametrize("depth", [10, 30, 100, 3000])
def test_graphs_in_graphs_in_graphs(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(m.nested(depth))
    with pytest.raises(ModelError, match="damaged, or nested too deeply" if depth > 40 else "refuses the model"):
        frontends.load(str(path))


@pytest.mark.parametrize(
    "make",
    [
        *(lambda d=d: m.filled(d) for d in ([HUGE], [-1], [1 << 31, 1 << 31, 4], [0, 1 << 62])),
        *(lambda k=k: m.grown(k, HUGE) for k in ("Range", "Tile", "Expand", "Pad", "OneHot", "Resize", "RandomNormal")),
        *(lambda k=k: m.grown(k, HUGE) for k in ("BlackmanWindow", "Upsample")),
        lambda: m.grown("EyeLike", 1 << 20),
        lambda: m.grown("Doubling", 40),
        lambda: m.grown("Squares", 4096),
        *(lambda d=d: m.declared(d) for d in ([HUGE, HUGE], [1 << 62, 1 << 62], [-5, 3], [1 << 20, 0])),
    ],
)
def test_tensors_that_are_declared_or_made_huge(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    """Nothing of their size is made: a model of 200 bytes is read within the memory that any model takes."""
    path = saved(make(), tmp_path)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (min(_data() + (256 << 20), before[1] % (1 << 62)), before[1]))
    try:
        summary.inspect(str(path), Options())
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.parametrize("kind", ["Range", "Tile", "Expand", "Pad", "BlackmanWindow", "MaxUnpool"])
def test_what_is_folded_is_small(kind: str, tmp_path: Path) -> None:
    """Tensors of 32 MiB and more, which this machine could well make: too much memory would be told as any failure of folding
    is, so that only sizes that fit into memory show whether anything of their size is made."""
    assert _peak(saved(m.grown(kind, 1 << 23), tmp_path)) < 16 << 20


def test_what_is_folded_is_of_little(tmp_path: Path) -> None:
    """The least of a weight is one number, but the file of the weight, here a sparse one, is not read for it."""
    model = m.model([m.node("ReduceMin", ["w"], ["u"], keepdims=0), m.node("Add", ["x", "u"], ["y"])])
    weight = model.graph.initializer.add(name="w", data_type=m.FLOAT, dims=[1 << 24])
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.data")
    with (tmp_path / "w.data").open("wb") as file:
        file.truncate(4 << 24)
    path = saved(model, tmp_path)
    assert _peak(path) < 16 << 20
    assert [n.op_type for n in frontends.load(str(path)).model.graph] == ["ReduceMin", "Add"]


@pytest.mark.parametrize(
    ("kind", "size"),
    [("Conv", 1000), ("AveragePool", 2000), ("LpPool", 2000), ("RoiAlign", 1 << 28), ("TfIdfVectorizer", 1 << 40)],
)
def test_what_is_folded_is_soon_done(kind: str, size: int, tmp_path: Path) -> None:
    """However small all tensors are, windows and what is skipped are as large as an attribute says."""
    with limits.time(2.0):
        read = frontends.load(str(saved(m.worked(kind, size), tmp_path))).model
    assert read.graph[0].op_type == kind


def _peak(path: Path) -> int:
    """The most bytes that Python and numpy hold at once while a model is read."""
    frontends.load(str(path))  # what is imported and made once
    tracemalloc.start()
    try:
        frontends.load(str(path))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _data() -> int:
    """Bytes of data that this process has."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmData"))
    return int(line.split()[1]) << 10


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "(" * 900 + "a" + ")" * 90,
        "*".join(f"(a{k}+b{k})" for k in range(40)),
        "a+" * 100_000 + "a",
        "-" * 990 + "a",
        "a " * 100_000,
        "9" * 100_000,
        "9" * 900,
        "²",
        "min[a,3]" * 10_000,
        "*".join(["a"] * 50_000),
        "*".join(["a"] * 400),
        "\u202e\x1b[31m",
        "'; rm -rf / #",
    ],
)
def test_dimensions_are_read_as_small_polynomials_or_as_names(text: str, tmp_path: Path) -> None:
    assert summary.inspect(str(saved(m.symbols(text), tmp_path)), Options()).document["model"]["nodes"] == 1


GROWING = [
    m.chain,
    m.wide,
    m.many_imports,
    m.same_names,
    m.many_functions,
    m.many_calls,
    m.uncalled,
    m.fanned,
    m.branches,
]
GROWING += [m.behind_a_product, m.doubled, m.skips, m.transposed, m.products, m.read_by_all]
GROWING += [m.concatenated, m.long_chain, m.ladder]


@pytest.mark.parametrize("make", GROWING)
def test_work_grows_with_the_file(
    make: Callable[[int], onnx.ModelProto], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times as many nodes, inputs, weights, names or functions are about three times the work; nine is quadratic."""

    def inspected(count: int) -> int:
        path = saved(make(count), tmp_path)
        return counted(lambda: summary.inspect(str(path), Options()))

    monkeypatch.setattr(fragment, "LONG", 4)  # what fragments compute again is a chain of so many steps each
    inspected(3)  # what is imported and made once
    assert inspected(120) < 5 * inspected(40)


@pytest.mark.parametrize("make", [m.chain, m.behind_a_product, m.doubled, m.skips, m.concatenated])
def test_chains_of_any_length(make: Callable[[int], onnx.ModelProto], tmp_path: Path) -> None:
    """No walk over a graph recurses: Python allows for a thousand calls within each other."""
    summary.inspect(str(saved(make(3 if make is m.concatenated else 1100), tmp_path)), Options())


def test_files_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of terabytes is refused before it is read, and standard input is read up to the largest model."""
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(ModelError, match="holds at most"):
        frontends.load(str(path))
    monkeypatch.setattr(protobuf, "MAX_BYTES", 1 << 16)
    with open("/dev/zero", "rb") as zeros, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", type("Input", (), {"buffer": zeros}))
        with pytest.raises(ModelError, match="holds at most"):
            frontends.load("-")


def test_attributes_of_another_type_where_the_checker_does_not_look(tmp_path: Path) -> None:
    """Of operators of onnxruntime; tests/fuzz/corpus has one of an operator in a function."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2, 3, 4] x, float[4] w) => (float[2, 3, 4] y, float[2, 3, 4] u) {
            y, m, v, u = com.microsoft.SkipLayerNormalization <epsilon = "a"> (x, x, w)
        }"""
    with pytest.raises(ModelError, match="expected FLOAT as attribute 'epsilon', found STRING"):
        frontends.load(str(saved(onnx.parser.parse_model(text), tmp_path)))


FRAGILE = {
    "LayerNormalization": (
        "(float[4] x) => (float[4] y)",
        "n = 1099511627776",
        "y = LayerNormalization <axis: int = @n> (x, x)",
        "is no dimension",
    ),
    "Einsum": ("(float[4] x) => (float[4] y)", 'n = "aa1"', "y = Einsum <equation: string = @n> (x)", "which is none"),
}


@pytest.mark.parametrize("name", FRAGILE)
def test_what_ends_inference_where_a_function_is_told_so(name: str, tmp_path: Path) -> None:
    """Attributes of calls become those of the functions' nodes."""
    graph, given, node, words = FRAGILE[name]
    outputs = node.partition(" =")[0]
    text = f"""<ir_version: 8, opset_import: ["" : 18, "f" : 1]> g {graph} {{ {outputs} = f.s <{given}> (x) }}
        <domain: "f", opset_import: ["" : 18]> s <n> (x) => ({outputs}) {{ {node} }}"""
    with pytest.raises(ModelError, match=words), limits.time(5.0):
        frontends.load(str(saved(onnx.parser.parse_model(text), tmp_path)))


def test_a_split_into_more_results_than_it_says_is_left(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 18, "f" : 1]> g (float[4] x) => (float[2] y, float[2] z) {
            y, z = f.s <n = 1> (x)
        }
        <domain: "f", opset_import: ["" : 18]> s <n> (x) => (y, z) { y, z = Split <num_outputs: int = @n> (x) }"""
    found = frontends.load(str(saved(onnx.parser.parse_model(text), tmp_path)))
    assert "says another number" in str(found.reasons)


SEQUENCES = {
    "declared": "(float[2, 9000000] x) => (float y) <int64 by = {1}> { s = SplitToSequence <axis = 1> (x, by)",
    "declared sizes": "(float[2, 4] x, int64[9000000] by) => (float y) { s = SplitToSequence <axis = 1> (x, by)",
    "inferred": """(float[1] x) => (float y) <int64 by = {1}, int64[2] to = {2, 9000000}> {
        e = Expand(x, to) s = SplitToSequence <axis = 1> (e, by)""",
    "of a part": """(float[2, 9000000] x) => (float y) <int64 by = {1}, int64 half = {4500000}, int64 zero = {0}> {
        t = SplitToSequence <axis = 1> (x, half) e = SequenceAt(t, zero) s = SplitToSequence <axis = 1> (e, by)""",
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_are_not_written_out_at_any_length(name: str, tmp_path: Path) -> None:
    """A few bytes tell how many results a SplitToSequence makes, for each of which folding would make a name."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> g {SEQUENCES[name]} at = Constant <value_int = 1> ()'
    text += " y = SequenceAt(s, at) }"
    path = saved(onnx.parser.parse_model(text), tmp_path)
    with limits.time(5.0):
        found = summary.inspect(str(path), Options())
    assert "SplitToSequence: the operator is not read" in found.text()


def test_short_sequences_are_read(tmp_path: Path) -> None:
    """Also where only what was folded before tells how long they are, and however long what they are split of is."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 9000000] x) => (float[N, 2250000] y)
        <int64 half = {4500000}, int64 part = {2250000}, int64 zero = {0}> {
            s = SplitToSequence <axis = 1> (x, half) a = SequenceAt(s, zero)
            t = SplitToSequence <axis = -1> (a, part) b = SequenceAt(t, zero)
            e = Exp(b) f = Tanh(e) y = Mul(e, f)
        }"""
    found = summary.inspect(str(saved(onnx.parser.parse_model(text), tmp_path)), Options())
    assert "Sequence" not in found.text()


# --- the working folder -----------------------------------------------------------------------------------------------
def test_programs_are_not_taken_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a model and a `g++` in it, and `.` in $PATH."""
    fake = tmp_path / "g++"
    fake.write_text("#!/bin/sh\ntouch harm\n")
    fake.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for path in (".", "", f".:{os.environ['PATH']}"):
        monkeypatch.setenv("PATH", path)
        found = programs.which("g++")
        assert found is None or os.path.isabs(found)
        programs.run(["g++", "--version"], tmp_path, 20)
    assert not (tmp_path / "harm").exists()


def test_modules_are_not_taken_from_the_working_folder(tmp_path: Path) -> None:
    """Processes of a run import what their parent would, not a `pickle.py` beside the model."""
    for name in ("multiprocessing", "pickle", "socket", "selectors", "mirage_cli", "numpy"):
        (tmp_path / f"{name}.py").write_text("open('harm', 'w').close()\n")
    root = Path(__file__).resolve().parents[2]
    script = (
        f"import sys; sys.path[:1] = [{str(root)!r}]\n"
        "from mirage_cli.processes import isolation\nimport math\n"
        "assert dict(isolation.each(math.sqrt, [(4,), (9,)], 2)) == {0: 2.0, 1: 3.0}\n"
        "assert isolation.Pool(2).map(math.sqrt, [(4,), (9,)]) == [2.0, 3.0]\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    program = tmp_path.parent / f"{tmp_path.name}-program.py"  # as an installed one: neither -P nor the working folder
    program.write_text(f'if __name__ == "__main__":\n    exec({script!r})\n')
    command = [sys.executable, str(program)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "harm").exists()


# --- limits -----------------------------------------------------------------------------------------------------------
def _allocated(limit: int, size: int) -> int:
    isolation.limit_memory(limit)
    return len(bytearray(size))


def test_a_process_may_take_what_it_was_allowed() -> None:
    told = "it needs more memory than --max-memory allows"
    ((_, found),) = isolation.each(_allocated, [(LIMIT, 2 * LIMIT)], 1, apart=True)
    assert found == isolation.Lost(told)


def test_max_memory_is_kept(tmp_path: Path) -> None:
    """A small model with terabytes of tensors: no process of the run takes more than it may."""
    path = saved(m.declared([HUGE, HUGE]), tmp_path)
    code = (
        "import resource, sys\nfrom mirage_cli.main import cli\n"
        "code = cli.run(sys.argv[1:])\n"  # ru_maxrss of the program itself begins at what this test process takes
        "own = next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "most = max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
        "print(most << 10, file=sys.stderr)\nsys.exit(code)\n"
    )
    options = [
        "--dry-run",
        "--target",
        "cpu",
        "--jobs",
        "1",
        "--max-memory",
        str(LIMIT),
        "--budget",
        "2",
        "--no-cache",
        "--json",
    ]
    command = [sys.executable, "-c", code, "optimize", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 5), done.stderr
    json.loads(done.stdout)
    assert int(done.stderr.split()[-1]) < LIMIT


# --- what is printed --------------------------------------------------------------------------------------------------
def test_names_hide_nothing_on_a_terminal() -> None:
    hostile = "\x1b]0;owned\x07 \x1b[2J \u202e\u2066 \x9b31m \r \b \u2028 \ud800"
    shown = printable(hostile)
    assert shown.isprintable() and "\\x1b" in shown and "\\u202e" in shown
    shown.encode()
