"""The library as ONNX Runtime sees it: results, shapes, errors, threads, fallback."""

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from mirage_cli.backends.cpu import ISA_FLAGS, isas
from mirage_cli.backends.spec import OperatorSpec
from mirage_cli.errors import MirageError
from mirage_cli.runtime import sessions as runtime

from .conftest import make_model, random
from .kernels import AFFINE, NEGATE, NEGATE_BF16, PICKY, REVERSE, WHICH


def session(library: Path, op: OperatorSpec, dims: list[list[Any]] | None = None, **options: Any) -> Any:
    return runtime.session(make_model(op, dims), library, **options)


def test_results(library: Path) -> None:
    x = random(7, 4)
    assert np.array_equal(runtime.run(session(library, AFFINE), {"in0": x})["out0"], 2 * x + 1)


def test_half_precision_and_hostile_names(library: Path) -> None:
    x = random(7, 4).astype(np.float16)
    assert np.array_equal(runtime.run(session(library, NEGATE), {"in0": x})["out0"], -x)


def test_bfloat16(library: Path) -> None:
    x = random(7, 4).astype(ml_dtypes.bfloat16)
    made = session(library, NEGATE_BF16)
    found = runtime.run(made, {"in0": x})["out0"]
    assert found.dtype == x.dtype
    assert np.array_equal(found.view(np.uint16), x.view(np.uint16) ^ 0x8000)
    assert runtime.run(made, {"in0": x[:0]})["out0"].shape == (0, 4)


@pytest.mark.parametrize("threads", [1, 2])
def test_workspace_threads_and_two_outputs(library: Path, threads: int) -> None:
    made = session(library, REVERSE, threads=threads)
    for batch, seq in ((2, 3), (1, 500), (3, 1)):
        x = random(2 * batch * seq, 3)
        found = runtime.run(made, {"in0": x, "in1": np.zeros((batch, 5), np.int64)})
        assert np.array_equal(found["out0"], x[::-1].reshape(-1, 6))
        assert found["out1"] == len(x)


def test_a_dynamic_batch_may_be_empty(library: Path) -> None:
    made = session(library, AFFINE)
    for rows in (3, 0, 1):
        x = random(rows, 4)
        assert np.array_equal(runtime.run(made, {"in0": x})["out0"], 2 * x + 1)
    # The second output is not empty, so the kernel runs.
    found = runtime.run(session(library, REVERSE), {"in0": random(0, 3), "in1": np.zeros((4, 5), np.int64)})
    assert found["out0"].shape == (0, 6)
    assert found["out1"] == 0


@pytest.mark.parametrize(
    ("dims", "shapes", "reason"),
    [
        (
            [["m", 3], ["b", 5]],
            [(13, 3), (2, 5)],
            r"input 0 'x' has shape \[13, 3\], expected \[2\*batch\*seq \+ past, 3\]",
        ),
        ([["m", "n"], ["b", 5]], [(12, 4), (2, 5)], r"\[12, 4\], expected .* with batch = 2, seq \+ past = 3"),
        ([["m", 3], ["b", "n"]], [(12, 3), (2, 6)], r"input 1 'w' has shape \[2, 6\], expected \[batch, 5\] with"),
        ([["m", 3], None], [(12, 3), (2, 5, 1)], r"input 1 'w' has shape \[2, 5, 1\], expected \[batch, 5\]"),
        ([["m", 3], ["b", 5]], [(0, 3), (0, 5)], r"'seq \+ past' cannot be told from 0 elements"),
    ],
)
def test_wrong_shapes_are_told(library: Path, dims: Any, shapes: Sequence[tuple[int, ...]], reason: str) -> None:
    made = session(library, REVERSE, dims)
    feeds: dict[str, Any] = {"in0": np.zeros(shapes[0], np.float32), "in1": np.zeros(shapes[1], np.int64)}
    with pytest.raises(MirageError, match=rf"mirage.reverse_c2 \(node 'the_node'\): .*{reason}"):
        runtime.run(made, feeds)


def test_hostile_names_in_messages(library: Path) -> None:
    with pytest.raises(MirageError, match=r'(?s)input 0 \'x"\); abort\(\); .*%s%n'):
        runtime.run(session(library, NEGATE, [["n", "m"]]), {"in0": np.zeros((2, 5), np.float16)})


def test_kernel_errors_become_messages(library: Path) -> None:
    made = session(library, PICKY)
    runtime.run(made, {"in0": random(8)})
    with pytest.raises(MirageError, match=r"mirage.picky_d3 .*: the CPU kernel refused these shapes"):
        runtime.run(made, {"in0": random(9)})


@pytest.mark.parametrize(
    ("op", "dims", "expected"),
    [
        (AFFINE, [["n", 4]], ["n", 4]),
        (AFFINE, [[7, 4]], [7, 4]),
        (AFFINE, [[None, 4]], []),  # an unnamed dimension: nothing may be claimed
        (AFFINE, [["n", 5]], ["n", 4]),
        (AFFINE, [["n"]], []),
        (REVERSE, [[12, 3], [2, 5]], [6, 6]),
        (REVERSE, [["m", 3], ["b", 5]], []),
        (WHICH, [[1]], [2]),
    ],
)
def test_inferred_shapes(library: Path, op: OperatorSpec, dims: Any, expected: list[Any]) -> None:
    assert session(library, op, dims).get_outputs()[0].shape == expected


@pytest.mark.parametrize("optimize", [True, False])
def test_the_models_own_function_runs_without_the_library(library: Path, optimize: bool) -> None:
    # The body differs from the kernel on purpose, to see which of them ran.
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    body = helper.make_function("mirage", AFFINE.op_type, ["x"], ["y"], nodes, [helper.make_opsetid("", 20)])
    model = make_model(AFFINE, functions=(body,))
    onnx.checker.check_model(onnx.load_from_string(model))
    x = random(5, 4)
    plain = runtime.run(runtime.session(model, optimize=optimize), {"in0": x})
    ours = runtime.run(runtime.session(model, library, optimize=optimize), {"in0": x})
    assert np.array_equal(plain["out0"], 2 * x)
    assert np.array_equal(ours["out0"], 2 * x + 1)


def test_many_threads_and_two_sessions(library: Path) -> None:
    sessions = [session(library, REVERSE, threads=2) for _ in range(2)]

    def work(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        good = True
        for _ in range(40):
            batch, seq = rng.integers(1, 30, 2)
            x = rng.standard_normal((2 * batch * seq, 3)).astype(np.float32)
            found = runtime.run(sessions[seed % 2], {"in0": x, "in1": np.zeros((batch, 5), np.int64)})
            good = good and np.array_equal(found["out0"], x[::-1].reshape(-1, 6))
        return good

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_the_library_can_be_loaded_again_and_again(library: Path) -> None:
    x = random(2, 4)
    for _ in range(20):
        assert np.array_equal(runtime.run(session(library, AFFINE), {"in0": x})["out0"], 2 * x + 1)


@pytest.mark.skipif(len(isas()) == 1, reason="one instruction set on this processor architecture")
@pytest.mark.parametrize("limit", ["base", "avx2", ""])
def test_instruction_sets(library: Path, limit: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(make_model(WHICH))
    program = """if True:
        import sys
        from pathlib import Path
        import numpy as np
        from mirage_cli.runtime import sessions as runtime
        session = runtime.session(sys.argv[1], Path(sys.argv[2]))
        print(*runtime.run(session, {"in0": np.zeros(1, np.float32)})["out0"])
        """
    command = [sys.executable, "-c", program, str(tmp_path / "model.onnx"), str(library)]
    environment = os.environ | {"MIRAGE_MAX_ISA": limit}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    supported = [isa for isa in ISA_FLAGS if all(flag[2:] in flags for flag in ISA_FLAGS[isa] if "prefer" not in flag)]
    best = {"base": 0, "avx2": min(1, len(supported) - 1), "": len(supported) - 1}[limit]
    assert [float(text) for text in printed] == [best, 0.0]  # the shared inline function runs everywhere
