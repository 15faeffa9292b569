"""Agreement of the patched model's answers with the original's: all fragments replaced, on the CPU, by the accuracy
rule."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from mirage_cli import frontends
from mirage_cli.checks import whole_model
from mirage_cli.checks.model_runs import Job, run_job
from mirage_cli.errors import MirageError
from mirage_cli.files.output import LIBRARY, MODEL
from mirage_cli.python import api
from mirage_cli.runtime.example import example_inputs

Record = dict[str, Any]
SEED = 0


def agreement(path: Path, out: Path, cache: Path) -> Record:
    """The statuses of the fragments and the worst output, or what went wrong (`problem`). `out` is made anew; objects of
    earlier runs are taken from `cache`."""
    shutil.rmtree(out, ignore_errors=True)
    try:
        report = api.optimize(path, out, target="cpu", force=True, cache=str(cache), jobs=1).to_json()
        compared = _compared(path, out)
    except MirageError as error:
        return {"problem": str(error)}
    finally:
        shutil.rmtree(out, ignore_errors=True)
    worst = max(compared, key=lambda c: (not c.accuracy.passed, _ratio(c)))
    failed = {f["id"]: f["reason"] for f in report["fragments"] if f["status"] == "failed"}
    return {
        "statuses": dict(Counter(f["status"] for f in report["fragments"])),
        "failed": failed,
        "passed": all(c.accuracy.passed for c in compared),
        "output": worst.output,
        "reference": worst.reference,
        "error": worst.accuracy.rmse,
        "original_error": worst.accuracy.original_rmse,
    }


def _compared(path: Path, out: Path) -> list[whole_model.Compared]:
    """Every output of the patched model beside the original's and a float64 run; outputs of few numbers over more draws."""
    imported = frontends.load(str(path))

    def drawn(number: int) -> whole_model.Draw:
        inputs = example_inputs(imported.model, {}, SEED + number)
        answers = run_job(Job(str(out / MODEL), inputs, out / LIBRARY))
        return answers, run_job(Job(str(path), inputs)), whole_model.float64_run(imported, inputs)

    return whole_model.compare_outputs(*drawn(0), drawn)


def _ratio(compared: whole_model.Compared) -> float:
    return compared.accuracy.rmse / (compared.accuracy.original_rmse + 1e-30)
