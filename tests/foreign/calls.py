"""What is done in processes of their own (see `apart`): commands of mirage, sessions of onnxruntime, draws, float64 runs."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from . import drawing
from .case import Draw, stored

MOST_DRAWS = 60  #: candidates


def mirage(arguments: Sequence[str], state: str, one_isa: bool, forking: bool) -> None:
    """A command as the program runs it. With `one_isa` kernels are compiled for this machine only; with `forking` the
    processes that it starts are forked, which is all that makes them faster."""
    import os

    from mirage_cli.backends import cpu
    from mirage_cli.main import main
    from mirage_cli.processes import isolation
    from tests.optimized import best_isa

    os.environ["XDG_STATE_HOME"] = state
    if one_isa:
        cpu.isas = lambda: (best_isa(),)
    if forking:
        isolation.begun = _Forked  # type: ignore[assignment, misc]
    sys.argv = ["mirage", *arguments]
    main()


class _Forked:
    """A process of mirage's that is forked from the one that this one was forked from, in this one's group."""

    def __init__(self, theirs: Any, max_memory: int) -> None:
        import multiprocessing
        import os

        made = multiprocessing.get_context("forkserver").Process
        self._process = made(target=_joined, args=(os.getpgrp(), theirs, max_memory), daemon=True)
        self._process.start()
        self.pid, self.kill = self._process.pid, self._process.kill

    def poll(self) -> int | None:
        """The exit code of a process that has ended."""
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float) -> None:
        """Raises TimeoutExpired."""
        import subprocess

        self._process.join(seconds)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("mirage", seconds)


def _joined(group: int, theirs: Any, max_memory: int) -> None:
    import multiprocessing
    import os

    from mirage_cli.processes import isolation

    os.setpgid(0, group)
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have children
    isolation.serve(theirs, max_memory)


def draws(path: str, place: str) -> None:
    """Write candidates for inputs as `PLACE/draws.pickle`, the best first."""
    model = onnx.load(path, load_external_data=False)
    found: list[Draw] = stored(Path(path), model)
    whole = onnx.load(path) if _small(path, model) else model
    found += drawing.by_mirage(whole)
    found += drawing.drawn(model)
    found += drawing.other_ranks(model)
    Path(place, "draws.pickle").write_bytes(pickle.dumps(found[:MOST_DRAWS]))


def _small(path: str, model: onnx.ModelProto) -> bool:
    return not any(t.data_location == t.EXTERNAL for t in model.graph.initializer)


def session(
    path: str, library: str, place: str, out: str, numbers: Sequence[int], plain: bool, wanted: int, twice: bool
) -> None:
    """Load a model and run it on draws: `OUT/loaded` when it did, `OUT/N.pickle` with its outputs or the error of each.

    Ends after `wanted` draws without an edge that ran (0: all of them are run). With `twice` a second run on each says
    what is random.
    """
    from mirage_cli.runtime import sessions

    folder = Path(out)
    found: list[Draw] = pickle.loads(Path(place, "draws.pickle").read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = sessions.session(path, Path(library) if library else None, threads=1, optimize=not plain)
    names = [o.name for o in made.get_outputs()]
    (folder / "loaded").write_text("\n".join(names))
    ran = 0
    for k in numbers:
        if wanted and ran >= wanted and not found[k].edge:
            continue
        (folder / "at").write_text(str(k))
        try:
            first = _run(made, found[k].feeds)
            again = _run(made, found[k].feeds) if twice else first
            result = {"outputs": first, "random": [not _same(a, b) for a, b in zip(first, again, strict=True)]}
            ran += not found[k].edge
        except Exception as error:  # onnxruntime's have no common base
            result = {"error": f"{type(error).__name__}: {error}"}
        (folder / f"{k}.pickle").write_bytes(pickle.dumps(result))


def _run(session: Any, feeds: dict[str, Any]) -> list[Any]:
    from mirage_cli.runtime import sessions

    plain = all(isinstance(x, np.ndarray) and x.dtype.kind != "O" for x in feeds.values())
    types = [v.type for v in (*session.get_inputs(), *session.get_outputs())]
    if plain and any("bfloat16" in t or "float8" in t for t in types):
        return list(sessions.run(session, feeds).values())
    return list(session.run(None, feeds))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if not isinstance(a, np.ndarray):
        return bool(a == b)
    return a.shape == b.shape and (a.tobytes() == b.tobytes() if a.dtype.kind != "O" else bool((a == b).all()))


def truth(path: str, place: str, out: str, numbers: Sequence[int], seconds: float) -> None:
    """The float64 outputs of a model on draws, as `OUT/N.truth`, or why there are none."""
    model = onnx.load(path)
    found: list[Draw] = pickle.loads(Path(place, "draws.pickle").read_bytes())
    for k in numbers:
        result = _exact(model, found[k].feeds, None, seconds)
        if "!" in result and len(model.graph.output) > 1:
            for v in model.graph.output:
                result |= _exact(model, found[k].feeds, [v.name], seconds)
        Path(out, f"{k}.truth").write_bytes(pickle.dumps(result))


def _exact(model: onnx.ModelProto, feeds: dict[str, Any], names: list[str] | None, seconds: float) -> dict[str, Any]:
    from mirage_cli.truth import evaluate

    try:
        return dict(evaluate.run(model, feeds, names, seconds=seconds))
    except Exception as error:  # of any kind: what it cannot do is no fault of what is compared
        return {"!": f"{type(error).__name__}: {error}"}
