"""The chains that `samples.overhead` times: what they compute, and how many tensors our operators take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from samples import overhead


@pytest.mark.parametrize(("added", "inputs"), [(0, 3), (13, 16)])
def test_each_layer_is_one_operator(added: int, inputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    original = overhead.call

    def call(path: Path, library: Path | None, threads: int) -> Callable[[], None]:
        ran.append(library)
        return original(path, library, threads)

    for name, value in (("LAYERS", 2), ("TURNS", 1), ("CALLS", 1), ("call", call)):
        monkeypatch.setattr(overhead, name, value)
    assert min(overhead.both(added, 1, tmp_path)) > 0
    nodes = onnx.load(tmp_path / f"{added}" / "model.onnx").graph.node
    assert [(n.domain, len(n.input)) for n in nodes] == [("mirage", inputs)] * 2
    assert [library is not None for library in ran] == [False, True]
