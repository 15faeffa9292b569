"""Records of many cells, in processes of their own (which cannot be given functions of a `__main__`)."""

from __future__ import annotations

import logging
import multiprocessing
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from samples.zoo.agree import agreement
from samples.zoo.cells import Cell
from samples.zoo.examine import Record, examine, load, save


def quiet() -> None:
    """No warnings and progress of the exporters, one thread."""
    import torch  # noqa: PLC0415

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)


def run(cells: list[Cell], folder: Path, fresh: bool, agree: bool, jobs: int) -> Iterator[Record]:
    """Records as they are made; with several jobs, in processes of their own."""
    work = partial(_one, folder=folder, fresh=fresh, agree=agree)
    if jobs == 1:
        quiet()
        yield from map(work, cells)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, quiet) as pool:
        yield from pool.imap_unordered(work, cells)


def _one(cell: Cell, folder: Path, fresh: bool, agree: bool) -> Record:
    """The record of a cell; without `agree`, an earlier run's agreement of the same fragments is kept."""
    record, earlier = examine(cell, folder, fresh), load(cell, folder) or {}
    if "fragments" in record and agree:
        model = folder / f"{cell.name}.onnx"
        record["agreement"] = agreement(model, folder / f"{cell.name}.out", folder / "cache")
    elif "agreement" in earlier and earlier.get("fragments") == record.get("fragments"):
        record["agreement"] = earlier["agreement"]
    save(record, folder)
    return record
