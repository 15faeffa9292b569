"""Proofs begin at the file: what nodes state is what is proved, by points that nobody knows beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mirage_cli import frontends
from mirage_cli.checks import stated_program
from mirage_cli.frontends import Imported
from mirage_cli.frontends.onnx.front_end import from_proto
from mirage_cli.lax.fragments.fragment import partition
from mirage_cli.lax.fragments.lax_fragment import LaxFragment
from mirage_cli.optimization.task import tensor_names
from mirage_cli.python import api
from mirage_cli.search.proof.verify import verify
from mirage_cli.search.schedules.target import load_target
from mirage_cli.search.search import Searcher, SearchOptions
from tests.search.programs import normed

OPTIONS = frontends.Options()


def model(nodes: list[onnx.NodeProto], constants: Mapping[str, Any], opset: int = 17) -> onnx.ModelProto:
    """x W as `u`, then these nodes up to `y`."""
    weight = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    stored = {"W": weight} | {k: np.float32(v) for k, v in constants.items()}
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["u"]), *nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def gelu(x: str, y: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Div", [x, "root"], ["a"]),
        helper.make_node("Erf", ["a"], ["b"]),
        helper.make_node("Add", ["b", "one"], ["c"]),
        helper.make_node("Mul", [x, "c"], ["d"]),
        helper.make_node("Mul", ["d", "half"], [y]),
    ]


GELU = {"root": 2**0.5, "one": 1.0, "half": 0.5}
CLIPPED = [helper.make_node("Clip", ["u", "low", "high"], ["v"]), *gelu("v", "y")]
BOUNDS = GELU | {"low": -50.0, "high": 50.0}


def read(proto: onnx.ModelProto) -> tuple[Imported, LaxFragment]:
    imported = from_proto(proto, OPTIONS)
    (found,) = partition(imported.graph, tensor_names(imported)).fragments
    return imported, found


def test_a_clip_in_a_gelu_is_part_of_what_is_proved() -> None:
    imported, fragment = read(model(CLIPPED, BOUNDS))
    said = stated_program.statement(imported, fragment.program, "key")
    assert said.passed and said.log2_bound < -40
    assert any("stands for sqrt(1/2)" in a for a in said.assumptions)
    without = {n.name: n for n in fragment.program.nodes}
    clip = next(n for n in fragment.program.nodes if n.op == "min")
    inner = next(i for i in clip.inputs if without.get(i) is None or without[i].op != "const")
    nodes = tuple(
        replace(n, inputs=tuple(inner if i == clip.name else i for i in n.inputs)) for n in fragment.program.nodes
    )
    wrong = stated_program.statement(imported, replace(fragment.program, nodes=nodes, _axes_of={}), "key")
    assert not wrong.passed and "differs from what the nodes mean" in wrong.reason


def test_a_fragment_that_is_not_what_its_nodes_mean_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(model(CLIPPED, BOUNDS), tmp_path / "m.onnx")
    real = stated_program.stated_program

    def other(imported: Imported, *names: Any) -> Any:
        p = real(imported, *names)
        nodes = tuple(replace(n, op="max") if n.op == "min" else n for n in p.nodes)
        return replace(p, nodes=nodes, _axes_of={})

    monkeypatch.setattr(stated_program, "stated_program", other)
    report = api.optimize(tmp_path / "m.onnx", tmp_path / "out", target="cpu", force=True, cache="")
    assert not report.replaced
    assert "is not proved to be what its nodes mean" in report.fragments[0].reason
    assert (tmp_path / "out/model.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()


def test_runs_draw_points_of_their_own_and_write_the_same_bytes(tmp_path: Path) -> None:
    onnx.save(model(CLIPPED, BOUNDS), tmp_path / "m.onnx")
    reports = [api.optimize(tmp_path / "m.onnx", tmp_path / k, target="cpu", force=True, cache="") for k in ("a", "b")]
    first, second = (r.fragments[0].verification for r in reports)
    assert first["entropy"] != second["entropy"] and first["primes"] != second["primes"]
    assert first["statement"]["primes"] != second["statement"]["primes"]
    files = [p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file() and p.stem != "report"]
    assert files
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_points_come_from_program_mugraph_and_entropy() -> None:
    """The seed alone does not tell them: constants that were chosen for its primes deceive nobody."""
    program = normed()
    found = Searcher(SearchOptions()).search(program, load_target("cpu")).candidates
    first, other = found[0], next(c for c in found if c.graph != found[0].graph)
    tiles = [[s.as_tiles() for s in c.schedules] for c in (first, other)]
    verdicts = [verify(program, first.graph, tiles[0], entropy=e) for e in ("", "", "a", "b")]
    verdicts.append(verify(program, other.graph, tiles[1]))
    assert all(v.passed for v in verdicts)
    assert len({v.primes for v in verdicts}) == 4 and verdicts[0].primes == verdicts[1].primes


@pytest.mark.parametrize("symbols", [(), ("past", "(past+1)"), ("batch", "seq", "(batch·seq)")])
def test_numbers_of_symbols_fit_each_other(symbols: tuple[str, ...]) -> None:
    for numbers in stated_program.assignments(symbols):
        assert numbers.keys() >= set(symbols)
        assert "(past+1)" not in numbers or numbers["(past+1)"] == numbers["past"] + 1
        assert "(batch·seq)" not in numbers or numbers["(batch·seq)"] == numbers["batch"] * numbers["seq"]
