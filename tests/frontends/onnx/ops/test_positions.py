"""Stored tensors that compare positions are read as comparisons, if every element says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_cli.frontends.onnx.ops.positions import Band, band_of
from mirage_cli.frontends.onnx.walk import FRONT
from mirage_cli.lax.ir.graph import Graph, Input
from tests.frontends.models import agrees, parsed, read

TYPES = {"bool": "float", "float32": "float", "float16": "float16", "int32": "int32", "int64": "int64"}
LOWEST = np.finfo(np.float16).min
ROW, KEY = np.arange(70)[:, None], np.arange(90)[None]
CAUSAL, WINDOW = KEY <= ROW + 20, (KEY <= ROW + 20) & (KEY > ROW - 11)
BANDS: dict[str, NDArray[Any]] = {
    "causal": CAUSAL,
    "lower triangle": np.tril(np.ones((90, 90), np.int32))[None, None],
    "strict": ~(KEY < ROW),
    "additive": np.where(CAUSAL, 0, -np.inf).astype(np.float32),
    "lowest": np.where(WINDOW, 0, LOWEST).astype(np.float16),
    "window": np.broadcast_to(WINDOW, (2, 1, 70, 90)),
    "denied": ~WINDOW[:, None],
    "padded": np.broadcast_to(KEY[0] < 60, (3, 1, 1, 90)),
    "diagonal": np.eye(70, dtype=np.int64),
    "one position": np.where(KEY[0] < 60, 0, -1e4).astype(np.float32),
    "all": np.zeros((70, 90), np.float32),
}
TENSORS: dict[str, NDArray[Any]] = {
    "blocks": ROW // 10 == KEY // 10,
    "twice as far": KEY <= 2 * ROW,
    "three numbers": np.where(CAUSAL, 0, np.where(WINDOW[::-1], 1, 2)),
    "steps": np.select([KEY < ROW, KEY == ROW], [0, 1], 2).astype(np.float32),
    "of three positions": np.arange(5)[:, None, None] + ROW > KEY,
    "weights": np.array([0.25, 0.5], np.float32),
    "an identity": np.eye(70, 90, dtype=np.float32),
    "no number": np.where(CAUSAL, 0, np.nan).astype(np.float32),
}


def _stored(graph: Graph) -> list[str]:
    return [s.name for s in graph.steps if isinstance(s, Input) and s.constant]


def _model(mask: NDArray[Any]) -> Any:
    dims = ",".join(map(str, mask.shape))
    kind = TYPES[mask.dtype.name]
    step = "y = Where (m, x, z)" if mask.dtype == np.bool_ else "s = Add (x, m)  y = Add (s, z)"
    return parsed(f"g ({kind}[{dims}] x, {kind} z) => ({kind}[{dims}] y) {{ {step} }}", m=mask)


@pytest.mark.parametrize("name", BANDS)
def test_comparisons(name: str) -> None:
    mask = BANDS[name]
    dtype = np.float32 if mask.dtype == np.bool_ else mask.dtype
    reading = agrees(_model(mask), x=np.ones(mask.shape, dtype), z=np.array(2, dtype))
    assert not _stored(reading.graph)


@pytest.mark.parametrize("name", TENSORS)
def test_what_is_none_stays_a_tensor(name: str) -> None:
    assert _stored(read(_model(TENSORS[name])).graph)


def _elements(band: Band, rows: int, columns: int) -> NDArray[Any]:
    apart = np.arange(columns)[None] - np.arange(rows)[:, None]
    kept = (apart <= band.high) & (apart >= (-rows if band.low is None else band.low))
    return np.where(kept, band.inside, band.outside)


def test_one_element_decides() -> None:
    mask = ((KEY <= ROW) & (KEY > ROW - 4))[:7, :9]
    found = 0
    for at in np.ndindex(mask.shape):
        changed = mask.copy()
        changed[at] ^= True
        band = band_of(changed)
        found += band is not None
        assert band is None or bool((_elements(band, *mask.shape) == changed).all())
    assert found == 0


def test_elements_far_behind_count() -> None:
    mask = np.tril(np.ones((100, 100), bool))
    mask[99, 98] = False
    assert mask.size > FRONT and _stored(read(_model(mask)).graph)


def test_any_band() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        rows, columns = random.integers(2, 9, 2)
        low, high = np.sort(random.integers(-9, 9, 2))
        apart = np.arange(columns)[None] - np.arange(rows)[:, None]
        mask = (apart >= low) & (apart <= high)
        band = band_of(mask)
        if band is None or band.row is None:
            assert (mask == mask[:, :1]).all() or (mask == mask[:1]).all()
        else:
            np.testing.assert_array_equal(_elements(band, rows, columns), mask)
